/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for changes of named files. */
#include "scheduler/control/watcher.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/log.h"

enum {
    EVENT_BYTES = 4096
};

sl_status_t sl_watcher_open(sl_watcher_t *watcher)
{
    sl_status_t status = SL_OK;

    int i;

    memset(watcher, 0, sizeof(*watcher));
    for (i = 0; i < SL_WATCHER_MAX_FILES; i++) {
        watcher->files[i].watch = -1;
    }
    watcher->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    watcher->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (watcher->wake_fd < 0) {
        const int cause = errno;

        sl_watcher_close(watcher);
        SL_REFUSE(status, SL_ERR_DEVICE, out, "no event descriptor: %s",
                  strerror(cause));
    }
    if (watcher->inotify_fd < 0) {
        sl_debug("no inotify (%s): files are polled", strerror(errno));
    }
out:
    return status;
}

void sl_watcher_close(sl_watcher_t *watcher)
{
    if (watcher->inotify_fd >= 0) {
        (void)close(watcher->inotify_fd);
    }
    if (watcher->wake_fd >= 0) {
        (void)close(watcher->wake_fd);
    }
    watcher->inotify_fd = watcher->wake_fd = -1;
}

void sl_watcher_add(sl_watcher_t *watcher, int which, const char *dir,
                    const char *name)
{
    watcher->files[which].name = name;
    if (watcher->inotify_fd >= 0) {
        watcher->files[which].watch =
            inotify_add_watch(watcher->inotify_fd, dir,
                              IN_CLOSE_WRITE | IN_MOVED_TO | IN_ONLYDIR);
    }
    if (watcher->files[which].watch < 0) {
        sl_debug("cannot watch %s (%s): it is polled", dir, strerror(errno));
    }
}

static unsigned match(const sl_watcher_t *watcher,
                      const struct inotify_event *event)
{
    unsigned mask = 0;
    int i;

    for (i = 0; i < SL_WATCHER_MAX_FILES; i++) {
        if ((event->mask & IN_Q_OVERFLOW) != 0 ||
            (watcher->files[i].watch >= 0 &&
             event->wd == watcher->files[i].watch && event->len > 0 &&
             strcmp(event->name, watcher->files[i].name) == 0)) {
            mask |= 1U << i;
        }
    }
    return mask;
}

static unsigned read_events(const sl_watcher_t *watcher)
{
    _Alignas(struct inotify_event) char buffer[EVENT_BYTES];
    unsigned mask = 0;
    ssize_t n;

    while ((n = read(watcher->inotify_fd, buffer, sizeof(buffer))) > 0) {
        const char *at = buffer;

        while (at < buffer + n) {
            const struct inotify_event *event = (const void *)at;

            mask |= match(watcher, event);
            at += sizeof(*event) + event->len;
        }
    }
    return mask;
}

unsigned sl_watcher_wait(sl_watcher_t *watcher, uint64_t timeout_ms)
{
    struct pollfd fds[2] = {{.fd = watcher->wake_fd, .events = POLLIN},
                            {.fd = watcher->inotify_fd, .events = POLLIN}};
    const int timeout = timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms;
    uint64_t count;

    (void)poll(fds, 2, timeout); /* a negative descriptor is skipped */
    (void)!read(watcher->wake_fd, &count, sizeof(count));
    return watcher->inotify_fd >= 0 ? read_events(watcher) : 0;
}

void sl_watcher_wake(sl_watcher_t *watcher)
{
    const uint64_t one = 1;

    (void)!write(watcher->wake_fd, &one, sizeof(one));
}
