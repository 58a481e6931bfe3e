/* SPDX-License-Identifier: Apache-2.0 */
/* Files are noticed in two ways, each alone: the system tells of them, or they
 * are looked at every poll_ms. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include <errno.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scheduler/control/run_dir.h"
#include "tests/scheduler/control_bed.h"

static const uint64_t NEVER_MS = 3600000;

/* What the system lacks: no instance, as behind its limit of instances, or no
 * watch, as behind that of watches. */
static atomic_int is_missing, is_full;

/* The C library's, as this program has them. */
int inotify_init1(int flags)
{
    if (atomic_load(&is_missing)) {
        errno = EMFILE;
        return -1;
    }
    return (int)syscall(SYS_inotify_init1, flags);
}

int inotify_add_watch(int fd, const char *path, uint32_t mask)
{
    if (atomic_load(&is_full)) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_inotify_add_watch, fd, path, mask);
}

static int has_inotify(void)
{
    const int fd = (int)syscall(SYS_inotify_init1, IN_CLOEXEC);

    if (fd >= 0) {
        (void)close(fd);
    }
    return fd >= 0;
}

static void bed_init_antman(control_bed_t *bed, char path[BED_PATH_BYTES])
{
    bed_init(bed, "cpu:1");
    (void)snprintf(path, BED_PATH_BYTES, "%s/sche2pai.json",
                   sl_test_directory());
    (void)unlink(path);
    bed->params.antman_config = path;
}

/* Both files, also when they were there before and are replaced in place. */
static void check_orders(control_bed_t *bed, const char *antman)
{
    char path[2 * BED_PATH_BYTES];
    FILE *file;

    bed_write_order(bed, 1, 40.0, 0, 0);
    bed_wait_for(bed_is_near(bed_share(bed, 0), 40.0));
    bed_write_order(bed, 2, 50.0, 0, 0);
    bed_wait_for(bed_is_near(bed_share(bed, 0), 50.0));
    bed_path(bed, SL_FILE_CONTROL, path);
    file = fopen(path, "w"); /* as an editor does */
    assert_non_null(file);
    assert_true(fputs("{\"schema\":1,\"sequence\":3,\"devices\":"
                      "{\"cpu:0\":{\"share\":60}}}",
                      file) >= 0);
    assert_int_equal(fclose(file), 0);
    bed_wait_for(bed_is_near(bed_share(bed, 0), 60.0));
    bed_put(antman, "{\"perfControl\":70}");
    bed_wait_for(bed_is_near(bed_share(bed, 0), 70.0));
}

static void the_system_tells_of_orders(void **state)
{
    char antman[BED_PATH_BYTES];
    control_bed_t bed;

    (void)state;
    if (!has_inotify()) {
        skip();
    }
    bed_init_antman(&bed, antman);
    bed.params.poll_ms = NEVER_MS;
    bed_open(&bed);
    check_orders(&bed, antman);
    bed_close(&bed);
}

/* The watch is on the new directory then. */
static void the_system_tells_of_orders_in_a_directory_made_again(void **state)
{
    char antman[BED_PATH_BYTES], path[2 * BED_PATH_BYTES];
    control_bed_t bed;

    (void)state;
    if (!has_inotify()) {
        skip();
    }
    bed_init_antman(&bed, antman);
    bed.params.poll_ms = NEVER_MS;
    bed_open(&bed);
    bed_path(&bed, SL_FILE_LOCK, path);
    bed_wait_for(bed_status(&bed).sequence > 0);
    assert_int_equal(unlink(path), 0); /* as a removed directory to others */
    bed_wait_for(access(path, F_OK) == 0);
    bed_wait_for(bed_status(&bed).sequence > 0);
    check_orders(&bed, antman);
    bed_close(&bed);
}

static void check_polling(void)
{
    char antman[BED_PATH_BYTES];
    control_bed_t bed;

    bed_init_antman(&bed, antman);
    bed_open(&bed);
    check_orders(&bed, antman);
    bed_close(&bed);
}

static void without_inotify_files_are_polled(void **state)
{
    (void)state;
    atomic_store(&is_missing, 1);
    check_polling();
    atomic_store(&is_missing, 0);
}

static void without_a_watch_files_are_polled(void **state)
{
    (void)state;
    atomic_store(&is_full, 1);
    check_polling();
    atomic_store(&is_full, 0);
}

/* ---- the coordinator's ---- */

static void a_coordinator_hears_of_a_new_job(void **state)
{
    struct pollfd fd = {.events = POLLIN};
    sl_run_dir_t *dir = NULL;
    control_bed_t bed;

    (void)state;
    if (!has_inotify()) {
        skip();
    }
    bed_init(&bed, "cpu:1");
    sl_assert_ok(sl_run_dir_open(bed.run, &dir));
    fd.fd = sl_run_dir_watch_fd(dir);
    assert_true(fd.fd >= 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    bed_open(&bed);
    bed_wait_for(poll(&fd, 1, 0) == 1);
    bed_close(&bed);
    sl_run_dir_close(dir);
}

static void a_coordinator_without_inotify_has_no_descriptor(void **state)
{
    sl_run_dir_t *dir = NULL;
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    sl_assert_ok(sl_run_dir_open(bed.run, &dir));
    atomic_store(&is_missing, 1);
    assert_int_equal(sl_run_dir_watch_fd(dir), -1);
    atomic_store(&is_missing, 0);
    atomic_store(&is_full, 1);
    assert_int_equal(sl_run_dir_watch_fd(dir), -1);
    atomic_store(&is_full, 0);
    bed_open(&bed);
    bed_close(&bed);
    sl_run_dir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(the_system_tells_of_orders),
        sl_unit_test(the_system_tells_of_orders_in_a_directory_made_again),
        sl_unit_test(without_inotify_files_are_polled),
        sl_unit_test(without_a_watch_files_are_polled),
        sl_unit_test(a_coordinator_hears_of_a_new_job),
        sl_unit_test(a_coordinator_without_inotify_has_no_descriptor),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
