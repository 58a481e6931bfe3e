/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file image_internal.h
 * Attributes of the image layers, shared by their shapes and their kernels.
 */
#ifndef SL_LAYERS_IMAGE_INTERNAL_H
#define SL_LAYERS_IMAGE_INTERNAL_H

#include <stdint.h>

#include "layers/layers.h"

SL_BEGIN_DECLS

typedef enum sl_conv_init {
    SL_CONV_INIT_UNIFORM, /**< bound 1 / sqrt(fan in), PyTorch's default */
    SL_CONV_INIT_KAIMING  /**< normal, deviation sqrt(2 / fan out) */
} sl_conv_init_t;

enum {
    SL_CONV_WEIGHT,
    SL_CONV_BIAS
};

typedef struct sl_conv2d_attrs {
    int64_t out;
    int64_t kernel;
    int64_t kernel_w; /**< 0: kernel */
    int64_t stride;
    int64_t pad;
    int64_t dilation; /**< 1: none */
    int64_t groups;
    int bias;
    int init; /**< sl_conv_init_t */
    /* not attributes: one sample of the input, set with the parameters, for
     * the choice of the weights' storage */
    sl_tensor_desc_t sample;
} sl_conv2d_attrs_t;

enum {
    SL_BN_WEIGHT,
    SL_BN_BIAS,
    SL_BN_MEAN,
    SL_BN_VAR,
    SL_BN_SUMS /**< f64 [3, channels]: count, sum, sum of squares */
};

typedef struct sl_batch_norm_attrs {
    double eps;
    double momentum;
    int relu;
} sl_batch_norm_attrs_t;

typedef struct sl_pool2d_attrs {
    int64_t kernel;
    int64_t stride; /**< 0: kernel */
    int64_t pad;
    int count_include_pad; /**< average only */
} sl_pool2d_attrs_t;

/** Storage of a convolution's weights on the CPU.
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_cpu_conv2d_weight_bytes(const sl_layer_t *layer,
                                                    size_t *bytes_p);

/** Output size of a window along one side; < 1 when it does not fit. */
static inline int64_t sl_window_out(int64_t in, int64_t kernel, int64_t stride,
                                    int64_t pad, int64_t dilation)
{
    const int64_t room = in + 2 * pad - dilation * (kernel - 1) - 1;

    return room < 0 ? 0 : room / stride + 1;
}

/** Shape of a pooling layer's output: the same layout and channels.
 *  @return SL_OK, SL_ERR_CONFIG */
SL_NODISCARD sl_status_t sl_pool2d_infer(const sl_layer_t *layer,
                                         const sl_tensor_desc_t *in,
                                         sl_tensor_desc_t *out_p);

SL_END_DECLS
#endif /* SL_LAYERS_IMAGE_INTERNAL_H */
