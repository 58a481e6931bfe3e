/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that move between ranks: the bits are those of one process, and a
 * rank without room keeps all as they were. */
#include <stdio.h>
#include <string.h>

#include "engine/mover.h"
#include "engine/repartition.h"
#include "tests/engine/rank_bed.h"

/* Other cuts before each step; the hash does not notice. */
static void train_moving(bed_member_t *member)
{
    if (!member_create(member) || !member_train_moving(member, 37)) {
        return;
    }
    (void)MEMBER_OK(member,
                    sl_engine_evaluate(member->engine, &member->bed->batches[0],
                                       &member->sums));
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static void assert_same(const rank_bed_t *bed, const fixture_result_t *want)
{
    int r;

    for (r = 0; r < bed->n_ranks; r++) {
        const fixture_result_t *got = &bed->members[r].result;

        if (got->hash != want->hash ||
            memcmp(got->losses, want->losses, sizeof(got->losses)) != 0 ||
            memcmp(got->norms, want->norms, sizeof(got->norms)) != 0) {
            (void)fprintf(stderr, "%s: %d stages on %d ranks, rank %d\n",
                          bed->run->model->name, bed->run->n_stages,
                          bed->n_ranks, r);
            fail();
        }
    }
}

static void check_moves(fixture_run_t run)
{
    /* stages, ranks, devices of a rank */
    static const int shapes[][3] = {
        {2, 2, 1}, {3, 3, 1}, {4, 2, 2}, {5, 2, 1}, {4, 4, 1}};
    static rank_bed_t bed;
    fixture_result_t want;
    size_t i;

    run.n_stages = run.n_devices = 1;
    want = fixture_train(&run);
    for (i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        run.n_stages = shapes[i][0];
        run.n_devices = shapes[i][2];
        run.schedule = (sl_schedule_kind_t)(i % 2);
        run.recompute = (sl_recompute_t)(i % 4);
        ranks_run(&bed, &run, shapes[i][1], run.n_steps, train_moving, NULL);
        assert_same(&bed, &want);
    }
}

static void a_gpt_moves_between_ranks(void **state)
{
    fixture_run_t run = {
        .rows = 13, .n_micro = 4, .n_steps = 4, .ignore_every = 5};

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.lr = 0.01;
    run.optimizer.clip_norm = 0.5;
    run.model = fixture_gpt();
    check_moves(run);
    sl_model_destroy(run.model);
}

static void a_resnet_moves_between_ranks(void **state)
{
    fixture_run_t run = {
        .rows = 12, .n_micro = 3, .n_steps = 4, .uneven_last = 1};

    (void)state;
    run.model = fixture_resnet();
    check_moves(run);
    sl_model_destroy(run.model);
}

static void a_unet_moves_between_ranks(void **state)
{
    fixture_run_t run = {.rows = 9, .n_micro = 3, .n_steps = 3};

    (void)state;
    run.model = fixture_unet();
    check_moves(run);
    sl_model_destroy(run.model);
}

/* ---- no room ---- */

static void set_limit(const sl_device_t *device, size_t bytes)
{
    sl_mem_limit_request(device->mem, bytes);
    sl_mem_boundary(device->mem, NULL);
}

/* Rank 1 has room for what it has and hardly more. */
static void train_without_room(bed_member_t *member)
{
    const int n = member->params.model->n_layers;
    const sl_device_t *device = &member->devices->devices[0];
    const int cuts[4] = {0, 1, n - 1, n};
    sl_mem_block_t *filler = NULL;
    sl_mem_stats_t stats;
    uint64_t before, after;
    int old[4];

    if (!member_create(member)) {
        return;
    }
    memcpy(old, sl_engine_cuts(member->engine), sizeof(old));
    if (member->rank == 1) {
        sl_mem_stats(device->mem, &stats);
        set_limit(device, stats.held_bytes);
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
    set_limit(device, SIZE_MAX);
    if (member_step(member, 0) && member_step(member, 1)) {
        (void)MEMBER_OK(
            member, sl_engine_state_hash(member->engine, &member->result.hash));
    }
}

static void a_rank_without_room_keeps_all_as_they_were(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 3, .n_steps = 2};
    fixture_result_t want;

    (void)state;
    run.model = fixture_resnet();
    ranks_run(&bed, &run, 3, 2, train_without_room, NULL);
    run.n_stages = 1;
    want = fixture_train(&run);
    assert_same(&bed, &want);
    sl_model_destroy(run.model);
}

/* ---- ranks that disagree ---- */

static void ask_for_different_cuts(bed_member_t *member)
{
    const int n = member->params.model->n_layers;
    const int cuts[3] = {0, 1 + member->rank, n};

    if (!member_create(member)) {
        return;
    }
    (void)MEMBER_CHECK(member, sl_engine_repartition(member->engine, cuts,
                                                     NULL) == SL_ERR_CONFIG);
    if (member_step(member, 0)) {
        (void)MEMBER_OK(
            member, sl_engine_state_hash(member->engine, &member->result.hash));
    }
}

static void ranks_must_ask_for_the_same(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 2, .n_steps = 1};
    fixture_result_t want;

    (void)state;
    run.model = fixture_resnet();
    ranks_run(&bed, &run, 2, 1, ask_for_different_cuts, NULL);
    (void)sl_test_log_take();
    run.n_stages = 1;
    want = fixture_train(&run);
    assert_same(&bed, &want);
    sl_model_destroy(run.model);
}

/* Ranks that fail in different ways at once go on with one status. */
static void fail_in_different_ways(bed_member_t *member)
{
    static const sl_status_t own[] = {SL_OK, SL_ERR_QUOTA, SL_ERR_NO_MEMORY};
    double codes[3];
    sl_mover_t mover = {.codes = codes};

    if (!member_create(member)) {
        return;
    }
    mover.engine = member->engine;
    (void)MEMBER_CHECK(member, sl_mover_agree(&mover, SL_OK) == SL_OK);
    (void)MEMBER_CHECK(member, !mover.is_common);
    (void)MEMBER_CHECK(member, sl_mover_agree(&mover, own[member->rank]) ==
                                   SL_ERR_QUOTA);
    (void)MEMBER_CHECK(member, mover.is_common);
}

static void ranks_fail_with_one_status(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 3, .n_steps = 1};

    (void)state;
    run.model = fixture_resnet();
    ranks_run(&bed, &run, 3, 1, fail_in_different_ways, NULL);
    sl_model_destroy(run.model);
}

/* Rank 1 has failed for another reason when a move begins: all are told, and
 * can go on. */
static void move_after_a_failure(bed_member_t *member)
{
    const int n = member->params.model->n_layers;
    const int cuts[3] = {0, 1, n};

    if (!member_create(member)) {
        return;
    }
    if (member->rank == 1) {
        sl_world_abort(member->world, SL_ERR_IO, "the disk of rank 1");
    }
    (void)MEMBER_CHECK(member,
                       sl_engine_repartition(member->engine, cuts, NULL) < 0);
    if (member_step(member, 0)) {
        (void)MEMBER_OK(
            member, sl_engine_state_hash(member->engine, &member->result.hash));
    }
}

static void a_failure_ends_a_move_on_all_ranks(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 2, .n_steps = 1};
    fixture_result_t want;

    (void)state;
    run.model = fixture_resnet();
    ranks_run(&bed, &run, 2, 1, move_after_a_failure, NULL);
    (void)sl_test_log_take();
    run.n_stages = 1;
    want = fixture_train(&run);
    assert_same(&bed, &want);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_gpt_moves_between_ranks),
        sl_unit_test(a_resnet_moves_between_ranks),
        sl_unit_test(a_unet_moves_between_ranks),
        sl_unit_test(a_rank_without_room_keeps_all_as_they_were),
        sl_unit_test(ranks_must_ask_for_the_same),
        sl_unit_test(ranks_fail_with_one_status),
        sl_unit_test(a_failure_ends_a_move_on_all_ranks),
    };

    return cmocka_run_group_tests_name("engine.moving_ranks", tests, NULL,
                                       NULL);
}
