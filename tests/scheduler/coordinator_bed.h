/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coordinator_bed.h
 * A coordinator over a run directory in the test's folder, whose jobs are made
 * up: their files are written by the test, in virtual time.
 */
#ifndef SL_TESTS_SCHEDULER_COORDINATOR_BED_H
#define SL_TESTS_SCHEDULER_COORDINATOR_BED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/control/run_dir.h"
#include "scheduler/control/secure_file.h"
#include "scheduler/coordinator/exchange.h"
#include "tests/support/sl_test.h"

static const uint64_t COORDINATOR_SECOND_NS = UINT64_C(1000000000);

typedef struct coordinator_bed {
    sl_run_dir_t *dir;
    sl_exchange_t *exchange;
    sl_coord_t *coord;
    sl_coord_snapshot_t seen;
    sl_coord_decisions_t decisions;
    uint64_t now_ns;
} coordinator_bed_t;

static inline void coordinator_bed_open(coordinator_bed_t *bed)
{
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/run", sl_test_directory());
    sl_assert_ok(sl_run_dir_open(path, &bed->dir));
    bed->now_ns = 50 * COORDINATOR_SECOND_NS;
}

static inline void coordinator_bed_close(coordinator_bed_t *bed)
{
    sl_run_dir_close(bed->dir);
}

/* A new coordinator, whose floor is `like`'s; its directory is the bed's. */
static inline void coordinator_bed_begin(coordinator_bed_t *bed,
                                         const sl_exchange_params_t *like)
{
    sl_exchange_params_t params = *like;
    sl_coord_params_t coord_params;

    params.dir = bed->dir;
    sl_coord_params_default(&coord_params);
    coord_params.floor_percent = params.floor_percent;
    sl_assert_ok(sl_coord_create(&coord_params, &bed->coord));
    sl_assert_ok(sl_exchange_create(&params, &bed->exchange));
}

static inline void coordinator_bed_end(coordinator_bed_t *bed)
{
    sl_exchange_destroy(bed->exchange);
    sl_coord_destroy(bed->coord);
    bed->exchange = NULL;
    bed->coord = NULL;
}

/* Its period of 0.2 s has passed. */
static inline void coordinator_bed_look(coordinator_bed_t *bed)
{
    bed->now_ns += COORDINATOR_SECOND_NS / 5;
    sl_exchange_read(bed->exchange, bed->now_ns, &bed->seen);
    sl_coord_step(bed->coord, &bed->seen, &bed->decisions);
    sl_exchange_write(bed->exchange, &bed->seen, &bed->decisions);
}

/* What a job says of itself. */
static inline void coordinator_bed_tell(const sl_job_dir_t *job,
                                        const sl_control_status_t *status)
{
    char *text = NULL;

    sl_assert_ok(sl_control_status_format(status, &text));
    sl_assert_ok(sl_atomic_write_unflushed(job->fd, SL_FILE_STATUS, 0600, text,
                                           strlen(text)));
    free(text);
}

#endif /* SL_TESTS_SCHEDULER_COORDINATOR_BED_H */
