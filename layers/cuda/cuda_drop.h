/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_drop.h
 * Dropout masks of the CPU's kernels for tensors of CUDA devices: a
 * channels-last image has the numbers of the blocked one.
 */
#ifndef SL_LAYERS_CUDA_CUDA_DROP_H
#define SL_LAYERS_CUDA_CUDA_DROP_H

#include "layers/cpu/drop.h"
#include "layers/cuda/cuda_layers.h"

SL_BEGIN_DECLS

static inline sl_cuda_places_t sl_cuda_places_of(const sl_tensor_desc_t *desc)
{
    sl_tensor_desc_t blocked = *desc;
    sl_cuda_places_t places = {0};

    if (desc->layout == SL_LAYOUT_CHANNELS_LAST) {
        blocked.layout = SL_LAYOUT_BLOCKED;
        places.channels = desc->dims[1];
        places.padded = sl_padded_channels(&blocked);
        places.pixels = desc->dims[2] * desc->dims[3];
        places.block = sl_channel_block();
    }
    return places;
}

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_CUDA_DROP_H */
