/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a stage: what stays, what one micro-batch takes, and how many of
 * those are in flight. */
#include "partition/stage_memory.h"

#include <stdlib.h>
#include <string.h>

#include "partition/partition_internal.h"
#include "partition/walk_memory.h"

/* Tensors that an edge between neighbours has lent at once. */
enum {
    LOANS = 2
};

/* A run of layers, once it was asked about. */
typedef struct pair {
    int is_known;
    sl_walk_mode_t none, full;
    size_t gradient_bytes; /* of the imports, on their way back */
    size_t tied_bytes;     /* largest gradient of a tied user that comes in */
} pair_t;

struct sl_part_memory {
    sl_part_memory_params_t params;
    int *in_flight;         /* owned */
    sl_tensor_desc_t *out;  /* owned, [n_layers] */
    sl_walk_facts_t *facts; /* owned, n_facts distinct ones */
    int n_facts;
    sl_walk_layer_t *layers;  /* owned, [n_layers] */
    size_t *persistent_bytes; /* owned, [n_layers + 1]: of the layers before */
    size_t *tied_bytes; /* owned, [n_layers]: gradient of a tied user, at its
                           owner, for the update */
    pair_t **rows; /* owned, by begin then end - begin - 1; NULL: not asked */
    sl_walk_t walk;
};

static size_t rounded(size_t bytes)
{
    const size_t mask = SL_MEM_ALIGN_BYTES - 1;

    return (bytes + mask) & ~mask;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- what the layers allocate ---- */

static sl_status_t make_facts(const sl_part_memory_t *memory,
                              const sl_layer_t *layer,
                              const sl_tensor_desc_t *in,
                              sl_walk_facts_t *facts)
{
    sl_layer_plan_t plan;
    sl_status_t status;
    int i;

    SL_TRY(status,
           sl_layer_plan_init(&plan, layer, layer->kind,
                              memory->params.n_threads, 1, in),
           out);
    for (i = 0; i < layer->n_inputs; i++) {
        facts->in_bytes[i] = sl_tensor_bytes(&in[i]);
        facts->keeps_input[i] = plan.keeps_input[i];
    }
    facts->out_bytes = sl_tensor_bytes(&plan.out);
    facts->saved_bytes = plan.saved_bytes;
    facts->forward_workspace_bytes = plan.forward_workspace_bytes;
    facts->backward_workspace_bytes = plan.backward_workspace_bytes;
    facts->keeps_output = plan.keeps_output;
    facts->passes_gradient = plan.passes_gradient;
    facts->accumulates = plan.accumulates;
    facts->in_place = plan.in_place;
    sl_layer_plan_cleanup(&plan);
out:
    return status;
}

static sl_status_t find_facts(sl_part_memory_t *memory, int l)
{
    const sl_model_t *model = memory->params.model;
    const sl_layer_t *layer = model->layers[l];
    sl_walk_facts_t *next = &memory->facts[memory->n_facts];
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];
    sl_status_t status;
    int i = 0;

    sl_model_layer_inputs(model, memory->params.rows, memory->out, l, in);
    next->key = sl_part_layer_key(layer, in, 0);
    while (memory->facts[i].key != next->key) {
        i++;
    }
    if (i == memory->n_facts) {
        SL_TRY(status, make_facts(memory, layer, in, next), out);
        memory->n_facts++;
    }
    memory->layers[l].facts = &memory->facts[i];
    return SL_OK;
out:
    return status;
}

static size_t param_bytes(const sl_part_memory_t *memory,
                          const sl_param_t *param)
{
    const size_t bytes = rounded(param->storage_bytes);

    if (param->kind != SL_PARAM_TRAINED) {
        return bytes;
    }
    return bytes *
           (2 +
            (param->tied_layer >= 0 ? 0 : (size_t)memory->params.n_moments));
}

static void fill_layer(sl_part_memory_t *memory, int l)
{
    const sl_layer_t *layer = memory->params.model->layers[l];
    sl_walk_layer_t *own = &memory->layers[l];
    size_t bytes = 0;
    int i;

    own->layer = layer;
    own->last_reader = -1;
    for (i = 0; i < layer->n_inputs; i++) {
        if (layer->inputs[i] >= 0) {
            sl_walk_layer_t *source = &memory->layers[layer->inputs[i]];

            source->last_reader = l;
            own->needs_gradient |= source->needs_gradient;
        }
    }
    for (i = 0; i < layer->n_params; i++) {
        const sl_param_t *param = &layer->params[i];

        own->needs_gradient |= param->kind == SL_PARAM_TRAINED;
        bytes += param_bytes(memory, param);
        if (param->tied_layer >= 0) {
            memory->tied_bytes[param->tied_layer] =
                rounded(param->storage_bytes);
        }
    }
    memory->persistent_bytes[l + 1] = memory->persistent_bytes[l] + bytes;
}

/* ---- life ---- */

static sl_status_t check_params(const sl_part_memory_params_t *params)
{
    sl_status_t status = SL_OK;
    int k;

    if (params->model == NULL || params->in_flight == NULL ||
        params->rows < 1 || params->n_stages < 1 ||
        params->n_micro_batches < 1 || params->n_threads < 1 ||
        params->n_moments < 0 || params->n_moments > 2) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "partition: an estimate of memory needs a model, rows, "
                "stages, micro-batches in flight, threads and 0 to 2 moments");
    }
    for (k = 0; k < params->n_stages; k++) {
        if (params->in_flight[k] < 1 ||
            params->in_flight[k] > params->n_micro_batches) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "partition: %d of %d micro-batches in flight on stage %d",
                    params->in_flight[k], params->n_micro_batches, k);
        }
    }
out:
    return status;
}

static sl_status_t make_room(sl_part_memory_t *memory)
{
    const size_t n = (size_t)memory->params.model->n_layers;
    const size_t k = (size_t)memory->params.n_stages;
    sl_status_t status = SL_OK;

    memory->in_flight = malloc(k * sizeof(int));
    memory->out = calloc(n, sizeof(*memory->out));
    memory->facts = calloc(n + 1, sizeof(*memory->facts));
    memory->layers = calloc(n, sizeof(*memory->layers));
    memory->persistent_bytes = calloc(n + 1, sizeof(size_t));
    memory->tied_bytes = calloc(n, sizeof(size_t));
    memory->rows = calloc(n, sizeof(*memory->rows));
    if (memory->in_flight == NULL || memory->out == NULL ||
        memory->facts == NULL || memory->layers == NULL ||
        memory->persistent_bytes == NULL || memory->tied_bytes == NULL ||
        memory->rows == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "partition: no memory for the sizes of %zu layers", n);
    }
    memcpy(memory->in_flight, memory->params.in_flight, k * sizeof(int));
    memory->params.in_flight = memory->in_flight;
out:
    return status;
}

sl_status_t sl_part_memory_create(const sl_part_memory_params_t *params,
                                  sl_part_memory_t **memory_p)
{
    sl_part_memory_t *memory = NULL;
    sl_tensor_desc_t desc;
    sl_status_t status;
    int l;

    SL_TRY(status, check_params(params), out);
    memory = calloc(1, sizeof(*memory));
    if (memory == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "partition: no memory for an estimate");
    }
    memory->params = *params;
    SL_TRY(status, make_room(memory), err_destroy);
    SL_TRY(status, sl_model_infer(params->model, params->rows, memory->out),
           err_destroy);
    for (l = 0; l < params->model->n_layers; l++) {
        SL_TRY(status, find_facts(memory, l), err_destroy);
        fill_layer(memory, l);
    }
    SL_TRY(status,
           sl_walk_init(&memory->walk, params->model->n_layers, memory->layers),
           err_destroy);
    desc = params->model->data;
    desc.dims[0] = params->rows;
    memory->walk.data_bytes = sl_tensor_bytes(&desc);
    desc = params->model->target;
    desc.dims[0] = params->rows;
    memory->walk.target_bytes = sl_tensor_bytes(&desc);
    *memory_p = memory;
    return SL_OK;

err_destroy:
    sl_part_memory_destroy(memory);
out:
    return status;
}

void sl_part_memory_destroy(sl_part_memory_t *memory)
{
    int l;

    if (memory == NULL) {
        return;
    }
    for (l = 0; memory->rows != NULL && l < memory->params.model->n_layers;
         l++) {
        free(memory->rows[l]);
    }
    sl_walk_cleanup(&memory->walk);
    free(memory->in_flight);
    free(memory->out);
    free(memory->facts);
    free(memory->layers);
    free(memory->persistent_bytes);
    free(memory->tied_bytes);
    free(memory->rows);
    free(memory);
}

/* ---- the need ---- */

static void walk_pair(sl_part_memory_t *memory, int begin, int end,
                      pair_t *pair)
{
    const sl_part_recompute_t mode = memory->params.recompute;
    int l;

    memset(pair, 0, sizeof(*pair));
    if (mode != SL_PART_RECOMPUTE_FULL) {
        sl_walk_stage(&memory->walk, begin, end, 0, &pair->none);
    }
    if (mode != SL_PART_RECOMPUTE_NONE) {
        sl_walk_stage(&memory->walk, begin, end, 1, &pair->full);
    }
    pair->gradient_bytes = sl_walk_gradient_bytes(&memory->walk);
    for (l = begin; l < end; l++) {
        pair->tied_bytes = larger(pair->tied_bytes, memory->tied_bytes[l]);
    }
    pair->is_known = 1;
}

/* Without host memory to keep it, the answer is found again each time. */
static pair_t find_pair(sl_part_memory_t *memory, int begin, int end)
{
    const int n = memory->params.model->n_layers;
    pair_t **row = &memory->rows[begin];
    pair_t pair;

    if (*row == NULL) {
        *row = calloc((size_t)(n - begin), sizeof(**row));
    }
    if (*row != NULL && (*row)[end - begin - 1].is_known) {
        return (*row)[end - begin - 1];
    }
    walk_pair(memory, begin, end, &pair);
    if (*row != NULL) {
        (*row)[end - begin - 1] = pair;
    }
    return pair;
}

/**
 * Bytes of the micro-batches. All but the last of those in flight are like
 * `most`, the last is like `last`. The peak is in the last forward, with the
 * others held and their outputs on their way; or in one of the first
 * backwards, with the gradients of the ones before on their way.
 */
static size_t flow_bytes(const sl_part_memory_t *memory, const pair_t *pair,
                         int in_flight, const sl_walk_mode_t *most,
                         const sl_walk_mode_t *last)
{
    const size_t n_held = (size_t)in_flight - 1;
    const size_t n_sent = smaller(n_held, LOANS);
    const size_t n_more = (size_t)(memory->params.n_micro_batches - in_flight);
    const int overlaps = memory->params.is_interleaved && n_more > 0;
    const size_t gradients =
        overlaps ? smaller(n_more, LOANS) * pair->gradient_bytes : 0;
    size_t peak, j;

    peak = n_held * most->held_bytes + last->forward_bytes + gradients +
           n_sent * last->export_bytes;
    if (n_held == 0) {
        return larger(peak, larger(last->recompute_bytes + last->export_bytes,
                                   last->backward_bytes) +
                                gradients);
    }
    /* the first recomputation comes before any gradient */
    peak = larger(peak, (n_held - 1) * most->held_bytes + last->held_bytes +
                            most->recompute_bytes + gradients +
                            smaller(n_held + 1, LOANS) * last->export_bytes);
    for (j = 0; j < n_held && j <= LOANS; j++) {
        const size_t returned =
            larger(j * pair->gradient_bytes, overlaps ? gradients : 0);
        const size_t held =
            (n_held - 1 - (overlaps ? 0 : j)) * most->held_bytes +
            last->held_bytes;

        peak = larger(
            peak, held + returned +
                      larger(most->backward_bytes,
                             j == 0 ? 0 : most->recompute_bytes) +
                      (memory->params.is_interleaved ? last->export_bytes : 0));
    }
    return larger(peak, last->backward_bytes +
                            smaller(n_held, LOANS) * pair->gradient_bytes);
}

size_t sl_part_memory_need(void *ctx, int begin, int end, int stage)
{
    sl_part_memory_t *memory = ctx;
    const pair_t pair = find_pair(memory, begin, end);
    const int in_flight = memory->in_flight[stage];
    size_t flow = 0;

    switch (memory->params.recompute) {
    case SL_PART_RECOMPUTE_NONE:
        flow = flow_bytes(memory, &pair, in_flight, &pair.none, &pair.none);
        break;
    case SL_PART_RECOMPUTE_FULL:
        flow = flow_bytes(memory, &pair, in_flight, &pair.full, &pair.full);
        break;
    case SL_PART_RECOMPUTE_EXCEPT_LAST:
        flow = flow_bytes(memory, &pair, in_flight, &pair.full, &pair.none);
        break;
    }
    return memory->persistent_bytes[end] - memory->persistent_bytes[begin] +
           larger(flow, pair.tied_bytes);
}
