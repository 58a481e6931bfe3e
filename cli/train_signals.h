/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file train_signals.h
 * The wish to end a run early: a signal to any of its processes, or an order
 * to stop. All processes end after the same step, so the wish travels with
 * the steps (sl_engine_signal).
 */
#ifndef SL_CLI_TRAIN_SIGNALS_H
#define SL_CLI_TRAIN_SIGNALS_H

enum {
    SL_TRAIN_STOP = 1 /**< flag of a step: end after it */
};

/** SIGINT, SIGTERM and SIGUSR1 (a batch system's warning) are the wish; the
 *  next one ends the process at once. */
void sl_train_signals_catch(void);
/** Wish it from within. */
void sl_train_signals_stop(void);
/** Whether this process wishes it; `ctx` is not used. */
int sl_train_signals_is_stop(void *ctx);

#endif /* SL_CLI_TRAIN_SIGNALS_H */
