/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file topology.h
 * The static facts of an engine, in the order they are made: layers,
 * channels, (stages), parameters.
 */
#ifndef SL_ENGINE_TOPOLOGY_H
#define SL_ENGINE_TOPOLOGY_H

#include "engine/engine_internal.h"

/** Stage of each layer, and whether something trained is upstream of it. */
SL_NODISCARD sl_status_t sl_topology_layers(sl_engine_t *engine);
/** A channel each way for every value that crosses a cut. */
SL_NODISCARD sl_status_t sl_topology_channels(sl_engine_t *engine);
/** After the stages: ties and the places of the norms, in model order. */
SL_NODISCARD sl_status_t sl_topology_params(sl_engine_t *engine);

#endif /* SL_ENGINE_TOPOLOGY_H */
