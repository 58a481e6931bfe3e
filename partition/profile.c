/* SPDX-License-Identifier: Apache-2.0 */
/* Measured costs: each layer alone, with real kernels and synthetic values,
 * through the device's op manager and allocator. */
#include <stdlib.h>
#include <string.h>

#include "partition/partition_internal.h"

enum {
    MAX_BLOCKS = 3 * SL_LAYER_MAX_INPUTS + 2 * SL_LAYER_MAX_PARAMS + 4,
    MAX_REPEATS = 1000,
    SEED = 1
};

/** Everything one layer needs to run. */
typedef struct bench {
    sl_device_t *device;
    const sl_layer_t *layer;
    sl_layer_plan_t plan;
    sl_part_work_t work;
    sl_layer_run_t run;
    sl_mem_block_t *blocks[MAX_BLOCKS];
    int n_blocks;
    uint32_t n_streams; /* of random numbers drawn */
} bench_t;

/* ---- ops ---- */

/** Kinds that are not built have no devices. */
static const sl_op_fn set_ops[SL_DEVICE_N_KINDS] = {
    [SL_DEVICE_KIND_CPU] = sl_part_set_cpu,
#if SL_HAVE_CUDA
    [SL_DEVICE_KIND_CUDA] = sl_part_set_cuda,
#endif
};

static sl_status_t submit(bench_t *bench, const char *name, sl_op_fn fn,
                          const void *args, size_t args_bytes,
                          sl_op_span_t *span)
{
    const sl_op_t op = {.fn = fn,
                        .name_id = sl_op_manager_name(bench->device->ops, name),
                        .args_bytes = (uint32_t)args_bytes,
                        .span = span,
                        .args = args};

    return sl_op_manager_submit(bench->device->ops, &op, NULL);
}

/** Values of the host (NULL: zeros) to the device; they may change after. */
static sl_status_t set_values(bench_t *bench, void *data, const void *values,
                              size_t bytes)
{
    const sl_part_set_t set = {.data = data, .values = values, .bytes = bytes};
    sl_status_t status;

    SL_TRY(status,
           submit(bench, "profile fill", set_ops[bench->device->kind], &set,
                  sizeof(set), NULL),
           out);
    status = sl_op_manager_drain(bench->device->ops);
out:
    return status;
}

/* ---- memory ---- */

static sl_status_t alloc(bench_t *bench, sl_mem_class_t mem_class, size_t bytes,
                         void **ptr_p)
{
    sl_status_t status;

    SL_ASSERT(bench->n_blocks < MAX_BLOCKS);
    SL_TRY(status,
           sl_mem_alloc(bench->device->mem, mem_class, bytes,
                        &bench->blocks[bench->n_blocks]),
           out);
    *ptr_p = bench->blocks[bench->n_blocks++]->ptr;
out:
    return status;
}

static sl_status_t alloc_tensor(bench_t *bench, sl_mem_class_t mem_class,
                                const sl_tensor_desc_t *desc, int is_filled,
                                void **ptr_p)
{
    const uint32_t stream = bench->n_streams++;
    void *data = NULL, *values = NULL;
    sl_status_t status;

    SL_TRY(status, alloc(bench, mem_class, sl_tensor_bytes(desc), &data), out);
    if (is_filled) {
        SL_TRY(status, sl_part_make_values(desc, SEED, stream, &values), out);
        SL_TRY(status, set_values(bench, data, values, sl_tensor_bytes(desc)),
               out);
    }
    *ptr_p = data;
out:
    free(values);
    return status;
}

/** Initial values of a parameter in its storage layout; owned (free). */
static sl_status_t pack_values(bench_t *bench, int param, void **values_p)
{
    const sl_param_t *p = &bench->layer->params[param];
    const size_t plain_bytes = sl_tensor_bytes(&p->desc);
    float *plain = malloc(plain_bytes + 1);
    void *values = calloc(1, p->storage_bytes + 1);
    sl_status_t status;

    if (plain == NULL || values == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "profile: layer %s: no host memory for parameter %s",
                bench->layer->name, p->name);
    }
    sl_layer_param_init(bench->layer, param, SEED, plain);
    SL_TRY(status,
           sl_layer_param_pack(bench->layer, bench->device->kind, param, plain,
                               values),
           err_free);
    free(plain);
    *values_p = values;
    return SL_OK;

err_free:
    free(plain);
    free(values);
    return status;
}

/** Storage of a parameter, with `values`, or zeros when NULL. */
static sl_status_t alloc_values(bench_t *bench, size_t bytes,
                                const void *values, void **ptr_p)
{
    void *data = NULL;
    sl_status_t status;

    SL_TRY(status, alloc(bench, SL_MEM_CLASS_PERSISTENT, bytes, &data), out);
    SL_TRY(status, set_values(bench, data, values, bytes), out);
    *ptr_p = data;
out:
    return status;
}

/** A parameter with its initial values, and its gradient. Accumulators and
 *  gradients start from zero. */
static sl_status_t make_param(bench_t *bench, int param)
{
    const sl_param_t *p = &bench->layer->params[param];
    void *values = NULL;
    sl_status_t status;

    if (p->kind != SL_PARAM_ACCUMULATOR) {
        SL_TRY(status, pack_values(bench, param, &values), out);
    }
    SL_TRY(
        status,
        alloc_values(bench, p->storage_bytes, values, &bench->run.param[param]),
        out);
    if (p->kind == SL_PARAM_TRAINED) {
        SL_TRY(status,
               alloc_values(bench, p->storage_bytes, NULL,
                            &bench->run.grad[param]),
               out);
    }
out:
    free(values);
    return status;
}

static sl_status_t make_input(bench_t *bench, int input)
{
    const sl_tensor_desc_t *desc = &bench->plan.in[input];
    void *data = NULL;
    sl_status_t status;

    SL_TRY(status, alloc_tensor(bench, SL_MEM_CLASS_ACTIVATION, desc, 1, &data),
           out);
    bench->run.in[input] = data;
    if (bench->work.differentiates[input]) {
        SL_TRY(status,
               alloc_tensor(bench, SL_MEM_CLASS_ACTIVATION, desc, 0,
                            &bench->run.din[input]),
               out);
    }
out:
    return status;
}

static sl_status_t make_run(bench_t *bench)
{
    const sl_layer_plan_t *plan = &bench->plan;
    const sl_layer_t *layer = bench->layer;
    void *dout = NULL;
    sl_status_t status;
    int i;

    bench->run.plan = plan;
    /* neither first: all micro-batches but one of a mini-batch accumulate */
    bench->run.step = (sl_step_info_t){
        .seed = SEED,
        .is_training = 1,
        .loss_scale = 1.0f / (float)plan->in[0].dims[0],
    };
    for (i = 0; i < layer->n_inputs; i++) {
        SL_TRY(status, make_input(bench, i), out);
    }
    for (i = 0; i < layer->n_params; i++) {
        SL_TRY(status, make_param(bench, i), out);
    }
    SL_TRY(status,
           alloc_tensor(bench, SL_MEM_CLASS_ACTIVATION, &plan->out, 0,
                        &bench->run.out),
           out);
    if (!layer->ops->is_loss) {
        SL_TRY(
            status,
            alloc_tensor(bench, SL_MEM_CLASS_ACTIVATION, &plan->out, 1, &dout),
            out);
        bench->run.dout = dout;
    }
    SL_TRY(
        status,
        alloc(bench, SL_MEM_CLASS_STASH, plan->saved_bytes, &bench->run.saved),
        out);
    SL_TRY(status,
           alloc(bench, SL_MEM_CLASS_WORKSPACE,
                 plan->forward_workspace_bytes > plan->backward_workspace_bytes
                     ? plan->forward_workspace_bytes
                     : plan->backward_workspace_bytes,
                 &bench->run.workspace),
           out);
out:
    return status;
}

/* ---- one layer ---- */

/** Run forward and backward `n_repeats` times; the fastest after the first
 *  into `cost`. */
static sl_status_t time_passes(bench_t *bench, int n_repeats,
                               sl_part_layer_t *cost)
{
    uint64_t forward_ns = UINT64_MAX, backward_ns = UINT64_MAX;
    sl_status_t status;
    int i;

    for (i = 0; i < n_repeats; i++) {
        sl_op_span_t spans[2] = {{0}};

        SL_TRY(status,
               submit(bench, "profile forward", sl_layer_op_forward,
                      &bench->run, sizeof(bench->run), &spans[0]),
               err_drain);
        if (bench->work.has_backward) {
            SL_TRY(status,
                   submit(bench, "profile backward", sl_layer_op_backward,
                          &bench->run, sizeof(bench->run), &spans[1]),
                   err_drain);
        }
        SL_TRY(status, sl_op_manager_drain(bench->device->ops), out);
        if (i > 0 && spans[0].busy_ns < forward_ns) {
            forward_ns = spans[0].busy_ns;
        }
        if (i > 0 && spans[1].busy_ns < backward_ns) {
            backward_ns = spans[1].busy_ns;
        }
    }
    cost->forward_us = (double)forward_ns * 1e-3;
    cost->backward_us = (double)backward_ns * 1e-3;
    return SL_OK;

err_drain: /* an op may still hold a pointer to a span */
    SL_KEEP(status, sl_op_manager_drain(bench->device->ops));
out:
    return status;
}

static void bench_cleanup(bench_t *bench)
{
    sl_status_t status = SL_OK;

    /* a failure is known already; what matters is that no op is left */
    SL_KEEP(status, sl_op_manager_drain(bench->device->ops));
    while (bench->n_blocks > 0) {
        sl_mem_release(bench->blocks[--bench->n_blocks]);
    }
    sl_layer_plan_cleanup(&bench->plan);
}

static sl_status_t measure_layer(const sl_layer_t *layer,
                                 const sl_tensor_desc_t *in,
                                 sl_device_t *device, int n_repeats,
                                 sl_part_layer_t *cost)
{
    bench_t bench = {.device = device, .layer = layer};
    sl_status_t status;

    SL_TRY(status,
           sl_layer_plan_init(&bench.plan, layer, device->kind,
                              device->n_threads, 1, in),
           out);
    sl_part_find_work(&bench.plan, &bench.work);
    SL_TRY(status, make_run(&bench), err_cleanup);
    SL_TRY(status, time_passes(&bench, n_repeats, cost), err_cleanup);
err_cleanup:
    bench_cleanup(&bench);
out:
    return status;
}

/* ---- a model ---- */

/** Times into `costs`; equal layers are measured once. */
static sl_status_t measure_all(const sl_model_t *model, int64_t rows,
                               sl_device_t *device, int n_repeats,
                               const sl_tensor_desc_t *shapes, uint64_t *keys,
                               sl_part_costs_t *costs)
{
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];
    sl_status_t status = SL_OK;
    int i, same;

    for (i = 0; i < model->n_layers; i++) {
        sl_model_layer_inputs(model, rows, shapes, i, in);
        keys[i] = sl_part_layer_key(model->layers[i], in, 0);
        for (same = 0; keys[same] != keys[i]; same++) {
        }
        if (same == i) {
            SL_TRY(status,
                   measure_layer(model->layers[i], in, device, n_repeats,
                                 &costs->layers[i]),
                   out);
        } else {
            costs->layers[i].forward_us = costs->layers[same].forward_us;
            costs->layers[i].backward_us = costs->layers[same].backward_us;
        }
    }
out:
    return status;
}

sl_status_t sl_part_profile_measure(const sl_model_t *model, int64_t rows,
                                    sl_device_t *device, int n_repeats,
                                    const sl_part_speed_t *speed,
                                    sl_part_costs_t *costs_p)
{
    sl_part_costs_t costs = {0};
    sl_tensor_desc_t *shapes = NULL;
    uint64_t *keys = NULL;
    sl_status_t status;

    if (device == NULL || n_repeats < 2 || n_repeats > MAX_REPEATS) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "profile: a device and 2 to %d repeats are needed, not %d",
                MAX_REPEATS, n_repeats);
    }
    if (device->kind != model->kind || set_ops[device->kind] == NULL) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "profile: model %s is made for another kind of device than %s",
                model->name, device->name);
    }
    SL_TRY(status, sl_part_costs_analytic(model, rows, speed, &costs), out);
    shapes = calloc((size_t)model->n_layers + 1, sizeof(*shapes));
    keys = calloc((size_t)model->n_layers + 1, sizeof(*keys));
    if (shapes == NULL || keys == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "profile: no host memory for %d layers", model->n_layers);
    }
    SL_TRY(status, sl_model_infer(model, rows, shapes), out);
    SL_TRY(status,
           measure_all(model, rows, device, n_repeats, shapes, keys, &costs),
           out);
    costs.is_measured = 1;
    *costs_p = costs;
    costs.layers = NULL;
out:
    free(shapes);
    free(keys);
    sl_part_costs_cleanup(&costs);
    return status;
}
