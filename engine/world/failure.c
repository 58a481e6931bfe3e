/* SPDX-License-Identifier: Apache-2.0 */
/* Failure: telling, finding the dead, and beginning anew. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/world/world_internal.h"

/* ---- telling ---- */

static void copy_text(char *out, size_t n, const char *text)
{
    (void)snprintf(out, n, "%s", text);
}

/* Tells the watcher, or the one that is set later. */
static void call_watcher(sl_world_t *world, sl_status_t status,
                         const char *detail)
{
    (void)pthread_mutex_lock(&world->watch_lock);
    world->other_failure = status;
    copy_text(world->other_detail, sizeof(world->other_detail), detail);
    if (world->on_abort != NULL) {
        world->on_abort(world->on_abort_ctx, status, detail);
    }
    (void)pthread_mutex_unlock(&world->watch_lock);
}

/* A watch is for one job: its owner sets it anew when it is ready to hear of
 * the next one's failure, which may come before that. */
static void end_watch(sl_world_t *world)
{
    (void)pthread_mutex_lock(&world->watch_lock);
    world->on_abort = NULL;
    world->other_failure = SL_OK;
    (void)pthread_mutex_unlock(&world->watch_lock);
}

/* Records the failure unless there is one. */
static void record(sl_world_t *world, sl_status_t status, const char *detail)
{
    (void)pthread_mutex_lock(&world->lock);
    if (!world->is_failed) {
        world->is_failed = 1;
        world->failure = status;
        copy_text(world->failure_detail, sizeof(world->failure_detail), detail);
    }
    world->is_abort_asked = 0;
    (void)pthread_mutex_unlock(&world->lock);
}

/* What the others hear: who it is, unless the detail says that. */
static void tell_who(const sl_world_t *world, const char *detail,
                     sl_notice_t *abort)
{
    const char *host = world->link->hosts[world->rank];
    char *text = abort->detail;
    const size_t n = sizeof(abort->detail);

    if (strstr(detail, SL_WORLD_DEVICE_FAILURE) != NULL) {
        copy_text(text, n, detail);
    } else if (abort->status == SL_ERR_DEVICE) {
        (void)snprintf(text, n,
                       "rank %d on host %s " SL_WORLD_DEVICE_FAILURE "%s",
                       world->rank, host, detail);
    } else {
        (void)snprintf(text, n, "rank %d (%s): %s", world->rank, host, detail);
    }
}

static int has_receiver_from(const sl_world_t *world, int peer)
{
    const sl_port_t *port;

    for (port = world->peers[peer].ports; port != NULL; port = port->next) {
        if (!port->is_sender) {
            return 1;
        }
    }
    return 0;
}

/* All must know of the failure, and those who send to us, that we take no
 * message any more. */
static void tell(sl_world_t *world, const sl_notice_t *abort, int is_to_all)
{
    int peer;

    for (peer = 0; peer < world->size; peer++) {
        if (peer != world->rank &&
            (is_to_all || has_receiver_from(world, peer))) {
            sl_notice_send(world, peer, abort);
        }
    }
}

void sl_failure_enter(sl_world_t *world, sl_status_t status, int rank,
                      int is_gone, const char *detail)
{
    sl_notice_t abort = {.kind = SL_NOTICE_ABORT,
                         .rank = rank,
                         .status = status,
                         .is_gone = is_gone,
                         .n = (uint64_t)world->is_reported};
    const int is_ours = rank == world->rank && !is_gone;
    const int is_to_all = is_ours || (is_gone && world->is_finder);

    if (world->is_aborted) {
        return;
    }
    world->is_aborted = 1;
    world->n_events++;
    if (is_ours) {
        tell_who(world, detail, &abort);
    } else {
        copy_text(abort.detail, sizeof(abort.detail), detail);
    }
    copy_text(world->abort_detail, sizeof(world->abort_detail),
              is_gone ? "" : abort.detail);
    record(world, status, detail);
    sl_debug("rank %d: the job has failed: %s", world->rank, abort.detail);
    world->peers[world->rank].aborted_epoch = world->epoch + 1;
    tell(world, &abort, is_to_all);
    if (!is_ours) {
        call_watcher(world, status, detail);
    }
    sl_port_abort_all(world);
}

void sl_failure_enter_own(sl_world_t *world)
{
    char detail[SL_WORLD_DETAIL_BYTES];
    sl_status_t status;

    (void)pthread_mutex_lock(&world->lock);
    copy_text(detail, sizeof(detail), world->failure_detail);
    status = world->failure;
    (void)pthread_mutex_unlock(&world->lock);
    sl_failure_enter(world, status, world->rank, 0, detail);
}

void sl_world_abort(sl_world_t *world, sl_status_t status, const char *detail)
{
    if (world == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&world->lock);
    if (!world->is_failed) {
        world->is_failed = 1;
        world->is_abort_asked = 1;
        world->failure = status;
        copy_text(world->failure_detail, sizeof(world->failure_detail),
                  detail == NULL ? sl_status_text(status) : detail);
    }
    (void)pthread_mutex_unlock(&world->lock);
    sl_world_wake(world);
}

void sl_world_watch(sl_world_t *world,
                    void (*on_abort)(void *ctx, sl_status_t status,
                                     const char *detail),
                    void *ctx)
{
    if (world == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&world->watch_lock);
    world->on_abort = on_abort;
    world->on_abort_ctx = ctx;
    if (on_abort != NULL && world->other_failure != SL_OK) {
        on_abort(ctx, world->other_failure, world->other_detail);
    }
    (void)pthread_mutex_unlock(&world->watch_lock);
}

sl_world_watcher_t sl_world_watcher(sl_world_t *world)
{
    sl_world_watcher_t watcher = {0};

    if (world != NULL) {
        (void)pthread_mutex_lock(&world->watch_lock);
        watcher.on_abort = world->on_abort;
        watcher.ctx = world->on_abort_ctx;
        (void)pthread_mutex_unlock(&world->watch_lock);
    }
    return watcher;
}

/* ---- the dead ---- */

/* Nearest rank on the ring, in one direction, that is there. */
static int neighbour(const sl_world_t *world, int step)
{
    int rank = world->rank;

    do {
        rank = (rank + step + world->size) % world->size;
    } while (rank != world->rank && world->peers[rank].is_gone);
    return rank;
}

static void mark_gone(sl_world_t *world, int peer, int is_dead)
{
    const int before = neighbour(world, -1);
    int after;

    if (peer == world->rank || world->peers[peer].is_gone) {
        return;
    }
    world->peers[peer].is_gone = 1;
    world->peers[peer].is_dead = is_dead;
    world->n_gone++;
    after = neighbour(world, -1);
    if (after != before) {
        /* it has had no reason yet to send its signs of life to us */
        world->peers[after].seen_ns = sl_clock_ns();
    }
}

/* The recovery that waits will not come. */
static void give_up_recovery(sl_world_t *world, const char *why)
{
    sl_request_t *recover = world->recover;

    if (recover != NULL) {
        world->recover = NULL;
        sl_request_finish(world, recover, SL_ERR_COMM, why);
    }
}

/* One message a job. */
static void report(const char *why, int is_reporter)
{
    if (is_reporter) {
        sl_error("%s", why);
    } else {
        sl_debug("%s", why);
    }
}

/* All see a connection end at once; of those that are left the first says so.
 */
static int is_first_but(const sl_world_t *world, int lost)
{
    int rank = 0;

    while (rank < world->rank && (rank == lost || world->peers[rank].is_gone)) {
        rank++;
    }
    return rank == world->rank;
}

void sl_failure_gone(sl_world_t *world, int peer, const char *why,
                     int is_reporter)
{
    if (world->peers[peer].is_gone || world->is_over) {
        return;
    }
    mark_gone(world, peer, 1);
    world->is_reported = is_reporter;
    if (world->is_aborted) {
        sl_notice_t gone = {.kind = SL_NOTICE_ABORT,
                            .rank = peer,
                            .status = SL_ERR_COMM,
                            .is_gone = 1,
                            .n = 1};

        copy_text(gone.detail, sizeof(gone.detail), why);
        tell(world, &gone, 1);
    } else {
        report(why, is_reporter);
        world->is_finder = 1;
        sl_failure_enter(world, SL_ERR_COMM, peer, 1, why);
        world->is_finder = 0;
    }
    world->is_reported = 0;
    sl_port_drop_peer(world, peer);
    give_up_recovery(world, why);
}

/* May be called in the middle of a port's work, which dropping the peer's
 * ports would pull from under its feet. */
void sl_world_on_lost(sl_world_t *world, int peer, const char *why)
{
    const int is_leaving_well =
        world->leave != NULL && !world->is_aborted && !world->is_leaving;

    if (is_leaving_well && peer != 0) {
        /* it heard rank 0's goodbye before us */
        world->peers[peer].is_broken = 1;
    }
    if (!world->peers[peer].is_broken) {
        world->peers[peer].is_broken = 1;
        world->peers[peer].is_lost = 1;
        world->n_lost++;
        world->n_events++;
        copy_text(world->lost_why, sizeof(world->lost_why), why);
    }
}

static void take_lost(sl_world_t *world)
{
    char text[SL_WORLD_DETAIL_BYTES];
    int peer;

    for (peer = 0; world->n_lost > 0 && peer < world->size; peer++) {
        if (world->peers[peer].is_lost) {
            world->peers[peer].is_lost = 0;
            world->n_lost--;
            if (world->peers[peer].is_gone) {
                continue;
            }
            (void)snprintf(text, sizeof(text), "rank %d on host %s is gone: %s",
                           peer, world->link->hosts[peer], world->lost_why);
            sl_failure_gone(world, peer, text, is_first_but(world, peer));
        }
    }
}

void sl_failure_left(sl_world_t *world, int peer)
{
    char text[SL_WORLD_DETAIL_BYTES];

    if (world->peers[peer].is_gone) {
        return;
    }
    (void)snprintf(text, sizeof(text), "rank %d on host %s has left the job",
                   peer, world->link->hosts[peer]);
    mark_gone(world, peer, 0);
    /* it says so to all itself */
    sl_failure_enter(world, SL_ERR_COMM, peer, 0, text);
    sl_port_drop_peer(world, peer);
    give_up_recovery(world, text);
}

void sl_failure_on_abort(sl_world_t *world, int from,
                         const sl_notice_t *control)
{
    const int rank = control->rank;
    int is_reporter = 0;

    if (rank < 0 || rank >= world->size) {
        return;
    }
    if (control->is_gone && rank == world->rank) {
        world->is_expelled = 1;
    }
    if (control->epoch >= world->epoch) {
        world->peers[from].aborted_epoch = control->epoch + 1;
    }
    if (control->is_gone) {
        mark_gone(world, rank, 1);
        is_reporter =
            !world->is_aborted && control->n == 0 && is_first_but(world, rank);
        report(control->detail, is_reporter);
    }
    world->is_reported = control->n != 0 || is_reporter;
    sl_failure_enter(world, (sl_status_t)control->status, rank,
                     control->is_gone, control->detail);
    world->is_reported = 0;
    sl_port_pay_back(world, from);
    if (control->is_gone) {
        sl_port_drop_peer(world, rank);
        give_up_recovery(world, control->detail);
    }
}

static void check_alive(sl_world_t *world, int peer, uint64_t now_ns,
                        uint64_t limit_ns)
{
    char text[SL_WORLD_DETAIL_BYTES];
    const uint64_t seen_ns = world->peers[peer].seen_ns;

    if (peer == world->rank || world->peers[peer].is_gone ||
        now_ns <= seen_ns || now_ns - seen_ns <= limit_ns) {
        return;
    }
    (void)snprintf(text, sizeof(text),
                   "rank %d on host %s has not answered for %.3g s", peer,
                   world->link->hosts[peer], (double)(now_ns - seen_ns) * 1e-9);
    sl_failure_gone(world, peer, text, 1);
}

/* Signs of life go to the next rank on a ring and to rank 0. */
void sl_failure_beat(sl_world_t *world, uint64_t now_ns)
{
    const sl_notice_t beat = {.kind = SL_NOTICE_BEAT};
    const uint64_t heartbeat_ns = world->params.heartbeat_ns;
    const uint64_t away_ns = now_ns - world->turn_ns;
    int peer;

    world->turn_ns = now_ns;
    if (world->size == 1) {
        world->beat_ns = now_ns + heartbeat_ns;
        return;
    }
    if (away_ns > world->params.dead_ns / 2) {
        /* it was us who were not there */
        for (peer = 0; peer < world->size; peer++) {
            world->peers[peer].seen_ns = now_ns;
        }
    }
    if (now_ns < world->beat_ns) {
        return;
    }
    world->beat_ns = now_ns + heartbeat_ns;
    sl_wish_look(world);
    sl_notice_send(world, neighbour(world, 1), &beat);
    if (neighbour(world, 1) != 0) {
        sl_notice_send(world, 0, &beat);
    }
    check_alive(world, neighbour(world, -1), now_ns, world->params.dead_ns);
    for (peer = 1; world->rank == 0 && peer < world->size; peer++) {
        /* later than its neighbour, so that one rank finds it */
        check_alive(world, peer, now_ns,
                    world->params.dead_ns / 4 * 5 + 2 * heartbeat_ns);
    }
}

/* ---- beginning anew ---- */

void sl_failure_on_recover(sl_world_t *world, sl_request_t *request)
{
    char text[SL_WORLD_DETAIL_BYTES];
    int peer;

    if (world->is_expelled) {
        sl_request_finish(world, request, SL_ERR_COMM,
                          "the other ranks gave this one up: it had not "
                          "answered");
        return;
    }
    for (peer = 0; peer < world->size; peer++) {
        if (world->peers[peer].is_gone) {
            (void)snprintf(text, sizeof(text),
                           "rank %d on host %s is gone for good", peer,
                           world->link->hosts[peer]);
            sl_request_finish(world, request, SL_ERR_COMM, text);
            return;
        }
    }
    world->recover = request;
    if (!world->is_aborted) {
        sl_world_abort(world, SL_ERR_CANCELED, "recovery was asked for");
    }
}

/* On rank 0, which is the first to end a sum: whether all have ended as many.
 */
static int is_even(const sl_world_t *world)
{
    int i;

    for (i = 1; i < world->size; i++) {
        if (world->peers[i].n_sums != world->peers[0].n_sums) {
            return 0;
        }
    }
    return 1;
}

void sl_failure_on_ready(sl_world_t *world, int from,
                         const sl_notice_t *control)
{
    sl_notice_t resume = {.kind = SL_NOTICE_RESUME};
    int i;

    world->peers[from].is_ready = 1;
    world->peers[from].n_sums = control->n;
    for (i = 0; i < world->size; i++) {
        if (!world->peers[i].is_ready) {
            return;
        }
    }
    resume.n = !is_even(world);
    for (i = 0; i < world->size; i++) {
        world->peers[i].is_ready = 0;
        sl_notice_send(world, i, &resume);
    }
}

void sl_failure_on_resume(sl_world_t *world, const sl_notice_t *control)
{
    world->is_resuming = 1;
    world->is_uneven = control->n != 0;
}

static void begin_anew(sl_world_t *world)
{
    sl_request_t *recover = world->recover;

    world->epoch++;
    world->is_aborted = world->is_resuming = world->is_ready_sent = 0;
    world->recover = NULL;
    (void)pthread_mutex_lock(&world->lock);
    world->is_failed = world->is_abort_asked = 0;
    world->failure = SL_OK;
    (void)pthread_mutex_unlock(&world->lock);
    end_watch(world);
    sl_settle_restart(world);
    sl_port_restart_all(world);
    sl_notice_replay(world);
    recover->is_uneven = world->is_uneven;
    sl_request_finish(world, recover, SL_OK, NULL);
}

void sl_failure_progress(sl_world_t *world)
{
    sl_notice_t ready = {.kind = SL_NOTICE_READY};

    take_lost(world);
    if (world->recover == NULL || !world->is_aborted) {
        return; /* nobody recovers, or the failure is held back */
    }
    ready.n = world->recover->n_sums;
    if (!world->is_ready_sent && sl_port_all_drained(world)) {
        world->is_ready_sent = 1;
        sl_notice_send(world, 0, &ready);
    }
    if (world->is_resuming && sl_port_all_drained(world)) {
        world->n_events++;
        begin_anew(world);
    }
}

sl_status_t sl_world_recover(sl_world_t *world)
{
    sl_request_t request = {.kind = SL_REQUEST_RECOVER};
    sl_status_t status;

    if (world == NULL) {
        return SL_OK;
    }
    request.n_sums = world->n_sums;
    sl_world_request(world, &request);
    status = request.status;
    if (status == SL_OK && request.is_uneven) {
        status = sl_world_share_sum(world);
    }
    return status;
}
