/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's small ops on CUDA devices: each queues its work on the
 * device's stream. Results for the host are written to pinned memory in
 * place, and read when the ops have run. */
#include <cuda_runtime_api.h>

#include "base/log.h"
#include "engine/device_ops.h"
#include "engine/optimizer.h"
#include "layers/cuda/cuda_kernels.h"
#include "memory/cuda.h"
#include "scheduler/cuda.h"

static void *queue_of(void *stream)
{
    return ((const sl_cuda_stream_t *)stream)->queue;
}

static sl_status_t op_copy(const void *args, void *stream)
{
    const sl_copy_args_t *copy = args;

    return copy->bytes == 0 ? SL_OK
                            : sl_cuda_copy(copy->dst, copy->src, copy->bytes,
                                           queue_of(stream));
}

static sl_status_t op_zero(const void *args, void *stream)
{
    const sl_copy_args_t *zero = args;

    return zero->bytes == 0
               ? SL_OK
               : sl_cuda_zero(zero->dst, zero->bytes, queue_of(stream));
}

static sl_status_t op_sum(const void *args, void *stream)
{
    static const sl_cuda_type_t types[] = {[SL_DTYPE_F32] = SL_CUDA_F32,
                                           [SL_DTYPE_BF16] = SL_CUDA_BF16,
                                           [SL_DTYPE_F16] = SL_CUDA_F16};
    const sl_sum_args_t *sum = args;
    const sl_cuda_sum_t of = {.type = types[sum->dtype],
                              .a = sum->a,
                              .b = sum->b,
                              .out = sum->out,
                              .n = (int64_t)sum->n};

    return sum->dtype == SL_DTYPE_F64
               ? sl_cuda_sum_f64(sum->out, sum->a, sum->b, (int64_t)sum->n,
                                 queue_of(stream))
               : sl_cuda_sum(&of, queue_of(stream));
}

static sl_status_t op_update(const void *args, void *stream)
{
    static const sl_cuda_optimizer_kind_t kinds[] = {
        [SL_OPTIMIZER_SGD] = SL_CUDA_SGD,
        [SL_OPTIMIZER_ADAM] = SL_CUDA_ADAM,
        [SL_OPTIMIZER_ADAMW] = SL_CUDA_ADAMW,
    };
    const sl_optimizer_run_t *run = args;
    const sl_optimizer_params_t *params = run->params;
    const sl_cuda_optimizer_t update = {
        .kind = kinds[params->kind],
        .momentum = params->momentum,
        .nesterov = params->nesterov,
        .beta1 = params->beta1,
        .beta2 = params->beta2,
        .eps = params->eps,
        .weight_decay =
            run->has_decay || params->decay_all ? params->weight_decay : 0.0,
        .step = run->step,
        .lr = run->lr,
        .clip_factor = run->clip_factor == NULL ? 1.0 : *run->clip_factor,
        .n = (int64_t)run->n,
        .value = run->value,
        .grad = run->grad,
        .moments = {run->moments[0], run->moments[1]}};

    return sl_cuda_optimizer_update(&update, queue_of(stream));
}

static sl_status_t op_sum_squares(const void *args, void *stream)
{
    const sl_norm_run_t *run = args;
    const sl_cuda_sum_squares_t squares = {.values = run->values,
                                           .n = (int64_t)run->n,
                                           .sum = run->sum_p,
                                           .workspace = run->workspace};

    return sl_cuda_sum_squares(&squares, queue_of(stream));
}

static sl_status_t op_hash(const void *args, void *stream)
{
    const sl_hash_args_t *run = args;
    const sl_cuda_hash_t hash = {.words = run->data,
                                 .n = (int64_t)(run->bytes / sizeof(uint32_t)),
                                 .hash = run->hash_p,
                                 .workspace = run->workspace};

    return sl_cuda_hash(&hash, queue_of(stream));
}

static size_t workspace_bytes(size_t n)
{
    return sl_cuda_sum_squares_workspace_bytes((int64_t)n);
}

static sl_status_t op_host_alloc(const void *args, void *stream)
{
    const sl_host_alloc_args_t *alloc = args;

    (void)stream;
    *alloc->status_p =
        SL_CUDA(cudaHostAlloc(alloc->ptr_p, alloc->bytes,
                              cudaHostAllocPortable | cudaHostAllocMapped));
    return SL_OK;
}

static void host_release(void *ptr)
{
    const cudaError_t error = cudaFreeHost(ptr);

    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        sl_warn("giving back pinned memory: %s", cudaGetErrorString(error));
    }
}

extern const sl_device_kernels_t sl_device_kernels_cuda;
const sl_device_kernels_t sl_device_kernels_cuda = {
    .size = sizeof(sl_device_kernels_t),
    .copy = op_copy,
    .zero = op_zero,
    .sum = op_sum,
    .update = op_update,
    .sum_squares = op_sum_squares,
    .sum_squares_workspace_bytes = workspace_bytes,
    .hash = op_hash,
    .hash_workspace_bytes = SL_CUDA_HASH_WORKSPACE_BYTES,
    .host_alloc = op_host_alloc,
    .host_release = host_release,
};
