/* SPDX-License-Identifier: Apache-2.0 */
/* After a failed job. What both sides of a lane have queued ends by itself; a
 * lane on which one side has queued more than the other would hang, so its
 * communicator is aborted and another one made. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/nccl/nccl_internal.h"

enum {
    POLL_NS = 50000
};

/* Adds up to what no number of groups does. */
static const uint64_t BROKEN = UINT64_C(1) << 48;

/* Per rank: groups queued on the lanes to it, and from it. A receiver queues
 * what was announced, never more: so if sums are equal each lane's are. */
static void count(const sl_nccl_t *nccl, uint64_t *counts, int n_ranks)
{
    const sl_lane_t *lane;

    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        const int is_well =
            lane->state == SL_LANE_IDLE || lane->state == SL_LANE_LAUNCHING;

        counts[lane->peer + (lane->is_sender ? 0 : n_ranks)] +=
            lane->n_queued + (is_well ? 0 : BROKEN);
    }
}

/* Whether both sides of a lane agree; all: 2 * n_ranks counts of each rank. */
static int is_even(const sl_lane_t *lane, const uint64_t *all, int n_ranks)
{
    const size_t row = 2 * (size_t)n_ranks;
    const uint64_t to =
        all[(size_t)lane->key.from_rank * row + (size_t)lane->key.to_rank];
    const uint64_t from = all[(size_t)lane->key.to_rank * row +
                              (size_t)n_ranks + (size_t)lane->key.from_rank];

    return to == from && to < BROKEN;
}

/* The groups that both sides have queued. */
static sl_status_t await_groups(sl_lane_t *lane)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};
    sl_nccl_t *nccl = lane->nccl;
    sl_status_t status = SL_OK;
    int has_ended = 0;

    while (status >= 0 && !has_ended) {
        status = lane->state == SL_LANE_LAUNCHING ? sl_lane_poll(lane)
                                                  : sl_lane_check(lane);
        if (sl_world_has_failed(nccl->params.world)) {
            SL_REFUSE(status, SL_ERR_CANCELED, out,
                      "nccl: another rank has failed");
        }
        (void)pthread_mutex_lock(&nccl->lock);
        has_ended =
            lane->state == SL_LANE_IDLE && lane->n_ended == lane->n_queued;
        (void)pthread_mutex_unlock(&nccl->lock);
        if (!has_ended) {
            (void)nanosleep(&pause, NULL);
        }
    }
out:
    return status;
}

static sl_status_t settle_lanes(sl_nccl_t *nccl, const uint64_t *all)
{
    const int n_ranks = sl_world_size(nccl->params.world);
    sl_status_t status = SL_OK;
    sl_lane_t *lane;

    /* first all aborts: a stream may hold up its device */
    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        if (!is_even(lane, all, n_ranks)) {
            sl_lane_abort(lane);
        }
    }
    for (lane = nccl->lanes; lane != NULL && status >= 0; lane = lane->next) {
        if (lane->state != SL_LANE_UNMADE) {
            status = await_groups(lane);
        }
    }
    SL_TRY(status, sl_nccl_agree(nccl->params.world, status), out);
    status = sl_nccl_meet(nccl);
out:
    return status;
}

/* The world's ports count from 0 again, nothing is on its way. */
static void begin_anew(sl_nccl_t *nccl)
{
    sl_lane_t *lane;

    (void)pthread_mutex_lock(&nccl->lock);
    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        lane->n_queued = lane->n_notices = lane->n_ended = 0;
        lane->ready = NULL;
        lane->ready_end = &lane->ready;
    }
    nccl->has_failed = 0;
    (void)pthread_mutex_unlock(&nccl->lock);
    sl_nccl_resume(nccl);
}

sl_status_t sl_nccl_recover(sl_nccl_t *nccl)
{
    sl_world_t *world;
    uint64_t *counts = NULL, *all = NULL;
    size_t n_ranks, bytes;
    sl_status_t status;

    if (nccl == NULL) {
        return SL_OK;
    }
    world = nccl->params.world;
    n_ranks = (size_t)sl_world_size(world);
    bytes = 2 * n_ranks * sizeof(*counts);
    counts = calloc(2 * n_ranks, sizeof(*counts));
    all = calloc(2 * n_ranks * n_ranks, sizeof(*all));
    if (counts == NULL || all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "nccl: no host memory");
    }
    sl_nccl_take(nccl);
    count(nccl, counts, (int)n_ranks);
    SL_TRY(status, sl_world_gather(world, counts, bytes, all), out);
    SL_TRY(status, settle_lanes(nccl, all), out);
    begin_anew(nccl);
out:
    if (status < 0) {
        sl_nccl_lose(nccl);
    }
    free(counts);
    free(all);
    return status;
}
