/* SPDX-License-Identifier: Apache-2.0 */
/* global_avg_pool on the CPU: both image layouts to plain [batch, channels]
 * and back. */
#include "layers/cpu/cpu_kernels.h"

enum {
    MAX_LANES = 16,
    FLOAT_POINTS = 64
};

typedef struct shape {
    int64_t batch, channels;
    int64_t lanes;  /* channels at a point: 1 when plain */
    int64_t blocks; /* of channels in a sample */
    int64_t points; /* height * width */
} shape_t;

static shape_t shape_of(const sl_layer_run_t *run)
{
    const sl_tensor_desc_t *in = &run->plan->in[0];
    shape_t shape;

    shape.batch = in->dims[0];
    shape.channels = in->dims[1];
    shape.lanes = in->layout == SL_LAYOUT_BLOCKED ? sl_channel_block() : 1;
    shape.blocks = sl_padded_channels(in) / shape.lanes;
    shape.points = in->dims[2] * in->dims[3];
    return shape;
}

/* Channels of the i-th block that are not padding. */
static int64_t real_lanes(const shape_t *shape, int64_t block)
{
    const int64_t left = shape->channels - block * shape->lanes;

    return left < shape->lanes ? left : shape->lanes;
}

/* Sum of each lane: short runs in float, their sums in double. */
static inline void sum_points(const float *x, int64_t points, int64_t lanes,
                              double *sum)
{
    int64_t i, j, l;

    for (i = 0; i < points; i += FLOAT_POINTS) {
        const int64_t end =
            i + FLOAT_POINTS < points ? i + FLOAT_POINTS : points;
        float part[MAX_LANES] = {0};

        for (j = i; j < end; j++) {
#pragma omp simd
            for (l = 0; l < lanes; l++) {
                part[l] += x[j * lanes + l];
            }
        }
        for (l = 0; l < lanes; l++) {
            sum[l] += (double)part[l];
        }
    }
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const shape_t shape = shape_of(run);
    const int64_t planes = shape.batch * shape.blocks;
    const int64_t plane = shape.points * shape.lanes;
    const int threads = sl_cpu_threads(run, planes * plane);
    const float *x = run->in[0];
    float *y = run->out;
    int64_t i;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (i = 0; i < planes; i++) {
        const int64_t block = i % shape.blocks;
        float *to = y + i / shape.blocks * shape.channels + block * shape.lanes;
        double sum[MAX_LANES] = {0};
        int64_t l;

        if (shape.lanes == 16) {
            sum_points(x + i * plane, shape.points, 16, sum);
        } else {
            sum_points(x + i * plane, shape.points, shape.lanes, sum);
        }
        for (l = 0; l < real_lanes(&shape, block); l++) {
            to[l] = (float)(sum[l] / (double)shape.points);
        }
    }
    return SL_OK;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const shape_t shape = shape_of(run);
    const int64_t planes = shape.batch * shape.blocks;
    const int64_t plane = shape.points * shape.lanes;
    const int threads = sl_cpu_threads(run, planes * plane);
    const float share = 1.0f / (float)shape.points;
    const float *dout = run->dout;
    float *dx = run->din[0];
    int64_t i;

    (void)stream;
    if (dx == NULL) {
        return SL_OK;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (i = 0; i < planes; i++) {
        const int64_t block = i % shape.blocks;
        const float *from =
            dout + i / shape.blocks * shape.channels + block * shape.lanes;
        float value[MAX_LANES] = {0};
        int64_t j, l;

        for (l = 0; l < real_lanes(&shape, block); l++) {
            value[l] = from[l] * share;
        }
        for (j = 0; j < shape.points; j++) {
            for (l = 0; l < shape.lanes; l++) {
                dx[i * plane + j * shape.lanes + l] = value[l];
            }
        }
    }
    return SL_OK;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    (void)plan_p;
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_global_avg_pool = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
