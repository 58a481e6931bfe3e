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

/** Make the layer one for this kind of device with activations of this type
 *  (see sl_model_target): shape of the output and parameters anew, from its
 *  inputs there; ties are the caller's.
 *  @return SL_OK, SL_ERR_CONFIG */
SL_NODISCARD sl_status_t sl_layer_target(sl_layer_t *layer,
                                         sl_device_kind_t kind,
                                         sl_dtype_t dtype,
                                         const sl_tensor_desc_t *in,
                                         sl_tensor_desc_t *out_p);

/** Append a parameter: storage plain, not tied; returns it for more. */
sl_param_t *sl_layer_param_add(sl_layer_t *layer, const char *name,
                               sl_param_kind_t kind, int n_dims,
                               const int64_t *dims, sl_init_t init,
                               double init_scale);

/** Whether its elements are of a type that activations have. */
static inline int sl_is_real(const sl_tensor_desc_t *desc)
{
    return desc->dtype == SL_DTYPE_F32 || desc->dtype == SL_DTYPE_BF16 ||
           desc->dtype == SL_DTYPE_F16;
}

/** Whether it is an image [batch, channels, height, width]. */
static inline int sl_is_image(const sl_tensor_desc_t *desc)
{
    return sl_is_real(desc) && desc->n_dims == 4;
}

/** The layout of images that a convolution on these devices makes. */
static inline sl_layout_t sl_image_layout(const sl_layer_t *layer)
{
    return layer->kind == SL_DEVICE_KIND_CPU ? SL_LAYOUT_BLOCKED
                                             : SL_LAYOUT_CHANNELS_LAST;
}

/* The tables of kernels of a layer type: `.kernels = {SL_KERNELS(relu)}`. */
#define X(id) extern const sl_layer_kernels_t sl_cpu_##id;
SL_LAYER_BUILTIN_MAP(X)
#undef X
#if SL_HAVE_CUDA
#define X(id) extern const sl_layer_kernels_t sl_cuda_layer_##id;
SL_LAYER_BUILTIN_MAP(X)
#undef X
#define SL_KERNELS(id)                                                         \
    [SL_DEVICE_KIND_CPU] = &sl_cpu_##id, [SL_DEVICE_KIND_CUDA] =               \
                                             &sl_cuda_layer_##id
#else
#define SL_KERNELS(id) [SL_DEVICE_KIND_CPU] = &sl_cpu_##id
#endif

SL_END_DECLS
#endif /* SL_LAYERS_LAYERS_INTERNAL_H */
