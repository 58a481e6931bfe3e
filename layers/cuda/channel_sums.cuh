/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file channel_sums.cuh
 * Two sums over each channel of an image, in double and in a fixed order: a
 * part of the channel's values a block, then the parts, which few channels
 * have many of.
 */
#ifndef SL_LAYERS_CUDA_CHANNEL_SUMS_CUH
#define SL_LAYERS_CUDA_CHANNEL_SUMS_CUH

#include "layers/cuda/image.cuh"

enum {
    SUM_COLUMNS = 32, /* channels of a tile, when they are last */
    SUM_LANES = 8,    /* rows of it side by side */
    SUM_THREADS = SUM_COLUMNS * SUM_LANES,
    SUM_AHEAD = 4, /* values that are on their way at once */
    SUM_RUN = 32,  /* values that are added up in float */
    SUM_PART_VALUES = 1024,
    SUM_MAX_PARTS = 1024,
    SUM_FEW_PARTS = 16 /* a thread adds them up; more: a warp */
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

/* Of the parts: [2, channels, parts] in double. */
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

static __device__ __forceinline__ void
run_add(run_sum *r, const float a[SUM_AHEAD], const float b[SUM_AHEAD])
{
    for (int k = 0; k < SUM_AHEAD; k++) {
        r->run[0] += a[k];
        r->run[1] += b[k];
    }
    r->n += SUM_AHEAD;
    if (r->n >= SUM_RUN) {
        run_flush(r);
    }
}

static __device__ __forceinline__ double *
part_at(double *partial, const sum_shape_t &shape, int which, int64_t c)
{
    return &partial[(which * shape.channels + c) * shape.parts];
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
         row += SUM_AHEAD * SUM_LANES) {
        float a[SUM_AHEAD], b[SUM_AHEAD];

        for (int k = 0; k < SUM_AHEAD; k++) {
            const int64_t at = row + k * SUM_LANES;

            a[k] = 0;
            b[k] = 0;
            if (at < end) {
                f(at * shape.channels + c, c, &a[k], &b[k]);
            }
        }
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
            part_at(partial, shape, i, c)[blockIdx.y] = sum;
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

        for (int64_t i = begin + threadIdx.x; i < end;
             i += SUM_AHEAD * blockDim.x) {
            float a[SUM_AHEAD], b[SUM_AHEAD];

            for (int k = 0; k < SUM_AHEAD; k++) {
                const int64_t at = i + k * (int64_t)blockDim.x;
                const int64_t image = quotient(at, shape.pixels);

                a[k] = 0;
                b[k] = 0;
                if (at < end) {
                    f((image * shape.channels + c) * shape.pixels +
                          (at - image * shape.pixels),
                      c, &a[k], &b[k]);
                }
            }
            run_add(&r, a, b);
        }
        run_flush(&r);
        r.sum[0] = block_sum(r.sum[0]);
        r.sum[1] = block_sum(r.sum[1]);
        if (threadIdx.x == 0) {
            part_at(partial, shape, 0, c)[blockIdx.y] = r.sum[0];
            part_at(partial, shape, 1, c)[blockIdx.y] = r.sum[1];
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

/* ---- what is done with the sums: a thread or a warp a channel ---- */

static inline __device__ __host__ int is_warp_each(const sum_shape_t &shape)
{
    return shape.parts > (int64_t)SUM_FEW_PARTS;
}

/* Of a kernel that goes over the channels by channel_first and _step. */
static inline shape_t channel_threads(const sum_shape_t &shape)
{
    const int64_t n = shape.channels * (is_warp_each(shape) ? 32 : 1);

    return shape_of(blocks_for(n, ITEM_THREADS), ITEM_THREADS);
}

static __device__ __forceinline__ int64_t
channel_first(const sum_shape_t &shape)
{
    return is_warp_each(shape) ? grid_thread() / 32 : grid_thread();
}

static __device__ __forceinline__ int64_t channel_step(const sum_shape_t &shape)
{
    return is_warp_each(shape) ? grid_threads() / 32 : grid_threads();
}

/* Whether this thread does what is done once a channel. */
static __device__ __forceinline__ int
is_channel_leader(const sum_shape_t &shape)
{
    return !is_warp_each(shape) || threadIdx.x % 32 == 0;
}

/* The sum of channel c; all threads of the channel get it. */
static __device__ __forceinline__ double
sum_parts(const double *partial, const sum_shape_t &shape, int which, int64_t c)
{
    const double *parts = &partial[(which * shape.channels + c) * shape.parts];
    double sum = 0;

    if (!is_warp_each(shape)) {
        for (int64_t part = 0; part < shape.parts; part++) {
            sum += parts[part];
        }
        return sum;
    }
    for (int64_t part = threadIdx.x % 32; part < shape.parts; part += 32) {
        sum += parts[part];
    }
    return warp_sum(sum);
}

#endif /* SL_LAYERS_CUDA_CHANNEL_SUMS_CUH */
