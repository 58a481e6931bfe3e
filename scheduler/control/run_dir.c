/* SPDX-License-Identifier: Apache-2.0 */
/* The run directory: where it is, who coordinates it, which jobs live. */
#include "scheduler/control/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "scheduler/control/json_fields.h"
#include "scheduler/control/lease.h"
#include "scheduler/control/secure_file.h"
#include "scheduler/pulse.h"

enum {
    DIR_MODE = 0700,
    MAKING_SECONDS = 10 /* more than making a job's directory takes */
};

static const char *first_set(const char *a, const char *b)
{
    return a != NULL && a[0] != '\0' ? a : b;
}

static sl_status_t resolve(const char *given, char path[PATH_MAX])
{
    const char *const chosen = first_set(given, getenv("SLUICE_RUN_DIR"));
    const char *const xdg = getenv("XDG_RUNTIME_DIR");
    sl_status_t status = SL_OK;
    int n;

    if (first_set(chosen, NULL) != NULL) {
        n = snprintf(path, PATH_MAX, "%s", chosen);
    } else if (first_set(xdg, NULL) != NULL) {
        n = snprintf(path, PATH_MAX, "%s/sluice", xdg);
    } else {
        n = snprintf(path, PATH_MAX, "%s/sluice-%ld",
                     first_set(getenv("TMPDIR"), "/tmp"), (long)geteuid());
    }
    if (n < 0 || n >= PATH_MAX) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "the path of the run directory is too long");
    }
    while (n > 1 && path[n - 1] == '/') {
        path[--n] = '\0'; /* "link/" would follow the link */
    }
out:
    return status;
}

/* Parents too, for a path that was asked for; all 0700. */
static void make_parents(const char *path)
{
    char part[PATH_MAX];
    char *slash;

    (void)snprintf(part, sizeof(part), "%s", path);
    for (slash = strchr(part + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(part, DIR_MODE);
        *slash = '/';
    }
}

static sl_status_t open_dir(int parent_fd, const char *name, const char *path,
                            int *fd_p)
{
    sl_status_t status;
    int fd;

    if (mkdirat(parent_fd, name, DIR_MODE) != 0 && errno != EEXIST) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "cannot make %s: %s; set SLUICE_RUN_DIR to a directory "
                  "where you can write",
                  path, strerror(errno));
    }
    fd = openat(parent_fd, name,
                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "cannot use %s: %s; it must be a directory and no symbolic "
                  "link: remove it, or set SLUICE_RUN_DIR",
                  path, strerror(errno));
    }
    SL_TRY(status, sl_secure_dir_check(fd, path), err_close);
    *fd_p = fd;
    return SL_OK;

err_close:
    (void)close(fd);
out:
    return status;
}

sl_status_t sl_run_dir_open(const char *path, sl_run_dir_t **dir_p)
{
    char resolved[PATH_MAX];
    sl_run_dir_t *dir = NULL;
    sl_status_t status;

    SL_TRY(status, resolve(path, resolved), out);
    dir = calloc(1, sizeof(*dir));
    if (dir != NULL) {
        dir->fd = dir->jobs_fd = dir->lock_fd = dir->inotify_fd = -1;
        dir->path = malloc(strlen(resolved) + 1);
    }
    if (dir == NULL || dir->path == NULL) {
        SL_REFUSE(status, SL_ERR_NO_MEMORY, out,
                  "no host memory for a run directory");
    }
    strcpy(dir->path, resolved);
    make_parents(resolved);
    SL_TRY(status, open_dir(AT_FDCWD, resolved, resolved, &dir->fd), out);
    SL_TRY(
        status,
        open_dir(dir->fd, "jobs", "jobs in the run directory", &dir->jobs_fd),
        out);
    *dir_p = dir;
    dir = NULL;
out:
    sl_run_dir_close(dir);
    return status;
}

static void close_fd(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

void sl_run_dir_close(sl_run_dir_t *dir)
{
    if (dir == NULL) {
        return;
    }
    close_fd(dir->inotify_fd);
    close_fd(dir->lock_fd);
    close_fd(dir->jobs_fd);
    close_fd(dir->fd);
    free(dir->path);
    free(dir);
}

sl_status_t sl_run_dir_reopen(sl_run_dir_t *dir)
{
    sl_run_dir_t *fresh = NULL;
    sl_status_t status;
    int fd;

    SL_TRY(status, sl_run_dir_open(dir->path, &fresh), out);
    fd = dir->fd;
    dir->fd = fresh->fd;
    fresh->fd = fd;
    fd = dir->jobs_fd;
    dir->jobs_fd = fresh->jobs_fd;
    fresh->jobs_fd = fd;
    sl_run_dir_close(fresh);
out:
    return status;
}

const char *sl_run_dir_path(const sl_run_dir_t *dir)
{
    return dir->path;
}

sl_status_t sl_run_dir_coordinate(sl_run_dir_t *dir)
{
    sl_status_t status = SL_OK;

    if (dir->lock_fd < 0) {
        SL_TRY(status,
               sl_lease_take(dir->fd, SL_FILE_COORDINATOR, &dir->lock_fd), out);
        sl_atomic_clean(dir->fd, SL_FILE_REPORT, 0); /* ours alone from now */
    }
out:
    return status;
}

int sl_run_dir_has_coordinator(sl_run_dir_t *dir)
{
    return sl_lease_look(dir->fd, SL_FILE_COORDINATOR) == SL_LEASE_HELD;
}

int sl_run_dir_watch_fd(sl_run_dir_t *dir)
{
    char path[PATH_MAX + 8];

    if (dir->inotify_fd >= 0) {
        return dir->inotify_fd;
    }
    dir->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (dir->inotify_fd < 0) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "%s/jobs", dir->path);
    if (inotify_add_watch(dir->inotify_fd, path,
                          IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_ONLYDIR |
                              IN_DONT_FOLLOW) < 0) {
        (void)close(dir->inotify_fd);
        dir->inotify_fd = -1;
    }
    return dir->inotify_fd;
}

/* ---- jobs ---- */

static int open_job(const sl_run_dir_t *dir, const char *name)
{
    struct stat info;
    const int fd = openat(dir->jobs_fd, name,
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && (fstat(fd, &info) != 0 || info.st_uid != geteuid())) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* The lock goes last: without it the directory counts as dead. */
void sl_run_dir_empty(int fd)
{
    const int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = copy >= 0 ? fdopendir(copy) : NULL;
    const struct dirent *entry;

    if (stream == NULL) {
        close_fd(copy);
        return;
    }
    for (entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") != 0 &&
            strcmp(entry->d_name, "..") != 0 &&
            strcmp(entry->d_name, SL_FILE_LOCK) != 0) {
            (void)unlinkat(fd, entry->d_name, 0);
        }
    }
    (void)closedir(stream);
    (void)unlinkat(fd, SL_FILE_LOCK, 0);
}

/* A directory under a hidden name is being made, or its maker was killed.
 * Should the wall clock jump, it is at worst taken from under its maker, who
 * tries again. */
static int is_being_made(int fd, const char *name)
{
    const time_t now = time(NULL);
    struct stat info;

    return name[0] == '.' && fstat(fd, &info) == 0 &&
           now - info.st_mtime < MAKING_SECONDS &&
           info.st_mtime - now < MAKING_SECONDS;
}

/* Whether the job of directory `name` lives; a dead one's is removed. Nothing
 * has to be locked for that: a directory gets its name with its lock held, so
 * a free lock is that of a dead job for ever, and who else removes it does no
 * harm. */
static int look_at_job(sl_run_dir_t *dir, const char *name)
{
    const int fd = open_job(dir, name);
    sl_lease_state_t state = SL_LEASE_ABSENT;

    if (fd < 0) {
        return 0;
    }
    if (!is_being_made(fd, name)) {
        state = sl_lease_look(fd, SL_FILE_LOCK);
        if (state == SL_LEASE_FREE) {
            sl_debug("removing the directory of the dead job %s", name);
            sl_run_dir_empty(fd);
        }
        if (state != SL_LEASE_HELD) {
            (void)unlinkat(dir->jobs_fd, name, AT_REMOVEDIR);
        }
    }
    (void)close(fd);
    return state == SL_LEASE_HELD;
}

/* Without an id list it only cleans. */
static size_t walk(sl_run_dir_t *dir, sl_run_id_t *ids, size_t n_max)
{
    const int copy =
        openat(dir->jobs_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = copy >= 0 ? fdopendir(copy) : NULL;
    const struct dirent *entry;
    size_t n = 0;

    if (stream == NULL) {
        close_fd(copy);
        return 0;
    }
    for (entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        const char *name = entry->d_name;
        const int is_hidden = name[0] == '.';

        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
            (!is_hidden && !sl_name_is_valid(name, SL_CONTROL_ID_BYTES))) {
            continue;
        }
        if (look_at_job(dir, name) && !is_hidden) {
            if (n < n_max) {
                memcpy(ids[n].text, name, strlen(name) + 1);
            }
            n++;
        }
    }
    (void)closedir(stream);
    return n;
}

static int compare_ids(const void *a, const void *b)
{
    return strcmp(((const sl_run_id_t *)a)->text,
                  ((const sl_run_id_t *)b)->text);
}

size_t sl_run_dir_list(sl_run_dir_t *dir, sl_run_id_t *ids, size_t n_max)
{
    const size_t n = walk(dir, ids, n_max);
    const size_t n_listed = n < n_max ? n : n_max;

    if (n_listed > 1) {
        qsort(ids, n_listed, sizeof(*ids), compare_ids);
    }
    return n;
}

void sl_run_dir_clean(sl_run_dir_t *dir)
{
    (void)walk(dir, NULL, 0);
}

/* A file of a job, by an id that may come from a person. */
static sl_status_t read_file(sl_run_dir_t *dir, const sl_run_id_t *id,
                             const char *file, char **text_p, size_t *n_p)
{
    sl_file_state_t state;
    sl_status_t status;
    int fd;

    if (!sl_name_is_valid(id->text, sizeof(id->text))) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out, "that is not a job's id");
    }
    fd = open_job(dir, id->text);
    if (fd < 0) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out, "there is no job %s",
                  id->text);
    }
    status =
        sl_secure_read(fd, file, SL_CONTROL_FILE_BYTES, text_p, n_p, &state);
    (void)close(fd);
out:
    return status;
}

sl_status_t sl_run_job_read(sl_run_dir_t *dir, const sl_run_id_t *id,
                            sl_control_job_t *job_p)
{
    char *text = NULL;
    size_t n = 0;
    sl_status_t status;

    SL_TRY(status, read_file(dir, id, SL_FILE_JOB, &text, &n), out);
    status = sl_control_job_parse(text, n, job_p);
    free(text);
out:
    return status;
}

sl_status_t sl_run_status_read(sl_run_dir_t *dir, const sl_run_id_t *id,
                               sl_control_status_t *status_p)
{
    char *text = NULL;
    size_t n = 0;
    sl_status_t status;

    SL_TRY(status, read_file(dir, id, SL_FILE_STATUS, &text, &n), out);
    status = sl_control_status_parse(text, n, status_p);
    free(text);
out:
    return status;
}

sl_status_t sl_run_order_read(sl_run_dir_t *dir, const sl_run_id_t *id,
                              sl_control_order_t *order_p)
{
    char *text = NULL;
    size_t n = 0;
    sl_status_t status;

    SL_TRY(status, read_file(dir, id, SL_FILE_CONTROL, &text, &n), out);
    status = sl_control_order_parse(text, n, order_p);
    free(text);
out:
    return status;
}

int sl_run_job_has_pulse(sl_run_dir_t *dir, const sl_run_id_t *id)
{
    struct stat info;
    int has_pulse;
    const int fd = sl_name_is_valid(id->text, sizeof(id->text))
                       ? open_job(dir, id->text)
                       : -1;

    has_pulse =
        fd >= 0 && fstatat(fd, SL_PULSE_FILE, &info, AT_SYMLINK_NOFOLLOW) == 0;
    close_fd(fd);
    return has_pulse;
}

/* Formatting and parsing back proves that the job will accept it. */
static sl_status_t format_valid(const sl_control_order_t *order, char **text_p,
                                size_t *n_p)
{
    sl_control_order_t parsed;
    char *text = NULL;
    sl_status_t status;

    SL_TRY(status, sl_control_order_format(order, &text), out);
    if (sl_control_order_parse(text, strlen(text), &parsed) < 0) {
        status = SL_ERR_INVALID_ARG; /* the parser's detail says what */
        free(text);
        goto out;
    }
    *n_p = strlen(text);
    *text_p = text;
out:
    return status;
}

sl_status_t sl_run_order_write(sl_run_dir_t *dir, const sl_run_id_t *id,
                               const sl_control_order_t *order)
{
    char *text = NULL;
    size_t n = 0;
    sl_status_t status;
    int fd;

    SL_TRY(status, format_valid(order, &text, &n), out);
    fd = sl_name_is_valid(id->text, sizeof(id->text)) ? open_job(dir, id->text)
                                                      : -1;
    if (fd < 0) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out, "there is no such job");
    }
    if (sl_lease_look(fd, SL_FILE_LOCK) != SL_LEASE_HELD) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out_close, "the job %s has ended",
                  id->text);
    }
    status = sl_atomic_write(fd, SL_FILE_CONTROL, 0600, text, n);
out_close:
    (void)close(fd);
out:
    free(text);
    return status;
}
