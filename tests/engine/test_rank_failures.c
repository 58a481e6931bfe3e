/* SPDX-License-Identifier: Apache-2.0 */
/* What fails, or makes wait, on one of many ranks: all take a step, or none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "engine/engine_internal.h"
#include "tests/engine/rank_bed.h"

/* ---- all or none ---- */

static void poison(bed_member_t *member, int step)
{
    const sl_model_t *model = member->params.model;
    const sl_batch_t *batch = &member->bed->batches[step];
    float *data = (float *)(uintptr_t)batch->data;

    /* one rank does it, before the others can look: see the barrier */
    data[(batch->rows - 1) * sl_tensor_elements(&model->data)] = NAN;
}

static void body_not_finite(bed_member_t *member)
{
    const sl_not_finite_t kind = member->params.not_finite;
    sl_step_report_t report;
    uint64_t before = 0, after = 0;
    sl_status_t status;

    if (!member_create(member)) {
        return;
    }
    (void)MEMBER_OK(member, sl_engine_step(member->engine,
                                           &member->bed->batches[0], &report));
    if (member->rank == 0) {
        poison(member, 1);
    }
    /* the hash is a meeting of all */
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &before));
    status = sl_engine_step(member->engine, &member->bed->batches[1], &report);
    if (kind == SL_NOT_FINITE_SKIP) {
        (void)MEMBER_CHECK(member, status == SL_OK);
        (void)MEMBER_CHECK(member, report.is_skipped && report.n_skipped == 1);
    } else if (kind == SL_NOT_FINITE_GO_ON) {
        (void)MEMBER_CHECK(member, status == SL_OK);
        (void)MEMBER_CHECK(member, !report.is_skipped && isnan(report.loss));
    } else {
        (void)MEMBER_CHECK(member, status == SL_ERR_NUMERIC);
        (void)MEMBER_CHECK(member,
                           strstr(sl_last_error(), "not finite") != NULL);
    }
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &after));
    (void)MEMBER_CHECK(member,
                       (before == after) == (kind != SL_NOT_FINITE_GO_ON));
    (void)MEMBER_OK(member, sl_engine_step(member->engine,
                                           &member->bed->batches[2], &report));
    (void)MEMBER_CHECK(member, !report.is_skipped);
    (void)MEMBER_CHECK(member,
                       isnan(report.loss) == (kind == SL_NOT_FINITE_GO_ON));
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static void not_finite_on_one_rank(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 2,
                         .n_replicas = 2};
    int i, r, n_ranks;

    (void)state;
    run.model = fixture_resnet();
    for (i = 0; i < 6; i++) {
        run.zero1 = i / 3;
        run.not_finite = (sl_not_finite_t)(i % 3);
        n_ranks = i % 2 == 0 ? 2 : 4;
        ranks_run(&bed, &run, n_ranks, 3, body_not_finite, NULL);
        (void)sl_test_log_take();
        for (r = 1; r < n_ranks; r++) {
            assert_true(bed.members[r].result.hash ==
                        bed.members[0].result.hash);
        }
    }
    sl_model_destroy(run.model);
}

/* ---- drift ---- */

/* Another bit in a parameter of the cell here, or the old one again. */
static void flip(bed_member_t *member)
{
    sl_stage_t *stage = &member->engine->stages[0];
    uint32_t *at = sl_storage_ptr(&stage->params[stage->n_params - 1].value);
    uint32_t bits = 0;

    (void)MEMBER_OK(
        member, sl_device_copy_wait(stage->device, &bits, at, sizeof(bits)));
    bits ^= 1;
    (void)MEMBER_OK(
        member, sl_device_copy_wait(stage->device, at, &bits, sizeof(bits)));
}

/* Replica 1 has another bit: no rank takes the step, in the one sum of a step,
 * and all take it when the bit is back. */
static void body_drift(bed_member_t *member)
{
    const rank_bed_t *bed = member->bed;
    sl_step_report_t report;
    uint64_t before;
    int i;

    if (!member_create(member) || !member_step(member, 0)) {
        return;
    }
    for (i = 1; i < bed->n_batches; i++) {
        if (member->rank == 2) {
            flip(member);
        }
        (void)MEMBER_CHECK(member,
                           sl_engine_step(member->engine, &bed->batches[i],
                                          &report) == SL_ERR_CORRUPT);
        (void)MEMBER_CHECK(member,
                           strstr(sl_last_error(), "replica 1") != NULL);
        (void)MEMBER_CHECK(member,
                           sl_engine_n_steps(member->engine) == (uint32_t)i);
        if (member->rank == 2) {
            flip(member);
        }
        before = sl_world_n_waits(member->world);
        (void)member_step(member, i);
        (void)MEMBER_CHECK(member,
                           sl_world_n_waits(member->world) == before + 1);
    }
    (void)MEMBER_OK(member, sl_engine_evaluate(member->engine, &bed->batches[0],
                                               &member->sums));
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static void drift_of_one_rank(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 2,
                         .n_steps = 3,
                         .n_replicas = 2};
    const char *log, *told;
    int r;

    (void)state;
    run.model = fixture_gpt();
    for (run.zero1 = 0; run.zero1 < 2; run.zero1++) {
        fixture_run_t alone = run;
        fixture_result_t want;

        alone.n_stages = 1;
        want = fixture_train(&alone);
        ranks_run(&bed, &run, 4, run.n_steps, body_drift, NULL);
        log = sl_test_log_take();
        /* told once a step, by rank 0 */
        told = strstr(log, "not what replica 0 is");
        assert_non_null(told);
        told = strstr(told + 1, "not what replica 0 is");
        assert_non_null(told);
        assert_null(strstr(told + 1, "not what replica 0 is"));
        for (r = 0; r < 4; r++) {
            member_assert_same(&bed.members[r], &want);
        }
    }
    sl_model_destroy(run.model);
}

/* ---- memory ---- */

enum {
    MAX_HOGS = 4096
};

/* Take what is left under the limit. */
static int hog(sl_mem_t *mem, sl_mem_block_t **hogs)
{
    size_t bytes;
    int n = 0;

    for (bytes = (size_t)1 << 20; bytes >= 256; bytes /= 2) {
        while (n < MAX_HOGS && sl_mem_alloc(mem, SL_MEM_CLASS_STASH, bytes,
                                            &hogs[n]) == SL_OK) {
            n++;
        }
    }
    return n;
}

/* Rank `*args` has no memory for a step. */
static void body_out_of_memory(bed_member_t *member)
{
    const int *short_rank = member->bed->args;
    const rank_bed_t *bed = member->bed;
    sl_mem_t *mem = member->devices->devices[0].mem;
    sl_mem_block_t **hogs = calloc(MAX_HOGS, sizeof(sl_mem_block_t *));
    sl_step_report_t report;
    int step, n = 0;

    if (!MEMBER_CHECK(member, hogs != NULL) || !member_create(member)) {
        free(hogs);
        return;
    }
    for (step = 0; step < 3; step++) {
        if (step == 1 && member->rank == *short_rank) {
            n = hog(mem, hogs);
        }
        if (step == 1) {
            const sl_status_t status =
                sl_engine_step(member->engine, &bed->batches[step], &report);
            char name[32];

            (void)snprintf(name, sizeof(name), "rank %d", *short_rank);
            (void)MEMBER_CHECK(member, status == SL_ERR_QUOTA);
            (void)MEMBER_CHECK(member,
                               member->rank == *short_rank ||
                                   strstr(sl_last_error(), name) != NULL);
            sl_mem_limit_request(mem, SIZE_MAX);
            while (n > 0) {
                sl_mem_release(hogs[--n]);
            }
        }
        if (step == 0 && member->rank == *short_rank) {
            sl_mem_limit_request(mem, 0);
        }
        (void)MEMBER_OK(member, sl_engine_step(member->engine,
                                               &bed->batches[step], &report));
        member->result.losses[step] = report.loss;
        member->result.norms[step] = report.gradient_norm;
    }
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
    free(hogs);
}

static void out_of_memory_on_one_rank(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 64,
                         .n_micro = 2,
                         .n_steps = 3,
                         .n_devices = 4,
                         .n_stages = 2,
                         .n_replicas = 2};
    fixture_result_t want;
    int rank, r;

    (void)state;
    run.model = fixture_resnet();
    for (rank = 0; rank < 4; rank++) {
        run.zero1 = rank % 2;
        run.n_devices = 4;
        want = fixture_train(&run);
        run.n_devices = 1;
        ranks_run(&bed, &run, 4, 3, body_out_of_memory, &rank);
        (void)sl_test_log_take();
        for (r = 0; r < 4; r++) {
            member_assert_same(&bed.members[r], &want);
        }
    }
    sl_model_destroy(run.model);
}

/* One rank is given a wrong batch, in a step and in an evaluation. */
static void body_wrong_batch(bed_member_t *member)
{
    const rank_bed_t *bed = member->bed;
    const sl_batch_t empty = {0};
    const sl_batch_t *batch = member->rank == 1 ? &empty : &bed->batches[0];
    sl_eval_sums_t sums = {0};
    sl_step_report_t report;
    int i;

    if (!member_create(member)) {
        return;
    }
    for (i = 0; i < 3; i++) {
        (void)MEMBER_CHECK(member,
                           sl_engine_step(member->engine, batch, &report) ==
                               SL_ERR_INVALID_ARG);
        (void)MEMBER_CHECK(member,
                           sl_engine_evaluate(member->engine, batch, &sums) ==
                               SL_ERR_INVALID_ARG);
        (void)MEMBER_CHECK(member, strstr(sl_last_error(), "empty") != NULL);
    }
    (void)MEMBER_OK(member,
                    sl_engine_step(member->engine, &bed->batches[0], &report));
    (void)MEMBER_CHECK(member, report.step == 0);
}

static void a_wrong_batch_on_one_rank(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 3};

    (void)state;
    run.model = fixture_mlp();
    ranks_run(&bed, &run, 3, 1, body_wrong_batch, NULL);
    (void)sl_test_log_take();
    sl_model_destroy(run.model);
}

static void body_other_seed(bed_member_t *member)
{
    member->params.seed += member->rank == 2;
    (void)MEMBER_CHECK(member,
                       sl_engine_create(&member->params, &member->engine) ==
                           SL_ERR_CONFIG);
    (void)MEMBER_CHECK(member, strstr(sl_last_error(), "rank 2") != NULL);
    /* and with the same it works */
    member->params.seed = 7;
    (void)member_create(member);
}

static void body_too_many(bed_member_t *member)
{
    (void)MEMBER_CHECK(member,
                       sl_engine_create(&member->params, &member->engine) ==
                           SL_ERR_CONFIG);
    (void)MEMBER_CHECK(member, strstr(sl_last_error(), "without") != NULL);
}

static void body_no_room(bed_member_t *member)
{
    if (member->rank == 1) {
        sl_mem_limit_request(member->devices->devices[0].mem, 0);
        sl_mem_boundary(member->devices->devices[0].mem, NULL);
    }
    (void)MEMBER_CHECK(member,
                       sl_engine_create(&member->params, &member->engine) ==
                           SL_ERR_QUOTA);
}

static void what_does_not_fit_together_is_refused(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 3};

    (void)state;
    run.model = fixture_mlp();
    ranks_run(&bed, &run, 3, 1, body_other_seed, NULL);
    ranks_run(&bed, &run, 4, 1, body_too_many, NULL);
    ranks_run(&bed, &run, 3, 1, body_no_room, NULL);
    (void)sl_test_log_take();
    sl_model_destroy(run.model);
}

/* ---- waiting ---- */

/* Limits that move while messages may arrive: slots stay, bits are right. */
static void body_limits(bed_member_t *member)
{
    const rank_bed_t *bed = member->bed;
    sl_mem_t *mem = member->devices->devices[0].mem;
    sl_step_report_t report;
    int i;

    if (!member_create(member)) {
        return;
    }
    for (i = 0; i < bed->n_batches; i++) {
        sl_mem_limit_request(mem, (i + member->rank) % 2 == 0 ? 0 : SIZE_MAX);
        (void)MEMBER_OK(
            member, sl_engine_step(member->engine, &bed->batches[i], &report));
        member->result.losses[i] = report.loss;
        member->result.norms[i] = report.gradient_norm;
    }
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static void limits_move_on_every_rank(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 16,
                         .n_micro = 2,
                         .n_steps = 6,
                         .n_devices = 4,
                         .n_stages = 2,
                         .n_replicas = 2,
                         .host_bytes = (size_t)1 << 28};
    fixture_result_t want;
    int r;

    (void)state;
    run.model = fixture_unet();
    want = fixture_train(&run);
    run.n_devices = 1;
    run.zero1 = 1;
    ranks_run(&bed, &run, 4, 6, body_limits, NULL);
    for (r = 0; r < 4; r++) {
        member_assert_same(&bed.members[r], &want);
    }
    sl_model_destroy(run.model);
}

static void *raise_share(void *arg)
{
    const struct timespec pause = {.tv_nsec = 300000000};
    sl_op_manager_t *ops = arg;

    (void)nanosleep(&pause, NULL);
    (void)!sl_op_manager_share_set(ops, 100.0, SL_SHARE_TOKEN_BUCKET);
    return NULL;
}

/* Rank 1 is suspended in the middle of its work; the others wait for it. */
static void body_suspended(bed_member_t *member)
{
    sl_op_manager_t *ops = member->devices->devices[0].ops;
    sl_step_report_t report;
    pthread_t thread;
    int i;

    if (!member_create(member)) {
        return;
    }
    for (i = 0; i < 2; i++) {
        if (member->rank == 1) {
            (void)MEMBER_OK(member, sl_op_manager_share_set(
                                        ops, 0.0, SL_SHARE_TOKEN_BUCKET));
            if (!MEMBER_CHECK(member, pthread_create(&thread, NULL, raise_share,
                                                     ops) == 0)) {
                return;
            }
        }
        (void)MEMBER_OK(
            member,
            sl_engine_step(member->engine, &member->bed->batches[i], &report));
        if (member->rank == 1) {
            (void)pthread_join(thread, NULL);
        }
    }
}

static void a_suspended_rank_is_waited_for(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {
        .rows = 8, .n_micro = 2, .n_devices = 1, .n_stages = 3};

    (void)state;
    run.model = fixture_mlp();
    ranks_run(&bed, &run, 3, 2, body_suspended, NULL);
    sl_model_destroy(run.model);
}

/* ---- many failures ---- */

static uint32_t draw(int step, int attempt, int what)
{
    const sl_rng_t rng = sl_rng_at(3, (uint32_t)step, (uint32_t)attempt, 0,
                                   SL_RNG_USE_SYNTHETIC);

    return sl_rng_u32(&rng, (uint64_t)what);
}

/* Which rank gets an empty batch in an attempt; -1: none. */
static int unlucky(const rank_bed_t *bed, int step, int attempt)
{
    const int rank = (int)(draw(step, attempt, 0) % 8u);

    return attempt < 6 && rank < bed->n_ranks ? rank : -1;
}

static void pause_a_little(int step, int attempt, int rank)
{
    const struct timespec pause = {
        .tv_nsec = (long)(draw(step, attempt, 1 + rank) % 300000u)};

    if (draw(step, attempt, 100 + rank) % 2u == 0) {
        (void)nanosleep(&pause, NULL);
    }
}

/* A failed attempt is one on every rank, one that succeeds too. */
static int try_step(bed_member_t *member, int step, int attempt)
{
    const int bad = unlucky(member->bed, step, attempt);
    const sl_batch_t empty = {0};
    const sl_batch_t *batch =
        bad == member->rank ? &empty : &member->bed->batches[step];
    const int is_step = draw(step, attempt, 50) % 3u != 0 || attempt >= 6;
    sl_eval_sums_t sums = {0};
    sl_step_report_t report;
    sl_status_t status;

    pause_a_little(step, attempt, member->rank);
    status = is_step ? sl_engine_step(member->engine, batch, &report)
                     : sl_engine_evaluate(member->engine, batch, &sums);
    (void)MEMBER_CHECK(member,
                       status == (bad < 0 ? SL_OK : SL_ERR_INVALID_ARG));
    if (!is_step || bad >= 0) {
        return 0;
    }
    member->result.losses[step] = report.loss;
    member->result.norms[step] = report.gradient_norm;
    return 1;
}

static void body_chaos(bed_member_t *member)
{
    int step, attempt;

    if (!member_create(member)) {
        return;
    }
    for (step = 0; step < member->bed->n_batches; step++) {
        for (attempt = 0; attempt < 8 && !try_step(member, step, attempt);
             attempt++) {
        }
    }
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static void failures_at_any_instant_cost_nothing(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_steps = 8,
                         .n_devices = 4,
                         .n_stages = 2,
                         .n_replicas = 2};
    fixture_result_t want;
    int r;

    (void)state;
    run.model = fixture_gpt();
    want = fixture_train(&run);
    run.n_devices = 1;
    for (run.zero1 = 0; run.zero1 < 2; run.zero1++) {
        ranks_run(&bed, &run, 4, 8, body_chaos, NULL);
        (void)sl_test_log_take();
        for (r = 0; r < 4; r++) {
            member_assert_same(&bed.members[r], &want);
        }
    }
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(not_finite_on_one_rank),
        sl_unit_test(drift_of_one_rank),
        sl_unit_test(out_of_memory_on_one_rank),
        sl_unit_test(a_wrong_batch_on_one_rank),
        sl_unit_test(what_does_not_fit_together_is_refused),
        sl_unit_test(limits_move_on_every_rank),
        sl_unit_test(a_suspended_rank_is_waited_for),
        sl_unit_test(failures_at_any_instant_cost_nothing),
    };

    return cmocka_run_group_tests_name("engine.rank_failures", tests, NULL,
                                       NULL);
}
