/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of devices with memory of their own, over the world's ports: through
 * pinned host memory on both sides, or, where the MPI below knows that memory,
 * from device to device. */
#include "engine/device_ops.h"
#include "engine/transport_ways.h"

/* ---- staged ---- */

static size_t slot_bytes(const struct sl_remote *remote)
{
    return (remote->max_bytes + SL_MEM_ALIGN_BYTES - 1) / SL_MEM_ALIGN_BYTES *
           SL_MEM_ALIGN_BYTES;
}

static void *pinned_slot(const struct sl_remote *remote, size_t slot)
{
    return (char *)remote->pinned + slot * slot_bytes(remote);
}

/* Host memory is not counted as the device's. */
static sl_status_t staged_open(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;
    const size_t n = (size_t)channel->n_slots;
    sl_status_t status = SL_OK;
    size_t i;

    if (channel->is_dry) {
        return SL_OK;
    }
    SL_TRY(status,
           sl_device_host_alloc(remote->device, n * slot_bytes(remote),
                                &remote->pinned),
           out);
    for (i = 0; !channel->is_sender && i < n; i++) {
        remote->slot_ptrs[i] = pinned_slot(remote, i);
    }
out:
    return status;
}

static void staged_close(sl_channel_t *channel)
{
    sl_device_host_release(channel->remote->device, channel->remote->pinned);
}

/* Wait until what was in the slot of message `number` before it has left. */
static sl_status_t await_slot(sl_channel_t *channel, uint64_t number)
{
    const struct sl_remote *remote = channel->remote;
    const uint64_t n_slots = (uint64_t)channel->n_slots;
    sl_abort_t *abort = channel->abort;
    int has;

    (void)pthread_mutex_lock(&abort->lock);
    has = remote->n_events + n_slots > number;
    (void)pthread_mutex_unlock(&abort->lock);
    if (has) {
        return SL_OK;
    }
    sl_remote_expect(channel, 1);
    (void)pthread_mutex_lock(&abort->lock);
    while (!(has = remote->n_events + n_slots > number) &&
           !sl_abort_is_set(abort)) {
        (void)pthread_cond_wait(&abort->changed, &abort->lock);
    }
    (void)pthread_mutex_unlock(&abort->lock);
    sl_remote_expect(channel, -1);
    return has ? SL_OK : SL_ERR_CANCELED;
}

static sl_status_t staged_send(sl_channel_t *channel, sl_op_manager_t *ops,
                               int m)
{
    const struct sl_remote *remote = channel->remote;
    const sl_message_t *message = &channel->messages[m];
    void *slot = pinned_slot(remote, sl_remote_slot(channel, message->number));
    const sl_copy_args_t args = {
        .dst = slot, .src = message->data, .bytes = message->bytes};
    const sl_op_t op = {.fn = sl_device_kernels(remote->device->kind)->copy,
                        .is_send = 1, /* lent, and so left alone till taken */
                        .name_id = sl_op_manager_name(ops, "send"),
                        .args = &args,
                        .args_bytes = sizeof(args)};
    sl_status_t status;

    SL_TRY(status, await_slot(channel, message->number), out);
    SL_TRY(status, sl_op_manager_submit(ops, &op, NULL), out);
    status = sl_remote_submit_leave(channel, ops, slot, message->bytes);
out:
    return status;
}

const sl_remote_way_t sl_remote_way_staged = {
    .size = sizeof(sl_remote_way_t),
    .name = "staged",
    .open = staged_open,
    .close = staged_close,
    .open_port = sl_remote_open_port,
    .send = staged_send,
    .receive = sl_remote_copy_out,
};

/* ---- cuda-aware ---- */

static sl_status_t aware_open(sl_channel_t *channel)
{
    return channel->is_sender ? SL_OK : sl_remote_make_blocks(channel);
}

static void aware_close(sl_channel_t *channel)
{
    (void)channel;
}

/* The library reads the tensor at any time from now on. */
static sl_status_t aware_send(sl_channel_t *channel, sl_op_manager_t *ops,
                              int m)
{
    return sl_remote_submit_leave(channel, ops, channel->messages[m].data,
                                  channel->messages[m].bytes);
}

const sl_remote_way_t sl_remote_way_cuda_aware = {
    .size = sizeof(sl_remote_way_t),
    .name = "cuda-aware",
    .open = aware_open,
    .close = aware_close,
    .open_port = sl_remote_open_port,
    .send = aware_send,
    .receive = sl_remote_copy_out,
};
