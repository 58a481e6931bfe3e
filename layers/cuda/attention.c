/* SPDX-License-Identifier: Apache-2.0 */
/* attention on CUDA devices: fused by cuDNN where it can be, otherwise by
 * products with a softmax between them. Both keep the same for backward. */
#include <math.h>
#include <stdlib.h>

#include "layers/attention_internal.h"
#include "layers/cuda/attention_products.h"
#include "layers/cuda/dnn_attention.h"
#include "layers/layers_internal.h"

/* Numbers that one stream of random numbers has. */
#define MAX_ELEMENTS 0x1p34

/* Which way a pass goes: NULL is not the one. */
typedef struct attention {
    sl_cuda_dnn_attention_t *fused;
    sl_cuda_attention_products_t *products;
    int is_backward_fused;
} attention_t;

static sl_cuda_attention_shape_t shape_of(const sl_layer_plan_t *plan)
{
    const sl_attention_attrs_t *attrs = plan->layer->attrs;
    const int64_t *dims = plan->in[0].dims;
    sl_cuda_attention_shape_t shape = {.batch = dims[0],
                                       .heads = attrs->heads,
                                       .time = dims[1],
                                       .head_dim = dims[2] / 3 / attrs->heads,
                                       .dtype = plan->in[0].dtype,
                                       .is_causal = attrs->causal,
                                       .is_training = plan->is_training};

    shape.scale = (float)(1.0 / sqrt((double)shape.head_dim));
    return shape;
}

static int has_dropout(const sl_layer_plan_t *plan)
{
    const sl_attention_attrs_t *attrs = plan->layer->attrs;

    return plan->is_training && attrs->dropout > 0;
}

static sl_status_t check_dropout(const sl_layer_plan_t *plan,
                                 const sl_cuda_attention_shape_t *shape)
{
    const double elements = (double)shape->batch * (double)shape->heads *
                            (double)shape->time * (double)shape->time;
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status = SL_OK;

    if (has_dropout(plan) && elements > MAX_ELEMENTS) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "%s: dropout of %.0f probabilities a micro-batch needs more "
                "than 2^34 random numbers; use a smaller micro-batch or no "
                "dropout",
                sl_layer_label(plan->layer, label), elements);
    }
out:
    return status;
}

static void destroy(attention_t *attention)
{
    if (attention != NULL) {
        sl_cuda_dnn_attention_destroy(attention->fused);
        sl_cuda_attention_products_destroy(attention->products);
        free(attention);
    }
}

/* The CPU's dropout masks are made by our own kernels only. */
static sl_status_t plan_fused(const sl_layer_plan_t *plan,
                              const sl_cuda_attention_shape_t *shape,
                              attention_t *attention)
{
    sl_status_t status;

    if (has_dropout(plan)) {
        return SL_OK;
    }
    status = sl_cuda_dnn_attention_plan(shape, &attention->fused);
    if (status == SL_ERR_UNSUPPORTED) {
        return SL_OK;
    }
    attention->is_backward_fused =
        status >= 0 && plan->is_training &&
        sl_cuda_dnn_attention_has_backward(attention->fused);
    return status;
}

static size_t forward_workspace(const attention_t *attention)
{
    return attention->fused != NULL
               ? sl_cuda_dnn_attention_forward_workspace_bytes(attention->fused)
               : sl_cuda_attention_products_forward_workspace_bytes(
                     attention->products);
}

static size_t backward_workspace(const attention_t *attention)
{
    return attention->is_backward_fused
               ? sl_cuda_dnn_attention_backward_workspace_bytes(
                     attention->fused)
               : sl_cuda_attention_products_backward_workspace_bytes(
                     attention->products);
}

/* The fused backward overwrites the gradient, and reads the output. */
static void fill_plan(sl_layer_plan_t *plan, const attention_t *attention)
{
    plan->forward_workspace_bytes = forward_workspace(attention);
    if (plan->is_training) {
        plan->backward_workspace_bytes = backward_workspace(attention);
        plan->saved_bytes =
            attention->fused != NULL
                ? sl_cuda_dnn_attention_saved_bytes(attention->fused)
                : sl_cuda_attention_products_saved_bytes(attention->products);
        plan->keeps_input[0] = 1;
        plan->keeps_output = attention->is_backward_fused;
        plan->accumulates = attention->is_backward_fused ? 0 : 1;
    }
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const sl_cuda_attention_shape_t shape = shape_of(plan_p);
    attention_t *attention = NULL;
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status;

    SL_TRY(status, check_dropout(plan_p, &shape), out);
    attention = calloc(1, sizeof(*attention));
    if (attention == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                sl_layer_label(plan_p->layer, label));
    }
    SL_TRY(status, plan_fused(plan_p, &shape, attention), err_destroy);
    if (attention->fused == NULL ||
        (plan_p->is_training && !attention->is_backward_fused)) {
        SL_TRY(status,
               sl_cuda_attention_products_create(plan_p->layer, &shape,
                                                 &attention->products),
               err_destroy);
    }
    fill_plan(plan_p, attention);
    plan_p->kernel = attention;
    return SL_OK;

err_destroy:
    destroy(attention);
out:
    return status;
}

static void plan_release(sl_layer_plan_t *plan_p)
{
    destroy(plan_p->kernel);
}

static sl_cuda_dnn_attention_args_t args_of(const sl_layer_run_t *run)
{
    const sl_cuda_dnn_attention_args_t args = {.qkv = run->in[0],
                                               .out = run->out,
                                               .saved = run->saved,
                                               .dout = run->dout,
                                               .dqkv = run->din[0],
                                               .workspace = run->workspace};

    return args;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const attention_t *attention = run->plan->kernel;
    const sl_cuda_dnn_attention_args_t args = args_of(run);

    return attention->fused != NULL
               ? sl_cuda_dnn_attention_forward(attention->fused, &args, stream)
               : sl_cuda_attention_products_forward(attention->products, run,
                                                    stream);
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const attention_t *attention = run->plan->kernel;
    const sl_cuda_dnn_attention_args_t args = args_of(run);

    if (run->din[0] == NULL) {
        return SL_OK;
    }
    return attention->is_backward_fused
               ? sl_cuda_dnn_attention_backward(attention->fused, &args, stream)
               : sl_cuda_attention_products_backward(attention->products, run,
                                                     stream);
}

const sl_layer_kernels_t sl_cuda_layer_attention = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .plan_release = plan_release,
    .forward = forward,
    .backward = backward,
};
