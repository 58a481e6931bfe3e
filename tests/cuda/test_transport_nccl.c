/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors between ranks by NCCL, over its stand-in. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <string.h>
#include <time.h>

#include "standin.h"
#include "tests/cuda/transport_bed.h"
#include "tests/cuda/transport_tests.h"
#include "tests/support/sl_test.h"

static bed_rank_t ranks[BED_RANKS_MAX];

static int setup(void **state)
{
    standin_reset();
    standin_set_devices(BED_RANKS_MAX);
    return sl_test_setup(state);
}

static int teardown(void **state)
{
    const int n_reports = standin_n_reports();
    const int n_comms = standin_n_communicators();
    const int n_live = standin_n_live();

    if (n_reports > 0) {
        (void)fprintf(stderr, "%s\n", standin_report(0));
    }
    if (n_comms != 0 || n_live != 0) {
        (void)fprintf(stderr, "live: %d communicators, %d others\n", n_comms,
                      n_live);
    }
    standin_reset();
    return sl_test_teardown(state) || n_reports > 0 || n_comms != 0 ||
           n_live != 0;
}

static void set_transport(bed_plan_t *plan)
{
    plan->spec = "cuda:1";
    plan->transport = SL_TRANSPORT_NCCL;
}

static void all_sizes(void **state)
{
    bed_plan_t plan = both_ways(300);

    (void)state;
    set_transport(&plan);
    assert_int_equal(bed_run(&plan, ranks), 0);
    assert_int_equal(ranks[0].n_made, 2);
}

static void many_small_messages(void **state)
{
    bed_plan_t plan = many_small(10000);

    (void)state;
    set_transport(&plan);
    assert_int_equal(bed_run(&plan, ranks), 0);
}

static void one_message(void **state)
{
    bed_plan_t plan = both_ways(1);

    (void)state;
    set_transport(&plan);
    plan.n_rounds = 5;
    assert_int_equal(bed_run(&plan, ranks), 0);
}

static void many_ranks(void **state)
{
    bed_plan_t plan = ring(4, 40);

    (void)state;
    set_transport(&plan);
    assert_int_equal(bed_run(&plan, ranks), 0);
    assert_int_equal(ranks[0].n_made, 4);
}

/* Late streams: what is written and what is overwritten must be ordered. */
static void late_streams(void **state)
{
    bed_plan_t plan = both_ways(20);

    (void)state;
    set_transport(&plan);
    standin_set_delay_us(300);
    assert_int_equal(bed_run(&plan, ranks), 0);
}

/* What comes while the driver looks at NCCL is found after it, though nothing
 * comes later. */
static void slow_looks(void **state)
{
    bed_plan_t plan = many_small(2);

    (void)state;
    set_transport(&plan);
    plan.n_rounds = 60;
    plan.stuck_ns = UINT64_C(20000000000);
    standin_set_slow(STANDIN_ncclCommGetAsyncError, 20000);
    assert_int_equal(bed_run(&plan, ranks), 0);
}

/* Lanes on which both sides have queued the same live on; others are made
 * anew. */
static void recovery(void **state)
{
    bed_plan_t plan = both_ways(60);

    (void)state;
    set_transport(&plan);
    set_chaos(&plan, 16);
    assert_int_equal(bed_run(&plan, ranks), 0);
    check_chaos(&plan, ranks);
    assert_int_equal(ranks[0].n_made, ranks[1].n_made);
    (void)sl_test_log_take();
}

static void recovery_of_many(void **state)
{
    bed_plan_t plan = ring(3, 40);

    (void)state;
    set_transport(&plan);
    set_chaos(&plan, 12);
    assert_int_equal(bed_run(&plan, ranks), 0);
    check_chaos(&plan, ranks);
    (void)sl_test_log_take();
}

static void a_rank_that_hangs(void **state)
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

/* ---- failures of NCCL ---- */

typedef struct injection {
    standin_entry_t entry;
    ncclResult_t error;
    standin_failure_t failure;
    uint64_t n;
    const char *text; /* of the message */
} injection_t;

static void inject(struct bed_rank *rank, int round, int is_middle)
{
    const injection_t *injection = rank->plan->args;

    if (rank->rank == 0 && round == 1 && !is_middle) {
        standin_fail(injection->entry, injection->n,
                     (cudaError_t)injection->error, injection->failure);
    }
}

/* One clear message on all ranks, and the next round is well. */
static void check_injection(const injection_t *injection)
{
    bed_plan_t plan = both_ways(40);
    int r;

    set_transport(&plan);
    plan.n_rounds = 4;
    plan.hook = inject;
    plan.args = injection;
    plan.expects_failure = 1;
    assert_int_equal(bed_run(&plan, ranks), 0);
    assert_true(standin_has_failed());
    for (r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].n_failed, 1);
        assert_false(ranks[r].is_over);
        sl_assert_contains(ranks[r].detail, injection->text);
    }
    (void)sl_test_log_take();
}

static void every_call_may_fail(void **state)
{
    const injection_t injections[] = {
        {STANDIN_ncclSend, ncclInternalError, STANDIN_FAIL_CALL, 3, "ncclSend"},
        {STANDIN_ncclRecv, ncclInternalError, STANDIN_FAIL_CALL, 5, "ncclRecv"},
        {STANDIN_ncclGroupStart, ncclInternalError, STANDIN_FAIL_CALL, 2,
         "ncclGroupStart"},
        {STANDIN_ncclGroupEnd, ncclUnhandledCudaError, STANDIN_FAIL_CALL, 7,
         "ncclGroupEnd"},
        {STANDIN_ncclCommGetAsyncError, ncclInternalError, STANDIN_FAIL_CALL, 3,
         "ncclCommGetAsyncError"},
        {STANDIN_ncclSend, ncclInternalError, STANDIN_FAIL_RUN, 4,
         "internal error"},
        {STANDIN_ncclRecv, ncclUnhandledCudaError, STANDIN_FAIL_RUN, 4,
         "unhandled cuda error"}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(injections) / sizeof(*injections); i++) {
        check_injection(&injections[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(many_small_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(one_message, setup, teardown),
        cmocka_unit_test_setup_teardown(many_ranks, setup, teardown),
        cmocka_unit_test_setup_teardown(late_streams, setup, teardown),
        cmocka_unit_test_setup_teardown(slow_looks, setup, teardown),
        cmocka_unit_test_setup_teardown(recovery, setup, teardown),
        cmocka_unit_test_setup_teardown(recovery_of_many, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rank_that_hangs, setup, teardown),
        cmocka_unit_test_setup_teardown(every_call_may_fail, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
