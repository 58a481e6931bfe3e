/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file channel_sums.cuh
 * Two sums over each channel of an image, in double and in a fixed order: a
 * part of the channel's values a block, then the parts one after another.
 */
#ifndef SL_LAYERS_CUDA_CHANNEL_SUMS_CUH
#define SL_LAYERS_CUDA_CHANNEL_SUMS_CUH

#include "layers/cuda/image.cuh"

enum {
    SUM_COLUMNS = 32, /* channels of a tile, when they are last */
    SUM_LANES = 8,    /* rows of it side by side */
    SUM_THREADS = SUM_COLUMNS * SUM_LANES,
    SUM_RUN = 32, /* values that are added up in float */
    SUM_PART_VALUES = 1024,
    SUM_MAX_PARTS = 128
};

typedef struct sum_shape {
    int is_last;
    int64_t batch, channels, pixels;
    int64_t values; /* of a channel: batch * pixels */
    int64_t parts;
} sum_shape_t;

static inline sum_shape_t sum_shape_of(int is_last, int64_t batch,
                                       int64_t channels, int64_t pixels)
{
    sum_shape_t shape = {is_last, batch, channels, pixels, batch * pixels, 0};

    shape.parts = (shape.values + SUM_PART_VALUES - 1) / SUM_PART_VALUES;
    if (shape.parts > (int64_t)SUM_MAX_PARTS) {
        shape.parts = SUM_MAX_PARTS;
    }
    return shape;
}

/* Of the parts: [parts, 2, channels] in double. */
static inline size_t sum_bytes(const sum_shape_t *shape)
{
    return (size_t)(shape->parts * 2 * shape->channels) * sizeof(double);
}

/* Of a block along one channel's part. */
static inline int sum_threads(const sum_shape_t *shape)
{
    return shape->values / shape->parts <= 64 ? 32 : (int)SUM_THREADS;
}

/* A running sum: short runs in float, their sums in double. */
struct run_sum {
    float run[2];
    double sum[2];
    int n;
};

static __device__ __forceinline__ void run_flush(run_sum *r)
{
    r->sum[0] += (double)r->run[0];
    r->sum[1] += (double)r->run[1];
    r->run[0] = 0;
    r->run[1] = 0;
    r->n = 0;
}

static __device__ __forceinline__ void run_add(run_sum *r, float a, float b)
{
    r->run[0] += a;
    r->run[1] += b;
    r->n++;
    if (r->n == SUM_RUN) {
        run_flush(r);
    }
}

/* Channels last: a warp's lanes are neighbours. f(at, c, &a, &b) gives the
 * two terms of element `at`, of channel c. */
template <typename F>
static __global__ void sum_last(F f, double *partial, sum_shape_t shape)
{
    __shared__ double sums[2][SUM_LANES][SUM_COLUMNS];
    const int64_t c = (int64_t)blockIdx.x * SUM_COLUMNS + threadIdx.x;
    const int64_t begin = shape.values * blockIdx.y / gridDim.y;
    const int64_t end = shape.values * (blockIdx.y + 1) / gridDim.y;
    run_sum r = {{0, 0}, {0, 0}, 0};

    for (int64_t row = begin + threadIdx.y; row < end && c < shape.channels;
         row += SUM_LANES) {
        float a, b;

        f(row * shape.channels + c, c, &a, &b);
        run_add(&r, a, b);
    }
    run_flush(&r);
    sums[0][threadIdx.y][threadIdx.x] = r.sum[0];
    sums[1][threadIdx.y][threadIdx.x] = r.sum[1];
    __syncthreads();
    if (threadIdx.y == 0 && c < shape.channels) {
        for (int i = 0; i < 2; i++) {
            double sum = sums[i][0][threadIdx.x];

            for (int lane = 1; lane < SUM_LANES; lane++) {
                sum += sums[i][lane][threadIdx.x];
            }
            partial[(2 * blockIdx.y + i) * shape.channels + c] = sum;
        }
    }
}

/* Channels apart: a block goes along the pixels of one. */
template <typename F>
static __global__ void sum_apart(F f, double *partial, sum_shape_t shape)
{
    const int64_t begin = shape.values * blockIdx.y / gridDim.y;
    const int64_t end = shape.values * (blockIdx.y + 1) / gridDim.y;

    for (int64_t c = blockIdx.x; c < shape.channels; c += gridDim.x) {
        run_sum r = {{0, 0}, {0, 0}, 0};

        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
            const int64_t image = quotient(i, shape.pixels);
            float a, b;

            f((image * shape.channels + c) * shape.pixels +
                  (i - image * shape.pixels),
              c, &a, &b);
            run_add(&r, a, b);
        }
        run_flush(&r);
        r.sum[0] = block_sum(r.sum[0]);
        r.sum[1] = block_sum(r.sum[1]);
        if (threadIdx.x == 0) {
            partial[2 * blockIdx.y * shape.channels + c] = r.sum[0];
            partial[(2 * blockIdx.y + 1) * shape.channels + c] = r.sum[1];
        }
    }
}

/* Fill `partial`. The caller has declared what f reads. */
template <typename F>
static inline sl_status_t launch_sums(const char *name, F f, double *partial,
                                      const sum_shape_t *shape, void *stream)
{
    const int64_t tiles = (shape->channels + SUM_COLUMNS - 1) / SUM_COLUMNS;
    const shape_t last = {tiles, shape->parts, SUM_COLUMNS, SUM_LANES};
    const shape_t apart = {blocks_for(shape->channels, 1), shape->parts,
                           sum_threads(shape), 1};

    launch_writes(partial, sum_bytes(shape));
    return shape->is_last
               ? launch(name, last, stream, sum_last<F>, f, partial, *shape)
               : launch(name, apart, stream, sum_apart<F>, f, partial, *shape);
}

/* The parts of channel c in order. */
static __device__ __forceinline__ double
sum_parts(const double *partial, const sum_shape_t *shape, int which, int64_t c)
{
    double sum = partial[which * shape->channels + c];

    for (int64_t part = 1; part < shape->parts; part++) {
        sum += partial[(2 * part + which) * shape->channels + c];
    }
    return sum;
}

#endif /* SL_LAYERS_CUDA_CHANNEL_SUMS_CUH */
