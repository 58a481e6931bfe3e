/* SPDX-License-Identifier: Apache-2.0 */
/* Files are read with a cap and replaced whole or not at all. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/sl_test.h"

enum {
    PATH_BYTES = 1024
};

static char path[PATH_BYTES];

/* A path in the test's directory. */
static const char *in_dir(const char *name)
{
    (void)snprintf(path, sizeof(path), "%s/%s", sl_test_directory(), name);
    return path;
}

static void make_file(const char *name, const char *text)
{
    FILE *file = fopen(in_dir(name), "wb");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_file_is(const char *name, const char *text)
{
    char *data = NULL;
    size_t n = 0;

    sl_assert_ok(sl_file_read(in_dir(name), 1 << 20, &data, &n));
    assert_int_equal(n, strlen(text));
    assert_string_equal(data, text);
    free(data);
}

static int n_files(void)
{
    DIR *dir = opendir(sl_test_directory());
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n - 2; /* . and .. */
}

static void refuse_read(const char *name, size_t max, const char *message)
{
    char *data = NULL;
    size_t n = 77;

    sl_assert_status(sl_file_read(name, max, &data, &n), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), message);
    assert_null(data);
    assert_int_equal(n, 77);
}

static void reading_stops_at_the_cap(void **state)
{
    char *data = NULL;
    size_t n = 0;

    (void)state;
    make_file("a", "12345");
    sl_assert_ok(sl_file_read(in_dir("a"), 5, &data, &n));
    assert_int_equal(n, 5);
    assert_memory_equal(data, "12345", 6); /* with the NUL */
    free(data);
    refuse_read(in_dir("a"), 4, "5 bytes, more than the 4 allowed");
    make_file("empty", "");
    sl_assert_ok(sl_file_read(in_dir("empty"), 0, &data, &n));
    assert_int_equal(n, 0);
    assert_string_equal(data, "");
    free(data);
}

/* Files of /proc say size 0 and still have bytes. */
static void reading_does_not_trust_the_size(void **state)
{
    char *data = NULL;
    size_t n = 0;

    (void)state;
    if (access("/proc/self/status", R_OK) != 0) {
        skip();
    }
    sl_assert_ok(sl_file_read("/proc/self/status", 1 << 20, &data, &n));
    assert_true(n > 100 && strlen(data) == n);
    free(data);
    refuse_read("/proc/self/status", 100, "more than the 100 bytes allowed");
    /* the cap holds to the byte all the same */
    sl_assert_ok(sl_file_read("/proc/version", 1 << 20, &data, &n));
    free(data);
    data = NULL;
    sl_assert_ok(sl_file_read("/proc/version", n, &data, &n));
    free(data);
    data = NULL;
    sl_assert_status(sl_file_read("/proc/version", n - 1, &data, &n),
                     SL_ERR_IO);
    assert_null(data);
    /* longer than the first guess */
    sl_assert_ok(sl_file_read("/proc/self/smaps", 1 << 28, &data, &n));
    assert_true(n > 8192 && strlen(data) == n);
    free(data);
    data = NULL;
    /* page 0 of this process is not there: the read itself fails */
    refuse_read("/proc/self/mem", 100, strerror(EIO));
}

static void reading_a_large_file(void **state)
{
    enum {
        N = 3000001
    };
    char *text = malloc(N), *data = NULL;
    size_t n = 0, i;

    (void)state;
    assert_non_null(text);
    for (i = 0; i < N; i++) {
        text[i] = (char)(i * 7 + i / 251);
    }
    sl_assert_ok(sl_file_write(in_dir("large"), text, N));
    sl_assert_ok(sl_file_read(in_dir("large"), N, &data, &n));
    assert_int_equal(n, N);
    assert_memory_equal(data, text, N);
    free(data);
    free(text);
}

static void reading_refuses_what_is_no_file(void **state)
{
    (void)state;
    refuse_read(in_dir("absent"), 10, strerror(ENOENT));
    refuse_read(sl_test_directory(), 10, "it is a directory");
    refuse_read("/dev/zero", 10, "not a regular file");
    refuse_read("", 10, "the path is empty");
    refuse_read(NULL, 10, "the path is empty");
    assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
    refuse_read(in_dir("fifo"), 10, "not a regular file");
    if (geteuid() != 0) { /* root reads everything */
        make_file("secret", "x");
        assert_int_equal(chmod(in_dir("secret"), 0), 0);
        refuse_read(in_dir("secret"), 10, strerror(EACCES));
    }
}

static void writing_replaces_the_whole_file(void **state)
{
    (void)state;
    sl_assert_ok(sl_file_write(in_dir("a"), "first, long", 11));
    assert_file_is("a", "first, long");
    sl_assert_ok(sl_file_write(in_dir("a"), "second", 6));
    assert_file_is("a", "second");
    sl_assert_ok(sl_file_write(in_dir("a"), NULL, 0));
    assert_file_is("a", "");
    assert_int_equal(n_files(), 1);
}

static void nothing_is_seen_before_the_end(void **state)
{
    sl_file_writer_t *writer = NULL;

    (void)state;
    make_file("a", "old");
    sl_assert_ok(sl_file_begin(in_dir("a"), &writer));
    assert_true(fputs("new", sl_file_stream(writer)) >= 0);
    assert_int_equal(fflush(sl_file_stream(writer)), 0);
    assert_file_is("a", "old");
    sl_assert_ok(sl_file_end(writer));
    assert_file_is("a", "new");
    assert_int_equal(n_files(), 1);
}

static void abort_leaves_nothing(void **state)
{
    sl_file_writer_t *writer = NULL;

    (void)state;
    sl_file_abort(NULL);
    sl_assert_ok(sl_file_begin(in_dir("a"), &writer));
    assert_true(fputs("new", sl_file_stream(writer)) >= 0);
    assert_int_equal(n_files(), 1);
    sl_file_abort(writer);
    assert_int_equal(n_files(), 0);
}

static void permissions_follow_the_umask(void **state)
{
    static const mode_t masks[] = {0022, 0077, 0002};
    const mode_t old = umask(0);
    struct stat info;
    size_t i;

    (void)state;
    for (i = 0; i < 3; i++) {
        (void)umask(masks[i]);
        sl_assert_ok(sl_file_write(in_dir("a"), "x", 1));
        assert_int_equal(stat(in_dir("a"), &info), 0);
        assert_int_equal(info.st_mode & 0777, 0644 & ~masks[i]);
    }
    (void)umask(old);
}

static void the_stream_is_not_inherited(void **state)
{
    sl_file_writer_t *writer = NULL;

    (void)state;
    sl_assert_ok(sl_file_begin(in_dir("a"), &writer));
    assert_true(fcntl(fileno(sl_file_stream(writer)), F_GETFD) & FD_CLOEXEC);
    sl_file_abort(writer);
}

/* Put a full disk under the stream's feet; returns the good descriptor. */
static int fill_the_disk(sl_file_writer_t *writer)
{
    const int fd = fileno(sl_file_stream(writer));
    const int good = dup(fd);
    const int full = open("/dev/full", O_WRONLY);

    assert_true(good >= 0 && full >= 0);
    assert_true(dup2(full, fd) >= 0);
    (void)close(full);
    return good;
}

static void full_disk_keeps_the_old_file(void **state)
{
    sl_file_writer_t *writer = NULL;

    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        skip();
    }
    make_file("a", "old");
    sl_assert_ok(sl_file_begin(in_dir("a"), &writer));
    (void)close(fill_the_disk(writer));
    assert_true(fputs("new", sl_file_stream(writer)) >= 0);
    sl_assert_status(sl_file_end(writer), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), strerror(ENOSPC));
    sl_assert_contains(sl_last_error(), "the file is left as it was");
    assert_file_is("a", "old");
    assert_int_equal(n_files(), 1);
}

/* The disk was full for a while: what was lost then is not forgotten. */
static void earlier_write_errors_are_reported(void **state)
{
    sl_file_writer_t *writer = NULL;
    int good;

    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        skip();
    }
    make_file("a", "old");
    sl_assert_ok(sl_file_begin(in_dir("a"), &writer));
    good = fill_the_disk(writer);
    assert_true(fputs("new", sl_file_stream(writer)) >= 0);
    assert_int_equal(fflush(sl_file_stream(writer)), EOF);
    assert_true(dup2(good, fileno(sl_file_stream(writer))) >= 0);
    (void)close(good);
    sl_assert_status(sl_file_end(writer), SL_ERR_IO);
    assert_file_is("a", "old");
    assert_int_equal(n_files(), 1);
}

static void refuse_write(const char *name, const char *message)
{
    sl_file_writer_t *writer = NULL;

    sl_assert_status(sl_file_begin(name, &writer), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), message);
    assert_null(writer);
    sl_assert_status(sl_file_write(name, "x", 1), SL_ERR_IO);
}

static void writing_refuses_what_is_no_file(void **state)
{
    (void)state;
    refuse_write("", "the path is empty");
    refuse_write(NULL, "the path is empty");
    refuse_write(sl_test_directory(), "is a directory, link or device");
    refuse_write("/dev/null", "is a directory, link or device");
    refuse_write(in_dir("absent/a"), strerror(ENOENT));
    refuse_write(in_dir("slash/"), "is a directory");
    make_file("file", "x");
    refuse_write(in_dir("file/a"), strerror(ENOTDIR));
    assert_int_equal(symlink("file", in_dir("link")), 0);
    refuse_write(in_dir("link"), "link");
    assert_int_equal(n_files(), 2);
}

/* A directory that may be written but not listed cannot be synced. */
static void unlistable_directories_are_written_to(void **state)
{
    (void)state;
    if (geteuid() == 0) { /* root lists everything */
        skip();
    }
    assert_int_equal(mkdir(in_dir("drop"), 0300), 0);
    sl_assert_ok(sl_file_write(in_dir("drop/a"), "x", 1));
    assert_int_equal(chmod(in_dir("drop"), 0700), 0);
    assert_file_is("drop/a", "x");
    assert_int_equal(chmod(in_dir("drop"), 0500), 0);
    refuse_write(in_dir("drop/b"), strerror(EACCES));
    assert_int_equal(chmod(in_dir("drop"), 0700), 0);
}

static void rename_failure_leaves_nothing(void **state)
{
    sl_file_writer_t *writer = NULL;

    (void)state;
    sl_assert_ok(sl_file_begin(in_dir("a"), &writer));
    assert_int_equal(mkdir(in_dir("a"), 0700), 0);
    sl_assert_status(sl_file_end(writer), SL_ERR_IO);
    assert_int_equal(n_files(), 1);
}

static void names_of_any_legal_length_work(void **state)
{
    char name[256];

    (void)state;
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    sl_assert_ok(sl_file_write(in_dir(name), "x", 1));
    assert_file_is(name, "x");
}

static void relative_paths_work(void **state)
{
    char old[PATH_BYTES];

    (void)state;
    assert_non_null(getcwd(old, sizeof(old)));
    assert_int_equal(chdir(sl_test_directory()), 0);
    sl_assert_ok(sl_file_write("a", "x", 1));
    sl_assert_ok(sl_file_make_dirs("b/c"));
    sl_assert_ok(sl_file_write("b/c/a", "y", 1));
    assert_int_equal(chdir(old), 0);
    assert_file_is("a", "x");
    assert_file_is("b/c/a", "y");
}

/* Interleaved writers of one path do not disturb each other. */
static void two_writers_of_one_path(void **state)
{
    sl_file_writer_t *first = NULL, *second = NULL;

    (void)state;
    sl_assert_ok(sl_file_begin(in_dir("a"), &first));
    sl_assert_ok(sl_file_begin(in_dir("a"), &second));
    assert_true(fputs("first", sl_file_stream(first)) >= 0);
    assert_true(fputs("second", sl_file_stream(second)) >= 0);
    sl_assert_ok(sl_file_end(second));
    assert_file_is("a", "second");
    sl_assert_ok(sl_file_end(first));
    assert_file_is("a", "first");
    assert_int_equal(n_files(), 1);
}

static void directories_are_made_with_parents(void **state)
{
    struct stat info;

    (void)state;
    sl_assert_ok(sl_file_make_dirs(in_dir("a//b/c/")));
    sl_assert_ok(sl_file_make_dirs(in_dir("a/b/c")));
    assert_int_equal(stat(in_dir("a/b/c"), &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    sl_assert_ok(sl_file_make_dirs("/"));
    sl_assert_ok(sl_file_make_dirs("."));

    make_file("file", "x");
    sl_assert_status(sl_file_make_dirs(in_dir("file")), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "a file of this name exists");
    sl_assert_status(sl_file_make_dirs(in_dir("file/a")), SL_ERR_IO);
    sl_assert_status(sl_file_make_dirs(""), SL_ERR_IO);
    sl_assert_status(sl_file_make_dirs(NULL), SL_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(reading_stops_at_the_cap),
        sl_unit_test(reading_does_not_trust_the_size),
        sl_unit_test(reading_a_large_file),
        sl_unit_test(reading_refuses_what_is_no_file),
        sl_unit_test(writing_replaces_the_whole_file),
        sl_unit_test(nothing_is_seen_before_the_end),
        sl_unit_test(abort_leaves_nothing),
        sl_unit_test(permissions_follow_the_umask),
        sl_unit_test(the_stream_is_not_inherited),
        sl_unit_test(full_disk_keeps_the_old_file),
        sl_unit_test(earlier_write_errors_are_reported),
        sl_unit_test(writing_refuses_what_is_no_file),
        sl_unit_test(unlistable_directories_are_written_to),
        sl_unit_test(rename_failure_leaves_nothing),
        sl_unit_test(names_of_any_legal_length_work),
        sl_unit_test(relative_paths_work),
        sl_unit_test(two_writers_of_one_path),
        sl_unit_test(directories_are_made_with_parents),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
