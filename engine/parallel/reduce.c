/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients between replicas. All replicas of a stage handle its buckets in
 * the same order, each a fixed number behind the one that was sent last: so
 * transfers and sums go on beside the backward pass, and the order of ops and
 * the use of memory are the same in every run. */
#include "engine/parallel/parallel.h"

enum {
    LAG = 1 /* buckets on their way while the next is computed */
};

static size_t chunk_floats(const sl_bucket_t *bucket, int i)
{
    return bucket->chunk_start[i + 1] - bucket->chunk_start[i];
}

/* Chunk i of a block of the bucket. */
static float *chunk_of(const sl_bucket_t *bucket, const sl_mem_block_t *block,
                       int i)
{
    return (float *)block->ptr + bucket->chunk_start[i];
}

void sl_reduce_begin(sl_stage_t *stage)
{
    stage->n_sent = 0;
    stage->n_reduced = 0;
    stage->n_gathered = 0;
}

/* To replica i its chunk. */
static sl_status_t send_parts(sl_stage_t *stage, int b)
{
    const sl_bucket_t *bucket = &stage->buckets[b];
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < stage->engine->n_replicas; i++) {
        const size_t n = chunk_floats(bucket, i);

        if (i != stage->replica && n > 0) {
            SL_TRY(status,
                   sl_channel_send(stage->peers[i].parts_to, stage->device->ops,
                                   b, chunk_of(bucket, bucket->grad, i),
                                   n * sizeof(float)),
                   out);
        }
    }
out:
    return status;
}

/* The own chunk of `block` to all. */
static sl_status_t send_results(sl_stage_t *stage, int b,
                                const sl_mem_block_t *block)
{
    const sl_bucket_t *bucket = &stage->buckets[b];
    const size_t n = chunk_floats(bucket, stage->replica);
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; n > 0 && i < stage->engine->n_replicas; i++) {
        if (i != stage->replica) {
            SL_TRY(status,
                   sl_channel_send(stage->peers[i].results_to,
                                   stage->device->ops, b,
                                   chunk_of(bucket, block, stage->replica),
                                   n * sizeof(float)),
                   out);
        }
    }
out:
    return status;
}

/* All others' chunks into `block`. */
static sl_status_t receive_results(sl_stage_t *stage, int b,
                                   const sl_mem_block_t *block)
{
    const sl_bucket_t *bucket = &stage->buckets[b];
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < stage->engine->n_replicas; i++) {
        const sl_peer_t *peer = &stage->peers[i];
        const size_t n = chunk_floats(bucket, i);

        if (i == stage->replica || n == 0) {
            continue;
        }
        /* what was sent from there may be on its way still */
        SL_TRY(status, sl_channel_wait_taken(peer->parts_to, b), out);
        SL_TRY(status, sl_channel_wait(peer->results_from, b), out);
        SL_TRY(status,
               sl_channel_receive(peer->results_from, stage->device->ops, b,
                                  chunk_of(bucket, block, i), n * sizeof(float),
                                  NULL),
               out);
    }
out:
    return status;
}

/* Where it lies, or else into a block. */
static sl_status_t receive_part(sl_stage_t *stage, int b, int i, size_t bytes,
                                sl_fold_part_t *part_p)
{
    sl_channel_t *channel = stage->peers[i].parts_from;
    sl_fold_part_t part = {.m = b};
    sl_status_t status;

    SL_TRY(status, sl_channel_wait(channel, b), out);
    if (sl_channel_can_lend(channel)) {
        SL_TRY(status, sl_channel_borrow(channel, b, bytes, &part.data), out);
        part.lender = channel;
    } else {
        SL_TRY(status,
               sl_stage_alloc(stage, SL_MEM_CLASS_COMM, bytes, &part.block),
               out);
        part.data = part.block->ptr;
        SL_TRY(status,
               sl_channel_receive(channel, stage->device->ops, b,
                                  part.block->ptr, bytes, NULL),
               out);
    }
    *part_p = part;
    return SL_OK;
out:
    sl_mem_release(part.block);
    return status;
}

/* All parts of the own chunk, in replica order. */
static sl_status_t reduce_own(sl_stage_t *stage, int b)
{
    const sl_bucket_t *bucket = &stage->buckets[b];
    const size_t n = chunk_floats(bucket, stage->replica);
    sl_fold_t fold = {.stage = stage,
                      .own = chunk_of(bucket, bucket->grad, stage->replica),
                      .n = n};
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; n > 0 && i < stage->engine->n_replicas; i++) {
        sl_fold_part_t part;

        if (i != stage->replica) {
            SL_TRY(status, receive_part(stage, b, i, n * sizeof(float), &part),
                   out);
        }
        SL_TRY(status,
               sl_fold_add(&fold, i, i == stage->replica ? NULL : &part), out);
    }
out:
    sl_fold_cleanup(&fold);
    return status;
}

/* Buckets that were sent `lag` or more ago. */
static sl_status_t advance(sl_stage_t *stage, int lag)
{
    const int is_zero1 = stage->engine->params.zero1;
    sl_status_t status = SL_OK;

    while (stage->n_reduced + lag < stage->n_sent) {
        const int b = stage->n_reduced++;

        SL_TRY(status, reduce_own(stage, b), out);
        if (!is_zero1) {
            SL_TRY(status, send_results(stage, b, stage->buckets[b].grad), out);
        }
    }
    while (!is_zero1 && stage->n_gathered + lag < stage->n_reduced) {
        const int b = stage->n_gathered++;

        SL_TRY(status, receive_results(stage, b, stage->buckets[b].grad), out);
    }
out:
    return status;
}

sl_status_t sl_reduce_layer(sl_stage_t *stage, int l)
{
    sl_status_t status = SL_OK;

    while (stage->n_sent < stage->n_buckets &&
           stage->buckets[stage->n_sent].last_layer >= l) {
        SL_TRY(status, send_parts(stage, stage->n_sent), out);
        stage->n_sent++;
    }
    status = advance(stage, LAG);
out:
    return status;
}

/* A replica without micro-batches has no gradient. */
static sl_status_t clear_gradients(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int b;

    for (b = 0; b < stage->n_buckets; b++) {
        SL_TRY(status,
               sl_device_zero(stage->device, stage->buckets[b].grad->ptr,
                              stage->buckets[b].n * sizeof(float)),
               out);
    }
out:
    return status;
}

/* Wait until the other replicas have taken all that was sent to them. */
static sl_status_t settle(sl_stage_t *stage, int is_results)
{
    sl_status_t status = SL_OK;
    int b, i;

    for (b = 0; b < stage->n_buckets; b++) {
        const sl_bucket_t *bucket = &stage->buckets[b];

        for (i = 0; i < stage->engine->n_replicas; i++) {
            const sl_peer_t *peer = &stage->peers[i];

            if (i != stage->replica &&
                chunk_floats(bucket, is_results ? stage->replica : i) > 0) {
                SL_TRY(status,
                       sl_channel_wait_taken(
                           is_results ? peer->results_to : peer->parts_to, b),
                       out);
            }
        }
    }
out:
    return status;
}

sl_status_t sl_reduce_finish(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;

    if (stage->engine->n_replicas == 1) {
        return SL_OK;
    }
    if (stage->n_micro == 0) {
        SL_TRY(status, clear_gradients(stage), out);
    }
    while (stage->n_sent < stage->n_buckets) {
        SL_TRY(status, send_parts(stage, stage->n_sent), out);
        stage->n_sent++;
        SL_TRY(status, advance(stage, LAG), out);
    }
    SL_TRY(status, advance(stage, 0), out);
    SL_TRY(status, settle(stage, 0), out);
    if (!stage->engine->params.zero1) {
        status = settle(stage, 1);
    }
out:
    return status;
}

/* Theirs of the bucket before: so nobody has more under way than there are
 * slots for. */
sl_status_t sl_values_send(sl_stage_t *stage, int bucket)
{
    const int b = bucket - LAG;
    sl_status_t status;

    SL_TRY(status, send_results(stage, bucket, stage->buckets[bucket].value),
           out);
    status = b < 0 ? SL_OK : receive_results(stage, b, stage->buckets[b].value);
out:
    return status;
}

sl_status_t sl_values_receive(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int b = stage->n_buckets > LAG ? stage->n_buckets - LAG : 0;

    for (; b < stage->n_buckets; b++) {
        SL_TRY(status, receive_results(stage, b, stage->buckets[b].value), out);
    }
    status = settle(stage, 1);
out:
    return status;
}
