/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file train_internal.h
 * A training run, as the files of `sluice train` share it.
 */
#ifndef SL_CLI_TRAIN_INTERNAL_H
#define SL_CLI_TRAIN_INTERNAL_H

#include "cli/job.h"
#include "cli/memory_trace.h"
#include "cli/options.h"
#include "cli/train_checkpoint.h"
#include "cli/train_control.h"
#include "cli/train_rebalance.h"
#include "engine/report/metrics.h"
#include "engine/report/progress.h"

/* Where a run's results go. */
typedef struct sl_train {
    const sl_options_t *options;
    sl_job_t job;
    sl_loader_t *loader;
    sl_progress_t *progress;         /**< NULL when quiet */
    sl_metrics_t *metrics;           /**< NULL without --metrics */
    sl_control_t *control;           /**< NULL when there is none */
    sl_memory_trace_t *memory_trace; /**< NULL without --memory-trace */
    sl_train_checkpoint_t *checkpoint;
    const char *unit;
    double units_per_row;
    double *losses; /**< per step; owned */
    size_t n_losses;
    double last_loss;
    double validation_loss; /**< of the latest step; NaN = not evaluated */
    int is_over;            /**< a rank wishes the end, and all know */
    size_t *first_limits;   /**< of memory, one a device; owned */
    sl_train_rebalance_t *rebalance; /**< NULL when cuts stay */
    sl_rebalance_news_t news; /**< of the latest move; told with a step */
} sl_train_t;

/* train_report.c: what is told and drawn; by rank 0 where it is for the job */
void sl_train_tell_progress(const sl_train_t *train,
                            const sl_step_report_t *report, double n_units);
void sl_train_tell_metrics(const sl_train_t *train,
                           const sl_step_report_t *report, double n_units);
/** A move at the boundary before step `step`. */
void sl_train_tell_move(const sl_train_t *train, uint32_t step);
/** For whoever sends a signal: where the job is, and what there is of it. */
void sl_train_tell_interrupt(const sl_train_t *train);
SL_NODISCARD sl_status_t sl_train_write_timeline(const sl_train_t *train);
SL_NODISCARD sl_status_t sl_train_draw_curve(const sl_train_t *train);
/** How transfers lay under compute, when all ranks want to know. Collective. */
SL_NODISCARD sl_status_t sl_train_measure_edges(const sl_train_t *train);

/* train_room.c: memory that is not there. Collective. */
/** Before the first step. */
SL_NODISCARD sl_status_t sl_train_remember_limits(sl_train_t *train);
/** A step, an evaluation: taken again when layers have moved or an order has
 *  come. @return SL_ERR_QUOTA too when it is over while it waits for memory */
SL_NODISCARD sl_status_t sl_train_step_when_it_fits(sl_train_t *train,
                                                    const sl_batch_t *batch,
                                                    sl_step_report_t *report);
SL_NODISCARD sl_status_t sl_train_evaluate_when_it_fits(
    sl_train_t *train, sl_job_evaluation_t *evaluation);

#endif /* SL_CLI_TRAIN_INTERNAL_H */
