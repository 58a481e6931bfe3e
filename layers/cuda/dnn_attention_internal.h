/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnn_attention_internal.h
 * The fused attention's graphs, and their check.
 */
#ifndef SL_LAYERS_CUDA_DNN_ATTENTION_INTERNAL_H
#define SL_LAYERS_CUDA_DNN_ATTENTION_INTERNAL_H

#include "layers/cuda/dnn_attention.h"
#include "layers/cuda/dnn_graph.h"

SL_BEGIN_DECLS

/** The graphs of a shape, unchecked. *backward_p stays NULL when there is none.
 *  @return SL_OK, SL_ERR_UNSUPPORTED, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_dnn_attention_make(
    const sl_cuda_attention_shape_t *shape, cudnnHandle_t handle,
    sl_cuda_dnn_attention_t **attention_p);

/** Queue a pass on the handle's stream. */
SL_NODISCARD sl_status_t sl_dnn_attention_run_forward(
    const sl_cuda_dnn_attention_t *attention,
    const sl_cuda_dnn_attention_args_t *args, cudnnHandle_t handle);
SL_NODISCARD sl_status_t sl_dnn_attention_run_backward(
    const sl_cuda_dnn_attention_t *attention,
    const sl_cuda_dnn_attention_args_t *args, cudnnHandle_t handle);

/** Whether the passes of shapes like this give what they should, from a run
 *  on the handle's device, or what an earlier one has shown. No memory:
 *  neither the device nor the host had any for it.
 *  @return SL_OK, SL_ERR_UNSUPPORTED, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_dnn_attention_check(
    const sl_cuda_attention_shape_t *shape, cudnnHandle_t handle,
    int *is_forward_right_p, int *is_backward_right_p);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_DNN_ATTENTION_INTERNAL_H */
