/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file images.h
 * How image layers see their tensors on a CUDA device.
 */
#ifndef SL_LAYERS_CUDA_IMAGES_H
#define SL_LAYERS_CUDA_IMAGES_H

#include "layers/cuda/cuda_layers.h"
#include "layers/cuda/image_kernels.h"
#include "layers/image_internal.h"

SL_BEGIN_DECLS

static inline int sl_cuda_image_is_last(const sl_tensor_desc_t *desc)
{
    return desc->layout == SL_LAYOUT_CHANNELS_LAST;
}

/** All channels of an image, or of a tensor whose last dimension they are. */
static inline sl_cuda_side_t sl_cuda_image_side(const sl_tensor_desc_t *desc)
{
    sl_cuda_side_t side = {.type = sl_cuda_type_of(desc), .first = 0};

    side.is_last = sl_cuda_image_is_last(desc);
    side.channels = desc->dims[desc->n_dims == 4 ? 1 : desc->n_dims - 1];
    return side;
}

/** A window pool's run, without addresses. */
static inline sl_cuda_pool_t sl_cuda_image_pool(const sl_layer_plan_t *plan)
{
    const sl_tensor_desc_t *in = &plan->in[0];
    sl_cuda_pool_t pool = {.type = sl_cuda_type_of(in)};

    pool.is_last = sl_cuda_image_is_last(in);
    pool.batch = in->dims[0];
    pool.channels = in->dims[1];
    pool.in_height = in->dims[2];
    pool.in_width = in->dims[3];
    pool.kernel = 1;
    pool.stride = 1;
    if (plan->out.n_dims == 4) {
        pool.out_height = plan->out.dims[2];
        pool.out_width = plan->out.dims[3];
    }
    return pool;
}

/** The same with the attributes of max_pool2d and avg_pool2d. */
static inline sl_cuda_pool_t sl_cuda_window_pool(const sl_layer_plan_t *plan)
{
    const sl_pool2d_attrs_t *attrs = plan->layer->attrs;
    sl_cuda_pool_t pool = sl_cuda_image_pool(plan);

    pool.kernel = attrs->kernel;
    pool.stride = attrs->stride == 0 ? attrs->kernel : attrs->stride;
    pool.pad = attrs->pad;
    pool.count_include_pad = attrs->count_include_pad;
    return pool;
}

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_IMAGES_H */
