/* SPDX-License-Identifier: Apache-2.0 */
/* Channels to cells of other ranks, over ports (engine/world.h). Messages
 * carry no number: the n-th that is received is the n-th that was sent. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/transport.h"
#include "engine/world.h"

struct sl_remote {
    sl_world_t *world;
    sl_port_t *port;        /* NULL: dry */
    sl_mem_block_t **slots; /* receiver: owned, n_slots of them */
    void **slot_ptrs;       /* receiver: where they lie; owned */
    size_t *slot_bytes; /* receiver: of the message inside; owned; guarded by
                           the abort's lock */
    size_t max_bytes;
    sl_interval_t *log; /* sender: owned, of message i at i % SL_TRANSFER_LOG:
                           begun by the device, ended by the communication
                           thread */
    uint64_t n_events;  /* left or arrived; guarded likewise */
    uint64_t n_used;    /* sent or received by the executor */
};

typedef struct sl_leave_args {
    sl_port_t *port;
    sl_interval_t *log;
    const void *data;
    size_t bytes;
} sl_leave_args_t;

typedef struct sl_arrive_args {
    sl_port_t *port;
    const void *slot;
    void *out;
    size_t bytes;
} sl_arrive_args_t;

/* On the communication thread. */
static void on_message(void *ctx, uint64_t i, void *slot, size_t bytes)
{
    sl_channel_t *channel = ctx;
    struct sl_remote *remote = channel->remote;
    sl_abort_t *abort = channel->abort;

    (void)slot;
    (void)pthread_mutex_lock(&abort->lock);
    remote->n_events = i + 1;
    if (remote->log != NULL) {
        remote->log[i % SL_TRANSFER_LOG].end_ns = sl_clock_ns();
    }
    if (remote->slot_bytes != NULL) {
        remote->slot_bytes[i % (uint64_t)channel->n_slots] = bytes;
    }
    (void)pthread_cond_broadcast(&abort->changed);
    (void)pthread_mutex_unlock(&abort->lock);
}

int sl_remote_has_event(const sl_channel_t *channel, int m,
                        sl_message_event_t event)
{
    const struct sl_remote *remote = channel->remote;

    return remote->n_events > (event == SL_MESSAGE_READY
                                   ? remote->n_used
                                   : channel->messages[m].number);
}

void sl_remote_expect(const sl_channel_t *channel, int n)
{
    if (channel->remote != NULL) {
        sl_world_expect(channel->remote->world, n);
    }
}

/* ---- life ---- */

/* Slots never move: something may arrive in them at any time. */
static sl_status_t make_slots(const sl_channel_t *channel, sl_device_t *device)
{
    struct sl_remote *remote = channel->remote;
    const size_t n = (size_t)channel->n_slots;
    sl_status_t status = SL_OK;
    size_t i;

    remote->slots = calloc(n, sizeof(sl_mem_block_t *));
    remote->slot_ptrs = calloc(n, sizeof(void *));
    remote->slot_bytes = calloc(n, sizeof(size_t));
    if (remote->slots == NULL || remote->slot_ptrs == NULL ||
        remote->slot_bytes == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "channel %d to %d: no host memory for %zu slots",
                channel->from_cell, channel->to_cell, n);
    }
    for (i = 0; i < n; i++) {
        SL_TRY(status,
               sl_mem_alloc(device->mem, SL_MEM_CLASS_COMM, remote->max_bytes,
                            &remote->slots[i]),
               out);
        sl_mem_pin(remote->slots[i]);
        remote->slot_ptrs[i] = remote->slots[i]->ptr;
    }
out:
    return status;
}

static sl_status_t make_log(const sl_channel_t *channel)
{
    sl_status_t status = SL_OK;

    channel->remote->log =
        calloc(SL_TRANSFER_LOG, sizeof(*channel->remote->log));
    if (channel->remote->log == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "channel %d to %d: no host memory for times",
                channel->from_cell, channel->to_cell);
    }
out:
    return status;
}

static sl_status_t open_port(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;
    const sl_port_events_t events = {.on_message = on_message, .ctx = channel};

    return channel->is_sender
               ? sl_port_open_send(remote->world, channel->peer, channel->tag,
                                   channel->n_slots, remote->max_bytes, &events,
                                   &remote->port)
               : sl_port_open_receive(remote->world, channel->peer,
                                      channel->tag, channel->n_slots,
                                      remote->max_bytes, remote->slot_ptrs,
                                      &events, &remote->port);
}

sl_status_t sl_channel_reserve(sl_channel_t *channel, sl_world_t *world,
                               sl_device_t *device, size_t max_bytes)
{
    sl_status_t status;

    if (channel->peer < 0 || max_bytes == 0) {
        return SL_OK;
    }
    channel->remote = calloc(1, sizeof(*channel->remote));
    if (channel->remote == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "channel %d to %d: no host memory", channel->from_cell,
                channel->to_cell);
    }
    channel->remote->world = world;
    channel->remote->max_bytes = max_bytes;
    if (!channel->is_sender) {
        SL_TRY(status, make_slots(channel, device), err_close);
    } else if (!channel->is_dry) {
        SL_TRY(status, make_log(channel), err_close);
    }
    return SL_OK;

err_close:
    sl_channel_close(channel);
out:
    return status;
}

sl_status_t sl_channel_open(sl_channel_t *channel)
{
    return channel->remote == NULL || channel->is_dry ? SL_OK
                                                      : open_port(channel);
}

void sl_channel_close(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;
    int i;

    if (remote == NULL) {
        return;
    }
    sl_port_close(remote->port);
    for (i = 0; remote->slots != NULL && i < channel->n_slots; i++) {
        sl_mem_release(remote->slots[i]);
    }
    free(remote->slots);
    free(remote->slot_ptrs);
    free(remote->slot_bytes);
    free(remote->log);
    free(remote);
    channel->remote = NULL;
}

int sl_channel_stats(const sl_channel_t *channel, sl_port_stats_t *stats_p)
{
    const int is_open =
        channel->remote != NULL && channel->remote->port != NULL;

    if (is_open) {
        sl_port_stats(channel->remote->port, stats_p);
    }
    return is_open;
}

int sl_channel_transfer(const sl_channel_t *channel, uint64_t i,
                        sl_interval_t *interval_p)
{
    const struct sl_remote *remote = channel->remote;
    uint64_t n = 0, first;

    if (remote == NULL || remote->log == NULL) {
        return 0;
    }
    (void)pthread_mutex_lock(&channel->abort->lock);
    n = remote->n_events;
    first = n > SL_TRANSFER_LOG ? n - SL_TRANSFER_LOG : 0;
    if (first + i < n) {
        *interval_p = remote->log[(first + i) % SL_TRANSFER_LOG];
    }
    (void)pthread_mutex_unlock(&channel->abort->lock);
    return first + i < n;
}

void sl_channel_recover(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;

    if (remote != NULL) {
        (void)pthread_mutex_lock(&channel->abort->lock);
        remote->n_events = 0;
        remote->n_used = 0;
        (void)pthread_mutex_unlock(&channel->abort->lock);
    }
}

/* ---- messages ---- */

static sl_status_t op_leave(const void *args, void *stream)
{
    const sl_leave_args_t *leave = args;

    (void)stream;
    leave->log->start_ns = sl_clock_ns();
    sl_port_send(leave->port, leave->data, leave->bytes);
    return SL_OK;
}

static sl_status_t op_arrive(const void *args, void *stream)
{
    const sl_arrive_args_t *arrive = args;

    (void)stream;
    memcpy(arrive->out, arrive->slot, arrive->bytes);
    sl_port_release(arrive->port);
    return SL_OK;
}

static sl_status_t check_bytes(const sl_channel_t *channel, size_t bytes,
                               size_t want)
{
    sl_status_t status = SL_OK;

    if (bytes != want) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "stage %d to %d of rank %d, layer %d: a message of %zu bytes, "
                "%zu expected",
                channel->from_stage, channel->to_stage, channel->peer,
                channel->layer, bytes, want);
    }
out:
    return status;
}

sl_status_t sl_remote_send(sl_channel_t *channel, sl_op_manager_t *ops, int m)
{
    struct sl_remote *remote = channel->remote;
    sl_message_t *message = &channel->messages[m];
    const sl_leave_args_t args = {
        .port = remote->port,
        .log = &remote->log[remote->n_used % SL_TRANSFER_LOG],
        .data = message->data,
        .bytes = message->bytes};
    const sl_op_t op = {
        .fn = op_leave, .args = &args, .args_bytes = sizeof(args)};
    sl_status_t status;

    if (message->bytes > remote->max_bytes) {
        SL_TRY(status, check_bytes(channel, message->bytes, remote->max_bytes),
               out);
    }
    message->number = remote->n_used++;
    status = sl_op_manager_submit(ops, &op, NULL);
out:
    return status;
}

sl_status_t sl_remote_receive(sl_channel_t *channel, sl_op_manager_t *ops,
                              void *out, size_t bytes, sl_op_span_t *span)
{
    struct sl_remote *remote = channel->remote;
    const uint64_t slot = remote->n_used % (uint64_t)channel->n_slots;
    const sl_arrive_args_t args = {.port = remote->port,
                                   .slot = remote->slot_ptrs[slot],
                                   .out = out,
                                   .bytes = bytes};
    const sl_op_t op = {.fn = op_arrive,
                        .name_id = sl_op_manager_name(ops, "receive"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};
    sl_status_t status;
    size_t arrived;

    (void)pthread_mutex_lock(&channel->abort->lock);
    arrived = remote->slot_bytes[slot];
    (void)pthread_mutex_unlock(&channel->abort->lock);
    SL_TRY(status, check_bytes(channel, arrived, bytes), fail);
    remote->n_used++;
    status = sl_op_manager_submit(ops, &op, NULL);
fail:
    return status;
}
