/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file op_stream_internal.h
 * Ops in flight on a device beside the host, private to op_stream.c (the
 * window, start and end of each), op_time.c (when they ran) and op_piece.c
 * (runs of ops launched as one). The device's thread alone uses it.
 */
#ifndef SL_SCHEDULER_OP_STREAM_INTERNAL_H
#define SL_SCHEDULER_OP_STREAM_INTERNAL_H

#include "scheduler/op_manager_internal.h"

enum {
    SL_MARK_NONE = -1,
    SL_MAX_PIECES = 256
};

typedef enum sl_flight_kind {
    SL_FLIGHT_DEVICE,  /* queued, with marks around it */
    SL_FLIGHT_PART,    /* queued within the one before it */
    SL_FLIGHT_HOST,    /* to be called when all before it have ended */
    SL_FLIGHT_SKIPPED, /* after a failure */
} sl_flight_kind_t;

/* A run of ops that was captured once. */
typedef struct sl_op_piece {
    uint64_t key; /* of the slots */
    void *graph;  /* the backend's; NULL = none yet */
    double mean_ns;
    int is_refused; /* something in it cannot be captured */
} sl_op_piece_t;

/* An op between its start and its end; its slot of the ring is not reused
 * before. */
typedef struct sl_flight {
    sl_flight_kind_t kind;
    sl_op_queue_t queue;
    int is_gated;
    int is_yielding;
    int first, last;    /* marks */
    double cost_ns;     /* expected */
    double expected_ns; /* of it, taken out of the share's bucket */
    double mean_ns;     /* of its name when it started; 0 = not known */
    uint64_t queued_ns;
    uint64_t n_ops; /* that run as one, this one the first */
    double part_ns; /* its part of their time, in proportion */
    sl_op_piece_t *piece;
    sl_status_t seen; /* of the mark behind it; SL_INPROGRESS = look again */
} sl_flight_t;

typedef struct sl_op_stream {
    sl_op_manager_t *manager;
    const sl_op_backend_t *backend;
    void *ctx;
    sl_flight_t *flights; /* as the slots of the ring */
    uint64_t n_begun;     /* ops, retired ones too */
    uint64_t n_done;
    int n_units; /* in flight, a run of ops counted once */
    int n_marks;
    int mark;      /* the newest */
    int joint;     /* behind the newest op; NONE = not where the next starts */
    int last_mark; /* behind the op retired last, at last_ns; or NONE */
    uint64_t last_ns;
    /* in flight on the main queue */
    int n_running;
    int n_unknown; /* of them, with no mean */
    double running_ns;
    uint64_t busy_ns; /* of ops that have ended */
    int is_lost;      /* those in flight have ended, with no times */
    int wants_op;     /* one could start, but none is there */
    /* runs of ops */
    sl_op_piece_t pieces[SL_MAX_PIECES];
    int n_pieces;
    uint64_t plain_until;   /* ops before it go one by one */
    uint64_t shown_busy_ns; /* guarded by the manager's lock */
} sl_op_stream_t;

static inline int sl_stream_is_failed(const sl_op_stream_t *stream)
{
    return atomic_load_explicit(&stream->manager->failure,
                                memory_order_relaxed) != SL_OK;
}

static inline const sl_op_slot_t *sl_stream_slot(const sl_op_stream_t *stream,
                                                 uint64_t op)
{
    return &stream->manager->ring[op & (stream->manager->n_slots - 1)];
}

static inline sl_flight_t *sl_stream_flight(const sl_op_stream_t *stream,
                                            uint64_t op)
{
    return &stream->flights[op & (stream->manager->n_slots - 1)];
}

/** The device has failed, or says so once: what is in flight ends without
 *  times, so that nobody waits for it. */
void sl_stream_lose(sl_op_stream_t *stream);

/** Marks around what is queued between the two calls. */
SL_NODISCARD sl_status_t sl_stream_put_start(sl_op_stream_t *stream,
                                             const sl_op_slot_t *slot,
                                             sl_flight_t *flight);
SL_NODISCARD sl_status_t sl_stream_put_end(sl_op_stream_t *stream,
                                           sl_flight_t *flight);

/* ---- times (op_time.c) ---- */

/** It is in flight from now on. */
void sl_stream_count_in(sl_op_stream_t *stream, const sl_flight_t *flight);

/** From marks to the clock of the host: by way of the op before, between the
 *  moment when it was handed over and now. */
SL_NODISCARD sl_status_t sl_stream_measure(sl_op_stream_t *stream,
                                           const sl_flight_t *flight,
                                           uint64_t *start_p, uint64_t *end_p);

/** The oldest in flight has ended: meters, statistics, spans and share. */
void sl_stream_count_out(sl_op_stream_t *stream, sl_flight_t *flight,
                         uint64_t start_ns, uint64_t end_ns);

void sl_op_span_add(sl_op_span_t *span, uint64_t start_ns, uint64_t end_ns);

/* ---- runs of ops (op_piece.c) ---- */

/** How many ops from the next one on may be launched as one: 1 = it alone.
 *  @param[out] piece_p what is known of the run; NULL = go one by one */
uint64_t sl_piece_find(sl_op_stream_t *stream, const sl_op_slot_t *slot,
                       sl_op_piece_t **piece_p);

/** Capture and launch; 0 = nothing was queued and its ops are to go one by
 *  one. */
int sl_piece_begin(sl_op_stream_t *stream, sl_flight_t *flight);

void sl_pieces_drop(sl_op_stream_t *stream);

#endif /* SL_SCHEDULER_OP_STREAM_INTERNAL_H */
