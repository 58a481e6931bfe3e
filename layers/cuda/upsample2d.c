/* SPDX-License-Identifier: Apache-2.0 */
/* upsample2d on CUDA devices. */
#include "layers/attrs_internal.h"
#include "layers/cuda/images.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->accumulates = plan_p->is_training;
    return SL_OK;
}

static sl_cuda_pool_t pool_of(const sl_layer_plan_t *plan_p)
{
    const sl_upsample2d_attrs_t *attrs = plan_p->layer->attrs;
    sl_cuda_pool_t pool = sl_cuda_image_pool(plan_p);

    pool.kernel = attrs->factor;
    return pool;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_pool_t pool = pool_of(run->plan);

    pool.in = run->in[0];
    pool.out = run->out;
    return sl_cuda_upsample_forward(&pool, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_pool_t pool = pool_of(run->plan);

    pool.dout = run->dout;
    pool.prev = run->din_prev[0];
    pool.din = run->din[0];
    return pool.din == NULL
               ? SL_OK
               : sl_cuda_upsample_backward(&pool, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_upsample2d = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
