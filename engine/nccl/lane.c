/* SPDX-License-Identifier: Apache-2.0 */
/* One lane: groups of tensors, the same on both sides. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/nccl/nccl_internal.h"
#include "memory/cuda.h"

sl_status_t sl_lane_enter(const sl_lane_t *lane)
{
    return SL_CUDA(cudaSetDevice(lane->gpu));
}

sl_status_t sl_lane_explain(const sl_lane_t *lane, sl_status_t status)
{
    const char *last = ncclGetLastError(lane->comm);
    char detail[SL_ERROR_DETAIL_BYTES];

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    sl_fail_record(0, __FILE__, __LINE__, "nccl %s rank %d (gpu %d): %s%s%s",
                   lane->is_sender ? "to" : "from", lane->peer, lane->gpu,
                   detail, last == NULL || last[0] == '\0' ? "" : "; ",
                   last == NULL ? "" : last);
    return status;
}

/* ---- what is next ---- */

static const sl_lane_notice_t *next_notice(const sl_lane_t *lane)
{
    return &lane->notices[lane->n_queued % SL_LANE_NOTICES];
}

/* The headers of all that a notice names are there. They were before it, but
 * on other ports. */
static int has_headers(const sl_lane_t *lane, const sl_lane_notice_t *notice)
{
    int i, j;

    for (i = 0; i < notice->n && i < SL_LANE_GROUP; i++) {
        const size_t tag = notice->tags[i];
        const sl_nccl_end_t *end;
        uint64_t n = 1;

        if (tag >= lane->n_channels || lane->channels[tag] == NULL) {
            return 1; /* an error, found when it is taken */
        }
        for (j = 0; j < i; j++) {
            n += notice->tags[j] == notice->tags[i];
        }
        end = sl_nccl_end(lane->channels[tag]);
        if (end->n_headers < end->n_posted + n) {
            return 0;
        }
    }
    return 1;
}

int sl_lane_has_work(const sl_lane_t *lane)
{
    if (lane->is_sender) {
        /* the port's memory of that notice is ours again */
        return lane->ready != NULL &&
               lane->n_queued < lane->n_notices + SL_LANE_NOTICES;
    }
    return lane->n_notices > lane->n_queued &&
           has_headers(lane, next_notice(lane));
}

/* Sender, lock held: what is ready, and the notice that says so. */
static void take_ready(sl_lane_t *lane, sl_lane_group_t *group)
{
    sl_lane_notice_t *notice = &lane->notices[lane->n_queued % SL_LANE_NOTICES];

    while (lane->ready != NULL && group->n < SL_LANE_GROUP) {
        sl_message_t *message = lane->ready;
        const sl_channel_t *channel = message->channel;

        lane->ready = message->next;
        if (lane->ready == NULL) {
            lane->ready_end = &lane->ready;
        }
        notice->tags[group->n] = (uint16_t)channel->tag;
        group->items[group->n].channel = message->channel;
        group->items[group->n].memory = (void *)(uintptr_t)message->data;
        group->items[group->n].bytes = message->bytes;
        group->n++;
    }
    notice->n = (uint16_t)group->n;
}

/* Receiver, lock held. */
static sl_status_t take_notice(sl_lane_t *lane, sl_lane_group_t *group)
{
    const sl_lane_notice_t *notice = next_notice(lane);
    sl_status_t status = SL_OK;

    while (group->n < notice->n && group->n < SL_LANE_GROUP) {
        const size_t tag = notice->tags[group->n];
        sl_channel_t *channel =
            tag < lane->n_channels ? lane->channels[tag] : NULL;
        sl_nccl_end_t *end;
        size_t slot;

        if (channel == NULL) {
            SL_FAIL(status, SL_ERR_COMM, out,
                    "rank %d announces a tensor on channel %zu, which is not "
                    "open",
                    lane->peer, tag);
        }
        end = sl_nccl_end(channel);
        slot = sl_remote_slot(channel, end->n_posted++);
        group->items[group->n].channel = channel;
        group->items[group->n].memory = channel->remote->slot_ptrs[slot];
        group->items[group->n].bytes = (size_t)end->sizes[slot];
        if (end->sizes[slot] > channel->remote->max_bytes) {
            SL_FAIL(status, SL_ERR_COMM, out,
                    "rank %d announces %" PRIu64 " bytes where %zu is the most",
                    lane->peer, end->sizes[slot], channel->remote->max_bytes);
        }
        group->n++;
    }
out:
    return status;
}

/* ---- launching ---- */

static sl_status_t call_each(const sl_lane_group_t *group)
{
    const sl_lane_t *lane = group->lane;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < group->n && status >= 0; i++) {
        void *memory = group->items[i].memory;
        const size_t bytes = group->items[i].bytes;

        /* both are rank 0 and 1 of their communicator */
        status = lane->is_sender ? SL_NCCL(ncclSend(memory, bytes, ncclUint8, 1,
                                                    lane->comm, lane->stream))
                                 : SL_NCCL(ncclRecv(memory, bytes, ncclUint8, 0,
                                                    lane->comm, lane->stream));
    }
    return status;
}

static sl_status_t launch(const sl_lane_group_t *group)
{
    sl_status_t status;

    SL_TRY(status, SL_NCCL(ncclGroupStart()), out);
    status = call_each(group);
    if (status < 0) {
        char detail[SL_ERROR_DETAIL_BYTES];

        /* the group ends in any case; the first reason counts */
        (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
        (void)ncclGroupEnd();
        sl_last_error_set(detail);
        return status;
    }
    status = SL_NCCL(ncclGroupEnd());
out:
    return status;
}

/* A thread of the CUDA runtime: the group has ended on the device. */
static void on_end(void *arg)
{
    sl_lane_group_t *group = arg;
    sl_lane_t *lane = group->lane;
    sl_nccl_t *nccl = lane->nccl;
    int i;

    for (i = 0; i < group->n; i++) {
        sl_remote_advance(group->items[i].channel);
    }
    free(group);
    (void)pthread_mutex_lock(&nccl->lock);
    lane->n_ended++;
    if (nccl->is_paused || nccl->is_stopping) {
        (void)pthread_cond_broadcast(&nccl->changed);
    }
    (void)pthread_mutex_unlock(&nccl->lock);
}

/* The group is in the stream: behind it what tells of its end. */
static sl_status_t follow_group(sl_lane_t *lane)
{
    sl_status_t status;

    SL_TRY(status,
           SL_CUDA(cudaLaunchHostFunc(lane->stream, on_end, lane->launching)),
           out);
    lane->launching = NULL;
    lane->state = SL_LANE_IDLE;
out:
    return status;
}

/* Without the lock. */
static sl_status_t start_group(sl_lane_t *lane)
{
    sl_lane_group_t *group = lane->launching;
    sl_status_t status;

    SL_TRY(status, sl_lane_enter(lane), out);
    SL_TRY(status, launch(group), out);
    if (status == SL_OK) {
        status = follow_group(lane);
    }
out:
    return status;
}

/* The other side learns of a group before it is queued here, and queues its
 * own in any case: so the counts of both are equal unless one has failed. */
sl_status_t sl_lane_begin(sl_lane_t *lane)
{
    sl_nccl_t *nccl = lane->nccl;
    sl_lane_group_t *group = calloc(1, sizeof(*group));
    const uint64_t i = lane->n_queued;
    sl_status_t status = SL_OK;

    if (group == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a group");
    }
    group->lane = lane;
    lane->launching = group;
    lane->state = SL_LANE_LAUNCHING;
    lane->since_ns = sl_clock_ns();
    if (lane->is_sender) {
        take_ready(lane, group);
    } else {
        SL_TRY(status, take_notice(lane, group), out);
    }
    lane->n_queued++;
    (void)pthread_mutex_unlock(&nccl->lock);
    if (lane->is_sender) {
        sl_port_send(lane->port, &lane->notices[i % SL_LANE_NOTICES],
                     sizeof(lane->notices[0]));
    } else {
        sl_port_release(lane->port);
    }
    status = start_group(lane);
    (void)pthread_mutex_lock(&nccl->lock);
out:
    return status;
}

/* ---- while it runs ---- */

static sl_status_t async_status(const sl_lane_t *lane)
{
    ncclResult_t result = ncclSuccess;
    sl_status_t status;

    SL_TRY(status, SL_NCCL(ncclCommGetAsyncError(lane->comm, &result)), out);
    status =
        sl_nccl_status((int)result, lane->is_sender ? "ncclSend" : "ncclRecv",
                       __FILE__, __LINE__);
out:
    return status;
}

static sl_status_t check_time(const sl_lane_t *lane)
{
    const uint64_t stuck_ns = lane->nccl->params.stuck_ns;
    sl_status_t status = SL_OK;

    if (sl_clock_ns() - lane->since_ns > stuck_ns) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "a transfer has not ended for %.3g s; the other side's device "
                "does not go on",
                (double)stuck_ns * 1e-9);
    }
out:
    return status;
}

sl_status_t sl_lane_poll(sl_lane_t *lane)
{
    sl_status_t status = async_status(lane);

    if (status == SL_INPROGRESS) {
        return check_time(lane);
    }
    SL_TRY(status, status, out);
    SL_TRY(status, sl_lane_enter(lane), out);
    status = follow_group(lane);
out:
    return status;
}

sl_status_t sl_lane_check(sl_lane_t *lane)
{
    sl_status_t status = async_status(lane);

    return status < 0 ? status : check_time(lane);
}
