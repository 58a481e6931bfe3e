/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator moves the threads of real processes into the background and
 * out of it; their jobs' files are made up here. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* SCHED_IDLE, SCHED_BATCH */
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/coordinator/priority.h"
#include "tests/scheduler/coordinator_bed.h"
#include "tests/scheduler/process_bed.h"

enum {
    GUEST,
    HOST,
    N_PARTIES
};

/* A process that does nothing, and what a job of it would publish. */
typedef struct party {
    pid_t pid;
    int is_listed;
    sl_job_dir_t dir;
    sl_control_job_t job;
    sl_control_status_t status;
} party_t;

typedef struct bed {
    party_t parties[N_PARTIES];
    int can_raise; /* this user may move threads out of the background */
    coordinator_bed_t coordinator;
} bed_t;

static void begin_party(bed_t *bed, int i)
{
    party_t *party = &bed->parties[i];

    party->pid = process_begin();
    party->job.pid = party->pid;
    party->job.start_ticks = process_start(party->pid);
    (void)snprintf(party->job.name, sizeof(party->job.name), "party-%d", i);
    party->job.created_ns = 1;
    party->job.n_devices = 1;
    memcpy(party->job.devices[0].name, "cpu:0", 6);
    party->job.devices[0].capacity_bytes = UINT64_C(1) << 30;
    party->job.devices[0].n_threads = 1;
    party->status.state = SL_JOB_STATE_RUNNING;
    memcpy(party->status.unit, "samples", 8);
    party->status.n_devices = 1;
    memcpy(party->status.devices[0].name, "cpu:0", 6);
    party->status.devices[0].limit_bytes = UINT64_C(1) << 30;
    party->status.devices[0].share_asked = 100.0;
    party->status.devices[0].held_bytes = UINT64_C(1) << 20;
}

static void publish(bed_t *bed, int i, sl_job_class_t job_class)
{
    party_t *party = &bed->parties[i];

    if (!party->is_listed) {
        party->job.job_class = job_class;
        sl_assert_ok(
            sl_job_dir_create(bed->coordinator.dir, &party->job, &party->dir));
        party->is_listed = 1;
    }
    party->status.job_class = job_class;
    party->status.sequence++;
    coordinator_bed_tell(&party->dir, &party->status);
}

static void retire(bed_t *bed, int i)
{
    sl_job_dir_remove(bed->coordinator.dir, &bed->parties[i].dir);
    bed->parties[i].is_listed = 0;
}

static void begin_coordinator(bed_t *bed, int is_dry_run)
{
    const sl_exchange_params_t params = {
        .floor_percent = 1.0, .ttl_ms = 8000, .is_dry_run = is_dry_run};

    coordinator_bed_begin(&bed->coordinator, &params);
}

static void end_coordinator(bed_t *bed)
{
    coordinator_bed_end(&bed->coordinator);
}

static void look(bed_t *bed)
{
    coordinator_bed_look(&bed->coordinator);
}

static void set_policy(bed_t *bed, int i, int policy)
{
    const struct sched_param param = {0};

    assert_int_equal(sched_setscheduler(bed->parties[i].pid, policy, &param),
                     0);
}

static int policy_of(const bed_t *bed, int i)
{
    return sched_getscheduler(bed->parties[i].pid);
}

/* The processes come first: they would hold the locks that are there. */
static bed_t *make_bed(void)
{
    bed_t *bed = calloc(1, sizeof(*bed));
    int i;

    assert_non_null(bed);
    for (i = 0; i < N_PARTIES; i++) {
        begin_party(bed, i);
    }
    sl_assert_ok(sl_priority_set(&bed->parties[HOST].job, 1));
    bed->can_raise = sl_priority_set(&bed->parties[HOST].job, 0) == SL_OK;
    if (!bed->can_raise) {
        process_end(bed->parties[HOST].pid);
        begin_party(bed, HOST);
    }
    coordinator_bed_open(&bed->coordinator);
    begin_coordinator(bed, 0);
    return bed;
}

static void free_bed(bed_t *bed)
{
    int i;

    end_coordinator(bed);
    for (i = 0; i < N_PARTIES; i++) {
        if (bed->parties[i].is_listed) {
            retire(bed, i);
        }
        process_end(bed->parties[i].pid);
    }
    coordinator_bed_close(&bed->coordinator);
    free(bed);
}

static int raised_policy(const bed_t *bed)
{
    return bed->can_raise ? SCHED_OTHER : SCHED_IDLE;
}

static void a_guest_is_in_the_background_beside_a_host_only(void **state)
{
    bed_t *bed = make_bed();

    (void)state;
    publish(bed, GUEST, SL_JOB_CLASS_OPPORTUNISTIC);
    look(bed);
    assert_int_equal(policy_of(bed, GUEST), SCHED_OTHER);
    publish(bed, HOST, SL_JOB_CLASS_GUARANTEE);
    look(bed);
    assert_int_equal(policy_of(bed, GUEST), SCHED_IDLE);
    assert_int_equal(policy_of(bed, HOST), SCHED_OTHER);
    retire(bed, HOST);
    look(bed);
    assert_int_equal(policy_of(bed, GUEST), raised_policy(bed));
    free_bed(bed);
}

/* A guest that a coordinator moved there for a host, and then ended. */
static void leave_in_background(bed_t *bed)
{
    publish(bed, GUEST, SL_JOB_CLASS_OPPORTUNISTIC);
    publish(bed, HOST, SL_JOB_CLASS_GUARANTEE);
    look(bed);
    assert_int_equal(policy_of(bed, GUEST), SCHED_IDLE);
    end_coordinator(bed);
}

/* Whoever moved it there is gone; so is the job that it was there for. */
static void a_new_coordinator_moves_back_a_guest_that_is_alone(void **state)
{
    bed_t *bed = make_bed();

    (void)state;
    leave_in_background(bed);
    retire(bed, HOST);
    begin_coordinator(bed, 0);
    look(bed);
    assert_int_equal(policy_of(bed, GUEST), raised_policy(bed));
    free_bed(bed);
}

static void a_new_coordinator_moves_back_one_promoted_meanwhile(void **state)
{
    bed_t *bed = make_bed();

    (void)state;
    leave_in_background(bed);
    publish(bed, GUEST, SL_JOB_CLASS_GUARANTEE);
    begin_coordinator(bed, 0);
    look(bed);
    assert_int_equal(policy_of(bed, GUEST), raised_policy(bed));
    if (!bed->can_raise) {
        sl_assert_contains(sl_test_log_take(), "out of the background");
    }
    look(bed);
    assert_string_equal(sl_test_log_take(), ""); /* said once */
    free_bed(bed);
}

/* What its owner chose for it is not the coordinator's affair. */
static void others_keep_their_policies(void **state)
{
    bed_t *bed = make_bed();

    (void)state;
    set_policy(bed, GUEST, SCHED_IDLE);
    set_policy(bed, HOST, SCHED_BATCH);
    publish(bed, GUEST, SL_JOB_CLASS_NONE);
    publish(bed, HOST, SL_JOB_CLASS_GUARANTEE);
    look(bed);
    look(bed);
    assert_int_equal(policy_of(bed, GUEST), SCHED_IDLE);
    assert_int_equal(policy_of(bed, HOST), SCHED_BATCH);
    free_bed(bed);
}

static void a_dry_run_moves_nobody(void **state)
{
    bed_t *bed = make_bed();

    (void)state;
    end_coordinator(bed);
    begin_coordinator(bed, 1);
    publish(bed, GUEST, SL_JOB_CLASS_OPPORTUNISTIC);
    publish(bed, HOST, SL_JOB_CLASS_GUARANTEE);
    look(bed);
    assert_true(bed->coordinator.decisions.jobs[GUEST].is_background !=
                bed->coordinator.decisions.jobs[HOST].is_background);
    assert_int_equal(policy_of(bed, GUEST), SCHED_OTHER);
    free_bed(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_guest_is_in_the_background_beside_a_host_only),
        sl_unit_test(a_new_coordinator_moves_back_a_guest_that_is_alone),
        sl_unit_test(a_new_coordinator_moves_back_one_promoted_meanwhile),
        sl_unit_test(others_keep_their_policies),
        sl_unit_test(a_dry_run_moves_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
