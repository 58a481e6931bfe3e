/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of checkpoints, read: names, the pointer, infos. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint_internal.h"

enum {
    MAX_CHECKPOINTS = 100000,
    WHAT_BYTES = 1024
};

static const char latest_name[] = "latest";

void sl_store_name(uint32_t step, char name[SL_CHECKPOINT_NAME_BYTES])
{
    (void)snprintf(name, SL_CHECKPOINT_NAME_BYTES, "step-%08" PRIu32, step);
}

int sl_store_name_parse(const char *name, uint32_t *step_p)
{
    char again[SL_CHECKPOINT_NAME_BYTES];
    unsigned long long step;

    if (strncmp(name, "step-", 5) != 0 ||
        strspn(name + 5, "0123456789") != strlen(name + 5) ||
        strlen(name) < 13 || strlen(name) > 15) {
        return 0;
    }
    step = strtoull(name + 5, NULL, 10);
    if (step > UINT32_MAX) {
        return 0;
    }
    sl_store_name((uint32_t)step, again);
    if (strcmp(name, again) != 0) {
        return 0;
    }
    if (step_p != NULL) {
        *step_p = (uint32_t)step;
    }
    return 1;
}

sl_status_t sl_store_open(const char *dir, sl_store_t *store_p)
{
    sl_store_t store = {.dir = NULL, .fd = -1, .lock_fd = -1};
    sl_status_t status;

    store.fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store.fd < 0) {
        SL_REFUSE(status, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, out,
                  "checkpoints %s: %s", dir, strerror(errno));
    }
    store.dir = strdup(dir);
    if (store.dir == NULL) {
        (void)close(store.fd);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "checkpoints %s: no host memory",
                dir);
    }
    *store_p = store;
    return SL_OK;
out:
    return status;
}

void sl_store_close(sl_store_t *store)
{
    if (store->dir == NULL) {
        return;
    }
    (void)close(store->fd);
    if (store->lock_fd >= 0) {
        (void)close(store->lock_fd);
    }
    free(store->dir);
    memset(store, 0, sizeof(*store));
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

sl_status_t sl_store_names(const sl_store_t *store, sl_store_name_t **names_p,
                           size_t *n_p)
{
    const int fd = dup(store->fd);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    sl_store_name_t *names = NULL;
    size_t n = 0, room = 0;
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
    while ((entry = readdir(dir)) != NULL && n < MAX_CHECKPOINTS) {
        if (!sl_store_name_parse(entry->d_name, NULL)) {
            continue;
        }
        if (n == room) {
            void *grown = realloc(names, (room * 2 + 16) * sizeof(*names));

            if (grown == NULL) {
                free(names);
                SL_FAIL(status, SL_ERR_NO_MEMORY, out_close,
                        "checkpoints %s: no host memory for their names",
                        store->dir);
            }
            names = grown;
            room = room * 2 + 16;
        }
        memcpy(names[n++], entry->d_name, strlen(entry->d_name) + 1);
    }
    if (n > 0) {
        qsort(names, n, sizeof(*names), compare_names);
    }
    *names_p = names;
    *n_p = n;
    status = SL_OK;
out_close:
    (void)closedir(dir);
out:
    return status;
}

/* A small regular file below a directory, whole; no links. */
static sl_status_t read_below(int dir_fd, const char *what, const char *name,
                              size_t max_bytes, char **data_p, size_t *n_p)
{
    /* O_NONBLOCK: a FIFO must be refused, not waited for */
    const int fd =
        openat(dir_fd, name,
               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    struct stat info;
    char *data = NULL;
    size_t n = 0;
    sl_status_t status;

    if (fd < 0) {
        SL_REFUSE(status, SL_ERR_IO, out, "%s: %s: %s", what, name,
                  errno == ELOOP ? "it is a link" : strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out_close,
                  "%s: %s: not a regular file", what, name);
    }
    if (info.st_size < 0 || (uintmax_t)info.st_size > max_bytes) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out_close,
                  "%s: %s: %jd bytes; at most %zu are read", what, name,
                  (intmax_t)info.st_size, max_bytes);
    }
    data = malloc((size_t)info.st_size + 1);
    if (data == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out_close,
                "%s: %s: no host memory for %jd bytes", what, name,
                (intmax_t)info.st_size);
    }
    while (n < (size_t)info.st_size) {
        const ssize_t got = read(fd, data + n, (size_t)info.st_size - n);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            free(data);
            SL_REFUSE(status, SL_ERR_IO, out_close, "%s: %s: %s", what, name,
                      strerror(errno));
        }
        if (got == 0) {
            break;
        }
        n += (size_t)got;
    }
    data[n] = '\0';
    *data_p = data;
    *n_p = n;
    status = SL_OK;
out_close:
    (void)close(fd);
out:
    return status;
}

void sl_store_latest(const sl_store_t *store, char *name)
{
    char *text = NULL;
    size_t n = 0;

    name[0] = '\0';
    if (read_below(store->fd, store->dir, latest_name, 64, &text, &n) < 0) {
        return;
    }
    text[strcspn(text, "\n")] = '\0';
    if (sl_store_name_parse(text, NULL)) {
        (void)snprintf(name, SL_CHECKPOINT_NAME_BYTES, "%.15s", text);
    }
    free(text);
}

sl_status_t sl_store_manifest(const sl_store_t *store, const char *name,
                              int *fd_p, sl_manifest_t *manifest_p)
{
    char what[WHAT_BYTES];
    char *text = NULL;
    uint32_t step = 0;
    size_t n = 0;
    int fd;
    sl_status_t status;

    (void)snprintf(what, sizeof(what), "%s/%s", store->dir, name);
    if (!sl_store_name_parse(name, &step)) {
        SL_REFUSE(status, SL_ERR_INVALID_ARG, out,
                  "%s is not the name of a checkpoint, such as step-00001200",
                  name);
    }
    fd = openat(store->fd, name,
                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        SL_REFUSE(status, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, out,
                  "%s: %s", what,
                  errno == ELOOP || errno == ENOTDIR
                      ? "not a directory, or a link"
                      : strerror(errno));
    }
    SL_TRY(
        status,
        read_below(fd, what, "manifest.json", SL_MANIFEST_MAX_BYTES, &text, &n),
        err_close);
    (void)snprintf(what, sizeof(what), "%s/%s/manifest.json", store->dir, name);
    status = sl_manifest_parse(what, text, n, manifest_p);
    free(text);
    SL_TRY(status, status, err_close);
    if (manifest_p->step != step) {
        sl_manifest_cleanup(manifest_p);
        SL_REFUSE(status, SL_ERR_CORRUPT, err_close,
                  "%s: it is of another step than its directory", what);
    }
    *fd_p = fd;
    return SL_OK;

err_close:
    (void)close(fd);
out:
    return status;
}

static sl_status_t fill_info(const sl_store_t *store, const char *name,
                             sl_checkpoint_info_t *info)
{
    sl_manifest_t manifest;
    char what[WHAT_BYTES];
    int fd = -1;
    sl_status_t status;
    size_t i;

    (void)snprintf(what, sizeof(what), "%s/%s", store->dir, name);
    SL_TRY(status, sl_store_manifest(store, name, &fd, &manifest), out);
    info->sequence = manifest.sequence;
    (void)snprintf(info->date, sizeof(info->date), "%s", manifest.date);
    info->loss = manifest.loss;
    info->validation_loss = manifest.validation_loss;
    info->n_shards = manifest.n_shards;
    info->n_tensors = manifest.n_tensors;
    for (i = 0; i < manifest.n_shards; i++) {
        int shard_fd = -1;

        info->n_bytes += manifest.shards[i].n_bytes;
        SL_TRY(status, sl_shard_open(fd, what, &manifest.shards[i], &shard_fd),
               out_close);
        (void)close(shard_fd);
    }
out_close:
    sl_manifest_cleanup(&manifest);
    (void)close(fd);
out:
    return status;
}

/* The latest failure without the place in the source. */
const char *sl_store_reason(void)
{
    const char *text = sl_last_error();
    const char *colon = strstr(text, ".c:");
    const char *start = colon == NULL ? NULL : strstr(colon, ": ");

    return start == NULL ? text : start + 2;
}

void sl_store_info(const sl_store_t *store, const char *name,
                   sl_checkpoint_info_t *info_p)
{
    memset(info_p, 0, sizeof(*info_p));
    info_p->loss = info_p->validation_loss = (double)NAN;
    (void)snprintf(info_p->name, sizeof(info_p->name), "%s", name);
    (void)sl_store_name_parse(name, &info_p->step);
    info_p->status = fill_info(store, name, info_p);
    if (info_p->status < 0) {
        (void)snprintf(info_p->reason, sizeof(info_p->reason), "%s",
                       sl_store_reason());
    }
}

/* Good ones first, the latest first; the others by step. */
static int compare_infos(const void *a, const void *b)
{
    const sl_checkpoint_info_t *x = a, *y = b;

    if ((x->status < 0) != (y->status < 0)) {
        return x->status < 0 ? 1 : -1;
    }
    if (x->status >= 0 && x->sequence != y->sequence) {
        return x->sequence > y->sequence ? -1 : 1;
    }
    return (x->step < y->step) - (x->step > y->step);
}

static void mark(const sl_store_t *store, sl_checkpoint_info_t *infos, size_t n)
{
    char latest[SL_CHECKPOINT_NAME_BYTES];
    size_t i, best = n;

    sl_store_latest(store, latest);
    for (i = 0; i < n; i++) {
        const double loss = infos[i].validation_loss;

        infos[i].is_latest = strcmp(infos[i].name, latest) == 0;
        if (infos[i].status >= 0 && isfinite(loss) &&
            (best == n || loss < infos[best].validation_loss)) {
            best = i;
        }
    }
    if (best < n) {
        infos[best].is_best = 1;
    }
}

sl_status_t sl_store_infos(const sl_store_t *store,
                           sl_checkpoint_info_t **infos_p, size_t *n_p)
{
    sl_checkpoint_info_t *infos = NULL;
    sl_store_name_t *names = NULL;
    size_t n = 0, i;
    sl_status_t status;

    SL_TRY(status, sl_store_names(store, &names, &n), out);
    if (n > 0) {
        infos = calloc(n, sizeof(*infos));
        if (infos == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "checkpoints %s: no host memory for %zu", store->dir, n);
        }
        for (i = 0; i < n; i++) {
            sl_store_info(store, names[i], &infos[i]);
        }
        qsort(infos, n, sizeof(*infos), compare_infos);
        mark(store, infos, n);
    }
    *infos_p = infos;
    *n_p = n;
out:
    free(names);
    return status;
}

sl_status_t sl_checkpoint_list(const char *dir, sl_checkpoint_info_t **infos_p,
                               size_t *n_p)
{
    sl_store_t store;
    sl_status_t status;

    SL_TRY(status, sl_store_open(dir, &store), out);
    status = sl_store_infos(&store, infos_p, n_p);
    sl_store_close(&store);
out:
    return status;
}
