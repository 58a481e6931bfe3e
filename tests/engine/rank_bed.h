/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rank_bed.h
 * Ranks that are threads of one process, each with devices and an engine of
 * its own, that train together. What a rank finds wrong is noted: a test's
 * assertions belong to its main thread.
 */
#ifndef SL_TESTS_ENGINE_RANK_BED_H
#define SL_TESTS_ENGINE_RANK_BED_H

#include "engine/world.h"
#include "tests/engine/engine_fixture.h"

enum {
    RANKS_MAX = 6,
    RANKS_MAX_BATCHES = 8
};

typedef struct rank_bed rank_bed_t;

/** One rank. */
typedef struct bed_member {
    rank_bed_t *bed;
    int rank;
    sl_world_t *world;
    sl_device_set_t *devices;
    sl_engine_params_t params; /**< world and devices are the rank's */
    sl_engine_t *engine;       /**< made by member_create */
    fixture_result_t result;
    sl_eval_sums_t sums;
    int n_faults;
} bed_member_t;

struct rank_bed {
    const fixture_run_t *run; /**< n_devices is of one rank */
    int n_ranks;
    int n_batches;
    sl_batch_t batches[RANKS_MAX_BATCHES]; /**< owned contents */
    bed_member_t members[RANKS_MAX];
    void (*body)(bed_member_t *member);
    const void *args;
    int cuts[65];
};

/** Run `body` on n_ranks ranks; fails the test when one has noted a fault.
 *  Batches are those of fixture_batch(), 0 to n_batches - 1. */
void ranks_run(rank_bed_t *bed, const fixture_run_t *run, int n_ranks,
               int n_batches, void (*body)(bed_member_t *member),
               const void *args);

/** The same in a process that is a rank of `world`, as all others of it do; the
 *  result is members[rank]'s alone. The world stays. */
void ranks_run_process(rank_bed_t *bed, const fixture_run_t *run,
                       sl_world_t *world, int n_batches,
                       void (*body)(bed_member_t *member), const void *args);

/** In a body: note a fault, with what and where. */
#define MEMBER_CHECK(member, cond)                                             \
    member_check((member), (cond), #cond, __FILE__, __LINE__)
int member_check(bed_member_t *member, int ok, const char *what,
                 const char *file, int line);
/** A call that must succeed. */
#define MEMBER_OK(member, call)                                                \
    member_check((member), (call) == SL_OK, sl_last_error(), __FILE__, __LINE__)

/** The rank's engine; a fault when there is none. @return whether there is */
int member_create(bed_member_t *member);
/** Step i: its loss and norm into member->result. @return whether it succeeded
 */
int member_step(bed_member_t *member, int i);
/** Steps over all batches, each after a move to other cuts, drawn from `seed`,
 *  that the hash does not notice. @return whether all succeeded */
int member_train_moving(bed_member_t *member, uint64_t seed);
/** Steps over all batches, an evaluation, the hash: into member->result. */
void member_train(bed_member_t *member);

/** After ranks_run(): the test fails unless the member's result is `want`. */
void member_assert_same(const bed_member_t *member,
                        const fixture_result_t *want);

#endif /* SL_TESTS_ENGINE_RANK_BED_H */
