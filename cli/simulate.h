/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file simulate.h
 * What the parts of `sluice simulate` share.
 */
#ifndef SL_CLI_SIMULATE_H
#define SL_CLI_SIMULATE_H

#include "cli/job.h"
#include "cli/options.h"
#include "engine/simulate/search.h"
#include "engine/simulate/simulate.h"

enum {
    SL_SIMULATION_MAX_SIZES = 32
};

typedef struct sl_simulation {
    const sl_options_t *options;
    sl_job_t job;
    sl_cluster_t cluster;
    sl_sim_tie_t *ties;   /**< owned */
    sl_sim_params_t base; /**< without costs, cuts and grid */
    int n_sizes;
    sl_search_size_t sizes[SL_SIMULATION_MAX_SIZES];
    sl_part_costs_t costs[SL_SIMULATION_MAX_SIZES]; /**< owned; of sizes */
} sl_simulation_t;

/** Add a size of micro-batches with its costs. `is_optional`: only when they
 *  are as sure (measured or not) as those of the first size. */
SL_NODISCARD sl_status_t sl_simulation_add_size(sl_simulation_t *simulation,
                                                int64_t rows, int is_optional);

/** One grid: print what a step is like. */
SL_NODISCARD sl_status_t sl_simulation_run(sl_simulation_t *simulation);
/** The best grid for each number of devices in --scale. */
SL_NODISCARD sl_status_t sl_simulation_scale(sl_simulation_t *simulation);

#endif /* SL_CLI_SIMULATE_H */
