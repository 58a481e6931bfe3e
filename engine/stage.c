/* SPDX-License-Identifier: Apache-2.0 */
/* The static part of a stage: its layers, its values, its edges. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/engine_internal.h"

int sl_stage_value(const sl_stage_t *stage, int layer)
{
    int v;

    if (layer >= stage->begin && layer < stage->end) {
        return stage->n_imports + layer - stage->begin;
    }
    if (layer == SL_INPUT_DATA || layer == SL_INPUT_TARGET) {
        return stage->n_values - (layer == SL_INPUT_DATA ? 2 : 1);
    }
    for (v = 0; v < stage->n_imports; v++) {
        if (stage->value_layer[v] == layer) {
            return v;
        }
    }
    return -1;
}

/* Whether some layer of this stage reads the output of `layer`. */
static int stage_reads(const sl_model_t *model, int begin, int end, int layer)
{
    int l, i;

    for (l = begin; l < end; l++) {
        for (i = 0; i < model->layers[l]->n_inputs; i++) {
            if (model->layers[l]->inputs[i] == layer) {
                return 1;
            }
        }
    }
    return 0;
}

static sl_status_t make_values(sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    const sl_model_t *model = engine->params.model;
    sl_status_t status;
    int layer, v = 0;

    for (layer = 0; layer < stage->begin; layer++) {
        stage->n_imports += stage_reads(model, stage->begin, stage->end, layer);
    }
    stage->n_values = stage->n_imports + stage->n_layers + 2;
    stage->value_layer = calloc((size_t)stage->n_values, sizeof(int));
    stage->needs_gradient = calloc((size_t)stage->n_values, sizeof(int));
    if (stage->value_layer == NULL || stage->needs_gradient == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for %d values", stage->index,
                stage->n_values);
    }
    for (layer = 0; layer < stage->end; layer++) {
        if (layer >= stage->begin ||
            stage_reads(model, stage->begin, stage->end, layer)) {
            stage->value_layer[v] = layer;
            stage->needs_gradient[v] = engine->needs_gradient[layer];
            v++;
        }
    }
    stage->value_layer[v] = SL_INPUT_DATA;
    stage->value_layer[v + 1] = SL_INPUT_TARGET;
    return SL_OK;
out:
    return status;
}

static sl_status_t make_layers(sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    sl_op_manager_t *ops = stage->device->ops;
    sl_status_t status;
    int l, i;

    stage->layers = calloc((size_t)stage->n_layers, sizeof(*stage->layers));
    if (stage->layers == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for %d layers", stage->index,
                stage->n_layers);
    }
    for (l = 0; l < stage->n_layers; l++) {
        sl_stage_layer_t *own = &stage->layers[l];
        char name[160];

        own->layer = engine->params.model->layers[stage->begin + l];
        own->value = stage->n_imports + l;
        own->has_backward = engine->needs_gradient[stage->begin + l];
        for (i = 0; i < own->layer->n_inputs; i++) {
            own->inputs[i] = sl_stage_value(stage, own->layer->inputs[i]);
        }
        (void)snprintf(name, sizeof(name), "%s forward", own->layer->name);
        own->forward_name = sl_op_manager_name(ops, name);
        (void)snprintf(name, sizeof(name), "%s backward", own->layer->name);
        own->backward_name = sl_op_manager_name(ops, name);
    }
    return SL_OK;
out:
    return status;
}

static sl_channel_t *find_channel(const sl_engine_t *engine,
                                  sl_channel_kind_t kind, int from, int to,
                                  int layer)
{
    int c;

    for (c = 0; c < engine->n_channels; c++) {
        sl_channel_t *channel = &engine->channels[c];

        if (channel->from_cell == from && channel->to_cell == to &&
            channel->layer == layer && channel->kind == kind) {
            return channel;
        }
    }
    return NULL;
}

static int is_edge(const sl_stage_t *stage, const sl_channel_t *channel,
                   int is_export)
{
    return channel->kind == SL_CHANNEL_FORWARD &&
           (is_export ? channel->from_cell : channel->to_cell) == stage->cell;
}

static int count_edges(const sl_stage_t *stage, int is_export)
{
    const sl_engine_t *engine = stage->engine;
    int c, n = 0;

    for (c = 0; c < engine->n_channels; c++) {
        n += is_edge(stage, &engine->channels[c], is_export);
    }
    return n;
}

static sl_status_t make_edges(const sl_stage_t *stage, int is_export, int n,
                              sl_stage_edge_t **edges_p)
{
    const sl_engine_t *engine = stage->engine;
    sl_stage_edge_t *edges = calloc((size_t)n + 1, sizeof(*edges));
    sl_status_t status;
    int c, e = 0;

    if (edges == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for %d edges", stage->index, n);
    }
    for (c = 0; c < engine->n_channels; c++) {
        sl_channel_t *channel = &engine->channels[c];

        if (!is_edge(stage, channel, is_export)) {
            continue;
        }
        edges[e].value = sl_stage_value(stage, channel->layer);
        edges[e].needs_gradient = engine->needs_gradient[channel->layer];
        edges[e].forward = channel;
        edges[e].backward =
            find_channel(engine, SL_CHANNEL_BACKWARD, channel->to_cell,
                         channel->from_cell, channel->layer);
        e++;
    }
    *edges_p = edges;
    return SL_OK;
out:
    return status;
}

/* The channels to and from the same stage of the other replicas. */
static sl_status_t make_peers(sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    const int own = stage->cell;
    sl_status_t status = SL_OK;
    int r;

    if (engine->n_replicas == 1) {
        return SL_OK;
    }
    stage->peers = calloc((size_t)engine->n_replicas, sizeof(*stage->peers));
    if (stage->peers == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for %d replicas", stage->index,
                engine->n_replicas);
    }
    for (r = 0; r < engine->n_replicas; r++) {
        const int other = r * engine->n_stages + stage->index;
        sl_peer_t *peer = &stage->peers[r];

        peer->parts_to = find_channel(engine, SL_CHANNEL_PARTS, own, other, -1);
        peer->parts_from =
            find_channel(engine, SL_CHANNEL_PARTS, other, own, -1);
        peer->results_to =
            find_channel(engine, SL_CHANNEL_RESULTS, own, other, -1);
        peer->results_from =
            find_channel(engine, SL_CHANNEL_RESULTS, other, own, -1);
        peer->statistics_to =
            find_channel(engine, SL_CHANNEL_STATISTICS, own, other, -1);
        peer->statistics_from =
            find_channel(engine, SL_CHANNEL_STATISTICS, other, own, -1);
    }
out:
    return status;
}

sl_status_t sl_stage_init(sl_stage_t *stage, sl_engine_t *engine, int cell)
{
    const int n_cells = engine->n_replicas * engine->n_stages;
    sl_status_t status;

    stage->engine = engine;
    stage->cell = cell;
    stage->replica = cell / engine->n_stages;
    stage->index = cell % engine->n_stages;
    stage->begin = engine->params.cuts[stage->index];
    stage->end = engine->params.cuts[stage->index + 1];
    stage->n_layers = stage->end - stage->begin;
    stage->device =
        &engine->params.devices
             ->devices[sl_grid_slot(engine->grid, cell, n_cells)->device];
    SL_TRY(status, make_values(stage), out);
    SL_TRY(status, make_layers(stage), out);
    stage->n_exports = count_edges(stage, 1);
    SL_TRY(status, make_edges(stage, 1, stage->n_exports, &stage->exports),
           out);
    SL_TRY(status, make_edges(stage, 0, stage->n_imports, &stage->imports),
           out);
    SL_TRY(status, make_peers(stage), out);
    status = sl_stage_params_init(stage);
out:
    return status;
}

static void micro_release(sl_stage_t *stage, sl_micro_state_t *micro)
{
    int v, l;

    for (v = 0; v < stage->n_values; v++) {
        sl_ref_drop(stage, &micro->values[v]);
        sl_ref_drop(stage, &micro->stash[v]);
        sl_ref_drop(stage, &micro->kept[v]);
        sl_ref_drop(stage, &micro->grads[v]);
    }
    for (l = 0; l < stage->n_layers; l++) {
        sl_mem_release(micro->saved[l]);
        micro->saved[l] = NULL;
    }
}

void sl_stage_release_loans(sl_stage_t *stage)
{
    int i;

    for (i = 0; i < stage->n_loans; i++) {
        sl_ref_drop(stage, &stage->loans[i].ref);
    }
    stage->n_loans = 0;
}

void sl_stage_forget_job(sl_stage_t *stage)
{
    int m;

    sl_stage_release_loans(stage);
    sl_loads_forget(stage);
    for (m = 0; m < stage->n_micro_states; m++) {
        micro_release(stage, &stage->micro[m]);
    }
}

int sl_stage_keeps(const sl_stage_t *stage, int l)
{
    const unsigned char *keeps = stage->engine->keeps;

    return keeps != NULL && keeps[stage->begin + l];
}

void sl_stage_cleanup(sl_stage_t *stage)
{
    int m;

    sl_stage_forget_job(stage);
    for (m = 0; m < stage->n_micro_states; m++) {
        /* one allocation holds the five lists */
        free(stage->micro[m].values);
    }
    free(stage->micro);
    while (stage->plan_sets != NULL) {
        sl_plan_set_t *next = stage->plan_sets->next;

        sl_plan_set_destroy(stage->plan_sets);
        stage->plan_sets = next;
    }
    while (stage->free_refs != NULL) {
        sl_ref_t *next = stage->free_refs->next_free;

        free(stage->free_refs);
        stage->free_refs = next;
    }
    sl_staging_cleanup(stage);
    sl_stage_params_cleanup(stage);
    sl_schedule_cleanup(&stage->train_list);
    sl_schedule_cleanup(&stage->eval_list);
    free(stage->spans);
    free(stage->loans);
    free(stage->imports);
    free(stage->exports);
    free(stage->peers);
    free(stage->layers);
    free(stage->value_layer);
    free(stage->needs_gradient);
}
