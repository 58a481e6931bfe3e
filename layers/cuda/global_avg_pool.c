/* SPDX-License-Identifier: Apache-2.0 */
/* global_avg_pool on CUDA devices. */
#include "layers/cuda/dnn_images.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const sl_cuda_pool_t pool = sl_cuda_image_pool(plan_p);

    if (plan_p->layer->dnn.has_images) {
        return sl_cuda_dnn_pool_plan(plan_p, &pool, SL_CUDA_DNN_POOL_AVERAGE);
    }
    plan_p->accumulates = plan_p->is_training;
    return SL_OK;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_pool_t pool = sl_cuda_image_pool(run->plan);

    if (run->plan->kernel != NULL) {
        return sl_cuda_dnn_pool_forward(run, stream);
    }
    pool.in = run->in[0];
    pool.out = run->out;
    return sl_cuda_global_pool_forward(&pool, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_pool_t pool = sl_cuda_image_pool(run->plan);

    if (run->plan->kernel != NULL) {
        return sl_cuda_dnn_pool_backward(run, stream);
    }
    pool.dout = run->dout;
    pool.prev = run->din_prev[0];
    pool.din = run->din[0];
    return pool.din == NULL
               ? SL_OK
               : sl_cuda_global_pool_backward(&pool, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_global_avg_pool = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .plan_release = sl_cuda_dnn_pool_release,
    .forward = forward,
    .backward = backward,
};
