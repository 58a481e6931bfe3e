/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of CUDA device memory, and of pinned host memory. Every call works
 * on the device that was asked for, whatever the calling thread's current
 * device is, and leaves that as it was. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "base/log.h"
#include "memory/cuda.h"

struct sl_mem_cuda {
    int device;
    cudaStream_t stream; /* of copies */
};

/* Make the device current. @param[out] before_p give it to leave() */
static sl_status_t enter(const sl_mem_cuda_t *cuda, int *before_p)
{
    sl_status_t status;

    SL_TRY(status, SL_CUDA(cudaGetDevice(before_p)), out);
    if (*before_p != cuda->device) {
        status = SL_CUDA(cudaSetDevice(cuda->device));
    }
out:
    return status;
}

static void leave(const sl_mem_cuda_t *cuda, int before)
{
    if (before != cuda->device && cudaSetDevice(before) != cudaSuccess) {
        (void)cudaGetLastError(); /* the next call says so too */
    }
}

sl_status_t sl_mem_cuda_create(int device, sl_mem_cuda_t **cuda_p)
{
    sl_mem_cuda_t *cuda = calloc(1, sizeof(*cuda));
    sl_status_t status;
    int before;

    if (cuda == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "cuda:%d: no host memory for its allocator", device);
    }
    cuda->device = device;
    SL_TRY(status, enter(cuda, &before), err_free);
    status = SL_CUDA(
        cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    leave(cuda, before);
    SL_TRY(status, status, err_free);
    *cuda_p = cuda;
    return SL_OK;

err_free:
    free(cuda);
out:
    return status;
}

void sl_mem_cuda_destroy(sl_mem_cuda_t *cuda)
{
    if (cuda == NULL) {
        return;
    }
    /* after a failure of the device it says so once more */
    if (cudaStreamDestroy(cuda->stream) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    free(cuda);
}

sl_status_t sl_mem_cuda_free_bytes(sl_mem_cuda_t *cuda, size_t *free_p,
                                   size_t *total_p)
{
    sl_status_t status;
    int before;

    SL_TRY(status, enter(cuda, &before), out);
    status = SL_CUDA(cudaMemGetInfo(free_p, total_p));
    leave(cuda, before);
out:
    return status;
}

/* ---- device regions ---- */

static sl_status_t device_alloc(void *ctx, size_t bytes, void **ptr_p)
{
    sl_mem_cuda_t *cuda = ctx;
    sl_status_t status;
    void *ptr = NULL;
    int before;

    SL_TRY(status, enter(cuda, &before), out);
    status = SL_CUDA(cudaMalloc(&ptr, bytes));
    leave(cuda, before);
    SL_TRY(status, status, out);
    *ptr_p = ptr;
out:
    return status;
}

/* The runtime waits for all work of the device first, and knows whose memory
 * it is: the current device does not matter. */
static void device_release(void *ctx, void *ptr, size_t bytes)
{
    const sl_mem_cuda_t *cuda = ctx;
    const cudaError_t error = cudaFree(ptr);

    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        sl_warn("cuda:%d: giving back a region of %zu bytes: %s", cuda->device,
                bytes, cudaGetErrorString(error));
    }
}

static sl_status_t device_copy(void *ctx, void *to, const void *from,
                               size_t bytes)
{
    const sl_mem_cuda_t *cuda = ctx;
    sl_status_t status;

    SL_TRY(status,
           SL_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault,
                                   cuda->stream)),
           out);
    status = SL_CUDA(cudaStreamSynchronize(cuda->stream));
out:
    return status;
}

const sl_mem_ops_t *sl_mem_ops_cuda(void)
{
    static const sl_mem_ops_t ops = {
        .size = sizeof(sl_mem_ops_t),
        .name = "cuda",
        .alloc = device_alloc,
        .release = device_release,
        .copy = device_copy,
    };

    return &ops;
}

/* ---- pinned host regions ---- */

static sl_status_t pinned_alloc(void *ctx, size_t bytes, void **ptr_p)
{
    sl_mem_cuda_t *cuda = ctx;
    sl_status_t status;
    void *ptr = NULL;
    int before;

    SL_TRY(status, enter(cuda, &before), out);
    status = SL_CUDA(cudaHostAlloc(
        &ptr, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    leave(cuda, before);
    SL_TRY(status, status, out);
    *ptr_p = ptr;
out:
    return status;
}

static void pinned_release(void *ctx, void *ptr, size_t bytes)
{
    const sl_mem_cuda_t *cuda = ctx;
    const cudaError_t error = cudaFreeHost(ptr);

    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        sl_warn("cuda:%d: giving back %zu bytes of pinned memory: %s",
                cuda->device, bytes, cudaGetErrorString(error));
    }
}

const sl_mem_ops_t *sl_mem_ops_cuda_host(void)
{
    static const sl_mem_ops_t ops = {
        .size = sizeof(sl_mem_ops_t),
        .name = "pinned",
        .alloc = pinned_alloc,
        .release = pinned_release,
        .copy = device_copy,
    };

    return &ops;
}
