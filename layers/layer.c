/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of layer types; layers, plans, ops and parameters. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/layers_internal.h"

/* Elements of a tensor: far above any memory, so that bytes never overflow. */
#define MAX_ELEMENTS ((int64_t)1 << 44)

static const sl_layer_ops_t *const builtin[] = {
#define X(id) &sl_layer_##id,
    SL_LAYER_BUILTIN_MAP(X)
#undef X
};

static _Atomic uint64_t n_kernel_runs;

const sl_layer_ops_t *sl_layer_builtin(size_t i)
{
    return i < sizeof(builtin) / sizeof(builtin[0]) ? builtin[i] : NULL;
}

const sl_layer_ops_t *sl_layer_find(const char *type)
{
    size_t i;

    for (i = 0; i < sizeof(builtin) / sizeof(builtin[0]); i++) {
        if (strcmp(builtin[i]->name, type) == 0) {
            return builtin[i];
        }
    }
    return NULL;
}

const char *sl_layer_label(const sl_layer_t *layer,
                           char text[SL_LAYER_LABEL_BYTES])
{
    char line[32] = "";

    if (layer->line > 0) {
        (void)snprintf(line, sizeof(line), ", line %d", layer->line);
    }
    (void)snprintf(text, SL_LAYER_LABEL_BYTES, "layer %.100s (%s%s)",
                   layer->name, layer->ops->name, line);
    return text;
}

sl_status_t sl_layer_refuse_input(const sl_layer_t *layer, int i,
                                  const sl_tensor_desc_t *in, const char *need)
{
    char label[SL_LAYER_LABEL_BYTES];
    char shape[SL_TENSOR_TEXT_BYTES];
    sl_status_t status;

    sl_tensor_desc_format(&in[i], shape, sizeof(shape));
    SL_FAIL(status, SL_ERR_CONFIG, out, "%s: input %d must be %s, not %s",
            sl_layer_label(layer, label), i, need, shape);
out:
    return status;
}

static int is_sane(const sl_tensor_desc_t *desc)
{
    int64_t n = 1;
    int i;

    for (i = 0; i < desc->n_dims; i++) {
        if (desc->dims[i] < 1 || desc->dims[i] > MAX_ELEMENTS / n) {
            return 0;
        }
        n *= desc->dims[i];
    }
    return 1;
}

sl_status_t sl_layer_infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                           sl_tensor_desc_t *out_p)
{
    char label[SL_LAYER_LABEL_BYTES];
    char shape[SL_TENSOR_TEXT_BYTES];
    sl_tensor_desc_t desc = {0};
    sl_status_t status;

    SL_TRY(status, layer->ops->infer(layer, in, &desc), out);
    if (!is_sane(&desc)) {
        sl_tensor_desc_format(&desc, shape, sizeof(shape));
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: its output %s is empty or has more than 2^44 elements",
                sl_layer_label(layer, label), shape);
    }
    *out_p = desc;
out:
    return status;
}

sl_param_t *sl_layer_param_add(sl_layer_t *layer, const char *name,
                               sl_param_kind_t kind, int n_dims,
                               const int64_t *dims, sl_init_t init,
                               double init_scale)
{
    sl_param_t *param = &layer->params[layer->n_params];

    SL_ASSERT(layer->n_params < SL_LAYER_MAX_PARAMS);
    param->name = name;
    param->kind = kind;
    param->desc = sl_tensor_desc(SL_DTYPE_F32, n_dims, dims);
    param->storage_bytes = sl_tensor_bytes(&param->desc);
    param->init = init;
    param->init_scale = init_scale;
    param->has_decay = kind == SL_PARAM_TRAINED && n_dims > 1;
    param->tied_layer = -1;
    param->tied_param = 0;
    layer->n_params++;
    return param;
}

/* ---- life ---- */

void sl_layer_destroy(sl_layer_t *layer)
{
    if (layer != NULL) {
        free(layer->name);
        free(layer->attrs);
        free(layer);
    }
}

/* Attributes, number of inputs, then shapes and parameters. */
static sl_status_t fill_layer(sl_layer_t *layer, const sl_layer_spec_t *spec,
                              const sl_tensor_desc_t *in,
                              sl_tensor_desc_t *out_p)
{
    const sl_layer_ops_t *ops = layer->ops;
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status;
    int i;

    SL_TRY(status,
           sl_attr_fill(ops->attr_defs, sl_layer_label(layer, label),
                        spec->attrs, spec->n_attrs, layer->attrs),
           out);
    if (layer->n_inputs < ops->n_inputs_min ||
        layer->n_inputs > ops->n_inputs_max) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: takes %d to %d inputs, not %d",
                sl_layer_label(layer, label), ops->n_inputs_min,
                ops->n_inputs_max, layer->n_inputs);
    }
    SL_TRY(status, sl_layer_infer(layer, in, out_p), out);
    if (ops->declare_params != NULL) {
        SL_TRY(status, ops->declare_params(layer, in), out);
    }
    for (i = 0; i < layer->n_params; i++) {
        if (!is_sane(&layer->params[i].desc)) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: parameter %s has more than 2^44 elements",
                    sl_layer_label(layer, label), layer->params[i].name);
        }
    }
out:
    return status;
}

/* All type names, comma separated. */
static void list_types(char *text, size_t bytes)
{
    size_t used = 0;
    size_t i;

    for (i = 0; i < sizeof(builtin) / sizeof(builtin[0]) && used < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "%s%s",
                                 i == 0 ? "" : ", ", builtin[i]->name);
    }
}

sl_status_t sl_layer_create(const sl_layer_spec_t *spec, int index,
                            const sl_tensor_desc_t *in, sl_layer_t **layer_p,
                            sl_tensor_desc_t *out_p)
{
    const sl_layer_ops_t *ops = sl_layer_find(spec->type);
    const size_t name_bytes =
        spec->name != NULL ? strlen(spec->name) + 1 : strlen(spec->type) + 16;
    sl_layer_t *layer = NULL;
    sl_tensor_desc_t desc;
    char types[512];
    sl_status_t status;
    int i;

    if (ops == NULL) {
        list_types(types, sizeof(types));
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "layer %s, line %d: there is no layer type '%s'; there are: %s",
                spec->name == NULL ? "without a name" : spec->name, spec->line,
                spec->type, types);
    }
    layer = calloc(1, sizeof(*layer));
    if (layer != NULL) {
        layer->attrs = calloc(1, ops->attrs_bytes + 1);
        layer->name = calloc(1, name_bytes);
    }
    if (layer == NULL || layer->attrs == NULL || layer->name == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_destroy,
                "layer of type %s: no host memory", spec->type);
    }
    if (spec->name != NULL) {
        memcpy(layer->name, spec->name, name_bytes);
    } else {
        (void)snprintf(layer->name, name_bytes, "%s_%d", spec->type, index);
    }
    layer->ops = ops;
    layer->index = index;
    layer->line = spec->line;
    layer->kind = SL_DEVICE_KIND_CPU;
    layer->dtype = SL_DTYPE_F32;
    layer->n_inputs = spec->n_inputs;
    for (i = 0; i < spec->n_inputs && i < SL_LAYER_MAX_INPUTS; i++) {
        layer->inputs[i] = spec->inputs[i];
    }
    SL_TRY(status, fill_layer(layer, spec, in, &desc), err_destroy);
    *layer_p = layer;
    *out_p = desc;
    return SL_OK;

err_destroy:
    sl_layer_destroy(layer);
out:
    return status;
}

sl_status_t sl_layer_target(sl_layer_t *layer, sl_device_kind_t kind,
                            sl_dtype_t dtype, const sl_tensor_desc_t *in,
                            sl_tensor_desc_t *out_p)
{
    sl_status_t status;

    layer->kind = kind;
    layer->dtype = dtype;
    SL_TRY(status, sl_layer_infer(layer, in, out_p), out);
    if (layer->ops->declare_params != NULL) {
        layer->n_params = 0;
        status = layer->ops->declare_params(layer, in);
    }
out:
    return status;
}

/* ---- plans and ops ---- */

sl_status_t sl_layer_plan_init(sl_layer_plan_t *plan, const sl_layer_t *layer,
                               sl_device_kind_t kind, int n_threads,
                               int is_training, const sl_tensor_desc_t *in)
{
    const sl_layer_kernels_t *kernels = layer->ops->kernels[kind];
    char label[SL_LAYER_LABEL_BYTES];
    sl_layer_plan_t made = {0};
    sl_status_t status;
    int i;

    if (kernels == NULL) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "%s: no kernels for this kind of device",
                sl_layer_label(layer, label));
    }
    made.layer = layer;
    made.kind = kind;
    made.n_threads = n_threads;
    made.is_training = is_training;
    for (i = 0; i < layer->n_inputs; i++) {
        made.in[i] = in[i];
    }
    SL_TRY(status, sl_layer_infer(layer, made.in, &made.out), out);
    SL_TRY(status, kernels->plan(&made), out);
    *plan = made;
out:
    return status;
}

sl_status_t sl_layer_check_input(const sl_layer_plan_t *plan, int input,
                                 const void *values)
{
    const sl_layer_ops_t *ops = plan->layer->ops;

    return ops->check_input == NULL || plan->in[input].dtype != SL_DTYPE_I32
               ? SL_OK
               : ops->check_input(plan, input, values);
}

static const sl_layer_kernels_t *kernels_of(const sl_layer_plan_t *plan)
{
    return plan->layer->ops->kernels[plan->kind];
}

void sl_layer_plan_cleanup(sl_layer_plan_t *plan)
{
    if (plan != NULL && plan->layer != NULL) {
        if (kernels_of(plan)->plan_release != NULL) {
            kernels_of(plan)->plan_release(plan);
        }
        memset(plan, 0, sizeof(*plan));
    }
}

static const sl_layer_kernels_t *start_run(const sl_layer_run_t *run)
{
    SL_ASSERT(sl_op_is_running());
    atomic_fetch_add_explicit(&n_kernel_runs, 1, memory_order_relaxed);
    return kernels_of(run->plan);
}

sl_status_t sl_layer_op_forward(const void *args, void *stream)
{
    const sl_layer_run_t *run = args;

    return start_run(run)->forward(run, stream);
}

sl_status_t sl_layer_op_backward(const void *args, void *stream)
{
    const sl_layer_run_t *run = args;
    const sl_layer_kernels_t *kernels = start_run(run);

    return kernels->backward == NULL ? SL_OK : kernels->backward(run, stream);
}

sl_status_t sl_layer_op_finish_batch(const void *args, void *stream)
{
    const sl_layer_run_t *run = args;
    const sl_layer_kernels_t *kernels = start_run(run);

    return kernels->finish_batch == NULL ? SL_OK
                                         : kernels->finish_batch(run, stream);
}

uint64_t sl_layer_n_kernel_runs(void)
{
    return atomic_load_explicit(&n_kernel_runs, memory_order_relaxed);
}

/* ---- cost ---- */

sl_status_t sl_layer_cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                          sl_layer_cost_t *cost_p)
{
    sl_layer_cost_t cost = {0};
    sl_layer_plan_t plan;
    sl_status_t status;
    int i;

    /* what a layer saves does not depend on the thread count */
    SL_TRY(status, sl_layer_plan_init(&plan, layer, layer->kind, 1, 1, in),
           out);
    layer->ops->cost(layer, in, &plan.out, &cost);
    for (i = 0; i < layer->n_params; i++) {
        if (layer->params[i].kind != SL_PARAM_ACCUMULATOR) {
            cost.param_bytes += layer->params[i].storage_bytes;
        }
    }
    cost.output_bytes = sl_tensor_bytes(&plan.out);
    cost.kept_bytes = plan.saved_bytes;
    sl_layer_plan_cleanup(&plan);
    *cost_p = cost;
out:
    return status;
}

/* ---- parameters ---- */

sl_status_t sl_layer_param_pack(const sl_layer_t *layer, sl_device_kind_t kind,
                                int param, const float *plain, void *storage)
{
    const sl_layer_kernels_t *kernels = layer->ops->kernels[kind];

    if (kernels != NULL && kernels->param_pack != NULL) {
        return kernels->param_pack(layer, param, plain, storage);
    }
    memcpy(storage, plain, sl_tensor_bytes(&layer->params[param].desc));
    return SL_OK;
}

sl_status_t sl_layer_param_unpack(const sl_layer_t *layer,
                                  sl_device_kind_t kind, int param,
                                  const void *storage, float *plain)
{
    const sl_layer_kernels_t *kernels = layer->ops->kernels[kind];

    if (kernels != NULL && kernels->param_unpack != NULL) {
        return kernels->param_unpack(layer, param, storage, plain);
    }
    memcpy(plain, storage, sl_tensor_bytes(&layer->params[param].desc));
    return SL_OK;
}

void sl_layer_param_init(const sl_layer_t *layer, int param, uint64_t seed,
                         float *plain)
{
    const sl_param_t *p = &layer->params[param];
    const size_t n = (size_t)sl_tensor_elements(&p->desc);
    const float scale = (float)p->init_scale;
    const sl_rng_t rng = sl_rng_at(seed, 0, 0, (uint32_t)layer->index,
                                   SL_RNG_USE_INIT + (uint32_t)param);
    size_t i;

    switch (p->init) {
    case SL_INIT_ZERO:
    case SL_INIT_ONE:
        for (i = 0; i < n; i++) {
            plain[i] = p->init == SL_INIT_ONE ? 1.0f : 0.0f;
        }
        break;
    case SL_INIT_UNIFORM:
        sl_rng_uniform(&rng, plain, n);
        for (i = 0; i < n; i++) {
            plain[i] = (2.0f * plain[i] - 1.0f) * scale;
        }
        break;
    case SL_INIT_NORMAL:
        sl_rng_normal(&rng, plain, n);
        for (i = 0; i < n; i++) {
            plain[i] *= scale;
        }
        break;
    }
}
