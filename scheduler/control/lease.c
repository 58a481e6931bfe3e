/* SPDX-License-Identifier: Apache-2.0 */
/* Leases on lock files. */
#include "scheduler/control/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const int OPEN_FLAGS =
    O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;

/* Whoever looks holds the lock for a moment: that is not a holder. */
static int lock_patiently(int fd)
{
    enum {
        N_TRIES = 10
    };
    const struct timespec nap = {.tv_nsec = 2000000};
    int failed = flock(fd, LOCK_EX | LOCK_NB);
    int i;

    for (i = 1; failed != 0 && errno == EWOULDBLOCK && i < N_TRIES; i++) {
        (void)nanosleep(&nap, NULL);
        failed = flock(fd, LOCK_EX | LOCK_NB);
    }
    return failed;
}

sl_status_t sl_lease_take(int dir_fd, const char *name, int *fd_p)
{
    const int fd = openat(dir_fd, name, OPEN_FLAGS | O_CREAT, 0600);
    struct stat info;
    sl_status_t status;

    if (fd < 0) {
        SL_REFUSE(status, SL_ERR_IO, out, "cannot open the lock %s: %s", name,
                  strerror(errno));
    }
    if (lock_patiently(fd) != 0) {
        const int is_held = errno == EWOULDBLOCK;

        SL_REFUSE(status, is_held ? SL_ERR_CANCELED : SL_ERR_IO, err_close,
                  "cannot lock %s: %s", name,
                  is_held ? "another process holds it" : strerror(errno));
    }
    /* whoever cleans up may have removed it between the two calls */
    if (fstat(fd, &info) != 0 || info.st_nlink == 0 || !S_ISREG(info.st_mode)) {
        SL_REFUSE(status, SL_ERR_CANCELED, err_close,
                  "the lock %s was removed, or is no regular file", name);
    }
    *fd_p = fd;
    return SL_OK;

err_close:
    (void)close(fd);
out:
    return status;
}

sl_lease_state_t sl_lease_look(int dir_fd, const char *name)
{
    const int fd = openat(dir_fd, name, OPEN_FLAGS);
    sl_lease_state_t state = SL_LEASE_FREE;

    if (fd < 0) {
        return SL_LEASE_ABSENT;
    }
    /* shared, so that two who look do not see each other */
    if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        state = SL_LEASE_HELD;
    }
    (void)close(fd);
    return state;
}
