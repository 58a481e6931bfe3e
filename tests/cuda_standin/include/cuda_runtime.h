/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_runtime.h
 * The stand-in's kernel language: what Sluice's .cu files use of CUDA C++, so
 * that g++ compiles them for the CPU. There are no atomics on floats here, on
 * purpose: sums must not depend on the order of threads.
 */
#ifndef SL_TESTS_CUDA_STANDIN_CUDA_RUNTIME_H
#define SL_TESTS_CUDA_STANDIN_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>
#include <tuple>
#include <type_traits>

#include "tests/cuda_standin/device.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
/* One block at a time runs on a stream's thread. */
#define __shared__ static thread_local

#define __syncthreads() standin_sync_block(__LINE__)
#define __syncthreads_or(predicate) standin_sync_or((predicate), __LINE__)
#define __syncwarp(...) standin_sync_warp(0xffffffffu, __LINE__)
#define __ballot_sync(mask, predicate)                                         \
    standin_ballot((mask), (predicate), __LINE__)
#define __shfl_sync(mask, value, lane)                                         \
    standin_shuffle((mask), (value), (lane), __LINE__)
#define __shfl_xor_sync(mask, value, lanes)                                    \
    standin_shuffle((mask), (value), standin_number % 32u ^ (lanes), __LINE__)
#define __trap() standin_trap("__trap()")

template <typename T>
static inline T standin_shuffle(unsigned mask, T value, unsigned lane, int line)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "one word at most");
    uint64_t bits = 0;
    T got;

    std::memcpy(&bits, &value, sizeof(value));
    bits = standin_exchange(mask, bits, lane, line);
    std::memcpy(&got, &bits, sizeof(got));
    return got;
}

static inline int __popc(unsigned value)
{
    return __builtin_popcount(value);
}

static inline int __ffs(int value)
{
    return __builtin_ffs(value);
}

static inline unsigned atomicMin(unsigned *at, unsigned value)
{
    unsigned old = __atomic_load_n(at, __ATOMIC_RELAXED);

    while (old > value &&
           !__atomic_compare_exchange_n(at, &old, value, 0, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
    return old;
}

struct dim3 : uint3 {
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)
    {
        x = x_;
        y = y_;
        z = z_;
    }
};

struct cudaLaunchConfig_t {
    dim3 gridDim;
    dim3 blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    void *attrs;
    unsigned int numAttrs;
};

template <typename... P> struct standin_call {
    void (*kernel)(P...);
    std::tuple<typename std::remove_cv<P>::type...> args;
};

/* Padding may hold old bits that look like an address. */
template <typename... V> static void standin_clear_padding(V &...values)
{
#if defined(__GNUC__) && !defined(__clang__)
    (__builtin_clear_padding(&values), ...);
#else
    (void)std::initializer_list<int>{((void)values, 0)...};
#endif
}

template <typename... P> static void standin_call_run(void *data)
{
    auto *call = static_cast<standin_call<P...> *>(data);

    std::apply(call->kernel, call->args);
}

/* The stand-in's own memory, zeroed; its launches free() it. */
extern "C" void *standin_calloc(std::size_t n, std::size_t bytes);

template <typename... P, typename... A>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                      void (*kernel)(P...), A &&...args)
{
    static_assert((std::is_trivially_copyable<P>::value && ...),
                  "kernels take plain data");
    void *data = standin_calloc(1, sizeof(standin_call<P...>));
    standin_launch_t launch;

    if (data == nullptr) {
        std::abort();
    }
    auto *call = new (data) standin_call<P...>{
        kernel, std::tuple<typename std::remove_cv<P>::type...>(
                    static_cast<P>(args)...)};
    std::apply(standin_clear_padding<typename std::remove_cv<P>::type...>,
               call->args);
    launch.grid_dim = config->gridDim;
    launch.block_dim = config->blockDim;
    launch.shared_bytes = config->dynamicSmemBytes;
    launch.stream = config->stream;
    launch.data = data;
    launch.data_bytes = sizeof(standin_call<P...>);
    launch.call = standin_call_run<P...>;
    return standin_launch(&launch);
}
#endif /* __cplusplus */
#endif /* SL_TESTS_CUDA_STANDIN_CUDA_RUNTIME_H */
