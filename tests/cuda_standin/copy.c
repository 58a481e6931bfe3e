/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills. Ordinary host memory is read before a copy's call
 * returns, and written before it returns, as the runtime does; pinned memory
 * is touched when the stream comes to it. */
#include <stdlib.h>
#include <string.h>

#include "standin_internal.h"

/* guarded by the lock */
static uint64_t n_blocking;
static uint64_t n_loads[MAX_DEVICES];

typedef struct copy_task {
    task_t task;
    void *to; /* as the CPU can use it */
    const void *from;
    void *staged; /* a copy of ordinary host memory */
    int value;    /* of a fill */
    size_t bytes;
    int loads; /* this device, from pinned memory; -1: none */
} copy_task_t;

static void copy_run(task_t *task)
{
    copy_task_t *copy = (copy_task_t *)(void *)task;

    memcpy(copy->to, copy->from, copy->bytes);
    if (copy->loads >= 0) {
        lock();
        n_loads[copy->loads]++;
        unlock();
    }
}

static void fill_run(task_t *task)
{
    copy_task_t *copy = (copy_task_t *)(void *)task;

    memset(copy->to, copy->value, copy->bytes);
}

static void copy_release(task_t *task)
{
    copy_task_t *copy = (copy_task_t *)(void *)task;

    free(copy->staged);
    free(copy);
}

/* Whether `kind` says what the pointers are. */
static int is_kind(enum cudaMemcpyKind kind, int to_device, int from_device)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    case cudaMemcpyDefault:
        return 1;
    }
    return 0;
}

/* The device that gets bytes of pinned memory; -1: it is no such copy. */
static int device_loaded(const void *to, const void *from)
{
    return memory_is_device(to) && memory_find(from) != NULL &&
                   !memory_is_device(from)
               ? memory_find(to)->device
               : -1;
}

static copy_task_t *copy_make(void *to, const void *from, size_t bytes,
                              int is_staged, int is_late)
{
    copy_task_t *copy = calloc(1, sizeof(*copy));

    if (copy == NULL) {
        abort();
    }
    copy->task.run = copy_run;
    copy->task.release = copy_release;
    copy->task.error = is_late ? standin_late_error() : cudaSuccess;
    copy->to = memory_alias(to);
    copy->from = memory_alias(from);
    copy->bytes = bytes;
    copy->loads = device_loaded(to, from);
    if (is_staged) {
        copy->staged = malloc(bytes);
        if (copy->staged == NULL) {
            abort();
        }
        memcpy(copy->staged, from, bytes);
        copy->from = copy->staged;
    }
    return copy;
}

/* Bytes known to the checker: of a device, or pinned. */
static int is_tracked(const void *ptr)
{
    return memory_is_device(ptr) || memory_find(ptr) != NULL;
}

static cudaError_t copy_queue(cudaStream_t asked, void *to, const void *from,
                              size_t bytes, int is_sync, int is_late,
                              const char *name)
{
    cudaStream_t stream = stream_resolve(asked);
    int is_to_tracked, is_from_tracked;

    if (stream == NULL) {
        return cudaErrorInvalidResourceHandle;
    }
    if (bytes == 0) {
        return cudaSuccess;
    }
    is_to_tracked = is_tracked(to);
    is_from_tracked = is_tracked(from);
    if ((is_sync || !is_to_tracked || !is_from_tracked) &&
        graph_refuses(stream)) {
        return cudaErrorStreamCaptureUnsupported;
    }
    stream_begin(stream);
    if ((is_from_tracked && !order_use(stream, from, bytes, 0, name)) ||
        (is_to_tracked && !order_use(stream, to, bytes, 1, name))) {
        return cudaErrorInvalidValue;
    }
    stream_queue(stream,
                 &copy_make(to, from, bytes, !is_from_tracked, is_late)->task);
    n_blocking += !is_to_tracked || !is_from_tracked;
    if (is_sync || !is_to_tracked) {
        stream_wait(stream);
        return standin_sticky(stream->device);
    }
    return cudaSuccess;
}

/* Memory that is mapped is copied between devices in place, or by
 * cudaMemcpyPeerAsync. */
static int is_reachable(const void *to, const void *from, size_t bytes)
{
    const allocation_t *a = memory_find(to), *b = memory_find(from);
    const uintptr_t to_at = (uintptr_t)to, from_at = (uintptr_t)from;

    return a == NULL || b == NULL || a->device < 0 || b->device < 0 ||
           a->device == b->device || (!a->is_reserved && !b->is_reserved) ||
           memory_is_usable(b->device, a, to_at, to_at + bytes) ||
           memory_is_usable(a->device, b, from_at, from_at + bytes);
}

static cudaError_t copy_call(cudaStream_t stream, void *to, const void *from,
                             size_t bytes, enum cudaMemcpyKind kind,
                             int is_sync, int is_late, const char *name)
{
    cudaError_t error;

    lock();
    if (!is_kind(kind, memory_is_device(to), memory_is_device(from))) {
        error = cudaErrorInvalidMemcpyDirection;
    } else if (!is_reachable(to, from, bytes)) {
        standin_complain("%s between devices of which none has access to the "
                         "other's mapped memory",
                         name);
        error = cudaErrorInvalidValue;
    } else {
        error = copy_queue(stream, to, from, bytes, is_sync, is_late, name);
    }
    unlock();
    return standin_give(error);
}

uint64_t standin_n_blocking_copies(void)
{
    uint64_t n;

    lock();
    n = n_blocking;
    unlock();
    return n;
}

uint64_t standin_n_loads(int device)
{
    uint64_t n;

    lock();
    n = n_loads[device];
    unlock();
    return n;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
                       enum cudaMemcpyKind kind)
{
    int is_late = 0;
    const cudaError_t error = standin_enter(STANDIN_cudaMemcpy, &is_late);

    return error != cudaSuccess ? standin_give(error)
                                : copy_call(NULL, to, from, bytes, kind, 1,
                                            is_late, "cudaMemcpy");
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    int is_late = 0;
    const cudaError_t error = standin_enter(STANDIN_cudaMemcpyAsync, &is_late);

    return error != cudaSuccess ? standin_give(error)
                                : copy_call(stream, to, from, bytes, kind, 0,
                                            is_late, "cudaMemcpyAsync");
}

/* The real one goes through the host where peers cannot reach each other, so
 * it asks for no peer access. */
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from,
                                int from_device, size_t bytes,
                                cudaStream_t stream)
{
    int is_late = 0;
    cudaError_t error = standin_enter(STANDIN_cudaMemcpyPeerAsync, &is_late);
    const allocation_t *a, *b;

    if (error != cudaSuccess) {
        return standin_give(error);
    }
    lock();
    a = memory_find(to);
    b = memory_find(from);
    if (a == NULL || b == NULL || a->device != to_device ||
        b->device != from_device) {
        error = cudaErrorInvalidValue;
    } else {
        error = copy_queue(stream, to, from, bytes, 0, is_late,
                           "cudaMemcpyPeerAsync");
    }
    unlock();
    return standin_give(error);
}

static cudaError_t fill_call(void *ptr, int value, size_t bytes,
                             cudaStream_t stream, int is_late, const char *name)
{
    copy_task_t *fill;
    cudaError_t error = cudaSuccess;

    lock();
    stream = stream_resolve(stream);
    if (stream == NULL) {
        error = cudaErrorInvalidResourceHandle;
    } else if (bytes > 0 && !is_tracked(ptr)) {
        error = cudaErrorInvalidValue;
    } else if (bytes > 0) {
        stream_begin(stream);
        if (!order_use(stream, ptr, bytes, 1, name)) {
            unlock();
            return standin_give(cudaErrorInvalidValue);
        }
        fill = copy_make(ptr, ptr, bytes, 0, is_late);
        fill->task.run = fill_run;
        fill->value = value;
        stream_queue(stream, &fill->task);
    }
    unlock();
    return standin_give(error);
}

cudaError_t cudaMemset(void *ptr, int value, size_t bytes)
{
    int is_late = 0;
    const cudaError_t error = standin_enter(STANDIN_cudaMemset, &is_late);

    return error != cudaSuccess
               ? standin_give(error)
               : fill_call(ptr, value, bytes, NULL, is_late, "cudaMemset");
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes,
                            cudaStream_t stream)
{
    int is_late = 0;
    const cudaError_t error = standin_enter(STANDIN_cudaMemsetAsync, &is_late);

    return error != cudaSuccess ? standin_give(error)
                                : fill_call(ptr, value, bytes, stream, is_late,
                                            "cudaMemsetAsync");
}
