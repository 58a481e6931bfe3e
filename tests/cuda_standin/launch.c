/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: arguments are checked against what was declared, then every
 * device address in them becomes one that the CPU can use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "standin_internal.h"

enum {
    MAX_DECLARED = 32,
    MAX_BLOCK_THREADS = 1024,
    MAX_GRID_YZ = 65535,
    MAX_SHARED_BYTES = 48 << 10
};

typedef struct declared {
    const char *ptr;
    size_t bytes;
    int is_write;
} declared_t;

/* for the calling thread's next launch */
static _Thread_local declared_t declared[MAX_DECLARED];
static _Thread_local int n_declared;
static _Thread_local const char *declared_name = "kernel";

typedef struct kernel_task {
    task_t task;
    standin_launch_t launch;
    int device;
    int is_reverse;
    const char *name;
} kernel_task_t;

void standin_access(const void *ptr, size_t bytes, int is_write)
{
    if (ptr == NULL || bytes == 0) {
        return;
    }
    if (n_declared == MAX_DECLARED) {
        abort();
    }
    declared[n_declared++] = (declared_t){ptr, bytes, is_write};
}

void standin_name(const char *name)
{
    declared_name = name;
}

static unsigned block_threads(uint3 dim)
{
    return dim.x * dim.y * dim.z;
}

/* Blocks one after another: their order must not matter. */
static void kernel_run(task_t *task)
{
    const kernel_task_t *kernel = (const kernel_task_t *)(const void *)task;
    const standin_launch_t *launch = &kernel->launch;
    const uint64_t n_blocks =
        (uint64_t)launch->grid_dim.x * launch->grid_dim.y * launch->grid_dim.z;
    cudaError_t error = cudaSuccess;
    uint64_t i;

    blockDim = launch->block_dim;
    gridDim = launch->grid_dim;
    for (i = 0; i < n_blocks && error == cudaSuccess; i++) {
        const uint64_t at = kernel->is_reverse ? n_blocks - 1 - i : i;

        blockIdx.x = (unsigned)(at % launch->grid_dim.x);
        blockIdx.y = (unsigned)(at / launch->grid_dim.x % launch->grid_dim.y);
        blockIdx.z = (unsigned)(at / launch->grid_dim.x / launch->grid_dim.y);
        error = block_run(block_threads(launch->block_dim), kernel->is_reverse,
                          kernel->name, launch->call, launch->data);
    }
    if (error != cudaSuccess) {
        lock();
        standin_raise(kernel->device, error);
        unlock();
    }
}

static void kernel_release(task_t *task)
{
    kernel_task_t *kernel = (kernel_task_t *)(void *)task;

    free(kernel->launch.data);
    free(kernel);
}

static int is_declared(const char *ptr)
{
    int i;

    for (i = 0; i < n_declared; i++) {
        if (ptr >= declared[i].ptr &&
            ptr < declared[i].ptr + declared[i].bytes) {
            return 1;
        }
    }
    return 0;
}

/* Every aligned word of the arguments that is a device address. */
static void translate(const standin_launch_t *launch, const char *name)
{
    char *data = launch->data;
    size_t i;

    for (i = 0; i + sizeof(void *) <= launch->data_bytes; i += sizeof(void *)) {
        char *ptr;

        memcpy(&ptr, data + i, sizeof(ptr));
        if (!memory_is_device(ptr) || memory_find(ptr) == NULL) {
            continue;
        }
        if (!is_declared(ptr)) {
            standin_complain("kernel %s gets a device address that its launch "
                             "does not declare",
                             name);
        }
        ptr = memory_alias(ptr);
        memcpy(data + i, &ptr, sizeof(ptr));
    }
}

/* @return whether all of it is allocated */
static int declare_all(cudaStream_t stream, const char *name)
{
    int is_good = 1;
    int i;

    for (i = 0; i < n_declared; i++) {
        const allocation_t *allocation = memory_find(declared[i].ptr);
        const uintptr_t at = (uintptr_t)declared[i].ptr;

        if (allocation != NULL &&
            !memory_is_usable(stream->device, allocation, at,
                              at + declared[i].bytes)) {
            standin_complain("kernel %s on device %d uses memory of device %d "
                             "without peer access",
                             name, stream->device, allocation->device);
        }
        is_good &= order_use(stream, declared[i].ptr, declared[i].bytes,
                             declared[i].is_write, name);
    }
    return is_good;
}

static cudaError_t check_shape(const standin_launch_t *launch)
{
    const uint3 grid = launch->grid_dim, block = launch->block_dim;

    return grid.x == 0 || grid.x > 0x7fffffffu || grid.y == 0 ||
                   grid.y > MAX_GRID_YZ || grid.z == 0 ||
                   grid.z > MAX_GRID_YZ || block_threads(block) == 0 ||
                   block_threads(block) > MAX_BLOCK_THREADS ||
                   launch->shared_bytes > MAX_SHARED_BYTES
               ? cudaErrorInvalidConfiguration
               : cudaSuccess;
}

/* The lock is held. @return the kernel queued, or why not */
static cudaError_t queue(const standin_launch_t *launch, const char *name,
                         int is_late)
{
    const cudaStream_t stream = stream_resolve(launch->stream);
    kernel_task_t *kernel;

    if (stream == NULL || stream->device != standin_device()) {
        return cudaErrorInvalidResourceHandle;
    }
    kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL) {
        abort();
    }
    stream_begin(stream);
    kernel->task.run = kernel_run;
    kernel->task.release = kernel_release;
    kernel->task.error = is_late ? standin_late_error() : cudaSuccess;
    if (!declare_all(stream, name)) {
        kernel->task.error = cudaErrorIllegalAddress;
    }
    translate(launch, name);
    kernel->launch = *launch;
    kernel->device = stream->device;
    kernel->is_reverse = standin_is_reverse();
    kernel->name = name;
    stream_queue(stream, &kernel->task);
    return cudaSuccess;
}

cudaError_t standin_launch(const standin_launch_t *launch)
{
    int is_late = 0;
    cudaError_t error = standin_enter(STANDIN_cudaLaunchKernelEx, &is_late);

    if (error == cudaSuccess) {
        error = check_shape(launch);
    }
    if (error == cudaSuccess) {
        lock();
        error = queue(launch, declared_name, is_late);
        unlock();
    }
    if (error != cudaSuccess) {
        free(launch->data);
    }
    n_declared = 0;
    declared_name = "kernel";
    return standin_give(error);
}
