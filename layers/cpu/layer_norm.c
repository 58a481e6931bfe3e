/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm: saves mean and 1 / deviation of each row; the parameter
 * gradients are summed by each thread over its rows, then over threads. */
#include <math.h>
#include <string.h>

#include "layers/attrs_internal.h"
#include "layers/cpu/cpu_kernels.h"

typedef struct shape {
    int64_t rows;
    int64_t width;
    int threads;
} shape_t;

static shape_t shape_of(const sl_layer_plan_t *plan)
{
    const sl_tensor_desc_t *in = &plan->in[0];
    shape_t s;

    s.rows = sl_tensor_rows(in);
    s.width = in->dims[in->n_dims - 1];
    s.threads = s.rows * s.width < 16384 ? 1 : plan->n_threads;
    return s;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const shape_t s = shape_of(plan_p);

    plan_p->saved_bytes =
        plan_p->is_training ? (size_t)(2 * s.rows) * sizeof(float) : 0;
    plan_p->backward_workspace_bytes =
        (size_t)(2 * s.width * s.threads) * sizeof(float);
    plan_p->keeps_input[0] = 1;
    plan_p->accumulates = 1;
    return SL_OK;
}

static float mean_of(const float *x, int64_t n)
{
    float sum = 0;
    int64_t i;

#pragma omp simd reduction(+ : sum)
    for (i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum / (float)n;
}

static float variance_of(const float *x, float mean, int64_t n)
{
    float sum = 0;
    int64_t i;

#pragma omp simd reduction(+ : sum)
    for (i = 0; i < n; i++) {
        sum += (x[i] - mean) * (x[i] - mean);
    }
    return sum / (float)n;
}

/* y[width] from x[width]; saved: {mean, 1 / deviation} */
static void forward_row(const sl_layer_run_t *run, const float *restrict x,
                        float *restrict y, float *saved, int64_t width)
{
    const sl_layer_norm_attrs_t *attrs = run->plan->layer->attrs;
    const float *weight = run->param[SL_LAYER_NORM_WEIGHT];
    const float *bias = run->param[SL_LAYER_NORM_BIAS];
    const float mean = mean_of(x, width);
    const float inverse =
        1.0f / sqrtf(variance_of(x, mean, width) + (float)attrs->eps);
    int64_t i;

#pragma omp simd
    for (i = 0; i < width; i++) {
        y[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
    }
    if (saved != NULL) {
        saved[0] = mean;
        saved[1] = inverse;
    }
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const shape_t s = shape_of(run->plan);
    const int has_saved = run->plan->is_training && run->saved != NULL;
    int t;

    (void)stream;
#pragma omp parallel for num_threads(s.threads) if (s.threads > 1)             \
    schedule(static)
    for (t = 0; t < s.threads; t++) {
        const sl_cpu_range_t r = sl_cpu_split(s.rows, s.threads, t, 1);
        int64_t row;

        for (row = r.begin; row < r.end; row++) {
            forward_row(run, (const float *)run->in[0] + row * s.width,
                        (float *)run->out + row * s.width,
                        has_saved ? (float *)run->saved + 2 * row : NULL,
                        s.width);
        }
    }
    return SL_OK;
}

/* One row's share of the parameter gradients. */
static void add_row_grads(const float *restrict x, const float *restrict dout,
                          const float *saved, float *restrict dweight,
                          float *restrict dbias, int64_t width)
{
    const float mean = saved[0], inverse = saved[1];
    int64_t i;

#pragma omp simd
    for (i = 0; i < width; i++) {
        dweight[i] += dout[i] * ((x[i] - mean) * inverse);
        dbias[i] += dout[i];
    }
}

/* din = (g - mean(g) - xhat mean(g xhat)) / deviation (+ prev) with
 * g = dout * weight and xhat the normalized x */
static void backward_row(const float *restrict x, const float *restrict dout,
                         const float *restrict weight, const float *saved,
                         const float *prev, float *din, int64_t width)
{
    const float mean = saved[0], inverse = saved[1];
    float sum = 0, dot = 0;
    int64_t i;

#pragma omp simd reduction(+ : sum, dot)
    for (i = 0; i < width; i++) {
        const float g = dout[i] * weight[i];

        sum += g;
        dot += g * ((x[i] - mean) * inverse);
    }
    sum /= (float)width;
    dot /= (float)width;
    if (prev == NULL) {
#pragma omp simd
        for (i = 0; i < width; i++) {
            din[i] = inverse * (dout[i] * weight[i] - sum -
                                (x[i] - mean) * inverse * dot);
        }
        return;
    }
#pragma omp simd
    for (i = 0; i < width; i++) {
        din[i] = prev[i] + inverse * (dout[i] * weight[i] - sum -
                                      (x[i] - mean) * inverse * dot);
    }
}

static void backward_rows(const sl_layer_run_t *run, shape_t s, int t,
                          int has_grads)
{
    const sl_cpu_range_t r = sl_cpu_split(s.rows, s.threads, t, 1);
    float *dweight = (float *)run->workspace + 2 * s.width * t;
    int64_t row;

    if (has_grads) {
        memset(dweight, 0, (size_t)(2 * s.width) * sizeof(*dweight));
    }
    for (row = r.begin; row < r.end; row++) {
        const float *x = (const float *)run->in[0] + row * s.width;
        const float *dout = (const float *)run->dout + row * s.width;
        const float *saved = (const float *)run->saved + 2 * row;
        const float *prev = run->din_prev[0];
        float *din = run->din[0];

        if (has_grads) {
            add_row_grads(x, dout, saved, dweight, dweight + s.width, s.width);
        }
        if (din != NULL) {
            backward_row(x, dout, run->param[SL_LAYER_NORM_WEIGHT], saved,
                         prev == NULL ? NULL : prev + row * s.width,
                         din + row * s.width, s.width);
        }
    }
}

/* grad (+)= the threads' partial sums, in thread order */
static void sum_grads(const sl_layer_run_t *run, shape_t s, int param)
{
    const float *partial = (const float *)run->workspace + param * s.width;
    float *grad = run->grad[param];
    int64_t i;
    int t;

    if (grad == NULL) {
        return;
    }
    for (i = 0; i < s.width; i++) {
        float sum = partial[i];

        for (t = 1; t < s.threads; t++) {
            sum += partial[2 * s.width * t + i];
        }
        grad[i] = run->step.is_first_backward ? sum : grad[i] + sum;
    }
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const shape_t s = shape_of(run->plan);
    const int has_grads = run->grad[SL_LAYER_NORM_WEIGHT] != NULL ||
                          run->grad[SL_LAYER_NORM_BIAS] != NULL;
    int t;

    (void)stream;
#pragma omp parallel for num_threads(s.threads) if (s.threads > 1)             \
    schedule(static)
    for (t = 0; t < s.threads; t++) {
        backward_rows(run, s, t, has_grads);
    }
    sum_grads(run, s, SL_LAYER_NORM_WEIGHT);
    sum_grads(run, s, SL_LAYER_NORM_BIAS);
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_layer_norm = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
