/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors between ranks by NCCL, over its stand-in. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <string.h>

#include "engine/nccl/nccl.h"
#include "standin.h"
#include "tests/cuda/transport_tests.h"

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
    bed_plan_t plan = transport_plan(both_ways(40), SL_TRANSPORT_NCCL);
    const bed_rank_t *ranks = transport_ranks;
    int r;

    plan.n_rounds = 4;
    plan.hook = inject;
    plan.args = injection;
    plan.expects_failure = 1;
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
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

/* What comes while the driver looks at NCCL is found after it, though nothing
 * comes later. */
static void slow_looks(void **state)
{
    bed_plan_t plan = transport_plan(both_ways(2), SL_TRANSPORT_NCCL);

    (void)state;
    plan.n_rounds = 40;
    plan.stuck_ns = UINT64_C(20000000000);
    standin_set_slow(STANDIN_ncclCommGetAsyncError, 20000);
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
}

/* Nobody waits for NCCL for ever: a transfer fails its job, */
static void a_transfer_that_does_not_end(void **state)
{
    bed_plan_t plan = transport_plan(both_ways(10), SL_TRANSPORT_NCCL);
    const bed_rank_t *ranks = transport_ranks;

    (void)state;
    plan.n_rounds = 1;
    plan.expects_failure = 1;
    plan.stuck_ns = UINT64_C(300000000);
    standin_stall_nccl(STANDIN_NCCL_LAUNCH);
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
    assert_int_equal(ranks[0].n_failed, 1);
    assert_int_equal(ranks[1].n_failed, 1);
    sl_assert_contains(ranks[0].detail, "has not ended for 0.3 s");
    sl_assert_contains(ranks[1].detail, "has not ended for 0.3 s");
    (void)sl_test_log_take();
}

/* lanes are not made, */
static void a_meeting_that_does_not_end(void **state)
{
    bed_plan_t plan = transport_plan(both_ways(10), SL_TRANSPORT_NCCL);
    const bed_rank_t *ranks = transport_ranks;

    (void)state;
    plan.expects_no_nccl = 1;
    plan.meet_ns = UINT64_C(300000000);
    standin_stall_nccl(STANDIN_NCCL_MEET);
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
    assert_int_equal(ranks[0].status, SL_ERR_COMM);
    assert_int_equal(ranks[1].status, SL_ERR_COMM);
    sl_assert_contains(ranks[0].detail,
                       "ncclCommInitRankConfig has not ended for 0.3 s");
    (void)sl_test_log_take();
}

/* and a communicator that does not end in peace is aborted. */
static void an_end_that_does_not_end(void **state)
{
    bed_plan_t plan = transport_plan(both_ways(10), SL_TRANSPORT_NCCL);

    (void)state;
    plan.end_ns = UINT64_C(300000000);
    standin_stall_nccl(STANDIN_NCCL_FINALIZE);
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
    sl_assert_contains(sl_test_log_take(),
                       "ncclCommFinalize has not ended for 0.3 s");
    assert_true(standin_n_calls(STANDIN_ncclCommAbort) > 0);
}

/* NCCL says that CUDA failed, and the device why. */
static void a_failed_device_is_told(void **state)
{
    void *memory = NULL;

    (void)state;
    assert_int_equal(cudaMalloc(&memory, 256), cudaSuccess);
    sl_assert_status(SL_NCCL(ncclUnhandledCudaError), SL_ERR_DEVICE);
    assert_null(strstr(sl_last_error(), "cudaError"));
    standin_fail(STANDIN_cudaMemsetAsync, 1, cudaErrorECCUncorrectable,
                 STANDIN_FAIL_RUN);
    assert_int_equal(cudaMemsetAsync(memory, 0, 256, NULL), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorECCUncorrectable);
    sl_assert_status(SL_NCCL(ncclUnhandledCudaError), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "unhandled cuda error");
    sl_assert_contains(sl_last_error(), "cudaErrorECCUncorrectable");
    standin_reset();
    assert_int_equal(cudaFree(memory), cudaSuccess);
    (void)sl_test_log_take();
}

int main(void)
{
    const struct CMUnitTest own[] = {
        TRANSPORT_TEST(every_call_may_fail),
        TRANSPORT_TEST(slow_looks),
        TRANSPORT_TEST(a_transfer_that_does_not_end),
        TRANSPORT_TEST(a_meeting_that_does_not_end),
        TRANSPORT_TEST(an_end_that_does_not_end),
        TRANSPORT_TEST(a_failed_device_is_told)};

    /* a GPU of its own for each rank */
    return transport_tests_run(SL_TRANSPORT_NCCL, BED_RANKS_MAX, own,
                               sizeof(own) / sizeof(*own));
}
