/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of an op manager: share, suspension, cancel.
 *
 * At 100 percent the device's thread reads one flag for each op and nothing
 * here runs. Below, the share's state is kept under the manager's lock, and
 * a throttled thread sleeps on a condition: whatever changes wakes it. A late
 * wake-up is time that flowed into the bucket, so it costs no accuracy. */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "scheduler/op_manager_internal.h"

/* CPU time of the calling thread. Read only below 100 percent: it is a system
 * call, about 20 times dearer than the clock. */
static uint64_t cpu_clock_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static int is_failed(const sl_op_manager_t *manager)
{
    return atomic_load_explicit(&manager->failure, memory_order_relaxed) !=
           SL_OK;
}

/* ---- the device's thread ---- */

double sl_op_gate_expected_ns(const sl_op_manager_t *manager,
                              const sl_op_slot_t *slot)
{
    if (slot->cost_us > 0.0) {
        return fmin(slot->cost_us * 1e3, SL_SHARE_DEBT_NS);
    }
    return (double)sl_op_names_mean_ns(manager->names, slot->name_id);
}

/* Sleep until the gate opens, the manager ends or is canceled; lock held. */
static void await_share(sl_op_manager_t *manager, double expected,
                        uint64_t now_ns, uint64_t wait_ns)
{
    sl_meter_start(&manager->throttled, now_ns);
    manager->cpu_ns = 0;
    if (manager->pulse.slot != NULL) {
        (void)sl_pulse_idle(&manager->pulse, 0, now_ns);
    }
    while (wait_ns > 0 && !manager->is_stopping && !is_failed(manager)) {
        if (wait_ns == SL_SHARE_SUSPENDED) {
            (void)pthread_cond_wait(&manager->gate, manager->lock);
        } else {
            const struct timespec deadline = sl_clock_deadline(wait_ns);

            (void)pthread_cond_timedwait(&manager->gate, manager->lock,
                                         &deadline);
        }
        now_ns = sl_clock_ns();
        wait_ns = sl_share_wait_ns(&manager->share, expected, now_ns);
    }
    sl_op_pulse_busy(manager);
    sl_meter_stop(&manager->throttled, now_ns);
}

int sl_op_gate_pass(sl_op_manager_t *manager, double expected_ns, int may_wait)
{
    const uint64_t now_ns = sl_clock_ns();
    int state = SL_GATE_CANCELED;
    uint64_t wait_ns;

    (void)pthread_mutex_lock(manager->lock);
    wait_ns = sl_share_wait_ns(&manager->share, expected_ns, now_ns);
    if (!may_wait && !manager->is_stopping &&
        (wait_ns > 0 || manager->share.law == SL_SHARE_ANTMAN)) {
        state = SL_GATE_SHUT;
    } else {
        if (wait_ns > 0) {
            await_share(manager, expected_ns, now_ns, wait_ns);
        }
        if (!is_failed(manager)) {
            sl_share_start(&manager->share, expected_ns, manager->share.at_ns);
            state = SL_GATE_OPEN;
        }
    }
    (void)pthread_mutex_unlock(manager->lock);
    return state;
}

void sl_op_gate_settle(sl_op_manager_t *manager, double expected_ns,
                       uint64_t used_ns, uint64_t now_ns)
{
    (void)pthread_mutex_lock(manager->lock);
    sl_share_settle(&manager->share, expected_ns, (double)used_ns, now_ns);
    (void)pthread_mutex_unlock(manager->lock);
}

int sl_op_gate_enter(sl_op_manager_t *manager, const sl_op_slot_t *slot)
{
    const double expected_ns = sl_op_gate_expected_ns(manager, slot);
    const int is_entered =
        sl_op_gate_pass(manager, expected_ns, 1) == SL_GATE_OPEN;

    /* back to back with the op before, its end is this one's start: one
     * reading an op, and the manager's own work is charged too */
    if (is_entered && manager->n_threads == 1 && manager->cpu_ns == 0) {
        manager->cpu_ns = cpu_clock_ns();
    }
    return is_entered;
}

uint64_t sl_op_gate_leave(sl_op_manager_t *manager, uint64_t busy_ns,
                          uint64_t now_ns)
{
    uint64_t used_ns = busy_ns;

    if (manager->n_threads == 1) {
        const uint64_t cpu_ns = cpu_clock_ns();

        used_ns = cpu_ns - manager->cpu_ns;
        manager->cpu_ns = cpu_ns;
    }
    (void)pthread_mutex_lock(manager->lock);
    sl_share_finish(&manager->share, (double)used_ns, now_ns);
    (void)pthread_mutex_unlock(manager->lock);
    return used_ns;
}

/* ---- any thread ---- */

sl_status_t sl_op_manager_share_set(sl_op_manager_t *manager, double percent,
                                    sl_share_law_t law)
{
    sl_status_t status = SL_OK;

    if (manager == NULL || !(percent >= 0.0 && percent <= 100.0) ||
        (law != SL_SHARE_TOKEN_BUCKET && law != SL_SHARE_ANTMAN)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: share of %g percent by law %d; 0 to 100 and laws 0 to %d "
                "are allowed",
                manager == NULL ? "no op manager" : manager->name, percent,
                (int)law, (int)SL_SHARE_N_LAWS - 1);
    }
    (void)pthread_mutex_lock(manager->lock);
    sl_share_set(&manager->share, percent, law, sl_clock_ns());
    atomic_store_explicit(&manager->is_gated, percent < 100.0,
                          memory_order_relaxed);
    (void)pthread_cond_broadcast(&manager->gate);
    (void)pthread_mutex_unlock(manager->lock);
out:
    return status;
}

double sl_op_manager_share_get(const sl_op_manager_t *manager,
                               sl_share_law_t *law_p)
{
    double percent;

    (void)pthread_mutex_lock(manager->lock);
    percent = manager->share.percent;
    if (law_p != NULL) {
        *law_p = manager->share.law;
    }
    (void)pthread_mutex_unlock(manager->lock);
    return percent;
}

void sl_op_manager_boundary(sl_op_manager_t *manager, double step_us)
{
    if (atomic_load_explicit(&manager->is_gated, memory_order_relaxed)) {
        (void)pthread_mutex_lock(manager->lock);
        sl_share_boundary(&manager->share, step_us * 1e3, sl_clock_ns());
        (void)pthread_mutex_unlock(manager->lock);
    }
}

void sl_op_manager_cancel(sl_op_manager_t *manager)
{
    char before[SL_OP_DETAIL_BYTES];

    (void)snprintf(before, sizeof(before), "%s", sl_last_error());
    (void)pthread_mutex_lock(manager->lock);
    if (!is_failed(manager)) {
        (void)snprintf(manager->detail, sizeof(manager->detail),
                       "%s: canceled, what was queued is dropped",
                       manager->name);
        sl_op_manager_fail_locked(manager, SL_ERR_CANCELED);
        (void)pthread_cond_broadcast(&manager->gate);
    }
    (void)pthread_mutex_unlock(manager->lock);
    sl_last_error_set(before); /* the caller's reason to cancel */
}
