/* SPDX-License-Identifier: Apache-2.0 */
/* Every entry point of the stand-in fails once while a model trains, at the
 * first call and later ones: creating the devices or the engine, or a step,
 * ends with that error; or the failure is one that is met in another way.
 * Nothing hangs. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "standin.h"
#include "tests/engine/engine_fixture.h"

enum {
    N_STEPS = 3,
    ROWS = 4,
    MAX_CALLS = 4 /* of an entry point, spread over those there are */
};

typedef struct outcome {
    sl_status_t status;
    int n_steps;
    uint64_t hash;
} outcome_t;

static void ignore_log(void)
{
    (void)sl_test_log_take();
}

/* One training run, from devices to hash. */
static outcome_t train(sl_model_t *model)
{
    const fixture_run_t run = {.rows = ROWS,
                               .n_micro = 2,
                               .n_devices = 2,
                               .n_stages = 2,
                               .model = model};
    outcome_t outcome = {.status = SL_OK};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_engine_params_t params;

    outcome.status = fixture_try_params(&run, &devices, &params);
    if (outcome.status >= 0) {
        outcome.status = sl_engine_create(&params, &engine);
    }
    while (outcome.status >= 0 && outcome.n_steps < N_STEPS) {
        const sl_batch_t batch = fixture_batch(model, ROWS, outcome.n_steps, 0);
        sl_step_report_t report;

        outcome.status = sl_engine_step(engine, &batch, &report);
        outcome.n_steps += outcome.status >= 0;
    }
    if (outcome.status >= 0) {
        outcome.status = sl_engine_state_hash(engine, &outcome.hash);
    }
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return outcome;
}

static void check(const outcome_t *got, const outcome_t *want,
                  standin_entry_t entry, uint64_t call)
{
    const int is_expected = got->status >= 0
                                ? got->hash == want->hash
                                : got->status == SL_ERR_DEVICE ||
                                      got->status == SL_ERR_NO_MEMORY ||
                                      got->status == SL_ERR_QUOTA ||
                                      got->status == SL_ERR_UNSUPPORTED;

    if (!is_expected) {
        (void)fprintf(stderr, "%s, call %llu: %s, hash %016llx\n",
                      standin_entry_name(entry), (unsigned long long)call,
                      sl_status_text(got->status),
                      (unsigned long long)got->hash);
        fail();
    }
}

/* The n-th of all calls of an entry point in such a run, for some n. */
static void sweep(sl_model_t *model, standin_failure_t failure,
                  cudaError_t error)
{
    uint64_t n_calls[STANDIN_N_ENTRIES];
    outcome_t want, got;
    int e;

    standin_reset();
    want = train(model);
    sl_assert_ok(want.status);
    for (e = 0; e < STANDIN_N_ENTRIES; e++) {
        n_calls[e] = standin_n_calls((standin_entry_t)e);
    }
    for (e = 0; e < STANDIN_N_ENTRIES; e++) {
        const uint64_t by = n_calls[e] > MAX_CALLS ? n_calls[e] / MAX_CALLS : 1;
        uint64_t n;

        for (n = 1; n <= n_calls[e]; n += by) {
            standin_reset();
            standin_fail((standin_entry_t)e, n, error, failure);
            got = train(model);
            ignore_log();
            check(&got, &want, (standin_entry_t)e, n);
            standin_clear_reports();
        }
    }
    standin_reset();
}

static void every_call_may_fail(void **state)
{
    sl_model_t *model = fixture_gpt();

    (void)state;
    sl_assert_ok(
        sl_model_set_precision(model, SL_DEVICE_KIND_CUDA, SL_PRECISION_F32));
    sweep(model, STANDIN_FAIL_CALL, cudaErrorUnknown);
    sl_model_destroy(model);
}

static void memory_may_be_refused_anywhere(void **state)
{
    sl_model_t *model = fixture_gpt();

    (void)state;
    sl_assert_ok(
        sl_model_set_precision(model, SL_DEVICE_KIND_CUDA, SL_PRECISION_F32));
    sweep(model, STANDIN_FAIL_CALL, cudaErrorMemoryAllocation);
    sl_model_destroy(model);
}

static void work_may_fail_later(void **state)
{
    sl_model_t *model = fixture_gpt();

    (void)state;
    sl_assert_ok(
        sl_model_set_precision(model, SL_DEVICE_KIND_CUDA, SL_PRECISION_BF16));
    sweep(model, STANDIN_FAIL_RUN, cudaErrorIllegalAddress);
    sl_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_call_may_fail),
        sl_unit_test(memory_may_be_refused_anywhere),
        sl_unit_test(work_may_fail_later),
    };

    return cmocka_run_group_tests_name("cuda.training_failures", tests, NULL,
                                       NULL);
}
