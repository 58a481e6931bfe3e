/* SPDX-License-Identifier: Apache-2.0 */
/* More jobs than a coordinator steers; made up here, as they are on disk. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/scheduler/coordinator_bed.h"

enum {
    N_JOBS = SL_COORD_MAX_JOBS + 6,
    N_SLOTS = 2 * SL_COORD_MAX_JOBS + 6
};

/* The C library's, as this program has it: hundreds of files would wait for a
 * disk that is not what is tested here. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

typedef struct bed {
    coordinator_bed_t coordinator;
    sl_job_dir_t dirs[N_SLOTS]; /* by number */
} bed_t;

static void begin_coordinator(bed_t *bed)
{
    const sl_exchange_params_t params = {.floor_percent = 1.0, .ttl_ms = 8000};

    coordinator_bed_begin(&bed->coordinator, &params);
}

static bed_t *make_bed(void)
{
    bed_t *bed = calloc(1, sizeof(*bed));

    assert_non_null(bed);
    coordinator_bed_open(&bed->coordinator);
    begin_coordinator(bed);
    return bed;
}

static void free_bed(bed_t *bed)
{
    coordinator_bed_end(&bed->coordinator);
    coordinator_bed_close(&bed->coordinator);
    free(bed);
}

/* It came as the `arrival`-th. */
static void add_job(bed_t *bed, int number, int arrival)
{
    sl_control_status_t status = {.sequence = 1,
                                  .state = SL_JOB_STATE_RUNNING,
                                  .job_class = SL_JOB_CLASS_OPPORTUNISTIC,
                                  .n_devices = 1};
    sl_control_job_t job = {.pid = 77,
                            .start_ticks = 1,
                            .job_class = SL_JOB_CLASS_OPPORTUNISTIC,
                            .n_devices = 1};

    job.created_ns = (uint64_t)(1 + arrival);
    (void)snprintf(job.name, sizeof(job.name), "number-%d", number);
    memcpy(job.devices[0].name, "cpu:0", 6);
    job.devices[0].capacity_bytes = UINT64_C(1) << 40;
    job.devices[0].n_threads = 1;
    sl_assert_ok(
        sl_job_dir_create(bed->coordinator.dir, &job, &bed->dirs[number]));
    memcpy(status.unit, "samples", 8);
    memcpy(status.devices[0].name, "cpu:0", 6);
    status.devices[0].limit_bytes = UINT64_C(1) << 40;
    status.devices[0].share_asked = 100.0;
    coordinator_bed_tell(&bed->dirs[number], &status);
}

static void look(bed_t *bed)
{
    coordinator_bed_look(&bed->coordinator);
}

static int is_seen(const bed_t *bed, int number)
{
    int i, n = 0;

    for (i = 0; i < bed->coordinator.seen.n_jobs; i++) {
        n += strcmp(bed->coordinator.seen.jobs[i].id.text,
                    bed->dirs[number].id.text) == 0;
    }
    return n;
}

static int has_order(bed_t *bed, int number)
{
    sl_control_order_t order;

    return sl_run_order_read(bed->coordinator.dir, &bed->dirs[number].id,
                             &order) >= 0;
}

/* Number 0 came last: neither names nor the directory say who was first. */
static void those_that_came_last_are_left_alone(void **state)
{
    bed_t *bed = make_bed();
    int i;

    (void)state;
    for (i = 0; i < N_JOBS; i++) {
        add_job(bed, i, N_JOBS - i);
    }
    look(bed);
    sl_assert_contains(sl_test_log_take(),
                       "more than 64 jobs: the 6 that came last");
    assert_int_equal(bed->coordinator.seen.n_jobs, SL_COORD_MAX_JOBS);
    for (i = 0; i < N_JOBS; i++) {
        assert_int_equal(is_seen(bed, i), i >= N_JOBS - SL_COORD_MAX_JOBS);
        assert_int_equal(has_order(bed, i), i >= N_JOBS - SL_COORD_MAX_JOBS);
    }
    look(bed);
    assert_string_equal(sl_test_log_take(), ""); /* said once */
    sl_job_dir_remove(bed->coordinator.dir, &bed->dirs[20]);
    look(bed);
    assert_int_equal(bed->coordinator.seen.n_jobs, SL_COORD_MAX_JOBS);
    assert_int_equal(is_seen(bed, 5), 1); /* the first of the rest */
    assert_int_equal(is_seen(bed, 4), 0);
    coordinator_bed_end(&bed->coordinator); /* a new one chooses the same */
    begin_coordinator(bed);
    look(bed);
    sl_assert_contains(sl_test_log_take(), "the 5 that came last");
    assert_int_equal(is_seen(bed, 5), 1);
    assert_int_equal(is_seen(bed, 4), 0);
    sl_job_dir_remove(bed->coordinator.dir, &bed->dirs[20 + 1]);
    for (i = 0; i < N_JOBS; i++) {
        if (i != 20 && i != 21) {
            sl_job_dir_remove(bed->coordinator.dir, &bed->dirs[i]);
        }
    }
    look(bed);
    assert_int_equal(bed->coordinator.seen.n_jobs, 0);
    free_bed(bed);
}

static void a_list_may_be_far_too_long(void **state)
{
    bed_t *bed = make_bed();
    int i;

    (void)state;
    for (i = 0; i < N_SLOTS; i++) {
        add_job(bed, i, i);
    }
    look(bed);
    sl_assert_contains(sl_test_log_take(), "the 70 that came last");
    assert_int_equal(bed->coordinator.seen.n_jobs, SL_COORD_MAX_JOBS);
    assert_int_equal(is_seen(bed, SL_COORD_MAX_JOBS - 1), 1);
    assert_int_equal(is_seen(bed, SL_COORD_MAX_JOBS), 0);
    for (i = 0; i < N_SLOTS; i++) {
        (void)close(bed->dirs[i].lock_fd);
        (void)close(bed->dirs[i].fd);
    }
    look(bed); /* all have gone at once */
    assert_int_equal(bed->coordinator.seen.n_jobs, 0);
    free_bed(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(those_that_came_last_are_left_alone),
        sl_unit_test(a_list_may_be_far_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
