/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an op manager's statistics while it runs. */
#include <string.h>

#include "base/clock.h"
#include "scheduler/op_manager_internal.h"

enum {
    TRIES_MAX = 64 /* then a reading a few ops out of step is good enough */
};

/* The meters at one instant: read again when one moved meanwhile. */
static void read_meters(const sl_op_manager_t *manager, sl_op_stats_t *stats)
{
    uint64_t busy;
    uint64_t throttled;
    uint64_t now_ns;
    int i = 0;

    do {
        busy = atomic_load(&manager->busy);
        throttled = atomic_load(&manager->throttled);
        now_ns = sl_clock_ns();
        i++;
    } while (i < TRIES_MAX && (busy != atomic_load(&manager->busy) ||
                               throttled != atomic_load(&manager->throttled)));
    stats->elapsed_ns = now_ns - manager->created_ns;
    stats->busy_ns = sl_meter_total(busy, now_ns);
    stats->throttled_ns = sl_meter_total(throttled, now_ns);
    if (manager->stream != NULL) {
        (void)pthread_mutex_lock(manager->lock);
        stats->busy_ns = sl_op_stream_show(manager->stream, stats->busy_ns);
        (void)pthread_mutex_unlock(manager->lock);
    }
    if (stats->elapsed_ns > stats->busy_ns + stats->throttled_ns) {
        stats->waiting_ns =
            stats->elapsed_ns - stats->busy_ns - stats->throttled_ns;
    }
}

void sl_op_manager_stats(const sl_op_manager_t *manager, sl_op_stats_t *stats_p)
{
    memset(stats_p, 0, sizeof(*stats_p));
    stats_p->n_submitted =
        atomic_load_explicit(&manager->n_submitted, memory_order_relaxed);
    stats_p->n_run =
        atomic_load_explicit(&manager->n_run, memory_order_relaxed);
    stats_p->n_skipped =
        atomic_load_explicit(&manager->n_skipped, memory_order_relaxed);
    stats_p->charged_ns =
        atomic_load_explicit(&manager->charged_ns, memory_order_relaxed);
    read_meters(manager, stats_p);
    stats_p->share_percent = sl_op_manager_share_get(manager, NULL);
}

size_t sl_op_manager_name_stats(const sl_op_manager_t *manager,
                                sl_op_name_stats_t *stats, size_t n_max)
{
    size_t n;
    size_t i;

    (void)pthread_mutex_lock(manager->lock);
    n = sl_op_names_count(manager->names);
    for (i = 0; i < n && i < n_max; i++) {
        sl_op_names_stats(manager->names, (uint32_t)i, &stats[i]);
    }
    (void)pthread_mutex_unlock(manager->lock);
    return n;
}

void sl_op_manager_name_stats_reset(sl_op_manager_t *manager)
{
    (void)pthread_mutex_lock(manager->lock);
    sl_op_names_reset(manager->names);
    (void)pthread_mutex_unlock(manager->lock);
}
