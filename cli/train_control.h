/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file train_control.h
 * The control plane of a training job: opened from its config.
 */
#ifndef SL_CLI_TRAIN_CONTROL_H
#define SL_CLI_TRAIN_CONTROL_H

#include "cli/job.h"
#include "scheduler/control.h"

/**
 * Publish an opened job that has not started. When that fails for another
 * reason than its name, it warns and the job goes on with *control_p NULL.
 *
 * An order to stop, and a signal to any rank, end what it waits for.
 *
 * @param unit "samples" or "tokens"
 * @return SL_OK, SL_ERR_INVALID_ARG
 */
SL_NODISCARD sl_status_t sl_train_control_open(const sl_job_t *job,
                                               const char *unit,
                                               sl_control_t **control_p);

/** After a step. @return nonzero when the job shall end */
int sl_train_control_step(sl_control_t *control, const sl_job_t *job,
                          const sl_step_report_t *report, double n_units);

#endif /* SL_CLI_TRAIN_CONTROL_H */
