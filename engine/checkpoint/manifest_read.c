/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest from text that may be anything: every member is checked for its
 * kind, size and range, and all together against the checksum. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_internal.h"
#include "engine/checkpoint/manifest_fields.h"
#include "engine/engine_internal.h"

static sl_status_t make_array(const char *what, size_t n, size_t each,
                              void **array_p)
{
    sl_status_t status;

    *array_p = calloc(n + 1, each);
    if (*array_p == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for %zu entries", what, n);
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t read_model(sl_object_t root, sl_manifest_t *m)
{
    sl_object_t model;
    json_t *layers;
    const char **texts;
    void *array = NULL;
    sl_status_t status;
    size_t i;

    SL_TRY(status, sl_object_object(root, "model", &model), out);
    SL_TRY(status,
           sl_object_text(model, "name", SL_MANIFEST_NAME_BYTES, &m->model),
           out);
    SL_TRY(status, sl_object_hash(model, "fingerprint", &m->fingerprint), out);
    SL_TRY(status,
           sl_object_array(model, "layers", SL_MANIFEST_MAX_LAYERS, &layers),
           out);
    m->n_layers = json_array_size(layers);
    SL_TRY(status,
           make_array(root.what, m->n_layers, sizeof(*m->layers), &array), out);
    m->layers = texts = array;
    for (i = 0; i < m->n_layers; i++) {
        SL_TRY(status,
               sl_object_check_text(root.what, "a layer",
                                    json_array_get(layers, i),
                                    SL_MANIFEST_TEXT_BYTES, &texts[i]),
               out);
    }
    if (sl_manifest_fingerprint(m->layers, m->n_layers) != m->fingerprint) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: the fingerprint is not that of the layers", root.what);
    }
out:
    return status;
}

static sl_status_t read_settings(sl_object_t root, sl_manifest_t *m)
{
    sl_object_t settings;
    void *array = NULL;
    sl_status_t status;
    const char *key;
    json_t *value;

    SL_TRY(status, sl_object_object(root, "settings", &settings), out);
    if (json_object_size(settings.json) > SL_MANIFEST_MAX_SETTINGS) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: more than %d settings",
                  root.what, SL_MANIFEST_MAX_SETTINGS);
    }
    SL_TRY(status,
           make_array(root.what, json_object_size(settings.json),
                      sizeof(*m->settings), &array),
           out);
    m->settings = array;
    json_object_foreach((json_t *)(uintptr_t)settings.json, key, value)
    {
        sl_setting_t *own = &m->settings[m->n_settings++];

        own->name = key;
        SL_TRY(status,
               sl_object_check_text(root.what, "a setting", value,
                                    SL_MANIFEST_NAME_BYTES, &own->value),
               out);
    }
out:
    return status;
}

int sl_manifest_file_is_valid(const char *file)
{
    static const char ending[] = ".safetensors";
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t n = strlen(file);

    return n > sizeof(ending) - 1 && n < SL_MANIFEST_NAME_BYTES / 2 &&
           file[0] != '.' && strspn(file, allowed) == n &&
           strcmp(file + n - (sizeof(ending) - 1), ending) == 0;
}

static sl_status_t read_shard(sl_object_t from, sl_manifest_t *m,
                              sl_manifest_shard_t *shard)
{
    json_t *tensors;
    sl_status_t status;
    size_t i;

    if (!json_is_object(from.json)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: a shard is not an object",
                  from.what);
    }
    SL_TRY(status,
           sl_object_text(from, "file", SL_MANIFEST_NAME_BYTES, &shard->file),
           out);
    if (!sl_manifest_file_is_valid(shard->file)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: a shard cannot have the name %s", from.what,
                  shard->file);
    }
    SL_TRY(status, sl_object_u64(from, "bytes", INT64_MAX, &shard->n_bytes),
           out);
    SL_TRY(status, sl_object_hash(from, "xxh3", &shard->hash), out);
    SL_TRY(status,
           sl_object_array(from, "tensors", SL_MANIFEST_MAX_TENSORS, &tensors),
           out);
    shard->first_tensor = m->n_tensors;
    shard->n_tensors = json_array_size(tensors);
    for (i = 0; i < shard->n_tensors; i++) {
        SL_TRY(status,
               sl_object_check_text(
                   from.what, "a tensor's name", json_array_get(tensors, i),
                   SL_MANIFEST_NAME_BYTES, &m->tensors[m->n_tensors]),
               out);
        m->n_tensors++;
    }
out:
    return status;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* @return the text that is there twice, or NULL; sorts */
static const char *find_double(const char **sorted, size_t n)
{
    size_t i;

    qsort(sorted, n, sizeof(*sorted), compare_texts);
    for (i = 1; i < n; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0) {
            return sorted[i];
        }
    }
    return NULL;
}

static sl_status_t check_doubles(const char *what, const sl_manifest_t *m)
{
    const size_t n = m->n_tensors > m->n_shards ? m->n_tensors : m->n_shards;
    const char **sorted, *found;
    void *array = NULL;
    sl_status_t status;
    size_t i;

    SL_TRY(status, make_array(what, n, sizeof(*sorted), &array), out);
    sorted = array;
    for (i = 0; i < m->n_shards; i++) {
        sorted[i] = m->shards[i].file;
    }
    found = find_double(sorted, m->n_shards);
    if (found == NULL && m->n_tensors > 0) {
        memcpy(sorted, m->tensors, m->n_tensors * sizeof(*sorted));
        found = find_double(sorted, m->n_tensors);
    }
    if (found != NULL) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out_free, "%s: %s is there twice",
                  what, found);
    }
out_free:
    free(array);
out:
    return status;
}

static sl_status_t read_shards(sl_object_t root, sl_manifest_t *m)
{
    json_t *shards;
    void *array = NULL;
    size_t i, n_tensors = 0;
    sl_status_t status;

    SL_TRY(status,
           sl_object_array(root, "shards", SL_MANIFEST_MAX_SHARDS, &shards),
           out);
    m->n_shards = json_array_size(shards);
    SL_TRY(status,
           make_array(root.what, m->n_shards, sizeof(*m->shards), &array), out);
    m->shards = array;
    for (i = 0; i < m->n_shards; i++) {
        n_tensors += json_array_size(
            json_object_get(json_array_get(shards, i), "tensors"));
    }
    if (n_tensors > SL_MANIFEST_MAX_TENSORS) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: more than %d tensors",
                  root.what, SL_MANIFEST_MAX_TENSORS);
    }
    SL_TRY(status,
           make_array(root.what, n_tensors, sizeof(*m->tensors), &array), out);
    m->tensors = array;
    for (i = 0; i < m->n_shards; i++) {
        const sl_object_t one = {root.what, json_array_get(shards, i)};

        SL_TRY(status, read_shard(one, m, &m->shards[i]), out);
    }
    status = check_doubles(root.what, m);
out:
    return status;
}

static sl_status_t check_head(sl_object_t root)
{
    const char *format =
        json_string_value(json_object_get(root.json, "format"));
    const json_t *version = json_object_get(root.json, "version");
    uint64_t want = 0, have = 0;
    sl_status_t status;

    if (format == NULL || strcmp(format, "sluice-checkpoint") != 0) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: its format is not sluice-checkpoint", root.what);
    }
    if (json_is_integer(version) &&
        json_integer_value(version) != SL_MANIFEST_VERSION) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out,
                  "%s: version %lld of the format; this program reads %d; use "
                  "%s program",
                  root.what, (long long)json_integer_value(version),
                  SL_MANIFEST_VERSION,
                  json_integer_value(version) > SL_MANIFEST_VERSION
                      ? "a newer"
                      : "an older");
    }
    SL_TRY(status, sl_object_u64(root, "version", SL_MANIFEST_VERSION, &want),
           out);
    SL_TRY(status, sl_object_hash(root, "checksum", &want), out);
    SL_TRY(status, sl_manifest_checksum(root.json, &have), out);
    if (want != have) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: its checksum is %016" PRIx64 ", not %016" PRIx64
                  " as it says: it was changed or damaged",
                  root.what, have, want);
    }
out:
    return status;
}

static sl_status_t read_scalars(sl_object_t root, sl_manifest_t *m)
{
    sl_object_t data;
    uint64_t step = 0;
    sl_status_t status;

    SL_TRY(status,
           sl_object_text(root, "program", SL_MANIFEST_NAME_BYTES, &m->program),
           out);
    SL_TRY(status,
           sl_object_text(root, "date", SL_CHECKPOINT_DATE_BYTES, &m->date),
           out);
    SL_TRY(status, sl_object_u64(root, "step", UINT32_MAX, &step), out);
    m->step = (uint32_t)step;
    SL_TRY(status, sl_object_u64(root, "sequence", INT64_MAX - 1, &m->sequence),
           out);
    SL_TRY(status, sl_object_object(root, "data", &data), out);
    SL_TRY(status, sl_object_u64(data, "epoch", INT64_MAX, &m->epoch), out);
    SL_TRY(status, sl_object_u64(data, "sample", INT64_MAX, &m->sample), out);
    SL_TRY(status, sl_object_number(root, "learning_rate", &m->learning_rate),
           out);
    SL_TRY(status, sl_object_number(root, "loss", &m->loss), out);
    status = sl_object_number(root, "validation_loss", &m->validation_loss);
out:
    return status;
}

/* Only of a run in f16. */
static sl_status_t read_loss_scale(sl_object_t root, sl_manifest_t *m)
{
    sl_loss_scale_t scale = {0};
    sl_object_t object;
    uint64_t n = 0;
    sl_status_t status;

    if (json_object_get(root.json, "loss_scale") == NULL) {
        return SL_OK;
    }
    SL_TRY(status, sl_object_object(root, "loss_scale", &object), out);
    SL_TRY(status, sl_object_number(object, "factor", &scale.factor), out);
    SL_TRY(status, sl_object_u64(object, "good_steps", UINT32_MAX, &n), out);
    if (!sl_loss_scale_is_valid(&scale)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: a loss scale of %g is none that there can be", root.what,
                  scale.factor);
    }
    scale.n_good_steps = (uint32_t)n;
    m->scale = scale;
out:
    return status;
}

sl_status_t sl_manifest_parse(const char *what, const char *text,
                              size_t n_bytes, sl_manifest_t *manifest_p)
{
    sl_object_t root = {.what = what};
    sl_manifest_t m;
    json_error_t error;
    sl_status_t status;

    memset(&m, 0, sizeof(m));
    m.json = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    root.json = m.json;
    if (!json_is_object(root.json)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, err_cleanup,
                  "%s:%d:%d: not one JSON object", what,
                  root.json == NULL ? error.line : 1,
                  root.json == NULL ? error.column : 1);
    }
    SL_TRY(status, check_head(root), err_cleanup);
    SL_TRY(status, read_scalars(root, &m), err_cleanup);
    SL_TRY(status, read_loss_scale(root, &m), err_cleanup);
    SL_TRY(status, read_model(root, &m), err_cleanup);
    SL_TRY(status, read_settings(root, &m), err_cleanup);
    SL_TRY(status, read_shards(root, &m), err_cleanup);
    *manifest_p = m;
    return SL_OK;

err_cleanup:
    sl_manifest_cleanup(&m);
    return status;
}

void sl_manifest_cleanup(sl_manifest_t *manifest)
{
    free((void *)(uintptr_t)manifest->layers);
    free(manifest->settings);
    free(manifest->shards);
    free(manifest->tensors);
    json_decref(manifest->json);
    memset(manifest, 0, sizeof(*manifest));
}

const char *sl_manifest_setting(const sl_manifest_t *manifest, const char *name)
{
    size_t i;

    for (i = 0; i < manifest->n_settings; i++) {
        if (strcmp(manifest->settings[i].name, name) == 0) {
            return manifest->settings[i].value;
        }
    }
    return NULL;
}
