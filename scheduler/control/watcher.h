/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file watcher.h
 * Waits for changes of named files. The kernel tells when it can; whoever
 * waits looks at the files now and then all the same.
 */
#ifndef SL_SCHEDULER_CONTROL_WATCHER_H
#define SL_SCHEDULER_CONTROL_WATCHER_H

#include <stdint.h>

#include "base/status.h"

/** The files a job is steered by. */
enum {
    SL_WATCHED_CONTROL,
    SL_WATCHED_ANTMAN,
    SL_WATCHER_MAX_FILES
};

typedef struct sl_watcher {
    int inotify_fd; /**< -1 = none: only the time-out ends a wait */
    int wake_fd;
    struct {
        int watch;        /**< of its directory; -1 = none */
        const char *name; /**< borrowed; NULL = none */
    } files[SL_WATCHER_MAX_FILES];
} sl_watcher_t;

/** @return SL_OK, SL_ERR_DEVICE (no descriptor left) */
SL_NODISCARD sl_status_t sl_watcher_open(sl_watcher_t *watcher);
void sl_watcher_close(sl_watcher_t *watcher);

/** Look out for file `name` (borrowed) of a directory: written and closed, or
 *  renamed to that name. A directory that cannot be watched is polled.
 *  @param which SL_WATCHED_... */
void sl_watcher_add(sl_watcher_t *watcher, int which, const char *dir,
                    const char *name);

/** Wait for a change, a wake or the time-out.
 *  @return a bit mask of the files that changed, 1 << SL_WATCHED_... */
unsigned sl_watcher_wait(sl_watcher_t *watcher, uint64_t timeout_ms);

/** End a wait; from any thread. */
void sl_watcher_wake(sl_watcher_t *watcher);

#endif /* SL_SCHEDULER_CONTROL_WATCHER_H */
