/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA devices: each has its own memory, streams and op manager on a GPU, or
 * on a part of one when there are more devices than GPUs. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "memory/cuda.h"
#include "scheduler/cuda.h"
#include "scheduler/device_internal.h"

enum {
    MAX_PER_GPU = 16
};

/* ---- which GPUs there are ---- */

static cudaError_t count_gpus(int *n_p)
{
    const cudaError_t error = cudaGetDeviceCount(n_p);

    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        *n_p = 0;
    }
    return error;
}

int sl_device_cuda_count(void)
{
    int n = 0;

    (void)count_gpus(&n);
    return n;
}

uint64_t sl_device_cuda_hash(void)
{
    struct cudaDeviceProp prop;
    const int n = sl_device_cuda_count();
    uint64_t hash = 0;
    int i;

    for (i = 0; i < n; i++) {
        if (cudaGetDeviceProperties(&prop, i) != cudaSuccess) {
            (void)cudaGetLastError();
            return 0;
        }
        hash = sl_hash(&prop.uuid, sizeof(prop.uuid), hash);
    }
    return hash;
}

/* Why there is none, and what to do. */
static void explain(cudaError_t error, char *text, size_t text_bytes)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int driver = 0;

    if (error == cudaErrorInsufficientDriver &&
        cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) {
        (void)snprintf(text, text_bytes,
                       "the driver knows CUDA up to %d.%d, this build needs "
                       "%d.%d: install a newer driver, or build with an older "
                       "toolkit",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
    } else if (error == cudaErrorInsufficientDriver) {
        (void)snprintf(text, text_bytes, "no NVIDIA driver is installed");
    } else if ((error == cudaErrorNoDevice || error == cudaSuccess) &&
               visible != NULL) {
        (void)snprintf(text, text_bytes,
                       "CUDA_VISIBLE_DEVICES is '%.64s' and hides them all",
                       visible);
    } else if (error == cudaErrorNoDevice || error == cudaSuccess) {
        (void)snprintf(text, text_bytes, "no GPU is found");
    } else {
        (void)snprintf(text, text_bytes, "%s (%s)", cudaGetErrorString(error),
                       cudaGetErrorName(error));
    }
}

/* ---- sharing them out ---- */

/* Equal runs of all devices, of all processes, share a GPU. */
static int gpu_of(int device, int n_total, int n_gpus)
{
    return n_total <= n_gpus ? device
                             : (int)((int64_t)device * n_gpus / n_total);
}

static sl_status_t assign(const sl_device_params_t *params, int n_gpus,
                          sl_device_plan_t *plan, int *n_sharing)
{
    const int n_total = plan->n_devices * params->n_gpu_ranks;
    const int first = plan->n_devices * params->gpu_rank;
    sl_status_t status = SL_OK;
    int i;

    if (n_total > n_gpus * MAX_PER_GPU) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "device '%.64s': %d devices in %d processes for %d GPUs; at "
                "most %d can share one",
                params->spec, n_total, params->n_gpu_ranks, n_gpus,
                MAX_PER_GPU);
    }
    for (i = 0; i < n_total; i++) {
        n_sharing[gpu_of(i, n_total, n_gpus)]++;
    }
    for (i = 0; i < plan->n_devices; i++) {
        plan->gpus[i] = gpu_of(first + i, n_total, n_gpus);
    }
out:
    return status;
}

/* Waits of the host sleep; and what is free. */
static sl_status_t look_at(int gpu, size_t *free_p)
{
    size_t total_bytes;
    sl_status_t status;

    SL_TRY(status, SL_CUDA(cudaSetDevice(gpu)), out);
    SL_TRY(status, SL_CUDA(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync)),
           out);
    status = SL_CUDA(cudaMemGetInfo(free_p, &total_bytes));
out:
    return status;
}

/* The part of one device, but for the reserve of its process. */
static sl_status_t limit_of(const sl_device_plan_t *plan, int gpu,
                            int n_sharing, size_t *limit_p)
{
    size_t free_bytes = 0;
    size_t part_bytes;
    sl_status_t status;
    int n_here = 0;
    int i;

    for (i = 0; i < plan->n_devices; i++) {
        n_here += plan->gpus[i] == gpu;
    }
    SL_TRY(status, look_at(gpu, &free_bytes), out);
    part_bytes = free_bytes / (size_t)n_sharing * (size_t)n_here;
    part_bytes -= (size_t)sl_device_gpu_reserve(part_bytes);
    *limit_p = part_bytes / (size_t)n_here;
out:
    return status;
}

/* Devices that share a GPU come one after another. */
static sl_status_t plan_gpus(const sl_device_params_t *params,
                             const int *n_sharing, sl_device_plan_t *plan)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < plan->n_devices; i++) {
        const int gpu = plan->gpus[i];

        if (i > 0 && plan->gpus[i - 1] == gpu) {
            plan->limits[i] = plan->limits[i - 1];
            continue;
        }
        SL_TRY(status, limit_of(plan, gpu, n_sharing[gpu], &plan->limits[i]),
               out);
    }
    for (i = 0; i < plan->n_devices && params->memory_bytes > 0; i++) {
        plan->limits[i] = params->memory_bytes;
    }
    plan->is_exportable = params->is_exportable;
out:
    return status;
}

sl_status_t sl_device_cuda_plan(const sl_device_params_t *params,
                                sl_device_plan_t *plan)
{
    int *n_sharing = NULL;
    char why[256];
    cudaError_t error;
    sl_status_t status;
    int before = 0;
    int n_gpus;

    if (params->n_gpu_ranks < 1 || params->gpu_rank < 0 ||
        params->gpu_rank >= params->n_gpu_ranks ||
        params->n_gpu_ranks > SL_MAX_DEVICES) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "device '%.64s': process %d of %d that share GPUs",
                params->spec, params->gpu_rank, params->n_gpu_ranks);
    }
    error = count_gpus(&n_gpus);
    if (n_gpus < 1) {
        explain(error, why, sizeof(why));
        SL_FAIL(status, SL_ERR_DEVICE, out, "device '%.64s': no GPU to use: %s",
                params->spec, why);
    }
    n_sharing = calloc((size_t)n_gpus, sizeof(*n_sharing));
    if (n_sharing == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for %d GPUs", n_gpus);
    }
    SL_TRY(status, assign(params, n_gpus, plan, n_sharing), out);
    SL_TRY(status, SL_CUDA(cudaGetDevice(&before)), out);
    status = plan_gpus(params, n_sharing, plan);
    if (cudaSetDevice(before) != cudaSuccess) {
        (void)cudaGetLastError(); /* the next call says so too */
    }
out:
    free(n_sharing);
    return status;
}

/* ---- one device ---- */

static int has_serial(const struct cudaDeviceProp *prop)
{
    static const char none[sizeof(prop->uuid.bytes)];

    return memcmp(prop->uuid.bytes, none, sizeof(none)) != 0;
}

/* By what all processes of the host know it: its serial number, else its
 * place on the bus. */
static sl_status_t name_gpu(sl_device_t *device)
{
    struct cudaDeviceProp prop;
    const unsigned char *id = (const unsigned char *)prop.uuid.bytes;
    sl_status_t status;

    SL_TRY(status, SL_CUDA(cudaGetDeviceProperties(&prop, device->gpu)), out);
    device->gpu_bytes = prop.totalGlobalMem;
    SL_TRY(status,
           SL_CUDA(cudaDeviceGetPCIBusId(
               device->bus_id, (int)sizeof(device->bus_id), device->gpu)),
           out);
    if (!has_serial(&prop)) {
        memcpy(device->gpu_id, device->bus_id, sizeof(device->gpu_id));
        goto out;
    }
    (void)snprintf(device->gpu_id, sizeof(device->gpu_id),
                   "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-"
                   "%02x%02x%02x%02x%02x%02x",
                   id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7],
                   id[8], id[9], id[10], id[11], id[12], id[13], id[14],
                   id[15]);
out:
    return status;
}

/* Let the other GPUs of the set use its memory, where they can. */
static sl_status_t share_memory(const sl_device_plan_t *plan, int gpu,
                                sl_mem_cuda_t *cuda)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < plan->n_devices; i++) {
        const int peer = plan->gpus[i];
        int can_access = 0;

        if (peer == gpu || (i > 0 && plan->gpus[i - 1] == peer)) {
            continue;
        }
        SL_TRY(status, SL_CUDA(cudaDeviceCanAccessPeer(&can_access, peer, gpu)),
               out);
        if (!can_access) {
            sl_info("cuda: GPU %d cannot use the memory of GPU %d; copies go "
                    "through the host",
                    peer, gpu);
            sl_mem_cuda_stay_whole(cuda);
            continue;
        }
        SL_TRY(status, sl_mem_cuda_share(cuda, peer), out);
    }
out:
    return status;
}

sl_status_t sl_device_cuda_open(const sl_device_plan_t *plan,
                                sl_device_t *device)
{
    sl_op_manager_params_t ops;
    sl_mem_params_t mem;
    sl_mem_cuda_t *cuda;
    sl_status_t status;

    (void)snprintf(device->name, sizeof(device->name), "cuda:%d",
                   device->index);
    device->gpu = plan->gpus[device->index];
    device->n_threads = 1;
    SL_TRY(status, name_gpu(device), out);
    SL_TRY(status, sl_mem_cuda_create(device->gpu, &cuda), out);
    device->own = cuda;
    if (plan->is_exportable) {
        sl_mem_cuda_stay_whole(cuda);
    }
    SL_TRY(status, share_memory(plan, device->gpu, cuda), out);
    device->is_exportable = !sl_mem_cuda_is_virtual(cuda);

    sl_op_manager_params_default(&ops);
    ops.backend = sl_op_backend_cuda();
    ops.device = device->gpu;
    sl_mem_params_default(&mem);
    mem.device = sl_mem_ops_cuda();
    mem.device_ctx = cuda;
    mem.host = sl_mem_ops_cuda_host();
    mem.host_ctx = cuda;
    mem.limit_bytes = plan->limits[device->index];
    mem.host_limit_bytes = plan->host_bytes;
    status = sl_device_fill(device, &ops, &mem);
out:
    return status;
}

void sl_device_cuda_close(sl_device_t *device)
{
    sl_mem_cuda_destroy(device->own);
}
