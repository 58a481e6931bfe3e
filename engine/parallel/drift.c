/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of the replicas' state, and what is made of them. */
#include "engine/parallel/drift.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/parallel/together.h"

static size_t n_cells(const sl_engine_t *engine)
{
    return (size_t)engine->n_replicas * (size_t)engine->n_stages;
}

sl_status_t sl_drift_init(sl_engine_t *engine)
{
    void *hashes = NULL;
    sl_status_t status;

    SL_TRY(status,
           sl_device_host_alloc(&engine->params.devices->devices[0],
                                n_cells(engine) * sizeof(uint64_t), &hashes),
           out);
    engine->hashes = hashes;
out:
    return status;
}

void sl_drift_cleanup(sl_engine_t *engine)
{
    sl_device_host_release(&engine->params.devices->devices[0], engine->hashes);
    engine->hashes = NULL;
}

void sl_drift_begin(sl_engine_t *engine)
{
    int c;

    memset(engine->hashes, 0, n_cells(engine) * sizeof(*engine->hashes));
    for (c = 0; c < engine->n_cells; c++) {
        engine->stages[c].hash_span = (sl_op_span_t){0};
    }
}

int sl_drift_is_due(const sl_engine_t *engine)
{
    const uint32_t every = (uint32_t)engine->params.check_replicas;

    return every > 0 && engine->n_replicas > 1 && engine->job == SL_JOB_TRAIN &&
           (engine->dry != NULL ||
            (engine->n_steps > 0 && engine->n_steps % every == 0));
}

/* ---- a stage's hash ---- */

static sl_status_t hash_block(sl_stage_t *stage, const void *data,
                              size_t n_bytes)
{
    const size_t workspace_bytes =
        sl_device_kernels(stage->device->kind)->hash_workspace_bytes;
    sl_hash_args_t args = {.data = data,
                           .bytes = n_bytes,
                           .hash_p = &stage->engine->hashes[stage->cell]};
    sl_mem_block_t *workspace = NULL;
    sl_status_t status = SL_OK;

    if (data == NULL || n_bytes == 0) {
        return SL_OK;
    }
    if (workspace_bytes > 0) {
        SL_TRY(status,
               sl_stage_alloc(stage, SL_MEM_CLASS_WORKSPACE, workspace_bytes,
                              &workspace),
               out);
        args.workspace = workspace->ptr;
    }
    status = sl_device_hash(stage->device, &args, &stage->hash_span);
    sl_mem_release(workspace);
out:
    return status;
}

/* Padding is zero on all replicas. */
static sl_status_t hash_bucket(sl_stage_t *stage, const sl_bucket_t *bucket)
{
    const size_t n_bytes = bucket->n * sizeof(float);
    sl_status_t status;
    int i;

    SL_TRY(status, hash_block(stage, bucket->value->ptr, n_bytes), out);
    for (i = 0; i < 2 && !stage->engine->params.zero1; i++) {
        if (bucket->moments[i] != NULL) {
            SL_TRY(status, hash_block(stage, bucket->moments[i]->ptr, n_bytes),
                   out);
        }
    }
out:
    return status;
}

/* One that is in no bucket. */
static sl_status_t hash_param(sl_stage_t *stage, const sl_stage_param_t *param)
{
    const size_t n_bytes = param->desc->storage_bytes;
    sl_status_t status;
    int i;

    SL_TRY(status, hash_block(stage, sl_storage_ptr(&param->value), n_bytes),
           out);
    for (i = 0; i < 2; i++) {
        SL_TRY(status,
               hash_block(stage, sl_storage_ptr(&param->moments[i]), n_bytes),
               out);
    }
out:
    return status;
}

sl_status_t sl_drift_hash(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int b, p;

    for (b = 0; b < stage->n_buckets; b++) {
        SL_TRY(status, hash_bucket(stage, &stage->buckets[b]), out);
    }
    for (p = 0; p < stage->n_params; p++) {
        const sl_stage_param_t *param = &stage->params[p];

        if (param->bucket < 0 && param->desc->kind != SL_PARAM_ACCUMULATOR) {
            SL_TRY(status, hash_param(stage, param), out);
        }
    }
out:
    return status;
}

double sl_drift_most_us(const sl_engine_t *engine)
{
    const sl_device_set_t *devices = engine->params.devices;
    uint64_t most_ns = 0;
    int c, d;

    for (d = 0; d < devices->n_devices; d++) {
        uint64_t sum_ns = 0;

        for (c = 0; c < engine->n_cells; c++) {
            if (engine->stages[c].device == &devices->devices[d]) {
                sum_ns += engine->stages[c].hash_span.busy_ns;
            }
        }
        most_ns = sum_ns > most_ns ? sum_ns : most_ns;
    }
    return (double)most_ns * 1e-3;
}

/* ---- everybody's ---- */

size_t sl_drift_n_values(const sl_engine_t *engine)
{
    return 2 * n_cells(engine);
}

/* Halves of 32 bits: a double has room for 53. */
void sl_drift_put(const sl_engine_t *engine, double *values)
{
    const size_t n = n_cells(engine);
    size_t i;

    for (i = 0; i < n; i++) {
        values[2 * i] = (double)(uint32_t)engine->hashes[i];
        values[2 * i + 1] = (double)(uint32_t)(engine->hashes[i] >> 32);
    }
}

void sl_drift_take(sl_engine_t *engine, const double *values)
{
    const size_t n = n_cells(engine);
    size_t i;

    for (i = 0; i < n; i++) {
        engine->hashes[i] =
            (uint64_t)values[2 * i + 1] << 32 | (uint64_t)values[2 * i];
    }
}

int sl_drift_find(const sl_engine_t *engine)
{
    const int n = (int)n_cells(engine);
    int i;

    for (i = engine->n_stages; i < n; i++) {
        if (engine->hashes[i] != engine->hashes[i % engine->n_stages]) {
            return i;
        }
    }
    return -1;
}

sl_status_t sl_drift_check(const sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    const int found = sl_drift_is_due(engine) && engine->dry == NULL
                          ? sl_drift_find(engine)
                          : -1;
    const int replica = found < 0 ? 0 : found / engine->n_stages;
    const int k = found < 0 ? 0 : found % engine->n_stages;
    sl_status_t status = SL_OK;

    if (found < 0) {
        return SL_OK;
    }
    if (stage != engine->stages) {
        return SL_ERR_CANCELED;
    }
    if (engine->grid->rank > 0) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "after %u steps replica %d is not what replica 0 is (in "
                  "stage %d)",
                  engine->n_steps, replica, k);
    }
    SL_FAIL(status, SL_ERR_CORRUPT, out,
            "after %u steps replica %d is not what replica 0 is (in stage %d, "
            "layers %d to %d): a device or a link has changed bits; go on from "
            "a checkpoint",
            engine->n_steps, replica, k, engine->params.cuts[k],
            engine->params.cuts[k + 1] - 1);
out:
    return status;
}

/* ---- beside the steps ---- */

static sl_status_t hash_cells(sl_engine_t *engine)
{
    sl_status_t status = SL_OK;
    int c;

    sl_drift_begin(engine);
    for (c = 0; c < engine->n_cells; c++) {
        SL_TRY(status, sl_drift_hash(&engine->stages[c]), out);
    }
    for (c = 0; c < engine->n_cells; c++) {
        SL_TRY(status, sl_device_drain(engine->stages[c].device), out);
    }
out:
    return status;
}

/* The cells here, then everybody's. */
static sl_status_t hash_all(sl_engine_t *engine)
{
    const size_t n = sl_drift_n_values(engine);
    double *values = malloc(n * sizeof(*values));
    sl_status_t status;

    if (values == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for the hashes of %zu cells", n / 2);
    }
    SL_TRY(status, hash_cells(engine), out);
    sl_drift_put(engine, values);
    SL_TRY(status,
           sl_together_sum(engine->params.world, &engine->abort, values, n),
           out);
    sl_drift_take(engine, values);
out:
    free(values);
    return status;
}

sl_status_t sl_engine_replica_hash(sl_engine_t *engine, int replica,
                                   uint64_t *hash_p)
{
    const size_t n = (size_t)engine->n_stages;
    sl_status_t status;

    if (replica < 0 || replica >= engine->n_replicas) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "there is no replica %d of %d",
                replica, engine->n_replicas);
    }
    SL_TRY(status, sl_engine_together(engine, hash_all(engine)), out);
    *hash_p = sl_hash(engine->hashes + (size_t)replica * n,
                      n * sizeof(*engine->hashes), 0);
out:
    return status;
}
