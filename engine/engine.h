/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file engine.h
 * Training a model over several devices: plan, program, run.
 *
 * One stage is a run of layers on one device with one executor thread. A
 * mini-batch is split into micro-batches; each stage follows its own list of
 * instructions (engine/schedule/schedule.h); all stages update together.
 *
 * Exactness: with equal kernel threads per device, the state after any number
 * of steps has the same bits for every number of stages, cut, recompute mode
 * and schedule with the same backward order.
 *
 * All devices are of the kind that the model is made for (sl_model_target).
 * Whatever the type of the activations, parameters, their gradients and the
 * optimizer's moments are f32.
 */
#ifndef SL_ENGINE_ENGINE_H
#define SL_ENGINE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/data/data.h"
#include "engine/optimizer.h"
#include "engine/schedule/schedule.h"
#include "layers/layers.h"
#include "partition/partition.h"
#include "scheduler/scheduler.h"

SL_BEGIN_DECLS

typedef struct sl_engine sl_engine_t; /* opaque */
struct sl_world;
struct sl_grid;

/** Whose batch norm statistics become the running ones. */
typedef enum sl_batch_norm_mode {
    SL_BATCH_NORM_SYNCHRONISED, /**< of the whole mini-batch */
    SL_BATCH_NORM_REPLICA       /**< of replica 0's part of it */
} sl_batch_norm_mode_t;
#define SL_BATCH_NORM_CHOICES "synchronised|replica"

/** What happens when the loss or the gradient norm is not finite. */
typedef enum sl_not_finite {
    SL_NOT_FINITE_STOP, /**< the step fails with SL_ERR_NUMERIC */
    SL_NOT_FINITE_SKIP, /**< the step counts and changes nothing */
    SL_NOT_FINITE_GO_ON /**< the update is made all the same */
} sl_not_finite_t;
#define SL_NOT_FINITE_CHOICES "stop|skip|go-on"

/** How tensors go between ranks whose devices have memory of their own. */
typedef enum sl_transport {
    SL_TRANSPORT_AUTO,       /**< nccl where it can be, else staged */
    SL_TRANSPORT_STAGED,     /**< through pinned host memory */
    SL_TRANSPORT_CUDA_AWARE, /**< by an MPI that reads and writes it */
    SL_TRANSPORT_NCCL,
    SL_TRANSPORT_N
} sl_transport_t;
#define SL_TRANSPORT_CHOICES "auto|staged|cuda-aware|nccl"

/** Start from sl_engine_params_default(). All pointers are borrowed and must
 *  outlive the engine. */
typedef struct sl_engine_params {
    const sl_model_t *model;
    sl_device_set_t *devices;
    int n_stages;        /**< 0 = number of devices. More stages than
                              devices share them in equal runs. */
    const int *cuts;     /**< n_stages + 1 entries; required */
    int64_t batch_rows;  /**< rows of a full mini-batch */
    int n_micro_batches; /**< >= 1; more than rows = one row each */
    sl_schedule_kind_t schedule;
    sl_backward_order_t backward_order;
    sl_recompute_t recompute;
    const unsigned char *keeps;   /**< recompute `auto`: per layer, 1 = its
                                       results are kept from the forward, 0 =
                                       recomputed; NULL (default) = chosen so
                                       that a step fits the devices */
    const sl_part_costs_t *costs; /**< of a micro-batch, for that choice;
                                       NULL (default) = analytic */
    sl_optimizer_params_t optimizer;
    uint64_t seed;
    sl_not_finite_t not_finite; /**< default: stop */
    uint32_t loss_scale_steps;  /**< f16: good steps before the loss scale is
                                     doubled (default 2000) */
    int trace;                  /**< keep the timeline of the latest step */
    /* data parallel and many processes: docs/parallel.md */
    int n_replicas; /**< copies of the pipeline that share a mini-batch out
                         (default 1). A replica has n_micro_batches. */
    struct sl_world *world;     /**< the job's processes; NULL (default): this
                                     one is alone. Every rank makes the same
                                     calls in the same order. */
    const struct sl_grid *grid; /**< the devices of all ranks; NULL (default):
                                     made from `world` and `devices` */
    size_t bucket_bytes; /**< gradients that travel together (default 4 MiB) */
    int zero1;           /**< moments are shared out over the replicas */
    sl_batch_norm_mode_t batch_norm; /**< default: synchronised */
    sl_transport_t transport;        /**< of CUDA devices (default auto);
                                          cuda-aware: they are is_exportable */
    int check_replicas; /**< compare the replicas before every so many steps
                             (default 100); 0 = never */
} sl_engine_params_t;

SL_API void sl_engine_params_default(sl_engine_params_t *params);

/** Create stages, allocate and initialise the state.
 *  @return SL_OK, SL_ERR_CONFIG, SL_ERR_QUOTA, SL_ERR_NO_MEMORY, ... */
SL_API SL_NODISCARD sl_status_t
sl_engine_create(const sl_engine_params_t *params, sl_engine_t **engine_p);
SL_API void sl_engine_destroy(sl_engine_t *engine);

/** A device in a step. */
typedef struct sl_device_report {
    const char *name;   /**< borrowed from the device */
    size_t used_bytes;  /**< in blocks at the end of the step */
    size_t peak_bytes;  /**< most at once in blocks */
    size_t held_bytes;  /**< most at once in regions: what the limit counts */
    size_t limit_bytes; /**< SIZE_MAX = none */
    double busy;        /**< share of the step's time in kernels */
} sl_device_report_t;

/** What a step reports. */
typedef struct sl_step_report {
    uint32_t step;        /**< index of the step, from 0 */
    double loss;          /**< mean over valid targets */
    double accuracy;      /**< correct / valid, training mode */
    int64_t n_valid;      /**< targets that counted */
    double gradient_norm; /**< global, before clipping */
    double learning_rate;
    double step_us;     /**< wall time */
    double bubble;      /**< 1 - busy / (devices * wall) */
    int is_skipped;     /**< it was not finite, or a gradient was too large
                             for f16 under the loss scale, and has changed
                             nothing */
    uint64_t n_skipped; /**< such steps so far */
    double loss_scale;  /**< of this step; 0 = the model is not f16 */
    double compare_us;  /**< of kernels that compare the replicas, on the
                             device that took longest; 0 = none did */
    unsigned flags;     /**< of all ranks: see sl_engine_signal */
    size_t n_sums;      /**< 0 = none were given */
    const double *sums; /**< over the ranks, borrowed until values are given
                             again: see sl_engine_sum_with_step */
    int n_devices;      /**< of this rank */
    const sl_device_report_t *devices; /**< borrowed until the next step */
} sl_step_report_t;

/**
 * One training step: all micro-batches and the update. A batch may be smaller
 * than batch_rows.
 *
 * On failure the state is as before the step, on all stages, and the engine
 * takes the next one: after SL_ERR_QUOTA when a limit was raised (limits
 * asked for enter at once), after other errors with another batch. Only a
 * device's failure (SL_ERR_DEVICE) is final. The error of the stage that
 * failed first is returned, its detail is sl_last_error().
 */
SL_API SL_NODISCARD sl_status_t sl_engine_step(sl_engine_t *engine,
                                               const sl_batch_t *batch,
                                               sl_step_report_t *report_p);

/** Give flags to the next step that succeeds: its report has those of all
 *  ranks, so that all can act on them after the same step. Evaluations before
 *  it tell them too, and leave them for the step. From any thread. */
SL_API void sl_engine_signal(sl_engine_t *engine, unsigned flags);

/**
 * Give values to the next step that succeeds, which adds them up over the ranks
 * while it agrees, at no cost: its report has the sums, in rank order. All
 * ranks give equally many before the same step.
 *
 * @param[in] values  copied; a step that fails does not lose them
 * @return SL_OK, SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_engine_sum_with_step(sl_engine_t *engine,
                                                        const double *values,
                                                        size_t n);

/** Sums over an evaluation; add over batches, then divide. */
typedef struct sl_eval_sums {
    double loss_sum;
    double n_valid;
    double n_correct;
    unsigned flags; /**< of all ranks, in any batch: see sl_engine_signal */
} sl_eval_sums_t;

/** Forward only, in evaluation mode; no state changes. Adds to *sums, which
 *  are then the same on all ranks. */
SL_API SL_NODISCARD sl_status_t sl_engine_evaluate(sl_engine_t *engine,
                                                   const sl_batch_t *batch,
                                                   sl_eval_sums_t *sums);

/** Steps done since creation (or as loaded). */
SL_API uint32_t sl_engine_n_steps(const sl_engine_t *engine);
/** Go on as after `n` steps: the next one is step n. */
SL_API void sl_engine_set_n_steps(sl_engine_t *engine, uint32_t n);

/**
 * Loss scale of f16: the loss's gradient is multiplied by `factor`, a power of
 * two, so that small gradients do not vanish, and the update divides by it.
 * When a gradient is too large for f16, the step counts but changes nothing,
 * and the factor is halved; after many good steps it is doubled.
 */
typedef struct sl_loss_scale {
    double factor;         /**< 1 to 2^24; it starts with 2^16 */
    uint32_t n_good_steps; /**< since it changed last */
} sl_loss_scale_t;

/** Of the next step. @return 0 when the model is not f16: the factor is 1 */
SL_API int sl_engine_loss_scale(const sl_engine_t *engine,
                                sl_loss_scale_t *scale_p);
/** Go on with it; nothing happens when the model is not f16.
 *  @return SL_OK, SL_ERR_INVALID_ARG */
SL_API SL_NODISCARD sl_status_t
sl_engine_set_loss_scale(sl_engine_t *engine, const sl_loss_scale_t *scale);

/* ---- state: with many processes every rank calls these ---- */

/** Hash of all parameters, moments and statistics, in model order: the same
 *  for every number of ranks and stages. */
SL_API SL_NODISCARD sl_status_t sl_engine_state_hash(sl_engine_t *engine,
                                                     uint64_t *hash_p);

/** Copy a parameter out of or into the engine: plain f32 values. Tied ones
 *  are set through their owner. */
SL_API SL_NODISCARD sl_status_t sl_engine_param_get(sl_engine_t *engine,
                                                    int layer, int param,
                                                    float *plain);
SL_API SL_NODISCARD sl_status_t sl_engine_param_set(sl_engine_t *engine,
                                                    int layer, int param,
                                                    const float *plain);
/** The gradient accumulated by the latest step (before clipping), plain. */
SL_API SL_NODISCARD sl_status_t sl_engine_gradient_get(sl_engine_t *engine,
                                                       int layer, int param,
                                                       float *plain);

/** The optimizer's moment 0 or 1 (fewer: sl_optimizer_n_moments) of a
 *  trained parameter that is not tied, plain, wherever it is kept. */
SL_API SL_NODISCARD sl_status_t sl_engine_moment_get(sl_engine_t *engine,
                                                     int layer, int param,
                                                     int moment, float *plain);
SL_API SL_NODISCARD sl_status_t sl_engine_moment_set(sl_engine_t *engine,
                                                     int layer, int param,
                                                     int moment,
                                                     const float *plain);
/** Hash of a replica's parameters and statistics, and without ZeRO-1 of its
 *  moments: equal on all, for the same cuts and kind of device. */
SL_API SL_NODISCARD sl_status_t sl_engine_replica_hash(sl_engine_t *engine,
                                                       int replica,
                                                       uint64_t *hash_p);

/* ---- the memory plan ---- */

/** What a step asks of one device. */
typedef struct sl_memory_need {
    const char *name; /**< borrowed from the device; "RANK/DEVICE" when there
                           are several ranks, the plan's */
    size_t class_peak_bytes[SL_MEM_N_CLASSES];
    size_t peak_bytes;  /**< most at once in blocks */
    size_t held_bytes;  /**< most at once in regions */
    size_t limit_bytes; /**< rehearsed under; SIZE_MAX = none */
    int fits;           /**< under that limit, without the host pool */
} sl_memory_need_t;

typedef struct sl_memory_plan {
    int fits; /**< on all devices */
    int n_devices;
    sl_memory_need_t *devices; /**< owned; of all ranks, in their order */
    int first_device;          /**< this rank's first */
    char *names;               /**< owned; NULL: the devices' own */
    int n_layers;
    unsigned char *keeps; /**< owned; under recompute `auto` which layers are
                               kept, as in sl_engine_params_t; else NULL */
} sl_memory_plan_t;

/**
 * Rehearse steps: every instruction of every stage, with the same code and
 * allocator as a real one, but over memory that is only reserved, and no op
 * runs. So the peaks are those of the real step, to the byte where a stage
 * has a device of its own; stages that share one are taken in lock step.
 * The limits are those in force on the devices.
 *
 * With several ranks a collective call: each rehearses its own cells, all get
 * the whole plan. Not while an engine of the same world lives.
 *
 * @param[out] plan_p clean up with sl_memory_plan_cleanup
 * @return SL_OK, also when it does not fit; SL_ERR_CONFIG, SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t
sl_engine_rehearse(const sl_engine_params_t *params, sl_memory_plan_t *plan_p);
SL_API void sl_memory_plan_cleanup(sl_memory_plan_t *plan);

/** What would make a step fit the devices, the smallest change first, as one
 *  line of text. Empty when nothing that was tried does. Rehearses often. */
SL_API void sl_engine_advise(const sl_engine_params_t *params, char *text,
                             size_t text_bytes);

/** One instruction as it ran, for timelines. */
typedef struct sl_trace_event {
    int stage; /**< the row: of this rank's cells, see sl_engine_cell */
    sl_instruction_t instruction; /**< micro-batches of the replica */
    uint64_t start_ns;            /**< on the device; sl_clock_ns() */
    uint64_t end_ns;
    uint64_t busy_ns; /**< in kernels, of that */
} sl_trace_event_t;

/** Events of the latest step, when params.trace; borrowed until the next
 *  step. @return their number */
SL_API size_t sl_engine_trace(const sl_engine_t *engine,
                              const sl_trace_event_t **events_p);

SL_API int sl_engine_n_stages(const sl_engine_t *engine);

/** One stage of one replica on this rank. */
typedef struct sl_cell {
    int replica, stage;
    const sl_device_t *device; /**< borrowed */
} sl_cell_t;

/** The i-th cell of this rank. @return 0 past the last */
SL_API int sl_engine_cell(const sl_engine_t *engine, int i, sl_cell_t *cell_p);

/** What a rank sends and receives over one of its edges to other ranks. */
typedef struct sl_edge {
    const char *kind; /**< "forward", "backward", "parts", "results",
                           "statistics", "tie gradient", "tie value" */
    int from_replica, from_stage, to_replica, to_stage;
    int layer; /**< whose output or gradient; -1: none's */
    int peer;  /**< the other rank */
    int is_sender;
    uint64_t n_messages, n_bytes;
    uint64_t latency_ns; /**< sum, of the sender: queued to left */
    uint64_t n_stalls;   /**< messages that waited for a slot */
    /* of the latest transfers, when measured; the same on both ends */
    uint64_t n_timed;
    uint64_t transfer_ns;     /**< all together */
    uint64_t under_sender_ns; /**< of it, while the sender's device computed */
    uint64_t under_receiver_ns; /**< ... the receiver's */
} sl_edge_t;

/** The i-th edge to another rank, since creation. @return 0 past the last */
SL_API int sl_engine_edge(const sl_engine_t *engine, int i, sl_edge_t *edge_p);

/** How tensors go to other ranks: "staged", "cuda-aware", "nccl", or "host"
 *  for devices that use host memory; "none" without other ranks. */
SL_API const char *sl_engine_transport(const sl_engine_t *engine);
/** How much of the transfers lay under compute: looks at the latest ones of
 *  every edge, for sl_engine_edge. Collective, between steps; needs
 *  params.trace. */
SL_API SL_NODISCARD sl_status_t sl_engine_measure_overlap(sl_engine_t *engine);

/** Rows of micro-batch m when `rows` are split into at most n: sizes differ
 *  by at most one, larger ones first. *n_p = min(n, rows); NULL is
 *  allowed. */
SL_API int64_t sl_split_rows(int64_t rows, int n, int m, int *n_p);
/** The first row of micro-batch m in that split. */
SL_API int64_t sl_split_first(int64_t rows, int n, int m);

/* ---- weights as safetensors, names "<layer>.<param>" ---- */

/** Write all parameters and statistics (plain f32), atomically. */
SL_API SL_NODISCARD sl_status_t sl_engine_weights_save(sl_engine_t *engine,
                                                       const char *path);
/** Read them; every tensor must be there with its shape.
 *  @return SL_OK, SL_ERR_IO, SL_ERR_CORRUPT, SL_ERR_CONFIG (names, shapes) */
SL_API SL_NODISCARD sl_status_t sl_engine_weights_load(sl_engine_t *engine,
                                                       const char *path);

SL_END_DECLS
#endif /* SL_ENGINE_ENGINE_H */
