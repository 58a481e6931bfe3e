/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file restage.h
 * The state of several replicas into stages with other cuts. A stage's buckets
 * follow from its layers, and moments that are shared out follow from the
 * buckets; so all of a rank's state goes over host memory, and device memory
 * holds the old stages or the new ones, never both.
 */
#ifndef SL_ENGINE_RESTAGE_H
#define SL_ENGINE_RESTAGE_H

#include "engine/mover.h"

/**
 * Fill the stages of `next`, which is bare, with the state of mover->engine,
 * whose stages keep no memory, and open its edges. Collective; those of
 * mover->engine are closed. When a device has no room for all that, the old
 * stages get their state back.
 *
 * @return SL_OK; SL_ERR_QUOTA, SL_ERR_NO_MEMORY: all is as it was;
 *         others, and those with mover->is_broken: the state is lost
 */
SL_NODISCARD sl_status_t sl_restage(sl_mover_t *mover, sl_engine_t *next);

#endif /* SL_ENGINE_RESTAGE_H */
