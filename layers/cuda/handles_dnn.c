/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of cuDNN. */
#include <cudnn.h>

#include "layers/cuda/dnn.h"
#include "layers/cuda/handles.h"

static sl_status_t dnn_create(void **handle_p)
{
    cudnnHandle_t handle = NULL;
    sl_status_t status;

    SL_TRY(status, SL_DNN(cudnnCreate(&handle)), out);
    *handle_p = handle;
out:
    return status;
}

static sl_status_t dnn_bind(void *handle, void *queue)
{
    return SL_DNN(cudnnSetStream(handle, queue));
}

static void dnn_destroy(void *handle)
{
    (void)cudnnDestroy(handle);
}

static const sl_cuda_handle_ops_t dnn_ops = {
    .create = dnn_create, .bind = dnn_bind, .destroy = dnn_destroy};

sl_status_t sl_cuda_dnn(sl_cuda_stream_t *stream,
                        struct cudnnContext **handle_p)
{
    void *handle = NULL;
    sl_status_t status;

    SL_TRY(status,
           sl_cuda_handle(stream, SL_CUDA_LIBRARY_DNN, &dnn_ops, &handle), out);
    *handle_p = handle;
out:
    return status;
}

sl_status_t sl_cuda_dnn_borrow(struct cudnnContext **handle_p)
{
    void *handle = NULL;
    sl_status_t status;

    SL_TRY(status,
           sl_cuda_handle_borrow(SL_CUDA_LIBRARY_DNN, &dnn_ops, &handle), out);
    *handle_p = handle;
out:
    return status;
}

void sl_cuda_dnn_give_back(void)
{
    sl_cuda_handle_give_back(SL_CUDA_LIBRARY_DNN);
}
