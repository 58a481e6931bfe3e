/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file linear_internal.h
 * Attributes of the layer type linear.
 */
#ifndef SL_LAYERS_LINEAR_INTERNAL_H
#define SL_LAYERS_LINEAR_INTERNAL_H

#include <stdint.h>

#include "layers/attr.h"

SL_BEGIN_DECLS

typedef struct sl_linear_attrs {
    int64_t out;
    int bias;
    int init; /**< of "uniform|normal" */
    double init_std;
    char tie[SL_ATTR_TEXT_BYTES]; /**< layer whose weight is used; or empty.
                                       The model resolves it */
} sl_linear_attrs_t;

SL_END_DECLS
#endif /* SL_LAYERS_LINEAR_INTERNAL_H */
