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
    SL_TRY(status, sl_ranks_agree(&saver->run, status, dir), out);
    if (saver->rank != 0) {
        status = sl_store_open(dir, &saver->store);
    }
    status = sl_ranks_agree(&saver->run, status, dir);
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

/* Who writes what, by where the layers are now; in place of an earlier plan. */
static sl_status_t plan(sl_saver_t *saver)
{
    sl_shard_plan_t *shards = NULL;
    size_t n_shards = 0;
    sl_snapshot_t snapshot;
    sl_status_t status;

    SL_TRY(status,
           sl_shard_plans(&saver->run, &saver->description, &shards, &n_shards),
           out);
    SL_TRY(status,
           sl_snapshot_init(&snapshot, saver->rank, &saver->description, shards,
                            n_shards),
           err_free);
    if (snapshot.n_bytes == saver->snapshot.n_bytes) {
        snapshot.data = saver->snapshot.data;
        saver->snapshot.data = NULL;
    }
    sl_snapshot_cleanup(&saver->snapshot);
    sl_shard_plans_free(saver->shards, saver->n_shards);
    saver->snapshot = snapshot;
    saver->shards = shards;
    saver->n_shards = n_shards;
    return SL_OK;

err_free:
    sl_shard_plans_free(shards, n_shards);
out:
    return status;
}

static sl_status_t open_all(sl_saver_t *saver)
{
    sl_status_t status;

    SL_TRY(status, sl_run_describe(&saver->run, &saver->description), out);
    SL_TRY(status, plan(saver), out);
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
    SL_TRY(status, sl_ranks_agree(run, open_all(saver), "checkpoint"),
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
void sl_saver_await_writer(sl_saver_t *saver)
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
        sl_saver_await_writer(saver);
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

/* ---- a new one ---- */

/* The directory on rank 0, the memory on all. Layers may have moved between
 * ranks since the last one. */
static sl_status_t begin(sl_saver_t *saver)
{
    sl_status_t status;

    if (saver->n_ranks > 1) {
        SL_TRY(status, plan(saver), out);
    }
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

    SL_TRY(status, sl_ranks_agree(&saver->run, begin(saver), saver->name), out);
    status =
        sl_ranks_agree(&saver->run,
                       sl_snapshot_take(&saver->snapshot, saver->run.engine,
                                        &saver->description),
                       saver->name);
out:
    return status;
}

static sl_status_t wait_for_earlier(sl_saver_t *saver)
{
    if (sl_saver_phase(saver) == SL_SAVE_IDLE) {
        return SL_OK;
    }
    if (saver->rank == 0 && !saver->has_waited &&
        sl_saver_phase(saver) != SL_SAVE_DONE) {
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
    if (!sl_engine_loss_scale(engine, &saver->scale)) {
        saver->scale.factor = 0.0;
    }
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
        if (sl_ranks_is_over(status)) {
            return status;
        }
        return sl_saver_tell(saver, status, detail);
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
