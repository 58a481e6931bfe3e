/* SPDX-License-Identifier: Apache-2.0 */
/* relu: backward reads the output, so that forward may run in place. */
#include "layers/cpu/cpu_kernels.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->keeps_output = 1;
    plan_p->accumulates = 1;
    plan_p->in_place = 1;
    return SL_OK;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const float *in = run->in[0];
    float *out = run->out;
    const int64_t n = (int64_t)sl_tensor_bytes(&run->plan->out) / 4;
    const int threads = sl_cpu_threads(run, n);
    int t;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t r = sl_cpu_split(n, threads, t, 64);
        int64_t i;

        /* written so that NaN stays NaN */
#pragma omp simd
        for (i = r.begin; i < r.end; i++) {
            out[i] = in[i] <= 0.0f ? 0.0f : in[i];
        }
    }
    return SL_OK;
}

/* din = dout where out > 0 (+ prev) */
static void backward_range(const float *restrict out,
                           const float *restrict dout, const float *prev,
                           float *din, sl_cpu_range_t r)
{
    int64_t i;

    if (prev == NULL) {
#pragma omp simd
        for (i = r.begin; i < r.end; i++) {
            din[i] = out[i] <= 0.0f ? 0.0f : dout[i];
        }
        return;
    }
#pragma omp simd
    for (i = r.begin; i < r.end; i++) {
        din[i] = prev[i] + (out[i] <= 0.0f ? 0.0f : dout[i]);
    }
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const int64_t n = (int64_t)sl_tensor_bytes(&run->plan->out) / 4;
    const int threads = sl_cpu_threads(run, n);
    int t;

    (void)stream;
    if (run->din[0] == NULL) {
        return SL_OK;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        backward_range(run->out, run->dout, run->din_prev[0], run->din[0],
                       sl_cpu_split(n, threads, t, 64));
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_relu = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
