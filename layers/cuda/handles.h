/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file handles.h
 * Handles of the vendor's libraries.
 *
 * A device's ops use the handle in its stream's slot: made at first use on
 * the device's thread, bound to its queue, released with the device. Plans,
 * which are made on any thread, borrow a handle that the process keeps for
 * each device: one thread at a time.
 */
#ifndef SL_LAYERS_CUDA_HANDLES_H
#define SL_LAYERS_CUDA_HANDLES_H

#include "base/status.h"
#include "scheduler/cuda.h"

SL_BEGIN_DECLS

/* as cublasLt.h and cudnn.h name them */
struct cublasLtContext;
struct cudnnContext;

/** How a library makes a handle for the calling thread's current device. */
typedef struct sl_cuda_handle_ops {
    sl_status_t (*create)(void **handle_p);
    /** (optional) Work of the handle goes to this cudaStream_t. */
    sl_status_t (*bind)(void *handle, void *queue);
    void (*destroy)(void *handle);
} sl_cuda_handle_ops_t;

/** The handle in the stream's slot, made when there is none.
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_cuda_handle(sl_cuda_stream_t *stream,
                                        sl_cuda_library_t library,
                                        const sl_cuda_handle_ops_t *ops,
                                        void **handle_p);

/** The process's handle for the calling thread's current device: others wait
 *  until it is given back, which the same thread must do.
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_cuda_handle_borrow(sl_cuda_library_t library,
                                               const sl_cuda_handle_ops_t *ops,
                                               void **handle_p);
void sl_cuda_handle_give_back(sl_cuda_library_t library);

/** The device's handle for cuBLASLt (a cublasLtHandle_t). */
SL_NODISCARD sl_status_t sl_cuda_blas(sl_cuda_stream_t *stream,
                                      struct cublasLtContext **handle_p);
/** One for a plan. */
SL_NODISCARD sl_status_t sl_cuda_blas_borrow(struct cublasLtContext **handle_p);
void sl_cuda_blas_give_back(void);

/** The device's handle for cuDNN (a cudnnHandle_t). */
SL_NODISCARD sl_status_t sl_cuda_dnn(sl_cuda_stream_t *stream,
                                     struct cudnnContext **handle_p);
/** One for a plan. */
SL_NODISCARD sl_status_t sl_cuda_dnn_borrow(struct cudnnContext **handle_p);
void sl_cuda_dnn_give_back(void);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_HANDLES_H */
