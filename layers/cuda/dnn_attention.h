/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnn_attention.h
 * Attention fused by cuDNN: for 16-bit types, without dropout. What it saves,
 * the log of the sum of exponentials of each row, is what attention by
 * products saves too: either backward may follow either forward.
 *
 * cuDNN computes what a graph of operations says. That a graph says what is
 * meant is checked where it first runs: each kind of shape (type, mask, head,
 * time modulo 64) once a process, on a few heads, against sums in double on
 * the host. One that fails the check is logged and never used. A device that
 * has no memory for the check is no verdict: it then runs in pinned memory.
 */
#ifndef SL_LAYERS_CUDA_DNN_ATTENTION_H
#define SL_LAYERS_CUDA_DNN_ATTENTION_H

#include <stddef.h>

#include "layers/cuda/attention_shape.h"
#include "scheduler/cuda.h"

SL_BEGIN_DECLS

typedef struct sl_cuda_dnn_attention sl_cuda_dnn_attention_t;

/** Plan it, for the calling thread's current device.
 *  @return SL_OK, SL_ERR_UNSUPPORTED (not logged: take another way),
 *          SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t
sl_cuda_dnn_attention_plan(const sl_cuda_attention_shape_t *shape,
                           sl_cuda_dnn_attention_t **attention_p);
/** NULL is allowed. */
void sl_cuda_dnn_attention_destroy(sl_cuda_dnn_attention_t *attention);

/** Whether backward is fused too (training only). */
int sl_cuda_dnn_attention_has_backward(
    const sl_cuda_dnn_attention_t *attention);

size_t sl_cuda_dnn_attention_forward_workspace_bytes(
    const sl_cuda_dnn_attention_t *attention);
size_t sl_cuda_dnn_attention_backward_workspace_bytes(
    const sl_cuda_dnn_attention_t *attention);
/** f32 [batch, heads, time]; 0 when not training. */
size_t
sl_cuda_dnn_attention_saved_bytes(const sl_cuda_dnn_attention_t *attention);

/** Device addresses of a run, aligned to 16 bytes; workspace to 256. */
typedef struct sl_cuda_dnn_attention_args {
    const void *qkv;
    void *out; /**< backward reads it */
    void *saved;
    const void *dout;
    void *dqkv; /**< overwritten */
    void *workspace;
} sl_cuda_dnn_attention_args_t;

/** One thread at a time. The first run on another device than the plan was
 *  made for, which must be of the same kind, makes the graphs for that one.
 *  @return SL_OK, SL_ERR_UNSUPPORTED (another kind of device),
 *          SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_cuda_dnn_attention_forward(
    sl_cuda_dnn_attention_t *attention,
    const sl_cuda_dnn_attention_args_t *args, sl_cuda_stream_t *stream);
SL_NODISCARD sl_status_t sl_cuda_dnn_attention_backward(
    sl_cuda_dnn_attention_t *attention,
    const sl_cuda_dnn_attention_args_t *args, sl_cuda_stream_t *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_DNN_ATTENTION_H */
