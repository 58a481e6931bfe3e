/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that move in all replicas alike: the bits are those of replicas whose
 * layers never moved, and a device without room keeps all as they were. */
#include <stdio.h>
#include <string.h>

#include "engine/repartition.h"
#include "tests/engine/rank_bed.h"

enum {
    MAX_STAGES = 8
};

/* ---- one process ---- */

static fixture_result_t train_moving(const fixture_run_t *run, uint32_t seed)
{
    fixture_result_t result = {0};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    int cuts[MAX_STAGES + 1], i;

    fixture_engine(run, &devices, &engine);
    for (i = 0; i < run->n_steps; i++) {
        const int rows =
            run->rows - (run->uneven_last && i == run->n_steps - 1);
        const sl_batch_t batch =
            fixture_batch(run->model, rows, i, run->ignore_every);
        sl_repartition_report_t moved;
        sl_step_report_t report;
        uint64_t before, after;

        fixture_cuts(run->model, run->n_stages, 53, seed + (uint32_t)i, cuts);
        sl_assert_ok(sl_engine_state_hash(engine, &before));
        sl_assert_ok(sl_engine_repartition(engine, cuts, &moved));
        sl_assert_ok(sl_engine_state_hash(engine, &after));
        assert_true(before == after);
        /* a layer need not have parameters */
        assert_true(moved.n_layers > 0 || moved.moved_bytes == 0);
        assert_memory_equal(sl_engine_cuts(engine), cuts,
                            ((size_t)run->n_stages + 1) * sizeof(int));
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        result.losses[i] = report.loss;
        result.norms[i] = report.gradient_norm;
    }
    sl_assert_ok(sl_engine_state_hash(engine, &result.hash));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return result;
}

static void assert_equal(const fixture_result_t *got,
                         const fixture_result_t *want, const fixture_run_t *run)
{
    if (got->hash != want->hash ||
        memcmp(got->losses, want->losses, sizeof(got->losses)) != 0 ||
        memcmp(got->norms, want->norms, sizeof(got->norms)) != 0) {
        print_message("%s: %d replicas of %d stages, zero1 %d: hash %016llx, "
                      "not %016llx\n",
                      run->model->name, run->n_replicas, run->n_stages,
                      run->zero1, (unsigned long long)got->hash,
                      (unsigned long long)want->hash);
        fail();
    }
}

static void check_process(fixture_run_t run)
{
    /* replicas, stages, devices */
    static const int shapes[][3] = {{2, 2, 4}, {2, 3, 2}, {3, 2, 6}, {2, 4, 3}};
    fixture_result_t want, got;
    size_t i;
    int zero1;

    for (i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        run.n_replicas = shapes[i][0];
        run.n_devices = run.n_stages = 1;
        run.zero1 = 0;
        want = fixture_train(&run);
        run.n_stages = shapes[i][1];
        run.n_devices = shapes[i][2];
        run.schedule = (sl_schedule_kind_t)(i % 2);
        run.recompute = (sl_recompute_t)(i % 4);
        run.bucket_bytes = i % 2 == 0 ? 2048 : 0;
        for (zero1 = 0; zero1 <= 1; zero1++) {
            run.zero1 = zero1;
            got = train_moving(&run, (uint32_t)(100 * i));
            assert_equal(&got, &want, &run);
        }
        run.schedule = SL_SCHEDULE_GPIPE;
        run.recompute = SL_RECOMPUTE_NONE;
    }
}

/* ---- ranks ---- */

static void move_and_train(bed_member_t *member)
{
    if (!member_create(member) || !member_train_moving(member, 53)) {
        return;
    }
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static void check_ranks(fixture_run_t run)
{
    /* replicas, stages, ranks, devices of a rank */
    static const int shapes[][4] = {
        {2, 2, 2, 1}, {2, 2, 4, 1}, {2, 3, 2, 3}, {3, 2, 3, 1}};
    static rank_bed_t bed;
    fixture_result_t want;
    size_t i;
    int r;

    for (i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        run.n_replicas = shapes[i][0];
        run.n_devices = run.n_stages = 1;
        run.zero1 = 0;
        want = fixture_train(&run);
        run.n_stages = shapes[i][1];
        run.n_devices = shapes[i][3];
        run.zero1 = (int)(i % 2);
        run.bucket_bytes = i < 2 ? 2048 : 0;
        ranks_run(&bed, &run, shapes[i][2], run.n_steps, move_and_train, NULL);
        for (r = 0; r < bed.n_ranks; r++) {
            assert_equal(&bed.members[r].result, &want, &run);
        }
    }
}

static fixture_run_t gpt_run(void)
{
    fixture_run_t run = {
        .rows = 13, .n_micro = 2, .n_steps = 4, .ignore_every = 5};

    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.lr = 0.01;
    run.optimizer.clip_norm = 0.5;
    run.model = fixture_gpt();
    return run;
}

static void a_gpt_moves_in_all_replicas(void **state)
{
    const fixture_run_t run = gpt_run();

    (void)state;
    check_process(run);
    check_ranks(run);
    sl_model_destroy(run.model);
}

static void a_resnet_moves_in_all_replicas(void **state)
{
    fixture_run_t run = {
        .rows = 12, .n_micro = 2, .n_steps = 3, .uneven_last = 1};

    (void)state;
    run.model = fixture_resnet();
    check_process(run);
    check_ranks(run);
    run.batch_norm = SL_BATCH_NORM_REPLICA;
    check_process(run);
    sl_model_destroy(run.model);
}

/* ---- no room ---- */

/* The last rank has room for what it has and hardly more. */
static void move_without_room(bed_member_t *member)
{
    const int n = member->params.model->n_layers;
    const sl_device_t *device = &member->devices->devices[0];
    const int cuts[3] = {0, 1, n};
    sl_mem_block_t *filler = NULL;
    sl_mem_stats_t stats;
    uint64_t before, after;
    int old[3];

    if (!member_create(member)) {
        return;
    }
    memcpy(old, sl_engine_cuts(member->engine), sizeof(old));
    if (member->rank == member->bed->n_ranks - 1) {
        sl_mem_stats(device->mem, &stats);
        sl_mem_limit_request(device->mem, stats.held_bytes);
        sl_mem_boundary(device->mem, NULL);
        (void)MEMBER_OK(member,
                        sl_mem_alloc(device->mem, SL_MEM_CLASS_PERSISTENT,
                                     stats.largest_free_bytes - 4096, &filler));
    }
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &before));
    (void)MEMBER_CHECK(member, sl_engine_repartition(member->engine, cuts,
                                                     NULL) == SL_ERR_QUOTA);
    (void)MEMBER_CHECK(
        member, memcmp(old, sl_engine_cuts(member->engine), sizeof(old)) == 0);
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &after));
    (void)MEMBER_CHECK(member, before == after);
    sl_mem_release(filler);
    sl_mem_limit_request(device->mem, SIZE_MAX);
    sl_mem_boundary(device->mem, NULL);
    if (member_step(member, 0) && member_step(member, 1)) {
        (void)MEMBER_OK(
            member, sl_engine_state_hash(member->engine, &member->result.hash));
    }
}

static void without_room_all_stays(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 2,
                         .n_replicas = 2,
                         .n_steps = 2};
    fixture_result_t want;
    int r, zero1;

    (void)state;
    run.model = fixture_resnet();
    for (zero1 = 0; zero1 <= 1; zero1++) {
        run.zero1 = zero1;
        run.n_stages = 2;
        ranks_run(&bed, &run, 4, 2, move_without_room, NULL);
        run.n_stages = 1;
        want = fixture_train(&run);
        for (r = 0; r < 4; r++) {
            assert_equal(&bed.members[r].result, &want, &run);
        }
    }
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_gpt_moves_in_all_replicas),
        sl_unit_test(a_resnet_moves_in_all_replicas),
        sl_unit_test(without_room_all_stays),
    };

    return cmocka_run_group_tests_name("engine.moving_replicas", tests, NULL,
                                       NULL);
}
