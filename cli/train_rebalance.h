/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file train_rebalance.h
 * Re-balancing of a training job: what its devices have had is measured at
 * each boundary, and layers move when that pays (docs/rebalance.md).
 */
#ifndef SL_CLI_TRAIN_REBALANCE_H
#define SL_CLI_TRAIN_REBALANCE_H

#include "cli/job.h"
#include "engine/repartition.h"

typedef struct sl_train_rebalance sl_train_rebalance_t; /* opaque */

/** What was done at a boundary; `text` is empty when nothing was. */
typedef struct sl_rebalance_news {
    char text[512]; /**< "layers 7-9 move from stage 1 to stage 0 ..." */
    double speedup; /**< predicted step before over after */
    sl_repartition_report_t report;
} sl_rebalance_news_t;

/** For a job whose engine is there. *rebalance_p becomes NULL when its cuts
 *  are not to change: off, one stage or device, other policies, given
 *  cuts. */
SL_NODISCARD sl_status_t
sl_train_rebalance_open(sl_job_t *job, sl_train_rebalance_t **rebalance_p);
/** NULL is allowed. */
void sl_train_rebalance_close(sl_train_rebalance_t *rebalance);

/** Before a step: what the boundary before it has found goes with it to the
 *  other ranks. NULL does nothing. */
SL_NODISCARD sl_status_t
sl_train_rebalance_begin(sl_train_rebalance_t *rebalance);

/**
 * After the boundary of a step, with what it found in force. Collective, but
 * waits for nobody unless the cuts are made again. NULL does nothing.
 *
 * @return SL_OK also when a move was not possible; SL_ERR_DEVICE
 */
SL_NODISCARD sl_status_t sl_train_rebalance_step(
    sl_train_rebalance_t *rebalance, const sl_step_report_t *report,
    sl_rebalance_news_t *news);

/**
 * After a step that did not fit the memory limits: move layers to where there
 * is room. Collective. NULL does nothing.
 *
 * @param[out] moved_p nonzero: the step fits now
 */
SL_NODISCARD sl_status_t sl_train_rebalance_fit(sl_train_rebalance_t *rebalance,
                                                int *moved_p,
                                                sl_rebalance_news_t *news);

#endif /* SL_CLI_TRAIN_REBALANCE_H */
