/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are right, and kernels that are wrong on purpose. */
#include "tests/cuda/standin_kernels.h"

#include <cuda_runtime.h>

#include "standin.h"

static __global__ void add(const float *in, float *out, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i < n) {
        out[i] = in[i] + 1.0f;
    }
}

static __global__ void sum(const float *in, float *out, int n)
{
    __shared__ float parts[32];
    float value = 0;

    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        value += in[i];
    }
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, lanes);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        value = 0;
        for (unsigned i = 0; i < blockDim.x / 32; i++) {
            value += parts[i];
        }
        out[blockIdx.x] = value;
    }
}

static __global__ void no_barrier(const float *in, float *out, int n)
{
    __shared__ float shared[1024];
    const unsigned i = threadIdx.x;

    shared[i] = 0;
    __syncthreads();
    shared[i] = i < (unsigned)n ? in[i] : 0;
    out[i] = shared[(i + 1) % blockDim.x];
}

static __global__ void stuck(const float *in, float *out, int n)
{
    if (threadIdx.x % 2 == 0) {
        __syncwarp();
    }
    out[threadIdx.x] = n > 0 ? in[0] : 0;
}

static __global__ void ballot(const float *in, float *out, int n)
{
    const unsigned lane = threadIdx.x % 32;
    const unsigned odd = __ballot_sync(0xffffffffu, (int)(lane % 2));

    out[threadIdx.x] =
        (float)__popc(odd & ((1u << lane) - 1)) + (n < 0 ? in[0] : 0);
}

static __global__ void wrong_lane(const float *in, float *out, int n)
{
    out[threadIdx.x] =
        __shfl_sync(0xffffffffu, n > 0 ? in[0] : 0.0f, threadIdx.x + 1);
}

static __global__ void split(const float *in, float *out, int n)
{
    if (threadIdx.x % 2 == 0) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = n > 0 ? in[0] : 0;
}

static __global__ void ended(const float *in, float *out, int n)
{
    __shared__ float shared[32];

    if (threadIdx.x >= 32) {
        return;
    }
    shared[threadIdx.x] = threadIdx.x < (unsigned)n ? in[threadIdx.x] : 0;
    __syncthreads();
    out[threadIdx.x] = shared[31 - threadIdx.x];
}

static __global__ void minimum(const float *in, float *out, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    (void)in;
    if (i < n) {
        atomicMin((unsigned *)out, (unsigned)(n - i));
    }
}

static __global__ void trap(const float *in, float *out, int n)
{
    if (threadIdx.x == 3 && n > 0) {
        __trap();
    }
    out[threadIdx.x] = in[0];
}

static __global__ void any(const float *in, float *out, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int is_any = __syncthreads_or(i < n && in[i] == 0.0f);

    if (i < n) {
        out[i] = (float)is_any;
    }
}

typedef void (*kernel_fn)(const float *in, float *out, int n);

cudaError_t kernel_launch(kernel_t kernel, unsigned n_blocks,
                          unsigned n_threads, const float *in, float *out,
                          int n, int n_out, int declares, cudaStream_t stream)
{
    static const kernel_fn kernels[] = {add,     sum,        no_barrier, stuck,
                                        ballot,  wrong_lane, split,      ended,
                                        minimum, trap,       any};
    static const char *const names[] = {
        "add",   "sum",   "no_barrier", "stuck", "ballot", "wrong_lane",
        "split", "ended", "minimum",    "trap",  "any"};
    cudaLaunchConfig_t config = {};

    if (declares) {
        standin_access(in, (size_t)n * sizeof(*in), 0);
        standin_access(out, (size_t)n_out * sizeof(*out), 1);
    }
    standin_name(names[kernel]);
    config.gridDim = dim3(n_blocks);
    config.blockDim = dim3(n_threads);
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernels[kernel], in, out, n);
}
