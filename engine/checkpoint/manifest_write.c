/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest as JSON text. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/hash.h"
#include "engine/checkpoint/checkpoint_internal.h"

static json_t *hex(uint64_t hash)
{
    char text[17];

    (void)snprintf(text, sizeof(text), "%016" PRIx64, hash);
    return json_string(text);
}

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *texts(const char *const *values, size_t n)
{
    json_t *array = json_array();
    size_t i;

    for (i = 0; i < n; i++) {
        if (json_array_append_new(array, json_string(values[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *settings_of(const sl_manifest_t *manifest)
{
    json_t *object = json_object();
    size_t i;

    for (i = 0; i < manifest->n_settings; i++) {
        if (json_object_set_new(object, manifest->settings[i].name,
                                json_string(manifest->settings[i].value)) !=
            0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *shards_of(const sl_manifest_t *manifest)
{
    json_t *array = json_array();
    size_t i;

    for (i = 0; i < manifest->n_shards; i++) {
        const sl_manifest_shard_t *shard = &manifest->shards[i];
        json_t *one = json_pack(
            "{s:s, s:I, s:o, s:o}", "file", shard->file, "bytes",
            (json_int_t)shard->n_bytes, "xxh3", hex(shard->hash), "tensors",
            texts(manifest->tensors + shard->first_tensor, shard->n_tensors));

        if (json_array_append_new(array, one) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

sl_status_t sl_manifest_checksum(const void *json, uint64_t *hash_p)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)json);
    char *text = NULL;
    sl_status_t status;

    if (copy != NULL) {
        (void)json_object_del(copy, "checksum");
        text = json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS);
    }
    json_decref(copy);
    if (text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "checkpoint: no host memory for a manifest");
    }
    *hash_p = sl_hash_text(text, 0);
    free(text);
    return SL_OK;
out:
    return status;
}

uint64_t sl_manifest_fingerprint(const char *const *layers, size_t n)
{
    uint64_t hash = n;
    size_t i;

    for (i = 0; i < n; i++) {
        hash = sl_hash_text(layers[i], hash);
    }
    return hash;
}

static json_t *root_of(const sl_manifest_t *m)
{
    json_t *root = json_pack(
        "{s:s, s:i, s:s, s:s, s:I, s:I, s:{s:I, s:I}, s:o, s:o, s:o, s:o,"
        " s:{s:s, s:o, s:o}, s:o}",
        "format", "sluice-checkpoint", "version", SL_MANIFEST_VERSION,
        "program", m->program, "date", m->date, "step", (json_int_t)m->step,
        "sequence", (json_int_t)m->sequence, "data", "epoch",
        (json_int_t)m->epoch, "sample", (json_int_t)m->sample, "learning_rate",
        number_or_null(m->learning_rate), "loss", number_or_null(m->loss),
        "validation_loss", number_or_null(m->validation_loss), "settings",
        settings_of(m), "model", "name", m->model, "fingerprint",
        hex(m->fingerprint), "layers", texts(m->layers, m->n_layers), "shards",
        shards_of(m));

    if (root != NULL && m->scale.factor != 0.0 &&
        json_object_set_new(
            root, "loss_scale",
            json_pack("{s:f, s:I}", "factor", m->scale.factor, "good_steps",
                      (json_int_t)m->scale.n_good_steps)) != 0) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

sl_status_t sl_manifest_format(const sl_manifest_t *manifest, char **text_p)
{
    json_t *root = root_of(manifest);
    char *text = NULL;
    uint64_t hash = 0;
    sl_status_t status;

    if (root == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "checkpoint: a name of the model is not UTF-8, or there is no "
                "host memory for the manifest");
    }
    SL_TRY(status, sl_manifest_checksum(root, &hash), out);
    if (json_object_set_new(root, "checksum", hex(hash)) == 0) {
        text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    }
    if (text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "checkpoint: no host memory for a manifest");
    }
    *text_p = text;
out:
    json_decref(root);
    return status;
}
