/* SPDX-License-Identifier: Apache-2.0 */
/* A stage's parameters: device memory, initial values. */
#include <stdlib.h>

#include "engine/parallel/parallel.h"

static sl_status_t alloc_zeroed(sl_stage_t *stage, size_t bytes,
                                sl_mem_block_t **block_p)
{
    sl_status_t status;

    SL_TRY(status,
           sl_stage_alloc(stage, SL_MEM_CLASS_PERSISTENT, bytes, block_p), out);
    status = sl_device_zero(stage->device, (*block_p)->ptr, bytes);
out:
    return status;
}

/* Moments and gradient; the owner of tied values has the only moments. */
static sl_status_t alloc_state(sl_stage_t *stage, sl_stage_param_t *param)
{
    const size_t bytes = param->desc->storage_bytes;
    const int n_moments =
        param->desc->tied_layer >= 0
            ? 0
            : sl_optimizer_n_moments(&stage->engine->params.optimizer);
    sl_status_t status = SL_OK;
    int i;

    SL_TRY(status, alloc_zeroed(stage, bytes, &param->grad.block), out);
    for (i = 0; i < n_moments; i++) {
        SL_TRY(status, alloc_zeroed(stage, bytes, &param->moments[i].block),
               out);
    }
out:
    return status;
}

/* The initial values: a tied parameter has its owner's. */
static sl_status_t init_value(sl_stage_t *stage, sl_stage_param_t *param,
                              float *plain, void *storage)
{
    const sl_engine_t *engine = stage->engine;
    const sl_layer_t *layer = engine->params.model->layers[param->layer];
    const int is_tied = param->desc->tied_layer >= 0;
    const sl_layer_t *source =
        is_tied ? engine->params.model->layers[param->desc->tied_layer] : layer;
    sl_status_t status;

    sl_layer_param_init(source,
                        is_tied ? param->desc->tied_param : param->param,
                        engine->params.seed, plain);
    SL_TRY(status,
           sl_layer_param_pack(layer, stage->device->kind, param->param, plain,
                               storage),
           out);
    status = sl_device_copy_wait(stage->device, sl_storage_ptr(&param->value),
                                 storage, param->desc->storage_bytes);
out:
    return status;
}

static sl_status_t param_alloc(sl_stage_t *stage, sl_stage_param_t *param)
{
    sl_status_t status;

    if (param->is_shared) {
        return SL_OK;
    }
    SL_TRY(status,
           alloc_zeroed(stage, param->desc->storage_bytes, &param->value.block),
           out);
    if (param->desc->kind == SL_PARAM_TRAINED) {
        status = alloc_state(stage, param);
    }
out:
    return status;
}

static sl_status_t param_init(sl_stage_t *stage, sl_stage_param_t *param)
{
    const size_t n = (size_t)sl_tensor_elements(&param->desc->desc);
    const size_t bytes = param->desc->storage_bytes;
    float *plain = calloc(n + 1, sizeof(*plain));
    void *storage = calloc(1, bytes + 1);
    sl_status_t status;

    if (plain == NULL || storage == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "layer %s: no host memory for the %zu bytes of %s",
                stage->engine->params.model->layers[param->layer]->name, bytes,
                param->desc->name);
    }
    status = param_alloc(stage, param);
    if (status >= 0 && param->desc->kind != SL_PARAM_ACCUMULATOR) {
        status = init_value(stage, param, plain, storage);
    }
out:
    free(plain);
    free(storage);
    return status;
}

/* The list of parameters, without memory. */
static sl_status_t list_params(sl_stage_t *stage)
{
    sl_status_t status;
    int l, p, n = 0;

    for (l = 0; l < stage->n_layers; l++) {
        stage->layers[l].first_param = n;
        n += stage->layers[l].layer->n_params;
    }
    stage->params = calloc((size_t)n + 1, sizeof(*stage->params));
    if (stage->params == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for %d parameters", stage->index, n);
    }
    stage->n_params = n;
    for (l = 0; l < stage->n_layers; l++) {
        for (p = 0; p < stage->layers[l].layer->n_params; p++) {
            sl_stage_param_t *param =
                &stage->params[stage->layers[l].first_param + p];

            param->layer = stage->begin + l;
            param->param = p;
            param->desc = &stage->layers[l].layer->params[p];
        }
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_stage_params_init(sl_stage_t *stage)
{
    sl_status_t status;
    int p;

    SL_TRY(status, list_params(stage), out);
    SL_TRY(status, sl_buckets_init(stage), out);
    if (stage->engine->is_bare) {
        return SL_OK;
    }
    SL_TRY(status, sl_buckets_alloc(stage), out);
    for (p = 0; p < stage->n_params; p++) {
        SL_TRY(status,
               sl_device_is_dry(stage->device)
                   ? param_alloc(stage, &stage->params[p])
                   : param_init(stage, &stage->params[p]),
               out);
    }
out:
    return status;
}

sl_status_t sl_stage_params_alloc(sl_stage_t *stage)
{
    sl_status_t status;
    int p;

    SL_TRY(status, sl_buckets_alloc(stage), out);
    for (p = 0; p < stage->n_params; p++) {
        SL_TRY(status, param_alloc(stage, &stage->params[p]), out);
    }
out:
    SL_KEEP(status, sl_device_drain(stage->device));
    return status;
}

void sl_stage_params_release(sl_stage_t *stage)
{
    int p, i;

    for (p = 0; p < stage->n_params; p++) {
        sl_stage_param_t *param = &stage->params[p];

        if (!param->is_shared) {
            sl_mem_release(param->value.block);
            sl_mem_release(param->grad.block);
            param->value.block = param->grad.block = NULL;
            for (i = 0; i < 2; i++) {
                sl_mem_release(param->moments[i].block);
                param->moments[i].block = NULL;
            }
        }
    }
    sl_buckets_release(stage);
}

void sl_stage_params_cleanup(sl_stage_t *stage)
{
    sl_stage_params_release(stage);
    sl_buckets_cleanup(stage);
    free(stage->params);
    stage->params = NULL;
    stage->n_params = 0;
}
