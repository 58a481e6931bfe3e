/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads: messages, what all do together, failures. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/world/world_internal.h"
#include "tests/engine/world_bed.h"
#include "tests/support/sl_test.h"

enum {
    MAX_RANKS = 64
};

typedef struct rank_run {
    void (*fn)(sl_world_t *world, const void *args);
    const void *args;
    sl_world_t *world;
} rank_run_t;

static void *run_rank(void *arg)
{
    rank_run_t *run = arg;

    run->fn(run->world, run->args);
    sl_world_leave(run->world);
    return NULL;
}

static sl_world_params_t quick_params(void)
{
    sl_world_params_t params;

    sl_world_params_default(&params);
    params.heartbeat_ns = 20000000;
    return params;
}

/* fn on n ranks; each leaves afterwards. */
static void run_ranks(int n, const sl_world_params_t *params,
                      void (*fn)(sl_world_t *world, const void *args),
                      const void *args)
{
    sl_world_t *worlds[MAX_RANKS];
    rank_run_t runs[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    const int before = bed_n_faults();
    int i;

    sl_assert_ok(sl_world_local(n, params, worlds));
    for (i = 0; i < n; i++) {
        runs[i] = (rank_run_t){.fn = fn, .args = args, .world = worlds[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &runs[i]),
                         0);
    }
    for (i = 0; i < n; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(bed_n_faults(), before);
}

/* ---- alone ---- */

static void alone_there_is_nothing_to_do(void **state)
{
    sl_world_params_t params;
    sl_world_t *world = (sl_world_t *)&params;
    double value = 3.0;
    int all = 0, mine = 7, n = 0;

    (void)state;
    sl_world_params_default(&params);
    (void)unsetenv("SLUICE_RANK");
    (void)unsetenv("SLUICE_WORLD");
    (void)unsetenv("OMPI_COMM_WORLD_SIZE");
    (void)unsetenv("PMIX_RANK");
    (void)unsetenv("SLURM_PROCID");
    sl_assert_ok(sl_world_join(&params, &world));
    assert_null(world);
    assert_int_equal(sl_world_rank(NULL), 0);
    assert_int_equal(sl_world_size(NULL), 1);
    assert_int_equal(sl_world_local_rank(NULL, &n), 0);
    assert_int_equal(n, 1);
    assert_string_equal(sl_world_link_name(NULL), "none");
    sl_assert_ok(sl_world_sum(NULL, &value, 1));
    assert_true(value == 3.0);
    sl_assert_ok(sl_world_gather(NULL, &mine, sizeof(mine), &all));
    assert_int_equal(all, 7);
    sl_assert_ok(sl_world_broadcast(NULL, 0, &all, sizeof(all)));
    sl_assert_ok(sl_world_recover(NULL));
    sl_world_expect(NULL, 1);
    sl_world_abort(NULL, SL_ERR_IO, "nobody hears");
    sl_world_leave(NULL);
    sl_port_close(NULL);
}

static void half_an_environment_is_refused(void **state)
{
    const char *masters[] = {"", "nowhere", ":1", "host:", "[]:5"};
    sl_world_params_t params = quick_params();
    sl_world_t *world = (sl_world_t *)&params;
    size_t i;

    (void)state;
    (void)setenv("SLUICE_RANK", "1", 1);
    sl_assert_status(sl_world_join(&params, &world), SL_ERR_CONFIG);
    (void)setenv("SLUICE_WORLD", "1", 1);
    sl_assert_status(sl_world_join(&params, &world), SL_ERR_CONFIG);
    (void)setenv("SLUICE_WORLD", "2x", 1);
    sl_assert_status(sl_world_join(&params, &world), SL_ERR_CONFIG);
    (void)setenv("SLUICE_WORLD", "2", 1);
    (void)unsetenv("SLUICE_MASTER");
    sl_assert_status(sl_world_join(&params, &world), SL_ERR_CONFIG);
    for (i = 0; i < sizeof(masters) / sizeof(*masters); i++) {
        (void)setenv("SLUICE_MASTER", masters[i], 1);
        sl_assert_status(sl_world_join(&params, &world), SL_ERR_CONFIG);
    }
    assert_ptr_equal(world, &params);
    /* one rank of one is alone */
    (void)setenv("SLUICE_RANK", "0", 1);
    (void)setenv("SLUICE_WORLD", "1", 1);
    sl_assert_ok(sl_world_join(&params, &world));
    assert_null(world);
    (void)unsetenv("SLUICE_RANK");
    (void)unsetenv("SLUICE_WORLD");
    (void)unsetenv("SLUICE_MASTER");
}

static void bad_arguments_are_refused(void **state)
{
    sl_world_params_t params = quick_params();
    sl_world_t *world = NULL;
    sl_port_t *port = NULL;
    double value = 0.0;

    (void)state;
    sl_assert_status(sl_world_local(0, &params, &world), SL_ERR_INVALID_ARG);
    params.dead_ns = 1;
    sl_assert_status(sl_world_local(1, &params, &world), SL_ERR_INVALID_ARG);
    params = quick_params();
    sl_assert_ok(sl_world_local(1, &params, &world));
    sl_assert_status(sl_port_open_send(NULL, 1, 0, 1, 8, NULL, &port),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_port_open_send(world, 1, 0, 1, 8, NULL, &port),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_port_open_send(world, 0, 0, 1, 8, NULL, &port),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_world_put(world, 0, &value, 8), SL_ERR_INVALID_ARG);
    sl_assert_status(sl_world_broadcast(world, 1, &value, 8),
                     SL_ERR_INVALID_ARG);
    sl_world_leave(world);
}

/* ---- traffic ---- */

static void do_collectives(sl_world_t *world, const void *args)
{
    (void)args;
    (void)BED_CHECK(strcmp(sl_world_link_name(world), "local") == 0);
    bed_collectives(world);
}

static void all_ranks_have_the_same_bits(void **state)
{
    const sl_world_params_t params = quick_params();
    const int sizes[] = {1, 2, 3, 4, 5, 8, 13};
    size_t i;

    (void)state;
    sl_world_hook_piece_bytes(1000);
    for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        run_ranks(sizes[i], &params, do_collectives, NULL);
    }
    sl_world_hook_piece_bytes(0);
}

static void do_one_sum(sl_world_t *world, const void *args)
{
    double value = 1.0 + sl_world_rank(world);
    const double n = sl_world_size(world);

    (void)args;
    (void)BED_CHECK(sl_world_sum(world, &value, 1) == SL_OK);
    (void)BED_CHECK(value == n * (n + 1) / 2);
}

static void many_ranks_add(void **state)
{
    const sl_world_params_t params = quick_params();

    (void)state;
    run_ranks(MAX_RANKS, &params, do_one_sum, NULL);
}

static void do_traffic(sl_world_t *world, const void *args)
{
    bed_rank_t rank;
    uint64_t i;

    (void)args;
    bed_rank_init(&rank, world, 60);
    bed_open(&rank, 5);
    for (i = 0; i < 4; i++) {
        (void)BED_CHECK(bed_traffic(&rank, i));
    }
    for (i = 0; i < (uint64_t)rank.n_edges; i++) {
        const bed_edge_t *edge = &rank.edges[i];
        sl_port_stats_t stats;

        sl_port_stats(edge->port, &stats);
        (void)BED_CHECK(stats.peer == edge->peer && stats.tag == edge->tag);
        (void)BED_CHECK(stats.is_sender == edge->is_sender);
        (void)BED_CHECK(stats.n_messages == 240);
        (void)BED_CHECK(edge->max_bytes == 0 || stats.n_bytes > 0);
        (void)BED_CHECK(!edge->is_sender || stats.latency_ns > 0);
        (void)BED_CHECK(!edge->is_sender || stats.n_stalls > 0);
    }
    bed_close(&rank, 6);
    bed_rank_cleanup(&rank);
}

static void messages_arrive_whole_and_in_order(void **state)
{
    const sl_world_params_t params = quick_params();
    uint64_t jitter;

    (void)state;
    for (jitter = 0; jitter < 4; jitter++) {
        sl_world_hook_jitter(jitter);
        sl_world_hook_piece_bytes(jitter % 2 == 0 ? 0 : 700);
        run_ranks(2 + (int)jitter, &params, do_traffic, NULL);
    }
    sl_world_hook_jitter(0);
    sl_world_hook_piece_bytes(0);
}

static void do_reopen(sl_world_t *world, const void *args)
{
    (void)args;
    bed_reopen(world, 40);
}

static void ports_open_and_close_in_any_order(void **state)
{
    const sl_world_params_t params = quick_params();
    uint64_t jitter;

    (void)state;
    for (jitter = 0; jitter < 3; jitter++) {
        sl_world_hook_jitter(jitter);
        run_ranks(3, &params, do_reopen, NULL);
    }
    sl_world_hook_jitter(0);
}

/* Tens of thousands of messages on one port: nothing mixes or grows. */
typedef struct counter {
    sl_port_t *port;
    atomic_int n_wrong;
    _Atomic uint64_t n;
} counter_t;

static void on_counted(void *ctx, uint64_t i, void *slot, size_t bytes)
{
    counter_t *counter = ctx;

    if (slot != NULL) {
        uint64_t value;

        memcpy(&value, slot, sizeof(value));
        atomic_fetch_add(&counter->n_wrong,
                         value != i || bytes != sizeof(value));
        sl_port_release(counter->port);
    }
    atomic_fetch_add(&counter->n, 1);
}

static void do_many(sl_world_t *world, const void *args)
{
    const uint64_t n = 20000;
    uint64_t *values = calloc(n, sizeof(*values));
    uint64_t memory[2];
    void *slots[2] = {&memory[0], &memory[1]};
    counter_t counter = {0};
    const sl_port_events_t events = {.on_message = on_counted, .ctx = &counter};
    double value = 0.0;
    uint64_t i;

    (void)args;
    if (sl_world_rank(world) == 0) {
        (void)BED_CHECK(sl_port_open_send(world, 1, SL_WORLD_MAX_TAG, 2, 8,
                                          &events, &counter.port) == SL_OK);
    } else {
        (void)BED_CHECK(sl_port_open_receive(world, 0, SL_WORLD_MAX_TAG, 2, 8,
                                             slots, &events,
                                             &counter.port) == SL_OK);
    }
    (void)BED_CHECK(sl_world_sum(world, &value, 1) == SL_OK);
    for (i = 0; i < n && sl_world_rank(world) == 0; i++) {
        values[i] = i;
        sl_port_send(counter.port, &values[i], 8);
    }
    while (atomic_load(&counter.n) < n) {
        bed_sleep_us(100);
    }
    (void)BED_CHECK(atomic_load(&counter.n_wrong) == 0);
    (void)BED_CHECK(sl_world_sum(world, &value, 1) == SL_OK);
    sl_port_close(counter.port);
    free(values);
}

static void twenty_thousand_messages_keep_their_order(void **state)
{
    const sl_world_params_t params = quick_params();

    (void)state;
    run_ranks(2, &params, do_many, NULL);
}

/* ---- faults of the program ---- */

static void do_misfit_ports(sl_world_t *world, const void *args)
{
    const int rank = sl_world_rank(world);
    sl_port_t *port = NULL, *again = NULL;
    char memory[16];
    void *slots[1] = {memory};
    double value = 0.0;
    sl_status_t status;

    (void)args;
    if (rank == 0) {
        status = sl_port_open_send(world, 1, 4, 1, 8, NULL, &port);
    } else {
        status = sl_port_open_receive(world, 0, 4, 1, 16, slots, NULL, &port);
        (void)BED_CHECK(status == SL_OK);
        (void)BED_CHECK(sl_port_open_receive(world, 0, 4, 1, 16, slots, NULL,
                                             &again) == SL_ERR_INVALID_ARG);
    }
    if (status < 0) {
        /* the receiver was first */
        sl_world_abort(world, status, sl_last_error());
    }
    while (sl_world_sum(world, &value, 1) == SL_OK) {
    }
    (void)BED_CHECK(strstr(sl_last_error(), "tag 4") != NULL);
    sl_port_close(port);
    (void)BED_CHECK(sl_world_recover(world) == SL_OK);
    (void)BED_CHECK(sl_world_sum(world, &value, 1) == SL_OK);
}

static void ends_that_do_not_fit_fail_both(void **state)
{
    const sl_world_params_t params = quick_params();

    (void)state;
    run_ranks(2, &params, do_misfit_ports, NULL);
    (void)sl_test_log_take();
}

static void do_misfit_put(sl_world_t *world, const void *args)
{
    char data[16] = {0};
    sl_status_t status;

    (void)args;
    if (sl_world_rank(world) == 0) {
        status = sl_world_put(world, 1, data, 8);
    } else {
        status = sl_world_get(world, 0, data, 16);
    }
    (void)BED_CHECK(status == SL_ERR_COMM);
    (void)BED_CHECK(strstr(sl_last_error(), "bytes") != NULL);
    do_one_sum(world, NULL);
}

static void a_put_of_another_size_fails_both(void **state)
{
    const sl_world_params_t params = quick_params();

    (void)state;
    run_ranks(2, &params, do_misfit_put, NULL);
}

/* ---- failure ---- */

static void do_abort(sl_world_t *world, const void *args)
{
    bed_rank_t rank;
    double value = 0.0;
    int data = 0, i;

    (void)args;
    bed_rank_init(&rank, world, 1);
    for (i = 0; i < 3; i++) {
        if (sl_world_rank(world) == i) {
            bed_sleep_us(2000);
            sl_world_abort(world, SL_ERR_DEVICE, "out of luck");
            sl_world_abort(world, SL_ERR_IO, "too late");
            (void)BED_CHECK(sl_world_sum(world, &value, 1) == SL_ERR_CANCELED);
            (void)BED_CHECK(strcmp(sl_last_error(), "out of luck") == 0);
        } else if (sl_world_rank(world) == 2) {
            (void)BED_CHECK(sl_world_get(world, i, &data, sizeof(data)) ==
                            SL_ERR_CANCELED);
        } else {
            (void)BED_CHECK(sl_world_sum(world, &value, 1) == SL_ERR_CANCELED);
        }
        if (sl_world_rank(world) != i) {
            char want[48];

            (void)pthread_mutex_lock(&rank.lock);
            (void)snprintf(want, sizeof(want), "rank %d on host ", i);
            (void)BED_CHECK(rank.n_aborts == 1);
            (void)BED_CHECK(rank.status == SL_ERR_DEVICE);
            (void)BED_CHECK(strncmp(rank.detail, want, strlen(want)) == 0);
            (void)BED_CHECK(strstr(rank.detail, "out of luck") != NULL);
            (void)pthread_mutex_unlock(&rank.lock);
        } else {
            (void)BED_CHECK(rank.n_aborts == 0);
        }
        (void)BED_CHECK(sl_world_recover(world) == SL_OK);
        bed_begin_anew(&rank);
        do_one_sum(world, NULL);
    }
    bed_rank_cleanup(&rank);
    if (sl_world_rank(world) != 1) {
        (void)BED_CHECK(sl_world_put(world, 1, &data, sizeof(data)) == SL_OK);
        return;
    }
    (void)BED_CHECK(sl_world_get(world, 0, &data, sizeof(data)) == SL_OK);
    (void)BED_CHECK(sl_world_get(world, 2, &data, sizeof(data)) == SL_OK);
    /* all leave at once */
    sl_world_abort(world, SL_ERR_IO, "the end");
}

static void an_abort_reaches_all_wherever_they_wait(void **state)
{
    const sl_world_params_t params = quick_params();

    (void)state;
    run_ranks(3, &params, do_abort, NULL);
}

typedef struct abort_args {
    uint64_t seed;
    int n_rounds;
    _Atomic uint64_t *n_late;
} abort_args_t;

static void do_aborts(sl_world_t *world, const void *args)
{
    const abort_args_t *rounds = args;

    (void)atomic_fetch_add(rounds->n_late,
                           bed_aborts(world, rounds->seed, rounds->n_rounds));
}

static void after_any_abort_all_works_again(void **state)
{
    const sl_world_params_t params = quick_params();
    _Atomic uint64_t n_late = 0;
    abort_args_t args = {.n_rounds = 500, .n_late = &n_late};
    int i;

    (void)state;
    /* until a sum was canceled on some ranks only, which is rare */
    for (i = 0; i < 6 || (atomic_load(&n_late) == 0 && i < 60); i++) {
        args.seed = (uint64_t)i;
        sl_world_hook_jitter((uint64_t)i);
        sl_world_hook_piece_bytes(i % 2 == 0 ? 0 : 600);
        run_ranks(2 + i % 3, &params, do_aborts, &args);
    }
    assert_true(atomic_load(&n_late) > 0);
    sl_world_hook_jitter(0);
    sl_world_hook_piece_bytes(0);
}

/* ---- the hung ---- */

/* The others' threads, too, may stand still for a while on a busy machine. */
#define DEAD_NS UINT64_C(3000000000)

static atomic_int n_heard; /* ranks that know of the hung one */

/* Hang until the others have given this rank up. */
static void hang(sl_world_t *world)
{
    int n;

    sl_world_hook_stall(world, 1);
    for (n = 0; n < 6000 && atomic_load(&n_heard) < 2; n++) {
        bed_sleep_us(10000);
    }
    (void)BED_CHECK(atomic_load(&n_heard) == 2);
    sl_world_hook_stall(world, 0);
}

static void do_slow(sl_world_t *world, const void *args)
{
    (void)args;
    if (sl_world_rank(world) == 1) {
        bed_sleep_us(DEAD_NS / 1000 * 5 / 4);
    }
    do_one_sum(world, NULL);
}

static void a_slow_rank_is_waited_for(void **state)
{
    sl_world_params_t params = quick_params();

    (void)state;
    params.dead_ns = DEAD_NS;
    run_ranks(3, &params, do_slow, NULL);
}

static void do_hang(sl_world_t *world, const void *args)
{
    const int hung = *(const int *)args;
    const int rank = sl_world_rank(world);
    bed_rank_t bed;
    char want[40];

    (void)snprintf(want, sizeof(want), "rank %d on host ", hung);
    bed_rank_init(&bed, world, 4);
    bed_open(&bed, 1);
    (void)BED_CHECK(bed_traffic(&bed, 0));
    if (rank == hung) {
        hang(world);
    }
    (void)BED_CHECK(!bed_traffic(&bed, 1));
    (void)atomic_fetch_add(&n_heard, 1);
    (void)pthread_mutex_lock(&bed.lock);
    (void)BED_CHECK(bed.n_aborts == 1);
    (void)BED_CHECK(bed.status == SL_ERR_COMM);
    (void)BED_CHECK(strncmp(bed.detail, want, strlen(want)) == 0);
    (void)BED_CHECK(strstr(bed.detail, "has not answered") != NULL);
    (void)pthread_mutex_unlock(&bed.lock);
    (void)BED_CHECK(sl_world_recover(world) == SL_ERR_COMM);
    (void)BED_CHECK(sl_last_error()[0] != '\0');
    bed_close(&bed, 1);
    bed_rank_cleanup(&bed);
}

static void a_rank_that_does_not_answer_is_named(void **state)
{
    sl_world_params_t params = quick_params();
    int hung;

    (void)state;
    params.dead_ns = DEAD_NS;
    for (hung = 0; hung < 3; hung++) {
        const char *log;

        atomic_store(&n_heard, 0);
        run_ranks(3, &params, do_hang, &hung);
        log = sl_test_log_take();
        sl_assert_contains(log, "has not answered for");
        /* one message a job, of one rank */
        assert_null(strstr(strchr(log, '\n') + 1, "\n"));
    }
}

static void do_run_away(sl_world_t *world, const void *args)
{
    double value = 0.0;

    (void)args;
    if (sl_world_rank(world) == 1) {
        sl_world_abort(world, SL_ERR_IO, "no way");
        return; /* and leave, where the others try to go on */
    }
    (void)BED_CHECK(sl_world_sum(world, &value, 1) == SL_ERR_CANCELED);
    (void)BED_CHECK(sl_world_recover(world) == SL_ERR_COMM);
}

static void one_that_leaves_a_failed_job_is_not_waited_for(void **state)
{
    const sl_world_params_t params = quick_params();

    (void)state;
    run_ranks(3, &params, do_run_away, NULL);
}

/* ---- a wish ---- */

static atomic_int wisher;  /* the rank that wishes; -1: nobody yet */
static atomic_int n_began; /* ranks whose first sum has ended */

static int is_wished(void *ctx)
{
    return sl_world_rank(ctx) == atomic_load(&wisher);
}

static int hears_the_wish(const sl_world_t *world)
{
    int n;

    for (n = 0; n < 2000 && !sl_world_is_wished(world); n++) {
        bed_sleep_us(5000);
    }
    return sl_world_is_wished(world);
}

/* Rank 1 wishes while rank 0 waits for rank 2, which waits for the wish; with
 * `args`, while the job has failed and nobody has recovered. */
static void do_wish(sl_world_t *world, const void *args)
{
    const int is_failed = *(const int *)args;
    const int rank = sl_world_rank(world);
    int data = 7;

    sl_world_wish_set(world, is_wished, world);
    do_one_sum(world, NULL);
    (void)BED_CHECK(!sl_world_is_wished(world));
    (void)atomic_fetch_add(&n_began, 1);
    while (atomic_load(&n_began) < 3) {
        bed_sleep_us(1000);
    }
    if (is_failed && rank == 0) {
        sl_world_abort(world, SL_ERR_IO, "for a test");
    }
    if (rank == 1) {
        bed_sleep_us(20000);
        atomic_store(&wisher, 1);
    }
    if (rank == 0 && !is_failed) {
        (void)BED_CHECK(sl_world_get(world, 2, &data, sizeof(data)) == SL_OK);
        (void)BED_CHECK(sl_world_is_wished(world));
    } else {
        (void)BED_CHECK(hears_the_wish(world));
    }
    if (rank == 2 && !is_failed) {
        bed_sleep_us(20000); /* rank 0 hears of it too */
        (void)BED_CHECK(sl_world_put(world, 0, &data, sizeof(data)) == SL_OK);
    }
    sl_world_wish_set(world, NULL, NULL);
    if (is_failed) {
        (void)BED_CHECK(sl_world_recover(world) == SL_OK);
        (void)BED_CHECK(sl_world_is_wished(world));
    }
    do_one_sum(world, NULL);
}

static void a_wish_reaches_ranks_that_wait(void **state)
{
    sl_world_params_t params = quick_params();
    int is_failed;

    (void)state;
    assert_false(sl_world_is_wished(NULL));
    sl_world_wish_set(NULL, is_wished, NULL);
    params.heartbeat_ns = 5000000;
    for (is_failed = 0; is_failed <= 1; is_failed++) {
        atomic_store(&wisher, -1);
        atomic_store(&n_began, 0);
        run_ranks(3, &params, do_wish, &is_failed);
    }
}

static int is_failing(sl_world_t *world)
{
    int n;

    for (n = 0; n < 2000 && !sl_world_has_failed(world); n++) {
        bed_sleep_us(5000);
    }
    return sl_world_has_failed(world);
}

/* All but the last rank have settled, then rank `*args` fails. */
static void do_settle(sl_world_t *world, const void *args)
{
    const int rank = sl_world_rank(world), size = sl_world_size(world);
    const int failing = *(const int *)args;
    int round;

    for (round = 0; round < 3; round++) {
        do_one_sum(world, NULL);
        sl_world_settle(world);
        do_one_sum(world, NULL);
        if (rank == size - 1) {
            bed_sleep_us(30000);
            (void)BED_CHECK(!sl_world_has_failed(world));
        }
        sl_world_settle(world);
        if (rank == failing) {
            sl_world_abort(world, SL_ERR_IO, "after what it has ended");
        }
        (void)BED_CHECK(is_failing(world));
        (void)BED_CHECK(sl_world_recover(world) == SL_OK);
    }
    do_one_sum(world, NULL);
}

static void a_failure_waits_until_all_have_settled(void **state)
{
    const sl_world_params_t params = quick_params();
    int n, failing;

    (void)state;
    sl_world_settle(NULL);
    for (n = 2; n <= 7; n++) {
        for (failing = 0; failing < n - 1; failing++) {
            run_ranks(n, &params, do_settle, &failing);
        }
    }
}

/* One that leaves holds nothing back. */
static void do_settle_and_leave(sl_world_t *world, const void *args)
{
    (void)args;
    do_one_sum(world, NULL);
    (void)atomic_fetch_add(&n_began, 1);
    if (sl_world_rank(world) == 0) {
        sl_world_settle(world);
        while (atomic_load(&n_began) < 3) {
            bed_sleep_us(1000); /* all have the sum */
        }
        sl_world_abort(world, SL_ERR_IO, "on its way out");
        return;
    }
    (void)BED_CHECK(is_failing(world));
}

static void one_that_leaves_does_not_wait_until_all_have_settled(void **state)
{
    const sl_world_params_t params = quick_params();

    (void)state;
    atomic_store(&n_began, 0);
    run_ranks(3, &params, do_settle_and_leave, NULL);
}

static void do_hang_early(sl_world_t *world, const void *args)
{
    double value = 0.0;

    (void)args;
    sl_world_dead_after(world, DEAD_NS);
    do_one_sum(world, NULL);
    if (sl_world_rank(world) == 1) {
        bed_sleep_us(DEAD_NS / 1000 * 5 / 4); /* slow is not hung */
    }
    do_one_sum(world, NULL);
    if (sl_world_rank(world) == 1) {
        hang(world);
    }
    (void)BED_CHECK(sl_world_sum(world, &value, 1) == SL_ERR_CANCELED);
    (void)atomic_fetch_add(&n_heard, 1);
    (void)BED_CHECK(sl_world_recover(world) == SL_ERR_COMM);
}

static void the_time_until_a_rank_is_hung_can_be_changed(void **state)
{
    sl_world_params_t params;

    (void)state;
    sl_world_dead_after(NULL, 1);
    atomic_store(&n_heard, 0);
    sl_world_params_default(&params);
    params.heartbeat_ns = DEAD_NS / 2; /* too seldom for it */
    run_ranks(3, &params, do_hang_early, NULL);
    sl_assert_contains(sl_test_log_take(), "has not answered for");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(alone_there_is_nothing_to_do),
        sl_unit_test(half_an_environment_is_refused),
        sl_unit_test(bad_arguments_are_refused),
        sl_unit_test(all_ranks_have_the_same_bits),
        sl_unit_test(many_ranks_add),
        sl_unit_test(messages_arrive_whole_and_in_order),
        sl_unit_test(ports_open_and_close_in_any_order),
        sl_unit_test(twenty_thousand_messages_keep_their_order),
        sl_unit_test(ends_that_do_not_fit_fail_both),
        sl_unit_test(a_put_of_another_size_fails_both),
        sl_unit_test(an_abort_reaches_all_wherever_they_wait),
        sl_unit_test(after_any_abort_all_works_again),
        sl_unit_test(a_slow_rank_is_waited_for),
        sl_unit_test(a_rank_that_does_not_answer_is_named),
        sl_unit_test(one_that_leaves_a_failed_job_is_not_waited_for),
        sl_unit_test(a_wish_reaches_ranks_that_wait),
        sl_unit_test(a_failure_waits_until_all_have_settled),
        sl_unit_test(one_that_leaves_does_not_wait_until_all_have_settled),
        sl_unit_test(the_time_until_a_rank_is_hung_can_be_changed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
