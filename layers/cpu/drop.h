/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file drop.h
 * Dropout masks from addressed random numbers, many blocks at a time.
 *
 * Nothing is stored: backward draws the same numbers again. The number of an
 * element is that of its place in memory, which for a plain tensor is its
 * index; an element is dropped when its 32-bit number is below p * 2^32.
 */
#ifndef SL_LAYERS_CPU_DROP_H
#define SL_LAYERS_CPU_DROP_H

#include <stdint.h>

#include "layers/cpu/cpu_kernels.h"

enum {
    SL_DROP_BLOCKS = 64,
    SL_DROP_NUMBERS = 4 * SL_DROP_BLOCKS, /**< drawn at once */
};

/** Elements one stream of numbers can address. */
#define SL_DROP_MAX_ELEMENTS ((int64_t)1 << 34)

/** Below this number an element is dropped; 0 <= p < 1. */
static inline uint32_t sl_drop_threshold(double p)
{
    return (uint32_t)(p * 0x1p32);
}

/** Numbers with index 4 * block .. 4 * (block + SL_DROP_BLOCKS) - 1: those of
 *  sl_rng_block, computed side by side. */
static inline void sl_drop_numbers(const sl_rng_t *rng, uint32_t block,
                                   uint32_t out[SL_DROP_NUMBERS])
{
    const uint32_t a = rng->counter[0], b = rng->counter[1];
    const uint32_t c = rng->counter[2];
    const uint32_t key0 = rng->key[0], key1 = rng->key[1];
    uint32_t j;

#pragma omp simd
    for (j = 0; j < SL_DROP_BLOCKS; j++) {
        uint32_t c0 = block + j, c1 = a, c2 = b, c3 = c;
        uint32_t k0 = key0, k1 = key1;
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
        out[4 * j] = c0;
        out[4 * j + 1] = c1;
        out[4 * j + 2] = c2;
        out[4 * j + 3] = c3;
    }
}

/** A mask to apply. */
typedef struct sl_drop {
    sl_rng_t rng;
    uint32_t threshold;
    float scale; /**< 1 / (1 - p) */
} sl_drop_t;

/** The mask of this run's micro-batch; 0 <= p < 1. */
static inline sl_drop_t sl_drop_of(const sl_layer_run_t *run, double p,
                                   sl_rng_use_t use)
{
    sl_drop_t drop;

    drop.rng = sl_rng_at(run->step.seed, run->step.step, run->step.micro_batch,
                         (uint32_t)run->plan->layer->index, (uint32_t)use);
    drop.threshold = sl_drop_threshold(p);
    drop.scale = (float)(1.0 / (1.0 - p));
    return drop;
}

/**
 * y[i] = mask[i] * x[i] / (1 - p) (+ prev[i]) over a range that starts at a
 * multiple of SL_DROP_NUMBERS. prev may be NULL or y; x may be y. The number
 * of element i has index 4 * block + i.
 */
void sl_drop_apply(const sl_drop_t *drop, uint32_t block, const float *x,
                   const float *prev, float *y, sl_cpu_range_t range);

/** Numbers of a mask for this tensor: places in memory of a CPU device. */
int64_t sl_drop_n_numbers(const sl_tensor_desc_t *desc);

/** That `n_streams` tensors of this size can be addressed.
 *  @return SL_OK, SL_ERR_UNSUPPORTED */
SL_NODISCARD sl_status_t sl_drop_check_size(const sl_layer_t *layer,
                                            const sl_tensor_desc_t *desc,
                                            int n_streams);

#endif /* SL_LAYERS_CPU_DROP_H */
