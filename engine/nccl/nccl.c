/* SPDX-License-Identifier: Apache-2.0 */
/* The driver: one thread that makes all calls of NCCL, a little for each lane
 * in turn. It sleeps until a header has left, a notice has come or a group has
 * ended, and looks at NCCL's own state only while something is under way. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "engine/nccl/nccl_internal.h"
#include "memory/cuda.h"

static const uint64_t POLL_NS = 20000;     /* a launch in progress */
static const uint64_t CHECK_NS = 50000000; /* groups that run */
/* in a failed job, for its end */
static const uint64_t GRACE_NS = 500000000;

enum {
    REASON_MS = 5000 /* for the world to say who died */
};

void sl_nccl_params_default(sl_nccl_params_t *params)
{
    *params = (sl_nccl_params_t){.stuck_ns = UINT64_C(120000000000),
                                 .meet_ns = UINT64_C(60000000000),
                                 .end_ns = UINT64_C(10000000000)};
}

sl_status_t sl_nccl_status(int result, const char *call, const char *file,
                           int line)
{
    const ncclResult_t code = (ncclResult_t)result;

    if (code == ncclSuccess) {
        return SL_OK;
    }
    if (code == ncclInProgress) {
        return SL_INPROGRESS;
    }
    sl_cuda_fail_record(0, file, line, call, ncclGetErrorString(code));
    return code == ncclRemoteError || code == ncclSystemError ? SL_ERR_COMM
                                                              : SL_ERR_DEVICE;
}

const char *sl_nccl_version(void)
{
    static _Thread_local char text[32];
    int version = 0;

    if (ncclGetVersion(&version) != ncclSuccess) {
        return "unknown";
    }
    (void)snprintf(text, sizeof(text), "%d.%d.%d", version / 10000,
                   version / 100 % 100, version % 100);
    return text;
}

/* ---- the driver ---- */

/* Of a rank that died the world says so: that is the better reason. */
static void fail(sl_nccl_t *nccl, sl_status_t status)
{
    char detail[SL_ERROR_DETAIL_BYTES];

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    if (status == SL_ERR_COMM &&
        sl_abort_await(nccl->params.abort, REASON_MS)) {
        return;
    }
    sl_last_error_set(detail);
    sl_abort_raise(nccl->params.abort, status);
    sl_world_abort(nccl->params.world, status, detail);
}

/* A turn on one lane. Lock held on entry and return; when it was let go, news
 * of lanes whose turn is over may have come, so that is work too. */
static sl_status_t turn(sl_lane_t *lane, int is_check, int *has_worked_p)
{
    sl_nccl_t *nccl = lane->nccl;
    sl_status_t status = SL_OK;

    if (lane->state == SL_LANE_LAUNCHING) {
        (void)pthread_mutex_unlock(&nccl->lock);
        status = sl_lane_poll(lane);
        (void)pthread_mutex_lock(&nccl->lock);
        *has_worked_p |= lane->state == SL_LANE_IDLE;
    } else if (lane->state == SL_LANE_IDLE && sl_lane_has_work(lane)) {
        status = sl_lane_begin(lane);
        *has_worked_p = 1;
    }
    if (status >= 0 && is_check && lane->n_queued > lane->n_ended) {
        (void)pthread_mutex_unlock(&nccl->lock);
        status = sl_lane_check(lane);
        (void)pthread_mutex_lock(&nccl->lock);
        *has_worked_p = 1;
    }
    if (status < 0) {
        lane->state = SL_LANE_BROKEN;
    }
    return status;
}

static int is_busy(const sl_lane_t *lane)
{
    return lane->comm != NULL && lane->n_queued > lane->n_ended;
}

/* The job has failed, and what is under way may have no match. */
static void give_up(sl_nccl_t *nccl)
{
    sl_lane_t *lane;

    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        if (is_busy(lane)) {
            (void)pthread_mutex_unlock(&nccl->lock);
            sl_lane_abort(lane);
            (void)pthread_mutex_lock(&nccl->lock);
            lane->state = SL_LANE_BROKEN;
        }
    }
}

/* How long to sleep: until told, or a look at NCCL is due. Lock held. */
static void rest(sl_nccl_t *nccl)
{
    const sl_lane_t *lane;
    uint64_t ns = 0;

    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        if (lane->state == SL_LANE_LAUNCHING && !nccl->has_failed) {
            ns = POLL_NS;
            break;
        }
        ns = is_busy(lane) ? CHECK_NS : ns;
    }
    if (ns == 0) {
        (void)pthread_cond_wait(&nccl->changed, &nccl->lock);
    } else {
        const struct timespec deadline = sl_clock_deadline(ns);

        (void)pthread_cond_timedwait(&nccl->changed, &nccl->lock, &deadline);
    }
}

static int are_busy(const sl_nccl_t *nccl)
{
    const sl_lane_t *lane;

    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        if (is_busy(lane)) {
            return 1;
        }
    }
    return 0;
}

/* Sleep until told, but when lanes are busy no longer than a moment. */
static void wait_or_look(sl_nccl_t *nccl)
{
    const struct timespec deadline = sl_clock_deadline(CHECK_NS);

    if (nccl->is_taken || !are_busy(nccl)) {
        (void)pthread_cond_wait(&nccl->changed, &nccl->lock);
    } else {
        (void)pthread_cond_timedwait(&nccl->changed, &nccl->lock, &deadline);
    }
}

/* Lock held. */
static void park(sl_nccl_t *nccl)
{
    const uint64_t start_ns = sl_clock_ns();

    while (nccl->is_paused && !nccl->is_stopping) {
        nccl->is_parked = 1;
        (void)pthread_cond_broadcast(&nccl->changed);
        wait_or_look(nccl);
        if (!nccl->is_taken && sl_abort_is_set(nccl->params.abort) &&
            sl_clock_ns() - start_ns > GRACE_NS) {
            nccl->is_parked = 0;
            give_up(nccl);
        }
    }
    nccl->is_parked = 0;
}

/* One turn on each lane. @return whether to look again before a rest */
static int round_of_lanes(sl_nccl_t *nccl, int is_check)
{
    sl_status_t status = SL_OK;
    sl_lane_t *lane;
    int has_worked = 0;

    for (lane = nccl->lanes; lane != NULL && !nccl->has_failed;
         lane = lane->next) {
        status = turn(lane, is_check, &has_worked);
        if (status < 0) {
            nccl->has_failed = 1;
            (void)pthread_mutex_unlock(&nccl->lock);
            fail(nccl, sl_lane_explain(lane, status));
            (void)pthread_mutex_lock(&nccl->lock);
        }
    }
    return has_worked;
}

static void *driver_main(void *arg)
{
    sl_nccl_t *nccl = arg;
    uint64_t checked_ns = 0;
    uint64_t failed_ns = sl_clock_ns(); /* when the job was last well */

    (void)pthread_mutex_lock(&nccl->lock);
    while (!nccl->is_stopping) {
        const uint64_t now_ns = sl_clock_ns();
        const int is_check = now_ns - checked_ns >= CHECK_NS;

        if (nccl->is_paused) {
            park(nccl);
            continue;
        }
        checked_ns = is_check ? now_ns : checked_ns;
        if (!sl_abort_is_set(nccl->params.abort)) {
            failed_ns = now_ns;
        } else if (now_ns - failed_ns > GRACE_NS) {
            give_up(nccl);
        }
        if (!round_of_lanes(nccl, is_check) && !nccl->is_paused &&
            !nccl->is_stopping) {
            rest(nccl);
        }
    }
    nccl->is_parked = 1;
    (void)pthread_cond_broadcast(&nccl->changed);
    (void)pthread_mutex_unlock(&nccl->lock);
    return NULL;
}

/* ---- life ---- */

static int start_driver(sl_nccl_t *nccl)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&nccl->thread, NULL, driver_main, nccl);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

sl_status_t sl_nccl_create(const sl_nccl_params_t *params, sl_nccl_t **nccl_p)
{
    sl_nccl_t *nccl = calloc(1, sizeof(*nccl));
    pthread_condattr_t attr;
    sl_status_t status;

    if (nccl == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "nccl: no host memory");
    }
    nccl->params = *params;
    nccl->rank = sl_world_rank(params->world);
    (void)pthread_mutex_init(&nccl->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&nccl->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (start_driver(nccl) != 0) {
        SL_FAIL(status, SL_ERR_DEVICE, err_free,
                "nccl: its thread cannot be started");
    }
    *nccl_p = nccl;
    return SL_OK;

err_free:
    (void)pthread_cond_destroy(&nccl->changed);
    (void)pthread_mutex_destroy(&nccl->lock);
    free(nccl);
out:
    return status;
}

static void lane_destroy(sl_lane_t *lane)
{
    sl_port_close(lane->port);
    sl_lane_end(lane);
    free(lane->channels);
    free(lane);
}

void sl_nccl_destroy(sl_nccl_t *nccl)
{
    if (nccl == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&nccl->lock);
    nccl->is_stopping = 1;
    (void)pthread_cond_broadcast(&nccl->changed);
    (void)pthread_mutex_unlock(&nccl->lock);
    (void)pthread_join(nccl->thread, NULL);
    while (nccl->lanes != NULL) {
        sl_lane_t *lane = nccl->lanes;

        nccl->lanes = lane->next;
        lane_destroy(lane);
    }
    (void)pthread_cond_destroy(&nccl->changed);
    (void)pthread_mutex_destroy(&nccl->lock);
    free(nccl);
}

void sl_nccl_pause(sl_nccl_t *nccl)
{
    if (nccl == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&nccl->lock);
    nccl->is_paused = 1;
    (void)pthread_cond_broadcast(&nccl->changed);
    while (!nccl->is_parked) {
        (void)pthread_cond_wait(&nccl->changed, &nccl->lock);
    }
    (void)pthread_mutex_unlock(&nccl->lock);
}

void sl_nccl_take(sl_nccl_t *nccl)
{
    sl_nccl_pause(nccl);
    (void)pthread_mutex_lock(&nccl->lock);
    nccl->is_taken = 1;
    while (!nccl->is_parked) {
        (void)pthread_cond_wait(&nccl->changed, &nccl->lock);
    }
    (void)pthread_mutex_unlock(&nccl->lock);
}

void sl_nccl_resume(sl_nccl_t *nccl)
{
    (void)pthread_mutex_lock(&nccl->lock);
    nccl->is_paused = nccl->is_taken = 0;
    (void)pthread_cond_broadcast(&nccl->changed);
    (void)pthread_mutex_unlock(&nccl->lock);
}

void sl_nccl_lose(sl_nccl_t *nccl)
{
    sl_lane_t *lane;

    if (nccl == NULL) {
        return;
    }
    sl_nccl_take(nccl);
    nccl->is_lost = 1;
    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        sl_lane_abort(lane);
    }
}

uint64_t sl_nccl_n_made(const sl_nccl_t *nccl)
{
    return nccl->n_made;
}

sl_lane_t *sl_nccl_find(const sl_nccl_t *nccl, const sl_lane_key_t *key)
{
    sl_lane_t *lane;

    for (lane = nccl->lanes; lane != NULL; lane = lane->next) {
        if (sl_lane_key_compare(&lane->key, key) == 0) {
            return lane;
        }
    }
    return NULL;
}
