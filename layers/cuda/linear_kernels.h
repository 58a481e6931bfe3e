/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file linear_kernels.h
 * Our own kernels for CUDA devices beside the products of linear layers. As
 * cuda_kernels.h says, they queue their work on `stream` and return.
 */
#ifndef SL_LAYERS_CUDA_LINEAR_KERNELS_H
#define SL_LAYERS_CUDA_LINEAR_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "layers/cuda/cuda_kernels.h"

SL_BEGIN_DECLS

/** sums[columns] (+)= the sums of the columns of in[rows, columns]. */
typedef struct sl_cuda_column_sums {
    sl_cuda_type_t type; /**< of in */
    int64_t rows, columns;
    const void *in;
    float *sums;
    int is_first; /**< overwrite sums */
    void *workspace;
} sl_cuda_column_sums_t;

SL_API size_t sl_cuda_column_sums_workspace_bytes(int64_t rows,
                                                  int64_t columns);
SL_API SL_NODISCARD sl_status_t
sl_cuda_column_sums(const sl_cuda_column_sums_t *args, void *stream);

/** out[rows, columns] = the same row again and again. */
typedef struct sl_cuda_repeat_row {
    sl_cuda_type_t type; /**< of out */
    int64_t rows, columns;
    const float *row;
    void *out;
} sl_cuda_repeat_row_t;

SL_API SL_NODISCARD sl_status_t
sl_cuda_repeat_row(const sl_cuda_repeat_row_t *args, void *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_LINEAR_KERNELS_H */
