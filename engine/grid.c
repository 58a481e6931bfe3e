/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of all ranks, cells on slots. */
#include "engine/grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/world.h"

/* Number of a rank's host: that of the first rank there. */
static int host_of(const sl_world_t *world, int rank)
{
    int first = 0;

    while (first < rank && strcmp(sl_world_host(world, first),
                                  sl_world_host(world, rank)) != 0) {
        first++;
    }
    return first;
}

static int by_place(const void *a, const void *b)
{
    const sl_grid_slot_t *x = a, *y = b;

    if (x->host != y->host) {
        return x->host < y->host ? -1 : 1;
    }
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return x->device - y->device;
}

static sl_status_t gather_counts(sl_world_t *world, int n_own, sl_grid_t *grid,
                                 int **counts_p)
{
    int *counts = calloc((size_t)grid->n_ranks, sizeof(*counts));
    sl_status_t status = SL_OK;
    int r;

    if (counts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "grid: no host memory for %d ranks", grid->n_ranks);
    }
    counts[0] = n_own;
    if (world != NULL) {
        SL_TRY(status, sl_world_gather(world, &n_own, sizeof(n_own), counts),
               out);
    }
    for (r = 0; r < grid->n_ranks; r++) {
        grid->n_slots += counts[r];
    }
    *counts_p = counts;
    return SL_OK;
out:
    free(counts);
    return status;
}

/* Every rank's names, in rows of as many as the rank with the most has. */
static sl_status_t gather_names(sl_world_t *world,
                                const sl_device_set_t *devices,
                                const int *counts, sl_grid_t *grid)
{
    const size_t bytes = sizeof(grid->slots->name);
    size_t room = 0, n = 0;
    char *own = NULL, *all = NULL;
    sl_status_t status = SL_OK;
    int r, d;

    for (r = 0; r < grid->n_ranks; r++) {
        room = (size_t)counts[r] > room ? (size_t)counts[r] : room;
    }
    own = calloc(room, bytes);
    all = calloc(room * (size_t)grid->n_ranks, bytes);
    if (own == NULL || all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "grid: no host memory for %d slots", grid->n_slots);
    }
    for (d = 0; d < devices->n_devices; d++) {
        memcpy(own + (size_t)d * bytes, devices->devices[d].name, bytes);
    }
    memcpy(all, own, room * bytes);
    if (world != NULL) {
        SL_TRY(status, sl_world_gather(world, own, room * bytes, all), out);
    }
    for (r = 0; r < grid->n_ranks; r++) {
        for (d = 0; d < counts[r]; d++) {
            sl_grid_slot_t *slot = &grid->slots[n++];

            slot->rank = r;
            slot->device = d;
            slot->host = host_of(world, r);
            memcpy(slot->name, all + ((size_t)r * room + (size_t)d) * bytes,
                   bytes);
            (void)snprintf(slot->host_name, sizeof(slot->host_name), "%s",
                           sl_world_host(world, r));
        }
    }
    qsort(grid->slots, n, sizeof(*grid->slots), by_place);
out:
    free(own);
    free(all);
    return status;
}

sl_status_t sl_grid_create(sl_world_t *world, const sl_device_set_t *devices,
                           sl_grid_t **grid_p)
{
    sl_grid_t *grid = calloc(1, sizeof(*grid));
    int *counts = NULL;
    sl_status_t status;

    if (grid == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "grid: no host memory");
    }
    grid->rank = world == NULL ? 0 : sl_world_rank(world);
    grid->n_ranks = world == NULL ? 1 : sl_world_size(world);
    SL_TRY(status, gather_counts(world, devices->n_devices, grid, &counts),
           out);
    grid->slots = calloc((size_t)grid->n_slots, sizeof(*grid->slots));
    if (grid->slots == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "grid: no host memory for %d slots", grid->n_slots);
    }
    SL_TRY(status, gather_names(world, devices, counts, grid), out);
    *grid_p = grid;
    grid = NULL;
out:
    free(counts);
    sl_grid_destroy(grid);
    return status;
}

void sl_grid_destroy(sl_grid_t *grid)
{
    if (grid != NULL) {
        free(grid->slots);
        free(grid);
    }
}

const sl_grid_slot_t *sl_grid_slot(const sl_grid_t *grid, int cell, int n_cells)
{
    return &grid->slots[(int64_t)cell * grid->n_slots / n_cells];
}

sl_status_t sl_grid_check(const sl_grid_t *grid, int n_replicas, int n_stages,
                          int n_devices)
{
    const int n_cells = n_replicas * n_stages;
    sl_status_t status = SL_OK;
    int rank, c, n_own = 0;

    for (c = 0; c < grid->n_slots; c++) {
        n_own += grid->slots[c].rank == grid->rank;
    }
    if (n_own != n_devices) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "grid: made for %d devices of this rank, not for %d", n_own,
                n_devices);
    }

    for (rank = 0; rank < grid->n_ranks; rank++) {
        for (c = 0; c < n_cells; c++) {
            if (sl_grid_slot(grid, c, n_cells)->rank == rank) {
                break;
            }
        }
        if (c == n_cells && grid->rank > 0) {
            /* rank 0 says it for all */
            SL_REFUSE(status, SL_ERR_CONFIG, out,
                      "%d replica%s of %d stage%s leave rank %d without work",
                      n_replicas, n_replicas == 1 ? "" : "s", n_stages,
                      n_stages == 1 ? "" : "s", rank);
        }
        if (c == n_cells) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%d replica%s of %d stage%s leave rank %d of %d without "
                    "work: ask for more replicas or stages, or start fewer "
                    "ranks",
                    n_replicas, n_replicas == 1 ? "" : "s", n_stages,
                    n_stages == 1 ? "" : "s", rank, grid->n_ranks);
        }
    }
out:
    return status;
}

/* snprintf at the end of a text that may be full already. */
static void append(char *text, size_t text_bytes, size_t *n_p,
                   const char *place)
{
    const size_t left = *n_p < text_bytes ? text_bytes - *n_p : 0;
    const int n = snprintf(left > 0 ? text + *n_p : NULL, left, "%s", place);

    *n_p += n > 0 ? (size_t)n : 0;
}

int sl_grid_format(const sl_grid_t *grid, int n_replicas, int n_stages,
                   char *text, size_t text_bytes)
{
    const int n_cells = n_replicas * n_stages;
    size_t n = 0;
    int c;

    if (text_bytes > 0) {
        text[0] = '\0';
    }
    for (c = 0; c < n_cells; c++) {
        const sl_grid_slot_t *slot = sl_grid_slot(grid, c, n_cells);
        char place[192];

        if (c % n_stages == 0) {
            (void)snprintf(place, sizeof(place), "replica %d:", c / n_stages);
            append(text, text_bytes, &n, place);
        }
        if (grid->n_ranks == 1) {
            (void)snprintf(place, sizeof(place), " stage %d %s", c % n_stages,
                           slot->name);
        } else {
            (void)snprintf(place, sizeof(place), " stage %d %s/%d/%s",
                           c % n_stages, slot->host_name, slot->rank,
                           slot->name);
        }
        append(text, text_bytes, &n, place);
        append(text, text_bytes, &n, c % n_stages == n_stages - 1 ? "\n" : ",");
    }
    return (int)n;
}
