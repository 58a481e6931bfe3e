/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attention_kernels.h
 * Our own kernels for CUDA devices between the products of attention. As
 * cuda_kernels.h says, they queue their work on `stream` and return.
 */
#ifndef SL_LAYERS_CUDA_ATTENTION_KERNELS_H
#define SL_LAYERS_CUDA_ATTENTION_KERNELS_H

#include <stdint.h>

#include "base/rng.h"
#include "layers/cuda/cuda_kernels.h"

SL_BEGIN_DECLS

/**
 * All heads of a sample, the positions [first_row, first_row + rows), and the
 * keys [0, keys): matrices of them are [heads, rows, keys]. A row's position
 * i sees keys 0..i, or all when not is_causal; at keys that it does not see
 * results are 0. Element (head, i, j) is dropped as attention_internal.h
 * says, with first_number that of element (0, 0, 0).
 */
typedef struct sl_cuda_attention_rows {
    sl_cuda_type_t type; /**< of probabilities and dscores */
    int64_t heads, time, first_row, rows, keys;
    int is_causal;
    double dropout; /**< 0: nothing is dropped */
    sl_rng_t rng;
    uint64_t first_number;
    const float *scores;
    void *probabilities; /**< dropped and scaled by 1 / (1 - dropout); fp32:
                              may be scores */
    float *log_sums;     /**< [heads, time]: log of the sum of a row's
                              exponentials; forward: NULL when not kept */
    const float *dprobabilities; /**< backward */
    void *dscores;               /**< backward; fp32: may be dprobabilities */
} sl_cuda_attention_rows_t;

/** Scores to probabilities, and log_sums. */
SL_API SL_NODISCARD sl_status_t
sl_cuda_attention_softmax(const sl_cuda_attention_rows_t *args, void *stream);
/** Scores and log_sums to probabilities; gradients of these to gradients of
 *  the scores. */
SL_API SL_NODISCARD sl_status_t sl_cuda_attention_softmax_backward(
    const sl_cuda_attention_rows_t *args, void *stream);

/** to[i] = from[i] (+ prev[i]), from fp32; prev may be NULL or to. */
typedef struct sl_cuda_attention_store {
    sl_cuda_type_t type; /**< of to and prev */
    int64_t n;
    const float *from;
    const void *prev;
    void *to;
} sl_cuda_attention_store_t;

SL_API SL_NODISCARD sl_status_t
sl_cuda_attention_store(const sl_cuda_attention_store_t *args, void *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_ATTENTION_KERNELS_H */
