/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of ops launched as one. A section's ops come in pieces, each published
 * whole; the piece at the same place of the same section is expected to queue
 * the same work, with other arguments. The first time its ops go one by one,
 * by which their libraries get what they need; from the second on they are
 * captured and the graph of the time before is updated. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/op_stream_internal.h"

static sl_op_piece_t *find(sl_op_stream_t *stream, uint64_t key)
{
    int i;

    for (i = 0; i < stream->n_pieces; i++) {
        if (stream->pieces[i].key == key) {
            return &stream->pieces[i];
        }
    }
    return NULL;
}

/* Remember a piece; when there are too many, more of them go one by one. */
static void add(sl_op_stream_t *stream, uint64_t key)
{
    if (stream->n_pieces < SL_MAX_PIECES) {
        sl_op_piece_t *piece = &stream->pieces[stream->n_pieces++];

        memset(piece, 0, sizeof(*piece));
        piece->key = key;
    }
}

uint64_t sl_piece_find(sl_op_stream_t *stream, const sl_op_slot_t *slot,
                       sl_op_piece_t **piece_p)
{
    uint64_t end = stream->n_begun;
    sl_op_piece_t *piece;

    *piece_p = NULL;
    if (slot->section == 0 || stream->n_begun < stream->plain_until) {
        return 1;
    }
    while (!sl_stream_slot(stream, end)->is_last) {
        end++;
    }
    end++;
    piece = find(stream, slot->section);
    if (piece == NULL || piece->is_refused || end - stream->n_begun == 1) {
        if (piece == NULL) {
            add(stream, slot->section);
        }
        stream->plain_until = end;
        return 1;
    }
    *piece_p = piece;
    return end - stream->n_begun;
}

/* What the ops queue becomes the piece's graph. */
static sl_status_t capture(sl_op_stream_t *stream, const sl_flight_t *flight)
{
    const sl_op_backend_t *backend = stream->backend;
    void *cuda = backend->stream(stream->ctx, SL_OP_QUEUE_MAIN);
    sl_status_t status;
    uint64_t i;

    SL_TRY(status, backend->capture_begin(stream->ctx), out);
    sl_op_set_running(1);
    for (i = 0; i < flight->n_ops && status >= 0; i++) {
        const sl_op_slot_t *slot = sl_stream_slot(stream, stream->n_begun + i);

        status = slot->fn(slot->args, cuda);
    }
    sl_op_set_running(0);
    if (status < 0) {
        backend->capture_cancel(stream->ctx);
    } else {
        status = backend->capture_end(stream->ctx, &flight->piece->graph);
    }
out:
    return status;
}

static void mark_parts(sl_op_stream_t *stream, uint64_t n_ops)
{
    uint64_t i;

    for (i = 0; i < n_ops; i++) {
        const sl_op_slot_t *slot = sl_stream_slot(stream, stream->n_begun + i);
        sl_flight_t *part = sl_stream_flight(stream, stream->n_begun + i);

        if (i > 0) {
            memset(part, 0, sizeof(*part));
            part->kind = SL_FLIGHT_PART;
        }
        part->part_ns = 1.0 + (double)sl_op_names_mean_ns(
                                  stream->manager->names, slot->name_id);
    }
}

int sl_piece_begin(sl_op_stream_t *stream, sl_flight_t *flight)
{
    const sl_op_slot_t *slot = sl_stream_slot(stream, stream->n_begun);
    sl_op_manager_t *manager = stream->manager;
    sl_status_t status = capture(stream, flight);

    if (status < 0) {
        /* whatever it was comes up again where it can be told */
        sl_info("%s: %d ops cannot be launched as one, they go one by one: %s",
                manager->name, (int)flight->n_ops, sl_last_error());
        sl_last_error_set("");
        flight->piece->is_refused = 1;
        stream->plain_until = stream->n_begun + flight->n_ops;
        return 0;
    }
    flight->queued_ns = sl_clock_ns();
    status = sl_stream_put_start(stream, slot, flight);
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
        sl_stream_lose(stream);
        stream->plain_until = stream->n_begun + flight->n_ops;
        return 0;
    }
    mark_parts(stream, flight->n_ops);
    sl_stream_count_in(stream, flight);
    status = stream->backend->launch(stream->ctx, flight->piece->graph);
    if (status >= 0) {
        status = sl_stream_put_end(stream, flight);
    }
    if (status < 0) {
        sl_op_manager_fail(manager, slot, status);
        sl_stream_lose(stream);
    }
    return 1;
}

void sl_pieces_drop(sl_op_stream_t *stream)
{
    int i;

    for (i = 0; i < stream->n_pieces; i++) {
        if (stream->pieces[i].graph != NULL) {
            stream->backend->drop(stream->ctx, stream->pieces[i].graph);
        }
    }
    stream->n_pieces = 0;
}
