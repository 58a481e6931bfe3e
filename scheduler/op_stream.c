/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on a device that runs beside the host. The device's thread hands them
 * over in order and keeps a window of them in flight; it retires them in
 * order too, when the mark behind each has passed. All state is the thread's
 * own: only the ring's counters and the gate are shared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "scheduler/op_stream_internal.h"

enum {
    /* marks that are not those of ops in flight: the end of the op before,
     * the one watched, and some that are skipped for their sake */
    SPARE_MARKS = 8,
    MANY_UNITS = 4
};

/* What may be in flight of device time that is known, with a full share and
 * with less: how long a suspension may take, and how far a guess of it may be
 * wrong. */
#define FLIGHT_NS 10e6
#define FLIGHT_GATED_NS 2e6

/* Between two looks at an op that cannot be watched. */
#define LOOK_NS UINT64_C(50000)

static uint64_t n_submitted(const sl_op_stream_t *stream)
{
    return atomic_load_explicit(&stream->manager->n_submitted,
                                memory_order_acquire);
}

static int is_empty(const sl_op_stream_t *stream)
{
    return stream->n_begun == stream->n_done;
}

void sl_stream_lose(sl_op_stream_t *stream)
{
    stream->backend->settle(stream->ctx);
    stream->is_lost = 1;
    stream->joint = SL_MARK_NONE;
    stream->last_mark = SL_MARK_NONE;
}

/* ---- marks ---- */

/* Marks go round; those in flight are too few to be met. */
static int next_mark(sl_op_stream_t *stream)
{
    const int watched = stream->backend->watched(stream->ctx);

    do {
        stream->mark = (stream->mark + 1) % stream->n_marks;
    } while (stream->mark == watched || stream->mark == stream->last_mark ||
             stream->mark == stream->joint);
    return stream->mark;
}

static sl_status_t put_mark(sl_op_stream_t *stream, sl_op_queue_t queue,
                            int *mark_p)
{
    const int mark = next_mark(stream);
    sl_status_t status;

    SL_TRY(status, stream->backend->mark(stream->ctx, queue, mark), out);
    *mark_p = mark;
out:
    return status;
}

/* A load waits for the last of the ops up to `after` that still runs. What
 * sends read, it does not write. */
static sl_status_t load_follows(sl_op_stream_t *stream, uint64_t after)
{
    uint64_t op;

    if (after == SL_OP_AFTER_NOTHING) {
        return SL_OK;
    }
    op = after == 0 || after > stream->n_begun ? stream->n_begun : after;
    for (; op > stream->n_done; op--) {
        const sl_flight_t *flight = sl_stream_flight(stream, op - 1);

        if (flight->kind == SL_FLIGHT_DEVICE &&
            flight->queue == SL_OP_QUEUE_MAIN) {
            return stream->backend->follow(stream->ctx, SL_OP_QUEUE_LOAD,
                                           flight->last);
        }
    }
    return SL_OK;
}

/* A send waits for the last op that still runs, which waited for the loads
 * before it, and for the loads since. */
static sl_status_t send_follows(sl_op_stream_t *stream)
{
    sl_status_t status = SL_OK;
    int is_done = 0;
    uint64_t op;

    for (op = stream->n_begun; op > stream->n_done && !is_done; op--) {
        const sl_flight_t *flight = sl_stream_flight(stream, op - 1);

        if (flight->kind == SL_FLIGHT_DEVICE &&
            flight->queue != SL_OP_QUEUE_SEND) {
            SL_TRY(status,
                   stream->backend->follow(stream->ctx, SL_OP_QUEUE_SEND,
                                           flight->last),
                   out);
            is_done = flight->queue == SL_OP_QUEUE_MAIN;
        }
    }
out:
    return status;
}

/* When two are in flight, the one before has not ended yet: this one starts
 * where it ends. */
sl_status_t sl_stream_put_start(sl_op_stream_t *stream,
                                const sl_op_slot_t *slot, sl_flight_t *flight)
{
    sl_status_t status = SL_OK;

    if (flight->queue == SL_OP_QUEUE_LOAD) {
        SL_TRY(status, load_follows(stream, slot->after), out);
    } else if (flight->queue == SL_OP_QUEUE_SEND) {
        SL_TRY(status, send_follows(stream), out);
    } else if (stream->n_running >= 2 && stream->joint != SL_MARK_NONE) {
        flight->first = stream->joint;
        return SL_OK;
    }
    status = put_mark(stream, flight->queue, &flight->first);
out:
    return status;
}

sl_status_t sl_stream_put_end(sl_op_stream_t *stream, sl_flight_t *flight)
{
    sl_status_t status;

    SL_TRY(status, put_mark(stream, flight->queue, &flight->last), out);
    if (flight->queue == SL_OP_QUEUE_MAIN) {
        stream->joint = flight->last;
    } else if (flight->queue == SL_OP_QUEUE_LOAD) {
        /* the wait is no op's time */
        stream->joint = SL_MARK_NONE;
        status = stream->backend->follow(stream->ctx, SL_OP_QUEUE_MAIN,
                                         flight->last);
    }
out:
    return status;
}

/* ---- starting ---- */

/* An op that does not come to start after all gives back what it took. */
static void skip(sl_op_stream_t *stream, sl_flight_t *flight)
{
    if (flight->is_gated) {
        sl_op_gate_settle(stream->manager, flight->expected_ns, 0,
                          sl_clock_ns());
    }
    flight->kind = SL_FLIGHT_SKIPPED;
    flight->n_ops = 1;
}

static void begin_op(sl_op_stream_t *stream, const sl_op_slot_t *slot,
                     sl_flight_t *flight)
{
    sl_op_manager_t *manager = stream->manager;
    sl_status_t status;

    flight->queued_ns = sl_clock_ns();
    status = sl_stream_put_start(stream, slot, flight);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
        skip(stream, flight);
        sl_stream_lose(stream);
        return;
    }
    sl_stream_count_in(stream, flight);
    sl_op_set_running(1);
    status = slot->fn(slot->args,
                      stream->backend->stream(stream->ctx, flight->queue));
    sl_op_set_running(0);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
    }
    /* also then: it may have queued a part of its work */
    status = sl_stream_put_end(stream, flight);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
        sl_stream_lose(stream);
    }
}

/* Whether an op fits beside those in flight. */
static int has_room(const sl_op_stream_t *stream, const sl_flight_t *flight)
{
    const double sum_ns = stream->running_ns + flight->mean_ns;

    if (is_empty(stream)) {
        return 1;
    }
    if (flight->is_yielding || stream->is_lost) {
        return 0;
    }
    if (flight->queue != SL_OP_QUEUE_MAIN) {
        return 1;
    }
    if (flight->is_gated) {
        return stream->n_running == 0 ||
               (flight->mean_ns > 0.0 && stream->n_unknown == 0 &&
                sum_ns <= FLIGHT_GATED_NS);
    }
    return stream->n_running < 2 || sum_ns <= FLIGHT_NS;
}

/* Whether share and jobs that go first let the op start. With nothing in
 * flight this waits for them.
 * @return SL_GATE_* */
static int pass_gates(sl_op_stream_t *stream, sl_flight_t *flight)
{
    sl_op_manager_t *manager = stream->manager;
    int state;

    if (flight->is_gated) {
        flight->expected_ns = flight->cost_ns;
        state = sl_op_gate_pass(manager, flight->expected_ns, is_empty(stream));
        if (state != SL_GATE_OPEN) {
            flight->is_gated = 0;
            return state;
        }
    }
    return !flight->is_yielding ||
                   sl_op_yield_enter(manager, (uint64_t)flight->cost_ns)
               ? SL_GATE_OPEN
               : SL_GATE_CANCELED;
}

/* What is known of the next op, or of the run of them that goes as one. */
static void look_at(sl_op_stream_t *stream, const sl_op_slot_t *slot,
                    sl_flight_t *flight)
{
    sl_op_manager_t *manager = stream->manager;

    memset(flight, 0, sizeof(*flight));
    flight->kind = SL_FLIGHT_DEVICE;
    flight->seen = SL_INPROGRESS;
    flight->queue = slot->is_load   ? SL_OP_QUEUE_LOAD
                    : slot->is_send ? SL_OP_QUEUE_SEND
                                    : SL_OP_QUEUE_MAIN;
    flight->is_gated =
        atomic_load_explicit(&manager->is_gated, memory_order_relaxed);
    flight->is_yielding =
        atomic_load_explicit(&manager->is_yielding, memory_order_relaxed);
    flight->n_ops = sl_piece_find(stream, slot, &flight->piece);
    if (flight->piece != NULL) {
        flight->mean_ns = flight->cost_ns = flight->piece->mean_ns;
    } else {
        flight->mean_ns =
            (double)sl_op_names_mean_ns(manager->names, slot->name_id);
        flight->cost_ns = sl_op_gate_expected_ns(manager, slot);
    }
}

/* @return whether the op, or the run of them, is behind us */
static int start_on_device(sl_op_stream_t *stream, const sl_op_slot_t *slot,
                           sl_flight_t *flight)
{
    int state = SL_GATE_SHUT;

    look_at(stream, slot, flight);
    if (has_room(stream, flight)) {
        state = pass_gates(stream, flight);
    }
    if (state == SL_GATE_SHUT) {
        return 0;
    }
    if (state == SL_GATE_CANCELED) {
        skip(stream, flight);
    } else if (flight->piece == NULL) {
        begin_op(stream, slot, flight);
    } else if (!sl_piece_begin(stream, flight)) {
        /* nothing was queued: what it took goes back, and its ops come anew */
        skip(stream, flight);
        return 1;
    }
    stream->n_begun += flight->n_ops;
    stream->n_units++;
    return 1;
}

/* Start the next op, if there is one and it may. @return whether it has */
static int start_next(sl_op_stream_t *stream)
{
    const sl_op_slot_t *slot = sl_stream_slot(stream, stream->n_begun);
    sl_flight_t *flight = sl_stream_flight(stream, stream->n_begun);

    stream->wants_op = n_submitted(stream) <= stream->n_begun;
    if (stream->wants_op || stream->n_units >= stream->manager->max_in_flight) {
        return 0;
    }
    if (!sl_stream_is_failed(stream) && !slot->is_host) {
        return start_on_device(stream, slot, flight);
    }
    memset(flight, 0, sizeof(*flight));
    flight->kind =
        sl_stream_is_failed(stream) ? SL_FLIGHT_SKIPPED : SL_FLIGHT_HOST;
    stream->n_begun++;
    stream->n_units++;
    return 1;
}

/* ---- retiring ---- */

/* The device failed while this op was the oldest; it, or one behind it. */
static void fail_oldest(sl_op_stream_t *stream, sl_status_t status)
{
    const int n_more = (int)(stream->n_begun - stream->n_done) - 1;
    char text[SL_OP_DETAIL_BYTES];

    if (n_more > 0) {
        (void)snprintf(text, sizeof(text),
                       "%.900s (or one of %d ops handed over after it)",
                       sl_last_error(), n_more);
        sl_last_error_set(text);
    }
    sl_op_manager_fail(stream->manager, sl_stream_slot(stream, stream->n_done),
                       status);
    sl_stream_lose(stream);
}

/* @return whether the op has ended */
static int retire_device(sl_op_stream_t *stream, sl_flight_t *flight)
{
    uint64_t start_ns = 0;
    uint64_t end_ns = 0;
    sl_status_t status = flight->seen;

    if (!stream->is_lost) {
        if (status == SL_INPROGRESS) {
            status = stream->backend->query(stream->ctx, flight->last);
        }
        if (status == SL_INPROGRESS) {
            return 0;
        }
        if (status == SL_OK) {
            status = sl_stream_measure(stream, flight, &start_ns, &end_ns);
        }
        if (status < 0) {
            fail_oldest(stream, status);
        }
    }
    if (stream->is_lost) {
        start_ns = end_ns = sl_clock_ns();
    }
    sl_stream_count_out(stream, flight, start_ns, end_ns);
    return 1;
}

static void retire_host(sl_op_stream_t *stream, const sl_op_slot_t *slot)
{
    sl_op_manager_t *manager = stream->manager;
    uint64_t start_ns;
    uint64_t end_ns;
    sl_status_t status;

    sl_op_set_running(1);
    start_ns = sl_clock_ns();
    status = slot->fn(slot->args,
                      stream->backend->stream(stream->ctx, SL_OP_QUEUE_MAIN));
    end_ns = sl_clock_ns();
    sl_op_set_running(0);
    sl_counter_add(&manager->n_run, 1);
    sl_op_names_add(manager->names, slot->name_id, end_ns - start_ns);
    sl_op_span_add(slot->span, start_ns, end_ns);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
    }
}

/* @return whether the oldest op has ended */
static int retire_oldest(sl_op_stream_t *stream)
{
    sl_flight_t *flight = sl_stream_flight(stream, stream->n_done);

    switch (flight->kind) {
    case SL_FLIGHT_DEVICE:
        return retire_device(stream, flight);
    case SL_FLIGHT_PART:
        return 1;
    case SL_FLIGHT_HOST:
        if (!sl_stream_is_failed(stream)) {
            retire_host(stream, sl_stream_slot(stream, stream->n_done));
            return 1;
        }
        break;
    case SL_FLIGHT_SKIPPED:
        break;
    }
    sl_counter_add(&stream->manager->n_skipped, 1);
    return 1;
}

/* Retire the oldest ops as far as they have ended. @return whether any has */
static int retire_ended(sl_op_stream_t *stream)
{
    const uint64_t before = stream->n_done;

    while (!is_empty(stream) && retire_oldest(stream)) {
        if (sl_stream_flight(stream, stream->n_done)->kind != SL_FLIGHT_PART) {
            stream->n_units--;
        }
        stream->n_done++;
        sl_op_manager_publish(stream->manager, stream->n_done);
    }
    if (is_empty(stream)) {
        stream->is_lost = 0; /* a failure may be forgotten */
    }
    return stream->n_done != before;
}

/* ---- resting ---- */

/* Whether there is something to do for a thread that looked for an op. */
static int has_news(const sl_op_stream_t *stream)
{
    return stream->wants_op && n_submitted(stream) > stream->n_begun;
}

/* Look at a short op until it has ended. @return whether something is to do */
static int spin(sl_op_stream_t *stream, sl_flight_t *oldest)
{
    const uint64_t limit_ns = sl_op_manager_spin_ns(stream->manager);
    const uint64_t start_ns = sl_clock_ns();

    if (!(oldest->mean_ns > 0.0) || oldest->mean_ns > (double)limit_ns) {
        return 0;
    }
    do {
        if (has_news(stream)) {
            return 1;
        }
        oldest->seen = stream->backend->query(stream->ctx, oldest->last);
        if (oldest->seen != SL_INPROGRESS) {
            return 1;
        }
        sl_op_manager_relax();
    } while (sl_clock_ns() - start_ns < limit_ns);
    return 0;
}

/* The op in flight to wait for: the oldest. When no other can start anyway it
 * is the last of the older half, so that short ones do not wake the thread
 * one by one; unless somebody waits for one before it. */
static uint64_t find_target(const sl_op_stream_t *stream)
{
    const uint64_t oldest = stream->n_done;
    const uint64_t wanted = atomic_load(&stream->manager->wake_at);
    const uint64_t middle = oldest + (stream->n_begun - oldest) / 2;
    uint64_t target = oldest;
    uint64_t op;

    if (stream->wants_op || stream->n_units < MANY_UNITS) {
        return oldest;
    }
    for (op = oldest; op <= middle && op < wanted; op++) {
        const sl_flight_kind_t kind = sl_stream_flight(stream, op)->kind;

        if (kind == SL_FLIGHT_DEVICE) {
            target = op;
        } else if (kind == SL_FLIGHT_HOST) {
            break;
        }
    }
    return target;
}

/* Whether somebody waits for an op before the target, lock held. */
static int is_hurried(const sl_op_stream_t *stream, uint64_t target)
{
    return target > stream->n_done &&
           atomic_load(&stream->manager->wake_at) <= target;
}

/* Until the target has ended, or there is an op to start; not longer than a
 * look when it cannot be watched, as another still is. */
static void sleep_until_woken(sl_op_stream_t *stream, uint64_t target)
{
    const int mark = sl_stream_flight(stream, target)->last;
    sl_op_manager_t *manager = stream->manager;
    int error = 0;

    (void)pthread_mutex_lock(manager->lock);
    manager->is_woken = 0;
    stream->backend->watch(stream->ctx, mark);
    manager->is_asleep = stream->wants_op ? SL_OP_RESTS : SL_OP_FULL;
    while (!manager->is_woken && !has_news(stream) &&
           !is_hurried(stream, target) && error == 0) {
        if (stream->backend->watched(stream->ctx) == mark) {
            (void)pthread_cond_wait(&manager->work, manager->lock);
        } else {
            const struct timespec deadline = sl_clock_deadline(LOOK_NS);

            error = pthread_cond_timedwait(&manager->work, manager->lock,
                                           &deadline);
        }
    }
    manager->is_asleep = SL_OP_AWAKE;
    (void)pthread_mutex_unlock(manager->lock);
}

static void rest(sl_op_stream_t *stream)
{
    const uint64_t target = find_target(stream);

    if (target > stream->n_done ||
        !spin(stream, sl_stream_flight(stream, target))) {
        sleep_until_woken(stream, target);
    }
}

static void wake(void *arg)
{
    sl_op_manager_t *manager = arg;

    (void)pthread_mutex_lock(manager->lock);
    manager->is_woken = 1;
    (void)pthread_cond_signal(&manager->work);
    (void)pthread_mutex_unlock(manager->lock);
}

void sl_op_stream_run(sl_op_manager_t *manager)
{
    sl_op_stream_t *stream = manager->stream;

    for (;;) {
        const int has_retired = retire_ended(stream);

        if (start_next(stream) || has_retired) {
            continue;
        }
        if (!is_empty(stream)) {
            rest(stream);
        } else if (!sl_op_manager_await(manager, stream->n_done)) {
            break;
        }
    }
}

/* ---- life ---- */

sl_status_t sl_op_stream_open(sl_op_manager_t *manager)
{
    sl_op_stream_t *stream = calloc(1, sizeof(*stream));
    const int n_marks = 2 * manager->max_in_flight + SPARE_MARKS;
    const sl_op_backend_params_t params = {.name = manager->name,
                                           .device = manager->device,
                                           .n_marks = n_marks,
                                           .wake = wake,
                                           .arg = manager};
    sl_status_t status;

    if (stream != NULL) {
        stream->flights =
            calloc((size_t)manager->n_slots, sizeof(*stream->flights));
    }
    if (stream == NULL || stream->flights == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "%s: no memory for %d ops in flight", manager->name,
                manager->max_in_flight);
    }
    stream->manager = manager;
    stream->backend = manager->backend;
    stream->n_marks = n_marks;
    stream->joint = stream->last_mark = SL_MARK_NONE;
    SL_TRY(status, stream->backend->open(&params, &stream->ctx), err_free);
    manager->stream = stream;
    return SL_OK;

err_free:
    sl_op_stream_free(stream);
    return status;
}

void sl_op_stream_close(sl_op_stream_t *stream)
{
    sl_pieces_drop(stream);
    stream->backend->close(stream->ctx);
}

void sl_op_stream_free(sl_op_stream_t *stream)
{
    if (stream != NULL) {
        free(stream->flights);
        free(stream);
    }
}
