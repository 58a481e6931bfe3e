/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes of the state: of all of it, and of a replica's values. */
#include <stdlib.h>

#include "base/hash.h"
#include "engine/parallel/together.h"
#include "engine/state.h"

/* Value, then moments, of a parameter into the hash on its rank. */
static sl_status_t hash_param(const sl_engine_t *engine, int layer, int param,
                              uint64_t *hash_p)
{
    const sl_param_t *desc =
        &engine->params.model->layers[layer]->params[param];
    const size_t n = (size_t)sl_tensor_elements(&desc->desc);
    const int n_moments =
        desc->kind == SL_PARAM_TRAINED
            ? sl_optimizer_n_moments(&engine->params.optimizer)
            : 0;
    float *plain = malloc(n * sizeof(*plain) + 1);
    sl_status_t status = SL_OK;
    int i, is_here = 0;

    if (plain == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory to hash %zu values", n);
    }
    for (i = -1; i < n_moments; i++) {
        const sl_state_item_t item = {.layer = layer,
                                      .param = param,
                                      .desc = desc,
                                      .kind = i < 0 ? SL_STATE_VALUE
                                                    : SL_STATE_MOMENT,
                                      .moment = i};

        SL_TRY(status, sl_state_read(engine, &item, plain, &is_here), out);
        if (is_here) {
            *hash_p = sl_hash(plain, n * sizeof(*plain), *hash_p);
        }
    }
out:
    free(plain);
    return status;
}

static sl_status_t hash_layer(const sl_engine_t *engine, int layer,
                              uint64_t *hash_p)
{
    const sl_layer_t *own = engine->params.model->layers[layer];
    sl_status_t status = SL_OK;
    int p;

    for (p = 0; p < own->n_params; p++) {
        if (sl_param_is_state(&own->params[p])) {
            SL_TRY(status, hash_param(engine, layer, p, hash_p), out);
        }
    }
out:
    return status;
}

/* The hash goes from the rank of one stage to that of the next. */
static sl_status_t hash_state(const sl_engine_t *engine, uint64_t *hash_p)
{
    sl_status_t status = SL_OK;
    int k, l;

    for (k = 0; k < engine->n_stages; k++) {
        for (l = engine->params.cuts[k]; l < engine->params.cuts[k + 1]; l++) {
            SL_TRY(status, hash_layer(engine, l, hash_p), out);
        }
        SL_TRY(status,
               sl_engine_broadcast(engine, sl_engine_rank_of(engine, 0, k),
                                   hash_p, sizeof(*hash_p)),
               out);
    }
out:
    return status;
}

sl_status_t sl_engine_state_hash(sl_engine_t *engine, uint64_t *hash_p)
{
    uint64_t hash = 0;
    sl_status_t status = sl_engine_together(engine, hash_state(engine, &hash));

    if (status >= 0) {
        *hash_p = hash;
    }
    return status;
}

/* All values of a stage as they are stored. */
static sl_status_t hash_stage(const sl_engine_t *engine, int replica, int k,
                              uint64_t *hash_p)
{
    const sl_stage_t *stage = sl_engine_find_stage(engine, replica, k);
    sl_status_t status = SL_OK;
    int p;

    for (p = 0; stage != NULL && p < stage->n_params; p++) {
        const sl_stage_param_t *param = &stage->params[p];
        const sl_state_item_t item = {
            .layer = param->layer, .param = param->param, .desc = param->desc};
        char *storage = NULL;

        if (param->desc->kind == SL_PARAM_ACCUMULATOR) {
            continue;
        }
        SL_TRY(status, sl_state_alloc(engine, &item, &storage), out);
        status = sl_device_copy_wait(stage->device, storage,
                                     sl_storage_ptr(&param->value),
                                     param->desc->storage_bytes);
        *hash_p = sl_hash(storage, param->desc->storage_bytes, *hash_p);
        free(storage);
        SL_TRY(status, status, out);
    }
out:
    return status;
}

static sl_status_t hash_replica(const sl_engine_t *engine, int replica,
                                uint64_t *hash_p)
{
    sl_status_t status = SL_OK;
    int k;

    for (k = 0; k < engine->n_stages; k++) {
        SL_TRY(status, hash_stage(engine, replica, k, hash_p), out);
        SL_TRY(status,
               sl_engine_broadcast(engine,
                                   sl_engine_rank_of(engine, replica, k),
                                   hash_p, sizeof(*hash_p)),
               out);
    }
out:
    return status;
}

sl_status_t sl_engine_replica_hash(sl_engine_t *engine, int replica,
                                   uint64_t *hash_p)
{
    uint64_t hash = 0;
    sl_status_t status;

    if (replica < 0 || replica >= engine->n_replicas) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "there is no replica %d of %d",
                replica, engine->n_replicas);
    }
    status = sl_engine_together(engine, hash_replica(engine, replica, &hash));
    if (status >= 0) {
        *hash_p = hash;
    }
out:
    return status;
}

sl_status_t sl_engine_check_replicas(sl_engine_t *engine)
{
    const int every = engine->params.check_replicas;
    uint64_t first = 0, hash;
    sl_status_t status = SL_OK;
    int r;

    if (every == 0 || engine->n_replicas == 1 || engine->is_failed ||
        engine->n_steps == 0 || engine->n_steps % (uint32_t)every != 0) {
        return SL_OK;
    }
    for (r = 0; r < engine->n_replicas; r++) {
        SL_TRY(status, sl_engine_replica_hash(engine, r, &hash), out);
        first = r == 0 ? hash : first;
        if (hash != first) {
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "after %u steps replica %d is not what replica 0 is: a "
                    "device or a link has changed bits; go on from a "
                    "checkpoint",
                    engine->n_steps, r);
        }
    }
out:
    return status;
}
