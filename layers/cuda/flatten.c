/* SPDX-License-Identifier: Apache-2.0 */
/* flatten: a copy, or a transpose of channels-last images. */
#include "layers/cuda/cuda_views.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const int is_plain = plan_p->in[0].layout == SL_LAYOUT_PLAIN;

    plan_p->accumulates = 1;
    plan_p->passes_gradient = is_plain;
    plan_p->in_place = is_plain;
    return SL_OK;
}

/* Between the input's layout and the plain one. */
static sl_cuda_channels_copy_t copy_of(const sl_layer_run_t *run,
                                       int is_backward)
{
    const sl_tensor_desc_t *in = &run->plan->in[0];
    sl_tensor_desc_t plain = *in;
    sl_cuda_channels_copy_t copy = {.to_type = sl_cuda_type_of(in),
                                    .from_type = sl_cuda_type_of(in),
                                    .images = sl_cuda_images_of(in),
                                    .channels = sl_cuda_channels_of(in),
                                    .pixels = sl_cuda_pixels_of(in)};

    plain.layout = SL_LAYOUT_PLAIN;
    copy.to_view = sl_cuda_view_of(is_backward ? in : &plain);
    copy.from_view = sl_cuda_view_of(is_backward ? &plain : in);
    copy.to = is_backward ? run->din[0] : run->out;
    copy.from = is_backward ? run->dout : run->in[0];
    copy.prev = is_backward ? run->din_prev[0] : NULL;
    return copy;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_channels_copy_t copy = copy_of(run, 0);

    return run->out == run->in[0]
               ? SL_OK
               : sl_cuda_channels_copy(&copy, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_channels_copy_t copy = copy_of(run, 1);

    return run->din[0] == NULL
               ? SL_OK
               : sl_cuda_channels_copy(&copy, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_flatten = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
