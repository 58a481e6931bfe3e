/* SPDX-License-Identifier: Apache-2.0 */
/* How a save goes on and ends, as the training loop is told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/checkpoint/saver_internal.h"

static void set_phase(sl_saver_t *saver, sl_save_phase_t phase)
{
    (void)pthread_mutex_lock(&saver->lock);
    saver->phase = phase;
    (void)pthread_cond_broadcast(&saver->changed);
    (void)pthread_mutex_unlock(&saver->lock);
}

sl_save_phase_t sl_saver_phase(sl_saver_t *saver)
{
    sl_save_phase_t phase;

    (void)pthread_mutex_lock(&saver->lock);
    phase = saver->phase;
    (void)pthread_mutex_unlock(&saver->lock);
    return phase;
}

/* A save has ended. A failure is the caller's only when it asked for that. */
sl_status_t sl_saver_tell(sl_saver_t *saver, sl_status_t status,
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
    if (detail[0] != '\0') {
        sl_warn("checkpoint %s was not written, training goes on: %s",
                saver->name, detail);
    }
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
    const sl_save_phase_t phase = sl_saver_phase(saver);
    char detail[SL_CHECKPOINT_REASON_BYTES];

    counts[0] = phase == SL_SAVE_WRITTEN || phase == SL_SAVE_DONE ||
                (phase == SL_SAVE_COMMITTING && saver->rank != 0);
    counts[1] = counts[0] != 0.0 && result_of(saver, detail) < 0;
    return sl_ranks_result(&saver->run,
                           sl_world_sum(saver->run.world, counts, 2));
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
           sl_ranks_result(&saver->run,
                           sl_world_gather(saver->run.world, mine,
                                           2 * n * sizeof(*mine), all)),
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
    if (own >= 0 && (saver->rank == 0 || saver->params.is_required)) {
        (void)snprintf(detail, sizeof(detail),
                       "another rank could not write its part");
    }
    return sl_saver_tell(saver, own < 0 ? own : SL_ERR_IO, detail);
}

/* Many ranks: one look, the same on all. */
static sl_status_t advance_ranks(sl_saver_t *saver)
{
    double counts[2];
    sl_status_t status;

    if (sl_saver_phase(saver) == SL_SAVE_IDLE) {
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
        return sl_saver_tell(saver, SL_OK, "");
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
    if (sl_saver_phase(saver) != SL_SAVE_DONE) {
        return SL_OK;
    }
    status = result_of(saver, detail);
    return sl_saver_tell(saver, status, detail);
}

sl_status_t sl_saver_wait(sl_saver_t *saver)
{
    const uint64_t start_ns = sl_clock_ns();
    sl_status_t status = SL_OK;

    while (status >= 0 && sl_saver_phase(saver) != SL_SAVE_IDLE) {
        (void)pthread_mutex_lock(&saver->lock);
        sl_saver_await_writer(saver);
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
