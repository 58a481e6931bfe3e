/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file philox.cuh
 * The numbers of base/rng.h on a device, and dropout masks made of them.
 */
#ifndef SL_LAYERS_CUDA_PHILOX_CUH
#define SL_LAYERS_CUDA_PHILOX_CUH

#include "layers/cuda/device.cuh"

/* As sl_rng_block(): numbers 4 * block .. 4 * block + 3 of the stream. */
static __device__ __forceinline__ void
philox_block(const sl_rng_t &rng, uint32_t block, uint32_t out[4])
{
    uint32_t c0 = block, c1 = rng.counter[0];
    uint32_t c2 = rng.counter[1], c3 = rng.counter[2];
    uint32_t k0 = rng.key[0], k1 = rng.key[1];

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        const uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* A mask; threshold 0 drops nothing. */
typedef struct mask {
    sl_rng_t rng;
    uint32_t first_block;
    uint32_t threshold;
    float scale;
    sl_cuda_places_t places;
} mask_t;

static inline mask_t mask_of(sl_rng_t rng, uint32_t first_block, double p,
                             sl_cuda_places_t places = {})
{
    mask_t mask;

    mask.rng = rng;
    mask.first_block = first_block;
    mask.threshold = (uint32_t)(p * 4294967296.0);
    mask.scale = (float)(1.0 / (1.0 - p));
    mask.places = places;
    return mask;
}

/* Index of an element's number: its place in a CPU's memory. */
static __device__ __forceinline__ int64_t place_of(const sl_cuda_places_t &p,
                                                   int64_t i)
{
    int64_t channel, pixel, image;

    if (p.channels == 0) {
        return i;
    }
    channel = i % p.channels;
    pixel = i / p.channels % p.pixels;
    image = i / p.channels / p.pixels;
    return (image * p.padded + channel / p.block * p.block) * p.pixels +
           pixel * p.block + channel % p.block;
}

static __device__ __forceinline__ void mask_one(const mask_t &mask,
                                                uint32_t number, float *x)
{
    *x = number >= mask.threshold ? *x * mask.scale : 0.0f;
}

/* x[k] = mask * x[k] / (1 - p) for the elements from i, a multiple of 4. Four
 * neighbours share a block of numbers, but for odd channel counts. */
template <int N>
static __device__ __forceinline__ void mask_pack(const mask_t &mask, int64_t i,
                                                 float x[N])
{
    uint32_t numbers[4];

    if (mask.places.channels % 4 != 0) {
        for (int k = 0; k < N; k++) {
            const int64_t place = place_of(mask.places, i + k);

            philox_block(mask.rng, mask.first_block + (uint32_t)(place / 4),
                         numbers);
            mask_one(mask, numbers[place % 4], &x[k]);
        }
        return;
    }
    for (int k = 0; k < N; k += 4) {
        const int64_t place = place_of(mask.places, i + k);

        philox_block(mask.rng, mask.first_block + (uint32_t)(place / 4),
                     numbers);
        for (int j = 0; j < 4; j++) {
            mask_one(mask, numbers[j], &x[k + j]);
        }
    }
}

#endif /* SL_LAYERS_CUDA_PHILOX_CUH */
