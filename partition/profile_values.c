/* SPDX-License-Identifier: Apache-2.0 */
/* Synthetic values of tensors, made on the host. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "partition/partition_internal.h"

/** The channels past the real ones of the last block are zero. */
static void zero_padding(const sl_tensor_desc_t *desc, float *data)
{
    const int64_t block = sl_channel_block();
    const int64_t n_blocks = sl_padded_channels(desc) / block;
    const int64_t n_pixels = desc->dims[2] * desc->dims[3];
    const int64_t first = desc->dims[1] - (n_blocks - 1) * block;
    int64_t sample, pixel, c;

    for (sample = 0; sample < desc->dims[0]; sample++) {
        float *last = data + ((sample + 1) * n_blocks - 1) * n_pixels * block;

        for (pixel = 0; pixel < n_pixels; pixel++) {
            for (c = first; c < block; c++) {
                last[pixel * block + c] = 0.0f;
            }
        }
    }
}

/* The digits that do not fit are cut off, and what is below 2^-14 is 0: which
 * numbers they are does not matter. */
static uint16_t shorten(float value, sl_dtype_t dtype)
{
    uint32_t bits, exponent;

    memcpy(&bits, &value, sizeof(bits));
    if (dtype == SL_DTYPE_BF16) {
        return (uint16_t)(bits >> 16);
    }
    exponent = bits >> 23 & 0xff;
    return (uint16_t)(bits >> 16 & 0x8000) |
           (exponent < 113
                ? 0
                : (uint16_t)((exponent - 112) << 10 | (bits >> 13 & 0x3ff)));
}

static void fill(const sl_tensor_desc_t *desc, const sl_rng_t *rng,
                 float *values)
{
    const size_t n = sl_tensor_bytes(desc) / sl_dtype_bytes(desc->dtype);
    uint16_t *shorts = (uint16_t *)(void *)values;
    size_t i;

    sl_rng_uniform(rng, values, n);
    for (i = 0; i < n; i++) {
        values[i] = 2.0f * values[i] - 1.0f;
    }
    if (desc->layout == SL_LAYOUT_BLOCKED) {
        zero_padding(desc, values);
    }
    for (i = 0; desc->dtype != SL_DTYPE_F32 && i < n; i++) {
        float value;

        memcpy(&value, &values[i], sizeof(value));
        shorts[i] = shorten(value, desc->dtype);
    }
}

sl_status_t sl_part_make_values(const sl_tensor_desc_t *desc, uint64_t seed,
                                uint32_t stream, void **values_p)
{
    const sl_rng_t rng = sl_rng_at(seed, stream, 0, 0, SL_RNG_USE_SYNTHETIC);
    const size_t bytes = sl_tensor_bytes(desc);
    /* short numbers are floats first */
    const size_t n = bytes / sl_dtype_bytes(desc->dtype) + 1;
    void *values =
        calloc(n, bytes > n * sizeof(float) ? sizeof(double) : sizeof(float));
    sl_status_t status;

    if (values == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "profile: no host memory for a tensor of %zu bytes", bytes);
    }
    if (sl_part_is_real(desc)) {
        fill(desc, &rng, values);
    }
    *values_p = values;
    return SL_OK;
out:
    return status;
}

sl_status_t sl_part_set_cpu(const void *args, void *stream)
{
    const sl_part_set_t *set = args;

    (void)stream;
    if (set->values == NULL) {
        memset(set->data, 0, set->bytes);
    } else {
        memcpy(set->data, set->values, set->bytes);
    }
    return SL_OK;
}
