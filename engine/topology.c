/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine knows before any stage exists: which layers need
 * gradients, which values travel between which stages, which are tied. */
#include "engine/topology.h"

#include <stdlib.h>

enum {
    N_BUCKET_SLOTS = 2 /* one is added while the next arrives */
};

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

/* ---- channels ---- */

int sl_engine_rank_of(const sl_engine_t *engine, int replica, int stage)
{
    return sl_grid_slot(engine->grid, replica * engine->n_stages + stage,
                        engine->n_replicas * engine->n_stages)
        ->rank;
}

/* Channels in an order that all ranks share; those that end on this one are
 * counted, or made when there is room. */
typedef struct sl_channel_list {
    sl_engine_t *engine;
    int n;
    int *n_to, *n_from; /* owned: channels so far to and from each rank */
} sl_channel_list_t;

/* Neither side here: not ours. `layer` and `param` say whose. */
static void add_channel(sl_channel_list_t *list, sl_channel_kind_t kind,
                        int from_cell, int to_cell, int layer, int param)
{
    sl_engine_t *engine = list->engine;
    const int k = engine->n_stages, own = engine->grid->rank;
    const int from = sl_engine_rank_of(engine, from_cell / k, from_cell % k);
    const int to = sl_engine_rank_of(engine, to_cell / k, to_cell % k);
    const int span = to_cell % k - from_cell % k;
    sl_channel_t *channel;

    if (from != own && to != own) {
        return;
    }
    list->n++;
    if (engine->channels == NULL) {
        return;
    }
    channel = &engine->channels[list->n - 1];
    channel->kind = kind;
    channel->device_kind = engine->params.devices->devices[0].kind;
    channel->from_cell = from_cell;
    channel->to_cell = to_cell;
    channel->from_stage = from_cell % k;
    channel->to_stage = to_cell % k;
    channel->layer = layer;
    channel->param = param;
    channel->n_slots = kind <= SL_CHANNEL_BACKWARD  ? abs(span) + 1
                       : kind <= SL_CHANNEL_RESULTS ? N_BUCKET_SLOTS
                                                    : 1;
    channel->abort = &engine->abort;
    channel->is_dry = engine->dry != NULL;
    channel->peer = from == to ? -1 : (from == own ? to : from);
    channel->is_sender = from == own;
    if (from != to) {
        channel->tag = from == own ? list->n_to[to]++ : list->n_from[from]++;
    }
}

/* One layer's output from reader to reader of a replica. */
static void add_chain(sl_channel_list_t *list, int replica, int layer)
{
    const sl_engine_t *engine = list->engine;
    const int first = replica * engine->n_stages;
    int from = engine->layer_stage[layer];
    int to;

    for (to = from + 1; to < engine->n_stages; to++) {
        if (!is_read_by(engine, layer, to)) {
            continue;
        }
        add_channel(list, SL_CHANNEL_FORWARD, first + from, first + to, layer,
                    -1);
        if (engine->needs_gradient[layer]) {
            add_channel(list, SL_CHANNEL_BACKWARD, first + to, first + from,
                        layer, -1);
        }
        from = to;
    }
}

/* A layer's tied parameters of a replica. */
static void add_ties(sl_channel_list_t *list, int replica, int layer)
{
    const sl_engine_t *engine = list->engine;
    const sl_layer_t *user = engine->params.model->layers[layer];
    const int first = replica * engine->n_stages;
    int p;

    for (p = 0; p < user->n_params; p++) {
        const sl_param_t *param = &user->params[p];

        if (param->kind == SL_PARAM_TRAINED && param->tied_layer >= 0) {
            const int from = first + engine->layer_stage[layer];
            const int to = first + engine->layer_stage[param->tied_layer];

            add_channel(list, SL_CHANNEL_TIE_GRADIENT, from, to, layer, p);
            add_channel(list, SL_CHANNEL_TIE_VALUE, to, from, layer, p);
        }
    }
}

/* Between the replicas of a stage, every one with every other. */
static void add_peers(sl_channel_list_t *list, int stage)
{
    const sl_channel_kind_t kinds[] = {SL_CHANNEL_PARTS, SL_CHANNEL_RESULTS,
                                       SL_CHANNEL_STATISTICS};
    const int n = list->engine->n_replicas, k = list->engine->n_stages;
    int from, to, i;

    for (from = 0; from < n; from++) {
        for (to = 0; to < n; to++) {
            for (i = 0; from != to && i < 3; i++) {
                add_channel(list, kinds[i], from * k + stage, to * k + stage,
                            -1, -1);
            }
        }
    }
}

static void add_all(sl_channel_list_t *list)
{
    const sl_engine_t *engine = list->engine;
    int r, k, l;

    list->n = 0;
    for (r = 0; r < engine->n_replicas; r++) {
        for (l = 0; l < engine->params.model->n_layers; l++) {
            add_chain(list, r, l);
        }
        for (l = 0; l < engine->params.model->n_layers; l++) {
            add_ties(list, r, l);
        }
    }
    for (k = 0; k < engine->n_stages; k++) {
        add_peers(list, k);
    }
}

sl_status_t sl_topology_channels(sl_engine_t *engine)
{
    const size_t n_ranks = (size_t)engine->grid->n_ranks;
    sl_channel_list_t list = {.engine = engine};
    sl_status_t status;

    list.n_to = calloc(n_ranks, sizeof(int));
    list.n_from = calloc(n_ranks, sizeof(int));
    add_all(&list);
    engine->channels = calloc((size_t)list.n + 1, sizeof(*engine->channels));
    if (engine->channels == NULL || list.n_to == NULL || list.n_from == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for %d edges between stages", list.n);
    }
    add_all(&list);
    engine->n_channels = list.n;
    status = SL_OK;
out:
    free(list.n_to);
    free(list.n_from);
    return status;
}

/* ---- parameters ---- */

sl_stage_t *sl_engine_find_stage(const sl_engine_t *engine, int replica,
                                 int stage)
{
    int c;

    for (c = 0; c < engine->n_cells; c++) {
        if (engine->stages[c].replica == replica &&
            engine->stages[c].index == stage) {
            return &engine->stages[c];
        }
    }
    return NULL;
}

sl_stage_param_t *sl_engine_find_param(const sl_engine_t *engine, int replica,
                                       int layer, int param,
                                       sl_stage_t **stage_p)
{
    sl_stage_t *stage =
        sl_engine_find_stage(engine, replica, engine->layer_stage[layer]);

    *stage_p = stage;
    return stage == NULL
               ? NULL
               : &stage
                      ->params[stage->layers[layer - stage->begin].first_param +
                               param];
}

static sl_channel_t *find_tie_channel(const sl_engine_t *engine,
                                      sl_channel_kind_t kind, int replica,
                                      int layer, int param)
{
    int c;

    for (c = 0; c < engine->n_channels; c++) {
        sl_channel_t *channel = &engine->channels[c];

        if (channel->kind == kind && channel->layer == layer &&
            channel->param == param &&
            channel->from_cell / engine->n_stages == replica) {
            return channel;
        }
    }
    return NULL;
}

static void set_tie(sl_engine_t *engine, int replica, int layer, int param)
{
    const sl_param_t *desc =
        &engine->params.model->layers[layer]->params[param];
    sl_tie_t *tie = &engine->ties[engine->n_ties++];

    tie->user =
        sl_engine_find_param(engine, replica, layer, param, &tie->user_stage);
    tie->owner = sl_engine_find_param(engine, replica, desc->tied_layer,
                                      desc->tied_param, &tie->owner_stage);
    tie->gradient = find_tie_channel(engine, SL_CHANNEL_TIE_GRADIENT, replica,
                                     layer, param);
    tie->value =
        find_tie_channel(engine, SL_CHANNEL_TIE_VALUE, replica, layer, param);
}

/* A trained parameter: the place of its norm on all replicas here. */
static void set_norm(sl_engine_t *engine, int layer, int param)
{
    double *norm = &engine->norms[engine->n_norms * engine->n_replicas];
    int r;

    for (r = 0; r < engine->n_replicas; r++) {
        sl_stage_t *stage;
        sl_stage_param_t *found =
            sl_engine_find_param(engine, r, layer, param, &stage);

        if (found != NULL) {
            found->norm_p = norm;
        }
    }
    engine->n_norms++;
}

/* Visit all trained parameters in model order; count ties and norms, or set
 * them. */
static void visit_params(sl_engine_t *engine, int is_counting)
{
    const sl_model_t *model = engine->params.model;
    int l, p, r;

    engine->n_ties = engine->n_norms = 0;
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *param = &model->layers[l]->params[p];
            const int is_tied = param->tied_layer >= 0;

            if (param->kind != SL_PARAM_TRAINED) {
                continue;
            }
            if (is_counting) {
                engine->n_ties += is_tied ? engine->n_replicas : 0;
                engine->n_norms += !is_tied;
                continue;
            }
            for (r = 0; is_tied && r < engine->n_replicas; r++) {
                set_tie(engine, r, l, p);
            }
            if (!is_tied) {
                set_norm(engine, l, p);
            }
        }
    }
}

sl_status_t sl_topology_params(sl_engine_t *engine)
{
    sl_device_t *device = &engine->params.devices->devices[0];
    void *norms = NULL;
    sl_status_t status;
    size_t n;

    free(engine->ties);
    sl_device_host_release(device, engine->norms);
    engine->norms = NULL;
    visit_params(engine, 1);
    engine->ties = calloc((size_t)engine->n_ties + 1, sizeof(*engine->ties));
    if (engine->ties == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for %d parameters", engine->n_norms);
    }
    n = (size_t)engine->n_norms * (size_t)engine->n_replicas + 1;
    SL_TRY(status, sl_device_host_alloc(device, n * sizeof(double), &norms),
           out);
    engine->norms = norms;
    visit_params(engine, 0);
out:
    return status;
}
