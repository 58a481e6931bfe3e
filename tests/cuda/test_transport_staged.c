/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of CUDA devices between ranks over the world's ports: staged through
 * pinned host memory, and by a link that knows device memory. */
#include "tests/cuda/aware_copy.h"
#include "tests/cuda/transport_bed.h"
#include "tests/cuda/transport_tests.h"
#include "tests/support/sl_test.h"

static bed_rank_t ranks[BED_RANKS_MAX];

static void set_transport(bed_plan_t *plan)
{
    plan->spec = "cuda:1";
    plan->transport = SL_TRANSPORT_STAGED;
}

static void staged_carries_all_sizes(void **state)
{
    bed_plan_t plan = both_ways(300);

    (void)state;
    set_transport(&plan);
    assert_int_equal(bed_run(&plan, ranks), 0);
}

static void staged_carries_many_small_messages(void **state)
{
    bed_plan_t plan = many_small(10000);

    (void)state;
    set_transport(&plan);
    assert_int_equal(bed_run(&plan, ranks), 0);
}

static void staged_carries_one_message(void **state)
{
    bed_plan_t plan = both_ways(1);

    (void)state;
    set_transport(&plan);
    plan.n_rounds = 5;
    assert_int_equal(bed_run(&plan, ranks), 0);
}

static void staged_connects_many_ranks(void **state)
{
    bed_plan_t plan = ring(4, 40);

    (void)state;
    set_transport(&plan);
    assert_int_equal(bed_run(&plan, ranks), 0);
}

static void staged_recovers(void **state)
{
    bed_plan_t plan = both_ways(60);

    (void)state;
    set_transport(&plan);
    set_chaos(&plan, 12);
    assert_int_equal(bed_run(&plan, ranks), 0);
    check_chaos(&plan, ranks);
    (void)sl_test_log_take();
}

static void staged_names_a_rank_that_hangs(void **state)
{
    bed_plan_t plan = both_ways(60);

    (void)state;
    set_transport(&plan);
    set_hang(&plan);
    assert_int_equal(bed_run(&plan, ranks), 0);
    sl_assert_contains(ranks[0].detail, "rank 1");
    sl_assert_contains(ranks[0].detail, "has not answered");
    (void)sl_test_log_take();
}

/* On the processor too: it is a way like any other there. */
static void staged_works_on_cpu(void **state)
{
    bed_plan_t plan = both_ways(100);

    (void)state;
    set_transport(&plan);
    plan.spec = "cpu:1";
    assert_int_equal(bed_run(&plan, ranks), 0);
    plan.transport = SL_TRANSPORT_AUTO;
    assert_int_equal(bed_run(&plan, ranks), 0);
}

/* ---- cuda-aware ---- */

static void aware_carries_all_sizes(void **state)
{
    bed_plan_t plan = both_ways(100);

    (void)state;
    set_transport(&plan);
    plan.transport = SL_TRANSPORT_CUDA_AWARE;
    aware_set(1);
    assert_int_equal(bed_run(&plan, ranks), 0);
    set_chaos(&plan, 8);
    assert_int_equal(bed_run(&plan, ranks), 0);
    check_chaos(&plan, ranks);
    aware_set(0);
    (void)sl_test_log_take();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(staged_carries_all_sizes),
        sl_unit_test(staged_carries_many_small_messages),
        sl_unit_test(staged_carries_one_message),
        sl_unit_test(staged_connects_many_ranks),
        sl_unit_test(staged_recovers),
        sl_unit_test(staged_names_a_rank_that_hangs),
        sl_unit_test(staged_works_on_cpu),
        sl_unit_test(aware_carries_all_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
