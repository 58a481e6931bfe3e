/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attrs_internal.h
 * Attributes of the simple layers, shared by their shapes and their kernels.
 */
#ifndef SL_LAYERS_ATTRS_INTERNAL_H
#define SL_LAYERS_ATTRS_INTERNAL_H

#include <stdint.h>

#include "layers/layers.h"

/** Largest double below 1: a dropout that leaves some. */
#define SL_DROPOUT_MAX 0x1.fffffffffffffp-1

typedef enum sl_gelu_kind {
    SL_GELU_TANH,
    SL_GELU_ERF
} sl_gelu_kind_t;

typedef struct sl_gelu_attrs {
    int kind; /**< sl_gelu_kind_t */
} sl_gelu_attrs_t;

typedef struct sl_dropout_attrs {
    double p; /**< probability of zero, in [0, 1) */
} sl_dropout_attrs_t;

typedef struct sl_add_attrs {
    double dropout; /**< on every input but the first, in [0, 1) */
    int relu;       /**< of the sum */
} sl_add_attrs_t;

typedef struct sl_upsample2d_attrs {
    int64_t factor; /**< of height and width */
} sl_upsample2d_attrs_t;

typedef struct sl_layer_norm_attrs {
    double eps; /**< added to the variance */
} sl_layer_norm_attrs_t;

enum {
    SL_LAYER_NORM_WEIGHT, /**< parameter index: [width] */
    SL_LAYER_NORM_BIAS    /**< parameter index: [width] */
};

typedef struct sl_embedding_attrs {
    int64_t vocab;
    int64_t width;
    int positions;   /**< add a learned vector of each position */
    double init_std; /**< deviation of the initial values */
} sl_embedding_attrs_t;

enum {
    SL_EMBEDDING_WEIGHT,  /**< parameter index: [vocab, width] */
    SL_EMBEDDING_POSITION /**< parameter index: [time, width] */
};

typedef struct sl_loss_attrs {
    int64_t ignore_index;   /**< a target that does not count */
    double label_smoothing; /**< share of the target spread over all classes */
} sl_loss_attrs_t;

/* Plans of types whose kernels on every kind of device keep and pass on the
 * same: none has sizes or kernels of its own. */
SL_NODISCARD sl_status_t sl_add_plan(sl_layer_plan_t *plan);
SL_NODISCARD sl_status_t sl_dropout_plan(sl_layer_plan_t *plan);
SL_NODISCARD sl_status_t sl_flatten_plan(sl_layer_plan_t *plan);

#endif /* SL_LAYERS_ATTRS_INTERNAL_H */
