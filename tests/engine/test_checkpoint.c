/* SPDX-License-Identifier: Apache-2.0 */
/* A run that was saved and went on ends with the same bits as one that was
 * not interrupted, whatever the shape on both sides; another run's checkpoint
 * is refused with what differs. */
#include <math.h>
#include <stdint.h>

#include "tests/engine/checkpoint_bed.h"

enum {
    HALF = 3 /* steps before and after */
};

/* The shapes that a run may be saved from and go on in. */
static const struct shape {
    int n_devices, n_stages;
    sl_schedule_kind_t schedule;
    sl_recompute_t recompute;
} shapes[] = {
    {1, 1, SL_SCHEDULE_GPIPE, SL_RECOMPUTE_NONE},
    {2, 2, SL_SCHEDULE_1F1B, SL_RECOMPUTE_NONE},
    {2, 3, SL_SCHEDULE_GPIPE, SL_RECOMPUTE_FULL},
    {3, 4, SL_SCHEDULE_1F1B, SL_RECOMPUTE_EXCEPT_LAST},
};

enum {
    N_SHAPES = sizeof(shapes) / sizeof(*shapes)
};

static fixture_run_t shaped(const fixture_run_t *from, const struct shape *s)
{
    fixture_run_t run = *from;

    run.n_devices = s->n_devices;
    run.n_stages = s->n_stages;
    run.schedule = s->schedule;
    run.recompute = s->recompute;
    return run;
}

/* Every pair of shapes. */
static void check_all_shapes(const fixture_run_t *base)
{
    uint64_t want;
    bed_t bed;
    int from, to;

    bed_open(&bed, base);
    (void)bed_train(&bed, 2 * HALF);
    want = bed_hash(&bed);
    bed_close(&bed);
    for (from = 0; from < N_SHAPES; from++) {
        const fixture_run_t first = shaped(base, &shapes[from]);
        char name[32];
        const char *dir;

        (void)snprintf(name, sizeof(name), "from-%d", from);
        dir = bed_path(name);
        bed_open(&bed, &first);
        bed_save(&bed, dir, bed_train(&bed, HALF));
        bed_close(&bed);
        for (to = 0; to < N_SHAPES; to++) {
            const fixture_run_t second = shaped(base, &shapes[to]);
            sl_checkpoint_info_t info;

            bed_open(&bed, &second);
            sl_assert_ok(bed_resume(&bed, dir, NULL, SL_RESUME_EXACT, &info));
            assert_int_equal(info.step, HALF);
            assert_int_equal(sl_engine_n_steps(bed.engine), HALF);
            (void)bed_train(&bed, 2 * HALF);
            assert_int_equal(bed_hash(&bed), want);
            bed_close(&bed);
        }
    }
}

/* Dropout, tied weights, warm-up, a learning rate that falls. */
static void test_transformer(void **state)
{
    fixture_run_t run = {
        .n_devices = 1, .n_stages = 1, .rows = 6, .n_micro = 3};

    (void)state;
    run.model = fixture_gpt();
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.lr = 0.01;
    run.optimizer.clip_norm = 1.0;
    run.optimizer.weight_decay = 0.1;
    run.optimizer.lr_kind = SL_LR_COSINE;
    run.optimizer.total_steps = 10;
    run.optimizer.warmup_steps = 4;
    check_all_shapes(&run);
    sl_model_destroy(run.model);
}

/* Running statistics; blocked layouts with padded channels. */
static void test_convolutions(void **state)
{
    fixture_run_t run = {
        .n_devices = 1, .n_stages = 1, .rows = 5, .n_micro = 2};

    (void)state;
    run.model = fixture_resnet();
    check_all_shapes(&run);
    sl_model_destroy(run.model);
}

/* The copy is of the moment it was taken: training goes on meanwhile. */
static void test_training_goes_on(void **state)
{
    const fixture_run_t run = {.model = fixture_mlp(),
                               .n_devices = 2,
                               .n_stages = 2,
                               .rows = 4,
                               .n_micro = 2};
    sl_checkpoint_info_t info;
    sl_saver_stats_t stats;
    sl_saver_t *saver;
    uint64_t at[6];
    const char *log;
    bed_t bed;
    int i;

    (void)state;
    bed_open(&bed, &run);
    saver = bed_saver(&bed, bed_path("c"), 0, 0, 1);
    for (i = 0; i < 6; i++) {
        (void)bed_train(&bed, (uint32_t)i + 1);
        at[i] = bed_hash(&bed);
        sl_assert_ok(sl_saver_boundary(saver));
        sl_assert_ok(sl_saver_save(saver, 1.0, (double)NAN));
    }
    sl_assert_ok(sl_saver_wait(saver));
    /* a save that had to wait has said so, once */
    log = sl_test_log_take();
    assert_true(log[0] == '\0' || (strncmp(log, "training waits: ", 16) == 0 &&
                                   strchr(log, '\n') == log + strlen(log) - 1));
    sl_saver_stats(saver, &stats);
    assert_int_equal(stats.n_written, 6);
    assert_int_equal(stats.n_failed, 0);
    assert_true(stats.snapshot_bytes > 0);
    assert_string_equal(stats.last, "step-00000006");
    sl_saver_destroy(saver);
    for (i = 0; i < 6; i++) {
        char name[SL_CHECKPOINT_NAME_BYTES];

        (void)snprintf(name, sizeof(name), "step-%08d", i + 1);
        sl_assert_ok(
            bed_resume(&bed, bed_path("c"), name, SL_RESUME_EXACT, &info));
        assert_int_equal(bed_hash(&bed), at[i]);
    }
    bed_close(&bed);
    sl_model_destroy(run.model);
}

static void save_mlp(const fixture_run_t *run, const char *dir)
{
    bed_t bed;

    bed_open(&bed, run);
    bed_save(&bed, dir, bed_train(&bed, HALF));
    bed_close(&bed);
}

/* Refused, and both values are named. */
static void check_refused(const fixture_run_t *run, const char *dir,
                          const char *what)
{
    sl_checkpoint_info_t info;
    uint64_t before;
    bed_t bed;

    bed_open(&bed, run);
    before = bed_hash(&bed);
    sl_assert_status(bed_resume(&bed, dir, NULL, SL_RESUME_EXACT, &info),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), what);
    assert_int_equal(bed_hash(&bed), before);
    assert_int_equal(sl_engine_n_steps(bed.engine), 0);
    bed_close(&bed);
}

static void test_other_runs_are_refused(void **state)
{
    fixture_run_t run = {.model = fixture_mlp(),
                         .n_devices = 1,
                         .n_stages = 1,
                         .rows = 4,
                         .n_micro = 2};
    sl_model_t *const mlp = run.model, *const gpt = fixture_gpt();
    const char *dir = bed_path("c");
    fixture_run_t other;

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.lr = 0.25;
    save_mlp(&run, dir);
    other = run;
    other.rows = 6;
    check_refused(&other, dir, "train.batch is 4 there and 6 here");
    other = run;
    other.optimizer.lr = 0.5;
    check_refused(&other, dir, "optimizer.lr is 0.25 there and 0.5 here");
    other = run;
    other.optimizer.kind = SL_OPTIMIZER_ADAM;
    check_refused(&other, dir, "optimizer.type is sgd there and adam here");
    other = run;
    other.optimizer.momentum = 0.5;
    check_refused(&other, dir, "optimizer.momentum is 0 there and 0.5 here");
    other = run;
    other.model = gpt;
    check_refused(&other, dir, "the number of layers is ");
    sl_model_destroy(mlp);
    sl_model_destroy(gpt);
}

/* Settings may change when that is allowed; the optimizer may not. */
static void test_changed_settings(void **state)
{
    fixture_run_t run = {.model = fixture_mlp(),
                         .n_devices = 1,
                         .n_stages = 1,
                         .rows = 4,
                         .n_micro = 2};
    const char *dir = bed_path("c");
    sl_checkpoint_info_t info;
    bed_t bed;

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    save_mlp(&run, dir);
    run.optimizer.lr = 0.5;
    run.optimizer.momentum = 0.9; /* whose moment is not there */
    bed_open(&bed, &run);
    sl_assert_ok(bed_resume(&bed, dir, NULL, SL_RESUME_CHANGED, &info));
    sl_assert_contains(sl_test_log_take(),
                       "optimizer.lr is 0.1 there and 0.5 here");
    assert_int_equal(sl_engine_n_steps(bed.engine), HALF);
    bed_close(&bed);
    run.optimizer.momentum = 0.0;
    run.optimizer.kind = SL_OPTIMIZER_ADAM;
    bed_open(&bed, &run);
    sl_assert_status(bed_resume(&bed, dir, NULL, SL_RESUME_CHANGED, &info),
                     SL_ERR_CONFIG);
    /* the weights alone fit */
    sl_assert_ok(bed_resume(&bed, dir, NULL, SL_RESUME_WEIGHTS, &info));
    assert_int_equal(sl_engine_n_steps(bed.engine), 0);
    bed_close(&bed);
    sl_model_destroy(run.model);
}

/* Another number of micro-batches is another order of sums: it is said. */
static void test_other_bits_are_told(void **state)
{
    fixture_run_t run = {.model = fixture_mlp(),
                         .n_devices = 1,
                         .n_stages = 1,
                         .rows = 4,
                         .n_micro = 2};
    const char *dir = bed_path("c");
    sl_checkpoint_info_t info;
    bed_t bed;

    (void)state;
    save_mlp(&run, dir);
    run.n_micro = 4;
    bed_open(&bed, &run);
    sl_assert_ok(bed_resume(&bed, dir, NULL, SL_RESUME_EXACT, &info));
    sl_assert_contains(sl_test_log_take(),
                       "not with the same bits: train.micro_batches is 2");
    bed_close(&bed);
    sl_model_destroy(run.model);
}

static void test_none_is_not_found(void **state)
{
    const fixture_run_t run = {.model = fixture_mlp(),
                               .n_devices = 1,
                               .n_stages = 1,
                               .rows = 4,
                               .n_micro = 2};
    sl_checkpoint_info_t info;
    bed_t bed;

    (void)state;
    bed_open(&bed, &run);
    sl_assert_status(
        bed_resume(&bed, bed_path("nowhere"), NULL, SL_RESUME_EXACT, &info),
        SL_ERR_NOT_FOUND);
    sl_assert_status(
        bed_resume(&bed, sl_test_directory(), NULL, SL_RESUME_EXACT, &info),
        SL_ERR_NOT_FOUND);
    sl_assert_status(bed_resume(&bed, sl_test_directory(), "step-00000001",
                                SL_RESUME_EXACT, &info),
                     SL_ERR_NOT_FOUND);
    bed_close(&bed);
    sl_model_destroy(run.model);
}

/* One file, and shards again: the same state. */
static void test_merge_and_split(void **state)
{
    const fixture_run_t run = {.model = fixture_resnet(),
                               .n_devices = 1,
                               .n_stages = 1,
                               .rows = 4,
                               .n_micro = 2};
    char name[SL_CHECKPOINT_NAME_BYTES];
    sl_checkpoint_info_t info;
    uint64_t want;
    bed_t bed;
    int n;

    (void)state;
    bed_open(&bed, &run);
    bed_save(&bed, bed_path("c"), bed_train(&bed, HALF));
    want = bed_hash(&bed);
    bed_close(&bed);
    sl_assert_ok(sl_checkpoint_merge(bed_path("c"), "step-00000003",
                                     bed_path("all.safetensors"), 1));
    sl_assert_ok(sl_checkpoint_merge(bed_path("c"), "step-00000003",
                                     bed_path("weights.safetensors"), 0));
    for (n = 1; n <= 1000; n = n * 7 + 1) {
        sl_assert_ok(sl_checkpoint_split(bed_path("all.safetensors"),
                                         bed_path("s"), n, name));
        sl_assert_ok(sl_checkpoint_verify(bed_path("s"), name, &info));
        assert_true((int)info.n_shards <= n);
        bed_open(&bed, &run);
        sl_assert_ok(
            bed_resume(&bed, bed_path("s"), name, SL_RESUME_EXACT, &info));
        assert_int_equal(bed_hash(&bed), want);
        bed_close(&bed);
    }
    sl_assert_ok(sl_checkpoint_split(bed_path("c/step-00000003"), bed_path("t"),
                                     2, name));
    bed_open(&bed, &run);
    sl_assert_ok(bed_resume(&bed, bed_path("t"), NULL, SL_RESUME_EXACT, &info));
    assert_int_equal(info.n_shards, 2);
    assert_int_equal(bed_hash(&bed), want);
    sl_assert_ok(
        sl_engine_weights_load(bed.engine, bed_path("weights.safetensors")));
    bed_close(&bed);
    sl_assert_status(sl_checkpoint_split(bed_path("weights.safetensors"),
                                         bed_path("u"), 2, name),
                     SL_ERR_CONFIG);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_transformer),
        sl_unit_test(test_convolutions),
        sl_unit_test(test_training_goes_on),
        sl_unit_test(test_other_runs_are_refused),
        sl_unit_test(test_changed_settings),
        sl_unit_test(test_other_bits_are_told),
        sl_unit_test(test_none_is_not_found),
        sl_unit_test(test_merge_and_split),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
