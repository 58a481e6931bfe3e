/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file edges.h
 * Connecting the channels that lead to other ranks. After the stages were
 * made; also in a rehearsal, where only the slots are.
 */
#ifndef SL_ENGINE_PARALLEL_EDGES_H
#define SL_ENGINE_PARALLEL_EDGES_H

#include "engine/engine_internal.h"

/** Their memory: what may find no room. */
SL_NODISCARD sl_status_t sl_edges_reserve(sl_engine_t *engine);
/** ... and their ports. When a rank has opened one, its peer must. */
SL_NODISCARD sl_status_t sl_edges_connect(sl_engine_t *engine);
/** Both. */
SL_NODISCARD sl_status_t sl_edges_open(sl_engine_t *engine);
void sl_edges_close(sl_engine_t *engine);

#endif /* SL_ENGINE_PARALLEL_EDGES_H */
