/* SPDX-License-Identifier: Apache-2.0 */
/* What Sluice counts beside what the devices did, in training: all memory of a
 * device is its allocator's, no work begins that the op manager has not let
 * in, and bits do not depend on whether devices reach each other's memory. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "standin.h"
#include "tests/engine/engine_fixture.h"

enum {
    N_DEVICES = 2,
    N_STEPS = 3,
    N_TRIES = 20000 /* of a millisecond: a bound, not a measure */
};

static int setup(void **state)
{
    standin_reset();
    return sl_test_setup(state);
}

static int teardown(void **state)
{
    const int n_reports = standin_n_reports(), n_live = standin_n_live();

    if (n_reports > 0) {
        (void)fprintf(stderr, "%s\n", standin_report(0));
    }
    standin_reset();
    return sl_test_teardown(state) || n_reports > 0 || n_live > 0;
}

typedef sl_model_t *(*make_model_fn)(void);

static const make_model_fn models[] = {fixture_gpt, fixture_resnet,
                                       fixture_unet};

enum {
    N_MODELS = sizeof(models) / sizeof(*models)
};

static sl_model_t *make(make_model_fn make_model)
{
    sl_model_t *model = make_model();

    sl_assert_ok(
        sl_model_set_precision(model, SL_DEVICE_KIND_CUDA, SL_PRECISION_BF16));
    return model;
}

static void step(sl_engine_t *engine, const fixture_run_t *run, int i)
{
    const sl_batch_t batch = fixture_batch(run->model, run->rows, i, 0);
    sl_step_report_t report;

    sl_assert_ok(sl_engine_step(engine, &batch, &report));
}

/* ---- memory ---- */

static void check_memory(const sl_device_set_t *devices)
{
    int d;

    for (d = 0; d < devices->n_devices; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(devices->devices[d].mem, &stats);
        assert_int_equal(standin_device_bytes(d), stats.held_bytes);
    }
}

/* With memory in pieces and whole, after each step and when the limit has come
 * down. */
static void all_memory_is_the_allocators(void **state)
{
    int i, n;

    (void)state;
    for (n = 0; n < 2 * N_MODELS; n++) {
        fixture_run_t run = {.rows = 8,
                             .n_micro = 4,
                             .n_devices = N_DEVICES,
                             .n_stages = N_DEVICES,
                             .host_bytes = (size_t)1 << 28};
        sl_device_set_t *devices = NULL;
        sl_engine_t *engine = NULL;

        standin_set_granularity(n % 2 == 0 ? (size_t)1 << 16 : 0);
        run.model = make(models[n / 2]);
        fixture_engine(&run, &devices, &engine);
        check_memory(devices);
        for (i = 0; i < N_STEPS; i++) {
            step(engine, &run, i);
            check_memory(devices);
            assert_true(standin_device_bytes(0) > 0);
            sl_mem_limit_request(devices->devices[0].mem,
                                 i == 0 ? (size_t)1 << 16 : SIZE_MAX);
        }
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
        assert_int_equal(standin_device_bytes(0), 0);
        assert_int_equal(standin_device_bytes(1), 0);
        sl_model_destroy(run.model);
    }
}

/* ---- work ---- */

/* Kernels, whoever's they are. */
static uint64_t n_kernels(void)
{
    static const standin_entry_t entries[] = {
        STANDIN_cudaLaunchKernelEx,
        STANDIN_cudaGraphLaunch,
        STANDIN_cublasLtMatmul,
        STANDIN_cudnnConvolutionForward,
        STANDIN_cudnnConvolutionBackwardData,
        STANDIN_cudnnConvolutionBackwardFilter,
        STANDIN_cudnnPoolingForward,
        STANDIN_cudnnPoolingBackward,
        STANDIN_cudnnBatchNormalizationForwardTrainingEx,
        STANDIN_cudnnBatchNormalizationBackwardEx,
        STANDIN_cudnnBackendExecute,
        STANDIN_cudaMemset,
        STANDIN_cudaMemsetAsync,
        STANDIN_cudaMemcpyPeerAsync};
    uint64_t n = 0;
    size_t i;

    for (i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
        n += standin_n_calls(entries[i]);
    }
    return n;
}

static void set_shares(const sl_device_set_t *devices, double percent)
{
    int d;

    for (d = 0; d < devices->n_devices; d++) {
        sl_assert_ok(sl_op_manager_share_set(devices->devices[d].ops, percent,
                                             SL_SHARE_TOKEN_BUCKET));
    }
}

typedef struct stepper {
    sl_engine_t *engine;
    sl_batch_t batch;
    sl_status_t status;
} stepper_t;

static void *take_step(void *arg)
{
    stepper_t *stepper = arg;
    sl_step_report_t report;

    stepper->status = sl_engine_step(stepper->engine, &stepper->batch, &report);
    return NULL;
}

static uint64_t n_submitted(const sl_device_t *device)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(device->ops, &stats);
    return stats.n_submitted;
}

static void pause_ms(long ms)
{
    const struct timespec nap = {.tv_nsec = ms * 1000000};

    (void)nanosleep(&nap, NULL);
}

/* With a share of nothing a step is queued and no kernel of it begins. */
static void check_gate(const fixture_run_t *run, int i)
{
    sl_device_set_t *devices = NULL;
    stepper_t stepper = {.engine = NULL};
    uint64_t kernels, submitted;
    pthread_t thread;
    int tries, k;

    fixture_engine(run, &devices, &stepper.engine);
    for (k = 0; k < i; k++) {
        step(stepper.engine, run, k);
    }
    stepper.batch = fixture_batch(run->model, run->rows, i, 0);
    set_shares(devices, 0.0);
    kernels = n_kernels();
    submitted = n_submitted(&devices->devices[0]);
    assert_int_equal(pthread_create(&thread, NULL, take_step, &stepper), 0);
    for (tries = 0;
         tries < N_TRIES && n_submitted(&devices->devices[0]) == submitted;
         tries++) {
        pause_ms(1);
    }
    pause_ms(20);
    submitted = n_submitted(&devices->devices[0]) - submitted;
    kernels = n_kernels() - kernels;
    set_shares(devices, 100.0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    sl_assert_ok(stepper.status);
    assert_true(submitted > 0);
    assert_int_equal(kernels, 0);
    assert_true(n_kernels() > 0);
    sl_engine_destroy(stepper.engine);
    sl_device_set_destroy(devices);
}

static void no_kernel_begins_without_a_share(void **state)
{
    int n;

    (void)state;
    for (n = 0; n < N_MODELS; n++) {
        fixture_run_t run = {.rows = 8,
                             .n_micro = 4,
                             .n_devices = N_DEVICES,
                             .n_stages = N_DEVICES};

        run.model = make(models[n]);
        check_gate(&run, 0);
        check_gate(&run, 3); /* as graphs */
        sl_model_destroy(run.model);
    }
}

/* ---- peers ---- */

static void peers_change_no_bit(void **state)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 4,
                         .n_steps = N_STEPS,
                         .n_devices = 4,
                         .n_stages = 4,
                         .schedule = SL_SCHEDULE_1F1B};
    fixture_result_t want, got;
    int n;

    (void)state;
    for (n = 0; n < N_MODELS; n++) {
        run.model = make(models[n]);
        for (run.n_replicas = 1; run.n_replicas <= 2; run.n_replicas++) {
            run.n_stages = 4 / run.n_replicas;
            standin_reset();
            standin_set_devices(4);
            want = fixture_train(&run);
            assert_true(standin_n_calls(STANDIN_cudaDeviceEnablePeerAccess) >
                        0);
            standin_reset();
            standin_set_devices(4);
            standin_set_peers(0);
            got = fixture_train(&run);
            assert_int_equal(
                standin_n_calls(STANDIN_cudaDeviceEnablePeerAccess), 0);
            assert_true(got.hash == want.hash);
            assert_memory_equal(got.losses, want.losses, sizeof(got.losses));
            assert_int_equal(standin_n_reports(), 0);
        }
        sl_model_destroy(run.model);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(all_memory_is_the_allocators),
        T(no_kernel_begins_without_a_share),
        T(peers_change_no_bit),
    };

    return cmocka_run_group_tests_name("cuda.gates", tests, NULL, NULL);
}
