/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of CUDA device memory, and of pinned host memory. Every call works
 * on the device that was asked for, whatever the calling thread's current
 * device is, and leaves that as it was. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"
#include "memory/cuda.h"
#include "memory/cuda_vmm.h"

struct sl_mem_cuda {
    int device;
    cudaStream_t stream; /* of copies */
    sl_mem_vmm_t *vmm;   /* NULL: regions by cudaMalloc */
    /* atomic: a wait for a copy has failed; it may still be under way */
    atomic_int is_unsure;
};

/* Make the device current, for the driver's functions too: until a thread
 * sets one, the first device is current for the runtime alone.
 * @param[out] before_p give it to leave() */
static sl_status_t enter(const sl_mem_cuda_t *cuda, int *before_p)
{
    sl_status_t status;

    SL_TRY(status, SL_CUDA(cudaGetDevice(before_p)), out);
    status = SL_CUDA(cudaSetDevice(cuda->device));
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
    if (getenv("SLUICE_NO_CUDA_VMM") == NULL) {
        SL_TRY(status, sl_mem_vmm_create(device, &cuda->vmm), err_leave);
    }
    SL_TRY(status,
           SL_CUDA(
               cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking)),
           err_leave);
    leave(cuda, before);
    *cuda_p = cuda;
    return SL_OK;

err_leave:
    sl_mem_vmm_destroy(cuda->vmm);
    leave(cuda, before);
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
    sl_mem_vmm_destroy(cuda->vmm);
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

sl_status_t sl_mem_cuda_share(sl_mem_cuda_t *cuda, int peer)
{
    cudaError_t error;
    sl_status_t status;
    int before;

    SL_TRY(status, SL_CUDA(cudaGetDevice(&before)), out);
    if (peer == cuda->device) {
        goto out;
    }
    SL_TRY(status, SL_CUDA(cudaSetDevice(peer)), out);
    error = cudaDeviceEnablePeerAccess(cuda->device, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        error = cudaSuccess;
    }
    status = SL_CUDA(error);
    if (status == SL_OK && cuda->vmm != NULL) {
        status = SL_CUDA(cudaSetDevice(cuda->device));
        if (status == SL_OK) {
            status = sl_mem_vmm_share(cuda->vmm, peer);
        }
    }
    if (cudaSetDevice(before) != cudaSuccess) {
        (void)cudaGetLastError();
    }
out:
    return status;
}

void sl_mem_cuda_stay_whole(sl_mem_cuda_t *cuda)
{
    sl_mem_vmm_destroy(cuda->vmm);
    cuda->vmm = NULL;
}

int sl_mem_cuda_is_virtual(const sl_mem_cuda_t *cuda)
{
    return cuda->vmm != NULL;
}

/* ---- device regions ---- */

static sl_status_t device_alloc(void *ctx, size_t bytes, void **ptr_p)
{
    sl_mem_cuda_t *cuda = ctx;
    sl_status_t status;
    void *ptr = NULL;
    int before;

    SL_TRY(status, enter(cuda, &before), out);
    status = cuda->vmm != NULL ? sl_mem_vmm_alloc(cuda->vmm, bytes, &ptr)
                               : SL_CUDA(cudaMalloc(&ptr, bytes));
    leave(cuda, before);
    SL_TRY(status, status, out);
    *ptr_p = ptr;
out:
    return status;
}

/* Before memory is unmapped: what may use it has been waited for, but for a
 * copy when that wait has failed. A wait for the whole device is not for every
 * time: it might be for a peer's kernel that waits for us. */
static void settle(sl_mem_cuda_t *cuda)
{
    if (atomic_load(&cuda->is_unsure)) {
        atomic_store(&cuda->is_unsure, 0);
        if (cudaDeviceSynchronize() != cudaSuccess) {
            (void)cudaGetLastError(); /* it is dead, and uses nothing */
        }
    }
}

/* cudaFree waits for all work of the device, and knows whose memory it is:
 * the current device does not matter. */
static void device_release(void *ctx, void *ptr, size_t bytes)
{
    sl_mem_cuda_t *cuda = ctx;
    cudaError_t error;
    int before;

    if (cuda->vmm != NULL) {
        const sl_status_t status = enter(cuda, &before);

        settle(cuda);
        sl_mem_vmm_release(cuda->vmm, ptr);
        if (status == SL_OK) {
            leave(cuda, before);
        }
        return;
    }
    error = cudaFree(ptr);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        sl_warn("cuda:%d: giving back a region of %zu bytes: %s", cuda->device,
                bytes, cudaGetErrorString(error));
    }
}

static size_t device_unit(void *ctx)
{
    const sl_mem_cuda_t *cuda = ctx;

    return cuda->vmm != NULL ? sl_mem_vmm_unit(cuda->vmm)
                             : (size_t)SL_MEM_ALIGN_BYTES;
}

static size_t device_piece(void *ctx, size_t bytes)
{
    const sl_mem_cuda_t *cuda = ctx;

    return cuda->vmm != NULL ? sl_mem_vmm_piece(cuda->vmm, bytes) : 0;
}

static sl_status_t device_trim(void *ctx, void *region, size_t offset,
                               size_t bytes)
{
    sl_mem_cuda_t *cuda = ctx;
    sl_status_t status;
    int before;

    SL_TRY(status, enter(cuda, &before), out);
    settle(cuda);
    status = sl_mem_vmm_trim(cuda->vmm, region, offset, bytes);
    leave(cuda, before);
out:
    return status;
}

static sl_status_t device_fill(void *ctx, void *region, size_t offset,
                               size_t bytes)
{
    const sl_mem_cuda_t *cuda = ctx;
    sl_status_t status;
    int before;

    SL_TRY(status, enter(cuda, &before), out);
    status = sl_mem_vmm_fill(cuda->vmm, region, offset, bytes);
    leave(cuda, before);
out:
    return status;
}

static sl_status_t device_copy_begin(void *ctx, void *to, const void *from,
                                     size_t bytes)
{
    const sl_mem_cuda_t *cuda = ctx;

    return SL_CUDA(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->stream));
}

static sl_status_t device_copy_wait(void *ctx)
{
    sl_mem_cuda_t *cuda = ctx;
    const sl_status_t status = SL_CUDA(cudaStreamSynchronize(cuda->stream));

    if (status != SL_OK) {
        atomic_store(&cuda->is_unsure, 1);
    }
    return status;
}

static sl_status_t device_copy(void *ctx, void *to, const void *from,
                               size_t bytes)
{
    sl_status_t status;

    SL_TRY(status, device_copy_begin(ctx, to, from, bytes), out);
    status = device_copy_wait(ctx);
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
        .unit = device_unit,
        .piece = device_piece,
        .trim = device_trim,
        .fill = device_fill,
        .copy_begin = device_copy_begin,
        .copy_wait = device_copy_wait,
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
