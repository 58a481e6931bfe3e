/* SPDX-License-Identifier: Apache-2.0 */
/* Precisions: a type of activations and a way to multiply. */
#include "layers/layers.h"

static const sl_dtype_t dtypes[] = {
    [SL_PRECISION_F32] = SL_DTYPE_F32,
    [SL_PRECISION_TF32] = SL_DTYPE_F32,
    [SL_PRECISION_BF16] = SL_DTYPE_BF16,
    [SL_PRECISION_F16] = SL_DTYPE_F16,
};

sl_status_t sl_model_set_precision(sl_model_t *model, sl_device_kind_t kind,
                                   sl_precision_t precision)
{
    sl_status_t status;

    SL_TRY(status, sl_model_target(model, kind, dtypes[precision]), out);
    status = sl_model_allow_tf32(model, precision == SL_PRECISION_TF32);
out:
    return status;
}

sl_precision_t sl_model_precision(const sl_model_t *model)
{
    switch (model->dtype) {
    case SL_DTYPE_BF16:
        return SL_PRECISION_BF16;
    case SL_DTYPE_F16:
        return SL_PRECISION_F16;
    case SL_DTYPE_F32:
    case SL_DTYPE_I32:
    case SL_DTYPE_F64:
        break;
    }
    return model->is_tf32 ? SL_PRECISION_TF32 : SL_PRECISION_F32;
}
