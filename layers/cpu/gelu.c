/* SPDX-License-Identifier: Apache-2.0 */
/* gelu: one pass over memory, vector code. */
#include "layers/attrs_internal.h"
#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/vec_math.h"

/* 0.5 (1 + tanh u) is the sigmoid of 2u; u = sqrt(2 / pi) (x + 0.044715 x^3) */
#define TWICE_SQRT_2_PI 1.5957691216057308f
#define CUBIC 0.044715f

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->keeps_input[0] = 1;
    plan_p->accumulates = 1;
    return SL_OK;
}

static void forward_tanh(const float *restrict in, float *restrict out,
                         sl_cpu_range_t r)
{
    int64_t i;

#pragma omp simd
    for (i = r.begin; i < r.end; i++) {
        const float x = in[i];

        out[i] = x * sl_vec_sigmoid(TWICE_SQRT_2_PI * (x + CUBIC * x * x * x));
    }
}

static void forward_erf(const float *restrict in, float *restrict out,
                        sl_cpu_range_t r)
{
    int64_t i;

#pragma omp simd
    for (i = r.begin; i < r.end; i++) {
        float density;

        out[i] = in[i] * sl_vec_normal(in[i], &density);
    }
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_gelu_attrs_t *attrs = run->plan->layer->attrs;
    const int64_t n = (int64_t)sl_tensor_bytes(&run->plan->out) / 4;
    const int threads = sl_cpu_threads(run, n);
    int t;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t r = sl_cpu_split(n, threads, t, 64);

        if (attrs->kind == SL_GELU_TANH) {
            forward_tanh(run->in[0], run->out, r);
        } else {
            forward_erf(run->in[0], run->out, r);
        }
    }
    return SL_OK;
}

/* Derivative at x. s (1 - s) = e s^2 with e = (1 - s) / s, so that nothing
 * cancels; the bound keeps e finite. */
static inline float slope_tanh(float x)
{
    const float z = TWICE_SQRT_2_PI * (x + CUBIC * x * x * x);
    const float e = sl_vec_exp(z < -40.0f ? 40.0f : -z);
    const float s = 1.0f / (1.0f + e);
    const float dz = TWICE_SQRT_2_PI * (1.0f + 3.0f * CUBIC * x * x);

    return s + x * dz * e * s * s;
}

static inline float slope_erf(float x)
{
    float density;
    const float phi = sl_vec_normal(x, &density);

    return phi + x * density;
}

static void backward_tanh(const float *restrict in, const float *restrict dout,
                          const float *prev, float *din, sl_cpu_range_t r)
{
    int64_t i;

    if (prev == NULL) {
#pragma omp simd
        for (i = r.begin; i < r.end; i++) {
            din[i] = dout[i] * slope_tanh(in[i]);
        }
        return;
    }
#pragma omp simd
    for (i = r.begin; i < r.end; i++) {
        din[i] = prev[i] + dout[i] * slope_tanh(in[i]);
    }
}

static void backward_erf(const float *restrict in, const float *restrict dout,
                         const float *prev, float *din, sl_cpu_range_t r)
{
    int64_t i;

    if (prev == NULL) {
#pragma omp simd
        for (i = r.begin; i < r.end; i++) {
            din[i] = dout[i] * slope_erf(in[i]);
        }
        return;
    }
#pragma omp simd
    for (i = r.begin; i < r.end; i++) {
        din[i] = prev[i] + dout[i] * slope_erf(in[i]);
    }
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_gelu_attrs_t *attrs = run->plan->layer->attrs;
    const int64_t n = (int64_t)sl_tensor_bytes(&run->plan->out) / 4;
    const int threads = sl_cpu_threads(run, n);
    int t;

    (void)stream;
    if (run->din[0] == NULL) {
        return SL_OK;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t r = sl_cpu_split(n, threads, t, 64);

        if (attrs->kind == SL_GELU_TANH) {
            backward_tanh(run->in[0], run->dout, run->din_prev[0], run->din[0],
                          r);
        } else {
            backward_erf(run->in[0], run->dout, run->din_prev[0], run->din[0],
                         r);
        }
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_gelu = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
