/* SPDX-License-Identifier: Apache-2.0 */
/* upsample2d: one pass over memory each way. */
#include "layers/attrs_internal.h"
#include "layers/cuda/cuda_layers.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->accumulates = 1;
    return SL_OK;
}

static sl_cuda_upsample2d_t args_of(const sl_layer_run_t *run)
{
    const sl_upsample2d_attrs_t *attrs = run->plan->layer->attrs;
    const sl_tensor_desc_t *in = &run->plan->in[0];
    const int64_t inner =
        in->layout == SL_LAYOUT_CHANNELS_LAST ? in->dims[1] : 1;
    const sl_cuda_upsample2d_t args = {.type = sl_cuda_type_of(in),
                                       .outer =
                                           in->dims[0] * in->dims[1] / inner,
                                       .height = in->dims[2],
                                       .width = in->dims[3],
                                       .inner = inner,
                                       .factor = attrs->factor,
                                       .in = run->in[0],
                                       .out = run->out,
                                       .dout = run->dout,
                                       .prev = run->din_prev[0],
                                       .din = run->din[0]};

    return args;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_upsample2d_t args = args_of(run);

    return sl_cuda_upsample2d_forward(&args, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_upsample2d_t args = args_of(run);

    return sl_cuda_upsample2d_backward(&args, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_upsample2d = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
