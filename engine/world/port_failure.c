/* SPDX-License-Identifier: Apache-2.0 */
/* Ports of a failed job: emptied, begun anew or ended. */
#include <string.h>

#include "engine/world/world_internal.h"

void sl_port_clear_queue(sl_port_t *port)
{
    (void)pthread_mutex_lock(&port->world->lock);
    port->queue.first = port->queue.n = 0;
    port->n_waiting = 0;
    (void)pthread_mutex_unlock(&port->world->lock);
}

void sl_port_finish_direct(sl_port_t *port, sl_status_t status,
                           const char *detail)
{
    sl_world_t *world = port->world;
    sl_request_t *direct = port->direct;

    if (direct == NULL) {
        return;
    }
    port->direct = NULL;
    world->n_direct--;
    if (world->is_aborted) {
        sl_request_finish(world, direct, SL_ERR_CANCELED, NULL);
    } else {
        sl_request_finish(world, direct, status, detail);
    }
}

static int is_drained(const sl_port_t *port)
{
    return port->n_started == port->n_ended && port->n_credits == 0 &&
           !port->has_next_room;
}

static void unlink_and_free(sl_port_t *port)
{
    sl_port_t **at = &port->world->peers[port->peer].ports;

    while (*at != port) {
        at = &(*at)->next;
    }
    *at = port->next;
    port->world->n_ports--;
    sl_port_free(port);
}

void sl_port_try_end(sl_port_t *port)
{
    sl_request_t *close = port->close;
    sl_world_t *world = port->world;

    if (port->has_user || port->n_started != port->n_ended) {
        return;
    }
    if (port->is_sender && close != NULL) {
        /* nothing reads the user's memory any more; the port itself stays
         * until the receiver has closed */
        port->close = NULL;
        sl_request_finish(world, close, SL_OK, "");
    }
    if (!is_drained(port)) {
        return;
    }
    if (port->is_sender && port->is_peer_done) {
        unlink_and_free(port);
    } else if (!port->is_sender && close != NULL && port->is_acked) {
        unlink_and_free(port);
        sl_request_finish(world, close, SL_OK, "");
    }
}

void sl_port_abort_all(sl_world_t *world)
{
    int peer;

    for (peer = 0; peer < world->size; peer++) {
        sl_port_t *port;

        for (port = world->peers[peer].ports; port != NULL; port = port->next) {
            const int is_not_begun = port->is_direct && port->queue.n > 0;

            sl_port_clear_queue(port);
            if (is_not_begun || (port->is_direct && is_drained(port))) {
                sl_port_finish_direct(port, SL_ERR_CANCELED, "");
            }
        }
        sl_port_pay_back(world, peer);
    }
}

void sl_port_pay_back(sl_world_t *world, int peer)
{
    sl_port_t *port;

    for (port = world->peers[peer].ports; port != NULL; port = port->next) {
        if (port->is_sender) {
            sl_port_progress(port);
        }
    }
}

static void drop_all(sl_port_t *port)
{
    sl_world_t *world = port->world;
    int i;

    for (i = 0; i < port->n_slots; i++) {
        sl_port_slot_t *slot = &port->slots[i];
        size_t piece;

        for (piece = 0; piece < port->n_pieces; piece++) {
            sl_xfer_t *xfer = &slot->pieces[piece];

            if (xfer->is_active) {
                world->link->ops->drop(world->link, xfer);
                xfer->is_active = 0;
                world->n_sending -= (uint64_t)port->is_sender;
            }
        }
        slot->n_open = 0;
    }
    port->n_credits = 0;
    port->has_next_room = 0;
    port->n_ended = port->n_started;
    port->is_acked = 1;
    sl_port_finish_direct(port, SL_ERR_CANCELED, "");
}

void sl_port_drop_peer(sl_world_t *world, int peer)
{
    sl_port_t *port = world->peers[peer].ports;

    while (port != NULL) {
        sl_port_t *next = port->next;

        drop_all(port);
        sl_port_try_end(port);
        port = next;
    }
}

int sl_port_all_drained(const sl_world_t *world)
{
    const sl_port_t *port;
    int peer;

    for (peer = 0; peer < world->size; peer++) {
        for (port = world->peers[peer].ports; port != NULL; port = port->next) {
            if (!is_drained(port)) {
                return 0;
            }
        }
    }
    return 1;
}

static void restart(sl_port_t *port)
{
    sl_world_t *world = port->world;

    sl_port_clear_queue(port);
    (void)pthread_mutex_lock(&world->lock);
    port->n_release_pending = 0;
    (void)pthread_mutex_unlock(&world->lock);
    port->n_started = port->n_ended = port->n_released = 0;
    if (port->is_sender && !port->has_user) {
        unlink_and_free(port);
    } else {
        sl_port_progress(port);
    }
}

void sl_port_restart_all(sl_world_t *world)
{
    int peer;

    for (peer = 0; peer < world->size; peer++) {
        sl_port_t *port = world->peers[peer].ports;

        while (port != NULL) {
            sl_port_t *next = port->next;

            restart(port);
            port = next;
        }
    }
}

void sl_port_free_all(sl_world_t *world)
{
    int peer;

    for (peer = 0; world->peers != NULL && peer < world->size; peer++) {
        while (world->peers[peer].ports != NULL) {
            sl_port_t *next = world->peers[peer].ports->next;

            sl_port_free(world->peers[peer].ports);
            world->peers[peer].ports = next;
        }
    }
}
