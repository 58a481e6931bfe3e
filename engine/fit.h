/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fit.h
 * Cuts that fit: the exact partition under each device's memory, verified by
 * a rehearsal.
 */
#ifndef SL_ENGINE_FIT_H
#define SL_ENGINE_FIT_H

#include "engine/engine.h"
#include "partition/stage_memory.h"

SL_BEGIN_DECLS

/** How a search for cuts ended. */
typedef struct sl_fit {
    int fits;     /**< a rehearsal of the cuts fits all devices */
    int n_rounds; /**< cuts that were rehearsed */
    /* when nothing fits: of the cuts that need the smallest part of their
     * device's memory, the worst device */
    int slot; /**< index in the grid: of the devices, when it is one process */
    size_t need_bytes; /**< at most at once in blocks; in regions where only
                            fragmentation is too much */
    size_t limit_bytes;
} sl_fit_t;

/** An estimate of the memory of any stage of this engine, whatever its cuts;
 *  destroy it with sl_part_memory_destroy. */
SL_API SL_NODISCARD sl_status_t sl_engine_estimate(
    const sl_engine_params_t *params, sl_part_memory_t **memory_p);

/**
 * The fastest cuts whose rehearsal fits the limits last asked of the devices:
 * the cuts of `dp`, and when their rehearsal does not fit, those of `dp` under
 * estimates of memory, which are corrected by what rehearsals measure. When
 * no cuts are found that fit, those with the smallest need.
 *
 * With several ranks it is collective: rank 0 cuts, each rank rehearses what it
 * would have, and all know the limits of all devices. Failing on one rank, it
 * fails on all.
 *
 * @param[in]  params  its cuts are not looked at
 * @param[in]  problem speeds, costs and links; without memory
 * @param[out] cuts    n_stages + 1 entries
 * @return SL_OK, also when nothing fits; SL_ERR_CONFIG, SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_engine_fit(const sl_engine_params_t *params,
                                              const sl_part_problem_t *problem,
                                              int *cuts, sl_fit_t *fit_p);

SL_END_DECLS
#endif /* SL_ENGINE_FIT_H */
