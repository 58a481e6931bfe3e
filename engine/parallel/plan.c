/* SPDX-License-Identifier: Apache-2.0 */
/* The memory plan of all ranks, from that of each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/parallel/together.h"
#include "engine/world.h"

enum {
    NAME_BYTES = 64
};

static void find_slot(const sl_grid_t *grid, int rank, int device,
                      char name[NAME_BYTES])
{
    int s;

    for (s = 0; s < grid->n_slots; s++) {
        if (grid->slots[s].rank == rank && grid->slots[s].device == device) {
            (void)snprintf(name, NAME_BYTES, "%d/%s", rank,
                           grid->slots[s].name);
        }
    }
}

/* How many devices a rank has. */
static int count_devices(const sl_grid_t *grid, int rank)
{
    int s, n = 0;

    for (s = 0; s < grid->n_slots; s++) {
        n += grid->slots[s].rank == rank;
    }
    return n;
}

/* Every rank's list, in rows of as many as all have together. */
static sl_status_t gather_needs(const sl_engine_params_t *params,
                                const sl_memory_plan_t *plan,
                                sl_memory_need_t **all_p)
{
    const size_t n = (size_t)params->grid->n_slots;
    const size_t n_ranks = (size_t)params->grid->n_ranks;
    sl_memory_need_t *own = calloc(n, sizeof(*own));
    sl_memory_need_t *all = calloc(n * n_ranks, sizeof(*all));
    sl_status_t status;

    if (own == NULL || all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "rehearsal: no host memory for %zu devices", n);
    }
    memcpy(own, plan->devices, (size_t)plan->n_devices * sizeof(*own));
    SL_TRY(status, sl_world_gather(params->world, own, n * sizeof(*own), all),
           out);
    *all_p = all;
    all = NULL;
out:
    free(own);
    free(all);
    return status;
}

/* A layer is kept when all that have it keep it. */
static sl_status_t gather_keeps(const sl_engine_params_t *params,
                                sl_memory_plan_t *plan)
{
    const size_t n = (size_t)plan->n_layers;
    const size_t n_ranks = (size_t)params->grid->n_ranks;
    unsigned char *all;
    sl_status_t status;
    size_t i;

    if (plan->keeps == NULL) {
        return SL_OK;
    }
    all = calloc(n * n_ranks, 1);
    if (all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "rehearsal: no host memory for %zu layers", n);
    }
    SL_TRY(status, sl_world_gather(params->world, plan->keeps, n, all), out);
    for (i = 0; i < n * n_ranks; i++) {
        plan->keeps[i % n] = plan->keeps[i % n] && all[i];
    }
out:
    free(all);
    return status;
}

sl_status_t sl_together_plan(const sl_engine_params_t *params,
                             sl_memory_plan_t *plan)
{
    const sl_grid_t *grid = params->grid;
    sl_memory_need_t *all = NULL, *devices = NULL;
    char *names = NULL;
    sl_status_t status;
    int r, d, n = 0;

    SL_TRY(status, gather_needs(params, plan, &all), out);
    SL_TRY(status, gather_keeps(params, plan), out);
    devices = calloc((size_t)grid->n_slots, sizeof(*devices));
    names = calloc((size_t)grid->n_slots, NAME_BYTES);
    if (devices == NULL || names == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "rehearsal: no host memory for %d devices", grid->n_slots);
    }
    for (r = 0; r < grid->n_ranks; r++) {
        plan->first_device = r == grid->rank ? n : plan->first_device;
        for (d = 0; d < count_devices(grid, r); d++) {
            char *name = names + (size_t)n * NAME_BYTES;

            devices[n] = all[r * grid->n_slots + d];
            find_slot(grid, r, d, name);
            devices[n].name = name;
            plan->fits = plan->fits && devices[n].fits;
            n++;
        }
    }
    free(plan->devices);
    plan->devices = devices;
    plan->names = names;
    plan->n_devices = n;
    devices = NULL;
    names = NULL;
out:
    free(all);
    free(devices);
    free(names);
    return status;
}
