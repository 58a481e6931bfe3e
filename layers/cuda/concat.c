/* SPDX-License-Identifier: Apache-2.0 */
/* concat on CUDA devices: each input is a range of the output's channels. */
#include "layers/cuda/images.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->accumulates =
        plan_p->is_training ? (1 << plan_p->layer->n_inputs) - 1 : 0;
    return SL_OK;
}

/* Input i, and its range of the output from channel `first` on. */
static sl_cuda_move_t move_of(const sl_layer_plan_t *plan_p, int i,
                              int64_t first, sl_cuda_side_t *in_p,
                              sl_cuda_side_t *out_p)
{
    const sl_tensor_desc_t *in = &plan_p->in[i];
    sl_cuda_move_t move = {0};

    *in_p = sl_cuda_image_side(in);
    *out_p = sl_cuda_image_side(&plan_p->out);
    out_p->first = first;
    move.n_channels = in_p->channels;
    move.pixels = in->n_dims == 4 ? in->dims[2] * in->dims[3] : 1;
    move.batch = sl_tensor_elements(in) / move.pixels / move.n_channels;
    return move;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    sl_status_t status = SL_OK;
    int64_t first = 0;
    int i;

    for (i = 0; i < run->plan->layer->n_inputs; i++) {
        sl_cuda_side_t in, out;
        sl_cuda_move_t move = move_of(run->plan, i, first, &in, &out);

        move.from_side = in;
        move.from = run->in[i];
        move.to_side = out;
        move.to = run->out;
        first += in.channels;
        SL_TRY(status, sl_cuda_move(&move, sl_cuda_queue(stream)), out);
    }
out:
    return status;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    sl_status_t status = SL_OK;
    int64_t first = 0;
    int i;

    for (i = 0; i < run->plan->layer->n_inputs; i++) {
        sl_cuda_side_t in, out;
        sl_cuda_move_t move = move_of(run->plan, i, first, &in, &out);

        first += in.channels;
        if (run->din[i] == NULL) {
            continue;
        }
        move.from_side = out;
        move.from = run->dout;
        move.to_side = in;
        move.prev = run->din_prev[i];
        move.to = run->din[i];
        SL_TRY(status, sl_cuda_move(&move, sl_cuda_queue(stream)), out);
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
