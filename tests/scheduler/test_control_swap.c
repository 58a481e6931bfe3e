/* SPDX-License-Identifier: Apache-2.0 */
/* The threat model, what changes under our hands: directories and files that
 * are swapped, a file that grows, and writers that were killed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "scheduler/control.h"
#include "scheduler/control/run_dir.h"
#include "scheduler/control/secure_file.h"
#include "tests/support/sl_test.h"

enum {
    PART_BYTES = 384,
    PATH_BYTES = 1024
};

static const char *in_folder(const char *name)
{
    static char paths[4][PATH_BYTES];
    static int next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, PATH_BYTES, "%s/%s", sl_test_directory(), name);
    return path;
}

static int exists(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0;
}

static void make_job(sl_control_job_t *job)
{
    memset(job, 0, sizeof(*job));
    strcpy(job->name, "net");
    job->pid = 77;
    job->start_ticks = 1;
    job->n_devices = 1;
    strcpy(job->devices[0].name, "cpu:0");
    job->devices[0].capacity_bytes = 1;
    job->devices[0].n_threads = 1;
}

/* ---- what is swapped after it was checked ---- */

/* Everything goes where the directory that was checked is now. */
static void a_swapped_run_directory_is_not_followed(void **state)
{
    sl_run_dir_t *dir = NULL;
    sl_control_order_t order;
    sl_control_job_t job;
    sl_job_dir_t job_dir;
    char part[PART_BYTES];
    sl_run_id_t id;

    (void)state;
    assert_int_equal(mkdir(in_folder("theirs"), 0777), 0);
    assert_int_equal(mkdir(in_folder("theirs/jobs"), 0777), 0);
    sl_assert_ok(sl_run_dir_open(in_folder("run"), &dir));
    assert_int_equal(rename(in_folder("run"), in_folder("run.old")), 0);
    assert_int_equal(symlink(in_folder("theirs"), in_folder("run")), 0);

    make_job(&job);
    sl_assert_ok(sl_job_dir_create(dir, &job, &job_dir));
    (void)snprintf(part, sizeof(part), "run.old/jobs/%s/%s", job_dir.id.text,
                   SL_FILE_JOB);
    assert_true(exists(in_folder(part)));
    assert_int_equal(sl_run_dir_list(dir, &id, 1), 1);
    assert_string_equal(id.text, job_dir.id.text);
    sl_control_order_default(&order);
    order.sequence = 1;
    sl_assert_ok(sl_run_order_write(dir, &id, &order));
    sl_assert_ok(sl_run_order_read(dir, &id, &order));
    sl_assert_ok(sl_run_dir_coordinate(dir));
    assert_true(exists(in_folder("run.old/coordinator.lock")));
    sl_job_dir_remove(dir, &job_dir);
    assert_false(exists(in_folder(part)));
    sl_run_dir_close(dir);
    /* rmdir() proves that nothing was made there */
    assert_int_equal(rmdir(in_folder("theirs/jobs")), 0);
    assert_int_equal(rmdir(in_folder("theirs")), 0);
}

/* The same for `jobs` in it, and for a job's own directory. */
static void swapped_job_directories_are_not_followed(void **state)
{
    sl_run_dir_t *dir = NULL;
    sl_control_job_t job;
    sl_job_dir_t job_dir;
    char part[PART_BYTES], old[PART_BYTES];

    (void)state;
    assert_int_equal(mkdir(in_folder("theirs"), 0777), 0);
    sl_assert_ok(sl_run_dir_open(in_folder("run"), &dir));
    assert_int_equal(rename(in_folder("run/jobs"), in_folder("run/old")), 0);
    assert_int_equal(symlink(in_folder("theirs"), in_folder("run/jobs")), 0);
    make_job(&job);
    sl_assert_ok(sl_job_dir_create(dir, &job, &job_dir));
    (void)snprintf(part, sizeof(part), "run/old/%s", job_dir.id.text);
    (void)snprintf(old, sizeof(old), "run/old/%s.old", job_dir.id.text);
    assert_int_equal(rename(in_folder(part), in_folder(old)), 0);
    assert_int_equal(symlink(in_folder("theirs"), in_folder(part)), 0);
    sl_assert_ok(sl_atomic_write(job_dir.fd, SL_FILE_STATUS, 0600, "{}", 2));
    (void)snprintf(part, sizeof(part), "run/old/%s.old/%s", job_dir.id.text,
                   SL_FILE_STATUS);
    assert_true(exists(in_folder(part)));
    sl_job_dir_remove(dir, &job_dir);
    sl_run_dir_close(dir);
    assert_int_equal(rmdir(in_folder("theirs")), 0);
}

typedef struct swapper {
    pthread_t thread;
    int dir_fd;
    atomic_int is_over;
} swapper_t;

/* `file` is by turns the good one, a bad one and a link to a good one. */
static void *swap(void *arg)
{
    swapper_t *swapper = arg;
    int i;

    for (i = 0; !atomic_load(&swapper->is_over); i++) {
        static const char *const names[] = {"good", "bad", "link"};
        const char *name = names[i % 3];

        if (i % 3 == 2) {
            (void)symlinkat("aim", swapper->dir_fd, "next");
        } else {
            (void)linkat(swapper->dir_fd, name, swapper->dir_fd, "next", 0);
        }
        (void)renameat(swapper->dir_fd, "next", swapper->dir_fd, "file");
    }
    return NULL;
}

static void put(int dir_fd, const char *name, mode_t mode, const char *text)
{
    sl_assert_ok(
        sl_atomic_write_unflushed(dir_fd, name, 0600, text, strlen(text)));
    assert_int_equal(fchmodat(dir_fd, name, mode, 0), 0);
}

/* Whatever comes between the check and the read: what was checked is read. */
static void a_file_that_is_swapped_is_never_read_unchecked(void **state)
{
    swapper_t swapper = {.dir_fd = open(sl_test_directory(),
                                        O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    int n_good = 0, n_refused = 0;
    int i;

    (void)state;
    assert_true(swapper.dir_fd >= 0);
    put(swapper.dir_fd, "good", 0600, "good");
    put(swapper.dir_fd, "bad", 0666, "bad");
    put(swapper.dir_fd, "aim", 0600, "aim");
    assert_int_equal(pthread_create(&swapper.thread, NULL, swap, &swapper), 0);
    for (i = 0; i < 20000 || n_good < 50 || n_refused < 50; i++) {
        sl_file_state_t file_state;
        char *text = NULL;
        size_t n = 0;
        const sl_status_t status =
            sl_secure_read(swapper.dir_fd, "file", 64, &text, &n, &file_state);

        if (status >= 0) {
            assert_string_equal(text, "good");
            n_good++;
        } else {
            assert_true(status == SL_ERR_IO || status == SL_ERR_NOT_FOUND);
            n_refused++;
        }
        free(text);
    }
    atomic_store(&swapper.is_over, 1);
    assert_int_equal(pthread_join(swapper.thread, NULL), 0);
    (void)close(swapper.dir_fd);
}

/* ---- a file that grows while it is read ---- */

/* The system's own files say that they are empty and then are not. */
static void a_file_that_grows_is_refused_at_the_limit(void **state)
{
    enum {
        MAX_BYTES = 64
    };
    sl_file_state_t file_state;
    char *text = NULL;
    size_t n = 0;

    (void)state;
    sl_file_state_get(AT_FDCWD, "/proc/self/maps", &file_state);
    if (!file_state.exists || file_state.n_bytes != 0 ||
        (file_state.owner != geteuid() && file_state.owner != 0)) {
        skip();
    }
    sl_assert_status(sl_secure_read(AT_FDCWD, "/proc/self/maps", MAX_BYTES,
                                    &text, &n, &file_state),
                     SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "grew above 64 bytes");
    assert_null(text);
}

/* ---- flushed before it is named ---- */

static ino_t flushed; /* the file that was flushed last */
static int n_flushed;

/* The C library's, as this program has it. */
int fsync(int fd)
{
    struct stat info;

    if (fstat(fd, &info) == 0) {
        flushed = info.st_ino;
    }
    n_flushed++;
    return (int)syscall(SYS_fsync, fd);
}

static ino_t inode_of(const char *path)
{
    struct stat info;

    assert_int_equal(lstat(path, &info), 0);
    return info.st_ino;
}

static void orders_are_on_the_disk_before_they_are_named(void **state)
{
    sl_run_dir_t *dir = NULL;
    sl_control_order_t order;
    sl_control_job_t job;
    sl_job_dir_t job_dir;
    char part[PART_BYTES];

    (void)state;
    sl_assert_ok(sl_run_dir_open(in_folder("run"), &dir));
    make_job(&job);
    n_flushed = 0;
    sl_assert_ok(sl_job_dir_create(dir, &job, &job_dir));
    (void)snprintf(part, sizeof(part), "run/jobs/%s/%s", job_dir.id.text,
                   SL_FILE_JOB);
    assert_int_equal(n_flushed, 1);
    assert_true(flushed == inode_of(in_folder(part)));
    sl_control_order_default(&order);
    order.sequence = 1;
    sl_assert_ok(sl_run_order_write(dir, &job_dir.id, &order));
    (void)snprintf(part, sizeof(part), "run/jobs/%s/%s", job_dir.id.text,
                   SL_FILE_CONTROL);
    assert_int_equal(n_flushed, 2);
    assert_true(flushed == inode_of(in_folder(part)));
    sl_assert_ok(
        sl_atomic_write_unflushed(job_dir.fd, SL_FILE_STATUS, 0600, "{}", 2));
    assert_int_equal(n_flushed, 2);
    sl_job_dir_remove(dir, &job_dir);
    sl_run_dir_close(dir);
}

/* ---- what killed writers leave ---- */

static void age(const char *path, time_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = time(NULL) - seconds},
                                      {.tv_sec = time(NULL) - seconds}};

    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void touch(const char *path)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

static void a_killed_coordinators_file_goes_with_the_next(void **state)
{
    static const char *const kept[] = {
        "run/coordinator.json",        "run/.coordinator.json",
        "run/.coordinator.json.1",     "run/.coordinator.json.1.x",
        "run/.coordinator.json.1.2.3", "run/.other.json.1.2"};
    sl_run_dir_t *dir = NULL;
    size_t i;

    (void)state;
    sl_assert_ok(sl_run_dir_open(in_folder("run"), &dir));
    for (i = 0; i < sizeof(kept) / sizeof(*kept); i++) {
        touch(in_folder(kept[i]));
    }
    touch(in_folder("run/.coordinator.json.4711.0"));
    touch(in_folder("run/.coordinator.json.4711.12"));
    assert_int_equal(symlink("/etc", in_folder("run/.coordinator.json.1.1")),
                     0);
    sl_assert_ok(sl_run_dir_coordinate(dir));
    assert_false(exists(in_folder("run/.coordinator.json.4711.0")));
    assert_false(exists(in_folder("run/.coordinator.json.4711.12")));
    assert_true(exists(in_folder("run/.coordinator.json.1.1")));
    for (i = 0; i < sizeof(kept) / sizeof(*kept); i++) {
        assert_true(exists(in_folder(kept[i])));
    }
    sl_run_dir_close(dir);
}

static void a_killed_jobs_files_elsewhere_go_with_the_next(void **state)
{
    (void)state;
    touch(in_folder(".x.prom.4711.0"));
    touch(in_folder(".x.prom.4712.3"));
    age(in_folder(".x.prom.4711.0"), 100);
    age(in_folder(".x.prom.4712.3"), 20); /* may be being written */
    sl_atomic_clean_path(in_folder("x.prom"), 60);
    assert_false(exists(in_folder(".x.prom.4711.0")));
    assert_true(exists(in_folder(".x.prom.4712.3")));
    sl_atomic_clean_path("/nonexistent/x.prom", 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_swapped_run_directory_is_not_followed),
        sl_unit_test(swapped_job_directories_are_not_followed),
        sl_unit_test(a_file_that_is_swapped_is_never_read_unchecked),
        sl_unit_test(a_file_that_grows_is_refused_at_the_limit),
        sl_unit_test(orders_are_on_the_disk_before_they_are_named),
        sl_unit_test(a_killed_coordinators_file_goes_with_the_next),
        sl_unit_test(a_killed_jobs_files_elsewhere_go_with_the_next),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
