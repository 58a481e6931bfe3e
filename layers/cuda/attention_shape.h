/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attention_shape.h
 * What a kernel for attention is made for.
 *
 * qkv is [batch, time, 3 * heads * head_dim], plain: for every position all
 * heads' queries, then all heads' keys, then all heads' values. So element d
 * of head h at position t of sample b is at
 *
 *   (b * time + t) * 3 * heads * head_dim + part * heads * head_dim +
 *   h * head_dim + d              part 0: query, 1: key, 2: value
 *
 * and dqkv is the same. out and dout are [batch, time, heads * head_dim].
 */
#ifndef SL_LAYERS_CUDA_ATTENTION_SHAPE_H
#define SL_LAYERS_CUDA_ATTENTION_SHAPE_H

#include <stdint.h>

#include "base/status.h"
#include "layers/tensor.h"

SL_BEGIN_DECLS

typedef struct sl_cuda_attention_shape {
    int64_t batch, heads, time, head_dim; /**< all > 0 */
    sl_dtype_t dtype;                     /**< of qkv, out, dout and dqkv */
    int is_causal;   /**< position i sees positions 0..i only */
    int is_training; /**< backward will be run: saved is written */
    float scale;     /**< of the scores: 1 / sqrt(head_dim) */
} sl_cuda_attention_shape_t;

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_ATTENTION_SHAPE_H */
