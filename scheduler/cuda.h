/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda.h
 * What an op on a CUDA device works with. Only in builds with CUDA.
 */
#ifndef SL_SCHEDULER_CUDA_H
#define SL_SCHEDULER_CUDA_H

#include "scheduler/scheduler.h"

SL_BEGIN_DECLS

/** Libraries whose handles a device keeps: made by who needs one first. */
typedef enum sl_cuda_library {
    SL_CUDA_LIBRARY_BLAS,
    SL_CUDA_LIBRARY_DNN,
    SL_CUDA_N_LIBRARIES
} sl_cuda_library_t;

/**
 * The `stream` of an op on a CUDA device: the op queues its work on `queue`
 * and returns without waiting. The device is current on the calling thread.
 * Used by the device's thread only.
 */
typedef struct sl_cuda_stream {
    int device;  /**< as CUDA numbers them */
    void *queue; /**< the cudaStream_t */
    void *handles[SL_CUDA_N_LIBRARIES];
    /** Called with the handle when the device is closed. */
    void (*release[SL_CUDA_N_LIBRARIES])(void *handle);
} sl_cuda_stream_t;

/** Runs the ops of a manager on a CUDA device: sl_op_manager_params_t's
 *  `backend`, with the device's number as CUDA has it in `device`. */
SL_API const sl_op_backend_t *sl_op_backend_cuda(void);

SL_END_DECLS
#endif /* SL_SCHEDULER_CUDA_H */
