/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnn_images.h
 * Pools and batch norm by cuDNN, for jobs that ask for it (sl_dnn_use_t): a
 * layer's kernels hand their plan and runs on to these. Results are those of
 * our own kernels but for rounding; which of equal values a max pool takes is
 * the library's affair.
 *
 * Our own are the default as they pass over memory less often: ones for a skip
 * connection and relu are the same as for batch norm, and a max pool keeps a
 * byte for each output instead of input and output.
 *
 * What a plan makes is its `kernel`; plan_release gives it back.
 */
#ifndef SL_LAYERS_CUDA_DNN_IMAGES_H
#define SL_LAYERS_CUDA_DNN_IMAGES_H

#include "layers/cuda/images.h"

SL_BEGIN_DECLS

/* ---- pools ---- */

typedef enum sl_cuda_dnn_pool_kind {
    SL_CUDA_DNN_POOL_MAX,
    SL_CUDA_DNN_POOL_AVERAGE,       /**< padding counts as zeros */
    SL_CUDA_DNN_POOL_AVERAGE_INSIDE /**< padding does not count */
} sl_cuda_dnn_pool_kind_t;

/** Of windows as in `pool`, whose addresses are not read.
 *  @return SL_OK, SL_ERR_UNSUPPORTED (too large), SL_ERR_NO_MEMORY,
 *          SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_cuda_dnn_pool_plan(sl_layer_plan_t *plan,
                                               const sl_cuda_pool_t *pool,
                                               sl_cuda_dnn_pool_kind_t kind);
void sl_cuda_dnn_pool_release(sl_layer_plan_t *plan);
SL_NODISCARD sl_status_t sl_cuda_dnn_pool_forward(const sl_layer_run_t *run,
                                                  void *stream);
SL_NODISCARD sl_status_t sl_cuda_dnn_pool_backward(const sl_layer_run_t *run,
                                                   void *stream);

/* ---- batch norm ---- */

/** Training alone; skip connection and relu come by kernels of their own. The
 *  plan's `kernel` stays NULL where cuDNN has none for the shape: then our own
 *  are to be planned.
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t
sl_cuda_dnn_norm_plan(sl_layer_plan_t *plan, const sl_cuda_batch_norm_t *norm);
void sl_cuda_dnn_norm_release(sl_layer_plan_t *plan);
/** `norm` has the run's addresses. */
SL_NODISCARD sl_status_t sl_cuda_dnn_norm_forward(
    const sl_layer_run_t *run, const sl_cuda_batch_norm_t *norm, void *stream);
SL_NODISCARD sl_status_t sl_cuda_dnn_norm_backward(
    const sl_layer_run_t *run, const sl_cuda_batch_norm_t *norm, void *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_DNN_IMAGES_H */
