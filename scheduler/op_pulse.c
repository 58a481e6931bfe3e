/* SPDX-License-Identifier: Apache-2.0 */
/* The pulse and an op manager: a host's publishes, a guest's obeys. */
#include "base/clock.h"
#include "scheduler/op_manager_internal.h"

/* ---- the host ---- */

void sl_op_manager_mark(sl_op_manager_t *manager, uint32_t position)
{
    atomic_store_explicit(&manager->position, position, memory_order_relaxed);
}

void sl_op_manager_pulse_set(sl_op_manager_t *manager, sl_pulse_slot_t *slot)
{
    (void)pthread_mutex_lock(manager->lock);
    if (manager->pulse.slot != slot) {
        (void)sl_pulse_idle(&manager->pulse, 0, sl_clock_ns());
        manager->pulse.slot = slot;
        manager->pulse.is_learning = 0;
        (void)sl_pulse_idle(&manager->pulse, 0, sl_clock_ns());
        if (manager->is_asleep != SL_OP_IDLE) {
            sl_pulse_busy(&manager->pulse, sl_clock_ns());
        }
    }
    (void)pthread_mutex_unlock(manager->lock);
}

uint64_t sl_op_pulse_idle(sl_op_manager_t *manager)
{
    if (manager->pulse.slot == NULL) {
        return 0;
    }
    return sl_pulse_idle(
        &manager->pulse,
        atomic_load_explicit(&manager->position, memory_order_relaxed),
        sl_clock_ns());
}

void sl_op_pulse_busy(sl_op_manager_t *manager)
{
    if (manager->pulse.slot != NULL) {
        sl_pulse_busy(&manager->pulse, sl_clock_ns());
    }
}

/* ---- the guest ---- */

void sl_op_manager_yield_set(sl_op_manager_t *manager, sl_yield_set_t *take_set,
                             double floor)
{
    sl_yield_set_t *before;

    (void)pthread_mutex_lock(manager->lock);
    before = manager->yield;
    manager->yield = take_set;
    manager->yield_floor = floor;
    atomic_store_explicit(
        &manager->yield_version,
        atomic_load_explicit(&manager->yield_version, memory_order_relaxed) + 1,
        memory_order_release);
    atomic_store_explicit(&manager->is_yielding,
                          take_set != NULL && !manager->is_stopping,
                          memory_order_release);
    (void)pthread_mutex_unlock(manager->lock);
    sl_yield_set_release(before);
}

static int is_yielding(const sl_op_manager_t *manager)
{
    return atomic_load_explicit(&manager->is_yielding, memory_order_acquire);
}

/* The set may be replaced at any time: the device's thread has a reference of
 * its own, renewed when the version moves. */
static const sl_yield_set_t *set_in_force(sl_op_manager_t *manager)
{
    sl_yield_set_t *before = NULL;

    if (atomic_load_explicit(&manager->yield_version, memory_order_acquire) !=
        manager->own_yield_version) {
        const uint64_t paid_ns = manager->yield_law.paid_ns;
        const uint64_t enter_ns = manager->yield_law.enter_ns;

        (void)pthread_mutex_lock(manager->lock);
        before = manager->own_yield;
        manager->own_yield = sl_yield_set_share(manager->yield);
        manager->own_yield_version =
            atomic_load_explicit(&manager->yield_version, memory_order_relaxed);
        sl_yield_init(&manager->yield_law, manager->yield_floor);
        (void)pthread_mutex_unlock(manager->lock);
        manager->yield_law.paid_ns = paid_ns;
        manager->yield_law.enter_ns = enter_ns;
    }
    sl_yield_set_release(before);
    return manager->own_yield;
}

/* @return time to wait, and for which slot; 0 = the op may start */
static uint64_t look(sl_op_manager_t *manager, uint64_t cost_ns,
                     uint64_t now_ns, const sl_pulse_slot_t **slot_p,
                     uint32_t *n_idles_p)
{
    const sl_yield_set_t *set = set_in_force(manager);
    sl_pulse_reading_t readings[SL_PULSE_MAX_HOSTS];
    const int n = set == NULL ? 0 : set->n;
    int i;

    *slot_p = NULL;
    for (i = 0; i < n; i++) {
        const uint32_t n_idles =
            atomic_load_explicit(&set->slots[i]->n_idles, memory_order_acquire);

        sl_pulse_read(set->slots[i], &readings[i]);
        if (*slot_p == NULL && !sl_pulse_fits(&readings[i], cost_ns, now_ns)) {
            *slot_p = set->slots[i];
            *n_idles_p = n_idles; /* read before: no change is missed */
        }
    }
    return sl_yield_wait_ns(&manager->yield_law, readings, n, cost_ns, now_ns);
}

int sl_op_yield_enter(sl_op_manager_t *manager, uint64_t cost_ns)
{
    const sl_pulse_slot_t *slot;
    uint64_t now_ns = sl_clock_ns();
    uint32_t n_idles = 0;
    uint64_t wait_ns;

    sl_yield_enter(&manager->yield_law, now_ns);
    wait_ns = look(manager, cost_ns, now_ns, &slot, &n_idles);
    if (wait_ns == 0) {
        return 1;
    }
    sl_meter_start(&manager->throttled, now_ns);
    while (wait_ns > 0 && is_yielding(manager) &&
           atomic_load_explicit(&manager->failure, memory_order_relaxed) ==
               SL_OK) {
        sl_pulse_sleep(slot, n_idles, wait_ns);
        now_ns = sl_clock_ns();
        wait_ns = look(manager, cost_ns, now_ns, &slot, &n_idles);
    }
    sl_meter_stop(&manager->throttled, now_ns);
    return atomic_load_explicit(&manager->failure, memory_order_relaxed) ==
           SL_OK;
}

void sl_op_yield_leave(sl_op_manager_t *manager, uint64_t busy_ns,
                       uint64_t now_ns)
{
    sl_yield_leave(&manager->yield_law, busy_ns, now_ns);
}
