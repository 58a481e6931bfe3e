/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on a device that runs beside the host. The device's thread hands them
 * over in order and keeps a window of them in flight; it retires them in
 * order too, when the mark behind each has passed. All state is the thread's
 * own: only the ring's counters and the gate are shared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "scheduler/op_manager_internal.h"

enum {
    NONE = -1,
    /* marks that are not those of ops in flight: the end of the op before,
     * the one watched, and some that are skipped for their sake */
    SPARE_MARKS = 8
};

/* What may be in flight of device time that is known, with a full share and
 * with less: how long a suspension may take, and how far a guess of it may be
 * wrong. */
#define FLIGHT_NS 10e6
#define FLIGHT_GATED_NS 2e6

typedef enum flight_kind {
    FLIGHT_DEVICE, /* queued, with marks around it */
    FLIGHT_HOST,   /* to be called when all before it have ended */
    FLIGHT_SKIPPED /* after a failure */
} flight_kind_t;

/* An op between its start and its end; its slot of the ring is not reused
 * before. */
typedef struct flight {
    flight_kind_t kind;
    sl_op_queue_t queue;
    int is_gated;
    int is_yielding;
    int first, last; /* marks */
    double expected_ns; /* taken out of the share's bucket */
    double mean_ns;     /* of its name when it started; 0 = not known */
    uint64_t queued_ns;
    sl_status_t seen; /* of the mark behind it; SL_INPROGRESS = look again */
} flight_t;

typedef struct sl_op_stream {
    sl_op_manager_t *manager;
    const sl_op_backend_t *backend;
    void *ctx;
    flight_t *flights; /* of op i: i % max_in_flight */
    uint64_t n_flights;
    uint64_t n_begun; /* ops, retired ones too */
    uint64_t n_done;
    int n_marks;
    int mark;       /* the newest */
    int joint;      /* behind the newest op; NONE = not where the next starts */
    int last_mark;  /* behind the op retired last, at last_ns; or NONE */
    uint64_t last_ns;
    /* in flight on the main queue */
    int n_running;
    int n_unknown; /* of them, with no mean */
    double running_ns;
    uint64_t busy_ns; /* of ops that have ended */
    int is_lost;      /* those in flight have ended, with no times */
    int wants_op;     /* one could start, but none is there */
    uint64_t shown_busy_ns; /* guarded by the manager's lock */
} stream_t;

uint64_t sl_op_stream_show(stream_t *stream, uint64_t busy_ns)
{
    if (busy_ns > stream->shown_busy_ns) {
        stream->shown_busy_ns = busy_ns;
    }
    return stream->shown_busy_ns;
}

static int is_failed(const stream_t *stream)
{
    return atomic_load_explicit(&stream->manager->failure,
                                memory_order_relaxed) != SL_OK;
}

static const sl_op_slot_t *slot_of(const stream_t *stream, uint64_t op)
{
    return &stream->manager->ring[op & (stream->manager->n_slots - 1)];
}

static flight_t *flight_of(const stream_t *stream, uint64_t op)
{
    return &stream->flights[op % stream->n_flights];
}

static uint64_t n_submitted(const stream_t *stream)
{
    return atomic_load_explicit(&stream->manager->n_submitted,
                                memory_order_acquire);
}

static int is_empty(const stream_t *stream)
{
    return stream->n_begun == stream->n_done;
}

/* The device has failed, or says so once. What is in flight ends without
 * times, so that nobody waits for it. */
static void lose(stream_t *stream)
{
    stream->backend->settle(stream->ctx);
    stream->is_lost = 1;
    stream->joint = NONE;
    stream->last_mark = NONE;
}

/* ---- starting ---- */

/* Marks go round; those in flight are too few to be met. */
static int next_mark(stream_t *stream)
{
    const int watched = stream->backend->watched(stream->ctx);

    do {
        stream->mark = (stream->mark + 1) % stream->n_marks;
    } while (stream->mark == watched || stream->mark == stream->last_mark ||
             stream->mark == stream->joint);
    return stream->mark;
}

static sl_status_t put_mark(stream_t *stream, sl_op_queue_t queue, int *mark_p)
{
    const int mark = next_mark(stream);
    sl_status_t status;

    SL_TRY(status, stream->backend->mark(stream->ctx, queue, mark), out);
    *mark_p = mark;
out:
    return status;
}

/* A load waits for the last of the ops up to `after` that still runs. */
static sl_status_t follow_ops(stream_t *stream, uint64_t after)
{
    uint64_t op;

    if (after == SL_OP_AFTER_NOTHING) {
        return SL_OK;
    }
    op = after == 0 || after > stream->n_begun ? stream->n_begun : after;
    for (; op > stream->n_done; op--) {
        const flight_t *flight = flight_of(stream, op - 1);

        if (flight->kind == FLIGHT_DEVICE &&
            flight->queue == SL_OP_QUEUE_MAIN) {
            return stream->backend->follow(stream->ctx, SL_OP_QUEUE_LOAD,
                                           flight->last);
        }
    }
    return SL_OK;
}

/* What comes before the op's own work: waits, and the mark where it starts.
 * When two are in flight, the one before has not ended yet: this one starts
 * where it ends. */
static sl_status_t put_start(stream_t *stream, const sl_op_slot_t *slot,
                             flight_t *flight)
{
    sl_status_t status = SL_OK;

    if (flight->queue == SL_OP_QUEUE_LOAD) {
        SL_TRY(status, follow_ops(stream, slot->after), out);
    } else if (stream->n_running >= 2 && stream->joint != NONE) {
        flight->first = stream->joint;
        return SL_OK;
    }
    status = put_mark(stream, flight->queue, &flight->first);
out:
    return status;
}

/* What comes behind it. */
static sl_status_t put_end(stream_t *stream, flight_t *flight)
{
    sl_status_t status;

    SL_TRY(status, put_mark(stream, flight->queue, &flight->last), out);
    if (flight->queue == SL_OP_QUEUE_MAIN) {
        stream->joint = flight->last;
    } else {
        /* the wait is no op's time */
        stream->joint = NONE;
        status = stream->backend->follow(stream->ctx, SL_OP_QUEUE_MAIN,
                                         flight->last);
    }
out:
    return status;
}

static void count_in(stream_t *stream, const flight_t *flight)
{
    if (flight->queue == SL_OP_QUEUE_MAIN) {
        if (stream->n_running == 0) {
            sl_meter_start(&stream->manager->busy, flight->queued_ns);
        }
        stream->n_running++;
        stream->n_unknown += !(flight->mean_ns > 0.0);
        stream->running_ns += flight->mean_ns;
    }
}

static void count_out(stream_t *stream, const flight_t *flight)
{
    if (flight->queue == SL_OP_QUEUE_MAIN) {
        stream->n_running--;
        stream->n_unknown -= !(flight->mean_ns > 0.0);
        stream->running_ns =
            stream->n_running == 0 ? 0.0 : stream->running_ns - flight->mean_ns;
    }
}

/* An op that does not come to start after all gives back what it took. */
static void skip(stream_t *stream, flight_t *flight)
{
    if (flight->is_gated) {
        sl_op_gate_settle(stream->manager, flight->expected_ns, 0,
                          sl_clock_ns());
    }
    flight->kind = FLIGHT_SKIPPED;
}

static void begin_op(stream_t *stream, const sl_op_slot_t *slot,
                     flight_t *flight)
{
    sl_op_manager_t *manager = stream->manager;
    sl_status_t status;

    flight->kind = FLIGHT_DEVICE;
    flight->seen = SL_INPROGRESS;
    flight->queued_ns = sl_clock_ns();
    status = put_start(stream, slot, flight);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
        skip(stream, flight);
        lose(stream);
        return;
    }
    count_in(stream, flight);
    sl_op_set_running(1);
    status = slot->fn(slot->args,
                      stream->backend->stream(stream->ctx, flight->queue));
    sl_op_set_running(0);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
    }
    /* also then: it may have queued a part of its work */
    status = put_end(stream, flight);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
        lose(stream);
    }
}

/* Whether an op fits beside those in flight. */
static int has_room(const stream_t *stream, const flight_t *flight)
{
    const double most_ns = flight->is_gated ? FLIGHT_GATED_NS : FLIGHT_NS;
    const double sum_ns = stream->running_ns + flight->mean_ns;

    if (is_empty(stream)) {
        return 1;
    }
    if (flight->is_yielding || stream->is_lost) {
        return 0;
    }
    if (flight->queue == SL_OP_QUEUE_LOAD) {
        return 1;
    }
    if (flight->is_gated) {
        return stream->n_running == 0 ||
               (flight->mean_ns > 0.0 && stream->n_unknown == 0 &&
                sum_ns <= most_ns);
    }
    return stream->n_running < 2 || sum_ns <= most_ns;
}

/* Whether share and jobs that go first let the op start. With nothing in
 * flight this waits for them.
 * @return SL_GATE_* */
static int pass_gates(stream_t *stream, const sl_op_slot_t *slot,
                      flight_t *flight)
{
    sl_op_manager_t *manager = stream->manager;
    int state;

    if (flight->is_gated) {
        flight->expected_ns = flight->queue == SL_OP_QUEUE_LOAD
                                  ? 0.0
                                  : sl_op_gate_expected_ns(manager, slot);
        state = sl_op_gate_pass(manager, flight->expected_ns, is_empty(stream));
        if (state != SL_GATE_OPEN) {
            flight->is_gated = 0;
            return state;
        }
    }
    if (flight->is_yielding &&
        !sl_op_yield_enter(manager,
                           (uint64_t)sl_op_gate_expected_ns(manager, slot))) {
        return SL_GATE_CANCELED;
    }
    return SL_GATE_OPEN;
}

/* Start the next op, if there is one and it may. @return whether it has */
static int start_next(stream_t *stream)
{
    sl_op_manager_t *manager = stream->manager;
    const sl_op_slot_t *slot = slot_of(stream, stream->n_begun);
    flight_t *flight = flight_of(stream, stream->n_begun);
    int state;

    stream->wants_op = n_submitted(stream) <= stream->n_begun;
    if (stream->wants_op ||
        stream->n_begun - stream->n_done >= stream->n_flights) {
        return 0;
    }
    memset(flight, 0, sizeof(*flight));
    if (is_failed(stream)) {
        flight->kind = FLIGHT_SKIPPED;
    } else if (slot->is_host) {
        flight->kind = FLIGHT_HOST;
    } else {
        flight->queue = slot->is_load ? SL_OP_QUEUE_LOAD : SL_OP_QUEUE_MAIN;
        flight->mean_ns =
            (double)sl_op_names_mean_ns(manager->names, slot->name_id);
        flight->is_gated =
            atomic_load_explicit(&manager->is_gated, memory_order_relaxed);
        flight->is_yielding =
            atomic_load_explicit(&manager->is_yielding, memory_order_relaxed);
        state = has_room(stream, flight) ? pass_gates(stream, slot, flight)
                                         : SL_GATE_SHUT;
        if (state == SL_GATE_SHUT) {
            return 0;
        }
        if (state == SL_GATE_CANCELED) {
            skip(stream, flight);
        } else {
            begin_op(stream, slot, flight);
        }
    }
    stream->n_begun++;
    return 1;
}

/* ---- retiring ---- */

static void add_span(sl_op_span_t *span, uint64_t start_ns, uint64_t end_ns,
                     uint64_t busy_ns)
{
    if (span != NULL) {
        span->start_ns = span->start_ns == 0 ? start_ns : span->start_ns;
        span->end_ns = end_ns > span->end_ns ? end_ns : span->end_ns;
        span->busy_ns += busy_ns;
    }
}

/* The device failed while this op was the oldest; it, or one behind it. */
static void fail_oldest(stream_t *stream, sl_status_t status)
{
    const int n_more = (int)(stream->n_begun - stream->n_done) - 1;
    char text[SL_OP_DETAIL_BYTES];

    if (n_more > 0) {
        (void)snprintf(text, sizeof(text),
                       "%.900s (or one of %d ops handed over after it)",
                       sl_last_error(), n_more);
        sl_last_error_set(text);
    }
    sl_op_manager_fail(stream->manager, slot_of(stream, stream->n_done),
                       status);
    lose(stream);
}

/* From marks to the clock of the host: by way of the op before, between the
 * moment when it was handed over and now. */
static sl_status_t measure(stream_t *stream, const flight_t *flight,
                           uint64_t *start_p, uint64_t *end_p)
{
    int64_t gap_ns = 0;
    int64_t busy_ns = 0;
    uint64_t start_ns = flight->queued_ns;
    uint64_t now_ns;
    sl_status_t status;

    SL_TRY(status,
           stream->backend->elapsed(stream->ctx, flight->first, flight->last,
                                    &busy_ns),
           out);
    busy_ns = busy_ns > 0 ? busy_ns : 0;
    if (stream->last_mark != NONE && stream->last_mark == flight->first) {
        start_ns = stream->last_ns;
    } else if (stream->last_mark != NONE) {
        SL_TRY(status,
               stream->backend->elapsed(stream->ctx, stream->last_mark,
                                        flight->first, &gap_ns),
               out);
        start_ns = stream->last_ns + (uint64_t)gap_ns;
        if ((int64_t)(start_ns - flight->queued_ns) < 0) {
            start_ns = flight->queued_ns;
        }
    }
    now_ns = sl_clock_ns();
    *end_p = start_ns + (uint64_t)busy_ns;
    *start_p = start_ns;
    if ((int64_t)(now_ns - *end_p) < 0) {
        *end_p = now_ns;
        *start_p = now_ns - (uint64_t)busy_ns;
    }
out:
    return status;
}

static void account(stream_t *stream, const sl_op_slot_t *slot,
                    const flight_t *flight, uint64_t start_ns, uint64_t end_ns)
{
    sl_op_manager_t *manager = stream->manager;
    const uint64_t busy_ns = end_ns - start_ns;
    const uint64_t used_ns = flight->queue == SL_OP_QUEUE_MAIN ? busy_ns : 0;

    sl_counter_add(&manager->n_run, 1);
    if (!stream->is_lost) {
        sl_counter_add(&manager->charged_ns, used_ns);
        sl_op_names_add(manager->names, slot->name_id, busy_ns);
        add_span(slot->span, start_ns, end_ns, busy_ns);
    }
    if (flight->is_gated) {
        sl_op_gate_settle(manager, flight->expected_ns, used_ns, end_ns);
    }
    if (flight->is_yielding) {
        sl_op_yield_leave(manager, used_ns, end_ns);
    }
    if (flight->queue == SL_OP_QUEUE_MAIN) {
        stream->busy_ns += busy_ns;
        /* the next has been running since */
        atomic_store_explicit(&manager->busy, stream->busy_ns,
                              memory_order_relaxed);
        if (stream->n_running > 0) {
            sl_meter_start(&manager->busy, end_ns);
        }
        stream->last_mark = stream->is_lost ? NONE : flight->last;
        stream->last_ns = end_ns;
    }
}

/* @return whether the op has ended */
static int retire_device(stream_t *stream, const sl_op_slot_t *slot,
                         const flight_t *flight)
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
            status = measure(stream, flight, &start_ns, &end_ns);
        }
        if (status < 0) {
            fail_oldest(stream, status);
        }
    }
    if (stream->is_lost) {
        start_ns = end_ns = sl_clock_ns();
    }
    count_out(stream, flight);
    account(stream, slot, flight, start_ns, end_ns);
    return 1;
}

static void retire_host(stream_t *stream, const sl_op_slot_t *slot)
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
    add_span(slot->span, start_ns, end_ns, end_ns - start_ns);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
    }
}

/* Retire the oldest ops as far as they have ended. @return whether any has */
static int retire_ended(stream_t *stream)
{
    const uint64_t before = stream->n_done;

    while (!is_empty(stream)) {
        const sl_op_slot_t *slot = slot_of(stream, stream->n_done);
        const flight_t *flight = flight_of(stream, stream->n_done);

        if (flight->kind == FLIGHT_DEVICE) {
            if (!retire_device(stream, slot, flight)) {
                break;
            }
        } else if (flight->kind == FLIGHT_HOST && !is_failed(stream)) {
            retire_host(stream, slot);
        } else {
            sl_counter_add(&stream->manager->n_skipped, 1);
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
static int has_news(const stream_t *stream)
{
    return stream->wants_op && n_submitted(stream) > stream->n_begun;
}

/* Look at a short op until it has ended. @return whether something is to do */
static int spin(stream_t *stream, flight_t *oldest)
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

/* Until the oldest op has ended, or there is one to start. */
static void rest(stream_t *stream)
{
    sl_op_manager_t *manager = stream->manager;
    flight_t *oldest = flight_of(stream, stream->n_done);

    if (spin(stream, oldest)) {
        return;
    }
    (void)pthread_mutex_lock(manager->lock);
    manager->is_woken = 0;
    stream->backend->watch(stream->ctx, oldest->last);
    /* a full window wants no op: who submits need not wake anybody */
    manager->is_asleep = stream->wants_op ? SL_OP_RESTS : SL_OP_AWAKE;
    while (!manager->is_woken && !has_news(stream)) {
        (void)pthread_cond_wait(&manager->work, manager->lock);
    }
    manager->is_asleep = SL_OP_AWAKE;
    (void)pthread_mutex_unlock(manager->lock);
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
    stream_t *stream = manager->stream;

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
    stream_t *stream = calloc(1, sizeof(*stream));
    const int n_marks = 2 * manager->max_in_flight + SPARE_MARKS;
    const sl_op_backend_params_t params = {.name = manager->name,
                                           .device = manager->device,
                                           .n_marks = n_marks,
                                           .wake = wake,
                                           .arg = manager};
    sl_status_t status;

    if (stream != NULL) {
        stream->flights =
            calloc((size_t)manager->max_in_flight, sizeof(*stream->flights));
    }
    if (stream == NULL || stream->flights == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "%s: no memory for %d ops in flight", manager->name,
                manager->max_in_flight);
    }
    stream->manager = manager;
    stream->backend = manager->backend;
    stream->n_flights = (uint64_t)manager->max_in_flight;
    stream->n_marks = n_marks;
    stream->joint = stream->last_mark = NONE;
    SL_TRY(status, stream->backend->open(&params, &stream->ctx), err_free);
    manager->stream = stream;
    return SL_OK;

err_free:
    sl_op_stream_free(stream);
    return status;
}

void sl_op_stream_close(stream_t *stream)
{
    stream->backend->close(stream->ctx);
}

void sl_op_stream_free(stream_t *stream)
{
    if (stream != NULL) {
        free(stream->flights);
        free(stream);
    }
}
