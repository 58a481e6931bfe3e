/* SPDX-License-Identifier: Apache-2.0 */
/* Order, ring, failures, waits. --bench prints what an op costs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/scheduler/ops_bed.h"

enum {
    N_MANY = 10000,
    N_SUBMITTERS = 8,
    N_EACH = 2000
};

typedef struct trail {
    int n;
    int values[N_MANY];
} trail_t;

typedef struct append_args {
    trail_t *trail;
    int value;
} append_args_t;

static sl_status_t append_op(const void *args, void *stream)
{
    const append_args_t *append = args;

    (void)stream;
    append->trail->values[append->trail->n++] = append->value;
    return SL_OK;
}

static sl_status_t nothing_op(const void *args, void *stream)
{
    (void)args;
    (void)stream;
    return SL_OK;
}

static void submit_append(sl_op_manager_t *manager, trail_t *trail, int value,
                          uint64_t *ticket_p)
{
    const append_args_t args = {trail, value};
    const sl_op_t op = {
        .fn = append_op, .args = &args, .args_bytes = sizeof(args)};

    sl_assert_ok(sl_op_manager_submit(manager, &op, ticket_p));
}

static void ops_run_in_order_in_rings_of_any_size(void **state)
{
    static const int sizes[] = {1, 2, 4, 256};
    static trail_t trail;
    size_t k;
    int i;

    (void)state;
    for (k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
        sl_op_manager_t *manager = ops_bed_manager(sizes[k]);
        sl_op_stats_t stats;

        trail.n = 0;
        for (i = 0; i < N_MANY; i++) {
            submit_append(manager, &trail, i, NULL);
        }
        sl_assert_ok(sl_op_manager_drain(manager));
        assert_int_equal(trail.n, N_MANY);
        for (i = 0; i < N_MANY; i++) {
            assert_int_equal(trail.values[i], i);
        }
        sl_op_manager_stats(manager, &stats);
        assert_int_equal(stats.n_submitted, N_MANY);
        assert_int_equal(stats.n_run, N_MANY);
        assert_int_equal(stats.n_skipped, 0);
        sl_op_manager_destroy(manager);
    }
}

static void destroy_runs_what_is_queued(void **state)
{
    static trail_t trail;
    sl_op_manager_t *manager = ops_bed_manager(256);
    int i;

    (void)state;
    trail.n = 0;
    for (i = 0; i < 200; i++) {
        submit_append(manager, &trail, i, NULL);
    }
    sl_op_manager_destroy(manager);
    assert_int_equal(trail.n, 200);
    sl_op_manager_destroy(NULL);
}

static sl_status_t check_args_op(const void *args, void *stream)
{
    const unsigned char *bytes = args;
    sl_status_t status = SL_OK;
    int i;

    (void)stream;
    for (i = 0; i < SL_OP_ARGS_BYTES; i++) {
        if (bytes[i] != (unsigned char)(bytes[0] + i)) {
            SL_FAIL(status, SL_ERR_CORRUPT, out, "byte %d", i);
        }
    }
    if ((uintptr_t)args % _Alignof(max_align_t) != 0) {
        SL_FAIL(status, SL_ERR_CORRUPT, out, "not aligned");
    }
out:
    return status;
}

static void arguments_are_copied(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    unsigned char args[SL_OP_ARGS_BYTES];
    const sl_op_t op = {
        .fn = check_args_op, .args = args, .args_bytes = sizeof(args)};
    int k;
    int i;

    (void)state;
    for (k = 0; k < 100; k++) {
        for (i = 0; i < SL_OP_ARGS_BYTES; i++) {
            args[i] = (unsigned char)(k + i);
        }
        sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
        memset(args, 0xee, sizeof(args));
    }
    sl_assert_ok(sl_op_manager_drain(manager));
    sl_op_manager_destroy(manager);
}

static sl_status_t is_running_op(const void *args, void *stream)
{
    (void)stream;
    *(*(int *const *)args) = sl_op_is_running();
    return SL_OK;
}

static void a_thread_knows_whether_it_is_in_an_op(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    int inside = 0;
    int *place = &inside;
    const sl_op_t op = {
        .fn = is_running_op, .args = &place, .args_bytes = sizeof(place)};

    (void)state;
    assert_false(sl_op_is_running());
    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(inside);
    assert_false(sl_op_is_running());
    sl_op_manager_destroy(manager);
}

/* ---- many submitters ---- */

typedef struct submitter {
    sl_op_manager_t *manager;
    trail_t *trail; /* written by the device's thread alone */
    int index;
    int is_ok;
} submitter_t;

static void *submit_many(void *arg)
{
    submitter_t *submitter = arg;
    int i;

    submitter->is_ok = 1;
    for (i = 0; i < N_EACH; i++) {
        const append_args_t args = {submitter->trail, i};
        const sl_op_t op = {
            .fn = append_op, .args = &args, .args_bytes = sizeof(args)};
        uint64_t ticket;

        if (sl_op_manager_submit(submitter->manager, &op, &ticket) != SL_OK ||
            (i % 64 == 0 && sl_op_manager_wait(submitter->manager, ticket,
                                               UINT64_MAX) != SL_OK)) {
            submitter->is_ok = 0;
        }
    }
    return NULL;
}

static void many_threads_submit(void **state)
{
    static trail_t trails[N_SUBMITTERS];
    sl_op_manager_t *manager = ops_bed_manager(8);
    pthread_t threads[N_SUBMITTERS];
    submitter_t submitters[N_SUBMITTERS];
    int i;
    int k;

    (void)state;
    for (i = 0; i < N_SUBMITTERS; i++) {
        trails[i].n = 0;
        submitters[i] =
            (submitter_t){.manager = manager, .trail = &trails[i], .index = i};
        assert_int_equal(
            pthread_create(&threads[i], NULL, submit_many, &submitters[i]), 0);
    }
    for (i = 0; i < N_SUBMITTERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(submitters[i].is_ok);
    }
    sl_assert_ok(sl_op_manager_drain(manager));
    for (i = 0; i < N_SUBMITTERS; i++) {
        assert_int_equal(trails[i].n, N_EACH);
        for (k = 0; k < N_EACH; k++) {
            assert_int_equal(trails[i].values[k], k); /* each one's order */
        }
    }
    sl_op_manager_destroy(manager);
}

/* ---- failures ---- */

static sl_status_t failing_op(const void *args, void *stream)
{
    sl_status_t status;

    (void)stream;
    SL_REFUSE(status, SL_ERR_NUMERIC, out, "loss %d is not finite",
              *(const int *)args);
out:
    return status;
}

static sl_status_t silent_failing_op(const void *args, void *stream)
{
    (void)args;
    (void)stream;
    return SL_ERR_DEVICE;
}

static sl_status_t submit_failing(sl_op_manager_t *manager, int value)
{
    const sl_op_t op = {.fn = failing_op,
                        .name_id = sl_op_manager_name(manager, "loss"),
                        .args = &value,
                        .args_bytes = sizeof(value)};

    return sl_op_manager_submit(manager, &op, NULL);
}

static void a_failure_reaches_whoever_waits(void **state)
{
    static trail_t trail;
    sl_op_manager_t *manager = ops_bed_manager(16);
    const append_args_t args = {&trail, 1};
    const sl_op_t append = {
        .fn = append_op, .args = &args, .args_bytes = sizeof(args)};
    gate_t gate = {0};
    sl_op_stats_t stats;

    (void)state;
    trail.n = 0;
    ops_bed_hold(manager, &gate);
    submit_append(manager, &trail, 0, NULL);
    sl_assert_ok(submit_failing(manager, 7));
    sl_assert_ok(submit_failing(manager, 8));
    submit_append(manager, &trail, 1, NULL);
    ops_bed_open(&gate);
    sl_last_error_set("");
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_NUMERIC);
    sl_assert_contains(sl_last_error(), "bed:0: op loss: ");
    sl_assert_contains(sl_last_error(), "loss 7 is not finite");
    assert_int_equal(trail.n, 1); /* the later one was skipped */

    sl_last_error_set("");
    sl_assert_status(sl_op_manager_submit(manager, &append, NULL),
                     SL_ERR_NUMERIC);
    sl_assert_contains(sl_last_error(), "loss 7 is not finite");
    sl_op_manager_stats(manager, &stats);
    assert_int_equal(stats.n_submitted, 5);
    assert_int_equal(stats.n_run, 3);
    assert_int_equal(stats.n_skipped, 2);

    sl_op_manager_recover(manager);
    submit_append(manager, &trail, 2, NULL);
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_int_equal(trail.n, 2);
    sl_op_manager_destroy(manager);
}

static void a_failure_without_detail_has_a_text(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    const sl_op_t op = {.fn = silent_failing_op};

    (void)state;
    /* the detail of an older failure must not be taken for this one's */
    sl_assert_ok(submit_failing(manager, 3));
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_NUMERIC);
    sl_op_manager_recover(manager);
    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "op other: device failure");
    sl_op_manager_destroy(manager);
}

static void *submit_until_failure(void *arg)
{
    submitter_t *submitter = arg;
    const sl_op_t op = {.fn = nothing_op};

    while (sl_op_manager_submit(submitter->manager, &op, NULL) == SL_OK) {
    }
    submitter->is_ok = strstr(sl_last_error(), "loss 1") != NULL;
    return NULL;
}

/* Submitters blocked on a full ring learn of the failure too. */
static void a_failure_ends_all_submitters(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(2);
    pthread_t threads[N_SUBMITTERS];
    submitter_t submitters[N_SUBMITTERS];
    gate_t gate = {0};
    int i;

    (void)state;
    ops_bed_hold(manager, &gate);
    sl_assert_ok(submit_failing(manager, 1));
    for (i = 0; i < N_SUBMITTERS; i++) {
        submitters[i] = (submitter_t){.manager = manager, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, submit_until_failure,
                                        &submitters[i]),
                         0);
    }
    ops_bed_open(&gate);
    for (i = 0; i < N_SUBMITTERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(submitters[i].is_ok);
    }
    sl_op_manager_destroy(manager);
}

/* ---- waits ---- */

static void waits_are_bounded(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    const sl_op_t op = {.fn = nothing_op};
    gate_t gate = {0};
    uint64_t ticket = 0;
    uint64_t start_ns;

    (void)state;
    ops_bed_hold(manager, &gate);
    sl_assert_ok(sl_op_manager_submit(manager, &op, &ticket));
    assert_int_equal(ticket, 2);
    start_ns = sl_clock_ns();
    sl_assert_status(sl_op_manager_wait(manager, ticket, 20 * MS),
                     SL_ERR_TIMEOUT);
    assert_true(sl_clock_ns() - start_ns >= 20 * MS);
    sl_assert_contains(sl_last_error(), "bed:0: op 2 has not run");
    sl_assert_status(sl_op_manager_wait(manager, ticket, 0), SL_ERR_TIMEOUT);
    sl_assert_ok(sl_op_manager_wait(manager, 0, 0)); /* before all ops */
    ops_bed_open(&gate);
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX - 1));
    sl_assert_ok(sl_op_manager_wait(manager, 1, 0));
    /* nobody will ever submit to satisfy this one: refused, not waited for */
    sl_assert_status(sl_op_manager_wait(manager, 3, UINT64_MAX),
                     SL_ERR_INVALID_ARG);
    sl_op_manager_destroy(manager);
}

static sl_status_t waiting_op(const void *args, void *stream)
{
    sl_op_manager_t *manager = *(sl_op_manager_t *const *)args;
    const sl_op_t op = {.fn = nothing_op};

    (void)stream;
    if (sl_op_manager_submit(manager, &op, NULL) != SL_ERR_INVALID_ARG) {
        return SL_ERR_DEVICE;
    }
    return sl_op_manager_drain(manager);
}

static void an_op_that_waits_is_refused(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(1);
    const sl_op_t op = {
        .fn = waiting_op, .args = &manager, .args_bytes = sizeof(manager)};

    (void)state;
    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_INVALID_ARG);
    sl_op_manager_destroy(manager);
}

static void bad_input_is_refused(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    sl_op_manager_t *other = NULL;
    sl_op_manager_params_t params;
    unsigned char args[SL_OP_ARGS_BYTES + 1] = {0};
    static const int no_core[] = {-1};
    static const int far_core[] = {16000};
    sl_op_t op = {.fn = nothing_op};

    (void)state;
    sl_assert_status(sl_op_manager_submit(NULL, &op, NULL), SL_ERR_INVALID_ARG);
    sl_assert_status(sl_op_manager_submit(manager, NULL, NULL),
                     SL_ERR_INVALID_ARG);
    op.args_bytes = 4; /* without args */
    sl_assert_status(sl_op_manager_submit(manager, &op, NULL),
                     SL_ERR_INVALID_ARG);
    op.args = args;
    op.args_bytes = sizeof(args);
    sl_assert_status(sl_op_manager_submit(manager, &op, NULL),
                     SL_ERR_INVALID_ARG);
    op.args_bytes = 0;
    op.name_id = SL_OP_MAX_NAMES;
    sl_assert_status(sl_op_manager_submit(manager, &op, NULL),
                     SL_ERR_INVALID_ARG);
    op.name_id = 0;
    op.fn = NULL;
    sl_assert_status(sl_op_manager_submit(manager, &op, NULL),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_op_manager_drain(NULL), SL_ERR_INVALID_ARG);

    sl_assert_status(sl_op_manager_create(NULL, &other), SL_ERR_INVALID_ARG);
    sl_op_manager_params_default(&params);
    sl_assert_status(sl_op_manager_create(&params, NULL), SL_ERR_INVALID_ARG);
    params.ring_ops = 3;
    sl_assert_status(sl_op_manager_create(&params, &other), SL_ERR_INVALID_ARG);
    params.ring_ops = 0;
    sl_assert_status(sl_op_manager_create(&params, &other), SL_ERR_INVALID_ARG);
    params.ring_ops = 4;
    params.n_threads = 0;
    sl_assert_status(sl_op_manager_create(&params, &other), SL_ERR_INVALID_ARG);
    params.n_threads = 1;
    params.cores = no_core;
    sl_assert_status(sl_op_manager_create(&params, &other), SL_ERR_INVALID_ARG);
    params.n_cores = 1;
    sl_assert_status(sl_op_manager_create(&params, &other), SL_ERR_DEVICE);
    params.cores = far_core;
    sl_assert_status(sl_op_manager_create(&params, &other), SL_ERR_DEVICE);
    assert_null(other);
    sl_op_manager_destroy(manager);
}

/* ---- an idle device ---- */

static void an_idle_device_takes_no_time(void **state)
{
    const struct timespec nap = {.tv_nsec = (long)(200 * MS)};
    sl_op_manager_t *managers[4];
    const sl_op_t op = {.fn = nothing_op};
    struct timespec before;
    struct timespec after;
    double used_ms;
    int i;

    (void)state;
    for (i = 0; i < 4; i++) {
        managers[i] = ops_bed_manager(16);
        sl_assert_ok(sl_op_manager_submit(managers[i], &op, NULL));
        sl_assert_ok(sl_op_manager_drain(managers[i]));
    }
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    (void)nanosleep(&nap, NULL);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    used_ms = (double)(after.tv_sec - before.tv_sec) * 1e3 +
              (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    assert_true(used_ms < 40); /* of 4 threads times 200 ms */
    for (i = 0; i < 4; i++) {
        sl_op_manager_destroy(managers[i]);
    }
}

/* ---- cost ---- */

static sl_status_t stamp_op(const void *args, void *stream)
{
    (void)stream;
    **(uint64_t *const *)args = sl_clock_ns();
    return SL_OK;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Submit to start, one op at a time, the device awake or asleep. */
static void bench_start(sl_op_manager_t *manager, const char *what,
                        const struct timespec *pause, int n)
{
    static uint64_t delays[20000];
    uint64_t started = 0;
    uint64_t *place = &started;
    const sl_op_t op = {
        .fn = stamp_op, .args = &place, .args_bytes = sizeof(place)};
    int i;

    for (i = 0; i < n; i++) {
        uint64_t submit_ns;

        if (pause != NULL) {
            (void)nanosleep(pause, NULL);
        }
        submit_ns = sl_clock_ns();
        if (sl_op_manager_submit(manager, &op, NULL) != SL_OK ||
            sl_op_manager_drain(manager) != SL_OK) {
            return;
        }
        delays[i] = started - submit_ns;
    }
    qsort(delays, (size_t)n, sizeof(*delays), compare_u64);
    (void)printf("submit to start, %s: median %d ns, 99 %% %d ns\n", what,
                 (int)delays[n / 2], (int)delays[n * 99 / 100]);
}

static int bench(void)
{
    enum {
        N = 1000000
    };
    static const struct timespec pause = {.tv_nsec = 1000000};
    const sl_op_t op = {.fn = nothing_op};
    sl_op_manager_params_t params;
    sl_op_manager_t *manager;
    uint64_t start_ns;
    int i;

    ops_bed_params(&params);
    if (sl_op_manager_create(&params, &manager) != SL_OK) {
        return 1;
    }
    bench_start(manager, "awake", NULL, 20000);
    bench_start(manager, "asleep", &pause, 500);
    start_ns = sl_clock_ns();
    for (i = 0; i < N; i++) {
        if (sl_op_manager_submit(manager, &op, NULL) != SL_OK) {
            return 1;
        }
    }
    if (sl_op_manager_drain(manager) != SL_OK) {
        return 1;
    }
    (void)printf("empty ops through the ring: %.1f ns each\n",
                 (double)(sl_clock_ns() - start_ns) / N);
    sl_op_manager_destroy(manager);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(ops_run_in_order_in_rings_of_any_size),
        sl_unit_test(destroy_runs_what_is_queued),
        sl_unit_test(arguments_are_copied),
        sl_unit_test(a_thread_knows_whether_it_is_in_an_op),
        sl_unit_test(many_threads_submit),
        sl_unit_test(a_failure_reaches_whoever_waits),
        sl_unit_test(a_failure_without_detail_has_a_text),
        sl_unit_test(a_failure_ends_all_submitters),
        sl_unit_test(waits_are_bounded),
        sl_unit_test(an_op_that_waits_is_refused),
        sl_unit_test(bad_input_is_refused),
        sl_unit_test(an_idle_device_takes_no_time),
    };

    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        return bench();
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
