/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of more than 2 GiB: over an edge between two ranks, there and back,
 * and in a checkpoint. Only with SLUICE_TEST_HUGE in the environment: they
 * take up to 17 GB of memory, 3 GB of disk and some minutes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "tests/engine/checkpoint_bed.h"
#include "tests/engine/rank_bed.h"

#define MORE_THAN 2147483648.0 /* bytes */

enum {
    CLASSES = 5,
    ROWS = 2200,
    WIDTH = 250000, /* x ROWS floats: 2.2 GB over the edge */
    SQUARE = 23400  /* squared: a parameter of 2.19 GB */
};

static double available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    double kib = 0.0;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1) {
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return kib * 1024.0;
}

static double disk_bytes(void)
{
    struct statvfs fs;

    return statvfs(sl_test_directory(), &fs) != 0
               ? 0.0
               : (double)fs.f_bavail * (double)fs.f_frsize;
}

/* n inputs, a linear layer of `width`, one of CLASSES, the loss. */
static sl_model_t *wide_model(int n, int width)
{
    const int64_t in[] = {1, n}, label[] = {1};
    const sl_tensor_desc_t data = sl_tensor_desc(SL_DTYPE_F32, 2, in);
    const sl_tensor_desc_t target = sl_tensor_desc(SL_DTYPE_I32, 1, label);
    const sl_attr_t wide[] = {{.name = "out", .number = width}};
    const sl_attr_t narrow[] = {{.name = "out", .number = CLASSES}};
    const sl_layer_spec_t layers[] = {{.type = "linear",
                                       .name = "wide",
                                       .n_inputs = 1,
                                       .inputs = {SL_INPUT_DATA},
                                       .attrs = wide,
                                       .n_attrs = 1},
                                      {.type = "linear",
                                       .name = "narrow",
                                       .n_inputs = 1,
                                       .inputs = {0},
                                       .attrs = narrow,
                                       .n_attrs = 1},
                                      {.type = "softmax_cross_entropy",
                                       .name = "loss",
                                       .n_inputs = 2,
                                       .inputs = {1, SL_INPUT_TARGET}}};
    sl_model_t *model = NULL;
    int i;

    sl_assert_ok(sl_model_create("wide", &data, &target, &model));
    for (i = 0; i < 3; i++) {
        sl_assert_ok(sl_model_add(model, &layers[i], NULL));
    }
    sl_assert_ok(sl_model_check(model));
    return model;
}

static void train_and_count(bed_member_t *member)
{
    sl_edge_t edge;
    int i, n_huge = 0;

    if (!member_create(member) || !member_step(member, 0)) {
        return;
    }
    for (i = 0; sl_engine_edge(member->engine, i, &edge); i++) {
        n_huge += edge.n_messages == 1 && (double)edge.n_bytes > MORE_THAN;
    }
    (void)MEMBER_CHECK(member, n_huge == 2);
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static void more_than_2_gib_cross_an_edge(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = ROWS,
                         .n_micro = 1,
                         .n_steps = 1,
                         .n_devices = 1,
                         .n_stages = 1,
                         .memory_bytes = (size_t)1 << 36};
    const int cuts[] = {0, 1, 3};
    fixture_result_t want;
    int r;

    (void)state;
    if (available_bytes() < 17e9) {
        skip();
    }
    run.model = wide_model(2, WIDTH);
    want = fixture_train(&run);
    run.n_stages = 2;
    run.cuts = cuts;
    ranks_run(&bed, &run, 2, 1, train_and_count, NULL);
    for (r = 0; r < 2; r++) {
        member_assert_same(&bed.members[r], &want);
    }
    sl_model_destroy(run.model);
}

static void more_than_2_gib_in_a_checkpoint(void **state)
{
    fixture_run_t run = {.rows = 1,
                         .n_micro = 1,
                         .n_devices = 1,
                         .n_stages = 1,
                         .memory_bytes = (size_t)1 << 36};
    sl_checkpoint_info_t info;
    uint64_t want;
    bed_t bed;

    (void)state;
    if (available_bytes() < 14e9 || disk_bytes() < 5e9) {
        skip();
    }
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_SGD;
    run.optimizer.momentum = 0.0;
    run.optimizer.lr = 0.1;
    run.model = wide_model(SQUARE, SQUARE);
    bed_open(&bed, &run);
    (void)bed_train(&bed, 1);
    want = bed_hash(&bed);
    bed_save(&bed, bed_path("c"), 1.0);
    (void)bed_train(&bed, 2);
    assert_true(bed_hash(&bed) != want);
    sl_assert_ok(bed_resume(&bed, bed_path("c"), NULL, SL_RESUME_EXACT, &info));
    assert_true(bed_hash(&bed) == want);
    bed_close(&bed);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(more_than_2_gib_cross_an_edge),
        sl_unit_test(more_than_2_gib_in_a_checkpoint),
    };

    return getenv("SLUICE_TEST_HUGE") == NULL
               ? 77
               : cmocka_run_group_tests_name("engine.huge", tests, NULL, NULL);
}
