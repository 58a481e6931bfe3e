/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device_internal.h
 * Kinds of devices, private to scheduler/: a row of device.c's table each.
 */
#ifndef SL_SCHEDULER_DEVICE_INTERNAL_H
#define SL_SCHEDULER_DEVICE_INTERNAL_H

#include "scheduler/scheduler.h"

enum {
    SL_MAX_DEVICES = 256
};

/** How the devices of one set divide the machine. */
typedef struct sl_device_plan {
    int n_devices;
    size_t host_bytes;
    /* CPU */
    size_t memory_bytes; /* of each */
    int n_threads;
    int stride; /* cores between the first ones of two devices; 0 = unbound */
    int *cores; /* owned, all that may be used */
    const int *first_cores; /* of this process, into `cores` */
    /* CUDA, of each device */
    int gpus[SL_MAX_DEVICES];
    size_t limits[SL_MAX_DEVICES];
    int is_exportable; /* memory that other processes can map */
} sl_device_plan_t;

typedef struct sl_device_kind_ops {
    const char *name; /**< as specs have it */
    sl_device_kind_t kind;
    const char *missing; /**< what the build lacks; NULL = it is built */

    /** Share out. `plan` has n_devices and host_bytes, the rest is 0. */
    sl_status_t (*plan)(const sl_device_params_t *params,
                        sl_device_plan_t *plan);
    /** Fill in a device that is all 0 but for `kind` and `index`. What it has
     *  got on failure is closed as usual. */
    sl_status_t (*open)(const sl_device_plan_t *plan, sl_device_t *device);
    /** (optional) Give `own` back, after the op manager and the memory. */
    void (*close)(sl_device_t *device);
} sl_device_kind_ops_t;

/** Open memory and op manager of a device; `mem` without name and quiesce. */
SL_NODISCARD sl_status_t sl_device_fill(sl_device_t *device,
                                        sl_op_manager_params_t *ops,
                                        sl_mem_params_t *mem);

/** Of `bytes` of a GPU's memory for one process: what is left to libraries,
 *  which allocate themselves. */
uint64_t sl_device_gpu_reserve(uint64_t bytes);

#if SL_HAVE_CUDA
sl_status_t sl_device_cuda_plan(const sl_device_params_t *params,
                                sl_device_plan_t *plan);
sl_status_t sl_device_cuda_open(const sl_device_plan_t *plan,
                                sl_device_t *device);
void sl_device_cuda_close(sl_device_t *device);
/** GPUs that CUDA shows; 0 also when it cannot tell. */
int sl_device_cuda_count(void);
uint64_t sl_device_cuda_hash(void);
#endif

#endif /* SL_SCHEDULER_DEVICE_INTERNAL_H */
