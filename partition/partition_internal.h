/* SPDX-License-Identifier: Apache-2.0 */
/* Times as every policy sees them, and keys of layers. */
#ifndef SL_PARTITION_PARTITION_INTERNAL_H
#define SL_PARTITION_PARTITION_INTERNAL_H

#include <math.h>

#include "partition/partition.h"

/** Longest time of a layer or a transfer that is believed, 31 years. */
#define SL_PART_MAX_US 1e15

/**
 * Times are whole multiples of 2^-20 us: sums up to 2^33 us are then exact
 * in any order, so a prefix sum, a plain sum and two equally good cuts never
 * differ by rounding.
 */
static inline double sl_part_round_us(double us)
{
    return ldexp(rint(ldexp(us, 20)), -20);
}

/** Compute time of one layer on a device of speed 1. */
static inline double sl_part_layer_us(const sl_part_problem_t *problem,
                                      int layer)
{
    const sl_part_layer_t *cost = &problem->costs->layers[layer];

    return sl_part_round_us(cost->forward_us * (1.0 + problem->recompute) +
                            cost->backward_us);
}

/** Time of what crosses the cut before `layer`, one way; 0 at both ends. */
static inline double sl_part_transfer_us(const sl_part_problem_t *problem,
                                         int layer)
{
    double bytes;

    if (layer <= 0 || layer >= problem->costs->n_layers) {
        return 0.0;
    }
    bytes = (double)problem->costs->layers[layer].cut_bytes;
    if (!(bytes > 0.0)) {
        return 0.0;
    }
    return sl_part_round_us(problem->link_latency_us +
                            (problem->link_bytes_per_us > 0.0
                                 ? bytes / problem->link_bytes_per_us
                                 : 0.0));
}

static inline double sl_part_speed_of(const sl_part_problem_t *problem,
                                      int stage)
{
    return problem->stage_speed == NULL ? 1.0 : problem->stage_speed[stage];
}

/** Time of a stage from its parts: the one formula of DP and prediction. */
static inline double sl_part_sum_us(double compute_us, double speed,
                                    double received_us)
{
    return compute_us / speed + received_us;
}

/** Counts, costs, links, speeds and memory are possible. */
SL_NODISCARD sl_status_t
sl_part_check_problem(const sl_part_problem_t *problem);

/** Hash of what a layer computes: type, attributes, input shapes (without
 *  them when `in` is NULL), and which inputs come from the batch. Layers with
 *  equal keys and shapes cost the same. */
uint64_t sl_part_layer_key(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                           uint64_t seed);

/** Whether the elements are of a type that has a gradient. */
static inline int sl_part_is_real(const sl_tensor_desc_t *desc)
{
    return desc->dtype == SL_DTYPE_F32 || desc->dtype == SL_DTYPE_BF16 ||
           desc->dtype == SL_DTYPE_F16;
}

/** Args of the op that fills memory of a device, one a kind. */
typedef struct sl_part_set {
    void *data;
    const void *values; /**< of the host; NULL: zeros */
    size_t bytes;
} sl_part_set_t;

/** Numbers in [-1, 1); whole numbers are 0, a valid token and label of any
 *  vocabulary. *values_p is owned (free). */
SL_NODISCARD sl_status_t sl_part_make_values(const sl_tensor_desc_t *desc,
                                             uint64_t seed, uint32_t stream,
                                             void **values_p);

sl_status_t sl_part_set_cpu(const void *args, void *stream);
#if SL_HAVE_CUDA
sl_status_t sl_part_set_cuda(const void *args, void *stream);
#endif

/** What the backward of a layer has to compute. */
typedef struct sl_part_work {
    int differentiates[SL_LAYER_MAX_INPUTS]; /**< in[i]'s gradient is asked */
    int has_backward;                        /**< there is a backward to run */
} sl_part_work_t;

void sl_part_find_work(const sl_layer_plan_t *plan, sl_part_work_t *work_p);

#endif /* SL_PARTITION_PARTITION_INTERNAL_H */
