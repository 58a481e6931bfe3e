/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint as one file, and back into shards. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/checkpoint/source.h"

enum {
    MAX_SPLIT = 10000
};

/* "optimizer.0.": a moment's. */
static int is_moment(const char *name)
{
    return strncmp(name, "optimizer.", 10) == 0 && name[10] >= '0' &&
           name[10] <= '9' && name[11] == '.';
}

/* Entries of some of the tensors; names are the manifest's. */
static sl_status_t fill_entries(sl_source_t *source, size_t first, size_t n,
                                int with_moments,
                                sl_safetensors_entry_t *entries, size_t *n_p)
{
    sl_status_t status = SL_OK;
    size_t t;

    *n_p = 0;
    for (t = first; t < first + n; t++) {
        const char *name = source->manifest.tensors[t];
        const sl_safetensors_entry_t *entry = NULL;

        if (!with_moments && is_moment(name)) {
            continue;
        }
        SL_TRY(status, sl_source_find(source, name, &entry), out);
        entries[*n_p] = *entry;
        entries[*n_p].name = name;
        (*n_p)++;
    }
out:
    return status;
}

/* One tensor at a time through host memory. */
static sl_status_t copy_tensor(sl_source_t *source, const char *name,
                               sl_safetensors_writer_t *writer)
{
    const sl_safetensors_entry_t *entry = NULL;
    float *values = NULL;
    sl_status_t status;

    SL_TRY(status, sl_source_find(source, name, &entry), out);
    values =
        malloc((size_t)sl_safetensors_elements(entry) * sizeof(*values) + 1);
    if (values == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for tensor %s", source->what, name);
    }
    SL_TRY(status, sl_safetensors_read(source->file, entry, values), out);
    status = sl_safetensors_append(writer, values);
out:
    free(values);
    return status;
}

/* Tensors first .. first + n of the source as one file. */
static sl_status_t write_file(sl_source_t *source, const char *path,
                              size_t first, size_t n, int with_moments,
                              const char *manifest, uint64_t *n_bytes_p,
                              uint64_t *hash_p)
{
    sl_safetensors_entry_t *entries = calloc(n + 1, sizeof(*entries));
    sl_safetensors_writer_t *writer = NULL;
    sl_status_t status;
    size_t n_entries = 0, i;

    if (entries == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory", path);
    }
    SL_TRY(status,
           fill_entries(source, first, n, with_moments, entries, &n_entries),
           out);
    SL_TRY(status,
           manifest == NULL
               ? sl_safetensors_begin(path, entries, n_entries, &writer)
               : sl_safetensors_begin_with(path, entries, n_entries,
                                           SL_SOURCE_METADATA, manifest,
                                           &writer),
           out);
    for (i = 0; i < n_entries; i++) {
        status = copy_tensor(source, entries[i].name, writer);
        if (status < 0) {
            sl_safetensors_abort(writer);
            goto out;
        }
    }
    status = sl_safetensors_finish(writer, n_bytes_p, hash_p);
out:
    free(entries);
    return status;
}

sl_status_t sl_checkpoint_merge(const char *dir, const char *name,
                                const char *path, int with_moments)
{
    sl_source_t source = {.dir_fd = -1};
    uint64_t n_bytes, hash;
    char *text = NULL;
    sl_store_t store;
    sl_status_t status;

    SL_TRY(status, sl_store_open(dir, &store), out);
    SL_TRY(status, sl_source_open(&store, name, &source), out_close);
    SL_TRY(status, sl_source_verify(&source), out_close);
    if (with_moments) {
        SL_TRY(status, sl_manifest_format(&source.manifest, &text), out_close);
    }
    status = write_file(&source, path, 0, source.manifest.n_tensors,
                        with_moments, text, &n_bytes, &hash);
out_close:
    sl_source_close(&source);
    sl_store_close(&store);
    free(text);
out:
    return status;
}

/* ---- back into shards ---- */

static sl_status_t tensor_bytes(sl_source_t *source, uint64_t *bytes,
                                uint64_t *total_p)
{
    sl_status_t status = SL_OK;
    size_t t;

    *total_p = 0;
    for (t = 0; t < source->manifest.n_tensors; t++) {
        const sl_safetensors_entry_t *entry = NULL;

        SL_TRY(status,
               sl_source_find(source, source->manifest.tensors[t], &entry),
               out);
        bytes[t] = (uint64_t)sl_safetensors_elements(entry) * sizeof(float);
        *total_p += bytes[t];
    }
out:
    return status;
}

/* Runs of tensors, in order, as even in bytes as whole tensors allow; no shard
 * is empty when there are as many tensors. */
static void cut_shards(const uint64_t *bytes, size_t n_tensors, uint64_t total,
                       sl_manifest_shard_t *shards, size_t n_shards)
{
    uint64_t done = 0;
    size_t t = 0, s;

    for (s = 0; s < n_shards; s++) {
        const uint64_t want =
            (uint64_t)((double)total * (double)(s + 1) / (double)n_shards);
        const size_t left = n_shards - s - 1;

        shards[s].first_tensor = t;
        while (t < n_tensors - left &&
               (t == shards[s].first_tensor || s + 1 == n_shards ||
                done + bytes[t] / 2 < want)) {
            done += bytes[t++];
        }
        shards[s].n_tensors = t - shards[s].first_tensor;
    }
}

static sl_status_t write_shards(sl_source_t *source, const char *path,
                                sl_manifest_shard_t *shards, size_t n_shards,
                                char (*names)[SL_SHARD_NAME_BYTES])
{
    sl_status_t status = SL_OK;
    char file[2048];
    size_t s;

    for (s = 0; s < n_shards; s++) {
        sl_shard_name((int)s, 0, names[s]);
        shards[s].file = names[s];
        (void)snprintf(file, sizeof(file), "%.1900s/%s", path, names[s]);
        SL_TRY(status,
               write_file(source, file, shards[s].first_tensor,
                          shards[s].n_tensors, 1, NULL, &shards[s].n_bytes,
                          &shards[s].hash),
               out);
    }
out:
    return status;
}

static sl_status_t write_manifest(const sl_manifest_t *manifest,
                                  const char *path)
{
    char file[2048];
    char *text = NULL;
    sl_status_t status;

    (void)snprintf(file, sizeof(file), "%.1900s/manifest.json", path);
    SL_TRY(status, sl_manifest_format(manifest, &text), out);
    status = sl_file_write(file, text, strlen(text));
    free(text);
out:
    return status;
}

/* The later ones of a directory have larger numbers. */
static sl_status_t next_sequence(const sl_store_t *store, uint64_t *sequence_p)
{
    sl_checkpoint_info_t *infos = NULL;
    size_t n = 0;
    sl_status_t status;

    SL_TRY(status, sl_store_infos(store, &infos, &n), out);
    *sequence_p = n > 0 && infos[0].status >= 0 ? infos[0].sequence + 1 : 1;
    free(infos);
out:
    return status;
}

static sl_status_t write_split(sl_source_t *source, const sl_store_t *store,
                               const char *path, size_t n_shards)
{
    sl_manifest_t m = source->manifest;
    uint64_t *bytes = calloc(m.n_tensors + 1, sizeof(*bytes));
    sl_manifest_shard_t *shards = calloc(n_shards + 1, sizeof(*shards));
    char(*names)[SL_SHARD_NAME_BYTES] = calloc(n_shards + 1, sizeof(*names));
    uint64_t total = 0;
    sl_status_t status;

    if (bytes == NULL || shards == NULL || names == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "checkpoint: no host memory for %zu shards", n_shards);
    }
    SL_TRY(status, tensor_bytes(source, bytes, &total), out);
    cut_shards(bytes, m.n_tensors, total, shards, n_shards);
    SL_TRY(status, write_shards(source, path, shards, n_shards, names), out);
    SL_TRY(status, next_sequence(store, &m.sequence), out);
    m.shards = shards;
    m.n_shards = n_shards;
    status = write_manifest(&m, path);
out:
    free(bytes);
    free(shards);
    free(names);
    return status;
}

static sl_status_t open_from(const char *from, sl_source_t *source)
{
    char dir[1024], name[SL_CHECKPOINT_NAME_BYTES];
    sl_store_t store;
    sl_status_t status;

    SL_TRY(status, sl_checkpoint_path_split(from, dir, sizeof(dir), name), out);
    if (name[0] == '\0') {
        return sl_source_open_file(from, source);
    }
    SL_TRY(status, sl_store_open(dir, &store), out);
    status = sl_source_open(&store, name, source);
    sl_store_close(&store);
    SL_TRY(status, status, out);
    status = sl_source_verify(source);
    if (status < 0) {
        sl_source_close(source);
    }
out:
    return status;
}

sl_status_t sl_checkpoint_split(const char *from, const char *dir, int n_shards,
                                char name_p[SL_CHECKPOINT_NAME_BYTES])
{
    sl_source_t source = {.dir_fd = -1};
    char name[SL_CHECKPOINT_NAME_BYTES];
    sl_store_t store;
    char *path = NULL;
    size_t n = (size_t)n_shards;
    sl_status_t status;

    if (n_shards < 1 || n_shards > MAX_SPLIT) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "checkpoint: %d shards; 1 to %d are possible", n_shards,
                MAX_SPLIT);
    }
    SL_TRY(status, open_from(from, &source), out);
    n = n > source.manifest.n_tensors ? source.manifest.n_tensors : n;
    sl_store_name(source.manifest.step, name);
    SL_TRY(status, sl_store_open_for_writing(dir, &store), out_source);
    SL_TRY(status, sl_store_begin(&store, name, &path), out_store);
    status = write_split(&source, &store, path, n);
    if (status >= 0) {
        status = sl_store_commit(&store, name);
    }
    if (status < 0) {
        sl_store_abort(&store, name);
        goto out_store;
    }
    memcpy(name_p, name, sizeof(name));
out_store:
    free(path);
    sl_store_close(&store);
out_source:
    sl_source_close(&source);
out:
    return status;
}
