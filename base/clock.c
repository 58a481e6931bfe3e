/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. */
#include "base/clock.h"

#define NS_PER_S UINT64_C(1000000000)
#define MAX_NS ((uint64_t)INT64_MAX)

uint64_t sl_clock_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

struct timespec sl_clock_deadline(uint64_t timeout_ns)
{
    const uint64_t now_ns = sl_clock_ns();
    /* a timeout that means "for ever" must not wrap to the past */
    const uint64_t at_ns =
        timeout_ns > MAX_NS - now_ns ? MAX_NS : now_ns + timeout_ns;
    struct timespec deadline;

    deadline.tv_sec = (time_t)(at_ns / NS_PER_S);
    deadline.tv_nsec = (long)(at_ns % NS_PER_S);
    return deadline;
}
