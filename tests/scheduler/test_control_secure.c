/* SPDX-License-Identifier: Apache-2.0 */
/* The threat model, one refusal a test: docs/threat-model.md. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "scheduler/control.h"
#include "scheduler/control/lease.h"
#include "scheduler/control/run_dir.h"
#include "scheduler/control/secure_file.h"
#include "tests/support/sl_test.h"

enum {
    SOMEBODY = 12345, /* a user that is not us */
    PATH_BYTES = 512
};

static const char *in_folder(const char *name)
{
    static char paths[4][PATH_BYTES];
    static int next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, PATH_BYTES, "%s/%s", sl_test_directory(), name);
    return path;
}

static const char *make_file(const char *name, mode_t mode, size_t n_bytes)
{
    const char *path = in_folder(name);
    FILE *file = fopen(path, "w");
    size_t i;

    assert_non_null(file);
    for (i = 0; i < n_bytes; i++) {
        (void)fputc('x', file);
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static sl_status_t read_file(const char *path, size_t *n_p)
{
    sl_file_state_t file_state;
    char *text = NULL;
    const sl_status_t status = sl_secure_read(
        AT_FDCWD, path, SL_CONTROL_FILE_BYTES, &text, n_p, &file_state);

    free(text);
    return status;
}

static void refused(const char *path, const char *why)
{
    size_t n = 0;

    sl_assert_status(read_file(path, &n), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), why);
}

static int are_we_root(void)
{
    return geteuid() == 0;
}

/* ---- files that steer ---- */

static void a_file_of_ours_is_read(void **state)
{
    size_t n = 0;

    (void)state;
    sl_assert_ok(read_file(make_file("a", 0600, 17), &n));
    assert_int_equal(n, 17);
    sl_assert_ok(read_file(make_file("b", 0644, 0), &n));
    assert_int_equal(n, 0);
    sl_assert_status(read_file(in_folder("absent"), &n), SL_ERR_NOT_FOUND);
}

static void an_oversized_file_is_refused(void **state)
{
    size_t n = 0;

    (void)state;
    sl_assert_ok(read_file(make_file("a", 0600, SL_CONTROL_FILE_BYTES), &n));
    assert_int_equal(n, SL_CONTROL_FILE_BYTES);
    refused(make_file("b", 0600, SL_CONTROL_FILE_BYTES + 1), "bytes");
}

static void a_file_others_can_write_is_refused(void **state)
{
    (void)state;
    refused(make_file("a", 0666, 2), "go-w");
    refused(make_file("b", 0620, 2), "go-w");
    refused(make_file("c", 0602, 2), "go-w");
}

static void another_users_file_is_refused(void **state)
{
    const char *path;

    (void)state;
    if (!are_we_root()) {
        skip();
    }
    path = make_file("a", 0600, 2);
    assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
    refused(path, "belongs to user 12345");
}

static void a_symbolic_link_is_refused(void **state)
{
    const char *path = in_folder("link");

    (void)state;
    assert_int_equal(symlink(make_file("a", 0600, 2), path), 0);
    refused(path, "symbolic link");
    path = in_folder("dangling");
    assert_int_equal(symlink("nowhere", path), 0);
    refused(path, "symbolic link");
}

static void what_is_no_regular_file_is_refused_at_once(void **state)
{
    const char *path = in_folder("pipe");

    (void)state;
    (void)alarm(20); /* opening a pipe must not wait for a writer */
    assert_int_equal(mkfifo(path, 0600), 0);
    refused(path, "a pipe");
    refused(sl_test_directory(), "a directory");
    refused("/dev/zero", "a device");
    (void)alarm(0);
}

/* ---- files of ours ---- */

static size_t count_entries(const char *path)
{
    DIR *dir = opendir(path);
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n - 2; /* . and .. */
}

static void writing_replaces_a_link_and_not_what_it_names(void **state)
{
    const char *target = make_file("target", 0600, 5);
    const char *path = in_folder("link");
    struct stat info;

    (void)state;
    assert_int_equal(symlink(target, path), 0);
    sl_assert_ok(sl_atomic_write_path(path, 0600, "hello", 5));
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISREG(info.st_mode));
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(stat(target, &info), 0);
    assert_int_equal(info.st_size, 5);
    assert_int_equal(count_entries(sl_test_directory()), 2);
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    const char *path = in_folder("status.json");
    char text[4096];
    struct rlimit before, tiny;
    sl_status_t status;
    size_t n = 0;

    (void)state;
    memset(text, 'y', sizeof(text));
    sl_assert_ok(sl_atomic_write_path(path, 0600, "old", 3));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tiny = before;
    tiny.rlim_cur = 100;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tiny), 0);
    status = sl_atomic_write_path(path, 0600, text, sizeof(text));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, SL_ERR_IO);
    sl_assert_ok(read_file(path, &n));
    assert_int_equal(n, 3);
    assert_int_equal(count_entries(sl_test_directory()), 1);
    sl_assert_status(sl_atomic_write_path("/nonexistent/x", 0600, "a", 1),
                     SL_ERR_NOT_FOUND);
}

static void a_directory_in_the_way_is_refused(void **state)
{
    const char *path = in_folder("status.json");

    (void)state;
    assert_int_equal(mkdir(path, 0700), 0);
    sl_assert_status(sl_atomic_write_path(path, 0600, "a", 1), SL_ERR_IO);
    assert_int_equal(count_entries(sl_test_directory()), 1);
}

/* ---- the run directory ---- */

static void dir_refused(const char *path, const char *why)
{
    sl_run_dir_t *dir = NULL;

    sl_assert_status(sl_run_dir_open(path, &dir), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), why);
    assert_null(dir);
}

static void a_run_directory_is_made_private(void **state)
{
    sl_run_dir_t *dir = NULL;
    struct stat info;

    (void)state;
    sl_assert_ok(sl_run_dir_open(in_folder("a/b/run"), &dir));
    assert_int_equal(stat(in_folder("a/b/run"), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0700);
    assert_int_equal(stat(in_folder("a/b/run/jobs"), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0700);
    sl_run_dir_close(dir);
}

static void a_run_directory_that_cannot_be_trusted_is_refused(void **state)
{
    char path[PATH_BYTES];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s", in_folder("open"));
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chmod(path, 0777), 0);
    dir_refused(path, "go-w");
    assert_int_equal(chmod(path, 0770), 0);
    dir_refused(path, "go-w");
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(symlink(path, in_folder("link")), 0);
    dir_refused(in_folder("link"), "symbolic link");
    dir_refused(in_folder("link/"), "symbolic link");
    dir_refused(make_file("file", 0600, 1), "directory");
    dir_refused("/proc/nothing/here", "SLUICE_RUN_DIR");
    if (are_we_root()) {
        assert_int_equal(chown(path, SOMEBODY, SOMEBODY), 0);
        dir_refused(path, "belongs to user 12345");
    }
}

static void jobs_inside_must_be_a_directory_of_ours(void **state)
{
    char outside[PATH_BYTES];

    (void)state;
    (void)snprintf(outside, sizeof(outside), "%s", in_folder("outside"));
    assert_int_equal(mkdir(in_folder("run"), 0700), 0);
    assert_int_equal(mkdir(outside, 0700), 0);
    assert_int_equal(symlink(outside, in_folder("run/jobs")), 0);
    dir_refused(in_folder("run"), "symbolic link");
    assert_int_equal(count_entries(outside), 0);
}

static void the_environment_says_where(void **state)
{
    sl_run_dir_t *dir = NULL;
    char want[PATH_BYTES];

    (void)state;
    assert_int_equal(setenv("TMPDIR", sl_test_directory(), 1), 0);
    assert_int_equal(unsetenv("SLUICE_RUN_DIR"), 0);
    assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
    sl_assert_ok(sl_run_dir_open(NULL, &dir));
    (void)snprintf(want, sizeof(want), "%s/sluice-%ld", sl_test_directory(),
                   (long)geteuid());
    assert_string_equal(sl_run_dir_path(dir), want);
    sl_run_dir_close(dir);
    assert_int_equal(setenv("XDG_RUNTIME_DIR", in_folder("xdg"), 1), 0);
    sl_assert_ok(sl_run_dir_open(NULL, &dir));
    assert_string_equal(sl_run_dir_path(dir), in_folder("xdg/sluice"));
    sl_run_dir_close(dir);
    assert_int_equal(setenv("SLUICE_RUN_DIR", in_folder("own"), 1), 0);
    sl_assert_ok(sl_run_dir_open(NULL, &dir));
    assert_string_equal(sl_run_dir_path(dir), in_folder("own"));
    sl_run_dir_close(dir);
    (void)unsetenv("SLUICE_RUN_DIR");
    (void)unsetenv("XDG_RUNTIME_DIR");
    (void)unsetenv("TMPDIR");
}

/* ---- leases and stale directories ---- */

static sl_run_dir_t *open_run(void)
{
    sl_run_dir_t *dir = NULL;

    sl_assert_ok(sl_run_dir_open(in_folder("run"), &dir));
    return dir;
}

static sl_job_dir_t make_job(sl_run_dir_t *dir, const char *name)
{
    sl_control_job_t *job = calloc(1, sizeof(*job));
    sl_job_dir_t made;

    assert_non_null(job);
    (void)snprintf(job->name, sizeof(job->name), "%s", name);
    job->pid = (int64_t)getpid();
    sl_assert_ok(sl_job_dir_create(dir, job, &made));
    free(job);
    return made;
}

static void jobs_of_one_name_live_side_by_side(void **state)
{
    sl_run_dir_t *dir = open_run();
    sl_job_dir_t a = make_job(dir, "same");
    sl_job_dir_t b = make_job(dir, "same");
    sl_run_id_t ids[4];
    sl_control_job_t job;

    (void)state;
    assert_string_not_equal(a.id.text, b.id.text);
    assert_int_equal(sl_run_dir_list(dir, ids, 4), 2);
    assert_true(strcmp(ids[0].text, ids[1].text) < 0);
    sl_assert_ok(sl_run_job_read(dir, &ids[0], &job));
    assert_string_equal(job.name, "same");
    assert_int_equal(sl_run_dir_list(dir, ids, 1), 2); /* more than room */
    sl_job_dir_remove(dir, &a);
    assert_int_equal(sl_run_dir_list(dir, ids, 4), 1);
    assert_string_equal(ids[0].text, b.id.text);
    sl_job_dir_remove(dir, &b);
    assert_int_equal(count_entries(in_folder("run/jobs")), 0);
    sl_run_dir_close(dir);
}

/* Killed with the lease held: the next who looks takes the directory away. */
static void a_killed_jobs_directory_is_removed_by_the_next(void **state)
{
    sl_run_dir_t *dir = open_run();
    sl_run_id_t ids[2];
    int ready[2];
    char byte = 0;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        (void)alarm(60);
        (void)make_job(dir, "victim");
        (void)!write(ready[1], "x", 1);
        for (;;) {
            (void)pause();
        }
    }
    assert_true(pid > 0);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(sl_run_dir_list(dir, ids, 2), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(count_entries(in_folder("run/jobs")), 1);
    assert_int_equal(sl_run_dir_list(dir, ids, 2), 0);
    assert_int_equal(count_entries(in_folder("run/jobs")), 0);
    (void)close(ready[0]);
    (void)close(ready[1]);
    sl_run_dir_close(dir);
}

/* A kill between any two steps of making a directory leaves one of these. */
static void half_made_directories_are_removed(void **state)
{
    static const char *const made[] = {"run/jobs/.new-a-1-00000001",
                                       "run/jobs/.new-b-1-00000002",
                                       "run/jobs/.new-c-1-00000003"};
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    sl_run_dir_t *dir = open_run();
    int i;

    (void)state;
    assert_int_equal(mkdir(in_folder("run/jobs/.new-a-1-00000001"), 0700), 0);
    assert_int_equal(mkdir(in_folder("run/jobs/.new-b-1-00000002"), 0700), 0);
    (void)make_file("run/jobs/.new-b-1-00000002/lock", 0600, 0);
    assert_int_equal(mkdir(in_folder("run/jobs/.new-c-1-00000003"), 0700), 0);
    (void)make_file("run/jobs/.new-c-1-00000003/lock", 0600, 0);
    (void)make_file("run/jobs/.new-c-1-00000003/.job.json.1.0", 0600, 9);
    assert_int_equal(mkdir(in_folder("run/jobs/d-1-00000004"), 0700), 0);
    (void)make_file("run/jobs/d-1-00000004/lock", 0600, 0);
    (void)make_file("run/jobs/d-1-00000004/job.json", 0600, 9);
    (void)make_file("run/jobs/d-1-00000004/control.json", 0600, 9);
    sl_run_dir_clean(dir);
    /* the hidden ones may still be under way */
    assert_int_equal(count_entries(in_folder("run/jobs")), 3);
    for (i = 0; i < 3; i++) {
        assert_int_equal(utimensat(AT_FDCWD, in_folder(made[i]), long_ago, 0),
                         0);
    }
    sl_run_dir_clean(dir);
    assert_int_equal(count_entries(in_folder("run/jobs")), 0);
    sl_run_dir_close(dir);
}

static void cleaning_follows_no_link_and_leaves_strangers(void **state)
{
    sl_run_dir_t *dir = open_run();
    char outside[PATH_BYTES];
    sl_run_id_t ids[2];

    (void)state;
    (void)snprintf(outside, sizeof(outside), "%s", in_folder("outside"));
    assert_int_equal(mkdir(outside, 0700), 0);
    (void)make_file("outside/lock", 0600, 0);
    (void)make_file("outside/precious", 0600, 1);
    assert_int_equal(symlink(outside, in_folder("run/jobs/evil-1-00000001")),
                     0);
    (void)make_file("run/jobs/notes.txt", 0600, 1);
    assert_int_equal(sl_run_dir_list(dir, ids, 2), 0);
    assert_int_equal(count_entries(outside), 2);
    assert_int_equal(count_entries(in_folder("run/jobs")), 2);
    sl_run_dir_close(dir);
}

static void an_id_never_leaves_the_run_directory(void **state)
{
    static const char *const bad[] = {"..", "../jobs", "a/../..", "/etc",
                                      "",   ".new-a",  "a b"};
    sl_run_dir_t *dir = open_run();
    sl_control_order_t order;
    sl_control_job_t job;
    size_t i;

    (void)state;
    sl_control_order_default(&order);
    order.sequence = 1;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        sl_run_id_t id;

        (void)snprintf(id.text, sizeof(id.text), "%s", bad[i]);
        sl_assert_status(sl_run_job_read(dir, &id, &job), SL_ERR_NOT_FOUND);
        sl_assert_status(sl_run_order_write(dir, &id, &order),
                         SL_ERR_NOT_FOUND);
    }
    sl_run_dir_close(dir);
}

static void orders_reach_live_jobs_only(void **state)
{
    sl_run_dir_t *dir = open_run();
    sl_job_dir_t made = make_job(dir, "live");
    const sl_run_id_t id = made.id;
    sl_control_order_t order, back;

    (void)state;
    sl_control_order_default(&order);
    sl_assert_status(sl_run_order_write(dir, &id, &order),
                     SL_ERR_INVALID_ARG); /* sequence 0 */
    order.sequence = 5;
    sl_assert_ok(sl_run_order_write(dir, &id, &order));
    sl_assert_ok(sl_run_order_read(dir, &id, &back));
    assert_int_equal(back.sequence, 5);
    (void)close(made.lock_fd); /* as a death does */
    sl_assert_status(sl_run_order_write(dir, &id, &order), SL_ERR_NOT_FOUND);
    (void)close(made.fd);
    sl_run_dir_close(dir);
}

static void there_is_one_coordinator(void **state)
{
    sl_run_dir_t *a = open_run();
    sl_run_dir_t *b = open_run();

    (void)state;
    assert_false(sl_run_dir_has_coordinator(b));
    sl_assert_ok(sl_run_dir_coordinate(a));
    sl_assert_ok(sl_run_dir_coordinate(a));
    assert_true(sl_run_dir_has_coordinator(b));
    sl_assert_status(sl_run_dir_coordinate(b), SL_ERR_CANCELED);
    sl_run_dir_close(a);
    /* its lock file is still there: a stale one blocks nobody */
    assert_int_equal(access(in_folder("run/coordinator.lock"), F_OK), 0);
    assert_false(sl_run_dir_has_coordinator(b));
    sl_assert_ok(sl_run_dir_coordinate(b));
    sl_run_dir_close(b);
    assert_int_equal(unlink(in_folder("run/coordinator.lock")), 0);
    assert_int_equal(mkdir(in_folder("run/coordinator.lock"), 0700), 0);
    a = open_run();
    sl_assert_status(sl_run_dir_coordinate(a), SL_ERR_IO);
    assert_false(sl_run_dir_has_coordinator(a));
    sl_run_dir_close(a);
}

/* Makers and cleaners at once: no directory of a live job is ever lost. */
static void cleaning_while_jobs_are_made_harms_none(void **state)
{
    enum {
        N_ROUNDS = 200
    };
    sl_run_dir_t *dir = open_run();
    const pid_t pid = fork();
    int i, exit_status = 0;

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)alarm(60);
        for (;;) {
            sl_run_dir_clean(dir);
        }
    }
    for (i = 0; i < N_ROUNDS; i++) {
        sl_job_dir_t made = make_job(dir, "job");
        sl_run_id_t ids[2];

        assert_int_equal(sl_run_dir_list(dir, ids, 2), 1);
        sl_job_dir_remove(dir, &made);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &exit_status, 0), pid);
    sl_run_dir_close(dir);
}

/* Killed at a moment that nobody chose, between any two system calls. */
static void a_kill_at_any_moment_is_recovered_from(void **state)
{
    enum {
        N_KILLS = 60
    };
    sl_run_dir_t *dir = open_run();
    sl_control_job_t *job = calloc(1, sizeof(*job));
    sl_run_id_t ids[2];
    DIR *left;
    const struct dirent *entry;
    int i;

    (void)state;
    assert_non_null(job);
    strcpy(job->name, "victim");
    job->pid = 1;
    for (i = 0; i < N_KILLS; i++) {
        const struct timespec nap = {.tv_nsec = 1 + 97000L * (i % 31)};
        const pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            (void)alarm(60);
            for (;;) {
                sl_job_dir_t made;

                if (sl_job_dir_create(dir, job, &made) >= 0) {
                    sl_job_dir_remove(dir, &made);
                }
            }
        }
        (void)nanosleep(&nap, NULL);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(sl_run_dir_list(dir, ids, 2), 0);
    }
    free(job);
    left = opendir(in_folder("run/jobs")); /* only what was being made */
    assert_non_null(left);
    for (entry = readdir(left); entry != NULL; entry = readdir(left)) {
        assert_true(entry->d_name[0] == '.');
    }
    (void)closedir(left);
    sl_run_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_file_of_ours_is_read),
        sl_unit_test(an_oversized_file_is_refused),
        sl_unit_test(a_file_others_can_write_is_refused),
        sl_unit_test(another_users_file_is_refused),
        sl_unit_test(a_symbolic_link_is_refused),
        sl_unit_test(what_is_no_regular_file_is_refused_at_once),
        sl_unit_test(writing_replaces_a_link_and_not_what_it_names),
        sl_unit_test(a_full_disk_leaves_the_old_file),
        sl_unit_test(a_directory_in_the_way_is_refused),
        sl_unit_test(a_run_directory_is_made_private),
        sl_unit_test(a_run_directory_that_cannot_be_trusted_is_refused),
        sl_unit_test(jobs_inside_must_be_a_directory_of_ours),
        sl_unit_test(the_environment_says_where),
        sl_unit_test(jobs_of_one_name_live_side_by_side),
        sl_unit_test(a_killed_jobs_directory_is_removed_by_the_next),
        sl_unit_test(half_made_directories_are_removed),
        sl_unit_test(cleaning_follows_no_link_and_leaves_strangers),
        sl_unit_test(an_id_never_leaves_the_run_directory),
        sl_unit_test(orders_reach_live_jobs_only),
        sl_unit_test(there_is_one_coordinator),
        sl_unit_test(cleaning_while_jobs_are_made_harms_none),
        sl_unit_test(a_kill_at_any_moment_is_recovered_from),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
