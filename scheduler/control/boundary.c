/* SPDX-License-Identifier: Apache-2.0 */
/* The train loop's side: admission, and the end of each mini-batch. */
#include "base/clock.h"
#include "scheduler/control/control_internal.h"

static const uint64_t HOLD_NS = 50000000;          /* between two looks */
static const uint64_t FIRST_ORDER_NS = 2000000000; /* a coordinator's time */
/* For one that is being started together with the job. */
static const uint64_t COORDINATOR_NS = 200000000;

/* With the lock held. It may be let go in between. */
static void wait_for_change(sl_control_t *control)
{
    const struct timespec deadline = sl_clock_deadline(HOLD_NS);

    (void)pthread_cond_timedwait(&control->changed, &control->lock, &deadline);
}

/* With the lock held. */
static void take_statistics(sl_control_t *control)
{
    int d;

    for (d = 0; d < control->n_devices; d++) {
        sl_gate_t *gate = &control->gates[d];

        sl_mem_stats(control->params.devices->devices[d].mem, &gate->mem);
        if (gate->mem.host_used_bytes > gate->max_host_peak_bytes) {
            gate->max_host_peak_bytes = gate->mem.host_used_bytes;
        }
    }
    control->is_due = 0;
    control->is_news = 1;
}

/* Give the new limits to the allocators, then acknowledge. The lock is let go
 * meanwhile: blocks may move, and our thread must hear of new shares. No op
 * is in flight, so this is a boundary for the allocators too. */
static void take_orders(sl_control_t *control)
{
    uint64_t limits[SL_CONTROL_MAX_DEVICES] = {0};
    const uint64_t n_orders = control->n_orders;
    const uint64_t sequence = control->accepted_sequence;
    int d;

    for (d = 0; d < control->n_devices; d++) {
        if (control->gates[d].is_limit_new) {
            limits[d] = control->gates[d].limit_bytes;
            control->gates[d].is_limit_new = 0;
        }
    }
    (void)pthread_mutex_unlock(&control->lock);
    for (d = 0; d < control->n_devices; d++) {
        if (limits[d] > 0) {
            sl_mem_t *mem = control->params.devices->devices[d].mem;

            sl_mem_limit_request(mem, (size_t)limits[d]);
            sl_mem_boundary(mem, NULL);
        }
    }
    (void)pthread_mutex_lock(&control->lock);
    control->n_taken = n_orders;
    control->applied_sequence = sequence;
    control->applied_ns = sl_control_now(control);
    control->applied_step = control->step;
    sl_control_refresh(control); /* a suspension may have waited for this */
    take_statistics(control);
    control->is_urgent = 1;
    sl_watcher_wake(&control->watcher);
}

/* With the lock held: until the job may go on. */
static void hold(sl_control_t *control)
{
    int was_held = 0;

    control->is_holding = 1;
    while (sl_control_is_held(control) && !control->is_closing &&
           !sl_control_is_interrupted(control) &&
           control->action != SL_CONTROL_ACTION_STOP) {
        if (!was_held) {
            was_held = 1;
            take_statistics(control);
            control->is_urgent = 1;
            sl_watcher_wake(&control->watcher);
        }
        wait_for_change(control);
        if (control->n_taken != control->n_orders) {
            take_orders(control);
        }
    }
    control->is_holding = 0;
    if (was_held) {
        control->is_urgent = 1;
        sl_watcher_wake(&control->watcher);
    }
}

/* With the lock held. Who has a class counts on a coordinator: it gets a
 * moment to come, as long as the job has no memory. */
static int find_coordinator(sl_control_t *control, uint64_t start_ns)
{
    int is_there;

    if (control->dir == NULL) {
        return 0;
    }
    while (!(is_there = sl_run_dir_has_coordinator(control->dir)) &&
           control->job_class != SL_JOB_CLASS_NONE && control->n_orders == 0 &&
           !sl_control_is_interrupted(control) &&
           sl_clock_ns() - start_ns < COORDINATOR_NS) {
        wait_for_change(control);
    }
    return is_there;
}

int sl_control_admit(sl_control_t *control)
{
    const uint64_t start_ns = sl_clock_ns();
    int is_over;

    if (control == NULL) {
        return 0;
    }
    (void)pthread_mutex_lock(&control->lock);
    control->is_admitting = 1;
    control->is_urgent = 1;
    sl_watcher_wake(&control->watcher);
    if (find_coordinator(control, start_ns)) {
        while (control->n_orders == 0 && !sl_control_is_interrupted(control) &&
               sl_clock_ns() - start_ns < FIRST_ORDER_NS) {
            wait_for_change(control);
        }
    }
    hold(control);
    if (control->n_taken != control->n_orders) {
        take_orders(control);
    }
    control->is_admitting = 0;
    control->is_urgent = 1;
    is_over = control->action == SL_CONTROL_ACTION_STOP ||
              sl_control_is_interrupted(control);
    sl_watcher_wake(&control->watcher);
    (void)pthread_mutex_unlock(&control->lock);
    return is_over;
}

/* With the lock held. */
static void record(sl_control_t *control, const sl_control_step_t *step)
{
    int d;

    control->step = step->step;
    control->boundary_ns = sl_control_now(control);
    sl_minibatch_add(&control->minibatch, step->step_us, step->n_units);
    for (d = 0; d < control->n_devices && step->peak_bytes != NULL; d++) {
        sl_gate_t *gate = &control->gates[d];

        gate->peak_bytes = step->peak_bytes[d];
        if (gate->peak_bytes > gate->max_peak_bytes) {
            gate->max_peak_bytes = gate->peak_bytes;
        }
    }
    control->is_news = 1;
}

/* AntMan's law counts from boundary to boundary, what lies between two
 * mini-batches included. */
static void tell_boundary(sl_control_t *control, double step_us)
{
    const uint64_t now_ns = sl_clock_ns();
    int d;

    if (control->told_ns != 0) {
        step_us = (double)(now_ns - control->told_ns) * 1e-3;
    }
    control->told_ns = now_ns;
    for (d = 0; d < control->n_devices; d++) {
        sl_op_manager_boundary(control->params.devices->devices[d].ops,
                               step_us);
    }
}

/* With the lock held: what an order asks for. @return whether it says stop */
static int obey(sl_control_t *control)
{
    if (control->n_taken != control->n_orders) {
        take_orders(control);
    } else if (control->is_due) {
        take_statistics(control);
    }
    hold(control);
    return control->action == SL_CONTROL_ACTION_STOP;
}

int sl_control_pause(sl_control_t *control)
{
    int is_over;

    if (control == NULL) {
        return 0;
    }
    (void)pthread_mutex_lock(&control->lock);
    is_over = obey(control);
    (void)pthread_mutex_unlock(&control->lock);
    return is_over;
}

int sl_control_boundary(sl_control_t *control, const sl_control_step_t *step)
{
    int is_over;

    if (control == NULL) {
        return 0;
    }
    if (control->params.share_law == SL_SHARE_ANTMAN) {
        tell_boundary(control, step->step_us);
    }
    (void)pthread_mutex_lock(&control->lock);
    record(control, step);
    is_over = obey(control);
    (void)pthread_mutex_unlock(&control->lock);
    return is_over;
}

int sl_control_await_order(sl_control_t *control)
{
    int is_over;

    if (control == NULL || control->dir == NULL) {
        return 1;
    }
    (void)pthread_mutex_lock(&control->lock);
    control->is_holding = control->is_short = 1;
    control->is_urgent = 1;
    sl_watcher_wake(&control->watcher);
    while (control->n_taken == control->n_orders && !control->is_closing &&
           !sl_control_is_interrupted(control) &&
           control->action != SL_CONTROL_ACTION_STOP) {
        wait_for_change(control);
    }
    if (control->n_taken != control->n_orders) {
        take_orders(control);
    }
    control->is_holding = control->is_short = 0;
    control->is_urgent = 1;
    is_over = control->is_closing || sl_control_is_interrupted(control) ||
              control->action == SL_CONTROL_ACTION_STOP;
    sl_watcher_wake(&control->watcher);
    (void)pthread_mutex_unlock(&control->lock);
    return is_over;
}
