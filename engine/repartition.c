/* SPDX-License-Identifier: Apache-2.0 */
/* Other cuts: the new stages are made first, without parameters; then the
 * layers move (engine/mover.h); then the stages change places. */
#include "engine/repartition.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/mover.h"
#include "engine/parallel/edges.h"
#include "engine/parallel/together.h"
#include "engine/restage.h"
#include "engine/world.h"

const int *sl_engine_cuts(const sl_engine_t *engine)
{
    return engine->params.cuts;
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
    return sl_mover_agree(mover, status);
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
    sl_mover_exchange(mover, next, 0);
    change_places(mover->engine, next);
    point_ties(mover->engine, next);
}

/* It cannot be as it is to be: as it was, or as far back as there is room.
 * In one process, without host memory for that, what is left keeps its place
 * beside a stage of another device, which a CPU reads all the same. */
static void go_back(sl_mover_t *mover, sl_status_t why)
{
    sl_engine_t *engine = mover->engine, *next = NULL;
    const int is_one_memory =
        sl_device_kernels(engine->params.devices->devices[0].kind)
            ->is_one_memory;
    char detail[SL_ERROR_DETAIL_BYTES];

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    sl_mover_move_back(mover);
    if (mover->n_crossings > 0 && !mover->is_broken &&
        build_bare(mover, mover->now, &next) >= 0) {
        adopt(mover, next);
        sl_engine_destroy(next);
    } else {
        sl_mover_exchange(mover, engine, 0);
        sl_mover_drop(mover);
        engine->is_failed |= mover->n_crossings > 0 &&
                             (!is_one_memory || engine->params.world != NULL ||
                              mover->is_broken);
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
        status = sl_mover_agree(mover, sl_edges_open(engine));
        engine->is_failed = status < 0;
    }
    return status;
}

/* All replicas alike: their state goes over the host. */
static sl_status_t move_replicas(sl_mover_t *mover, sl_engine_t *next)
{
    sl_engine_t *engine = mover->engine;
    sl_status_t status, opened;

    sl_edges_close(engine);
    status = sl_restage(mover, next);
    if (status >= 0) {
        change_places(engine, next);
        point_ties(engine, next);
        return SL_OK;
    }
    engine->is_failed |= status == SL_ERR_DEVICE || mover->is_broken;
    opened = open_edges(mover);
    return opened < 0 ? opened : status;
}

/* New edges have the tags of the old ones, which close first. */
static sl_status_t move_state(sl_mover_t *mover, sl_engine_t *next,
                              const int *cuts)
{
    sl_status_t status, opened;

    sl_edges_close(mover->engine);
    sl_mover_exchange(mover, mover->engine, 1);
    status = sl_mover_move_all(mover, cuts);
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

    SL_TRY(status, sl_mover_agree(mover, sl_mover_init(mover, mover->engine)),
           out);
    SL_TRY(status, build_bare(mover, cuts, &next), out);
    status = mover->engine->n_replicas > 1 ? move_replicas(mover, next)
                                           : move_state(mover, next, cuts);
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
    SL_TRY(status, sl_mover_agree(&mover, compare_cuts(engine, cuts)), out);
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
    sl_mover_cleanup(&mover);
    if (status < 0 && (mover.is_broken || !mover.is_common)) {
        status = sl_engine_together(engine, status); /* the others learn it */
    }
    return status;
}
