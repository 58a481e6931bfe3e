/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a job must have in common. */
#include "cli/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"

enum {
    N_SAMPLES = 16, /* of each split are compared */
    TEXT_BYTES_MAX = 64 << 20,
    VERDICT_BYTES = 240,
    VERSION_BYTES = 32
};

/* ---- agreeing ---- */

/* What each rank has, in their order. @param all_p the caller's to free, also
 * on failure */
static sl_status_t gather(sl_world_t *world, const void *mine, size_t n_bytes,
                          void **all_p)
{
    const int n = sl_world_size(world);
    sl_status_t status;

    *all_p = calloc((size_t)n, n_bytes);
    if (*all_p == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for %d ranks", n);
    }
    status = sl_world_gather(world, mine, n_bytes, *all_p);
out:
    return status;
}

typedef struct sl_verdict {
    char text[VERDICT_BYTES]; /* empty: nothing is wrong */
} sl_verdict_t;

/* The first objection of any rank is the failure of all, with `code`. */
static sl_status_t agree(sl_world_t *world, sl_status_t code,
                         const sl_verdict_t *mine)
{
    const int n = sl_world_size(world);
    const sl_verdict_t *all;
    void *gathered;
    sl_status_t status;
    int i;

    SL_TRY(status, gather(world, mine, sizeof(*mine), &gathered), out);
    all = gathered;
    for (i = 0; i < n && all[i].text[0] == '\0'; i++) {
    }
    if (i == n) {
        goto out;
    }
    if (sl_world_rank(world) == 0) {
        SL_FAIL(status, code, out, "rank %d on host %s %s", i,
                sl_world_host(world, i), all[i].text);
    }
    SL_REFUSE(status, code, out, "rank %d on host %s %s", i,
              sl_world_host(world, i), all[i].text);
out:
    free(gathered);
    return status;
}

/* ---- the config ---- */

/* What is one rank's own affair. */
static int may_differ(const char *path)
{
    static const char *const paths[] = {"job", "devices.use", "devices.memory",
                                        "devices.host_memory",
                                        "devices.threads" /* see below */};
    size_t i;

    for (i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
        if (strcmp(path, paths[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/* One line a setting, "train.batch=16", in the order of the file. */
static void flatten(const sl_yaml_node_t *node, const char *path, FILE *out)
{
    const sl_yaml_kind_t kind = sl_yaml_kind(node);
    const size_t n = sl_yaml_count(node);
    char below[512];
    size_t i;

    if (may_differ(path)) {
        return;
    }
    if (kind == SL_YAML_SCALAR) {
        const char *text = sl_yaml_text(node, NULL);

        (void)fprintf(out, "%s=%s\n", path, text == NULL ? "" : text);
        return;
    }
    for (i = 0; i < n; i++) {
        const char *key = NULL;
        const sl_yaml_node_t *entry = sl_yaml_entry(node, i, &key);
        const char *dot = path[0] == '\0' ? "" : ".";

        if (key != NULL) {
            (void)snprintf(below, sizeof(below), "%s%s%s", path, dot, key);
        } else {
            (void)snprintf(below, sizeof(below), "%s%s%zu", path, dot, i);
        }
        flatten(entry, below, out);
    }
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A config as text with its lines sorted, so that the order of keys and of
 * options does not matter. */
static char *config_text(const sl_config_t *config)
{
    char *text = NULL, *sorted = NULL, *rest = NULL;
    char **lines = NULL;
    size_t n_bytes = 0, n_lines = 0, i;
    FILE *out = open_memstream(&text, &n_bytes);

    if (out == NULL) {
        return NULL;
    }
    flatten(sl_yaml_root(config->yaml), "", out);
    if (fclose(out) != 0 || text == NULL) {
        goto out;
    }
    lines = calloc(n_bytes + 1, sizeof(*lines));
    sorted = malloc(n_bytes + 1);
    if (lines == NULL || sorted == NULL) {
        free(sorted);
        sorted = NULL;
        goto out;
    }
    lines[0] = strtok_r(text, "\n", &rest);
    while (lines[n_lines] != NULL) {
        lines[++n_lines] = strtok_r(NULL, "\n", &rest);
    }
    qsort(lines, n_lines, sizeof(*lines), compare_lines);
    sorted[0] = '\0';
    for (i = 0, n_bytes = 0; i < n_lines; i++) {
        const size_t n = strlen(lines[i]);

        memcpy(sorted + n_bytes, lines[i], n);
        sorted[n_bytes + n] = '\n';
        n_bytes += n + 1;
        sorted[n_bytes] = '\0';
    }
out:
    free(lines);
    free(text);
    return sorted;
}

/* The first line in which two sorted texts differ. */
static void find_difference(const char *mine, const char *first,
                            sl_verdict_t *verdict)
{
    int n_mine, n_first;

    while (*mine != '\0' || *first != '\0') {
        n_mine = (int)strcspn(mine, "\n");
        n_first = (int)strcspn(first, "\n");
        if (n_mine != n_first || strncmp(mine, first, (size_t)n_mine) != 0) {
            break;
        }
        mine += n_mine + 1;
        first += n_first + 1;
    }
    if (*mine == '\0' && *first == '\0') {
        return;
    }
    n_mine = (int)strcspn(mine, "\n");
    n_first = (int)strcspn(first, "\n");
    (void)snprintf(verdict->text, sizeof(verdict->text),
                   "has another config than rank 0: '%.*s' and not '%.*s'",
                   n_mine < 80 ? n_mine : 80, mine, n_first < 80 ? n_first : 80,
                   first);
}

/* Compare with rank 0's text, which is sent to all. */
static sl_status_t compare_config(sl_world_t *world, char *mine,
                                  sl_verdict_t *verdict)
{
    const int is_first = sl_world_rank(world) == 0;
    char *first = mine;
    uint64_t n_bytes = strlen(mine) + 1;
    sl_status_t status;

    SL_TRY(status, sl_world_broadcast(world, 0, &n_bytes, sizeof(n_bytes)),
           out);
    if (!is_first) {
        if (n_bytes == 0 || n_bytes > TEXT_BYTES_MAX) {
            SL_FAIL(status, SL_ERR_COMM, out,
                    "rank 0 sends a config of %" PRIu64 " bytes", n_bytes);
        }
        first = malloc(n_bytes);
        if (first == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for a config");
        }
    }
    SL_TRY(status, sl_world_broadcast(world, 0, first, n_bytes), out);
    if (!is_first) {
        first[n_bytes - 1] = '\0';
        find_difference(mine, first, verdict);
    }
out:
    if (!is_first) {
        free(first);
    }
    return status;
}

sl_status_t sl_ranks_check_config(sl_world_t *world, const char *version,
                                  const sl_config_t *config)
{
    char first[VERSION_BYTES] = "";
    char own[VERSION_BYTES] = "";
    sl_verdict_t verdict = {""};
    char *mine = NULL;
    sl_status_t status;

    if (sl_world_size(world) == 1) {
        return SL_OK;
    }
    (void)snprintf(own, sizeof(own), "%s", version);
    memcpy(first, own, sizeof(first));
    SL_TRY(status, sl_world_broadcast(world, 0, first, sizeof(first)), out);
    if (strcmp(first, own) != 0) {
        (void)snprintf(verdict.text, sizeof(verdict.text),
                       "runs sluice %s, rank 0 runs %s; install the same on "
                       "all hosts",
                       own, first);
    }
    SL_TRY(status, agree(world, SL_ERR_CONFIG, &verdict), out);
    mine = config_text(config);
    if (mine == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for a config");
    }
    SL_TRY(status, compare_config(world, mine, &verdict), out);
    status = agree(world, SL_ERR_CONFIG, &verdict);
out:
    free(mine);
    return status;
}

/* ---- the host ---- */

/* What a rank may use of its host: equal numbers, the same ones. */
typedef struct rank_share {
    uint64_t cores, gpus;
} rank_share_t;

sl_status_t sl_ranks_share_host(sl_world_t *world, sl_device_params_t *params)
{
    const int n = sl_world_size(world);
    const int self = sl_world_rank(world);
    const int has_gpus = strncmp(params->spec, "cuda", 4) == 0;
    const rank_share_t mine = {sl_device_cores_hash(),
                               has_gpus ? sl_device_gpus_hash() : 0};
    const rank_share_t *all;
    void *gathered;
    sl_status_t status;
    int i;

    if (n == 1) {
        return SL_OK;
    }
    SL_TRY(status, gather(world, &mine, sizeof(mine), &gathered), out);
    all = gathered;
    params->n_local = params->n_on_host = params->n_gpu_ranks = 0;
    params->local_rank = params->gpu_rank = 0;
    for (i = 0; i < n; i++) {
        if (strcmp(sl_world_host(world, i), sl_world_host(world, self)) != 0) {
            continue;
        }
        params->n_on_host++;
        if (all[i].cores == mine.cores) {
            params->local_rank += i < self;
            params->n_local++;
        }
        if (all[i].gpus == mine.gpus) {
            params->gpu_rank += i < self;
            params->n_gpu_ranks++;
        }
    }
out:
    free(gathered);
    return status;
}

/* ---- GPUs ---- */

sl_status_t sl_ranks_check_gpus(sl_world_t *world, const char *spec,
                                int is_chosen)
{
    const int n = sl_world_size(world);
    const int has_gpus = strncmp(spec, "cuda", 4) == 0;
    void *gathered;
    int n_with = 0;
    sl_verdict_t verdict = {""};
    sl_status_t status;
    int i;

    if (n == 1) {
        return SL_OK;
    }
    SL_TRY(status, gather(world, &has_gpus, sizeof(has_gpus), &gathered), out);
    for (i = 0; i < n; i++) {
        n_with += ((const int *)gathered)[i];
    }
    if (n_with > 0 && !has_gpus && !is_chosen) {
        (void)snprintf(verdict.text, sizeof(verdict.text),
                       SL_WORLD_DEVICE_FAILURE
                       "no GPU is found, and %d of %d ranks %s; --devices "
                       "cpu:1 there says that none is wanted",
                       n_with, n, n_with == 1 ? "has one" : "have one");
    }
    status = agree(world, SL_ERR_DEVICE, &verdict);
out:
    free(gathered);
    return status;
}

/* ---- data and threads ---- */

typedef struct sl_run_facts {
    int64_t n_samples[2]; /* of training, held out */
    uint64_t data_hash;
    int64_t n_threads;
    int64_t kind; /* of the devices */
} sl_run_facts_t;

/* Some samples of a split, spread evenly. */
static uint64_t hash_samples(const sl_dataset_t *dataset, sl_data_split_t split,
                             void *data, size_t data_bytes, int32_t *target,
                             size_t target_bytes)
{
    const int64_t n = sl_dataset_count(dataset, split);
    const int64_t n_used = n < N_SAMPLES ? n : N_SAMPLES;
    uint64_t hash = 0;
    int64_t i;

    for (i = 0; i < n_used; i++) {
        sl_dataset_sample(dataset, split, i * n / n_used, 0, (uint64_t)i, data,
                          target);
        hash = sl_hash(data, data_bytes, hash);
        hash = sl_hash(target, target_bytes, hash);
    }
    return hash;
}

static sl_status_t find_facts(const sl_dataset_t *dataset,
                              const sl_device_set_t *devices,
                              sl_run_facts_t *facts)
{
    sl_tensor_desc_t data, target;
    size_t data_bytes, target_bytes;
    void *data_values;
    int32_t *target_values;
    sl_status_t status = SL_OK;
    int split;

    sl_dataset_descs(dataset, &data, &target);
    data_bytes = sl_tensor_bytes(&data);
    target_bytes = sl_tensor_bytes(&target);
    data_values = malloc(data_bytes);
    target_values = malloc(target_bytes);
    if (data_values == NULL || target_values == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for a sample");
    }
    memset(facts, 0, sizeof(*facts));
    for (split = SL_DATA_TRAIN; split <= SL_DATA_VALID; split++) {
        facts->n_samples[split] =
            sl_dataset_count(dataset, (sl_data_split_t)split);
        facts->data_hash =
            facts->data_hash * 31 +
            hash_samples(dataset, (sl_data_split_t)split, data_values,
                         data_bytes, target_values, target_bytes);
    }
    facts->n_threads = devices->devices[0].n_threads;
    facts->kind = devices->devices[0].kind;
out:
    free(data_values);
    free(target_values);
    return status;
}

static void compare_facts(const sl_run_facts_t *mine,
                          const sl_run_facts_t *first, sl_verdict_t *verdict)
{
    char *text = verdict->text;
    const size_t n = sizeof(verdict->text);

    if (mine->n_samples[0] != first->n_samples[0] ||
        mine->n_samples[1] != first->n_samples[1]) {
        (void)snprintf(text, n,
                       "has other data than rank 0: %" PRId64 " + %" PRId64
                       " samples, not %" PRId64 " + %" PRId64
                       " (training, held out)",
                       mine->n_samples[0], mine->n_samples[1],
                       first->n_samples[0], first->n_samples[1]);
    } else if (mine->data_hash != first->data_hash) {
        (void)snprintf(text, n,
                       "has other data than rank 0: as many samples, with "
                       "other values");
    } else if (mine->kind != first->kind) {
        (void)snprintf(text, n,
                       "has devices of another kind than rank 0; set "
                       "--devices");
    } else if (mine->n_threads != first->n_threads) {
        (void)snprintf(text, n,
                       "has %" PRId64 " kernel threads a device, rank 0 has "
                       "%" PRId64 ": results depend on them; set --threads",
                       mine->n_threads, first->n_threads);
    }
}

sl_status_t sl_ranks_check_run(sl_world_t *world, const sl_dataset_t *dataset,
                               const sl_device_set_t *devices)
{
    sl_verdict_t verdict = {""};
    sl_run_facts_t mine, first;
    sl_status_t status;

    if (sl_world_size(world) == 1) {
        return SL_OK;
    }
    SL_TRY(status, find_facts(dataset, devices, &mine), out);
    first = mine;
    SL_TRY(status, sl_world_broadcast(world, 0, &first, sizeof(first)), out);
    compare_facts(&mine, &first, &verdict);
    status = agree(world, SL_ERR_CONFIG, &verdict);
out:
    return status;
}
