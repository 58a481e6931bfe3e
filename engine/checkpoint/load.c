/* SPDX-License-Identifier: Apache-2.0 */
/* Going on from a checkpoint: which one, does it fit, then its values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/checkpoint/source.h"
#include "engine/engine_internal.h"

/* ---- does it fit ---- */

static int is_wanted(const sl_state_tensor_t *tensor, sl_resume_kind_t kind)
{
    return tensor->moment < 0 || kind != SL_RESUME_WEIGHTS;
}

static void format_shape(const sl_safetensors_entry_t *entry, char *text,
                         size_t text_bytes)
{
    size_t used = 0;
    int d;

    text[0] = '\0';
    for (d = 0; d < entry->n_dims && used < text_bytes; d++) {
        const int n = snprintf(text + used, text_bytes - used, "%s%lld",
                               d == 0 ? "" : "x", (long long)entry->dims[d]);

        used += n > 0 ? (size_t)n : 0;
    }
}

static sl_status_t check_tensor(sl_source_t *source,
                                const sl_state_tensor_t *tensor,
                                sl_resume_kind_t kind)
{
    const sl_safetensors_entry_t *have, *want = &tensor->entry;
    char shape[2][128];
    sl_status_t status;

    SL_TRY(status, sl_source_find(source, tensor->name, &have), out);
    if (have == NULL && tensor->moment >= 0 && kind == SL_RESUME_CHANGED) {
        return SL_OK; /* it starts at zero */
    }
    if (have == NULL) {
        SL_REFUSE(status, SL_ERR_CONFIG, out,
                  "%s has no tensor %s of this model", source->what,
                  tensor->name);
    }
    if (have->n_dims != want->n_dims || strcmp(have->dtype, "F32") != 0 ||
        memcmp(have->dims, want->dims,
               (size_t)want->n_dims * sizeof(*want->dims)) != 0) {
        format_shape(have, shape[0], sizeof(shape[0]));
        format_shape(want, shape[1], sizeof(shape[1]));
        SL_REFUSE(status, SL_ERR_CONFIG, out,
                  "%s: tensor %s is %s of %s there and F32 of %s here",
                  source->what, tensor->name, have->dtype, shape[0], shape[1]);
    }
out:
    return status;
}

/* The order of the data is arithmetic on the step: that of the program that
 * wrote it must be this one's. */
static sl_status_t check_position(const sl_checkpoint_run_t *run,
                                  const sl_source_t *source)
{
    const sl_manifest_t *m = &source->manifest;
    uint64_t epoch = 0, sample = 0;
    sl_status_t status;

    if (run->n_samples <= 0) {
        return SL_OK;
    }
    sl_data_position(run->n_samples, run->engine->params.batch_rows, m->step,
                     &epoch, &sample);
    if (epoch != m->epoch || sample != m->sample) {
        SL_REFUSE(status, SL_ERR_CONFIG, out,
                  "%s: the data go on at epoch %llu, sample %llu there, and at "
                  "epoch %llu, sample %llu here",
                  source->what, (unsigned long long)m->epoch,
                  (unsigned long long)m->sample, (unsigned long long)epoch,
                  (unsigned long long)sample);
    }
    return SL_OK;
out:
    return status;
}

/* Nothing is changed before all of it was found good. */
static sl_status_t check(const sl_checkpoint_run_t *run, sl_source_t *source,
                         const sl_run_description_t *d, sl_resume_kind_t kind)
{
    sl_status_t status;
    size_t t;

    SL_TRY(status, sl_run_compare(source->what, d, &source->manifest, kind),
           out);
    if (kind == SL_RESUME_EXACT) {
        SL_TRY(status, check_position(run, source), out);
    }
    SL_TRY(status, sl_source_verify(source), out);
    for (t = 0; t < d->n_tensors; t++) {
        if (is_wanted(&d->tensors[t], kind)) {
            SL_TRY(status, check_tensor(source, &d->tensors[t], kind), out);
        }
    }
out:
    return status;
}

/* ---- its values ---- */

static sl_status_t load_tensor(sl_engine_t *engine, sl_source_t *source,
                               const sl_state_tensor_t *tensor)
{
    const sl_safetensors_entry_t *entry = NULL;
    float *values = NULL;
    sl_status_t status;

    SL_TRY(status, sl_source_find(source, tensor->name, &entry), out);
    if (entry == NULL) {
        return SL_OK; /* a moment that starts at zero */
    }
    values = malloc((size_t)tensor->n_bytes + 1);
    if (values == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for the %llu bytes of %s", source->what,
                (unsigned long long)tensor->n_bytes, tensor->name);
    }
    SL_TRY(status, sl_safetensors_read(source->file, entry, values), out);
    status = sl_tensor_write(engine, tensor, values);
out:
    free(values);
    return status;
}

static sl_status_t load(sl_engine_t *engine, sl_source_t *source,
                        const sl_run_description_t *d, sl_resume_kind_t kind)
{
    sl_status_t status = SL_OK;
    size_t t;

    for (t = 0; t < d->n_tensors; t++) {
        if (is_wanted(&d->tensors[t], kind) &&
            sl_tensor_is_needed(engine, &d->tensors[t])) {
            SL_TRY(status, load_tensor(engine, source, &d->tensors[t]), out);
        }
    }
    if (kind != SL_RESUME_WEIGHTS) {
        sl_engine_set_n_steps(engine, source->manifest.step);
        if (source->manifest.scale.factor != 0.0) {
            status = sl_engine_set_loss_scale(engine, &source->manifest.scale);
        }
    }
out:
    return status;
}

/* ---- which one ---- */

/* Names to try, in order; the same on all ranks. */
typedef struct sl_candidates {
    uint64_t n;
    uint64_t n_bad; /* that no name was given for */
    sl_store_name_t *names;
} sl_candidates_t;

/* The good ones, the latest first, from the one that the pointer names when
 * that is asked for. Those that are not good are told. */
static void choose(const sl_resume_t *resume, const sl_checkpoint_info_t *infos,
                   size_t n, sl_candidates_t *c)
{
    size_t i, first = 0;

    for (i = 0; resume->is_latest && i < n; i++) {
        if (infos[i].is_latest && infos[i].status >= 0) {
            first = i;
        }
    }
    for (i = 0; i < n; i++) {
        if (infos[i].status < 0) {
            c->n_bad++;
            sl_warn("checkpoint %s is skipped: %s", infos[i].name,
                    infos[i].reason);
        } else if (i >= first) {
            memcpy(c->names[c->n++], infos[i].name, sizeof(*c->names));
        }
    }
}

static sl_status_t find_candidates(const sl_store_t *store,
                                   const sl_resume_t *resume,
                                   sl_candidates_t *c)
{
    sl_checkpoint_info_t *infos = NULL;
    size_t n = 0;
    sl_status_t status;

    SL_TRY(status, sl_store_infos(store, &infos, &n), out);
    c->names = calloc(n + 1, sizeof(*c->names));
    if (c->names == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out_free,
                "checkpoints %s: no host memory for their names", store->dir);
    }
    choose(resume, infos, n, c);
    if (n == 0) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out_free,
                  "checkpoints %s: there are none", store->dir);
    }
out_free:
    free(infos);
out:
    return status;
}

/* Rank 0 looks, all get its list. */
static sl_status_t share_candidates(const sl_checkpoint_run_t *run,
                                    sl_candidates_t *c)
{
    uint64_t counts[2] = {c->n, c->n_bad};
    sl_status_t status;

    if (sl_world_size(run->world) == 1) {
        return SL_OK;
    }
    SL_TRY(status,
           sl_ranks_result(
               run, sl_world_broadcast(run->world, 0, counts, sizeof(counts))),
           out);
    if (c->names == NULL) {
        c->names = calloc((size_t)counts[0] + 1, sizeof(*c->names));
    }
    c->n = counts[0];
    c->n_bad = counts[1];
    SL_TRY(status,
           sl_ranks_agree(run, c->names == NULL ? SL_ERR_NO_MEMORY : SL_OK,
                          "checkpoint"),
           out);
    status = sl_ranks_result(
        run, sl_world_broadcast(run->world, 0, c->names,
                                (size_t)c->n * sizeof(*c->names)));
out:
    return status;
}

static sl_status_t list_candidates(const sl_checkpoint_run_t *run,
                                   const sl_store_t *store,
                                   const sl_resume_t *resume,
                                   sl_candidates_t *c)
{
    sl_status_t status = SL_OK, found;

    memset(c, 0, sizeof(*c));
    if (resume->name != NULL) {
        c->names = calloc(1, sizeof(*c->names));
        if (c->names != NULL) {
            (void)snprintf(c->names[0], sizeof(c->names[0]), "%s",
                           resume->name);
            c->n = 1;
        }
        return sl_ranks_agree(run, c->names == NULL ? SL_ERR_NO_MEMORY : SL_OK,
                              "checkpoint");
    }
    if (sl_world_rank(run->world) == 0) {
        status = find_candidates(store, resume, c);
    }
    found = status == SL_ERR_NOT_FOUND ? SL_OK : status;
    SL_TRY(status, sl_ranks_agree(run, found, store->dir), out);
    SL_TRY(status, share_candidates(run, c), out);
    if (c->n == 0 && c->n_bad == 0) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out,
                  "checkpoints %s: there are none", store->dir);
    }
    if (c->n == 0) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "checkpoints %s: none of %llu can be used", store->dir,
                (unsigned long long)c->n_bad);
    }
out:
    return status;
}

/* Whether the next one may be tried: this one is damaged, not wrong. */
static int is_damage(sl_status_t status)
{
    return status == SL_ERR_CORRUPT || status == SL_ERR_IO ||
           status == SL_ERR_UNSUPPORTED || status == SL_ERR_NOT_FOUND;
}

static sl_status_t try_one(const sl_checkpoint_run_t *run,
                           const sl_store_t *store, const char *name,
                           const sl_run_description_t *d, sl_resume_kind_t kind)
{
    sl_source_t source = {.dir_fd = -1};
    sl_status_t status = sl_source_open(store, name, &source);

    if (status >= 0) {
        status = check(run, &source, d, kind);
    }
    SL_TRY(status, sl_ranks_agree(run, status, name), out);
    status = sl_ranks_agree(run, load(run->engine, &source, d, kind), name);
    if (status < 0) {
        /* some values are already changed: there is no way back */
        status = status == SL_ERR_NO_MEMORY ? status : SL_ERR_DEVICE;
    }
out:
    sl_source_close(&source);
    return status;
}

static sl_status_t try_all(const sl_checkpoint_run_t *run,
                           const sl_store_t *store, const sl_resume_t *resume,
                           const sl_run_description_t *d,
                           sl_checkpoint_info_t *info_p)
{
    sl_status_t status;
    sl_candidates_t c;
    size_t i;

    SL_TRY(status, list_candidates(run, store, resume, &c), out);
    for (i = 0; i < c.n; i++) {
        status = try_one(run, store, c.names[i], d, resume->kind);
        if (status >= 0) {
            sl_store_info(store, c.names[i], info_p);
            break;
        }
        if (!is_damage(status) || i + 1 == c.n) {
            break;
        }
        if (sl_world_rank(run->world) == 0) {
            sl_warn("checkpoint %s is skipped: %s", c.names[i],
                    sl_store_reason());
        }
    }
out:
    free(c.names);
    return status;
}

sl_status_t sl_checkpoint_resume(const sl_checkpoint_run_t *run,
                                 const sl_resume_t *resume,
                                 sl_checkpoint_info_t *info_p)
{
    sl_run_description_t d;
    sl_store_t store;
    sl_status_t status;

    SL_TRY(status, sl_run_describe(run, &d), out);
    status = sl_store_open(resume->dir, &store);
    SL_TRY(status, sl_ranks_agree(run, status, resume->dir), out_describe);
    status = try_all(run, &store, resume, &d, info_p);
    sl_store_close(&store);
out_describe:
    sl_run_description_cleanup(&d);
out:
    return status;
}
