/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts that fit: estimate, cut, rehearse, correct, again. */
#include "engine/fit_search.h"

#include <stdlib.h>
#include <string.h>

#include "engine/parallel/together.h"
#include "engine/schedule/schedule_internal.h"
#include "engine/world.h"

enum {
    /* cuts that are rehearsed, in each of the two ways to correct */
    MAX_ROUNDS = 16
};

/* The second way takes estimates for this part too high. */
#define DISTRUST 0.9

/* Index of the slot that has a stage. */
static int slot_of(const sl_fit_search_t *search, int replica, int stage)
{
    const sl_engine_params_t *params = &search->params;

    return (int)(sl_grid_slot(params->grid, replica * params->n_stages + stage,
                              params->n_replicas * params->n_stages) -
                 params->grid->slots);
}

/* Stages of all replicas. */
static int stages_on(const sl_fit_search_t *search, int slot)
{
    int k, r, n = 0;

    for (r = 0; r < search->params.n_replicas; r++) {
        for (k = 0; k < search->params.n_stages; k++) {
            n += slot_of(search, r, k) == slot;
        }
    }
    return n;
}

/* ---- the estimate ---- */

static sl_part_recompute_t recompute_of(sl_recompute_t recompute)
{
    switch (recompute) {
    case SL_RECOMPUTE_NONE:
        return SL_PART_RECOMPUTE_NONE;
    case SL_RECOMPUTE_EXCEPT_LAST:
        return SL_PART_RECOMPUTE_EXCEPT_LAST;
    case SL_RECOMPUTE_FULL:
    case SL_RECOMPUTE_AUTO: /* the least that it comes down to */
        break;
    }
    return SL_PART_RECOMPUTE_FULL;
}

sl_status_t sl_engine_estimate(const sl_engine_params_t *params,
                               sl_part_memory_t **memory_p)
{
    const int n_stages =
        params->n_stages == 0 ? params->devices->n_devices : params->n_stages;
    int n_micro = 0, k;
    sl_schedule_params_t schedule = {.kind = params->schedule,
                                     .order = params->backward_order,
                                     .recompute = params->recompute,
                                     .n_stages = n_stages};
    sl_part_memory_params_t own = {
        .model = params->model,
        .n_threads = params->devices->devices[0].n_threads,
        .n_moments = sl_optimizer_n_moments(&params->optimizer),
        .n_stages = n_stages,
        .is_interleaved = params->schedule == SL_SCHEDULE_1F1B,
        .recompute = recompute_of(params->recompute)};
    int *in_flight = calloc((size_t)n_stages + 1, sizeof(int));
    sl_status_t status;

    if (in_flight == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %d stages", n_stages);
    }
    own.rows =
        sl_split_rows(params->batch_rows, params->n_micro_batches, 0, &n_micro);
    own.n_micro_batches = schedule.n_micro_batches = n_micro;
    for (k = 0; k < n_stages; k++) {
        in_flight[k] = sl_schedule_max_in_flight(&schedule, k);
    }
    own.in_flight = in_flight;
    status = sl_part_memory_create(&own, memory_p);
out:
    free(in_flight);
    return status;
}

/* A stage that did not fit never will; others need what is estimated, as far
 * as the estimates were corrected. */
static size_t need(void *ctx, int begin, int end, int stage)
{
    const sl_fit_search_t *search = ctx;
    size_t bytes;
    int i;

    for (i = 0; i < search->n_misfits; i++) {
        const sl_fit_misfit_t *misfit = &search->misfits[i];

        if (misfit->stage == stage && misfit->begin == begin &&
            misfit->end == end) {
            return SIZE_MAX;
        }
    }
    bytes = sl_part_memory_need(search->memory, begin, end, stage);
    return (size_t)((double)bytes * search->factor) + search->extra[stage];
}

/* ---- a rehearsal, and what follows ---- */

static sl_status_t note_misfit(sl_fit_search_t *search, int stage)
{
    const int room = search->misfits_room + search->params.n_stages;
    sl_fit_misfit_t *misfits = search->misfits;
    sl_status_t status = SL_OK;

    if (search->n_misfits == search->misfits_room) {
        misfits = realloc(misfits, (size_t)room * sizeof(*misfits));
        if (misfits == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "engine: no host memory for %d cuts", room);
        }
        search->misfits = misfits;
        search->misfits_room = room;
    }
    misfits[search->n_misfits].begin = search->cuts[stage];
    misfits[search->n_misfits].end = search->cuts[stage + 1];
    misfits[search->n_misfits].stage = stage;
    search->n_misfits++;
out:
    return status;
}

/* By as much as the rehearsal found more than was estimated; where only
 * fragmentation is too much, by what was free. */
static void correct(sl_fit_search_t *search, int stage, int slot)
{
    const size_t found =
        search->slots[slot].peak_bytes / (size_t)stages_on(search, slot);
    const size_t limit = search->limits[stage];
    const size_t least = found > limit ? found : limit + 1;
    const size_t estimate = sl_part_memory_need(
        search->memory, search->cuts[stage], search->cuts[stage + 1], stage);

    if (least > estimate && least - estimate > search->extra[stage]) {
        search->extra[stage] = least - estimate;
    }
}

static sl_status_t learn(sl_fit_search_t *search, int corrects)
{
    sl_status_t status = SL_OK;
    int k, r;

    for (k = 0; k < search->params.n_stages; k++) {
        for (r = 0; r < search->params.n_replicas; r++) {
            const int slot = slot_of(search, r, k);

            if (search->slots[slot].fits) {
                continue;
            }
            SL_TRY(status, note_misfit(search, k), out);
            if (corrects) {
                correct(search, k, slot);
            }
        }
    }
out:
    return status;
}

/* Cut under the estimates and rehearse, until it fits or nothing is left. */
static sl_status_t try_estimates(sl_fit_search_t *search, int corrects)
{
    sl_status_t status;
    int round, is_found = 0;

    search->factor = corrects ? 1.0 : DISTRUST;
    memset(search->extra, 0,
           (size_t)search->params.n_stages * sizeof(*search->extra));
    for (round = 0; round < MAX_ROUNDS; round++) {
        SL_TRY(status, sl_fit_split(search, &is_found), out);
        if (!is_found) {
            return SL_OK;
        }
        SL_TRY(status, sl_fit_rehearse(search), out);
        if (search->fit.fits) {
            return SL_OK;
        }
        SL_TRY(status, learn(search, corrects), out);
    }
    status = SL_OK;
out:
    return status;
}

/* Nothing fits: the cuts that come nearest, and where they miss most. */
static sl_status_t find_least(sl_fit_search_t *search)
{
    sl_world_t *world = search->params.world;
    const size_t n = (size_t)search->params.n_stages + 1;
    double worst = -1.0;
    sl_status_t status;
    int s;

    search->n_misfits = 0;
    search->factor = 1.0;
    memset(search->extra, 0,
           (size_t)search->params.n_stages * sizeof(*search->extra));
    SL_TRY(status, sl_part_least_memory(&search->problem, search->cuts), out);
    if (world != NULL) {
        SL_TRY(status,
               sl_world_broadcast(world, 0, search->cuts,
                                  n * sizeof(*search->cuts)),
               out);
    }
    SL_TRY(status, sl_fit_rehearse(search), out);
    for (s = 0; s < search->n_slots; s++) {
        const sl_fit_slot_t *slot = &search->slots[s];
        const double part =
            (double)slot->peak_bytes / ((double)slot->limit_bytes + 1.0);

        if (!slot->fits && part > worst) {
            worst = part;
            search->fit.slot = s;
            search->fit.need_bytes = slot->peak_bytes > slot->limit_bytes
                                         ? slot->peak_bytes
                                         : slot->held_bytes;
            search->fit.limit_bytes = slot->limit_bytes;
        }
    }
out:
    return status;
}

/* ---- the search ---- */

static sl_status_t find_limits(sl_fit_search_t *search)
{
    const size_t n = (size_t)search->params.n_stages;
    sl_status_t status = SL_OK;
    int k, r;

    search->limits = calloc(n, sizeof(*search->limits));
    search->extra = calloc(n, sizeof(*search->extra));
    if (search->limits == NULL || search->extra == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for the limits of %zu stages", n);
    }
    for (k = 0; k < (int)n; k++) {
        search->limits[k] = SIZE_MAX;
        for (r = 0; r < search->params.n_replicas; r++) {
            const int slot = slot_of(search, r, k);
            const size_t limit = search->slots[slot].limit_bytes;
            const size_t part = limit / (size_t)stages_on(search, slot);

            if (limit != SIZE_MAX && part < search->limits[k]) {
                search->limits[k] = part;
            }
        }
    }
out:
    return status;
}

static sl_status_t search_under_limits(sl_fit_search_t *search)
{
    sl_status_t status;

    SL_TRY(status, sl_engine_estimate(&search->params, &search->memory), out);
    SL_TRY(status, find_limits(search), out);
    search->problem.memory_bytes = search->limits;
    search->problem.stage_need = need;
    search->problem.need_ctx = search;
    SL_TRY(status, try_estimates(search, 1), out);
    if (!search->fit.fits) {
        SL_TRY(status, try_estimates(search, 0), out);
    }
    if (!search->fit.fits) {
        status = find_least(search);
    }
out:
    return status;
}

static sl_status_t reserve(sl_fit_search_t *search)
{
    const size_t n = (size_t)search->params.grid->n_slots;
    const size_t n_ranks = (size_t)search->params.grid->n_ranks;
    sl_status_t status = SL_OK;

    search->n_slots = (int)n;
    search->slots = calloc(n, sizeof(*search->slots));
    search->rows = calloc(n * n_ranks, sizeof(*search->rows));
    if (search->slots == NULL || search->rows == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for the limits of %zu devices", n);
    }
out:
    return status;
}

/* All ranks do the same: what a search goes by is the same on all. */
static sl_status_t run_search(sl_fit_search_t *search)
{
    sl_status_t status;
    int is_found = 0;

    SL_TRY(status, reserve(search), out);
    SL_TRY(status, sl_fit_read_limits(search), out);
    SL_TRY(status, sl_fit_split(search, &is_found), out);
    if (!is_found) {
        SL_FAIL(status, SL_ERR_QUOTA, out, "engine: no cuts were found");
    }
    SL_TRY(status, sl_fit_rehearse(search), out);
    if (!search->fit.fits) {
        status = search_under_limits(search);
    }
out:
    return status;
}

static sl_status_t search_with_grid(sl_fit_search_t *search)
{
    sl_world_t *world = search->params.world;
    sl_grid_t *grid = NULL;
    /* an engine of this world may live, and watch */
    const sl_world_watcher_t watcher = sl_world_watcher(world);
    sl_abort_t abort;
    sl_status_t status = SL_OK;

    sl_abort_init(&abort);
    sl_together_watch(world, &abort);
    if (search->params.grid == NULL) {
        SL_TRY(status, sl_grid_create(world, search->params.devices, &grid),
               out);
        search->params.grid = grid;
    }
    status = run_search(search);
out:
    status = sl_together_end(world, &abort, status);
    sl_world_watch(world, watcher.on_abort, watcher.ctx);
    sl_rehearsal_close(search->rehearsal);
    search->rehearsal = NULL;
    sl_grid_destroy(grid);
    sl_abort_cleanup(&abort);
    return status;
}

sl_status_t sl_engine_fit(const sl_engine_params_t *params,
                          const sl_part_problem_t *problem, int *cuts,
                          sl_fit_t *fit_p)
{
    sl_fit_search_t search = {.params = *params, .problem = *problem};
    const size_t bytes = ((size_t)problem->n_stages + 1) * sizeof(int);
    sl_status_t status;

    search.params.n_stages = problem->n_stages;
    search.cuts = malloc(bytes);
    if (search.cuts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %d cuts", problem->n_stages);
    }
    search.params.cuts = search.cuts;
    search.problem.memory_bytes = NULL;
    SL_TRY(status, search_with_grid(&search), out);
    memcpy(cuts, search.cuts, bytes);
    *fit_p = search.fit;
out:
    sl_part_memory_destroy(search.memory);
    free(search.limits);
    free(search.extra);
    free(search.misfits);
    free(search.slots);
    free(search.rows);
    free(search.cuts);
    return status;
}
