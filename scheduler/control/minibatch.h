/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file minibatch.h
 * Rolling statistics of mini-batch times. Median and p99, not means: a mean
 * that holds outliers makes a bad signal for a control loop.
 */
#ifndef SL_SCHEDULER_CONTROL_MINIBATCH_H
#define SL_SCHEDULER_CONTROL_MINIBATCH_H

#include <stdint.h>

#include "scheduler/control.h"

enum {
    SL_MINIBATCH_WINDOW = 256
};

typedef struct sl_minibatch {
    double us[SL_MINIBATCH_WINDOW]; /**< ring: entry i is number n with
                                         n % SL_MINIBATCH_WINDOW = i */
    double units[SL_MINIBATCH_WINDOW];
    uint64_t n;
} sl_minibatch_t;

/** Times that are not finite or negative count as 0. */
void sl_minibatch_add(sl_minibatch_t *batch, double us, double n_units);

/** Fill last_us, median_us, p99_us, recent_us and units_per_s. */
void sl_minibatch_fill(const sl_minibatch_t *batch,
                       sl_control_status_t *status);

/** Mean of the last (at most) nine, as AntMan reports. 0 = none yet */
double sl_minibatch_mean_us(const sl_minibatch_t *batch, int n_last);

#endif /* SL_SCHEDULER_CONTROL_MINIBATCH_H */
