/* SPDX-License-Identifier: Apache-2.0 */
/* Layers from stage to stage. The new stages are made first, without
 * parameters; then layers cross one cut at a time, so that at every moment
 * what lies where is a partition; then the stages change places. */
#include "engine/repartition.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "engine/topology.h"

/* Cut k has moved by one layer, up or down. */
typedef struct sl_crossing {
    int k, by;
} sl_crossing_t;

typedef struct sl_mover {
    sl_engine_t *engine;
    const sl_model_t *model;
    int n_stages;
    int *now;                 /* owned: the cuts of this moment */
    int *is_refused;          /* owned: per cut, its layer found no room */
    sl_stage_param_t *params; /* owned: all, in model order, with the blocks */
    int *first_param;         /* owned: [n_layers + 1] */
    sl_crossing_t *crossings; /* owned: done so far */
    int n_crossings, crossings_room;
    size_t moved_bytes;
} sl_mover_t;

const int *sl_engine_cuts(const sl_engine_t *engine)
{
    return engine->params.cuts;
}

/* ---- one layer ---- */

enum {
    N_BLOCKS = 4 /* of a parameter: value, gradient, moments */
};

static sl_mem_block_t **block_of(sl_stage_param_t *param, int i)
{
    return i == 0   ? &param->value
           : i == 1 ? &param->grad
                    : &param->moments[i - 2];
}

static void release_blocks(sl_stage_param_t *param)
{
    int i;

    for (i = 0; i < N_BLOCKS; i++) {
        sl_mem_release(*block_of(param, i));
        *block_of(param, i) = NULL;
    }
}

/* Blocks like those of `param`, with their contents, on another device. */
static sl_status_t copy_param(sl_stage_param_t *param, sl_device_t *to,
                              sl_stage_param_t *copy)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < N_BLOCKS; i++) {
        const sl_mem_block_t *block = *block_of(param, i);
        sl_mem_block_t **new_p = block_of(copy, i);

        if (block == NULL) {
            continue;
        }
        SL_TRY(
            status,
            sl_mem_alloc(to->mem, SL_MEM_CLASS_PERSISTENT, block->bytes, new_p),
            out);
        SL_TRY(
            status,
            sl_device_copy(to, (*new_p)->ptr, block->ptr, block->bytes, NULL),
            out);
    }
out:
    return status;
}

/* All of a layer or nothing; the devices are idle before and after. */
static sl_status_t move_layer(sl_mover_t *mover, int layer, sl_device_t *to)
{
    const int first = mover->first_param[layer];
    const int n = mover->first_param[layer + 1] - first;
    sl_stage_param_t copies[SL_LAYER_MAX_PARAMS];
    sl_status_t status = SL_OK;
    int p, i;

    for (p = 0; p < n; p++) {
        copies[p] = mover->params[first + p];
        for (i = 0; i < N_BLOCKS; i++) {
            *block_of(&copies[p], i) = NULL;
        }
    }
    for (p = 0; p < n && status >= 0; p++) {
        status = copy_param(&mover->params[first + p], to, &copies[p]);
    }
    SL_KEEP(status, sl_device_drain(to));
    for (p = 0; p < n; p++) {
        sl_stage_param_t *param = &mover->params[first + p];

        if (status < 0) {
            release_blocks(&copies[p]);
            continue;
        }
        for (i = 0; i < N_BLOCKS; i++) {
            if (*block_of(param, i) != NULL) {
                mover->moved_bytes += (*block_of(param, i))->bytes;
            }
        }
        release_blocks(param);
        *param = copies[p];
    }
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

static sl_device_t *device_of(const sl_mover_t *mover, int stage)
{
    const sl_engine_params_t *params = &mover->engine->params;

    return &params->devices->devices[sl_engine_device_of(params, stage)];
}

/* Cut k moves by one: a layer changes over to the stage on its other side. */
static sl_status_t cross(sl_mover_t *mover, int k, int by)
{
    const int layer = by > 0 ? mover->now[k] : mover->now[k] - 1;
    sl_device_t *to = device_of(mover, by > 0 ? k - 1 : k);
    sl_status_t status = SL_OK;

    if (device_of(mover, by > 0 ? k : k - 1) != to) {
        SL_TRY(status, move_layer(mover, layer, to), out);
    }
    mover->now[k] += by;
out:
    return status;
}

static sl_status_t cross_noted(sl_mover_t *mover, int k, int by)
{
    sl_status_t status;

    SL_TRY(status, note_crossing(mover), out);
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

static size_t layer_bytes(const sl_mover_t *mover, int layer)
{
    size_t bytes = 0;
    int p, i;

    for (p = mover->first_param[layer]; p < mover->first_param[layer + 1];
         p++) {
        for (i = 0; i < N_BLOCKS; i++) {
            const sl_mem_block_t *block = *block_of(&mover->params[p], i);

            bytes += block == NULL ? 0 : block->bytes;
        }
    }
    return bytes;
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
    while (mover->n_crossings > 0) {
        const sl_crossing_t *last = &mover->crossings[mover->n_crossings - 1];

        if (cross(mover, last->k, -last->by) < 0) {
            return;
        }
        mover->n_crossings--;
    }
}

/* ---- stages ---- */

static sl_status_t mover_init(sl_mover_t *mover, sl_engine_t *engine)
{
    const sl_model_t *model = engine->params.model;
    const size_t n = (size_t)model->n_layers;
    sl_status_t status = SL_OK;
    int l, n_params = 0;

    memset(mover, 0, sizeof(*mover));
    mover->engine = engine;
    mover->model = model;
    mover->n_stages = engine->n_stages;
    mover->now = calloc((size_t)engine->n_stages + 1, sizeof(int));
    mover->is_refused = calloc((size_t)engine->n_stages, sizeof(int));
    mover->first_param = calloc(n + 1, sizeof(int));
    if (mover->now == NULL || mover->is_refused == NULL ||
        mover->first_param == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory to move layers of %zu", n);
    }
    for (l = 0; l < model->n_layers; l++) {
        n_params += model->layers[l]->n_params;
        mover->first_param[l + 1] = n_params;
    }
    mover->params = calloc((size_t)n_params + 1, sizeof(*mover->params));
    if (mover->params == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %d parameters", n_params);
    }
    memcpy(mover->now, engine->params.cuts,
           ((size_t)engine->n_stages + 1) * sizeof(int));
out:
    return status;
}

static void mover_cleanup(sl_mover_t *mover)
{
    free(mover->now);
    free(mover->is_refused);
    free(mover->params);
    free(mover->first_param);
    free(mover->crossings);
}

/* The blocks of all stages to the mover, or back into stages with the cuts of
 * this moment. */
static void take_blocks(sl_mover_t *mover, sl_engine_t *engine)
{
    int k, p, n = 0, i;

    for (k = 0; k < engine->n_stages; k++) {
        for (p = 0; p < engine->stages[k].n_params; p++) {
            sl_stage_param_t *param = &engine->stages[k].params[p];

            mover->params[n++] = *param;
            for (i = 0; i < N_BLOCKS; i++) {
                *block_of(param, i) = NULL;
            }
        }
    }
}

static void give_blocks(sl_mover_t *mover, sl_engine_t *engine)
{
    int k, p, n = 0, i;

    for (k = 0; k < engine->n_stages; k++) {
        for (p = 0; p < engine->stages[k].n_params; p++, n++) {
            for (i = 0; i < N_BLOCKS; i++) {
                *block_of(&engine->stages[k].params[p], i) =
                    *block_of(&mover->params[n], i);
            }
        }
    }
}

/* An engine with these cuts, without parameters and threads. */
static sl_status_t build_bare(const sl_engine_t *engine, const int *cuts,
                              sl_engine_t **next_p)
{
    sl_engine_params_t params = engine->params;
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
    return status;
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

    for (k = 0; k < engine->n_stages; k++) {
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

/* Stages and ties point at each other, also over an exchange. */
static void point_ties(sl_engine_t *engine, const sl_engine_t *next)
{
    int i;

    for (i = 0; i < engine->n_ties; i++) {
        sl_tie_t *tie = &engine->ties[i];

        tie->owner_stage = &engine->stages[tie->owner_stage - next->stages];
        tie->user_stage = &engine->stages[tie->user_stage - next->stages];
    }
}

static void adopt(sl_mover_t *mover, sl_engine_t *next)
{
    give_blocks(mover, next);
    change_places(mover->engine, next);
    point_ties(mover->engine, next);
}

/* It cannot be as it is to be: as it was, or as far back as there is room.
 * Without host memory for that, what is left keeps its place beside a stage
 * of another device, which a CPU reads all the same. */
static void go_back(sl_mover_t *mover, sl_status_t why)
{
    sl_engine_t *engine = mover->engine, *next = NULL;
    char detail[SL_ERROR_DETAIL_BYTES];

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    move_back(mover);
    if (mover->n_crossings > 0 && build_bare(engine, mover->now, &next) >= 0) {
        adopt(mover, next);
        sl_engine_destroy(next);
    } else {
        give_blocks(mover, engine);
        engine->is_failed =
            engine->is_failed ||
            (mover->n_crossings > 0 &&
             engine->params.devices->devices[0].kind != SL_DEVICE_KIND_CPU);
    }
    engine->is_failed = engine->is_failed || why == SL_ERR_DEVICE;
    sl_last_error_set(detail);
}

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

sl_status_t sl_engine_repartition(sl_engine_t *engine, const int *cuts,
                                  sl_repartition_report_t *report_p)
{
    const uint64_t start_ns = sl_clock_ns();
    sl_repartition_report_t report = {0};
    sl_engine_t *next = NULL;
    sl_mover_t mover = {0};
    sl_status_t status;

    SL_TRY(status, check(engine, cuts), out);
    report.n_layers = count_moved(engine, cuts);
    if (report.n_layers > 0) {
        SL_TRY(status, mover_init(&mover, engine), out);
        SL_TRY(status, build_bare(engine, cuts, &next), out);
        take_blocks(&mover, engine);
        status = move_all(&mover, cuts);
        if (status < 0) {
            go_back(&mover, status);
            goto out;
        }
        adopt(&mover, next);
    }
    report.moved_bytes = mover.moved_bytes;
    report.move_us = (double)(sl_clock_ns() - start_ns) * 1e-3;
    if (report_p != NULL) {
        *report_p = report;
    }
out:
    sl_engine_destroy(next);
    mover_cleanup(&mover);
    return status;
}
