/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rng.h
 * Stateless random numbers: Philox4x32-10 (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", SC'11), addressed instead of advanced.
 *
 * A number is a function of its address (seed, step, micro-batch, layer, use)
 * and its index, so recomputation, any partition and any thread count draw
 * the same numbers. The address is 128 + 64 bits of Philox's key and counter:
 * key = seed; counter words = (index/4, layer | use << 24, step,
 * micro-batch); two addresses never share a block below 2^24 layers, 2^8
 * uses, 2^32 steps and micro-batches, 2^34 numbers each.
 */
#ifndef SL_BASE_RNG_H
#define SL_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef struct sl_rng {
    uint32_t key[2];     /**< the seed */
    uint32_t counter[3]; /**< layer | use << 24, step, micro-batch */
} sl_rng_t;

/** What a layer draws numbers for; distinct uses never share numbers. */
typedef enum sl_rng_use {
    SL_RNG_USE_INIT, /**< initial parameters (+ parameter index, 0..15) */
    SL_RNG_USE_DROPOUT = 16,
    SL_RNG_USE_ATTENTION_DROPOUT,
    SL_RNG_USE_SHUFFLE,
    SL_RNG_USE_SYNTHETIC,
    SL_RNG_USE_AUGMENT
} sl_rng_use_t;

/** The address of a stream of numbers. */
SL_API sl_rng_t sl_rng_at(uint64_t seed, uint32_t step, uint32_t micro_batch,
                          uint32_t layer, uint32_t use);

/** One block of four numbers: those with index 4*block .. 4*block+3. */
static inline void sl_rng_block(const sl_rng_t *rng, uint32_t block,
                                uint32_t out[4])
{
    uint32_t c0 = block, c1 = rng->counter[0];
    uint32_t c2 = rng->counter[1], c3 = rng->counter[2];
    uint32_t k0 = rng->key[0], k1 = rng->key[1];
    int round;

    for (round = 0; round < 10; round++) {
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

/** The number with this index, uniform over 32 bits. */
SL_API uint32_t sl_rng_u32(const sl_rng_t *rng, uint64_t index);

/** Fill out[0..n) with numbers uniform in [0, 1). */
SL_API void sl_rng_uniform(const sl_rng_t *rng, float *out, size_t n);

/** Fill out[0..n) with normal numbers, mean 0, deviation 1 (Box-Muller). */
SL_API void sl_rng_normal(const sl_rng_t *rng, float *out, size_t n);

/** Uniform integer in [0, bound), 0 < bound < 2^32; bias below 2^-32. Takes
 *  64 bits an index, so there are 2^33 of them in a stream. */
SL_API uint64_t sl_rng_below(const sl_rng_t *rng, uint64_t index,
                             uint64_t bound);

SL_END_DECLS
#endif /* SL_BASE_RNG_H */
