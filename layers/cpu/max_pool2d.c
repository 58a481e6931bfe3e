/* SPDX-License-Identifier: Apache-2.0 */
/* max_pool2d on the CPU. Forward saves each winner's place in its window,
 * row by row, as a byte. */
#include <math.h>

#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/pool.h"

/* One output point: the first largest value, or the first NaN. */
SL_POOL_INLINE void max_point(const sl_pool_t *pool, int64_t lanes,
                              const float *x, sl_pool_span_t rows,
                              sl_pool_span_t columns, float *y, uint8_t *place)
{
    float best[SL_POOL_MAX_LANES];
    int32_t where[SL_POOL_MAX_LANES];
    int64_t h, w, l;

#pragma omp simd
    for (l = 0; l < lanes; l++) {
        best[l] = -INFINITY;
        where[l] = (int32_t)((rows.begin - rows.first) * pool->kernel +
                             columns.begin - columns.first);
    }
    for (h = rows.begin; h < rows.end; h++) {
        for (w = columns.begin; w < columns.end; w++) {
            const float *from = x + (h * pool->in_width + w) * lanes;
            const int32_t here =
                (int32_t)((h - rows.first) * pool->kernel + w - columns.first);

#pragma omp simd
            for (l = 0; l < lanes; l++) {
                const float v = from[l];
                /* a NaN wins over numbers, and is beaten by none */
                const int wins = !(v <= best[l]) & (best[l] == best[l]);

                best[l] = wins ? v : best[l];
                where[l] = wins ? here : where[l];
            }
        }
    }
#pragma omp simd
    for (l = 0; l < lanes; l++) {
        y[l] = best[l];
        place[l] = (uint8_t)where[l];
    }
}

SL_POOL_INLINE void max_plane(const sl_pool_t *pool, int64_t lanes,
                              const float *x, float *y, uint8_t *place)
{
    int64_t h, w;

    for (h = 0; h < pool->out_height; h++) {
        const sl_pool_span_t rows = sl_pool_window(pool, h, pool->in_height);

        for (w = 0; w < pool->out_width; w++) {
            const int64_t at = (h * pool->out_width + w) * lanes;

            max_point(pool, lanes, x, rows,
                      sl_pool_window(pool, w, pool->in_width), y + at,
                      place + at);
        }
    }
}

/* One input point: the gradients of the windows that it won. */
SL_POOL_INLINE void max_back_point(const sl_pool_t *pool, int64_t lanes,
                                   int64_t row, int64_t column,
                                   sl_pool_span_t rows, sl_pool_span_t columns,
                                   const float *dout, const uint8_t *place,
                                   float *dx)
{
    float sum[SL_POOL_MAX_LANES] = {0};
    int64_t h, w, l;

    for (h = rows.begin; h < rows.end; h++) {
        const int64_t down = row + pool->pad - h * pool->stride;

        for (w = columns.begin; w < columns.end; w++) {
            const int64_t at = (h * pool->out_width + w) * lanes;
            const int64_t right = column + pool->pad - w * pool->stride;
            const int32_t here = (int32_t)(down * pool->kernel + right);

#pragma omp simd
            for (l = 0; l < lanes; l++) {
                sum[l] += (int32_t)place[at + l] == here ? dout[at + l] : 0.0f;
            }
        }
    }
#pragma omp simd
    for (l = 0; l < lanes; l++) {
        dx[l] = sum[l];
    }
}

SL_POOL_INLINE void max_back_plane(const sl_pool_t *pool, int64_t lanes,
                                   const float *dout, const uint8_t *place,
                                   float *dx)
{
    sl_pool_span_t rows = {0};
    int64_t h, w;

    for (h = 0; h < pool->in_height; h++) {
        sl_pool_span_t columns = {0};

        sl_pool_covering_next(pool, h, pool->out_height, &rows);
        for (w = 0; w < pool->in_width; w++) {
            sl_pool_covering_next(pool, w, pool->out_width, &columns);
            max_back_point(pool, lanes, h, w, rows, columns, dout, place,
                           dx + (h * pool->in_width + w) * lanes);
        }
    }
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_pool_t pool = sl_pool_of(run->plan);
    const int64_t in = pool.in_height * pool.in_width * pool.lanes;
    const int64_t out = pool.out_height * pool.out_width * pool.lanes;
    const int threads = sl_cpu_threads(run, pool.planes * in);
    const float *x = run->in[0];
    float *y = run->out;
    /* an evaluation plan saves nothing: its places go to the workspace */
    uint8_t *place = run->plan->is_training ? run->saved : run->workspace;
    int64_t i;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (i = 0; i < pool.planes; i++) {
        const float *from = x + i * in;
        float *to = y + i * out;

        if (pool.lanes == 16) {
            max_plane(&pool, 16, from, to, place + i * out);
        } else if (pool.lanes == 8) {
            max_plane(&pool, 8, from, to, place + i * out);
        } else {
            max_plane(&pool, 1, from, to, place + i * out);
        }
    }
    return SL_OK;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_pool_t pool = sl_pool_of(run->plan);
    const int64_t in = pool.in_height * pool.in_width * pool.lanes;
    const int64_t out = pool.out_height * pool.out_width * pool.lanes;
    const int threads = sl_cpu_threads(run, pool.planes * in);
    const float *dout = run->dout;
    const uint8_t *place = run->saved;
    float *dx = run->din[0];
    int64_t i;

    (void)stream;
    if (dx == NULL) {
        return SL_OK;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (i = 0; i < pool.planes; i++) {
        const float *from = dout + i * out;
        float *to = dx + i * in;

        if (pool.lanes == 16) {
            max_back_plane(&pool, 16, from, place + i * out, to);
        } else if (pool.lanes == 8) {
            max_back_plane(&pool, 8, from, place + i * out, to);
        } else {
            max_back_plane(&pool, 1, from, place + i * out, to);
        }
    }
    return SL_OK;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const size_t places = sl_tensor_bytes(&plan_p->out) / sizeof(float);

    if (plan_p->is_training) {
        plan_p->saved_bytes = places;
    } else {
        plan_p->forward_workspace_bytes = places;
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_max_pool2d = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
