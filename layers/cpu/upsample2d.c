/* SPDX-License-Identifier: Apache-2.0 */
/* upsample2d: a tensor is [outer, height, width, inner] in either layout. */
#include <string.h>

#include "layers/attrs_internal.h"
#include "layers/cpu/cpu_kernels.h"

typedef struct shape {
    int64_t outer; /* images times channel groups */
    int64_t height;
    int64_t width;
    int64_t inner; /* channels side by side */
    int64_t factor;
    int threads;
} shape_t;

static shape_t shape_of(const sl_layer_plan_t *plan)
{
    const sl_upsample2d_attrs_t *attrs = plan->layer->attrs;
    const sl_tensor_desc_t *in = &plan->in[0];
    shape_t s;

    s.inner = in->layout == SL_LAYOUT_BLOCKED ? sl_channel_block() : 1;
    s.outer = in->dims[0] * sl_padded_channels(in) / s.inner;
    s.height = in->dims[2];
    s.width = in->dims[3];
    s.factor = attrs->factor;
    s.threads =
        (int64_t)sl_tensor_bytes(&plan->out) / 4 < 16384 ? 1 : plan->n_threads;
    return s;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->accumulates = 1;
    return SL_OK;
}

/* One output row from one input row: each pixel `factor` times. */
static void widen_row(shape_t s, const float *restrict in, float *restrict out)
{
    int64_t x, k, c;

    for (x = 0; x < s.width; x++) {
        for (k = 0; k < s.factor; k++) {
            for (c = 0; c < s.inner; c++) {
                *out++ = in[x * s.inner + c];
            }
        }
    }
}

static void forward_part(const sl_layer_run_t *run, shape_t s, int t)
{
    const sl_cpu_range_t r = sl_cpu_split(s.outer * s.height, s.threads, t, 1);
    const int64_t in_row = s.width * s.inner;
    const int64_t out_row = in_row * s.factor;
    int64_t y, k;

    for (y = r.begin; y < r.end; y++) {
        float *out = (float *)run->out + y * s.factor * out_row;

        widen_row(s, (const float *)run->in[0] + y * in_row, out);
        for (k = 1; k < s.factor; k++) {
            memcpy(out + k * out_row, out, (size_t)out_row * sizeof(*out));
        }
    }
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const shape_t s = shape_of(run->plan);
    int t;

    (void)stream;
#pragma omp parallel for num_threads(s.threads) if (s.threads > 1)             \
    schedule(static)
    for (t = 0; t < s.threads; t++) {
        forward_part(run, s, t);
    }
    return SL_OK;
}

enum {
    MAX_INNER = 16
};

/* sums[inner] = the factor x factor copies of a pixel, rows first */
static void sum_copies(shape_t s, const float *dout, float sums[MAX_INNER])
{
    const int64_t row = s.width * s.factor * s.inner;
    int64_t y, x, c;

    memset(sums, 0, MAX_INNER * sizeof(*sums));
    for (y = 0; y < s.factor; y++) {
        for (x = 0; x < s.factor; x++) {
            const float *copy = dout + y * row + x * s.inner;

#pragma omp simd
            for (c = 0; c < s.inner; c++) {
                sums[c] += copy[c];
            }
        }
    }
}

static void backward_part(const sl_layer_run_t *run, shape_t s, int t)
{
    const sl_cpu_range_t r = sl_cpu_split(s.outer * s.height, s.threads, t, 1);
    const int64_t in_row = s.width * s.inner;
    float sums[MAX_INNER];
    int64_t y, x, c;

    for (y = r.begin; y < r.end; y++) {
        const float *dout =
            (const float *)run->dout + y * s.factor * s.factor * in_row;

        for (x = 0; x < s.width; x++) {
            const int64_t at = y * in_row + x * s.inner;
            const float *prev = run->din_prev[0];
            float *din = (float *)run->din[0] + at;

            sum_copies(s, dout + x * s.factor * s.inner, sums);
            for (c = 0; c < s.inner; c++) {
                din[c] = prev == NULL ? sums[c] : prev[at + c] + sums[c];
            }
        }
    }
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const shape_t s = shape_of(run->plan);
    int t;

    (void)stream;
    if (run->din[0] == NULL) {
        return SL_OK;
    }
#pragma omp parallel for num_threads(s.threads) if (s.threads > 1)             \
    schedule(static)
    for (t = 0; t < s.threads; t++) {
        backward_part(run, s, t);
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_upsample2d = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
