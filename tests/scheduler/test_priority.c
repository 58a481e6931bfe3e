/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of another process are moved to the background. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* SCHED_IDLE */
#endif
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scheduler/coordinator/priority.h"
#include "scheduler/machine.h"
#include "tests/scheduler/process_bed.h"

static void a_guest_is_moved_to_the_background(void **state)
{
    const pid_t pid = process_begin();
    sl_control_job_t job;
    sl_status_t status;

    (void)state;
    memset(&job, 0, sizeof(job));
    job.pid = pid;
    job.start_ticks = process_start(pid);
    assert_int_equal(sched_getscheduler(pid), SCHED_OTHER);
    sl_assert_ok(sl_priority_set(&job, 1));
    assert_int_equal(sched_getscheduler(pid), SCHED_IDLE);
    sl_assert_ok(sl_priority_set(&job, 1));
    status = sl_priority_set(&job, 0); /* needs a privilege */
    assert_true(status == SL_OK || status == SL_ERR_UNSUPPORTED);
    assert_int_equal(sched_getscheduler(pid),
                     status == SL_OK ? SCHED_OTHER : SCHED_IDLE);
    process_end(pid);
}

/* An executor's short slice is its own affair. */
static void a_slice_outlives_a_change_of_policy(void **state)
{
    const sl_machine_sched_t before = {.policy = SCHED_OTHER,
                                       .slice_ns = 150000};
    const pid_t pid = process_begin();
    sl_machine_sched_t sched = {0};
    sl_control_job_t job;

    (void)state;
    memset(&job, 0, sizeof(job));
    job.pid = pid;
    job.start_ticks = process_start(pid);
    assert_int_equal(sl_machine_sched_set((int)pid, &before), 0);
    assert_int_equal(sl_machine_sched_get((int)pid, &sched), 0);
    if (sched.slice_ns != before.slice_ns) {
        process_end(pid);
        skip(); /* this system has no such slice */
    }
    sl_assert_ok(sl_priority_set(&job, 1));
    assert_int_equal(sl_machine_sched_get((int)pid, &sched), 0);
    assert_int_equal(sched.policy, SCHED_IDLE);
    if (sl_priority_set(&job, 0) == SL_OK) {
        assert_int_equal(sl_machine_sched_get((int)pid, &sched), 0);
        assert_int_equal(sched.policy, SCHED_OTHER);
        assert_int_equal(sched.slice_ns, before.slice_ns);
    }
    process_end(pid);
    assert_int_equal(sl_machine_sched_get((int)pid, &sched), ESRCH);
}

/* Process numbers are used again, and mean nothing in another namespace. */
static void another_process_of_that_number_is_left_alone(void **state)
{
    const pid_t pid = process_begin();
    sl_control_job_t job;

    (void)state;
    memset(&job, 0, sizeof(job));
    job.pid = pid;
    job.start_ticks = process_start(pid) + 1;
    sl_assert_ok(sl_priority_set(&job, 1));
    job.start_ticks = 0;
    sl_assert_ok(sl_priority_set(&job, 1));
    assert_int_equal(sched_getscheduler(pid), SCHED_OTHER);
    process_end(pid);
    job.start_ticks = 1;
    sl_assert_ok(sl_priority_set(&job, 1)); /* nobody there */
    job.pid = 0;
    sl_assert_ok(sl_priority_set(&job, 1));
    job.pid = -1;
    sl_assert_ok(sl_priority_set(&job, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_guest_is_moved_to_the_background),
        sl_unit_test(a_slice_outlives_a_change_of_policy),
        sl_unit_test(another_process_of_that_number_is_left_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
