/* SPDX-License-Identifier: Apache-2.0 */
/* dropout: forward and backward are the same product with the mask, which is
 * that of the CPU's kernel. */
#include "layers/attrs_internal.h"
#include "layers/cuda/cuda_drop.h"

/* y = x (+ prev) */
static sl_status_t pass(const sl_layer_run_t *run, const void *x,
                        const void *prev, void *y, void *queue)
{
    const sl_cuda_sum_t sum = {.type = sl_cuda_type_of(&run->plan->out),
                               .a = prev,
                               .b = x,
                               .out = y,
                               .n = sl_tensor_elements(&run->plan->out)};

    if (prev != NULL) {
        return sl_cuda_sum(&sum, queue);
    }
    return x == y ? SL_OK
                  : sl_cuda_copy(y, x, sl_tensor_bytes(&run->plan->out), queue);
}

/* y = mask * x / (1 - p) (+ prev) */
static sl_status_t apply(const sl_layer_run_t *run, const void *x,
                         const void *prev, void *y, void *queue)
{
    const sl_dropout_attrs_t *attrs = run->plan->layer->attrs;
    const sl_tensor_desc_t *desc = &run->plan->out;
    const sl_cuda_dropout_t args = {
        .type = sl_cuda_type_of(desc),
        .n = sl_tensor_elements(desc),
        .rng = sl_drop_of(run, attrs->p, SL_RNG_USE_DROPOUT).rng,
        .places = sl_cuda_places_of(desc),
        .p = attrs->p,
        .x = x,
        .prev = prev,
        .y = y};

    if (!run->step.is_training || attrs->p <= 0) {
        return pass(run, x, prev, y, queue);
    }
    return sl_cuda_dropout(&args, queue);
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    return apply(run, run->in[0], NULL, run->out, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    return run->din[0] == NULL ? SL_OK
                               : apply(run, run->dout, run->din_prev[0],
                                       run->din[0], sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_dropout = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = sl_dropout_plan,
    .forward = forward,
    .backward = backward,
};
