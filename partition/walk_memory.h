/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file walk_memory.h
 * One micro-batch through the layers of a stage, in bytes only: the same
 * order of allocations and releases as the engine's passes.
 */
#ifndef SL_PARTITION_WALK_MEMORY_H
#define SL_PARTITION_WALK_MEMORY_H

#include "layers/layers.h"

/** What a layer's pass allocates; the same for layers with equal keys. */
typedef struct sl_walk_facts {
    uint64_t key;
    size_t in_bytes[SL_LAYER_MAX_INPUTS]; /**< as the tensors are */
    size_t out_bytes;
    size_t saved_bytes;
    size_t forward_workspace_bytes, backward_workspace_bytes;
    int keeps_input[SL_LAYER_MAX_INPUTS];
    int keeps_output;
    int passes_gradient, accumulates; /**< bits, as in a plan */
    int in_place;
} sl_walk_facts_t;

/** One layer of the model. */
typedef struct sl_walk_layer {
    const sl_layer_t *layer;
    const sl_walk_facts_t *facts;
    int needs_gradient; /**< something trained is here or before it */
    int last_reader;    /**< last layer that reads its output; -1 = none */
} sl_walk_layer_t;

/** A block of memory; several slots may hold it. */
typedef struct sl_walk_block {
    size_t bytes;
    int n_refs;
} sl_walk_block_t;

/** Slots of a value: which block it is in, -1 = none. */
typedef struct sl_walk_value {
    int now, stash, kept, grad;
    int last_use;      /**< last layer of the stage that reads it */
    int is_kept;       /**< read by some backward */
    int last_backward; /**< lowest layer whose backward reads it */
    int is_needed;     /**< a recomputation starts from it */
} sl_walk_value_t;

typedef struct sl_walk {
    int n_layers;
    const sl_walk_layer_t *layers; /**< borrowed, [n_layers] */
    size_t data_bytes, target_bytes;
    sl_walk_value_t *values; /**< owned, [n_layers + 2]: data, target last */
    int *saved;              /**< owned, [n_layers]: block, -1 = none */
    int *is_recomputed;      /**< owned, [n_layers] */
    int *imports;            /**< owned, [n_layers]; n_imports of them */
    int n_imports;
    sl_walk_block_t *blocks; /**< owned, blocks_room of them */
    int *free_blocks;        /**< owned */
    int n_free, blocks_room;
    int begin, end;
    size_t used_bytes, peak_bytes;
} sl_walk_t;

/** What the walk of a stage found, all of one micro-batch. */
typedef struct sl_walk_mode {
    size_t held_bytes;      /**< between forward and backward */
    size_t forward_bytes;   /**< most at once in the forward */
    size_t recompute_bytes; /**< in the recomputation; 0 = none */
    size_t backward_bytes;  /**< in the backward */
    size_t export_bytes;    /**< of outputs on their way, not also held */
} sl_walk_mode_t;

SL_NODISCARD sl_status_t sl_walk_init(sl_walk_t *walk, int n_layers,
                                      const sl_walk_layer_t *layers);
void sl_walk_cleanup(sl_walk_t *walk);

/** Walk the stage [begin, end). */
void sl_walk_stage(sl_walk_t *walk, int begin, int end, int is_recomputed,
                   sl_walk_mode_t *mode_p);

/** After a walk: gradients of the imports, that travel back. */
size_t sl_walk_gradient_bytes(const sl_walk_t *walk);

#endif /* SL_PARTITION_WALK_MEMORY_H */
