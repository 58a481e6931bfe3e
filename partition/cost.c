/* SPDX-License-Identifier: Apache-2.0 */
/* Analytic costs: flops and traffic from the layer types, what is kept from
 * their plans, what crosses each cut from the list's edges. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/partition_internal.h"

/** What is the same for layers with equal keys. */
typedef struct facts {
    uint64_t key;
    sl_layer_cost_t cost;
    size_t saved_bytes;
    int keeps_input[SL_LAYER_MAX_INPUTS];
    int keeps_output;
    int has_backward;
} facts_t;

/** One walk over a model. */
typedef struct walk {
    const sl_model_t *model;
    int64_t rows;
    const sl_part_speed_t *speed;
    sl_tensor_desc_t *out; /* [n_layers], owned */
    facts_t *facts;        /* [n_facts], owned */
    int n_facts;
    int *is_kept;            /* [n_layers + 2], owned; last: data, target */
    sl_part_layer_t *layers; /* [n_layers], the result */
} walk_t;

void sl_part_speed_default(sl_part_speed_t *speed, int n_threads)
{
    const double n = n_threads < 1 ? 1.0 : n_threads;

    /* Measured on one Zen 5 core: convolutions in fp32; z = x + y over
     * arrays of 128 MiB (two cores gave twice as much); a copy of 128 MiB;
     * waking a thread through a condition; an empty op. */
    speed->flops_per_us = 200e3 * n;
    speed->bytes_per_us = 42e3 * n;
    speed->link_bytes_per_us = 20e3;
    speed->link_latency_us = 20.0;
    speed->op_us = 0.5;
}

/* What a data sheet says of a large card (H100 SXM): dense products, memory,
 * PCIe; and a usual time to launch a kernel. Nothing of it was measured. */
static void set_cuda(sl_part_speed_t *speed, const sl_model_t *model)
{
    const int is_16_bit =
        model->dtype == SL_DTYPE_BF16 || model->dtype == SL_DTYPE_F16;

    speed->flops_per_us = is_16_bit ? 990e6 : model->is_tf32 ? 495e6 : 67e6;
    speed->bytes_per_us = 3350e3;
    speed->link_bytes_per_us = 64e3;
    speed->link_latency_us = 10.0;
    speed->op_us = 5.0;
}

void sl_part_speed_for(sl_part_speed_t *speed, const sl_model_t *model,
                       int n_threads)
{
    switch (model->kind) {
    case SL_DEVICE_KIND_CUDA:
        set_cuda(speed, model);
        return;
    case SL_DEVICE_KIND_CPU:
    case SL_DEVICE_N_KINDS:
        break;
    }
    sl_part_speed_default(speed, n_threads);
}

void sl_part_find_work(const sl_layer_plan_t *plan, sl_part_work_t *work_p)
{
    const sl_layer_t *layer = plan->layer;
    int i;

    memset(work_p, 0, sizeof(*work_p));
    for (i = 0; i < layer->n_inputs; i++) {
        work_p->differentiates[i] = layer->inputs[i] >= 0 &&
                                    sl_part_is_real(&plan->in[i]) &&
                                    ((plan->passes_gradient >> i) & 1) == 0;
        work_p->has_backward |= work_p->differentiates[i];
    }
    for (i = 0; i < layer->n_params; i++) {
        work_p->has_backward |= layer->params[i].kind == SL_PARAM_TRAINED;
    }
    if (layer->ops->kernels[plan->kind]->backward == NULL) {
        memset(work_p, 0, sizeof(*work_p));
    }
}

/**
 * A type counts both gradients of its backward. A layer fed by the batch
 * alone computes only that of its parameters: half, as for products.
 */
static void drop_input_gradient(const sl_layer_plan_t *plan,
                                sl_layer_cost_t *cost)
{
    const sl_layer_t *layer = plan->layer;
    int i;

    for (i = 0; i < layer->n_inputs; i++) {
        if (layer->inputs[i] >= 0 || !sl_part_is_real(&plan->in[i])) {
            return;
        }
    }
    cost->backward_flops *= 0.5;
    cost->backward_bytes *= 0.5;
}

/** Facts of a layer that has no equal before it. */
static sl_status_t make_facts(const sl_layer_t *layer,
                              const sl_tensor_desc_t *in, facts_t *facts)
{
    sl_layer_plan_t plan;
    sl_part_work_t work;
    sl_status_t status;

    /* What is kept does not depend on the thread count. */
    SL_TRY(status, sl_layer_plan_init(&plan, layer, layer->kind, 1, 1, in),
           out);
    layer->ops->cost(layer, in, &plan.out, &facts->cost);
    sl_part_find_work(&plan, &work);
    drop_input_gradient(&plan, &facts->cost);
    facts->saved_bytes = plan.saved_bytes;
    memcpy(facts->keeps_input, plan.keeps_input, sizeof(plan.keeps_input));
    facts->keeps_output = plan.keeps_output;
    facts->has_backward = work.has_backward;
    sl_layer_plan_cleanup(&plan);
out:
    return status;
}

static sl_status_t find_facts(walk_t *walk, int index, const facts_t **facts_p)
{
    const sl_layer_t *layer = walk->model->layers[index];
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];
    facts_t *facts = &walk->facts[walk->n_facts];
    sl_status_t status;
    int i;

    sl_model_layer_inputs(walk->model, walk->rows, walk->out, index, in);
    facts->key = sl_part_layer_key(layer, in, 0);
    for (i = 0; walk->facts[i].key != facts->key; i++) {
    }
    if (i == walk->n_facts) {
        SL_TRY(status, make_facts(layer, in, facts), out);
        walk->n_facts++;
    }
    *facts_p = &walk->facts[i];
    return SL_OK;
out:
    return status;
}

static double pass_us(const sl_part_speed_t *speed, double flops, double bytes)
{
    return fmax(flops / speed->flops_per_us, bytes / speed->bytes_per_us) +
           speed->op_us;
}

static void add_params(const sl_layer_t *layer, sl_part_layer_t *cost)
{
    int i;

    for (i = 0; i < layer->n_params; i++) {
        const sl_param_t *param = &layer->params[i];

        if (param->kind != SL_PARAM_ACCUMULATOR) {
            cost->param_bytes += param->storage_bytes;
        }
        if (param->kind == SL_PARAM_TRAINED) {
            cost->trained_bytes += param->storage_bytes;
        }
    }
}

/** Bytes of a tensor (a layer's output or SL_INPUT_*) the first time that it
 *  is kept, then 0. */
static size_t keep(walk_t *walk, int source)
{
    const int n = walk->model->n_layers;
    const int slot = source == SL_INPUT_DATA     ? n
                     : source == SL_INPUT_TARGET ? n + 1
                                                 : source;
    sl_tensor_desc_t desc;

    if (walk->is_kept[slot]) {
        return 0;
    }
    walk->is_kept[slot] = 1;
    if (source >= 0) {
        return sl_tensor_bytes(&walk->out[source]);
    }
    desc = source == SL_INPUT_DATA ? walk->model->data : walk->model->target;
    desc.dims[0] = walk->rows;
    return sl_tensor_bytes(&desc);
}

static sl_status_t cost_layer(walk_t *walk, int index)
{
    const sl_layer_t *layer = walk->model->layers[index];
    const sl_part_speed_t *speed = walk->speed;
    sl_part_layer_t *cost = &walk->layers[index];
    const facts_t *facts;
    sl_status_t status;
    int i;

    SL_TRY(status, find_facts(walk, index, &facts), out);
    cost->forward_flops = facts->cost.forward_flops;
    cost->forward_us =
        pass_us(speed, facts->cost.forward_flops, facts->cost.forward_bytes);
    if (facts->has_backward) {
        cost->backward_flops = facts->cost.backward_flops;
        cost->backward_us = pass_us(speed, facts->cost.backward_flops,
                                    facts->cost.backward_bytes);
    }
    add_params(layer, cost);
    cost->kept_bytes = facts->saved_bytes;
    for (i = 0; i < layer->n_inputs; i++) {
        if (facts->keeps_input[i]) {
            cost->kept_bytes += keep(walk, layer->inputs[i]);
        }
    }
    if (facts->keeps_output) {
        cost->kept_bytes += keep(walk, index);
    }
out:
    return status;
}

/** cut_bytes: an output is on its way from its layer to its last reader. */
static void find_cut_bytes(walk_t *walk, int *last_reader)
{
    const sl_model_t *model = walk->model;
    int i, j;

    for (i = 0; i < model->n_layers; i++) {
        last_reader[i] = i;
        for (j = 0; j < model->layers[i]->n_inputs; j++) {
            if (model->layers[i]->inputs[j] >= 0) {
                last_reader[model->layers[i]->inputs[j]] = i;
            }
        }
    }
    for (i = 0; i < model->n_layers; i++) {
        const size_t bytes = sl_tensor_bytes(&walk->out[i]);

        for (j = i + 1; j <= last_reader[i]; j++) {
            walk->layers[j].cut_bytes += bytes;
        }
    }
}

static sl_status_t check_speed(const sl_part_speed_t *speed)
{
    sl_status_t status;

    if (!(speed->flops_per_us > 0.0) || !(speed->bytes_per_us > 0.0) ||
        !(speed->op_us >= 0.0 && speed->op_us < HUGE_VAL)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "partition: a device of %g flops/us, %g bytes/us and %g us "
                "an op is not possible",
                speed->flops_per_us, speed->bytes_per_us, speed->op_us);
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t walk_init(walk_t *walk)
{
    const size_t n = (size_t)walk->model->n_layers;
    sl_status_t status;

    walk->out = calloc(n + 1, sizeof(walk->out[0]));
    walk->facts = calloc(n + 1, sizeof(walk->facts[0]));
    walk->is_kept = calloc(n + 2, sizeof(walk->is_kept[0]));
    walk->layers = calloc(n + 1, sizeof(walk->layers[0]));
    if (walk->out == NULL || walk->facts == NULL || walk->is_kept == NULL ||
        walk->layers == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "partition: no memory for the costs of %zu layers", n);
    }
    SL_TRY(status, sl_model_infer(walk->model, walk->rows, walk->out), out);
out:
    return status;
}

sl_status_t sl_part_costs_analytic(const sl_model_t *model, int64_t rows,
                                   const sl_part_speed_t *speed,
                                   sl_part_costs_t *costs_p)
{
    walk_t walk = {.model = model, .rows = rows, .speed = speed};
    sl_status_t status;
    int i;

    if (model == NULL || speed == NULL || costs_p == NULL || rows < 1) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "partition: costs need a model, a speed and rows, not %lld",
                (long long)rows);
    }
    SL_TRY(status, check_speed(speed), out);
    SL_TRY(status, walk_init(&walk), out);
    for (i = 0; i < model->n_layers; i++) {
        SL_TRY(status, cost_layer(&walk, i), out);
    }
    find_cut_bytes(&walk, walk.is_kept);
    *costs_p =
        (sl_part_costs_t){.n_layers = model->n_layers, .layers = walk.layers};
    walk.layers = NULL;
out:
    free(walk.out);
    free(walk.facts);
    free(walk.is_kept);
    free(walk.layers);
    return status;
}

void sl_part_costs_cleanup(sl_part_costs_t *costs)
{
    if (costs != NULL) {
        free(costs->layers);
        memset(costs, 0, sizeof(*costs));
    }
}
