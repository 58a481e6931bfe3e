/* SPDX-License-Identifier: Apache-2.0 */
/* The share of a device that runs beside the host. Kernels sleep, so that
 * their device time is known on a busy machine too. */
#include "tests/cuda/stream_bed.h"

#define DEPTH_NS 20e6 /* of the bucket, docs/share.md */

static void share_set(sl_op_manager_t *manager, double percent)
{
    sl_assert_ok(
        sl_op_manager_share_set(manager, percent, SL_SHARE_TOKEN_BUCKET));
}

/* Keep the queue full for a while; the charged part of the time, in percent.
 * The bound: the rate, one bucketful, and what is in flight. */
static double feed(sl_op_manager_t *manager, unsigned us, uint64_t time_ns)
{
    sl_op_stats_t before, after;
    double charged_ns, elapsed_ns;

    sl_op_manager_stats(manager, &before);
    do {
        sl_assert_ok(
            submit_work(manager, "work", (work_t){us, NULL, NULL}, NULL));
        sl_op_manager_stats(manager, &after);
    } while (after.elapsed_ns - before.elapsed_ns < time_ns);
    charged_ns = (double)(after.charged_ns - before.charged_ns);
    elapsed_ns = (double)(after.elapsed_ns - before.elapsed_ns);
    assert_true(charged_ns <= elapsed_ns * after.share_percent / 100.0 +
                                  DEPTH_NS + 2e3 * us + 2e6);
    assert_true(charged_ns > 0.0);
    return charged_ns / elapsed_ns * 100.0;
}

static void a_queue_that_is_full_gets_its_share(void **state)
{
    static const unsigned ops_us[] = {100, 1000, 8000};
    static const double shares[] = {20, 50, 80};
    size_t i, k;

    (void)state;
    for (k = 0; k < 3; k++) {
        for (i = 0; i < 3; i++) {
            sl_op_manager_t *manager = manager_make(32);
            double got;

            share_set(manager, shares[i]);
            got = feed(manager, ops_us[k], 400 * MS);
            print_message("kernels of %g ms: asked %g %%, got %.1f %%\n",
                          ops_us[k] / 1e3, shares[i], got);
            sl_op_manager_destroy(manager);
        }
    }
}

/* What is not known goes alone: no burst of long ops before any has ended. */
static void unknown_ops_go_one_by_one_below_a_full_share(void **state)
{
    sl_op_manager_t *manager = manager_make(32);
    atomic_int n_queued = 0, n_ended = 0;
    const work_t work = {20000, &n_queued, &n_ended};
    uint64_t ticket;
    int i;

    (void)state;
    share_set(manager, 50);
    for (i = 0; i < 4; i++) {
        sl_assert_ok(submit_work(manager, "new", work, &ticket));
    }
    do {
        const int n = atomic_load(&n_queued);

        assert_true(n <= atomic_load(&n_ended) + 1);
    } while (sl_op_manager_wait(manager, ticket, MS) == SL_ERR_TIMEOUT);
    sl_op_manager_destroy(manager);
}

static void suspended_it_runs_nothing_more_and_resumes(void **state)
{
    sl_op_manager_t *manager = manager_make(32);
    atomic_int n_queued = 0, n_ended = 0;
    const work_t work = {4000, &n_queued, &n_ended};
    sl_op_stats_t stats;
    uint64_t ticket;
    int i, n;

    (void)state;
    /* known first: then no more than 10 ms are in flight */
    sl_assert_ok(submit_work(manager, "work", work, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    for (i = 0; i < 60; i++) {
        sl_assert_ok(submit_work(manager, "work", work, &ticket));
    }
    wait_for(atomic_load(&n_queued) >= 3);
    n = atomic_load(&n_queued);
    assert_true(n <= atomic_load(&n_ended) + 4);
    share_set(manager, 0);
    pause_ms(5);
    n = atomic_load(&n_queued);
    wait_for(atomic_load(&n_ended) == n);
    pause_ms(30);
    assert_int_equal(atomic_load(&n_queued), n);
    sl_op_manager_stats(manager, &stats);
    assert_true(stats.throttled_ns > 0);
    assert_true(stats.busy_ns + stats.throttled_ns + stats.waiting_ns ==
                stats.elapsed_ns);
    /* host ops are not held up: nothing before them is left */
    share_set(manager, 100);
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
    assert_int_equal(atomic_load(&n_ended), 61);
    sl_op_manager_destroy(manager);
}

static void destroy_ends_a_suspension(void **state)
{
    sl_op_manager_t *manager = manager_make(32);
    atomic_int n_ended = 0;
    int i;

    (void)state;
    share_set(manager, 0);
    for (i = 0; i < 10; i++) {
        sl_assert_ok(
            submit_work(manager, "work", (work_t){100, NULL, &n_ended}, NULL));
    }
    pause_ms(5);
    assert_int_equal(atomic_load(&n_ended), 0);
    sl_op_manager_destroy(manager);
    assert_int_equal(atomic_load(&n_ended), 10);
}

/* AntMan's law counts the time after each op. */
static void antmans_law_has_one_op_in_flight(void **state)
{
    sl_op_manager_t *manager = manager_make(32);
    atomic_int n_queued = 0, n_ended = 0;
    const work_t work = {500, &n_queued, &n_ended};
    uint64_t ticket = 0;
    int i, k;

    (void)state;
    sl_assert_ok(sl_op_manager_share_set(manager, 50, SL_SHARE_ANTMAN));
    for (k = 0; k < 3; k++) {
        const uint64_t start_ns = sl_clock_ns();

        for (i = 0; i < 10; i++) {
            const int n = atomic_load(&n_queued);

            assert_true(n <= atomic_load(&n_ended) + 1);
            sl_assert_ok(submit_work(manager, "work", work, &ticket));
        }
        sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
        sl_op_manager_boundary(manager,
                               (double)(sl_clock_ns() - start_ns) / 1e3);
    }
    sl_op_manager_destroy(manager);
}

static void two_devices_of_a_gpu_have_a_share_each(void **state)
{
    static const double shares[] = {30, 60};
    sl_op_manager_t *managers[2];
    sl_op_stats_t stats;
    const uint64_t start_ns = sl_clock_ns();
    int i;

    (void)state;
    for (i = 0; i < 2; i++) {
        managers[i] = manager_make(32);
        share_set(managers[i], shares[i]);
    }
    while (sl_clock_ns() - start_ns < 300 * MS) {
        for (i = 0; i < 2; i++) {
            sl_op_manager_stats(managers[i], &stats);
            while (stats.n_submitted - stats.n_run < 100) {
                sl_assert_ok(submit_work(managers[i], "work",
                                         (work_t){500, NULL, NULL}, NULL));
                stats.n_submitted++;
            }
        }
        pause_ms(1);
    }
    for (i = 0; i < 2; i++) {
        double got;

        sl_op_manager_stats(managers[i], &stats);
        got = (double)stats.charged_ns / (double)stats.elapsed_ns * 100.0;
        print_message("device %d: asked %g %%, got %.1f %%\n", i, shares[i],
                      got);
        assert_true((double)stats.charged_ns <=
                    (double)stats.elapsed_ns * shares[i] / 100.0 + DEPTH_NS +
                        4e6);
        sl_op_manager_cancel(managers[i]);
        sl_op_manager_destroy(managers[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_queue_that_is_full_gets_its_share),
        T(unknown_ops_go_one_by_one_below_a_full_share),
        T(suspended_it_runs_nothing_more_and_resumes),
        T(destroy_ends_a_suspension),
        T(antmans_law_has_one_op_in_flight),
        T(two_devices_of_a_gpu_have_a_share_each),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
