/* SPDX-License-Identifier: Apache-2.0 */
/* State of several replicas over host memory into other stages. */
#include "engine/restage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/parallel/edges.h"
#include "engine/parallel/parallel.h"
#include "engine/parallel/together.h"
#include "engine/world.h"

enum {
    N_ITEMS = 3 /* of a parameter: value, moments */
};

/* A parameter of one replica on the host; NULL where it is another rank's. */
typedef struct sl_carried {
    char *items[N_ITEMS];
} sl_carried_t;

typedef struct sl_carriage {
    sl_mover_t *mover;
    sl_engine_t *from, *to;
    int n_replicas, n_params; /* of the model */
    sl_carried_t **rows;      /* owned: one a replica that this rank has */
    char *scratch;            /* owned: room for any item */
} sl_carriage_t;

/* The part of an item that a cell has. */
typedef struct sl_part {
    size_t begin, end; /* in bytes */
} sl_part_t;

static int is_shared_out(const sl_engine_t *engine, int item)
{
    return item > 0 && engine->params.zero1;
}

static int has_item(const sl_engine_t *engine, const sl_param_t *desc, int item)
{
    if (desc->kind == SL_PARAM_ACCUMULATOR) {
        return 0;
    }
    return item == 0 ||
           (desc->kind == SL_PARAM_TRAINED && desc->tied_layer < 0 &&
            item - 1 < sl_optimizer_n_moments(&engine->params.optimizer));
}

static sl_part_t part_of(const sl_stage_t *stage, const sl_stage_param_t *param,
                         int item)
{
    sl_part_t part = {0, param->desc->storage_bytes};

    if (is_shared_out(stage->engine, item)) {
        part.end = sizeof(float) *
                   sl_param_chunk(stage, param, stage->replica, &part.begin);
        part.begin *= sizeof(float);
    }
    return part;
}

static char *storage_of(const sl_stage_t *stage, const sl_stage_param_t *param,
                        int item, const sl_part_t *part)
{
    const sl_storage_t storage =
        item == 0 ? param->value
                  : sl_param_moment(stage, param, item - 1,
                                    part->begin / sizeof(float));

    return sl_storage_ptr(&storage);
}

static sl_carried_t *carried(const sl_carriage_t *carriage, int replica,
                             int layer, int param)
{
    return carriage->rows[replica] == NULL
               ? NULL
               : &carriage->rows[replica]
                                [carriage->mover->first_param[layer] + param];
}

/* ---- host memory ---- */

/* Room for what the stages of an engine have here. */
static sl_status_t reserve_stages(sl_carriage_t *carriage,
                                  const sl_engine_t *engine)
{
    const size_t n = (size_t)carriage->n_params;
    sl_status_t status = SL_OK;
    int k, p, i;

    for (k = 0; k < engine->n_cells; k++) {
        const sl_stage_t *stage = &engine->stages[k];

        if (carriage->rows[stage->replica] == NULL) {
            carriage->rows[stage->replica] =
                calloc(n + 1, sizeof(**carriage->rows));
        }
        for (p = 0;
             carriage->rows[stage->replica] != NULL && p < stage->n_params;
             p++) {
            const sl_stage_param_t *param = &stage->params[p];
            sl_carried_t *here =
                carried(carriage, stage->replica, param->layer, param->param);

            for (i = 0; i < N_ITEMS; i++) {
                if (here->items[i] != NULL ||
                    !has_item(engine, param->desc, i)) {
                    continue;
                }
                here->items[i] = calloc(1, param->desc->storage_bytes + 1);
                if (here->items[i] == NULL) {
                    break;
                }
            }
            if (i < N_ITEMS) {
                break;
            }
        }
        if (carriage->rows[stage->replica] == NULL || p < stage->n_params) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "engine: no host memory for the state of stage %d, which "
                    "moves over it",
                    stage->index);
        }
    }
out:
    return status;
}

static sl_status_t reserve(sl_carriage_t *carriage)
{
    const sl_model_t *model = carriage->from->params.model;
    size_t most = 1;
    sl_status_t status;
    int l, p;

    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const size_t bytes = model->layers[l]->params[p].storage_bytes;

            most = bytes > most ? bytes : most;
        }
    }
    carriage->rows =
        calloc((size_t)carriage->n_replicas, sizeof(*carriage->rows));
    carriage->scratch = malloc(most);
    if (carriage->rows == NULL || carriage->scratch == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory to move the state of %d replicas",
                carriage->n_replicas);
    }
    SL_TRY(status, reserve_stages(carriage, carriage->from), out);
    status = reserve_stages(carriage, carriage->to);
out:
    return status;
}

static void cleanup(sl_carriage_t *carriage)
{
    int r, p, i;

    for (r = 0; carriage->rows != NULL && r < carriage->n_replicas; r++) {
        for (p = 0; carriage->rows[r] != NULL && p < carriage->n_params; p++) {
            for (i = 0; i < N_ITEMS; i++) {
                free(carriage->rows[r][p].items[i]);
            }
        }
        free(carriage->rows[r]);
    }
    free(carriage->rows);
    free(carriage->scratch);
}

/* ---- between host and devices ---- */

/* All that the stages of an engine have, to the host or from it. */
static sl_status_t copy_stages(const sl_carriage_t *carriage,
                               const sl_engine_t *engine, int is_read)
{
    sl_status_t status = SL_OK;
    int k, p, i;

    for (k = 0; k < engine->n_cells; k++) {
        const sl_stage_t *stage = &engine->stages[k];

        for (p = 0; p < stage->n_params; p++) {
            const sl_stage_param_t *param = &stage->params[p];
            const sl_carried_t *here =
                carried(carriage, stage->replica, param->layer, param->param);

            for (i = 0; i < N_ITEMS; i++) {
                char *host, *storage;
                sl_part_t part;

                if (here->items[i] == NULL) {
                    continue;
                }
                part = part_of(stage, param, i);
                if (part.begin >= part.end) {
                    continue;
                }
                host = here->items[i] + part.begin;
                storage = storage_of(stage, param, i, &part);
                SL_TRY(status,
                       sl_device_copy_wait(
                           stage->device, is_read ? host : storage,
                           is_read ? storage : host, part.end - part.begin),
                       out);
            }
        }
    }
out:
    return status;
}

static void release_stages(const sl_engine_t *engine)
{
    int k;

    for (k = 0; k < engine->n_cells; k++) {
        sl_stage_params_release(&engine->stages[k]);
    }
}

static sl_status_t alloc_stages(const sl_engine_t *engine)
{
    sl_status_t status = SL_OK;
    int k;

    for (k = 0; k < engine->n_cells; k++) {
        SL_TRY(status, sl_stage_params_alloc(&engine->stages[k]), out);
    }
out:
    if (status < 0) {
        release_stages(engine);
    }
    return status;
}

/* ---- between ranks ---- */

/* An item of which every replica has all: each gets its own. */
static sl_status_t move_item(const sl_carriage_t *carriage, int layer, int p,
                             int item, size_t bytes)
{
    sl_status_t status = SL_OK;
    int r;

    for (r = 0; r < carriage->n_replicas; r++) {
        const int from = sl_engine_rank_of(carriage->from, r,
                                           carriage->from->layer_stage[layer]);
        const int to = sl_engine_rank_of(carriage->to, r,
                                         carriage->to->layer_stage[layer]);
        const int own = carriage->from->grid->rank;

        if (from != to && (own == from || own == to)) {
            SL_TRY(status,
                   sl_engine_move(carriage->from, from, to,
                                  carried(carriage, r, layer, p)->items[item],
                                  bytes),
                   out);
        }
    }
out:
    return status;
}

/* A replica's old part of a moment into `scratch` on all ranks. */
static sl_status_t spread_part(const sl_carriage_t *carriage, int replica,
                               int layer, int p, int item)
{
    const int root = sl_engine_rank_of(carriage->from, replica,
                                       carriage->from->layer_stage[layer]);
    sl_stage_t *stage;
    const sl_stage_param_t *param =
        sl_engine_find_param(carriage->from, replica, layer, p, &stage);
    sl_part_t part = {0, 0};
    sl_status_t status;

    if (param != NULL) {
        part = part_of(stage, param, item);
        if (part.begin < part.end) {
            memcpy(carriage->scratch + part.begin,
                   carried(carriage, replica, layer, p)->items[item] +
                       part.begin,
                   part.end - part.begin);
        }
    }
    SL_TRY(status,
           sl_engine_broadcast(carriage->from, root, &part, sizeof(part)), out);
    if (part.begin < part.end) {
        status = sl_engine_broadcast(carriage->from, root,
                                     carriage->scratch + part.begin,
                                     part.end - part.begin);
    }
out:
    return status;
}

/* ... put together, and then cut as the new buckets want it. */
static sl_status_t move_shared_item(const sl_carriage_t *carriage, int layer,
                                    int p, int item, size_t bytes)
{
    sl_status_t status = SL_OK;
    int r;

    for (r = 0; r < carriage->n_replicas; r++) {
        SL_TRY(status, spread_part(carriage, r, layer, p, item), out);
    }
    for (r = 0; r < carriage->n_replicas; r++) {
        sl_stage_t *stage;

        if (sl_engine_find_param(carriage->to, r, layer, p, &stage) != NULL) {
            memcpy(carried(carriage, r, layer, p)->items[item],
                   carriage->scratch, bytes);
        }
    }
out:
    return status;
}

static sl_status_t move_all(const sl_carriage_t *carriage)
{
    const sl_model_t *model = carriage->from->params.model;
    sl_status_t status = SL_OK;
    int l, p, i;

    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *desc = &model->layers[l]->params[p];

            for (i = 0; i < N_ITEMS; i++) {
                if (!has_item(carriage->from, desc, i)) {
                    continue;
                }
                SL_TRY(status,
                       is_shared_out(carriage->from, i)
                           ? move_shared_item(carriage, l, p, i,
                                              desc->storage_bytes)
                           : move_item(carriage, l, p, i, desc->storage_bytes),
                       out);
            }
        }
    }
out:
    return status;
}

/* ---- all of it ---- */

static void count_bytes(const sl_carriage_t *carriage)
{
    const sl_model_t *model = carriage->from->params.model;
    const int n_moments =
        sl_optimizer_n_moments(&carriage->from->params.optimizer);
    size_t bytes = 0;
    int l, p;

    for (l = 0; l < model->n_layers; l++) {
        for (p = 0;
             p < model->layers[l]->n_params &&
             carriage->from->layer_stage[l] != carriage->to->layer_stage[l];
             p++) {
            const sl_param_t *desc = &model->layers[l]->params[p];
            const size_t n =
                desc->kind == SL_PARAM_TRAINED
                    ? 2 + (size_t)(desc->tied_layer < 0 ? n_moments : 0)
                    : 1;

            bytes += n * desc->storage_bytes;
        }
    }
    carriage->mover->moved_bytes += bytes * (size_t)carriage->n_replicas;
}

/* The old stages again, where they were. */
static sl_status_t go_back(sl_carriage_t *carriage, sl_status_t why)
{
    sl_mover_t *mover = carriage->mover;
    char detail[SL_ERROR_DETAIL_BYTES];
    sl_status_t status;

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    sl_edges_close(carriage->to);
    release_stages(carriage->to);
    SL_TRY(status, sl_mover_agree(mover, alloc_stages(carriage->from)), out);
    status = sl_mover_agree(mover, copy_stages(carriage, carriage->from, 0));
out:
    if (status < 0) {
        carriage->from->is_failed = 1;
        return status;
    }
    sl_last_error_set(detail);
    return why;
}

/* The new channels are `from`'s soon: over its transport, and a rank that has
 * ended may send while this one has not. Lent, until the end. */
static void lend_transport(const sl_carriage_t *carriage)
{
    sl_engine_t *from = carriage->from, *to = carriage->to;
    int c;

    to->transport = from->transport;
    to->nccl = from->nccl;
    for (c = 0; c < to->n_channels; c++) {
        to->channels[c].abort = &from->abort;
    }
}

static sl_status_t exchange(sl_carriage_t *carriage)
{
    sl_mover_t *mover = carriage->mover;
    sl_status_t status;

    SL_TRY(status, sl_mover_agree(mover, reserve(carriage)), out);
    SL_TRY(status,
           sl_mover_agree(mover, copy_stages(carriage, carriage->from, 1)),
           out);
    release_stages(carriage->from);
    status = sl_mover_agree(mover, alloc_stages(carriage->to));
    if (status >= 0) {
        lend_transport(carriage);
        status = sl_mover_agree(mover, sl_edges_reserve(carriage->to));
    }
    if (status < 0) {
        return mover->is_broken ? status : go_back(carriage, status);
    }
    status = move_all(carriage);
    if (status >= 0) {
        status = copy_stages(carriage, carriage->to, 0);
    }
    if (status >= 0) {
        status = sl_mover_agree(mover, sl_edges_connect(carriage->to));
    }
    if (status < 0) {
        /* parts of the state may be lost with another rank */
        mover->is_broken = 1;
        carriage->from->is_failed = 1;
        return status;
    }
    count_bytes(carriage);
out:
    return status;
}

sl_status_t sl_restage(sl_mover_t *mover, sl_engine_t *next)
{
    sl_carriage_t carriage = {.mover = mover,
                              .from = mover->engine,
                              .to = next,
                              .n_replicas = mover->engine->n_replicas,
                              .n_params =
                                  mover->first_param[mover->model->n_layers]};
    const sl_status_t status = exchange(&carriage);

    next->nccl = NULL;
    cleanup(&carriage);
    return status;
}
