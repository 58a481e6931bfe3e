/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/engine/rank_bed.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/repartition.h"

int member_check(bed_member_t *member, int ok, const char *what,
                 const char *file, int line)
{
    if (!ok) {
        (void)fprintf(stderr, "rank %d of %d: %s:%d: %s\n", member->rank,
                      member->bed->n_ranks, file, line, what);
        member->n_faults++;
    }
    return ok;
}

int member_create(bed_member_t *member)
{
    return MEMBER_OK(member,
                     sl_engine_create(&member->params, &member->engine));
}

int member_step(bed_member_t *member, int i)
{
    sl_step_report_t report;

    if (!MEMBER_OK(member, sl_engine_step(member->engine,
                                          &member->bed->batches[i], &report))) {
        return 0;
    }
    member->result.losses[i] = report.loss;
    member->result.norms[i] = report.gradient_norm;
    return 1;
}

int member_train_moving(bed_member_t *member, uint64_t seed)
{
    const rank_bed_t *bed = member->bed;
    const fixture_run_t *run = bed->run;
    int cuts[sizeof(bed->cuts) / sizeof(*bed->cuts)];
    uint64_t before, after;
    int i;

    for (i = 0; i < bed->n_batches; i++) {
        fixture_cuts(run->model, run->n_stages, seed,
                     (uint32_t)(i + 10 * bed->n_ranks), cuts);
        if (!MEMBER_OK(member, sl_engine_state_hash(member->engine, &before)) ||
            !MEMBER_OK(member,
                       sl_engine_repartition(member->engine, cuts, NULL)) ||
            !MEMBER_OK(member, sl_engine_state_hash(member->engine, &after))) {
            return 0;
        }
        (void)MEMBER_CHECK(member, before == after);
        if (!member_step(member, i)) {
            return 0;
        }
    }
    return 1;
}

void member_train(bed_member_t *member)
{
    const rank_bed_t *bed = member->bed;
    int i;

    if (!member_create(member)) {
        return;
    }
    for (i = 0; i < bed->n_batches; i++) {
        if (!member_step(member, i)) {
            return;
        }
    }
    (void)MEMBER_OK(member, sl_engine_evaluate(member->engine, &bed->batches[0],
                                               &member->sums));
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

void member_assert_same(const bed_member_t *member,
                        const fixture_result_t *want)
{
    const fixture_result_t *got = &member->result;
    const rank_bed_t *bed = member->bed;

    if (got->hash != want->hash ||
        memcmp(got->losses, want->losses, sizeof(got->losses)) != 0 ||
        memcmp(got->norms, want->norms, sizeof(got->norms)) != 0) {
        (void)fprintf(stderr,
                      "%s: replicas %d stages %d ranks %d devices %d, rank %d: "
                      "hash %016llx, not %016llx; loss %.17g, not %.17g; norm "
                      "%.17g, not %.17g\n",
                      member->params.model->name, bed->run->n_replicas,
                      bed->run->n_stages, bed->n_ranks, bed->run->n_devices,
                      member->rank, (unsigned long long)got->hash,
                      (unsigned long long)want->hash, got->losses[0],
                      want->losses[0], got->norms[0], want->norms[0]);
        fail();
    }
}

static void *run_member(void *arg)
{
    bed_member_t *member = arg;

    member->bed->body(member);
    sl_engine_destroy(member->engine);
    sl_world_leave(member->world);
    return NULL;
}

static void copy_batch(const sl_model_t *model, const sl_batch_t *batch,
                       sl_batch_t *copy)
{
    const size_t data_bytes =
        sl_tensor_bytes(&model->data) * (size_t)batch->rows;
    const size_t target_bytes =
        sl_tensor_bytes(&model->target) * (size_t)batch->rows;
    void *data = malloc(data_bytes), *target = malloc(target_bytes);

    assert_non_null(data);
    assert_non_null(target);
    memcpy(data, batch->data, data_bytes);
    memcpy(target, batch->target, target_bytes);
    *copy = *batch;
    copy->data = data;
    copy->target = target;
}

static void free_batch(sl_batch_t *batch)
{
    free((void *)(uintptr_t)batch->data);
    free((void *)(uintptr_t)batch->target);
}

static void open_member(rank_bed_t *bed, int rank, sl_world_t *world)
{
    bed_member_t *member = &bed->members[rank];
    fixture_run_t run = *bed->run;

    run.gpu_rank = rank;
    run.n_gpu_ranks = bed->n_ranks;
    member->bed = bed;
    member->rank = rank;
    member->world = world;
    fixture_params(&run, &member->devices, &member->params);
    memcpy(bed->cuts, member->params.cuts,
           (size_t)(bed->run->n_stages + 1) * sizeof(int));
    member->params.cuts = bed->cuts;
    member->params.world = world;
}

static void make_batches(rank_bed_t *bed)
{
    int i;

    for (i = 0; i < bed->n_batches; i++) {
        const int rows =
            bed->run->rows - (bed->run->uneven_last && i == bed->n_batches - 1);
        const sl_batch_t batch =
            fixture_batch(bed->run->model, rows, i, bed->run->ignore_every);

        copy_batch(bed->run->model, &batch, &bed->batches[i]);
    }
}

static void begin(rank_bed_t *bed, const fixture_run_t *run, int n_ranks,
                  int n_batches, void (*body)(bed_member_t *member),
                  const void *args)
{
    assert_true(n_ranks <= RANKS_MAX && n_batches <= RANKS_MAX_BATCHES);
    memset(bed, 0, sizeof(*bed));
    bed->run = run;
    bed->n_ranks = n_ranks;
    bed->n_batches = n_batches;
    bed->body = body;
    bed->args = args;
    make_batches(bed);
}

static void end(rank_bed_t *bed)
{
    int i, n_faults = 0;

    for (i = 0; i < bed->n_ranks; i++) {
        n_faults += bed->members[i].n_faults;
        sl_device_set_destroy(bed->members[i].devices);
    }
    for (i = 0; i < bed->n_batches; i++) {
        free_batch(&bed->batches[i]);
    }
    assert_int_equal(n_faults, 0);
}

void ranks_run(rank_bed_t *bed, const fixture_run_t *run, int n_ranks,
               int n_batches, void (*body)(bed_member_t *member),
               const void *args)
{
    sl_world_params_t params;
    sl_world_t *worlds[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    int i;

    begin(bed, run, n_ranks, n_batches, body, args);
    sl_world_params_default(&params);
    sl_assert_ok(sl_world_local(n_ranks, &params, worlds));
    for (i = 0; i < n_ranks; i++) {
        open_member(bed, i, worlds[i]);
    }
    for (i = 0; i < n_ranks; i++) {
        assert_int_equal(
            pthread_create(&threads[i], NULL, run_member, &bed->members[i]), 0);
    }
    for (i = 0; i < n_ranks; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    end(bed);
}

void ranks_run_process(rank_bed_t *bed, const fixture_run_t *run,
                       sl_world_t *world, int n_batches,
                       void (*body)(bed_member_t *member), const void *args)
{
    bed_member_t *member = &bed->members[sl_world_rank(world)];

    begin(bed, run, sl_world_size(world), n_batches, body, args);
    open_member(bed, sl_world_rank(world), world);
    body(member);
    sl_engine_destroy(member->engine);
    end(bed);
}
