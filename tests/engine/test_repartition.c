/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that move between stages while it trains: nobody can tell from the
 * bits, the memory is bounded, and a move that fails has not been. */
#include "engine/repartition.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fit.h"
#include "engine/rebalance.h"
#include "tests/engine/engine_fixture.h"
#include "tests/support/alloc_fail.h"

enum {
    MAX_STAGES = 8,
    MAX_ALLOCS = 20000
};

static void step(sl_engine_t *engine, const fixture_run_t *run, int i,
                 fixture_result_t *result)
{
    const int rows = run->rows - (run->uneven_last && i == run->n_steps - 1);
    const sl_batch_t batch =
        fixture_batch(run->model, rows, i, run->ignore_every);
    sl_step_report_t report;
    sl_eval_sums_t sums = {0};

    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    result->losses[i] = report.loss;
    result->norms[i] = report.gradient_norm;
    if (run->eval_between) {
        sl_assert_ok(sl_engine_evaluate(engine, &batch, &sums));
    }
}

/* As fixture_train, but the cuts change every `every` steps; before and after
 * each change the hash is the same. */
static fixture_result_t train_moving(const fixture_run_t *run, int every,
                                     uint32_t seed)
{
    fixture_result_t result = {0};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    int cuts[MAX_STAGES + 1], i;

    fixture_engine(run, &devices, &engine);
    for (i = 0; i < run->n_steps; i++) {
        sl_repartition_report_t report;
        uint64_t before, after;

        if (i % every == 0) {
            fixture_cuts(run->model, run->n_stages, 31, seed + (uint32_t)i,
                         cuts);
            sl_assert_ok(sl_engine_state_hash(engine, &before));
            sl_assert_ok(sl_engine_repartition(engine, cuts, &report));
            sl_assert_ok(sl_engine_state_hash(engine, &after));
            assert_true(before == after);
            assert_memory_equal(sl_engine_cuts(engine), cuts,
                                ((size_t)run->n_stages + 1) * sizeof(int));
        }
        step(engine, run, i, &result);
    }
    sl_assert_ok(sl_engine_state_hash(engine, &result.hash));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return result;
}

static void assert_same(const fixture_result_t *got,
                        const fixture_result_t *want, const fixture_run_t *run)
{
    if (got->hash != want->hash ||
        memcmp(got->losses, want->losses, sizeof(got->losses)) != 0 ||
        memcmp(got->norms, want->norms, sizeof(got->norms)) != 0) {
        print_message("%s: devices %d stages %d schedule %d recompute %d "
                      "optimizer %d: hash %016llx, not %016llx\n",
                      run->model->name, run->n_devices, run->n_stages,
                      (int)run->schedule, (int)run->recompute,
                      (int)run->optimizer.kind, (unsigned long long)got->hash,
                      (unsigned long long)want->hash);
        fail();
    }
}

static void check_moves(fixture_run_t run)
{
    fixture_result_t want, got;
    int stages, schedule, recompute;
    uint32_t seed = 0;

    run.n_steps = 5;
    run.n_devices = run.n_stages = 1;
    want = fixture_train(&run);
    for (stages = 2; stages <= 4; stages++) {
        for (schedule = 0; schedule <= SL_SCHEDULE_1F1B; schedule++) {
            for (recompute = 0; recompute <= SL_RECOMPUTE_AUTO; recompute++) {
                run.n_stages = stages;
                run.n_devices = stages == 4 && recompute % 2 ? 2 : stages;
                run.schedule = (sl_schedule_kind_t)schedule;
                run.recompute = (sl_recompute_t)recompute;
                run.eval_between = recompute == 1;
                seed += 100;
                got = train_moving(&run, 1 + recompute % 3, seed);
                assert_same(&got, &want, &run);
            }
        }
    }
}

static void check_optimizers(fixture_run_t run)
{
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.lr = 0.05;
    run.optimizer.momentum = 0.9;
    check_moves(run);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.momentum = 0.0;
    run.optimizer.lr = 0.01;
    run.optimizer.weight_decay = 0.1;
    run.optimizer.clip_norm = 0.5;
    check_moves(run);
    sl_model_destroy(run.model);
}

static void a_gpt_does_not_notice_moves(void **state)
{
    (void)state;
    check_optimizers((fixture_run_t){.rows = 7,
                                     .n_micro = 4,
                                     .ignore_every = 5,
                                     .uneven_last = 1,
                                     .model = fixture_gpt()});
}

static void a_resnet_does_not_notice_moves(void **state)
{
    (void)state;
    check_optimizers((fixture_run_t){
        .rows = 8, .n_micro = 3, .uneven_last = 1, .model = fixture_resnet()});
}

static void a_unet_does_not_notice_moves(void **state)
{
    (void)state;
    check_optimizers(
        (fixture_run_t){.rows = 6, .n_micro = 3, .model = fixture_unet()});
}

/* ---- memory ---- */

static size_t used(const sl_device_set_t *devices, int d)
{
    sl_mem_stats_t stats;

    sl_mem_stats(devices->devices[d].mem, &stats);
    return stats.used_bytes;
}

static size_t layer_bytes(const sl_engine_params_t *params, int layer)
{
    const sl_layer_t *own = params->model->layers[layer];
    const size_t n = 2 + (size_t)sl_optimizer_n_moments(&params->optimizer);
    size_t bytes = 0;
    int p;

    for (p = 0; p < own->n_params; p++) {
        bytes += n * ((own->params[p].storage_bytes + SL_MEM_ALIGN_BYTES) /
                      SL_MEM_ALIGN_BYTES * SL_MEM_ALIGN_BYTES);
    }
    return bytes;
}

/* After a move each device has what a new engine has, and during it never
 * more than the larger of before and after, and one layer. */
static void memory_is_that_of_a_new_engine(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 3, .n_stages = 3};
    sl_device_set_t *devices = NULL, *other_devices = NULL;
    sl_engine_t *engine = NULL, *other = NULL;
    sl_engine_params_t params, other_params;
    size_t largest = 0;
    uint32_t trial;
    int cuts[4], d, l;

    (void)state;
    run.model = fixture_resnet();
    fixture_params(&run, &devices, &params);
    sl_assert_ok(sl_engine_create(&params, &engine));
    for (l = 0; l < run.model->n_layers; l++) {
        const size_t bytes = layer_bytes(&params, l);

        largest = bytes > largest ? bytes : largest;
    }
    for (trial = 0; trial < 40; trial++) {
        size_t before[3];

        for (d = 0; d < 3; d++) {
            before[d] = used(devices, d);
            sl_mem_boundary(devices->devices[d].mem, NULL);
        }
        fixture_cuts(run.model, 3, 31, trial, cuts);
        sl_assert_ok(sl_engine_repartition(engine, cuts, NULL));
        run.cuts = cuts;
        fixture_params(&run, &other_devices, &other_params);
        sl_assert_ok(sl_engine_create(&other_params, &other));
        for (d = 0; d < 3; d++) {
            sl_mem_stats_t stats;
            const size_t after = used(other_devices, d);

            sl_mem_stats(devices->devices[d].mem, &stats);
            assert_int_equal(stats.used_bytes, after);
            assert_true(stats.peak_bytes <=
                        (before[d] > after ? before[d] : after) + largest);
        }
        sl_engine_destroy(other);
        sl_device_set_destroy(other_devices);
    }
    sl_engine_destroy(engine);
    for (d = 0; d < 3; d++) {
        assert_int_equal(used(devices, d), 0);
    }
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* ---- failures ---- */

static void set_limit(const sl_device_t *device, size_t bytes)
{
    sl_mem_limit_request(device->mem, bytes);
    sl_mem_boundary(device->mem, NULL);
}

static void no_room_leaves_it_as_it_was(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 2, .n_stages = 2, .n_steps = 4};
    fixture_result_t want, got = {0};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    uint64_t before, after;
    int cuts[3], n_refused = 0, i;

    (void)state;
    run.model = fixture_resnet();
    want = fixture_train(&run);
    fixture_engine(&run, &devices, &engine);
    cuts[0] = 0;
    cuts[2] = run.model->n_layers;
    for (i = 0; i < run.n_steps; i++) {
        const int *now = sl_engine_cuts(engine);
        const int old = now[1];
        sl_mem_stats_t stats;
        sl_status_t status;
        int d;

        for (d = 0; d < 2; d++) {
            sl_mem_stats(devices->devices[d].mem, &stats);
            /* all that is held, and hardly more */
            set_limit(&devices->devices[d],
                      stats.used_bytes + (size_t)(8 << 10) * (size_t)i);
        }
        sl_assert_ok(sl_engine_state_hash(engine, &before));
        for (cuts[1] = 1; cuts[1] < cuts[2]; cuts[1]++) {
            status = sl_engine_repartition(engine, cuts, NULL);
            if (status < 0) {
                assert_int_equal(status, SL_ERR_QUOTA);
                sl_assert_contains(sl_last_error(), "persistent block");
                n_refused++;
            }
            assert_int_equal(sl_engine_cuts(engine)[1],
                             status < 0 ? old : cuts[1]);
            sl_assert_ok(sl_engine_state_hash(engine, &after));
            assert_true(before == after);
            if (status >= 0) {
                const int back[3] = {0, old, cuts[2]};

                sl_assert_ok(sl_engine_repartition(engine, back, NULL));
            }
        }
        for (d = 0; d < 2; d++) {
            set_limit(&devices->devices[d], SIZE_MAX);
        }
        step(engine, &run, i, &got);
    }
    assert_true(n_refused > 10);
    sl_assert_ok(sl_engine_state_hash(engine, &got.hash));
    assert_same(&got, &want, &run);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* Every host allocation of a move fails once, also on the way back from one
 * that had no room: the state is whole and the next step right. */
static void check_allocations(fixture_run_t run, int is_tight)
{
    const int cuts[4] = {0, 1, 2, run.model->n_layers};
    fixture_result_t want, got = {0};
    int n, is_hit = 1, n_other = 0;

    want = fixture_train(&run);
    for (n = 0; is_hit && n < MAX_ALLOCS; n++) {
        sl_device_set_t *devices = NULL;
        sl_engine_t *engine = NULL;
        sl_status_t status;
        uint64_t before, after;
        int old[4], d;

        fixture_engine(&run, &devices, &engine);
        memcpy(old, sl_engine_cuts(engine), sizeof(old));
        step(engine, &run, 0, &got);
        for (d = 0; d < 3 && is_tight; d++) {
            set_limit(&devices->devices[d], used(devices, d) + 20000);
        }
        sl_assert_ok(sl_engine_state_hash(engine, &before));
        sl_test_alloc_fail_at(n);
        status = sl_engine_repartition(engine, cuts, NULL);
        is_hit = sl_test_alloc_fail_end();
        (void)sl_test_log_take();
        if (!is_hit) {
            assert_int_equal(status, is_tight ? SL_ERR_QUOTA : SL_OK);
        }
        assert_true(status == SL_OK || status == SL_ERR_NO_MEMORY ||
                    status == SL_ERR_QUOTA);
        if (status < 0) {
            n_other += memcmp(old, sl_engine_cuts(engine), sizeof(old)) != 0;
        }
        sl_assert_ok(sl_engine_state_hash(engine, &after));
        assert_true(before == after);
        for (d = 0; d < 3; d++) {
            set_limit(&devices->devices[d], SIZE_MAX);
        }
        step(engine, &run, 1, &got);
        sl_assert_ok(sl_engine_state_hash(engine, &got.hash));
        assert_same(&got, &want, &run);
        sl_engine_destroy(engine);
        for (d = 0; d < 3; d++) {
            assert_int_equal(used(devices, d), 0);
        }
        sl_device_set_destroy(devices);
    }
    print_message("%d allocations; %d times part of the way stayed\n", n - 1,
                  n_other);
    assert_false(is_hit);
    assert_in_range(n, 20, MAX_ALLOCS);
}

static void every_allocation_of_a_move_may_fail(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 3, .n_stages = 3, .n_steps = 2};

    (void)state;
    run.model = fixture_resnet();
    check_allocations(run, 0);
    check_allocations(run, 1);
    sl_model_destroy(run.model);
    run.model = fixture_gpt();
    run.recompute = SL_RECOMPUTE_FULL;
    check_allocations(run, 0);
    sl_model_destroy(run.model);
}

/* The search for cuts under a limit, and the policy: clean statuses, nothing
 * left behind. */
static void every_search_unwinds(void **state)
{
    fixture_run_t run = {.rows = 256,
                         .n_micro = 8,
                         .n_devices = 2,
                         .n_stages = 2,
                         .memory_bytes = (size_t)1500 << 10};
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    sl_part_costs_t costs;
    sl_part_problem_t problem = {.costs = &costs, .n_stages = 2};
    sl_part_speed_t speed;
    sl_rebalance_params_t policy_params;
    sl_fit_t fit = {0};
    int n, cuts[3], is_hit = 1, n_rounds = 0;

    (void)state;
    run.model = fixture_unet();
    fixture_params(&run, &devices, &params);
    sl_part_speed_default(&speed, 1);
    sl_assert_ok(sl_part_costs_analytic(run.model, 32, &speed, &costs));
    for (n = 0; is_hit && n < MAX_ALLOCS; n += 1 + n / 40) {
        sl_status_t status;

        sl_test_alloc_fail_at(n);
        status = sl_engine_fit(&params, &problem, cuts, &fit);
        is_hit = sl_test_alloc_fail_end();
        if (is_hit && status < 0) {
            assert_true(status == SL_ERR_NO_MEMORY || status == SL_ERR_QUOTA);
            (void)sl_test_log_take();
        } else {
            sl_assert_ok(status);
            sl_assert_ok(sl_part_check_cuts(run.model->n_layers, 2, cuts));
            n_rounds = fit.n_rounds;
        }
    }
    assert_false(is_hit);
    assert_true(n_rounds > 1); /* the estimates were asked for */
    sl_rebalance_params_default(&policy_params);
    policy_params.n_devices = 2;
    for (n = 0, is_hit = 1; is_hit; n++) {
        sl_rebalance_t *policy = NULL;
        sl_status_t status;

        sl_test_alloc_fail_at(n);
        status = sl_rebalance_create(&policy_params, &policy);
        is_hit = sl_test_alloc_fail_end();
        assert_int_equal(status, is_hit ? SL_ERR_NO_MEMORY : SL_OK);
        (void)sl_test_log_take();
        sl_rebalance_destroy(policy);
    }
    sl_part_costs_cleanup(&costs);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* ---- refusals of device memory, at any block ---- */

static long n_blocks, refuse_from = -1, refuse_until = -1;

sl_status_t __real_sl_mem_alloc(sl_mem_t *mem, sl_mem_class_t mem_class,
                                size_t bytes, sl_mem_block_t **block_p);
sl_status_t __wrap_sl_mem_alloc(sl_mem_t *mem, sl_mem_class_t mem_class,
                                size_t bytes, sl_mem_block_t **block_p);

sl_status_t __wrap_sl_mem_alloc(sl_mem_t *mem, sl_mem_class_t mem_class,
                                size_t bytes, sl_mem_block_t **block_p)
{
    if (refuse_from >= 0) {
        const long n = n_blocks++;

        if (n >= refuse_from && n < refuse_until) {
            sl_last_error_set("persistent block refused by the test");
            return SL_ERR_QUOTA;
        }
    }
    return __real_sl_mem_alloc(mem, mem_class, bytes, block_p);
}

/* From block n on, `n_refused` are refused: with many there is no way back
 * either, and what is left must still be a partition that trains on. */
static void check_refusals(fixture_run_t run, int n_refused)
{
    const int cuts[4] = {0, 1, 2, run.model->n_layers};
    fixture_result_t want, got = {0};
    int n, n_failed = 0, n_other = 0, is_hit = 1;

    want = fixture_train(&run);
    for (n = 0; is_hit; n++) {
        sl_device_set_t *devices = NULL;
        sl_engine_t *engine = NULL;
        sl_status_t status;
        uint64_t before, after;
        int old[4], d;

        fixture_engine(&run, &devices, &engine);
        memcpy(old, sl_engine_cuts(engine), sizeof(old));
        step(engine, &run, 0, &got);
        sl_assert_ok(sl_engine_state_hash(engine, &before));
        n_blocks = 0;
        refuse_from = n;
        refuse_until = n + n_refused;
        status = sl_engine_repartition(engine, cuts, NULL);
        is_hit = n_blocks > n;
        refuse_from = refuse_until = -1;
        assert_true(status == SL_OK || status == SL_ERR_QUOTA);
        n_failed += status < 0;
        n_other +=
            status < 0 && memcmp(old, sl_engine_cuts(engine), sizeof(old)) != 0;
        sl_assert_ok(sl_engine_state_hash(engine, &after));
        assert_true(before == after);
        step(engine, &run, 1, &got);
        sl_assert_ok(sl_engine_state_hash(engine, &got.hash));
        assert_same(&got, &want, &run);
        sl_engine_destroy(engine);
        for (d = 0; d < 3; d++) {
            assert_int_equal(used(devices, d), 0);
        }
        sl_device_set_destroy(devices);
    }
    print_message("%d of %d moves failed, %d stayed on part of the way\n",
                  n_failed, n, n_other);
    assert_true(n_failed > 0);
    assert_int_equal(n_other > 0, n_refused > 1000);
}

static void every_block_of_a_move_may_be_refused(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 3, .n_stages = 3, .n_steps = 2};

    (void)state;
    run.model = fixture_resnet();
    check_refusals(run, 1);
    check_refusals(run, 1 << 20);
    sl_model_destroy(run.model);
}

static void bad_cuts_are_refused(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_devices = 2, .n_stages = 2};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_repartition_report_t report;
    int old;

    (void)state;
    run.model = fixture_mlp();
    fixture_engine(&run, &devices, &engine);
    old = sl_engine_cuts(engine)[1];
    sl_assert_status(
        sl_engine_repartition(engine, (const int[]){0, 0, 5}, NULL),
        SL_ERR_CONFIG);
    sl_assert_status(
        sl_engine_repartition(engine, (const int[]){0, 5, 5}, NULL),
        SL_ERR_CONFIG);
    sl_assert_status(
        sl_engine_repartition(engine, (const int[]){0, 2, 4}, NULL),
        SL_ERR_CONFIG);
    assert_int_equal(sl_engine_cuts(engine)[1], old);
    /* the cuts it has: nothing to do */
    sl_assert_ok(
        sl_engine_repartition(engine, (const int[]){0, old, 5}, &report));
    assert_int_equal(report.n_layers, 0);
    assert_int_equal(report.moved_bytes, 0);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_gpt_does_not_notice_moves),
        sl_unit_test(a_resnet_does_not_notice_moves),
        sl_unit_test(a_unet_does_not_notice_moves),
        sl_unit_test(memory_is_that_of_a_new_engine),
        sl_unit_test(no_room_leaves_it_as_it_was),
        sl_unit_test(every_allocation_of_a_move_may_fail),
        sl_unit_test(every_search_unwinds),
        sl_unit_test(every_block_of_a_move_may_be_refused),
        sl_unit_test(bad_cuts_are_refused),
    };

    return cmocka_run_group_tests_name("engine.repartition", tests, NULL, NULL);
}
