/* SPDX-License-Identifier: Apache-2.0 */
/* add: every input but the first may be dropped out; then relu. */
#include <string.h>

#include "layers/attrs_internal.h"
#include "layers/cuda/cuda_drop.h"

static sl_cuda_add_t args_of(const sl_layer_run_t *run)
{
    const sl_add_attrs_t *attrs = run->plan->layer->attrs;
    const sl_tensor_desc_t *desc = &run->plan->out;
    sl_cuda_add_t args = {
        .type = sl_cuda_type_of(desc),
        .n = sl_tensor_elements(desc),
        .n_inputs = run->plan->layer->n_inputs,
        .p = run->step.is_training ? attrs->dropout : 0,
        .rng = sl_drop_of(run, attrs->dropout, SL_RNG_USE_DROPOUT).rng,
        .places = sl_cuda_places_of(desc),
        .n_numbers = sl_drop_n_numbers(desc),
        .is_relu = attrs->relu,
        .out = run->out,
        .dout = run->dout};

    memcpy(args.in, run->in, sizeof(args.in));
    memcpy(args.prev, run->din_prev, sizeof(args.prev));
    memcpy(args.din, run->din, sizeof(args.din));
    return args;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_add_t args = args_of(run);

    return sl_cuda_add_forward(&args, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_add_t args = args_of(run);

    return sl_cuda_add_backward(&args, sl_cuda_queue(stream));
}

_Static_assert((int)SL_CUDA_MAX_INPUTS == (int)SL_LAYER_MAX_INPUTS,
               "add takes as many inputs as a layer has");

const sl_layer_kernels_t sl_cuda_layer_add = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = sl_add_plan,
    .forward = forward,
    .backward = backward,
};
