/* SPDX-License-Identifier: Apache-2.0 */
/* What a search for cuts asks of all ranks. */
#include "engine/fit_search.h"
#include "engine/world.h"

/* Every rank knows its own slots; after this all know all. */
static sl_status_t share_slots(sl_fit_search_t *search)
{
    const sl_grid_t *grid = search->params.grid;
    const size_t bytes = (size_t)search->n_slots * sizeof(*search->slots);
    sl_status_t status;
    int s;

    if (search->params.world == NULL) {
        return SL_OK;
    }
    SL_TRY(status,
           sl_world_gather(search->params.world, search->slots, bytes,
                           search->rows),
           out);
    for (s = 0; s < search->n_slots; s++) {
        search->slots[s] =
            search->rows[grid->slots[s].rank * search->n_slots + s];
    }
out:
    return status;
}

sl_status_t sl_fit_read_limits(sl_fit_search_t *search)
{
    const sl_grid_t *grid = search->params.grid;
    int s;

    for (s = 0; s < search->n_slots; s++) {
        sl_mem_stats_t stats;

        if (grid->slots[s].rank == grid->rank) {
            sl_mem_stats(
                search->params.devices->devices[grid->slots[s].device].mem,
                &stats);
            search->slots[s].limit_bytes = stats.asked_limit_bytes;
        }
    }
    return share_slots(search);
}

sl_status_t sl_fit_split(sl_fit_search_t *search, int *found_p)
{
    sl_world_t *world = search->params.world;
    const size_t n = (size_t)search->params.n_stages + 1;
    sl_status_t status = SL_OK;
    double verdict = 0.0;

    if (search->params.grid->rank == 0) {
        status = sl_part_split(&sl_part_dp, &search->problem, search->cuts);
        verdict = (double)status;
    }
    if (world != NULL) {
        SL_TRY(status, sl_world_broadcast(world, 0, &verdict, sizeof(verdict)),
               out);
        status = (sl_status_t)verdict;
        if (status >= 0) {
            SL_TRY(status,
                   sl_world_broadcast(world, 0, search->cuts,
                                      n * sizeof(*search->cuts)),
                   out);
        }
    }
    *found_p = status >= 0;
    status = status == SL_ERR_QUOTA ? SL_OK : status;
out:
    return status;
}

sl_status_t sl_fit_rehearse(sl_fit_search_t *search)
{
    const sl_grid_t *grid = search->params.grid;
    sl_status_t status;
    int s;

    sl_rehearsal_close(search->rehearsal);
    search->rehearsal = NULL;
    SL_TRY(status, sl_rehearsal_open(&search->params, &search->rehearsal), out);
    for (s = 0; s < search->n_slots; s++) {
        if (grid->slots[s].rank == grid->rank) {
            sl_rehearsal_set_limit(search->rehearsal, grid->slots[s].device,
                                   search->slots[s].limit_bytes);
        }
    }
    SL_TRY(status, sl_rehearsal_run(search->rehearsal), out);
    for (s = 0; s < search->n_slots; s++) {
        if (grid->slots[s].rank == grid->rank) {
            const sl_dry_memory_t *dry =
                sl_rehearsal_memory(search->rehearsal, grid->slots[s].device);

            search->slots[s].fits = dry->fits;
            search->slots[s].peak_bytes = dry->most.peak_bytes;
            search->slots[s].held_bytes = dry->most.peak_held_bytes;
        }
    }
    SL_TRY(status, share_slots(search), out);
    search->fit.n_rounds++;
    search->fit.fits = 1;
    for (s = 0; s < search->n_slots; s++) {
        search->fit.fits &= search->slots[s].fits;
    }
out:
    return status;
}
