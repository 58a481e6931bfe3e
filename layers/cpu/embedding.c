/* SPDX-License-Identifier: Apache-2.0 */
/* embedding: backward adds rows in token order; threads share the columns, so
 * that the order of each sum does not depend on them. */
#include <string.h>

#include "layers/attrs_internal.h"
#include "layers/cpu/cpu_kernels.h"
#include "layers/layers_internal.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->keeps_input[0] = 1;
    return SL_OK;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_embedding_attrs_t *attrs = run->plan->layer->attrs;
    const int64_t width = attrs->width;
    const int64_t time = run->plan->in[0].dims[1];
    const int64_t n = sl_tensor_elements(&run->plan->in[0]);
    const int threads = sl_cpu_threads(run, n * width);
    const int32_t *tokens = run->in[0];
    const float *weight = run->param[SL_EMBEDDING_WEIGHT];
    const float *position = run->param[SL_EMBEDDING_POSITION];
    float *out = run->out;
    sl_status_t status;
    int t;

    (void)stream;
    SL_TRY(status, sl_layer_check_input(run->plan, 0, run->in[0]), out);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t r = sl_cpu_split(n, threads, t, 1);
        int64_t i, k;

        for (i = r.begin; i < r.end; i++) {
            const float *row = weight + tokens[i] * width;
            const float *place = position + i % time * width;

            if (!attrs->positions) {
                memcpy(out + i * width, row, (size_t)width * sizeof(*out));
                continue;
            }
#pragma omp simd
            for (k = 0; k < width; k++) {
                out[i * width + k] = row[k] + place[k];
            }
        }
    }
out:
    return status;
}

/* The columns [r.begin, r.end) of a gradient table: += rows of dout, the i-th
 * to row index(i). */
static void add_rows(const sl_layer_run_t *run, int param, sl_cpu_range_t r)
{
    const sl_embedding_attrs_t *attrs = run->plan->layer->attrs;
    const int64_t width = attrs->width;
    const int64_t time = run->plan->in[0].dims[1];
    const int64_t n = sl_tensor_elements(&run->plan->in[0]);
    const int32_t *tokens = run->in[0];
    const float *dout = run->dout;
    float *grad = run->grad[param];
    int64_t i, k;

    for (i = 0; i < n; i++) {
        const int64_t row = param == SL_EMBEDDING_WEIGHT ? tokens[i] : i % time;

#pragma omp simd
        for (k = r.begin; k < r.end; k++) {
            grad[row * width + k] += dout[i * width + k];
        }
    }
}

static void clear_rows(const sl_layer_run_t *run, int param, sl_cpu_range_t r)
{
    const sl_tensor_desc_t *desc = &run->plan->layer->params[param].desc;
    float *grad = run->grad[param];
    int64_t row;

    for (row = 0; r.begin < r.end && row < desc->dims[0]; row++) {
        memset(grad + row * desc->dims[1] + r.begin, 0,
               (size_t)(r.end - r.begin) * sizeof(*grad));
    }
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_layer_t *layer = run->plan->layer;
    const sl_embedding_attrs_t *attrs = layer->attrs;
    const int threads =
        sl_cpu_threads(run, sl_tensor_elements(&run->plan->out));
    sl_status_t status;
    int t;

    (void)stream;
    SL_TRY(status, sl_layer_check_input(run->plan, 0, run->in[0]), out);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t r = sl_cpu_split(attrs->width, threads, t, 16);
        int p;

        for (p = 0; p < layer->n_params; p++) {
            if (run->grad[p] != NULL) {
                if (run->step.is_first_backward) {
                    clear_rows(run, p, r);
                }
                add_rows(run, p, r);
            }
        }
    }
out:
    return status;
}

const sl_layer_kernels_t sl_cpu_embedding = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
    .checks_input = 1,
};
