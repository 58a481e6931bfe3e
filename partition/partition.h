/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file partition.h
 * Where to cut a list of layers into pipeline stages: costs, policies, and
 * the prediction of a step.
 *
 * A cut list of K stages has K+1 ascending indices, cuts[0] = 0, cuts[K] =
 * n_layers; stage k runs the layers [cuts[k], cuts[k+1]).
 */
#ifndef SL_PARTITION_PARTITION_H
#define SL_PARTITION_PARTITION_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layers/layers.h"

SL_BEGIN_DECLS

enum {
    SL_PART_MAX_STAGES = 1024
};

/** Cost of one layer for one micro-batch. */
typedef struct sl_part_layer {
    double forward_us;
    double backward_us; /**< 0: nothing to compute */
    double forward_flops;
    double backward_flops;
    size_t param_bytes;   /**< values (trained and statistics). A tied
                               parameter counts at its owner and at each
                               user: a stage with one of them has a copy */
    size_t trained_bytes; /**< of those, with gradient and moments */
    size_t kept_bytes;    /**< kept from forward to backward when nothing
                               is recomputed: inputs or outputs that the
                               backward reads, each counted once, at the
                               first layer that keeps it, and what the
                               layer saves */
    size_t cut_bytes;     /**< what crosses a cut right BEFORE this layer,
                               forward, one micro-batch: every earlier
                               output that this or a later layer reads
                               (skips too), but not the batch, which each
                               stage loads itself. 0 for layer 0. */
} sl_part_layer_t;

/** Costs of a model for one micro-batch size. */
typedef struct sl_part_costs {
    int n_layers;
    sl_part_layer_t *layers; /**< owned */
    int is_measured;         /**< from a profile, not analytic */
} sl_part_costs_t;

/** Speed of a device, for analytic costs. */
typedef struct sl_part_speed {
    double flops_per_us;
    double bytes_per_us;      /**< memory */
    double link_bytes_per_us; /**< between stages */
    double link_latency_us;
    double op_us; /**< fixed time of one layer pass */
} sl_part_speed_t;

/** Figures of one CPU device with `n_threads` kernel threads: those of a
 *  recent server core. Their ratios matter more than their height. */
SL_API void sl_part_speed_default(sl_part_speed_t *speed, int n_threads);

/** Figures of one device of the kind that the model is for; for CPU devices
 *  the same as sl_part_speed_default(). */
SL_API void sl_part_speed_for(sl_part_speed_t *speed, const sl_model_t *model,
                              int n_threads);

/**
 * Analytic costs of `model` for micro-batches of `rows`, nothing is run: a
 * pass takes the longer of its flops and its memory traffic, and op_us. What
 * is kept comes from the layers' plans for the model's kind of device, made
 * once per distinct layer. A layer fed by the batch alone has half of its
 * type's backward.
 *
 * @param[out] costs_p  clean up with sl_part_costs_cleanup
 * @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_CONFIG (shape),
 *         SL_ERR_UNSUPPORTED, SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t
sl_part_costs_analytic(const sl_model_t *model, int64_t rows,
                       const sl_part_speed_t *speed, sl_part_costs_t *costs_p);
SL_API void sl_part_costs_cleanup(sl_part_costs_t *costs);

/* ---- measured costs: a profile, cached in a file ---- */

/**
 * Measure every layer's forward and backward on one device: real kernels on
 * synthetic input, layer by layer, through the device's gates; the fastest of
 * `n_repeats` counts (>= 2; the first is a warm-up). Layers that compute the
 * same (type, attributes, shapes) are measured once. Tokens and labels are 0,
 * which any vocabulary has; gradients are added to, as by all micro-batches
 * but the first. The other figures are the analytic ones.
 *
 * @return SL_OK; SL_ERR_INVALID_ARG; SL_ERR_UNSUPPORTED (kind of device);
 *         SL_ERR_QUOTA when one layer alone does not fit the device; a
 *         kernel's failure, which stays the device's
 */
SL_API SL_NODISCARD sl_status_t sl_part_profile_measure(
    const sl_model_t *model, int64_t rows, sl_device_t *device, int n_repeats,
    const sl_part_speed_t *speed, sl_part_costs_t *costs_p);

/** Key of a profile: model structure (not names), precision, rows, device
 *  kind, threads, CPU. */
SL_API uint64_t sl_part_profile_key(const sl_model_t *model, int64_t rows,
                                    sl_device_kind_t kind, int n_threads);
/** Default file for a key, in $XDG_CACHE_HOME/sluice or ~/.cache/sluice;
 *  empty when there is neither, or no room for it. */
SL_API void sl_part_profile_path(uint64_t key, char *path, size_t path_bytes);
/** JSON, atomic; directories are made. */
SL_API SL_NODISCARD sl_status_t sl_part_profile_save(const char *path,
                                                     uint64_t key,
                                                     const sl_model_t *model,
                                                     const sl_part_costs_t *c);
/** Replace the times of analytic `costs` by a profile's. SL_ERR_NOT_FOUND
 *  (not logged) without a file, and for another key; SL_ERR_CORRUPT for
 *  anything else than a whole profile with a possible time for each layer.
 *  `costs` is unchanged on failure. */
SL_API SL_NODISCARD sl_status_t sl_part_profile_load(const char *path,
                                                     uint64_t key,
                                                     sl_part_costs_t *costs);

/* ---- policies ---- */

/** Memory that a stage with the layers [begin, end) needs at most, such as
 *  sl_part_memory_need(); SIZE_MAX = such a stage is not possible. */
typedef size_t (*sl_part_need_fn)(void *ctx, int begin, int end, int stage);

/** What a policy sees. */
typedef struct sl_part_problem {
    const sl_part_costs_t *costs;
    int n_stages;
    double recompute; /**< forward passes repeated in backward: 0 or 1 */
    double link_bytes_per_us;  /**< 0: bytes cost no time */
    double link_latency_us;    /**< of each transfer that has bytes */
    const double *stage_speed; /**< relative speed of each stage's device: its
                                    share of the device, over the speed that
                                    the costs are of; NULL = all 1 */
    /* memory: looked at by dp alone */
    const size_t *memory_bytes; /**< that each stage may have, SIZE_MAX = any;
                                     NULL (default) = no constraint */
    sl_part_need_fn stage_need; /**< required with memory_bytes */
    void *need_ctx;             /**< borrowed; passed to stage_need */
} sl_part_problem_t;

/** A partitioner. */
typedef struct sl_part_ops {
    size_t size;
    const char *name; /**< "dp", "gpipe", "uniform" */
    const char *brief;
    /** `cuts` has n_stages + 1 entries. n_layers >= n_stages is checked. */
    sl_status_t (*split)(const sl_part_problem_t *problem, int *cuts);
} sl_part_ops_t;

#define SL_PART_BUILTIN_MAP(X)                                                 \
    X(dp)                                                                      \
    X(gpipe)                                                                   \
    X(uniform)

#define X(id) SL_API extern const sl_part_ops_t sl_part_##id;
SL_PART_BUILTIN_MAP(X)
#undef X

SL_API const sl_part_ops_t *sl_part_find(const char *name);
SL_API const sl_part_ops_t *sl_part_builtin(size_t i);

/**
 * The policies:
 *  dp       exact. The least time of the slowest stage (sl_part_stage_us)
 *           among the cuts whose stages all have memory for what they need;
 *           of those cuts the one with the fewest bytes across them, then
 *           the smallest sum of squared stage times, larger stages first.
 *  gpipe    layer i, which ends at the share h_i of all forward flops (of
 *           all layers when none has flops), goes to stage min(floor(h_i *
 *           K), K - 1). Where that leaves stages empty, each cut moves right
 *           just until its stage has a layer, then left just until each
 *           later stage has one.
 *  uniform  layer counts differ by at most one, larger stages first.
 */

/** Cut with a policy. SL_ERR_CONFIG when there are more stages than layers,
 *  with both numbers; SL_ERR_INVALID_ARG for costs, links or speeds that are
 *  not finite or negative; SL_ERR_QUOTA (refused, not logged) when the memory
 *  is not enough for any cut. Never an empty stage; `cuts` is unchanged on
 *  failure. */
SL_API SL_NODISCARD sl_status_t sl_part_split(const sl_part_ops_t *policy,
                                              const sl_part_problem_t *problem,
                                              int *cuts);
/** The cuts under which the worst stage needs the smallest part of its memory:
 *  what would have to change when none fits. Stages may need more than they
 *  have. O(K n^2) questions to stage_need. @return as sl_part_split */
SL_API SL_NODISCARD sl_status_t
sl_part_least_memory(const sl_part_problem_t *problem, int *cuts);
/** Check a cut list given by hand. */
SL_API SL_NODISCARD sl_status_t sl_part_check_cuts(int n_layers, int n_stages,
                                                   const int *cuts);

/**
 * Time of a stage for one micro-batch: forward, backward and recomputation,
 * over the stage's speed, and its transfers. A transfer is charged to the
 * stage that receives it: the activation at its first layer, and the
 * gradient, of equal size, at the cut behind its last. Times are rounded to
 * 2^-20 us, so that the order of summing never decides between cuts.
 */
SL_API double sl_part_stage_us(const sl_part_problem_t *problem, int begin,
                               int end, int stage);
/** Time of the slowest stage: what `dp` minimises. */
SL_API double sl_part_bottleneck_us(const sl_part_problem_t *problem,
                                    const int *cuts);

/** Prediction for M micro-batches on K stages of times t: step T = sum t +
 *  (M-1) * max t, bubble 1 - M * sum t / (K * T). */
typedef struct sl_part_prediction {
    double step_us;
    double bubble; /**< idle share of the devices' time, 0..1 */
} sl_part_prediction_t;

SL_API void sl_part_predict(const sl_part_problem_t *problem, const int *cuts,
                            int n_micro_batches,
                            sl_part_prediction_t *prediction_p);

SL_END_DECLS
#endif /* SL_PARTITION_PARTITION_H */
