/* SPDX-License-Identifier: Apache-2.0 */
/* When ops ran on a device beside the host, and what they are charged. */
#include "base/clock.h"
#include "scheduler/op_stream_internal.h"

uint64_t sl_op_stream_show(sl_op_stream_t *stream, uint64_t busy_ns)
{
    if (busy_ns > stream->shown_busy_ns) {
        stream->shown_busy_ns = busy_ns;
    }
    return stream->shown_busy_ns;
}

void sl_op_span_add(sl_op_span_t *span, uint64_t start_ns, uint64_t end_ns)
{
    if (span != NULL) {
        span->start_ns = span->start_ns == 0 ? start_ns : span->start_ns;
        span->end_ns = end_ns > span->end_ns ? end_ns : span->end_ns;
        span->busy_ns += end_ns - start_ns;
    }
}

/* ---- marks ---- */

/* Where it started: at the end of the op before, or so long after it. */
static sl_status_t find_start(sl_op_stream_t *stream, const sl_flight_t *flight,
                              uint64_t *start_p)
{
    sl_status_t status = SL_OK;
    int64_t gap_ns = 0;

    *start_p = flight->queued_ns;
    if (stream->last_mark == SL_MARK_NONE) {
        return SL_OK;
    }
    if (stream->last_mark == flight->first) {
        *start_p = stream->last_ns;
        return SL_OK;
    }
    SL_TRY(status,
           stream->backend->elapsed(stream->ctx, stream->last_mark,
                                    flight->first, &gap_ns),
           out);
    gap_ns += (int64_t)(stream->last_ns - flight->queued_ns);
    if (gap_ns > 0) {
        *start_p += (uint64_t)gap_ns;
    }
out:
    return status;
}

sl_status_t sl_stream_measure(sl_op_stream_t *stream, const sl_flight_t *flight,
                              uint64_t *start_p, uint64_t *end_p)
{
    int64_t busy_ns = 0;
    uint64_t start_ns;
    uint64_t now_ns;
    sl_status_t status;

    SL_TRY(status,
           stream->backend->elapsed(stream->ctx, flight->first, flight->last,
                                    &busy_ns),
           out);
    busy_ns = busy_ns > 0 ? busy_ns : 0;
    SL_TRY(status, find_start(stream, flight, &start_ns), out);
    now_ns = sl_clock_ns();
    if (start_ns + (uint64_t)busy_ns > now_ns) {
        start_ns = now_ns - (uint64_t)busy_ns;
    }
    *start_p = start_ns;
    *end_p = start_ns + (uint64_t)busy_ns;
out:
    return status;
}

/* ---- in flight ---- */

static int is_main(const sl_flight_t *flight)
{
    return flight->queue == SL_OP_QUEUE_MAIN;
}

void sl_stream_count_in(sl_op_stream_t *stream, const sl_flight_t *flight)
{
    if (is_main(flight)) {
        if (stream->n_running == 0) {
            sl_meter_start(&stream->manager->busy, flight->queued_ns);
        }
        stream->n_running++;
        stream->n_unknown += !(flight->mean_ns > 0.0);
        stream->running_ns += flight->mean_ns;
    }
}

/* What is told is exact at each end; from there the next one runs. */
static void show_busy(sl_op_stream_t *stream, const sl_flight_t *flight,
                      uint64_t start_ns, uint64_t end_ns)
{
    sl_op_manager_t *manager = stream->manager;

    stream->n_running--;
    stream->n_unknown -= !(flight->mean_ns > 0.0);
    stream->running_ns =
        stream->n_running == 0 ? 0.0 : stream->running_ns - flight->mean_ns;
    stream->busy_ns += end_ns - start_ns;
    atomic_store_explicit(&manager->busy, stream->busy_ns,
                          memory_order_relaxed);
    if (stream->n_running > 0) {
        sl_meter_start(&manager->busy, end_ns);
    }
    stream->last_mark = stream->is_lost ? SL_MARK_NONE : flight->last;
    stream->last_ns = end_ns;
}

/* By op: a run of ops has one time, which goes to each by its recent mean. */
static void count_ops(sl_op_stream_t *stream, uint64_t n_ops, uint64_t start_ns,
                      uint64_t end_ns)
{
    const double busy_ns = (double)(end_ns - start_ns);
    uint64_t from_ns = start_ns;
    double total = 0.0;
    double sum = 0.0;
    uint64_t i;

    for (i = 0; i < n_ops; i++) {
        total += sl_stream_flight(stream, stream->n_done + i)->part_ns;
    }
    for (i = 0; i < n_ops; i++) {
        const sl_op_slot_t *slot = sl_stream_slot(stream, stream->n_done + i);
        uint64_t to_ns = end_ns;

        if (i + 1 < n_ops) {
            sum += sl_stream_flight(stream, stream->n_done + i)->part_ns;
            to_ns = start_ns + (uint64_t)(busy_ns * (sum / total));
        }
        to_ns = to_ns < end_ns ? to_ns : end_ns;
        sl_op_names_add(stream->manager->names, slot->name_id, to_ns - from_ns);
        sl_op_span_add(slot->span, from_ns, to_ns);
        from_ns = to_ns;
    }
}

void sl_stream_count_out(sl_op_stream_t *stream, sl_flight_t *flight,
                         uint64_t start_ns, uint64_t end_ns)
{
    sl_op_manager_t *manager = stream->manager;
    const uint64_t used_ns = end_ns - start_ns;
    sl_op_piece_t *piece = flight->piece;

    sl_counter_add(&manager->n_run, flight->n_ops);
    if (!stream->is_lost) {
        sl_counter_add(&manager->charged_ns, used_ns);
        count_ops(stream, flight->n_ops, start_ns, end_ns);
        if (piece != NULL) {
            piece->mean_ns += piece->mean_ns > 0.0
                                  ? ((double)used_ns - piece->mean_ns) / 8.0
                                  : (double)used_ns;
        }
    }
    if (flight->is_gated) {
        sl_op_gate_settle(manager, flight->expected_ns, used_ns, end_ns);
    }
    if (flight->is_yielding) {
        sl_op_yield_leave(manager, used_ns, end_ns);
    }
    if (is_main(flight)) {
        show_busy(stream, flight, start_ns, end_ns);
    }
}
