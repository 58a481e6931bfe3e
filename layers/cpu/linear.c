/* SPDX-License-Identifier: Apache-2.0 */
/* linear on the CPU: three matrix products and the bias' column sums. */
#include <string.h>

#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/gemm.h"

enum {
    SUM_COLUMNS = 64, /* a cache line of sums times four, and a thread's unit */
    SUM_ROWS = 64     /* added up before they join the total: smaller errors */
};

/* The layer as a matrix: x is [rows, in], y [rows, out]. */
static sl_affine_shape_t shape_of(const sl_layer_plan_t *plan)
{
    const sl_affine_shape_t shape = {
        .rows = sl_tensor_rows(&plan->in[0]),
        .in = plan->in[0].dims[plan->in[0].n_dims - 1],
        .out = plan->out.dims[plan->out.n_dims - 1],
        .has_bias = plan->layer->n_params > 1};

    return shape;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const sl_affine_shape_t shape = shape_of(plan_p);
    sl_affine_t *affine = NULL;
    sl_status_t status;

    SL_TRY(status, sl_affine_create(&shape, plan_p->n_threads, &affine), out);
    plan_p->kernel = affine;
    plan_p->forward_workspace_bytes = sl_affine_scratch_bytes(affine);
    plan_p->keeps_input[0] = 1;
    plan_p->accumulates = 1;
out:
    return status;
}

static void plan_release(sl_layer_plan_t *plan_p)
{
    sl_affine_destroy(plan_p->kernel);
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_affine_args_t args = {.x = run->in[0],
                                   .weight = run->param[0],
                                   .bias = run->param[1],
                                   .y = run->out,
                                   .scratch = run->workspace};

    (void)stream;
    return sl_affine_run(run->plan->kernel, &args);
}

/* dx = dy W (+ prev) */
static sl_status_t backward_input(const sl_layer_run_t *run,
                                  const sl_affine_shape_t *shape)
{
    const sl_gemm_t gemm = {.m = shape->rows,
                            .n = shape->in,
                            .k = shape->out,
                            .lda = shape->out,
                            .ldb = shape->in,
                            .ldc = shape->in,
                            .alpha = 1,
                            .beta = run->din_prev[0] != NULL ? 1.0f : 0.0f};

    if (run->din_prev[0] != NULL && run->din_prev[0] != run->din[0]) {
        memcpy(run->din[0], run->din_prev[0],
               sl_tensor_bytes(&run->plan->in[0]));
    }
    return sl_gemm(&gemm, run->dout, run->param[0], run->din[0]);
}

/* dW (+)= dy^T x */
static sl_status_t backward_weight(const sl_layer_run_t *run,
                                   const sl_affine_shape_t *shape)
{
    const sl_gemm_t gemm = {.m = shape->out,
                            .n = shape->in,
                            .k = shape->rows,
                            .is_a_transposed = 1,
                            .lda = shape->out,
                            .ldb = shape->in,
                            .ldc = shape->in,
                            .alpha = 1,
                            .beta = run->step.is_first_backward ? 0.0f : 1.0f};

    return sl_gemm(&gemm, run->dout, run->in[0], run->grad[0]);
}

/* Sums of `n` <= SUM_COLUMNS columns of `rows` rows, `stride` floats apart. */
static void sum_columns(const float *data, int64_t rows, int64_t stride,
                        int64_t n, float sums[SUM_COLUMNS])
{
    float part[SUM_COLUMNS];
    int64_t first, row, i;

    memset(sums, 0, SUM_COLUMNS * sizeof(*sums));
    for (first = 0; first < rows; first += SUM_ROWS) {
        const int64_t end = first + SUM_ROWS < rows ? first + SUM_ROWS : rows;

        memset(part, 0, sizeof(part));
        for (row = first; row < end; row++) {
            const float *values = data + row * stride;

            if (n == SUM_COLUMNS) {
                for (i = 0; i < SUM_COLUMNS; i++) {
                    part[i] += values[i];
                }
            } else {
                for (i = 0; i < n; i++) {
                    part[i] += values[i];
                }
            }
        }
        for (i = 0; i < SUM_COLUMNS; i++) {
            sums[i] += part[i];
        }
    }
}

/* db (+)= sums of the columns of dy: each column by one thread, always in
 * the same order */
static void backward_bias(const sl_layer_run_t *run,
                          const sl_affine_shape_t *shape)
{
    const float *dout = run->dout;
    float *grad = run->grad[1];
    const int is_first = run->step.is_first_backward;
    const int threads = sl_cpu_threads(run, shape->rows * shape->out);
    int t;

#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t r =
            sl_cpu_split(shape->out, threads, t, SUM_COLUMNS);
        float sums[SUM_COLUMNS];
        int64_t column, i;

        for (column = r.begin; column < r.end; column += SUM_COLUMNS) {
            const int64_t left = r.end - column;
            const int64_t n = left < SUM_COLUMNS ? left : SUM_COLUMNS;

            sum_columns(dout + column, shape->rows, shape->out, n, sums);
            for (i = 0; i < n; i++) {
                grad[column + i] =
                    is_first ? sums[i] : grad[column + i] + sums[i];
            }
        }
    }
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_affine_shape_t shape = shape_of(run->plan);
    sl_status_t status = SL_OK;

    (void)stream;
    sl_gemm_set_threads(run->plan->n_threads);
    if (run->din[0] != NULL) {
        SL_TRY(status, backward_input(run, &shape), out);
    }
    if (run->grad[0] != NULL) {
        SL_TRY(status, backward_weight(run, &shape), out);
    }
    if (run->grad[1] != NULL) {
        backward_bias(run, &shape);
    }
out:
    return status;
}

const sl_layer_kernels_t sl_cpu_linear = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .plan_release = plan_release,
    .forward = forward,
    .backward = backward,
};
