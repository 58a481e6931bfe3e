/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of channels copied between tensors of any layout. */
#include "layers/cpu/channels.h"

#include <string.h>

sl_channels_t sl_channels_of(const sl_tensor_desc_t *desc)
{
    sl_channels_t c;

    if (desc->n_dims == 4) {
        c.batch = desc->dims[0];
        c.channels = desc->dims[1];
        c.padded = sl_padded_channels(desc);
        c.pixels = desc->dims[2] * desc->dims[3];
        c.block = desc->layout == SL_LAYOUT_BLOCKED ? sl_channel_block() : 1;
    } else {
        c.batch = sl_tensor_rows(desc);
        c.channels = desc->dims[desc->n_dims - 1];
        c.padded = c.channels;
        c.pixels = 1;
        c.block = 1;
    }
    return c;
}

static int64_t offset_of(sl_channels_t t, int64_t image, int64_t c)
{
    return (image * t.padded + c / t.block * t.block) * t.pixels + c % t.block;
}

static void copy_run(const float *from, float *to, const float *prev, int64_t n)
{
    int64_t i;

    if (prev == NULL) {
        memcpy(to, from, (size_t)n * sizeof(*to));
        return;
    }
#pragma omp simd
    for (i = 0; i < n; i++) {
        to[i] = prev[i] + from[i];
    }
}

static void copy_strided(const float *from, int64_t from_step, float *to,
                         const float *prev, int64_t to_step, int64_t n)
{
    int64_t i;

    for (i = 0; i < n; i++) {
        const float value = from[i * from_step];

        to[i * to_step] = prev == NULL ? value : prev[i * to_step] + value;
    }
}

void sl_channels_copy(sl_channels_t from, const float *from_data,
                      int64_t from_c, sl_channels_t to, float *to_data,
                      const float *prev, int64_t to_c, int64_t n,
                      sl_cpu_range_t batch)
{
    /* whole blocks lie in one run in both */
    const int64_t whole =
        from.block == to.block && from_c % to.block == 0 && to_c % to.block == 0
            ? n / to.block * to.block
            : 0;
    int64_t image, c;

    for (image = batch.begin; image < batch.end; image++) {
        const int64_t at = offset_of(to, image, to_c);

        if (whole > 0) {
            copy_run(from_data + offset_of(from, image, from_c), to_data + at,
                     prev == NULL ? NULL : prev + at, whole * to.pixels);
        }
        for (c = whole; c < n; c++) {
            const int64_t there = offset_of(to, image, to_c + c);

            copy_strided(from_data + offset_of(from, image, from_c + c),
                         from.block, to_data + there,
                         prev == NULL ? NULL : prev + there, to.block,
                         to.pixels);
        }
    }
}

void sl_channels_clear_padding(sl_channels_t to, float *data,
                               sl_cpu_range_t batch)
{
    static const float zero;
    int64_t image, c;

    for (image = batch.begin; image < batch.end; image++) {
        for (c = to.channels; c < to.padded; c++) {
            copy_strided(&zero, 0, data + offset_of(to, image, c), NULL,
                         to.block, to.pixels);
        }
    }
}
