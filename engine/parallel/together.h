/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file together.h
 * What a rank does with the others, beside the messages of a step: moving
 * state between steps, failing together, beginning anew. When there are no
 * others these do nothing.
 */
#ifndef SL_ENGINE_PARALLEL_TOGETHER_H
#define SL_ENGINE_PARALLEL_TOGETHER_H

#include "engine/engine_internal.h"

/** Failures of other ranks are raised in `abort`. NULL ends it. */
void sl_together_watch(struct sl_world *world, sl_abort_t *abort);

/** The end of what all ranks do together, with this rank's status: when one
 *  has failed all do, with that one's error; then the ranks are ready for what
 *  comes next, but the watch is over. `abort` is the one that watches.
 *  @return status, or the error of another rank */
SL_NODISCARD sl_status_t sl_together_end(struct sl_world *world,
                                         sl_abort_t *abort, sl_status_t status);

/** What all ranks did has succeeded, as all of them know when this returns: so
 *  none can fail in what comes next while another is not sure of this. A
 *  failure that cuts it short is of what comes next. */
void sl_together_settle(struct sl_world *world);

/** The sum over the ranks of n values. When that is cut short the reason is
 *  in `abort` when it returns. */
SL_NODISCARD sl_status_t sl_together_sum(struct sl_world *world,
                                         sl_abort_t *abort, double *values,
                                         size_t n);

/** Refuse ranks whose parameters differ. */
SL_NODISCARD sl_status_t sl_together_compare(const sl_engine_params_t *params);

/** Make the plan of this rank's devices that of all. */
SL_NODISCARD sl_status_t sl_together_plan(const sl_engine_params_t *params,
                                          sl_memory_plan_t *plan);

/** `bytes` from one rank to another; the others do nothing. */
SL_NODISCARD sl_status_t sl_engine_move(const sl_engine_t *engine, int from,
                                        int to, void *data, size_t bytes);
/** From `root` to all. */
SL_NODISCARD sl_status_t sl_engine_broadcast(const sl_engine_t *engine,
                                             int root, void *data,
                                             size_t bytes);
/** As sl_together_end, for an engine, which watches again after it. */
SL_NODISCARD sl_status_t sl_engine_together(sl_engine_t *engine,
                                            sl_status_t status);
/** After a failed job, which all ranks know of: nothing of it is under way any
 *  more, and the next job's failures are watched for. */
void sl_engine_recover_world(sl_engine_t *engine);

#endif /* SL_ENGINE_PARALLEL_TOGETHER_H */
