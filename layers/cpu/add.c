/* SPDX-License-Identifier: Apache-2.0 */
/* add: every input but the first may be dropped out; then relu. */
#include <string.h>

#include "layers/attrs_internal.h"
#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/drop.h"

static int drops(const sl_layer_run_t *run)
{
    const sl_add_attrs_t *attrs = run->plan->layer->attrs;

    return attrs->dropout > 0 && run->step.is_training;
}

/* First block of the numbers of input i >= 1: streams do not overlap. */
static uint32_t first_block(const sl_layer_run_t *run, int i)
{
    const int64_t n = sl_drop_n_numbers(&run->plan->out);
    const int64_t chunks = (n + SL_DROP_NUMBERS - 1) / SL_DROP_NUMBERS;

    return (uint32_t)((i - 1) * chunks * SL_DROP_BLOCKS);
}

static void sum_range(const float *a, const float *b, float *y,
                      sl_cpu_range_t r)
{
    int64_t i;

#pragma omp simd
    for (i = r.begin; i < r.end; i++) {
        y[i] = a[i] + b[i];
    }
}

static void relu_range(float *y, sl_cpu_range_t r)
{
    int64_t i;

#pragma omp simd
    for (i = r.begin; i < r.end; i++) {
        y[i] = y[i] <= 0.0f ? 0.0f : y[i];
    }
}

/* A range small enough to stay in the cache between the inputs. */
static void forward_range(const sl_layer_run_t *run, const sl_drop_t *drop,
                          sl_cpu_range_t r)
{
    const sl_add_attrs_t *attrs = run->plan->layer->attrs;
    float *out = run->out;
    int i;

    for (i = 1; i < run->plan->layer->n_inputs; i++) {
        const float *sum = i == 1 ? run->in[0] : out;

        if (drop != NULL) {
            sl_drop_apply(drop, first_block(run, i), run->in[i], sum, out, r);
        } else {
            sum_range(sum, run->in[i], out, r);
        }
    }
    if (attrs->relu) {
        relu_range(out, r);
    }
}

enum {
    CHUNK = 16 * SL_DROP_NUMBERS
};

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_add_attrs_t *attrs = run->plan->layer->attrs;
    const int64_t n = (int64_t)(sl_tensor_bytes(&run->plan->out) / 4);
    const int threads = sl_cpu_threads(run, n);
    const sl_drop_t drop = sl_drop_of(run, attrs->dropout, SL_RNG_USE_DROPOUT);
    const sl_drop_t *drop_or_none = drops(run) ? &drop : NULL;
    int t;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t all = sl_cpu_split(n, threads, t, CHUNK);
        sl_cpu_range_t r;

        for (r.begin = all.begin; r.begin < all.end; r.begin = r.end) {
            r.end = r.begin + CHUNK < all.end ? r.begin + CHUNK : all.end;
            forward_range(run, drop_or_none, r);
        }
    }
    return SL_OK;
}

/* y = dout (+ prev), over n elements */
static void pass(const float *dout, const float *prev, float *y, int64_t n)
{
    int64_t i;

    if (prev == NULL) {
        memcpy(y, dout, (size_t)n * sizeof(*y));
        return;
    }
#pragma omp simd
    for (i = 0; i < n; i++) {
        y[i] = prev[i] + dout[i];
    }
}

static void backward_range(const sl_layer_run_t *run, const sl_drop_t *drop,
                           sl_cpu_range_t r)
{
    const sl_add_attrs_t *attrs = run->plan->layer->attrs;
    const float *out = run->out;
    const float *dout = (const float *)run->dout + r.begin;
    const sl_cpu_range_t local = {0, r.end - r.begin};
    float masked[CHUNK];
    int64_t k;
    int i;

    if (attrs->relu) {
#pragma omp simd
        for (k = 0; k < local.end; k++) {
            masked[k] = out[r.begin + k] <= 0.0f ? 0.0f : dout[k];
        }
        dout = masked;
    }
    for (i = 0; i < run->plan->layer->n_inputs; i++) {
        const float *prev = run->din_prev[i];
        float *din = run->din[i];

        if (din == NULL) {
            continue;
        }
        din += r.begin;
        prev = prev == NULL ? NULL : prev + r.begin;
        if (drop != NULL && i > 0) {
            sl_drop_apply(drop, first_block(run, i) + (uint32_t)(r.begin / 4),
                          dout, prev, din, local);
        } else {
            pass(dout, prev, din, local.end);
        }
    }
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_add_attrs_t *attrs = run->plan->layer->attrs;
    const int64_t n = (int64_t)(sl_tensor_bytes(&run->plan->out) / 4);
    const int threads = sl_cpu_threads(run, n);
    const sl_drop_t drop = sl_drop_of(run, attrs->dropout, SL_RNG_USE_DROPOUT);
    const sl_drop_t *drop_or_none = drops(run) ? &drop : NULL;
    int t;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t all = sl_cpu_split(n, threads, t, CHUNK);
        sl_cpu_range_t r;

        for (r.begin = all.begin; r.begin < all.end; r.begin = r.end) {
            r.end = r.begin + CHUNK < all.end ? r.begin + CHUNK : all.end;
            backward_range(run, drop_or_none, r);
        }
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_add = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = sl_add_plan,
    .forward = forward,
    .backward = backward,
};
