/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file machine.h
 * What the system lends this process, private to scheduler/: cores, memory,
 * and the few calls about threads that POSIX lacks.
 */
#ifndef SL_SCHEDULER_MACHINE_H
#define SL_SCHEDULER_MACHINE_H

#include <stddef.h>

/** Cores' worth of time that the control group grants; 0 = not limited. */
int sl_machine_cpu_quota(void);

/** Memory that can be had now: what is available, or less when the control
 *  group (or one above it) has a limit. */
size_t sl_machine_memory_bytes(void);

/** Bind the calling thread (and threads it will make) to cores.
 *  @return 0, or an errno */
int sl_machine_bind_self(const int *cores, int n_cores);

/** Name the calling thread, as debuggers and top show it. */
void sl_machine_name_self(const char *name);

#endif /* SL_SCHEDULER_MACHINE_H */
