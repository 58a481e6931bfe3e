/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of ports. */
#include <stdlib.h>

#include "engine/world/world_internal.h"

enum {
    FIRST_ITEMS = 8
};

sl_status_t sl_outbox_push(sl_outbox_t *box, const sl_outgoing_t *item)
{
    if (box->n == box->n_items) {
        const size_t n_items = box->n_items == 0 ? FIRST_ITEMS : 2 * box->n;
        sl_outgoing_t *items = malloc(n_items * sizeof(*items));
        size_t i;

        if (items == NULL) {
            return SL_ERR_NO_MEMORY;
        }
        for (i = 0; i < box->n; i++) {
            items[i] = box->items[(box->first + i) % box->n_items];
        }
        free(box->items);
        box->items = items;
        box->n_items = n_items;
        box->first = 0;
    }
    box->items[(box->first + box->n) % box->n_items] = *item;
    box->n++;
    return SL_OK;
}

sl_outgoing_t sl_outbox_pop(sl_outbox_t *box)
{
    const sl_outgoing_t item = box->items[box->first];

    box->first = (box->first + 1) % box->n_items;
    box->n--;
    return item;
}

void sl_outbox_cleanup(sl_outbox_t *box)
{
    free(box->items);
    box->items = NULL;
    box->first = box->n = box->n_items = 0;
}

/* An empty message has one piece too. */
static size_t pieces_of(const sl_world_t *world, size_t bytes)
{
    const size_t piece_bytes = world->piece_bytes;

    return bytes == 0 ? 1 : (bytes - 1) / piece_bytes + 1;
}

sl_status_t sl_port_fit(sl_port_t *port, size_t max_bytes)
{
    const size_t n_pieces = pieces_of(port->world, max_bytes);
    int i;

    if (n_pieces != port->n_pieces) {
        for (i = 0; i < port->n_slots; i++) {
            sl_xfer_t *pieces = calloc(n_pieces, sizeof(*pieces));

            if (pieces == NULL) {
                port->n_pieces = 0; /* of no use until it fits again */
                return SL_ERR_NO_MEMORY;
            }
            free(port->slots[i].pieces);
            port->slots[i].pieces = pieces;
        }
    }
    port->n_pieces = n_pieces;
    port->max_bytes = max_bytes;
    return SL_OK;
}

sl_status_t sl_port_make(sl_world_t *world, const sl_port_t *like,
                         void *const *memory, sl_port_t **port_p)
{
    sl_port_t *port = calloc(1, sizeof(*port));
    sl_status_t status;
    int i;

    if (port == NULL) {
        goto fail;
    }
    port->world = world;
    port->peer = like->peer;
    port->tag = like->tag;
    port->is_sender = like->is_sender;
    port->n_slots = like->n_slots;
    port->events = like->events;
    port->slots = calloc((size_t)like->n_slots, sizeof(*port->slots));
    if (port->slots == NULL || sl_port_fit(port, like->max_bytes) < 0) {
        goto err_free;
    }
    for (i = 0; memory != NULL && i < port->n_slots; i++) {
        port->slots[i].memory = memory[i];
    }
    *port_p = port;
    return SL_OK;
err_free:
    sl_port_free(port);
fail:
    SL_FAIL(status, SL_ERR_NO_MEMORY, out,
            "port of rank %d and rank %d, tag %d: no host memory", world->rank,
            like->peer, like->tag);
out:
    return status;
}

static void forget_dirty(sl_port_t *port)
{
    sl_world_t *world = port->world;
    sl_port_t **at;

    (void)pthread_mutex_lock(&world->lock);
    for (at = &world->dirty; *at != NULL; at = &(*at)->next_dirty) {
        if (*at == port) {
            *at = port->next_dirty;
            break;
        }
    }
    (void)pthread_mutex_unlock(&world->lock);
}

void sl_port_free(sl_port_t *port)
{
    int i;

    if (port == NULL) {
        return;
    }
    forget_dirty(port);
    for (i = 0; port->slots != NULL && i < port->n_slots; i++) {
        free(port->slots[i].pieces);
    }
    free(port->slots);
    sl_outbox_cleanup(&port->queue);
    free(port);
}
