/* SPDX-License-Identifier: Apache-2.0 */
/* Abort record, barrier and job gate of the executors. */
#include "engine/sync.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

void sl_abort_init(sl_abort_t *abort)
{
    pthread_condattr_t attr;

    memset(abort, 0, sizeof(*abort));
    (void)pthread_mutex_init(&abort->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&abort->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    atomic_init(&abort->is_set, 0);
}

void sl_abort_cleanup(sl_abort_t *abort)
{
    (void)pthread_cond_destroy(&abort->changed);
    (void)pthread_mutex_destroy(&abort->lock);
}

void sl_abort_reset(sl_abort_t *abort)
{
    (void)pthread_mutex_lock(&abort->lock);
    abort->status = SL_OK;
    abort->is_remote = 0;
    abort->detail[0] = '\0';
    atomic_store_explicit(&abort->is_set, 0, memory_order_release);
    (void)pthread_mutex_unlock(&abort->lock);
}

static void raise_first(sl_abort_t *abort, sl_status_t status,
                        const char *detail, int is_remote)
{
    (void)pthread_mutex_lock(&abort->lock);
    if (!atomic_load_explicit(&abort->is_set, memory_order_relaxed)) {
        abort->status = status;
        abort->is_remote = is_remote;
        (void)snprintf(abort->detail, sizeof(abort->detail), "%s", detail);
        atomic_store_explicit(&abort->is_set, 1, memory_order_release);
    }
    (void)pthread_cond_broadcast(&abort->changed);
    (void)pthread_mutex_unlock(&abort->lock);
}

void sl_abort_raise(sl_abort_t *abort, sl_status_t status)
{
    raise_first(abort, status, sl_last_error(), 0);
}

void sl_abort_raise_remote(sl_abort_t *abort, sl_status_t status,
                           const char *detail)
{
    raise_first(abort, status, detail, 1);
}

int sl_abort_is_remote(sl_abort_t *abort)
{
    int is_remote;

    (void)pthread_mutex_lock(&abort->lock);
    is_remote = abort->is_remote;
    (void)pthread_mutex_unlock(&abort->lock);
    return is_remote;
}

int sl_abort_await(sl_abort_t *abort, int ms)
{
    const struct timespec until =
        sl_clock_deadline((uint64_t)ms * UINT64_C(1000000));
    int is_over = 0;

    (void)pthread_mutex_lock(&abort->lock);
    while (!sl_abort_is_set(abort) && !is_over) {
        is_over =
            pthread_cond_timedwait(&abort->changed, &abort->lock, &until) != 0;
    }
    (void)pthread_mutex_unlock(&abort->lock);
    return sl_abort_is_set(abort);
}

sl_status_t sl_abort_status(sl_abort_t *abort)
{
    sl_status_t status = SL_OK;

    (void)pthread_mutex_lock(&abort->lock);
    if (atomic_load_explicit(&abort->is_set, memory_order_relaxed)) {
        status = abort->status;
        sl_last_error_set(abort->detail);
    }
    (void)pthread_mutex_unlock(&abort->lock);
    return status;
}

sl_status_t sl_barrier_wait(sl_barrier_t *barrier, sl_abort_t *abort)
{
    uint64_t generation;
    sl_status_t status = SL_OK;

    (void)pthread_mutex_lock(&abort->lock);
    generation = barrier->generation;
    if (++barrier->n_waiting == barrier->n) {
        barrier->n_waiting = 0;
        barrier->generation++;
        (void)pthread_cond_broadcast(&abort->changed);
    }
    while (barrier->generation == generation && !sl_abort_is_set(abort)) {
        (void)pthread_cond_wait(&abort->changed, &abort->lock);
    }
    if (barrier->generation == generation) {
        status = SL_ERR_CANCELED;
    }
    (void)pthread_mutex_unlock(&abort->lock);
    return status;
}

void sl_gate_init(sl_gate_t *gate)
{
    memset(gate, 0, sizeof(*gate));
    (void)pthread_mutex_init(&gate->lock, NULL);
    (void)pthread_cond_init(&gate->changed, NULL);
}

void sl_gate_cleanup(sl_gate_t *gate)
{
    (void)pthread_cond_destroy(&gate->changed);
    (void)pthread_mutex_destroy(&gate->lock);
}

void sl_gate_open(sl_gate_t *gate, int n)
{
    (void)pthread_mutex_lock(&gate->lock);
    gate->job++;
    gate->n_running = n;
    (void)pthread_cond_broadcast(&gate->changed);
    (void)pthread_mutex_unlock(&gate->lock);
}

void sl_gate_wait(sl_gate_t *gate)
{
    (void)pthread_mutex_lock(&gate->lock);
    while (gate->n_running > 0) {
        (void)pthread_cond_wait(&gate->changed, &gate->lock);
    }
    (void)pthread_mutex_unlock(&gate->lock);
}

void sl_gate_enter(sl_gate_t *gate, uint64_t *seen_p)
{
    (void)pthread_mutex_lock(&gate->lock);
    while (gate->job == *seen_p) {
        (void)pthread_cond_wait(&gate->changed, &gate->lock);
    }
    *seen_p = gate->job;
    (void)pthread_mutex_unlock(&gate->lock);
}

void sl_gate_leave(sl_gate_t *gate)
{
    (void)pthread_mutex_lock(&gate->lock);
    if (--gate->n_running == 0) {
        (void)pthread_cond_broadcast(&gate->changed);
    }
    (void)pthread_mutex_unlock(&gate->lock);
}
