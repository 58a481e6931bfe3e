/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attention_internal.h
 * Attributes of the layer type attention.
 */
#ifndef SL_LAYERS_ATTENTION_INTERNAL_H
#define SL_LAYERS_ATTENTION_INTERNAL_H

#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

/**
 * The kernels read these. Element (b, h, i, j) of the probabilities is
 * dropped when the number with index ((b * heads + h) * T + i) * T + j at the
 * address (seed, step, micro-batch, layer, SL_RNG_USE_ATTENTION_DROPOUT) is
 * below dropout * 2^32; b is the row within the micro-batch.
 */
typedef struct sl_attention_attrs {
    int64_t heads;
    double dropout; /**< of the probabilities, in [0, 1) */
    int causal;     /**< position i sees positions 0..i only */
} sl_attention_attrs_t;

SL_END_DECLS
#endif /* SL_LAYERS_ATTENTION_INTERNAL_H */
