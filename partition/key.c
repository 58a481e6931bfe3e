/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of layers and profiles: hashes of what decides the cost, field by
 * field, so that padding and names do not matter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "partition/partition_internal.h"

/* Changes whenever a profile's numbers change their meaning. */
enum {
    PROFILE_VERSION = 1
};

static uint64_t hash_int(int64_t value, uint64_t hash)
{
    return sl_hash(&value, sizeof(value), hash);
}

static uint64_t hash_desc(const sl_tensor_desc_t *desc, uint64_t hash)
{
    int i;

    hash = hash_int((int64_t)desc->dtype, hash);
    hash = hash_int((int64_t)desc->layout, hash);
    hash = hash_int(desc->n_dims, hash);
    for (i = 0; i < desc->n_dims; i++) {
        hash = hash_int(desc->dims[i], hash);
    }
    return hash;
}

static uint64_t hash_attr(const sl_attr_def_t *def, const char *field,
                          uint64_t hash)
{
    switch (def->kind) {
    case SL_ATTR_INT:
        return sl_hash(field, sizeof(int64_t), hash);
    case SL_ATTR_FLOAT:
        return sl_hash(field, sizeof(double), hash);
    case SL_ATTR_BOOL:
    case SL_ATTR_CHOICE:
        return sl_hash(field, sizeof(int), hash);
    case SL_ATTR_TEXT:
        return sl_hash_text(field, hash);
    }
    return hash;
}

uint64_t sl_part_layer_key(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                           uint64_t seed)
{
    const sl_attr_def_t *def;
    uint64_t hash = sl_hash_text(layer->ops->name, seed);
    int i;

    for (def = layer->ops->attr_defs; def != NULL && def->name != NULL; def++) {
        hash = hash_attr(def, (const char *)layer->attrs + def->offset, hash);
    }
    hash = hash_int(layer->n_inputs, hash);
    for (i = 0; i < layer->n_inputs; i++) {
        if (in != NULL) {
            hash = hash_desc(&in[i], hash);
        }
        hash = hash_int(layer->inputs[i] < 0, hash);
    }
    return hash;
}

static uint64_t hash_params(const sl_layer_t *layer, uint64_t hash)
{
    int i;

    hash = hash_int(layer->n_params, hash);
    for (i = 0; i < layer->n_params; i++) {
        hash = hash_desc(&layer->params[i].desc, hash);
        hash = hash_int((int64_t)layer->params[i].kind, hash);
        hash = hash_int(layer->params[i].tied_layer, hash);
        hash = hash_int(layer->params[i].tied_param, hash);
    }
    return hash;
}

uint64_t sl_part_profile_key(const sl_model_t *model, int64_t rows,
                             sl_device_kind_t kind, int n_threads)
{
    char cpu[256];
    uint64_t hash;
    int i, j;

    sl_device_cpu_model(cpu, sizeof(cpu));
    hash = sl_hash_text(cpu, PROFILE_VERSION);
    hash = hash_int((int64_t)kind, hash);
    hash = hash_int(n_threads, hash);
    hash = hash_int(sl_channel_block(), hash);
    hash = hash_int(rows, hash);
    if (kind != SL_DEVICE_KIND_CPU) {
        hash = hash_int((int64_t)model->dtype, hash);
        hash = hash_int(model->is_tf32, hash);
        hash = hash_int(model->dnn.has_images, hash);
        hash = hash_int((int64_t)model->dnn.workspace_bytes, hash);
    }
    hash = hash_desc(&model->data, hash);
    hash = hash_desc(&model->target, hash);
    hash = hash_int(model->n_layers, hash);
    for (i = 0; i < model->n_layers; i++) {
        const sl_layer_t *layer = model->layers[i];

        hash = hash_params(layer, sl_part_layer_key(layer, NULL, hash));
        for (j = 0; j < layer->n_inputs; j++) {
            hash = hash_int(layer->inputs[j], hash);
        }
    }
    return hash;
}

void sl_part_profile_path(uint64_t key, char *path, size_t path_bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *inner = "";
    int n;

    if (cache == NULL || cache[0] != '/') {
        cache = getenv("HOME");
        inner = "/.cache";
    }
    if (path_bytes == 0) {
        return;
    }
    path[0] = '\0';
    if (cache == NULL || cache[0] != '/') {
        return;
    }
    n = snprintf(path, path_bytes, "%s%s/sluice/profile-%016llx.json", cache,
                 inner, (unsigned long long)key);
    if (n < 0 || (size_t)n >= path_bytes) {
        path[0] = '\0';
    }
}
