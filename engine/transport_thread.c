/* SPDX-License-Identifier: Apache-2.0 */
/* Channels between cells that are threads of one process. */
#include "engine/device_ops.h"
#include "engine/transport.h"

typedef struct sl_announce_args {
    sl_abort_t *abort;
    int *flag;
} sl_announce_args_t;

static void announce(sl_abort_t *abort, int *flag)
{
    (void)pthread_mutex_lock(&abort->lock);
    *flag = 1;
    (void)pthread_cond_broadcast(&abort->changed);
    (void)pthread_mutex_unlock(&abort->lock);
}

static sl_status_t op_announce(const void *args, void *stream)
{
    const sl_announce_args_t *at = args;

    (void)stream;
    announce(at->abort, at->flag);
    return SL_OK;
}

/* Set a flag when all ops so far have run: on the sender's device the one that
 * wrote the tensor, on the receiver's the copy. */
static sl_status_t submit_announce(const sl_channel_t *channel,
                                   sl_op_manager_t *ops, int *flag)
{
    const sl_announce_args_t args = {.abort = channel->abort, .flag = flag};
    const sl_op_t op = {.fn = op_announce,
                        .is_host = 1,
                        .args = &args,
                        .args_bytes = sizeof(args)};

    return ops == NULL ? op_announce(&args, NULL)
                       : sl_op_manager_submit(ops, &op, NULL);
}

sl_status_t sl_thread_send(sl_channel_t *channel, sl_op_manager_t *ops, int m)
{
    return submit_announce(channel, ops, &channel->messages[m].is_ready);
}

static sl_status_t check_bytes(const sl_channel_t *channel, int m, size_t want)
{
    const size_t bytes = channel->messages[m].bytes;
    sl_status_t status = SL_OK;

    if (bytes != want) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "stage %d to %d, layer %d, message %d: %zu bytes sent, %zu "
                "expected",
                channel->from_stage, channel->to_stage, channel->layer, m,
                bytes, want);
    }
out:
    return status;
}

sl_status_t sl_thread_borrow(sl_channel_t *channel, int m, size_t bytes,
                             const void **data_p)
{
    sl_status_t status;

    SL_TRY(status, check_bytes(channel, m, bytes), out);
    *data_p = channel->messages[m].data;
out:
    return status;
}

sl_status_t sl_thread_give_back(sl_channel_t *channel, sl_op_manager_t *ops,
                                int m)
{
    return submit_announce(channel, ops, &channel->messages[m].is_taken);
}

sl_status_t sl_thread_receive(sl_channel_t *channel, sl_op_manager_t *ops,
                              int m, void *out, size_t bytes,
                              sl_op_span_t *span)
{
    sl_message_t *message = &channel->messages[m];
    const sl_copy_args_t args = {
        .dst = out, .src = message->data, .bytes = bytes};
    const sl_op_t op = {.fn = sl_device_kernels(channel->device_kind)->copy,
                        .name_id = sl_op_manager_name(ops, "receive"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};
    sl_status_t status;

    if (ops == NULL) {
        announce(channel->abort, &message->is_taken);
        return SL_OK;
    }
    SL_TRY(status, check_bytes(channel, m, bytes), fail);
    SL_TRY(status, sl_op_manager_submit(ops, &op, NULL), fail);
    status = submit_announce(channel, ops, &message->is_taken);
fail:
    return status;
}
