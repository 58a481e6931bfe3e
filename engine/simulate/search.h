/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file search.h
 * The grid of replicas, stages and micro-batches with the shortest simulated
 * step for a number of devices.
 */
#ifndef SL_ENGINE_SIMULATE_SEARCH_H
#define SL_ENGINE_SIMULATE_SEARCH_H

#include "engine/simulate/simulate.h"

SL_BEGIN_DECLS

/** A size of micro-batches that may be chosen. */
typedef struct sl_search_size {
    int64_t rows;
    const sl_part_costs_t *costs;
} sl_search_size_t;

typedef struct sl_search_params {
    /** What every candidate has. Its costs, cuts, keeps, replicas, stages and
     *  micro-batches are not read. */
    sl_sim_params_t base;
    const sl_part_ops_t *policy; /**< cuts the model into stages */
    const sl_search_size_t *sizes;
    int n_sizes;
    int64_t batch_rows; /**< of all replicas */
    int n_devices;      /**< at most those of the cluster */
} sl_search_params_t;

typedef struct sl_search_choice {
    int n_tried;     /**< grids looked at */
    int n_fitting;   /**< of those, that fit the memory; 0: no choice */
    int n_simulated; /**< of those; the others cannot be faster */
    int n_replicas, n_stages, n_micro_batches;
    int64_t rows; /**< of a micro-batch */
    double rows_per_s;
    double free_us;         /**< its step if transfers took no time */
    size_t memory_bytes;    /**< most of a device */
    sl_sim_result_t result; /**< of the step; no stages, no timeline */
} sl_search_choice_t;

/**
 * Cut a model for a grid on a cluster, with the speeds of replica 0's devices
 * and the links between them.
 */
SL_API SL_NODISCARD sl_status_t sl_search_cuts(const sl_part_ops_t *policy,
                                               const sl_sim_params_t *params,
                                               int *cuts);

/**
 * Try every number of stages that divides the devices or is a power of two,
 * with as many replicas as there is room for, and every size. A candidate
 * whose bound is above the best step is not simulated; the first of equals
 * wins, in the order of stages and then sizes.
 *
 * @return SL_OK, also when nothing fits; as sl_simulate
 */
SL_API SL_NODISCARD sl_status_t sl_search(const sl_search_params_t *params,
                                          sl_search_choice_t *choice_p);

SL_END_DECLS
#endif /* SL_ENGINE_SIMULATE_SEARCH_H */
