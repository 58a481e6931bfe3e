/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file priority.h
 * Whether the system runs a job's threads only where a core would be idle.
 *
 * A share says how much a guest takes; on CPU devices it is this that says
 * when: in the gaps that a guarantee job leaves.
 */
#ifndef SL_SCHEDULER_COORDINATOR_PRIORITY_H
#define SL_SCHEDULER_COORDINATOR_PRIORITY_H

#include "scheduler/control.h"

/**
 * Move all threads of a job's process into the background or out of it. To
 * be called again now and then, for new threads. Processes are found by their
 * number and start, and left alone when they are not the job's. A thread that
 * is where it shall be keeps its policy.
 *
 * @return SL_OK, also when the process is not to be seen from here;
 *         SL_ERR_UNSUPPORTED when the system refuses (raising needs a
 *         privilege); not logged
 */
SL_NODISCARD sl_status_t sl_priority_set(const sl_control_job_t *job,
                                         int is_background);

#endif /* SL_SCHEDULER_COORDINATOR_PRIORITY_H */
