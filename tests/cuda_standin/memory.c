/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory has two addresses. The one that the program sees is never
 * accessible, so that host code which touches it faults at once; kernels and
 * copies use the other, at a fixed distance. Under the address sanitizer
 * only the bytes asked for can be used there. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create, fallocate */
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin_internal.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(ptr, bytes) ASAN_POISON_MEMORY_REGION((ptr), (bytes))
#define UNPOISON(ptr, bytes) ASAN_UNPOISON_MEMORY_REGION((ptr), (bytes))
#else
#define POISON(ptr, bytes) ((void)0)
#define UNPOISON(ptr, bytes) ((void)0)
#endif

#define DEVICE_BYTES ((size_t)8 << 30) /* of addresses */
#define ARENA_BYTES (DEVICE_BYTES * MAX_DEVICES)
#define PAGE_BYTES ((size_t)4096)
/* New memory is full of NaN up to here. */
#define FILL_BYTES ((size_t)4 << 20)

/* guarded by the lock */
static unsigned char *seen;  /* what the program sees */
static unsigned char *alias; /* what kernels use */
static int file = -1;
static allocation_t *allocations[MAX_DEVICES + 1]; /* the last: host */
static size_t used_bytes[MAX_DEVICES];

/* An MPI that knows device memory needs its other address: that of
 * tests/cuda/aware_mpi asks for the way to it. */
static void tell_mpi(void)
{
    _Atomic(void *(*)(const void *)) *hook =
        dlsym(RTLD_DEFAULT, "standin_mpi_alias");

    if (hook != NULL) {
        atomic_store(hook, memory_alias);
    }
}

static void make_arena(void)
{
    void *a, *b;

    if (seen != NULL) {
        return;
    }
    file = memfd_create("cuda-standin", 0);
    if (file < 0 || ftruncate(file, (off_t)ARENA_BYTES) != 0) {
        perror("stand-in: device memory");
        abort();
    }
    a = mmap(NULL, ARENA_BYTES, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    b = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (a == MAP_FAILED || b == MAP_FAILED) {
        perror("stand-in: device memory");
        abort();
    }
    seen = a;
    alias = b;
    tell_mpi();
}

int memory_is_device(const void *ptr)
{
    const uintptr_t at = (uintptr_t)ptr, base = (uintptr_t)seen;

    return seen != NULL && at >= base && at < base + ARENA_BYTES;
}

void *memory_alias(const void *ptr)
{
    return memory_is_device(ptr) ? alias + ((uintptr_t)ptr - (uintptr_t)seen)
                                 : (void *)(uintptr_t)ptr;
}

allocation_t *memory_find(const void *ptr)
{
    const uintptr_t at = (uintptr_t)ptr;
    allocation_t *allocation;
    int i = MAX_DEVICES;

    if (memory_is_device(ptr)) {
        i = (int)((at - (uintptr_t)seen) / DEVICE_BYTES);
    }
    for (allocation = allocations[i]; allocation != NULL;
         allocation = allocation->next) {
        if (at >= allocation->base &&
            at < allocation->base + allocation->bytes) {
            return allocation;
        }
    }
    return NULL;
}

int memory_n_live(void)
{
    const allocation_t *allocation;
    int n = 0;
    int i;

    for (i = 0; i <= MAX_DEVICES; i++) {
        for (allocation = allocations[i]; allocation != NULL;
             allocation = allocation->next) {
            n++;
        }
    }
    return n;
}

size_t standin_device_bytes(int device)
{
    size_t bytes;

    lock();
    bytes = used_bytes[device];
    unlock();
    return bytes;
}

static void *record_new(allocation_t **at, uintptr_t base, size_t bytes,
                        size_t span, int device)
{
    allocation_t *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        abort();
    }
    made->base = base;
    made->bytes = bytes;
    made->span = span;
    made->device = device;
    made->next = *at;
    *at = made;
    return (void *)base;
}

static uintptr_t align_up(uintptr_t at, size_t alignment)
{
    return (at + alignment - 1) / alignment * alignment;
}

/* First fit: pages and a guard page. NULL when the addresses end. */
static allocation_t *addresses_take(int device, size_t bytes, size_t alignment)
{
    allocation_t **at = &allocations[device];
    size_t span;
    uintptr_t base, end;

    make_arena();
    if (bytes > DEVICE_BYTES) {
        return NULL;
    }
    span = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES;
    base = (uintptr_t)seen + (size_t)device * DEVICE_BYTES;
    end = base + DEVICE_BYTES;
    base = align_up(base, alignment);
    for (; *at != NULL && (*at)->base < base + span; at = &(*at)->next) {
        base = align_up((*at)->base + (*at)->span, alignment);
    }
    if (base + span > end) {
        return NULL;
    }
    (void)record_new(at, base, bytes, span, device);
    return *at;
}

int memory_take(int device, size_t bytes)
{
    if (bytes > standin_memory() ||
        used_bytes[device] + bytes > standin_memory()) {
        return 0;
    }
    used_bytes[device] += bytes;
    return 1;
}

void memory_give(int device, size_t bytes)
{
    used_bytes[device] -= bytes;
}

void memory_open(uintptr_t at, size_t bytes)
{
    unsigned char *own = memory_alias((void *)at);
    const size_t pages = align_up(bytes, PAGE_BYTES);

    (void)mprotect(own, pages, PROT_READ | PROT_WRITE);
    UNPOISON(own, bytes);
    POISON(own + bytes, pages - bytes);
    memset(own, 0xff, bytes < FILL_BYTES ? bytes : FILL_BYTES);
}

void memory_close(uintptr_t at, size_t bytes)
{
    unsigned char *own = memory_alias((void *)at);
    const size_t pages = align_up(bytes, PAGE_BYTES);

    POISON(own, pages);
    (void)mprotect(own, pages, PROT_NONE);
    (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    (off_t)(at - (uintptr_t)seen), (off_t)pages);
}

/* NULL when the device is full. */
static void *device_alloc(int device, size_t bytes)
{
    allocation_t *made;

    if (!memory_take(device, bytes)) {
        return NULL;
    }
    made = addresses_take(device, bytes, PAGE_BYTES);
    if (made == NULL) {
        memory_give(device, bytes);
        return NULL;
    }
    memory_open(made->base, bytes);
    return (void *)made->base;
}

void *memory_reserve(int device, size_t bytes, size_t alignment)
{
    allocation_t *made = addresses_take(device, bytes, alignment);

    if (made == NULL) {
        return NULL;
    }
    made->is_reserved = 1;
    return (void *)made->base;
}

int memory_is_mapped(const allocation_t *allocation, uintptr_t begin,
                     uintptr_t end)
{
    const mapping_t *mapping = allocation->mappings;

    for (; mapping != NULL && begin < end; mapping = mapping->next) {
        if (mapping->begin <= begin && mapping->end > begin) {
            begin = mapping->end;
        }
    }
    return !allocation->is_reserved || begin >= end;
}

int memory_is_usable(int device, const allocation_t *allocation,
                     uintptr_t begin, uintptr_t end)
{
    const mapping_t *mapping;

    if (allocation->device < 0) {
        return 1;
    }
    if (!allocation->is_reserved) {
        return standin_is_peer(device, allocation->device);
    }
    for (mapping = allocation->mappings; mapping != NULL;
         mapping = mapping->next) {
        if (mapping->begin < end && begin < mapping->end &&
            (mapping->devices >> device & 1u) == 0) {
            return 0;
        }
    }
    return 1;
}

void memory_free(allocation_t *allocation)
{
    const int device = allocation->device;
    allocation_t **at = &allocations[device < 0 ? MAX_DEVICES : device];

    while (*at != allocation) {
        at = &(*at)->next;
    }
    *at = allocation->next;
    if (device < 0) {
        free((void *)allocation->base);
    } else if (!allocation->is_reserved) {
        memory_give(device, allocation->bytes);
        memory_close(allocation->base, allocation->bytes);
    }
    while (allocation->accesses != NULL) {
        access_t *access = allocation->accesses;

        allocation->accesses = access->next;
        free(access);
    }
    free(allocation);
}

/* The live allocation that starts here, or NULL. */
static allocation_t *find_start(const void *ptr)
{
    allocation_t *allocation = memory_find(ptr);

    return allocation == NULL || allocation->base != (uintptr_t)ptr
               ? NULL
               : allocation;
}

cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
    void *made;

    STANDIN_ENTER(cudaMalloc);
    if (bytes == 0) {
        *ptr = NULL;
        return cudaSuccess;
    }
    lock();
    made = device_alloc(standin_device(), bytes);
    unlock();
    if (made == NULL) {
        return standin_give(cudaErrorMemoryAllocation);
    }
    *ptr = made;
    return cudaSuccess;
}

/* Waits for the device, as the real one does. */
cudaError_t cudaFree(void *ptr)
{
    const cudaError_t error = standin_enter(STANDIN_cudaFree, NULL);
    allocation_t *allocation;

    if (ptr == NULL) {
        return standin_give(error);
    }
    lock();
    allocation = find_start(ptr);
    if (allocation == NULL || allocation->device < 0 || allocation->is_freed ||
        allocation->is_reserved) {
        standin_complain("cudaFree of what is not (or no longer) allocated");
        unlock();
        return standin_give(cudaErrorInvalidValue);
    }
    streams_wait(allocation->device);
    memory_free(allocation);
    unlock();
    return standin_give(error);
}

cudaError_t cudaMallocAsync(void **ptr, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    void *made = NULL;

    STANDIN_ENTER(cudaMallocAsync);
    lock();
    stream = stream_resolve(stream);
    if (stream == NULL) {
        error = cudaErrorInvalidResourceHandle;
    } else if (bytes > 0) {
        made = device_alloc(stream->device, bytes);
        error = made == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
    }
    if (error == cudaSuccess) {
        *ptr = made;
        /* other streams must wait for the allocation */
        if (made != NULL) {
            stream_begin(stream);
            (void)order_use(stream, made, bytes, 1, "cudaMallocAsync");
        }
    }
    unlock();
    return standin_give(error);
}

typedef struct free_task {
    task_t task;
    void *ptr;
} free_task_t;

static void free_run(task_t *task)
{
    const free_task_t *job = (const free_task_t *)(const void *)task;

    lock();
    memory_free(find_start(job->ptr));
    unlock();
}

/* The bytes cannot be found any more from the call on. */
cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    allocation_t *allocation;
    free_task_t *job;

    STANDIN_ENTER(cudaFreeAsync);
    lock();
    stream = stream_resolve(stream);
    allocation = find_start(ptr);
    job = calloc(1, sizeof(*job));
    if (stream == NULL || allocation == NULL || allocation->is_freed ||
        job == NULL) {
        unlock();
        free(job);
        return standin_give(cudaErrorInvalidValue);
    }
    stream_begin(stream);
    order_free(stream, allocation, "cudaFreeAsync");
    allocation->is_freed = 1;
    job->task.run = free_run;
    job->task.is_control = 1;
    job->ptr = ptr;
    stream_queue(stream, &job->task);
    unlock();
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
    const size_t rounded = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    void *made = NULL;

    STANDIN_ENTER(cudaHostAlloc);
    if ((flags & ~(cudaHostAllocPortable | cudaHostAllocMapped)) != 0) {
        return standin_give(cudaErrorInvalidValue);
    }
    if (bytes == 0) {
        *ptr = NULL;
        return cudaSuccess;
    }
    if (rounded >= bytes) {
        made = aligned_alloc(PAGE_BYTES, rounded);
    }
    if (made == NULL) {
        return standin_give(cudaErrorMemoryAllocation);
    }
    lock();
    (void)record_new(&allocations[MAX_DEVICES], (uintptr_t)made, bytes, rounded,
                     -1);
    unlock();
    *ptr = made;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *ptr)
{
    const cudaError_t error = standin_enter(STANDIN_cudaFreeHost, NULL);
    allocation_t *allocation;

    if (ptr == NULL) {
        return standin_give(error);
    }
    lock();
    allocation = find_start(ptr);
    if (allocation == NULL || allocation->device >= 0) {
        standin_complain("cudaFreeHost of what is not pinned host memory");
        unlock();
        return standin_give(cudaErrorInvalidValue);
    }
    streams_wait(-1);
    memory_free(allocation);
    unlock();
    return standin_give(error);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    STANDIN_ENTER(cudaMemGetInfo);
    lock();
    *total_bytes = standin_memory();
    *free_bytes = *total_bytes - used_bytes[standin_device()];
    unlock();
    return cudaSuccess;
}
