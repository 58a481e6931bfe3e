/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file edges.h
 * Connecting the channels that lead to other ranks. After the stages were
 * made; also in a rehearsal, where only the slots are.
 */
#ifndef SL_ENGINE_PARALLEL_EDGES_H
#define SL_ENGINE_PARALLEL_EDGES_H

#include "engine/engine_internal.h"

/** Their memory: what may find no room. Collective. */
SL_NODISCARD sl_status_t sl_edges_reserve(sl_engine_t *engine);
/** ... and their ports. When a rank has opened one, its peer must. */
SL_NODISCARD sl_status_t sl_edges_connect(sl_engine_t *engine);
/** Both. */
SL_NODISCARD sl_status_t sl_edges_open(sl_engine_t *engine);
void sl_edges_close(sl_engine_t *engine);

/* ---- transport_choice.c: how tensors go ---- */

/** Choose, when that was not done yet, and make what the channels need.
 *  Collective, but for a rehearsal. */
SL_NODISCARD sl_status_t sl_transport_open(sl_engine_t *engine);
/** All channels are closed. */
void sl_transport_close(sl_engine_t *engine);
/** The job has failed: begin nothing new. */
void sl_transport_pause(sl_engine_t *engine);
/** After sl_world_recover(), with what it returned. Collective when that went
 *  well. */
SL_NODISCARD sl_status_t sl_transport_recover(sl_engine_t *engine,
                                              sl_status_t status);

#endif /* SL_ENGINE_PARALLEL_EDGES_H */
