/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file train_signals.h
 * The wish to end a run early: a signal to any of its processes, or an order
 * to stop. All processes hear of it at once (sl_world_wish_set), so that none
 * stays suspended; and all end after the same step, so it also travels with
 * the steps (sl_engine_signal).
 */
#ifndef SL_CLI_TRAIN_SIGNALS_H
#define SL_CLI_TRAIN_SIGNALS_H

#include "engine/world.h"

enum {
    SL_TRAIN_STOP = 1 /**< flag of a step: end after it */
};

/** SIGUSR1 alone, as early as can be: a launcher that warns all processes may
 *  not bear that it kills one of them. */
void sl_train_signals_catch_warning(void);
/** SIGINT, SIGTERM and SIGUSR1 (a batch system's warning) are the wish; the
 *  next one ends the process at once. */
void sl_train_signals_catch(void);
/** From now on other ranks hear of it; NULL is allowed. */
void sl_train_signals_share(sl_world_t *world);
/** Wish it from within; `ctx` is not used. */
void sl_train_signals_stop(void *ctx);
/** Whether it is wished, by this process or, with a `world`, by any. */
int sl_train_signals_is_stop(void *world);

#endif /* SL_CLI_TRAIN_SIGNALS_H */
