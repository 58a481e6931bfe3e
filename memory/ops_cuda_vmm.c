/* SPDX-License-Identifier: Apache-2.0 */
/* A region is a range of addresses and up to 64 pieces of memory mapped
 * there, one handle each: what was mapped by one handle can be unmapped only
 * as a whole. The driver's functions are asked of the runtime, so that
 * nothing links libcuda. Their result codes have the runtime's numbers. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "memory/cuda.h"
#include "memory/cuda_vmm.h"

enum {
    MAX_PIECES = 64,
    MAX_PEERS = 16, /* devices with access, the own one first */
    /* of the driver in which all of them, as called here, are */
    DRIVER_VERSION = 12000
};

#define VMM_FUNCTION_MAP(X)                                                    \
    X(cuDeviceGet, (CUdevice *, int))                                          \
    X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))             \
    X(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *,   \
                                      CUmemAllocationGranularity_flags))       \
    X(cuMemAddressReserve,                                                     \
      (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))        \
    X(cuMemAddressFree, (CUdeviceptr, size_t))                                 \
    X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t,                    \
                    const CUmemAllocationProp *, unsigned long long))          \
    X(cuMemRelease, (CUmemGenericAllocationHandle))                            \
    X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,    \
                 unsigned long long))                                          \
    X(cuMemUnmap, (CUdeviceptr, size_t))                                       \
    X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))

typedef struct vmm_region {
    struct vmm_region *next;
    CUdeviceptr base;
    size_t bytes;
    size_t piece_bytes;
    uint64_t mapped; /* bit i: piece i has memory */
} vmm_region_t;

struct sl_mem_vmm {
    int device;
    size_t unit_bytes;
    CUmemAllocationProp prop;
    struct {
#define X(name, arguments) CUresult(CUDAAPI *name) arguments;
        VMM_FUNCTION_MAP(X)
#undef X
    } call;
    pthread_mutex_t lock;
    /* guarded by lock */
    vmm_region_t *regions;
    CUmemAccessDesc access[MAX_PEERS];
    size_t n_access;
};

/* One function of the driver, into a function pointer; 0 when there is none.
 */
static int find(const char *name, void *function_p)
{
    enum cudaDriverEntryPointQueryResult result;
    void *address = NULL;
    cudaError_t error;

#if CUDART_VERSION >= 12050
    error = cudaGetDriverEntryPointByVersion(name, &address, DRIVER_VERSION,
                                             cudaEnableDefault, &result);
#else
    error = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    memcpy(function_p, &address, sizeof(address));
    return result == cudaDriverEntryPointSuccess && address != NULL;
}

static int find_all(sl_mem_vmm_t *vmm)
{
    int is_found = 1;

#define X(name, arguments) is_found = is_found && find(#name, &vmm->call.name);
    VMM_FUNCTION_MAP(X)
#undef X
    return is_found;
}

/* 0 when it is not known, too. */
static int attribute(const sl_mem_vmm_t *vmm, CUdevice_attribute which)
{
    CUdevice device;
    int value = 0;

    return vmm->call.cuDeviceGet(&device, vmm->device) == CUDA_SUCCESS &&
                   vmm->call.cuDeviceGetAttribute(&value, which, device) ==
                       CUDA_SUCCESS
               ? value
               : 0;
}

/* What is asked of memory: on this device, and reachable for network cards
 * where the device knows how. */
static int is_usable(sl_mem_vmm_t *vmm)
{
    size_t unit = 0;

    if (!find_all(vmm) ||
        !attribute(vmm,
                   CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
        return 0;
    }
    vmm->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    vmm->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    vmm->prop.location.id = vmm->device;
    vmm->prop.allocFlags.gpuDirectRDMACapable =
        attribute(
            vmm, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) !=
        0;
    if (vmm->call.cuMemGetAllocationGranularity(
            &unit, &vmm->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
        CUDA_SUCCESS) {
        return 0;
    }
    vmm->unit_bytes = unit;
    vmm->access[0].location = vmm->prop.location;
    vmm->access[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    vmm->n_access = 1;
    return unit >= SL_MEM_ALIGN_BYTES && (unit & (unit - 1)) == 0;
}

sl_status_t sl_mem_vmm_create(int device, sl_mem_vmm_t **vmm_p)
{
    sl_mem_vmm_t *vmm = calloc(1, sizeof(*vmm));
    sl_status_t status = SL_OK;

    if (vmm == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "cuda:%d: no host memory for its allocator", device);
    }
    vmm->device = device;
    if (is_usable(vmm)) {
        (void)pthread_mutex_init(&vmm->lock, NULL);
        *vmm_p = vmm;
        goto out;
    }
    sl_debug("cuda:%d: no virtual memory management: regions by cudaMalloc, "
             "given back as a whole",
             device);
    free(vmm);
    *vmm_p = NULL;
out:
    return status;
}

void sl_mem_vmm_destroy(sl_mem_vmm_t *vmm)
{
    if (vmm == NULL) {
        return;
    }
    while (vmm->regions != NULL) {
        sl_warn("cuda:%d: a region of %zu bytes was not given back",
                vmm->device, vmm->regions->bytes);
        sl_mem_vmm_release(vmm, (void *)(uintptr_t)vmm->regions->base);
    }
    (void)pthread_mutex_destroy(&vmm->lock);
    free(vmm);
}

size_t sl_mem_vmm_unit(const sl_mem_vmm_t *vmm)
{
    return vmm->unit_bytes;
}

size_t sl_mem_vmm_piece(const sl_mem_vmm_t *vmm, size_t bytes)
{
    const size_t n_units = (bytes + vmm->unit_bytes - 1) / vmm->unit_bytes;

    return (n_units + MAX_PIECES - 1) / MAX_PIECES * vmm->unit_bytes;
}

/* ---- pieces; the lock is held ---- */

static size_t piece_end(const vmm_region_t *region, size_t offset)
{
    return region->bytes - offset < region->piece_bytes
               ? region->bytes
               : offset + region->piece_bytes;
}

/* Memory for the piece at `offset`; access is set later. */
static sl_status_t map(sl_mem_vmm_t *vmm, vmm_region_t *region, size_t offset)
{
    const size_t bytes = piece_end(region, offset) - offset;
    CUmemGenericAllocationHandle handle;
    sl_status_t status;

    SL_TRY(status,
           SL_CUDA(vmm->call.cuMemCreate(&handle, bytes, &vmm->prop, 0)), out);
    status =
        SL_CUDA(vmm->call.cuMemMap(region->base + offset, bytes, 0, handle, 0));
    if (status == SL_OK) {
        region->mapped |= UINT64_C(1) << (offset / region->piece_bytes);
    }
    /* the mapping keeps it */
    if (vmm->call.cuMemRelease(handle) != CUDA_SUCCESS) {
        sl_warn("cuda:%d: the handle of %zu bytes was not released",
                vmm->device, bytes);
    }
out:
    return status;
}

static sl_status_t unmap(sl_mem_vmm_t *vmm, vmm_region_t *region, size_t offset)
{
    const uint64_t bit = UINT64_C(1) << (offset / region->piece_bytes);
    const size_t bytes = piece_end(region, offset) - offset;
    sl_status_t status = SL_OK;

    if ((region->mapped & bit) != 0) {
        status = SL_CUDA(vmm->call.cuMemUnmap(region->base + offset, bytes));
        region->mapped &= status == SL_OK ? ~bit : UINT64_MAX;
    }
    return status;
}

static void unmap_all(sl_mem_vmm_t *vmm, vmm_region_t *region, size_t from,
                      size_t to)
{
    size_t offset;

    for (offset = from; offset < to; offset = piece_end(region, offset)) {
        (void)unmap(vmm, region, offset);
    }
}

/* Map all pieces of [from, to), none of which has memory, or none. */
static sl_status_t map_all(sl_mem_vmm_t *vmm, vmm_region_t *region, size_t from,
                           size_t to)
{
    sl_status_t status = SL_OK;
    size_t offset;

    for (offset = from; offset < to; offset = piece_end(region, offset)) {
        SL_TRY(status, map(vmm, region, offset), err_unmap);
    }
    SL_TRY(status,
           SL_CUDA(vmm->call.cuMemSetAccess(region->base + from, to - from,
                                            vmm->access, vmm->n_access)),
           err_unmap);
    return SL_OK;

err_unmap:
    unmap_all(vmm, region, from, to);
    return status;
}

static vmm_region_t **find_region(sl_mem_vmm_t *vmm, const void *ptr)
{
    vmm_region_t **at = &vmm->regions;

    while (*at != NULL && (*at)->base != (CUdeviceptr)(uintptr_t)ptr) {
        at = &(*at)->next;
    }
    return at;
}

/* ---- regions ---- */

sl_status_t sl_mem_vmm_alloc(sl_mem_vmm_t *vmm, size_t bytes, void **ptr_p)
{
    vmm_region_t *region = calloc(1, sizeof(*region));
    sl_status_t status;

    if (region == NULL) {
        SL_REFUSE(status, SL_ERR_NO_MEMORY, out,
                  "cuda:%d: no host memory for a region", vmm->device);
    }
    region->bytes = bytes;
    region->piece_bytes = sl_mem_vmm_piece(vmm, bytes);
    (void)pthread_mutex_lock(&vmm->lock);
    SL_TRY(status,
           SL_CUDA(vmm->call.cuMemAddressReserve(&region->base, bytes,
                                                 vmm->unit_bytes, 0, 0)),
           err_unlock);
    SL_TRY(status, map_all(vmm, region, 0, bytes), err_reserved);
    region->next = vmm->regions;
    vmm->regions = region;
    (void)pthread_mutex_unlock(&vmm->lock);
    *ptr_p = (void *)(uintptr_t)region->base;
    return SL_OK;

err_reserved:
    if (vmm->call.cuMemAddressFree(region->base, bytes) != CUDA_SUCCESS) {
        sl_warn("cuda:%d: %zu bytes of addresses were not given back",
                vmm->device, bytes);
    }
err_unlock:
    (void)pthread_mutex_unlock(&vmm->lock);
    free(region);
out:
    return status;
}

void sl_mem_vmm_release(sl_mem_vmm_t *vmm, void *ptr)
{
    vmm_region_t **at;
    vmm_region_t *region;

    (void)pthread_mutex_lock(&vmm->lock);
    at = find_region(vmm, ptr);
    region = *at;
    if (region != NULL) {
        *at = region->next;
        unmap_all(vmm, region, 0, region->bytes);
        if (vmm->call.cuMemAddressFree(region->base, region->bytes) !=
                CUDA_SUCCESS ||
            region->mapped != 0) {
            sl_warn("cuda:%d: a region of %zu bytes was not given back whole",
                    vmm->device, region->bytes);
        }
    }
    (void)pthread_mutex_unlock(&vmm->lock);
    free(region);
}

sl_status_t sl_mem_vmm_trim(sl_mem_vmm_t *vmm, void *ptr, size_t offset,
                            size_t bytes)
{
    const size_t end = offset + bytes;
    vmm_region_t *region;
    sl_status_t status = SL_OK;
    size_t at;

    (void)pthread_mutex_lock(&vmm->lock);
    region = *find_region(vmm, ptr);
    SL_ASSERT(region != NULL && end <= region->bytes);
    for (at = offset; at < end; at = piece_end(region, at)) {
        SL_TRY(status, unmap(vmm, region, at), err_map);
    }
    (void)pthread_mutex_unlock(&vmm->lock);
    return SL_OK;

err_map: /* as it was: what was unmapped is free, and mapped again */
    if (at > offset && map_all(vmm, region, offset, at) != SL_OK) {
        sl_error("cuda:%d: %zu bytes of a region are lost", vmm->device,
                 at - offset);
    }
    (void)pthread_mutex_unlock(&vmm->lock);
    return status;
}

sl_status_t sl_mem_vmm_fill(sl_mem_vmm_t *vmm, void *ptr, size_t offset,
                            size_t bytes)
{
    vmm_region_t *region;
    sl_status_t status;

    (void)pthread_mutex_lock(&vmm->lock);
    region = *find_region(vmm, ptr);
    SL_ASSERT(region != NULL && offset + bytes <= region->bytes);
    status = map_all(vmm, region, offset, offset + bytes);
    (void)pthread_mutex_unlock(&vmm->lock);
    return status;
}

/* Access for the device that was added last, to all that is mapped. */
static sl_status_t open_regions(sl_mem_vmm_t *vmm)
{
    const CUmemAccessDesc *access = &vmm->access[vmm->n_access - 1];
    const vmm_region_t *region;
    sl_status_t status = SL_OK;
    size_t at;

    for (region = vmm->regions; region != NULL; region = region->next) {
        for (at = 0; at < region->bytes; at = piece_end(region, at)) {
            if ((region->mapped >> (at / region->piece_bytes) & 1) != 0) {
                SL_TRY(status,
                       SL_CUDA(vmm->call.cuMemSetAccess(
                           region->base + at, piece_end(region, at) - at,
                           access, 1)),
                       out);
            }
        }
    }
out:
    return status;
}

sl_status_t sl_mem_vmm_share(sl_mem_vmm_t *vmm, int peer)
{
    sl_status_t status = SL_OK;
    size_t i;

    (void)pthread_mutex_lock(&vmm->lock);
    for (i = 0; i < vmm->n_access; i++) {
        if (vmm->access[i].location.id == peer) {
            goto out;
        }
    }
    if (vmm->n_access == MAX_PEERS) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "cuda:%d: shared with %d devices already", vmm->device,
                MAX_PEERS - 1);
    }
    vmm->access[vmm->n_access] = vmm->access[0];
    vmm->access[vmm->n_access].location.id = peer;
    vmm->n_access++;
    status = open_regions(vmm);
    if (status != SL_OK) {
        vmm->n_access--; /* more access than promised does not hurt */
    }
out:
    (void)pthread_mutex_unlock(&vmm->lock);
    return status;
}
