/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine knows before any stage exists: which layers need
 * gradients, which values travel between which stages, which are tied. */
#include "engine/topology.h"

#include <stdlib.h>

sl_status_t sl_topology_layers(sl_engine_t *engine)
{
    const sl_model_t *model = engine->params.model;
    const size_t n = (size_t)model->n_layers;
    sl_status_t status;
    int l, i, k = 0;

    engine->layer_stage = calloc(n, sizeof(int));
    engine->needs_gradient = calloc(n, sizeof(int));
    if (engine->layer_stage == NULL || engine->needs_gradient == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "model %s: no host memory for %d layers", model->name,
                model->n_layers);
    }
    for (l = 0; l < model->n_layers; l++) {
        const sl_layer_t *layer = model->layers[l];

        while (l >= engine->params.cuts[k + 1]) {
            k++;
        }
        engine->layer_stage[l] = k;
        for (i = 0; i < layer->n_params; i++) {
            engine->needs_gradient[l] |=
                layer->params[i].kind == SL_PARAM_TRAINED;
        }
        for (i = 0; i < layer->n_inputs; i++) {
            engine->needs_gradient[l] |=
                layer->inputs[i] >= 0 &&
                engine->needs_gradient[layer->inputs[i]];
        }
    }
    return SL_OK;
out:
    return status;
}

static int is_read_by(const sl_engine_t *engine, int layer, int stage)
{
    const sl_model_t *model = engine->params.model;
    int l, i;

    for (l = engine->params.cuts[stage]; l < engine->params.cuts[stage + 1];
         l++) {
        for (i = 0; i < model->layers[l]->n_inputs; i++) {
            if (model->layers[l]->inputs[i] == layer) {
                return 1;
            }
        }
    }
    return 0;
}

static void set_channel(sl_engine_t *engine, int from, int to, int layer,
                        int is_backward)
{
    sl_channel_t *channel = &engine->channels[engine->n_channels++];

    channel->from_stage = from;
    channel->to_stage = to;
    channel->layer = layer;
    channel->is_backward = is_backward;
    channel->n_slots = (to > from ? to - from : from - to) + 1;
    channel->abort = &engine->abort;
}

/* One layer's output from reader to reader; counts only when there is no
 * room yet. */
static int chain_channels(sl_engine_t *engine, int layer)
{
    int from = engine->layer_stage[layer];
    int to, n = 0;

    for (to = from + 1; to < engine->n_stages; to++) {
        if (!is_read_by(engine, layer, to)) {
            continue;
        }
        if (engine->channels != NULL) {
            set_channel(engine, from, to, layer, 0);
            if (engine->needs_gradient[layer]) {
                set_channel(engine, to, from, layer, 1);
            }
        }
        n += 1 + engine->needs_gradient[layer];
        from = to;
    }
    return n;
}

sl_status_t sl_topology_channels(sl_engine_t *engine)
{
    const int n_layers = engine->params.model->n_layers;
    sl_status_t status;
    int l, n = 0;

    for (l = 0; l < n_layers; l++) {
        n += chain_channels(engine, l);
    }
    engine->channels = calloc((size_t)n + 1, sizeof(*engine->channels));
    if (engine->channels == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for %d edges between stages", n);
    }
    for (l = 0; l < n_layers; l++) {
        (void)chain_channels(engine, l);
    }
    return SL_OK;
out:
    return status;
}

/* Visit all parameters in model order; count ties and norms, or set them. */
static void visit_params(sl_engine_t *engine, int is_counting)
{
    int n_ties = 0, n_norms = 0, k, p;

    for (k = 0; k < engine->n_stages; k++) {
        sl_stage_t *stage = &engine->stages[k];

        for (p = 0; p < stage->n_params; p++) {
            sl_stage_param_t *param = &stage->params[p];

            if (param->desc->kind != SL_PARAM_TRAINED) {
                continue;
            }
            if (param->desc->tied_layer < 0) {
                param->norm_p = is_counting ? NULL : &engine->norms[n_norms];
                n_norms++;
                continue;
            }
            if (!is_counting) {
                sl_tie_t *tie = &engine->ties[n_ties];

                tie->user_stage = stage;
                tie->user = param;
                tie->owner = sl_engine_find_param(
                    engine, param->desc->tied_layer, param->desc->tied_param,
                    &tie->owner_stage);
            }
            n_ties++;
        }
    }
    engine->n_ties = n_ties;
    engine->n_norms = n_norms;
}

sl_status_t sl_topology_params(sl_engine_t *engine)
{
    sl_status_t status;

    free(engine->ties);
    free(engine->norms);
    visit_params(engine, 1);
    engine->ties = calloc((size_t)engine->n_ties + 1, sizeof(*engine->ties));
    engine->norms = calloc((size_t)engine->n_norms + 1, sizeof(double));
    if (engine->ties == NULL || engine->norms == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for %d parameters", engine->n_norms);
    }
    visit_params(engine, 0);
    return SL_OK;
out:
    return status;
}
