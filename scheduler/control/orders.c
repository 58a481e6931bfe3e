/* SPDX-License-Identifier: Apache-2.0 */
/* Orders: which one holds, and what follows from it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "scheduler/control/control_internal.h"

static const double FULL_SHARE = 100.0;

static int find_device(const sl_control_t *control, const char *name)
{
    int d;

    for (d = 0; d < control->n_devices; d++) {
        if (strcmp(control->job.devices[d].name, name) == 0) {
            return d;
        }
    }
    return -1;
}

static sl_status_t check_order(const sl_control_t *control,
                               const sl_control_order_t *order)
{
    sl_status_t status = SL_OK;
    int g;

    if (order->sequence <= control->accepted_sequence) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "its sequence is %" PRIu64 ", but %" PRIu64
                  " was accepted already: it must grow",
                  order->sequence, control->accepted_sequence);
    }
    for (g = 0; g < order->n_gates; g++) {
        if (find_device(control, order->gates[g].name) < 0) {
            SL_REFUSE(status, SL_ERR_CORRUPT, out, "this job has no device %s",
                      order->gates[g].name);
        }
    }
out:
    return status;
}

static void ask_limit(sl_gate_t *gate, uint64_t limit_bytes)
{
    gate->limit_bytes = limit_bytes;
    gate->is_limit_new = 1;
}

/* What all orders have in common. */
static void begin_order(sl_control_t *control, uint64_t ttl_ms, int is_antman)
{
    control->is_antman = is_antman;
    control->order_ns = sl_control_now(control);
    control->ttl_ns = ttl_ms * UINT64_C(1000000);
    control->is_expired = 0;
    control->n_orders++;
    control->is_news = 1;
}

sl_status_t sl_control_accept(sl_control_t *control,
                              const sl_control_order_t *order)
{
    sl_status_t status;
    int g;

    SL_TRY(status, check_order(control, order), out);
    begin_order(control, order->ttl_ms, 0);
    control->accepted_sequence = order->sequence;
    control->action = order->action;
    control->floor_share = order->floor_share;
    if (order->job_class >= 0) {
        control->job_class = (sl_job_class_t)order->job_class;
    }
    (void)snprintf(control->writer_token, sizeof(control->writer_token), "%s",
                   order->writer_token);
    (void)snprintf(control->reason, sizeof(control->reason), "%s",
                   order->reason);
    for (g = 0; g < order->n_gates; g++) {
        const sl_control_gate_t *from = &order->gates[g];
        sl_gate_t *to = &control->gates[find_device(control, from->name)];

        if (from->limit_bytes > 0 && from->limit_bytes != to->limit_bytes) {
            ask_limit(to, from->limit_bytes);
        }
        if (from->share >= 0.0) {
            to->share = from->share;
            to->is_kept = from->is_kept;
        }
        if (from->has_yields) {
            sl_control_yields_accept(control, find_device(control, from->name),
                                     order, g);
        }
    }
    control->is_yield_new = 1; /* the floor may be */
    if (order->action == SL_CONTROL_ACTION_STOP &&
        control->params.on_stop != NULL) {
        control->params.on_stop(control->params.interrupt_ctx);
    }
    sl_control_refresh(control);
    (void)pthread_cond_broadcast(&control->changed);
out:
    return status;
}

void sl_control_accept_antman(sl_control_t *control,
                              const sl_antman_config_t *config)
{
    const int is_suspend = config->share == 0;
    int d;

    /* that file has no TTL; only a suspension may not outlive its writer */
    begin_order(control, is_suspend ? control->params.antman_ttl_ms : 0, 1);
    for (d = 0; d < control->n_devices; d++) {
        if (config->limit_bytes[d] > 0) {
            ask_limit(&control->gates[d], config->limit_bytes[d]);
        }
        if (config->share >= 0) {
            control->gates[d].share = (double)config->share;
            control->gates[d].is_kept = 0;
        }
    }
    sl_control_refresh(control);
    (void)pthread_cond_broadcast(&control->changed);
}

/* A job that is suspended within a mini-batch cannot give memory back: that
 * is done between two. So an order that moves a limit and suspends lets the
 * mini-batch end first. */
static int is_limit_pending(const sl_control_t *control)
{
    int d;

    for (d = 0; d < control->n_devices && !control->is_holding; d++) {
        if (control->gates[d].is_limit_new) {
            return 1;
        }
    }
    return 0;
}

/* AntMan's files have no classes: whom its coordinator suspends is a guest. */
static int is_guest(const sl_control_t *control)
{
    return control->job_class == SL_JOB_CLASS_OPPORTUNISTIC ||
           (control->is_antman && control->job_class == SL_JOB_CLASS_NONE);
}

static double share_that_follows(const sl_control_t *control,
                                 const sl_gate_t *gate)
{
    const double asked = gate->share;

    /* whoever shall end needs the device for it */
    if (control->is_closing || sl_control_is_interrupted(control) ||
        control->action == SL_CONTROL_ACTION_STOP) {
        return FULL_SHARE;
    }
    if (!control->is_expired || gate->is_kept) {
        if (!(asked > 0.0) && is_limit_pending(control)) {
            return gate->share_now > 0.0 ? gate->share_now
                                         : control->floor_share;
        }
        return asked;
    }
    if (is_guest(control)) {
        return control->floor_share;
    }
    return asked > 0.0 ? asked : FULL_SHARE;
}

static void set_share(sl_control_t *control, int d, double share)
{
    sl_gate_t *gate = &control->gates[d];

    if (fabs(share - gate->share_now) < 1e-9) {
        return;
    }
    if (sl_op_manager_share_set(control->params.devices->devices[d].ops, share,
                                control->params.share_law) >= 0) {
        gate->share_now = share;
        control->is_urgent = 1;
    }
}

void sl_control_refresh(sl_control_t *control)
{
    const uint64_t now = sl_control_now(control);
    int d;

    if (control->ttl_ns > 0 && !control->is_expired &&
        now >= control->order_ns &&
        now - control->order_ns >= control->ttl_ns) {
        control->is_expired = 1;
        control->is_urgent = 1;
        sl_debug("job %s: its order is older than its TTL", control->job.name);
        (void)pthread_cond_broadcast(&control->changed);
    }
    sl_control_pulse_refresh(control);
    for (d = 0; d < control->n_devices; d++) {
        set_share(control, d, share_that_follows(control, &control->gates[d]));
    }
}

int sl_control_is_held(const sl_control_t *control)
{
    int d;

    if (control->action == SL_CONTROL_ACTION_WAIT && !control->is_expired) {
        return 1;
    }
    for (d = 0; d < control->n_devices; d++) {
        if (!(control->gates[d].share_now > 0.0)) {
            return 1;
        }
    }
    return 0;
}

sl_job_state_t sl_control_state(const sl_control_t *control)
{
    if (control->is_closing) {
        return SL_JOB_STATE_DONE;
    }
    if (control->is_admitting) {
        return SL_JOB_STATE_WAITING;
    }
    return control->is_short || sl_control_is_held(control)
               ? SL_JOB_STATE_SUSPENDED
               : SL_JOB_STATE_RUNNING;
}
