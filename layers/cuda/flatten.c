/* SPDX-License-Identifier: Apache-2.0 */
/* flatten on CUDA devices: a copy, or a change of layout for images whose
 * channels are last. */
#include "layers/attrs_internal.h"
#include "layers/cuda/images.h"

/* The plain side as an image like the input. */
static sl_cuda_move_t move_of(const sl_layer_plan_t *plan_p,
                              sl_cuda_side_t *image_p, sl_cuda_side_t *plain_p)
{
    const sl_tensor_desc_t *in = &plan_p->in[0];
    sl_cuda_move_t move = {0};

    *image_p = sl_cuda_image_side(in);
    *plain_p = *image_p;
    plain_p->is_last = 0;
    move.n_channels = image_p->channels;
    move.pixels = in->n_dims == 4 ? in->dims[2] * in->dims[3] : 1;
    move.batch = sl_tensor_elements(in) / move.pixels / move.n_channels;
    return move;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_tensor_desc_t *in = &run->plan->in[0];
    sl_cuda_side_t image, plain;
    sl_cuda_move_t move;

    if (run->out == run->in[0]) {
        return SL_OK;
    }
    if (in->dtype == SL_DTYPE_I32) {
        return sl_cuda_copy(run->out, run->in[0], sl_tensor_bytes(in),
                            sl_cuda_queue(stream));
    }
    move = move_of(run->plan, &image, &plain);
    move.from_side = image;
    move.from = run->in[0];
    move.to_side = plain;
    move.to = run->out;
    return sl_cuda_move(&move, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_side_t image, plain;
    sl_cuda_move_t move = move_of(run->plan, &image, &plain);

    move.from_side = plain;
    move.from = run->dout;
    move.to_side = image;
    move.prev = run->din_prev[0];
    move.to = run->din[0];
    return move.to == NULL ? SL_OK : sl_cuda_move(&move, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_flatten = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = sl_flatten_plan,
    .forward = forward,
    .backward = backward,
};
