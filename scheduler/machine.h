/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file machine.h
 * What the system lends this process, private to scheduler/: cores, memory,
 * and the few calls about threads that POSIX lacks.
 */
#ifndef SL_SCHEDULER_MACHINE_H
#define SL_SCHEDULER_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/** Cores' worth of time that the control group grants; 0 = not limited. */
int sl_machine_cpu_quota(void);

/** Memory that can be had now: what is available, or less when the control
 *  group (or one above it) has a limit. */
size_t sl_machine_memory_bytes(void);

/** Bind the calling thread (and threads it will make) to cores.
 *  @return 0, or an errno */
int sl_machine_bind_self(const int *cores, int n_cores);

/** How the system schedules a thread, as far as it is used here. */
typedef struct sl_machine_sched {
    int policy;        /**< SCHED_OTHER, ... */
    uint64_t slice_ns; /**< time until others get their turn; 0 = the system
                            has no such figure for a thread */
} sl_machine_sched_t;

/** Of a thread by its number; 0 = the calling one.
 *  @return 0, or an errno (ENOSYS where the system has no such call) */
int sl_machine_sched_get(int thread, sl_machine_sched_t *sched);

/** Change a thread's policy and slice and nothing else; a slice of 0 stays as
 *  it is. @return 0, or an errno */
int sl_machine_sched_set(int thread, const sl_machine_sched_t *sched);

/** Whether such a thread runs only where a core would be idle. */
int sl_machine_sched_is_background(const sl_machine_sched_t *sched);

/** Name the calling thread, as debuggers and top show it. */
void sl_machine_name_self(const char *name);

#endif /* SL_SCHEDULER_MACHINE_H */
