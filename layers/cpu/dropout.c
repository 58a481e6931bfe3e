/* SPDX-License-Identifier: Apache-2.0 */
/* dropout: forward and backward are the same product with the mask. */
#include <string.h>

#include "layers/attrs_internal.h"
#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/drop.h"
#include "layers/layers_internal.h"

static void apply_copy(const sl_layer_run_t *run, const float *x,
                       const float *prev, float *y, int64_t n)
{
    int64_t i;

    (void)run;
    if (prev == NULL) {
        if (x != y) {
            memcpy(y, x, (size_t)n * sizeof(*y));
        }
        return;
    }
#pragma omp simd
    for (i = 0; i < n; i++) {
        y[i] = prev[i] + x[i];
    }
}

/* y = mask * x / (1 - p) (+ prev) */
static void apply(const sl_layer_run_t *run, const float *x, const float *prev,
                  float *y)
{
    const sl_dropout_attrs_t *attrs = run->plan->layer->attrs;
    const int64_t n = (int64_t)sl_tensor_bytes(&run->plan->out) / 4;
    const int threads = sl_cpu_threads(run, n);
    const sl_drop_t drop = sl_drop_of(run, attrs->p, SL_RNG_USE_DROPOUT);
    int t;

    if (!run->step.is_training || attrs->p <= 0) {
        apply_copy(run, x, prev, y, n);
        return;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t r = sl_cpu_split(n, threads, t, SL_DROP_NUMBERS);

        sl_drop_apply(&drop, 0, x, prev, y, r);
    }
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    (void)stream;
    apply(run, run->in[0], NULL, run->out);
    return SL_OK;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    (void)stream;
    if (run->din[0] != NULL) {
        apply(run, run->dout, run->din_prev[0], run->din[0]);
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_dropout = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = sl_dropout_plan,
    .forward = forward,
    .backward = backward,
};
