/* SPDX-License-Identifier: Apache-2.0 */
/* Layer types without kernels for CUDA devices: plans of theirs are refused. */
#include "layers/layers_internal.h"

#define MISSING_MAP(X)                                                         \
    X(conv2d)                                                                  \
    X(batch_norm)                                                              \
    X(layer_norm)                                                              \
    X(relu)                                                                    \
    X(gelu)                                                                    \
    X(max_pool2d)                                                              \
    X(avg_pool2d)                                                              \
    X(global_avg_pool)                                                         \
    X(dropout)                                                                 \
    X(embedding)                                                               \
    X(add)                                                                     \
    X(concat)                                                                  \
    X(upsample2d)                                                              \
    X(flatten)                                                                 \
    X(softmax_cross_entropy)

#define X(id) const sl_layer_kernels_t sl_cuda_layer_##id = {.size = 0};
MISSING_MAP(X)
#undef X
