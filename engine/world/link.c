/* SPDX-License-Identifier: Apache-2.0 */
/* What links have in common. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/world/world_internal.h"

void sl_waker_init(sl_waker_t *waker)
{
    pthread_condattr_t attributes;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&waker->lock, NULL);
    (void)pthread_cond_init(&waker->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    waker->has_news = 0;
}

void sl_waker_cleanup(sl_waker_t *waker)
{
    (void)pthread_cond_destroy(&waker->changed);
    (void)pthread_mutex_destroy(&waker->lock);
}

void sl_waker_wake(sl_waker_t *waker)
{
    (void)pthread_mutex_lock(&waker->lock);
    waker->has_news = 1;
    (void)pthread_cond_signal(&waker->changed);
    (void)pthread_mutex_unlock(&waker->lock);
}

int sl_waker_wait(sl_waker_t *waker, uint64_t timeout_ns)
{
    const struct timespec deadline = sl_clock_deadline(timeout_ns);
    int has_news;

    (void)pthread_mutex_lock(&waker->lock);
    while (!waker->has_news &&
           pthread_cond_timedwait(&waker->changed, &waker->lock, &deadline) ==
               0) {
    }
    has_news = waker->has_news;
    waker->has_news = 0;
    (void)pthread_mutex_unlock(&waker->lock);
    return has_news;
}

void sl_link_host_name(char name[SL_WORLD_HOST_BYTES])
{
    const char *given = getenv("SLUICE_HOST");

    if (given != NULL && *given != '\0') {
        (void)snprintf(name, SL_WORLD_HOST_BYTES, "%s", given);
    } else if (gethostname(name, SL_WORLD_HOST_BYTES) != 0) {
        (void)snprintf(name, SL_WORLD_HOST_BYTES, "localhost");
    }
    name[SL_WORLD_HOST_BYTES - 1] = '\0';
}
