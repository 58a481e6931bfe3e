/* SPDX-License-Identifier: Apache-2.0 */
/* Channels over a lane: headers on the channel's port, slots on the device. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/nccl/nccl_internal.h"

/* ---- headers, on the communication thread ---- */

/* Sender: the receiver has a slot for the oldest, so it may go. */
static void on_left(void *ctx, uint64_t i, void *slot, size_t bytes)
{
    sl_channel_t *channel = ctx;
    sl_nccl_end_t *end = sl_nccl_end(channel);
    sl_nccl_t *nccl = channel->nccl;
    sl_message_t *message;

    (void)i;
    (void)slot;
    (void)bytes;
    (void)pthread_mutex_lock(&nccl->lock);
    message = end->sent;
    end->sent = message->next;
    if (end->sent == NULL) {
        end->sent_end = &end->sent;
    }
    message->next = NULL;
    *end->lane->ready_end = message;
    end->lane->ready_end = &message->next;
    (void)pthread_cond_broadcast(&nccl->changed);
    (void)pthread_mutex_unlock(&nccl->lock);
}

/* Receiver: how large the next tensor is. */
static void on_header(void *ctx, uint64_t i, void *slot, size_t bytes)
{
    sl_channel_t *channel = ctx;
    sl_nccl_end_t *end = sl_nccl_end(channel);
    sl_nccl_t *nccl = channel->nccl;

    (void)bytes;
    (void)pthread_mutex_lock(&channel->abort->lock);
    channel->remote->slot_bytes[sl_remote_slot(channel, i)] =
        (size_t) * (const uint64_t *)slot;
    (void)pthread_mutex_unlock(&channel->abort->lock);
    (void)pthread_mutex_lock(&nccl->lock);
    end->n_headers = i + 1;
    (void)pthread_cond_broadcast(&nccl->changed);
    (void)pthread_mutex_unlock(&nccl->lock);
}

/* ---- life ---- */

/* Let notices find the channel. */
static sl_status_t enlist(sl_channel_t *channel, sl_lane_t *lane)
{
    sl_nccl_t *nccl = lane->nccl;
    const size_t n = (size_t)channel->tag + 1;
    sl_status_t status = SL_OK;

    (void)pthread_mutex_lock(&nccl->lock);
    if (n > lane->n_channels) {
        sl_channel_t **channels =
            realloc(lane->channels, n * sizeof(*channels));

        if (channels == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out, "nccl: no host memory");
        }
        memset(channels + lane->n_channels, 0,
               (n - lane->n_channels) * sizeof(*channels));
        lane->channels = channels;
        lane->n_channels = n;
    }
    lane->channels[channel->tag] = channel;
out:
    (void)pthread_mutex_unlock(&nccl->lock);
    return status;
}

static sl_lane_t *lane_of(const sl_channel_t *channel)
{
    const int own = sl_world_rank(channel->remote->world);
    const sl_lane_key_t key = {
        .from_rank = channel->is_sender ? own : channel->peer,
        .from_device = channel->from_device,
        .to_rank = channel->is_sender ? channel->peer : own,
        .to_device = channel->to_device};

    return sl_nccl_find(channel->nccl, &key);
}

static sl_status_t make_end(sl_channel_t *channel)
{
    const size_t n = (size_t)channel->n_slots;
    sl_nccl_end_t *end = calloc(1, sizeof(*end));
    sl_status_t status = SL_OK;
    size_t i;

    channel->remote->own = end;
    if (end != NULL) {
        end->sent_end = &end->sent;
        end->sizes = calloc(n, sizeof(*end->sizes));
        end->size_ptrs = calloc(n, sizeof(*end->size_ptrs));
    }
    if (end == NULL || end->sizes == NULL || end->size_ptrs == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "channel %d to %d: no host memory", channel->from_cell,
                channel->to_cell);
    }
    for (i = 0; i < n; i++) {
        end->size_ptrs[i] = &end->sizes[i];
    }
    end->lane = lane_of(channel);
    if (end->lane == NULL) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "channel %d to %d: no communicator with rank %d",
                channel->from_cell, channel->to_cell, channel->peer);
    }
    status = channel->is_sender ? SL_OK : enlist(channel, end->lane);
out:
    return status;
}

static sl_status_t nccl_open(sl_channel_t *channel)
{
    sl_status_t status = SL_OK;

    if (!channel->is_sender) {
        SL_TRY(status, sl_remote_make_blocks(channel), out);
    }
    if (!channel->is_dry) {
        status = make_end(channel);
    }
out:
    return status;
}

static void nccl_close(sl_channel_t *channel)
{
    sl_nccl_end_t *end = channel->remote->own;

    if (end == NULL) {
        return;
    }
    if (end->lane != NULL && !channel->is_sender &&
        (size_t)channel->tag < end->lane->n_channels) {
        (void)pthread_mutex_lock(&channel->nccl->lock);
        end->lane->channels[channel->tag] = NULL;
        (void)pthread_mutex_unlock(&channel->nccl->lock);
    }
    free(end->sizes);
    free(end->size_ptrs);
    free(end);
    channel->remote->own = NULL;
}

static sl_status_t nccl_open_port(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;
    const sl_nccl_end_t *end = sl_nccl_end(channel);
    const sl_port_events_t events = {
        .on_message = channel->is_sender ? on_left : on_header, .ctx = channel};

    return channel->is_sender
               ? sl_port_open_send(remote->world, channel->peer, channel->tag,
                                   channel->n_slots, sizeof(uint64_t), &events,
                                   &remote->port)
               : sl_port_open_receive(remote->world, channel->peer,
                                      channel->tag, channel->n_slots,
                                      sizeof(uint64_t), end->size_ptrs, &events,
                                      &remote->port);
}

static void nccl_recover(sl_channel_t *channel)
{
    sl_nccl_end_t *end = channel->remote->own;

    if (end != NULL) {
        (void)pthread_mutex_lock(&channel->nccl->lock);
        end->n_headers = end->n_posted = 0;
        end->sent = NULL;
        end->sent_end = &end->sent;
        (void)pthread_mutex_unlock(&channel->nccl->lock);
    }
}

/* ---- ops ---- */

static sl_status_t op_ready(const void *args, void *stream)
{
    sl_message_t *message = *(sl_message_t *const *)args;
    sl_channel_t *channel = message->channel;
    sl_nccl_end_t *end = sl_nccl_end(channel);

    (void)stream;
    channel->remote->log[message->number % SL_TRANSFER_LOG].start_ns =
        sl_clock_ns();
    (void)pthread_mutex_lock(&channel->nccl->lock);
    message->next = NULL;
    *end->sent_end = message;
    end->sent_end = &message->next;
    (void)pthread_mutex_unlock(&channel->nccl->lock);
    sl_port_send(channel->remote->port, &message->wire_bytes,
                 sizeof(message->wire_bytes));
    return SL_OK;
}

static sl_status_t nccl_send(sl_channel_t *channel, sl_op_manager_t *ops, int m)
{
    sl_message_t *message = &channel->messages[m];
    const sl_op_t op = {.fn = op_ready,
                        .is_host = 1,
                        .name_id = sl_op_manager_name(ops, "send"),
                        .args = &message,
                        .args_bytes = sizeof(message)};

    message->channel = channel;
    message->wire_bytes = message->bytes;
    return sl_op_manager_submit(ops, &op, NULL);
}

const sl_remote_way_t sl_remote_way_nccl = {
    .size = sizeof(sl_remote_way_t),
    .name = "nccl",
    .open = nccl_open,
    .close = nccl_close,
    .open_port = nccl_open_port,
    .send = nccl_send,
    .receive = sl_remote_copy_out,
    .recover = nccl_recover,
};
