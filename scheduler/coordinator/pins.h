/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pins.h
 * What was set by hand in a job's order, so that a coordinator leaves it.
 *
 * The values are in the order's gates; which of them are by hand is in its
 * writer token: "coordinator.s3.l1.h" says the shares of devices 0 and 1 and
 * the limit of device 0 are, and that the job is suspended. So both are
 * replaced together, and outlive the coordinator. In an order of any other
 * writer everything it says is by hand.
 */
#ifndef SL_SCHEDULER_COORDINATOR_PINS_H
#define SL_SCHEDULER_COORDINATOR_PINS_H

#include "scheduler/control.h"

#define SL_PINS_COORDINATOR "coordinator"
#define SL_PINS_CTL "ctl"

typedef struct sl_pins {
    uint64_t shares; /**< bit d: share of the job's d-th device */
    uint64_t limits;
    int is_held; /**< suspended */
} sl_pins_t;

/** Whose order it is, by its token. */
int sl_pins_is_written_by(const sl_control_order_t *order, const char *writer);

/** What is by hand in `order` to `job`. */
void sl_pins_read(const sl_control_order_t *order, const sl_control_job_t *job,
                  sl_pins_t *pins);

/** The token that says so. */
void sl_pins_token(const sl_pins_t *pins, const char *writer, char token[64]);

/** Shares by hand hold when the order has expired; others do not. */
void sl_pins_keep(const sl_pins_t *pins, const sl_control_job_t *job,
                  sl_control_order_t *order);

/** The order's gate of that name; NULL when it says nothing about it. */
const sl_control_gate_t *sl_pins_gate(const sl_control_order_t *order,
                                      const char *name);

#endif /* SL_SCHEDULER_COORDINATOR_PINS_H */
