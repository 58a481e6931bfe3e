/* SPDX-License-Identifier: Apache-2.0 */
/* Fixture with log capture, and comparisons. */
#include "tests/support/sl_test.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum {
    LOG_BYTES = 1 << 16,
    PATH_BYTES = 512
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char captured[LOG_BYTES]; /* guarded by lock */
static char taken[LOG_BYTES];
static char directory[PATH_BYTES];

static void capture(void *ctx, sl_log_level_t level, const char *text)
{
    (void)ctx;
    if (level <= SL_LOG_WARN) {
        size_t used;

        (void)pthread_mutex_lock(&lock);
        used = strlen(captured);
        (void)snprintf(captured + used, sizeof(captured) - used, "%s\n", text);
        (void)pthread_mutex_unlock(&lock);
    }
}

int sl_test_setup(void **state)
{
    (void)state;
    captured[0] = '\0';
    directory[0] = '\0';
    sl_log_sink_set(capture, NULL);
    return 0;
}

static void remove_tree(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char child[PATH_BYTES + 300];
        struct stat info;

        if (strcmp(entry->d_name, ".") == 0 ||
            strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        (void)snprintf(child, sizeof(child), "%s/%s", path, entry->d_name);
        if (lstat(child, &info) == 0 && S_ISDIR(info.st_mode)) {
            remove_tree(child);
        } else {
            (void)unlink(child);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    (void)rmdir(path);
}

int sl_test_teardown(void **state)
{
    (void)state;
    sl_log_sink_set(NULL, NULL);
    if (directory[0] != '\0') {
        remove_tree(directory);
    }
    if (captured[0] != '\0') {
        (void)fprintf(stderr, "unexpected messages:\n%s", captured);
        return -1;
    }
    return 0;
}

const char *sl_test_log_take(void)
{
    (void)pthread_mutex_lock(&lock);
    memcpy(taken, captured, sizeof(taken));
    captured[0] = '\0';
    (void)pthread_mutex_unlock(&lock);
    return taken;
}

void sl_test_assert_status(sl_status_t got, sl_status_t want, const char *call,
                           const char *file, int line)
{
    if (got != want) {
        (void)fprintf(stderr, "%s\n  gave %d (%s), not %d (%s)\n  %s\n", call,
                      got, sl_status_text(got), want, sl_status_text(want),
                      sl_last_error());
        _fail(file, line);
    }
    if (want != SL_OK) {
        (void)sl_test_log_take();
    }
}

void sl_test_assert_contains(const char *text, const char *part,
                             const char *file, int line)
{
    if (text == NULL || strstr(text, part) == NULL) {
        (void)fprintf(stderr, "'%s'\n  is not in '%s'\n", part,
                      text == NULL ? "(null)" : text);
        _fail(file, line);
    }
}

void sl_test_assert_close(const float *a, const float *b, size_t n,
                          double relative, double absolute, const char *file,
                          int line)
{
    size_t i;

    for (i = 0; i < n; i++) {
        const double error = fabs((double)a[i] - (double)b[i]);

        if (!(error <= absolute + relative * fabs((double)b[i]))) {
            (void)fprintf(stderr, "element %zu of %zu: %.9g, not %.9g\n", i, n,
                          (double)a[i], (double)b[i]);
            _fail(file, line);
        }
    }
}

const char *sl_test_data(const char *name)
{
    static char path[PATH_BYTES];
    const char *folder = getenv("SLUICE_TEST_DATA");

    if (folder == NULL || folder[0] == '\0') {
        (void)fprintf(stderr, "%s: SLUICE_TEST_DATA is not set\n", name);
        return NULL;
    }
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (access(path, R_OK) != 0) {
        (void)fprintf(stderr, "%s is not there\n", path);
        return NULL;
    }
    return path;
}

const char *sl_test_directory(void)
{
    const char *base = getenv("TMPDIR");

    if (directory[0] == '\0') {
        (void)snprintf(directory, sizeof(directory), "%s/sluice-test-XXXXXX",
                       base == NULL ? "/tmp" : base);
        assert_non_null(mkdtemp(directory));
    }
    return directory;
}
