/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gemm.h
 * The room for matrix products: f32, row-major, strided.
 *
 * A result's bits are a function of the shape, the values and the thread
 * count only: not of addresses, and the same in every run.
 */
#ifndef SL_LAYERS_CPU_GEMM_H
#define SL_LAYERS_CPU_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layers/cpu/dnnl.h"

SL_BEGIN_DECLS

/** C = alpha * op(A) op(B) + beta * C; op transposes or leaves. */
typedef struct sl_gemm {
    int64_t m, n, k;       /**< C is [m, n]; k is the inner dimension */
    int is_a_transposed;   /**< A is stored [k, m] instead of [m, k] */
    int is_b_transposed;   /**< B is stored [n, k] instead of [k, n] */
    int64_t lda, ldb, ldc; /**< floats from one stored row to the next */
    float alpha;
    float beta; /**< 0: C is not read */
} sl_gemm_t;

/** Use this many threads for the calling thread's next products. Products
 *  inside a parallel region use one each. */
void sl_gemm_set_threads(int n_threads);

/** Run and wait. @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_gemm(const sl_gemm_t *gemm, const float *a,
                                 const float *b, float *c);

/** y = x W^T + bias of one shape, made ready (opaque). */
typedef sl_dnnl_op_t sl_affine_t;

/** x is [rows, in], W [out, in], bias [out] or absent, y [rows, out]. */
typedef struct sl_affine_shape {
    int64_t rows, in, out;
    int has_bias;
} sl_affine_shape_t;

/** @param[in] n_threads  of the later runs
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE, SL_ERR_UNSUPPORTED */
SL_NODISCARD sl_status_t sl_affine_create(const sl_affine_shape_t *shape,
                                          int n_threads,
                                          sl_affine_t **affine_p);
void sl_affine_destroy(sl_affine_t *affine);

/** Scratch memory that a run needs, aligned to 64. */
size_t sl_affine_scratch_bytes(const sl_affine_t *affine);

/** Addresses for one run. */
typedef struct sl_affine_args {
    const float *x, *weight, *bias;
    float *y; /**< overwritten */
    void *scratch;
} sl_affine_args_t;

/** Run and wait; one thread at a time. @return SL_OK, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_affine_run(const sl_affine_t *affine,
                                       const sl_affine_args_t *args);

SL_END_DECLS
#endif /* SL_LAYERS_CPU_GEMM_H */
