/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout masks over ranges of memory. */
#include "layers/cpu/drop.h"

#include "layers/layers_internal.h"

static void apply_numbers(const sl_drop_t *drop, const uint32_t *numbers,
                          const float *x, const float *prev, float *y,
                          int64_t n)
{
    const uint32_t threshold = drop->threshold;
    const float scale = drop->scale;
    int64_t i;

    if (prev == NULL) {
#pragma omp simd
        for (i = 0; i < n; i++) {
            y[i] = numbers[i] >= threshold ? x[i] * scale : 0.0f;
        }
        return;
    }
#pragma omp simd
    for (i = 0; i < n; i++) {
        y[i] = prev[i] + (numbers[i] >= threshold ? x[i] * scale : 0.0f);
    }
}

void sl_drop_apply(const sl_drop_t *drop, uint32_t block, const float *x,
                   const float *prev, float *y, sl_cpu_range_t range)
{
    uint32_t numbers[SL_DROP_NUMBERS];
    int64_t i;

    SL_ASSERT(range.begin % SL_DROP_NUMBERS == 0 || range.begin == range.end);
    for (i = range.begin; i < range.end; i += SL_DROP_NUMBERS) {
        const int64_t rest = range.end - i;

        sl_drop_numbers(&drop->rng, block + (uint32_t)(i / 4), numbers);
        apply_numbers(drop, numbers, x + i, prev == NULL ? NULL : prev + i,
                      y + i, rest < SL_DROP_NUMBERS ? rest : SL_DROP_NUMBERS);
    }
}

int64_t sl_drop_n_numbers(const sl_tensor_desc_t *desc)
{
    sl_tensor_desc_t on_cpu = *desc;

    on_cpu.dtype = SL_DTYPE_F32;
    if (desc->layout == SL_LAYOUT_CHANNELS_LAST) {
        on_cpu.layout = SL_LAYOUT_BLOCKED;
    }
    return (int64_t)(sl_tensor_bytes(&on_cpu) / sizeof(float));
}

sl_status_t sl_drop_check_size(const sl_layer_t *layer,
                               const sl_tensor_desc_t *desc, int n_streams)
{
    char label[SL_LAYER_LABEL_BYTES];
    char shape[SL_TENSOR_TEXT_BYTES];
    sl_status_t status = SL_OK;

    if (sl_drop_n_numbers(desc) + SL_DROP_NUMBERS >
        SL_DROP_MAX_ELEMENTS / n_streams) {
        sl_tensor_desc_format(desc, shape, sizeof(shape));
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "%s: dropout of %s needs more than 2^34 random numbers a "
                "micro-batch; use a smaller one",
                sl_layer_label(layer, label), shape);
    }
out:
    return status;
}
