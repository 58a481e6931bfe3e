/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device_ops.h
 * The engine's own small ops: copies, sums and updates on a device, as ops
 * like all others, so that they are ordered, timed and charged. Each kind of
 * device has a table of them.
 */
#ifndef SL_ENGINE_DEVICE_OPS_H
#define SL_ENGINE_DEVICE_OPS_H

#include <stddef.h>

#include "base/status.h"
#include "layers/tensor.h"
#include "scheduler/scheduler.h"

/** Args of copy and zero. */
typedef struct sl_copy_args {
    void *dst;
    const void *src; /**< of a copy */
    size_t bytes;
} sl_copy_args_t;

/** Args of sum: out[i] = a[i] + b[i]; out may be a or b. */
typedef struct sl_sum_args {
    sl_dtype_t dtype;
    void *out;
    const void *a;
    const void *b;
    size_t n; /**< elements */
    int n_threads;
} sl_sum_args_t;

/** Args of hash: *hash_p becomes a hash of what it was and of the data. */
typedef struct sl_hash_args {
    const void *data;
    size_t bytes; /**< whole words of 4 bytes */
    int n_threads;
    uint64_t *hash_p; /**< of the host's memory */
    void *workspace;  /**< see sl_device_kernels_t; unused on CPU */
} sl_hash_args_t;

/** Args of host_alloc. Its failure is no failure of the device. */
typedef struct sl_host_alloc_args {
    size_t bytes;
    void **ptr_p;
    sl_status_t *status_p;
} sl_host_alloc_args_t;

/** The ops of one kind of device: functions of an sl_op_t. */
typedef struct sl_device_kernels {
    size_t size; /**< sizeof(sl_device_kernels_t) when compiled */
    /** (sl_copy_args_t) Either side may be host memory or another device's. */
    sl_op_fn copy;
    sl_op_fn zero;        /**< (sl_copy_args_t) */
    sl_op_fn sum;         /**< (sl_sum_args_t) */
    sl_op_fn update;      /**< (sl_optimizer_run_t) */
    sl_op_fn sum_squares; /**< (sl_norm_run_t) */
    /** (optional) Device memory that sum_squares of n floats needs; default:
     *  none. */
    size_t (*sum_squares_workspace_bytes)(size_t n);
    /** (sl_hash_args_t) The same bits for every number of threads; other kinds
     *  of devices have another hash. */
    sl_op_fn hash;
    size_t hash_workspace_bytes; /**< device memory that hash needs; 0: none */
    /** (optional, both or none) Host memory that copies take in stream order
     *  without holding up who queues them, and that the other ops can write;
     *  default: any host memory is so. (sl_host_alloc_args_t) */
    sl_op_fn host_alloc;
    void (*host_release)(void *ptr);
    /** Every device of the kind can use the memory of every other in place. */
    int is_one_memory;
} sl_device_kernels_t;

const sl_device_kernels_t *sl_device_kernels(sl_device_kind_t kind);

/** A dry device has memory but no op manager: its ops are dropped. That is
 *  how a step is rehearsed. */
static inline int sl_device_is_dry(const sl_device_t *device)
{
    return device->ops == NULL;
}

/** Submit an op to the device's manager. */
SL_NODISCARD sl_status_t sl_device_submit(sl_device_t *device,
                                          const sl_op_t *op);
/** Wait until everything submitted so far has run. */
SL_NODISCARD sl_status_t sl_device_drain(sl_device_t *device);

/** sl_op_manager_section_begin() and _end(); nothing on a dry device. */
void sl_device_section_begin(sl_device_t *device, uint32_t section);
void sl_device_section_end(sl_device_t *device);

/** Queue dst[0..bytes) = src[0..bytes). Either side may be host memory or
 *  another device's; both must stay valid until the op has run. Copies of
 *  ordinary host memory may hold the device's thread up. */
SL_NODISCARD sl_status_t sl_device_copy(sl_device_t *device, void *dst,
                                        const void *src, size_t bytes,
                                        sl_op_span_t *span);
/** Whether the device, or the one that a dry device stands for, copies from
 *  the host beside its ops. */
int sl_device_has_loads(const sl_device_t *device);
/** sl_op_manager_after(): for a load into memory that was just taken. */
uint64_t sl_device_after(const sl_device_t *device);
/** Queue a load (sl_op_t.is_load): a copy of memory of sl_device_host_alloc().
 *  @param[out] ticket_p for sl_op_manager_wait(): it is free again */
SL_NODISCARD sl_status_t sl_device_load(sl_device_t *device,
                                        const sl_copy_args_t *args,
                                        uint64_t after, uint64_t *ticket_p);

/** Queue dst[i] += src[i] for n floats. */
SL_NODISCARD sl_status_t sl_device_add(sl_device_t *device, float *dst,
                                       const float *src, size_t n,
                                       sl_op_span_t *span);

/** Queue a sum; the number of threads is filled in. */
SL_NODISCARD sl_status_t sl_device_sum(sl_device_t *device,
                                       const sl_sum_args_t *sum,
                                       sl_op_span_t *span);

/** Queue a hash; the number of threads is filled in. */
SL_NODISCARD sl_status_t sl_device_hash(sl_device_t *device,
                                        const sl_hash_args_t *hash,
                                        sl_op_span_t *span);

/** Queue dst[0..bytes) = 0. */
SL_NODISCARD sl_status_t sl_device_zero(sl_device_t *device, void *dst,
                                        size_t bytes);

/** Copy between host memory and a device's block and wait for it. */
SL_NODISCARD sl_status_t sl_device_copy_wait(sl_device_t *device, void *dst,
                                             const void *src, size_t bytes);

/** Whether sl_device_host_alloc() gives other memory than malloc(). */
int sl_device_has_host_memory(const sl_device_t *device);
/** Host memory, zeroed, that all devices of the kind can use at once: see
 *  sl_device_kernels_t. For results and inputs; not on the hot path.
 *  @return SL_OK, SL_ERR_NO_MEMORY, the manager's failure */
SL_NODISCARD sl_status_t sl_device_host_alloc(sl_device_t *device, size_t bytes,
                                              void **ptr_p);
/** No op uses it any more. NULL is allowed. */
void sl_device_host_release(const sl_device_t *device, void *ptr);

#endif /* SL_ENGINE_DEVICE_OPS_H */
