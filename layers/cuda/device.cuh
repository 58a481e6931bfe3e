/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.cuh
 * What all kernels share: storage types, sums over a block, launches. Both
 * nvcc and, over the stand-in, a plain C++ compiler read it.
 */
#ifndef SL_LAYERS_CUDA_DEVICE_CUH
#define SL_LAYERS_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "layers/cuda/cuda_kernels.h"
#include "memory/cuda.h"

#ifdef SL_CUDA_STANDIN
#include <standin.h>
#else
#include <cuda_fp16.h>
#endif

#define FULL_WARP 0xffffffffu

/* The loop that follows becomes n copies of its body: its arrays stay in
 * registers. */
#ifdef SL_CUDA_STANDIN
#define UNROLL(n)
#else
#define UNROLL_PRAGMA(text) _Pragma(#text)
#define UNROLL(n) UNROLL_PRAGMA(unroll n)
#endif

/* ---- storage ---- */

struct bf16_t {
    uint16_t bits;
};

struct f16_t {
    uint16_t bits;
};

static __device__ __forceinline__ float bits_to_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static __device__ __forceinline__ uint32_t float_to_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static __device__ __forceinline__ float to_float(float value)
{
    return value;
}

static __device__ __forceinline__ float to_float(bf16_t value)
{
    return bits_to_float((uint32_t)value.bits << 16);
}

static __device__ __forceinline__ void from_float(float value, float *to)
{
    *to = value;
}

static __device__ __forceinline__ void from_float(float value, bf16_t *to)
{
    const uint32_t bits = float_to_bits(value);

    to->bits = value != value
                   ? (uint16_t)(bits >> 16 | 0x40u)
                   : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#ifdef SL_CUDA_STANDIN
/* Exact: every half is a float. */
static inline float to_float(f16_t value)
{
    const uint32_t sign = (uint32_t)(value.bits & 0x8000u) << 16;
    const uint32_t exponent = value.bits >> 10 & 31u;
    const uint32_t fraction = value.bits & 0x3ffu;

    if (exponent == 31) {
        return bits_to_float(sign | 0x7f800000u | fraction << 13);
    }
    if (exponent == 0) {
        return bits_to_float(sign | float_to_bits((float)fraction * 0x1p-24f));
    }
    return bits_to_float(sign | (exponent + 112u) << 23 | fraction << 13);
}

/* Rounded to nearest even: below the normal range by an addition that leaves
 * the units of 2^-24 in the last place. */
static inline void from_float(float value, f16_t *to)
{
    const uint32_t bits = float_to_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    uint32_t half;

    if (size > 0x7f800000u) {
        half = 0x7e00u;
    } else if (size >= 0x477ff000u) {
        half = 0x7c00u;
    } else if (size < 0x38800000u) {
        half = float_to_bits(bits_to_float(size) + 0.5f) - 0x3f000000u;
    } else {
        half = (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13;
    }
    to->bits = (uint16_t)(sign | half);
}
#else
static __device__ __forceinline__ float to_float(f16_t value)
{
    return __half2float(__ushort_as_half(value.bits));
}

static __device__ __forceinline__ void from_float(float value, f16_t *to)
{
    to->bits = __half_as_ushort(__float2half_rn(value));
}
#endif

/* N neighbours, moved at once, or as two times 16 bytes. */
template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) pack_t {
    T at[N];
};

/* Elements of a pack of 16 bytes. */
template <typename T> struct pack_of {
    enum {
        N = 16 / (int)sizeof(T)
    };
};

/* x[0..count) = p[i..i+count), the rest 0; whole packs of aligned memory at
 * once. */
template <int N, typename T>
static __device__ __forceinline__ void
load_pack(const T *p, int64_t i, int count, int is_aligned, float x[N])
{
    if (count == N && is_aligned) {
        const pack_t<T, N> pack = *(const pack_t<T, N> *)(const void *)(p + i);

        for (int k = 0; k < N; k++) {
            x[k] = to_float(pack.at[k]);
        }
        return;
    }
    for (int k = 0; k < N; k++) {
        x[k] = k < count ? to_float(p[i + k]) : 0.0f;
    }
}

template <int N, typename T>
static __device__ __forceinline__ void
store_pack(T *p, int64_t i, int count, int is_aligned, const float x[N])
{
    if (count == N && is_aligned) {
        pack_t<T, N> pack;

        for (int k = 0; k < N; k++) {
            from_float(x[k], &pack.at[k]);
        }
        *(pack_t<T, N> *)(void *)(p + i) = pack;
        return;
    }
    for (int k = 0; k < N; k++) {
        if (k < count) {
            from_float(x[k], &p[i + k]);
        }
    }
}

template <typename T>
static __device__ __forceinline__ void
load_quad(const T *p, int64_t i, int count, int is_aligned, float x[4])
{
    load_pack<4>(p, i, count, is_aligned, x);
}

template <typename T>
static __device__ __forceinline__ void
store_quad(T *p, int64_t i, int count, int is_aligned, const float x[4])
{
    store_pack<4>(p, i, count, is_aligned, x);
}

/* A row of `width` elements that starts at element `start` of a tensor, in
 * packs that are aligned where the tensor is: the first and the last may be
 * parts. Which element is in which pack depends on the shape alone. */
typedef struct row_packs {
    int64_t width;
    int before; /* elements of the first pack that belong to another row */
} row_packs_t;

template <int N>
static __device__ __forceinline__ row_packs_t packs_of_row(int64_t start,
                                                           int64_t width)
{
    row_packs_t packs;

    packs.width = width;
    packs.before = (int)(start % N);
    return packs;
}

/* The pack's first element in the row, and how many it has.
 * @return whether there is such a pack */
template <int N>
static __device__ __forceinline__ int
pack_at(const row_packs_t &packs, int64_t pack, int64_t *i_p, int *count_p)
{
    const int64_t begin = pack * N - packs.before;
    const int64_t end = begin + N < packs.width ? begin + N : packs.width;

    *i_p = begin < 0 ? 0 : begin;
    *count_p = (int)(end - *i_p);
    return begin < packs.width;
}

/* ---- relu: written so that NaN stays NaN ---- */

static __device__ __forceinline__ float relu_value(float x)
{
    return x <= 0.0f ? 0.0f : x;
}

/* Of the gradient dout at the output y. */
static __device__ __forceinline__ float relu_slope(float y, float dout)
{
    return y <= 0.0f ? 0.0f : dout;
}

/* ---- sums and maxima over a block ---- */

/* All lanes get the same bits: each step adds the same two numbers. */
template <typename V> static __device__ __forceinline__ V warp_sum(V value)
{
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(FULL_WARP, value, lanes);
    }
    return value;
}

/* For blocks of whole warps; every thread gets the sum. */
template <typename V> static __device__ __forceinline__ V block_sum(V value)
{
    __shared__ V parts[32];
    V sum = 0;

    value = warp_sum(value);
    __syncthreads(); /* an earlier use has been read */
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    for (unsigned i = 0; i < blockDim.x / 32; i++) {
        sum += parts[i];
    }
    return sum;
}

/* The largest number; NaN only where all are. */
static __device__ __forceinline__ float block_max(float value)
{
    __shared__ float parts[32];

    for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
        value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, lanes));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    for (unsigned i = 0; i < blockDim.x / 32; i++) {
        value = fmaxf(value, parts[i]);
    }
    return value;
}

/* ---- launches ---- */

/* What the launch that follows reads and writes: checked by the stand-in. */
static inline void launch_reads(const void *ptr, size_t bytes)
{
#ifdef SL_CUDA_STANDIN
    standin_access(ptr, bytes, 0);
#else
    (void)ptr;
    (void)bytes;
#endif
}

static inline void launch_writes(const void *ptr, size_t bytes)
{
#ifdef SL_CUDA_STANDIN
    standin_access(ptr, bytes, 1);
#else
    (void)ptr;
    (void)bytes;
#endif
}

/* Shape of a launch. */
typedef struct shape {
    int64_t n_blocks, n_blocks_y;
    int n_threads, n_threads_y;
} shape_t;

static inline shape_t shape_of(int64_t n_blocks, int n_threads)
{
    shape_t shape = {n_blocks, 1, n_threads, 1};

    return shape;
}

/* Blocks for n items that loops share out: enough to fill any device. */
static inline int64_t blocks_for(int64_t n, int per_block)
{
#ifdef SL_CUDA_STANDIN
    const int64_t most = 24; /* tests go through the loops */
#else
    const int64_t most = 1 << 16;
#endif
    const int64_t n_blocks = (n + per_block - 1) / per_block;

    return n_blocks < most ? n_blocks : most;
}

template <typename... P, typename... A>
static inline sl_status_t launch(const char *name, shape_t shape, void *stream,
                                 void (*kernel)(P...), A... args)
{
    cudaLaunchConfig_t config = {};
    cudaError_t error;

#ifdef SL_CUDA_STANDIN
    standin_name(name);
#endif
    config.gridDim = dim3((unsigned)shape.n_blocks, (unsigned)shape.n_blocks_y);
    config.blockDim =
        dim3((unsigned)shape.n_threads, (unsigned)shape.n_threads_y);
    config.stream = (cudaStream_t)stream;
    error = cudaLaunchKernelEx(&config, kernel, args...);
    return sl_cuda_status((int)error, name, __FILE__, __LINE__);
}

/* The thread's number in the grid, and how many there are. */
static __device__ __forceinline__ int64_t grid_thread(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ int64_t grid_threads(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* f(i, count) for each pack [i, i + count) of n elements. */
template <int N, typename F> static __global__ void each_pack(F f, int64_t n)
{
    const int64_t step = N * grid_threads();

    for (int64_t i = N * grid_thread(); i < n; i += step) {
        f(i, n - i < N ? (int)(n - i) : N);
    }
}

enum {
    EACH_THREADS = 256
};

template <int N, typename F>
static inline sl_status_t launch_packs(const char *name, F f, int64_t n,
                                       void *stream)
{
    return launch(name, shape_of(blocks_for(n, N * EACH_THREADS), EACH_THREADS),
                  stream, each_pack<N, F>, f, n);
}

/* Likewise for quads. */
template <typename F>
static inline sl_status_t launch_each(const char *name, F f, int64_t n,
                                      void *stream)
{
    return launch_packs<4>(name, f, n, stream);
}

/* Whether the address, NULL too, fits packs of every type. */
static inline int is_aligned(const void *ptr)
{
    return (uintptr_t)ptr % 16 == 0;
}

/* Call function<T>(args) for the type. */
#define FOR_TYPE(type, function, ...)                                          \
    ((type) == SL_CUDA_F32    ? function<float>(__VA_ARGS__)                   \
     : (type) == SL_CUDA_BF16 ? function<bf16_t>(__VA_ARGS__)                  \
                              : function<f16_t>(__VA_ARGS__))

#endif /* SL_LAYERS_CUDA_DEVICE_CUH */
