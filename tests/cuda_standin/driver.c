/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: addresses, memory and access apart. A range of
 * addresses is an allocation whose parts can be used while memory is mapped
 * there and the device has access. What is unmapped must be out of use. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include "standin_internal.h"

/* Memory that cuMemCreate gave: until it is released and not mapped. */
typedef struct physical {
    struct physical *next;
    CUmemGenericAllocationHandle handle;
    size_t bytes;
    int device;
    int is_released;
    int is_mapped;
} physical_t;

/* guarded by the lock */
static physical_t *physicals;
static CUmemGenericAllocationHandle last_handle;
static int has_unmap_failed;

static CUresult give(cudaError_t error)
{
    return (CUresult)error; /* the same numbers */
}

#define DRIVER_ENTER(entry)                                                    \
    do {                                                                       \
        const cudaError_t standin_early =                                      \
            standin_enter(STANDIN_##entry, NULL);                              \
                                                                               \
        if (standin_early != cudaSuccess) {                                    \
            return give(standin_early);                                        \
        }                                                                      \
    } while (0)

int driver_n_live(void)
{
    const physical_t *physical;
    int n = 0;

    for (physical = physicals; physical != NULL; physical = physical->next) {
        n++;
    }
    return n;
}

void driver_reset(void)
{
    has_unmap_failed = 0;
}

/* ---- what the runtime finds by name ---- */

cudaError_t
cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                 unsigned int version, unsigned long long flags,
                                 enum cudaDriverEntryPointQueryResult *result)
{
    static CUresult (*const get)(CUdevice *, int) = cuDeviceGet;
    static CUresult (*const get_attribute)(int *, CUdevice_attribute,
                                           CUdevice) = cuDeviceGetAttribute;
    static CUresult (*const granularity)(size_t *, const CUmemAllocationProp *,
                                         CUmemAllocationGranularity_flags) =
        cuMemGetAllocationGranularity;
    static CUresult (*const reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr,
                                     unsigned long long) = cuMemAddressReserve;
    static CUresult (*const address_free)(CUdeviceptr, size_t) =
        cuMemAddressFree;
    static CUresult (*const create)(CUmemGenericAllocationHandle *, size_t,
                                    const CUmemAllocationProp *,
                                    unsigned long long) = cuMemCreate;
    static CUresult (*const release)(CUmemGenericAllocationHandle) =
        cuMemRelease;
    static CUresult (*const map)(CUdeviceptr, size_t, size_t,
                                 CUmemGenericAllocationHandle,
                                 unsigned long long) = cuMemMap;
    static CUresult (*const unmap)(CUdeviceptr, size_t) = cuMemUnmap;
    static CUresult (*const set_access)(
        CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) = cuMemSetAccess;
    /* through memory: C has no cast from functions to objects */
    static const struct {
        const char *name;
        const void *function;
    } table[] = {
        {"cuDeviceGet", &get},
        {"cuDeviceGetAttribute", &get_attribute},
        {"cuMemGetAllocationGranularity", &granularity},
        {"cuMemAddressReserve", &reserve},
        {"cuMemAddressFree", &address_free},
        {"cuMemCreate", &create},
        {"cuMemRelease", &release},
        {"cuMemMap", &map},
        {"cuMemUnmap", &unmap},
        {"cuMemSetAccess", &set_access},
    };
    size_t i;

    STANDIN_ENTER(cudaGetDriverEntryPointByVersion);
    *function = NULL;
    *result = cudaDriverEntryPointSymbolNotFound;
    if (version > CUDART_VERSION || flags != cudaEnableDefault) {
        return standin_give(cudaErrorInvalidValue);
    }
    for (i = 0; i < sizeof(table) / sizeof(*table); i++) {
        if (strcmp(symbol, table[i].name) == 0) {
            memcpy(function, table[i].function, sizeof(*function));
            *result = cudaDriverEntryPointSuccess;
        }
    }
    return cudaSuccess;
}

/* ---- devices ---- */

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    DRIVER_ENTER(cuDeviceGet);
    if (ordinal < 0 || ordinal >= standin_n_devices()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute,
                              CUdevice device)
{
    DRIVER_ENTER(cuDeviceGetAttribute);
    if (device < 0 || device >= standin_n_devices()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = standin_granularity() != 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- memory ---- */

static int is_prop(const CUmemAllocationProp *prop)
{
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE &&
           prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id >= 0 && prop->location.id < standin_n_devices();
}

/* A multiple of the granularity, not 0. */
static int is_whole(size_t bytes)
{
    return bytes > 0 && standin_granularity() > 0 &&
           bytes % standin_granularity() == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity,
                                       const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    DRIVER_ENTER(cuMemGetAllocationGranularity);
    (void)option;
    if (!is_prop(prop) || standin_granularity() == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = standin_granularity();
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    physical_t *made;

    DRIVER_ENTER(cuMemCreate);
    if (!is_prop(prop) || !is_whole(size) || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    made = calloc(1, sizeof(*made));
    lock();
    if (made == NULL || !memory_take(prop->location.id, size)) {
        unlock();
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->handle = ++last_handle;
    made->bytes = size;
    made->device = prop->location.id;
    made->next = physicals;
    physicals = made;
    *handle = made->handle;
    unlock();
    return CUDA_SUCCESS;
}

static physical_t **find(CUmemGenericAllocationHandle handle)
{
    physical_t **at = &physicals;

    while (*at != NULL && (*at)->handle != handle) {
        at = &(*at)->next;
    }
    return at;
}

static void drop_unused(physical_t **at)
{
    physical_t *physical = *at;

    if (physical != NULL && physical->is_released && !physical->is_mapped) {
        *at = physical->next;
        memory_give(physical->device, physical->bytes);
        free(physical);
    }
}

/* Done also when the call tells of an earlier error, as cudaFree is. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    cudaError_t error = standin_enter(STANDIN_cuMemRelease, NULL);
    physical_t **at;

    lock();
    at = find(handle);
    if (*at == NULL || (*at)->is_released) {
        standin_complain("cuMemRelease of a handle that is not live");
        error = cudaErrorInvalidValue;
    } else {
        (*at)->is_released = 1;
        drop_unused(at);
    }
    unlock();
    return give(error);
}

/* ---- addresses ---- */

/* In the range of the current device: memory of another one cannot be mapped
 * there, which the real driver allows. */
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                             CUdeviceptr addr, unsigned long long flags)
{
    void *made;

    DRIVER_ENTER(cuMemAddressReserve);
    if (!is_whole(size) || addr != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    lock();
    made = memory_reserve(
        standin_device(), size,
        alignment < standin_granularity() ? standin_granularity() : alignment);
    unlock();
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = (CUdeviceptr)(uintptr_t)made;
    return CUDA_SUCCESS;
}

/* The range that holds all of [ptr, ptr + size), or NULL. */
static allocation_t *find_range(CUdeviceptr ptr, size_t size)
{
    allocation_t *range = memory_find((void *)(uintptr_t)ptr);

    return range != NULL && range->is_reserved &&
                   ptr + size <= range->base + range->bytes
               ? range
               : NULL;
}

static void mapping_drop(mapping_t **at)
{
    mapping_t *mapping = *at;
    physical_t **physical = find(mapping->handle);

    *at = mapping->next;
    memory_close(mapping->begin, mapping->end - mapping->begin);
    (*physical)->is_mapped = 0;
    drop_unused(physical);
    free(mapping);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    cudaError_t error = standin_enter(STANDIN_cuMemAddressFree, NULL);
    allocation_t *range;

    lock();
    range = find_range(ptr, size);
    if (range == NULL || range->base != ptr || range->bytes != size ||
        (range->mappings != NULL && !has_unmap_failed)) {
        standin_complain("cuMemAddressFree of what is not a whole range "
                         "without memory");
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    while (range->mappings != NULL) {
        mapping_drop(&range->mappings);
    }
    memory_free(range);
    unlock();
    return give(error);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    mapping_t **at, *made = NULL;
    physical_t *physical;
    allocation_t *range;

    DRIVER_ENTER(cuMemMap);
    lock();
    range = find_range(ptr, size);
    physical = *find(handle);
    if (range == NULL || physical == NULL || offset != 0 || flags != 0 ||
        physical->is_mapped || physical->bytes != size ||
        physical->device != range->device ||
        !is_whole(ptr - range->base + size)) {
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    at = &range->mappings;
    while (*at != NULL && (*at)->end <= ptr) {
        at = &(*at)->next;
    }
    if (*at == NULL || (*at)->begin >= ptr + size) {
        made = calloc(1, sizeof(*made));
    }
    if (made == NULL) {
        standin_complain("cuMemMap of addresses that have memory");
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    made->begin = ptr;
    made->end = ptr + size;
    made->handle = handle;
    made->next = *at;
    *at = made;
    physical->is_mapped = 1;
    memory_open(ptr, size);
    unlock();
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    cudaError_t error = standin_enter(STANDIN_cuMemUnmap, NULL);
    const CUdeviceptr end = ptr + size;
    allocation_t *range;
    mapping_t **at;

    lock();
    if (error != cudaSuccess &&
        standin_sticky(standin_device()) == cudaSuccess) {
        has_unmap_failed = 1;
        unlock();
        return give(error);
    }
    range = find_range(ptr, size);
    at = range == NULL ? NULL : &range->mappings;
    while (at != NULL && *at != NULL && (*at)->begin < ptr) {
        at = &(*at)->next;
    }
    if (at == NULL || *at == NULL || (*at)->begin != ptr) {
        standin_complain("cuMemUnmap of addresses that have no memory, or of "
                         "a part of a mapping");
        unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* a dead device runs nothing more; what is reported need not crash too */
    if (standin_sticky(range->device) != cudaSuccess ||
        !order_unmap(range, ptr, end)) {
        streams_wait(range->device);
    }
    while (*at != NULL && (*at)->begin == ptr && (*at)->end <= end) {
        ptr = (*at)->end;
        mapping_drop(at);
    }
    if (ptr != end) {
        standin_complain("cuMemUnmap of a part of a mapping");
        error = cudaErrorInvalidValue;
    }
    unlock();
    return give(error);
}

/* The lock is held. */
static int set_access(mapping_t *mapping, const CUmemAccessDesc *desc)
{
    const unsigned bit = 1u << desc->location.id;

    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        desc->location.id < 0 || desc->location.id >= standin_n_devices()) {
        return 0;
    }
    mapping->devices = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                           ? mapping->devices | bit
                           : mapping->devices & ~bit;
    return 1;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size,
                        const CUmemAccessDesc *desc, size_t count)
{
    CUresult result = CUDA_SUCCESS;
    allocation_t *range;
    mapping_t *mapping;
    size_t i;

    DRIVER_ENTER(cuMemSetAccess);
    lock();
    range = find_range(ptr, size);
    if (range == NULL || !memory_is_mapped(range, ptr, ptr + size)) {
        standin_complain("cuMemSetAccess to addresses without memory");
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        for (mapping = range->mappings; mapping != NULL;
             mapping = mapping->next) {
            for (i = 0; i < count && mapping->begin >= ptr &&
                        mapping->end <= ptr + size;
                 i++) {
                if (!set_access(mapping, &desc[i])) {
                    result = CUDA_ERROR_INVALID_VALUE;
                }
            }
        }
    }
    unlock();
    return result;
}
