/* SPDX-License-Identifier: Apache-2.0 */
/* The saver's thread: shards from the snapshot, then the manifest. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "engine/checkpoint/saver_internal.h"
#include "engine/engine_internal.h"

static sl_status_t join_path(const char *dir, const char *file, char **path_p)
{
    const size_t bytes = strlen(dir) + strlen(file) + 2;
    char *path = malloc(bytes);
    sl_status_t status;

    if (path == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory", dir);
    }
    (void)snprintf(path, bytes, "%s/%s", dir, file);
    *path_p = path;
    return SL_OK;
out:
    return status;
}

static sl_status_t write_shard(sl_saver_t *saver, sl_shard_plan_t *shard)
{
    const sl_run_description_t *d = &saver->description;
    sl_safetensors_entry_t *entries = calloc(shard->n + 1, sizeof(*entries));
    sl_safetensors_writer_t *writer = NULL;
    char *path = NULL;
    sl_status_t status;
    size_t i;

    if (entries == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                saver->path);
    }
    for (i = 0; i < shard->n; i++) {
        entries[i] = d->tensors[shard->tensors[i]].entry;
    }
    SL_TRY(status, join_path(saver->path, shard->file, &path), out);
    SL_TRY(status, sl_safetensors_begin(path, entries, shard->n, &writer), out);
    for (i = 0; i < shard->n; i++) {
        const uint64_t at = saver->snapshot.offsets[shard->tensors[i]];

        status = sl_safetensors_append(
            writer, (const float *)(const void *)(saver->snapshot.data + at));
        if (status < 0) {
            sl_safetensors_abort(writer);
            goto out;
        }
    }
    status = sl_safetensors_finish(writer, &shard->n_bytes, &shard->hash);
out:
    free(entries);
    free(path);
    return status;
}

static sl_status_t write_shards(sl_saver_t *saver)
{
    sl_status_t status = SL_OK;
    size_t s;

    for (s = 0; s < saver->n_shards; s++) {
        if (saver->shards[s].rank == saver->rank) {
            SL_TRY(status, write_shard(saver, &saver->shards[s]), out);
        }
    }
out:
    return status;
}

/* Other ranks say that their shards are on disk; a directory that is not
 * shared by all hosts shows here. */
static sl_status_t check_shards(const sl_saver_t *saver)
{
    sl_status_t status = SL_OK;
    size_t s;

    for (s = 0; s < saver->n_shards; s++) {
        const sl_shard_plan_t *shard = &saver->shards[s];
        struct stat info;
        char *path = NULL;
        int is_there;

        SL_TRY(status, join_path(saver->path, shard->file, &path), out);
        is_there =
            stat(path, &info) == 0 && (uint64_t)info.st_size == shard->n_bytes;
        free(path);
        if (!is_there) {
            SL_FAIL(status, SL_ERR_IO, out,
                    "%s has no %s of %" PRIu64 " bytes, which rank %d (%s) has "
                    "written: the directory must be shared by all hosts",
                    saver->path, shard->file, shard->n_bytes, shard->rank,
                    sl_world_host(saver->run.world, shard->rank));
        }
    }
out:
    return status;
}

static void make_date(char date[SL_CHECKPOINT_DATE_BYTES])
{
    const time_t now = time(NULL);
    struct tm utc;

    memset(&utc, 0, sizeof(utc));
    (void)gmtime_r(&now, &utc);
    (void)strftime(date, SL_CHECKPOINT_DATE_BYTES, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

static void fill_data_position(const sl_saver_t *saver, sl_manifest_t *m)
{
    if (saver->run.n_samples > 0) {
        sl_data_position(saver->run.n_samples,
                         saver->run.engine->params.batch_rows, saver->step,
                         &m->epoch, &m->sample);
    }
}

/* The lists of a manifest, from the plan of shards; both are owned. */
static sl_status_t fill_shards(const sl_saver_t *saver, sl_manifest_t *m)
{
    const sl_run_description_t *d = &saver->description;
    sl_status_t status;
    size_t s, t;

    m->shards = calloc(saver->n_shards + 1, sizeof(*m->shards));
    m->tensors = calloc(d->n_tensors + 1, sizeof(*m->tensors));
    if (m->shards == NULL || m->tensors == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for the manifest", saver->path);
    }
    for (s = 0; s < saver->n_shards; s++) {
        const sl_shard_plan_t *from = &saver->shards[s];

        m->shards[s].file = from->file;
        m->shards[s].n_bytes = from->n_bytes;
        m->shards[s].hash = from->hash;
        m->shards[s].first_tensor = m->n_tensors;
        m->shards[s].n_tensors = from->n;
        for (t = 0; t < from->n; t++) {
            m->tensors[m->n_tensors++] = d->tensors[from->tensors[t]].name;
        }
    }
    m->n_shards = saver->n_shards;
    return SL_OK;
out:
    return status;
}

static sl_status_t write_manifest(const sl_saver_t *saver)
{
    const sl_run_description_t *d = &saver->description;
    char date[SL_CHECKPOINT_DATE_BYTES];
    char *text = NULL, *path = NULL;
    sl_manifest_t m = {.step = saver->step,
                       .sequence = saver->sequence,
                       .date = date,
                       .program = saver->program,
                       .model = saver->run.engine->params.model->name,
                       .n_layers = d->n_layers,
                       .layers = (const char *const *)d->layers,
                       .n_settings = d->n_settings,
                       .settings = d->settings,
                       .learning_rate = saver->learning_rate,
                       .scale = saver->scale,
                       .loss = saver->loss,
                       .validation_loss = saver->validation_loss};
    sl_status_t status;

    make_date(date);
    m.fingerprint = sl_manifest_fingerprint(m.layers, m.n_layers);
    fill_data_position(saver, &m);
    SL_TRY(status, fill_shards(saver, &m), out);
    SL_TRY(status, sl_manifest_format(&m, &text), out);
    SL_TRY(status, join_path(saver->path, "manifest.json", &path), out);
    status = sl_file_write(path, text, strlen(text));
out:
    free(m.shards);
    free(m.tensors);
    free(text);
    free(path);
    return status;
}

static sl_status_t commit(sl_saver_t *saver)
{
    sl_status_t status;

    if (saver->n_ranks > 1) {
        SL_TRY(status, check_shards(saver), out);
    }
    SL_TRY(status, write_manifest(saver), out);
    SL_TRY(status, sl_store_commit(&saver->store, saver->name), out);
    if (saver->params.on_written != NULL) {
        saver->params.on_written(saver->name);
    }
    sl_store_retain(&saver->store, saver->name, saver->params.keep,
                    saver->params.keeps_best);
out:
    return status;
}

/* One phase of the writer's. @return the phase that follows */
static sl_save_phase_t run_phase(sl_saver_t *saver, sl_save_phase_t phase,
                                 sl_status_t *status_p)
{
    sl_save_phase_t next = SL_SAVE_DONE;

    if (phase == SL_SAVE_WRITING) {
        *status_p = write_shards(saver);
        next = SL_SAVE_WRITTEN;
    }
    if (phase == SL_SAVE_COMMITTING ||
        (*status_p >= 0 && saver->n_ranks == 1)) {
        *status_p = commit(saver);
        next = SL_SAVE_DONE;
    }
    if (*status_p < 0 && saver->rank == 0 &&
        (saver->n_ranks == 1 || next == SL_SAVE_DONE)) {
        /* sl_last_error() is the failure's, and stays */
        sl_store_abort(&saver->store, saver->name);
        next = SL_SAVE_DONE;
    }
    return next;
}

/* Whether the writer has something to do; the lock is held. */
static int has_work(const sl_saver_t *saver)
{
    return saver->phase == SL_SAVE_WRITING ||
           (saver->phase == SL_SAVE_COMMITTING && saver->rank == 0);
}

void *sl_saver_main(void *arg)
{
    sl_saver_t *saver = arg;

    (void)pthread_mutex_lock(&saver->lock);
    for (;;) {
        sl_status_t status = SL_OK;
        sl_save_phase_t phase, next;
        uint64_t start_ns;

        while (!has_work(saver) && saver->phase != SL_SAVE_END) {
            (void)pthread_cond_wait(&saver->changed, &saver->lock);
        }
        if (saver->phase == SL_SAVE_END) {
            break;
        }
        phase = saver->phase;
        (void)pthread_mutex_unlock(&saver->lock);
        start_ns = sl_clock_ns();
        next = run_phase(saver, phase, &status);
        (void)pthread_mutex_lock(&saver->lock);
        saver->stats.write_ns += sl_clock_ns() - start_ns;
        saver->status = status;
        if (status < 0) {
            (void)snprintf(saver->detail, sizeof(saver->detail), "%s",
                           sl_store_reason());
        }
        saver->phase = next;
        (void)pthread_cond_broadcast(&saver->changed);
    }
    (void)pthread_mutex_unlock(&saver->lock);
    return NULL;
}
