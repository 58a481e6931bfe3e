/* SPDX-License-Identifier: Apache-2.0 */
/* What systems that share devices are known to get wrong, one test each
 * (docs/pain-points.md). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* unshare */
#endif
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scheduler/control/run_dir.h"
#include "scheduler/coordinator/exchange.h"
#include "tests/scheduler/control_bed.h"

enum {
    SOMEBODY = 12345, /* a user that is not root */
    N_STARTS = 40,
    EXIT_SKIP = 77,
    CHILD_SECONDS = 200
};

/* In a process of its own, where cmocka cannot end a test: its exit status
 * says the line. */
#define child_expect(condition)                                                \
    do {                                                                       \
        if (!(condition)) {                                                    \
            print_error("line %d: not " #condition "\n", __LINE__);            \
            _exit(1);                                                          \
        }                                                                      \
    } while (0)
#define child_wait_for(condition)                                              \
    do {                                                                       \
        int child_tries = 0;                                                   \
        while (!(condition) && child_tries++ < BED_TRIES) {                    \
            bed_nap();                                                         \
        }                                                                      \
        child_expect(condition);                                               \
    } while (0)

static pid_t begin_child(void)
{
    pid_t pid;

    (void)sl_test_directory(); /* one for both */
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)alarm(CHILD_SECONDS);
    }
    return pid;
}

static void await_child(pid_t pid)
{
    int exit_status = 0;

    assert_int_equal(waitpid(pid, &exit_status, 0), pid);
    assert_true(WIFEXITED(exit_status));
    if (WEXITSTATUS(exit_status) == EXIT_SKIP) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(exit_status), 0);
}

/* ---- many at once ---- */

typedef struct starts {
    int go[2], started[2], end[2]; /* pipes */
} starts_t;

/* All begin when the parent lets go of a pipe, and end with another. */
static void start_one(starts_t *starts)
{
    control_bed_t bed;
    char byte = 0;

    (void)close(starts->go[1]);
    (void)close(starts->end[1]);
    (void)!read(starts->go[0], &byte, 1);
    bed_init(&bed, "cpu:1");
    bed.params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    bed_open(&bed);
    child_expect(sl_control_id(bed.control) != NULL);
    child_expect(sl_control_admit(bed.control) == 0);
    child_wait_for(bed_share(&bed, 0) < 10.0); /* a fortieth of it all */
    child_expect(write(starts->started[1], &byte, 1) == 1);
    (void)!read(starts->end[0], &byte, 1);
    bed_close(&bed);
    _exit(0);
}

static void look(sl_exchange_t *exchange, sl_coord_t *coord,
                 sl_coord_snapshot_t *seen, sl_coord_decisions_t *decisions)
{
    sl_exchange_read(exchange, sl_clock_ns(), seen);
    sl_coord_step(coord, seen, decisions);
    sl_exchange_write(exchange, seen, decisions);
}

static void coordinate(sl_run_dir_t *dir, int started_fd)
{
    sl_coord_snapshot_t *seen = calloc(1, sizeof(*seen));
    sl_coord_decisions_t *decisions = calloc(1, sizeof(*decisions));
    const sl_exchange_params_t params = {
        .dir = dir, .floor_percent = 1.0, .ttl_ms = 3600000};
    sl_exchange_t *exchange = NULL;
    sl_coord_params_t coord_params;
    sl_coord_t *coord = NULL;
    char bytes[N_STARTS];
    int tries, n_started = 0;

    assert_true(seen != NULL && decisions != NULL);
    sl_coord_params_default(&coord_params);
    sl_assert_ok(sl_coord_create(&coord_params, &coord));
    sl_assert_ok(sl_exchange_create(&params, &exchange));
    assert_int_equal(fcntl(started_fd, F_SETFL, O_NONBLOCK), 0);
    for (tries = 0; n_started < N_STARTS && tries < BED_TRIES; tries++) {
        ssize_t n;

        look(exchange, coord, seen, decisions);
        n = read(started_fd, bytes, sizeof(bytes));
        n_started += n > 0 ? (int)n : 0;
        bed_nap();
    }
    assert_int_equal(n_started, N_STARTS);
    assert_int_equal(seen->n_jobs, N_STARTS);
    sl_exchange_destroy(exchange);
    sl_coord_destroy(coord);
    free(decisions);
    free(seen);
}

/* Starts that queue for a lock, and limits that are off when that takes too
 * long. */
static void forty_start_at_once_and_none_is_without_its_share(void **state)
{
    starts_t starts;
    pid_t pids[N_STARTS];
    sl_run_dir_t *dir = NULL;
    sl_run_id_t ids[2];
    char path[BED_PATH_BYTES];
    int i;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/run", sl_test_directory());
    sl_assert_ok(sl_run_dir_open(path, &dir));
    sl_assert_ok(sl_run_dir_coordinate(dir));
    assert_int_equal(pipe(starts.go), 0);
    assert_int_equal(pipe(starts.started), 0);
    assert_int_equal(pipe(starts.end), 0);
    for (i = 0; i < N_STARTS; i++) {
        pids[i] = begin_child();
        if (pids[i] == 0) {
            start_one(&starts);
        }
    }
    (void)close(starts.go[1]);
    coordinate(dir, starts.started[0]);
    assert_int_equal(sl_run_dir_list(dir, ids, 2), N_STARTS);
    (void)close(starts.end[1]);
    for (i = 0; i < N_STARTS; i++) {
        await_child(pids[i]);
    }
    assert_int_equal(sl_run_dir_list(dir, ids, 2), 0);
    (void)close(starts.go[0]);
    (void)close(starts.started[0]);
    (void)close(starts.started[1]);
    (void)close(starts.end[0]);
    sl_run_dir_close(dir);
}

static void *open_and_close(void *arg)
{
    control_bed_t *bed = arg;

    return sl_control_open(&bed->params, &bed->control) == SL_OK ? bed : NULL;
}

/* An initialization that waits for itself. */
static void two_threads_open_at_once(void **state)
{
    control_bed_t beds[2];
    pthread_t threads[2];
    sl_run_dir_t *dir = NULL;
    sl_run_id_t ids[2];
    void *opened = NULL;
    int i;

    (void)state;
    for (i = 0; i < 2; i++) {
        bed_init(&beds[i], "cpu:1");
    }
    for (i = 0; i < 2; i++) {
        assert_int_equal(
            pthread_create(&threads[i], NULL, open_and_close, &beds[i]), 0);
    }
    for (i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], &opened), 0);
        assert_ptr_equal(opened, &beds[i]);
    }
    sl_assert_ok(sl_run_dir_open(beds[0].run, &dir));
    assert_int_equal(sl_run_dir_list(dir, ids, 2), 2);
    sl_run_dir_close(dir);
    bed_close(&beds[0]);
    bed_close(&beds[1]);
}

/* ---- files that cannot be read or written ---- */

/* A job of a user who is not root: root may read what it likes. */
static void run_as_somebody(void (*run)(control_bed_t *bed))
{
    pid_t pid;

    if (geteuid() == 0) {
        assert_int_equal(chown(sl_test_directory(), SOMEBODY, SOMEBODY), 0);
    }
    pid = begin_child();
    if (pid == 0) {
        control_bed_t bed;

        if (geteuid() == 0) {
            child_expect(setgid(SOMEBODY) == 0 && setuid(SOMEBODY) == 0);
        }
        bed_init(&bed, "cpu:1");
        bed_open(&bed);
        child_expect(sl_control_id(bed.control) != NULL);
        run(&bed);
        bed_close(&bed);
        _exit(0);
    }
    await_child(pid);
}

static void meet_mode_000(control_bed_t *bed)
{
    char path[2 * BED_PATH_BYTES], temp[2 * BED_PATH_BYTES];
    FILE *file;

    bed_write_order(bed, 1, 40.0, 0, 0);
    child_wait_for(bed_status(bed).accepted_sequence == 1);
    bed_path(bed, "next", temp);
    bed_path(bed, "control.json", path);
    file = fopen(temp, "w");
    child_expect(file != NULL);
    (void)fputs("{\"schema\":1,\"sequence\":2,\"devices\":{\"cpu:0\":"
                "{\"share\":60}}}",
                file);
    child_expect(fclose(file) == 0 && chmod(temp, 0) == 0);
    child_expect(rename(temp, path) == 0);
    child_wait_for(bed_status(bed).n_refused == 1);
    (void)sl_test_log_take();                           /* the warning */
    child_expect(bed_is_near(bed_share(bed, 0), 40.0)); /* the last good one */
    child_expect(chmod(path, 0600) == 0);
    child_wait_for(bed_is_near(bed_share(bed, 0), 60.0));
}

static void
a_control_file_of_mode_000_is_refused_and_the_last_good_stays(void **state)
{
    (void)state;
    run_as_somebody(meet_mode_000);
}

/* In a name space of mounts of its own, or not at all. */
static int mount_own(const char *path)
{
    return geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mkdir(path, 0700) == 0 &&
           mount("tmpfs", path, "tmpfs", 0, "mode=0700") == 0;
}

static int remount(const char *path, unsigned long flags)
{
    return mount(NULL, path, NULL, MS_REMOUNT | flags, "mode=0700");
}

static void meet_a_read_only_file_system(void)
{
    control_bed_t bed;
    char path[BED_PATH_BYTES];

    (void)snprintf(path, sizeof(path), "%s/run", sl_test_directory());
    if (!mount_own(path)) {
        _exit(EXIT_SKIP);
    }
    bed_init(&bed, "cpu:1");
    child_expect(remount(path, MS_RDONLY) == 0);
    bed_open(&bed); /* it cannot be listed, and says so */
    child_expect(sl_control_id(bed.control) == NULL);
    child_expect(strstr(sl_test_log_take(), "Read-only") != NULL);
    child_expect(bed_boundary(&bed) == 0);
    sl_control_close(bed.control);
    bed.control = NULL;
    child_expect(remount(path, 0) == 0);
    bed_open(&bed);
    child_expect(bed_boundary(&bed) == 0);
    child_wait_for(bed_status(&bed).step == bed.step);
    bed_close(&bed);
    _exit(0);
}

static void a_read_only_file_system_does_not_stop_a_job(void **state)
{
    const pid_t pid = begin_child();

    (void)state;
    if (pid == 0) {
        meet_a_read_only_file_system();
    }
    await_child(pid);
}

/* ---- messages that are lost ---- */

static void a_lost_file_leaves_nobody_waiting(void **state)
{
    control_bed_t bed;
    char order[2 * BED_PATH_BYTES], status[2 * BED_PATH_BYTES];

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    bed_path(&bed, "control.json", order);
    bed_path(&bed, "status.json", status);
    bed_write_order(&bed, 1, 30.0, 0, 0);
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    assert_int_equal(unlink(order), 0); /* as if it had never come */
    (void)bed_boundary(&bed);
    bed_wait_for(bed_status(&bed).step == bed.step);
    assert_true(bed_is_near(bed_share(&bed, 0), 30.0));
    bed_write_order(&bed, 2, 50.0, 0, 0);
    bed_wait_for(bed_status(&bed).accepted_sequence == 2);
    assert_int_equal(unlink(status), 0); /* the answer is lost: told again */
    bed_wait_for(bed_status(&bed).accepted_sequence == 2);
    bed_close(&bed);
}

/* A watch for files that are closed after a write misses those that are
 * renamed into place. Nothing looks by itself here. */
static void a_rename_wakes_the_watcher(void **state)
{
    control_bed_t bed;
    const int fd = inotify_init1(IN_CLOEXEC);

    (void)state;
    if (fd < 0) {
        skip();
    }
    (void)close(fd);
    bed_init(&bed, "cpu:1");
    bed.params.poll_ms = UINT64_C(3600000);
    bed_open(&bed);
    bed_wait_for(bed_status(&bed).sequence > 0);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":3,\"devices\":"
                          "{\"cpu:0\":{\"share\":70}}}");
    bed_wait_for(bed_is_near(bed_share(&bed, 0), 70.0));
    bed_close(&bed);
}

/* ---- who lives ---- */

static sl_job_dir_t make_job(sl_run_dir_t *dir, const char *name, int64_t pid)
{
    sl_control_job_t *job = calloc(1, sizeof(*job));
    sl_job_dir_t made;

    assert_non_null(job);
    (void)snprintf(job->name, sizeof(job->name), "%s", name);
    job->pid = pid;
    sl_assert_ok(sl_job_dir_create(dir, job, &made));
    free(job);
    return made;
}

/* Process numbers of other containers mean nothing here: the lock does. */
static void a_process_number_says_nothing(void **state)
{
    sl_run_dir_t *dir = NULL;
    sl_job_dir_t alive, dead;
    sl_run_id_t ids[2];
    char path[BED_PATH_BYTES];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/run", sl_test_directory());
    sl_assert_ok(sl_run_dir_open(path, &dir));
    alive = make_job(dir, "alive", INT32_MAX); /* no process here has that */
    dead = make_job(dir, "dead", (int64_t)getpid());
    (void)close(dead.lock_fd); /* as its death does */
    (void)close(dead.fd);
    assert_int_equal(sl_run_dir_list(dir, ids, 2), 1);
    assert_string_equal(ids[0].text, alive.id.text);
    sl_job_dir_remove(dir, &alive);
    sl_run_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(forty_start_at_once_and_none_is_without_its_share),
        sl_unit_test(two_threads_open_at_once),
        sl_unit_test(
            a_control_file_of_mode_000_is_refused_and_the_last_good_stays),
        sl_unit_test(a_read_only_file_system_does_not_stop_a_job),
        sl_unit_test(a_lost_file_leaves_nobody_waiting),
        sl_unit_test(a_rename_wakes_the_watcher),
        sl_unit_test(a_process_number_says_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
