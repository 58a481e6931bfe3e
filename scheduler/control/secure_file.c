/* SPDX-License-Identifier: Apache-2.0 */
/* Files read with suspicion, and files replaced whole. */
#include "scheduler/control/secure_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    WRITABLE_BY_OTHERS = S_IWGRP | S_IWOTH,
    N_TEMP_TRIES = 16
};

static void state_from_stat(const struct stat *info, sl_file_state_t *state)
{
    memset(state, 0, sizeof(*state));
    state->exists = 1;
    state->device = info->st_dev;
    state->inode = info->st_ino;
    state->mode = info->st_mode;
    state->owner = info->st_uid;
    state->n_bytes = info->st_size;
    state->modified = info->st_mtim;
    state->changed = info->st_ctim;
}

void sl_file_state_get(int dir_fd, const char *name, sl_file_state_t *state)
{
    struct stat info;

    memset(state, 0, sizeof(*state));
    if (fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        state_from_stat(&info, state);
    }
}

static int time_is_equal(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

int sl_file_state_is_equal(const sl_file_state_t *a, const sl_file_state_t *b)
{
    return a->exists == b->exists && a->device == b->device &&
           a->inode == b->inode && a->mode == b->mode && a->owner == b->owner &&
           a->n_bytes == b->n_bytes &&
           time_is_equal(a->modified, b->modified) &&
           time_is_equal(a->changed, b->changed);
}

static const char *kind_text(mode_t mode)
{
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

static sl_status_t check_trust(const char *name, const struct stat *info,
                               size_t max_bytes)
{
    sl_status_t status = SL_OK;

    if (!S_ISREG(info->st_mode)) {
        SL_REFUSE(status, SL_ERR_IO, out, "%s is %s, not a regular file", name,
                  kind_text(info->st_mode));
    }
    if (info->st_uid != geteuid() && info->st_uid != 0) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "%s belongs to user %ld, not to you (%ld) or root", name,
                  (long)info->st_uid, (long)geteuid());
    }
    if ((info->st_mode & WRITABLE_BY_OTHERS) != 0) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "%s can be written by group or others (mode %04o): chmod "
                  "go-w, or set umask 077 before you write it",
                  name, (unsigned)(info->st_mode & 07777));
    }
    if ((uintmax_t)info->st_size > max_bytes) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "%s has %jd bytes; at most %zu are read", name,
                  (intmax_t)info->st_size, max_bytes);
    }
out:
    return status;
}

/* O_NONBLOCK: opening a pipe must not wait for its other end. */
static sl_status_t open_trusted(int dir_fd, const char *name, size_t max_bytes,
                                int *fd_p, sl_file_state_t *state)
{
    struct stat info;
    sl_status_t status;
    const int fd =
        openat(dir_fd, name,
               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    const int cause = errno;

    if (fd < 0) {
        sl_file_state_get(dir_fd, name, state);
        if (cause == ENOENT || cause == ENOTDIR) {
            SL_REFUSE(status, SL_ERR_NOT_FOUND, out, "there is no %s", name);
        }
        if (cause == ELOOP) {
            SL_REFUSE(status, SL_ERR_IO, out,
                      "%s is a symbolic link, which is never followed", name);
        }
        SL_REFUSE(status, SL_ERR_IO, out, "cannot open %s: %s", name,
                  strerror(cause));
    }
    if (fstat(fd, &info) != 0) {
        SL_REFUSE(status, SL_ERR_IO, err_close, "cannot look at %s: %s", name,
                  strerror(errno));
    }
    state_from_stat(&info, state);
    SL_TRY(status, check_trust(name, &info, max_bytes), err_close);
    *fd_p = fd;
    return SL_OK;

err_close:
    (void)close(fd);
out:
    return status;
}

/* Until `room`, the end, or an error (-1). */
static ssize_t read_up_to(int fd, char *text, size_t room)
{
    size_t n = 0;

    while (n < room) {
        const ssize_t got = read(fd, text + n, room - n);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -1 : (ssize_t)n;
        }
        n += (size_t)got;
    }
    return (ssize_t)n;
}

sl_status_t sl_secure_read(int dir_fd, const char *name, size_t max_bytes,
                           char **text_p, size_t *n_p, sl_file_state_t *state_p)
{
    sl_status_t status;
    char *text = NULL;
    ssize_t n;
    int fd = -1;

    memset(state_p, 0, sizeof(*state_p));
    SL_TRY(status, open_trusted(dir_fd, name, max_bytes, &fd, state_p), out);
    text = malloc(max_bytes + 2);
    if (text == NULL) {
        SL_REFUSE(status, SL_ERR_NO_MEMORY, out_close,
                  "no host memory to read %s", name);
    }
    n = read_up_to(fd, text, max_bytes + 1);
    if (n < 0) {
        SL_REFUSE(status, SL_ERR_IO, out_close, "cannot read %s: %s", name,
                  strerror(errno));
    }
    if ((size_t)n > max_bytes) {
        SL_REFUSE(status, SL_ERR_IO, out_close,
                  "%s grew above %zu bytes while it was read", name, max_bytes);
    }
    text[n] = '\0';
    *text_p = text;
    *n_p = (size_t)n;
    text = NULL;
out_close:
    (void)close(fd);
    free(text);
out:
    return status;
}

sl_status_t sl_secure_dir_check(int fd, const char *path)
{
    struct stat info;
    sl_status_t status = SL_OK;

    if (fstat(fd, &info) != 0 || !S_ISDIR(info.st_mode)) {
        SL_REFUSE(status, SL_ERR_IO, out, "%s is not a directory", path);
    }
    if (info.st_uid != geteuid()) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "%s belongs to user %ld, not to you (%ld): set "
                  "SLUICE_RUN_DIR to a directory of your own",
                  path, (long)info.st_uid, (long)geteuid());
    }
    if ((info.st_mode & WRITABLE_BY_OTHERS) != 0) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "%s can be written by group or others (mode %04o): chmod "
                  "go-w %s",
                  path, (unsigned)(info.st_mode & 07777), path);
    }
out:
    return status;
}

static int write_all(int fd, const char *text, size_t n_bytes)
{
    size_t n = 0;

    while (n < n_bytes) {
        const ssize_t put = write(fd, text + n, n_bytes - n);

        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            errno = put == 0 ? ENOSPC : errno;
            return -1;
        }
        n += (size_t)put;
    }
    return 0;
}

/* A new file beside `name`; its name says whose it is, should it be left. */
static sl_status_t open_temp(int dir_fd, const char *name, mode_t mode,
                             char temp[NAME_MAX + 1], int *fd_p)
{
    static atomic_uint next;
    sl_status_t status;
    int i, fd = -1;

    for (i = 0; i < N_TEMP_TRIES && fd < 0; i++) {
        const unsigned number = atomic_fetch_add(&next, 1);
        const int n = snprintf(temp, NAME_MAX + 1, ".%s.%ld.%u", name,
                               (long)getpid(), number);

        if (n < 0 || n > NAME_MAX) {
            SL_REFUSE(status, SL_ERR_IO, out, "%.40s... is too long a name",
                      name);
        }
        fd = openat(dir_fd, temp,
                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST) {
            break;
        }
    }
    if (fd < 0) {
        SL_REFUSE(status, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, out,
                  "cannot write %s: %s", name, strerror(errno));
    }
    *fd_p = fd;
    return SL_OK;
out:
    return status;
}

/* File systems that cannot (EINVAL) have nothing to flush. */
static int flush_file(int fd)
{
    int failed;

    do {
        failed = fsync(fd);
    } while (failed != 0 && errno == EINTR);
    return failed != 0 && errno != EINVAL ? -1 : 0;
}

static sl_status_t replace(int dir_fd, const char *name, mode_t mode,
                           const char *text, size_t n_bytes, int is_flushed)
{
    char temp[NAME_MAX + 1];
    sl_status_t status;
    int fd = -1;
    int failed;

    SL_TRY(status, open_temp(dir_fd, name, mode, temp, &fd), out);
    failed = write_all(fd, text, n_bytes);
    if (failed == 0 && is_flushed) {
        failed = flush_file(fd);
    }
    if (failed != 0) {
        const int cause = errno;

        (void)close(fd);
        errno = cause;
    } else {
        failed = close(fd);
    }
    if (failed != 0 || renameat(dir_fd, temp, dir_fd, name) != 0) {
        const int cause = errno;

        (void)unlinkat(dir_fd, temp, 0);
        SL_REFUSE(status, SL_ERR_IO, out, "cannot write %s: %s", name,
                  strerror(cause));
    }
out:
    return status;
}

sl_status_t sl_atomic_write(int dir_fd, const char *name, mode_t mode,
                            const char *text, size_t n_bytes)
{
    return replace(dir_fd, name, mode, text, n_bytes, 1);
}

sl_status_t sl_atomic_write_unflushed(int dir_fd, const char *name, mode_t mode,
                                      const char *text, size_t n_bytes)
{
    return replace(dir_fd, name, mode, text, n_bytes, 0);
}

/* The directory of a path, and what follows it. */
static sl_status_t open_parent(const char *path, const char **name_p, int *fd_p)
{
    const char *slash = strrchr(path, '/');
    const size_t n = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    char dir[PATH_MAX] = ".";
    sl_status_t status = SL_OK;
    int fd;

    if (n >= sizeof(dir)) {
        SL_REFUSE(status, SL_ERR_IO, out, "%.40s... is too long a path", path);
    }
    if (n > 0) {
        memcpy(dir, path, n);
        dir[n] = '\0';
    }
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out, "cannot write %s: %s", path,
                  strerror(errno));
    }
    *fd_p = fd;
    *name_p = path + n;
out:
    return status;
}

sl_status_t sl_atomic_write_path(const char *path, mode_t mode,
                                 const char *text, size_t n_bytes)
{
    const char *name;
    sl_status_t status;
    int fd;

    SL_TRY(status, open_parent(path, &name, &fd), out);
    status = replace(fd, name, mode, text, n_bytes, 0);
    (void)close(fd);
out:
    return status;
}

/* ---- what the killed leave ---- */

/* ".<name>.<number>.<number>", as open_temp() calls it */
static int is_temp_of(const char *entry, const char *name)
{
    const size_t n = strlen(name);
    size_t i;
    int part;

    if (entry[0] != '.' || strncmp(entry + 1, name, n) != 0) {
        return 0;
    }
    entry += 1 + n;
    for (part = 0; part < 2; part++) {
        i = strspn(entry + (entry[0] == '.'), "0123456789");
        if (entry[0] != '.' || i == 0) {
            return 0;
        }
        entry += 1 + i;
    }
    return entry[0] == '\0';
}

void sl_atomic_clean(int dir_fd, const char *name, int64_t min_age_s)
{
    const int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = copy >= 0 ? fdopendir(copy) : NULL;
    const time_t now = time(NULL);
    const struct dirent *entry;
    struct stat info;

    if (stream == NULL) {
        if (copy >= 0) {
            (void)close(copy);
        }
        return;
    }
    for (entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (is_temp_of(entry->d_name, name) &&
            fstatat(dir_fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
            (int64_t)(now - info.st_mtime) >= min_age_s) {
            (void)unlinkat(dir_fd, entry->d_name, 0);
        }
    }
    (void)closedir(stream);
}

void sl_atomic_clean_path(const char *path, int64_t min_age_s)
{
    const char *name;
    int fd;

    if (open_parent(path, &name, &fd) >= 0) {
        sl_atomic_clean(fd, name, min_age_s);
        (void)close(fd);
    }
}
