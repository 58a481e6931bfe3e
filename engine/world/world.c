/* SPDX-License-Identifier: Apache-2.0 */
/* A world's life, its communication thread and what it is asked for. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "base/clock.h"
#include "base/log.h"
#include "engine/world/world_internal.h"

static const uint64_t SECOND_NS = 1000000000;
static const uint64_t LEAVE_FAILED_NS = 10000000000;

static size_t hook_piece_bytes; /* 0: the default */

static size_t piece_bytes(void)
{
    /* MPI counts in int */
    return hook_piece_bytes != 0 ? hook_piece_bytes : (size_t)1 << 30;
}

void sl_world_hook_piece_bytes(size_t bytes)
{
    hook_piece_bytes = bytes;
}

void sl_world_hook_stall(sl_world_t *world, int is_stalled)
{
    atomic_store(&world->is_stalled, is_stalled);
}

void sl_world_params_default(sl_world_params_t *params)
{
    params->heartbeat_ns = SECOND_NS / 2;
    params->dead_ns = 30 * SECOND_NS;
}

void sl_world_wake(sl_world_t *world)
{
    world->link->ops->wake(world->link);
}

void sl_world_request(sl_world_t *world, sl_request_t *request)
{
    request->next = NULL;
    request->is_done = 0;
    request->status = SL_OK;
    request->detail[0] = '\0';
    (void)pthread_mutex_lock(&world->lock);
    *world->requests_end = request;
    world->requests_end = &request->next;
    (void)pthread_mutex_unlock(&world->lock);
    sl_world_wake(world);
    (void)pthread_mutex_lock(&world->lock);
    while (!request->is_done) {
        (void)pthread_cond_wait(&world->changed, &world->lock);
    }
    (void)pthread_mutex_unlock(&world->lock);
    if (request->status < 0) {
        sl_last_error_set(request->detail);
    }
}

void sl_request_finish(sl_world_t *world, sl_request_t *request,
                       sl_status_t status, const char *detail)
{
    (void)pthread_mutex_lock(&world->lock);
    if (detail == NULL) {
        detail = world->failure_detail;
    }
    request->status = status;
    memcpy(request->detail, detail,
           strnlen(detail, sizeof(request->detail) - 1) + 1);
    request->detail[sizeof(request->detail) - 1] = '\0';
    request->is_done = 1;
    (void)pthread_cond_broadcast(&world->changed);
    (void)pthread_mutex_unlock(&world->lock);
}

/* ---- leaving ---- */

/* How long one that leaves a failed job waits until all do. */
static uint64_t leave_limit_ns(const sl_world_t *world)
{
    return LEAVE_FAILED_NS < world->params.dead_ns ? LEAVE_FAILED_NS
                                                   : world->params.dead_ns;
}

static void leave_failed(sl_world_t *world, uint64_t now_ns)
{
    const sl_notice_t leave = {.kind = SL_NOTICE_LEAVE, .is_gone = 1};
    int peer;

    world->is_leaving = 1;
    world->n_events++;
    world->leave_deadline_ns = now_ns + leave_limit_ns(world);
    for (peer = 0; peer < world->size; peer++) {
        if (peer != world->rank) {
            sl_notice_send(world, peer, &leave);
        }
    }
}

static void leave_progress(sl_world_t *world, uint64_t now_ns)
{
    const int is_late = now_ns > world->leave_deadline_ns;

    if (world->leave == NULL || world->is_over) {
        return;
    }
    if (world->is_leaving) {
        world->is_over = is_late || !world->link->ops->waits_for_all ||
                         world->n_gone == world->size - 1;
    } else if (world->is_aborted || world->n_gone > 0) {
        leave_failed(world, now_ns);
    } else if (is_late) {
        sl_warn("rank %d: the other ranks have not ended after %llu s",
                world->rank,
                (unsigned long long)(2 * world->params.dead_ns / SECOND_NS));
        leave_failed(world, now_ns);
    }
}

/* Of those that leave a failed job, it has the lowest rank. */
static int is_first_to_leave(const sl_world_t *world)
{
    int i;

    for (i = 0; i < world->rank; i++) {
        if (world->peers[i].is_gone && !world->peers[i].is_dead) {
            return 0;
        }
    }
    return 1;
}

/* How the others are left. */
static sl_stop_t way_out(const sl_world_t *world)
{
    int n_dead = 0, i;

    if (!world->is_leaving) {
        return SL_STOP_CLEAN;
    }
    for (i = 0; i < world->size; i++) {
        n_dead += world->peers[i].is_dead;
    }
    if (n_dead == 0 && world->n_gone == world->size - 1) {
        return SL_STOP_FAILED;
    }
    return is_first_to_leave(world) ? SL_STOP_LOST_FIRST : SL_STOP_LOST;
}

/* Rank 0 tells of a failure when it leaves, which may be long after it has
 * heard of it: in the middle of an op. It is not waited for, and a launcher
 * that sees another rank end then ends that one. */
static void tell_for_rank_0(const sl_world_t *world)
{
    if (world->is_aborted && world->abort_detail[0] != '\0' &&
        world->rank != 0 && !world->peers[0].is_gone &&
        world->link->ops->waits_for_all) {
        sl_error("%s; rank 0 has not ended within %llu s", world->abort_detail,
                 (unsigned long long)(leave_limit_ns(world) / SECOND_NS));
    }
}

static void on_leave(sl_world_t *world, sl_request_t *request)
{
    const sl_notice_t leave = {.kind = SL_NOTICE_LEAVE};

    world->leave = request;
    world->leave_deadline_ns = sl_clock_ns() + 2 * world->params.dead_ns;
    if (sl_world_has_failed(world)) {
        sl_failure_enter_own(world); /* held back no longer */
    }
    if (!world->is_aborted && world->n_gone == 0) {
        sl_notice_send(world, 0, &leave);
    }
}

/* ---- the communication thread ---- */

static void dispatch(sl_world_t *world, sl_request_t *request)
{
    switch (request->kind) {
    case SL_REQUEST_OPEN:
        sl_port_on_open(world, request);
        break;
    case SL_REQUEST_CLOSE:
        sl_port_on_close(world, request);
        break;
    case SL_REQUEST_PUT:
        sl_port_on_put(world, request);
        break;
    case SL_REQUEST_GET:
        sl_port_on_get(world, request);
        break;
    case SL_REQUEST_RECOVER:
        sl_failure_on_recover(world, request);
        break;
    case SL_REQUEST_CALL:
        request->fn(request->ctx);
        sl_request_finish(world, request, SL_OK, "");
        break;
    case SL_REQUEST_LEAVE:
        on_leave(world, request);
        break;
    }
}

/* What other threads have asked for since the last turn. */
static void take_inbox(sl_world_t *world)
{
    sl_request_t *request;
    sl_port_t *dirty;
    uint64_t dead_ns, n_settled;
    int is_abort_asked;

    (void)pthread_mutex_lock(&world->lock);
    n_settled = world->n_settled;
    dead_ns = world->dead_asked_ns;
    world->dead_asked_ns = 0;
    request = world->requests;
    world->requests = NULL;
    world->requests_end = &world->requests;
    dirty = world->dirty;
    world->dirty = NULL;
    /* nobody is caught by it in what this rank has ended */
    is_abort_asked = world->is_abort_asked && world->n_all_settled >= n_settled;
    if (is_abort_asked) {
        world->is_abort_asked = 0;
    }
    sl_port_take_dirty(dirty);
    (void)pthread_mutex_unlock(&world->lock);
    if (dead_ns != 0) {
        sl_wish_take_dead(world, dead_ns);
    }
    sl_settle_here(world, n_settled);
    if (is_abort_asked) {
        sl_failure_enter_own(world);
    }
    sl_port_progress_dirty(dirty);
    while (request != NULL) {
        sl_request_t *next = request->next; /* gone once it is finished */

        world->n_events++;
        dispatch(world, request);
        request = next;
    }
}

static sl_pace_t pace_of(const sl_world_t *world)
{
    if (world->n_sending > 0 || world->n_direct > 0 || world->recover != NULL ||
        world->leave != NULL || atomic_load(&world->n_expected) > 0) {
        return SL_PACE_EAGER;
    }
    return world->n_ports > 0 ? SL_PACE_LAZY : SL_PACE_IDLE;
}

static void turn(sl_world_t *world)
{
    uint64_t now_ns;

    world->n_events = 0;
    take_inbox(world);
    world->n_events += (uint64_t)world->link->ops->poll(world->link);
    now_ns = sl_clock_ns();
    sl_failure_beat(world, now_ns);
    sl_failure_progress(world);
    leave_progress(world, now_ns);
    if (world->n_events == 0 && !world->is_over) {
        const uint64_t until_ns =
            world->beat_ns > now_ns ? world->beat_ns - now_ns : 1;

        world->link->ops->wait(world->link, pace_of(world), until_ns);
    }
    while (atomic_load(&world->is_stalled)) {
        const struct timespec pause = {.tv_nsec = 1000000};

        (void)nanosleep(&pause, NULL);
    }
}

static sl_status_t meet(sl_world_t *world)
{
    sl_status_t status;
    int i;

    SL_TRY(status, world->link->ops->start(world->link), out);
    world->rank = world->link->rank;
    world->size = world->link->size;
    world->peers = calloc((size_t)world->size, sizeof(*world->peers));
    if (world->peers == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_stop,
                "rank %d: no host memory for %d ranks", world->rank,
                world->size);
    }
    world->beat_ns = world->turn_ns = sl_clock_ns();
    for (i = 0; i < world->size; i++) {
        world->peers[i].seen_ns = world->beat_ns;
        if (strcmp(world->link->hosts[i], world->link->hosts[world->rank]) ==
            0) {
            world->local_rank += i < world->rank;
            world->n_local++;
        }
    }
    return SL_OK;
err_stop:
    world->link->ops->stop(world->link, SL_STOP_UNMET);
out:
    return status;
}

static void *thread_main(void *arg)
{
    sl_world_t *world = arg;
    sl_status_t status;
    sl_stop_t how;

#ifdef __linux__
    /* sleeps of some microseconds are meant */
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    (void)prctl(PR_SET_NAME, "sl_world", 0UL, 0UL, 0UL);
#endif
    status = meet(world);
    (void)pthread_mutex_lock(&world->lock);
    world->is_started = 1;
    world->start_status = status;
    (void)strncpy(world->failure_detail, status < 0 ? sl_last_error() : "",
                  sizeof(world->failure_detail) - 1);
    (void)pthread_cond_broadcast(&world->changed);
    (void)pthread_mutex_unlock(&world->lock);
    if (status < 0) {
        return NULL;
    }
    while (!world->is_over) {
        turn(world);
    }
    how = way_out(world);
    if (how == SL_STOP_LOST_FIRST) {
        tell_for_rank_0(world);
    }
    world->link->ops->stop(world->link, how);
    sl_request_finish(world, world->leave, SL_OK, NULL);
    return NULL;
}

/* ---- life ---- */

static void destroy(sl_world_t *world)
{
    sl_port_free_all(world);
    while (world->deferred != NULL) {
        sl_deferred_t *next = world->deferred->next;

        free(world->deferred);
        world->deferred = next;
    }
    free(world->peers);
    free(world->last_sum);
    world->link->ops->destroy(world->link);
    (void)pthread_mutex_destroy(&world->watch_lock);
    (void)pthread_cond_destroy(&world->changed);
    (void)pthread_mutex_destroy(&world->lock);
    free(world);
}

static sl_status_t check_params(const sl_world_params_t *params)
{
    sl_status_t status = SL_OK;

    if (params->heartbeat_ns == 0 || params->dead_ns < params->heartbeat_ns) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "world: a heartbeat every %llu ns and death after %llu ns do "
                "not fit",
                (unsigned long long)params->heartbeat_ns,
                (unsigned long long)params->dead_ns);
    }
out:
    return status;
}

/* Takes the link, also on failure. */
static sl_status_t create(sl_link_t *link, const sl_world_params_t *params,
                          sl_world_t **world_p)
{
    sl_world_t *world = calloc(1, sizeof(*world));
    sl_status_t status;

    if (world == NULL) {
        link->ops->destroy(link);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a world");
    }
    world->link = link;
    link->world = world;
    world->params = *params;
    world->piece_bytes = piece_bytes();
    world->requests_end = &world->requests;
    world->deferred_end = &world->deferred;
    (void)pthread_mutex_init(&world->lock, NULL);
    (void)pthread_mutex_init(&world->watch_lock, NULL);
    (void)pthread_cond_init(&world->changed, NULL);
    if (pthread_create(&world->thread, NULL, thread_main, world) != 0) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_destroy,
                "world: no communication thread could be made");
    }
    (void)pthread_mutex_lock(&world->lock);
    while (!world->is_started) {
        (void)pthread_cond_wait(&world->changed, &world->lock);
    }
    status = world->start_status;
    (void)pthread_mutex_unlock(&world->lock);
    if (status < 0) {
        (void)pthread_join(world->thread, NULL);
        sl_last_error_set(world->failure_detail);
        goto err_destroy;
    }
    *world_p = world;
    return SL_OK;
err_destroy:
    destroy(world);
out:
    return status;
}

static int number_of(const char *name, int *value_p)
{
    const char *text = getenv(name);
    char *end;
    long value;

    if (text == NULL || *text == '\0') {
        return 0;
    }
    value = strtol(text, &end, 10);
    if (*end != '\0' || value < 0 || value > SL_WORLD_MAX_RANKS) {
        return 0;
    }
    *value_p = (int)value;
    return 1;
}

/* Whether a launcher of MPI started this process with others. */
static int has_mpi_launcher(void)
{
    int n = 0;

    if (number_of("OMPI_COMM_WORLD_SIZE", &n)) {
        return n > 1;
    }
    if (getenv("PMIX_RANK") != NULL && getenv("PMIX_NAMESPACE") != NULL) {
        /* srun --mpi=pmix says how many; other launchers do not */
        return !number_of("SLURM_STEP_NUM_TASKS", &n) || n > 1;
    }
    return getenv("SLURM_PROCID") != NULL &&
           number_of("SLURM_STEP_NUM_TASKS", &n) && n > 1;
}

int sl_world_is_launched(int *rank_p)
{
    static const char *const names[] = {"SLUICE_RANK", "OMPI_COMM_WORLD_RANK",
                                        "PMIX_RANK", "SLURM_PROCID"};
    int n = 0;
    size_t i;

    *rank_p = -1;
    for (i = 0; i < sizeof(names) / sizeof(*names) && *rank_p < 0; i++) {
        if (!number_of(names[i], rank_p)) {
            *rank_p = -1;
        }
    }
    if (getenv("SLUICE_RANK") != NULL || getenv("SLUICE_WORLD") != NULL) {
        return number_of("SLUICE_WORLD", &n) && n > 1;
    }
    return has_mpi_launcher();
}

sl_status_t sl_world_join(const sl_world_params_t *params, sl_world_t **world_p)
{
    sl_link_t *link;
    sl_world_t *world = NULL;
    sl_status_t status;

    SL_TRY(status, check_params(params), out);
    if (getenv("SLUICE_RANK") != NULL || getenv("SLUICE_WORLD") != NULL) {
        SL_TRY(status, sl_link_tcp_create(&link), out);
    } else if (has_mpi_launcher()) {
        SL_TRY(status, sl_link_mpi_create(&link), out);
    } else {
        link = NULL;
    }
    if (link != NULL) {
        SL_TRY(status, create(link, params, &world), out);
    }
    *world_p = world;
    return SL_OK;
out:
    return status;
}

sl_status_t sl_world_local(int n, const sl_world_params_t *params,
                           sl_world_t **worlds)
{
    sl_link_t **links = NULL;
    sl_status_t status;
    int i;

    SL_TRY(status, check_params(params), out);
    if (n < 1 || n > SL_WORLD_MAX_RANKS) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "a world of %d ranks", n);
    }
    links = calloc((size_t)n, sizeof(*links));
    if (links == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for %d ranks",
                n);
    }
    SL_TRY(status, sl_link_local_create(n, links), out);
    for (i = 0; i < n; i++) {
        status = create(links[i], params, &worlds[i]);
        if (status < 0) {
            goto err_leave;
        }
    }
    free(links);
    return SL_OK;
err_leave:
    for (n--; n > i; n--) {
        links[n]->ops->destroy(links[n]);
    }
    while (i-- > 0) {
        sl_world_abort(worlds[i], status, "the world could not be made");
        sl_world_leave(worlds[i]);
        worlds[i] = NULL;
    }
out:
    free(links);
    return status;
}

void sl_world_leave(sl_world_t *world)
{
    sl_request_t request = {.kind = SL_REQUEST_LEAVE};

    if (world == NULL) {
        return;
    }
    sl_debug("rank %d: %llu times it waited for all: sums, gathers, broadcasts",
             world->rank, (unsigned long long)world->n_waits);
    sl_world_request(world, &request);
    (void)pthread_join(world->thread, NULL);
    destroy(world);
}

/* ---- who is there ---- */

int sl_world_rank(const sl_world_t *world)
{
    return world == NULL ? 0 : world->rank;
}

int sl_world_size(const sl_world_t *world)
{
    return world == NULL ? 1 : world->size;
}

const char *sl_world_host(const sl_world_t *world, int rank)
{
    if (world == NULL) {
        return "localhost";
    }
    return rank >= 0 && rank < world->size ? world->link->hosts[rank] : "?";
}

int sl_world_local_rank(const sl_world_t *world, int *n_p)
{
    if (n_p != NULL) {
        *n_p = world == NULL ? 1 : world->n_local;
    }
    return world == NULL ? 0 : world->local_rank;
}

int sl_world_is_cuda_aware(const sl_world_t *world)
{
    return world != NULL && world->link->is_cuda_aware;
}

int sl_world_has_failed(sl_world_t *world)
{
    int has_failed;

    (void)pthread_mutex_lock(&world->lock);
    has_failed = world->is_failed;
    (void)pthread_mutex_unlock(&world->lock);
    return has_failed;
}

void sl_world_call(sl_world_t *world, void (*fn)(void *ctx), void *ctx)
{
    sl_request_t request = {.kind = SL_REQUEST_CALL, .fn = fn, .ctx = ctx};

    sl_world_request(world, &request);
}

const char *sl_world_link_name(const sl_world_t *world)
{
    return world == NULL ? "none" : world->link->ops->name;
}

void sl_world_expect(sl_world_t *world, int n)
{
    if (world != NULL) {
        const int before = atomic_fetch_add(&world->n_expected, n);

        if (before <= 0 && n > 0) {
            sl_world_wake(world);
        }
    }
}
