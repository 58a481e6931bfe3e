/* SPDX-License-Identifier: Apache-2.0 */
/* Ports on the communication thread: credits, messages, opening, closing. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/world/world_internal.h"

static void add_relaxed(_Atomic uint64_t *counter, uint64_t n)
{
    (void)atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void append(sl_port_t *port)
{
    sl_port_t **at = &port->world->peers[port->peer].ports;

    while (*at != NULL) {
        at = &(*at)->next;
    }
    port->next = NULL;
    *at = port;
    port->world->n_ports++;
}

/* The port that a receiver's control messages mean: the first whose receiver
 * is not closed. */
static sl_port_t *find(sl_world_t *world, int peer, int tag, int is_sender)
{
    sl_port_t *port = world->peers[peer].ports;

    while (port != NULL && (port->tag != tag || port->is_sender != is_sender ||
                            port->is_peer_done)) {
        port = port->next;
    }
    return port;
}

/* ---- messages ---- */

static void begin_piece(sl_port_t *port, sl_port_slot_t *slot, size_t index,
                        size_t total_bytes)
{
    sl_world_t *world = port->world;
    sl_xfer_t *xfer = &slot->pieces[index];
    const size_t offset = index * world->piece_bytes;
    size_t bytes = total_bytes > offset ? total_bytes - offset : 0;
    sl_status_t status;

    if (bytes > world->piece_bytes) {
        bytes = world->piece_bytes;
    }
    *xfer = (sl_xfer_t){.port = port,
                        .message = port->n_started - 1,
                        .bytes = bytes,
                        .peer = port->peer,
                        .tag = port->tag,
                        .is_receive = !port->is_sender,
                        .is_active = 1};
    slot->n_open++;
    if (port->is_sender) {
        xfer->source = bytes == 0 ? "" : (const char *)slot->data + offset;
        world->n_sending++;
        status = world->link->ops->send(world->link, xfer);
    } else {
        xfer->target = (char *)slot->memory + (bytes == 0 ? 0 : offset);
        status = world->link->ops->receive(world->link, xfer);
    }
    if (status < 0) {
        xfer->is_active = 0; /* and its message stays open until the peer is
                                dropped */
        world->n_sending -= (uint64_t)port->is_sender;
        sl_world_on_lost(world, port->peer, sl_last_error());
    }
}

/* Slots' memory is n_pieces long on both sides, whatever the message. */
static void begin(sl_port_t *port, size_t bytes)
{
    sl_port_slot_t *slot =
        &port->slots[port->n_started % (uint64_t)port->n_slots];
    size_t i;

    slot->n_open = 0;
    port->n_started++;
    port->world->n_events++;
    for (i = 0; i < port->n_pieces; i++) {
        begin_piece(port, slot, i, bytes);
    }
}

static void begin_send(sl_port_t *port, const sl_outgoing_t *item)
{
    sl_port_slot_t *slot =
        &port->slots[port->n_started % (uint64_t)port->n_slots];

    port->n_credits--;
    slot->is_empty = item == NULL;
    slot->data = item == NULL ? NULL : item->data;
    slot->bytes = item == NULL ? 0 : item->bytes;
    slot->queued_ns = item == NULL ? 0 : item->queued_ns;
    begin(port, slot->bytes);
}

/* Whether the receiver has said that it drops what comes. */
static int is_paying_back(const sl_port_t *port)
{
    const sl_world_t *world = port->world;

    return port->is_peer_done ||
           (world->is_aborted &&
            world->peers[port->peer].aborted_epoch > world->epoch);
}

/* The next message, if there is one; counts those that wait for a slot. */
static int pop_next(sl_port_t *port, sl_outgoing_t *item)
{
    sl_world_t *world = port->world;
    int has_item = 0;

    (void)pthread_mutex_lock(&world->lock);
    if (port->n_credits > 0 && port->queue.n > 0) {
        *item = sl_outbox_pop(&port->queue);
        port->n_waiting -= port->n_waiting > 0;
        has_item = 1;
    } else if (port->n_credits == 0 && port->queue.n > port->n_waiting) {
        add_relaxed(&port->n_stalls, port->queue.n - port->n_waiting);
        port->n_waiting = port->queue.n;
    }
    (void)pthread_mutex_unlock(&world->lock);
    return has_item;
}

/* A put that is not what the get waits for: the get then sees it too. */
static int is_misfit(sl_port_t *port, const sl_outgoing_t *item)
{
    char text[SL_WORLD_DETAIL_BYTES];

    if (!port->is_direct || item->bytes == port->max_bytes) {
        return 0;
    }
    (void)snprintf(text, sizeof(text),
                   "rank %d sends %zu bytes where rank %d expects %zu",
                   port->world->rank, item->bytes, port->peer, port->max_bytes);
    begin_send(port, NULL);
    sl_port_finish_direct(port, SL_ERR_COMM, text);
    return 1;
}

/* A receiver may grant the next message before the last one of its slot has
 * left here. */
static int has_room(const sl_port_t *port)
{
    return port->n_started - port->n_ended < (uint64_t)port->n_slots;
}

/* The same of put and get, whose messages differ in size. */
static void take_next_room(sl_port_t *port)
{
    if (!port->has_next_room || port->n_started != port->n_ended) {
        return;
    }
    port->has_next_room = 0;
    if (sl_port_fit(port, port->next_room) < 0) {
        sl_failure_enter(port->world, SL_ERR_NO_MEMORY, port->world->rank, 0,
                         "no host memory for a message");
        return;
    }
    port->n_credits++;
}

static void progress_sender(sl_port_t *port)
{
    sl_outgoing_t item;

    take_next_room(port);
    while (has_room(port) && !port->world->is_aborted && !port->is_peer_done &&
           pop_next(port, &item)) {
        if (!is_misfit(port, &item)) {
            begin_send(port, &item);
        }
    }
    while (port->n_credits > 0 && has_room(port) && is_paying_back(port)) {
        begin_send(port, NULL);
    }
}

/* Posts what there is room for, then says so to the sender. */
static void progress_receiver(sl_port_t *port)
{
    const sl_world_t *world = port->world;
    sl_notice_t credit = {.kind = SL_NOTICE_CREDIT,
                          .tag = port->tag,
                          .bytes = port->max_bytes,
                          .n_slots = port->n_slots};

    if (port->is_direct || !port->has_user || world->is_aborted) {
        return;
    }
    while (port->n_started - port->n_released < (uint64_t)port->n_slots &&
           !world->peers[port->peer].is_gone) {
        begin(port, port->max_bytes);
        credit.n++;
    }
    if (credit.n > 0) {
        sl_notice_send(port->world, port->peer, &credit);
    }
}

void sl_port_progress(sl_port_t *port)
{
    if (port->is_sender) {
        progress_sender(port);
    } else {
        progress_receiver(port);
    }
}

/* ---- what has ended ---- */

static void on_sent(sl_port_t *port, uint64_t i, const sl_port_slot_t *slot)
{
    if (slot->is_empty) {
        return;
    }
    add_relaxed(&port->n_messages, 1);
    add_relaxed(&port->n_bytes, slot->bytes);
    add_relaxed(&port->latency_ns, sl_clock_ns() - slot->queued_ns);
    if (port->is_direct) {
        sl_port_finish_direct(port, SL_OK, "");
    } else if (port->has_user && !port->world->is_aborted &&
               port->events.on_message != NULL) {
        port->events.on_message(port->events.ctx, i, NULL, slot->bytes);
    }
}

static void on_direct_received(sl_port_t *port, size_t bytes)
{
    char text[SL_WORLD_DETAIL_BYTES];

    if (bytes == port->max_bytes) {
        sl_port_finish_direct(port, SL_OK, "");
        return;
    }
    (void)snprintf(text, sizeof(text),
                   "rank %d expects %zu bytes of rank %d, which sends %s",
                   port->world->rank, port->max_bytes, port->peer,
                   "another number");
    sl_port_finish_direct(port, SL_ERR_COMM, text);
}

static void on_received(sl_port_t *port, uint64_t i, const sl_port_slot_t *slot)
{
    size_t bytes = 0;
    size_t piece;

    for (piece = 0; piece < port->n_pieces; piece++) {
        bytes += slot->pieces[piece].bytes;
    }
    if (port->is_direct) {
        on_direct_received(port, bytes);
    } else if (port->has_user && !port->world->is_aborted) {
        add_relaxed(&port->n_messages, 1);
        add_relaxed(&port->n_bytes, bytes);
        if (port->events.on_message != NULL) {
            port->events.on_message(port->events.ctx, i, slot->memory, bytes);
        }
    }
}

void sl_world_on_xfer(sl_world_t *world, sl_xfer_t *xfer)
{
    sl_port_t *port = xfer->port;
    const uint64_t n_slots = (uint64_t)port->n_slots;

    xfer->is_active = 0;
    world->n_sending -= (uint64_t)port->is_sender;
    if (xfer->is_receive) {
        world->peers[port->peer].seen_ns = sl_clock_ns();
    }
    port->slots[xfer->message % n_slots].n_open--;
    while (port->n_ended < port->n_started &&
           port->slots[port->n_ended % n_slots].n_open == 0) {
        const uint64_t i = port->n_ended++;

        if (port->is_sender) {
            on_sent(port, i, &port->slots[i % n_slots]);
        } else {
            on_received(port, i, &port->slots[i % n_slots]);
        }
    }
    sl_port_progress(port);
    sl_port_try_end(port);
}

/* ---- the inbox ---- */

void sl_port_take_dirty(sl_port_t *dirty)
{
    for (; dirty != NULL; dirty = dirty->next_dirty) {
        dirty->is_dirty = 0;
        if (!dirty->world->is_aborted) {
            dirty->n_released += dirty->n_release_pending;
        }
        dirty->n_release_pending = 0;
        dirty->next_taken = dirty->next_dirty;
    }
}

void sl_port_progress_dirty(sl_port_t *dirty)
{
    while (dirty != NULL) {
        sl_port_t *next = dirty->next_taken;

        dirty->world->n_events++;
        if (dirty->is_sender && dirty->world->is_aborted) {
            sl_port_clear_queue(dirty);
        }
        sl_port_progress(dirty);
        dirty = next;
    }
}

/* ---- requests ---- */

/* A sender takes over what its receiver has made before. */
static sl_status_t adopt(sl_port_t *shadow, sl_port_t *port)
{
    sl_status_t status = SL_OK;

    if (shadow->n_slots != port->n_slots ||
        shadow->max_bytes != port->max_bytes) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "rank %d to rank %d, tag %d: %d slots of %zu bytes here, %d of "
                "%zu there",
                port->world->rank, port->peer, port->tag, port->n_slots,
                port->max_bytes, shadow->n_slots, shadow->max_bytes);
    }
    shadow->events = port->events;
    shadow->is_shadow = 0;
    shadow->has_user = 1;
out:
    return status;
}

void sl_port_on_open(sl_world_t *world, sl_request_t *request)
{
    sl_port_t *port = request->port;
    sl_port_t *old = find(world, port->peer, port->tag, port->is_sender);
    sl_status_t status = SL_OK;

    if (old != NULL && old->is_shadow) {
        status = adopt(old, port);
        sl_port_free(port);
        request->port = status < 0 ? NULL : old;
    } else if (old != NULL && (old->has_user || !old->is_sender)) {
        sl_port_free(port);
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "rank %d and rank %d: tag %d is open already", world->rank,
                old->peer, old->tag);
    } else {
        port->has_user = 1;
        append(port);
        sl_port_progress(port);
    }
out:
    sl_request_finish(world, request, status,
                      status < 0 ? sl_last_error() : "");
}

void sl_port_on_close(sl_world_t *world, sl_request_t *request)
{
    const sl_notice_t close = {.kind = SL_NOTICE_CLOSE,
                               .tag = request->port->tag};
    sl_port_t *port = request->port;

    port->has_user = 0;
    port->close = request;
    if (port->is_sender) {
        sl_port_clear_queue(port);
    } else if (world->peers[port->peer].is_gone) {
        port->is_acked = 1;
    } else {
        sl_notice_send(world, port->peer, &close);
    }
    sl_port_try_end(port);
}

static sl_port_t *direct_port(sl_world_t *world, int peer, int is_sender)
{
    const sl_port_t like = {.peer = peer,
                            .tag = SL_TAG_DIRECT,
                            .is_sender = is_sender,
                            .n_slots = 1};
    sl_port_t *port = find(world, peer, SL_TAG_DIRECT, is_sender);

    if (port == NULL && sl_port_make(world, &like, NULL, &port) == SL_OK) {
        port->has_user = port->is_direct = 1;
        append(port);
        world->n_ports--; /* none of a user */
    }
    return port;
}

/* Ends a request that cannot begin. */
static int is_refused(sl_world_t *world, sl_request_t *request,
                      const sl_port_t *port)
{
    if (world->is_aborted) {
        sl_request_finish(world, request, SL_ERR_CANCELED, NULL);
        return 1;
    }
    if (port == NULL) {
        sl_request_finish(world, request, SL_ERR_NO_MEMORY, sl_last_error());
        return 1;
    }
    if (port->direct != NULL) {
        sl_request_finish(world, request, SL_ERR_INVALID_ARG,
                          "two threads exchange with one rank at a time");
        return 1;
    }
    return 0;
}

void sl_port_on_put(sl_world_t *world, sl_request_t *request)
{
    const sl_outgoing_t item = {.data = request->source,
                                .bytes = request->bytes,
                                .queued_ns = sl_clock_ns()};
    sl_port_t *port =
        world->is_aborted ? NULL : direct_port(world, request->peer, 1);
    sl_status_t status;

    if (is_refused(world, request, port)) {
        return;
    }
    (void)pthread_mutex_lock(&world->lock);
    status = sl_outbox_push(&port->queue, &item);
    (void)pthread_mutex_unlock(&world->lock);
    if (status < 0) {
        sl_request_finish(world, request, status, "no host memory for a put");
        return;
    }
    port->direct = request;
    world->n_direct++;
    sl_port_progress(port);
}

void sl_port_on_get(sl_world_t *world, sl_request_t *request)
{
    const sl_notice_t credit = {.kind = SL_NOTICE_CREDIT,
                                .tag = SL_TAG_DIRECT,
                                .n = 1,
                                .n_slots = 1,
                                .bytes = request->bytes};
    sl_port_t *port =
        world->is_aborted ? NULL : direct_port(world, request->peer, 0);

    if (is_refused(world, request, port)) {
        return;
    }
    if (sl_port_fit(port, request->bytes) < 0) {
        sl_request_finish(world, request, SL_ERR_NO_MEMORY,
                          "no host memory for a get");
        return;
    }
    port->direct = request;
    world->n_direct++;
    port->slots[0].memory = request->target;
    begin(port, request->bytes);
    sl_notice_send(world, port->peer, &credit);
}

/* ---- what receivers say ---- */

static sl_port_t *make_shadow(sl_world_t *world, int from,
                              const sl_notice_t *control)
{
    const sl_port_t like = {.peer = from,
                            .tag = control->tag,
                            .is_sender = 1,
                            .n_slots = control->n_slots,
                            .max_bytes = control->bytes};
    sl_port_t *port = NULL;

    if (control->tag == SL_TAG_DIRECT) {
        return direct_port(world, from, 1);
    }
    if (control->n_slots > 0 &&
        sl_port_make(world, &like, NULL, &port) == SL_OK) {
        port->is_shadow = 1;
        append(port);
    }
    return port;
}

/* The port that the credit is for. Ends that do not fit fail the job, and the
 * credits go to a port of their own, which pays them back. */
static sl_port_t *fit(sl_port_t *port, const sl_notice_t *control)
{
    sl_world_t *world = port->world;
    char text[SL_WORLD_DETAIL_BYTES];

    if (port->is_direct || (port->n_slots == control->n_slots &&
                            port->max_bytes == control->bytes)) {
        return port;
    }
    (void)snprintf(text, sizeof(text),
                   "rank %d to rank %d, tag %d: %d slots of %zu bytes here, %d "
                   "of %llu there",
                   world->rank, port->peer, port->tag, port->n_slots,
                   port->max_bytes, control->n_slots,
                   (unsigned long long)control->bytes);
    port->is_peer_done = 1;
    sl_failure_enter(world, SL_ERR_INVALID_ARG, world->rank, 0, text);
    return make_shadow(world, port->peer, control);
}

void sl_port_on_credit(sl_world_t *world, int from, const sl_notice_t *control)
{
    sl_port_t *port = find(world, from, control->tag, 1);

    world->n_events++;
    port =
        port == NULL ? make_shadow(world, from, control) : fit(port, control);
    if (port == NULL) {
        sl_failure_enter(world, SL_ERR_NO_MEMORY, world->rank, 0,
                         "no host memory for a port");
        return;
    }
    if (port->is_direct) {
        port->has_next_room = 1;
        port->next_room = control->bytes;
    } else {
        port->n_credits += control->n;
    }
    sl_port_progress(port);
}

void sl_port_on_peer_close(sl_world_t *world, int from,
                           const sl_notice_t *control)
{
    const sl_notice_t ack = {.kind = SL_NOTICE_CLOSE_ACK, .tag = control->tag};
    sl_port_t *port = find(world, from, control->tag, 1);

    world->n_events++;
    if (port != NULL) {
        port->is_peer_done = 1;
        sl_port_progress(port);
        sl_port_try_end(port);
    }
    sl_notice_send(world, from, &ack);
}

void sl_port_on_close_ack(sl_world_t *world, int from,
                          const sl_notice_t *control)
{
    sl_port_t *port = find(world, from, control->tag, 0);

    world->n_events++;
    if (port != NULL) {
        port->is_acked = 1;
        sl_port_try_end(port);
    }
}
