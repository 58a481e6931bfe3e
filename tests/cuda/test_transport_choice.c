/* SPDX-License-Identifier: Apache-2.0 */
/* Which transport the ranks of a job use, and that all give the same bits. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"
#include "tests/cuda/aware_copy.h"
#include "tests/engine/rank_bed.h"

static rank_bed_t bed;

static int setup(void **state)
{
    standin_reset();
    return sl_test_setup(state);
}

static int teardown(void **state)
{
    const int n_reports = standin_n_reports();
    const int n_comms = standin_n_communicators();

    if (n_reports > 0) {
        (void)fprintf(stderr, "%s\n", standin_report(0));
    }
    aware_set(0);
    standin_reset();
    return sl_test_teardown(state) || n_reports > 0 || n_comms != 0;
}

/* What a body is asked for, and what it gives. */
typedef struct choice {
    sl_transport_t asked;
    const char *want; /* NULL: the engine is refused */
    const char *detail;
    int is_exportable; /* the devices' memory */
} choice_t;

static void body_choose(bed_member_t *member)
{
    const choice_t *choice = member->bed->args;
    sl_status_t status;

    member->params.transport = choice->asked;
    status = sl_engine_create(&member->params, &member->engine);
    if (choice->want == NULL) {
        (void)MEMBER_CHECK(member, status == SL_ERR_CONFIG);
        (void)MEMBER_CHECK(member,
                           strstr(sl_last_error(), choice->detail) != NULL);
        return;
    }
    if (MEMBER_CHECK(member, status == SL_OK)) {
        (void)MEMBER_CHECK(member, strcmp(sl_engine_transport(member->engine),
                                          choice->want) == 0);
    }
}

static void choose(int n_gpus, const choice_t *choice)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 1, .n_stages = 3, .n_steps = 1};

    standin_set_devices(n_gpus);
    run.is_exportable = choice->is_exportable;
    run.model = fixture_gpt();
    ranks_run(&bed, &run, 3, 1, body_choose, choice);
    sl_model_destroy(run.model);
}

static void nccl_where_each_rank_has_a_gpu(void **state)
{
    const choice_t automatic = {.asked = SL_TRANSPORT_AUTO, .want = "nccl"};
    const choice_t asked = {.asked = SL_TRANSPORT_NCCL, .want = "nccl"};
    const choice_t staged = {.asked = SL_TRANSPORT_STAGED, .want = "staged"};

    (void)state;
    choose(3, &automatic);
    choose(8, &asked);
    choose(8, &staged);
}

static void staged_where_ranks_share_a_gpu(void **state)
{
    const choice_t automatic = {.asked = SL_TRANSPORT_AUTO, .want = "staged"};
    const choice_t asked = {.asked = SL_TRANSPORT_NCCL,
                            .detail = "ranks 0 and 1 share a GPU"};

    (void)state;
    choose(2, &automatic);
    choose(2, &asked);
    (void)sl_test_log_take();
}

static void cuda_aware_where_the_link_is(void **state)
{
    const choice_t refused = {.asked = SL_TRANSPORT_CUDA_AWARE,
                              .detail = "does not know memory"};

    (void)state;
    choose(3, &refused);
    (void)sl_test_log_take();
}

/* Memory that no other process can map is not handed to the link. */
static void cuda_aware_where_memory_can_be_mapped(void **state)
{
    const choice_t refused = {.asked = SL_TRANSPORT_CUDA_AWARE,
                              .detail = "memory of rank 0's devices"};
    const choice_t taken = {.asked = SL_TRANSPORT_CUDA_AWARE,
                            .want = "cuda-aware",
                            .is_exportable = 1};
    const choice_t whole = {.asked = SL_TRANSPORT_CUDA_AWARE,
                            .want = "cuda-aware"};

    (void)state;
    aware_set(1);
    choose(3, &refused);
    sl_assert_contains(sl_test_log_take(), "SLUICE_NO_CUDA_VMM=1");
    choose(3, &taken);
    assert_int_equal(setenv("SLUICE_NO_CUDA_VMM", "1", 1), 0);
    choose(3, &whole);
    assert_int_equal(unsetenv("SLUICE_NO_CUDA_VMM"), 0);
}

/* All ranks go back to host memory, with one warning that says why. */
static void staged_when_nccl_does_not_start(void **state)
{
    const standin_entry_t entries[] = {STANDIN_ncclGetUniqueId,
                                       STANDIN_ncclCommInitRankConfig};
    const choice_t automatic = {.asked = SL_TRANSPORT_AUTO, .want = "staged"};
    const choice_t asked = {.asked = SL_TRANSPORT_NCCL, .want = "nccl"};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
        standin_fail(entries[i], 2, (cudaError_t)ncclSystemError,
                     STANDIN_FAIL_CALL);
        choose(3, &automatic);
        assert_true(standin_has_failed());
        sl_assert_contains(sl_test_log_take(), "NCCL cannot be used");
    }
    choose(3, &asked);
}

static void body_refused(bed_member_t *member)
{
    member->params.transport = SL_TRANSPORT_NCCL;
    (void)MEMBER_CHECK(member,
                       sl_engine_create(&member->params, &member->engine) ==
                           SL_ERR_COMM);
    (void)member_check(member,
                       strstr(sl_last_error(), "ncclGetUniqueId") != NULL,
                       sl_last_error(), __FILE__, __LINE__);
}

static void refused_when_nccl_was_asked_for(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 1, .n_stages = 3, .n_steps = 1};

    (void)state;
    standin_set_devices(3);
    standin_fail(STANDIN_ncclGetUniqueId, 2, (cudaError_t)ncclSystemError,
                 STANDIN_FAIL_CALL);
    run.model = fixture_gpt();
    ranks_run(&bed, &run, 3, 1, body_refused, NULL);
    sl_model_destroy(run.model);
    (void)sl_test_log_take();
}

/* ---- the same bits ---- */

static void body_train(bed_member_t *member)
{
    const choice_t *choice = member->bed->args;

    member->params.transport = choice->asked;
    member_train(member);
    if (member->engine != NULL) {
        (void)MEMBER_CHECK(member, strcmp(sl_engine_transport(member->engine),
                                          choice->want) == 0);
    }
}

static void check_bits(fixture_run_t run, int n_ranks, const choice_t *choice)
{
    fixture_result_t want;
    int n_stages = run.n_stages, n_devices = run.n_devices;
    int r;

    run.n_stages = run.n_devices = 1;
    want = fixture_train(&run);
    run.n_stages = n_stages;
    run.n_devices = n_devices;
    run.is_exportable = choice->is_exportable;
    ranks_run(&bed, &run, n_ranks, run.n_steps, body_train, choice);
    for (r = 0; r < n_ranks; r++) {
        assert_int_equal(bed.members[r].result.hash, want.hash);
        assert_memory_equal(bed.members[r].result.losses, want.losses,
                            sizeof(want.losses));
    }
}

static void all_ways_give_the_same_bits(void **state)
{
    const choice_t choices[] = {
        {.asked = SL_TRANSPORT_STAGED, .want = "staged"},
        {.asked = SL_TRANSPORT_NCCL, .want = "nccl"},
        {.asked = SL_TRANSPORT_CUDA_AWARE,
         .want = "cuda-aware",
         .is_exportable = 1}};
    fixture_run_t run = {.rows = 13, .n_micro = 3, .n_steps = 2};
    size_t i;

    (void)state;
    standin_set_devices(8);
    run.model = fixture_gpt();
    for (i = 0; i < sizeof(choices) / sizeof(*choices); i++) {
        aware_set(choices[i].asked == SL_TRANSPORT_CUDA_AWARE);
        run.n_replicas = 1;
        run.n_devices = 1;
        run.n_stages = 3;
        check_bits(run, 3, &choices[i]);
        run.n_replicas = 2;
        run.n_stages = 2;
        run.bucket_bytes = 3000;
        check_bits(run, 4, &choices[i]);
        run.zero1 = 1;
        run.bucket_bytes = 500;
        run.n_devices = 2;
        check_bits(run, 2, &choices[i]);
        run.n_replicas = 3;
        run.n_devices = 1;
        check_bits(run, 3, &choices[i]);
        run.zero1 = 0;
    }
    sl_model_destroy(run.model);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(nccl_where_each_rank_has_a_gpu),
        T(staged_where_ranks_share_a_gpu),
        T(cuda_aware_where_the_link_is),
        T(cuda_aware_where_memory_can_be_mapped),
        T(staged_when_nccl_does_not_start),
        T(refused_when_nccl_was_asked_for),
        T(all_ways_give_the_same_bits),
    };

    /* models of the fixture are for CUDA devices */
    (void)setenv("SLUICE_TEST_DEVICES", "cuda", 1);
    (void)unsetenv("SLUICE_TEST_TRANSPORT");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
