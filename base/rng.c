/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10, addressed. */
#include "base/rng.h"

#include <math.h>

sl_rng_t sl_rng_at(uint64_t seed, uint32_t step, uint32_t micro_batch,
                   uint32_t layer, uint32_t use)
{
    sl_rng_t rng;

    rng.key[0] = (uint32_t)seed;
    rng.key[1] = (uint32_t)(seed >> 32);
    rng.counter[0] = (layer & 0xFFFFFFu) | use << 24;
    rng.counter[1] = step;
    rng.counter[2] = micro_batch;
    return rng;
}

uint32_t sl_rng_u32(const sl_rng_t *rng, uint64_t index)
{
    uint32_t out[4];

    sl_rng_block(rng, (uint32_t)(index / 4), out);
    return out[index % 4];
}

void sl_rng_uniform(const sl_rng_t *rng, float *out, size_t n)
{
    uint32_t block[4];
    size_t i;

    for (i = 0; i < n; i++) {
        if (i % 4 == 0) {
            sl_rng_block(rng, (uint32_t)(i / 4), block);
        }
        /* 24 bits: every value is exact and below 1 */
        out[i] = (float)(block[i % 4] >> 8) * 0x1p-24f;
    }
}

void sl_rng_normal(const sl_rng_t *rng, float *out, size_t n)
{
    const double two_pi = 6.283185307179586476925;
    uint32_t block[4];
    size_t i;

    for (i = 0; i < n; i += 2) {
        double radius, angle;

        if (i % 4 == 0) {
            sl_rng_block(rng, (uint32_t)(i / 4), block);
        }
        radius = sqrt(-2.0 * log(((double)block[i % 4] + 0.5) * 0x1p-32));
        angle = two_pi * (double)block[i % 4 + 1] * 0x1p-32;
        out[i] = (float)(radius * cos(angle));
        if (i + 1 < n) {
            out[i + 1] = (float)(radius * sin(angle));
        }
    }
}

/* The high 64 bits of random * bound, for 64 random bits: a multiply-shift.
 * Each result is hit by floor or ceil of 2^64 / bound values, so its chance
 * is off by less than 2^-32 of itself while the bound fits 32 bits. */
uint64_t sl_rng_below(const sl_rng_t *rng, uint64_t index, uint64_t bound)
{
    uint32_t out[4];
    uint64_t high, low;

    SL_ASSERT(bound > 0 && bound <= UINT32_MAX);
    sl_rng_block(rng, (uint32_t)(index / 2), out);
    high = out[index % 2 * 2];
    low = out[index % 2 * 2 + 1];
    /* no carry is lost: both products are at most (2^32 - 1)^2 */
    return (high * bound + (low * bound >> 32)) >> 32;
}
