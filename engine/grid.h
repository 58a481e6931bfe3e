/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file grid.h
 * Which device computes what. A job is R replicas x K stages = R * K cells;
 * cell (r, k) has number r * K + k. The devices of all ranks are slots, in
 * order of host, rank, device, and cells go to them in equal runs: so
 * neighbouring stages share a host, and cells share devices when there are
 * more of them.
 */
#ifndef SL_ENGINE_GRID_H
#define SL_ENGINE_GRID_H

#include <stddef.h>

#include "base/status.h"
#include "scheduler/scheduler.h"

SL_BEGIN_DECLS

struct sl_world;

/** One device of one rank. */
typedef struct sl_grid_slot {
    int rank;
    int device;    /**< index in its rank's set */
    int host;      /**< ranks with equal numbers share one */
    char name[32]; /**< of the device: "cpu:0" */
    char host_name[64];
} sl_grid_slot_t;

typedef struct sl_grid {
    int rank, n_ranks; /**< this one, and all */
    int n_slots;
    sl_grid_slot_t *slots; /**< owned */
} sl_grid_t;

/** The slots of all ranks. Collective unless `world` is NULL. */
SL_API SL_NODISCARD sl_status_t sl_grid_create(struct sl_world *world,
                                               const sl_device_set_t *devices,
                                               sl_grid_t **grid_p);
SL_API void sl_grid_destroy(sl_grid_t *grid);

/** The slot of cell `cell` of n_cells; borrowed. */
SL_API const sl_grid_slot_t *sl_grid_slot(const sl_grid_t *grid, int cell,
                                          int n_cells);

/** Every rank must have a cell, and this one `n_devices` devices.
 *  @return SL_OK, SL_ERR_CONFIG, SL_ERR_INVALID_ARG */
SL_API SL_NODISCARD sl_status_t sl_grid_check(const sl_grid_t *grid,
                                              int n_replicas, int n_stages,
                                              int n_devices);

/** The mapping as text, a line a replica:
 *      replica 0: stage 0 node1/0/cpu:0, stage 1 node1/1/cpu:0
 *  (host, rank, device; alone: the device). @return snprintf's length */
SL_API int sl_grid_format(const sl_grid_t *grid, int n_replicas, int n_stages,
                          char *text, size_t text_bytes);

SL_END_DECLS
#endif /* SL_ENGINE_GRID_H */
