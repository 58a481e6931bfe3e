/* SPDX-License-Identifier: Apache-2.0 */
/* Plain floats to tensors of every type and layout, and back. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/layers/layer_check.h"

sl_tensor_desc_t sl_f32(int n_dims, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t dims[SL_MAX_DIMS] = {a, b, c, d};

    return sl_tensor_desc(SL_DTYPE_F32, n_dims, dims);
}

sl_tensor_desc_t sl_i32(int n_dims, int64_t a, int64_t b)
{
    const int64_t dims[SL_MAX_DIMS] = {a, b, 1, 1};

    return sl_tensor_desc(SL_DTYPE_I32, n_dims, dims);
}

sl_tensor_desc_t sl_blocked(int64_t batch, int64_t channels, int64_t height,
                            int64_t width)
{
    sl_tensor_desc_t desc = sl_f32(4, batch, channels, height, width);

    desc.layout = SL_LAYOUT_BLOCKED;
    return desc;
}

/* ---- elements ---- */

double sl_dtype_rounding(sl_dtype_t dtype)
{
    return dtype == SL_DTYPE_BF16  ? 0x1p-8
           : dtype == SL_DTYPE_F16 ? 0x1p-11
                                   : 0;
}

/* Nearest even, by the bits: the upper half of a float is a bf16. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value)) {
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static float from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* By the value: in units of its last place, which are even numbers' at ties. */
static uint16_t to_f16(float value)
{
    const uint16_t sign = signbit(value) ? 0x8000u : 0;
    double size = fabs((double)value);
    int exponent;

    if (isnan(value)) {
        return sign | 0x7e00u;
    }
    if (size >= 65520) {
        return sign | 0x7c00u;
    }
    (void)frexp(size, &exponent);
    if (size < 0x1p-14) {
        exponent = -13;
    }
    /* 1024..2048 above the subnormals: the carry goes into the exponent */
    size = nearbyint(ldexp(size, 11 - exponent));
    return (uint16_t)(sign + (uint16_t)((exponent + 13) * 1024) +
                      (uint16_t)size);
}

static float from_f16(uint16_t half)
{
    const int exponent = half >> 10 & 31;
    const int fraction = half & 1023;
    const double sign = (half & 0x8000u) != 0 ? -1 : 1;

    if (exponent == 31) {
        return fraction != 0 ? NAN : (float)(sign * HUGE_VAL);
    }
    return (float)(sign * (exponent == 0
                               ? ldexp(fraction, -24)
                               : ldexp(1024 + fraction, exponent - 25)));
}

static void put(sl_dtype_t dtype, void *tensor, size_t at, float value)
{
    switch (dtype) {
    case SL_DTYPE_F32:
        ((float *)tensor)[at] = value;
        break;
    case SL_DTYPE_I32:
        ((int32_t *)tensor)[at] = (int32_t)value;
        break;
    case SL_DTYPE_F64:
        ((double *)tensor)[at] = (double)value;
        break;
    case SL_DTYPE_BF16:
        ((uint16_t *)tensor)[at] = to_bf16(value);
        break;
    case SL_DTYPE_F16:
        ((uint16_t *)tensor)[at] = to_f16(value);
        break;
    }
}

static float get(sl_dtype_t dtype, const void *tensor, size_t at)
{
    switch (dtype) {
    case SL_DTYPE_F32:
        break;
    case SL_DTYPE_I32:
        return (float)((const int32_t *)tensor)[at];
    case SL_DTYPE_F64:
        return (float)((const double *)tensor)[at];
    case SL_DTYPE_BF16:
        return from_bf16(((const uint16_t *)tensor)[at]);
    case SL_DTYPE_F16:
        return from_f16(((const uint16_t *)tensor)[at]);
    }
    return ((const float *)tensor)[at];
}

/* ---- layouts ---- */

size_t sl_layer_offset(const sl_tensor_desc_t *desc, int64_t i)
{
    const int64_t block = sl_channel_block();
    int64_t pixels, pixel, channel, image;

    if (desc->layout == SL_LAYOUT_PLAIN) {
        return (size_t)i;
    }
    pixels = desc->dims[2] * desc->dims[3];
    pixel = i % pixels;
    channel = i / pixels % desc->dims[1];
    image = i / pixels / desc->dims[1];
    if (desc->layout == SL_LAYOUT_CHANNELS_LAST) {
        return (size_t)((image * pixels + pixel) * desc->dims[1] + channel);
    }
    return (size_t)(image * sl_padded_channels(desc) * pixels +
                    channel / block * block * pixels + pixel * block +
                    channel % block);
}

void sl_layer_to_tensor(const sl_tensor_desc_t *desc, const float *plain,
                        void *tensor)
{
    const int64_t n = sl_tensor_elements(desc);
    int64_t i;

    memset(tensor, 0, sl_tensor_bytes(desc));
    for (i = 0; i < n; i++) {
        put(desc->dtype, tensor, sl_layer_offset(desc, i), plain[i]);
    }
}

static void check_padding(const sl_tensor_desc_t *desc, const float *tensor)
{
    const int64_t block = sl_channel_block();
    const int64_t pixels = desc->dims[2] * desc->dims[3];
    const int64_t padded = sl_padded_channels(desc);
    int64_t i;

    for (i = 0; i < desc->dims[0] * padded * pixels; i++) {
        const int64_t group = i / (block * pixels) % (padded / block);

        if (group * block + i % block >= desc->dims[1] && tensor[i] != 0.0f) {
            (void)fprintf(stderr, "channel padding at %lld is %g, not 0\n",
                          (long long)i, (double)tensor[i]);
            fail();
        }
    }
}

void sl_layer_from_tensor(const sl_tensor_desc_t *desc, const void *tensor,
                          float *plain)
{
    const int64_t n = sl_tensor_elements(desc);
    int64_t i;

    if (desc->layout == SL_LAYOUT_BLOCKED) {
        check_padding(desc, tensor);
    }
    for (i = 0; i < n; i++) {
        plain[i] = get(desc->dtype, tensor, sl_layer_offset(desc, i));
    }
}
