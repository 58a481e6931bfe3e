/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm: saves mean and 1 / deviation of each row. */
#include "layers/attrs_internal.h"
#include "layers/cuda/cuda_layers.h"

static int64_t width_of(const sl_layer_plan_t *plan)
{
    return plan->in[0].dims[plan->in[0].n_dims - 1];
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const int64_t rows = sl_tensor_rows(&plan_p->in[0]);

    plan_p->saved_bytes =
        plan_p->is_training ? (size_t)(2 * rows) * sizeof(float) : 0;
    plan_p->backward_workspace_bytes =
        sl_cuda_layer_norm_workspace_bytes(rows, width_of(plan_p));
    plan_p->keeps_input[0] = 1;
    plan_p->accumulates = 1;
    return SL_OK;
}

static sl_cuda_layer_norm_t args_of(const sl_layer_run_t *run)
{
    const sl_layer_norm_attrs_t *attrs = run->plan->layer->attrs;
    const sl_cuda_layer_norm_t args = {
        .type = sl_cuda_type_of(&run->plan->out),
        .rows = sl_tensor_rows(&run->plan->in[0]),
        .width = width_of(run->plan),
        .eps = attrs->eps,
        .in = run->in[0],
        .weight = run->param[SL_LAYER_NORM_WEIGHT],
        .bias = run->param[SL_LAYER_NORM_BIAS],
        .out = run->out,
        .saved = run->plan->is_training ? run->saved : NULL,
        .dout = run->dout,
        .prev = run->din_prev[0],
        .din = run->din[0],
        .dweight = run->grad[SL_LAYER_NORM_WEIGHT],
        .dbias = run->grad[SL_LAYER_NORM_BIAS],
        .is_first = run->step.is_first_backward,
        .workspace = run->workspace};

    return args;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_layer_norm_t args = args_of(run);

    return sl_cuda_layer_norm_forward(&args, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_layer_norm_t args = args_of(run);

    return sl_cuda_layer_norm_backward(&args, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_layer_norm = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
