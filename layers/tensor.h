/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor.h
 * Shape, type and memory layout of a tensor.
 *
 * Images are [batch, channels, height, width]; sequences [batch, time,
 * width]; tokens [batch, time]. dims[0] is always the batch.
 *
 * SL_LAYOUT_PLAIN is row-major. SL_LAYOUT_BLOCKED is for 4-d tensors only:
 * [batch, ceil(channels/b), height, width, b] with b = sl_channel_block(),
 * the layout of oneDNN's vector kernels (nChw16c with AVX-512, else nChw8c).
 * Channels past the real ones are zero: every kernel keeps them so.
 * SL_LAYOUT_CHANNELS_LAST, likewise for 4-d tensors only, is [batch, height,
 * width, channels] in memory, the layout of cuDNN's tensor core kernels.
 */
#ifndef SL_LAYERS_TENSOR_H
#define SL_LAYERS_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

enum {
    SL_MAX_DIMS = 4
};

typedef enum sl_dtype {
    SL_DTYPE_F32,
    SL_DTYPE_I32,  /**< tokens and labels */
    SL_DTYPE_F64,  /**< sums: loss, batch norm accumulators */
    SL_DTYPE_BF16, /**< activations on CUDA devices */
    SL_DTYPE_F16   /**< likewise */
} sl_dtype_t;

typedef enum sl_layout {
    SL_LAYOUT_PLAIN,
    SL_LAYOUT_BLOCKED,
    SL_LAYOUT_CHANNELS_LAST
} sl_layout_t;

typedef struct sl_tensor_desc {
    sl_dtype_t dtype;
    sl_layout_t layout;
    int n_dims;
    int64_t dims[SL_MAX_DIMS];
} sl_tensor_desc_t;

/** A plain desc; unused dims are ignored. */
SL_API sl_tensor_desc_t sl_tensor_desc(sl_dtype_t dtype, int n_dims,
                                       const int64_t *dims);
SL_API size_t sl_dtype_bytes(sl_dtype_t dtype);
/** Product of the dims, without channel padding. */
SL_API int64_t sl_tensor_elements(const sl_tensor_desc_t *desc);
/** Bytes in memory, channel padding included. */
SL_API size_t sl_tensor_bytes(const sl_tensor_desc_t *desc);
/** Product of all dims but the last: rows of a matrix view (plain only). */
SL_API int64_t sl_tensor_rows(const sl_tensor_desc_t *desc);
SL_API int sl_tensor_desc_is_equal(const sl_tensor_desc_t *a,
                                   const sl_tensor_desc_t *b);
/** "f32 [8, 64, 32, 32]" into text. */
SL_API void sl_tensor_desc_format(const sl_tensor_desc_t *desc, char *text,
                                  size_t text_bytes);
/** Channels in a block of SL_LAYOUT_BLOCKED on this machine: 16 or 8. */
SL_API int64_t sl_channel_block(void);
/** dims[1] rounded up to whole blocks when blocked, else dims[1]. */
SL_API int64_t sl_padded_channels(const sl_tensor_desc_t *desc);

SL_END_DECLS
#endif /* SL_LAYERS_TENSOR_H */
