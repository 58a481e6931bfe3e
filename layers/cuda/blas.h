/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blas.h
 * Products of row-major matrices by cuBLASLt, planned once and run often.
 *
 * A product is d = alpha op(a) op(b) + beta d, for one matrix or for a batch
 * at fixed distances. It is computed in fp32, whatever the types. Its
 * algorithm and workspace are chosen when it is made; the ways of splitting a
 * sum over several blocks are not among those to choose from. So all runs of
 * a product give the same bits for the same numbers.
 */
#ifndef SL_LAYERS_CUDA_BLAS_H
#define SL_LAYERS_CUDA_BLAS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layers/cuda/cuda_kernels.h"
#include "scheduler/cuda.h"

SL_BEGIN_DECLS

/**
 * Our status for what a call of cuBLASLt returned: SL_ERR_NO_MEMORY, logged
 * at debug, for a refused allocation, SL_ERR_DEVICE otherwise.
 *
 * @param error the cublasStatus_t
 */
SL_API SL_NODISCARD sl_status_t sl_cuda_blas_status(int error, const char *call,
                                                    const char *file, int line);

/** Status of one call, e.g. SL_TRY(status, SL_BLAS(cublasLtDestroy(h)), x). */
#define SL_BLAS(call)                                                          \
    sl_cuda_blas_status((int)(call), #call, __FILE__, __LINE__)

/** Workspace that a product may take. */
#define SL_CUDA_BLAS_WORKSPACE_BYTES ((size_t)32 << 20)

/** How a matrix of a product lies in memory. */
typedef struct sl_cuda_matrix {
    sl_cuda_type_t type;
    int64_t stride;       /**< elements from a row, as stored, to the next */
    int64_t batch_stride; /**< from a matrix of the batch to the next */
    int is_transposed;    /**< a and b: op() is the transpose */
    size_t align_bytes;   /**< that addresses given to a run have; 0: 256 */
} sl_cuda_matrix_t;

/** What is done besides the product. */
typedef enum sl_cuda_epilogue {
    SL_CUDA_EPILOGUE_NONE,
    SL_CUDA_EPILOGUE_BIAS,    /**< extra[n], of d's type, is added to each row
                                   of d */
    SL_CUDA_EPILOGUE_ROW_SUMS /**< extra[m], of d's type, is overwritten with
                                   the sums of the rows of op(a) */
} sl_cuda_epilogue_t;

/** op(a) is [m, k], op(b) [k, n], d [m, n]. a and b have one type; d has it
 *  too, or is fp32. */
typedef struct sl_cuda_product_params {
    int64_t m, n, k;
    int64_t batch; /**< 0 is 1 */
    sl_cuda_matrix_t a, b, d;
    sl_cuda_epilogue_t epilogue; /**< not with a batch */
    int is_tf32;                 /**< fp32 inputs may be rounded to TF32 */
    int is_optional;  /**< the caller has another way: when there is no
                           algorithm, that is logged at debug only */
    const char *name; /**< borrowed for the call: starts messages, as
                           "layer fc1 (linear), forward" */
} sl_cuda_product_params_t;

typedef struct sl_cuda_product sl_cuda_product_t;

/** Plan it, for the calling thread's current device.
 *  @return SL_OK, SL_ERR_UNSUPPORTED (no algorithm; product_p is untouched),
 *          SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_API SL_NODISCARD sl_status_t sl_cuda_product_create(
    const sl_cuda_product_params_t *params, sl_cuda_product_t **product_p);
/** NULL is allowed. */
SL_API void sl_cuda_product_destroy(sl_cuda_product_t *product);

/** What a run must be given; 0 for NULL. */
SL_API size_t sl_cuda_product_workspace_bytes(const sl_cuda_product_t *product);

/** Device addresses of one run. */
typedef struct sl_cuda_product_args {
    float alpha, beta; /**< beta 0: what d holds is not read */
    const void *a, *b;
    void *d;
    void *extra; /**< of the epilogue; aligned to 16 bytes */
    void *workspace;
} sl_cuda_product_args_t;

/** Queue it on the device; one thread at a time runs a product.
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_API SL_NODISCARD sl_status_t sl_cuda_product_run(
    sl_cuda_product_t *product, const sl_cuda_product_args_t *args,
    sl_cuda_stream_t *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_BLAS_H */
