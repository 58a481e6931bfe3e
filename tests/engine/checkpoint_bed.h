/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file checkpoint_bed.h
 * A small training run that can be saved and gone on with, for tests.
 */
#ifndef SL_TESTS_ENGINE_CHECKPOINT_BED_H
#define SL_TESTS_ENGINE_CHECKPOINT_BED_H

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint.h"
#include "tests/engine/engine_fixture.h"

/** An engine, what it needs, and the steps it has done. */
typedef struct bed {
    fixture_run_t run;
    sl_device_set_t *devices;
    sl_engine_t *engine;
    sl_checkpoint_run_t checkpoint;
} bed_t;

static inline void bed_open(bed_t *bed, const fixture_run_t *run)
{
    memset(bed, 0, sizeof(*bed));
    bed->run = *run;
    fixture_engine(run, &bed->devices, &bed->engine);
    bed->checkpoint.engine = bed->engine;
    bed->checkpoint.n_samples = 100;
}

static inline void bed_close(bed_t *bed)
{
    sl_engine_destroy(bed->engine);
    sl_device_set_destroy(bed->devices);
}

/** Steps until `n` are done; @return the last loss */
static inline double bed_train(bed_t *bed, uint32_t n)
{
    sl_step_report_t report = {.loss = 0.0};

    while (sl_engine_n_steps(bed->engine) < n) {
        const sl_batch_t batch =
            fixture_batch(bed->run.model, bed->run.rows,
                          (int)sl_engine_n_steps(bed->engine), 0);

        sl_assert_ok(sl_engine_step(bed->engine, &batch, &report));
    }
    return report.loss;
}

static inline uint64_t bed_hash(bed_t *bed)
{
    uint64_t hash = 0;

    sl_assert_ok(sl_engine_state_hash(bed->engine, &hash));
    return hash;
}

static inline sl_saver_t *bed_saver(bed_t *bed, const char *dir, int64_t keep,
                                    int keeps_best, int is_required)
{
    sl_checkpoint_params_t params;
    sl_saver_t *saver = NULL;

    sl_checkpoint_params_default(&params);
    params.dir = dir;
    params.keep = keep;
    params.keeps_best = keeps_best;
    params.is_required = is_required;
    params.program = "test";
    sl_assert_ok(sl_saver_create(&params, &bed->checkpoint, &saver));
    return saver;
}

/** Save the state as it is, wait for it. */
static inline void bed_save(bed_t *bed, const char *dir, double loss)
{
    sl_saver_t *saver = bed_saver(bed, dir, 0, 0, 1);

    sl_assert_ok(sl_saver_save(saver, loss, (double)NAN));
    sl_assert_ok(sl_saver_wait(saver));
    sl_saver_destroy(saver);
}

static inline sl_status_t bed_resume(bed_t *bed, const char *dir,
                                     const char *name, sl_resume_kind_t kind,
                                     sl_checkpoint_info_t *info)
{
    const sl_resume_t resume = {.dir = dir, .name = name, .kind = kind};

    return sl_checkpoint_resume(&bed->checkpoint, &resume, info);
}

/** A path below the test's directory; borrowed until the third next call. */
static inline const char *bed_path(const char *name)
{
    static char paths[3][512];
    static int next;

    next = (next + 1) % 3;
    (void)snprintf(paths[next], sizeof(paths[next]), "%s/%s",
                   sl_test_directory(), name);
    return paths[next];
}

static inline int bed_exists(const char *name)
{
    struct stat info;

    return lstat(bed_path(name), &info) == 0;
}

#endif /* SL_TESTS_ENGINE_CHECKPOINT_BED_H */
