/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file drift.h
 * Whether replicas are still equal: every cell hashes its part of the state
 * where it lies, all at once, and the hashes go with the sum by which a step is
 * agreed on. So it costs no wait, and all ranks find the same.
 */
#ifndef SL_ENGINE_PARALLEL_DRIFT_H
#define SL_ENGINE_PARALLEL_DRIFT_H

#include "engine/engine_internal.h"

SL_NODISCARD sl_status_t sl_drift_init(sl_engine_t *engine);
void sl_drift_cleanup(sl_engine_t *engine);
/** A job begins. */
void sl_drift_begin(sl_engine_t *engine);
/** Whether the job compares the replicas: see sl_engine_params_t. A rehearsal
 *  does when any step would. */
int sl_drift_is_due(const sl_engine_t *engine);
/** Queue the hash of a stage's values, and of the moments unless they are
 *  shared out, into the engine's. */
SL_NODISCARD sl_status_t sl_drift_hash(sl_stage_t *stage);

/** The most time that a device of this rank has spent on it in the latest job;
 *  0: it did not compare. */
double sl_drift_most_us(const sl_engine_t *engine);

/** Numbers that tell the others of this rank's hashes: 0 for other cells, so
 *  that a sum has them all. */
size_t sl_drift_n_values(const sl_engine_t *engine);
void sl_drift_put(const sl_engine_t *engine, double *values);
/** The sums of those. */
void sl_drift_take(sl_engine_t *engine, const double *values);

/** With the hashes of all: a cell that is not what that of replica 0 is, the
 *  first one, or -1. */
int sl_drift_find(const sl_engine_t *engine);
/** Likewise, where a job compares: SL_ERR_CORRUPT on all stages.
 *  @return SL_OK, SL_ERR_CORRUPT, SL_ERR_CANCELED (another stage says it) */
SL_NODISCARD sl_status_t sl_drift_check(const sl_stage_t *stage);

#endif /* SL_ENGINE_PARALLEL_DRIFT_H */
