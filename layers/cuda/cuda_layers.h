/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_layers.h
 * What the kernel tables of layer types on CUDA devices share.
 */
#ifndef SL_LAYERS_CUDA_CUDA_LAYERS_H
#define SL_LAYERS_CUDA_CUDA_LAYERS_H

#include "layers/cuda/cuda_kernels.h"
#include "layers/layers_internal.h"
#include "scheduler/cuda.h"

SL_BEGIN_DECLS

/** How elements of this tensor are stored; one that sl_is_real(). */
static inline sl_cuda_type_t sl_cuda_type_of(const sl_tensor_desc_t *desc)
{
    return desc->dtype == SL_DTYPE_BF16  ? SL_CUDA_BF16
           : desc->dtype == SL_DTYPE_F16 ? SL_CUDA_F16
                                         : SL_CUDA_F32;
}

/** The next multiple of the alignment of allocations: parts of a workspace
 *  start at such places. */
static inline size_t sl_cuda_round_bytes(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/** The cudaStream_t of an op's `stream`. */
static inline void *sl_cuda_queue(void *stream)
{
    return ((sl_cuda_stream_t *)stream)->queue;
}

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_CUDA_LAYERS_H */
