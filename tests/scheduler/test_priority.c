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
#include "tests/support/sl_test.h"

static uint64_t start_of(pid_t pid)
{
    char path[64], text[1024];
    const char *field;
    FILE *file;
    size_t n;
    int i;

    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    file = fopen(path, "r");
    assert_non_null(file);
    n = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    field = strrchr(text, ')');
    for (i = 2; i < 22; i++) {
        assert_non_null(field);
        field = strchr(field + 1, ' ');
    }
    return strtoull(field, NULL, 10);
}

static pid_t begin_child(void)
{
    const pid_t pid = fork();

    if (pid == 0) {
        for (;;) {
            (void)pause();
        }
    }
    assert_true(pid > 0);
    return pid;
}

static void end_child(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

static void a_guest_is_moved_to_the_background(void **state)
{
    const pid_t pid = begin_child();
    sl_control_job_t job;
    sl_status_t status;

    (void)state;
    memset(&job, 0, sizeof(job));
    job.pid = pid;
    job.start_ticks = start_of(pid);
    assert_int_equal(sched_getscheduler(pid), SCHED_OTHER);
    sl_assert_ok(sl_priority_set(&job, 1));
    assert_int_equal(sched_getscheduler(pid), SCHED_IDLE);
    sl_assert_ok(sl_priority_set(&job, 1));
    status = sl_priority_set(&job, 0); /* needs a privilege */
    assert_true(status == SL_OK || status == SL_ERR_UNSUPPORTED);
    assert_int_equal(sched_getscheduler(pid),
                     status == SL_OK ? SCHED_OTHER : SCHED_IDLE);
    end_child(pid);
}

/* An executor's short slice is its own affair. */
static void a_slice_outlives_a_change_of_policy(void **state)
{
    const sl_machine_sched_t before = {.policy = SCHED_OTHER,
                                       .slice_ns = 150000};
    const pid_t pid = begin_child();
    sl_machine_sched_t sched = {0};
    sl_control_job_t job;

    (void)state;
    memset(&job, 0, sizeof(job));
    job.pid = pid;
    job.start_ticks = start_of(pid);
    assert_int_equal(sl_machine_sched_set((int)pid, &before), 0);
    assert_int_equal(sl_machine_sched_get((int)pid, &sched), 0);
    if (sched.slice_ns != before.slice_ns) {
        end_child(pid);
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
    end_child(pid);
    assert_int_equal(sl_machine_sched_get((int)pid, &sched), ESRCH);
}

/* Process numbers are used again, and mean nothing in another namespace. */
static void another_process_of_that_number_is_left_alone(void **state)
{
    const pid_t pid = begin_child();
    sl_control_job_t job;

    (void)state;
    memset(&job, 0, sizeof(job));
    job.pid = pid;
    job.start_ticks = start_of(pid) + 1;
    sl_assert_ok(sl_priority_set(&job, 1));
    job.start_ticks = 0;
    sl_assert_ok(sl_priority_set(&job, 1));
    assert_int_equal(sched_getscheduler(pid), SCHED_OTHER);
    end_child(pid);
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
