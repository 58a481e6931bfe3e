/* SPDX-License-Identifier: Apache-2.0 */
/* Channels to cells of other ranks, over ports (engine/world.h): what all ways
 * share, and that of devices that use host memory. Messages carry no number:
 * the n-th that is received is the n-th that was sent. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/device_ops.h"
#include "engine/transport_ways.h"

/* Kinds that are not built have no devices. */
static const sl_remote_way_t *const ways[SL_DEVICE_N_KINDS][SL_TRANSPORT_N] = {
    [SL_DEVICE_KIND_CPU] = {[SL_TRANSPORT_AUTO] = &sl_remote_way_host,
                            [SL_TRANSPORT_STAGED] = &sl_remote_way_staged},
    [SL_DEVICE_KIND_CUDA] = {
        [SL_TRANSPORT_AUTO] = &sl_remote_way_staged,
        [SL_TRANSPORT_STAGED] = &sl_remote_way_staged,
        [SL_TRANSPORT_CUDA_AWARE] = &sl_remote_way_cuda_aware,
#if SL_HAVE_CUDA
        [SL_TRANSPORT_NCCL] = &sl_remote_way_nccl,
#endif
    }};

const char *sl_transport_name(sl_transport_t transport)
{
    static const char *const names[SL_TRANSPORT_N] = {
        [SL_TRANSPORT_AUTO] = "auto",
        [SL_TRANSPORT_STAGED] = "staged",
        [SL_TRANSPORT_CUDA_AWARE] = "cuda-aware",
        [SL_TRANSPORT_NCCL] = "nccl"};

    return names[transport];
}

/* ---- events ---- */

void sl_remote_advance(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;
    sl_abort_t *abort = channel->abort;

    (void)pthread_mutex_lock(&abort->lock);
    if (remote->log != NULL) {
        remote->log[remote->n_events % SL_TRANSFER_LOG].end_ns = sl_clock_ns();
    }
    remote->n_events++;
    (void)pthread_cond_broadcast(&abort->changed);
    (void)pthread_mutex_unlock(&abort->lock);
}

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
        remote->slot_bytes[sl_remote_slot(channel, i)] = bytes;
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

size_t sl_remote_slot(const sl_channel_t *channel, uint64_t number)
{
    return (size_t)(number % (uint64_t)channel->n_slots);
}

/* ---- life ---- */

/* Slots never move: something may arrive in them at any time. */
sl_status_t sl_remote_make_blocks(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;
    const size_t n = (size_t)channel->n_slots;
    sl_status_t status = SL_OK;
    size_t i;

    remote->slots = calloc(n, sizeof(sl_mem_block_t *));
    if (remote->slots == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "channel %d to %d: no host memory for %zu slots",
                channel->from_cell, channel->to_cell, n);
    }
    for (i = 0; i < n; i++) {
        SL_TRY(status,
               sl_mem_alloc(remote->device->mem, SL_MEM_CLASS_COMM,
                            remote->max_bytes, &remote->slots[i]),
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

sl_status_t sl_remote_open_port(sl_channel_t *channel)
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

static sl_status_t make_remote(sl_channel_t *channel, sl_world_t *world,
                               sl_device_t *device, size_t max_bytes)
{
    const size_t n = (size_t)channel->n_slots;
    struct sl_remote *remote = calloc(1, sizeof(*remote));
    sl_status_t status = SL_OK;

    channel->remote = remote;
    if (remote != NULL && !channel->is_sender) {
        remote->slot_ptrs = calloc(n, sizeof(void *));
        remote->slot_bytes = calloc(n, sizeof(size_t));
    }
    if (remote == NULL ||
        (!channel->is_sender &&
         (remote->slot_ptrs == NULL || remote->slot_bytes == NULL))) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "channel %d to %d: no host memory", channel->from_cell,
                channel->to_cell);
    }
    remote->way = ways[device->kind][channel->transport];
    remote->world = world;
    remote->device = device;
    remote->max_bytes = max_bytes;
    if (remote->way == NULL) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "channel %d to %d: devices such as %s have no transport '%s'",
                channel->from_cell, channel->to_cell, device->name,
                sl_transport_name(channel->transport));
    }
out:
    return status;
}

sl_status_t sl_channel_reserve(sl_channel_t *channel, sl_world_t *world,
                               sl_device_t *device, size_t max_bytes)
{
    sl_status_t status;

    if (channel->peer < 0 || max_bytes == 0) {
        return SL_OK;
    }
    SL_TRY(status, make_remote(channel, world, device, max_bytes), err_close);
    SL_TRY(status, channel->remote->way->open(channel), err_close);
    if (channel->is_sender && !channel->is_dry) {
        SL_TRY(status, make_log(channel), err_close);
    }
    return SL_OK;

err_close:
    sl_channel_close(channel);
    return status;
}

sl_status_t sl_channel_open(sl_channel_t *channel)
{
    return channel->remote == NULL || channel->is_dry
               ? SL_OK
               : channel->remote->way->open_port(channel);
}

void sl_channel_close(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;
    int i;

    if (remote == NULL) {
        return;
    }
    sl_port_close(remote->port);
    if (remote->way != NULL) {
        remote->way->close(channel);
    }
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
    const struct sl_remote *remote = channel->remote;
    const int is_open = remote != NULL && remote->port != NULL;

    if (is_open) {
        sl_port_stats(remote->port, stats_p);
        stats_p->n_bytes =
            atomic_load_explicit(&remote->n_bytes, memory_order_relaxed);
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
    return first + i < n && interval_p->start_ns != 0;
}

void sl_channel_recover(sl_channel_t *channel)
{
    struct sl_remote *remote = channel->remote;

    if (remote != NULL) {
        (void)pthread_mutex_lock(&channel->abort->lock);
        remote->n_events = 0;
        remote->n_used = 0;
        (void)pthread_mutex_unlock(&channel->abort->lock);
        if (remote->way->recover != NULL) {
            remote->way->recover(channel);
        }
    }
}

/* ---- messages ---- */

typedef struct sl_leave_args {
    sl_port_t *port;
    sl_interval_t *log;
    const void *data;
    size_t bytes;
} sl_leave_args_t;

static sl_status_t op_leave(const void *args, void *stream)
{
    const sl_leave_args_t *leave = args;

    (void)stream;
    leave->log->start_ns = sl_clock_ns();
    sl_port_send(leave->port, leave->data, leave->bytes);
    return SL_OK;
}

static sl_status_t op_release(const void *args, void *stream)
{
    sl_port_t *const *port = args;

    (void)stream;
    sl_port_release(*port);
    return SL_OK;
}

sl_status_t sl_remote_submit_leave(const sl_channel_t *channel,
                                   sl_op_manager_t *ops, const void *data,
                                   size_t bytes)
{
    struct sl_remote *remote = channel->remote;
    const uint64_t number = remote->n_used - 1; /* send has counted it */
    const sl_leave_args_t args = {.port = remote->port,
                                  .log = &remote->log[number % SL_TRANSFER_LOG],
                                  .data = data,
                                  .bytes = bytes};
    const sl_op_t op = {.fn = op_leave,
                        .is_host = 1,
                        .args = &args,
                        .args_bytes = sizeof(args)};

    return sl_op_manager_submit(ops, &op, NULL);
}

sl_status_t sl_remote_submit_release(const sl_channel_t *channel,
                                     sl_op_manager_t *ops)
{
    sl_port_t *const port = channel->remote->port;
    const sl_op_t op = {.fn = op_release,
                        .is_host = 1,
                        .args = &port,
                        .args_bytes = sizeof(port)};

    return sl_op_manager_submit(ops, &op, NULL);
}

sl_status_t sl_remote_copy_out(sl_channel_t *channel, sl_op_manager_t *ops,
                               const sl_op_t *op, size_t slot)
{
    sl_op_t copy = *op;
    sl_status_t status;

    (void)slot;
    copy.fn = sl_device_kernels(channel->remote->device->kind)->copy;
    SL_TRY(status, sl_op_manager_submit(ops, &copy, NULL), out);
    status = sl_remote_submit_release(channel, ops);
out:
    return status;
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

static void count_bytes(struct sl_remote *remote, size_t bytes)
{
    (void)atomic_fetch_add_explicit(&remote->n_bytes, bytes,
                                    memory_order_relaxed);
}

sl_status_t sl_remote_send(sl_channel_t *channel, sl_op_manager_t *ops, int m)
{
    struct sl_remote *remote = channel->remote;
    sl_message_t *message = &channel->messages[m];
    sl_status_t status;

    if (message->bytes > remote->max_bytes) {
        SL_TRY(status, check_bytes(channel, message->bytes, remote->max_bytes),
               out);
    }
    message->number = remote->n_used++;
    SL_TRY(status, remote->way->send(channel, ops, m), out);
    count_bytes(remote, message->bytes);
out:
    return status;
}

/* The slot of the next message, which counts as received. */
static sl_status_t next_slot(sl_channel_t *channel, size_t bytes,
                             size_t *slot_p)
{
    struct sl_remote *remote = channel->remote;
    const size_t slot = sl_remote_slot(channel, remote->n_used);
    sl_status_t status;
    size_t arrived;

    (void)pthread_mutex_lock(&channel->abort->lock);
    arrived = remote->slot_bytes[slot];
    (void)pthread_mutex_unlock(&channel->abort->lock);
    SL_TRY(status, check_bytes(channel, arrived, bytes), out);
    remote->n_used++;
    count_bytes(remote, bytes);
    *slot_p = slot;
out:
    return status;
}

sl_status_t sl_remote_receive(sl_channel_t *channel, sl_op_manager_t *ops,
                              void *out, size_t bytes, sl_op_span_t *span)
{
    struct sl_remote *remote = channel->remote;
    sl_copy_args_t args = {.dst = out, .bytes = bytes};
    const sl_op_t op = {.name_id = sl_op_manager_name(ops, "receive"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};
    sl_status_t status;
    size_t slot;

    SL_TRY(status, next_slot(channel, bytes, &slot), fail);
    args.src = remote->slot_ptrs[slot];
    status = remote->way->receive(channel, ops, &op, slot);
fail:
    return status;
}

sl_status_t sl_remote_borrow(sl_channel_t *channel, size_t bytes,
                             const void **data_p)
{
    sl_status_t status;
    size_t slot;

    SL_TRY(status, next_slot(channel, bytes, &slot), out);
    *data_p = channel->remote->slot_ptrs[slot];
out:
    return status;
}

sl_status_t sl_remote_give_back(const sl_channel_t *channel,
                                sl_op_manager_t *ops)
{
    return sl_remote_submit_release(channel, ops);
}

/* ---- devices that use host memory ---- */

static sl_status_t host_open(sl_channel_t *channel)
{
    return channel->is_sender ? SL_OK : sl_remote_make_blocks(channel);
}

static void host_close(sl_channel_t *channel)
{
    (void)channel;
}

static sl_status_t host_send(sl_channel_t *channel, sl_op_manager_t *ops, int m)
{
    return sl_remote_submit_leave(channel, ops, channel->messages[m].data,
                                  channel->messages[m].bytes);
}

typedef struct sl_arrive_args {
    sl_copy_args_t copy;
    sl_port_t *port;
} sl_arrive_args_t;

static sl_status_t op_arrive(const void *args, void *stream)
{
    const sl_arrive_args_t *arrive = args;

    (void)stream;
    memcpy(arrive->copy.dst, arrive->copy.src, arrive->copy.bytes);
    sl_port_release(arrive->port);
    return SL_OK;
}

/* Copy and release in one op. */
static sl_status_t host_receive(sl_channel_t *channel, sl_op_manager_t *ops,
                                const sl_op_t *op, size_t slot)
{
    const sl_arrive_args_t args = {.copy = *(const sl_copy_args_t *)op->args,
                                   .port = channel->remote->port};
    sl_op_t arrive = *op;

    (void)slot;
    arrive.fn = op_arrive;
    arrive.args = &args;
    arrive.args_bytes = sizeof(args);
    return sl_op_manager_submit(ops, &arrive, NULL);
}

const sl_remote_way_t sl_remote_way_host = {
    .size = sizeof(sl_remote_way_t),
    .name = "host",
    .open = host_open,
    .close = host_close,
    .open_port = sl_remote_open_port,
    .send = host_send,
    .receive = host_receive,
};
