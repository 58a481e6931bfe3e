/* SPDX-License-Identifier: Apache-2.0 */
/* relu: backward reads the output, so that forward may run in place. */
#include "layers/cuda/cuda_layers.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->keeps_output = 1;
    plan_p->accumulates = 1;
    plan_p->in_place = 1;
    return SL_OK;
}

static sl_cuda_activation_t args_of(const sl_layer_run_t *run)
{
    const sl_cuda_activation_t args = {.type = sl_cuda_type_of(&run->plan->out),
                                       .n = sl_tensor_elements(&run->plan->out),
                                       .in = run->in[0],
                                       .out = run->out,
                                       .dout = run->dout,
                                       .prev = run->din_prev[0],
                                       .din = run->din[0]};

    return args;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_activation_t args = args_of(run);

    return sl_cuda_relu_forward(&args, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_activation_t args = args_of(run);

    return sl_cuda_relu_backward(&args, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_relu = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
