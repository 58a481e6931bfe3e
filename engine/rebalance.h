/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rebalance.h
 * When layers should move between stages: a device has had less of its time
 * than the cuts were made for, and that stays so.
 *
 * A policy and nothing else: it is told what was measured and says when to
 * cut anew, and whether new cuts are worth the move. docs/rebalance.md has
 * the rules.
 */
#ifndef SL_ENGINE_REBALANCE_H
#define SL_ENGINE_REBALANCE_H

#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef struct sl_rebalance sl_rebalance_t; /* opaque */

/** Start from sl_rebalance_params_default(). */
typedef struct sl_rebalance_params {
    int n_devices;
    const double *plan_speed; /**< of each device, that the cuts were made
                                   for; NULL (default) = all 1. Copied. */
    int n_boundaries;         /**< a change of shares must last for so many
                                   mini-batches (default 20) */
    uint64_t lasts_ns;        /**< and for so long (default 2 s) */
    int load_patience; /**< a change that others make, by loading a device,
                            must last longer by this factor (default 5) */
    double threshold;  /**< part of its planned speed, relative to the other
                            devices, that a device must lose (default 0.15) */
    double least_gain; /**< predicted step before over after (default 1.05) */
    int payback_steps; /**< the move's time is saved again within so many
                            steps (default 100) */
} sl_rebalance_params_t;

SL_API void sl_rebalance_params_default(sl_rebalance_params_t *params);

/** @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_rebalance_create(
    const sl_rebalance_params_t *params, sl_rebalance_t **rebalance_p);
/** NULL is allowed. */
SL_API void sl_rebalance_destroy(sl_rebalance_t *rebalance);

/** What a mini-batch says of the devices. */
typedef struct sl_rebalance_sample {
    uint64_t now_ns;
    double step_us;        /**< wall time of the step */
    const double *share;   /**< one a device, of its time: 0 to 1 */
    const double *busy_us; /**< one a device: wall time in kernels */
} sl_rebalance_sample_t;

/** Tell of a mini-batch.
 *  @return nonzero when the cuts should be made again, for the speeds of
 *          sl_rebalance_speeds(); answer with _moved or _stayed */
SL_API int sl_rebalance_observe(sl_rebalance_t *rebalance,
                                const sl_rebalance_sample_t *sample);

/** The speeds that the devices have now, 1 = a whole device as fast as it was
 *  at its best; n_devices of them. */
SL_API void sl_rebalance_speeds(const sl_rebalance_t *rebalance,
                                double *speeds);

/** Whether new cuts are worth it. Steps are predictions, in any unit; a
 *  move's time is measured against the steps that were observed.
 *  @param move_us what the move will take */
SL_API int sl_rebalance_is_worth(const sl_rebalance_t *rebalance,
                                 double step_before, double step_after,
                                 double move_us);

/** The cuts were made anew for `speeds`; the work of each device is now
 *  `work_ratio` of what it was. Moves that follow each other soon wait
 *  longer and longer. */
SL_API void sl_rebalance_moved(sl_rebalance_t *rebalance, uint64_t now_ns,
                               const double *speeds, const double *work_ratio);
/** The cuts stay: do not ask again at once. */
SL_API void sl_rebalance_stayed(sl_rebalance_t *rebalance, uint64_t now_ns);

SL_END_DECLS
#endif /* SL_ENGINE_REBALANCE_H */
