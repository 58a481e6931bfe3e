/* SPDX-License-Identifier: Apache-2.0 */
/* Training on CUDA devices: near a CPU's, the same bits for every pipeline and
 * precision, no call that waits for the device in a micro-batch, and the loss
 * scale of f16. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/engine/engine_fixture.h"

#ifdef SL_TESTS_STANDIN
#include "standin.h"
#endif

typedef sl_model_t *(*make_model_fn)(void);

static sl_model_t *make(make_model_fn make_model, sl_device_kind_t kind,
                        sl_precision_t precision)
{
    sl_model_t *model = make_model();

    sl_assert_ok(sl_model_set_precision(model, kind, precision));
    return model;
}

/* ---- beside a CPU ---- */

/* All trained parameters after a few steps; owned. */
static float *train(const fixture_run_t *run, double *losses, size_t *n_p)
{
    const sl_model_t *model = run->model;
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    float *values = NULL;
    size_t n = 0;
    int step, l, p;

    fixture_engine(run, &devices, &engine);
    for (step = 0; step < run->n_steps; step++) {
        const sl_batch_t batch = fixture_batch(model, run->rows, step, 0);
        sl_step_report_t report;

        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        losses[step] = report.loss;
    }
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *param = &model->layers[l]->params[p];
            const size_t here = (size_t)sl_tensor_elements(&param->desc);

            if (param->kind == SL_PARAM_ACCUMULATOR) {
                continue;
            }
            values = realloc(values, (n + here) * sizeof(*values));
            assert_non_null(values);
            sl_assert_ok(sl_engine_param_get(engine, l, p, values + n));
            n += here;
        }
    }
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    *n_p = n;
    return values;
}

static double distance(const float *a, const float *b, size_t n)
{
    double difference = 0.0, size = 0.0;
    size_t i;

    for (i = 0; i < n; i++) {
        const double d = (double)a[i] - (double)b[i];

        difference += d * d;
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / size);
}

/* Losses and parameters, within `loss` and `relative`. */
static void check_near(make_model_fn make_model, sl_precision_t precision,
                       double loss, double relative)
{
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_steps = 5, .n_devices = 2, .n_stages = 2};
    double want_losses[FIXTURE_MAX_STEPS], losses[FIXTURE_MAX_STEPS];
    float *want, *got;
    size_t n = 0, n_got = 0;
    double apart;
    int i;

    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.lr = 0.02;
    run.optimizer.momentum = 0.9;
    run.model = make(make_model, SL_DEVICE_KIND_CPU, SL_PRECISION_F32);
    want = train(&run, want_losses, &n);
    sl_model_destroy(run.model);
    run.model = make(make_model, SL_DEVICE_KIND_CUDA, precision);
    got = train(&run, losses, &n_got);
    assert_int_equal(n, n_got);
    apart = distance(got, want, n);
    if (!(apart <= relative)) {
        (void)fprintf(stderr, "%s precision %d: parameters are %g apart\n",
                      run.model->name, (int)precision, apart);
        fail();
    }
    for (i = 0; i < run.n_steps; i++) {
        if (!(fabs(losses[i] - want_losses[i]) <= loss)) {
            (void)fprintf(stderr, "%s precision %d step %d: loss %g, not %g\n",
                          run.model->name, (int)precision, i, losses[i],
                          want_losses[i]);
            fail();
        }
    }
    sl_model_destroy(run.model);
    free(want);
    free(got);
}

static const make_model_fn models[] = {fixture_gpt, fixture_resnet,
                                       fixture_unet};

enum {
    N_MODELS = sizeof(models) / sizeof(*models)
};

static void f32_is_near_a_cpu(void **state)
{
    int i;

    (void)state;
    for (i = 0; i < N_MODELS; i++) {
        check_near(models[i], SL_PRECISION_F32, 1e-4, 1e-4);
    }
}

static void tf32_is_near_a_cpu(void **state)
{
    int i;

    (void)state;
    for (i = 0; i < N_MODELS; i++) {
        check_near(models[i], SL_PRECISION_TF32, 0.05, 0.02);
    }
}

static void bf16_is_near_a_cpu(void **state)
{
    int i;

    (void)state;
    for (i = 0; i < N_MODELS; i++) {
        check_near(models[i], SL_PRECISION_BF16, 0.15, 0.1);
    }
}

static void f16_is_near_a_cpu(void **state)
{
    int i;

    (void)state;
    for (i = 0; i < N_MODELS; i++) {
        check_near(models[i], SL_PRECISION_F16, 0.03, 0.05);
    }
}

/* ---- the same bits ---- */

static void assert_same(const fixture_run_t *run, const fixture_result_t *got,
                        const fixture_result_t *want)
{
    if (got->hash != want->hash ||
        memcmp(got->losses, want->losses, sizeof(got->losses)) != 0 ||
        memcmp(got->norms, want->norms, sizeof(got->norms)) != 0) {
        (void)fprintf(stderr,
                      "%s precision %d stages %d schedule %d recompute %d "
                      "replicas %d: other bits\n",
                      run->model->name, (int)sl_model_precision(run->model),
                      run->n_stages, (int)run->schedule, (int)run->recompute,
                      run->n_replicas);
        fail();
    }
}

/* Stages, schedules, recomputation; replicas among themselves. */
static void check_bits(make_model_fn make_model, sl_precision_t precision)
{
    fixture_run_t run = {
        .rows = 8, .n_micro = 4, .n_steps = 3, .n_devices = 1, .n_stages = 1};
    fixture_result_t want, got;

    run.model = make(make_model, SL_DEVICE_KIND_CUDA, precision);
    want = fixture_train(&run);
    for (run.n_stages = 1; run.n_stages <= 4; run.n_stages++) {
        run.n_devices = run.n_stages;
        run.schedule = (sl_schedule_kind_t)(run.n_stages % 2);
        run.recompute = (sl_recompute_t)(run.n_stages % 3);
        got = fixture_train(&run);
        assert_same(&run, &got, &want);
    }
    run.n_micro = 2;
    run.n_replicas = 2;
    run.n_stages = run.n_devices = 1;
    want = fixture_train(&run);
    run.n_stages = 2;
    run.n_devices = 4;
    run.zero1 = 1;
    got = fixture_train(&run);
    assert_same(&run, &got, &want);
    sl_model_destroy(run.model);
}

static void every_precision_has_its_bits(void **state)
{
    int i, p;

    (void)state;
    for (i = 0; i < N_MODELS; i++) {
        for (p = SL_PRECISION_F32; p <= SL_PRECISION_F16; p++) {
            check_bits(models[i], (sl_precision_t)p);
        }
    }
}

/* ---- the loss scale ---- */

static sl_loss_scale_t scale_of(const sl_engine_t *engine)
{
    sl_loss_scale_t scale;

    assert_true(sl_engine_loss_scale(engine, &scale));
    return scale;
}

/* A scale that no gradient survives is halved until one does; the state stays
 * as it is meanwhile, also with several replicas. */
static void too_large_a_scale_comes_down(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 2, .n_stages = 2};
    const sl_loss_scale_t most = {.factor = 16777216.0, .n_good_steps = 5};
    const sl_loss_scale_t odd = {.factor = 3.0};
    int replicas;

    (void)state;
    run.model = make(fixture_mlp, SL_DEVICE_KIND_CUDA, SL_PRECISION_F16);
    for (replicas = 1; replicas <= 2; replicas++) {
        sl_device_set_t *devices = NULL;
        sl_engine_t *engine = NULL;
        sl_step_report_t report;
        sl_batch_t batch;
        uint64_t before, after;
        int n_skipped = 0;

        run.n_replicas = replicas;
        run.n_micro = 2 / replicas;
        fixture_engine(&run, &devices, &engine);
        assert_true(scale_of(engine).factor == 65536.0);
        sl_assert_status(sl_engine_set_loss_scale(engine, &odd),
                         SL_ERR_INVALID_ARG);
        sl_assert_ok(sl_engine_set_loss_scale(engine, &most));
        sl_assert_ok(sl_engine_state_hash(engine, &before));
        do {
            batch = fixture_batch(run.model, run.rows, n_skipped, 0);
            sl_assert_ok(sl_engine_step(engine, &batch, &report));
            assert_true(report.loss_scale == ldexp(most.factor, -n_skipped));
            assert_true(isfinite(report.loss));
            sl_assert_ok(sl_engine_state_hash(engine, &after));
            assert_int_equal(report.is_skipped, before == after);
            n_skipped += report.is_skipped;
            assert_int_equal(report.n_skipped, n_skipped);
        } while (report.is_skipped);
        assert_in_range(n_skipped, 1, 12);
        assert_true(isfinite(report.gradient_norm));
        assert_int_equal(scale_of(engine).n_good_steps, 1);
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    sl_model_destroy(run.model);
}

/* The scale's power of two is no part of the result where nothing is near the
 * ends of f16. */
static void the_scale_changes_no_bit(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 1, .n_stages = 1};
    const sl_loss_scale_t scales[] = {{.factor = 1024.0}, {.factor = 4096.0}};
    uint64_t hashes[2];
    float gradients[2][7 * 4];
    int i, step;

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.lr = 0.05;
    run.optimizer.clip_norm = 0.5;
    run.model = make(fixture_mlp, SL_DEVICE_KIND_CUDA, SL_PRECISION_F16);
    for (i = 0; i < 2; i++) {
        sl_device_set_t *devices = NULL;
        sl_engine_t *engine = NULL;
        sl_step_report_t report;

        fixture_engine(&run, &devices, &engine);
        sl_assert_ok(sl_engine_set_loss_scale(engine, &scales[i]));
        for (step = 0; step < 3; step++) {
            const sl_batch_t batch =
                fixture_batch(run.model, run.rows, step, 0);

            sl_assert_ok(sl_engine_step(engine, &batch, &report));
            assert_false(report.is_skipped);
        }
        sl_assert_ok(sl_engine_gradient_get(engine, 1, 0, gradients[i]));
        sl_assert_ok(sl_engine_state_hash(engine, &hashes[i]));
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    assert_memory_equal(gradients[0], gradients[1], sizeof(gradients[0]));
    assert_true(hashes[0] == hashes[1]);
    sl_model_destroy(run.model);
}

static void good_steps_raise_the_scale(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 1,
                         .loss_scale_steps = 3};
    const sl_loss_scale_t first = {.factor = 256.0};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    int step;

    (void)state;
    run.model = make(fixture_mlp, SL_DEVICE_KIND_CUDA, SL_PRECISION_F16);
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_set_loss_scale(engine, &first));
    for (step = 0; step < 7; step++) {
        const sl_batch_t batch = fixture_batch(run.model, run.rows, step, 0);
        sl_step_report_t report;

        assert_int_equal(scale_of(engine).n_good_steps, step % 3);
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        assert_true(report.loss_scale == ldexp(256.0, step / 3));
    }
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* A loss that is not finite is not the scale's fault. */
static void a_bad_loss_stops_f16_too(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 2, .n_stages = 2};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_step_report_t report;
    sl_batch_t batch;
    float data[16];

    (void)state;
    run.model = make(fixture_mlp, SL_DEVICE_KIND_CUDA, SL_PRECISION_F16);
    batch = fixture_batch(run.model, 4, 0, 0);
    memcpy(data, batch.data, sizeof(data));
    data[5] = NAN;
    batch.data = data;
    fixture_engine(&run, &devices, &engine);
    sl_assert_status(sl_engine_step(engine, &batch, &report), SL_ERR_NUMERIC);
    assert_true(scale_of(engine).factor == 65536.0);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* A step that is skipped for its loss is none of the good ones, and leaves the
 * scale alone. */
static void a_skipped_loss_is_no_good_step(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 1,
                         .not_finite = SL_NOT_FINITE_SKIP};
    const sl_loss_scale_t first = {.factor = 256.0, .n_good_steps = 7};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_step_report_t report;
    sl_batch_t batch;
    float data[16];

    (void)state;
    run.model = make(fixture_mlp, SL_DEVICE_KIND_CUDA, SL_PRECISION_F16);
    batch = fixture_batch(run.model, 4, 0, 0);
    memcpy(data, batch.data, sizeof(data));
    data[5] = NAN;
    batch.data = data;
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_set_loss_scale(engine, &first));
    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    (void)sl_test_log_take(); /* that it is skipped */
    assert_true(report.is_skipped);
    assert_true(scale_of(engine).factor == first.factor);
    assert_int_equal(scale_of(engine).n_good_steps, first.n_good_steps);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* At a scale of 1 a gradient that is not finite is the model's. */
static void the_least_scale_is_not_to_blame(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 1, .n_stages = 1};
    const sl_loss_scale_t scales[] = {{.factor = 1.0}, {.factor = 2.0}};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    int i;

    (void)state;
    run.model = make(fixture_mlp, SL_DEVICE_KIND_CUDA, SL_PRECISION_F16);
    fixture_engine(&run, &devices, &engine);
    for (i = 0; i < 2; i++) {
        sl_assert_ok(sl_engine_set_loss_scale(engine, &scales[i]));
        assert_int_equal(
            sl_loss_scale_is_too_large(engine, 1.0, (double)INFINITY), i);
        assert_false(sl_loss_scale_is_too_large(engine, 1.0, 1.0));
        assert_false(
            sl_loss_scale_is_too_large(engine, (double)NAN, (double)NAN));
    }
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

static void other_kinds_have_no_scale(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 1, .n_stages = 1};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_loss_scale_t scale;

    (void)state;
    run.model = make(fixture_mlp, SL_DEVICE_KIND_CUDA, SL_PRECISION_BF16);
    fixture_engine(&run, &devices, &engine);
    assert_false(sl_engine_loss_scale(engine, &scale));
    assert_true(scale.factor == 1.0);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* ---- what is refused ---- */

static void devices_and_model_are_of_one_kind(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 1, .n_stages = 1};
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    sl_engine_t *engine = NULL;

    (void)state;
    run.model = make(fixture_mlp, SL_DEVICE_KIND_CUDA, SL_PRECISION_F32);
    fixture_params(&run, &devices, &params);
    sl_assert_ok(sl_model_set_precision(run.model, SL_DEVICE_KIND_CPU,
                                        SL_PRECISION_F32));
    sl_assert_status(sl_engine_create(&params, &engine), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "another kind of device than cuda:0");
    sl_assert_status(sl_model_set_precision(run.model, SL_DEVICE_KIND_CPU,
                                            SL_PRECISION_BF16),
                     SL_ERR_UNSUPPORTED);
    sl_assert_status(sl_model_set_precision(run.model, SL_DEVICE_KIND_CPU,
                                            SL_PRECISION_TF32),
                     SL_ERR_UNSUPPORTED);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* ---- nobody waits ---- */

#ifdef SL_TESTS_STANDIN
/* Calls that return when the device has done something, or may. */
static uint64_t n_waiting_calls(void)
{
    static const standin_entry_t entries[] = {STANDIN_cudaDeviceSynchronize,
                                              STANDIN_cudaStreamSynchronize,
                                              STANDIN_cudaMemcpy,
                                              STANDIN_cudaMemset,
                                              STANDIN_cudaMalloc,
                                              STANDIN_cudaFree,
                                              STANDIN_cudaHostAlloc,
                                              STANDIN_cudaFreeHost};
    uint64_t n = standin_n_blocking_copies();
    size_t i;

    for (i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
        n += standin_n_calls(entries[i]);
    }
    return n;
}

/* In the second step of n micro-batches. */
static uint64_t count_waits(fixture_run_t run, int n_micro)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    uint64_t before = 0;
    int step;

    run.n_micro = n_micro;
    fixture_engine(&run, &devices, &engine);
    for (step = 0; step < 3; step++) {
        const sl_batch_t batch = fixture_batch(run.model, run.rows, step, 0);
        sl_step_report_t report;

        before = n_waiting_calls();
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
    }
    before = n_waiting_calls() - before;
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return before;
}

static void a_step_has_no_hidden_wait(void **state)
{
    int i, recompute;

    (void)state;
    for (i = 0; i < N_MODELS; i++) {
        fixture_run_t run = {.rows = 16, .n_devices = 2, .n_stages = 2};

        run.model = make(models[i], SL_DEVICE_KIND_CUDA, SL_PRECISION_BF16);
        for (recompute = 0; recompute <= SL_RECOMPUTE_FULL; recompute++) {
            run.recompute = (sl_recompute_t)recompute;
            assert_int_equal(count_waits(run, 2), 0);
            assert_int_equal(count_waits(run, 16), 0);
        }
        sl_model_destroy(run.model);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(f32_is_near_a_cpu),
        sl_unit_test(tf32_is_near_a_cpu),
        sl_unit_test(bf16_is_near_a_cpu),
        sl_unit_test(f16_is_near_a_cpu),
        sl_unit_test(every_precision_has_its_bits),
        sl_unit_test(too_large_a_scale_comes_down),
        sl_unit_test(the_scale_changes_no_bit),
        sl_unit_test(good_steps_raise_the_scale),
        sl_unit_test(a_skipped_loss_is_no_good_step),
        sl_unit_test(the_least_scale_is_not_to_blame),
        sl_unit_test(a_bad_loss_stops_f16_too),
        sl_unit_test(other_kinds_have_no_scale),
        sl_unit_test(devices_and_model_are_of_one_kind),
#ifdef SL_TESTS_STANDIN
        sl_unit_test(a_step_has_no_hidden_wait),
#endif
    };

    return cmocka_run_group_tests_name("cuda.training", tests, NULL, NULL);
}
