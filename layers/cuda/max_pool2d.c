/* SPDX-License-Identifier: Apache-2.0 */
/* max_pool2d on CUDA devices. Forward saves each winner's place in its
 * window, row by row, as a byte. */
#include "layers/cuda/dnn_images.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const sl_cuda_pool_t pool = sl_cuda_window_pool(plan_p);

    if (plan_p->layer->dnn.has_images) {
        return sl_cuda_dnn_pool_plan(plan_p, &pool, SL_CUDA_DNN_POOL_MAX);
    }
    if (plan_p->is_training) {
        plan_p->saved_bytes = (size_t)sl_tensor_elements(&plan_p->out);
        plan_p->accumulates = 1;
    }
    return SL_OK;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_pool_t pool = sl_cuda_window_pool(run->plan);

    if (run->plan->kernel != NULL) {
        return sl_cuda_dnn_pool_forward(run, stream);
    }
    pool.in = run->in[0];
    pool.out = run->out;
    pool.place = run->plan->is_training ? run->saved : NULL;
    return sl_cuda_max_pool_forward(&pool, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_pool_t pool = sl_cuda_window_pool(run->plan);

    if (run->plan->kernel != NULL) {
        return sl_cuda_dnn_pool_backward(run, stream);
    }
    pool.place = run->saved;
    pool.dout = run->dout;
    pool.prev = run->din_prev[0];
    pool.din = run->din[0];
    return pool.din == NULL
               ? SL_OK
               : sl_cuda_max_pool_backward(&pool, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_max_pool2d = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .plan_release = sl_cuda_dnn_pool_release,
    .forward = forward,
    .backward = backward,
};
