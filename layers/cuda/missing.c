/* SPDX-License-Identifier: Apache-2.0 */
/* Layer types without kernels for CUDA devices: plans of theirs are refused. */
#include "layers/layers_internal.h"

#define X(id) const sl_layer_kernels_t sl_cuda_layer_##id = {.size = 0};
SL_LAYER_BUILTIN_MAP(X)
#undef X
