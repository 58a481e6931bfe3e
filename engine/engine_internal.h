/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file engine_internal.h
 * How the engine is made: stages, their values, and what they share.
 *
 * A stage's values are the tensors its layers read or write, numbered: first
 * the imports (outputs of earlier stages), then the outputs of its own
 * layers, then the batch's data and targets. A value that several later
 * stages read travels along them in a chain, and its gradient comes back the
 * same way, so that the sum has one order whatever the cut.
 */
#ifndef SL_ENGINE_ENGINE_INTERNAL_H
#define SL_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/device_ops.h"
#include "engine/engine.h"
#include "engine/grid.h"
#include "engine/sync.h"
#include "engine/transport.h"

/** A block shared by several holders of one stage. Only the stage's executor
 *  touches it. */
typedef struct sl_ref {
    sl_mem_block_t *block;
    int n_refs;
    struct sl_ref *next_free;
} sl_ref_t;

/** Bytes of a block, or of a part of one. */
typedef struct sl_storage {
    sl_mem_block_t *block; /**< NULL = none */
    size_t offset;         /**< in bytes */
} sl_storage_t;

static inline void *sl_storage_ptr(const sl_storage_t *storage)
{
    return storage->block == NULL
               ? NULL
               : (char *)storage->block->ptr + storage->offset;
}

/** A parameter of a layer on the stage's device. Its blocks are its own, or
 *  with several replicas its bucket's, or those of all accumulators. */
typedef struct sl_stage_param {
    int layer; /**< model index */
    int param;
    const sl_param_t *desc; /**< borrowed from the model */
    sl_storage_t value;
    sl_storage_t grad;       /**< none unless trained */
    sl_storage_t moments[2]; /**< none also when they are shared out */
    int is_shared;           /**< the blocks belong to somebody else */
    int bucket;              /**< -1 = in none */
    size_t bucket_start;     /**< in floats */
    double *norm_p; /**< borrowed: sums of squares of its segments (one when
                         there is one replica), in model order */
} sl_stage_param_t;

/** Trained parameters whose gradients travel together, see
 *  engine/parallel/parallel.h. Owned by the stage. */
typedef struct sl_bucket {
    int last_layer;      /**< local layer whose backward completes it; -1: tied
                              ones, complete at the update */
    size_t n;            /**< floats, with padding */
    size_t *chunk_start; /**< owned: n_replicas + 1 entries, in floats */
    sl_mem_block_t *value, *grad;
    sl_mem_block_t *moments[2]; /**< of the own chunk under ZeRO-1 */
} sl_bucket_t;

/** The channels between a cell and the same stage of another replica. */
typedef struct sl_peer {
    sl_channel_t *parts_to, *parts_from;     /**< parts of chunks */
    sl_channel_t *results_to, *results_from; /**< sums, or new values */
    sl_channel_t *statistics_to, *statistics_from;
} sl_peer_t;

/** One layer of a stage. */
typedef struct sl_stage_layer {
    const sl_layer_t *layer;         /**< borrowed from the model */
    int value;                       /**< local index of its output */
    int inputs[SL_LAYER_MAX_INPUTS]; /**< local indices */
    int first_param;                 /**< into the stage's params */
    int has_backward;
    uint32_t forward_name; /**< op names */
    uint32_t backward_name;
} sl_stage_layer_t;

/** An edge of the stage: a value that comes from or goes to another one. */
typedef struct sl_stage_edge {
    int value;              /**< local index */
    int needs_gradient;     /**< its gradient travels back */
    sl_channel_t *forward;  /**< borrowed from the engine */
    sl_channel_t *backward; /**< NULL when no gradient travels */
} sl_stage_edge_t;

/** When values die, for one micro-batch size. Indices are local. */
typedef struct sl_liveness {
    int *last_use;      /**< per value: last layer that reads it forward */
    int *kept;          /**< per value: read by some backward */
    int *last_backward; /**< per value: last layer (lowest) whose backward
                             reads it; -1 when none */
    int *is_recomputed; /**< per layer: a recomputation must run it */
    int *held;          /**< per value: held from the forward also when
                             the micro-batch is recomputed */
    int *needed;        /**< per value: a recomputation starts from it, or
                             backward reads it, and it is an import or the
                             batch's */
} sl_liveness_t;

/** The plans of all layers of a stage for one micro-batch size. */
typedef struct sl_plan_set {
    int64_t rows;
    int is_training;
    sl_layer_plan_t *plans;  /**< owned, one a layer */
    sl_tensor_desc_t *descs; /**< owned, one a value */
    sl_liveness_t live;      /**< owned */
    struct sl_plan_set *next;
} sl_plan_set_t;

/** What is alive of one micro-batch on a stage. */
typedef struct sl_micro_state {
    sl_ref_t **values;      /**< per value: this pass */
    sl_ref_t **stash;       /**< per value: imports held for recomputation */
    sl_ref_t **kept;        /**< per value: held for backward */
    sl_ref_t **grads;       /**< per value: gradient so far */
    sl_mem_block_t **saved; /**< per layer: held for backward */
} sl_micro_state_t;

/** A tensor lent to another stage until that has copied it. */
typedef struct sl_loan {
    sl_ref_t *ref;
    sl_channel_t *channel; /**< borrowed from the engine */
    int m;                 /**< micro-batch */
} sl_loan_t;

enum {
    SL_STAGING_SLOTS = 4 /* tensors of a batch on their way */
};

/** Pinned host memory between a batch and its device; see staging.c. */
typedef struct sl_staging {
    void *memory;      /**< owned; NULL: batches are copied as they are */
    size_t slot_bytes; /**< SL_STAGING_SLOTS of them */
    uint64_t tickets[SL_STAGING_SLOTS]; /**< of the loads out of them */
    uint64_t n_used;                    /**< in this job */
} sl_staging_t;

enum {
    SL_BATCH_TENSORS = 2 /* targets and data */
};

/** Where the batch lands that the next pass reads; see loads.c. */
typedef struct sl_ahead {
    /** Owned within a job: two landings of each tensor that the stage reads;
     *  NULL = it does not, or is not to load ahead. */
    sl_mem_block_t *blocks[SL_BATCH_TENSORS];
    unsigned turn;      /**< which of the two is next, by the lowest bit */
    int is_loaded;      /**< what the next pass reads is there, or queued */
    uint64_t after;     /**< of the loads */
    size_t limit_bytes; /**< of the device, when the latest job began */
    size_t peak_bytes;  /**< of its memory, in a training job under this limit
                             without landings; 0 = there was none yet */
    int has_landed;     /**< in this job */
    int is_short;       /**< memory, under this limit: nothing is taken */
} sl_ahead_t;

typedef struct sl_stage {
    sl_engine_t *engine; /**< borrowed */
    sl_device_t *device; /**< borrowed */
    int index;           /**< of its replica's stages */
    int replica;
    int cell;       /**< number in the grid */
    int begin, end; /**< layers of the model */

    int n_layers;
    sl_stage_layer_t *layers;
    int n_values;
    int n_imports;
    int *value_layer;    /**< model layer of each value, or SL_INPUT_* */
    int *needs_gradient; /**< per value */
    int n_params;
    sl_stage_param_t *params;
    sl_stage_edge_t *imports;
    int n_exports;
    sl_stage_edge_t *exports;

    /* several replicas: engine/parallel/ */
    sl_peer_t *peers; /**< one a replica, the own one empty; NULL: alone */
    int n_buckets;
    sl_bucket_t *buckets;
    int n_sent, n_reduced, n_gathered; /**< buckets of this step */
    sl_mem_block_t *statistics;        /**< all accumulators, or NULL */
    size_t n_statistics;               /**< in doubles */

    /* the job */
    int first_micro; /**< of the mini-batch's micro-batches */
    int n_micro;     /**< of this replica; may be 0 */

    sl_plan_set_t *plan_sets;
    int n_micro_states;
    sl_micro_state_t *micro;
    sl_ref_t *free_refs;
    sl_loan_t *loans; /**< oldest first; room for every send of a step */
    int n_loans, loans_room;
    sl_staging_t staging;
    sl_ahead_t ahead;

    sl_instruction_list_t train_list; /**< for list_micro - 1 micro-batches */
    int list_micro;                   /**< 0 = no list */
    sl_instruction_list_t eval_list;
    int eval_list_micro;    /**< likewise */
    sl_op_span_t *spans;    /**< per instruction of train_list */
    sl_op_span_t hash_span; /**< of what compares the replicas, in this job */
    double clip_factor;     /**< of this step; read by the device's ops */

    pthread_t thread;
    int has_thread;
    sl_status_t status; /**< of the latest job; read after it ended */
} sl_stage_t;

typedef enum sl_job_kind {
    SL_JOB_TRAIN,
    SL_JOB_EVALUATE,
    SL_JOB_END
} sl_job_kind_t;

/** A tied parameter of a replica: `user`'s gradient is added to the owner's,
 *  the owner's new value copied to `user`. In layer order of the users. A side
 *  of another rank is NULL. */
typedef struct sl_tie {
    sl_stage_t *owner_stage, *user_stage;
    sl_stage_param_t *owner, *user;
    sl_channel_t *gradient; /**< user to owner */
    sl_channel_t *value;    /**< owner to user */
} sl_tie_t;

/** A device has computed. */
typedef struct sl_compute_span {
    sl_interval_t when;
    int device;
} sl_compute_span_t;

/** Memory of one dry device, as the rehearsal found it. */
typedef struct sl_dry_memory {
    size_t limit_bytes;  /**< rehearsed under */
    size_t unit_bytes;   /**< of the real device's regions */
    int fits;            /**< 0: the limit was lifted to go on */
    sl_mem_stats_t most; /**< peaks only */
} sl_dry_memory_t;

struct sl_engine {
    sl_engine_params_t params;
    int *own_cuts;            /**< owned; params.cuts */
    int is_bare;              /**< parameters have no memory yet */
    sl_recompute_t recompute; /**< of the schedule: `auto` is none or full */
    unsigned char *keeps;     /**< per layer under `auto`, else NULL: its
                                   results are held, not recomputed */
    sl_dry_memory_t *dry;     /**< one a device, borrowed; NULL: not a
                                   rehearsal */
    int ignore_index;
    const sl_grid_t *grid; /**< params.grid, or own_grid */
    sl_grid_t *own_grid;
    int n_replicas, n_stages; /**< of the grid */
    int n_cells;              /**< of this rank */
    sl_stage_t *stages;       /**< this rank's cells, by number */
    int *layer_stage;         /**< stage of each layer */
    int *needs_gradient;      /**< per layer: something trained is upstream */
    int n_channels;
    sl_channel_t *channels;
    sl_transport_t transport; /**< what was chosen; auto: not yet */
    struct sl_nccl *nccl;     /**< owned; of that transport */
    int n_ties;
    sl_tie_t *ties;
    int n_norms;
    double *norms; /**< sums of squares: n_replicas segments a trained
                        parameter, in model order; owned, written by the
                        devices (sl_device_host_alloc) */

    sl_abort_t abort;
    sl_op_watch_t *watches; /**< one a device: its failure aborts the job */
    sl_barrier_t barrier;   /**< of the stages' executors */

    /* the job: written by the caller while no executor runs */
    sl_gate_t gate;
    sl_job_kind_t job;
    const sl_batch_t *batch;
    int n_micro;           /**< of all replicas */
    float loss_scale;      /**< 1 / valid targets of the mini-batch */
    sl_loss_scale_t scale; /**< of the job's gradients; factor 1 unless f16 */
    double gradient_scale; /**< of the gradients that are there */
    double (*losses)[4];   /**< per micro-batch; likewise */
    int losses_room;

    uint64_t *hashes; /**< one a cell of the grid: engine/parallel/drift.h;
                           owned, written by the devices */

    uint32_t n_steps;
    atomic_uint signals; /**< flags for the next step */
    unsigned flags;      /**< of all ranks, agreed in this step */
    int is_skipped;      /**< this step: not finite */
    int is_overflow;     /**< ... for the loss scale was too large */
    uint64_t n_skipped;
    atomic_int is_committed; /**< the state is being changed by this job */
    int is_failed;           /**< for good */
    int is_alone;            /**< the other ranks are lost */
    int is_watching;         /**< for failures of the other ranks */
    int is_agreeing;         /**< the sum of an agreement is not ended here */
    int is_overtaken;        /**< ... but elsewhere, and changed the state */
    double *agreement;       /**< what all ranks add up in a job; owned */
    size_t agreement_room;
    double *given; /**< owned: values to add up in the next step, and behind
                        them their sums in the latest */
    size_t n_given, given_room; /**< of each */
    int was_failed;             /**< the latest job: its limits may be new */
    sl_device_report_t *device_reports; /**< one a device */
    uint64_t *busy_before_ns; /**< one a device, at the step's start */
    sl_trace_event_t *events;
    size_t n_events, events_room;
    sl_compute_span_t *compute_log; /**< owned: see engine/parallel/overlap.h */
    uint64_t n_compute;             /**< ever */
};

/* stage.c: the static part */
SL_NODISCARD sl_status_t sl_stage_init(sl_stage_t *stage, sl_engine_t *engine,
                                       int cell);
void sl_stage_cleanup(sl_stage_t *stage);
/** Local index of a model value (layer index or SL_INPUT_*), or -1. */
int sl_stage_value(const sl_stage_t *stage, int layer);
/** Whether the results of local layer l are held, not recomputed. */
int sl_stage_keeps(const sl_stage_t *stage, int l);
/** End all loans: everything sent was taken, or the job has ended. */
void sl_stage_release_loans(sl_stage_t *stage);
/** Release all that is alive of a job that was not finished. */
void sl_stage_forget_job(sl_stage_t *stage);

/* stage_params.c: parameters on the device */
SL_NODISCARD sl_status_t sl_stage_params_init(sl_stage_t *stage);
/** The memory of all parameters, zeroed, and back; the stage keeps its layout.
 *  No initial values. */
SL_NODISCARD sl_status_t sl_stage_params_alloc(sl_stage_t *stage);
void sl_stage_params_release(sl_stage_t *stage);
void sl_stage_params_cleanup(sl_stage_t *stage);

/* plan_set.c: plans and liveness for a micro-batch size */
SL_NODISCARD sl_status_t sl_plan_set_get(sl_stage_t *stage, int64_t rows,
                                         int is_training,
                                         const sl_plan_set_t **set_p);
void sl_plan_set_destroy(sl_plan_set_t *set);
/** After engine->keeps has changed. */
void sl_plan_sets_refresh(sl_stage_t *stage);

/* pass.c: one micro-batch through the stage's layers */
typedef struct sl_pass {
    sl_stage_t *stage;
    const sl_plan_set_t *set;
    sl_micro_state_t *micro;
    sl_op_span_t *span; /**< NULL: not traced */
    int m;              /**< of the replica; step.micro_batch: of all */
    int is_last_backward;
    sl_step_info_t step;
    int64_t first_row; /**< of the micro-batch in the batch */
    int keeps;         /**< keep what backward needs */
    int is_stashed;    /**< hold the imports for a later recomputation */
} sl_pass_t;

SL_NODISCARD sl_status_t sl_pass_forward(const sl_pass_t *pass);
SL_NODISCARD sl_status_t sl_pass_backward(const sl_pass_t *pass);

/* loads.c: a batch's way to a device */
/** Before a job: room for its micro-batches. */
SL_NODISCARD sl_status_t sl_loads_begin(sl_stage_t *stage);
/** The end of a training job: what it took tells whether the next one may load
 *  ahead. */
void sl_loads_measure(sl_stage_t *stage);
/** What the pass reads of the batch becomes its values: by what was loaded
 *  ahead, or else now. */
SL_NODISCARD sl_status_t sl_loads_give(const sl_pass_t *pass);
/** Whether the next pass's part can be loaded ahead: beside all ops submitted
 *  from now on. */
int sl_loads_look_ahead(sl_stage_t *stage);
/** Queue those loads, behind the ops of this pass. */
SL_NODISCARD sl_status_t sl_loads_queue(const sl_pass_t *next);
/** No pass of the job reads the batch any more. */
void sl_loads_end(sl_stage_t *stage);
/** Memory is short: release what is there for loads ahead. @return whether
 *  there was any */
int sl_loads_give_up(sl_stage_t *stage);
/** The job has failed, or the memory is another one. */
void sl_loads_forget(sl_stage_t *stage);

/* staging.c */
/** Of a tensor of the batch, SL_INPUT_*, in the job's largest micro-batch, as
 *  rounded; 0 = the stage does not read it. */
size_t sl_staging_bytes(const sl_stage_t *stage, int input);
/** Room for the job's micro-batches; nothing of an earlier job is left. */
SL_NODISCARD sl_status_t sl_staging_reserve(sl_stage_t *stage);
void sl_staging_cleanup(sl_stage_t *stage);
/** Queue the copy of a batch's rows, which stay as they are until the job
 *  ends: a load after `after`, where the device has loads. */
SL_NODISCARD sl_status_t sl_staging_load(sl_stage_t *stage,
                                         const sl_copy_args_t *copy,
                                         uint64_t after, sl_op_span_t *span);

/* refs.c */
/** A block on the stage's device. Before it is refused, what is there for loads
 *  ahead is given up. */
SL_NODISCARD sl_status_t sl_stage_alloc(sl_stage_t *stage, sl_mem_class_t c,
                                        size_t bytes, sl_mem_block_t **block_p);
SL_NODISCARD sl_status_t sl_ref_create(sl_stage_t *stage, sl_mem_class_t c,
                                       size_t bytes, sl_ref_t **ref_p);
sl_ref_t *sl_ref_share(sl_ref_t *ref);
/** Drop one hold; NULL inside is allowed; *ref_p becomes NULL. */
void sl_ref_drop(sl_stage_t *stage, sl_ref_t **ref_p);

/* executor.c */
void *sl_executor_main(void *stage);
/** Wait until all stages are here with everything submitted done; ends all
 *  loans. */
SL_NODISCARD sl_status_t sl_stage_meet(sl_stage_t *stage);
/** For a rehearsal: room and list for the engine's batch; then instruction i
 *  of the list, when it would not wait for another stage. */
SL_NODISCARD sl_status_t sl_executor_prepare(sl_stage_t *stage);
int sl_executor_would_wait(const sl_stage_t *stage, size_t i);
SL_NODISCARD sl_status_t sl_executor_step_one(sl_stage_t *stage, size_t i);

/* update.c */
SL_NODISCARD sl_status_t sl_stage_update(sl_stage_t *stage);
/** Norm over all parameters in model order: the same on every stage. */
double sl_engine_gradient_norm(const sl_engine_t *engine);
/** Sum of the losses of all micro-batches of the job. */
double sl_engine_loss_sum(const sl_engine_t *engine);

/** Whether a parameter is part of the state under its own name: hashed and
 *  saved. Accumulators live within a step, tied ones are their owner's. */
static inline int sl_param_is_state(const sl_param_t *param)
{
    return param->kind != SL_PARAM_ACCUMULATOR && param->tied_layer < 0;
}

/* loss_scale.c */
/** A power of two in range. */
int sl_loss_scale_is_valid(const sl_loss_scale_t *scale);
void sl_loss_scale_init(sl_engine_t *engine);
/** Whether a smaller scale may help where the norm is not finite. */
int sl_loss_scale_is_too_large(const sl_engine_t *engine, double loss,
                               double norm);
/** A training step has ended well. */
void sl_loss_scale_step(sl_engine_t *engine);

/* engine.c */
/** Stages and state, no threads. `own` is checked and has n_stages; `keeps`
 *  may be NULL and is copied; `dry` may be NULL. */
SL_NODISCARD sl_status_t sl_engine_build(const sl_engine_params_t *own,
                                         const unsigned char *keeps,
                                         sl_dry_memory_t *dry,
                                         sl_engine_t **engine_p);
/** Likewise, but the parameters have no memory and the edges between ranks are
 *  not open: for a state that exists. */
SL_NODISCARD sl_status_t sl_engine_build_bare(const sl_engine_params_t *own,
                                              const unsigned char *keeps,
                                              sl_engine_t **engine_p);
SL_NODISCARD sl_status_t sl_engine_params_check(sl_engine_params_t *params);
/** Check, and fill in what is missing; a grid that had to be made is *grid_p,
 *  the caller's. Collective when there are other ranks. */
SL_NODISCARD sl_status_t sl_engine_params_complete(sl_engine_params_t *params,
                                                   sl_grid_t **grid_p);
/** Set `keeps` (copied) and the schedule's recomputation that follows. */
SL_NODISCARD sl_status_t sl_engine_set_keeps(sl_engine_t *engine,
                                             const unsigned char *keeps);

/* step.c */
/** Room for a job on `batch`, which becomes the engine's. */
SL_NODISCARD sl_status_t sl_engine_prepare(sl_engine_t *engine,
                                           const sl_batch_t *batch);
/** SL_ERR_QUOTA with the calling thread's detail and what would help. */
SL_NODISCARD sl_status_t sl_engine_refuse(const sl_engine_params_t *params);

/* rehearse.c */
/** A dry device has no room under its limit: note it and lift it. */
void sl_dry_lift_limit(sl_engine_t *engine, const sl_device_t *device);

/* state.c */
/** As sl_engine_param_get and _set; what all ranks do together goes on. */
SL_NODISCARD sl_status_t sl_state_get(sl_engine_t *engine, int layer, int param,
                                      float *plain);
SL_NODISCARD sl_status_t sl_state_set(sl_engine_t *engine, int layer, int param,
                                      const float *plain);

/* recompute_auto.c */
/** Which layers to keep under recompute `auto`; *keeps_p is the caller's,
 *  one a layer. When nothing fits, nothing is kept. */
SL_NODISCARD sl_status_t sl_recompute_choose(const sl_engine_params_t *params,
                                             unsigned char **keeps_p);

/* topology.c */
/** A cell of this rank, or NULL. */
sl_stage_t *sl_engine_find_stage(const sl_engine_t *engine, int replica,
                                 int stage);
/** A parameter of a replica when its cell is here, else NULL. */
sl_stage_param_t *sl_engine_find_param(const sl_engine_t *engine, int replica,
                                       int layer, int param,
                                       sl_stage_t **stage_p);
/** Rank of a cell. */
int sl_engine_rank_of(const sl_engine_t *engine, int replica, int stage);

#endif /* SL_ENGINE_ENGINE_INTERNAL_H */
