/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file clock.h
 * Monotonic time. Never the wall clock: a clock jump must be harmless.
 */
#ifndef SL_BASE_CLOCK_H
#define SL_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "base/status.h"

SL_BEGIN_DECLS

/** Nanoseconds of CLOCK_MONOTONIC. */
SL_API uint64_t sl_clock_ns(void);

/**
 * The instant `timeout_ns` from now as a timespec of CLOCK_MONOTONIC, for
 * pthread_cond_timedwait on a condition made with that clock.
 */
SL_API struct timespec sl_clock_deadline(uint64_t timeout_ns);

SL_END_DECLS
#endif /* SL_BASE_CLOCK_H */
