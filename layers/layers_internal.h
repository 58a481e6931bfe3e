/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layers_internal.h
 * What the layer types share.
 */
#ifndef SL_LAYERS_LAYERS_INTERNAL_H
#define SL_LAYERS_LAYERS_INTERNAL_H

#include "layers/layers.h"

SL_BEGIN_DECLS

enum {
    SL_LAYER_LABEL_BYTES = 192,
    SL_TENSOR_TEXT_BYTES = 112
};

/** "layer conv1 (conv2d, line 12)" into text, for messages.
 *  @return text */
const char *sl_layer_label(const sl_layer_t *layer,
                           char text[SL_LAYER_LABEL_BYTES]);

/** Fail with "<label>: input <i> must be <need>, not f32 [8, 10]".
 *  @return SL_ERR_CONFIG, recorded and logged */
SL_NODISCARD sl_status_t sl_layer_refuse_input(const sl_layer_t *layer, int i,
                                               const sl_tensor_desc_t *in,
                                               const char *need);

/** The type's infer, and that the result has a sane size.
 *  @return SL_OK, SL_ERR_CONFIG */
SL_NODISCARD sl_status_t sl_layer_infer(const sl_layer_t *layer,
                                        const sl_tensor_desc_t *in,
                                        sl_tensor_desc_t *out_p);

/** Append a parameter: storage plain, not tied; returns it for more. */
sl_param_t *sl_layer_param_add(sl_layer_t *layer, const char *name,
                               sl_param_kind_t kind, int n_dims,
                               const int64_t *dims, sl_init_t init,
                               double init_scale);

/** Whether it is an f32 image [batch, channels, height, width]. */
static inline int sl_is_image(const sl_tensor_desc_t *desc)
{
    return desc->dtype == SL_DTYPE_F32 && desc->n_dims == 4;
}

SL_END_DECLS
#endif /* SL_LAYERS_LAYERS_INTERNAL_H */
