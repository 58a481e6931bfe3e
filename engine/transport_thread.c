/* SPDX-License-Identifier: Apache-2.0 */
/* Channels between cells that are threads of one process. */
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

static void announce(sl_abort_t *abort, int *flag)
{
    (void)pthread_mutex_lock(&abort->lock);
    *flag = 1;
    (void)pthread_cond_broadcast(&abort->changed);
    (void)pthread_mutex_unlock(&abort->lock);
}

/* Runs on the sender's device after the op that wrote the tensor. */
static sl_status_t op_publish(const void *args, void *stream)
{
    const sl_publish_args_t *publish = args;

    (void)stream;
    announce(publish->channel->abort,
             &publish->channel->messages[publish->m].is_ready);
    return SL_OK;
}

sl_status_t sl_thread_send(sl_channel_t *channel, sl_op_manager_t *ops, int m)
{
    const sl_publish_args_t args = {.channel = channel, .m = m};
    const sl_op_t op = {
        .fn = op_publish, .args = &args, .args_bytes = sizeof(args)};

    return ops == NULL ? op_publish(&args, NULL)
                       : sl_op_manager_submit(ops, &op, NULL);
}

/* Runs on the receiver's device. */
static sl_status_t op_take(const void *args, void *stream)
{
    const sl_take_args_t *take = args;

    (void)stream;
    memcpy(take->out, take->message->data, take->message->bytes);
    announce(take->abort, &take->message->is_taken);
    return SL_OK;
}

sl_status_t sl_thread_receive(sl_channel_t *channel, sl_op_manager_t *ops,
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

    if (ops == NULL) {
        announce(channel->abort, &message->is_taken);
        return SL_OK;
    }
    if (message->bytes != bytes) {
        SL_FAIL(status, SL_ERR_COMM, fail,
                "stage %d to %d, layer %d, message %d: %zu bytes sent, %zu "
                "expected",
                channel->from_stage, channel->to_stage, channel->layer, m,
                message->bytes, bytes);
    }
    return sl_op_manager_submit(ops, &op, NULL);
fail:
    return status;
}
