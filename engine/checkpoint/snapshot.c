/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes which tensors, and their copy in host memory: the state must not
 * change while it is written, and training must not wait for that. */
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_internal.h"
#include "engine/parallel/together.h"

/* A file larger than this is begun anew: copying and checking a checkpoint
 * can then use several processes. */
static const uint64_t MAX_SHARD_BYTES = UINT64_C(1) << 30;

static sl_shard_plan_t *open_shard(sl_shard_plan_t *shards, size_t *n, int rank,
                                   size_t i, size_t n_tensors)
{
    sl_shard_plan_t *shard = &shards[*n];

    shard->rank = rank;
    sl_shard_name(rank, i, shard->file);
    shard->tensors = calloc(n_tensors + 1, sizeof(*shard->tensors));
    *n += shard->tensors != NULL;
    return shard->tensors == NULL ? NULL : shard;
}

/* The shards of one rank. @return 0 without memory */
static int plan_rank(const sl_checkpoint_run_t *run,
                     const sl_run_description_t *d, int rank,
                     sl_shard_plan_t *shards, size_t *n)
{
    sl_shard_plan_t *shard = NULL;
    uint64_t n_bytes = 0;
    size_t t, i = 0;

    for (t = 0; t < d->n_tensors; t++) {
        const sl_state_tensor_t *tensor = &d->tensors[t];

        if (sl_tensor_rank(run->engine, tensor) != rank) {
            continue;
        }
        if (shard == NULL || n_bytes + tensor->n_bytes > MAX_SHARD_BYTES) {
            shard = open_shard(shards, n, rank, i++, d->n_tensors - t);
            n_bytes = 0;
            if (shard == NULL) {
                return 0;
            }
        }
        shard->tensors[shard->n++] = t;
        n_bytes += tensor->n_bytes;
    }
    return 1;
}

sl_status_t sl_shard_plans(const sl_checkpoint_run_t *run,
                           const sl_run_description_t *d,
                           sl_shard_plan_t **shards_p, size_t *n_p)
{
    const int n_ranks = sl_world_size(run->world);
    sl_shard_plan_t *shards = calloc(d->n_tensors + 1, sizeof(*shards));
    size_t n = 0;
    sl_status_t status;
    int rank;

    for (rank = 0; shards != NULL && rank < n_ranks; rank++) {
        if (!plan_rank(run, d, rank, shards, &n)) {
            break;
        }
    }
    if (shards == NULL || rank < n_ranks) {
        sl_shard_plans_free(shards, n);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "checkpoint: no host memory to plan %zu tensors", d->n_tensors);
    }
    *shards_p = shards;
    *n_p = n;
    return SL_OK;
out:
    return status;
}

void sl_shard_plans_free(sl_shard_plan_t *shards, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        free(shards[i].tensors);
    }
    free(shards);
}

sl_status_t sl_snapshot_init(sl_snapshot_t *snapshot, int rank,
                             const sl_run_description_t *d,
                             const sl_shard_plan_t *shards, size_t n_shards)
{
    sl_status_t status;
    size_t s, t;

    memset(snapshot, 0, sizeof(*snapshot));
    snapshot->offsets = malloc((d->n_tensors + 1) * sizeof(uint64_t));
    if (snapshot->offsets == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "checkpoint: no host memory for %zu tensors", d->n_tensors);
    }
    for (t = 0; t < d->n_tensors; t++) {
        snapshot->offsets[t] = UINT64_MAX;
    }
    for (s = 0; s < n_shards; s++) {
        for (t = 0; shards[s].rank == rank && t < shards[s].n; t++) {
            const size_t index = shards[s].tensors[t];

            snapshot->offsets[index] = snapshot->n_bytes;
            snapshot->n_bytes += d->tensors[index].n_bytes;
        }
    }
    return SL_OK;
out:
    return status;
}

void sl_snapshot_cleanup(sl_snapshot_t *snapshot)
{
    free(snapshot->data);
    free(snapshot->offsets);
    memset(snapshot, 0, sizeof(*snapshot));
}

sl_status_t sl_snapshot_reserve(sl_snapshot_t *snapshot)
{
    sl_status_t status;

    if (snapshot->data == NULL) {
        snapshot->data = malloc((size_t)snapshot->n_bytes + 1);
    }
    if (snapshot->data == NULL) {
        SL_REFUSE(status, SL_ERR_NO_MEMORY, out,
                  "no host memory for the %llu bytes of the state",
                  (unsigned long long)snapshot->n_bytes);
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_snapshot_take(sl_snapshot_t *snapshot, sl_engine_t *engine,
                             const sl_run_description_t *d)
{
    sl_status_t status = SL_OK;
    size_t t;

    for (t = 0; status >= 0 && t < d->n_tensors; t++) {
        const sl_state_tensor_t *tensor = &d->tensors[t];
        char *at = snapshot->offsets[t] == UINT64_MAX
                       ? NULL
                       : snapshot->data + snapshot->offsets[t];

        status = sl_tensor_read(engine, tensor, (float *)(void *)at);
    }
    return sl_engine_together(engine, status);
}
