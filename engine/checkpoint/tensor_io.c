/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of the state to and from the engine, each rank its part. */
#include "engine/checkpoint/checkpoint_internal.h"
#include "engine/engine_internal.h"
#include "engine/state.h"

int sl_tensor_rank(const sl_engine_t *engine, const sl_state_tensor_t *tensor)
{
    return sl_engine_rank_of(engine, 0, engine->layer_stage[tensor->layer]);
}

static int has_layer(const sl_engine_t *engine, int layer)
{
    int r, n = 0;

    for (r = 0; r < engine->n_replicas; r++) {
        n +=
            sl_engine_find_stage(engine, r, engine->layer_stage[layer]) != NULL;
    }
    return n > 0;
}

int sl_tensor_is_needed(const sl_engine_t *engine,
                        const sl_state_tensor_t *tensor)
{
    const sl_model_t *model = engine->params.model;
    int l, p;

    if (has_layer(engine, tensor->layer)) {
        return 1;
    }
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *user = &model->layers[l]->params[p];

            if (user->tied_layer == tensor->layer &&
                user->tied_param == tensor->param && has_layer(engine, l)) {
                return 1;
            }
        }
    }
    return 0;
}

sl_status_t sl_tensor_read(const sl_engine_t *engine,
                           const sl_state_tensor_t *tensor, float *values)
{
    const sl_layer_t *layer = engine->params.model->layers[tensor->layer];
    const sl_state_item_t item = {.layer = tensor->layer,
                                  .param = tensor->param,
                                  .desc = &layer->params[tensor->param],
                                  .kind = tensor->moment < 0 ? SL_STATE_VALUE
                                                             : SL_STATE_MOMENT,
                                  .moment = tensor->moment};
    int is_here;

    return sl_state_read(engine, &item, values, &is_here);
}

sl_status_t sl_tensor_write(sl_engine_t *engine,
                            const sl_state_tensor_t *tensor,
                            const float *values)
{
    return sl_state_write(engine, tensor->layer, tensor->param, tensor->moment,
                          values);
}
