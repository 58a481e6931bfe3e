/* SPDX-License-Identifier: Apache-2.0 */
/* A training run that finds no memory under its limits. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "cli/train_internal.h"

sl_status_t sl_train_remember_limits(sl_train_t *train)
{
    const int n = train->job.devices->n_devices;
    sl_status_t status;
    int d;

    train->first_limits = calloc((size_t)n, sizeof(*train->first_limits));
    if (train->first_limits == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for the limits of %d devices", n);
    }
    for (d = 0; d < n; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(train->job.devices->devices[d].mem, &stats);
        train->first_limits[d] = stats.limit_bytes;
    }
    return SL_OK;
out:
    return status;
}

/* Whether some device's limit is below what the job started with. */
static int is_squeezed(const sl_train_t *train)
{
    int d;

    for (d = 0; d < train->job.devices->n_devices; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(train->job.devices->devices[d].mem, &stats);
        if (stats.limit_bytes < train->first_limits[d]) {
            return 1;
        }
    }
    return 0;
}

/* Whether to take a job again, once an order has come to the ranks whose
 * limits are low. All ranks decide alike; one that is told to end meanwhile
 * ends the run. */
static int await_room(sl_train_t *train)
{
    double sums[2] = {0.0, 0.0};
    double n_ends = 0.0;

    if (is_squeezed(train)) {
        sl_progress_clear(train->progress);
        sl_warn("%s; waiting for a higher limit", sl_last_error());
        sums[1] = sl_control_await_order(train->control);
        n_ends = sums[1] != 0.0 && sl_control_id(train->control) != NULL;
    }
    sums[0] = n_ends;
    if (sl_world_sum(train->job.world, sums, 2) < 0) {
        return 0;
    }
    train->is_over |= sums[0] > 0.0;
    return sums[1] == 0.0;
}

/* A limit that was lowered below the need is no reason to lose the job: layers
 * move to devices that have room for them, or it waits until another order
 * comes, and then does the same again. */
static sl_status_t make_room(sl_train_t *train, int *is_again_p)
{
    char detail[1024];
    double n_short = is_squeezed(train);
    sl_status_t status;
    int moved = 0;

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    SL_TRY(status, sl_world_sum(train->job.world, &n_short, 1), out);
    if (n_short > 0.0) {
        SL_TRY(status,
               sl_train_rebalance_fit(train->rebalance, &moved, &train->news),
               out);
        sl_train_tell_move(train, sl_engine_n_steps(train->job.engine));
    }
    sl_last_error_set(detail);
    *is_again_p = moved || (n_short > 0.0 && await_room(train));
out:
    return status;
}

sl_status_t sl_train_step_when_it_fits(sl_train_t *train,
                                       const sl_batch_t *batch,
                                       sl_step_report_t *report)
{
    sl_status_t status = sl_engine_step(train->job.engine, batch, report);
    int is_again = 0;

    while (status == SL_ERR_QUOTA) {
        SL_TRY(status, make_room(train, &is_again), out);
        if (!is_again) {
            return SL_ERR_QUOTA;
        }
        status = sl_engine_step(train->job.engine, batch, report);
    }
out:
    return status;
}

sl_status_t sl_train_evaluate_when_it_fits(sl_train_t *train,
                                           sl_job_evaluation_t *evaluation)
{
    const int64_t most = train->job.config.eval_batches;
    sl_status_t status =
        sl_job_evaluate(&train->job, most, train->control, evaluation);
    int is_again = 0;

    while (status == SL_ERR_QUOTA) {
        SL_TRY(status, make_room(train, &is_again), out);
        if (!is_again) {
            return SL_ERR_QUOTA;
        }
        status = sl_job_evaluate(&train->job, most, train->control, evaluation);
    }
out:
    return status;
}
