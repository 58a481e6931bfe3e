/* SPDX-License-Identifier: Apache-2.0 */
/* Channels: what is the same for both ways. */
#include "engine/transport.h"

#include <stdlib.h>

sl_status_t sl_channel_reset(sl_channel_t *channel, int n)
{
    sl_status_t status;
    int m;

    if (n > channel->n_messages) {
        sl_message_t *messages = calloc((size_t)n, sizeof(*messages));

        if (messages == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "channel %d to %d: no host memory for %d messages",
                    channel->from_cell, channel->to_cell, n);
        }
        free(channel->messages);
        channel->messages = messages;
        channel->n_messages = n;
    }
    for (m = 0; m < channel->n_messages; m++) {
        channel->messages[m].is_ready = 0;
        channel->messages[m].is_taken = 0;
    }
    return SL_OK;
out:
    return status;
}

void sl_channel_cleanup(sl_channel_t *channel)
{
    sl_channel_close(channel);
    free(channel->messages);
    channel->messages = NULL;
    channel->n_messages = 0;
}

/* ---- waiting ---- */

/* A rehearsal waits for nobody: its stages take turns. What comes from
 * another replica or rank is there at once. */
static int is_free(const sl_channel_t *channel, int waits)
{
    return channel->is_dry &&
           (waits || channel->peer >= 0 || channel->kind > SL_CHANNEL_BACKWARD);
}

/* With the abort's lock held. */
static int has_happened(const sl_channel_t *channel, int m,
                        sl_message_event_t event)
{
    if (channel->remote != NULL && !channel->is_dry) {
        return sl_remote_has_event(channel, m, event);
    }
    return event == SL_MESSAGE_READY ? channel->messages[m].is_ready
                                     : channel->messages[m].is_taken;
}

static int look(sl_channel_t *channel, int m, sl_message_event_t event)
{
    sl_abort_t *abort = channel->abort;
    int has;

    (void)pthread_mutex_lock(&abort->lock);
    has = has_happened(channel, m, event) || is_free(channel, 0);
    (void)pthread_mutex_unlock(&abort->lock);
    return has;
}

static sl_status_t await(sl_channel_t *channel, int m, sl_message_event_t event)
{
    sl_abort_t *abort = channel->abort;
    int has;

    if (is_free(channel, 1) || look(channel, m, event)) {
        return SL_OK;
    }
    sl_remote_expect(channel, 1);
    (void)pthread_mutex_lock(&abort->lock);
    while (!(has = has_happened(channel, m, event)) &&
           !sl_abort_is_set(abort)) {
        (void)pthread_cond_wait(&abort->changed, &abort->lock);
    }
    (void)pthread_mutex_unlock(&abort->lock);
    sl_remote_expect(channel, -1);
    return has ? SL_OK : SL_ERR_CANCELED;
}

sl_status_t sl_channel_wait(sl_channel_t *channel, int m)
{
    return await(channel, m, SL_MESSAGE_READY);
}

sl_status_t sl_channel_wait_taken(sl_channel_t *channel, int m)
{
    return await(channel, m, SL_MESSAGE_TAKEN);
}

int sl_channel_is_ready(sl_channel_t *channel, int m)
{
    return look(channel, m, SL_MESSAGE_READY);
}

int sl_channel_is_taken(sl_channel_t *channel, int m)
{
    return look(channel, m, SL_MESSAGE_TAKEN);
}

/* ---- messages ---- */

sl_status_t sl_channel_send(sl_channel_t *channel, sl_op_manager_t *ops, int m,
                            const void *data, size_t bytes)
{
    SL_ASSERT(m >= 0 && m < channel->n_messages);
    channel->messages[m].data = data;
    channel->messages[m].bytes = bytes;
    if (channel->peer >= 0) {
        return channel->is_dry ? SL_OK : sl_remote_send(channel, ops, m);
    }
    return sl_thread_send(channel, ops, m);
}

sl_status_t sl_channel_receive(sl_channel_t *channel, sl_op_manager_t *ops,
                               int m, void *out, size_t bytes,
                               sl_op_span_t *span)
{
    if (channel->peer >= 0) {
        return channel->is_dry
                   ? SL_OK
                   : sl_remote_receive(channel, ops, out, bytes, span);
    }
    return sl_thread_receive(channel, ops, m, out, bytes, span);
}

int sl_channel_can_lend(const sl_channel_t *channel)
{
    return channel->device_kind == SL_DEVICE_KIND_CPU;
}

sl_status_t sl_channel_borrow(sl_channel_t *channel, int m, size_t bytes,
                              const void **data_p)
{
    if (channel->is_dry) {
        *data_p = NULL;
        return SL_OK;
    }
    return channel->peer >= 0 ? sl_remote_borrow(channel, bytes, data_p)
                              : sl_thread_borrow(channel, m, bytes, data_p);
}

sl_status_t sl_channel_give_back(sl_channel_t *channel, sl_op_manager_t *ops,
                                 int m)
{
    if (channel->peer >= 0) {
        return channel->is_dry ? SL_OK : sl_remote_give_back(channel, ops);
    }
    return sl_thread_give_back(channel, ops, m);
}
