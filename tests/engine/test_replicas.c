/* SPDX-License-Identifier: Apache-2.0 */
/* Data parallel training in one process: what must have the same bits, and
 * what must be close. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/engine/engine_fixture.h"

static void assert_same(const fixture_result_t *got,
                        const fixture_result_t *want, const fixture_run_t *run)
{
    if (got->hash != want->hash ||
        memcmp(got->losses, want->losses, sizeof(got->losses)) != 0 ||
        memcmp(got->norms, want->norms, sizeof(got->norms)) != 0) {
        (void)fprintf(
            stderr,
            "%s: replicas %d stages %d devices %d schedule %d "
            "recompute %d zero1 %d bucket %zu: hash %016llx, not "
            "%016llx; norm %.17g, not %.17g\n",
            run->model->name, run->n_replicas, run->n_stages, run->n_devices,
            (int)run->schedule, (int)run->recompute, run->zero1,
            run->bucket_bytes, (unsigned long long)got->hash,
            (unsigned long long)want->hash, got->norms[0], want->norms[0]);
        fail();
    }
}

/* ---- the same bits for a number of replicas ---- */

static void check_grid(fixture_run_t run, int n_replicas, int max_stages)
{
    const size_t buckets[] = {1, 3000, 0};
    fixture_result_t want, got;
    int stages, i;

    run.n_replicas = n_replicas;
    run.n_stages = 1;
    run.n_devices = 1;
    want = fixture_train(&run);
    for (stages = 1; stages <= max_stages; stages++) {
        for (i = 0; i < 12; i++) {
            run.n_stages = stages;
            run.n_devices = i % 4 == 3 ? stages : stages * n_replicas;
            run.schedule = (sl_schedule_kind_t)(i % 2);
            run.recompute = (sl_recompute_t)(i / 2 % 3);
            run.zero1 = i / 2 % 2;
            run.bucket_bytes = buckets[i % 3];
            got = fixture_train(&run);
            assert_same(&got, &want, &run);
        }
    }
}

static void gpt_is_the_same_on_every_grid(void **state)
{
    fixture_run_t run = {
        .rows = 13, .n_micro = 2, .n_steps = 3, .ignore_every = 5};
    int r;

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.lr = 0.01;
    run.optimizer.weight_decay = 0.1;
    run.optimizer.clip_norm = 0.5;
    run.model = fixture_gpt();
    for (r = 1; r <= 3; r++) {
        check_grid(run, r, 3);
    }
    sl_model_destroy(run.model);
}

static void resnet_is_the_same_on_every_grid(void **state)
{
    fixture_run_t run = {.rows = 12, .n_micro = 2, .n_steps = 2};
    int r;

    (void)state;
    run.model = fixture_resnet();
    for (r = 2; r <= 3; r++) {
        check_grid(run, r, 3);
    }
    sl_model_destroy(run.model);
}

static void unet_is_the_same_on_every_grid(void **state)
{
    fixture_run_t run = {.rows = 8, .n_micro = 2, .n_steps = 2};
    int r;

    (void)state;
    run.model = fixture_unet();
    for (r = 2; r <= 3; r++) {
        check_grid(run, r, 4);
    }
    sl_model_destroy(run.model);
}

static void backward_last_first(void **state)
{
    fixture_run_t run = {.rows = 12,
                         .n_micro = 3,
                         .n_steps = 2,
                         .n_replicas = 2,
                         .n_devices = 2,
                         .n_stages = 1,
                         .order = SL_BACKWARD_LIFO};
    fixture_result_t want, got;

    (void)state;
    run.model = fixture_resnet();
    want = fixture_train(&run);
    run.n_stages = 3;
    run.n_devices = 6;
    run.zero1 = 1;
    got = fixture_train(&run);
    assert_same(&got, &want, &run);
    sl_model_destroy(run.model);
}

/* Batches that leave replicas with fewer micro-batches, or none. */
static void batches_too_small_for_all(void **state)
{
    fixture_run_t run = {.n_micro = 2, .n_steps = 3, .n_replicas = 3};
    fixture_result_t want, got;
    int model, rows;

    (void)state;
    for (model = 0; model < 2; model++) {
        run.model = model == 0 ? fixture_gpt() : fixture_resnet();
        for (rows = 1; rows <= 7; rows++) {
            run.rows = rows;
            run.n_stages = 1;
            run.n_devices = 1;
            run.zero1 = 0;
            want = fixture_train(&run);
            run.n_stages = 2;
            run.n_devices = 6;
            run.zero1 = 1;
            run.schedule = (sl_schedule_kind_t)(rows % 2);
            got = fixture_train(&run);
            assert_same(&got, &want, &run);
        }
        sl_model_destroy(run.model);
    }
}

/* ---- beside one replica with the same micro-batches ---- */

static void assert_params_close(sl_engine_t *a, sl_engine_t *b,
                                const sl_model_t *model)
{
    static float x[1 << 16], y[1 << 16];
    int l, p;

    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *param = &model->layers[l]->params[p];

            if (sl_param_is_state(param)) {
                sl_assert_ok(sl_engine_param_get(a, l, p, x));
                sl_assert_ok(sl_engine_param_get(b, l, p, y));
                sl_assert_close(x, y, (size_t)sl_tensor_elements(&param->desc),
                                1e-4, 1e-5);
            }
        }
    }
}

static void check_close(fixture_run_t run, int n_replicas)
{
    fixture_run_t other = run;
    sl_device_set_t *devices[2];
    sl_engine_t *engines[2];
    sl_step_report_t reports[2];
    sl_eval_sums_t sums[2];
    int step, i;

    memset(sums, 0, sizeof(sums));
    other.n_replicas = n_replicas;
    other.n_micro = run.n_micro / n_replicas;
    other.n_devices = other.n_stages * n_replicas;
    fixture_engine(&run, &devices[0], &engines[0]);
    fixture_engine(&other, &devices[1], &engines[1]);
    for (step = 0; step < run.n_steps; step++) {
        const sl_batch_t batch =
            fixture_batch(run.model, run.rows, step, run.ignore_every);

        for (i = 0; i < 2; i++) {
            sl_assert_ok(sl_engine_step(engines[i], &batch, &reports[i]));
        }
        if (step == 0) {
            /* the same micro-batches, added in the same order */
            assert_true(reports[0].loss == reports[1].loss);
        }
        assert_true(fabs(reports[0].loss - reports[1].loss) < 1e-4);
        assert_true(fabs(reports[0].gradient_norm - reports[1].gradient_norm) <
                    1e-4 * reports[0].gradient_norm);
    }
    assert_params_close(engines[1], engines[0], run.model);
    for (i = 0; i < 2; i++) {
        const sl_batch_t batch = fixture_batch(run.model, run.rows, 77, 3);

        sl_assert_ok(sl_engine_evaluate(engines[i], &batch, &sums[i]));
    }
    assert_true(sums[0].n_valid == sums[1].n_valid);
    assert_true(fabs(sums[0].loss_sum - sums[1].loss_sum) <
                1e-3 * sums[0].loss_sum);
    for (i = 0; i < 2; i++) {
        sl_engine_destroy(engines[i]);
        sl_device_set_destroy(devices[i]);
    }
}

static void replicas_agree_with_one(void **state)
{
    fixture_run_t run = {.rows = 12,
                         .n_micro = 6,
                         .n_steps = 3,
                         .n_devices = 2,
                         .n_stages = 2,
                         .ignore_every = 4};
    int model, r;

    (void)state;
    for (model = 0; model < 3; model++) {
        run.model = model == 0   ? fixture_gpt()
                    : model == 1 ? fixture_resnet()
                                 : fixture_unet();
        sl_optimizer_params_default(&run.optimizer);
        run.optimizer.lr = 0.02;
        run.optimizer.clip_norm = model == 0 ? 0.3 : 0.0;
        for (r = 2; r <= 3; r++) {
            run.zero1 = r % 2;
            check_close(run, r);
        }
        sl_model_destroy(run.model);
    }
}

/* Evaluation is shared out; the sums are those of one replica. */
static void evaluation_gives_the_same_sums(void **state)
{
    fixture_run_t run = {
        .rows = 9, .n_micro = 6, .n_devices = 2, .n_stages = 2};
    sl_eval_sums_t want = {0}, got = {0};
    sl_device_set_t *devices;
    sl_engine_t *engine;
    sl_batch_t batch;

    (void)state;
    run.model = fixture_unet();
    batch = fixture_batch(run.model, run.rows, 1, 4);
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_evaluate(engine, &batch, &want));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    run.n_replicas = 3;
    run.n_micro = 2;
    run.n_devices = 6;
    fixture_engine(&run, &devices, &engine);
    sl_assert_ok(sl_engine_evaluate(engine, &batch, &got));
    assert_memory_equal(&got, &want, sizeof(got));
    /* a batch that leaves replicas idle */
    memset(&got, 0, sizeof(got));
    batch = fixture_batch(run.model, 1, 1, 0);
    sl_assert_ok(sl_engine_evaluate(engine, &batch, &got));
    assert_true(got.n_valid == 1.0);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* ---- batch norm ---- */

static int find_statistic(const sl_model_t *model, int *param_p)
{
    int l, p;

    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            if (model->layers[l]->params[p].kind == SL_PARAM_STATISTIC) {
                *param_p = p;
                return l;
            }
        }
    }
    fail();
    return -1;
}

/* One step from the same start: with `replica` the statistics are those of a
 * run that saw replica 0's rows only. */
static void statistics_of_all_or_of_the_first(void **state)
{
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 2, .n_stages = 1};
    float values[3][64];
    sl_device_set_t *devices;
    sl_engine_t *engine;
    sl_step_report_t report;
    uint64_t hashes[2];
    int i, layer, param = 0;

    (void)state;
    run.model = fixture_resnet();
    layer = find_statistic(run.model, &param);
    for (i = 0; i < 3; i++) {
        /* one replica with the first half; two; two, statistics of one */
        const sl_batch_t all = fixture_batch(run.model, 8, 0, 0);
        sl_batch_t batch = all;

        batch.rows = i == 0 ? 4 : 8;
        run.n_replicas = i == 0 ? 1 : 2;
        run.batch_norm =
            i == 2 ? SL_BATCH_NORM_REPLICA : SL_BATCH_NORM_SYNCHRONISED;
        fixture_engine(&run, &devices, &engine);
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        sl_assert_ok(sl_engine_param_get(engine, layer, param, values[i]));
        if (i > 0) {
            sl_assert_ok(sl_engine_replica_hash(engine, 0, &hashes[0]));
            sl_assert_ok(sl_engine_replica_hash(engine, 1, &hashes[1]));
            assert_true(hashes[0] == hashes[1]);
        }
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    assert_memory_equal(values[2], values[0], 16 * sizeof(float));
    assert_true(memcmp(values[1], values[0], 16 * sizeof(float)) != 0);
    sl_model_destroy(run.model);
}

/* ---- state in and out ---- */

static void copy_state(sl_engine_t *to, sl_engine_t *from,
                       const sl_model_t *model, int n_moments)
{
    static float values[1 << 16];
    int l, p, i;

    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *param = &model->layers[l]->params[p];

            if (!sl_param_is_state(param)) {
                continue;
            }
            sl_assert_ok(sl_engine_param_get(from, l, p, values));
            sl_assert_ok(sl_engine_param_set(to, l, p, values));
            for (i = 0; i < n_moments && param->kind == SL_PARAM_TRAINED; i++) {
                sl_assert_ok(sl_engine_moment_get(from, l, p, i, values));
                sl_assert_ok(sl_engine_moment_set(to, l, p, i, values));
            }
        }
    }
    sl_engine_set_n_steps(to, sl_engine_n_steps(from));
}

/* Two steps here, the state over there, two steps there: as if all were
 * there. */
static void state_moves_between_grids(void **state)
{
    fixture_run_t here = {.rows = 9,
                          .n_micro = 2,
                          .n_devices = 3,
                          .n_stages = 1,
                          .n_replicas = 3};
    fixture_run_t there;
    sl_device_set_t *devices[2];
    sl_engine_t *engines[2];
    sl_step_report_t report;
    fixture_result_t want;
    uint64_t hash;
    int zero1, step;

    (void)state;
    here.model = fixture_gpt();
    sl_optimizer_params_default(&here.optimizer);
    here.optimizer.kind = SL_OPTIMIZER_ADAM;
    here.optimizer.lr = 0.01;
    here.n_steps = 4;
    want = fixture_train(&here);
    for (zero1 = 0; zero1 < 2; zero1++) {
        here.zero1 = zero1;
        there = here;
        there.zero1 = !zero1;
        there.n_stages = 3;
        there.n_devices = 9;
        there.bucket_bytes = 500;
        fixture_engine(&here, &devices[0], &engines[0]);
        fixture_engine(&there, &devices[1], &engines[1]);
        for (step = 0; step < 4; step++) {
            const sl_batch_t batch =
                fixture_batch(here.model, here.rows, step, 0);

            if (step == 2) {
                copy_state(engines[1], engines[0], here.model, 2);
            }
            sl_assert_ok(sl_engine_step(engines[step / 2], &batch, &report));
            assert_int_equal(report.step, step);
        }
        sl_assert_ok(sl_engine_state_hash(engines[1], &hash));
        assert_true(hash == want.hash);
        for (step = 0; step < 2; step++) {
            sl_engine_destroy(engines[step]);
            sl_device_set_destroy(devices[step]);
        }
    }
    sl_model_destroy(here.model);
}

static void gradients_are_those_of_the_mini_batch(void **state)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 4,
                         .n_stages = 2,
                         .n_replicas = 2};
    float values[2][512];
    int zero1;

    (void)state;
    run.model = fixture_mlp();
    for (zero1 = 0; zero1 < 2; zero1++) {
        const sl_batch_t batch = fixture_batch(run.model, run.rows, 0, 0);
        sl_device_set_t *devices;
        sl_engine_t *engine;
        sl_step_report_t report;

        run.zero1 = zero1;
        fixture_engine(&run, &devices, &engine);
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        sl_assert_ok(sl_engine_gradient_get(engine, 1, 0, values[zero1]));
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    assert_memory_equal(values[0], values[1], 28 * sizeof(float));
    sl_model_destroy(run.model);
}

/* ---- memory ---- */

/* The plan is what a step takes, to the byte, and ZeRO-1 takes less. */
static void the_memory_plan_counts_buckets(void **state)
{
    fixture_run_t run = {.rows = 24,
                         .n_micro = 2,
                         .n_devices = 6,
                         .n_stages = 2,
                         .n_replicas = 3};
    size_t persistent[2] = {0};
    int zero1, d, step;

    (void)state;
    run.model = fixture_resnet();
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAM;
    run.optimizer.lr = 0.01;
    for (zero1 = 0; zero1 < 2; zero1++) {
        sl_device_set_t *devices;
        sl_engine_params_t params;
        sl_memory_plan_t plan = {0};
        sl_engine_t *engine;
        sl_step_report_t report;

        run.zero1 = zero1;
        fixture_params(&run, &devices, &params);
        sl_assert_ok(sl_engine_rehearse(&params, &plan));
        sl_assert_ok(sl_engine_create(&params, &engine));
        for (step = 0; step < 2; step++) {
            const sl_batch_t batch =
                fixture_batch(run.model, run.rows, step, 0);

            sl_assert_ok(sl_engine_step(engine, &batch, &report));
        }
        for (d = 0; d < 6; d++) {
            assert_int_equal(report.devices[d].peak_bytes,
                             plan.devices[d].peak_bytes);
            assert_true(plan.devices[d].class_peak_bytes[SL_MEM_CLASS_COMM] >
                        0);
            persistent[zero1] +=
                plan.devices[d].class_peak_bytes[SL_MEM_CLASS_PERSISTENT];
        }
        sl_memory_plan_cleanup(&plan);
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    assert_true(persistent[1] < persistent[0]);
    sl_model_destroy(run.model);
}

/* Of two replicas on CPU devices none has memory for the other's parts. */
static void parts_are_added_where_they_lie(void **state)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 1,
                         .n_replicas = 2};
    sl_memory_plan_t plan;
    int d;

    (void)state;
    run.model = fixture_mlp();
    plan = fixture_rehearse(&run);
    for (d = 0; d < 2; d++) {
        assert_int_equal(plan.devices[d].class_peak_bytes[SL_MEM_CLASS_COMM] >
                             0,
                         fixture_is_cuda());
    }
    sl_memory_plan_cleanup(&plan);
    sl_model_destroy(run.model);
}

/* What is recomputed to fit changes no bit, on any replica. */
static void recompute_auto_fits_all_replicas(void **state)
{
    fixture_run_t run = {.rows = 128,
                         .n_micro = 8,
                         .n_steps = 2,
                         .n_devices = 4,
                         .n_stages = 2,
                         .n_replicas = 2};
    sl_device_set_t *devices;
    sl_engine_params_t params;
    sl_memory_plan_t full = {0}, none = {0};
    fixture_result_t want, got;
    int d;

    (void)state;
    run.model = fixture_unet();
    want = fixture_train(&run);
    fixture_params(&run, &devices, &params);
    sl_assert_ok(sl_engine_rehearse(&params, &none));
    params.recompute = SL_RECOMPUTE_FULL;
    sl_assert_ok(sl_engine_rehearse(&params, &full));
    for (d = 0; d < 4; d++) {
        const size_t most = none.devices[d].held_bytes;
        const size_t least = full.devices[d].held_bytes;

        if (most > least && most - (most - least) / 4 > run.memory_bytes) {
            run.memory_bytes = most - (most - least) / 4;
        }
    }
    assert_true(run.memory_bytes > 0);
    sl_memory_plan_cleanup(&none);
    sl_memory_plan_cleanup(&full);
    sl_device_set_destroy(devices);
    run.recompute = SL_RECOMPUTE_AUTO;
    got = fixture_train(&run);
    assert_same(&got, &want, &run);
    sl_model_destroy(run.model);
}

/* ---- reports ---- */

static void cells_and_signals_are_told(void **state)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 2,
                         .n_replicas = 2};
    sl_device_set_t *devices;
    sl_engine_t *engine;
    sl_step_report_t report;
    const sl_trace_event_t *events;
    sl_grid_t *grid = NULL;
    char text[256], want[256];
    sl_cell_t cell;
    sl_batch_t batch;
    size_t n, i;
    int c;

    (void)state;
    run.model = fixture_mlp();
    fixture_engine(&run, &devices, &engine);
    for (c = 0; sl_engine_cell(engine, c, &cell); c++) {
        assert_int_equal(cell.replica, c / 2);
        assert_int_equal(cell.stage, c % 2);
        assert_ptr_equal(cell.device, &devices->devices[c / 2]);
    }
    assert_int_equal(c, 4);
    batch = fixture_batch(run.model, run.rows, 0, 0);
    sl_engine_signal(engine, 2u);
    sl_engine_signal(engine, 8u);
    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    assert_int_equal(report.flags, 10);
    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    assert_int_equal(report.flags, 0);
    n = sl_engine_trace(engine, &events);
    for (i = 0; i < n; i++) {
        assert_in_range(events[i].stage, 0, 3);
    }
    assert_in_range(n, 4 * 4, 4 * 20);
    sl_assert_ok(sl_grid_create(NULL, devices, &grid));
    n = (size_t)sl_grid_format(grid, 2, 2, text, sizeof(text));
    assert_int_equal(n, strlen(text));
    (void)snprintf(want, sizeof(want),
                   "replica 0: stage 0 %s, stage 1 %s\n"
                   "replica 1: stage 0 %s, stage 1 %s\n",
                   devices->devices[0].name, devices->devices[0].name,
                   devices->devices[1].name, devices->devices[1].name);
    assert_string_equal(text, want);
    assert_int_equal(sl_grid_format(grid, 2, 2, text, 4), n);
    assert_string_equal(text, "rep");
    sl_grid_destroy(grid);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(gpt_is_the_same_on_every_grid),
        sl_unit_test(resnet_is_the_same_on_every_grid),
        sl_unit_test(unet_is_the_same_on_every_grid),
        sl_unit_test(backward_last_first),
        sl_unit_test(batches_too_small_for_all),
        sl_unit_test(replicas_agree_with_one),
        sl_unit_test(evaluation_gives_the_same_sums),
        sl_unit_test(statistics_of_all_or_of_the_first),
        sl_unit_test(state_moves_between_grids),
        sl_unit_test(gradients_are_those_of_the_mini_batch),
        sl_unit_test(the_memory_plan_counts_buckets),
        sl_unit_test(parts_are_added_where_they_lie),
        sl_unit_test(recompute_auto_fits_all_replicas),
        sl_unit_test(cells_and_signals_are_told),
    };

    return cmocka_run_group_tests_name("engine.replicas", tests, NULL, NULL);
}
