/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file mover.h
 * Parameters on their way between stages: taken from an engine, moved from
 * device to device and rank to rank, given to an engine with other cuts.
 *
 * With several ranks all do the same: each crossing is decided by all, so
 * that every rank knows what lies where.
 */
#ifndef SL_ENGINE_MOVER_H
#define SL_ENGINE_MOVER_H

#include "engine/engine_internal.h"

enum {
    SL_MOVER_BLOCKS = 4 /* of a parameter: value, gradient, moments */
};

/* Cut k has moved by one layer, up or down. */
typedef struct sl_crossing {
    int k, by;
} sl_crossing_t;

/* A parameter on its way; no blocks where it is another rank's. */
typedef struct sl_moved_param {
    const sl_param_t *desc; /* borrowed from the model */
    sl_mem_block_t *blocks[SL_MOVER_BLOCKS];
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

/** Clean up in any case. What moves layer by layer is for an engine with one
 *  replica; several: engine/restage.h. */
SL_NODISCARD sl_status_t sl_mover_init(sl_mover_t *mover, sl_engine_t *engine);
void sl_mover_cleanup(sl_mover_t *mover);

/** All ranks fail when one does, with the first one's status. */
SL_NODISCARD sl_status_t sl_mover_agree(sl_mover_t *mover, sl_status_t status);

/** The blocks of this rank's stages to the mover (is_taken), or into stages
 *  with the cuts of this moment. */
void sl_mover_exchange(sl_mover_t *mover, sl_engine_t *engine, int is_taken);
/** Release what no stage has taken. */
void sl_mover_drop(sl_mover_t *mover);

/** Bytes of a layer's state, and of all layers of stage k under `cuts`. */
size_t sl_mover_layer_bytes(const sl_mover_t *mover, int layer);
size_t sl_mover_stage_bytes(const sl_mover_t *mover, const int *cuts, int k);

/** Move a layer: all of it or nothing; the devices are idle before and after.
 *  What goes wrong once all have agreed is the end. */
SL_NODISCARD sl_status_t sl_mover_move(sl_mover_t *mover, const sl_way_t *way);

/* crossings.c: layer by layer from the cuts of this moment to others */

/** Move all layers that must; on failure some may have moved. */
SL_NODISCARD sl_status_t sl_mover_move_all(sl_mover_t *mover, const int *cuts);
/** Back to where they were. What has no way back stays: that is a partition
 *  too, of which `now` are the cuts; then n_crossings is not 0. */
void sl_mover_move_back(sl_mover_t *mover);

#endif /* SL_ENGINE_MOVER_H */
