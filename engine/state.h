/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file state.h
 * One tensor of the state, wherever its parts are kept.
 */
#ifndef SL_ENGINE_STATE_H
#define SL_ENGINE_STATE_H

#include "engine/engine_internal.h"

typedef enum sl_state_kind {
    SL_STATE_VALUE,
    SL_STATE_GRADIENT,
    SL_STATE_MOMENT
} sl_state_kind_t;

/* What is read or written. */
typedef struct sl_state_item {
    int layer, param;
    const sl_param_t *desc;
    sl_state_kind_t kind;
    int moment;
} sl_state_item_t;

/** Host memory for an item's storage, zeroed; the caller frees it. */
SL_NODISCARD sl_status_t sl_state_alloc(const sl_engine_t *engine,
                                        const sl_state_item_t *item,
                                        char **storage_p);
/** An item's plain values on the rank of its stage, of replica 0.
 *  @param[out] is_here_p whether this is that rank */
SL_NODISCARD sl_status_t sl_state_read(const sl_engine_t *engine,
                                       const sl_state_item_t *item,
                                       float *plain, int *is_here_p);

#endif /* SL_ENGINE_STATE_H */
