/* SPDX-License-Identifier: Apache-2.0 */
/* Layers cross one cut at a time, so that what lies where is a partition at
 * every moment. */
#include <stdlib.h>
#include <string.h>

#include "engine/mover.h"

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
        SL_TRY(status, sl_mover_move(mover, &way), out);
    }
    mover->now[k] += by;
out:
    return status;
}

static sl_status_t cross_noted(sl_mover_t *mover, int k, int by)
{
    sl_status_t status;

    SL_TRY(status, sl_mover_agree(mover, note_crossing(mover)), out);
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

/* By how much stage k would exceed the most that it has before or after all
 * moves, with one layer more; negative: by how much not. */
static double excess(const sl_mover_t *mover, const int *cuts, int k, int layer)
{
    const double before =
        (double)sl_mover_stage_bytes(mover, mover->engine->params.cuts, k);
    const double after = (double)sl_mover_stage_bytes(mover, cuts, k);

    return (double)sl_mover_stage_bytes(mover, mover->now, k) +
           (double)sl_mover_layer_bytes(mover, layer) -
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
sl_status_t sl_mover_move_all(sl_mover_t *mover, const int *cuts)
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
void sl_mover_move_back(sl_mover_t *mover)
{
    while (mover->n_crossings > 0 && !mover->is_broken) {
        const sl_crossing_t *last = &mover->crossings[mover->n_crossings - 1];

        if (cross(mover, last->k, -last->by) < 0) {
            return;
        }
        mover->n_crossings--;
    }
}
