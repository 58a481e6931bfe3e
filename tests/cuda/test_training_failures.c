/* SPDX-License-Identifier: Apache-2.0 */
/* Every entry point that a model's training calls fails once, at the first call
 * and later ones: creating the devices or the engine, or a step, ends with that
 * error, which names the call; or the failure is one that is met in another
 * way, and the bits are those without it. Nothing hangs, nothing stays. */
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
    char detail[1024];
} outcome_t;

static int n_faults;

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
    if (outcome.status < 0) {
        (void)snprintf(outcome.detail, sizeof(outcome.detail), "%s",
                       sl_last_error());
    }
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return outcome;
}

/* One failure of a sweep. */
typedef struct injected {
    standin_entry_t entry;
    uint64_t call;
    cudaError_t error;
    standin_failure_t failure;
} injected_t;

static int is_expected(const outcome_t *got, const outcome_t *want)
{
    return got->status >= 0 ? got->hash == want->hash
                            : got->status == SL_ERR_DEVICE ||
                                  got->status == SL_ERR_NO_MEMORY ||
                                  got->status == SL_ERR_QUOTA ||
                                  got->status == SL_ERR_UNSUPPORTED;
}

/* An error of a device names the call, or what CUDA or a library says of it, or
 * what there is none of. */
static int is_explained(const outcome_t *got, const injected_t *injected)
{
    const char *const names[] = {standin_entry_name(injected->entry),
                                 cudaGetErrorName(injected->error),
                                 "made to fail", "pinned host memory"};
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strstr(got->detail, names[i]) != NULL) {
            return 1;
        }
    }
    return got->status != SL_ERR_DEVICE;
}

/* How often some are called is the clock's business; the first is there. */
static int has_happened(const injected_t *injected)
{
    return standin_has_failed() ||
           (injected->call > 1 &&
            standin_n_calls(injected->entry) < injected->call);
}

static void check(const outcome_t *got, const outcome_t *want,
                  const injected_t *injected, int n_live)
{
    const char *fault = !is_expected(got, want)        ? "not the outcome"
                        : !is_explained(got, injected) ? "not the reason"
                        : !has_happened(injected)      ? "it did not fail"
                        : standin_n_reports() > 0      ? standin_report(0)
                        : standin_n_live() != n_live   ? "something stays"
                                                       : NULL;

    if (fault != NULL) {
        (void)fprintf(
            stderr, "%s, call %llu, %s: %s (%s, hash %016llx, %d live): %s\n",
            standin_entry_name(injected->entry),
            (unsigned long long)injected->call,
            cudaGetErrorName(injected->error), fault,
            sl_status_text(got->status), (unsigned long long)got->hash,
            standin_n_live() - n_live, got->detail);
        n_faults++;
    }
}

typedef struct sweep {
    sl_model_t *model;
    standin_failure_t failure;
    cudaError_t error;
    outcome_t want; /* without a failure */
    uint64_t n_calls[STANDIN_N_ENTRIES];
} sweep_t;

static void sweep_begin(sweep_t *sweep)
{
    int e;

    n_faults = 0;
    standin_reset();
    sweep->want = train(sweep->model);
    sl_assert_ok(sweep->want.status);
    for (e = 0; e < STANDIN_N_ENTRIES; e++) {
        sweep->n_calls[e] = standin_n_calls((standin_entry_t)e);
    }
}

/* The n-th of all calls of the entry point, for some n. */
static void sweep_entry(const sweep_t *sweep, standin_entry_t entry)
{
    const uint64_t n_calls = sweep->n_calls[entry];
    const uint64_t by = n_calls > MAX_CALLS ? n_calls / MAX_CALLS : 1;
    uint64_t n;

    for (n = 1; n <= n_calls; n += by) {
        const injected_t injected = {entry, n, sweep->error, sweep->failure};
        outcome_t got;
        int n_live;

        standin_reset();
        n_live = standin_n_live();
        standin_fail(entry, n, sweep->error, sweep->failure);
        got = train(sweep->model);
        (void)sl_test_log_take();
        check(&got, &sweep->want, &injected, n_live);
        standin_clear_reports();
    }
}

static void sweep_end(void)
{
    standin_reset();
    assert_int_equal(n_faults, 0);
}

static sl_model_t *make(sl_model_t *model, sl_precision_t precision)
{
    sl_assert_ok(sl_model_set_precision(model, SL_DEVICE_KIND_CUDA, precision));
    return model;
}

static void sweep_all(cudaError_t error)
{
    sweep_t sweep = {.model = make(fixture_gpt(), SL_PRECISION_F32),
                     .failure = STANDIN_FAIL_CALL,
                     .error = error};
    int e;

    sweep_begin(&sweep);
    for (e = 0; e < STANDIN_N_ENTRIES; e++) {
        sweep_entry(&sweep, (standin_entry_t)e);
    }
    sweep_end();
    sl_model_destroy(sweep.model);
}

static void every_call_may_fail(void **state)
{
    (void)state;
    sweep_all(cudaErrorUnknown);
}

static void memory_may_be_refused_anywhere(void **state)
{
    (void)state;
    sweep_all(cudaErrorMemoryAllocation);
}

/* Of the calls that queue work. */
static void work_may_fail_later(void **state)
{
    static const standin_entry_t entries[] = {
        STANDIN_cudaMemcpyAsync, STANDIN_cudaMemsetAsync,
        STANDIN_cudaLaunchKernelEx, STANDIN_cudaGraphLaunch,
        STANDIN_cublasLtMatmul};
    sweep_t sweep = {.model = make(fixture_gpt(), SL_PRECISION_BF16),
                     .failure = STANDIN_FAIL_RUN,
                     .error = cudaErrorIllegalAddress};
    size_t i;

    (void)state;
    sweep_begin(&sweep);
    for (i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
        assert_true(sweep.n_calls[entries[i]] > 0);
        sweep_entry(&sweep, entries[i]);
    }
    sweep_end();
    sl_model_destroy(sweep.model);
}

/* cuDNN's own for images, which a transformer does not call. */
static void images_may_fail(void **state)
{
    static const standin_entry_t late[] = {
        STANDIN_cudnnConvolutionForward, STANDIN_cudnnConvolutionBackwardData,
        STANDIN_cudnnConvolutionBackwardFilter,
        STANDIN_cudnnBatchNormalizationForwardTrainingEx,
        STANDIN_cudnnBatchNormalizationBackwardEx};
    const sl_dnn_use_t dnn = {.has_images = 1};
    sweep_t sweep = {.model = make(fixture_resnet(), SL_PRECISION_F32),
                     .failure = STANDIN_FAIL_CALL,
                     .error = cudaErrorUnknown};
    size_t i;
    int e;

    (void)state;
    sl_model_use_dnn(sweep.model, &dnn);
    sweep_begin(&sweep);
    for (e = STANDIN_cudnnCreate; e <= STANDIN_cudnnBackendExecute; e++) {
        sweep_entry(&sweep, (standin_entry_t)e);
    }
    sweep.failure = STANDIN_FAIL_RUN;
    sweep.error = cudaErrorIllegalAddress;
    for (i = 0; i < sizeof(late) / sizeof(*late); i++) {
        assert_true(sweep.n_calls[late[i]] > 0);
        sweep_entry(&sweep, late[i]);
    }
    sweep_end();
    sl_model_destroy(sweep.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_call_may_fail),
        sl_unit_test(memory_may_be_refused_anywhere),
        sl_unit_test(work_may_fail_later),
        sl_unit_test(images_may_fail),
    };

    return cmocka_run_group_tests_name("cuda.training_failures", tests, NULL,
                                       NULL);
}
