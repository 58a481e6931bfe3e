/* SPDX-License-Identifier: Apache-2.0 */
/* The memory plan: a rehearsal says what the real step will use, whether it
 * fits, and which layers to recompute so that it does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/engine/engine_fixture.h"

/* With a device a stage, to the byte. */
static void check_prediction(const fixture_run_t *run)
{
    sl_memory_plan_t plan = fixture_rehearse(run);
    const fixture_bytes_t got = fixture_measure(run);
    int d;

    sl_assert_ok(got.status);
    assert_true(plan.fits);
    assert_int_equal(plan.n_devices, run->n_devices);
    for (d = 0; d < plan.n_devices; d++) {
        if (plan.devices[d].peak_bytes != got.peak[d] ||
            plan.devices[d].held_bytes != got.held[d]) {
            (void)fprintf(stderr,
                          "%s: stages %d schedule %d recompute %d device %d: "
                          "peak %zu predicted, %zu measured, held %zu and "
                          "%zu\n",
                          run->model->name, run->n_stages, (int)run->schedule,
                          (int)run->recompute, d, plan.devices[d].peak_bytes,
                          got.peak[d], plan.devices[d].held_bytes, got.held[d]);
            fail();
        }
    }
    sl_memory_plan_cleanup(&plan);
}

static void check_predictions(fixture_run_t run)
{
    int schedule, recompute;

    run.n_steps = 3;
    for (run.n_stages = 1; run.n_stages <= 4; run.n_stages++) {
        run.n_devices = run.n_stages;
        for (schedule = 0; schedule <= SL_SCHEDULE_1F1B; schedule++) {
            for (recompute = 0; recompute <= SL_RECOMPUTE_AUTO; recompute++) {
                run.schedule = (sl_schedule_kind_t)schedule;
                run.recompute = (sl_recompute_t)recompute;
                check_prediction(&run);
            }
        }
    }
    sl_model_destroy(run.model);
}

static void the_plan_of_a_gpt_is_what_it_uses(void **state)
{
    (void)state;
    check_predictions((fixture_run_t){
        .rows = 13, .n_micro = 5, .model = fixture_gpt(), .ignore_every = 3});
}

static void the_plan_of_a_resnet_is_what_it_uses(void **state)
{
    (void)state;
    check_predictions(
        (fixture_run_t){.rows = 24, .n_micro = 4, .model = fixture_resnet()});
}

/* Skips that cross stages: loans of several lengths. */
static void the_plan_of_a_unet_is_what_it_uses(void **state)
{
    fixture_run_t run = {.rows = 24, .n_micro = 12, .model = fixture_unet()};

    (void)state;
    check_predictions(run);
    run.model = fixture_unet();
    run.order = SL_BACKWARD_LIFO;
    run.n_devices = run.n_stages = 5;
    run.n_steps = 2;
    check_prediction(&run);
    sl_model_destroy(run.model);
}

/* Stages that share a device mix by timing: near, and not to the byte. */
static void shared_devices_are_near(void **state)
{
    fixture_run_t run = {.rows = 64,
                         .n_micro = 4,
                         .n_devices = 2,
                         .n_stages = 4,
                         .n_steps = 3,
                         .model = fixture_unet()};
    sl_memory_plan_t plan;
    fixture_bytes_t got;
    int d;

    (void)state;
    plan = fixture_rehearse(&run);
    got = fixture_measure(&run);
    for (d = 0; d < 2; d++) {
        const double ratio =
            (double)got.peak[d] / (double)plan.devices[d].peak_bytes;

        assert_true(ratio > 0.7 && ratio < 1.3);
    }
    sl_memory_plan_cleanup(&plan);
    sl_model_destroy(run.model);
}

static size_t largest_peak(const sl_memory_plan_t *plan)
{
    size_t peak = 0;
    int d;

    for (d = 0; d < plan->n_devices; d++) {
        peak = plan->devices[d].peak_bytes > peak ? plan->devices[d].peak_bytes
                                                  : peak;
    }
    return peak;
}

static size_t predicted_peak(fixture_run_t run, sl_recompute_t recompute)
{
    sl_memory_plan_t plan;
    size_t peak;

    run.recompute = recompute;
    plan = fixture_rehearse(&run);
    peak = largest_peak(&plan);
    sl_memory_plan_cleanup(&plan);
    return peak;
}

/* A plan is of whole regions: on others a job may run where it says not. */
static void check_fits(const sl_memory_plan_t *plan, sl_status_t status)
{
    if (plan->fits || !fixture_regions_shrink()) {
        assert_int_equal(plan->fits, status >= 0);
    }
}

/* Around the memory it needs: the plan says fit exactly when it trains. */
static void the_plan_knows_what_fits(void **state)
{
    fixture_run_t run = {.rows = 32,
                         .n_micro = 2,
                         .n_devices = 2,
                         .n_stages = 2,
                         .n_steps = 3,
                         .model = fixture_unet()};
    const size_t peak = predicted_peak(run, SL_RECOMPUTE_NONE);
    int tenths, n_fit = 0, n_not = 0;

    (void)state;
    for (tenths = 1; tenths <= 14; tenths++) {
        sl_memory_plan_t plan;
        fixture_bytes_t got;

        run.memory_bytes = peak / 10 * (size_t)tenths;
        plan = fixture_rehearse(&run);
        got = fixture_measure(&run);
        assert_true(got.status == SL_OK || got.status == SL_ERR_QUOTA);
        check_fits(&plan, got.status);
        n_fit += plan.fits;
        n_not += !plan.fits;
        /* what does not fit is still measured: the peak does not change */
        assert_int_equal(largest_peak(&plan), peak);
        sl_memory_plan_cleanup(&plan);
    }
    assert_true(n_fit > 0 && n_not > 0);
    sl_model_destroy(run.model);
}

/* ---- recompute auto ---- */

static int count_kept(const sl_memory_plan_t *plan)
{
    int l, n = 0;

    for (l = 0; l < plan->n_layers; l++) {
        n += plan->keeps[l];
    }
    return n;
}

/* From the memory of full recomputation to that of none: always the same
 * bits, under the limit, and the more memory the fewer layers run twice. */
static void check_auto(fixture_run_t run)
{
    const size_t none = predicted_peak(run, SL_RECOMPUTE_NONE);
    const size_t full = predicted_peak(run, SL_RECOMPUTE_FULL);
    fixture_bytes_t want, got;
    int i, kept, kept_before = -1, n_between = 0;

    run.n_steps = 2;
    want = fixture_measure(&run);
    run.recompute = SL_RECOMPUTE_AUTO;
    assert_true(full < none);
    for (i = 0; i <= 6; i++) {
        sl_memory_plan_t plan;

        run.memory_bytes = full + (none - full) / 6 * (size_t)i;
        run.memory_bytes += run.memory_bytes / 20;
        plan = fixture_rehearse(&run);
        got = fixture_measure(&run);
        check_fits(&plan, got.status);
        kept = count_kept(&plan);
        if (plan.fits) {
            assert_true(got.hash == want.hash);
            assert_true(kept >= kept_before);
            n_between += kept > 0 && kept < plan.n_layers;
            kept_before = kept;
        }
        sl_memory_plan_cleanup(&plan);
    }
    assert_true(n_between > 0);
    run.memory_bytes = 0; /* plenty: nothing runs twice */
    {
        sl_memory_plan_t plan = fixture_rehearse(&run);

        assert_int_equal(count_kept(&plan), plan.n_layers);
        assert_int_equal(largest_peak(&plan), none);
        sl_memory_plan_cleanup(&plan);
    }
    sl_model_destroy(run.model);
}

static void auto_fits_a_gpt(void **state)
{
    (void)state;
    check_auto((fixture_run_t){.rows = 512,
                               .n_micro = 4,
                               .n_devices = 2,
                               .n_stages = 2,
                               .model = fixture_gpt()});
}

static void auto_fits_a_resnet(void **state)
{
    (void)state;
    check_auto((fixture_run_t){.rows = 128,
                               .n_micro = 4,
                               .n_devices = 2,
                               .n_stages = 2,
                               .model = fixture_resnet()});
}

static void auto_fits_a_unet(void **state)
{
    (void)state;
    check_auto((fixture_run_t){.rows = 128,
                               .n_micro = 4,
                               .n_devices = 3,
                               .n_stages = 3,
                               .schedule = SL_SCHEDULE_1F1B,
                               .model = fixture_unet()});
}

/* Any choice of layers gives the same bits, and needs what its rehearsal
 * says. */
static void check_any_choice(fixture_run_t run)
{
    const sl_rng_t rng = sl_rng_at(11, 0, 0, 0, SL_RNG_USE_SYNTHETIC);
    unsigned char keeps[64];
    fixture_bytes_t want, got;
    uint64_t draw = 0;
    int trial, l;

    assert_true(run.model->n_layers <= 64);
    want = fixture_measure(&run);
    run.recompute = SL_RECOMPUTE_AUTO;
    run.keeps = keeps;
    for (trial = 0; trial < 24; trial++) {
        sl_memory_plan_t plan;

        for (l = 0; l < run.model->n_layers; l++) {
            keeps[l] = sl_rng_u32(&rng, draw++) % 4u < (unsigned)trial % 4u;
        }
        run.n_devices = run.n_stages = 1 + trial % 4;
        run.schedule = (sl_schedule_kind_t)(trial / 4 % 2);
        plan = fixture_rehearse(&run);
        got = fixture_measure(&run);
        assert_true(got.hash == want.hash);
        for (l = 0; l < plan.n_devices; l++) {
            assert_int_equal(plan.devices[l].peak_bytes, got.peak[l]);
        }
        sl_memory_plan_cleanup(&plan);
    }
    sl_model_destroy(run.model);
}

static void any_choice_of_layers_is_exact(void **state)
{
    const fixture_run_t run = {
        .rows = 6, .n_micro = 3, .n_steps = 2, .n_devices = 1, .n_stages = 1};
    fixture_run_t with = run;

    (void)state;
    with.model = fixture_gpt();
    check_any_choice(with);
    with.model = fixture_resnet();
    check_any_choice(with);
    with.model = fixture_unet();
    check_any_choice(with);
}

static void no_choice_fits_too_little(void **state)
{
    fixture_run_t run = {.rows = 64,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 1,
                         .n_steps = 1,
                         .recompute = SL_RECOMPUTE_AUTO,
                         .model = fixture_unet()};
    sl_memory_plan_t plan;
    fixture_bytes_t got;

    (void)state;
    run.memory_bytes = predicted_peak(run, SL_RECOMPUTE_FULL) / 2;
    plan = fixture_rehearse(&run);
    assert_false(plan.fits);
    sl_memory_plan_cleanup(&plan);
    got = fixture_measure(&run);
    assert_int_equal(got.status, SL_ERR_QUOTA);
    sl_assert_contains(sl_last_error(), "it would fit with ");
    sl_model_destroy(run.model);
}

/* What is advised must be true. */
static void advice_is_true(void **state)
{
    fixture_run_t run = {.rows = 64,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 1,
                         .n_steps = 2,
                         .model = fixture_unet()};
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    char text[512];
    const char *at;
    size_t too_little;
    int n = 0;

    (void)state;
    run.memory_bytes = predicted_peak(run, SL_RECOMPUTE_FULL) / 2 +
                       predicted_peak(run, SL_RECOMPUTE_NONE) / 2;
    assert_int_equal(fixture_measure(&run).status, SL_ERR_QUOTA);
    fixture_params(&run, &devices, &params);
    sl_engine_advise(&params, text, sizeof(text));
    sl_device_set_destroy(devices);
    at = strstr(text, "a memory limit of ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "a memory limit of %dMiB", &n), 1);
    too_little = run.memory_bytes;
    run.memory_bytes = (size_t)n << 20;
    assert_int_equal(fixture_measure(&run).status, SL_OK);
    run.memory_bytes = too_little;
    sl_assert_contains(text, "it would fit with recompute auto");
    run.recompute = SL_RECOMPUTE_AUTO;
    assert_int_equal(fixture_measure(&run).status, SL_OK);
    run.recompute = SL_RECOMPUTE_NONE;
    at = strstr(text, " micro-batches");
    assert_non_null(at);
    while (at > text && at[-1] >= '0' && at[-1] <= '9') {
        at--;
    }
    assert_int_equal(sscanf(at, "%d", &n), 1);
    run.n_micro = n;
    if (strncmp(strstr(at, " micro-batches"), " micro-batches and", 18) == 0) {
        run.recompute = SL_RECOMPUTE_AUTO;
    }
    assert_int_equal(fixture_measure(&run).status, SL_OK);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(the_plan_of_a_gpt_is_what_it_uses),
        sl_unit_test(the_plan_of_a_resnet_is_what_it_uses),
        sl_unit_test(the_plan_of_a_unet_is_what_it_uses),
        sl_unit_test(shared_devices_are_near),
        sl_unit_test(the_plan_knows_what_fits),
        sl_unit_test(auto_fits_a_gpt),
        sl_unit_test(auto_fits_a_resnet),
        sl_unit_test(auto_fits_a_unet),
        sl_unit_test(any_choice_of_layers_is_exact),
        sl_unit_test(no_choice_fits_too_little),
        sl_unit_test(advice_is_true),
    };

    return cmocka_run_group_tests_name("engine.memory_plan", tests, NULL, NULL);
}
