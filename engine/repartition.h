/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file repartition.h
 * Other cuts for an engine that trains: layers move between its stages.
 */
#ifndef SL_ENGINE_REPARTITION_H
#define SL_ENGINE_REPARTITION_H

#include "engine/engine.h"

SL_BEGIN_DECLS

/** What a move took. */
typedef struct sl_repartition_report {
    int n_layers;       /**< that changed their stage */
    size_t moved_bytes; /**< of the state of those, in all replicas */
    double move_us;
} sl_repartition_report_t;

/** The cuts in force; borrowed until the next sl_engine_repartition(). */
SL_API const int *sl_engine_cuts(const sl_engine_t *engine);

/**
 * Between steps: go on with these cuts, as if the engine had been created
 * with them. The state has the same hash, and later steps the same bits.
 *
 * Layers move one by one, so that a device holds at most one layer more than
 * before or after. Those of several replicas move alike, and all of the state
 * goes over host memory, as their buckets are made anew. When a device has no
 * room for a layer, or host memory ends, everything moves back and the engine
 * goes on as it was (or, when there is no way back, with the cuts of that
 * moment).
 *
 * With several ranks it is collective. There the failure of a link, or of the
 * memory for its messages after the move, is final.
 *
 * @param[in]  cuts     n_stages + 1 entries, copied
 * @param[out] report_p may be NULL
 * @return SL_OK; SL_ERR_CONFIG (cuts); SL_ERR_QUOTA, SL_ERR_NO_MEMORY (as it
 *         was); SL_ERR_CANCELED (a failed engine); SL_ERR_UNSUPPORTED (several
 *         kinds of devices); SL_ERR_DEVICE and SL_ERR_COMM, after which the
 *         engine is failed
 */
SL_API SL_NODISCARD sl_status_t sl_engine_repartition(
    sl_engine_t *engine, const int *cuts, sl_repartition_report_t *report_p);

SL_END_DECLS
#endif /* SL_ENGINE_REPARTITION_H */
