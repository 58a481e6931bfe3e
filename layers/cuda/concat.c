/* SPDX-License-Identifier: Apache-2.0 */
/* concat: each input is a run of the output's channels. */
#include "layers/cuda/cuda_views.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->accumulates = (1 << plan_p->layer->n_inputs) - 1;
    return SL_OK;
}

static sl_cuda_channels_copy_t copy_of(const sl_tensor_desc_t *part,
                                       const sl_tensor_desc_t *to,
                                       const sl_tensor_desc_t *from)
{
    const sl_cuda_channels_copy_t copy = {.to_type = sl_cuda_type_of(to),
                                          .from_type = sl_cuda_type_of(from),
                                          .images = sl_cuda_images_of(part),
                                          .channels = sl_cuda_channels_of(part),
                                          .pixels = sl_cuda_pixels_of(part),
                                          .to_view = sl_cuda_view_of(to),
                                          .from_view = sl_cuda_view_of(from)};

    return copy;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_layer_plan_t *p = run->plan;
    char *out = run->out;
    sl_status_t status = SL_OK;
    int64_t channel = 0;
    int i;

    for (i = 0; i < p->layer->n_inputs; i++) {
        sl_cuda_channels_copy_t copy = copy_of(&p->in[i], &p->out, &p->in[i]);

        copy.from = run->in[i];
        copy.to =
            out +
            ((const char *)sl_cuda_channel_at(&p->out, out, channel) - out);
        SL_TRY(status, sl_cuda_channels_copy(&copy, sl_cuda_queue(stream)),
               out);
        channel += copy.channels;
    }
out:
    return status;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_layer_plan_t *p = run->plan;
    sl_status_t status = SL_OK;
    int64_t channel = 0;
    int i;

    for (i = 0; i < p->layer->n_inputs; i++) {
        sl_cuda_channels_copy_t copy = copy_of(&p->in[i], &p->in[i], &p->out);

        copy.from = sl_cuda_channel_at(&p->out, run->dout, channel);
        copy.to = run->din[i];
        copy.prev = run->din_prev[i];
        channel += copy.channels;
        if (copy.to != NULL) {
            SL_TRY(status, sl_cuda_channels_copy(&copy, sl_cuda_queue(stream)),
                   out);
        }
    }
out:
    return status;
}

const sl_layer_kernels_t sl_cuda_layer_concat = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
