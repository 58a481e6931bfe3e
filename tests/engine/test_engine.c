/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: gradients of a split batch, failures, the gates. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/engine_fixture.h"

/* ---- gradients do not depend on the split ---- */

static float *train_and_read(fixture_run_t run, int layer, size_t *n_p)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_step_report_t report;
    const sl_param_t *param = &run.model->layers[layer]->params[0];
    const size_t n = (size_t)sl_tensor_elements(&param->desc);
    float *grad = calloc(n, sizeof(*grad));
    sl_batch_t batch = fixture_batch(run.model, run.rows, 0, run.ignore_every);

    assert_non_null(grad);
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    sl_assert_ok(sl_engine_gradient_get(engine, layer, 0, grad));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    *n_p = n;
    return grad;
}

static void compare_splits(fixture_run_t run, int layer)
{
    const int splits[] = {2, 3, 4, 7, 100};
    size_t n, i;
    float *want, *got;

    run.n_devices = run.n_stages = 2;
    run.n_micro = 1;
    want = train_and_read(run, layer, &n);
    for (i = 0; i < sizeof(splits) / sizeof(*splits); i++) {
        run.n_micro = splits[i];
        got = train_and_read(run, layer, &n);
        sl_assert_close(got, want, n, 1e-4, 2e-7);
        free(got);
    }
    free(want);
}

static void a_split_batch_has_the_full_gradient(void **state)
{
    fixture_run_t run = {.rows = 7, .model = fixture_mlp()};

    (void)state;
    compare_splits(run, 1);
    run.ignore_every = 3;
    compare_splits(run, 1);
    sl_model_destroy(run.model);
}

/* Micro-batches with very different numbers of counted tokens: the mean of
 * their means would be wrong. */
static void ignored_tokens_weigh_nothing(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 1,
                         .model = fixture_mlp()};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_step_report_t split, whole;
    sl_batch_t batch = fixture_batch(run.model, 4, 0, 0);
    int32_t target[4];

    (void)state;
    memcpy(target, batch.target, sizeof(target));
    target[1] = target[2] = target[3] = SL_DATA_IGNORE;
    batch.target = target;
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_step(engine, &batch, &split));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    run.n_micro = 1;
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_step(engine, &batch, &whole));
    assert_int_equal(split.n_valid, 1);
    assert_true(fabs(split.loss - whole.loss) < 1e-6);
    assert_true(fabs(split.gradient_norm - whole.gradient_norm) < 1e-6);
    target[0] = SL_DATA_IGNORE;
    sl_assert_ok(sl_engine_step(engine, &batch, &whole));
    assert_int_equal(whole.n_valid, 0);
    assert_true(whole.loss == 0.0 && whole.gradient_norm == 0.0);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

static void micro_batches_split_evenly(void **state)
{
    int n;

    (void)state;
    assert_int_equal(sl_split_rows(8, 3, 0, &n), 3);
    assert_int_equal(n, 3);
    assert_int_equal(sl_split_rows(8, 3, 1, NULL), 3);
    assert_int_equal(sl_split_rows(8, 3, 2, NULL), 2);
    assert_int_equal(sl_split_rows(7, 4, 3, NULL), 1);
    assert_int_equal(sl_split_rows(2, 4, 1, &n), 1);
    assert_int_equal(n, 2);
    assert_int_equal(sl_split_rows(2, 4, 2, NULL), 0);
    assert_int_equal(sl_split_first(8, 3, 2), 6);
    assert_int_equal(sl_split_first(7, 4, 3), 6);
}

/* ---- failures ---- */

/* Nothing but parameters, gradients and moments is alive. */
static void assert_only_state_is_alive(const sl_device_set_t *devices)
{
    sl_mem_stats_t stats;
    int d;

    for (d = 0; d < devices->n_devices; d++) {
        sl_mem_stats(devices->devices[d].mem, &stats);
        assert_int_equal(stats.used_bytes,
                         stats.classes[SL_MEM_CLASS_PERSISTENT].used_bytes);
    }
}

/* One good step, after a failed one or not. */
static uint64_t hash_after_good_step(const fixture_run_t *run,
                                     sl_engine_t *engine)
{
    const sl_batch_t good = fixture_batch(run->model, run->rows, 1, 0);
    sl_step_report_t report;
    uint64_t hash;

    sl_assert_ok(sl_engine_step(engine, &good, &report));
    assert_int_equal(report.step, 0);
    sl_assert_ok(sl_engine_state_hash(engine, &hash));
    return hash;
}

/* A step that must fail on some stage: the error is that stage's, nothing
 * hangs, and afterwards it is as if the step had never been tried. */
static void check_failure(fixture_run_t run, const sl_batch_t *batch,
                          const char *detail, sl_status_t want)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_step_report_t report;
    uint64_t before, after, hash, want_hash;
    int i;

    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_state_hash(engine, &before));
    for (i = 0; i < 2; i++) {
        sl_assert_status(sl_engine_step(engine, batch, &report), want);
        sl_assert_contains(sl_last_error(), detail);
        sl_assert_ok(sl_engine_state_hash(engine, &after));
        assert_true(before == after);
        assert_only_state_is_alive(devices);
    }
    hash = hash_after_good_step(&run, engine);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    fixture_engine(&run, &devices, &engine);
    want_hash = hash_after_good_step(&run, engine);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    assert_true(hash == want_hash);
}

static void an_error_ends_all_stages(void **state)
{
    fixture_run_t run = {.rows = 4, .n_micro = 4, .model = fixture_gpt()};
    int32_t bad[64];
    sl_batch_t batch;
    int stages, schedule;

    (void)state;
    for (stages = 1; stages <= 4; stages++) {
        for (schedule = 0; schedule <= SL_SCHEDULE_1F1B; schedule++) {
            run.n_devices = run.n_stages = stages;
            run.schedule = (sl_schedule_kind_t)schedule;
            /* a token on the first stage, in the last micro-batch */
            batch = fixture_batch(run.model, run.rows, 0, 0);
            memcpy(bad, batch.data, 24 * sizeof(*bad));
            bad[23] = 4711;
            batch.data = bad;
            check_failure(run, &batch, "4711", SL_ERR_INVALID_ARG);
            /* a label on the last stage, in the third */
            batch = fixture_batch(run.model, run.rows, 0, 0);
            memcpy(bad, batch.target, 24 * sizeof(*bad));
            bad[13] = -3;
            batch.target = bad;
            check_failure(run, &batch, "-3", SL_ERR_INVALID_ARG);
        }
    }
    sl_model_destroy(run.model);
}

static void a_loss_that_is_not_finite_is_an_error(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 2,
                         .model = fixture_mlp()};
    sl_batch_t batch = fixture_batch(run.model, 4, 0, 0);
    float data[16];

    (void)state;
    memcpy(data, batch.data, sizeof(data));
    data[5] = NAN;
    batch.data = data;
    check_failure(run, &batch, "not finite", SL_ERR_NUMERIC);
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.clip_norm = 1.0;
    check_failure(run, &batch, "not finite", SL_ERR_NUMERIC);
    sl_model_destroy(run.model);
}

/* As above, with batch norm: statistics of a failed step count nowhere. */
static void a_failed_step_leaves_no_statistics(void **state)
{
    fixture_run_t run = {.rows = 4, .n_micro = 4, .model = fixture_resnet()};
    int32_t bad[4];
    sl_batch_t batch;
    int stages, recompute;

    (void)state;
    for (stages = 1; stages <= 4; stages++) {
        for (recompute = 0; recompute <= SL_RECOMPUTE_FULL; recompute++) {
            run.n_devices = run.n_stages = stages;
            run.recompute = (sl_recompute_t)recompute;
            batch = fixture_batch(run.model, run.rows, 0, 0);
            memcpy(bad, batch.target, sizeof(bad));
            bad[3] = 4711;
            batch.target = bad;
            check_failure(run, &batch, "4711", SL_ERR_INVALID_ARG);
        }
    }
    sl_model_destroy(run.model);
}

static void an_evaluation_that_failed_is_forgotten(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 2,
                         .model = fixture_gpt()};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_batch_t batch = fixture_batch(run.model, run.rows, 0, 0);
    sl_eval_sums_t sums = {0};
    int32_t bad[24];

    (void)state;
    memcpy(bad, batch.data, sizeof(bad));
    bad[20] = 4711;
    batch.data = bad;
    fixture_engine(&run, &devices, &engine);
    sl_assert_status(sl_engine_evaluate(engine, &batch, &sums),
                     SL_ERR_INVALID_ARG);
    assert_true(sums.n_valid == 0.0);
    bad[20] = 1;
    sl_assert_ok(sl_engine_evaluate(engine, &batch, &sums));
    assert_true(sums.n_valid == 24.0);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

static sl_status_t op_that_fails(const void *args, void *stream)
{
    sl_status_t status;

    (void)args;
    (void)stream;
    SL_FAIL(status, SL_ERR_DEVICE, out, "the device fell off");
out:
    return status;
}

static void a_failed_device_is_final(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 2,
                         .model = fixture_mlp()};
    const sl_op_t op = {.fn = op_that_fails};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_batch_t batch = fixture_batch(run.model, run.rows, 0, 0);
    sl_step_report_t report;

    (void)state;
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_op_manager_submit(devices->devices[1].ops, &op, NULL));
    (void)!sl_op_manager_drain(devices->devices[1].ops);
    sl_assert_status(sl_engine_step(engine, &batch, &report), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "fell off");
    sl_assert_status(sl_engine_step(engine, &batch, &report), SL_ERR_CANCELED);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* Steps 0 and 1 train; a limit that enters after step 1 is too low for step
 * 2, which succeeds once the limit is raised. */
static void check_limit_rise(fixture_run_t run)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_step_report_t report;
    fixture_result_t want;
    sl_batch_t batch;
    uint64_t hash;
    int step, d;

    run.n_steps = 3;
    want = fixture_train(&run);
    fixture_engine(&run, &devices, &engine);
    for (step = 0; step < 3; step++) {
        batch = fixture_batch(run.model, run.rows, step, 0);
        if (step == 2) {
            sl_assert_status(sl_engine_step(engine, &batch, &report),
                             SL_ERR_QUOTA);
            sl_assert_contains(sl_last_error(), "limit");
            assert_only_state_is_alive(devices);
        }
        for (d = 0; d < devices->n_devices; d++) {
            sl_mem_limit_request(devices->devices[d].mem,
                                 step == 1 ? 0 : SIZE_MAX);
        }
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
    }
    sl_assert_ok(sl_engine_state_hash(engine, &hash));
    assert_true(hash == want.hash);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
}

static void a_raised_limit_lets_it_go_on(void **state)
{
    fixture_run_t run = {.rows = 64, .n_micro = 2, .model = fixture_unet()};
    int stages;

    (void)state;
    for (stages = 1; stages <= 4; stages++) {
        run.n_devices = run.n_stages = stages;
        check_limit_rise(run);
    }
    sl_model_destroy(run.model);
}

static void too_little_memory_says_so(void **state)
{
    fixture_run_t run = {.rows = 64, .n_micro = 1, .model = fixture_unet()};
    const int cuts[] = {0, run.model->n_layers};
    sl_device_params_t device;
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    sl_engine_t *engine = NULL;
    sl_step_report_t report;
    sl_batch_t batch = fixture_batch(run.model, 64, 0, 0);

    (void)state;
    sl_device_params_default(&device);
    device.spec = fixture_spec(run.model, 1);
    device.n_threads = 1;
    device.memory_bytes = 2 << 20;
    sl_assert_ok(sl_device_set_create(&device, &devices));
    sl_engine_params_default(&params);
    params.model = run.model;
    params.devices = devices;
    params.cuts = cuts;
    params.batch_rows = 64;
    sl_assert_ok(sl_engine_create(&params, &engine));
    sl_assert_status(sl_engine_step(engine, &batch, &report), SL_ERR_QUOTA);
    sl_assert_contains(sl_last_error(), "limit");
    sl_assert_contains(sl_last_error(), "it would fit with ");
    sl_assert_contains(sl_last_error(), "micro-batches");
    sl_assert_contains(sl_last_error(), "a memory limit of ");
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

static void wrong_parameters_are_refused(void **state)
{
    sl_model_t *model = fixture_mlp();
    const int empty[] = {0, 2, 2, model->n_layers};
    const int cuts[] = {0, model->n_layers};
    sl_device_params_t device;
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    sl_engine_t *engine = NULL;

    (void)state;
    sl_device_params_default(&device);
    device.spec = fixture_spec(model, 1);
    device.n_threads = 1;
    device.memory_bytes = 1 << 24;
    sl_assert_ok(sl_device_set_create(&device, &devices));
    sl_engine_params_default(&params);
    params.model = model;
    params.devices = devices;
    params.cuts = empty;
    params.n_stages = 3;
    assert_true(sl_engine_create(&params, &engine) < 0);
    params.cuts = cuts;
    params.n_stages = 1;
    params.schedule = SL_SCHEDULE_1F1B;
    params.backward_order = SL_BACKWARD_LIFO;
    sl_assert_status(sl_engine_create(&params, &engine), SL_ERR_CONFIG);
    params.backward_order = SL_BACKWARD_FIFO;
    params.n_micro_batches = 0;
    sl_assert_status(sl_engine_create(&params, &engine), SL_ERR_CONFIG);
    (void)sl_test_log_take();
    sl_device_set_destroy(devices);
    sl_model_destroy(model);
}

/* ---- the gates ---- */

/* No kernel runs outside an op, and all device memory is in the allocators:
 * what ran is what the op managers ran, what is alive is what they lent. */
static void everything_goes_through_the_gates(void **state)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 4,
                         .n_devices = 2,
                         .n_stages = 2,
                         .recompute = SL_RECOMPUTE_FULL,
                         .model = fixture_resnet()};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_batch_t batch = fixture_batch(run.model, 8, 0, 0);
    sl_step_report_t report;
    sl_mem_stats_t before, after;
    uint64_t kernels, named = 0;
    size_t i, n;
    int d;

    (void)state;
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    for (d = 0; d < 2; d++) {
        sl_op_manager_name_stats_reset(devices->devices[d].ops);
    }
    kernels = sl_layer_n_kernel_runs();
    sl_mem_stats(devices->devices[0].mem, &before);
    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    kernels = sl_layer_n_kernel_runs() - kernels;
    assert_true(kernels > 0);
    for (d = 0; d < 2; d++) {
        sl_op_name_stats_t stats[SL_OP_MAX_NAMES];

        n = sl_op_manager_name_stats(devices->devices[d].ops, stats,
                                     SL_OP_MAX_NAMES);
        for (i = 0; i < n; i++) {
            if (strstr(stats[i].name, " forward") != NULL ||
                strstr(stats[i].name, " backward") != NULL) {
                named += stats[i].n_ops;
            }
        }
    }
    assert_int_equal(named, kernels);
    /* between steps only parameters, gradients and moments are alive */
    sl_mem_stats(devices->devices[0].mem, &after);
    assert_int_equal(before.n_live_blocks, after.n_live_blocks);
    assert_int_equal(after.used_bytes,
                     after.classes[SL_MEM_CLASS_PERSISTENT].used_bytes);
    assert_true(after.held_bytes >= after.used_bytes);
    sl_engine_destroy(engine);
    sl_mem_stats(devices->devices[0].mem, &after);
    assert_int_equal(after.n_live_blocks, 0);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* Recomputation must pay in memory: what stays alive between the passes. */
static void recomputation_needs_less_memory(void **state)
{
    fixture_run_t run = {.rows = 16,
                         .n_micro = 8,
                         .n_devices = 1,
                         .n_stages = 1,
                         .model = fixture_unet()};
    size_t peaks[2];
    int mode;

    (void)state;
    for (mode = 0; mode < 2; mode++) {
        sl_device_set_t *devices = NULL;
        sl_engine_t *engine = NULL;
        sl_batch_t batch = fixture_batch(run.model, 16, 0, 0);
        sl_step_report_t report;

        run.recompute = mode == 0 ? SL_RECOMPUTE_NONE : SL_RECOMPUTE_FULL;
        fixture_engine(&run, &devices, &engine);
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        peaks[mode] = report.devices[0].peak_bytes;
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    assert_true(peaks[1] < peaks[0]);
    sl_model_destroy(run.model);
}

/* ---- weights ---- */

static void weights_survive_a_file(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 2,
                         .model = fixture_gpt()};
    sl_device_set_t *devices[2] = {NULL, NULL};
    sl_engine_t *engines[2] = {NULL, NULL};
    sl_batch_t batch = fixture_batch(run.model, 4, 0, 0);
    sl_eval_sums_t sums[2];
    sl_step_report_t report;
    char path[600];
    int i;

    (void)state;
    memset(sums, 0, sizeof(sums));
    (void)snprintf(path, sizeof(path), "%s/w.safetensors", sl_test_directory());
    fixture_engine(&run, &devices[0], &engines[0]);
    sl_assert_ok(sl_engine_step(engines[0], &batch, &report));
    sl_assert_ok(sl_engine_weights_save(engines[0], path));
    run.n_devices = run.n_stages = 3;
    fixture_engine(&run, &devices[1], &engines[1]);
    sl_assert_ok(sl_engine_weights_load(engines[1], path));
    for (i = 0; i < 2; i++) {
        sl_assert_ok(sl_engine_evaluate(engines[i], &batch, &sums[i]));
    }
    assert_memory_equal(&sums[0], &sums[1], sizeof(sums[0]));
    for (i = 0; i < 2; i++) {
        sl_engine_destroy(engines[i]);
        sl_device_set_destroy(devices[i]);
    }
    sl_model_destroy(run.model);
}

static void foreign_weights_are_refused(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 1,
                         .n_devices = 1,
                         .n_stages = 1,
                         .model = fixture_mlp()};
    sl_model_t *other = fixture_resnet();
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    uint64_t before, after;
    char path[600];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/w.safetensors", sl_test_directory());
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_weights_save(engine, path));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
    run.model = other;
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_state_hash(engine, &before));
    sl_assert_status(sl_engine_weights_load(engine, path), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "stem.conv.weight");
    sl_assert_ok(sl_engine_state_hash(engine, &after));
    assert_true(before == after);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_split_batch_has_the_full_gradient),
        sl_unit_test(ignored_tokens_weigh_nothing),
        sl_unit_test(micro_batches_split_evenly),
        sl_unit_test(an_error_ends_all_stages),
        sl_unit_test(a_loss_that_is_not_finite_is_an_error),
        sl_unit_test(a_failed_step_leaves_no_statistics),
        sl_unit_test(an_evaluation_that_failed_is_forgotten),
        sl_unit_test(a_failed_device_is_final),
        sl_unit_test(a_raised_limit_lets_it_go_on),
        sl_unit_test(too_little_memory_says_so),
        sl_unit_test(wrong_parameters_are_refused),
        sl_unit_test(everything_goes_through_the_gates),
        sl_unit_test(recomputation_needs_less_memory),
        sl_unit_test(weights_survive_a_file),
        sl_unit_test(foreign_weights_are_refused),
    };

    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
