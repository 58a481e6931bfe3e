/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file types.h
 * Element types of tensors as our kernels for CUDA devices name them.
 */
#ifndef SL_LAYERS_CUDA_TYPES_H
#define SL_LAYERS_CUDA_TYPES_H

#include "layers/cuda/cuda_kernels.h"
#include "layers/tensor.h"

/** For types that activations have (sl_is_real). */
static inline sl_cuda_type_t sl_cuda_type_from(sl_dtype_t dtype)
{
    return dtype == SL_DTYPE_BF16  ? SL_CUDA_BF16
           : dtype == SL_DTYPE_F16 ? SL_CUDA_F16
                                   : SL_CUDA_F32;
}

/** The next multiple of the alignment of allocations: parts of a workspace
 *  start at such places. */
static inline size_t sl_cuda_round_bytes(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

#endif /* SL_LAYERS_CUDA_TYPES_H */
