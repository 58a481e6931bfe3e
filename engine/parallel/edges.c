/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting the channels that lead to other ranks. */
#include "engine/parallel/edges.h"

#include <stdlib.h>

#include "engine/parallel/parallel.h"
#include "engine/world.h"

/* This rank's side of a channel. */
static sl_stage_t *own_stage(const sl_engine_t *engine,
                             const sl_channel_t *channel)
{
    const int cell = channel->is_sender ? channel->from_cell : channel->to_cell;

    return sl_engine_find_stage(engine, cell / engine->n_stages,
                                cell % engine->n_stages);
}

/* The largest chunk of a replica's. */
static size_t chunk_bytes(const sl_stage_t *stage, int owner)
{
    size_t most = 0;
    int b;

    for (b = 0; b < stage->n_buckets; b++) {
        const size_t *chunk = &stage->buckets[b].chunk_start[owner];

        most = chunk[1] - chunk[0] > most ? chunk[1] - chunk[0] : most;
    }
    return most * sizeof(float);
}

/* The largest message that a channel will carry; `outputs` are those of the
 * layers for the largest micro-batch. */
static size_t message_bytes(const sl_engine_t *engine,
                            const sl_channel_t *channel,
                            const sl_tensor_desc_t *outputs)
{
    const sl_stage_t *stage = own_stage(engine, channel);
    const int from = channel->from_cell / engine->n_stages;
    const int is_of_first = engine->params.batch_norm == SL_BATCH_NORM_REPLICA;

    switch (channel->kind) {
    case SL_CHANNEL_FORWARD:
    case SL_CHANNEL_BACKWARD:
        return sl_tensor_bytes(&outputs[channel->layer]);
    case SL_CHANNEL_PARTS:
        return chunk_bytes(stage, channel->to_cell / engine->n_stages);
    case SL_CHANNEL_RESULTS:
        return chunk_bytes(stage, from);
    case SL_CHANNEL_STATISTICS:
        return from > 0 && is_of_first ? 0
                                       : stage->n_statistics * sizeof(double);
    case SL_CHANNEL_TIE_GRADIENT:
    case SL_CHANNEL_TIE_VALUE:
        break;
    }
    return engine->params.model->layers[channel->layer]
        ->params[channel->param]
        .storage_bytes;
}

static sl_status_t reserve_one(sl_engine_t *engine, sl_channel_t *channel,
                               const sl_tensor_desc_t *outputs)
{
    const int n_cells = engine->n_replicas * engine->n_stages;
    sl_stage_t *stage = own_stage(engine, channel);
    const size_t bytes = message_bytes(engine, channel, outputs);
    sl_status_t status;

    channel->transport = engine->transport;
    channel->nccl = engine->nccl;
    channel->from_device =
        sl_grid_slot(engine->grid, channel->from_cell, n_cells)->device;
    channel->to_device =
        sl_grid_slot(engine->grid, channel->to_cell, n_cells)->device;
    status =
        sl_channel_reserve(channel, engine->params.world, stage->device, bytes);

    if (status == SL_ERR_QUOTA && engine->dry != NULL) {
        sl_dry_lift_limit(engine, stage->device);
        status = sl_channel_reserve(channel, engine->params.world,
                                    stage->device, bytes);
    }
    return status;
}

sl_status_t sl_edges_reserve(sl_engine_t *engine)
{
    const sl_model_t *model = engine->params.model;
    const int n_micro = engine->n_replicas * engine->params.n_micro_batches;
    const int64_t rows =
        sl_split_rows(engine->params.batch_rows, n_micro, 0, NULL);
    sl_tensor_desc_t *outputs;
    sl_status_t status;
    int c;

    outputs = calloc((size_t)model->n_layers, sizeof(*outputs));
    if (outputs == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for the shapes of %d layers",
                model->n_layers);
    }
    SL_TRY(status, sl_model_infer(model, rows, outputs), out);
    SL_TRY(status, sl_transport_open(engine), out);
    for (c = 0; c < engine->n_channels; c++) {
        if (engine->channels[c].peer >= 0) {
            SL_TRY(status, reserve_one(engine, &engine->channels[c], outputs),
                   out);
        }
    }
out:
    free(outputs);
    return status;
}

sl_status_t sl_edges_connect(sl_engine_t *engine)
{
    sl_status_t status = SL_OK;
    int c;

    for (c = 0; c < engine->n_channels; c++) {
        SL_TRY(status, sl_channel_open(&engine->channels[c]), out);
    }
out:
    return status;
}

sl_status_t sl_edges_open(sl_engine_t *engine)
{
    sl_status_t status = sl_edges_reserve(engine);

    return status < 0 ? status : sl_edges_connect(engine);
}

void sl_edges_close(sl_engine_t *engine)
{
    int c;

    for (c = 0; c < engine->n_channels; c++) {
        sl_channel_close(&engine->channels[c]);
    }
}

int sl_engine_edge(const sl_engine_t *engine, int i, sl_edge_t *edge_p)
{
    static const char *const kinds[] = {[SL_CHANNEL_FORWARD] = "forward",
                                        [SL_CHANNEL_BACKWARD] = "backward",
                                        [SL_CHANNEL_PARTS] = "parts",
                                        [SL_CHANNEL_RESULTS] = "results",
                                        [SL_CHANNEL_STATISTICS] = "statistics",
                                        [SL_CHANNEL_TIE_GRADIENT] =
                                            "tie gradient",
                                        [SL_CHANNEL_TIE_VALUE] = "tie value"};
    int c;

    for (c = 0; c < engine->n_channels; c++) {
        const sl_channel_t *channel = &engine->channels[c];
        sl_port_stats_t stats;

        if (!sl_channel_stats(channel, &stats) || i-- > 0) {
            continue;
        }
        *edge_p =
            (sl_edge_t){.kind = kinds[channel->kind],
                        .from_replica = channel->from_cell / engine->n_stages,
                        .from_stage = channel->from_stage,
                        .to_replica = channel->to_cell / engine->n_stages,
                        .to_stage = channel->to_stage,
                        .layer = channel->layer,
                        .peer = channel->peer,
                        .is_sender = channel->is_sender,
                        .n_messages = stats.n_messages,
                        .n_bytes = stats.n_bytes,
                        .latency_ns = stats.latency_ns,
                        .n_stalls = stats.n_stalls,
                        .n_timed = channel->overlap.n,
                        .transfer_ns = channel->overlap.transfer_ns,
                        .under_sender_ns = channel->overlap.sender_ns,
                        .under_receiver_ns = channel->overlap.receiver_ns};
        return 1;
    }
    return 0;
}
