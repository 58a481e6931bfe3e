/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes and their communicators. All ranks take the lanes in one order, so
 * that the identities, which pass from rank to rank, never wait in a ring. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/nccl/nccl_internal.h"
#include "memory/cuda.h"

enum {
    MAX_DEVICES = 16, /* of a rank; squared: SL_NCCL_LANES */
    POLL_NS = 200000
};

int sl_lane_key_compare(const void *a, const void *b)
{
    const sl_lane_key_t *x = a, *y = b;

    if (x->from_rank != y->from_rank) {
        return x->from_rank < y->from_rank ? -1 : 1;
    }
    if (x->to_rank != y->to_rank) {
        return x->to_rank < y->to_rank ? -1 : 1;
    }
    return x->from_device != y->from_device ? x->from_device - y->from_device
                                            : x->to_device - y->to_device;
}

/* ---- lanes ---- */

/* On the communication thread. */
static void on_notice(void *ctx, uint64_t i, void *slot, size_t bytes)
{
    sl_lane_t *lane = ctx;
    sl_nccl_t *nccl = lane->nccl;

    (void)slot;
    (void)bytes;
    (void)pthread_mutex_lock(&nccl->lock);
    lane->n_notices = i + 1;
    (void)pthread_cond_broadcast(&nccl->changed);
    (void)pthread_mutex_unlock(&nccl->lock);
}

static sl_status_t open_port(sl_lane_t *lane)
{
    const sl_port_events_t events = {.on_message = on_notice, .ctx = lane};
    const int tag = SL_WORLD_MAX_TAG - lane->key.from_device * MAX_DEVICES -
                    lane->key.to_device;
    sl_world_t *world = lane->nccl->params.world;
    void *slots[SL_LANE_NOTICES];
    int i;

    for (i = 0; i < SL_LANE_NOTICES; i++) {
        slots[i] = &lane->notices[i];
    }
    return lane->is_sender
               ? sl_port_open_send(world, lane->peer, tag, SL_LANE_NOTICES,
                                   sizeof(lane->notices[0]), &events,
                                   &lane->port)
               : sl_port_open_receive(world, lane->peer, tag, SL_LANE_NOTICES,
                                      sizeof(lane->notices[0]), slots, &events,
                                      &lane->port);
}

static sl_status_t add_lane(sl_nccl_t *nccl, const sl_lane_key_t *key)
{
    const int is_sender = key->from_rank == nccl->rank;
    const int device = is_sender ? key->from_device : key->to_device;
    sl_lane_t **at = &nccl->lanes;
    sl_lane_t *lane;
    sl_status_t status;

    if (key->from_device >= MAX_DEVICES || key->to_device >= MAX_DEVICES) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "nccl: device %d of a rank; at most %d are supported",
                key->from_device > key->to_device ? key->from_device
                                                  : key->to_device,
                (int)MAX_DEVICES);
    }
    lane = calloc(1, sizeof(*lane));
    if (lane == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "nccl: no host memory");
    }
    lane->nccl = nccl;
    lane->key = *key;
    lane->is_sender = is_sender;
    lane->peer = is_sender ? key->to_rank : key->from_rank;
    lane->gpu = nccl->params.devices->devices[device].gpu;
    lane->ready_end = &lane->ready;
    SL_TRY(status, sl_lane_enter(lane), err_free);
    SL_TRY(status,
           SL_CUDA(
               cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking)),
           err_free);
    SL_TRY(status, open_port(lane), err_stream);
    while (*at != NULL && sl_lane_key_compare(&(*at)->key, key) < 0) {
        at = &(*at)->next;
    }
    lane->next = *at;
    *at = lane;
    return SL_OK;

err_stream:
    (void)cudaStreamDestroy(lane->stream);
err_free:
    free(lane);
out:
    return status;
}

/* ---- communicators ---- */

sl_status_t sl_nccl_agree(sl_world_t *world, sl_status_t own)
{
    double n_failed = own < 0;
    char detail[SL_ERROR_DETAIL_BYTES];
    sl_status_t status;

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    SL_TRY(status, sl_world_sum(world, &n_failed, 1), out);
    if (own < 0) {
        sl_last_error_set(detail);
        return own;
    }
    if (n_failed > 0) {
        /* they say why */
        SL_REFUSE(status, SL_ERR_CANCELED, out,
                  "nccl: it cannot be used on %g other rank(s)", n_failed);
    }
out:
    return status;
}

/* From the sender to the receiver, whatever has failed before. */
static sl_status_t share_id(sl_lane_t *lane)
{
    sl_world_t *world = lane->nccl->params.world;
    sl_lane_hello_t *hello = &lane->hello;
    sl_status_t status;

    if (!lane->is_sender) {
        SL_TRY(status, sl_world_get(world, lane->peer, hello, sizeof(*hello)),
               out);
        if (hello->status < 0) {
            /* it says why */
            SL_REFUSE(status, SL_ERR_CANCELED, out,
                      "nccl: rank %d cannot make a communicator", lane->peer);
        }
        return SL_OK;
    }
    memset(hello, 0, sizeof(*hello));
    hello->status = (int32_t)SL_NCCL(ncclGetUniqueId(&hello->id));
    SL_TRY(status, sl_world_put(world, lane->peer, hello, sizeof(*hello)), out);
    status = (sl_status_t)hello->status;
out:
    return status;
}

static sl_status_t begin_meeting(sl_lane_t *lane)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    sl_status_t status;

    SL_TRY(status, sl_lane_enter(lane), out);
    config.blocking = 0;
    SL_TRY(status,
           SL_NCCL(ncclCommInitRankConfig(&lane->comm, 2, lane->hello.id,
                                          lane->is_sender ? 0 : 1, &config)),
           out);
    lane->state = SL_LANE_MEETING;
    lane->since_ns = sl_clock_ns();
    lane->nccl->n_made++;
out:
    return status;
}

static void pause_a_little(void)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};

    (void)nanosleep(&pause, NULL);
}

/* Wait for what NCCL does beside its call. */
static sl_status_t await_comm(const sl_lane_t *lane, uint64_t limit_ns,
                              const char *call)
{
    const uint64_t start_ns = sl_clock_ns();
    ncclResult_t result = ncclInProgress;
    sl_status_t status;

    for (;;) {
        SL_TRY(status, SL_NCCL(ncclCommGetAsyncError(lane->comm, &result)),
               out);
        status = sl_nccl_status((int)result, call, __FILE__, __LINE__);
        if (status != SL_INPROGRESS) {
            break;
        }
        if (sl_world_has_failed(lane->nccl->params.world)) {
            SL_REFUSE(status, SL_ERR_CANCELED, out,
                      "nccl: another rank has failed");
        }
        if (sl_clock_ns() - start_ns > limit_ns) {
            SL_FAIL(status, SL_ERR_COMM, out,
                    "%s has not ended for %.3g s; NCCL_DEBUG=WARN says more, "
                    "--transport staged does without NCCL",
                    call, (double)limit_ns * 1e-9);
        }
        pause_a_little();
    }
out:
    return status;
}

/* A failure of the world ends it; another one counts when all have shared. */
static sl_status_t share_ids(sl_nccl_t *nccl)
{
    sl_status_t status = SL_OK;
    sl_lane_t *lane;

    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        if (lane->state == SL_LANE_UNMADE) {
            SL_KEEP(status, share_id(lane));
            if (sl_world_has_failed(nccl->params.world)) {
                break;
            }
        }
    }
    return status;
}

static sl_status_t begin_meetings(sl_nccl_t *nccl)
{
    sl_status_t status = SL_OK;
    sl_lane_t *lane;

    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        if (lane->state == SL_LANE_UNMADE) {
            SL_TRY(status, begin_meeting(lane), out);
        }
    }
out:
    return status;
}

static sl_status_t await_meetings(sl_nccl_t *nccl)
{
    sl_status_t status = SL_OK;
    sl_lane_t *lane;

    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        if (lane->state != SL_LANE_MEETING) {
            continue;
        }
        status =
            await_comm(lane, nccl->params.meet_ns, "ncclCommInitRankConfig");
        lane->state = status < 0 ? SL_LANE_BROKEN : SL_LANE_IDLE;
        if (status < 0) {
            return status == SL_ERR_CANCELED ? status
                                             : sl_lane_explain(lane, status);
        }
    }
    return status;
}

sl_status_t sl_nccl_meet(sl_nccl_t *nccl)
{
    sl_world_t *world = nccl->params.world;
    sl_status_t status;

    SL_TRY(status, sl_nccl_agree(world, share_ids(nccl)), out);
    SL_TRY(status, sl_nccl_agree(world, begin_meetings(nccl)), out);
    status = sl_nccl_agree(world, await_meetings(nccl));
out:
    return status;
}

static sl_status_t add_lanes(sl_nccl_t *nccl, const sl_lane_key_t *keys, int n)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < n; i++) {
        if (sl_nccl_find(nccl, &keys[i]) == NULL) {
            SL_TRY(status, add_lane(nccl, &keys[i]), out);
        }
    }
out:
    return status;
}

sl_status_t sl_nccl_connect(sl_nccl_t *nccl, sl_world_t *world,
                            const sl_lane_key_t *keys, int n,
                            sl_status_t before)
{
    sl_status_t status = before;

    if (nccl != NULL) {
        sl_nccl_take(nccl);
    }
    if (status >= 0) {
        status = add_lanes(nccl, keys, n);
    }
    SL_TRY(status, sl_nccl_agree(world, status), out);
    SL_TRY(status, sl_nccl_meet(nccl), out);
    sl_nccl_resume(nccl);
out:
    return status;
}

/* ---- the end ---- */

void sl_lane_abort(sl_lane_t *lane)
{
    if (lane->comm != NULL) {
        const ncclResult_t result = ncclCommAbort(lane->comm);

        if (result != ncclSuccess && result != ncclInProgress) {
            sl_warn("nccl %s rank %d: aborting its communicator: %s",
                    lane->is_sender ? "to" : "from", lane->peer,
                    ncclGetErrorString(result));
        }
    }
    lane->comm = NULL;
    lane->state = SL_LANE_UNMADE;
    /* nothing of it runs any more after this; a failed device says so here */
    if (sl_lane_enter(lane) < 0 ||
        cudaStreamSynchronize(lane->stream) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    free(lane->launching);
    lane->launching = NULL;
}

static sl_status_t finalize(const sl_lane_t *lane)
{
    sl_status_t status = SL_NCCL(ncclCommFinalize(lane->comm));

    return status == SL_INPROGRESS
               ? await_comm(lane, lane->nccl->params.end_ns, "ncclCommFinalize")
               : status;
}

void sl_lane_end(sl_lane_t *lane)
{
    const int is_quiet = lane->state == SL_LANE_IDLE &&
                         lane->n_queued == lane->n_ended &&
                         !lane->nccl->is_lost && !lane->nccl->has_failed &&
                         !sl_world_has_failed(lane->nccl->params.world);

    if (is_quiet && sl_lane_enter(lane) >= 0 && finalize(lane) >= 0) {
        if (ncclCommDestroy(lane->comm) != ncclSuccess) {
            sl_warn("nccl %s rank %d: its communicator cannot be destroyed",
                    lane->is_sender ? "to" : "from", lane->peer);
        }
        lane->comm = NULL;
    }
    sl_lane_abort(lane);
    if (cudaStreamDestroy(lane->stream) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}
