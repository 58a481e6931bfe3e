/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts that fit: estimate, cut, rehearse, correct, again. */
#include "engine/fit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/parallel/together.h"
#include "engine/rehearse.h"
#include "engine/schedule/schedule_internal.h"
#include "engine/world.h"

enum {
    /* cuts that are rehearsed, in each of the two ways to correct */
    MAX_ROUNDS = 16
};

/* The second way takes estimates for this part too high. */
#define DISTRUST 0.9

/* A stage that was rehearsed and did not fit. */
typedef struct sl_misfit {
    int begin, end, stage;
} sl_misfit_t;

typedef struct sl_search {
    sl_engine_params_t params; /* with `cuts` */
    sl_part_problem_t problem;
    int *cuts;                /* owned */
    sl_part_memory_t *memory; /* owned */
    size_t *limits;           /* owned, per stage */
    size_t *extra;            /* owned, per stage: added to estimates */
    double factor;            /* of estimates */
    sl_misfit_t *misfits;     /* owned */
    int n_misfits, misfits_room;
    sl_rehearsal_t *rehearsal; /* owned; the latest */
    sl_fit_t fit;
} sl_search_t;

static int device_of(const sl_search_t *search, int replica, int stage)
{
    const sl_engine_params_t *params = &search->params;

    return sl_grid_slot(params->grid, replica * params->n_stages + stage,
                        params->n_replicas * params->n_stages)
        ->device;
}

/* What the next boundary brings, as far as memory in use allows it. */
static size_t limit_of(const sl_search_t *search, int device)
{
    sl_mem_stats_t stats;

    sl_mem_stats(search->params.devices->devices[device].mem, &stats);
    return stats.asked_limit_bytes;
}

/* Stages of all replicas. */
static int stages_on(const sl_search_t *search, int device)
{
    int k, r, n = 0;

    for (r = 0; r < search->params.n_replicas; r++) {
        for (k = 0; k < search->params.n_stages; k++) {
            n += device_of(search, r, k) == device;
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
    const sl_search_t *search = ctx;
    size_t bytes;
    int i;

    for (i = 0; i < search->n_misfits; i++) {
        const sl_misfit_t *misfit = &search->misfits[i];

        if (misfit->stage == stage && misfit->begin == begin &&
            misfit->end == end) {
            return SIZE_MAX;
        }
    }
    bytes = sl_part_memory_need(search->memory, begin, end, stage);
    return (size_t)((double)bytes * search->factor) + search->extra[stage];
}

/* ---- a rehearsal, and what follows ---- */

static sl_status_t rehearse(sl_search_t *search)
{
    sl_status_t status;
    int d;

    sl_rehearsal_close(search->rehearsal);
    search->rehearsal = NULL;
    SL_TRY(status, sl_rehearsal_open(&search->params, &search->rehearsal), out);
    for (d = 0; d < search->params.devices->n_devices; d++) {
        sl_rehearsal_set_limit(search->rehearsal, d, limit_of(search, d));
    }
    SL_TRY(status, sl_rehearsal_run(search->rehearsal), out);
    search->fit.n_rounds++;
    search->fit.fits = 1;
    for (d = 0; d < search->params.devices->n_devices; d++) {
        search->fit.fits &= sl_rehearsal_memory(search->rehearsal, d)->fits;
    }
out:
    return status;
}

static sl_status_t note_misfit(sl_search_t *search, int stage)
{
    const int room = search->misfits_room + search->params.n_stages;
    sl_misfit_t *misfits = search->misfits;
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
static void correct(sl_search_t *search, int stage, int device)
{
    const sl_dry_memory_t *dry = sl_rehearsal_memory(search->rehearsal, device);
    const size_t found =
        dry->most.peak_bytes / (size_t)stages_on(search, device);
    const size_t limit = search->limits[stage];
    const size_t least = found > limit ? found : limit + 1;
    const size_t estimate = sl_part_memory_need(
        search->memory, search->cuts[stage], search->cuts[stage + 1], stage);

    if (least > estimate && least - estimate > search->extra[stage]) {
        search->extra[stage] = least - estimate;
    }
}

static sl_status_t learn(sl_search_t *search, int corrects)
{
    sl_status_t status = SL_OK;
    int k, r;

    for (k = 0; k < search->params.n_stages; k++) {
        for (r = 0; r < search->params.n_replicas; r++) {
            const int device = device_of(search, r, k);

            if (sl_rehearsal_memory(search->rehearsal, device)->fits) {
                continue;
            }
            SL_TRY(status, note_misfit(search, k), out);
            if (corrects) {
                correct(search, k, device);
            }
        }
    }
out:
    return status;
}

/* Cut under the estimates and rehearse, until it fits or nothing is left. */
static sl_status_t try_estimates(sl_search_t *search, int corrects)
{
    sl_status_t status;
    int round;

    search->factor = corrects ? 1.0 : DISTRUST;
    memset(search->extra, 0,
           (size_t)search->params.n_stages * sizeof(*search->extra));
    for (round = 0; round < MAX_ROUNDS; round++) {
        status = sl_part_split(&sl_part_dp, &search->problem, search->cuts);
        if (status == SL_ERR_QUOTA) {
            return SL_OK;
        }
        SL_TRY(status, status, out);
        SL_TRY(status, rehearse(search), out);
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
static sl_status_t find_least(sl_search_t *search)
{
    double worst = -1.0;
    sl_status_t status;
    int d;

    search->n_misfits = 0;
    search->factor = 1.0;
    memset(search->extra, 0,
           (size_t)search->params.n_stages * sizeof(*search->extra));
    SL_TRY(status, sl_part_least_memory(&search->problem, search->cuts), out);
    SL_TRY(status, rehearse(search), out);
    for (d = 0; d < search->params.devices->n_devices; d++) {
        const sl_dry_memory_t *dry = sl_rehearsal_memory(search->rehearsal, d);
        const double part =
            (double)dry->most.peak_bytes / ((double)dry->limit_bytes + 1.0);

        if (!dry->fits && part > worst) {
            worst = part;
            search->fit.device = d;
            search->fit.need_bytes = dry->most.peak_bytes > dry->limit_bytes
                                         ? dry->most.peak_bytes
                                         : dry->most.peak_held_bytes;
            search->fit.limit_bytes = dry->limit_bytes;
        }
    }
out:
    return status;
}

/* ---- the search ---- */

static sl_status_t find_limits(sl_search_t *search)
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
            const int device = device_of(search, r, k);
            const size_t limit = limit_of(search, device);
            const size_t part = limit / (size_t)stages_on(search, device);

            if (limit != SIZE_MAX && part < search->limits[k]) {
                search->limits[k] = part;
            }
        }
    }
out:
    return status;
}

static sl_status_t search_under_limits(sl_search_t *search)
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

/* Of several ranks each knows its own devices only: the cuts are those of dp,
 * as rank 0 finds them, and whether they fit is what all say. */
static sl_status_t search_together(sl_search_t *search)
{
    sl_world_t *world = search->params.world;
    const size_t bytes = ((size_t)search->params.n_stages + 1) * sizeof(int);
    sl_memory_plan_t plan = {0};
    sl_status_t status;

    SL_TRY(status, sl_part_split(&sl_part_dp, &search->problem, search->cuts),
           out);
    SL_TRY(status, sl_world_broadcast(world, 0, search->cuts, bytes), out);
    SL_TRY(status, sl_engine_rehearse(&search->params, &plan), out);
    search->fit.fits = plan.fits;
    search->fit.n_rounds = 1;
out:
    sl_memory_plan_cleanup(&plan);
    return status;
}

static sl_status_t search_alone(sl_search_t *search)
{
    sl_grid_t *grid = NULL;
    sl_status_t status = SL_OK;

    if (search->params.grid == NULL) {
        SL_TRY(status, sl_grid_create(NULL, search->params.devices, &grid),
               out);
        search->params.grid = grid;
    }
    SL_TRY(status, sl_part_split(&sl_part_dp, &search->problem, search->cuts),
           out);
    SL_TRY(status, rehearse(search), out);
    if (!search->fit.fits) {
        status = search_under_limits(search);
    }
out:
    sl_rehearsal_close(search->rehearsal);
    search->rehearsal = NULL;
    sl_grid_destroy(grid);
    return status;
}

sl_status_t sl_engine_fit(const sl_engine_params_t *params,
                          const sl_part_problem_t *problem, int *cuts,
                          sl_fit_t *fit_p)
{
    sl_search_t search = {.params = *params, .problem = *problem};
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
    SL_TRY(status,
           params->world != NULL ? search_together(&search)
                                 : search_alone(&search),
           out);
    memcpy(cuts, search.cuts, bytes);
    *fit_p = search.fit;
out:
    sl_part_memory_destroy(search.memory);
    free(search.limits);
    free(search.extra);
    free(search.misfits);
    free(search.cuts);
    return status;
}
