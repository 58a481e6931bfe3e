/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file parallel.h
 * Data parallel training: R replicas of a stage and what they exchange.
 *
 * A cell's trained parameters lie in buckets, in the order in which a backward
 * pass completes their gradients. A bucket is cut into R chunks; chunk i
 * belongs to replica i. Every replica sends its part of a chunk to the owner,
 * which adds the parts in replica order. Then either the sums go back to all
 * and all update (default), or the owner updates its chunk, the only one that
 * it keeps moments for, and the new values go to all (ZeRO-1, Rajbhandari et
 * al. 2020). Both give the same bits.
 *
 * What the bits depend on is R only: a parameter is cut into R segments that
 * its size decides, chunks consist of whole segments, and the norm is summed
 * by segment. So buckets, and with them stages and ranks, may be any.
 */
#ifndef SL_ENGINE_PARALLEL_PARALLEL_H
#define SL_ENGINE_PARALLEL_PARALLEL_H

#include "engine/engine_internal.h"

/* ---- buckets.c: who has what ---- */

/** Lay a stage's parameters out in buckets; nothing with one replica. */
SL_NODISCARD sl_status_t sl_buckets_init(sl_stage_t *stage);
void sl_buckets_cleanup(sl_stage_t *stage);
/** Their memory, zeroed, and back. */
SL_NODISCARD sl_status_t sl_buckets_alloc(sl_stage_t *stage);
void sl_buckets_release(sl_stage_t *stage);
/** Where segment i of n floats cut into n_segments starts; i may be
 *  n_segments. */
size_t sl_segment_start(size_t n, int i, int n_segments);
/** The floats [*start_p, return) of a parameter that are in chunk `owner` of
 *  its bucket. */
size_t sl_param_chunk(const sl_stage_t *stage, const sl_stage_param_t *param,
                      int owner, size_t *start_p);
/** Where replica `owner`'s moment of that part lies on its stage. */
sl_storage_t sl_param_moment(const sl_stage_t *stage,
                             const sl_stage_param_t *param, int moment,
                             size_t start);

/* ---- reduce.c: gradients and new values between replicas ---- */

/** A step begins. */
void sl_reduce_begin(sl_stage_t *stage);
/** The last backward of local layer l was submitted: send what is complete,
 *  add what has come. */
SL_NODISCARD sl_status_t sl_reduce_layer(sl_stage_t *stage, int l);
/** The rest, at the update. After it the stage's own chunks are sums over
 *  the replicas; without ZeRO-1 all its gradients are. */
SL_NODISCARD sl_status_t sl_reduce_finish(sl_stage_t *stage);
/** ZeRO-1: the new values of a bucket's own chunk to the other replicas, and
 *  theirs as they come; then the rest of theirs. */
SL_NODISCARD sl_status_t sl_values_send(sl_stage_t *stage, int bucket);
SL_NODISCARD sl_status_t sl_values_receive(sl_stage_t *stage);

/* ---- statistics.c ---- */

/** Batch norm's accumulators over the replicas. */
SL_NODISCARD sl_status_t sl_statistics_reduce(sl_stage_t *stage);

/* ---- ties.c ---- */

/** Gradients of tied users, in layer order, added to their owner's. */
SL_NODISCARD sl_status_t sl_ties_collect(sl_stage_t *stage);
/** The owners' new values to the users. */
SL_NODISCARD sl_status_t sl_ties_spread(sl_stage_t *stage);
/** Wait until the gradients, or the values, that were sent are taken. */
SL_NODISCARD sl_status_t sl_ties_settle(sl_stage_t *stage, int is_value);

/* ---- agree.c ---- */

/** Room for a job's sums; no stage runs. */
SL_NODISCARD sl_status_t sl_agreement_reserve(sl_engine_t *engine);
/** Meet all cells of all ranks: norms, losses, flags and the sums of what was
 *  given to a step are then the same everywhere. */
SL_NODISCARD sl_status_t sl_stage_agree(sl_stage_t *stage);
/** After a step: its sums of what sl_engine_sum_with_step was given, which is
 *  over with. @return how many there are */
size_t sl_agreement_take_given(sl_engine_t *engine, const double **sums_p);
/** After sl_world_recover, of a rank whose agreement was cut short: whether it
 *  took place all the same, and other ranks went on to change their state or
 *  to count a step as skipped. This rank has missed that for good. */
int sl_agreement_was_missed(sl_engine_t *engine);
/** After that: whether the step is skipped, or an error when it must stop.
 *  @return SL_OK, SL_ERR_NUMERIC, SL_ERR_CANCELED (another stage says it) */
SL_NODISCARD sl_status_t sl_stage_check_finite(const sl_stage_t *stage,
                                               double norm, int *is_skipped_p);

/* ---- fold.c: a sum over replicas, in their order ---- */

/** Where a part, or the sum so far, lies. */
typedef struct sl_fold_part {
    const void *data;
    sl_mem_block_t *block; /**< owned, or NULL */
    sl_channel_t *lender;  /**< or NULL; of message m, to be given back */
    int m;
} sl_fold_part_t;

typedef struct sl_fold {
    sl_stage_t *stage;
    void *own;          /**< this replica's part; becomes the sum */
    size_t n;           /**< elements */
    int is_f64;         /**< else f32 */
    sl_fold_part_t sum; /**< so far */
} sl_fold_t;

/** Add replica i's part, i rising from 0: `part` (taken) or, when NULL, the
 *  own one. */
SL_NODISCARD sl_status_t sl_fold_add(sl_fold_t *fold, int i,
                                     sl_fold_part_t *part);
/** NULL inside is allowed. */
void sl_fold_cleanup(sl_fold_t *fold);

#endif /* SL_ENGINE_PARALLEL_PARALLEL_H */
