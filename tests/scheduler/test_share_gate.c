/* SPDX-License-Identifier: Apache-2.0 */
/* Share, suspension and cancel of a running op manager. Shares are printed;
 * only what holds on a busy machine too is asserted. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/scheduler/ops_bed.h"

#define S UINT64_C(1000000000)
#define DEPTH_NS 20e6 /* of the bucket, docs/share.md */

static sl_status_t spin_op(const void *args, void *stream)
{
    const uint64_t end_ns = sl_clock_ns() + *(const uint64_t *)args;

    (void)stream;
    while (sl_clock_ns() < end_ns) {
    }
    return SL_OK;
}

static sl_status_t submit(sl_op_manager_t *manager, sl_op_fn fn, uint64_t ns,
                          uint64_t *ticket_p)
{
    const sl_op_t op = {.fn = fn, .args = &ns, .args_bytes = sizeof(ns)};

    return sl_op_manager_submit(manager, &op, ticket_p);
}

static void share_set(sl_op_manager_t *manager, double percent)
{
    sl_assert_ok(
        sl_op_manager_share_set(manager, percent, SL_SHARE_TOKEN_BUCKET));
}

static sl_op_manager_t *bound_manager(int n_threads, const int *core)
{
    sl_op_manager_params_t params;
    sl_op_manager_t *manager = NULL;

    ops_bed_params(&params);
    params.ring_ops = 16;
    params.n_threads = n_threads;
    params.cores = core;
    params.n_cores = core == NULL ? 0 : 1;
    sl_assert_ok(sl_op_manager_create(&params, &manager));
    return manager;
}

static void pause_ms(long ms)
{
    const struct timespec nap = {.tv_nsec = ms * 1000000};

    (void)nanosleep(&nap, NULL);
}

/* Until it holds; a bound, not a measure. */
#define wait_for(condition)                                                    \
    do {                                                                       \
        int tries = 0;                                                         \
        while (!(condition) && tries++ < 30000) {                              \
            pause_ms(1);                                                       \
        }                                                                      \
        assert_true(condition);                                                \
    } while (0)

static uint64_t throttled_ns(const sl_op_manager_t *manager)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(manager, &stats);
    return stats.throttled_ns;
}

/* ---- suspension ---- */

static void a_suspended_device_runs_nothing_and_resumes(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    sl_op_stats_t stats;
    uint64_t ticket = 0;
    int i;

    (void)state;
    share_set(manager, 0);
    for (i = 0; i < 16; i++) { /* fills the ring and blocks nobody */
        sl_assert_ok(submit(manager, spin_op, 0, &ticket));
    }
    sl_assert_status(sl_op_manager_wait(manager, 1, 30 * MS), SL_ERR_TIMEOUT);
    wait_for(throttled_ns(manager) >= 20 * MS);
    sl_op_manager_stats(manager, &stats);
    assert_int_equal(stats.n_run, 0);
    assert_int_equal(stats.busy_ns, 0);
    assert_true(stats.share_percent == 0.0);
    share_set(manager, 50);
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
    sl_op_manager_stats(manager, &stats);
    assert_int_equal(stats.n_run, 16);
    sl_op_manager_destroy(manager);
}

/* The op that runs when the share falls to 0 is drained, not stopped. */
static void a_running_op_ends_when_suspended(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    gate_t gate = {0};
    uint64_t ticket = 0;

    (void)state;
    ops_bed_hold(manager, &gate);
    sl_assert_ok(submit(manager, spin_op, 0, &ticket));
    share_set(manager, 0);
    ops_bed_open(&gate);
    sl_assert_ok(sl_op_manager_wait(manager, ticket - 1, UINT64_MAX));
    sl_assert_status(sl_op_manager_wait(manager, ticket, 10 * MS),
                     SL_ERR_TIMEOUT);
    share_set(manager, 100);
    sl_assert_ok(sl_op_manager_wait(manager, ticket, UINT64_MAX));
    sl_op_manager_destroy(manager);
}

typedef struct peer {
    sl_op_manager_t *manager;
    int n_ops;
    sl_status_t status;
    char detail[128];
} peer_t;

static void *submit_and_drain(void *arg)
{
    peer_t *peer = arg;
    int i;

    for (i = 0; i < peer->n_ops && peer->status == SL_OK; i++) {
        peer->status = submit(peer->manager, spin_op, 0, NULL);
    }
    if (peer->status == SL_OK) {
        peer->status = sl_op_manager_drain(peer->manager);
    }
    (void)snprintf(peer->detail, sizeof(peer->detail), "%s", sl_last_error());
    return NULL;
}

/* One blocks on the full ring, one waits for its ops; neither times out. */
static void peers_of_a_suspended_device_wait(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    peer_t peers[] = {{.manager = manager, .n_ops = 100},
                      {.manager = manager, .n_ops = 1}};
    pthread_t threads[2];
    sl_op_stats_t stats;
    int i;

    (void)state;
    share_set(manager, 0);
    for (i = 0; i < 2; i++) {
        assert_int_equal(
            pthread_create(&threads[i], NULL, submit_and_drain, &peers[i]), 0);
    }
    pause_ms(100);
    sl_op_manager_stats(manager, &stats);
    assert_int_equal(stats.n_run, 0);
    assert_true(stats.n_submitted <= 16);
    share_set(manager, 100);
    for (i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(peers[i].status, SL_OK);
    }
    sl_op_manager_stats(manager, &stats);
    assert_int_equal(stats.n_run, 101);
    sl_op_manager_destroy(manager);
}

static void destroy_ends_a_suspension(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    gate_t gate = {.is_open = 1};
    const gate_t *place = &gate;
    const sl_op_t op = {
        .fn = gate_op, .args = &place, .args_bytes = sizeof(place)};

    (void)state;
    share_set(manager, 0);
    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    pause_ms(5);
    assert_int_equal(atomic_load(&gate.is_entered), 0);
    sl_op_manager_destroy(manager); /* runs what is queued */
    assert_int_equal(atomic_load(&gate.is_entered), 1);

    manager = ops_bed_manager(16); /* suspended with nothing queued */
    share_set(manager, 0);
    sl_op_manager_destroy(manager);
}

/* ---- cancel ---- */

typedef struct heard {
    sl_op_watch_t watch;
    int n;
    sl_status_t status;
    char detail[128];
} heard_t;

static void on_failure(void *ctx, sl_status_t status)
{
    heard_t *heard = ctx;

    heard->n++;
    heard->status = status;
    (void)snprintf(heard->detail, sizeof(heard->detail), "%s", sl_last_error());
}

static void cancel_ends_a_suspension_for_all(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    peer_t peers[] = {{.manager = manager, .n_ops = 100},
                      {.manager = manager, .n_ops = 1}};
    heard_t heard = {.watch = {.on_failure = on_failure, .ctx = &heard}};
    pthread_t threads[2];
    sl_op_stats_t stats;
    int i;

    (void)state;
    sl_op_manager_watch(manager, &heard.watch);
    share_set(manager, 0);
    for (i = 0; i < 2; i++) {
        assert_int_equal(
            pthread_create(&threads[i], NULL, submit_and_drain, &peers[i]), 0);
    }
    pause_ms(30);
    sl_last_error_set("my reason");
    sl_op_manager_cancel(manager);
    assert_string_equal(sl_last_error(), "my reason");
    for (i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(peers[i].status, SL_ERR_CANCELED);
        sl_assert_contains(peers[i].detail, "bed:0: canceled");
    }
    sl_op_manager_cancel(manager);
    assert_int_equal(heard.n, 1);
    assert_int_equal(heard.status, SL_ERR_CANCELED);
    sl_assert_contains(heard.detail, "bed:0: canceled");
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_CANCELED);
    sl_op_manager_stats(manager, &stats);
    assert_int_equal(stats.n_run, 0);
    assert_int_equal(stats.n_skipped, stats.n_submitted);
    /* it runs again, and the share still holds */
    sl_op_manager_recover(manager);
    sl_assert_ok(submit(manager, spin_op, 0, NULL));
    sl_assert_status(sl_op_manager_wait(manager, stats.n_submitted + 1, 5 * MS),
                     SL_ERR_TIMEOUT);
    share_set(manager, 100);
    sl_assert_ok(sl_op_manager_drain(manager));
    sl_op_manager_unwatch(manager, &heard.watch);
    sl_op_manager_destroy(manager);
}

static sl_status_t failing_op(const void *args, void *stream)
{
    sl_status_t status;

    (void)args;
    (void)stream;
    SL_FAIL(status, SL_ERR_NUMERIC, out, "not a number");
out:
    return status;
}

static void cancel_keeps_a_failure(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);

    (void)state;
    sl_assert_ok(submit(manager, failing_op, 0, NULL));
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_NUMERIC);
    share_set(manager, 0);
    sl_op_manager_cancel(manager);
    sl_assert_status(sl_op_manager_drain(manager), SL_ERR_NUMERIC);
    sl_assert_contains(sl_last_error(), "not a number");
    sl_op_manager_destroy(manager);
}

/* ---- waits of the gate ---- */

/* At 0.1 percent an op of 20 ms is followed by 20 s of idle time; on a busy
 * machine it may have had less of its core, but one that is said to be as long
 * waits for half of that even without a debt. */
static sl_op_manager_t *indebted_manager(void)
{
    const uint64_t none = 0;
    const sl_op_t second = {.fn = spin_op,
                            .cost_us = 20e3,
                            .args = &none,
                            .args_bytes = sizeof(none)};
    sl_op_manager_t *manager = ops_bed_manager(16);

    share_set(manager, 0.1);
    sl_assert_ok(submit(manager, spin_op, 20 * MS, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    sl_assert_ok(sl_op_manager_submit(manager, &second, NULL));
    sl_assert_status(sl_op_manager_wait(manager, 2, 10 * MS), SL_ERR_TIMEOUT);
    return manager;
}

static void a_change_of_share_acts_at_once(void **state)
{
    sl_op_manager_t *manager = indebted_manager();
    const uint64_t start_ns = sl_clock_ns();

    (void)state;
    share_set(manager, 100);
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(sl_clock_ns() - start_ns < 10 * S);
    sl_op_manager_destroy(manager);
}

static void destroy_ends_a_debt(void **state)
{
    sl_op_manager_t *manager = indebted_manager();
    const uint64_t start_ns = sl_clock_ns();

    (void)state;
    sl_op_manager_destroy(manager);
    assert_true(sl_clock_ns() - start_ns < 10 * S);
}

static void a_boundary_counts_for_antman_alone(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    uint64_t start_ns = sl_clock_ns();
    sl_share_law_t law = SL_SHARE_N_LAWS;

    (void)state;
    sl_op_manager_boundary(manager, 1e9);
    share_set(manager, 1);
    sl_op_manager_boundary(manager, 1e9);
    sl_assert_ok(submit(manager, spin_op, 0, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(sl_clock_ns() - start_ns < 10 * S);
    sl_assert_ok(sl_op_manager_share_set(manager, 50, SL_SHARE_ANTMAN));
    assert_true(sl_op_manager_share_get(manager, &law) == 50.0);
    assert_int_equal(law, SL_SHARE_ANTMAN);
    start_ns = sl_clock_ns();
    sl_op_manager_boundary(manager, 10e3);
    sl_assert_ok(submit(manager, spin_op, 0, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(sl_clock_ns() - start_ns >= 9 * MS);
    /* a lump of 1000 s ends when the share changes */
    start_ns = sl_clock_ns();
    sl_op_manager_boundary(manager, 1e9);
    sl_assert_ok(submit(manager, spin_op, 0, NULL));
    sl_assert_status(sl_op_manager_wait(manager, 3, 10 * MS), SL_ERR_TIMEOUT);
    sl_assert_ok(sl_op_manager_share_set(manager, 60, SL_SHARE_ANTMAN));
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(sl_clock_ns() - start_ns < 10 * S);
    sl_op_manager_destroy(manager);
}

static void bad_shares_are_refused(void **state)
{
    static const double shares[] = {-1, -1e-9, 100.5, 7000, INFINITY, NAN};
    sl_op_manager_t *manager = ops_bed_manager(16);
    size_t i;

    (void)state;
    share_set(manager, 40);
    for (i = 0; i < sizeof(shares) / sizeof(*shares); i++) {
        sl_assert_status(
            sl_op_manager_share_set(manager, shares[i], SL_SHARE_TOKEN_BUCKET),
            SL_ERR_INVALID_ARG);
    }
    sl_assert_status(sl_op_manager_share_set(manager, 50, SL_SHARE_N_LAWS),
                     SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), "bed:0: share of 50 percent by law 2");
    sl_assert_status(sl_op_manager_share_set(NULL, 50, SL_SHARE_TOKEN_BUCKET),
                     SL_ERR_INVALID_ARG);
    assert_true(sl_op_manager_share_get(manager, NULL) == 40.0);
    sl_op_manager_destroy(manager);
}

/* ---- what is counted ---- */

static void every_moment_is_counted_once(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    sl_op_stats_t stats;
    sl_op_stats_t later;
    gate_t gate = {0};

    (void)state;
    pause_ms(10);
    sl_op_manager_stats(manager, &stats);
    assert_true(stats.waiting_ns == stats.elapsed_ns);
    assert_true(stats.waiting_ns >= 10 * MS);
    ops_bed_hold(manager, &gate);
    pause_ms(10);
    sl_op_manager_stats(manager, &stats); /* an op that runs is seen */
    assert_true(stats.busy_ns >= 10 * MS);
    share_set(manager, 0);
    sl_assert_ok(submit(manager, spin_op, 0, NULL));
    ops_bed_open(&gate);
    sl_assert_ok(sl_op_manager_wait(manager, 1, UINT64_MAX));
    wait_for(throttled_ns(manager) >= 10 * MS);
    share_set(manager, 100);
    sl_assert_ok(sl_op_manager_drain(manager));
    sl_op_manager_stats(manager, &stats);
    assert_true(stats.busy_ns + stats.throttled_ns + stats.waiting_ns ==
                stats.elapsed_ns);
    pause_ms(10); /* idle again: it waits, and is not throttled any more */
    sl_op_manager_stats(manager, &later);
    assert_true(later.throttled_ns == stats.throttled_ns);
    assert_true(later.busy_ns == stats.busy_ns);
    assert_true(later.waiting_ns >= stats.waiting_ns + 10 * MS);
    sl_op_manager_destroy(manager);
}

#if !SL_TESTS_SCHEDULER_CUDA

static sl_status_t nap_op(const void *args, void *stream)
{
    const struct timespec nap = {.tv_nsec = (long)*(const uint64_t *)args};

    (void)stream;
    (void)nanosleep(&nap, NULL);
    return SL_OK;
}

/* A core that others had meanwhile is not charged; where the kernel has more
 * threads than the one that is asked, the time that passed is. */
static void the_charge_is_what_was_got_of_the_core(void **state)
{
    int n_threads;

    (void)state;
    for (n_threads = 1; n_threads <= 2; n_threads++) {
        sl_op_manager_t *manager = bound_manager(n_threads, NULL);
        sl_op_stats_t stats;

        share_set(manager, 90);
        sl_assert_ok(submit(manager, nap_op, 50 * MS, NULL));
        sl_assert_ok(sl_op_manager_drain(manager));
        sl_op_manager_stats(manager, &stats);
        assert_true(stats.busy_ns >= 50 * MS);
        if (n_threads == 1) {
            assert_true(stats.charged_ns < 25 * MS);
        } else {
            assert_true(stats.charged_ns == stats.busy_ns);
        }
        sl_op_manager_destroy(manager);
    }
}

static uint64_t charged_for_waits(void)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    sl_op_stats_t stats;
    int i;

    share_set(manager, 90);
    for (i = 0; i < 200; i++) {
        const struct timespec nap = {.tv_nsec = 100000};

        sl_assert_ok(submit(manager, spin_op, 0, NULL));
        sl_assert_ok(sl_op_manager_drain(manager));
        (void)nanosleep(&nap, NULL);
    }
    sl_op_manager_stats(manager, &stats);
    assert_true(stats.charged_ns > 0);
    sl_op_manager_destroy(manager);
    return stats.charged_ns;
}

/* A device looks for work for some microseconds before it sleeps: 20 us each
 * would be 4 ms, every time. What disturbs the thread makes an op dearer too,
 * but not every time. */
static void looking_for_work_is_not_charged(void **state)
{
    int tries = 0;

    (void)state;
    while (charged_for_waits() >= 2 * MS) {
        assert_true(++tries < 20);
    }
}

#endif

static void recent_means_follow_the_ops(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    sl_op_name_stats_t stats;
    int i, tries = 0;

    (void)state;
    sl_assert_ok(submit(manager, spin_op, 8 * MS, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    (void)sl_op_manager_name_stats(manager, &stats, 1);
    assert_true(stats.mean_ns == stats.busy_ns); /* of the first op */
    do { /* again when one of the last was disturbed */
        assert_true(tries++ < 20);
        for (i = 0; i < 60; i++) {
            sl_assert_ok(submit(manager, spin_op, 0, NULL));
        }
        sl_assert_ok(sl_op_manager_drain(manager));
        sl_op_manager_name_stats_reset(manager);
        (void)sl_op_manager_name_stats(manager, &stats, 1);
        assert_true(stats.mean_ns > 0); /* a reset keeps it */
    } while (stats.mean_ns >= 4 * MS);
    sl_op_manager_destroy(manager);
}

/* ---- shares of real time ---- */

/* A bucket beside the gate's, with what the statistics say that ops took. It
 * is never fuller than the gate's own: where time spills over, it loses more.
 */
typedef struct bucket {
    sl_op_stats_t last;
    double tokens_ns;
} bucket_t;

/* Until the last op has ended. */
static void bucket_look(bucket_t *bucket, const sl_op_stats_t *stats)
{
    const double flowed_ns =
        (double)(stats->elapsed_ns - bucket->last.elapsed_ns) *
        stats->share_percent / 100.0;
    const double used_ns =
        (double)(stats->charged_ns - bucket->last.charged_ns);

    bucket->tokens_ns += flowed_ns;
    if (bucket->tokens_ns > DEPTH_NS) {
        bucket->tokens_ns = DEPTH_NS;
    }
    bucket->tokens_ns -= used_ns;
    bucket->last = *stats;
}

static void run_one(sl_op_manager_t *manager, uint64_t op_ns, int is_synced,
                    bucket_t *bucket)
{
    const sl_op_t op = {.fn = spin_op,
                        .cost_us = (double)op_ns * 1e-3,
                        .args = &op_ns,
                        .args_bytes = sizeof(op_ns)};
    /* it may be that the charge of the last op comes in later than its end */
    const int is_owed = bucket->tokens_ns >= 3.0 * (double)op_ns + 1e6;
    const uint64_t held_ns = bucket->last.throttled_ns;
    sl_op_stats_t stats;

    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    if (is_synced) {
        sl_assert_ok(sl_op_manager_drain(manager));
        sl_op_manager_stats(manager, &stats);
        assert_time(!is_owed || stats.throttled_ns == held_ns);
        bucket_look(bucket, &stats);
    }
}

/* Keep the queue full of spinning ops for a while, and until one has run; the
 * charged part of the time, in percent. What can be asserted on any machine is
 * the upper bound: the rate, one bucketful and one op, with the interrupts that
 * it is charged; and where each op is waited for, that none is held that is
 * owed its time. */
static double feed(sl_op_manager_t *manager, uint64_t op_ns, uint64_t time_ns,
                   int is_synced)
{
    sl_op_stats_t before;
    sl_op_stats_t after;
    bucket_t bucket = {.tokens_ns = 0.0};
    double charged_ns;
    double elapsed_ns;

    sl_op_manager_stats(manager, &before);
    bucket.last = before;
    do {
        run_one(manager, op_ns, is_synced, &bucket);
        sl_op_manager_stats(manager, &after);
    } while (after.elapsed_ns - before.elapsed_ns < time_ns ||
             after.charged_ns == before.charged_ns);
    charged_ns = (double)(after.charged_ns - before.charged_ns);
    elapsed_ns = (double)(after.elapsed_ns - before.elapsed_ns);
    assert_time(charged_ns <= elapsed_ns * after.share_percent / 100.0 +
                                  DEPTH_NS + 2.0 * (double)op_ns + 1e6);
    return charged_ns / elapsed_ns * 100.0;
}

static void a_queue_that_is_full_gets_its_share_and_no_more(void **state)
{
    static const uint64_t ops_ns[] = {50000, 2 * MS};
    static const double shares[] = {20, 50, 80};
    int is_synced;
    size_t k;
    size_t i;

    (void)state;
    for (k = 0; k < 2; k++) {
        for (is_synced = 0; is_synced < 2; is_synced++) {
            for (i = 0; i < 3; i++) {
                sl_op_manager_t *manager = ops_bed_manager(64);

                share_set(manager, shares[i]);
                print_message("ops of %g ms, %s: asked %g %%, got %.1f %%\n",
                              (double)ops_ns[k] / 1e6,
                              is_synced ? "each waited for" : "queued ahead",
                              shares[i],
                              feed(manager, ops_ns[k], 250 * MS, is_synced));
                sl_op_manager_destroy(manager);
            }
        }
    }
}

typedef struct feeder {
    sl_op_manager_t *manager;
    int is_synced;
    double percent;
} feeder_t;

static void *feed_thread(void *arg)
{
    feeder_t *feeder = arg;

    feeder->percent = feed(feeder->manager, MS, 500 * MS, feeder->is_synced);
    return NULL;
}

static void feed_two(const double *shares, const int *core, int is_synced)
{
    pthread_t threads[2];
    feeder_t feeders[2];
    int i;

    for (i = 0; i < 2; i++) {
        feeders[i].manager = bound_manager(1, core);
        feeders[i].is_synced = is_synced;
        share_set(feeders[i].manager, shares[i]);
    }
    for (i = 0; i < 2; i++) {
        assert_int_equal(
            pthread_create(&threads[i], NULL, feed_thread, &feeders[i]), 0);
    }
    for (i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        print_message("device %d: asked %g %%, got %.1f %%\n", i, shares[i],
                      feeders[i].percent);
        sl_op_manager_destroy(feeders[i].manager);
    }
}

static void two_devices_have_a_share_each(void **state)
{
    static const double shares[] = {30, 60};

    (void)state;
    feed_two(shares, NULL, 0);
    feed_two(shares, NULL, 1);
}

/* Half and half of one core is all of it: what the other had is not charged,
 * though it runs in the middle of one's ops, and neither is held while it is
 * owed its time. The sum is in test_share.c, in virtual time. */
static void two_halves_of_a_core_are_whole(void **state)
{
    static const double shares[] = {50, 50};
    int core;

    (void)state;
    if (sl_device_cores(&core, 1) >= 1) {
        feed_two(shares, &core, 0);
        feed_two(shares, &core, 1);
    }
}

/* ---- many at once ---- */

static void *change_shares(void *arg)
{
    int i;

    for (i = 0; i < 300; i++) {
        sl_op_stats_t stats;

        (void)!sl_op_manager_share_set(arg, i * 37 % 101,
                                       i % 5 == 0 ? SL_SHARE_ANTMAN
                                                  : SL_SHARE_TOKEN_BUCKET);
        sl_op_manager_stats(arg, &stats);
        (void)sl_op_manager_share_get(arg, NULL);
        if (i % 10 == 0) {
            sl_op_manager_boundary(arg, 100);
            pause_ms(1);
        }
    }
    return NULL;
}

/* The changers leave some shares at 0 for a moment; at the end all may run. */
static void shares_change_while_ops_run(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    peer_t peer = {.manager = manager, .n_ops = 500};
    pthread_t threads[3];
    int i;

    (void)state;
    assert_int_equal(pthread_create(&threads[2], NULL, submit_and_drain, &peer),
                     0);
    for (i = 0; i < 2; i++) {
        assert_int_equal(
            pthread_create(&threads[i], NULL, change_shares, manager), 0);
    }
    for (i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    share_set(manager, 100);
    assert_int_equal(pthread_join(threads[2], NULL), 0);
    assert_int_equal(peer.status, SL_OK);
    sl_op_manager_destroy(manager);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_suspended_device_runs_nothing_and_resumes),
        sl_unit_test(a_running_op_ends_when_suspended),
        sl_unit_test(peers_of_a_suspended_device_wait),
        sl_unit_test(destroy_ends_a_suspension),
        sl_unit_test(cancel_ends_a_suspension_for_all),
        sl_unit_test(cancel_keeps_a_failure),
        sl_unit_test(a_change_of_share_acts_at_once),
        sl_unit_test(destroy_ends_a_debt),
        sl_unit_test(a_boundary_counts_for_antman_alone),
        sl_unit_test(bad_shares_are_refused),
        sl_unit_test(every_moment_is_counted_once),
#if !SL_TESTS_SCHEDULER_CUDA
        sl_unit_test(the_charge_is_what_was_got_of_the_core),
        sl_unit_test(looking_for_work_is_not_charged),
#endif
        sl_unit_test(recent_means_follow_the_ops),
        sl_unit_test(a_queue_that_is_full_gets_its_share_and_no_more),
        sl_unit_test(two_devices_have_a_share_each),
        sl_unit_test(two_halves_of_a_core_are_whole),
        sl_unit_test(shares_change_while_ops_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
