/* SPDX-License-Identifier: Apache-2.0 */
/* Layers from stage to stage. The new stages are made first, without
 * parameters; then layers cross one cut at a time, so that at every moment
 * what lies where is a partition; then the stages change places.
 *
 * With several ranks all do the same: each crossing is decided by all, so
 * that every rank knows what lies where. */
#include "engine/repartition.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/parallel/edges.h"
#include "engine/parallel/together.h"
#include "engine/topology.h"
#include "engine/world.h"

enum {
    N_BLOCKS = 4 /* of a parameter: value, gradient, moments */
};

/* Cut k has moved by one layer, up or down. */
typedef struct sl_crossing {
    int k, by;
} sl_crossing_t;

/* A parameter on its way; no blocks where it is another rank's. */
typedef struct sl_moved_param {
    const sl_param_t *desc; /* borrowed from the model */
    sl_mem_block_t *blocks[N_BLOCKS];
} sl_moved_param_t;

typedef struct sl_mover {
    sl_engine_t *engine;
    const sl_model_t *model;
    int n_stages;
    int *now;                 /* owned: the cuts of this moment */
    int *is_refused;          /* owned: per cut, its layer found no room */
    sl_moved_param_t *params; /* owned: all, in model order, with the blocks */
    int *first_param;         /* owned: [n_layers + 1] */
    double *codes;            /* owned: [n_ranks] of an agreement */
    sl_crossing_t *crossings; /* owned: done so far */
    int n_crossings, crossings_room;
    int is_broken; /* ranks may no longer know what lies where */
    int is_common; /* a failure that all ranks know of */
    size_t moved_bytes;
} sl_mover_t;

/* One layer's way. */
typedef struct sl_way {
    int layer;
    int from_rank, to_rank;
    sl_device_t *from, *to; /* NULL on other ranks */
} sl_way_t;

const int *sl_engine_cuts(const sl_engine_t *engine)
{
    return engine->params.cuts;
}

/* All ranks fail when one does, with the first one's status. */
static sl_status_t agree(sl_mover_t *mover, sl_status_t status)
{
    const sl_engine_t *engine = mover->engine;
    const int n = sl_world_size(engine->params.world);
    int r;

    if (engine->params.world == NULL) {
        return status;
    }
    memset(mover->codes, 0, (size_t)n * sizeof(double));
    mover->codes[engine->grid->rank] = status < 0 ? (double)status : 0.0;
    if (sl_together_sum(engine->params.world, &mover->engine->abort,
                        mover->codes, (size_t)n) < 0) {
        mover->is_broken = 1;
        return status < 0 ? status : SL_ERR_COMM;
    }
    for (r = 0; r < n; r++) {
        mover->is_common |= mover->codes[r] < 0.0;
    }
    for (r = 0; r < n && status >= 0; r++) {
        if (mover->codes[r] < 0.0) {
            SL_REFUSE(status, (sl_status_t)mover->codes[r], out,
                      "rank %d cannot: %s", r,
                      sl_status_text((sl_status_t)mover->codes[r]));
        }
    }
out:
    return status;
}

/* ---- one layer ---- */

static int has_block(const sl_mover_t *mover, const sl_param_t *desc, int i)
{
    if (i == 0) {
        return 1;
    }
    if (desc->kind != SL_PARAM_TRAINED) {
        return 0;
    }
    return i == 1 ||
           (desc->tied_layer < 0 &&
            i - 2 < sl_optimizer_n_moments(&mover->engine->params.optimizer));
}

static void release_blocks(sl_moved_param_t *param)
{
    int i;

    for (i = 0; i < N_BLOCKS; i++) {
        sl_mem_release(param->blocks[i]);
        param->blocks[i] = NULL;
    }
}

static int n_params(const sl_mover_t *mover, int layer)
{
    return mover->first_param[layer + 1] - mover->first_param[layer];
}

static size_t layer_bytes(const sl_mover_t *mover, int layer)
{
    size_t bytes = 0;
    int p, i;

    for (p = mover->first_param[layer]; p < mover->first_param[layer + 1];
         p++) {
        for (i = 0; i < N_BLOCKS; i++) {
            bytes += has_block(mover, mover->params[p].desc, i)
                         ? mover->params[p].desc->storage_bytes
                         : 0;
        }
    }
    return bytes;
}

/* Blocks for the layer on its new device, and what messages go through. */
static sl_status_t make_copies(const sl_mover_t *mover, const sl_way_t *way,
                               sl_moved_param_t *copies, void **buffer_p)
{
    const int is_sent = way->from_rank != way->to_rank &&
                        (way->from != NULL || way->to != NULL);
    sl_status_t status = SL_OK;
    size_t most = 1;
    int p, i;

    for (p = 0; p < n_params(mover, way->layer); p++) {
        most = copies[p].desc->storage_bytes > most
                   ? copies[p].desc->storage_bytes
                   : most;
        for (i = 0; i < N_BLOCKS && way->to != NULL; i++) {
            if (has_block(mover, copies[p].desc, i)) {
                SL_TRY(status,
                       sl_mem_alloc(way->to->mem, SL_MEM_CLASS_PERSISTENT,
                                    copies[p].desc->storage_bytes,
                                    &copies[p].blocks[i]),
                       out);
            }
        }
    }
    *buffer_p = is_sent ? malloc(most) : NULL;
    if (is_sent && *buffer_p == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for a message of %zu bytes", most);
    }
out:
    return status;
}

/* One block's contents, between devices or ranks. */
static sl_status_t move_block(const sl_mover_t *mover, const sl_way_t *way,
                              const sl_mem_block_t *from, sl_mem_block_t *to,
                              size_t bytes, void *buffer)
{
    sl_status_t status = SL_OK;

    if (way->from != NULL && way->to != NULL) {
        return sl_device_copy(way->to, to->ptr, from->ptr, bytes, NULL);
    }
    if (way->from != NULL) {
        SL_TRY(status, sl_device_copy_wait(way->from, buffer, from->ptr, bytes),
               out);
    }
    SL_TRY(status,
           sl_engine_move(mover->engine, way->from_rank, way->to_rank, buffer,
                          bytes),
           out);
    if (way->to != NULL) {
        status = sl_device_copy_wait(way->to, to->ptr, buffer, bytes);
    }
out:
    return status;
}

static sl_status_t move_contents(const sl_mover_t *mover, const sl_way_t *way,
                                 sl_moved_param_t *copies, void *buffer)
{
    const sl_moved_param_t *params =
        &mover->params[mover->first_param[way->layer]];
    sl_status_t status = SL_OK;
    int p, i;

    if (way->from == NULL && way->to == NULL) {
        return SL_OK;
    }
    for (p = 0; p < n_params(mover, way->layer); p++) {
        for (i = 0; i < N_BLOCKS; i++) {
            if (has_block(mover, params[p].desc, i)) {
                SL_TRY(status,
                       move_block(mover, way, params[p].blocks[i],
                                  copies[p].blocks[i],
                                  params[p].desc->storage_bytes, buffer),
                       out);
            }
        }
    }
out:
    if (way->to != NULL) {
        SL_KEEP(status, sl_device_drain(way->to));
    }
    return status;
}

/* All of a layer or nothing; the devices are idle before and after. What goes
 * wrong once all have agreed is the end. */
static sl_status_t move_layer(sl_mover_t *mover, const sl_way_t *way)
{
    sl_moved_param_t *params = &mover->params[mover->first_param[way->layer]];
    sl_moved_param_t copies[SL_LAYER_MAX_PARAMS] = {{NULL, {NULL}}};
    void *buffer = NULL;
    sl_status_t status;
    int p;

    for (p = 0; p < n_params(mover, way->layer); p++) {
        copies[p].desc = params[p].desc;
    }
    status = agree(mover, make_copies(mover, way, copies, &buffer));
    if (status >= 0) {
        status = move_contents(mover, way, copies, buffer);
        mover->is_broken |= status < 0 && mover->engine->params.world != NULL;
    }
    for (p = 0; p < n_params(mover, way->layer); p++) {
        release_blocks(status < 0 ? &copies[p] : &params[p]);
        if (status >= 0) {
            params[p] = copies[p];
        }
    }
    mover->moved_bytes += status < 0 ? 0 : layer_bytes(mover, way->layer);
    free(buffer);
    return status;
}

static sl_status_t note_crossing(sl_mover_t *mover)
{
    const int room = 2 * mover->crossings_room + mover->model->n_layers;
    sl_crossing_t *crossings;
    sl_status_t status = SL_OK;

    if (mover->n_crossings < mover->crossings_room) {
        return SL_OK;
    }
    crossings = realloc(mover->crossings, (size_t)room * sizeof(*crossings));
    if (crossings == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory to move %d layers", room);
    }
    mover->crossings = crossings;
    mover->crossings_room = room;
out:
    return status;
}

static const sl_grid_slot_t *slot_of(const sl_mover_t *mover, int stage)
{
    return sl_grid_slot(mover->engine->grid, stage, mover->n_stages);
}

static sl_device_t *device_of(const sl_mover_t *mover, int stage)
{
    const sl_stage_t *own = sl_engine_find_stage(mover->engine, 0, stage);

    return own == NULL ? NULL : own->device;
}

/* Cut k moves by one: a layer changes over to the stage on its other side. */
static sl_status_t cross(sl_mover_t *mover, int k, int by)
{
    const int from = by > 0 ? k : k - 1, to = by > 0 ? k - 1 : k;
    const sl_way_t way = {.layer = by > 0 ? mover->now[k] : mover->now[k] - 1,
                          .from_rank = slot_of(mover, from)->rank,
                          .to_rank = slot_of(mover, to)->rank,
                          .from = device_of(mover, from),
                          .to = device_of(mover, to)};
    sl_status_t status = SL_OK;

    if (slot_of(mover, from) != slot_of(mover, to)) {
        SL_TRY(status, move_layer(mover, &way), out);
    }
    mover->now[k] += by;
out:
    return status;
}

static sl_status_t cross_noted(sl_mover_t *mover, int k, int by)
{
    sl_status_t status;

    SL_TRY(status, agree(mover, note_crossing(mover)), out);
    SL_TRY(status, cross(mover, k, by), out);
    mover->crossings[mover->n_crossings].k = k;
    mover->crossings[mover->n_crossings].by = by;
    mover->n_crossings++;
out:
    return status;
}

/* ---- all layers ---- */

static int are_equal(const int *a, const int *b, int n_stages)
{
    return memcmp(a, b, ((size_t)n_stages + 1) * sizeof(*a)) == 0;
}

static size_t stage_bytes(const sl_mover_t *mover, const int *cuts, int k)
{
    size_t bytes = 0;
    int l;

    for (l = cuts[k]; l < cuts[k + 1]; l++) {
        bytes += layer_bytes(mover, l);
    }
    return bytes;
}

/* By how much stage k would exceed the most that it has before or after all
 * moves, with one layer more; negative: by how much not. */
static double excess(const sl_mover_t *mover, const int *cuts, int k, int layer)
{
    const double before =
        (double)stage_bytes(mover, mover->engine->params.cuts, k);
    const double after = (double)stage_bytes(mover, cuts, k);

    return (double)stage_bytes(mover, mover->now, k) +
           (double)layer_bytes(mover, layer) -
           (before > after ? before : after);
}

/* Which way cut k goes now: 0 when it is there, or when that would leave a
 * stage empty. */
static int way_of(const sl_mover_t *mover, const int *cuts, int k)
{
    const int *now = mover->now;

    if (now[k] < cuts[k] && now[k] + 1 < now[k + 1]) {
        return 1;
    }
    if (now[k] > cuts[k] && now[k] - 1 > now[k - 1]) {
        return -1;
    }
    return 0;
}

/* The cut to move next: the stage that it adds to has the most room. 0 when
 * there is none. */
static int choose_cut(const sl_mover_t *mover, const int *cuts)
{
    double least = 0.0;
    int k, best = 0;

    for (k = 1; k < mover->n_stages; k++) {
        const int way = way_of(mover, cuts, k);
        double over;

        if (way == 0 || mover->is_refused[k]) {
            continue;
        }
        over = way > 0 ? excess(mover, cuts, k - 1, mover->now[k])
                       : excess(mover, cuts, k, mover->now[k] - 1);
        if (best == 0 || over < least) {
            best = k;
            least = over;
        }
    }
    return best;
}

/* A cut whose layer finds no room waits until others have made some. */
static sl_status_t move_all(sl_mover_t *mover, const int *cuts)
{
    const size_t flags = (size_t)mover->n_stages * sizeof(int);
    sl_status_t status = SL_OK;
    int k = choose_cut(mover, cuts);

    while (k > 0) {
        status = cross_noted(mover, k, way_of(mover, cuts, k));
        if (status == SL_ERR_QUOTA) {
            mover->is_refused[k] = 1;
        } else {
            SL_TRY(status, status, out);
            memset(mover->is_refused, 0, flags);
        }
        k = choose_cut(mover, cuts);
    }
    /* the last that was refused, when some still are */
    status = are_equal(mover->now, cuts, mover->n_stages) ? SL_OK : status;
out:
    return status;
}

/* Back to where they were. What has no way back stays: that is a partition
 * too, of which `now` are the cuts. */
static void move_back(sl_mover_t *mover)
{
    while (mover->n_crossings > 0 && !mover->is_broken) {
        const sl_crossing_t *last = &mover->crossings[mover->n_crossings - 1];

        if (cross(mover, last->k, -last->by) < 0) {
            return;
        }
        mover->n_crossings--;
    }
}

/* ---- the blocks ---- */

static sl_status_t mover_init(sl_mover_t *mover, sl_engine_t *engine)
{
    const sl_model_t *model = engine->params.model;
    const size_t n = (size_t)model->n_layers;
    const size_t k = (size_t)engine->n_stages;
    sl_status_t status = SL_OK;
    int l, p, n_all = 0;

    mover->model = model;
    mover->n_stages = engine->n_stages;
    mover->now = calloc(k + 1, sizeof(int));
    mover->is_refused = calloc(k, sizeof(int));
    mover->first_param = calloc(n + 1, sizeof(int));
    if (mover->now == NULL || mover->is_refused == NULL ||
        mover->first_param == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory to move layers of %zu", n);
    }
    memcpy(mover->now, engine->params.cuts, (k + 1) * sizeof(int));
    for (l = 0; l < model->n_layers; l++) {
        n_all += model->layers[l]->n_params;
        mover->first_param[l + 1] = n_all;
    }
    mover->params = calloc((size_t)n_all + 1, sizeof(*mover->params));
    if (mover->params == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %d parameters", n_all);
    }
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            mover->params[mover->first_param[l] + p].desc =
                &model->layers[l]->params[p];
        }
    }
out:
    return status;
}

static void mover_cleanup(sl_mover_t *mover)
{
    free(mover->now);
    free(mover->is_refused);
    free(mover->params);
    free(mover->first_param);
    free(mover->codes);
    free(mover->crossings);
}

static sl_mem_block_t **block_of(sl_stage_param_t *param, int i)
{
    return i == 0   ? &param->value.block
           : i == 1 ? &param->grad.block
                    : &param->moments[i - 2].block;
}

/* The blocks of this rank's stages to the mover, or into stages with the cuts
 * of this moment. */
static void exchange_blocks(sl_mover_t *mover, sl_engine_t *engine,
                            int is_taken)
{
    int k, p, i;

    for (k = 0; k < engine->n_cells; k++) {
        for (p = 0; p < engine->stages[k].n_params; p++) {
            sl_stage_param_t *param = &engine->stages[k].params[p];
            sl_moved_param_t *moved =
                &mover->params[mover->first_param[param->layer] + param->param];

            for (i = 0; i < N_BLOCKS; i++) {
                if (is_taken) {
                    moved->blocks[i] = *block_of(param, i);
                    *block_of(param, i) = NULL;
                } else {
                    *block_of(param, i) = moved->blocks[i];
                    moved->blocks[i] = NULL;
                }
            }
        }
    }
}

/* What no stage has taken, after a failure that nothing could mend. */
static void drop_blocks(sl_mover_t *mover)
{
    int p;

    for (p = 0; p < mover->first_param[mover->model->n_layers]; p++) {
        release_blocks(&mover->params[p]);
    }
}

/* ---- stages ---- */

/* An engine with these cuts, without parameters and threads. */
static sl_status_t build_bare(sl_mover_t *mover, const int *cuts,
                              sl_engine_t **next_p)
{
    sl_engine_params_t params = mover->engine->params;
    unsigned char *chosen = NULL;
    sl_status_t status = SL_OK;

    params.cuts = cuts;
    if (params.recompute == SL_RECOMPUTE_AUTO && params.keeps == NULL) {
        SL_TRY(status, sl_recompute_choose(&params, &chosen), out);
    }
    status = sl_engine_build_bare(
        &params, chosen != NULL ? chosen : params.keeps, next_p);
out:
    free(chosen);
    return agree(mover, status);
}

#define SWAP(type, a, b)                                                       \
    do {                                                                       \
        type swap_ = (a);                                                      \
                                                                               \
        (a) = (b);                                                             \
        (b) = swap_;                                                           \
    } while (0)

/* All but what an executor may read while it waits: its engine. */
static void exchange(sl_stage_t *own, sl_stage_t *other)
{
    const size_t head = offsetof(sl_stage_t, device);
    const sl_stage_t before = *own;

    memcpy((char *)own + head, (const char *)other + head,
           sizeof(before) - head);
    memcpy((char *)other + head, (const char *)&before + head,
           sizeof(before) - head);
    own->thread = before.thread;
    own->has_thread = before.has_thread;
    other->has_thread = 0;
}

/* The stages of `next` become the engine's; what the engine had is `next`'s.
 * The executors stay: they wait for the next job. */
static void change_places(sl_engine_t *engine, sl_engine_t *next)
{
    int k, c;

    for (k = 0; k < engine->n_cells; k++) {
        exchange(&engine->stages[k], &next->stages[k]);
    }
    SWAP(int *, engine->layer_stage, next->layer_stage);
    SWAP(int, engine->n_channels, next->n_channels);
    SWAP(sl_channel_t *, engine->channels, next->channels);
    SWAP(int, engine->n_ties, next->n_ties);
    SWAP(sl_tie_t *, engine->ties, next->ties);
    SWAP(int, engine->n_norms, next->n_norms);
    SWAP(double *, engine->norms, next->norms);
    SWAP(unsigned char *, engine->keeps, next->keeps);
    SWAP(sl_recompute_t, engine->recompute, next->recompute);
    SWAP(int *, engine->own_cuts, next->own_cuts);
    engine->params.cuts = engine->own_cuts;
    next->params.cuts = next->own_cuts;
    for (c = 0; c < engine->n_channels; c++) {
        engine->channels[c].abort = &engine->abort;
    }
}

/* Ties point at stages, over the exchange too. */
static void point_ties(sl_engine_t *engine, const sl_engine_t *next)
{
    int i;

    for (i = 0; i < engine->n_ties; i++) {
        sl_tie_t *tie = &engine->ties[i];

        if (tie->owner_stage != NULL) {
            tie->owner_stage = &engine->stages[tie->owner_stage - next->stages];
        }
        if (tie->user_stage != NULL) {
            tie->user_stage = &engine->stages[tie->user_stage - next->stages];
        }
    }
}

static void adopt(sl_mover_t *mover, sl_engine_t *next)
{
    exchange_blocks(mover, next, 0);
    change_places(mover->engine, next);
    point_ties(mover->engine, next);
}

/* It cannot be as it is to be: as it was, or as far back as there is room.
 * In one process, without host memory for that, what is left keeps its place
 * beside a stage of another device, which a CPU reads all the same. */
static void go_back(sl_mover_t *mover, sl_status_t why)
{
    sl_engine_t *engine = mover->engine, *next = NULL;
    const int is_cpu =
        engine->params.devices->devices[0].kind == SL_DEVICE_KIND_CPU;
    char detail[SL_ERROR_DETAIL_BYTES];

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    move_back(mover);
    if (mover->n_crossings > 0 && !mover->is_broken &&
        build_bare(mover, mover->now, &next) >= 0) {
        adopt(mover, next);
        sl_engine_destroy(next);
    } else {
        exchange_blocks(mover, engine, 0);
        drop_blocks(mover);
        engine->is_failed |=
            mover->n_crossings > 0 &&
            (!is_cpu || engine->params.world != NULL || mover->is_broken);
    }
    engine->is_failed |= why == SL_ERR_DEVICE || mover->is_broken;
    sl_last_error_set(detail);
}

/* ---- all of it ---- */

static sl_status_t check(const sl_engine_t *engine, const int *cuts)
{
    const sl_device_set_t *devices = engine->params.devices;
    sl_status_t status;
    int d;

    if (engine->is_failed) {
        SL_FAIL(status, SL_ERR_CANCELED, out,
                "engine: a device failed in an earlier step, or the update "
                "was cut short; create a new engine");
    }
    if (engine->n_replicas > 1) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "engine: moving layers of %d replicas is not supported",
                engine->n_replicas);
    }
    for (d = 1; d < devices->n_devices; d++) {
        if (devices->devices[d].kind != devices->devices[0].kind) {
            SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                    "engine: layers do not move between kinds of devices");
        }
    }
    status = sl_part_check_cuts(engine->params.model->n_layers,
                                engine->n_stages, cuts);
out:
    return status;
}

/* All ranks ask for the same. */
static sl_status_t compare_cuts(sl_engine_t *engine, const int *cuts)
{
    const size_t bytes = ((size_t)engine->n_stages + 1) * sizeof(int);
    sl_status_t status = SL_OK;
    int *first = NULL;

    if (engine->params.world == NULL) {
        return SL_OK;
    }
    first = malloc(bytes);
    if (first == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %d cuts", engine->n_stages);
    }
    memcpy(first, cuts, bytes);
    SL_TRY(status, sl_engine_broadcast(engine, 0, first, bytes), out);
    if (memcmp(first, cuts, bytes) != 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "engine: rank %d asks for other cuts than rank 0",
                engine->grid->rank);
    }
out:
    free(first);
    return status;
}

static int count_moved(const sl_engine_t *engine, const int *cuts)
{
    int l, n = 0, k = 0;

    for (l = 0; l < engine->params.model->n_layers; l++) {
        while (l >= cuts[k + 1]) {
            k++;
        }
        n += engine->layer_stage[l] != k;
    }
    return n;
}

/* The edges between ranks, of the cuts that hold now. */
static sl_status_t open_edges(sl_mover_t *mover)
{
    sl_engine_t *engine = mover->engine;
    sl_status_t status = SL_OK;

    if (engine->params.world != NULL && !engine->is_failed) {
        status = agree(mover, sl_edges_open(engine));
        engine->is_failed = status < 0;
    }
    return status;
}

/* New edges have the tags of the old ones, which close first. */
static sl_status_t move_state(sl_mover_t *mover, sl_engine_t *next,
                              const int *cuts)
{
    sl_status_t status, opened;

    sl_edges_close(mover->engine);
    exchange_blocks(mover, mover->engine, 1);
    status = move_all(mover, cuts);
    if (status < 0) {
        go_back(mover, status);
    } else {
        adopt(mover, next);
    }
    opened = open_edges(mover);
    return opened < 0 ? opened : status;
}

static sl_status_t repartition(sl_mover_t *mover, const int *cuts)
{
    sl_engine_t *next = NULL;
    sl_status_t status;

    SL_TRY(status, agree(mover, mover_init(mover, mover->engine)), out);
    SL_TRY(status, build_bare(mover, cuts, &next), out);
    status = move_state(mover, next, cuts);
out:
    sl_engine_destroy(next);
    return status;
}

sl_status_t sl_engine_repartition(sl_engine_t *engine, const int *cuts,
                                  sl_repartition_report_t *report_p)
{
    const uint64_t start_ns = sl_clock_ns();
    sl_repartition_report_t report = {0};
    sl_mover_t mover = {.engine = engine};
    sl_status_t status;

    SL_TRY(status, check(engine, cuts), out);
    mover.codes =
        calloc((size_t)sl_world_size(engine->params.world), sizeof(double));
    if (mover.codes == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for the ranks");
    }
    SL_TRY(status, agree(&mover, compare_cuts(engine, cuts)), out);
    report.n_layers = count_moved(engine, cuts);
    if (report.n_layers > 0) {
        SL_TRY(status, repartition(&mover, cuts), out);
    }
    report.moved_bytes = mover.moved_bytes;
    report.move_us = (double)(sl_clock_ns() - start_ns) * 1e-3;
    if (report_p != NULL) {
        *report_p = report;
    }
out:
    mover_cleanup(&mover);
    if (status < 0 && (mover.is_broken || !mover.is_common)) {
        status = sl_engine_together(engine, status); /* the others learn it */
    }
    return status;
}
