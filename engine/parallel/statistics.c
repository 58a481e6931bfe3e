/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm's accumulators: count, sum and sum of squares of each channel
 * over the replicas, in their order, or those of replica 0 for all. */
#include <stdlib.h>

#include "engine/parallel/parallel.h"

static size_t bytes_of(const sl_stage_t *stage)
{
    return stage->n_statistics * sizeof(double);
}

static sl_status_t send_all(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < stage->engine->n_replicas; i++) {
        if (i != stage->replica) {
            SL_TRY(status,
                   sl_channel_send(stage->peers[i].statistics_to,
                                   stage->device->ops, 0,
                                   stage->statistics->ptr, bytes_of(stage)),
                   out);
        }
    }
out:
    return status;
}

/* What was sent may be overwritten after this. */
static sl_status_t wait_all_taken(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < stage->engine->n_replicas; i++) {
        if (i != stage->replica) {
            SL_TRY(status,
                   sl_channel_wait_taken(stage->peers[i].statistics_to, 0),
                   out);
        }
    }
out:
    return status;
}

static sl_status_t receive(sl_stage_t *stage, int i, void *to)
{
    sl_channel_t *channel = stage->peers[i].statistics_from;
    sl_status_t status;

    SL_TRY(status, sl_channel_wait(channel, 0), out);
    status = sl_channel_receive(channel, stage->device->ops, 0, to,
                                bytes_of(stage), NULL);
out:
    return status;
}

static sl_status_t receive_all(sl_stage_t *stage, sl_fold_part_t *parts)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < stage->engine->n_replicas; i++) {
        if (i != stage->replica) {
            SL_TRY(status,
                   sl_stage_alloc(stage, SL_MEM_CLASS_COMM, bytes_of(stage),
                                  &parts[i].block),
                   out);
            parts[i].data = parts[i].block->ptr;
            SL_TRY(status, receive(stage, i, parts[i].block->ptr), out);
        }
    }
out:
    return status;
}

static sl_status_t sum_all(sl_stage_t *stage)
{
    const int n = stage->engine->n_replicas;
    sl_fold_part_t *parts = calloc((size_t)n, sizeof(*parts));
    sl_fold_t fold = {.stage = stage,
                      .own = stage->statistics->ptr,
                      .n = stage->n_statistics,
                      .is_f64 = 1};
    sl_status_t status;
    int i;

    if (parts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for the statistics of %d replicas",
                stage->index, n);
    }
    SL_TRY(status, send_all(stage), out);
    SL_TRY(status, receive_all(stage, parts), out);
    SL_TRY(status, wait_all_taken(stage), out);
    for (i = 0; i < n; i++) {
        SL_TRY(status,
               sl_fold_add(&fold, i, i == stage->replica ? NULL : &parts[i]),
               out);
    }
out:
    sl_fold_cleanup(&fold);
    for (i = 0; parts != NULL && i < n; i++) {
        sl_mem_release(parts[i].block);
    }
    free(parts);
    return status;
}

static sl_status_t take_first(sl_stage_t *stage)
{
    sl_status_t status;

    if (stage->replica > 0) {
        return receive(stage, 0, stage->statistics->ptr);
    }
    SL_TRY(status, send_all(stage), out);
    status = wait_all_taken(stage);
out:
    return status;
}

sl_status_t sl_statistics_reduce(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;

    if (stage->statistics == NULL) {
        return SL_OK;
    }
    if (stage->n_micro == 0) {
        SL_TRY(status,
               sl_device_zero(stage->device, stage->statistics->ptr,
                              bytes_of(stage)),
               out);
    }
    status = stage->engine->params.batch_norm == SL_BATCH_NORM_REPLICA
                 ? take_first(stage)
                 : sum_all(stage);
out:
    return status;
}
