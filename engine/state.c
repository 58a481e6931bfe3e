/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's state from outside: parameters in and out, their hash. Only
 * between steps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/engine_internal.h"

sl_stage_param_t *sl_engine_find_param(const sl_engine_t *engine, int layer,
                                       int param, sl_stage_t **stage_p)
{
    const sl_model_t *model = engine->params.model;
    sl_stage_t *stage;

    if (layer < 0 || layer >= model->n_layers || param < 0 ||
        param >= model->layers[layer]->n_params) {
        return NULL;
    }
    stage = &engine->stages[engine->layer_stage[layer]];
    *stage_p = stage;
    return &stage->params[stage->layers[layer - stage->begin].first_param +
                          param];
}

static sl_status_t find(const sl_engine_t *engine, int layer, int param,
                        sl_stage_t **stage_p, sl_stage_param_t **param_p)
{
    sl_status_t status = SL_OK;

    *param_p = sl_engine_find_param(engine, layer, param, stage_p);
    if (*param_p == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "model %s has no parameter %d of layer %d",
                engine->params.model->name, param, layer);
    }
out:
    return status;
}

/* A block of a parameter's storage to plain values. */
static sl_status_t read_block(const sl_stage_t *stage,
                              const sl_stage_param_t *param,
                              const sl_mem_block_t *block, float *plain)
{
    const sl_layer_t *layer = stage->engine->params.model->layers[param->layer];
    void *storage = malloc(param->desc->storage_bytes + 1);
    sl_status_t status;

    if (storage == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "layer %s: no host memory for the %zu bytes of %s", layer->name,
                param->desc->storage_bytes, param->desc->name);
    }
    SL_TRY(status,
           sl_device_copy_wait(stage->device, storage, block->ptr,
                               param->desc->storage_bytes),
           out);
    status = sl_layer_param_unpack(layer, stage->device->kind, param->param,
                                   storage, plain);
out:
    free(storage);
    return status;
}

sl_status_t sl_engine_param_get(sl_engine_t *engine, int layer, int param,
                                float *plain)
{
    sl_stage_t *stage = NULL;
    sl_stage_param_t *found;
    sl_status_t status;

    SL_TRY(status, find(engine, layer, param, &stage, &found), out);
    status = read_block(stage, found, found->value, plain);
out:
    return status;
}

sl_status_t sl_engine_gradient_get(sl_engine_t *engine, int layer, int param,
                                   float *plain)
{
    sl_stage_t *stage = NULL;
    sl_stage_param_t *found;
    sl_status_t status;

    SL_TRY(status, find(engine, layer, param, &stage, &found), out);
    if (found->grad == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "layer %s: %s has no gradient",
                engine->params.model->layers[layer]->name, found->desc->name);
    }
    status = read_block(stage, found, found->grad, plain);
out:
    return status;
}

sl_status_t sl_engine_param_set(sl_engine_t *engine, int layer, int param,
                                const float *plain)
{
    sl_stage_t *stage = NULL;
    sl_stage_param_t *found;
    void *storage = NULL;
    sl_status_t status;
    int k;

    SL_TRY(status, find(engine, layer, param, &stage, &found), out);
    if (found->desc->tied_layer >= 0) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "layer %s: %s is tied; set layer %s",
                engine->params.model->layers[layer]->name, found->desc->name,
                engine->params.model->layers[found->desc->tied_layer]->name);
    }
    storage = calloc(1, found->desc->storage_bytes + 1);
    if (storage == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "layer %s: no host memory for the %zu bytes of %s",
                engine->params.model->layers[layer]->name,
                found->desc->storage_bytes, found->desc->name);
    }
    SL_TRY(status,
           sl_layer_param_pack(engine->params.model->layers[layer],
                               stage->device->kind, param, plain, storage),
           out);
    SL_TRY(status,
           sl_device_copy_wait(stage->device, found->value->ptr, storage,
                               found->desc->storage_bytes),
           out);
    for (k = 0; k < engine->n_stages; k++) {
        SL_TRY(status, sl_stage_copy_ties(&engine->stages[k]), out);
    }
out:
    free(storage);
    return status;
}

static sl_status_t find_moment(const sl_engine_t *engine, int layer, int param,
                               int moment, sl_stage_t **stage_p,
                               sl_stage_param_t **param_p)
{
    sl_status_t status;

    SL_TRY(status, find(engine, layer, param, stage_p, param_p), out);
    if (moment < 0 || moment > 1 || (*param_p)->moments[moment] == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "layer %s: %s has no moment %d",
                engine->params.model->layers[layer]->name,
                (*param_p)->desc->name, moment);
    }
out:
    return status;
}

sl_status_t sl_engine_moment_get(sl_engine_t *engine, int layer, int param,
                                 int moment, float *plain)
{
    sl_stage_t *stage = NULL;
    sl_stage_param_t *found = NULL;
    sl_status_t status;

    SL_TRY(status, find_moment(engine, layer, param, moment, &stage, &found),
           out);
    status = read_block(stage, found, found->moments[moment], plain);
out:
    return status;
}

sl_status_t sl_engine_moment_set(sl_engine_t *engine, int layer, int param,
                                 int moment, const float *plain)
{
    sl_stage_t *stage = NULL;
    sl_stage_param_t *found = NULL;
    void *storage = NULL;
    sl_status_t status;

    SL_TRY(status, find_moment(engine, layer, param, moment, &stage, &found),
           out);
    storage = calloc(1, found->desc->storage_bytes + 1);
    if (storage == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "layer %s: no host memory for the %zu bytes of %s",
                engine->params.model->layers[layer]->name,
                found->desc->storage_bytes, found->desc->name);
    }
    SL_TRY(status,
           sl_layer_param_pack(engine->params.model->layers[layer],
                               stage->device->kind, param, plain, storage),
           out);
    status = sl_device_copy_wait(stage->device, found->moments[moment]->ptr,
                                 storage, found->desc->storage_bytes);
out:
    free(storage);
    return status;
}

static sl_status_t hash_param(const sl_stage_t *stage,
                              const sl_stage_param_t *param, uint64_t *hash_p)
{
    const size_t n = (size_t)sl_tensor_elements(&param->desc->desc);
    const sl_mem_block_t *blocks[] = {param->value, param->moments[0],
                                      param->moments[1]};
    float *plain = malloc(n * sizeof(*plain) + 1);
    sl_status_t status = SL_OK;
    size_t i;

    if (plain == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory to hash %zu values", n);
    }
    for (i = 0; i < 3; i++) {
        if (blocks[i] != NULL) {
            SL_TRY(status, read_block(stage, param, blocks[i], plain), out);
            *hash_p = sl_hash(plain, n * sizeof(*plain), *hash_p);
        }
    }
out:
    free(plain);
    return status;
}

sl_status_t sl_engine_state_hash(sl_engine_t *engine, uint64_t *hash_p)
{
    uint64_t hash = 0;
    sl_status_t status = SL_OK;
    int k, p;

    for (k = 0; k < engine->n_stages; k++) {
        const sl_stage_t *stage = &engine->stages[k];

        for (p = 0; p < stage->n_params; p++) {
            if (sl_param_is_state(stage->params[p].desc)) {
                SL_TRY(status, hash_param(stage, &stage->params[p], &hash),
                       out);
            }
        }
    }
    *hash_p = hash;
out:
    return status;
}
