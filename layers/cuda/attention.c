/* SPDX-License-Identifier: Apache-2.0 */
/* attention on CUDA devices. */
#include <math.h>

#include "layers/attention_internal.h"
#include "layers/cuda/attention_products.h"
#include "layers/layers_internal.h"

/* Numbers that one stream of random numbers has. */
#define MAX_ELEMENTS 0x1p34

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

static sl_status_t check_dropout(const sl_layer_plan_t *plan,
                                 const sl_cuda_attention_shape_t *shape)
{
    const sl_attention_attrs_t *attrs = plan->layer->attrs;
    const double elements = (double)shape->batch * (double)shape->heads *
                            (double)shape->time * (double)shape->time;
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status = SL_OK;

    if (plan->is_training && attrs->dropout > 0 && elements > MAX_ELEMENTS) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "%s: dropout of %.0f probabilities a micro-batch needs more "
                "than 2^34 random numbers; use a smaller micro-batch or no "
                "dropout",
                sl_layer_label(plan->layer, label), elements);
    }
out:
    return status;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const sl_cuda_attention_shape_t shape = shape_of(plan_p);
    sl_cuda_attention_products_t *products = NULL;
    sl_status_t status;

    SL_TRY(status, check_dropout(plan_p, &shape), out);
    SL_TRY(status,
           sl_cuda_attention_products_create(plan_p->layer, &shape, &products),
           out);
    plan_p->kernel = products;
    plan_p->forward_workspace_bytes =
        sl_cuda_attention_products_forward_workspace_bytes(products);
    if (plan_p->is_training) {
        plan_p->backward_workspace_bytes =
            sl_cuda_attention_products_backward_workspace_bytes(products);
        plan_p->saved_bytes = sl_cuda_attention_products_saved_bytes(products);
        plan_p->keeps_input[0] = 1;
        plan_p->accumulates = 1;
    }
out:
    return status;
}

static void plan_release(sl_layer_plan_t *plan_p)
{
    sl_cuda_attention_products_destroy(plan_p->kernel);
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    return sl_cuda_attention_products_forward(run->plan->kernel, run, stream);
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    return run->din[0] == NULL ? SL_OK
                               : sl_cuda_attention_products_backward(
                                     run->plan->kernel, run, stream);
}

const sl_layer_kernels_t sl_cuda_layer_attention = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .plan_release = plan_release,
    .forward = forward,
    .backward = backward,
};
