/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that is cut off exactly where all agree to take a step: before its
 * own part has left, or after it while the others take the step. No rank goes
 * on from another state than the others. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "tests/engine/rank_bed.h"

enum {
    N_RANKS = 3,
    VICTIM = 1, /* the last to be told the sum */
    N_STEPS = 3,
    CUT_STEP = 1,
    LEAST_AGREEMENT = 32 /* values; sums of other things have fewer */
};

typedef enum cut_kind {
    CUT_BEFORE, /* its part is not given */
    CUT_AFTER,  /* it is, and rank 2 has the sum */
    CUT_NOT     /* it has the sum, and is slow to go on */
} cut_kind_t;

static cut_kind_t kind;
static atomic_int is_armed;      /* the step to cut has begun */
static atomic_int has_been_told; /* rank 2 has the sum */

sl_status_t __real_sl_world_sum(sl_world_t *world, double *values, size_t n);
sl_status_t __wrap_sl_world_sum(sl_world_t *world, double *values, size_t n);

sl_status_t __wrap_sl_world_sum(sl_world_t *world, double *values, size_t n)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const int is_cut = n >= LEAST_AGREEMENT && atomic_load(&is_armed);
    sl_status_t status;
    int i;

    if (!is_cut || sl_world_rank(world) != VICTIM) {
        status = __real_sl_world_sum(world, values, n);
        if (is_cut && sl_world_rank(world) == 2 && status == SL_OK) {
            atomic_store(&has_been_told, 1);
        }
        return status;
    }
    if (kind == CUT_NOT) {
        status = __real_sl_world_sum(world, values, n);
        atomic_store(&is_armed, 0);
        for (i = 0; i < 100; i++) {
            (void)nanosleep(&pause, NULL);
        }
        return status;
    }
    if (kind == CUT_AFTER) {
        /* what a sum does here first */
        if (sl_world_put(world, 0, values, n * sizeof(*values)) < 0) {
            return SL_ERR_COMM;
        }
        while (!atomic_load(&has_been_told)) {
            (void)nanosleep(&pause, NULL);
        }
    }
    atomic_store(&is_armed, 0);
    SL_REFUSE(status, SL_ERR_NO_MEMORY, out, "the victim's memory");
out:
    sl_world_abort(world, status, sl_last_error());
    return status;
}

typedef struct record {
    sl_status_t first;  /* of the step that is cut */
    sl_status_t second; /* of the next call */
    sl_status_t third;
    uint32_t n_steps;
} record_t;

static record_t records[N_RANKS];
static pthread_barrier_t armed;

static sl_status_t step(bed_member_t *member, int i)
{
    sl_step_report_t report;
    const sl_status_t status =
        sl_engine_step(member->engine, &member->bed->batches[i], &report);

    if (status >= 0) {
        member->result.losses[i] = report.loss;
        member->result.norms[i] = report.gradient_norm;
    }
    return status;
}

/* The others have ended the step, and one of them fails in the next: the slow
 * one ends its step all the same, and then fails as they do. */
static void train_with_a_slow_rank(bed_member_t *member)
{
    const int failing = *(const int *)member->bed->args;
    const sl_batch_t empty = {0};
    sl_step_report_t report;

    if (!member_create(member) ||
        !MEMBER_CHECK(member, step(member, 0) == SL_OK)) {
        return;
    }
    (void)pthread_barrier_wait(&armed);
    if (member->rank == VICTIM) {
        atomic_store(&is_armed, 1);
    }
    (void)pthread_barrier_wait(&armed);
    (void)MEMBER_CHECK(member, step(member, CUT_STEP) == SL_OK);
    (void)MEMBER_CHECK(member, sl_engine_step(member->engine,
                                              member->rank == failing
                                                  ? &empty
                                                  : &member->bed->batches[2],
                                              &report) == SL_ERR_INVALID_ARG);
    (void)MEMBER_CHECK(member, step(member, 2) == SL_OK);
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static void train_with_a_cut(bed_member_t *member)
{
    record_t *record = &records[member->rank];

    memset(record, 0, sizeof(*record));
    if (!member_create(member) ||
        !MEMBER_CHECK(member, step(member, 0) == SL_OK)) {
        return;
    }
    (void)pthread_barrier_wait(&armed);
    if (member->rank == VICTIM) {
        atomic_store(&has_been_told, 0);
        atomic_store(&is_armed, 1);
    }
    (void)pthread_barrier_wait(&armed);
    record->first = step(member, CUT_STEP);
    if (kind == CUT_BEFORE) {
        /* nobody has taken it: all take it again */
        (void)MEMBER_CHECK(member, step(member, CUT_STEP) == SL_OK);
        (void)MEMBER_CHECK(member, step(member, 2) == SL_OK);
        (void)MEMBER_OK(
            member, sl_engine_state_hash(member->engine, &member->result.hash));
        return;
    }
    /* how long one that leaves a failed job waits for the others */
    sl_world_dead_after(member->world, 1000000000);
    record->second = step(member, 2);
    record->third = step(member, 2);
    record->n_steps = sl_engine_n_steps(member->engine);
}

static fixture_run_t mlp_run(void)
{
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = N_RANKS,
                         .n_steps = N_STEPS};

    run.model = fixture_mlp();
    return run;
}

static void before_it_all_take_the_step_again(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = mlp_run();
    fixture_result_t want;
    int r;

    (void)state;
    kind = CUT_BEFORE;
    (void)pthread_barrier_init(&armed, NULL, N_RANKS);
    ranks_run(&bed, &run, N_RANKS, N_STEPS, train_with_a_cut, NULL);
    (void)sl_test_log_take();
    run.n_stages = 1;
    want = fixture_train(&run);
    for (r = 0; r < N_RANKS; r++) {
        assert_int_equal(records[r].first, SL_ERR_NO_MEMORY);
        assert_true(bed.members[r].result.hash == want.hash);
        assert_memory_equal(bed.members[r].result.losses, want.losses,
                            sizeof(want.losses));
    }
    (void)pthread_barrier_destroy(&armed);
    sl_model_destroy(run.model);
}

static void after_it_nobody_goes_on(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = mlp_run();
    int r, trial;

    (void)state;
    kind = CUT_AFTER;
    (void)pthread_barrier_init(&armed, NULL, N_RANKS);
    for (trial = 0; trial < 3; trial++) {
        ranks_run(&bed, &run, N_RANKS, N_STEPS, train_with_a_cut, NULL);
        (void)sl_test_log_take();
        for (r = 0; r < N_RANKS; r++) {
            assert_true(records[r].second < 0);
            assert_true(records[r].third < 0);
        }
        assert_int_equal(records[VICTIM].first, SL_ERR_NO_MEMORY);
        assert_int_equal(records[VICTIM].n_steps, CUT_STEP);
    }
    (void)pthread_barrier_destroy(&armed);
    sl_model_destroy(run.model);
}

static void a_failure_waits_for_who_is_slow_to_end_the_step(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = mlp_run();
    fixture_result_t want;
    int r, failing;

    (void)state;
    kind = CUT_NOT;
    run.n_stages = 1;
    want = fixture_train(&run);
    run.n_stages = N_RANKS;
    (void)pthread_barrier_init(&armed, NULL, N_RANKS);
    for (failing = 0; failing < N_RANKS; failing++) {
        ranks_run(&bed, &run, N_RANKS, N_STEPS, train_with_a_slow_rank,
                  &failing);
        (void)sl_test_log_take();
        for (r = 0; r < N_RANKS; r++) {
            assert_true(bed.members[r].result.hash == want.hash);
            assert_memory_equal(bed.members[r].result.losses, want.losses,
                                sizeof(want.losses));
        }
    }
    (void)pthread_barrier_destroy(&armed);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_failure_waits_for_who_is_slow_to_end_the_step),
        sl_unit_test(before_it_all_take_the_step_again),
        sl_unit_test(after_it_nobody_goes_on),
    };

    return cmocka_run_group_tests_name("engine.missed", tests, NULL, NULL);
}
