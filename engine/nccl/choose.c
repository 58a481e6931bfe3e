/* SPDX-License-Identifier: Apache-2.0 */
/* Which transport CUDA devices use. */
#include "engine/nccl/choose.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "engine/parallel/edges.h"
#include "memory/cuda.h"

enum {
    MAX_GPUS = 16, /* of a rank: engine/nccl/connect.c */
    WHY_BYTES = 512
};

/* What a rank says of itself. */
typedef struct sl_rank_facts {
    int32_t n_gpus;          /* -1: too many for NCCL */
    int32_t is_cuda_aware;   /* its link */
    int32_t is_exportable;   /* its devices' memory */
    uint64_t gpus[MAX_GPUS]; /* hash of host and place on its bus */
} sl_rank_facts_t;

/* ---- facts ---- */

static sl_status_t find_facts(const sl_engine_t *engine, sl_rank_facts_t *facts)
{
    const sl_device_set_t *devices = engine->params.devices;
    sl_world_t *world = engine->params.world;
    const uint64_t host =
        sl_hash_text(sl_world_host(world, sl_world_rank(world)), 0);
    sl_status_t status = SL_OK;
    int d;

    facts->is_cuda_aware = sl_world_is_cuda_aware(world);
    facts->is_exportable = 1;
    for (d = 0; d < devices->n_devices; d++) {
        facts->is_exportable &= devices->devices[d].is_exportable;
    }
    facts->n_gpus = devices->n_devices > MAX_GPUS ? -1 : devices->n_devices;
    for (d = 0; d < facts->n_gpus; d++) {
        char bus[32] = "";

        SL_TRY(status,
               SL_CUDA(cudaDeviceGetPCIBusId(bus, (int)sizeof(bus),
                                             devices->devices[d].gpu)),
               out);
        facts->gpus[d] = sl_hash_text(bus, host);
    }
out:
    return status;
}

static int shares_gpu(const sl_rank_facts_t *a, const sl_rank_facts_t *b)
{
    int i, j;

    for (i = 0; i < a->n_gpus; i++) {
        for (j = 0; j < b->n_gpus; j++) {
            if (a->gpus[i] == b->gpus[j]) {
                return 1;
            }
        }
    }
    return 0;
}

/* Why NCCL cannot be used, or "". The same on all ranks. */
static void why_not_nccl(const sl_rank_facts_t *all, int n_ranks, char *why,
                         size_t why_bytes)
{
    int a, b;

    why[0] = '\0';
    for (a = 0; a < n_ranks; a++) {
        if (all[a].n_gpus < 0) {
            (void)snprintf(why, why_bytes, "rank %d has more than %d devices",
                           a, (int)MAX_GPUS);
            return;
        }
        for (b = a + 1; b < n_ranks; b++) {
            if (shares_gpu(&all[a], &all[b])) {
                (void)snprintf(why, why_bytes,
                               "ranks %d and %d share a GPU, which NCCL does "
                               "not do",
                               a, b);
                return;
            }
        }
    }
}

static int is_aware_everywhere(const sl_rank_facts_t *all, int n_ranks)
{
    int r;

    for (r = 0; r < n_ranks; r++) {
        if (!all[r].is_cuda_aware) {
            return 0;
        }
    }
    return 1;
}

/* The first rank with memory that the others' processes cannot map; -1: none.
 */
static int find_not_exportable(const sl_rank_facts_t *all, int n_ranks)
{
    int r;

    for (r = 0; r < n_ranks; r++) {
        if (!all[r].is_exportable) {
            return r;
        }
    }
    return -1;
}

static sl_status_t gather_facts(const sl_engine_t *engine,
                                sl_rank_facts_t **all_p)
{
    sl_world_t *world = engine->params.world;
    sl_rank_facts_t own = {0};
    sl_rank_facts_t *all = calloc((size_t)sl_world_size(world), sizeof(*all));
    sl_status_t status;

    if (all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "transport: no host memory for %d ranks", sl_world_size(world));
    }
    SL_TRY(status, find_facts(engine, &own), out);
    SL_TRY(status, sl_world_gather(world, &own, sizeof(own), all), out);
    *all_p = all;
    all = NULL;
out:
    free(all);
    return status;
}

/* ---- lanes ---- */

/* The lanes of the channels that end here, each once, in their order.
 * `keys` has room for all channels. @return their number */
static int list_lanes(const sl_engine_t *engine, sl_lane_key_t *keys)
{
    const int n_cells = engine->n_replicas * engine->n_stages;
    int c, i, n = 0, n_lanes = 0;

    for (c = 0; c < engine->n_channels; c++) {
        const sl_channel_t *channel = &engine->channels[c];
        const sl_grid_slot_t *from =
            sl_grid_slot(engine->grid, channel->from_cell, n_cells);
        const sl_grid_slot_t *to =
            sl_grid_slot(engine->grid, channel->to_cell, n_cells);

        if (channel->peer >= 0) {
            keys[n++] = (sl_lane_key_t){.from_rank = from->rank,
                                        .from_device = from->device,
                                        .to_rank = to->rank,
                                        .to_device = to->device};
        }
    }
    qsort(keys, (size_t)n, sizeof(*keys), sl_lane_key_compare);
    for (i = 0; i < n; i++) {
        if (n_lanes == 0 ||
            sl_lane_key_compare(&keys[n_lanes - 1], &keys[i]) != 0) {
            keys[n_lanes++] = keys[i];
        }
    }
    return n_lanes;
}

static sl_status_t connect(sl_engine_t *engine)
{
    sl_nccl_params_t params;
    sl_lane_key_t *keys = calloc((size_t)engine->n_channels + 1, sizeof(*keys));
    sl_status_t status = SL_OK;
    int n = 0;

    sl_nccl_params_default(&params);
    params.world = engine->params.world;
    params.abort = &engine->abort;
    params.devices = engine->params.devices;
    if (keys == NULL) {
        sl_last_error_set("transport: no host memory for lanes");
        status = SL_ERR_NO_MEMORY;
    } else {
        n = list_lanes(engine, keys);
    }
    if (status >= 0 && engine->nccl == NULL) {
        status = sl_nccl_create(&params, &engine->nccl);
    }
    status = sl_nccl_connect(engine->nccl, params.world, keys, n, status);
    free(keys);
    return status;
}

/* ---- the choice ---- */

/* The communication thread moves memory of the first device's kind. */
static void enter_device(void *ctx)
{
    const sl_device_t *device = ctx;

    if (cudaSetDevice(device->gpu) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

static sl_status_t use_cuda_aware(sl_engine_t *engine,
                                  const sl_rank_facts_t *all)
{
    sl_world_t *world = engine->params.world;
    const int odd = find_not_exportable(all, sl_world_size(world));
    sl_status_t status = SL_OK;

    if (!is_aware_everywhere(all, sl_world_size(world))) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "transport 'cuda-aware': the link '%s' does not know memory of "
                "CUDA devices (an MPI must be built for that); choose staged "
                "or nccl",
                sl_world_link_name(world));
    }
    if (odd >= 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "transport 'cuda-aware': memory of rank %d's devices is of "
                "virtual memory management, which no other process can map; "
                "create its devices with is_exportable, or set "
                "SLUICE_NO_CUDA_VMM=1",
                odd);
    }
    sl_world_call(world, enter_device, &engine->params.devices->devices[0]);
    engine->transport = SL_TRANSPORT_CUDA_AWARE;
out:
    return status;
}

/* NCCL where it can be; when it was asked for, nothing else. */
static sl_status_t use_nccl(sl_engine_t *engine, const sl_rank_facts_t *all)
{
    sl_world_t *world = engine->params.world;
    const int is_asked = engine->params.transport == SL_TRANSPORT_NCCL;
    const int is_first = sl_world_rank(world) == 0;
    char why[WHY_BYTES];
    sl_status_t status = SL_OK;

    why_not_nccl(all, sl_world_size(world), why, sizeof(why));
    if (why[0] != '\0' && is_asked) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "transport 'nccl': %s", why);
    }
    if (why[0] == '\0') {
        status = connect(engine);
        if (status >= 0) {
            engine->transport = SL_TRANSPORT_NCCL;
            return SL_OK;
        }
        if (is_asked || sl_world_has_failed(world)) {
            return status;
        }
        (void)snprintf(why, sizeof(why), "%s", sl_last_error());
        sl_transport_close(engine);
        if (is_first) {
            sl_warn("transport: NCCL cannot be used (%s); tensors go through "
                    "host memory, which is slower",
                    why);
        }
    } else if (is_first) {
        sl_info("transport: no NCCL: %s", why);
    }
    engine->transport = SL_TRANSPORT_STAGED;
    status = SL_OK;
out:
    return status;
}

static sl_status_t choose(sl_engine_t *engine, const sl_rank_facts_t *all)
{
    switch (engine->params.transport) {
    case SL_TRANSPORT_STAGED:
        engine->transport = SL_TRANSPORT_STAGED;
        return SL_OK;
    case SL_TRANSPORT_CUDA_AWARE:
        return use_cuda_aware(engine, all);
    case SL_TRANSPORT_AUTO:
    case SL_TRANSPORT_NCCL:
    case SL_TRANSPORT_N:
        break;
    }
    return use_nccl(engine, all);
}

sl_status_t sl_nccl_choose(sl_engine_t *engine)
{
    sl_rank_facts_t *all = NULL;
    sl_status_t status;

    /* again, after layers have moved */
    if (engine->transport == SL_TRANSPORT_NCCL) {
        return connect(engine);
    }
    if (engine->transport != SL_TRANSPORT_AUTO) {
        return SL_OK;
    }
    SL_TRY(status, gather_facts(engine, &all), out);
    SL_TRY(status, choose(engine, all), out);
    if (sl_world_rank(engine->params.world) == 0) {
        sl_info("transport: %s%s%s", sl_transport_name(engine->transport),
                engine->nccl == NULL ? "" : " ",
                engine->nccl == NULL ? "" : sl_nccl_version());
    }
out:
    free(all);
    return status;
}
