/* SPDX-License-Identifier: Apache-2.0 */
/* Names, statistics by name, spans. */
#include <pthread.h>
#include <stdio.h>

#include "tests/scheduler/ops_bed.h"

static sl_status_t spin_op(const void *args, void *stream)
{
    const uint64_t end_ns = sl_clock_ns() + *(const uint64_t *)args;

    (void)stream;
    while (sl_clock_ns() < end_ns) {
    }
    return SL_OK;
}

static void submit_spin(sl_op_manager_t *manager, uint32_t name_id, uint64_t ns,
                        sl_op_span_t *span)
{
    const sl_op_t op = {.fn = spin_op,
                        .name_id = name_id,
                        .span = span,
                        .args = &ns,
                        .args_bytes = sizeof(ns)};

    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
}

static void names_have_one_id_each(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    sl_op_name_stats_t stats[4];
    char name[32] = "conv.fwd";
    const uint32_t conv = sl_op_manager_name(manager, name);
    const uint32_t linear = sl_op_manager_name(manager, "linear.fwd");
    int i;

    (void)state;
    (void)snprintf(name, sizeof(name), "gone"); /* the manager has a copy */
    assert_int_equal(conv, 1);
    assert_int_equal(linear, 2);
    assert_int_equal(sl_op_manager_name(manager, "conv.fwd"), conv);
    assert_int_equal(sl_op_manager_name(manager, "other"), 0);
    assert_int_equal(sl_op_manager_name(manager, NULL), 0);
    assert_int_equal(sl_op_manager_name(NULL, "x"), 0);
    assert_int_equal(sl_op_manager_name_stats(manager, NULL, 0), 3);
    assert_int_equal(sl_op_manager_name_stats(manager, stats, 4), 3);
    assert_string_equal(stats[0].name, "other");
    assert_string_equal(stats[1].name, "conv.fwd");
    assert_string_equal(stats[2].name, "linear.fwd");
    /* when all are taken, more are "other" */
    for (i = 3; i < SL_OP_MAX_NAMES; i++) {
        (void)snprintf(name, sizeof(name), "op%d", i);
        assert_int_equal(sl_op_manager_name(manager, name), i);
    }
    assert_int_equal(sl_op_manager_name(manager, "one more"), 0);
    assert_int_equal(sl_op_manager_name(manager, "op77"), 77);
    sl_op_manager_destroy(manager);
}

static void time_is_counted_by_name(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    const uint32_t slow = sl_op_manager_name(manager, "slow");
    sl_op_name_stats_t stats[3];
    sl_op_stats_t total;
    int i;

    (void)state;
    for (i = 0; i < 3; i++) {
        submit_spin(manager, slow, (uint64_t)(i + 1) * MS, NULL);
        submit_spin(manager, 0, 0, NULL);
    }
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_int_equal(sl_op_manager_name_stats(manager, stats, 3), 2);
    assert_int_equal(stats[1].n_ops, 3);
    assert_time(stats[1].busy_ns >= 6 * MS);
    assert_time(stats[1].min_ns >= MS);
    assert_true(stats[1].min_ns <= stats[1].busy_ns / 3);
    assert_int_equal(stats[0].n_ops, 3);
    sl_op_manager_stats(manager, &total);
    assert_true(total.busy_ns == stats[0].busy_ns + stats[1].busy_ns);

    sl_op_manager_name_stats_reset(manager);
    (void)sl_op_manager_name_stats(manager, stats, 3);
    assert_int_equal(stats[1].n_ops, 0);
    assert_int_equal(stats[1].busy_ns, 0);
    assert_true(stats[1].min_ns == UINT64_MAX);
    submit_spin(manager, slow, 2 * MS, NULL);
    sl_assert_ok(sl_op_manager_drain(manager));
    (void)sl_op_manager_name_stats(manager, stats, 3);
    assert_int_equal(stats[1].n_ops, 1);
    assert_true(stats[1].min_ns == stats[1].busy_ns);
    assert_time(stats[1].busy_ns >= 2 * MS);
    sl_op_manager_destroy(manager);
}

static void a_span_covers_its_ops(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    sl_op_span_t span = {0};
    const uint64_t before_ns = sl_clock_ns();

    (void)state;
    submit_spin(manager, 0, MS, &span);
    submit_spin(manager, 0, 3 * MS, NULL); /* between, but not of it */
    submit_spin(manager, 0, MS, &span);
    sl_assert_ok(sl_op_manager_drain(manager));
    assert_true(span.start_ns >= before_ns);
    assert_true(span.end_ns <= sl_clock_ns());
    assert_time(span.end_ns - span.start_ns >= 5 * MS);
    assert_time(span.busy_ns >= 2 * MS);
    assert_time(span.busy_ns + 3 * MS <= span.end_ns - span.start_ns);
    sl_op_manager_destroy(manager);
}

/* Readers, resets and new names while ops run. */
static void *read_and_reset(void *arg)
{
    sl_op_manager_t *manager = arg;
    int i;

    for (i = 0; i < 200; i++) {
        sl_op_name_stats_t stats[8];
        sl_op_stats_t total;
        char name[16];

        (void)sl_op_manager_name_stats(manager, stats, 8);
        sl_op_manager_stats(manager, &total);
        if (i % 10 == 0) {
            sl_op_manager_name_stats_reset(manager);
        }
        (void)snprintf(name, sizeof(name), "n%d", i);
        (void)sl_op_manager_name(manager, name);
    }
    return NULL;
}

static void statistics_may_be_read_meanwhile(void **state)
{
    sl_op_manager_t *manager = ops_bed_manager(16);
    const uint32_t id = sl_op_manager_name(manager, "n0");
    pthread_t thread;
    int i;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, read_and_reset, manager), 0);
    for (i = 0; i < 3000; i++) {
        submit_spin(manager, id, 0, NULL);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    sl_assert_ok(sl_op_manager_drain(manager));
    sl_op_manager_destroy(manager);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(names_have_one_id_each),
        sl_unit_test(time_is_counted_by_name),
        sl_unit_test(a_span_covers_its_ops),
        sl_unit_test(statistics_may_be_read_meanwhile),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
