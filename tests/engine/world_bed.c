/* SPDX-License-Identifier: Apache-2.0 */
/* What every link must do; see the header. */
#include "tests/engine/world_bed.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_MESSAGES = 64,
    EDGES_PER_PAIR = 3
};

static atomic_int n_faults;

int bed_n_faults(void)
{
    return atomic_load(&n_faults);
}

int bed_check(int ok, const char *what, const char *file, int line)
{
    if (!ok && atomic_fetch_add(&n_faults, 1) < 10) {
        (void)fprintf(stderr, "%s:%d: %s does not hold (last error: %s)\n",
                      file, line, what, sl_last_error());
    }
    return ok;
}

uint64_t bed_random(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15U + a * 0xbf58476d1ce4e5b9U +
                 b * 0x94d049bb133111ebU + c * 0xd6e8feb86659fd93U;

    x ^= x >> 31;
    x *= 0xff51afd7ed558ccdU;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53U;
    return x ^ (x >> 29);
}

void bed_sleep_us(uint64_t us)
{
    const struct timespec pause = {.tv_sec = (time_t)(us / 1000000),
                                   .tv_nsec = (long)(us % 1000000) * 1000};

    (void)nanosleep(&pause, NULL);
}

/* ---- a rank and its edges ---- */

static void on_message(void *ctx, uint64_t i, void *slot, size_t bytes)
{
    bed_edge_t *edge = ctx;
    bed_rank_t *rank = edge->rank;

    (void)pthread_mutex_lock(&rank->lock);
    (void)BED_CHECK(i == edge->base + edge->n_events);
    (void)BED_CHECK(edge->n_events < (uint64_t)rank->n_messages);
    edge->sizes[edge->n_events % (uint64_t)rank->n_messages] = bytes;
    (void)BED_CHECK(edge->is_sender ||
                    slot == edge->slots[i % (uint64_t)edge->n_slots]);
    edge->n_events++;
    (void)pthread_cond_broadcast(&rank->changed);
    (void)pthread_mutex_unlock(&rank->lock);
}

static void on_abort(void *ctx, sl_status_t status, const char *detail)
{
    bed_rank_t *rank = ctx;

    (void)pthread_mutex_lock(&rank->lock);
    rank->n_aborts++;
    rank->is_aborted = 1;
    rank->status = status;
    (void)snprintf(rank->detail, sizeof(rank->detail), "%s", detail);
    (void)pthread_cond_broadcast(&rank->changed);
    (void)pthread_mutex_unlock(&rank->lock);
}

static size_t room_of(int tag)
{
    static const size_t rooms[EDGES_PER_PAIR] = {37, 5000, 0};

    return rooms[tag % EDGES_PER_PAIR];
}

static void edge_init(bed_edge_t *edge, bed_rank_t *rank, int index)
{
    const int me = sl_world_rank(rank->world);
    const int kind = index % (2 * EDGES_PER_PAIR);
    const int peer = index / (2 * EDGES_PER_PAIR);
    int i;

    edge->rank = rank;
    edge->peer = peer + (peer >= me);
    edge->is_sender = kind % 2;
    edge->tag = kind / 2;
    edge->max_bytes = room_of(edge->tag);
    edge->n_slots = 1 + (edge->tag + me + edge->peer) % 3;
    edge->sizes = calloc((size_t)rank->n_messages, sizeof(*edge->sizes));
    edge->slots = calloc((size_t)edge->n_slots, sizeof(*edge->slots));
    edge->memory =
        calloc((size_t)(rank->n_messages + edge->n_slots), edge->max_bytes + 1);
    for (i = 0; i < edge->n_slots; i++) {
        edge->slots[i] = edge->memory + (size_t)i * (edge->max_bytes + 1);
    }
}

void bed_rank_init(bed_rank_t *rank, sl_world_t *world, int n_messages)
{
    int i;

    memset(rank, 0, sizeof(*rank));
    rank->world = world;
    rank->n_messages = n_messages;
    (void)pthread_mutex_init(&rank->lock, NULL);
    (void)pthread_cond_init(&rank->changed, NULL);
    rank->n_edges = (sl_world_size(world) - 1) * 2 * EDGES_PER_PAIR;
    rank->edges = calloc((size_t)rank->n_edges + 1, sizeof(*rank->edges));
    for (i = 0; i < rank->n_edges; i++) {
        edge_init(&rank->edges[i], rank, i);
    }
    sl_world_watch(world, on_abort, rank);
}

void bed_rank_cleanup(bed_rank_t *rank)
{
    int i;

    sl_world_watch(rank->world, NULL, NULL);
    for (i = 0; i < rank->n_edges; i++) {
        free(rank->edges[i].sizes);
        free(rank->edges[i].slots);
        free(rank->edges[i].memory);
    }
    free(rank->edges);
    (void)pthread_cond_destroy(&rank->changed);
    (void)pthread_mutex_destroy(&rank->lock);
}

static void edge_open(bed_edge_t *edge)
{
    const sl_port_events_t events = {.on_message = on_message, .ctx = edge};
    sl_world_t *world = edge->rank->world;
    sl_status_t status;

    if (edge->is_sender) {
        status = sl_port_open_send(world, edge->peer, edge->tag, edge->n_slots,
                                   edge->max_bytes, &events, &edge->port);
    } else {
        status = sl_port_open_receive(world, edge->peer, edge->tag,
                                      edge->n_slots, edge->max_bytes,
                                      edge->slots, &events, &edge->port);
    }
    (void)BED_CHECK(status == SL_OK);
}

/* In an order of this rank's own. */
static bed_edge_t *edge_at(bed_rank_t *rank, uint64_t seed, int i)
{
    const int n = rank->n_edges;
    const uint64_t me = (uint64_t)sl_world_rank(rank->world);
    const int start = (int)(bed_random(seed, me, 1, 0) % (uint64_t)n);
    const int is_down = (int)(bed_random(seed, me, 2, 0) % 2);

    return &rank->edges[is_down ? (start + n - i) % n : (start + i) % n];
}

/* A new round; messages are counted from the opening or recovery on. */
static void forget(bed_rank_t *rank, int is_next)
{
    int e;

    (void)pthread_mutex_lock(&rank->lock);
    for (e = 0; e < rank->n_edges; e++) {
        bed_edge_t *edge = &rank->edges[e];

        edge->base = is_next ? edge->base + edge->n_events : 0;
        edge->n_events = edge->n_taken = 0;
    }
    (void)pthread_mutex_unlock(&rank->lock);
}

void bed_begin_anew(bed_rank_t *rank)
{
    forget(rank, 0);
    (void)pthread_mutex_lock(&rank->lock);
    (void)BED_CHECK(rank->n_aborts <= 1);
    rank->n_aborts = rank->is_aborted = 0;
    (void)pthread_mutex_unlock(&rank->lock);
    sl_world_watch(rank->world, on_abort, rank);
}

void bed_open(bed_rank_t *rank, uint64_t seed)
{
    int i;

    forget(rank, 0);
    for (i = 0; i < rank->n_edges; i++) {
        edge_open(edge_at(rank, seed, i));
    }
}

void bed_close(bed_rank_t *rank, uint64_t seed)
{
    int i;

    for (i = 0; i < rank->n_edges; i++) {
        bed_edge_t *edge = edge_at(rank, seed + 1, i);

        sl_port_close(edge->port);
        edge->port = NULL;
    }
}

/* ---- traffic ---- */

static uint64_t message_key(const bed_edge_t *edge, uint64_t seed, uint64_t i)
{
    const uint64_t me = (uint64_t)sl_world_rank(edge->rank->world);
    const uint64_t peer = (uint64_t)edge->peer;
    const uint64_t from = edge->is_sender ? me : peer;
    const uint64_t to = edge->is_sender ? peer : me;

    return bed_random(seed, from * 1000 + to, (uint64_t)edge->tag, i);
}

static size_t message_bytes(const bed_edge_t *edge, uint64_t key)
{
    return key % 5 == 0 ? edge->max_bytes
                        : (size_t)(key / 5) % (edge->max_bytes + 1);
}

static void send_all(bed_rank_t *rank, uint64_t seed)
{
    int i, e;

    for (i = 0; i < rank->n_messages; i++) {
        for (e = 0; e < rank->n_edges; e++) {
            bed_edge_t *edge = &rank->edges[e];
            const uint64_t key = message_key(edge, seed, (uint64_t)i);
            const size_t bytes = message_bytes(edge, key);
            unsigned char *data =
                edge->memory + (size_t)i * (edge->max_bytes + 1);
            size_t j;

            if (!edge->is_sender) {
                continue;
            }
            for (j = 0; j < bytes; j++) {
                data[j] = (unsigned char)(key + j * 7);
            }
            sl_port_send(edge->port, data, bytes);
        }
    }
}

/* With the lock held: check the edge's next message, release it. */
static void take(bed_edge_t *edge, uint64_t seed)
{
    const uint64_t i = edge->n_taken++;
    const uint64_t key = message_key(edge, seed, i);
    const size_t bytes = message_bytes(edge, key);
    const unsigned char *data =
        edge->slots[(edge->base + i) % (uint64_t)edge->n_slots];
    size_t j, n_wrong = 0;

    (void)BED_CHECK(edge->sizes[i] == bytes);
    for (j = 0; j < bytes; j++) {
        n_wrong += data[j] != (unsigned char)(key + j * 7);
    }
    (void)BED_CHECK(n_wrong == 0);
    sl_port_release(edge->port);
}

/* Until `n` messages of each edge are taken (and sent, at the end). */
static int receive_until(bed_rank_t *rank, uint64_t seed, uint64_t n,
                         int is_end)
{
    int is_done = 0, e;

    sl_world_expect(rank->world, 1);
    (void)pthread_mutex_lock(&rank->lock);
    while (!rank->is_aborted) {
        int has_taken = 0;

        is_done = 1;
        for (e = 0; e < rank->n_edges; e++) {
            bed_edge_t *edge = &rank->edges[e];

            if (edge->is_sender) {
                is_done &= !is_end || edge->n_events == n;
            } else if (edge->n_taken < n && edge->n_events > edge->n_taken) {
                take(edge, seed);
                has_taken = 1;
                is_done = 0;
            } else {
                is_done &= edge->n_taken >= n;
            }
        }
        if (is_done) {
            break;
        }
        if (!has_taken) {
            (void)pthread_cond_wait(&rank->changed, &rank->lock);
        }
    }
    (void)pthread_mutex_unlock(&rank->lock);
    sl_world_expect(rank->world, -1);
    return is_done;
}

/* Three values a rank, and what their sum must be. */
static void sum_values(sl_world_t *world, uint64_t seed, uint64_t which,
                       double values[3], double want[3])
{
    const int size = sl_world_size(world);
    int r, j;

    for (r = 0; r < size; r++) {
        for (j = 0; j < 3; j++) {
            const uint64_t x =
                bed_random(seed, which, (uint64_t)r, (uint64_t)j) >> 11;
            const double v = (double)x * 1e-3;

            want[j] = r == 0 ? v : want[j] + v;
            if (r == sl_world_rank(world)) {
                values[j] = v;
            }
        }
    }
}

static int check_sum(sl_world_t *world, uint64_t seed, uint64_t which)
{
    double values[3], want[3];
    sl_status_t status;

    sum_values(world, seed, which, values, want);
    status = sl_world_sum(world, values, 3);
    if (status == SL_ERR_CANCELED) {
        return 0;
    }
    (void)BED_CHECK(status == SL_OK);
    (void)BED_CHECK(memcmp(values, want, sizeof(want)) == 0);
    return status == SL_OK;
}

static int round_sum(bed_rank_t *rank, uint64_t seed, int which)
{
    rank->canceled_sum = -1;
    if (check_sum(rank->world, seed, (uint64_t)which)) {
        return 1;
    }
    rank->canceled_sum = which;
    return 0;
}

/* After a failure: whether the round has ended on another rank. */
static int is_ended_elsewhere(bed_rank_t *rank, uint64_t seed)
{
    const int which = rank->canceled_sum;
    double values[3], mine[3], want[3];

    if (!sl_world_late_sum(rank->world, values, 3) || !BED_CHECK(which >= 0)) {
        return 0;
    }
    sum_values(rank->world, seed, (uint64_t)which, mine, want);
    (void)BED_CHECK(memcmp(values, want, sizeof(want)) == 0);
    return which == 2;
}

int bed_traffic(bed_rank_t *rank, uint64_t seed)
{
    const uint64_t n = (uint64_t)rank->n_messages;

    forget(rank, 1);
    /* nobody may send before all have forgotten the round before */
    if (!round_sum(rank, seed, 0)) {
        return 0;
    }
    send_all(rank, seed);
    return receive_until(rank, seed, n / 2, 0) && round_sum(rank, seed, 1) &&
           receive_until(rank, seed, n, 1) && round_sum(rank, seed, 2);
}

/* ---- together ---- */

static void check_gather(sl_world_t *world, size_t bytes)
{
    const size_t size = (size_t)sl_world_size(world);
    unsigned char *mine = calloc(bytes + 1, 1);
    unsigned char *all = calloc(size * bytes + 1, 1);
    size_t i, n_wrong = 0;

    for (i = 0; i < bytes; i++) {
        mine[i] = (unsigned char)(i + 31 * (size_t)sl_world_rank(world));
    }
    (void)BED_CHECK(sl_world_gather(world, mine, bytes, all) == SL_OK);
    for (i = 0; i < size * bytes; i++) {
        n_wrong += all[i] != (unsigned char)(i % bytes + 31 * (i / bytes));
    }
    (void)BED_CHECK(n_wrong == 0);
    free(mine);
    free(all);
}

static void check_broadcast(sl_world_t *world, int root, size_t bytes)
{
    unsigned char *data = calloc(bytes + 1, 1);
    size_t i, n_wrong = 0;

    for (i = 0; i < bytes && sl_world_rank(world) == root; i++) {
        data[i] = (unsigned char)(i * 3 + 1);
    }
    (void)BED_CHECK(sl_world_broadcast(world, root, data, bytes) == SL_OK);
    for (i = 0; i < bytes; i++) {
        n_wrong += data[i] != (unsigned char)(i * 3 + 1);
    }
    (void)BED_CHECK(n_wrong == 0);
    free(data);
}

static void check_not_finite(sl_world_t *world)
{
    const int rank = sl_world_rank(world);
    const int is_last = rank == sl_world_size(world) - 1;
    double values[4] = {NAN, is_last ? INFINITY : 1.0,
                        is_last ? -INFINITY : INFINITY, -0.0};

    (void)BED_CHECK(sl_world_sum(world, values, 4) == SL_OK);
    (void)BED_CHECK(isnan(values[0]));
    (void)BED_CHECK(values[1] == (double)INFINITY);
    (void)BED_CHECK(sl_world_size(world) == 1 || isnan(values[2]));
    (void)BED_CHECK(values[3] == 0.0 && signbit(values[3]));
}

/* A ring, both ways, even ranks first. */
static void check_put_get(sl_world_t *world, size_t bytes)
{
    const int rank = sl_world_rank(world), size = sl_world_size(world);
    unsigned char *out = malloc(bytes + 1), *in = malloc(bytes + 1);
    int step;

    memset(out, 0x40 + rank, bytes + 1);
    for (step = 0; step + 1 < size; step++) {
        if (rank == step) {
            (void)BED_CHECK(sl_world_put(world, rank + 1, out, bytes) == SL_OK);
            memset(in, 0, bytes + 1);
            (void)BED_CHECK(sl_world_get(world, rank + 1, in, bytes) == SL_OK);
        } else if (rank == step + 1) {
            memset(in, 0, bytes + 1);
            (void)BED_CHECK(sl_world_get(world, step, in, bytes) == SL_OK);
            (void)BED_CHECK(sl_world_put(world, step, out, bytes) == SL_OK);
        } else {
            continue;
        }
        (void)BED_CHECK(in[bytes] == 0);
        (void)BED_CHECK(bytes == 0 || in[0] == 0x41 + step - (rank > step));
        (void)BED_CHECK(bytes == 0 || memcmp(in, in + 1, bytes - 1) == 0);
    }
    free(out);
    free(in);
}

void bed_collectives(sl_world_t *world)
{
    static const size_t sizes[] = {0, 1, 3, 8, 999, 1000, 1001, 70001};
    size_t i;
    int root;

    for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        check_gather(world, sizes[i]);
        check_put_get(world, sizes[i]);
        for (root = 0; root < sl_world_size(world); root++) {
            check_broadcast(world, root, sizes[i]);
        }
    }
    for (i = 0; i < 20; i++) {
        (void)check_sum(world, i, 0);
    }
    check_not_finite(world);
    (void)BED_CHECK(sl_world_sum(world, NULL, 0) == SL_OK);
}

/* ---- ports come and go ---- */

void bed_reopen(sl_world_t *world, int n_rounds)
{
    bed_rank_t rank;
    int i;

    bed_rank_init(&rank, world, 3);
    for (i = 0; i < n_rounds; i++) {
        bed_open(&rank, (uint64_t)i);
        (void)BED_CHECK(bed_traffic(&rank, (uint64_t)i));
        bed_close(&rank, (uint64_t)i);
    }
    bed_rank_cleanup(&rank);
}

/* ---- aborts ---- */

typedef struct saboteur {
    bed_rank_t *rank;
    uint64_t after_us;
} saboteur_t;

static void *sabotage(void *arg)
{
    const saboteur_t *saboteur = arg;
    bed_rank_t *rank = saboteur->rank;

    if (saboteur->after_us > 0) {
        bed_sleep_us(saboteur->after_us);
    }
    sl_world_abort(rank->world, SL_ERR_DEVICE, "sabotage");
    (void)pthread_mutex_lock(&rank->lock);
    rank->is_aborted = 1;
    (void)pthread_cond_broadcast(&rank->changed);
    (void)pthread_mutex_unlock(&rank->lock);
    return NULL;
}

/* Rounds end on all ranks or on none. */
typedef struct progress {
    uint64_t n_rounds, n_failures; /* equal on all ranks */
    uint64_t n_late;
} progress_t;

static void recover_round(bed_rank_t *rank, uint64_t key, progress_t *progress)
{
    sl_status_t status;

    do {
        /* ranks may not agree on the round yet, but on the failures */
        const uint64_t dice = bed_random(progress->n_failures, 79, 0, 0);

        if (dice % 8 == 0) {
            bed_close(rank, key);
        }
        status = sl_world_recover(rank->world);
        progress->n_failures++;
        bed_begin_anew(rank);
        if (dice % 8 == 0) {
            bed_open(rank, key);
        }
    } while (status == SL_ERR_CANCELED);
    (void)BED_CHECK(status == SL_OK);
    if (is_ended_elsewhere(rank, key)) {
        progress->n_rounds++;
        progress->n_late++;
    }
}

static void abort_round(bed_rank_t *rank, uint64_t seed, progress_t *progress,
                        int may_abort)
{
    const uint64_t me = (uint64_t)sl_world_rank(rank->world);
    const uint64_t key =
        bed_random(seed, progress->n_rounds, progress->n_failures, 0);
    const uint64_t dice = bed_random(key, 78, me, 0);
    /* none, one or several of the ranks */
    int is_mine =
        may_abort && dice % (uint64_t)(sl_world_size(rank->world) + 1) == 0;
    saboteur_t saboteur = {.rank = rank, .after_us = dice / 64 % 400};
    pthread_t thread;
    int is_right;

    if (is_mine && dice / 8 % 2 == 0) {
        saboteur.after_us = 0; /* in the middle of the others' last sum */
        (void)sabotage(&saboteur);
        is_mine = 0;
    }
    if (is_mine) {
        (void)pthread_create(&thread, NULL, sabotage, &saboteur);
    }
    is_right = bed_traffic(rank, key);
    if (is_mine) {
        (void)pthread_join(thread, NULL);
    }
    if (is_right) {
        progress->n_rounds++;
    } else {
        recover_round(rank, key, progress);
    }
}

uint64_t bed_aborts(sl_world_t *world, uint64_t seed, int n_rounds)
{
    progress_t progress = {0};
    bed_rank_t rank;
    uint64_t n;

    bed_rank_init(&rank, world, 5);
    bed_open(&rank, seed);
    while (progress.n_rounds + progress.n_failures < (uint64_t)n_rounds &&
           bed_n_faults() == 0) {
        abort_round(&rank, seed, &progress, 1);
    }
    /* a late abort hits one round more */
    n = progress.n_rounds;
    while (progress.n_rounds == n && bed_n_faults() == 0) {
        abort_round(&rank, seed, &progress, 0);
    }
    bed_close(&rank, seed);
    bed_rank_cleanup(&rank);
    return progress.n_late;
}
