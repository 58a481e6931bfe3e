/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/transport_bed.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "engine/device_ops.h"
#include "tests/support/sl_test.h"
#if SL_HAVE_CUDA
#include "engine/nccl/nccl.h"
#endif

static atomic_int n_faults;

void bed_fault(const char *what, const char *file, int line)
{
    (void)fprintf(stderr, "%s:%d: %s (%s)\n", file, line, what,
                  sl_last_error());
    (void)atomic_fetch_add(&n_faults, 1);
}

static size_t bytes_of(const bed_line_t *line, int m)
{
    const sl_rng_t rng =
        sl_rng_at(9, (uint32_t)line->from, (uint32_t)line->to, 0, 0);

    return line->is_even ? line->max_bytes
                         : 1 + sl_rng_u32(&rng, (uint64_t)m) % line->max_bytes;
}

static unsigned char byte_of(const bed_line_t *line, int round, int m)
{
    return (unsigned char)(1 + line->from * 3 + line->to * 7 + round * 11 +
                           m * 13 + m / 256);
}

/* ---- one end of one channel ---- */

/* Memory of the device and of the host for n messages. */
typedef struct room {
    sl_device_t *device;
    int n;
    sl_mem_block_t *blocks[32];
    unsigned char *host;
    size_t bytes;
} room_t;

typedef struct worker {
    bed_rank_t *rank;
    int line;
    int round;
    pthread_t thread;
    sl_status_t status;
    room_t room;
} worker_t;

static sl_status_t room_make(sl_device_t *device, int n, size_t bytes,
                             room_t *room)
{
    void *host = NULL;
    sl_status_t status;

    memset(room, 0, sizeof(*room));
    room->device = device;
    room->bytes = bytes;
    SL_TRY(status, sl_device_host_alloc(device, (size_t)n * bytes, &host), out);
    room->host = host;
    for (room->n = 0; room->n < n; room->n++) {
        SL_TRY(status,
               sl_mem_alloc(device->mem, SL_MEM_CLASS_COMM, bytes,
                            &room->blocks[room->n]),
               out);
    }
out:
    return status;
}

static void room_free(room_t *room)
{
    int i;

    for (i = 0; i < room->n; i++) {
        sl_mem_release(room->blocks[i]);
    }
    sl_device_host_release(room->device, room->host);
}

/* Queue a copy between host and device. */
static sl_status_t copy(const room_t *room, void *dst, const void *src,
                        size_t bytes, uint64_t *ticket_p)
{
    const sl_copy_args_t args = {.dst = dst, .src = src, .bytes = bytes};
    const sl_op_t op = {.fn = sl_device_kernels(room->device->kind)->copy,
                        .args = &args,
                        .args_bytes = sizeof(args)};

    return sl_op_manager_submit(room->device->ops, &op, ticket_p);
}

static sl_status_t send_all(worker_t *worker, room_t *room)
{
    bed_rank_t *rank = worker->rank;
    const bed_line_t *line = &rank->plan->lines[worker->line];
    sl_channel_t *channel = &rank->channels[worker->line];
    uint64_t tickets[32] = {0};
    sl_status_t status = SL_OK;
    int m;

    for (m = 0; m < line->n_messages; m++) {
        const size_t bytes = bytes_of(line, m);
        const int i = m % room->n;
        unsigned char *host = room->host + (size_t)i * room->bytes;
        void *block = room->blocks[i]->ptr;

        if (rank->plan->hook != NULL && m == line->n_messages / 2) {
            rank->plan->hook(rank, worker->round, 1);
        }
        if (m >= room->n) {
            SL_TRY(status, sl_channel_wait_taken(channel, m - room->n), out);
            SL_TRY(
                status,
                sl_op_manager_wait(room->device->ops, tickets[i], UINT64_MAX),
                out);
        }
        memset(host, byte_of(line, worker->round, m), bytes);
        SL_TRY(status, copy(room, block, host, bytes, &tickets[i]), out);
        SL_TRY(status,
               sl_channel_send(channel, room->device->ops, m, block, bytes),
               out);
    }
    for (m = 0; m < line->n_messages; m++) {
        SL_TRY(status, sl_channel_wait_taken(channel, m), out);
    }
out:
    return status;
}

static sl_status_t receive_all(worker_t *worker, room_t *room)
{
    bed_rank_t *rank = worker->rank;
    const bed_line_t *line = &rank->plan->lines[worker->line];
    sl_channel_t *channel = &rank->channels[worker->line];
    sl_status_t status = SL_OK;
    int m;

    for (m = 0; m < line->n_messages; m++) {
        const size_t bytes = bytes_of(line, m);
        const unsigned char want = byte_of(line, worker->round, m);
        const int i = m % room->n;
        unsigned char *host = room->host + (size_t)i * room->bytes;
        void *block = room->blocks[i]->ptr;
        uint64_t ticket = 0;
        size_t k, n_bad = 0;

        SL_TRY(status, sl_channel_wait(channel, m), out);
        SL_TRY(status,
               sl_channel_receive(channel, room->device->ops, m, block, bytes,
                                  NULL),
               out);
        SL_TRY(status, copy(room, host, block, bytes, &ticket), out);
        SL_TRY(status,
               sl_op_manager_wait(room->device->ops, ticket, UINT64_MAX), out);
        for (k = 0; k < bytes; k++) {
            n_bad += host[k] != want;
        }
        BED_TRUE(n_bad == 0);
    }
out:
    return status;
}

static void *work(void *arg)
{
    worker_t *worker = arg;
    bed_rank_t *rank = worker->rank;
    const bed_line_t *line = &rank->plan->lines[worker->line];
    sl_device_t *device = &rank->devices->devices[0];
    const int is_sender = line->from == rank->rank;
    sl_status_t status;

    status = room_make(device, is_sender ? line->n_slots + 1 : 3,
                       line->max_bytes, &worker->room);
    if (status >= 0) {
        status = is_sender ? send_all(worker, &worker->room)
                           : receive_all(worker, &worker->room);
    }
    if (status < 0 && status != SL_ERR_CANCELED) {
        sl_abort_raise(&rank->abort, status);
        sl_world_abort(rank->world, status, sl_last_error());
    }
    if (status < 0 && sl_abort_is_set(&rank->abort)) {
        sl_op_manager_cancel(device->ops);
    }
    (void)!sl_op_manager_drain(device->ops);
    worker->status = status;
    return NULL;
}

/* ---- a rank ---- */

static void on_abort(void *abort, sl_status_t status, const char *detail)
{
    sl_abort_raise_remote(abort, status, detail);
}

static void open_lines(bed_rank_t *rank)
{
    const bed_plan_t *plan = rank->plan;
    int n_to[BED_RANKS_MAX] = {0}, n_from[BED_RANKS_MAX] = {0};
    int i;

    for (i = 0; i < plan->n_lines; i++) {
        const bed_line_t *line = &plan->lines[i];
        sl_channel_t *channel = &rank->channels[i];

        channel->peer = -1;
        if (line->from != rank->rank && line->to != rank->rank) {
            continue;
        }
        channel->device_kind = rank->devices->devices[0].kind;
        channel->from_cell = channel->from_stage = line->from;
        channel->to_cell = channel->to_stage = line->to;
        channel->layer = i;
        channel->is_sender = line->from == rank->rank;
        channel->peer = channel->is_sender ? line->to : line->from;
        channel->tag =
            channel->is_sender ? n_to[line->to]++ : n_from[line->from]++;
        channel->n_slots = line->n_slots;
        channel->transport = plan->transport;
        channel->nccl = rank->nccl;
        channel->abort = &rank->abort;
        BED_TRUE(sl_channel_reset(channel, line->n_messages) == SL_OK);
        BED_TRUE(sl_channel_reserve(channel, rank->world,
                                    &rank->devices->devices[0],
                                    line->max_bytes) == SL_OK);
        BED_TRUE(sl_channel_open(channel) == SL_OK);
    }
}

#if SL_HAVE_CUDA
static void connect_nccl(bed_rank_t *rank)
{
    const bed_plan_t *plan = rank->plan;
    sl_lane_key_t keys[LINES_MAX];
    sl_nccl_params_t params;
    int i, k, n = 0;

    if (plan->transport != SL_TRANSPORT_NCCL) {
        return;
    }
    for (i = 0; i < plan->n_lines; i++) {
        const sl_lane_key_t key = {.from_rank = plan->lines[i].from,
                                   .to_rank = plan->lines[i].to};

        if (key.from_rank != rank->rank && key.to_rank != rank->rank) {
            continue;
        }
        for (k = 0; k < n && sl_lane_key_compare(&keys[k], &key) != 0; k++) {
        }
        keys[k] = key;
        n = k == n ? n + 1 : n;
    }
    qsort(keys, (size_t)n, sizeof(*keys), sl_lane_key_compare);
    sl_nccl_params_default(&params);
    params.world = rank->world;
    params.abort = &rank->abort;
    params.devices = rank->devices;
    params.stuck_ns = plan->stuck_ns > 0 ? plan->stuck_ns : params.stuck_ns;
    params.meet_ns = plan->meet_ns > 0 ? plan->meet_ns : params.meet_ns;
    params.end_ns = plan->end_ns > 0 ? plan->end_ns : params.end_ns;
    BED_TRUE(sl_nccl_create(&params, &rank->nccl) == SL_OK);
    rank->status = sl_nccl_connect(rank->nccl, rank->world, keys, n, SL_OK);
    BED_TRUE((rank->status < 0) == plan->expects_no_nccl);
    if (rank->status < 0) {
        (void)snprintf(rank->detail, sizeof(rank->detail), "%s",
                       sl_last_error());
        rank->is_over = 1;
    }
}

static sl_status_t recover_nccl(bed_rank_t *rank, sl_status_t status)
{
    if (status < 0) {
        sl_nccl_lose(rank->nccl);
        return status;
    }
    return sl_nccl_recover(rank->nccl);
}

static void end_nccl(bed_rank_t *rank)
{
    rank->n_made = rank->nccl == NULL ? 0 : sl_nccl_n_made(rank->nccl);
    sl_nccl_destroy(rank->nccl);
}

static void pause_nccl(bed_rank_t *rank)
{
    sl_nccl_pause(rank->nccl);
}
#else
static void connect_nccl(bed_rank_t *rank)
{
    (void)rank;
}

static sl_status_t recover_nccl(bed_rank_t *rank, sl_status_t status)
{
    (void)rank;
    return status;
}

static void end_nccl(bed_rank_t *rank)
{
    (void)rank;
}

static void pause_nccl(bed_rank_t *rank)
{
    (void)rank;
}
#endif

/* As an engine does: nothing of the old job stays. */
static void recover(bed_rank_t *rank)
{
    sl_status_t status;
    sl_device_t *device = &rank->devices->devices[0];
    double none = 0.0;
    int i;

    (void)!sl_op_manager_drain(device->ops);
    sl_op_manager_recover(device->ops);
    pause_nccl(rank);
    status = sl_world_recover(rank->world);
    if (recover_nccl(rank, status) < 0) {
        rank->is_over = 1;
        atomic_store(&rank->n_judged, INT_MAX);
        return;
    }
    for (i = 0; i < rank->plan->n_lines; i++) {
        sl_channel_recover(&rank->channels[i]);
    }
    sl_abort_reset(&rank->abort);
    sl_world_watch(rank->world, on_abort, &rank->abort);
    (void)!sl_world_sum(rank->world, &none, 1);
}

/* All have said how the round went: one that fails early in the next would
 * else cut others off in the sum that ends this one, and they would take this
 * one for failed. */
static void await_judgement(bed_rank_t *rank)
{
    const struct timespec pause = {.tv_nsec = 500000};
    bed_rank_t *ranks = rank - rank->rank;
    const int n = atomic_fetch_add(&rank->n_judged, 1) + 1;
    int r;

    for (r = 0; r < rank->plan->n_ranks; r++) {
        while (atomic_load(&ranks[r].n_judged) < n) {
            (void)nanosleep(&pause, NULL);
        }
    }
}

static void run_round(bed_rank_t *rank, int round)
{
    const bed_plan_t *plan = rank->plan;
    worker_t workers[LINES_MAX];
    double none = 0.0;
    int i, n = 0;

    if (plan->hook != NULL) {
        plan->hook(rank, round, 0);
    }
    for (i = 0; i < plan->n_lines; i++) {
        if (rank->channels[i].peer < 0) {
            continue;
        }
        BED_TRUE(sl_channel_reset(&rank->channels[i],
                                  plan->lines[i].n_messages) == SL_OK);
        workers[n] = (worker_t){.rank = rank, .line = i, .round = round};
        BED_TRUE(pthread_create(&workers[n].thread, NULL, work, &workers[n]) ==
                 0);
        n++;
    }
    for (i = 0; i < n; i++) {
        (void)pthread_join(workers[i].thread, NULL);
    }
    /* as a step's agreement: all have taken it, or none */
    if (!sl_abort_is_set(&rank->abort) &&
        sl_world_sum(rank->world, &none, 1) < 0) {
        (void)sl_abort_await(&rank->abort, 5000);
    }
    rank->status = sl_abort_status(&rank->abort);
    if (rank->status < 0) {
        (void)snprintf(rank->detail, sizeof(rank->detail), "%s",
                       sl_last_error());
        rank->n_failed++;
        sl_world_abort(rank->world, rank->status, rank->detail);
    }
    await_judgement(rank);
    if (rank->status < 0) {
        BED_TRUE(plan->expects_failure);
        recover(rank);
    }
    /* what is under way is lent until then */
    for (i = 0; i < n; i++) {
        room_free(&workers[i].room);
    }
}

static void run_rounds(bed_rank_t *rank)
{
    double none = 0.0;
    int i, round;

    open_lines(rank);
    (void)!sl_world_sum(rank->world, &none, 1);
    for (round = 0; round < rank->plan->n_rounds && !rank->is_over; round++) {
        run_round(rank, round);
    }
    sl_world_watch(rank->world, NULL, NULL);
    for (i = 0; i < rank->plan->n_lines; i++) {
        sl_channel_cleanup(&rank->channels[i]);
    }
}

static void *rank_main(void *arg)
{
    bed_rank_t *rank = arg;

    sl_world_watch(rank->world, on_abort, &rank->abort);
    connect_nccl(rank);
    if (!rank->is_over) {
        run_rounds(rank);
    }
    end_nccl(rank);
    sl_world_leave(rank->world);
    return NULL;
}

static void open_devices(const bed_plan_t *plan, bed_rank_t *rank)
{
    sl_device_params_t params;

    sl_device_params_default(&params);
    params.spec = plan->spec;
    params.n_threads = 1;
    params.bind = 0;
    params.memory_bytes = (size_t)256 << 20;
    params.is_exportable = plan->transport == SL_TRANSPORT_CUDA_AWARE;
    params.gpu_rank = rank->rank;
    params.n_gpu_ranks = plan->n_ranks;
    sl_assert_ok(sl_device_set_create(&params, &rank->devices));
}

int bed_run(const bed_plan_t *plan, bed_rank_t *ranks)
{
    sl_world_params_t params;
    sl_world_t *worlds[BED_RANKS_MAX];
    pthread_t threads[BED_RANKS_MAX];
    int r;

    atomic_store(&n_faults, 0);
    memset(ranks, 0, (size_t)plan->n_ranks * sizeof(*ranks));
    sl_world_params_default(&params);
    if (plan->dead_ns > 0) {
        params.dead_ns = plan->dead_ns;
        params.heartbeat_ns = plan->dead_ns / 8;
    }
    sl_assert_ok(sl_world_local(plan->n_ranks, &params, worlds));
    for (r = 0; r < plan->n_ranks; r++) {
        ranks[r].plan = plan;
        ranks[r].rank = r;
        ranks[r].world = worlds[r];
        sl_abort_init(&ranks[r].abort);
        open_devices(plan, &ranks[r]);
    }
    for (r = 0; r < plan->n_ranks; r++) {
        assert_int_equal(
            pthread_create(&threads[r], NULL, rank_main, &ranks[r]), 0);
    }
    for (r = 0; r < plan->n_ranks; r++) {
        (void)pthread_join(threads[r], NULL);
        sl_device_set_destroy(ranks[r].devices);
        sl_abort_cleanup(&ranks[r].abort);
    }
    return atomic_load(&n_faults);
}
