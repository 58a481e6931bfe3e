/* SPDX-License-Identifier: Apache-2.0 */
/* Op managers on a device that runs beside the host: what counts as run, what
 * is in flight, loads, failures, times. */
#include <stdlib.h>

#include "tests/cuda/stream_bed.h"

/* ---- order and progress ---- */

static void ops_count_when_the_device_has_finished(void **state)
{
    sl_op_manager_t *manager = manager_make(32);
    atomic_int n_queued = 0, n_ended = 0, is_open = 0;
    uint64_t tickets[4];
    int i;

    (void)state;
    submit_held(manager, (held_t){&is_open, &n_queued, &n_ended}, &tickets[0]);
    for (i = 1; i < 4; i++) {
        const work_t work = {10000, &n_queued, &n_ended};

        sl_assert_ok(submit_work(manager, "work", work, &tickets[i]));
    }
    /* handed over ahead of the device */
    wait_for(atomic_load(&n_queued) >= 2);
    sl_assert_status(sl_op_manager_wait(manager, tickets[0], MS),
                     SL_ERR_TIMEOUT);
    sl_assert_status(sl_op_manager_wait(manager, tickets[3], MS),
                     SL_ERR_TIMEOUT);
    atomic_store(&is_open, 1);
    for (i = 0; i < 4; i++) {
        sl_assert_ok(sl_op_manager_wait(manager, tickets[i], UINT64_MAX));
        assert_true(atomic_load(&n_ended) >= i + 1);
    }
    sl_op_manager_destroy(manager);
}

/* A chain of kernels, the result read by a copy, told by a host op. */
typedef struct told {
    const float *pinned;
    float value;
    int was_in_op;
} told_t;

static sl_status_t tell_op(const void *args, void *stream)
{
    told_t *told = *(told_t *const *)args;

    (void)stream;
    told->value = told->pinned[N - 1];
    told->was_in_op = sl_op_is_running();
    return SL_OK;
}

static void a_host_op_sees_all_before_it(void **state)
{
    sl_op_manager_t *manager = manager_make(8);
    float *x = device_alloc(N * sizeof(float));
    float *pinned = pinned_alloc();
    const copy_t in = {x, pinned}, back = {pinned, x};
    const sl_op_t put = copy_of(&in), get = copy_of(&back);
    told_t told = {.pinned = pinned};
    told_t *place = &told;
    const sl_op_t tell = {.fn = tell_op,
                          .is_host = 1,
                          .args = &place,
                          .args_bytes = sizeof(place)};
    int i;

    (void)state;
    memset(pinned, 0, N * sizeof(float));
    standin_set_delay_us(200);
    sl_assert_ok(sl_op_manager_submit(manager, &put, NULL));
    for (i = 0; i < 100; i++) {
        sl_assert_ok(submit_add(manager, x, x, NULL));
    }
    sl_assert_ok(sl_op_manager_submit(manager, &get, NULL));
    sl_assert_ok(sl_op_manager_submit(manager, &tell, NULL));
    sl_assert_ok(submit_add(manager, x, x, NULL)); /* queued already */
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(told.value == 100.0f);
    assert_true(told.was_in_op);
    assert_false(sl_op_is_running());
    sl_op_manager_destroy(manager);
    ok(cudaFree(x));
    ok(cudaFreeHost(pinned));
}

static void no_more_than_so_many_are_in_flight(void **state)
{
    static const int sizes[] = {2, 3, 8};
    size_t k;
    int i;

    (void)state;
    for (k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
        sl_op_manager_t *manager = manager_make(sizes[k]);
        atomic_int n_queued = 0, n_ended = 0;

        for (i = 0; i < 60; i++) {
            const work_t work = {300, &n_queued, &n_ended};

            int n;

            sl_assert_ok(submit_work(manager, "work", work, NULL));
            n = atomic_load(&n_queued);
            assert_true(n <= atomic_load(&n_ended) + sizes[k]);
        }
        sl_assert_ok(sl_op_manager_drain(manager));
        assert_int_equal(atomic_load(&n_ended), 60);
        sl_op_manager_destroy(manager);
    }
}

/* With a full window the thread sleeps for several ops, but not when somebody
 * waits for the first. */
static void who_waits_is_told_in_time(void **state)
{
    sl_op_manager_t *manager = manager_make(16);
    atomic_int n_queued = 0, n_ended = 0;
    const work_t work = {10000, &n_queued, &n_ended};
    uint64_t tickets[40];
    int i;

    (void)state;
    for (i = 0; i < 40; i++) {
        sl_assert_ok(submit_work(manager, "work", work, &tickets[i]));
    }
    pause_ms(5); /* it sleeps */
    for (i = 0; i < 40; i += 3) {
        sl_assert_ok(sl_op_manager_wait(manager, tickets[i], UINT64_MAX));
        assert_true(atomic_load(&n_ended) >= i + 1);
        print_message("%d of %d ", atomic_load(&n_ended) - i - 1, i);
    }
    print_message("ended more\n");
    sl_op_manager_destroy(manager);
}

/* The thread sleeps until the device has finished, and yet hands over what
 * comes meanwhile. */
static void an_op_that_comes_while_another_runs_is_handed_over(void **state)
{
    sl_op_manager_t *manager = manager_make(32);
    atomic_int n_ended = 0, n_queued = 0, is_open = 0;
    const work_t second = {0, &n_queued, NULL};
    struct timespec before, after;
    double used_ms;
    uint64_t ticket;

    (void)state;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    submit_held(manager, (held_t){&is_open, NULL, &n_ended}, &ticket);
    pause_ms(20);
    sl_assert_ok(submit_work(manager, "more", second, NULL));
    wait_for(atomic_load(&n_queued) == 1);
    pause_ms(130);
    assert_int_equal(atomic_load(&n_ended), 0);
    atomic_store(&is_open, 1);
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    used_ms = (double)(after.tv_sec - before.tv_sec) * 1e3 +
              (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    assert_true(used_ms < 60); /* of 150 and more */
    sl_op_manager_destroy(manager);
}

static void destroy_runs_what_is_queued_and_in_flight(void **state)
{
    sl_op_manager_t *manager = manager_make(4);
    atomic_int n_ended = 0;
    int i;

    (void)state;
    for (i = 0; i < 50; i++) {
        const work_t work = {500, NULL, &n_ended};

        sl_assert_ok(submit_work(manager, "work", work, NULL));
    }
    sl_op_manager_destroy(manager);
    assert_int_equal(atomic_load(&n_ended), 50);
}

static void cancel_ends_behind_what_is_in_flight(void **state)
{
    sl_op_manager_t *manager = manager_make(4);
    atomic_int n_queued = 0, n_ended = 0, is_open = 0;
    sl_op_stats_t stats;
    int i;

    (void)state;
    submit_held(manager, (held_t){&is_open, &n_queued, &n_ended}, NULL);
    for (i = 1; i < 40; i++) {
        const work_t work = {2000, &n_queued, &n_ended};

        sl_assert_ok(submit_work(manager, "work", work, NULL));
    }
    wait_for(atomic_load(&n_queued) >= 2);
    sl_op_manager_cancel(manager);
    atomic_store(&is_open, 1);
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_CANCELED);
    sl_op_manager_stats(manager, &stats);
    assert_true(atomic_load(&n_queued) == atomic_load(&n_ended));
    assert_true(atomic_load(&n_ended) < 10);
    assert_true(stats.n_run == (uint64_t)atomic_load(&n_ended));
    assert_true(stats.n_run + stats.n_skipped == 40);
    sl_op_manager_recover(manager);
    sl_assert_ok(
        submit_work(manager, "work", (work_t){100, NULL, &n_ended}, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    sl_op_manager_destroy(manager);
}

static void two_managers_share_a_gpu(void **state)
{
    sl_op_manager_t *managers[2];
    float *x[2];
    int i, k;

    (void)state;
    for (k = 0; k < 2; k++) {
        managers[k] = manager_make(8);
        x[k] = device_alloc(N * sizeof(float));
    }
    for (i = 0; i < 100; i++) {
        for (k = 0; k < 2; k++) {
            sl_assert_ok(submit_add(managers[k], x[k], x[k], NULL));
        }
    }
    for (k = 0; k < 2; k++) {
        sl_op_manager_destroy(managers[k]);
        ok(cudaFree(x[k]));
    }
}

/* ---- loads ---- */

/* Beside what runs, before what comes later. */
static void a_load_runs_beside_the_ops_before_it(void **state)
{
    sl_op_manager_t *manager = manager_make(8);
    float *x = device_alloc(N * sizeof(float));
    float *y = device_alloc(N * sizeof(float));
    float *pinned = pinned_alloc();
    const copy_t in = {x, pinned}, back = {pinned, y};
    sl_op_t load = copy_of(&in), get = copy_of(&back);
    atomic_int n_loaded = 0, n_ended = 0, is_open = 0;
    const work_t mark = {0, NULL, &n_loaded};
    sl_op_t marker = {.fn = work_op,
                      .is_load = 1,
                      .after = SL_OP_AFTER_NOTHING,
                      .args = &mark,
                      .args_bytes = sizeof(mark)};
    uint64_t ticket;
    int i;

    (void)state;
    for (i = 0; i < N; i++) {
        pinned[i] = (float)i;
    }
    load.is_load = 1;
    load.after = sl_op_manager_after(manager);
    assert_true(load.after == SL_OP_AFTER_NOTHING);
    submit_held(manager, (held_t){&is_open, NULL, &n_ended}, NULL);
    sl_assert_ok(sl_op_manager_submit(manager, &load, &ticket));
    assert_true(sl_op_manager_after(manager) == ticket);
    sl_assert_ok(sl_op_manager_submit(manager, &marker, NULL));
    sl_assert_ok(submit_add(manager, x, y, NULL)); /* waits for it */
    wait_for(atomic_load(&n_loaded) == 1);
    assert_int_equal(atomic_load(&n_ended), 0);
    /* in its turn, as every op */
    sl_assert_status(sl_op_manager_wait(manager, ticket, 0), SL_ERR_TIMEOUT);
    atomic_store(&is_open, 1);
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
    assert_int_equal(atomic_load(&n_ended), 1);
    /* into what an op in flight reads: after it, or after all */
    for (i = 0; i < 20; i++) {
        sl_assert_ok(submit_add(manager, x, y, &ticket));
        sl_assert_ok(
            submit_work(manager, "work", (work_t){2000, NULL, NULL}, NULL));
        load.after = i % 2 == 0 ? ticket : 0;
        sl_assert_ok(sl_op_manager_submit(manager, &load, NULL));
    }
    sl_assert_ok(submit_add(manager, x, y, NULL));
    sl_assert_ok(sl_op_manager_submit(manager, &get, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    for (i = 0; i < N; i++) {
        assert_true(pinned[i] == (float)i + 1.0f);
    }
    load.after = 1000; /* not submitted yet */
    sl_assert_status(sl_op_manager_submit(manager, &load, NULL),
                     SL_ERR_INVALID_ARG);
    sl_op_manager_destroy(manager);
    ok(cudaFree(x));
    ok(cudaFree(y));
    ok(cudaFreeHost(pinned));
}

/* The checker would find a wrong promise. */
static void a_load_that_waits_for_too_little_is_found(void **state)
{
    sl_op_manager_t *manager = manager_make(8);
    float *x = device_alloc(N * sizeof(float));
    float *y = device_alloc(N * sizeof(float));
    float *pinned = pinned_alloc();
    const copy_t in = {x, pinned};
    sl_op_t load = copy_of(&in);
    atomic_int n_loaded = 0, is_open = 0;
    const work_t mark = {0, NULL, &n_loaded};
    const sl_op_t marker = {.fn = work_op,
                            .is_load = 1,
                            .after = SL_OP_AFTER_NOTHING,
                            .args = &mark,
                            .args_bytes = sizeof(mark)};

    (void)state;
    load.is_load = 1;
    load.after = SL_OP_AFTER_NOTHING;
    submit_held(manager, (held_t){&is_open, NULL, NULL}, NULL);
    sl_assert_ok(submit_add(manager, x, y, NULL));
    sl_assert_ok(sl_op_manager_submit(manager, &load, NULL));
    sl_assert_ok(sl_op_manager_submit(manager, &marker, NULL));
    wait_for(atomic_load(&n_loaded) == 1);
    atomic_store(&is_open, 1);
    sl_assert_ok(sl_op_manager_drain(manager));
    expect_report("is not ordered before it");
    sl_op_manager_destroy(manager);
    ok(cudaFree(x));
    ok(cudaFree(y));
    ok(cudaFreeHost(pinned));
}

/* ---- sends ---- */

static sl_op_t send_of(const copy_t *copy)
{
    sl_op_t send = copy_of(copy);

    send.is_send = 1;
    return send;
}

static void submit_held_send(sl_op_manager_t *manager, atomic_int *is_open,
                             atomic_int *n_ended)
{
    const held_t held = {is_open, NULL, n_ended};
    const sl_op_t op = {
        .fn = held_op, .is_send = 1, .args = &held, .args_bytes = sizeof(held)};

    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
}

/* Of what was there when its turn came, beside what runs later. */
static void a_send_runs_beside_the_ops_after_it(void **state)
{
    sl_op_manager_t *manager = manager_make(8);
    float *x = device_alloc(N * sizeof(float));
    float *pinned = pinned_alloc(), *zeros = pinned_alloc();
    const copy_t in = {x, zeros}, out = {pinned, x};
    sl_op_t load = copy_of(&in), send = send_of(&out);
    atomic_int n_sent = 0, n_ended = 0, is_open = 0;
    uint64_t ticket;
    int i;

    (void)state;
    memset(zeros, 0, N * sizeof(float));
    load.is_load = 1;
    submit_held_send(manager, &is_open, &n_sent);
    sl_assert_ok(
        submit_work(manager, "work", (work_t){1, NULL, &n_ended}, &ticket));
    wait_for(atomic_load(&n_ended) == 1);
    assert_int_equal(atomic_load(&n_sent), 0);
    /* in its turn, as every op */
    sl_assert_status(sl_op_manager_wait(manager, ticket, 0), SL_ERR_TIMEOUT);
    atomic_store(&is_open, 1);
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
    assert_int_equal(atomic_load(&n_sent), 1);
    for (i = 0; i < 20; i++) {
        sl_assert_ok(sl_op_manager_submit(manager, &load, NULL));
        if (i % 2 == 0) { /* else what a load has just brought */
            sl_assert_ok(
                submit_work(manager, "work", (work_t){2000, NULL, NULL}, NULL));
            sl_assert_ok(submit_add(manager, x, x, NULL));
        }
        sl_assert_ok(sl_op_manager_submit(manager, &send, &ticket));
        sl_assert_ok(
            submit_work(manager, "work", (work_t){200, NULL, NULL}, NULL));
        sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
        assert_true(pinned[N - 1] == (i % 2 == 0 ? 1.0f : 0.0f));
    }
    sl_assert_ok(sl_op_manager_drain(manager));
    sl_op_manager_destroy(manager);
    ok(cudaFree(x));
    ok(cudaFreeHost(pinned));
    ok(cudaFreeHost(zeros));
}

/* The checker would find who does not leave it alone. */
static void what_a_send_reads_must_stay(void **state)
{
    sl_op_manager_t *manager = manager_make(8);
    float *x = device_alloc(N * sizeof(float));
    float *y = device_alloc(N * sizeof(float));
    float *pinned = pinned_alloc();
    const copy_t out = {pinned, x};
    const sl_op_t send = send_of(&out);
    atomic_int n_sent = 0, is_open = 0;

    (void)state;
    sl_assert_ok(submit_add(manager, y, x, NULL));
    submit_held_send(manager, &is_open, &n_sent);
    sl_assert_ok(sl_op_manager_submit(manager, &send, NULL));
    sl_assert_ok(submit_add(manager, y, x, NULL));
    atomic_store(&is_open, 1);
    sl_assert_ok(sl_op_manager_drain(manager));
    expect_report("is not ordered before it");
    sl_op_manager_destroy(manager);
    ok(cudaFree(x));
    ok(cudaFree(y));
    ok(cudaFreeHost(pinned));
}

/* ---- failures ---- */

static sl_status_t refused_op(const void *args, void *stream)
{
    const sl_cuda_stream_t *cuda = stream;

    (void)args;
    return SL_CUDA(
        kernel_launch(KERNEL_ADD, 1, 4096, NULL, NULL, 0, 0, 1, cuda->queue));
}

static void a_refused_launch_fails_its_op(void **state)
{
    sl_op_manager_t *manager = manager_make(8);
    const sl_op_t bad = {.fn = refused_op,
                         .name_id = sl_op_manager_name(manager, "bad")};
    atomic_int n_ended = 0;
    sl_op_stats_t stats;

    (void)state;
    sl_assert_ok(
        submit_work(manager, "work", (work_t){30000, NULL, &n_ended}, NULL));
    sl_assert_ok(sl_op_manager_submit(manager, &bad, NULL));
    (void)!submit_work(manager, "work", (work_t){100, NULL, &n_ended}, NULL);
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "cuda:0: op bad: ");
    sl_assert_contains(sl_last_error(), "invalid configuration");
    assert_int_equal(atomic_load(&n_ended), 1); /* the later one was skipped */
    sl_op_manager_stats(manager, &stats);
    assert_int_equal(stats.n_run, 2);
    sl_op_manager_recover(manager);
    sl_assert_ok(
        submit_work(manager, "work", (work_t){100, NULL, &n_ended}, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_int_equal(atomic_load(&n_ended), 2);
    sl_op_manager_destroy(manager);
}

static atomic_int n_told;

static void on_failure(void *ctx, sl_status_t status)
{
    (void)ctx;
    (void)atomic_fetch_add(&n_told, status == SL_ERR_DEVICE);
}

static void an_error_that_stays_ends_cleanly(void **state)
{
    sl_op_manager_t *manager = manager_make(8);
    float *x = device_alloc(N * sizeof(float));
    sl_op_watch_t watch = {.on_failure = on_failure};
    uint64_t ticket = 0;
    int i;

    (void)state;
    atomic_store(&n_told, 0);
    sl_op_manager_watch(manager, &watch);
    sl_assert_ok(
        submit_work(manager, "work", (work_t){20000, NULL, NULL}, NULL));
    standin_fail(STANDIN_cudaLaunchKernelEx, 1, cudaErrorIllegalAddress,
                 STANDIN_FAIL_RUN);
    for (i = 0; i < 200; i++) {
        if (submit_add(manager, x, x, &ticket) != SL_OK) {
            break;
        }
    }
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "illegal memory access");
    sl_assert_contains(sl_last_error(), "cuda:0: op ");
    sl_assert_status(sl_op_manager_wait(manager, ticket, UINT64_MAX),
                     SL_ERR_DEVICE);
    assert_int_equal(atomic_load(&n_told), 1);
    sl_op_manager_unwatch(manager, &watch);
    sl_op_manager_recover(manager); /* which does not help */
    (void)!submit_add(manager, x, x, NULL);
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_DEVICE);
    sl_op_manager_destroy(manager);
    (void)cudaFree(x);
    (void)sl_test_log_take();
}

/* ---- times ---- */

static void times_are_the_devices_own(void **state)
{
    sl_op_manager_t *manager = manager_make(32);
    sl_op_name_stats_t names[3];
    sl_op_span_t span = {0};
    sl_op_stats_t stats, later;
    work_t work = {10000, NULL, NULL};
    const uint64_t before_ns = sl_clock_ns();
    sl_op_t op = {.fn = work_op,
                  .name_id = sl_op_manager_name(manager, "ten"),
                  .span = &span,
                  .args = &work,
                  .args_bytes = sizeof(work)};
    int i;

    (void)state;
    for (i = 0; i < 5; i++) {
        sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    }
    do { /* what runs is seen */
        pause_ms(1);
        sl_op_manager_stats(manager, &stats);
    } while (stats.busy_ns < 15 * MS && stats.n_run < 5);
    assert_true(stats.busy_ns >= 15 * MS);
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(span.start_ns >= before_ns);
    assert_true(span.end_ns <= sl_clock_ns());
    assert_true(span.busy_ns >= 50 * MS);
    /* float milliseconds: 10 to 7 digits */
    assert_true(span.end_ns - span.start_ns + 5000 >= span.busy_ns);
    (void)sl_op_manager_name_stats(manager, names, 3);
    assert_int_equal(names[1].n_ops, 5);
    assert_true(names[1].busy_ns == span.busy_ns);
    assert_true(names[1].min_ns >= 10 * MS);
    sl_op_manager_stats(manager, &later);
    assert_true(later.busy_ns >= stats.busy_ns);
    assert_true(later.busy_ns >= span.busy_ns);
    assert_true(later.charged_ns == span.busy_ns);
    assert_true(later.busy_ns + later.throttled_ns + later.waiting_ns ==
                later.elapsed_ns);
    /* a pause between two ops is nobody's time */
    span = (sl_op_span_t){0};
    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    pause_ms(50);
    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(span.end_ns - span.start_ns >= span.busy_ns + 50 * MS);
    sl_op_manager_destroy(manager);
}

/* ---- every entry point fails once ---- */

static sl_status_t nothing_op(const void *args, void *stream)
{
    (void)args;
    (void)stream;
    return SL_OK;
}

/* All kinds of ops, as far as it gets. */
static void use(void)
{
    sl_op_manager_params_t params;
    sl_op_manager_t *manager = NULL;
    void *ptr = NULL, *pinned = NULL;
    const sl_op_t tell = {.fn = nothing_op, .is_host = 1};
    sl_op_t load, send;
    copy_t in, out;
    int i;

    if (cudaMalloc(&ptr, 2 * N * sizeof(float)) != cudaSuccess) {
        return;
    }
    if (cudaHostAlloc(&pinned, 2 * N * sizeof(float), 0) != cudaSuccess) {
        (void)cudaFree(ptr);
        return;
    }
    memset(pinned, 0, 2 * N * sizeof(float));
    in = (copy_t){ptr, pinned};
    out = (copy_t){(float *)pinned + N, (float *)ptr + N}; /* left alone */
    send = send_of(&out);
    load = copy_of(&in);
    load.is_load = 1;
    sl_op_manager_params_default(&params);
    params.name = "cuda:0";
    params.backend = sl_op_backend_cuda();
    params.in_flight = 4;
    if (sl_op_manager_create(&params, &manager) == SL_OK) {
        for (i = 0; i < 6; i++) {
            (void)!sl_op_manager_submit(manager, &load, NULL);
            (void)!submit_add(manager, ptr, ptr, NULL);
            (void)!sl_op_manager_submit(manager, &send, NULL);
            (void)!submit_work(manager, "work", (work_t){50, NULL, NULL}, NULL);
            (void)!sl_op_manager_submit(manager, &tell, NULL);
            sl_op_manager_section_begin(manager, 1);
            (void)!submit_add(manager, ptr, ptr, NULL);
            (void)!submit_add(manager, ptr, ptr, NULL);
            if (i == 4) { /* another form */
                (void)!submit_add(manager, ptr, ptr, NULL);
            }
            sl_op_manager_section_end(manager);
        }
        (void)!sl_op_manager_drain(manager);
        sl_op_manager_recover(manager);
        (void)!submit_add(manager, ptr, ptr, NULL);
        sl_op_manager_destroy(manager);
    } else {
        assert_null(manager);
    }
    (void)cudaFreeHost(pinned);
    (void)cudaFree(ptr);
}

static int sweep(standin_failure_t failure, cudaError_t error)
{
    int n_failures = 0;
    int entry;

    for (entry = 0; entry < STANDIN_N_ENTRIES; entry++) {
        uint64_t call = 0;
        int has_failed;

        do {
            call++;
            standin_fail((standin_entry_t)entry, call, error, failure);
            use();
            has_failed = standin_has_failed();
            n_failures += has_failed;
            (void)sl_test_log_take();
            if (standin_n_live() != 0) {
                fail_msg("%s, call %d: %d things are left",
                         standin_entry_name((standin_entry_t)entry), (int)call,
                         standin_n_live());
            }
            if (standin_n_reports() > 0) {
                fail_msg("%s, call %d: %s",
                         standin_entry_name((standin_entry_t)entry), (int)call,
                         standin_report(0));
            }
            standin_reset();
        } while (has_failed);
    }
    return n_failures;
}

static void every_failure_is_survived(void **state)
{
    (void)state;
    assert_true(sweep(STANDIN_FAIL_CALL, cudaErrorUnknown) > 60);
    assert_true(sweep(STANDIN_FAIL_RUN, cudaErrorIllegalAddress) > 10);
}

static void a_manager_that_cannot_start_says_why(void **state)
{
    sl_op_manager_params_t params;
    sl_op_manager_t *manager = NULL;

    (void)state;
    sl_op_manager_params_default(&params);
    params.backend = sl_op_backend_cuda();
    params.device = 7;
    sl_assert_status(sl_op_manager_create(&params, &manager), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "cudaErrorInvalidDevice");
    assert_null(manager);
    params.device = 0;
    params.in_flight = 1;
    sl_assert_status(sl_op_manager_create(&params, &manager),
                     SL_ERR_INVALID_ARG);
    params.in_flight = 1025;
    sl_assert_status(sl_op_manager_create(&params, &manager),
                     SL_ERR_INVALID_ARG);
    assert_null(manager);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(ops_count_when_the_device_has_finished),
        T(a_host_op_sees_all_before_it),
        T(no_more_than_so_many_are_in_flight),
        T(who_waits_is_told_in_time),
        T(an_op_that_comes_while_another_runs_is_handed_over),
        T(destroy_runs_what_is_queued_and_in_flight),
        T(cancel_ends_behind_what_is_in_flight),
        T(two_managers_share_a_gpu),
        T(a_load_runs_beside_the_ops_before_it),
        T(a_load_that_waits_for_too_little_is_found),
        T(a_send_runs_beside_the_ops_after_it),
        T(what_a_send_reads_must_stay),
        T(a_refused_launch_fails_its_op),
        T(an_error_that_stays_ends_cleanly),
        T(times_are_the_devices_own),
        T(every_failure_is_survived),
        T(a_manager_that_cannot_start_says_why),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
