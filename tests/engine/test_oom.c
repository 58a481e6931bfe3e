/* SPDX-License-Identifier: Apache-2.0 */
/* Every host allocation of the engine fails once: a clean status, nothing
 * left behind (run it under a leak checker), and a step that was hit may be
 * taken again. */
#include "tests/engine/engine_fixture.h"
#include "tests/support/alloc_fail.h"

enum {
    MAX_ALLOCS = 20000
};

/* What may come of a failed host allocation: a pool that cannot note a region
 * refuses as if its limit were reached. */
static int is_out_of_memory(sl_status_t status)
{
    return status == SL_ERR_NO_MEMORY || status == SL_ERR_QUOTA;
}

static void check_create(int n_replicas)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 2,
                         .n_replicas = n_replicas,
                         .zero1 = 1,
                         .recompute = SL_RECOMPUTE_AUTO};
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    sl_engine_t *engine = NULL;
    sl_mem_stats_t stats;
    sl_status_t status;
    int n, is_hit = 1;

    run.model = fixture_gpt();
    fixture_params(&run, &devices, &params);
    for (n = 0; is_hit && n < MAX_ALLOCS; n++) {
        engine = NULL;
        sl_test_alloc_fail_at(n);
        status = sl_engine_create(&params, &engine);
        is_hit = sl_test_alloc_fail_end();
        if (is_hit && status < 0) {
            assert_true(is_out_of_memory(status));
            assert_null(engine);
            (void)sl_test_log_take();
        } else {
            sl_assert_ok(status);
        }
        sl_engine_destroy(engine);
        sl_mem_stats(devices->devices[0].mem, &stats);
        assert_int_equal(stats.n_live_blocks, 0);
    }
    assert_false(is_hit);
    assert_in_range(n, 100, MAX_ALLOCS);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

static void every_create_unwinds(void **state)
{
    (void)state;
    check_create(1);
    check_create(2);
}

static void every_rehearsal_unwinds(void **state)
{
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 2, .n_stages = 2};
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    sl_status_t status;
    int n, is_hit = 1;

    (void)state;
    run.model = fixture_unet();
    fixture_params(&run, &devices, &params);
    for (n = 0; is_hit && n < MAX_ALLOCS; n++) {
        sl_memory_plan_t plan = {0};

        sl_test_alloc_fail_at(n);
        status = sl_engine_rehearse(&params, &plan);
        is_hit = sl_test_alloc_fail_end();
        if (is_hit && status < 0) {
            assert_true(is_out_of_memory(status));
            (void)sl_test_log_take();
        } else {
            sl_assert_ok(status);
        }
        sl_memory_plan_cleanup(&plan);
    }
    assert_false(is_hit);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* The first step makes plans, lists and records; each of its allocations
 * fails once, and the step is then taken again. */
static void check_steps(int n_replicas)
{
    fixture_run_t run = {.rows = 4,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 2,
                         .n_replicas = n_replicas,
                         .recompute = SL_RECOMPUTE_FULL};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_step_report_t report;
    uint64_t want = 0, got;
    sl_batch_t batch;
    sl_status_t status;
    int n, is_hit = 1;

    run.model = fixture_resnet();
    batch = fixture_batch(run.model, run.rows, 0, 0);
    for (n = -1; is_hit && n < MAX_ALLOCS; n++) {
        fixture_engine(&run, &devices, &engine);
        if (n >= 0) {
            sl_test_alloc_fail_at(n);
        }
        status = sl_engine_step(engine, &batch, &report);
        is_hit = n < 0 || sl_test_alloc_fail_end();
        if (n >= 0 && is_hit && status < 0) {
            assert_true(is_out_of_memory(status));
            (void)sl_test_log_take();
            sl_assert_ok(sl_engine_step(engine, &batch, &report));
        } else {
            sl_assert_ok(status);
        }
        sl_assert_ok(sl_engine_state_hash(engine, &got));
        want = n < 0 ? got : want;
        assert_true(got == want);
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    assert_false(is_hit);
    assert_in_range(n, 50, MAX_ALLOCS);
    sl_model_destroy(run.model);
}

static void every_step_can_be_retried(void **state)
{
    (void)state;
    check_steps(1);
    check_steps(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_create_unwinds),
        sl_unit_test(every_rehearsal_unwinds),
        sl_unit_test(every_step_can_be_retried),
    };

    return cmocka_run_group_tests_name("engine.oom", tests, NULL, NULL);
}
