/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file builder.h
 * Adding layers in a row: after a failure the rest does nothing, and the
 * failure is there at the end.
 */
#ifndef SL_LAYERS_MODELS_BUILDER_H
#define SL_LAYERS_MODELS_BUILDER_H

#include "layers/layers.h"

typedef struct sl_builder {
    sl_model_t *model;
    sl_status_t status; /**< the first failure */
    int last;           /**< latest layer; SL_INPUT_DATA before the first */
} sl_builder_t;

enum {
    SL_BUILDER_NONE = -100 /**< no second input */
};

/** Given attributes as the two arguments of sl_builder_add. */
#define SL_BUILDER_ATTRS(...)                                                  \
    (const sl_attr_t[]){__VA_ARGS__},                                          \
        sizeof((const sl_attr_t[]){__VA_ARGS__}) / sizeof(sl_attr_t)

void sl_builder_begin(sl_builder_t *b, const char *name,
                      const sl_tensor_desc_t *data,
                      const sl_tensor_desc_t *target);

/** Add a layer that reads `a` (and `second`, or SL_BUILDER_NONE).
 *  @return its index */
int sl_builder_add(sl_builder_t *b, const char *type, int a, int second,
                   const sl_attr_t *attrs, size_t n_attrs, const char *name_fmt,
                   ...) SL_PRINTF(7, 8);

/** Check the model and hand it over; destroys it on failure. */
SL_NODISCARD sl_status_t sl_builder_end(sl_builder_t *b, sl_model_t **model_p);

#endif /* SL_LAYERS_MODELS_BUILDER_H */
