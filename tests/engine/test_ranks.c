/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks are one process, bit for bit, also in what they tell. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/engine/rank_bed.h"

/* ---- the same bits ---- */

typedef struct shape {
    int n_replicas, n_stages, n_ranks, n_devices;
} shape_t;

static void check_shape(fixture_run_t run, const shape_t *shape)
{
    static rank_bed_t bed;
    fixture_result_t want;
    int r;

    run.n_replicas = shape->n_replicas;
    run.n_stages = 1;
    run.n_devices = 1;
    want = fixture_train(&run);
    run.n_stages = shape->n_stages;
    run.n_devices = shape->n_devices;
    ranks_run(&bed, &run, shape->n_ranks, run.n_steps, member_train, NULL);
    for (r = 0; r < shape->n_ranks; r++) {
        member_assert_same(&bed.members[r], &want);
        assert_memory_equal(&bed.members[r].sums, &bed.members[0].sums,
                            sizeof(sl_eval_sums_t));
    }
}

static void check_shapes(fixture_run_t run)
{
    static const shape_t shapes[] = {
        {1, 2, 2, 1}, {1, 3, 3, 1}, {1, 4, 2, 2}, {1, 5, 2, 1},
        {2, 1, 2, 1}, {2, 2, 2, 1}, {2, 2, 2, 2}, {2, 2, 4, 1},
        {2, 3, 3, 1}, {3, 1, 3, 1}, {3, 2, 2, 1}, {3, 2, 3, 2},
        {2, 3, 4, 1}, {1, 1, 1, 1}, {1, 8, 3, 1}, {2, 4, 3, 2}};
    size_t i;

    for (i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        run.schedule = (sl_schedule_kind_t)(i % 2);
        run.recompute = (sl_recompute_t)(i % 3);
        run.zero1 = i / 2 % 2;
        run.bucket_bytes = i % 4 == 1 ? 1 : i % 4 == 2 ? 3000 : 0;
        check_shape(run, &shapes[i]);
    }
}

static void gpt_is_one_process(void **state)
{
    fixture_run_t run = {
        .rows = 13, .n_micro = 2, .n_steps = 3, .ignore_every = 5};

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.lr = 0.01;
    run.optimizer.weight_decay = 0.1;
    run.optimizer.clip_norm = 0.5;
    run.model = fixture_gpt();
    check_shapes(run);
    sl_model_destroy(run.model);
}

static void resnet_is_one_process(void **state)
{
    fixture_run_t run = {.rows = 12, .n_micro = 2, .n_steps = 2};

    (void)state;
    run.model = fixture_resnet();
    check_shapes(run);
    run.batch_norm = SL_BATCH_NORM_REPLICA;
    check_shapes(run);
    sl_model_destroy(run.model);
}

static void unet_is_one_process(void **state)
{
    fixture_run_t run = {
        .rows = 9, .n_micro = 3, .n_steps = 2, .uneven_last = 1};

    (void)state;
    run.model = fixture_unet();
    check_shapes(run);
    sl_model_destroy(run.model);
}

/* Stages go to and fro between two ranks, so that the one before and the one
 * after are on the same rank: 0, 1, 0, 1. */
static void body_to_and_fro(bed_member_t *member)
{
    sl_grid_t *grid = NULL;
    sl_grid_slot_t slot;

    if (!MEMBER_OK(member,
                   sl_grid_create(member->world, member->devices, &grid))) {
        return;
    }
    slot = grid->slots[1];
    grid->slots[1] = grid->slots[2];
    grid->slots[2] = slot;
    (void)MEMBER_CHECK(member, grid->slots[0].rank == grid->slots[2].rank);
    (void)MEMBER_CHECK(member, grid->slots[1].rank == grid->slots[3].rank);
    member->params.grid = grid;
    member_train(member);
    sl_engine_destroy(member->engine);
    member->engine = NULL;
    sl_grid_destroy(grid);
}

static void check_to_and_fro(fixture_run_t run)
{
    static const int shapes[][2] = {{1, 3}, {1, 4}, {2, 2}};
    static rank_bed_t bed;
    fixture_result_t want;
    size_t i;
    int r;

    for (i = 0; i < 2 * sizeof(shapes) / sizeof(*shapes); i++) {
        run.n_replicas = shapes[i / 2][0];
        run.schedule = (sl_schedule_kind_t)(i % 2);
        run.n_stages = run.n_devices = 1;
        want = fixture_train(&run);
        run.n_stages = shapes[i / 2][1];
        run.n_devices = 2;
        ranks_run(&bed, &run, 2, run.n_steps, body_to_and_fro, NULL);
        for (r = 0; r < 2; r++) {
            member_assert_same(&bed.members[r], &want);
        }
    }
}

static void stages_go_to_and_fro_between_ranks(void **state)
{
    fixture_run_t run = {.rows = 12, .n_micro = 3, .n_steps = 2};

    (void)state;
    run.model = fixture_gpt();
    check_to_and_fro(run);
    sl_model_destroy(run.model);
    run.model = fixture_unet();
    check_to_and_fro(run);
    sl_model_destroy(run.model);
}

/* One micro-batch, fewer than stages, as many, many more; and batches that
 * leave replicas idle. */
static void micro_batch_counts_around_the_stages(void **state)
{
    const int counts[] = {1, 2, 3, 4, 12};
    const shape_t shape = {
        .n_replicas = 1, .n_stages = 3, .n_ranks = 3, .n_devices = 1};
    const shape_t idle = {
        .n_replicas = 3, .n_stages = 2, .n_ranks = 3, .n_devices = 1};
    fixture_run_t run = {.rows = 24, .n_steps = 2};
    size_t i;

    (void)state;
    run.model = fixture_mlp();
    for (i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        run.n_micro = counts[i];
        run.schedule = (sl_schedule_kind_t)(i % 2);
        check_shape(run, &shape);
    }
    run.n_micro = 2;
    for (run.rows = 1; run.rows < 7; run.rows++) {
        run.zero1 = run.rows % 2;
        check_shape(run, &idle);
    }
    sl_model_destroy(run.model);
}

/* ---- signals, state, plan ---- */

/* An evaluation tells what the next step will tell too. */
static void evaluate_signalled(bed_member_t *member, unsigned flags)
{
    sl_eval_sums_t sums = {0};

    (void)MEMBER_OK(
        member,
        sl_engine_evaluate(member->engine, &member->bed->batches[0], &sums));
    (void)MEMBER_CHECK(member, sums.flags == flags);
}

static void body_signal(bed_member_t *member)
{
    sl_step_report_t report;
    int step;

    if (!member_create(member)) {
        return;
    }
    for (step = 0; step < 3; step++) {
        if (step == 1) {
            sl_engine_signal(member->engine, 1u << member->rank);
            evaluate_signalled(member, 7u);
            evaluate_signalled(member, 7u);
        }
        (void)MEMBER_OK(
            member,
            sl_engine_step(member->engine, &member->bed->batches[0], &report));
        (void)MEMBER_CHECK(member, report.flags == (step == 1 ? 7u : 0u));
    }
    evaluate_signalled(member, 0u);
}

static void signals_reach_all_ranks(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 3};

    (void)state;
    run.model = fixture_mlp();
    ranks_run(&bed, &run, 3, 1, body_signal, NULL);
    sl_model_destroy(run.model);
}

/* What is given to a step is added up in it, when it succeeds; and a step, with
 * what is given, as an evaluation, is one wait for all ranks. */
static void body_sums(bed_member_t *member)
{
    const sl_batch_t *batch = &member->bed->batches[0];
    const sl_batch_t empty = {0};
    const double mine[2] = {1.0 + member->rank, member->rank == 1 ? 0.1 : 0.0};
    sl_step_report_t report = {0};
    sl_eval_sums_t sums = {0};
    uint64_t before;
    int step;

    if (!member_create(member)) {
        return;
    }
    for (step = 0; step < 4; step++) {
        const int is_given = step != 1;

        before = sl_world_n_waits(member->world);
        if (is_given) {
            (void)MEMBER_OK(member,
                            sl_engine_sum_with_step(member->engine, mine,
                                                    step == 3 ? 1 : 2));
        }
        if (step == 2) {
            (void)MEMBER_OK(member,
                            sl_engine_evaluate(member->engine, batch, &sums));
            (void)MEMBER_CHECK(
                member, sl_engine_step(member->engine, &empty, &report) < 0);
            before = sl_world_n_waits(member->world);
        }
        (void)MEMBER_OK(member, sl_engine_step(member->engine, batch, &report));
        (void)MEMBER_CHECK(member,
                           sl_world_n_waits(member->world) == before + 1);
        (void)MEMBER_CHECK(member, report.n_sums == (!is_given   ? 0u
                                                     : step == 3 ? 1u
                                                                 : 2u));
        (void)MEMBER_CHECK(member, !is_given || report.sums[0] == 6.0);
        (void)MEMBER_CHECK(member, report.n_sums < 2 || report.sums[1] == 0.1);
    }
    before = sl_world_n_waits(member->world);
    (void)MEMBER_OK(member, sl_engine_evaluate(member->engine, batch, &sums));
    (void)MEMBER_CHECK(member, sl_world_n_waits(member->world) == before + 1);
}

static void a_step_is_one_sum_with_what_is_given_to_it(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 3};

    (void)state;
    run.model = fixture_gpt();
    ranks_run(&bed, &run, 3, 1, body_sums, NULL);
    (void)sl_test_log_take();
    /* replicas are compared in that sum too */
    run.n_stages = 1;
    run.n_replicas = 3;
    ranks_run(&bed, &run, 3, 1, body_sums, NULL);
    (void)sl_test_log_take();
    sl_model_destroy(run.model);
}

/* Saved by all, read by all, moments carried by hand: the same state. */
static void body_state(bed_member_t *member)
{
    const char *path = member->bed->args;
    const sl_model_t *model = member->params.model;
    float *values = calloc(1 << 16, sizeof(*values));
    sl_step_report_t report;
    uint64_t want = 0, got = 0;
    int l, p;

    if (!MEMBER_CHECK(member, values != NULL) || !member_create(member)) {
        free(values);
        return;
    }
    (void)MEMBER_OK(member, sl_engine_step(member->engine,
                                           &member->bed->batches[0], &report));
    (void)MEMBER_OK(member, sl_engine_weights_save(member->engine, path));
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &want));
    /* into an engine that has gone another way */
    (void)MEMBER_OK(member, sl_engine_step(member->engine,
                                           &member->bed->batches[1], &report));
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &got));
    (void)MEMBER_CHECK(member, want != got);
    (void)MEMBER_OK(member, sl_engine_weights_load(member->engine, path));
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *param = &model->layers[l]->params[p];

            if (param->kind == SL_PARAM_TRAINED && param->tied_layer < 0) {
                (void)MEMBER_OK(member, sl_engine_moment_get(member->engine, l,
                                                             p, 0, values));
                (void)MEMBER_OK(member, sl_engine_moment_set(member->engine, l,
                                                             p, 0, values));
                (void)MEMBER_OK(member, sl_engine_gradient_get(member->engine,
                                                               l, p, values));
            }
        }
    }
    (void)MEMBER_CHECK(member,
                       sl_engine_param_get(member->engine, 99, 0, values) ==
                           SL_ERR_INVALID_ARG);
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
    free(values);
}

/* A file that only some ranks can read. */
static void body_no_file(bed_member_t *member)
{
    const char *path = member->bed->args;
    uint64_t before = 0, after = 1;
    char missing[300];

    (void)snprintf(missing, sizeof(missing), "%s.none", path);
    if (!member_create(member)) {
        return;
    }
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &before));
    (void)MEMBER_CHECK(
        member, sl_engine_weights_load(member->engine,
                                       member->rank == 1 ? missing : path) ==
                    SL_ERR_IO);
    (void)MEMBER_CHECK(member, sl_engine_weights_save(
                                   member->engine,
                                   "/nowhere/at/all.safetensors") == SL_ERR_IO);
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &after));
}

static void state_goes_in_and_out_on_all_ranks(void **state)
{
    static rank_bed_t bed;
    char path[256];
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 2,
                         .n_replicas = 2};
    int r;

    (void)state;
    run.model = fixture_gpt();
    (void)snprintf(path, sizeof(path), "%s/w.safetensors", sl_test_directory());
    for (run.zero1 = 0; run.zero1 < 2; run.zero1++) {
        ranks_run(&bed, &run, 4, 2, body_state, path);
        (void)sl_test_log_take();
        for (r = 1; r < 4; r++) {
            assert_true(bed.members[r].result.hash ==
                        bed.members[0].result.hash);
        }
        ranks_run(&bed, &run, 2, 2, body_no_file, path);
        (void)sl_test_log_take();
    }
    sl_model_destroy(run.model);
}

static void body_plan(bed_member_t *member)
{
    sl_memory_plan_t plan = {0};
    sl_step_report_t report;
    char name[64];
    int d, i;

    if (!MEMBER_OK(member, sl_engine_rehearse(&member->params, &plan)) ||
        !member_create(member)) {
        return;
    }
    for (i = 0; i < 2; i++) {
        (void)MEMBER_OK(
            member,
            sl_engine_step(member->engine, &member->bed->batches[i], &report));
    }
    (void)MEMBER_CHECK(member,
                       plan.n_devices ==
                           member->bed->n_ranks * member->devices->n_devices);
    (void)MEMBER_CHECK(member, plan.fits);
    for (d = 0; d < member->devices->n_devices; d++) {
        const sl_memory_need_t *need =
            &plan.devices[member->rank * member->devices->n_devices + d];

        (void)snprintf(name, sizeof(name), "%d/%s", member->rank,
                       member->devices->devices[d].name);
        (void)MEMBER_CHECK(member, strcmp(need->name, name) == 0);
        (void)MEMBER_CHECK(member,
                           need->peak_bytes == report.devices[d].peak_bytes);
    }
    sl_memory_plan_cleanup(&plan);
}

static void the_memory_plan_is_of_all_ranks(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 24,
                         .n_micro = 3,
                         .n_devices = 2,
                         .n_stages = 4,
                         .n_replicas = 1};

    (void)state;
    run.model = fixture_unet();
    ranks_run(&bed, &run, 2, 2, body_plan, NULL);
    run.n_stages = 2;
    run.n_replicas = 2;
    for (run.zero1 = 0; run.zero1 < 2; run.zero1++) {
        ranks_run(&bed, &run, 2, 2, body_plan, NULL);
    }
    sl_model_destroy(run.model);
}

/* ---- edges ---- */

static void body_edges(bed_member_t *member)
{
    sl_step_report_t report;
    sl_edge_t edge;
    int i, step, n_sent = 0;

    if (!member_create(member)) {
        return;
    }
    for (step = 0; step < 2; step++) {
        (void)MEMBER_OK(member,
                        sl_engine_step(member->engine,
                                       &member->bed->batches[step], &report));
    }
    for (i = 0; sl_engine_edge(member->engine, i, &edge); i++) {
        const int is_pipeline = strcmp(edge.kind, "forward") == 0 ||
                                strcmp(edge.kind, "backward") == 0;

        (void)MEMBER_CHECK(member, edge.peer != member->rank);
        (void)MEMBER_CHECK(member, !is_pipeline || edge.n_messages == 2 * 4);
        (void)MEMBER_CHECK(member, edge.n_messages == 0 || edge.n_bytes > 0);
        n_sent += edge.is_sender && is_pipeline;
    }
    (void)MEMBER_CHECK(member, n_sent == 1);
}

static void edges_are_counted(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 16,
                         .n_micro = 4,
                         .n_devices = 1,
                         .n_stages = 2,
                         .n_replicas = 1};

    (void)state;
    run.model = fixture_mlp();
    ranks_run(&bed, &run, 2, 2, body_edges, NULL);
    sl_model_destroy(run.model);
}

/* Values with and without a gradient on one boundary: each has an edge, and
 * only the first kind one back. */
static void body_plain_path(bed_member_t *member)
{
    const uint64_t n_messages = 2 * (uint64_t)member->bed->run->n_micro;
    sl_edge_t edge;
    int i, n_plain = 0, n_back = 0;

    if (!member_create(member) || !member_step(member, 0) ||
        !member_step(member, 1)) {
        return;
    }
    for (i = 0; sl_engine_edge(member->engine, i, &edge); i++) {
        const int is_back = strcmp(edge.kind, "backward") == 0;

        n_plain += edge.layer == 0;
        n_back += is_back;
        (void)MEMBER_CHECK(member, !is_back || edge.layer != 0);
        (void)MEMBER_CHECK(member, edge.n_messages == n_messages);
    }
    /* the middle rank has both ends of every kind */
    (void)MEMBER_CHECK(member, n_plain == (member->rank == 1 ? 2 : 1));
    (void)MEMBER_CHECK(member, n_back == (member->rank == 1 ? 2 : 1));
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

/* When this process is one of three ranks. */
static sl_world_t *world_of_processes;

static void run_plain_path(rank_bed_t *bed, const fixture_run_t *run,
                           const fixture_result_t *want)
{
    int r;

    if (world_of_processes != NULL) {
        ranks_run_process(bed, run, world_of_processes, 2, body_plain_path,
                          NULL);
        member_assert_same(&bed->members[sl_world_rank(world_of_processes)],
                           want);
        return;
    }
    ranks_run(bed, run, 3, 2, body_plain_path, NULL);
    for (r = 0; r < 3; r++) {
        member_assert_same(&bed->members[r], want);
    }
}

/* Three stages; layer 0's output crosses both boundaries. */
static void check_plain_path(sl_model_t *model, const int *cuts)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 8,
                         .n_devices = 1,
                         .n_stages = 3,
                         .n_steps = 2,
                         .model = model,
                         .cuts = cuts};
    int i;

    assert_int_equal(model->n_layers, cuts[3]);
    for (run.n_micro = 1; run.n_micro <= 4; run.n_micro++) {
        fixture_run_t alone = run;
        fixture_result_t want;

        alone.n_stages = 1;
        alone.cuts = NULL;
        want = fixture_train(&alone);
        for (i = 0; i < 4; i++) {
            run.schedule = (sl_schedule_kind_t)(i % 2);
            run.recompute = (sl_recompute_t)(i / 2);
            run_plain_path(&bed, &run, &want);
        }
    }
    sl_model_destroy(model);
}

static void a_value_without_gradient_crosses_beside_others(void **state)
{
    static const int cuts[] = {0, 2, 4, 7};

    (void)state;
    if (getenv("SLUICE_TEST_PRECISION") != NULL) {
        skip(); /* the batch is f32, and not added to other types */
    }
    check_plain_path(fixture_plain_path(), cuts);
}

static void integers_cross_beside_floats(void **state)
{
    static const int cuts[] = {0, 2, 5, 9};

    (void)state;
    check_plain_path(fixture_token_path(), cuts);
}

/* As a rank that a launcher has started, beside two others. */
static int run_processes(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_value_without_gradient_crosses_beside_others),
        sl_unit_test(integers_cross_beside_floats),
    };
    sl_world_params_t params;
    int code;

    sl_world_params_default(&params);
    if (sl_world_join(&params, &world_of_processes) < 0 ||
        sl_world_size(world_of_processes) != 3) {
        (void)fputs("not one of three ranks\n", stderr);
        return EXIT_FAILURE;
    }
    code = cmocka_run_group_tests_name("engine.processes", tests, NULL, NULL);
    if (code != 0) {
        sl_world_abort(world_of_processes, SL_ERR_IO, "a test has failed");
    }
    sl_world_leave(world_of_processes);
    return code;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(gpt_is_one_process),
        sl_unit_test(resnet_is_one_process),
        sl_unit_test(unet_is_one_process),
        sl_unit_test(stages_go_to_and_fro_between_ranks),
        sl_unit_test(micro_batch_counts_around_the_stages),
        sl_unit_test(signals_reach_all_ranks),
        sl_unit_test(a_step_is_one_sum_with_what_is_given_to_it),
        sl_unit_test(state_goes_in_and_out_on_all_ranks),
        sl_unit_test(the_memory_plan_is_of_all_ranks),
        sl_unit_test(edges_are_counted),
        sl_unit_test(a_value_without_gradient_crosses_beside_others),
        sl_unit_test(integers_cross_beside_floats),
    };

    if (argc > 1 && strcmp(argv[1], "processes") == 0) {
        return run_processes();
    }
    return cmocka_run_group_tests_name("engine.ranks", tests, NULL, NULL);
}
