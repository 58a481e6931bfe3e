/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lease.h
 * Who lives is told by a lock, which the system releases at any kind of
 * death. Process numbers are not trusted: they are reused, and differ between
 * containers.
 */
#ifndef SL_SCHEDULER_CONTROL_LEASE_H
#define SL_SCHEDULER_CONTROL_LEASE_H

#include "base/status.h"

typedef enum sl_lease_state {
    SL_LEASE_HELD,
    SL_LEASE_FREE,   /**< a lock file that nobody holds */
    SL_LEASE_ABSENT, /**< no lock file (or nothing that can be one) */
} sl_lease_state_t;

/** Make the lock file when absent and hold it; *fd_p is closed to let go.
 *  @return SL_OK; SL_ERR_CANCELED (somebody holds it); SL_ERR_IO */
SL_NODISCARD sl_status_t sl_lease_take(int dir_fd, const char *name, int *fd_p);

/** Look without taking. */
sl_lease_state_t sl_lease_look(int dir_fd, const char *name);

#endif /* SL_SCHEDULER_CONTROL_LEASE_H */
