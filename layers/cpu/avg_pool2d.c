/* SPDX-License-Identifier: Apache-2.0 */
/* avg_pool2d on the CPU. Backward gathers, so that each point of the input's
 * gradient is written once, by one thread. */
#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/pool.h"

static inline float share_of(const sl_pool_t *pool, sl_pool_span_t rows,
                             sl_pool_span_t columns)
{
    const int64_t inside =
        (rows.end - rows.begin) * (columns.end - columns.begin);

    return 1.0f / (float)(pool->count_include_pad ? pool->kernel * pool->kernel
                                                  : inside);
}

SL_POOL_INLINE void avg_point(const sl_pool_t *pool, int64_t lanes,
                              const float *x, sl_pool_span_t rows,
                              sl_pool_span_t columns, float *y)
{
    const float share = share_of(pool, rows, columns);
    float sum[SL_POOL_MAX_LANES] = {0};
    int64_t h, w, l;

    for (h = rows.begin; h < rows.end; h++) {
        for (w = columns.begin; w < columns.end; w++) {
            const float *from = x + (h * pool->in_width + w) * lanes;

#pragma omp simd
            for (l = 0; l < lanes; l++) {
                sum[l] += from[l];
            }
        }
    }
#pragma omp simd
    for (l = 0; l < lanes; l++) {
        y[l] = sum[l] * share;
    }
}

SL_POOL_INLINE void avg_plane(const sl_pool_t *pool, int64_t lanes,
                              const float *x, float *y)
{
    int64_t h, w;

    for (h = 0; h < pool->out_height; h++) {
        const sl_pool_span_t rows = sl_pool_window(pool, h, pool->in_height);

        for (w = 0; w < pool->out_width; w++) {
            avg_point(pool, lanes, x, rows,
                      sl_pool_window(pool, w, pool->in_width),
                      y + (h * pool->out_width + w) * lanes);
        }
    }
}

SL_POOL_INLINE void avg_back_point(const sl_pool_t *pool, int64_t lanes,
                                   sl_pool_span_t rows, sl_pool_span_t columns,
                                   const float *dout, float *dx)
{
    float sum[SL_POOL_MAX_LANES] = {0};
    int64_t h, w, l;

    for (h = rows.begin; h < rows.end; h++) {
        const sl_pool_span_t down = sl_pool_window(pool, h, pool->in_height);

        for (w = columns.begin; w < columns.end; w++) {
            const float share =
                share_of(pool, down, sl_pool_window(pool, w, pool->in_width));
            const float *from = dout + (h * pool->out_width + w) * lanes;

#pragma omp simd
            for (l = 0; l < lanes; l++) {
                sum[l] += from[l] * share;
            }
        }
    }
#pragma omp simd
    for (l = 0; l < lanes; l++) {
        dx[l] = sum[l];
    }
}

SL_POOL_INLINE void avg_back_plane(const sl_pool_t *pool, int64_t lanes,
                                   const float *dout, float *dx)
{
    sl_pool_span_t rows = {0};
    int64_t h, w;

    for (h = 0; h < pool->in_height; h++) {
        sl_pool_span_t columns = {0};

        sl_pool_covering_next(pool, h, pool->out_height, &rows);
        for (w = 0; w < pool->in_width; w++) {
            sl_pool_covering_next(pool, w, pool->out_width, &columns);
            avg_back_point(pool, lanes, rows, columns, dout,
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
    int64_t i;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (i = 0; i < pool.planes; i++) {
        if (pool.lanes == 16) {
            avg_plane(&pool, 16, x + i * in, y + i * out);
        } else if (pool.lanes == 8) {
            avg_plane(&pool, 8, x + i * in, y + i * out);
        } else {
            avg_plane(&pool, 1, x + i * in, y + i * out);
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
    float *dx = run->din[0];
    int64_t i;

    (void)stream;
    if (dx == NULL) {
        return SL_OK;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (i = 0; i < pool.planes; i++) {
        if (pool.lanes == 16) {
            avg_back_plane(&pool, 16, dout + i * out, dx + i * in);
        } else if (pool.lanes == 8) {
            avg_back_plane(&pool, 8, dout + i * out, dx + i * in);
        } else {
            avg_back_plane(&pool, 1, dout + i * out, dx + i * in);
        }
    }
    return SL_OK;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    (void)plan_p;
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_avg_pool2d = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
