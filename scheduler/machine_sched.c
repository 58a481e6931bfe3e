/* SPDX-License-Identifier: Apache-2.0 */
/* How the system schedules a thread. The calls are Linux's own. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall, SCHED_IDLE */
#endif
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scheduler/machine.h"

#if defined(__linux__) && defined(SYS_sched_setattr)

/* As the system call reads it (version 0); the C library has no name for
 * it. */
typedef struct sched_call {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} sched_call_t;

static int sched_read(int thread, sched_call_t *call)
{
    memset(call, 0, sizeof(*call));
    return syscall(SYS_sched_getattr, thread, call, sizeof(*call), 0U) == 0
               ? 0
               : errno;
}

int sl_machine_sched_get(int thread, sl_machine_sched_t *sched)
{
    sched_call_t call;
    const int error = sched_read(thread, &call);

    if (error == 0) {
        sched->policy = (int)call.policy;
        sched->slice_ns = call.runtime;
    }
    return error;
}

int sl_machine_sched_set(int thread, const sl_machine_sched_t *sched)
{
    const uint64_t reset_on_fork = 1;
    sched_call_t call;
    const int error = sched_read(thread, &call);

    if (error != 0) {
        return error;
    }
    call.size = sizeof(call);
    call.flags &= reset_on_fork; /* what else is told is not to be told back */
    call.policy = (uint32_t)sched->policy;
    if (sched->slice_ns > 0) {
        call.runtime = sched->slice_ns;
    }
    return syscall(SYS_sched_setattr, thread, &call, 0U) == 0 ? 0 : errno;
}

#else

int sl_machine_sched_get(int thread, sl_machine_sched_t *sched)
{
    (void)thread;
    (void)sched;
    return ENOSYS;
}

int sl_machine_sched_set(int thread, const sl_machine_sched_t *sched)
{
    (void)thread;
    (void)sched;
    return ENOSYS;
}

#endif

int sl_machine_sched_is_background(const sl_machine_sched_t *sched)
{
#ifdef SCHED_IDLE
    return sched->policy == SCHED_IDLE;
#else
    (void)sched;
    return 0;
#endif
}
