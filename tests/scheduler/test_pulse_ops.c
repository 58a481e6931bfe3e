/* SPDX-License-Identifier: Apache-2.0 */
/* Two running op managers, one of which follows the pulse of the other. Only
 * order and counts are asserted, with room for a busy machine. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "scheduler/pulse.h"
#include "tests/scheduler/ops_bed.h"

enum {
    N_BURSTS = 60,
    OPS_A_REST = 8, /* of the guest, at least */
    GUEST_OPS_MAX = 10000000
};

#define FLOOR 0.01

typedef struct bed {
    sl_op_manager_t *host, *guest;
    sl_pulse_map_t *page;
} bed_t;

static sl_yield_set_t *make_set(const bed_t *bed)
{
    sl_yield_set_t *set = sl_yield_set_create();
    const sl_pulse_map_t *map = NULL;
    sl_pulse_view_t *view;
    int n_slots = 0;
    const int fd = open(sl_test_directory(), O_RDONLY | O_DIRECTORY);

    (void)bed;
    assert_non_null(set);
    sl_assert_ok(sl_pulse_open(fd, &map, &n_slots));
    view = sl_pulse_view_create(map);
    assert_non_null(view);
    sl_yield_set_add(set, view, 0);
    sl_pulse_view_release(view);
    (void)close(fd);
    return set;
}

static void bed_init(bed_t *bed)
{
    const int fd = open(sl_test_directory(), O_RDONLY | O_DIRECTORY);

    bed->host = ops_bed_manager(16);
    bed->guest = ops_bed_manager(16);
    sl_assert_ok(sl_pulse_create(fd, 1, &bed->page));
    (void)close(fd);
    sl_op_manager_pulse_set(bed->host, &bed->page->slots[0]);
}

static void bed_free(bed_t *bed)
{
    sl_op_manager_pulse_set(bed->host, NULL);
    sl_op_manager_destroy(bed->host);
    sl_op_manager_destroy(bed->guest);
    sl_pulse_unmap(bed->page);
}

static void pause_us(long us)
{
    const struct timespec nap = {.tv_nsec = us * 1000};

    (void)nanosleep(&nap, NULL);
}

static int is_told_busy(const bed_t *bed)
{
    return atomic_load(&bed->page->slots[0].until_ns) == 0;
}

/* Until it holds; a bound, not a measure. */
#define wait_for(condition)                                                    \
    do {                                                                       \
        int tries = 0;                                                         \
        while (!(condition) && tries++ < 20000) {                              \
            pause_us(500);                                                     \
        }                                                                      \
        assert_true(condition);                                                \
    } while (0)

/* ---- ops ---- */

/* While an op of the host runs. Between two of them it may be idle: whoever
 * hands them to it needs a core, too. */
static atomic_int is_host_busy;
static atomic_int n_inside; /* guest's ops that started while it was */
static atomic_int n_guest;

static sl_status_t host_op(const void *args, void *stream)
{
    const uint64_t end_ns = sl_clock_ns() + 2 * MS;

    (void)args;
    (void)stream;
    atomic_store(&is_host_busy, 1);
    while (sl_clock_ns() < end_ns) {
    }
    atomic_store(&is_host_busy, 0);
    return SL_OK;
}

static uint64_t throttled_ns(const sl_op_manager_t *manager)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(manager, &stats);
    return stats.throttled_ns;
}

/* However busy the machine is: until the guest has waited a little. */
static sl_status_t host_op_seen(const void *args, void *stream)
{
    const sl_op_manager_t *guest = *(sl_op_manager_t *const *)args;
    const uint64_t limit_ns = sl_clock_ns() + 10000 * MS;
    const uint64_t before_ns = throttled_ns(guest);

    (void)host_op(NULL, stream);
    atomic_store(&is_host_busy, 1);
    while (throttled_ns(guest) < before_ns + MS) {
        if (sl_clock_ns() > limit_ns) {
            sl_last_error_set("the guest never waits");
            return SL_ERR_TIMEOUT;
        }
        pause_us(100);
    }
    atomic_store(&is_host_busy, 0);
    return SL_OK;
}

static sl_status_t host_last(const void *args, void *stream)
{
    (void)args;
    (void)stream;
    return SL_OK;
}

static sl_status_t guest_op(const void *args, void *stream)
{
    const uint64_t end_ns = sl_clock_ns() + MS / 10;

    (void)args;
    (void)stream;
    (void)atomic_fetch_add(&n_inside, atomic_load(&is_host_busy));
    (void)atomic_fetch_add(&n_guest, 1);
    while (sl_clock_ns() < end_ns) {
    }
    return SL_OK;
}

static sl_status_t submit(sl_op_manager_t *manager, sl_op_fn fn, double cost_us,
                          uint64_t *ticket_p)
{
    const sl_op_t op = {.fn = fn, .cost_us = cost_us};

    return sl_op_manager_submit(manager, &op, ticket_p);
}

static atomic_int is_over;

static void *feed_guest(void *arg)
{
    int i;

    for (i = 0; i < GUEST_OPS_MAX && !atomic_load(&is_over); i++) {
        if (submit(arg, guest_op, 100.0, NULL) < 0) {
            break;
        }
    }
    return NULL;
}

/* The host works for 4 ms, or until the guest was seen to wait, and rests for
 * 4 ms, or until the guest was seen to run. @return time that it worked */
static uint64_t run_both(bed_t *bed, sl_op_fn second)
{
    const sl_op_t last = {
        .fn = second, .args = &bed->guest, .args_bytes = sizeof(bed->guest)};
    uint64_t ticket = 0, busy_ns = 0;
    pthread_t thread;
    int i;

    atomic_store(&is_over, 0);
    atomic_store(&n_inside, 0);
    atomic_store(&n_guest, 0);
    assert_int_equal(pthread_create(&thread, NULL, feed_guest, bed->guest), 0);
    for (i = 0; i < N_BURSTS; i++) {
        const uint64_t start_ns = sl_clock_ns();
        int n_before;

        sl_op_manager_mark(bed->host, 5);
        sl_assert_ok(submit(bed->host, host_op, 0.0, NULL));
        sl_assert_ok(sl_op_manager_submit(bed->host, &last, NULL));
        sl_assert_ok(submit(bed->host, host_last, 0.0, &ticket));
        sl_assert_ok(sl_op_manager_wait(bed->host, ticket, UINT64_MAX));
        busy_ns += sl_clock_ns() - start_ns;
        n_before = atomic_load(&n_guest);
        pause_us(4000);
        wait_for(atomic_load(&n_guest) >= n_before + OPS_A_REST);
    }
    atomic_store(&is_over, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    sl_assert_ok(sl_op_manager_drain(bed->guest));
    return busy_ns;
}

static void a_guest_runs_in_the_idle_times_of_its_host(void **state)
{
    sl_op_stats_t stats;
    double n_floor;
    bed_t bed;

    (void)state;
    bed_init(&bed);
    sl_op_manager_yield_set(bed.guest, make_set(&bed), FLOOR);
    /* ops of 0.1 ms */
    n_floor = (double)run_both(&bed, host_op_seen) * FLOOR / 0.1e6;
    print_message("%d of %d ops beside the host's, %.0f of them by the floor\n",
                  atomic_load(&n_inside), atomic_load(&n_guest), n_floor);
    /* and one that had begun to start when the host came */
    assert_true(atomic_load(&n_inside) <= N_BURSTS + (int)n_floor + 1);
    sl_op_manager_stats(bed.guest, &stats);
    assert_true(stats.throttled_ns >= N_BURSTS * MS);
    assert_true(stats.busy_ns + stats.throttled_ns + stats.waiting_ns <=
                stats.elapsed_ns + 1);
    bed_free(&bed);
}

/* ---- what a host tells ---- */

static void a_host_tells_when_it_is_busy(void **state)
{
    gate_t gate = {0};
    bed_t bed;

    (void)state;
    bed_init(&bed);
    wait_for(!is_told_busy(&bed)); /* nothing to do from the start */
    ops_bed_hold(bed.host, &gate);
    assert_true(is_told_busy(&bed));
    ops_bed_open(&gate);
    wait_for(!is_told_busy(&bed));
    assert_true(atomic_load(&bed.page->slots[0].n_idles) >= 2);
    bed_free(&bed);
}

static void a_page_that_comes_while_it_works_says_so(void **state)
{
    gate_t gate = {0};
    bed_t bed;

    (void)state;
    bed_init(&bed);
    sl_op_manager_pulse_set(bed.host, NULL);
    ops_bed_hold(bed.host, &gate);
    assert_false(is_told_busy(&bed));
    sl_op_manager_pulse_set(bed.host, &bed.page->slots[0]);
    assert_true(is_told_busy(&bed));
    sl_op_manager_pulse_set(bed.host, NULL); /* and leaves nobody waiting */
    assert_false(is_told_busy(&bed));
    ops_bed_open(&gate);
    bed_free(&bed);
}

/* A host that is held back itself leaves the device to its guests. */
static void a_throttled_host_is_idle(void **state)
{
    uint64_t ticket = 0;
    bed_t bed;

    (void)state;
    bed_init(&bed);
    sl_assert_ok(sl_op_manager_share_set(bed.host, 0, SL_SHARE_TOKEN_BUCKET));
    sl_assert_ok(submit(bed.host, host_last, 0.0, &ticket));
    wait_for(atomic_load(&bed.page->slots[0].n_idles) >= 2);
    wait_for(atomic_load(&bed.page->slots[0].until_ns) == SL_PULSE_UNKNOWN);
    sl_assert_ok(submit(bed.guest, guest_op, 0.0, &ticket));
    sl_assert_ok(sl_op_manager_wait(bed.guest, ticket, UINT64_MAX));
    sl_assert_ok(sl_op_manager_share_set(bed.host, 100, SL_SHARE_TOKEN_BUCKET));
    sl_assert_ok(sl_op_manager_drain(bed.host));
    bed_free(&bed);
}

/* ---- guests that end, and change whom they follow ---- */

/* An op that is said to take so long that its floor does not come. */
static uint64_t submit_blocked(bed_t *bed, gate_t *gate)
{
    uint64_t ticket = 0;

    ops_bed_hold(bed->host, gate);
    sl_op_manager_yield_set(bed->guest, make_set(bed), 0.01);
    sl_assert_ok(submit(bed->guest, guest_op, 1e6, &ticket));
    sl_assert_status(sl_op_manager_wait(bed->guest, ticket, 30 * MS),
                     SL_ERR_TIMEOUT);
    return ticket;
}

static void a_guest_goes_on_when_it_is_released(void **state)
{
    gate_t gate = {0};
    uint64_t ticket;
    bed_t bed;

    (void)state;
    bed_init(&bed);
    ticket = submit_blocked(&bed, &gate);
    sl_op_manager_yield_set(bed.guest, NULL, 0.01);
    sl_assert_ok(sl_op_manager_wait(bed.guest, ticket, UINT64_MAX));
    sl_assert_ok(submit(bed.guest, guest_op, 1e6, &ticket));
    sl_assert_ok(sl_op_manager_wait(bed.guest, ticket, UINT64_MAX));
    ops_bed_open(&gate);
    bed_free(&bed);
}

static void a_guest_goes_on_when_its_host_gets_idle(void **state)
{
    gate_t gate = {0};
    uint64_t ticket;
    bed_t bed;

    (void)state;
    bed_init(&bed);
    ticket = submit_blocked(&bed, &gate);
    ops_bed_open(&gate);
    sl_assert_ok(sl_op_manager_wait(bed.guest, ticket, UINT64_MAX));
    bed_free(&bed);
}

static void a_waiting_guest_can_be_canceled_and_destroyed(void **state)
{
    gate_t gate = {0};
    uint64_t ticket;
    bed_t bed;

    (void)state;
    bed_init(&bed);
    atomic_store(&n_guest, 0);
    ticket = submit_blocked(&bed, &gate);
    sl_op_manager_cancel(bed.guest);
    sl_assert_status(sl_op_manager_wait(bed.guest, ticket, UINT64_MAX),
                     SL_ERR_CANCELED);
    assert_int_equal(atomic_load(&n_guest), 0);
    sl_op_manager_recover(bed.guest);
    /* below its share too: what was taken out for the op is given back */
    sl_assert_ok(sl_op_manager_share_set(bed.guest, 50, SL_SHARE_TOKEN_BUCKET));
    sl_assert_ok(submit(bed.guest, guest_op, 1e6, &ticket));
    sl_assert_status(sl_op_manager_wait(bed.guest, ticket, 30 * MS),
                     SL_ERR_TIMEOUT);
    sl_op_manager_cancel(bed.guest);
    (void)!sl_op_manager_drain(bed.guest);
    sl_op_manager_recover(bed.guest);
    sl_assert_ok(submit(bed.guest, guest_op, 1e6, &ticket));
    sl_op_manager_destroy(bed.guest); /* runs what is queued */
    assert_int_equal(atomic_load(&n_guest), 1);
    bed.guest = ops_bed_manager(16);
    ops_bed_open(&gate);
    bed_free(&bed);
}

static void *change_set(void *arg)
{
    bed_t *bed = arg;
    int i;

    for (i = 0; i < 300; i++) {
        sl_op_manager_yield_set(bed->guest, i % 3 == 0 ? NULL : make_set(bed),
                                0.01);
        pause_us(200);
    }
    return NULL;
}

static void sets_may_change_at_any_time(void **state)
{
    pthread_t thread;
    bed_t bed;

    (void)state;
    bed_init(&bed);
    assert_int_equal(pthread_create(&thread, NULL, change_set, &bed), 0);
    (void)run_both(&bed, host_op);
    assert_int_equal(pthread_join(thread, NULL), 0);
    bed_free(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_guest_runs_in_the_idle_times_of_its_host),
        sl_unit_test(a_host_tells_when_it_is_busy),
        sl_unit_test(a_page_that_comes_while_it_works_says_so),
        sl_unit_test(a_throttled_host_is_idle),
        sl_unit_test(a_guest_goes_on_when_it_is_released),
        sl_unit_test(a_guest_goes_on_when_its_host_gets_idle),
        sl_unit_test(a_waiting_guest_can_be_canceled_and_destroyed),
        sl_unit_test(sets_may_change_at_any_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
