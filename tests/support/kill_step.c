/* SPDX-License-Identifier: Apache-2.0 */
/* For LD_PRELOAD: the program is killed at the n-th call that changes or locks
 * a file in a folder, as by `kill -9` between two system calls.
 *   SL_KILL_UNDER  the folder; others' files do not count
 *   SL_KILL_OF     (optional) a pattern (fnmatch) of the call, a space and
 *                  the file's name; others do not count
 *   SL_KILL_AT     n, from 1; the call is not made, a write to its half
 *   SL_KILL_LOG    a file that gets a line: n, the call, the file's name
 * What counts: files and folders that are made, written, locked, synced,
 * renamed, linked, cut or removed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LOG_BYTES = 256,
    PATH_BYTES = 2 * PATH_MAX
};

/* Of `name` in the folder of `dir_fd`; of dir_fd itself without a name. */
static void path_of(int dir_fd, const char *name, char path[PATH_BYTES])
{
    char link[64];
    ssize_t n = 0;

    if (name == NULL || name[0] != '/') {
        if (dir_fd == AT_FDCWD) {
            (void)snprintf(link, sizeof(link), "/proc/self/cwd");
        } else {
            (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", dir_fd);
        }
        n = readlink(link, path, PATH_MAX - 1);
        n = n < 0 ? 0 : n;
    }
    path[n] = '\0';
    if (name != NULL) {
        (void)snprintf(path + n, (size_t)(PATH_BYTES - n), "%s%s",
                       n > 0 ? "/" : "", name);
    }
}

static void log_step(long n, const char *call, const char *path)
{
    const char *log = getenv("SL_KILL_LOG");
    char line[LOG_BYTES];
    long fd;
    int n_bytes;

    if (log == NULL) {
        return;
    }
    fd =
        syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    n_bytes = snprintf(line, sizeof(line), "%ld %s %s\n", n, call, path);
    if (fd >= 0 && n_bytes > 0 && n_bytes < LOG_BYTES) {
        (void)syscall(SYS_write, fd, line, (size_t)n_bytes);
    }
}

static _Noreturn void die(void)
{
    for (;;) {
        (void)kill(getpid(), SIGKILL);
    }
}

static int is_counted(const char *call, const char *path)
{
    const char *pattern = getenv("SL_KILL_OF");
    char line[PATH_BYTES];

    (void)snprintf(line, sizeof(line), "%s %s", call, path);
    return pattern == NULL || fnmatch(pattern, line, 0) == 0;
}

/* Whether this is the n-th call on a file in the folder. */
static int is_the_moment(const char *call, int dir_fd, const char *name)
{
    static atomic_long n_calls;
    const char *under = getenv("SL_KILL_UNDER");
    const char *at = getenv("SL_KILL_AT");
    char path[PATH_BYTES];
    size_t n_under;
    long n;

    if (under == NULL || at == NULL) {
        return 0;
    }
    n_under = strlen(under);
    path_of(dir_fd, name, path);
    if (strncmp(path, under, n_under) != 0 ||
        (path[n_under] != '/' && path[n_under] != '\0') ||
        !is_counted(call, path + n_under)) {
        return 0;
    }
    n = atomic_fetch_add(&n_calls, 1) + 1;
    if (n != atol(at)) {
        return 0;
    }
    log_step(n, call, path + n_under);
    return 1;
}

static void step(const char *call, int dir_fd, const char *name)
{
    if (is_the_moment(call, dir_fd, name)) {
        die();
    }
}

static int open_at(const char *call, int dir_fd, const char *name, int flags,
                   mode_t mode)
{
    if ((flags & O_CREAT) != 0) {
        step(call, dir_fd, name);
    }
    return (int)syscall(SYS_openat, dir_fd, name, flags, mode);
}

static mode_t mode_of(int flags, va_list args)
{
    return (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
}

int open(const char *name, int flags, ...)
{
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = mode_of(flags, args);
    va_end(args);
    return open_at("open", AT_FDCWD, name, flags, mode);
}

int openat(int dir_fd, const char *name, int flags, ...)
{
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = mode_of(flags, args);
    va_end(args);
    return open_at("openat", dir_fd, name, flags, mode);
}

ssize_t write(int fd, const void *data, size_t n_bytes)
{
    if (is_the_moment("write", fd, NULL)) {
        (void)syscall(SYS_write, fd, data, n_bytes / 2);
        die();
    }
    return syscall(SYS_write, fd, data, n_bytes);
}

int ftruncate(int fd, off_t n_bytes)
{
    step("ftruncate", fd, NULL);
    return (int)syscall(SYS_ftruncate, fd, n_bytes);
}

int fsync(int fd)
{
    step("fsync", fd, NULL);
    return (int)syscall(SYS_fsync, fd);
}

int flock(int fd, int operation)
{
    step("flock", fd, NULL);
    return (int)syscall(SYS_flock, fd, operation);
}

int mkdirat(int dir_fd, const char *name, mode_t mode)
{
    step("mkdirat", dir_fd, name);
    return (int)syscall(SYS_mkdirat, dir_fd, name, mode);
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

int renameat(int old_fd, const char *old_name, int new_fd, const char *name)
{
    step("renameat", new_fd, name);
    return (int)syscall(SYS_renameat, old_fd, old_name, new_fd, name);
}

int rename(const char *old_name, const char *name)
{
    return renameat(AT_FDCWD, old_name, AT_FDCWD, name);
}

int linkat(int old_fd, const char *old_name, int new_fd, const char *name,
           int flags)
{
    step("linkat", new_fd, name);
    return (int)syscall(SYS_linkat, old_fd, old_name, new_fd, name, flags);
}

int link(const char *old_name, const char *name)
{
    return linkat(AT_FDCWD, old_name, AT_FDCWD, name, 0);
}

int unlinkat(int dir_fd, const char *name, int flags)
{
    step("unlinkat", dir_fd, name);
    return (int)syscall(SYS_unlinkat, dir_fd, name, flags);
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int rmdir(const char *name)
{
    return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}
