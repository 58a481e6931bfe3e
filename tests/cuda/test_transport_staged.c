/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of CUDA devices between ranks over the world's ports: staged through
 * pinned host memory, and by a link that knows device memory. */
#include "tests/cuda/aware_copy.h"
#include "tests/cuda/transport_tests.h"

enum {
    N_GPUS = 2 /* ranks share them */
};

/* On the processor too: it is a way like any other there. */
static void staged_works_on_cpu(void **state)
{
    bed_plan_t plan = transport_plan(both_ways(100), SL_TRANSPORT_STAGED);

    (void)state;
    plan.spec = "cpu:1";
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
    plan.transport = SL_TRANSPORT_AUTO;
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
}

static void aware_carries_all_sizes(void **state)
{
    bed_plan_t plan = transport_plan(both_ways(100), SL_TRANSPORT_CUDA_AWARE);

    (void)state;
    aware_set(1);
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
    set_chaos(&plan, 8);
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
    check_chaos(&plan, transport_ranks);
    aware_set(0);
    (void)sl_test_log_take();
}

int main(void)
{
    const struct CMUnitTest own[] = {TRANSPORT_TEST(staged_works_on_cpu),
                                     TRANSPORT_TEST(aware_carries_all_sizes)};

    return transport_tests_run(SL_TRANSPORT_STAGED, N_GPUS, own,
                               sizeof(own) / sizeof(*own));
}
