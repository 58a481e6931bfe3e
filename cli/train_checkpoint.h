/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file train_checkpoint.h
 * When a training run saves its state, and where it goes on from.
 */
#ifndef SL_CLI_TRAIN_CHECKPOINT_H
#define SL_CLI_TRAIN_CHECKPOINT_H

#include "cli/job.h"

typedef struct sl_train_checkpoint sl_train_checkpoint_t; /* opaque */

/**
 * With the job's engine made: load the checkpoint that the config names, open
 * the directory to save to. Afterwards sl_engine_n_steps() is the first step.
 *
 * @param[out] checkpoint_p also on failure: sl_train_checkpoint_close() it
 * @param[out] loss_p, validation_loss_p  of the step before; NaN = none; the
 *                          second is the same on all ranks
 */
SL_NODISCARD sl_status_t sl_train_checkpoint_open(
    const sl_job_t *job, sl_train_checkpoint_t **checkpoint_p, double *loss_p,
    double *validation_loss_p);
/** After each step: tell how the last save went, save when it is due.
 *  @param[in] validation_loss  of this step; NaN = none */
SL_NODISCARD sl_status_t sl_train_checkpoint_step(
    sl_train_checkpoint_t *checkpoint, double loss, double validation_loss);
/** Before the run ends, for whatever reason (the last step, a signal, an
 *  order to stop): save what is not saved yet, and wait until it is. */
SL_NODISCARD sl_status_t sl_train_checkpoint_end(
    sl_train_checkpoint_t *checkpoint, double loss, double validation_loss);
/** The path of this run's checkpoint of the present step, after the end. NULL
 *  is allowed. @return whether one was written */
int sl_train_checkpoint_path(const sl_train_checkpoint_t *checkpoint,
                             char *path, size_t path_bytes);
/** After the end: whether its state is on disk, where it should be. NULL
 *  allowed. @return SL_OK; SL_ERR_IO, the same on all ranks */
SL_NODISCARD sl_status_t
sl_train_checkpoint_check(const sl_train_checkpoint_t *checkpoint);
/** NULL is allowed. */
void sl_train_checkpoint_close(sl_train_checkpoint_t *checkpoint);

#endif /* SL_CLI_TRAIN_CHECKPOINT_H */
