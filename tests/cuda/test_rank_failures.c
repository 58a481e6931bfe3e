/* SPDX-License-Identifier: Apache-2.0 */
/* Every entry point of NCCL, and the function of the host behind its groups,
 * fails once while two ranks train with it. Both ranks end with an error, which
 * names the call on one of them; or the failure is met in another way and the
 * bits are those of a run without it. Nothing hangs, no communicator stays. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"
#include "tests/engine/rank_bed.h"

enum {
    N_RANKS = 2,
    N_STEPS = 3,
    MAX_CALLS = 3 /* of an entry point, spread over those there are */
};

typedef struct outcome {
    sl_status_t status;
    int n_failed; /* steps */
    char detail[1024];
    uint64_t hash;
} outcome_t;

static rank_bed_t bed;
static sl_model_t *model;
static outcome_t outcomes[N_RANKS];

/* A step that another rank's link has failed is taken again. */
static sl_status_t take_step(const bed_member_t *member, int i)
{
    outcome_t *own = &outcomes[member->rank];
    const sl_batch_t *batch = &member->bed->batches[i];
    sl_step_report_t report;
    sl_status_t status = sl_engine_step(member->engine, batch, &report);

    if (status == SL_ERR_COMM) {
        own->n_failed++;
        status = sl_engine_step(member->engine, batch, &report);
    }
    return status;
}

static void body_train(bed_member_t *member)
{
    outcome_t *own = &outcomes[member->rank];
    int i;

    member->params.transport = SL_TRANSPORT_NCCL;
    own->status = sl_engine_create(&member->params, &member->engine);
    for (i = 0; i < N_STEPS && own->status >= 0; i++) {
        own->status = take_step(member, i);
    }
    if (own->status >= 0) {
        own->status = sl_engine_state_hash(member->engine, &own->hash);
    }
    if (own->status < 0) {
        (void)snprintf(own->detail, sizeof(own->detail), "%s", sl_last_error());
    }
}

static void train(void)
{
    const fixture_run_t run = {
        .model = model, .rows = 4, .n_micro = 2, .n_devices = 1, .n_stages = 2};

    memset(outcomes, 0, sizeof(outcomes));
    ranks_run(&bed, &run, N_RANKS, N_STEPS, body_train, NULL);
}

static int is_expected(const outcome_t *got, uint64_t want)
{
    return got->status >= 0
               ? got->hash == want
               : got->status == SL_ERR_DEVICE || got->status == SL_ERR_COMM ||
                     got->status == SL_ERR_CANCELED;
}

static void explain(standin_entry_t entry, uint64_t n, const char *what)
{
    int r;

    (void)fprintf(stderr, "%s, call %llu: %s\n", standin_entry_name(entry),
                  (unsigned long long)n, what);
    for (r = 0; r < N_RANKS; r++) {
        (void)fprintf(stderr, "  rank %d: %s, hash %016llx: %s\n", r,
                      sl_status_text(outcomes[r].status),
                      (unsigned long long)outcomes[r].hash, outcomes[r].detail);
    }
}

/* Neither the library nor the order checker has anything left. */
static int is_clean(void)
{
    return standin_n_communicators() == 0 && standin_n_reports() == 0;
}

static void check(uint64_t want, standin_entry_t entry, uint64_t n,
                  const char *text)
{
    int r, n_failed = 0, n_named = 0, is_good = 1;

    for (r = 0; r < N_RANKS; r++) {
        is_good &= is_expected(&outcomes[r], want);
        n_failed += outcomes[r].status < 0;
        n_named += strstr(outcomes[r].detail, text) != NULL;
    }
    if (!is_good || (n_failed > 0 && n_named == 0)) {
        explain(entry, n, "not the outcome");
        fail();
    }
    if (!is_clean()) {
        explain(entry, n,
                standin_n_reports() > 0 ? standin_report(0)
                                        : "a communicator stays");
        fail();
    }
}

static int is_of_nccl(standin_entry_t entry)
{
    switch ((int)entry) {
#define X(name) case STANDIN_##name:
        SL_STANDIN_NCCL_MAP(X)
#undef X
        return 1;
    default:
        return entry == STANDIN_cudaLaunchHostFunc;
    }
}

static uint64_t count_calls(uint64_t n_calls[STANDIN_N_ENTRIES])
{
    int e;

    standin_reset();
    standin_set_devices(N_RANKS);
    train();
    sl_assert_ok(outcomes[0].status);
    for (e = 0; e < STANDIN_N_ENTRIES; e++) {
        n_calls[e] = standin_n_calls((standin_entry_t)e);
    }
    return outcomes[0].hash;
}

static void inject(standin_entry_t entry, uint64_t n, int error,
                   standin_failure_t failure)
{
    standin_reset();
    standin_set_devices(N_RANKS);
    standin_fail(entry, n, (cudaError_t)error, failure);
}

static void every_call_may_fail(void **state)
{
    uint64_t n_calls[STANDIN_N_ENTRIES];
    const uint64_t want = count_calls(n_calls);
    int e;

    (void)state;
    for (e = 0; e < STANDIN_N_ENTRIES; e++) {
        const standin_entry_t entry = (standin_entry_t)e;
        const uint64_t by = n_calls[e] > MAX_CALLS ? n_calls[e] / MAX_CALLS : 1;
        uint64_t n;

        for (n = 1; is_of_nccl(entry) && n <= n_calls[e]; n += by) {
            inject(entry, n, ncclInternalError, STANDIN_FAIL_CALL);
            train();
            (void)sl_test_log_take();
            /* how many transfers share a group, and how often a state is
             * asked for, is the clock's business; the first call is there */
            assert_true(standin_has_failed() ||
                        (n > 1 && standin_n_calls(entry) < n));
            check(want, entry, n, standin_entry_name(entry));
        }
    }
}

static void work_may_fail_later(void **state)
{
    static const struct {
        standin_entry_t entry;
        int error;
        const char *text;
    } cases[] = {
        {STANDIN_ncclSend, ncclInternalError, "internal error"},
        {STANDIN_ncclRecv, ncclUnhandledCudaError, "unhandled cuda error"}};
    uint64_t n_calls[STANDIN_N_ENTRIES];
    const uint64_t want = count_calls(n_calls);
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        inject(cases[i].entry, 4, cases[i].error, STANDIN_FAIL_RUN);
        train();
        (void)sl_test_log_take();
        assert_true(standin_has_failed());
        assert_true(outcomes[0].status < 0 && outcomes[1].status < 0);
        check(want, cases[i].entry, 4, cases[i].text);
    }
}

/* What comes from the link costs one try: a communicator that is made anew,
 * also when the old one's abort fails. */
static void a_link_that_fails_is_made_anew(void **state)
{
    uint64_t n_calls[STANDIN_N_ENTRIES];
    const uint64_t want = count_calls(n_calls);
    int r;

    (void)state;
    inject(STANDIN_ncclSend, 4, ncclRemoteError, STANDIN_FAIL_CALL);
    standin_fail_then(STANDIN_ncclCommAbort, 1, (cudaError_t)ncclSystemError);
    train();
    assert_true(standin_has_failed());
    sl_assert_contains(sl_test_log_take(), "aborting its communicator");
    for (r = 0; r < N_RANKS; r++) {
        sl_assert_ok(outcomes[r].status);
        assert_int_equal(outcomes[r].n_failed, 1);
        assert_true(outcomes[r].hash == want);
    }
    assert_true(is_clean());
    /* and where it cannot be made, all ranks say so */
    inject(STANDIN_ncclSend, 4, ncclRemoteError, STANDIN_FAIL_CALL);
    standin_fail_then(STANDIN_ncclCommInitRankConfig, 1,
                      (cudaError_t)ncclInternalError);
    train();
    (void)sl_test_log_take();
    assert_true(standin_has_failed());
    assert_true(outcomes[0].status < 0 && outcomes[1].status < 0);
    check(want, STANDIN_ncclCommInitRankConfig, 1, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_call_may_fail),
        sl_unit_test(work_may_fail_later),
        sl_unit_test(a_link_that_fails_is_made_anew),
    };
    int n_failed;

    (void)setenv("SLUICE_TEST_DEVICES", "cuda", 1);
    (void)unsetenv("SLUICE_TEST_TRANSPORT");
    model = fixture_gpt();
    n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_model_destroy(model);
    return n_failed;
}
