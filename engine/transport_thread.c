/* SPDX-License-Identifier: Apache-2.0 */
/* Channels between stages that are threads of one process. */
#include <stdlib.h>
#include <string.h>

#include "engine/transport.h"

typedef struct sl_publish_args {
    sl_channel_t *channel;
    int m;
} sl_publish_args_t;

typedef struct sl_take_args {
    sl_message_t *message;
    sl_abort_t *abort;
    void *out;
} sl_take_args_t;

sl_status_t sl_channel_reset(sl_channel_t *channel, int n)
{
    sl_status_t status;
    int m;

    if (n > channel->n_messages) {
        sl_message_t *messages = calloc((size_t)n, sizeof(*messages));

        if (messages == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "channel %d to %d: no host memory for %d messages",
                    channel->from_stage, channel->to_stage, n);
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
    free(channel->messages);
    channel->messages = NULL;
    channel->n_messages = 0;
}

typedef enum sl_message_event {
    MESSAGE_READY,
    MESSAGE_TAKEN
} sl_message_event_t;

static int *event_flag(sl_message_t *message, sl_message_event_t event)
{
    return event == MESSAGE_READY ? &message->is_ready : &message->is_taken;
}

static void announce(sl_abort_t *abort, sl_message_t *message,
                     sl_message_event_t event)
{
    (void)pthread_mutex_lock(&abort->lock);
    *event_flag(message, event) = 1;
    (void)pthread_cond_broadcast(&abort->changed);
    (void)pthread_mutex_unlock(&abort->lock);
}

static int has_event(sl_channel_t *channel, int m, sl_message_event_t event,
                     int waits)
{
    sl_abort_t *abort = channel->abort;
    const int *flag = event_flag(&channel->messages[m], event);
    int is_set;

    (void)pthread_mutex_lock(&abort->lock);
    while (waits && !*flag && !sl_abort_is_set(abort)) {
        (void)pthread_cond_wait(&abort->changed, &abort->lock);
    }
    is_set = *flag;
    (void)pthread_mutex_unlock(&abort->lock);
    return is_set;
}

sl_status_t sl_channel_wait(sl_channel_t *channel, int m)
{
    return has_event(channel, m, MESSAGE_READY, 1) ? SL_OK : SL_ERR_CANCELED;
}

sl_status_t sl_channel_wait_taken(sl_channel_t *channel, int m)
{
    return has_event(channel, m, MESSAGE_TAKEN, 1) ? SL_OK : SL_ERR_CANCELED;
}

int sl_channel_is_ready(sl_channel_t *channel, int m)
{
    return has_event(channel, m, MESSAGE_READY, 0);
}

int sl_channel_is_taken(sl_channel_t *channel, int m)
{
    return has_event(channel, m, MESSAGE_TAKEN, 0);
}

/* Runs on the sender's device after the op that wrote the tensor. */
static sl_status_t op_publish(const void *args, void *stream)
{
    const sl_publish_args_t *publish = args;

    (void)stream;
    announce(publish->channel->abort, &publish->channel->messages[publish->m],
             MESSAGE_READY);
    return SL_OK;
}

sl_status_t sl_channel_send(sl_channel_t *channel, sl_op_manager_t *ops, int m,
                            const void *data, size_t bytes)
{
    const sl_publish_args_t args = {.channel = channel, .m = m};
    const sl_op_t op = {
        .fn = op_publish, .args = &args, .args_bytes = sizeof(args)};

    SL_ASSERT(m >= 0 && m < channel->n_messages);
    channel->messages[m].data = data;
    channel->messages[m].bytes = bytes;
    return ops == NULL ? op_publish(&args, NULL)
                       : sl_op_manager_submit(ops, &op, NULL);
}

/* Runs on the receiver's device. */
static sl_status_t op_take(const void *args, void *stream)
{
    const sl_take_args_t *take = args;

    (void)stream;
    memcpy(take->out, take->message->data, take->message->bytes);
    announce(take->abort, take->message, MESSAGE_TAKEN);
    return SL_OK;
}

sl_status_t sl_channel_receive(sl_channel_t *channel, sl_op_manager_t *ops,
                               int m, void *out, size_t bytes,
                               sl_op_span_t *span)
{
    sl_message_t *message = &channel->messages[m];
    const sl_take_args_t args = {
        .message = message, .abort = channel->abort, .out = out};
    const sl_op_t op = {.fn = op_take,
                        .name_id = sl_op_manager_name(ops, "receive"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};
    sl_status_t status;

    if (message->bytes != bytes) {
        SL_FAIL(status, SL_ERR_COMM, fail,
                "stage %d to %d, layer %d, micro-batch %d: %zu bytes sent, "
                "%zu expected",
                channel->from_stage, channel->to_stage, channel->layer, m,
                message->bytes, bytes);
    }
    if (ops == NULL) {
        announce(channel->abort, message, MESSAGE_TAKEN);
        return SL_OK;
    }
    return sl_op_manager_submit(ops, &op, NULL);
fail:
    return status;
}
