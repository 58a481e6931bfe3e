/* SPDX-License-Identifier: Apache-2.0 */
/* Ports as other threads see them. */
#include <stdint.h>

#include "base/clock.h"
#include "engine/world/world_internal.h"

static sl_status_t check(const sl_world_t *world, const sl_port_t *like)
{
    sl_status_t status = SL_OK;

    if (world == NULL || like->peer < 0 || like->peer >= world->size ||
        like->peer == world->rank) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "port: rank %d of %d has no other rank %d",
                sl_world_rank(world), sl_world_size(world), like->peer);
    }
    if (like->tag < 0 || like->tag > SL_WORLD_MAX_TAG || like->n_slots < 1 ||
        like->max_bytes > PTRDIFF_MAX) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "port to rank %d: tag %d (0 to %d), %d slots of %zu bytes",
                like->peer, like->tag, SL_WORLD_MAX_TAG, like->n_slots,
                like->max_bytes);
    }
out:
    return status;
}

static sl_status_t open_port(sl_world_t *world, const sl_port_t *like,
                             void *const *slots, sl_port_t **port_p)
{
    sl_request_t request = {.kind = SL_REQUEST_OPEN};
    sl_status_t status;

    SL_TRY(status, check(world, like), out);
    SL_TRY(status, sl_port_make(world, like, slots, &request.port), out);
    sl_world_request(world, &request);
    SL_TRY(status, request.status, out);
    *port_p = request.port;
out:
    return status;
}

sl_status_t sl_port_open_send(sl_world_t *world, int peer, int tag, int n_slots,
                              size_t max_bytes, const sl_port_events_t *events,
                              sl_port_t **port_p)
{
    const sl_port_t like = {.peer = peer,
                            .tag = tag,
                            .is_sender = 1,
                            .n_slots = n_slots,
                            .max_bytes = max_bytes,
                            .events = events == NULL ? (sl_port_events_t){0}
                                                     : *events};

    return open_port(world, &like, NULL, port_p);
}

sl_status_t sl_port_open_receive(sl_world_t *world, int peer, int tag,
                                 int n_slots, size_t max_bytes,
                                 void *const *slots,
                                 const sl_port_events_t *events,
                                 sl_port_t **port_p)
{
    const sl_port_t like = {.peer = peer,
                            .tag = tag,
                            .n_slots = n_slots,
                            .max_bytes = max_bytes,
                            .events = events == NULL ? (sl_port_events_t){0}
                                                     : *events};
    sl_status_t status;

    if (slots == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "port from rank %d, tag %d: no slots", peer, tag);
    }
    return open_port(world, &like, slots, port_p);
out:
    return status;
}

/* With the lock held. */
static void mark_dirty(sl_port_t *port)
{
    sl_world_t *world = port->world;

    if (!port->is_dirty) {
        port->is_dirty = 1;
        port->next_dirty = world->dirty;
        world->dirty = port;
    }
}

void sl_port_send(sl_port_t *port, const void *data, size_t bytes)
{
    const sl_outgoing_t item = {
        .data = data, .bytes = bytes, .queued_ns = sl_clock_ns()};
    sl_world_t *world = port->world;
    sl_status_t status = SL_OK;

    if (bytes > port->max_bytes) {
        sl_world_abort(world, SL_ERR_INVALID_ARG,
                       "a message is larger than its port allows");
        return;
    }
    (void)pthread_mutex_lock(&world->lock);
    if (!world->is_failed) {
        status = sl_outbox_push(&port->queue, &item);
        mark_dirty(port);
    }
    (void)pthread_mutex_unlock(&world->lock);
    if (status < 0) {
        sl_world_abort(world, status, "no host memory for a message");
    } else {
        sl_world_wake(world);
    }
}

void sl_port_release(sl_port_t *port)
{
    sl_world_t *world = port->world;

    (void)pthread_mutex_lock(&world->lock);
    if (!world->is_failed) {
        port->n_release_pending++;
        mark_dirty(port);
    }
    (void)pthread_mutex_unlock(&world->lock);
    sl_world_wake(world);
}

void sl_port_close(sl_port_t *port)
{
    sl_request_t request = {.kind = SL_REQUEST_CLOSE, .port = port};

    if (port != NULL) {
        sl_world_request(port->world, &request);
    }
}

static uint64_t read_relaxed(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void sl_port_stats(const sl_port_t *port, sl_port_stats_t *stats_p)
{
    *stats_p = (sl_port_stats_t){.peer = port->peer,
                                 .tag = port->tag,
                                 .is_sender = port->is_sender,
                                 .n_messages = read_relaxed(&port->n_messages),
                                 .n_bytes = read_relaxed(&port->n_bytes),
                                 .latency_ns = read_relaxed(&port->latency_ns),
                                 .n_stalls = read_relaxed(&port->n_stalls)};
}
