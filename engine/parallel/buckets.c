/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets: layout and memory. */
#include <stdlib.h>

#include "engine/parallel/parallel.h"

enum {
    /* floats: parameters in a bucket, and segments, start where kernels and
     * copies like it */
    ALIGN = 64
};

static size_t aligned(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t floats_of(const sl_stage_param_t *param)
{
    return param->desc->storage_bytes / sizeof(float);
}

size_t sl_segment_start(size_t n, int i, int n_segments)
{
    const size_t n_units = (n + ALIGN - 1) / ALIGN;
    const size_t start = n_units * (size_t)i / (size_t)n_segments * ALIGN;

    return start < n ? start : n;
}

size_t sl_param_chunk(const sl_stage_t *stage, const sl_stage_param_t *param,
                      int owner, size_t *start_p)
{
    const size_t *chunk = &stage->buckets[param->bucket].chunk_start[owner];
    const size_t begin = param->bucket_start;
    const size_t end = begin + floats_of(param);
    const size_t first = chunk[0] > begin ? chunk[0] : begin;
    const size_t last = chunk[1] < end ? chunk[1] : end;

    *start_p = first < last ? first - begin : 0;
    return first < last ? last - begin : 0;
}

sl_storage_t sl_param_moment(const sl_stage_t *stage,
                             const sl_stage_param_t *param, int moment,
                             size_t start)
{
    sl_storage_t storage = param->moments[moment];

    if (storage.block == NULL && param->bucket >= 0) {
        const sl_bucket_t *bucket = &stage->buckets[param->bucket];
        const size_t at = param->bucket_start + start;

        storage.block = bucket->moments[moment];
        storage.offset =
            (at - bucket->chunk_start[stage->replica]) * sizeof(float);
    } else {
        storage.offset += start * sizeof(float);
    }
    return storage;
}

/* ---- layout ---- */

static int is_tied_owner(const sl_model_t *model, int layer, int param)
{
    int l, p;

    for (l = layer; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            if (model->layers[l]->params[p].tied_layer == layer &&
                model->layers[l]->params[p].tied_param == param) {
                return 1;
            }
        }
    }
    return 0;
}

/* A parameter into the open bucket, or a new one. */
static void place(sl_stage_t *stage, sl_stage_param_t *param, int last_layer,
                  int *is_open)
{
    sl_bucket_t *bucket;

    stage->n_buckets += !*is_open;
    bucket = &stage->buckets[stage->n_buckets - 1];
    param->bucket = stage->n_buckets - 1;
    param->bucket_start = bucket->n;
    param->is_shared = 1;
    bucket->n += aligned(floats_of(param));
    bucket->last_layer = last_layer;
    *is_open = bucket->n * sizeof(float) < stage->engine->params.bucket_bytes;
}

/* Last layer first. What has tied users is complete only at the update, and
 * comes after all others. */
static void place_all(sl_stage_t *stage)
{
    const sl_model_t *model = stage->engine->params.model;
    int owners, l, p, is_open;

    for (owners = 0; owners < 2; owners++) {
        is_open = 0;
        for (l = stage->n_layers - 1; l >= 0; l--) {
            const sl_stage_layer_t *layer = &stage->layers[l];

            for (p = layer->layer->n_params - 1; p >= 0; p--) {
                const sl_param_t *desc = &layer->layer->params[p];

                if (desc->kind == SL_PARAM_TRAINED && desc->tied_layer < 0 &&
                    is_tied_owner(model, stage->begin + l, p) == owners) {
                    place(stage, &stage->params[layer->first_param + p],
                          owners ? -1 : l, &is_open);
                }
            }
        }
    }
}

static size_t distance(size_t a, size_t b)
{
    return a > b ? a - b : b - a;
}

/* The start of a segment that is nearest to `want`. */
static size_t nearest_cut(const sl_stage_t *stage, int b, size_t want)
{
    const int n_segments = stage->engine->n_replicas;
    size_t best = stage->buckets[b].n;
    int p, s;

    for (p = 0; p < stage->n_params; p++) {
        const sl_stage_param_t *param = &stage->params[p];

        for (s = 0; param->bucket == b && s < n_segments; s++) {
            const size_t cut =
                param->bucket_start +
                sl_segment_start(floats_of(param), s, n_segments);

            if (distance(cut, want) < distance(best, want)) {
                best = cut;
            }
        }
    }
    return best;
}

static sl_status_t cut_chunks(sl_stage_t *stage)
{
    const int n = stage->engine->n_replicas;
    sl_status_t status = SL_OK;
    int b, i;

    for (b = 0; b < stage->n_buckets; b++) {
        sl_bucket_t *bucket = &stage->buckets[b];

        bucket->chunk_start = calloc((size_t)n + 1, sizeof(size_t));
        if (bucket->chunk_start == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "stage %d: no host memory for %d chunks", stage->index, n);
        }
        for (i = 1; i < n; i++) {
            const size_t cut =
                nearest_cut(stage, b, bucket->n / (size_t)n * (size_t)i);

            bucket->chunk_start[i] = cut > bucket->chunk_start[i - 1]
                                         ? cut
                                         : bucket->chunk_start[i - 1];
        }
        bucket->chunk_start[n] = bucket->n;
    }
out:
    return status;
}

/* ---- memory ---- */

static sl_status_t alloc_floats(sl_stage_t *stage, size_t n,
                                sl_mem_block_t **block_p)
{
    sl_status_t status;

    SL_TRY(status,
           sl_stage_alloc(stage, SL_MEM_CLASS_PERSISTENT, n * sizeof(float),
                          block_p),
           out);
    status = sl_device_zero(stage->device, (*block_p)->ptr, n * sizeof(float));
out:
    return status;
}

static sl_status_t alloc_bucket(sl_stage_t *stage, sl_bucket_t *bucket)
{
    const sl_engine_params_t *params = &stage->engine->params;
    const size_t *chunk = &bucket->chunk_start[stage->replica];
    const size_t n_moments = params->zero1 ? chunk[1] - chunk[0] : bucket->n;
    sl_status_t status;
    int i;

    SL_TRY(status, alloc_floats(stage, bucket->n, &bucket->value), out);
    SL_TRY(status, alloc_floats(stage, bucket->n, &bucket->grad), out);
    for (i = 0; i < sl_optimizer_n_moments(&params->optimizer); i++) {
        SL_TRY(status, alloc_floats(stage, n_moments, &bucket->moments[i]),
               out);
    }
out:
    return status;
}

/* Also when there are none any more. */
static void lend_blocks(sl_stage_t *stage)
{
    int p, i;

    for (p = 0; p < stage->n_params; p++) {
        sl_stage_param_t *param = &stage->params[p];
        const size_t offset = param->bucket_start * sizeof(float);

        if (param->bucket < 0) {
            continue;
        }
        param->value.block = stage->buckets[param->bucket].value;
        param->grad.block = stage->buckets[param->bucket].grad;
        param->value.offset = param->grad.offset = offset;
        for (i = 0; i < 2 && !stage->engine->params.zero1; i++) {
            param->moments[i].block = stage->buckets[param->bucket].moments[i];
            param->moments[i].offset = offset;
        }
    }
}

/* All accumulators in one block: one message a step. */
static sl_status_t alloc_statistics(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    size_t n = 0;
    int p;

    for (p = 0; p < stage->n_params; p++) {
        sl_stage_param_t *param = &stage->params[p];

        if (param->desc->kind == SL_PARAM_ACCUMULATOR) {
            SL_ASSERT(param->desc->desc.dtype == SL_DTYPE_F64);
            param->is_shared = 1;
            param->value.offset = n * sizeof(double);
            n += aligned(param->desc->storage_bytes / sizeof(double));
        }
    }
    stage->n_statistics = n;
    if (n == 0) {
        return SL_OK;
    }
    SL_TRY(status, alloc_floats(stage, 2 * n, &stage->statistics), out);
    for (p = 0; p < stage->n_params; p++) {
        if (stage->params[p].desc->kind == SL_PARAM_ACCUMULATOR) {
            stage->params[p].value.block = stage->statistics;
        }
    }
out:
    return status;
}

sl_status_t sl_buckets_alloc(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int b;

    if (stage->engine->n_replicas == 1) {
        return SL_OK;
    }
    for (b = 0; b < stage->n_buckets; b++) {
        SL_TRY(status, alloc_bucket(stage, &stage->buckets[b]), out);
    }
    lend_blocks(stage);
    status = alloc_statistics(stage);
out:
    return status;
}

sl_status_t sl_buckets_init(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int p;

    for (p = 0; p < stage->n_params; p++) {
        stage->params[p].bucket = -1;
    }
    if (stage->engine->n_replicas == 1) {
        return SL_OK;
    }
    /* no more buckets than parameters */
    stage->buckets = calloc((size_t)stage->n_params + 1, sizeof(sl_bucket_t));
    if (stage->buckets == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for buckets", stage->index);
    }
    place_all(stage);
    status = cut_chunks(stage);
out:
    return status;
}

void sl_buckets_release(sl_stage_t *stage)
{
    int b, p;

    for (b = 0; b < stage->n_buckets; b++) {
        sl_bucket_t *bucket = &stage->buckets[b];

        sl_mem_release(bucket->value);
        sl_mem_release(bucket->grad);
        sl_mem_release(bucket->moments[0]);
        sl_mem_release(bucket->moments[1]);
        bucket->value = bucket->grad = NULL;
        bucket->moments[0] = bucket->moments[1] = NULL;
    }
    lend_blocks(stage);
    for (p = 0; stage->statistics != NULL && p < stage->n_params; p++) {
        if (stage->params[p].value.block == stage->statistics) {
            stage->params[p].value.block = NULL;
        }
    }
    sl_mem_release(stage->statistics);
    stage->statistics = NULL;
}

void sl_buckets_cleanup(sl_stage_t *stage)
{
    int b;

    sl_buckets_release(stage);
    for (b = 0; b < stage->n_buckets; b++) {
        free(stage->buckets[b].chunk_start);
    }
    free(stage->buckets);
    stage->buckets = NULL;
    stage->n_buckets = 0;
}
