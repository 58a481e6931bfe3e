/* SPDX-License-Identifier: Apache-2.0 */
/* The golden test: a pipeline is one device, bit for bit. */
#include <stdio.h>
#include <string.h>

#include "tests/engine/engine_fixture.h"

static void assert_same(const fixture_result_t *got,
                        const fixture_result_t *want, const fixture_run_t *run)
{
    if (got->hash != want->hash ||
        memcmp(got->losses, want->losses, sizeof(got->losses)) != 0 ||
        memcmp(got->norms, want->norms, sizeof(got->norms)) != 0) {
        (void)fprintf(stderr,
                      "%s: devices %d stages %d micro-batches %d schedule %d "
                      "order %d recompute %d: hash %016llx, not %016llx; loss "
                      "%.17g, not %.17g\n",
                      run->model->name, run->n_devices, run->n_stages,
                      run->n_micro, (int)run->schedule, (int)run->order,
                      (int)run->recompute, (unsigned long long)got->hash,
                      (unsigned long long)want->hash, got->losses[0],
                      want->losses[0]);
        fail();
    }
}

/* Every (devices, stages, schedule, recompute) beside one device. */
static void check_grid(fixture_run_t run, int max_stages)
{
    fixture_result_t want, got;
    int stages, schedule, recompute, share;

    run.n_devices = run.n_stages = 1;
    want = fixture_train(&run);
    for (stages = 1; stages <= max_stages; stages++) {
        for (schedule = 0; schedule <= SL_SCHEDULE_1F1B; schedule++) {
            for (recompute = 0; recompute <= SL_RECOMPUTE_EXCEPT_LAST;
                 recompute++) {
                if (run.order == SL_BACKWARD_LIFO &&
                    schedule == SL_SCHEDULE_1F1B) {
                    continue;
                }
                run.n_stages = stages;
                /* now and then several stages on one device */
                share = stages > 2 && schedule != recompute % 2;
                run.n_devices = share ? stages / 2 : stages;
                run.schedule = (sl_schedule_kind_t)schedule;
                run.recompute = (sl_recompute_t)recompute;
                got = fixture_train(&run);
                assert_same(&got, &want, &run);
            }
        }
    }
}

static void gpt_is_one_device(void **state)
{
    fixture_run_t run = {
        .rows = 7, .n_micro = 4, .n_steps = 3, .ignore_every = 5};

    (void)state;
    run.model = fixture_gpt();
    check_grid(run, 4);
    sl_model_destroy(run.model);
}

static void gpt_with_adamw_and_clipping(void **state)
{
    fixture_run_t run = {.rows = 4, .n_micro = 2, .n_steps = 3};

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.lr = 0.01;
    run.optimizer.weight_decay = 0.1;
    run.optimizer.clip_norm = 0.5;
    run.model = fixture_gpt();
    check_grid(run, 4);
    sl_model_destroy(run.model);
}

static void resnet_is_one_device(void **state)
{
    fixture_run_t run = {.rows = 8, .n_micro = 3, .n_steps = 3};

    (void)state;
    run.model = fixture_resnet();
    check_grid(run, 4);
    sl_model_destroy(run.model);
}

static void resnet_backward_last_first(void **state)
{
    fixture_run_t run = {
        .rows = 6, .n_micro = 3, .n_steps = 2, .order = SL_BACKWARD_LIFO};

    (void)state;
    run.model = fixture_resnet();
    check_grid(run, 3);
    sl_model_destroy(run.model);
}

static void unet_skips_cross_stages(void **state)
{
    fixture_run_t run = {.rows = 4, .n_micro = 2, .n_steps = 2};

    (void)state;
    run.model = fixture_unet();
    check_grid(run, 8);
    sl_model_destroy(run.model);
}

/* Every possible pair of cuts of the U-Net. */
static void every_cut_gives_the_same_bits(void **state)
{
    fixture_run_t run = {
        .rows = 3, .n_micro = 3, .n_steps = 1, .n_devices = 1, .n_stages = 1};
    fixture_result_t want, got;
    int cuts[4], n;

    (void)state;
    run.model = fixture_unet();
    n = run.model->n_layers;
    want = fixture_train(&run);
    run.n_stages = 3;
    run.n_devices = 3;
    run.recompute = SL_RECOMPUTE_FULL;
    run.cuts = cuts;
    cuts[0] = 0;
    cuts[3] = n;
    for (cuts[1] = 1; cuts[1] < n - 1; cuts[1]++) {
        for (cuts[2] = cuts[1] + 1; cuts[2] < n; cuts[2] += 3) {
            got = fixture_train(&run);
            assert_same(&got, &want, &run);
        }
    }
    sl_model_destroy(run.model);
}

/* A stage a layer: those without parameters too. */
static void a_stage_may_be_any_layer(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_steps = 2, .n_devices = 1, .n_stages = 1};
    fixture_result_t want, got;

    (void)state;
    run.model = fixture_gpt();
    want = fixture_train(&run);
    run.n_stages = run.model->n_layers;
    run.n_devices = 2;
    run.schedule = SL_SCHEDULE_1F1B;
    got = fixture_train(&run);
    assert_same(&got, &want, &run);
    sl_model_destroy(run.model);
}

static void micro_batch_counts_around_the_stages(void **state)
{
    const int counts[] = {1, 2, 3, 4, 5, 8};
    fixture_run_t run = {.rows = 8, .n_steps = 2};
    size_t i;

    (void)state;
    run.model = fixture_mlp();
    for (i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        run.n_micro = counts[i];
        check_grid(run, 4);
    }
    sl_model_destroy(run.model);
}

static void evaluation_has_no_side_effects(void **state)
{
    fixture_run_t run = {
        .rows = 4, .n_micro = 2, .n_steps = 3, .n_devices = 2, .n_stages = 2};
    fixture_result_t want, got;

    (void)state;
    run.model = fixture_resnet();
    want = fixture_train(&run);
    run.eval_between = 1;
    got = fixture_train(&run);
    assert_same(&got, &want, &run);
    sl_model_destroy(run.model);
}

static void a_smaller_last_batch(void **state)
{
    fixture_run_t run = {
        .rows = 5, .n_micro = 3, .n_steps = 3, .uneven_last = 1};

    (void)state;
    run.model = fixture_resnet();
    check_grid(run, 3);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(gpt_is_one_device),
        sl_unit_test(gpt_with_adamw_and_clipping),
        sl_unit_test(resnet_is_one_device),
        sl_unit_test(resnet_backward_last_first),
        sl_unit_test(unet_skips_cross_stages),
        sl_unit_test(every_cut_gives_the_same_bits),
        sl_unit_test(a_stage_may_be_any_layer),
        sl_unit_test(micro_batch_counts_around_the_stages),
        sl_unit_test(evaluation_has_no_side_effects),
        sl_unit_test(a_smaller_last_batch),
    };

    return cmocka_run_group_tests_name("engine.exact", tests, NULL, NULL);
}
