/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rehearse.h
 * A rehearsal: the engine over dry devices. Their memory is reserved address
 * space behind the real allocator, and they have no op manager, so that every
 * allocation and release of a step takes place and nothing else.
 */
#ifndef SL_ENGINE_REHEARSE_H
#define SL_ENGINE_REHEARSE_H

#include "engine/engine_internal.h"

typedef struct sl_rehearsal sl_rehearsal_t; /* opaque */

/** @param[in] params borrowed; what it points to must outlive the rehearsal */
SL_NODISCARD sl_status_t sl_rehearsal_open(const sl_engine_params_t *params,
                                           sl_rehearsal_t **rehearsal_p);
void sl_rehearsal_close(sl_rehearsal_t *rehearsal);

/** What the next run assumes of device d (default: the limit in force). */
void sl_rehearsal_set_limit(sl_rehearsal_t *rehearsal, int d,
                            size_t limit_bytes);
/** Under recompute `auto`, 1 = kept; one a layer, copied. */
SL_NODISCARD sl_status_t sl_rehearsal_set_keeps(sl_rehearsal_t *rehearsal,
                                                const unsigned char *keeps);

/** Rehearse steps from newly created state. */
SL_NODISCARD sl_status_t sl_rehearsal_run(sl_rehearsal_t *rehearsal);

/** After a run: what it found for device d. */
const sl_dry_memory_t *sl_rehearsal_memory(const sl_rehearsal_t *rehearsal,
                                           int d);
/** After a run, borrowed: stages and plans. */
sl_engine_t *sl_rehearsal_engine(const sl_rehearsal_t *rehearsal);

#endif /* SL_ENGINE_REHEARSE_H */
