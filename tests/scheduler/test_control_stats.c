/* SPDX-License-Identifier: Apache-2.0 */
/* The figures in the status of a job that lives: of its ops, its memory and
 * its mini-batches. */
#include "tests/scheduler/control_bed.h"

enum {
    N_STEPS = 300, /* more than the 256 that count */
    N_WINDOW = 256
};
static const uint64_t MIB = UINT64_C(1) << 20;
static const uint64_t MS = UINT64_C(1000000);

static sl_status_t spin_op(const void *args, void *stream)
{
    const uint64_t end_ns = sl_clock_ns() + *(const uint64_t *)args;

    (void)stream;
    while (sl_clock_ns() < end_ns) {
    }
    return SL_OK;
}

static sl_op_manager_t *ops_of(control_bed_t *bed)
{
    return bed->devices->devices[0].ops;
}

static void submit(control_bed_t *bed, uint64_t ns)
{
    const sl_op_t op = {.fn = spin_op, .args = &ns, .args_bytes = sizeof(ns)};

    sl_assert_ok(sl_op_manager_submit(ops_of(bed), &op, NULL));
}

/* One that was filled after this call. */
static sl_control_status_t next_status(control_bed_t *bed)
{
    /* the next may be on its way */
    const uint64_t sequence = bed_status(bed).sequence + 2;

    bed_wait_for(bed_status(bed).sequence >= sequence ||
                 bed_boundary(bed) != 0);
    return bed_status(bed);
}

static uint64_t elapsed_us(control_bed_t *bed)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(ops_of(bed), &stats);
    return stats.elapsed_ns / 1000;
}

/* Busy, waiting and throttled are all of the time, as the manager counts it. */
static void check_sum(control_bed_t *bed)
{
    const uint64_t least_us = elapsed_us(bed);
    const sl_control_status_t status = next_status(bed);
    const sl_control_device_status_t *device = &status.devices[0];
    const uint64_t sum_us =
        device->busy_us + device->waiting_us + device->throttled_us;

    assert_in_range(sum_us, least_us - 3, elapsed_us(bed));
}

static void every_op_and_its_time_is_told(void **state)
{
    control_bed_t bed;
    sl_control_device_status_t before, after;
    int i;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    before = next_status(&bed).devices[0];
    for (i = 0; i < 10; i++) {
        submit(&bed, 2 * MS);
    }
    sl_assert_ok(sl_op_manager_drain(ops_of(&bed)));
    after = next_status(&bed).devices[0];
    assert_int_equal(after.n_ops - before.n_ops, 10);
    assert_true(after.busy_us - before.busy_us >= 20000);
    check_sum(&bed);

    before = next_status(&bed).devices[0]; /* idle now */
    bed_wait_for(next_status(&bed).devices[0].waiting_us >=
                 before.waiting_us + 10000);
    after = next_status(&bed).devices[0];
    assert_int_equal(after.busy_us, before.busy_us);
    assert_int_equal(after.n_ops, before.n_ops);
    assert_int_equal(after.throttled_us, before.throttled_us);

    sl_assert_ok(
        sl_op_manager_share_set(ops_of(&bed), 0.0, SL_SHARE_TOKEN_BUCKET));
    submit(&bed, 0);
    bed_wait_for(next_status(&bed).devices[0].throttled_us >=
                 before.throttled_us + 10000);
    assert_int_equal(next_status(&bed).devices[0].n_ops, before.n_ops);
    check_sum(&bed);
    sl_assert_ok(
        sl_op_manager_share_set(ops_of(&bed), 100.0, SL_SHARE_TOKEN_BUCKET));
    sl_assert_ok(sl_op_manager_drain(ops_of(&bed)));
    bed_close(&bed);
}

/* The queue is full at a share of 20 %: in 200 ms at most that, the 20 ms of
 * the bucket and one op. */
static void the_share_achieved_is_what_the_device_took(void **state)
{
    control_bed_t bed;
    double least = 100.0, most = 0.0;
    uint64_t last;
    int n = 0;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed.params.status_ms = 200;
    bed_open(&bed);
    bed_write_order(&bed, 1, 20.0, 0, 0);
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    last = bed_status(&bed).sequence;
    while (n < 4) {
        sl_control_status_t status;

        submit(&bed, MS);
        (void)bed_boundary(&bed);
        status = bed_status(&bed);
        if (status.sequence == last) {
            continue;
        }
        last = status.sequence;
        if (n++ == 0) {
            continue; /* of the time before, in part */
        }
        assert_true(bed_is_near(status.devices[0].share_asked, 20.0));
        least = status.devices[0].share_achieved < least
                    ? status.devices[0].share_achieved
                    : least;
        most = status.devices[0].share_achieved > most
                   ? status.devices[0].share_achieved
                   : most;
    }
    print_message("asked 20 %%, got %.1f to %.1f %%\n", least, most);
    assert_true(least > 0.0 && most <= 40.0);
    sl_assert_ok(
        sl_op_manager_share_set(ops_of(&bed), 100.0, SL_SHARE_TOKEN_BUCKET));
    sl_assert_ok(sl_op_manager_drain(ops_of(&bed)));
    (void)next_status(&bed);
    assert_true(next_status(&bed).devices[0].share_achieved == 0.0); /* idle */
    bed_close(&bed);
}

static void memory_is_told_by_class_and_place(void **state)
{
    control_bed_t bed;
    sl_mem_block_t *weights = NULL, *stash = NULL, *spilled = NULL;
    sl_control_device_status_t told;
    const sl_control_class_use_t *class_use;
    sl_mem_t *mem;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    mem = bed.devices->devices[0].mem;
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_PERSISTENT, 2 * MIB, &weights));
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 3 * MIB, &stash));
    (void)bed_boundary(&bed);
    bed_wait_for(next_status(&bed).step == bed.step);
    told = next_status(&bed).devices[0];
    class_use = told.classes;
    assert_int_equal(class_use[SL_MEM_CLASS_PERSISTENT].used_bytes, 2 * MIB);
    assert_int_equal(class_use[SL_MEM_CLASS_STASH].used_bytes, 3 * MIB);
    assert_int_equal(class_use[SL_MEM_CLASS_STASH].host_bytes, 0);
    assert_int_equal(class_use[SL_MEM_CLASS_STASH].n_spills, 0);
    assert_int_equal(told.used_bytes, 5 * MIB);
    assert_int_equal(told.host_used_bytes, 0);
    assert_in_range(told.held_bytes, 5 * MIB, BED_CAPACITY);

    /* a limit that has no room for the next block: it goes to the host */
    bed_write_order(&bed, 1, -1.0, 0, told.held_bytes);
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    (void)bed_boundary(&bed);
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, (size_t)BED_CAPACITY / 2,
                              &spilled));
    told = next_status(&bed).devices[0];
    assert_int_equal(class_use[SL_MEM_CLASS_STASH].host_bytes,
                     BED_CAPACITY / 2);
    assert_int_equal(class_use[SL_MEM_CLASS_STASH].used_bytes,
                     3 * MIB + BED_CAPACITY / 2);
    assert_int_equal(class_use[SL_MEM_CLASS_STASH].n_spills, 1);
    assert_int_equal(class_use[SL_MEM_CLASS_PERSISTENT].host_bytes, 0);
    assert_int_equal(told.host_used_bytes, BED_CAPACITY / 2);
    sl_mem_release(spilled);
    sl_mem_release(stash);
    sl_mem_release(weights);
    bed_close(&bed);
}

/* ---- mini-batches ---- */

/* Each of 300 times once, in no order; the last 256 count. */
static double step_us(int i)
{
    return 10.0 * (i * 37 % N_STEPS + 1);
}

/* The k-th smallest (from 1) of the last 256, by counting. */
static double kth_us(int k)
{
    int i, j;

    for (i = N_STEPS - N_WINDOW; i < N_STEPS; i++) {
        int n_below = 0;

        for (j = N_STEPS - N_WINDOW; j < N_STEPS; j++) {
            n_below += step_us(j) < step_us(i);
        }
        if (n_below == k - 1) {
            return step_us(i);
        }
    }
    return -1.0;
}

static void median_and_p99_are_of_the_last_256(void **state)
{
    control_bed_t bed;
    sl_control_status_t status;
    double sum_us = 0.0;
    int i;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    for (i = 0; i < N_STEPS; i++) {
        const sl_control_step_t step = {
            .step = (uint64_t)i + 1, .step_us = step_us(i), .n_units = 2.0};

        assert_false(sl_control_boundary(bed.control, &step));
    }
    bed_wait_for(bed_status(&bed).step == N_STEPS);
    status = bed_status(&bed);
    assert_true(
        bed_is_near(status.median_us,
                    0.5 * (kth_us(N_WINDOW / 2) + kth_us(N_WINDOW / 2 + 1))));
    assert_true(bed_is_near(status.p99_us, kth_us(254))); /* 0.99 x 256 */
    assert_true(status.p99_us > status.median_us + 1000.0);
    assert_true(bed_is_near(status.last_us, step_us(N_STEPS - 1)));
    assert_int_equal(status.n_recent, SL_CONTROL_RECENT);
    for (i = 0; i < SL_CONTROL_RECENT; i++) {
        const double us = step_us(N_STEPS - SL_CONTROL_RECENT + i);

        assert_true(bed_is_near(status.recent_us[i], us));
        sum_us += us;
    }
    assert_true(bed_is_near(status.units_per_s,
                            2.0 * SL_CONTROL_RECENT / sum_us * 1e6));
    bed_close(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_op_and_its_time_is_told),
        sl_unit_test(the_share_achieved_is_what_the_device_took),
        sl_unit_test(memory_is_told_by_class_and_place),
        sl_unit_test(median_and_p99_are_of_the_last_256),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
