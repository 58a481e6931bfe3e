/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks are one process, bit for bit; and what fails on one of them. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "engine/engine_internal.h"
#include "tests/engine/rank_bed.h"

/* ---- the same bits ---- */

typedef struct shape {
    int n_replicas, n_stages, n_ranks, n_devices;
} shape_t;

static void assert_same(const bed_member_t *member,
                        const fixture_result_t *want, const shape_t *shape)
{
    const fixture_result_t *got = &member->result;

    if (got->hash != want->hash ||
        memcmp(got->losses, want->losses, sizeof(got->losses)) != 0 ||
        memcmp(got->norms, want->norms, sizeof(got->norms)) != 0) {
        (void)fprintf(stderr,
                      "%s: replicas %d stages %d ranks %d devices %d, rank %d: "
                      "hash %016llx, not %016llx; loss %.17g, not %.17g; norm "
                      "%.17g, not %.17g\n",
                      member->params.model->name, shape->n_replicas,
                      shape->n_stages, shape->n_ranks, shape->n_devices,
                      member->rank, (unsigned long long)got->hash,
                      (unsigned long long)want->hash, got->losses[0],
                      want->losses[0], got->norms[0], want->norms[0]);
        fail();
    }
}

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
        assert_same(&bed.members[r], &want, shape);
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
    const int is_skip = member->params.not_finite == SL_NOT_FINITE_SKIP;
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
    if (is_skip) {
        (void)MEMBER_CHECK(member, status == SL_OK);
        (void)MEMBER_CHECK(member, report.is_skipped && report.n_skipped == 1);
    } else {
        (void)MEMBER_CHECK(member, status == SL_ERR_NUMERIC);
        (void)MEMBER_CHECK(member,
                           strstr(sl_last_error(), "not finite") != NULL);
    }
    (void)MEMBER_OK(member, sl_engine_state_hash(member->engine, &after));
    (void)MEMBER_CHECK(member, before == after);
    (void)MEMBER_OK(member, sl_engine_step(member->engine,
                                           &member->bed->batches[2], &report));
    (void)MEMBER_CHECK(member, !report.is_skipped);
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
    for (i = 0; i < 4; i++) {
        run.zero1 = i / 2;
        run.not_finite = (sl_not_finite_t)(i % 2);
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
    const shape_t shape = {2, 2, 4, 1};
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
            assert_same(&bed.members[r], &want, &shape);
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
    const shape_t shape = {2, 2, 4, 1};
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
        assert_same(&bed.members[r], &want, &shape);
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
    const shape_t shape = {2, 2, 4, 1};
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
            assert_same(&bed.members[r], &want, &shape);
        }
    }
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(gpt_is_one_process),
        sl_unit_test(resnet_is_one_process),
        sl_unit_test(unet_is_one_process),
        sl_unit_test(micro_batch_counts_around_the_stages),
        sl_unit_test(not_finite_on_one_rank),
        sl_unit_test(out_of_memory_on_one_rank),
        sl_unit_test(a_wrong_batch_on_one_rank),
        sl_unit_test(what_does_not_fit_together_is_refused),
        sl_unit_test(signals_reach_all_ranks),
        sl_unit_test(a_step_is_one_sum_with_what_is_given_to_it),
        sl_unit_test(state_goes_in_and_out_on_all_ranks),
        sl_unit_test(the_memory_plan_is_of_all_ranks),
        sl_unit_test(limits_move_on_every_rank),
        sl_unit_test(a_suspended_rank_is_waited_for),
        sl_unit_test(edges_are_counted),
        sl_unit_test(failures_at_any_instant_cost_nothing),
    };

    return cmocka_run_group_tests_name("engine.ranks", tests, NULL, NULL);
}
