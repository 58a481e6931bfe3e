/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of tensors in memory. */
#include "layers/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "layers/cpu/dnnl.h"

sl_tensor_desc_t sl_tensor_desc(sl_dtype_t dtype, int n_dims,
                                const int64_t *dims)
{
    sl_tensor_desc_t desc = {.dtype = dtype, .n_dims = n_dims};
    int i;

    SL_ASSERT(n_dims >= 1 && n_dims <= SL_MAX_DIMS);
    for (i = 0; i < n_dims; i++) {
        desc.dims[i] = dims[i];
    }
    return desc;
}

size_t sl_dtype_bytes(sl_dtype_t dtype)
{
    static const size_t bytes[] = {[SL_DTYPE_F32] = 4,
                                   [SL_DTYPE_I32] = 4,
                                   [SL_DTYPE_F64] = 8,
                                   [SL_DTYPE_BF16] = 2,
                                   [SL_DTYPE_F16] = 2};

    return bytes[dtype];
}

int64_t sl_tensor_elements(const sl_tensor_desc_t *desc)
{
    int64_t n = 1;
    int i;

    for (i = 0; i < desc->n_dims; i++) {
        n *= desc->dims[i];
    }
    return n;
}

int64_t sl_channel_block(void)
{
    return sl_dnnl_channel_block();
}

int64_t sl_padded_channels(const sl_tensor_desc_t *desc)
{
    const int64_t block = sl_channel_block();

    if (desc->layout != SL_LAYOUT_BLOCKED) {
        return desc->dims[1];
    }
    return (desc->dims[1] + block - 1) / block * block;
}

size_t sl_tensor_bytes(const sl_tensor_desc_t *desc)
{
    int64_t n = sl_tensor_elements(desc);

    if (desc->layout == SL_LAYOUT_BLOCKED && n > 0) {
        n = n / desc->dims[1] * sl_padded_channels(desc);
    }
    return (size_t)n * sl_dtype_bytes(desc->dtype);
}

int64_t sl_tensor_rows(const sl_tensor_desc_t *desc)
{
    int64_t n = 1;
    int i;

    for (i = 0; i + 1 < desc->n_dims; i++) {
        n *= desc->dims[i];
    }
    return n;
}

int sl_tensor_desc_is_equal(const sl_tensor_desc_t *a,
                            const sl_tensor_desc_t *b)
{
    int i;

    if (a->dtype != b->dtype || a->layout != b->layout ||
        a->n_dims != b->n_dims) {
        return 0;
    }
    for (i = 0; i < a->n_dims; i++) {
        if (a->dims[i] != b->dims[i]) {
            return 0;
        }
    }
    return 1;
}

void sl_tensor_desc_format(const sl_tensor_desc_t *desc, char *text,
                           size_t text_bytes)
{
    static const char *const names[] = {[SL_DTYPE_F32] = "f32",
                                        [SL_DTYPE_I32] = "i32",
                                        [SL_DTYPE_F64] = "f64",
                                        [SL_DTYPE_BF16] = "bf16",
                                        [SL_DTYPE_F16] = "f16"};
    char dims[SL_MAX_DIMS * 24] = "";
    size_t used = 0;
    int i;

    for (i = 0; i < desc->n_dims; i++) {
        used += (size_t)snprintf(dims + used, sizeof(dims) - used, "%s%" PRId64,
                                 i == 0 ? "" : ", ", desc->dims[i]);
    }
    (void)snprintf(text, text_bytes, "%s [%s]", names[desc->dtype], dims);
}
