/* SPDX-License-Identifier: Apache-2.0 */
/* Pools by cuDNN. */
#include <cudnn.h>
#include <stdlib.h>

#include "layers/cuda/dnn.h"
#include "layers/cuda/dnn_images.h"
#include "layers/cuda/handles.h"

typedef struct pool {
    cudnnPoolingDescriptor_t window;
    cudnnTensorDescriptor_t x, y;
    int is_max;
} pool_t;

static void destroy(pool_t *pool)
{
    if (pool->y != NULL) {
        (void)cudnnDestroyTensorDescriptor(pool->y);
    }
    if (pool->x != NULL) {
        (void)cudnnDestroyTensorDescriptor(pool->x);
    }
    if (pool->window != NULL) {
        (void)cudnnDestroyPoolingDescriptor(pool->window);
    }
    free(pool);
}

static cudnnPoolingMode_t mode_of(sl_cuda_dnn_pool_kind_t kind)
{
    switch (kind) {
    case SL_CUDA_DNN_POOL_AVERAGE:
        return CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING;
    case SL_CUDA_DNN_POOL_AVERAGE_INSIDE:
        return CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING;
    case SL_CUDA_DNN_POOL_MAX:
        break;
    }
    return CUDNN_POOLING_MAX_DETERMINISTIC;
}

/* A window of the whole image is a global pool's, whose output has no height
 * and width. */
static sl_status_t describe(pool_t *pool, const sl_layer_plan_t *plan,
                            const sl_cuda_pool_t *shape,
                            sl_cuda_dnn_pool_kind_t kind)
{
    const int is_global = plan->out.n_dims == 2;
    sl_cuda_dnn_image_t image = {.type = shape->type,
                                 .is_last = shape->is_last,
                                 .batch = shape->batch,
                                 .channels = shape->channels,
                                 .height = shape->in_height,
                                 .width = shape->in_width,
                                 .name = plan->layer->name};
    sl_status_t status;

    SL_TRY(status, sl_cuda_dnn_image_create(&image, &pool->x), out);
    image.height = is_global ? 1 : shape->out_height;
    image.width = is_global ? 1 : shape->out_width;
    SL_TRY(status, sl_cuda_dnn_image_create(&image, &pool->y), out);
    SL_TRY(status, SL_DNN(cudnnCreatePoolingDescriptor(&pool->window)), out);
    status = SL_DNN(cudnnSetPooling2dDescriptor(
        pool->window, mode_of(kind), CUDNN_PROPAGATE_NAN,
        (int)(is_global ? shape->in_height : shape->kernel),
        (int)(is_global ? shape->in_width : shape->kernel), (int)shape->pad,
        (int)shape->pad, (int)shape->stride, (int)shape->stride));
out:
    return status;
}

sl_status_t sl_cuda_dnn_pool_plan(sl_layer_plan_t *plan,
                                  const sl_cuda_pool_t *shape,
                                  sl_cuda_dnn_pool_kind_t kind)
{
    pool_t *pool = calloc(1, sizeof(*pool));
    sl_status_t status;

    if (pool == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "layer %s: no host memory",
                plan->layer->name);
    }
    pool->is_max = kind == SL_CUDA_DNN_POOL_MAX;
    SL_TRY(status, describe(pool, plan, shape, kind), err_destroy);
    if (plan->is_training && pool->is_max) {
        plan->keeps_input[0] = 1;
        plan->keeps_output = 1;
    }
    plan->kernel = pool;
    return SL_OK;

err_destroy:
    destroy(pool);
out:
    return status;
}

void sl_cuda_dnn_pool_release(sl_layer_plan_t *plan)
{
    if (plan->kernel != NULL) {
        destroy(plan->kernel);
        plan->kernel = NULL;
    }
}

sl_status_t sl_cuda_dnn_pool_forward(const sl_layer_run_t *run, void *stream)
{
    const pool_t *pool = run->plan->kernel;
    const float one = 1.0f, zero = 0.0f;
    struct cudnnContext *handle = NULL;
    sl_status_t status;

    SL_TRY(status, sl_cuda_dnn(stream, &handle), out);
    status = SL_DNN(cudnnPoolingForward(handle, pool->window, &one, pool->x,
                                        run->in[0], &zero, pool->y, run->out));
out:
    return status;
}

/* An average's gradient has nothing of input and output; but addresses of such
 * arrays have to be there. */
sl_status_t sl_cuda_dnn_pool_backward(const sl_layer_run_t *run, void *stream)
{
    const pool_t *pool = run->plan->kernel;
    const void *x = pool->is_max ? run->in[0] : run->din[0];
    const void *y = pool->is_max ? run->out : run->dout;
    const float one = 1.0f, zero = 0.0f;
    struct cudnnContext *handle = NULL;
    sl_status_t status;

    if (run->din[0] == NULL) {
        return SL_OK;
    }
    SL_TRY(status, sl_cuda_dnn(stream, &handle), out);
    status = SL_DNN(cudnnPoolingBackward(handle, pool->window, &one, pool->y, y,
                                         pool->y, run->dout, pool->x, x, &zero,
                                         pool->x, run->din[0]));
out:
    return status;
}
