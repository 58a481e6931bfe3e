/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file simulate.h
 * One training step on a described cluster, in simulated time: the same
 * instruction lists as the executors follow (engine/schedule), R replicas of
 * K stages, transfers over links that others use too, and the data-parallel
 * sum of the gradients beside the backward.
 *
 * Nothing is drawn by chance and nothing depends on the machine that
 * simulates: equal input, equal bits. The time is O(n log n) in the number of
 * instructions and transfers.
 *
 * What is modelled, and what is not, is in docs/simulate.md.
 */
#ifndef SL_ENGINE_SIMULATE_SIMULATE_H
#define SL_ENGINE_SIMULATE_SIMULATE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/schedule/schedule.h"
#include "engine/simulate/cluster.h"
#include "partition/partition.h"

SL_BEGIN_DECLS

/** What time on the critical path is spent with. */
#define SL_SIM_PART_MAP(X)                                                     \
    X(FORWARD, "forward")                                                      \
    X(RECOMPUTE, "recompute")                                                  \
    X(BACKWARD, "backward")                                                    \
    X(COPY, "copy")       /* of what was received, on the device */            \
    X(LATENCY, "latency") /* of links */                                       \
    X(WIRE, "wire")       /* bytes on links */                                 \
    X(SUM, "sum")         /* of gradients, on the device */                    \
    X(UPDATE, "update")                                                        \
    X(MEET, "meet") /* all agree before the update, and at the end */

typedef enum sl_sim_part {
#define X(id, text) SL_SIM_##id,
    SL_SIM_PART_MAP(X)
#undef X
    SL_SIM_N_PARTS
} sl_sim_part_t;

SL_API const char *sl_sim_part_name(sl_sim_part_t part);

/** A moment, and the chain of work that led to it without a gap: the parts
 *  sum up to the time. */
typedef struct sl_sim_path {
    double at_us;
    double part_us[SL_SIM_N_PARTS];
    int n_hops; /**< transfers on the chain */
} sl_sim_path_t;

/** A parameter that a later layer shares with its owner. */
typedef struct sl_sim_tie {
    int owner_layer, user_layer;
    size_t bytes;
} sl_sim_tie_t;

/** Start from sl_sim_params_default(). All pointers are borrowed. */
typedef struct sl_sim_params {
    const sl_cluster_t *cluster;
    const sl_part_costs_t *costs; /**< of one micro-batch */
    const int *cuts;              /**< n_stages + 1 entries */
    int n_replicas, n_stages;
    int n_micro_batches; /**< of each replica, all of one size */
    sl_schedule_kind_t schedule;
    sl_backward_order_t backward_order;
    sl_recompute_t recompute;
    const unsigned char *keeps; /**< recompute `auto`: per layer, 1 = not
                                     recomputed; NULL = all are */
    const sl_sim_tie_t *ties;
    int n_ties;
    int n_moments;       /**< of the optimizer, 0 to 2 */
    int is_sharded;      /**< each replica updates its part (ZeRO-1) */
    size_t bucket_bytes; /**< gradients travel in pieces of at least this
                              (default 4 MiB) */
    int n_slots;         /**< tensors under way on an edge (default 2) */
    int has_free_links;  /**< transfers and copies take no time */
    int has_trace;       /**< keep the timeline */
} sl_sim_params_t;

SL_API void sl_sim_params_default(sl_sim_params_t *params);

/** A stage, over its replicas. */
typedef struct sl_sim_stage {
    double compute_us;   /**< kernels of a step, sums and update too; mean */
    double copy_us;      /**< device time of transfers; mean */
    double bubble;       /**< share of the step without either; mean */
    size_t memory_bytes; /**< estimate of the peak, of one device */
    int fits;            /**< on all its devices, others on them counted */
} sl_sim_stage_t;

typedef struct sl_sim_result {
    double step_us;
    double one_device_us; /**< the same mini-batch on a device of speed 1
                               with the memory of device 0: no transfer, no
                               recomputation */
    double efficiency;    /**< that over the speeds of the devices used, over
                               step_us */
    double bubble;        /**< mean over the cells */
    sl_sim_path_t path;   /**< critical path; path.at_us = step_us */
    uint64_t n_events;    /**< of the simulation */
    uint64_t n_messages;
    double near_bytes, far_bytes; /**< within hosts, between hosts */
    int n_devices;                /**< in use */
    int fits;                     /**< all stages */
    int n_stages;
    sl_sim_stage_t *stages;  /**< owned */
    sl_trace_event_t *trace; /**< owned; `stage` is the cell's number
                                  replica * K + stage; from 1 ns on */
    size_t n_trace;
} sl_sim_result_t;

/**
 * Simulate one step. Cell replica * K + stage has device cell * D / (R * K),
 * D = min(R * K, devices of the cluster).
 *
 * @param[out] result_p clean up with sl_sim_result_cleanup
 * @return SL_OK; SL_ERR_INVALID_ARG, SL_ERR_CONFIG (the grid, the schedule,
 *         the cuts), SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_simulate(const sl_sim_params_t *params,
                                            sl_sim_result_t *result_p);
SL_API void sl_sim_result_cleanup(sl_sim_result_t *result);

/** No step of these parameters is faster than this: each stage's own work,
 *  what has to come before its first and after its last micro-batch, and the
 *  update. In O(layers). */
SL_API SL_NODISCARD sl_status_t sl_sim_bound(const sl_sim_params_t *params,
                                             double *bound_us_p);

/** For recompute `auto`: as many layers are kept as the devices' memory
 *  allows by the estimate; those that cost most memory for their time are
 *  recomputed first. `keeps` has an entry a layer. The parameters are those
 *  of a possible step. */
SL_API void sl_sim_choose_keeps(const sl_sim_params_t *params,
                                unsigned char *keeps);

SL_END_DECLS
#endif /* SL_ENGINE_SIMULATE_SIMULATE_H */
