/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint to read: its manifest, its shards one at a time. */
#include "engine/checkpoint/source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

sl_status_t sl_source_open(const sl_store_t *store, const char *name,
                           sl_source_t *source_p)
{
    sl_source_t source = {.dir_fd = -1};
    sl_status_t status;

    (void)snprintf(source.what, sizeof(source.what), "%.900s/%s", store->dir,
                   name);
    SL_TRY(status,
           sl_store_manifest(store, name, &source.dir_fd, &source.manifest),
           out);
    status = sl_tensor_index(&source.manifest, &source.index);
    if (status < 0) {
        sl_source_close(&source);
        goto out;
    }
    *source_p = source;
out:
    return status;
}

sl_status_t sl_source_open_file(const char *path, sl_source_t *source_p)
{
    sl_source_t source = {.dir_fd = -1, .is_file = 1};
    const char *text;
    sl_status_t status;

    (void)snprintf(source.what, sizeof(source.what), "%.900s", path);
    SL_TRY(status, sl_safetensors_open(path, &source.file), out);
    text = sl_safetensors_metadata(source.file, SL_SOURCE_METADATA);
    if (text == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, err_close,
                "%s has no manifest of a checkpoint: merge one with --moments "
                "to have it",
                path);
    }
    if (strlen(text) > SL_MANIFEST_MAX_BYTES) {
        SL_FAIL(status, SL_ERR_CORRUPT, err_close,
                "%s: a manifest of %zu bytes; at most %d are read", path,
                strlen(text), SL_MANIFEST_MAX_BYTES);
    }
    SL_TRY(status,
           sl_manifest_parse(path, text, strlen(text), &source.manifest),
           err_close);
    SL_TRY(status, sl_tensor_index(&source.manifest, &source.index), err_close);
    *source_p = source;
    return SL_OK;

err_close:
    sl_source_close(&source);
out:
    return status;
}

void sl_source_close(sl_source_t *source)
{
    sl_safetensors_close(source->file);
    sl_manifest_cleanup(&source->manifest);
    free(source->index);
    if (source->dir_fd >= 0) {
        (void)close(source->dir_fd);
    }
    memset(source, 0, sizeof(*source));
    source->dir_fd = -1;
}

sl_status_t sl_source_verify(const sl_source_t *source)
{
    sl_status_t status = SL_OK;
    size_t s;

    for (s = 0; status >= 0 && s < source->manifest.n_shards; s++) {
        status = sl_shard_verify(source->dir_fd, source->what,
                                 &source->manifest.shards[s]);
    }
    return status;
}

static sl_status_t open_shard(sl_source_t *source, size_t s)
{
    const sl_manifest_shard_t *shard = &source->manifest.shards[s];
    char path[sizeof(source->what) + SL_MANIFEST_NAME_BYTES];
    int fd = -1;
    sl_status_t status;

    if (source->is_file || (source->file != NULL && source->shard == s)) {
        return SL_OK;
    }
    sl_safetensors_close(source->file);
    source->file = NULL;
    SL_TRY(status, sl_shard_open(source->dir_fd, source->what, shard, &fd),
           out);
    (void)snprintf(path, sizeof(path), "%s/%s", source->what, shard->file);
    SL_TRY(status, sl_safetensors_open_fd(fd, path, &source->file), out);
    source->shard = s;
out:
    return status;
}

sl_status_t sl_source_find(sl_source_t *source, const char *name,
                           const sl_safetensors_entry_t **entry_p)
{
    const sl_tensor_index_t *found =
        sl_tensor_find(source->index, source->manifest.n_tensors, name);
    sl_status_t status;

    *entry_p = NULL;
    if (found == NULL) {
        return SL_OK;
    }
    SL_TRY(status, open_shard(source, found->shard), out);
    *entry_p = sl_safetensors_find(source->file, name);
    if (*entry_p == NULL) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: the manifest says that %s has tensor %s; it has not",
                  source->what, source->manifest.shards[found->shard].file,
                  name);
    }
out:
    return status;
}
