/* SPDX-License-Identifier: Apache-2.0 */
/* Saving, as the training loop sees it: copy, hand over, tell the result. */
#include "engine/checkpoint/saver_internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

void sl_checkpoint_params_default(sl_checkpoint_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->keep = 3;
}

/* ---- life ---- */

/* The number after that of the latest one there is. */
static sl_status_t find_sequence(sl_saver_t *saver)
{
    sl_checkpoint_info_t *infos = NULL;
    size_t n = 0;
    sl_status_t status;

    SL_TRY(status, sl_store_infos(&saver->store, &infos, &n), out);
    saver->sequence = n > 0 && infos[0].status >= 0 ? infos[0].sequence + 1 : 1;
    free(infos);
out:
    return status;
}

/* Rank 0 makes and locks the directory before the others look for it. */
static sl_status_t open_store(sl_saver_t *saver)
{
    const char *dir = saver->params.dir;
    sl_status_t status = SL_OK;

    if (saver->rank == 0) {
        status = sl_store_open_for_writing(dir, &saver->store);
        if (status >= 0) {
            status = find_sequence(saver);
        }
    }
    SL_TRY(status, sl_ranks_agree(saver->run.world, status, dir), out);
    if (saver->rank != 0) {
        status = sl_store_open(dir, &saver->store);
    }
    status = sl_ranks_agree(saver->run.world, status, dir);
out:
    return status;
}

static sl_status_t start_thread(sl_saver_t *saver)
{
    sigset_t all, before;
    sl_status_t status;
    int code;

    /* signals are for the program's own threads */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&saver->thread, NULL, sl_saver_main, saver);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "checkpoint: no thread: %s",
                strerror(code));
    }
    saver->has_thread = 1;
    return SL_OK;
out:
    return status;
}

static sl_status_t open_all(sl_saver_t *saver)
{
    sl_status_t status;

    SL_TRY(status, sl_run_describe(&saver->run, &saver->description), out);
    SL_TRY(status,
           sl_shard_plans(&saver->run, &saver->description, &saver->shards,
                          &saver->n_shards),
           out);
    SL_TRY(status,
           sl_snapshot_init(&saver->snapshot, saver->rank, &saver->description,
                            saver->shards, saver->n_shards),
           out);
    status = start_thread(saver);
out:
    return status;
}

sl_status_t sl_saver_create(const sl_checkpoint_params_t *params,
                            const sl_checkpoint_run_t *run,
                            sl_saver_t **saver_p)
{
    sl_saver_t *saver = calloc(1, sizeof(*saver));
    sl_status_t status;

    if (saver == NULL || (saver->program = strdup(params->program)) == NULL) {
        free(saver);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "checkpoint: no host memory");
    }
    saver->params = *params;
    saver->run = *run;
    saver->rank = sl_world_rank(run->world);
    saver->n_ranks = sl_world_size(run->world);
    (void)pthread_mutex_init(&saver->lock, NULL);
    (void)pthread_cond_init(&saver->changed, NULL);
    SL_TRY(status, sl_ranks_agree(run->world, open_all(saver), "checkpoint"),
           err_destroy);
    SL_TRY(status, open_store(saver), err_destroy);
    saver->params.dir = saver->store.dir;
    *saver_p = saver;
    return SL_OK;

err_destroy:
    sl_saver_destroy(saver);
out:
    return status;
}

/* Wait until the writer has nothing to do; the lock is held. */
static void await_writer(sl_saver_t *saver)
{
    while (saver->phase == SL_SAVE_WRITING ||
           (saver->phase == SL_SAVE_COMMITTING && saver->rank == 0)) {
        (void)pthread_cond_wait(&saver->changed, &saver->lock);
    }
}

void sl_saver_destroy(sl_saver_t *saver)
{
    if (saver == NULL) {
        return;
    }
    if (saver->has_thread) {
        (void)pthread_mutex_lock(&saver->lock);
        await_writer(saver);
        if (saver->rank == 0 && saver->phase == SL_SAVE_WRITTEN) {
            sl_store_abort(&saver->store, saver->name);
        }
        if (saver->phase != SL_SAVE_IDLE && saver->status < 0) {
            sl_warn("checkpoint %s was not written: %s", saver->name,
                    saver->detail);
        }
        saver->phase = SL_SAVE_END;
        (void)pthread_cond_broadcast(&saver->changed);
        (void)pthread_mutex_unlock(&saver->lock);
        (void)pthread_join(saver->thread, NULL);
    }
    sl_snapshot_cleanup(&saver->snapshot);
    sl_shard_plans_free(saver->shards, saver->n_shards);
    sl_run_description_cleanup(&saver->description);
    sl_store_close(&saver->store);
    (void)pthread_cond_destroy(&saver->changed);
    (void)pthread_mutex_destroy(&saver->lock);
    free(saver->path);
    free(saver->program);
    free(saver);
}

/* ---- how a save went ---- */

static void set_phase(sl_saver_t *saver, sl_save_phase_t phase)
{
    (void)pthread_mutex_lock(&saver->lock);
    saver->phase = phase;
    (void)pthread_cond_broadcast(&saver->changed);
    (void)pthread_mutex_unlock(&saver->lock);
}

static sl_save_phase_t phase_of(sl_saver_t *saver)
{
    sl_save_phase_t phase;

    (void)pthread_mutex_lock(&saver->lock);
    phase = saver->phase;
    (void)pthread_mutex_unlock(&saver->lock);
    return phase;
}

/* A save has ended. A failure is the caller's only when it asked for that. */
static sl_status_t tell(sl_saver_t *saver, sl_status_t status,
                        const char *detail)
{
    (void)pthread_mutex_lock(&saver->lock);
    saver->phase = SL_SAVE_IDLE;
    if (status >= 0) {
        saver->stats.n_written++;
        (void)snprintf(saver->stats.last, sizeof(saver->stats.last), "%s",
                       saver->name);
    } else {
        saver->stats.n_failed++;
    }
    (void)pthread_mutex_unlock(&saver->lock);
    free(saver->path);
    saver->path = NULL;
    saver->sequence += status >= 0;
    if (status >= 0) {
        sl_info("checkpoint %s/%s is written", saver->store.dir, saver->name);
        return SL_OK;
    }
    if (saver->params.is_required) {
        sl_last_error_set(detail);
        return status;
    }
    sl_warn("checkpoint %s was not written, training goes on: %s", saver->name,
            detail);
    return SL_OK;
}

/* What the writer of this rank has come to; the detail is copied. */
static sl_status_t result_of(sl_saver_t *saver,
                             char detail[SL_CHECKPOINT_REASON_BYTES])
{
    sl_status_t status;

    (void)pthread_mutex_lock(&saver->lock);
    status = saver->status;
    (void)snprintf(detail, SL_CHECKPOINT_REASON_BYTES, "%s",
                   status < 0 ? saver->detail : "");
    (void)pthread_mutex_unlock(&saver->lock);
    return status;
}

/* How many ranks' writers are done with their phase, and failed. A rank that
 * only waits for rank 0's commit counts as done. */
static sl_status_t count_ready(sl_saver_t *saver, double counts[2])
{
    const sl_save_phase_t phase = phase_of(saver);
    char detail[SL_CHECKPOINT_REASON_BYTES];

    counts[0] = phase == SL_SAVE_WRITTEN || phase == SL_SAVE_DONE ||
                (phase == SL_SAVE_COMMITTING && saver->rank != 0);
    counts[1] = counts[0] != 0.0 && result_of(saver, detail) < 0;
    return sl_world_sum(saver->run.world, counts, 2);
}

/* Sizes and checksums of all shards, to all ranks. */
static sl_status_t gather_shards(sl_saver_t *saver)
{
    const size_t n = saver->n_shards;
    uint64_t *mine = calloc(2 * n + 1, sizeof(*mine));
    uint64_t *all = calloc(2 * n * (size_t)saver->n_ranks + 1, sizeof(*all));
    sl_status_t status;
    size_t s;

    if (mine == NULL || all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "checkpoint: no host memory for %zu shards", n);
    }
    for (s = 0; s < n; s++) {
        mine[2 * s] = saver->shards[s].n_bytes;
        mine[2 * s + 1] = saver->shards[s].hash;
    }
    SL_TRY(status,
           sl_world_gather(saver->run.world, mine, 2 * n * sizeof(*mine), all),
           out);
    for (s = 0; s < n; s++) {
        const size_t at = 2 * (n * (size_t)saver->shards[s].rank + s);

        saver->shards[s].n_bytes = all[at];
        saver->shards[s].hash = all[at + 1];
    }
out:
    free(mine);
    free(all);
    return status;
}

/* All ranks failed alike, whoever it was. */
static sl_status_t tell_failure(sl_saver_t *saver)
{
    char detail[SL_CHECKPOINT_REASON_BYTES];
    const sl_status_t own = result_of(saver, detail);

    if (saver->rank == 0) {
        sl_store_abort(&saver->store, saver->name);
    }
    if (own >= 0) {
        (void)snprintf(detail, sizeof(detail),
                       "another rank could not write its part");
    }
    return tell(saver, own < 0 ? own : SL_ERR_IO, detail);
}

/* Many ranks: one look, the same on all. */
static sl_status_t advance_ranks(sl_saver_t *saver)
{
    double counts[2];
    sl_status_t status;

    if (phase_of(saver) == SL_SAVE_IDLE) {
        return SL_OK;
    }
    SL_TRY(status, count_ready(saver, counts), out);
    if (counts[0] < saver->n_ranks) {
        return SL_OK;
    }
    if (counts[1] > 0.0) {
        return tell_failure(saver);
    }
    if (saver->is_committing) {
        saver->is_committing = 0;
        return tell(saver, SL_OK, "");
    }
    SL_TRY(status, gather_shards(saver), out);
    saver->is_committing = 1;
    set_phase(saver, SL_SAVE_COMMITTING);
out:
    return status;
}

sl_status_t sl_saver_boundary(sl_saver_t *saver)
{
    char detail[SL_CHECKPOINT_REASON_BYTES];
    sl_status_t status;

    if (saver->n_ranks > 1) {
        return advance_ranks(saver);
    }
    if (phase_of(saver) != SL_SAVE_DONE) {
        return SL_OK;
    }
    status = result_of(saver, detail);
    return tell(saver, status, detail);
}

sl_status_t sl_saver_wait(sl_saver_t *saver)
{
    const uint64_t start_ns = sl_clock_ns();
    sl_status_t status = SL_OK;

    while (status >= 0 && phase_of(saver) != SL_SAVE_IDLE) {
        (void)pthread_mutex_lock(&saver->lock);
        await_writer(saver);
        (void)pthread_mutex_unlock(&saver->lock);
        status = sl_saver_boundary(saver);
    }
    (void)pthread_mutex_lock(&saver->lock);
    saver->stats.wait_ns += sl_clock_ns() - start_ns;
    (void)pthread_mutex_unlock(&saver->lock);
    return status;
}

void sl_saver_stats(sl_saver_t *saver, sl_saver_stats_t *stats_p)
{
    (void)pthread_mutex_lock(&saver->lock);
    *stats_p = saver->stats;
    (void)pthread_mutex_unlock(&saver->lock);
}

/* ---- a new one ---- */

/* The directory on rank 0, the memory on all. */
static sl_status_t begin(sl_saver_t *saver)
{
    sl_status_t status;

    SL_TRY(status, sl_snapshot_reserve(&saver->snapshot), out);
    status =
        saver->rank == 0
            ? sl_store_begin(&saver->store, saver->name, &saver->path)
            : sl_store_writing_path(&saver->store, saver->name, &saver->path);
out:
    return status;
}

static sl_status_t copy_state(sl_saver_t *saver)
{
    sl_status_t status;

    SL_TRY(status, sl_ranks_agree(saver->run.world, begin(saver), saver->name),
           out);
    status =
        sl_ranks_agree(saver->run.world,
                       sl_snapshot_take(&saver->snapshot, saver->run.engine,
                                        &saver->description),
                       saver->name);
out:
    return status;
}

static sl_status_t wait_for_earlier(sl_saver_t *saver)
{
    if (phase_of(saver) == SL_SAVE_IDLE) {
        return SL_OK;
    }
    if (!saver->has_waited && phase_of(saver) != SL_SAVE_DONE) {
        saver->has_waited = 1;
        sl_warn("training waits: checkpoint %s is still being written when "
                "the next one is due; save less often or to a faster disk",
                saver->name);
    }
    return sl_saver_wait(saver);
}

static void describe_save(sl_saver_t *saver, double loss,
                          double validation_loss)
{
    const sl_engine_t *engine = saver->run.engine;

    saver->step = sl_engine_n_steps(engine);
    sl_store_name(saver->step, saver->name);
    saver->loss = loss;
    saver->validation_loss = validation_loss;
    saver->learning_rate =
        sl_optimizer_lr(&engine->params.optimizer, saver->step);
}

sl_status_t sl_saver_save(sl_saver_t *saver, double loss,
                          double validation_loss)
{
    char detail[SL_CHECKPOINT_REASON_BYTES];
    uint64_t start_ns;
    sl_status_t status;

    SL_TRY(status, wait_for_earlier(saver), out);
    start_ns = sl_clock_ns();
    describe_save(saver, loss, validation_loss);
    status = copy_state(saver);
    if (status < 0) {
        (void)snprintf(detail, sizeof(detail), "%s", sl_store_reason());
        if (saver->rank == 0) {
            sl_store_abort(&saver->store, saver->name);
        }
        return tell(saver, status, detail);
    }
    (void)pthread_mutex_lock(&saver->lock);
    saver->stats.snapshot_ns += sl_clock_ns() - start_ns;
    saver->stats.snapshot_bytes = saver->snapshot.n_bytes;
    saver->status = SL_OK;
    saver->phase = SL_SAVE_WRITING;
    (void)pthread_cond_broadcast(&saver->changed);
    (void)pthread_mutex_unlock(&saver->lock);
out:
    return status;
}
