/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file channels.h
 * Runs of channels copied between tensors of any layout.
 *
 * A tensor is seen as [batch, channels, pixels]; one that is not an image is
 * [rows, width, 1]. With a block of b channels side by side, channel c starts
 * at c / b * b * pixels + c % b and its pixels are b apart.
 */
#ifndef SL_LAYERS_CPU_CHANNELS_H
#define SL_LAYERS_CPU_CHANNELS_H

#include "layers/cpu/cpu_kernels.h"

typedef struct sl_channels {
    int64_t batch;
    int64_t channels;
    int64_t padded; /**< channels in memory */
    int64_t pixels;
    int64_t block; /**< 1: plain */
} sl_channels_t;

sl_channels_t sl_channels_of(const sl_tensor_desc_t *desc);

/**
 * Copy `n` channels of each image [batch.begin, batch.end): from channel
 * from_c of `from` to channel to_c of `to`; adds prev (laid out as `to`) when
 * it is not NULL. prev may be to_data.
 */
void sl_channels_copy(sl_channels_t from, const float *from_data,
                      int64_t from_c, sl_channels_t to, float *to_data,
                      const float *prev, int64_t to_c, int64_t n,
                      sl_cpu_range_t batch);

/** Zero the padding channels of the images of a tensor. */
void sl_channels_clear_padding(sl_channels_t to, float *data,
                               sl_cpu_range_t batch);

#endif /* SL_LAYERS_CPU_CHANNELS_H */
