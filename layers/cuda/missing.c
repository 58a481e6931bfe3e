/* SPDX-License-Identifier: Apache-2.0 */
/* Layer types without kernels for CUDA devices: plans of theirs are refused. */
#include "layers/layers_internal.h"

/* clang-format off */
#define SL_LAYER_MISSING_MAP(X)                                                \
    X(conv2d)                                                                  \
    X(batch_norm)                                                              \
    X(max_pool2d)                                                              \
    X(avg_pool2d)                                                              \
    X(global_avg_pool)                                                         \
    X(concat)                                                                  \
    X(upsample2d)                                                              \
    X(flatten)
/* clang-format on */

#define X(id) const sl_layer_kernels_t sl_cuda_layer_##id = {.size = 0};
SL_LAYER_MISSING_MAP(X)
#undef X
