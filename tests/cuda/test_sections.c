/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of ops that are launched as one graph. */
#include <pthread.h>
#include <stdlib.h>

#include "tests/cuda/stream_bed.h"

typedef struct ground {
    sl_op_manager_t *manager;
    float *x, *y, *pinned, *zeros;
} ground_t;

static ground_t ground_make(void)
{
    ground_t ground = {.manager = manager_make(16)};

    ground.x = device_alloc(N * sizeof(float));
    ground.y = device_alloc(N * sizeof(float));
    ground.pinned = pinned_alloc();
    ground.zeros = pinned_alloc();
    memset(ground.pinned, 0, N * sizeof(float));
    memset(ground.zeros, 0, N * sizeof(float));
    return ground;
}

static void ground_free(ground_t *ground)
{
    sl_op_manager_destroy(ground->manager);
    ok(cudaFree(ground->x));
    ok(cudaFree(ground->y));
    ok(cudaFreeHost(ground->pinned));
    ok(cudaFreeHost(ground->zeros));
}

static void submit_copy(ground_t *ground, float *to, const float *from)
{
    const copy_t copy = {to, from};
    const sl_op_t op = copy_of(&copy);

    sl_assert_ok(sl_op_manager_submit(ground->manager, &op, NULL));
}

static void assert_all(ground_t *ground, const float *from, float value)
{
    int i;

    submit_copy(ground, ground->pinned, from);
    sl_assert_ok(sl_op_manager_drain(ground->manager));
    for (i = 0; i < N; i++) {
        assert_true(ground->pinned[i] == value);
    }
}

/* x = 0, then 2 n times + 1. */
static void section_of_adds(ground_t *ground, uint32_t section, int n)
{
    int i;

    sl_op_manager_section_begin(ground->manager, section);
    submit_copy(ground, ground->x, ground->zeros);
    for (i = 0; i < n; i++) {
        sl_assert_ok(submit_add(ground->manager, ground->x, ground->y, NULL));
        sl_assert_ok(submit_add(ground->manager, ground->y, ground->x, NULL));
    }
    sl_op_manager_section_end(ground->manager);
}

static void a_section_is_launched_as_one(void **state)
{
    ground_t ground = ground_make();
    float *other = device_alloc(N * sizeof(float));
    sl_op_stats_t stats;
    float *x = ground.x;
    int i;

    (void)state;
    for (i = 0; i < 6; i++) {
        ground.x = i % 2 == 0 ? x : other; /* other arguments each time */
        section_of_adds(&ground, 1, 5);
        assert_all(&ground, ground.x, 10.0f);
        /* the first time its ops go one by one */
        assert_int_equal(standin_n_calls(STANDIN_cudaGraphLaunch), i);
        assert_int_equal(standin_n_calls(STANDIN_cudaGraphInstantiate), i > 0);
    }
    assert_int_equal(standin_n_calls(STANDIN_cudaGraphExecUpdate), 4);
    /* another form is made anew, and so is the one before */
    section_of_adds(&ground, 1, 7);
    assert_all(&ground, ground.x, 14.0f);
    section_of_adds(&ground, 1, 5);
    assert_all(&ground, ground.x, 10.0f);
    assert_int_equal(standin_n_calls(STANDIN_cudaGraphInstantiate), 3);
    /* another section is another graph */
    section_of_adds(&ground, 2, 3);
    section_of_adds(&ground, 2, 3);
    section_of_adds(&ground, 1, 5);
    assert_all(&ground, ground.x, 10.0f);
    assert_int_equal(standin_n_calls(STANDIN_cudaGraphInstantiate), 4);
    sl_op_manager_stats(ground.manager, &stats);
    assert_int_equal(stats.n_run, stats.n_submitted);
    assert_int_equal(stats.n_skipped, 0);
    ground.x = x;
    ground_free(&ground);
    ok(cudaFree(other));
}

/* ---- what ends a piece ---- */

static sl_status_t look_op(const void *args, void *stream)
{
    float *const *pinned = args;

    (void)stream;
    pinned[0][0] *= 2.0f; /* what was copied back, and nothing later */
    return SL_OK;
}

static void host_ops_loads_and_sends_are_between_pieces(void **state)
{
    ground_t ground = ground_make();
    const sl_op_t look = {.fn = look_op,
                          .is_host = 1,
                          .args = &ground.pinned,
                          .args_bytes = sizeof(ground.pinned)};
    const copy_t copy = {ground.x, ground.pinned};
    const copy_t back = {ground.pinned, ground.x};
    sl_op_t load = copy_of(&copy), send = copy_of(&back);
    uint64_t ticket;
    int i;

    (void)state;
    load.is_load = 1;
    for (i = 0; i < 10; i++) {
        sl_op_manager_section_begin(ground.manager, 1 + (uint32_t)i % 2);
        submit_copy(&ground, ground.x, ground.zeros);
        sl_assert_ok(submit_add(ground.manager, ground.x, ground.x, NULL));
        send.is_send = i % 2;
        sl_assert_ok(sl_op_manager_submit(ground.manager, &send, NULL));
        sl_assert_ok(sl_op_manager_submit(ground.manager, &look, &ticket));
        sl_assert_ok(submit_add(ground.manager, ground.x, ground.y, NULL));
        sl_assert_ok(submit_add(ground.manager, ground.x, ground.y, NULL));
        /* a wait within it does not hang */
        sl_assert_ok(sl_op_manager_wait(ground.manager, ticket, UINT64_MAX));
        assert_true(ground.pinned[0] == 2.0f);
        sl_assert_ok(sl_op_manager_submit(ground.manager, &load, NULL));
        sl_assert_ok(submit_add(ground.manager, ground.x, ground.y, NULL));
        sl_assert_ok(submit_add(ground.manager, ground.y, ground.y, &ticket));
        /* ops that wait for the rest of their piece count */
        assert_true(sl_op_manager_after(ground.manager) == ticket);
        sl_assert_ok(sl_op_manager_wait(ground.manager, ticket, UINT64_MAX));
        sl_op_manager_section_end(ground.manager);
        submit_copy(&ground, ground.pinned, ground.y);
        sl_assert_ok(sl_op_manager_drain(ground.manager));
        assert_true(ground.pinned[0] == 4.0f);
        assert_true(ground.pinned[1] == 3.0f);
    }
    assert_true(standin_n_calls(STANDIN_cudaGraphLaunch) >= 8);
    ground_free(&ground);
}

static void *submit_and_look(void *arg)
{
    ground_t *ground = arg;
    static atomic_int n_ended; /* stays, should the op come late */
    int n_looks = 0;

    /* not by waiting for its ticket, which would end the piece */
    (void)!submit_work(ground->manager, "work", (work_t){10, NULL, &n_ended},
                       NULL);
    while (atomic_load(&n_ended) == 0 && ++n_looks < 20000) {
        pause_ms(1);
    }
    return atomic_load(&n_ended) == 1 ? arg : NULL;
}

static void another_thread_is_not_held_up(void **state)
{
    ground_t ground = ground_make();
    void *seen = NULL;
    pthread_t thread;

    (void)state;
    sl_op_manager_section_begin(ground.manager, 1);
    submit_copy(&ground, ground.x, ground.zeros);
    assert_int_equal(pthread_create(&thread, NULL, submit_and_look, &ground),
                     0);
    assert_int_equal(pthread_join(thread, &seen), 0);
    sl_assert_ok(submit_add(ground.manager, ground.x, ground.x, NULL));
    sl_op_manager_section_end(ground.manager);
    assert_all(&ground, ground.x, 1.0f);
    ground_free(&ground);
    assert_non_null(seen);
}

/* Longer than the ring, and left open. */
static void sections_of_any_length_end(void **state)
{
    ground_t ground = ground_make();
    int i;

    (void)state;
    for (i = 0; i < 3; i++) {
        section_of_adds(&ground, 1, 500);
        assert_all(&ground, ground.x, 1000.0f);
    }
    sl_op_manager_section_begin(ground.manager, 2);
    sl_assert_ok(submit_add(ground.manager, ground.x, ground.x, NULL));
    ground_free(&ground);
}

static void a_section_may_be_canceled(void **state)
{
    ground_t ground = ground_make();
    sl_op_stats_t stats;
    int i;

    (void)state;
    for (i = 0; i < 4; i++) {
        section_of_adds(&ground, 1, 5);
    }
    sl_op_manager_section_begin(ground.manager, 1);
    sl_assert_ok(submit_add(ground.manager, ground.x, ground.x, NULL));
    sl_op_manager_cancel(ground.manager);
    sl_assert_status(sl_op_manager_drain(ground.manager), SL_ERR_CANCELED);
    sl_op_manager_section_end(ground.manager);
    sl_op_manager_stats(ground.manager, &stats);
    assert_true(stats.n_run + stats.n_skipped == stats.n_submitted);
    sl_op_manager_recover(ground.manager);
    section_of_adds(&ground, 1, 5);
    assert_all(&ground, ground.x, 10.0f);
    ground_free(&ground);
}

/* ---- what cannot be captured ---- */

static sl_status_t waiting_op(const void *args, void *stream)
{
    const sl_cuda_stream_t *cuda = stream;

    (void)args;
    return SL_CUDA(cudaStreamSynchronize(cuda->queue));
}

static void what_cannot_be_captured_goes_one_by_one(void **state)
{
    ground_t ground = ground_make();
    const sl_op_t wait = {.fn = waiting_op};
    int i;

    (void)state;
    for (i = 0; i < 4; i++) {
        sl_op_manager_section_begin(ground.manager, 1);
        submit_copy(&ground, ground.x, ground.zeros);
        sl_assert_ok(submit_add(ground.manager, ground.x, ground.x, NULL));
        sl_assert_ok(sl_op_manager_submit(ground.manager, &wait, NULL));
        sl_assert_ok(submit_add(ground.manager, ground.x, ground.x, NULL));
        sl_op_manager_section_end(ground.manager);
        assert_all(&ground, ground.x, 2.0f);
    }
    assert_int_equal(standin_n_calls(STANDIN_cudaGraphLaunch), 0);
    assert_int_equal(standin_n_calls(STANDIN_cudaStreamBeginCapture), 1);
    sl_assert_contains(sl_test_log_take(), "not allowed in a capture");
    ground_free(&ground);
}

static sl_status_t failing_op(const void *args, void *stream)
{
    sl_status_t status;

    (void)stream;
    SL_REFUSE(status, SL_ERR_NUMERIC, out, "loss %d is not finite",
              *(const int *)args);
out:
    return status;
}

static void a_failure_within_names_its_op(void **state)
{
    ground_t ground = ground_make();
    const int value = 7;
    const sl_op_t fail = {.fn = failing_op,
                          .name_id = sl_op_manager_name(ground.manager, "loss"),
                          .args = &value,
                          .args_bytes = sizeof(value)};
    int i;

    (void)state;
    for (i = 0; i < 3; i++) {
        section_of_adds(&ground, 1, 2);
    }
    sl_op_manager_section_begin(ground.manager, 1);
    for (i = 0; i < 2; i++) {
        sl_assert_ok(submit_add(ground.manager, ground.x, ground.x, NULL));
    }
    sl_assert_ok(sl_op_manager_submit(ground.manager, &fail, NULL));
    sl_assert_ok(submit_add(ground.manager, ground.x, ground.x, NULL));
    sl_op_manager_section_end(ground.manager);
    sl_assert_status(sl_op_manager_drain(ground.manager), SL_ERR_NUMERIC);
    sl_assert_contains(sl_last_error(), "op loss: ");
    sl_op_manager_recover(ground.manager);
    ground_free(&ground);
}

static void a_graph_that_fails_later_fails_the_manager(void **state)
{
    ground_t ground = ground_make();
    int i;

    (void)state;
    for (i = 0; i < 3; i++) {
        section_of_adds(&ground, 1, 4);
    }
    sl_assert_ok(sl_op_manager_drain(ground.manager));
    standin_fail(STANDIN_cudaGraphLaunch, 1, cudaErrorIllegalAddress,
                 STANDIN_FAIL_RUN);
    section_of_adds(&ground, 1, 4);
    sl_assert_status(sl_op_manager_drain(ground.manager), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "illegal memory access");
    sl_op_manager_destroy(ground.manager);
    (void)cudaFree(ground.x);
    (void)cudaFree(ground.y);
    (void)cudaFreeHost(ground.pinned);
    (void)cudaFreeHost(ground.zeros);
    (void)sl_test_log_take();
}

/* ---- time ---- */

static void a_piece_is_charged_as_measured(void **state)
{
    ground_t ground = ground_make();
    sl_op_name_stats_t names[4];
    sl_op_span_t span = {0};
    const work_t works[2] = {{9000, NULL, NULL}, {3000, NULL, NULL}};
    sl_op_t op = {.fn = work_op, .span = &span, .args_bytes = sizeof(work_t)};
    const uint32_t ids[2] = {sl_op_manager_name(ground.manager, "long"),
                             sl_op_manager_name(ground.manager, "short")};
    sl_op_stats_t stats;
    int i, k;

    (void)state;
    for (i = 0; i < 4; i++) {
        sl_op_manager_section_begin(ground.manager, 1);
        for (k = 0; k < 2; k++) {
            op.name_id = ids[k];
            op.args = &works[k];
            sl_assert_ok(sl_op_manager_submit(ground.manager, &op, NULL));
        }
        sl_op_manager_section_end(ground.manager);
    }
    sl_assert_ok(sl_op_manager_drain(ground.manager));
    assert_int_equal(standin_n_calls(STANDIN_cudaGraphLaunch), 3);
    sl_op_manager_stats(ground.manager, &stats);
    (void)sl_op_manager_name_stats(ground.manager, names, 4);
    assert_true(stats.charged_ns >= 48 * MS);
    assert_true(names[1].busy_ns + names[2].busy_ns == stats.charged_ns);
    assert_true(names[1].busy_ns >= 9 * MS); /* the one that went alone */
    assert_true(names[2].busy_ns >= 3 * MS);
    assert_true(names[1].min_ns > 0 && names[2].min_ns > 0);
    assert_true(span.busy_ns == stats.charged_ns);
    assert_true(span.end_ns - span.start_ns + 5000 >= span.busy_ns);
    assert_int_equal(stats.n_run, 8);
    ground_free(&ground);
}

static void the_share_holds_for_pieces(void **state)
{
    static timed_work_t timed;
    ground_t ground = ground_make();
    sl_op_stats_t stats;
    int i, k;

    (void)state;
    timed_begin(&timed, ground.manager, 1000);
    sl_assert_ok(
        sl_op_manager_share_set(ground.manager, 40, SL_SHARE_TOKEN_BUCKET));
    for (i = 0; i < 40; i++) {
        sl_op_manager_section_begin(ground.manager, 1);
        for (k = 0; k < 4; k++) {
            submit_timed(&timed);
        }
        sl_op_manager_section_end(ground.manager);
    }
    sl_assert_ok(sl_op_manager_drain(ground.manager));
    sl_op_manager_stats(ground.manager, &stats);
    print_message("pieces of 4 ms: asked 40 %%, got %.1f %%\n",
                  (double)stats.charged_ns / (double)stats.elapsed_ns * 100.0);
    assert_true((double)stats.charged_ns <=
                0.4 * (double)stats.elapsed_ns + 20e6 + 10e6 +
                    timed_excess_ns(&timed, stats.n_run));
    assert_true(standin_n_calls(STANDIN_cudaGraphLaunch) == 39);
    /* suspended: a piece waits as a whole */
    sl_assert_ok(
        sl_op_manager_share_set(ground.manager, 0, SL_SHARE_TOKEN_BUCKET));
    section_of_adds(&ground, 2, 4);
    pause_ms(5);
    sl_op_manager_stats(ground.manager, &stats);
    assert_int_equal(stats.n_run, 160);
    ground_free(&ground); /* which ends it */
}

static sl_status_t append_op(const void *args, void *stream)
{
    (void)stream;
    (void)atomic_fetch_add(*(atomic_int *const *)args, 1);
    return SL_OK;
}

static void a_cpu_knows_no_sections(void **state)
{
    sl_op_manager_params_t params;
    sl_op_manager_t *manager = NULL;
    atomic_int n = 0;
    atomic_int *place = &n;
    const sl_op_t op = {
        .fn = append_op, .args = &place, .args_bytes = sizeof(place)};

    (void)state;
    sl_op_manager_params_default(&params);
    sl_assert_ok(sl_op_manager_create(&params, &manager));
    sl_op_manager_section_begin(manager, 1);
    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    wait_for(atomic_load(&n) == 1);
    sl_op_manager_section_end(manager);
    sl_op_manager_destroy(manager);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_section_is_launched_as_one),
        T(host_ops_loads_and_sends_are_between_pieces),
        T(another_thread_is_not_held_up),
        T(sections_of_any_length_end),
        T(a_section_may_be_canceled),
        T(what_cannot_be_captured_goes_one_by_one),
        T(a_failure_within_names_its_op),
        T(a_graph_that_fails_later_fails_the_manager),
        T(a_piece_is_charged_as_measured),
        T(the_share_holds_for_pieces),
        T(a_cpu_knows_no_sections),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
