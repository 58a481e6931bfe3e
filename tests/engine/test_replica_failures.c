/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallel training in one process: what hits one replica, and what is
 * refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/engine/engine_fixture.h"

/* ---- failures of one replica ---- */

static sl_batch_t poisoned(const sl_model_t *model, int rows, int row)
{
    const sl_batch_t batch = fixture_batch(model, rows, 1, 0);
    const int64_t n = sl_tensor_elements(&model->data);
    float *data;

    /* the fixture's own storage */
    memcpy(&data, &batch.data, sizeof(data));
    data[row * n] = NAN;
    return batch;
}

/* Two replicas of two stages, a device each. */
static fixture_run_t two_by_two(sl_model_t *model, int rows)
{
    return (fixture_run_t){.model = model,
                           .rows = rows,
                           .n_micro = 2,
                           .n_devices = 4,
                           .n_stages = 2,
                           .n_replicas = 2};
}

static void not_finite_in_one_replica(void **state)
{
    fixture_run_t run = two_by_two(fixture_resnet(), 8);
    sl_device_set_t *devices;
    sl_engine_t *engine;
    sl_step_report_t report;
    uint64_t before, after, hashes[2];
    sl_batch_t batch;
    int i;

    (void)state;
    for (i = 0; i < 4; i++) {
        run.zero1 = i / 2;
        run.not_finite = (sl_not_finite_t)(i % 2);
        fixture_engine(&run, &devices, &engine);
        assert_false(fixture_step(&run, engine, 0).is_skipped);
        sl_assert_ok(sl_engine_state_hash(engine, &before));
        batch = poisoned(run.model, run.rows, 7);
        if (run.not_finite == SL_NOT_FINITE_STOP) {
            sl_assert_status(sl_engine_step(engine, &batch, &report),
                             SL_ERR_NUMERIC);
            sl_assert_contains(sl_last_error(), "not finite");
            sl_assert_contains(sl_last_error(), "replica 1");
            assert_int_equal(sl_engine_n_steps(engine), 1);
        } else {
            sl_assert_ok(sl_engine_step(engine, &batch, &report));
            sl_assert_contains(sl_test_log_take(), "replica 1");
            assert_true(report.is_skipped);
            assert_int_equal(report.n_skipped, 1);
            assert_int_equal(sl_engine_n_steps(engine), 2);
        }
        sl_assert_ok(sl_engine_state_hash(engine, &after));
        assert_true(before == after);
        assert_false(fixture_step(&run, engine, 2).is_skipped);
        sl_assert_ok(sl_engine_replica_hash(engine, 0, &hashes[0]));
        sl_assert_ok(sl_engine_replica_hash(engine, 1, &hashes[1]));
        assert_true(hashes[0] == hashes[1]);
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    sl_model_destroy(run.model);
}

/* Whoever asks for it gets the poisoned state. */
static void not_finite_goes_on_when_asked(void **state)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 1,
                         .n_replicas = 2,
                         .not_finite = SL_NOT_FINITE_GO_ON};
    sl_device_set_t *devices;
    sl_engine_t *engine;
    sl_step_report_t report;
    sl_batch_t batch;
    float values[28];

    (void)state;
    run.model = fixture_mlp();
    fixture_engine(&run, &devices, &engine);
    batch = poisoned(run.model, run.rows, 3);
    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    assert_false(report.is_skipped);
    sl_assert_ok(sl_engine_param_get(engine, 1, 0, values));
    assert_true(isnan(values[0]));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* One device has no room: the step fails on all, and can be taken again. */
static void out_of_memory_on_one_cell(void **state)
{
    fixture_run_t run = two_by_two(fixture_resnet(), 64);
    sl_device_set_t *devices;
    sl_engine_t *engine;
    sl_step_report_t report;
    fixture_result_t want;
    uint64_t hash;
    int d, zero1;

    (void)state;
    run.n_steps = 2;
    for (zero1 = 0; zero1 < 2; zero1++) {
        run.zero1 = zero1;
        want = fixture_train(&run);
        for (d = 0; d < 4; d++) {
            fixture_engine(&run, &devices, &engine);
            sl_mem_limit_request(devices->devices[d].mem, 0);
            (void)fixture_step(&run, engine, 0);
            sl_assert_status(fixture_try_step(&run, engine, 1, &report),
                             SL_ERR_QUOTA);
            sl_mem_limit_request(devices->devices[d].mem, SIZE_MAX);
            (void)fixture_step(&run, engine, 1);
            sl_assert_ok(sl_engine_state_hash(engine, &hash));
            assert_true(hash == want.hash);
            sl_engine_destroy(engine);
            sl_device_set_destroy(devices);
        }
    }
    sl_model_destroy(run.model);
}

/* ---- drift ---- */

/* Another bit in float 3 of a storage, or the old one again. */
static void flip(sl_stage_t *stage, const sl_storage_t *storage)
{
    uint32_t bits = 0;
    char *at = (char *)sl_storage_ptr(storage) + 3 * sizeof(bits);

    sl_assert_ok(sl_device_copy_wait(stage->device, &bits, at, sizeof(bits)));
    bits ^= 1;
    sl_assert_ok(sl_device_copy_wait(stage->device, at, &bits, sizeof(bits)));
}

/* A step in which the replicas are compared finds the bit, changes nothing,
 * and can be taken when the bit is back. */
static void check_found(sl_engine_t *engine, const sl_batch_t *batch,
                        sl_stage_t *stage, const sl_storage_t *storage)
{
    sl_step_report_t report;
    char where[32];

    flip(stage, storage);
    sl_assert_status(sl_engine_step(engine, batch, &report), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), "replica 1");
    (void)snprintf(where, sizeof(where), "stage %d, ", stage->index);
    sl_assert_contains(sl_last_error(), where);
    flip(stage, storage);
    sl_assert_ok(sl_engine_step(engine, batch, &report));
    assert_true(report.compare_us > 0.0);
}

static void a_replica_that_drifts_is_found(void **state)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 4,
                         .n_stages = 2,
                         .n_replicas = 2};
    int l, p, n_values = 0;

    (void)state;
    run.model = fixture_resnet();
    for (run.zero1 = 0; run.zero1 < 2; run.zero1++) {
        const sl_batch_t batch = fixture_batch(run.model, run.rows, 0, 0);
        sl_device_set_t *devices;
        sl_engine_t *engine;
        sl_step_report_t report;

        fixture_engine(&run, &devices, &engine);
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        for (l = 0; l < run.model->n_layers; l++) {
            for (p = 0; p < run.model->layers[l]->n_params; p++) {
                sl_stage_t *stage;
                const sl_stage_param_t *param =
                    sl_engine_find_param(engine, 1, l, p, &stage);

                if (param->desc->kind == SL_PARAM_ACCUMULATOR) {
                    continue;
                }
                check_found(engine, &batch, stage, &param->value);
                n_values++;
                if (param->moments[0].block != NULL) {
                    check_found(engine, &batch, stage, &param->moments[0]);
                    n_values++;
                }
            }
        }
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    assert_true(n_values > 40); /* moments once, statistics and values twice */
    sl_model_destroy(run.model);
}

static void replicas_are_compared_as_often_as_asked(void **state)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 1,
                         .n_replicas = 2};
    const int every[] = {0, 1, 3};
    sl_engine_params_t params;
    size_t i;
    int step;

    (void)state;
    sl_engine_params_default(&params);
    assert_int_equal(params.check_replicas, 100);
    run.model = fixture_mlp();
    for (i = 0; i < sizeof(every) / sizeof(*every); i++) {
        const sl_batch_t batch = fixture_batch(run.model, run.rows, 0, 0);
        sl_device_set_t *devices;
        sl_engine_t *engine;
        sl_step_report_t report;

        fixture_params(&run, &devices, &params);
        params.check_replicas = every[i];
        sl_assert_ok(sl_engine_create(&params, &engine));
        for (step = 0; step < 7; step++) {
            const int is_due = every[i] > 0 && step > 0 && step % every[i] == 0;

            sl_assert_ok(sl_engine_step(engine, &batch, &report));
            assert_int_equal(report.compare_us > 0.0, is_due);
        }
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    sl_model_destroy(run.model);
}

static void wrong_counts_are_refused(void **state)
{
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 2, .n_stages = 2};
    sl_device_set_t *devices;
    sl_engine_params_t params;
    sl_engine_t *engine = NULL;
    sl_grid_t *grid = NULL;

    (void)state;
    run.model = fixture_mlp();
    fixture_params(&run, &devices, &params);
    params.n_replicas = 0;
    sl_assert_status(sl_engine_create(&params, &engine), SL_ERR_CONFIG);
    params.n_replicas = 1 << 30;
    sl_assert_status(sl_engine_create(&params, &engine), SL_ERR_CONFIG);
    params.n_replicas = 2;
    params.check_replicas = -1;
    sl_assert_status(sl_engine_create(&params, &engine), SL_ERR_CONFIG);
    /* a grid of other devices */
    params.check_replicas = 0;
    sl_assert_ok(sl_grid_create(NULL, devices, &grid));
    grid->n_slots = 1;
    params.grid = grid;
    sl_assert_status(sl_engine_create(&params, &engine), SL_ERR_INVALID_ARG);
    sl_grid_destroy(grid);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(not_finite_in_one_replica),
        sl_unit_test(not_finite_goes_on_when_asked),
        sl_unit_test(out_of_memory_on_one_cell),
        sl_unit_test(a_replica_that_drifts_is_found),
        sl_unit_test(replicas_are_compared_as_often_as_asked),
        sl_unit_test(wrong_counts_are_refused),
    };

    return cmocka_run_group_tests_name("engine.replica_failures", tests, NULL,
                                       NULL);
}
