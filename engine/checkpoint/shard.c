/* SPDX-License-Identifier: Apache-2.0 */
/* Shards: opened without following links, compared with the manifest. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "engine/checkpoint/checkpoint_internal.h"

enum {
    CHUNK_BYTES = 1 << 20
};

void sl_shard_name(int rank, size_t i, char name[SL_SHARD_NAME_BYTES])
{
    (void)snprintf(name, SL_SHARD_NAME_BYTES, "state-%04d-%04zu.safetensors",
                   rank, i);
}

sl_status_t sl_shard_open(int dir_fd, const char *what,
                          const sl_manifest_shard_t *shard, int *fd_p)
{
    /* O_NONBLOCK: a FIFO must be refused, not waited for */
    const int fd =
        openat(dir_fd, shard->file,
               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    struct stat info;
    sl_status_t status;

    if (fd < 0) {
        SL_REFUSE(status,
                  errno == ENOENT || errno == ELOOP ? SL_ERR_CORRUPT
                                                    : SL_ERR_IO,
                  out, "%s: %s: %s", what, shard->file,
                  errno == ELOOP ? "it is a link" : strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, err_close,
                  "%s: %s: not a regular file", what, shard->file);
    }
    if ((uint64_t)info.st_size != shard->n_bytes) {
        SL_REFUSE(status, SL_ERR_CORRUPT, err_close,
                  "%s: %s has %jd bytes, not %" PRIu64
                  " as the manifest says: it was cut off or replaced",
                  what, shard->file, (intmax_t)info.st_size, shard->n_bytes);
    }
    *fd_p = fd;
    return SL_OK;

err_close:
    (void)close(fd);
out:
    return status;
}

static sl_status_t hash_fd(int fd, const char *what, const char *file,
                           void *chunk, sl_hash_stream_t *stream)
{
    sl_status_t status;
    ssize_t got;

    while ((got = read(fd, chunk, CHUNK_BYTES)) != 0) {
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            SL_REFUSE(status, SL_ERR_IO, out, "%s: %s: %s", what, file,
                      strerror(errno));
        }
        sl_hash_stream_add(stream, chunk, (size_t)got);
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_shard_verify(int dir_fd, const char *what,
                            const sl_manifest_shard_t *shard)
{
    sl_hash_stream_t *stream = NULL;
    void *chunk = malloc(CHUNK_BYTES);
    uint64_t hash;
    int fd = -1;
    sl_status_t status;

    if (chunk == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory", what);
    }
    SL_TRY(status, sl_shard_open(dir_fd, what, shard, &fd), out);
    SL_TRY(status, sl_hash_stream_create(&stream), out);
    SL_TRY(status, hash_fd(fd, what, shard->file, chunk, stream), out);
    hash = sl_hash_stream_value(stream);
    if (hash != shard->hash) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: %s: its checksum is %016" PRIx64 ", not %016" PRIx64
                  " as the manifest says: it is damaged",
                  what, shard->file, hash, shard->hash);
    }
out:
    if (fd >= 0) {
        (void)close(fd);
    }
    sl_hash_stream_destroy(stream);
    free(chunk);
    return status;
}

sl_status_t sl_checkpoint_verify(const char *dir, const char *name,
                                 sl_checkpoint_info_t *info_p)
{
    char what[SL_CHECKPOINT_REASON_BYTES];
    char own[SL_CHECKPOINT_NAME_BYTES]; /* `name` may be the info's */
    sl_manifest_t manifest;
    sl_store_t store;
    int fd = -1;
    sl_status_t status;
    size_t i;

    (void)snprintf(own, sizeof(own), "%s", name);
    (void)snprintf(what, sizeof(what), "%s/%s", dir, own);
    SL_TRY(status, sl_store_open(dir, &store), out);
    sl_store_info(&store, own, info_p);
    SL_TRY(status, sl_store_manifest(&store, own, &fd, &manifest), out_store);
    for (i = 0; status >= 0 && i < manifest.n_shards; i++) {
        status = sl_shard_verify(fd, what, &manifest.shards[i]);
    }
    sl_manifest_cleanup(&manifest);
    (void)close(fd);
out_store:
    sl_store_close(&store);
    if (status < 0) {
        info_p->status = status;
        (void)snprintf(info_p->reason, sizeof(info_p->reason), "%s",
                       sl_store_reason());
    }
out:
    return status;
}

static int compare_index(const void *a, const void *b)
{
    const sl_tensor_index_t *x = a, *y = b;

    return strcmp(x->name, y->name);
}

sl_status_t sl_tensor_index(const sl_manifest_t *manifest,
                            sl_tensor_index_t **index_p)
{
    sl_tensor_index_t *index = calloc(manifest->n_tensors + 1, sizeof(*index));
    sl_status_t status;
    size_t s, t;

    if (index == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "checkpoint: no host memory for %zu tensors",
                manifest->n_tensors);
    }
    for (s = 0; s < manifest->n_shards; s++) {
        const sl_manifest_shard_t *shard = &manifest->shards[s];

        for (t = 0; t < shard->n_tensors; t++) {
            index[shard->first_tensor + t].name =
                manifest->tensors[shard->first_tensor + t];
            index[shard->first_tensor + t].shard = s;
        }
    }
    qsort(index, manifest->n_tensors, sizeof(*index), compare_index);
    *index_p = index;
    return SL_OK;
out:
    return status;
}

const sl_tensor_index_t *sl_tensor_find(const sl_tensor_index_t *index,
                                        size_t n, const char *name)
{
    const sl_tensor_index_t key = {.name = name};

    return n == 0 ? NULL
                  : bsearch(&key, index, n, sizeof(*index), compare_index);
}

sl_status_t sl_checkpoint_path_split(const char *path, char *dir,
                                     size_t dir_bytes,
                                     char name[SL_CHECKPOINT_NAME_BYTES])
{
    size_t n = strlen(path), start;
    sl_status_t status;

    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    if (n == 0 || n >= dir_bytes) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "checkpoint: a path of %zu bytes; 1 to %zu are possible", n,
                dir_bytes - 1);
    }
    memcpy(dir, path, n);
    dir[n] = '\0';
    for (start = n; start > 0 && dir[start - 1] != '/'; start--) {
    }
    name[0] = '\0';
    if (!sl_store_name_parse(dir + start, NULL)) {
        return SL_OK;
    }
    memcpy(name, dir + start, n - start + 1);
    if (start == 0) {
        (void)snprintf(dir, dir_bytes, ".");
    } else {
        dir[start == 1 ? 1 : start - 1] = '\0';
    }
    return SL_OK;
out:
    return status;
}
