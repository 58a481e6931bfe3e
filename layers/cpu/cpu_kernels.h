/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cpu_kernels.h
 * The CPU's kernel table of each layer type, and how they share out work.
 */
#ifndef SL_LAYERS_CPU_CPU_KERNELS_H
#define SL_LAYERS_CPU_CPU_KERNELS_H

#include <stdint.h>

#include "layers/layers_internal.h"

SL_BEGIN_DECLS

/** A run of indices [begin, end). */
typedef struct sl_cpu_range {
    int64_t begin;
    int64_t end;
} sl_cpu_range_t;

/** The `part`-th of `n_parts` runs of [0, n), cut at multiples of `align`:
 *  a function of its arguments only, so the same thread always computes the
 *  same elements. */
static inline sl_cpu_range_t sl_cpu_split(int64_t n, int n_parts, int part,
                                          int64_t align)
{
    const int64_t units = (n + align - 1) / align;
    sl_cpu_range_t range;

    range.begin = units * part / n_parts * align;
    range.end = units * (part + 1) / n_parts * align;
    if (range.begin > n) {
        range.begin = n;
    }
    if (range.end > n) {
        range.end = n;
    }
    return range;
}

/** Threads that pay for `n` elements of light work: 1 when few. */
static inline int sl_cpu_threads(const sl_layer_run_t *run, int64_t n)
{
    return n < 16384 ? 1 : run->plan->n_threads;
}

SL_END_DECLS
#endif /* SL_LAYERS_CPU_CPU_KERNELS_H */
