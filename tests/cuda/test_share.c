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

static timed_work_t works[2];

/* From the beginning to `stats`: no more than the rate, one bucketful and what
 * was in flight. Drops what has not run. */
static void assert_share(timed_work_t *timed, const sl_op_stats_t *stats)
{
    const double charged_ns = (double)stats->charged_ns;
    double excess_ns;

    sl_op_manager_cancel(timed->manager);
    (void)!sl_op_manager_drain(timed->manager);
    excess_ns = timed_excess_ns(timed, stats->n_run);
    assert_true(charged_ns <=
                (double)stats->elapsed_ns * stats->share_percent / 100.0 +
                    DEPTH_NS + 2e3 * timed->us + 2e6 + excess_ns);
}

/* Keep the queue full for a while; the charged part of the time, in percent. */
static double feed(sl_op_manager_t *manager, unsigned us, uint64_t time_ns)
{
    sl_op_stats_t stats;

    timed_begin(&works[0], manager, us);
    do {
        submit_timed(&works[0]);
        sl_op_manager_stats(manager, &stats);
    } while (stats.elapsed_ns < time_ns || stats.charged_ns == 0);
    assert_share(&works[0], &stats);
    return (double)stats.charged_ns / (double)stats.elapsed_ns * 100.0;
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

/* Until the device rests or all ops have run. @return whether it rests */
static int is_suspended(sl_op_manager_t *manager, uint64_t ticket,
                        sl_op_stats_t *stats)
{
    do {
        pause_ms(1);
        sl_op_manager_stats(manager, stats);
        if (stats->throttled_ns > 0) {
            return 1;
        }
    } while (sl_op_manager_wait(manager, ticket, 0) == SL_ERR_TIMEOUT);
    return 0;
}

static void suspended_it_runs_nothing_more_and_resumes(void **state)
{
    sl_op_manager_t *manager = manager_make(32);
    atomic_int n_queued = 0, n_ended = 0;
    const work_t work = {4000, &n_queued, &n_ended};
    sl_op_stats_t stats;
    uint64_t ticket;
    int i, n, n_before, n_known = 1, n_tries = 0;

    (void)state;
    /* known first: then no more than 10 ms are in flight */
    sl_assert_ok(submit_work(manager, "work", work, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    do { /* again when this thread came too late */
        assert_true(n_tries++ < 50);
        share_set(manager, 100);
        n_before = atomic_load(&n_queued);
        for (i = 0; i < 60; i++) {
            sl_assert_ok(submit_work(manager, "work", work, &ticket));
            n_known++;
        }
        wait_for(atomic_load(&n_queued) >= n_before + 3);
        n = atomic_load(&n_queued);
        assert_true(n <= atomic_load(&n_ended) + 4);
        share_set(manager, 0);
    } while (!is_suspended(manager, ticket, &stats));
    n = atomic_load(&n_queued);
    assert_int_equal(atomic_load(&n_ended), n);
    pause_ms(30);
    assert_int_equal(atomic_load(&n_queued), n);
    sl_op_manager_stats(manager, &stats);
    assert_true(stats.busy_ns + stats.throttled_ns + stats.waiting_ns ==
                stats.elapsed_ns);
    /* host ops are not held up: nothing before them is left */
    share_set(manager, 100);
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
    assert_int_equal(atomic_load(&n_ended), n_known);
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
        timed_begin(&works[i], managers[i], 500);
    }
    while (sl_clock_ns() - start_ns < 300 * MS) {
        for (i = 0; i < 2; i++) {
            sl_op_manager_stats(managers[i], &stats);
            while (stats.n_submitted - stats.n_run < 100) {
                submit_timed(&works[i]);
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
        assert_share(&works[i], &stats);
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
