/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of checkpoints, written. One process at a time holds the lock,
 * so what has a temporary name is its own or was left by one that ended. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "engine/checkpoint/checkpoint_internal.h"
#include "scheduler/control/lease.h"

enum {
    DIR_MODE = 0755,
    FILE_MODE = 0644,
    LOCK_TRIES = 50,
    LOCK_NAP_NS = 100000000, /* the process before may be ending */
    PATH_BYTES = 2 * SL_CHECKPOINT_NAME_BYTES
};

static const char lock_name[] = ".lock";

static int is_prefixed(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* A file that a checkpoint's directory may have. */
static int is_ours(const char *name)
{
    return strcmp(name, "manifest.json") == 0 ||
           is_prefixed(name, ".sluice-") || sl_manifest_file_is_valid(name);
}

/* Makes renames in the directory last; file systems that cannot (EINVAL)
 * need nothing. */
static sl_status_t sync_fd(int fd, const char *what)
{
    sl_status_t status = SL_OK;

    if (fsync(fd) != 0 && errno != EINVAL) {
        SL_FAIL(status, SL_ERR_IO, out, "cannot sync %s: %s", what,
                strerror(errno));
    }
out:
    return status;
}

/* Only files of ours are removed: a directory that has others stays. */
static void remove_dir(const sl_store_t *store, const char *name)
{
    const int fd = openat(store->fd, name,
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    if (dir == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (is_ours(entry->d_name)) {
            (void)unlinkat(fd, entry->d_name, 0);
        }
    }
    if (unlinkat(store->fd, name, AT_REMOVEDIR) != 0) {
        sl_warn("checkpoints %s: cannot remove %s: %s", store->dir, name,
                strerror(errno));
    }
    (void)closedir(dir);
}

static int exists(const sl_store_t *store, const char *name)
{
    struct stat info;

    return fstatat(store->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

/* One entry that an ended run may have left. A checkpoint that was about to
 * be replaced by one that never came is put back. */
static void clean_entry(const sl_store_t *store, const char *name)
{
    const char *own = name + strlen(SL_STORE_REPLACED);

    if (strcmp(name, SL_STORE_WRITING "latest") == 0) {
        (void)unlinkat(store->fd, name, 0);
    } else if (is_prefixed(name, SL_STORE_REPLACED) &&
               sl_store_name_parse(own, NULL) && !exists(store, own)) {
        if (renameat(store->fd, name, store->fd, own) == 0) {
            sl_warn("checkpoints %s: %s was about to be replaced; it is back",
                    store->dir, own);
        }
    } else if (is_prefixed(name, SL_STORE_WRITING "step-") ||
               is_prefixed(name, SL_STORE_REPLACED "step-") ||
               is_prefixed(name, SL_STORE_REMOVED "step-")) {
        sl_info("checkpoints %s: %s was left half done; it is removed",
                store->dir, name);
        remove_dir(store, name);
    }
}

static sl_status_t clean(const sl_store_t *store)
{
    const int fd = dup(store->fd);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    sl_status_t status;

    if (dir == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        SL_FAIL(status, SL_ERR_IO, out, "checkpoints %s: %s", store->dir,
                strerror(errno));
    }
    rewinddir(dir);
    while ((entry = readdir(dir)) != NULL) {
        clean_entry(store, entry->d_name);
    }
    (void)closedir(dir);
    return SL_OK;
out:
    return status;
}

static sl_status_t lock(sl_store_t *store)
{
    const struct timespec nap = {.tv_nsec = LOCK_NAP_NS};
    sl_status_t status = sl_lease_take(store->fd, lock_name, &store->lock_fd);
    char detail[SL_CHECKPOINT_REASON_BYTES];
    int i;

    for (i = 0; status == SL_ERR_CANCELED && i < LOCK_TRIES; i++) {
        (void)nanosleep(&nap, NULL);
        status = sl_lease_take(store->fd, lock_name, &store->lock_fd);
    }
    if (status == SL_ERR_IO && faccessat(store->fd, ".", W_OK, 0) == 0) {
        /* some network file systems have no locks */
        sl_warn("checkpoints %s: %s; make sure that no other run writes there",
                store->dir, sl_store_reason());
        return SL_OK;
    }
    if (status < 0) {
        (void)snprintf(detail, sizeof(detail), "%s", sl_store_reason());
        SL_FAIL(status, SL_ERR_IO, out,
                "checkpoints %s: %s; name a directory that no other run "
                "writes to and that this user may write",
                store->dir, detail);
    }
out:
    return status;
}

sl_status_t sl_store_open_for_writing(const char *dir, sl_store_t *store_p)
{
    sl_store_t store;
    sl_status_t status;

    SL_TRY(status, sl_file_make_dirs(dir), out);
    SL_TRY(status, sl_store_open(dir, &store), out);
    SL_TRY(status, lock(&store), err_close);
    SL_TRY(status, clean(&store), err_close);
    *store_p = store;
    return SL_OK;

err_close:
    sl_store_close(&store);
out:
    return status;
}

sl_status_t sl_store_set_latest(const sl_store_t *store, const char *name)
{
    const int fd = openat(store->fd, SL_STORE_WRITING "latest",
                          O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                          FILE_MODE);
    char line[SL_CHECKPOINT_NAME_BYTES + 1];
    const int n = snprintf(line, sizeof(line), "%s\n", name);
    sl_status_t status = SL_OK;

    if (fd < 0 || write(fd, line, (size_t)n) != n || fsync(fd) != 0 ||
        renameat(store->fd, SL_STORE_WRITING "latest", store->fd, "latest") !=
            0) {
        SL_FAIL(status, SL_ERR_IO, out,
                "checkpoints %s: cannot write latest, which should name %s: %s",
                store->dir, name, strerror(errno));
    }
    status = sync_fd(store->fd, store->dir);
out:
    if (fd >= 0) {
        (void)close(fd);
    }
    return status;
}

sl_status_t sl_store_writing_path(const sl_store_t *store, const char *name,
                                  char **path_p)
{
    const size_t bytes = strlen(store->dir) + PATH_BYTES;
    char *path = malloc(bytes);
    sl_status_t status;

    if (path == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "checkpoints %s: no host memory",
                store->dir);
    }
    (void)snprintf(path, bytes, "%s/" SL_STORE_WRITING "%s", store->dir, name);
    *path_p = path;
    return SL_OK;
out:
    return status;
}

sl_status_t sl_store_begin(const sl_store_t *store, const char *name,
                           char **path_p)
{
    char temp[PATH_BYTES];
    sl_status_t status;

    (void)snprintf(temp, sizeof(temp), SL_STORE_WRITING "%s", name);
    if (exists(store, temp)) {
        remove_dir(store, temp);
    }
    if (mkdirat(store->fd, temp, DIR_MODE) != 0) {
        SL_FAIL(status, SL_ERR_IO, out,
                "checkpoints %s: cannot make the directory %s: %s", store->dir,
                temp, strerror(errno));
    }
    status = sl_store_writing_path(store, name, path_p);
out:
    return status;
}

/* Move a checkpoint of the same step aside. @return whether there was one */
static int move_aside(const sl_store_t *store, const char *name,
                      const char *aside)
{
    if (!exists(store, name)) {
        return 0;
    }
    if (exists(store, aside)) {
        remove_dir(store, aside);
    }
    return renameat(store->fd, name, store->fd, aside) == 0;
}

sl_status_t sl_store_commit(const sl_store_t *store, const char *name)
{
    char temp[PATH_BYTES], aside[PATH_BYTES];
    int was_there;
    sl_status_t status;

    (void)snprintf(temp, sizeof(temp), SL_STORE_WRITING "%s", name);
    (void)snprintf(aside, sizeof(aside), SL_STORE_REPLACED "%s", name);
    was_there = move_aside(store, name, aside);
    if (renameat(store->fd, temp, store->fd, name) != 0) {
        const int error = errno;

        if (was_there) {
            (void)renameat(store->fd, aside, store->fd, name);
        }
        SL_FAIL(status, SL_ERR_IO, out, "checkpoints %s: cannot name %s: %s",
                store->dir, name, strerror(error));
    }
    SL_TRY(status, sync_fd(store->fd, store->dir), out);
    if (was_there) {
        remove_dir(store, aside);
    }
    status = sl_store_set_latest(store, name);
out:
    return status;
}

void sl_store_abort(const sl_store_t *store, const char *name)
{
    char temp[PATH_BYTES];

    (void)snprintf(temp, sizeof(temp), SL_STORE_WRITING "%s", name);
    if (exists(store, temp)) {
        remove_dir(store, temp);
    }
}

static void remove_checkpoint(const sl_store_t *store, const char *name)
{
    char gone[PATH_BYTES];

    (void)snprintf(gone, sizeof(gone), SL_STORE_REMOVED "%s", name);
    if (exists(store, gone)) {
        remove_dir(store, gone);
    }
    if (renameat(store->fd, name, store->fd, gone) != 0) {
        sl_warn("checkpoints %s: cannot remove %s: %s", store->dir, name,
                strerror(errno));
        return;
    }
    remove_dir(store, gone);
}

void sl_store_retain(const sl_store_t *store, const char *name, int64_t keep,
                     int keeps_best)
{
    sl_checkpoint_info_t *infos = NULL;
    int64_t n_kept = 0;
    size_t n = 0, i;

    if (keep <= 0 || sl_store_infos(store, &infos, &n) < 0) {
        return;
    }
    for (i = 0; i < n; i++) {
        const int is_kept = infos[i].status < 0 || n_kept < keep ||
                            strcmp(infos[i].name, name) == 0 ||
                            (keeps_best && infos[i].is_best);

        n_kept += infos[i].status >= 0;
        if (!is_kept) {
            remove_checkpoint(store, infos[i].name);
        }
    }
    free(infos);
}
