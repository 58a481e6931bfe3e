/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file image.cuh
 * Launches over the elements of an image, one or four of them a thread.
 */
#ifndef SL_LAYERS_CUDA_IMAGE_CUH
#define SL_LAYERS_CUDA_IMAGE_CUH

#include "layers/cuda/device.cuh"
#include "layers/cuda/image_kernels.h"

enum {
    ITEM_THREADS = 256
};

/* i / d, of numbers that are not negative: most are small, and then it takes
 * a fraction of the time. */
static __device__ __forceinline__ int64_t quotient(int64_t i, int64_t d)
{
    return ((uint64_t)i | (uint64_t)d) >> 32 == 0
               ? (int64_t)((uint32_t)i / (uint32_t)d)
               : i / d;
}

/* f(i) for each of n items. */
template <typename F> static __global__ void each_item(F f, int64_t n)
{
    for (int64_t i = grid_thread(); i < n; i += grid_threads()) {
        f(i);
    }
}

template <typename F>
static inline sl_status_t launch_items(const char *name, F f, int64_t n,
                                       void *stream)
{
    return launch(name, shape_of(blocks_for(n, ITEM_THREADS), ITEM_THREADS),
                  stream, each_item<F>, f, n);
}

/* f(i, count) for each four [i, i + count) of n elements. */
template <typename F> static __global__ void each_four(F f, int64_t n)
{
    for (int64_t i = 4 * grid_thread(); i < n; i += 4 * grid_threads()) {
        f(i, n - i < 4 ? (int)(n - i) : 4);
    }
}

template <typename F>
static inline sl_status_t launch_fours(const char *name, F f, int64_t n,
                                       void *stream)
{
    return launch(name, shape_of(blocks_for(n, 4 * ITEM_THREADS), ITEM_THREADS),
                  stream, each_four<F>, f, n);
}

template <typename T> struct alignas(4 * sizeof(T)) four_t {
    T at[4];
};

/* x[0..count) = p[i..i+count); four of aligned memory at once. */
template <typename T>
static __device__ __forceinline__ void
load_four(const T *p, int64_t i, int count, int aligned, float x[4])
{
    if (count == 4 && aligned) {
        const four_t<T> four = *(const four_t<T> *)(const void *)(p + i);

        for (int k = 0; k < 4; k++) {
            x[k] = to_float(four.at[k]);
        }
        return;
    }
    for (int k = 0; k < 4; k++) {
        x[k] = k < count ? to_float(p[i + k]) : 0.0f;
    }
}

template <typename T>
static __device__ __forceinline__ void store_four(T *p, int64_t i, int count,
                                                  int aligned, const float x[4])
{
    if (count == 4 && aligned) {
        four_t<T> four;

        for (int k = 0; k < 4; k++) {
            from_float(x[k], &four.at[k]);
        }
        *(four_t<T> *)(void *)(p + i) = four;
        return;
    }
    for (int k = 0; k < 4; k++) {
        if (k < count) {
            from_float(x[k], &p[i + k]);
        }
    }
}

#endif /* SL_LAYERS_CUDA_IMAGE_CUH */
