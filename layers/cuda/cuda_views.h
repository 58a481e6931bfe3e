/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_views.h
 * Tensors as [images, channels, pixels]; one that is not an image is [rows,
 * width, 1].
 */
#ifndef SL_LAYERS_CUDA_CUDA_VIEWS_H
#define SL_LAYERS_CUDA_CUDA_VIEWS_H

#include "layers/cuda/cuda_layers.h"

SL_BEGIN_DECLS

static inline int64_t sl_cuda_images_of(const sl_tensor_desc_t *desc)
{
    return desc->n_dims == 4 ? desc->dims[0] : sl_tensor_rows(desc);
}

static inline int64_t sl_cuda_channels_of(const sl_tensor_desc_t *desc)
{
    return desc->dims[desc->n_dims == 4 ? 1 : desc->n_dims - 1];
}

static inline int64_t sl_cuda_pixels_of(const sl_tensor_desc_t *desc)
{
    return desc->n_dims == 4 ? desc->dims[2] * desc->dims[3] : 1;
}

static inline sl_cuda_view_t sl_cuda_view_of(const sl_tensor_desc_t *desc)
{
    const int64_t channels = sl_cuda_channels_of(desc);
    const int64_t pixels = sl_cuda_pixels_of(desc);
    const int is_plain = desc->layout == SL_LAYOUT_PLAIN;
    sl_cuda_view_t view;

    view.image = channels * pixels;
    view.channel = is_plain ? pixels : 1;
    view.pixel = is_plain ? 1 : channels;
    return view;
}

/** The address of a channel of the first image. */
static inline const void *sl_cuda_channel_at(const sl_tensor_desc_t *desc,
                                             const void *data, int64_t channel)
{
    const sl_cuda_view_t view = sl_cuda_view_of(desc);

    return (const char *)data +
           (size_t)(channel * view.channel) * sl_dtype_bytes(desc->dtype);
}

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_CUDA_VIEWS_H */
