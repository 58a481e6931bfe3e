/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attention_products.h
 * Attention as products of matrices and a softmax between them: for every
 * type, any head, and dropout with the CPU's masks. A block of positions
 * against the keys that they see is in memory at a time, for all heads of a
 * sample; backward computes the probabilities again.
 */
#ifndef SL_LAYERS_CUDA_ATTENTION_PRODUCTS_H
#define SL_LAYERS_CUDA_ATTENTION_PRODUCTS_H

#include <stddef.h>

#include "layers/cuda/attention_shape.h"
#include "layers/layers.h"
#include "scheduler/cuda.h"

SL_BEGIN_DECLS

typedef struct sl_cuda_attention_products sl_cuda_attention_products_t;

/** @return SL_OK, SL_ERR_UNSUPPORTED, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_cuda_attention_products_create(
    const sl_layer_t *layer, const sl_cuda_attention_shape_t *shape,
    sl_cuda_attention_products_t **products_p);
/** NULL is allowed. */
void sl_cuda_attention_products_destroy(sl_cuda_attention_products_t *products);

size_t sl_cuda_attention_products_forward_workspace_bytes(
    const sl_cuda_attention_products_t *products);
size_t sl_cuda_attention_products_backward_workspace_bytes(
    const sl_cuda_attention_products_t *products);
/** The log of the sum of exponentials of each row: [batch, heads, time]. */
size_t sl_cuda_attention_products_saved_bytes(
    const sl_cuda_attention_products_t *products);

/** The layer's kernels; backward reads in[0] and saved, adds din_prev[0]. */
SL_NODISCARD sl_status_t sl_cuda_attention_products_forward(
    const sl_cuda_attention_products_t *products, const sl_layer_run_t *run,
    sl_cuda_stream_t *stream);
SL_NODISCARD sl_status_t sl_cuda_attention_products_backward(
    const sl_cuda_attention_products_t *products, const sl_layer_run_t *run,
    sl_cuda_stream_t *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_ATTENTION_PRODUCTS_H */
