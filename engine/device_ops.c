/* SPDX-License-Identifier: Apache-2.0 */
/* Submitting the engine's small ops. */
#include "engine/device_ops.h"

#include <stdlib.h>
#include <string.h>

extern const sl_device_kernels_t sl_device_kernels_cpu;
#if SL_HAVE_CUDA
extern const sl_device_kernels_t sl_device_kernels_cuda;
#endif

/* Kinds that are not built have no devices. */
static const sl_device_kernels_t *const tables[SL_DEVICE_N_KINDS] = {
    [SL_DEVICE_KIND_CPU] = &sl_device_kernels_cpu,
#if SL_HAVE_CUDA
    [SL_DEVICE_KIND_CUDA] = &sl_device_kernels_cuda,
#endif
};

const sl_device_kernels_t *sl_device_kernels(sl_device_kind_t kind)
{
    SL_ASSERT(tables[kind] != NULL);
    return tables[kind];
}

sl_status_t sl_device_submit(sl_device_t *device, const sl_op_t *op)
{
    return sl_device_is_dry(device)
               ? SL_OK
               : sl_op_manager_submit(device->ops, op, NULL);
}

sl_status_t sl_device_drain(sl_device_t *device)
{
    return sl_device_is_dry(device) ? SL_OK : sl_op_manager_drain(device->ops);
}

void sl_device_section_begin(sl_device_t *device, uint32_t section)
{
    if (!sl_device_is_dry(device)) {
        sl_op_manager_section_begin(device->ops, section);
    }
}

void sl_device_section_end(sl_device_t *device)
{
    if (!sl_device_is_dry(device)) {
        sl_op_manager_section_end(device->ops);
    }
}

sl_status_t sl_device_copy(sl_device_t *device, void *dst, const void *src,
                           size_t bytes, sl_op_span_t *span)
{
    const sl_copy_args_t args = {.dst = dst, .src = src, .bytes = bytes};
    const sl_op_t op = {.fn = sl_device_kernels(device->kind)->copy,
                        .name_id = sl_op_manager_name(device->ops, "copy"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};

    return sl_device_submit(device, &op);
}

/* ---- loads ---- */

int sl_device_has_loads(const sl_device_t *device)
{
    return sl_device_kernels(device->kind)->host_alloc != NULL;
}

uint64_t sl_device_after(const sl_device_t *device)
{
    return sl_device_is_dry(device) ? SL_OP_AFTER_NOTHING
                                    : sl_op_manager_after(device->ops);
}

sl_status_t sl_device_load(sl_device_t *device, const sl_copy_args_t *args,
                           uint64_t after, uint64_t *ticket_p)
{
    const sl_op_t op = {.fn = sl_device_kernels(device->kind)->copy,
                        .name_id = sl_op_manager_name(device->ops, "load"),
                        .args = args,
                        .args_bytes = sizeof(*args),
                        .is_load = 1,
                        .after = after};

    return sl_device_is_dry(device)
               ? SL_OK
               : sl_op_manager_submit(device->ops, &op, ticket_p);
}

sl_status_t sl_device_sum(sl_device_t *device, const sl_sum_args_t *sum,
                          sl_op_span_t *span)
{
    sl_sum_args_t args = *sum;
    const sl_op_t op = {.fn = sl_device_kernels(device->kind)->sum,
                        .name_id = sl_op_manager_name(device->ops, "sum"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};

    args.n_threads = device->n_threads;
    return sl_device_submit(device, &op);
}

sl_status_t sl_device_add(sl_device_t *device, float *dst, const float *src,
                          size_t n, sl_op_span_t *span)
{
    const sl_sum_args_t sum = {
        .dtype = SL_DTYPE_F32, .out = dst, .a = dst, .b = src, .n = n};

    return sl_device_sum(device, &sum, span);
}

sl_status_t sl_device_hash(sl_device_t *device, const sl_hash_args_t *hash,
                           sl_op_span_t *span)
{
    sl_hash_args_t args = *hash;
    const sl_op_t op = {.fn = sl_device_kernels(device->kind)->hash,
                        .name_id = sl_op_manager_name(device->ops, "hash"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};

    args.n_threads = device->n_threads;
    return sl_device_submit(device, &op);
}

sl_status_t sl_device_zero(sl_device_t *device, void *dst, size_t bytes)
{
    const sl_copy_args_t args = {.dst = dst, .bytes = bytes};
    const sl_op_t op = {.fn = sl_device_kernels(device->kind)->zero,
                        .name_id = sl_op_manager_name(device->ops, "zero"),
                        .args = &args,
                        .args_bytes = sizeof(args)};

    return sl_device_submit(device, &op);
}

sl_status_t sl_device_copy_wait(sl_device_t *device, void *dst, const void *src,
                                size_t bytes)
{
    sl_status_t status;

    SL_TRY(status, sl_device_copy(device, dst, src, bytes, NULL), out);
    status = sl_device_drain(device);
out:
    return status;
}

/* ---- host memory ---- */

int sl_device_has_host_memory(const sl_device_t *device)
{
    return !sl_device_is_dry(device) &&
           sl_device_kernels(device->kind)->host_alloc != NULL;
}

/* On the device's thread, where the device is the current one. */
static sl_status_t alloc_by_op(sl_device_t *device, size_t bytes, void **ptr_p)
{
    sl_status_t made = SL_OK, status;
    const sl_host_alloc_args_t args = {
        .bytes = bytes, .ptr_p = ptr_p, .status_p = &made};
    const sl_op_t op = {.fn = sl_device_kernels(device->kind)->host_alloc,
                        .args = &args,
                        .args_bytes = sizeof(args)};

    SL_TRY(status, sl_device_submit(device, &op), out);
    SL_TRY(status, sl_device_drain(device), out);
    if (made < 0) {
        SL_FAIL(status, made, out,
                "%s: no pinned host memory of %zu bytes for what goes to and "
                "from the device",
                device->name, bytes);
    }
out:
    return status;
}

sl_status_t sl_device_host_alloc(sl_device_t *device, size_t bytes,
                                 void **ptr_p)
{
    void *ptr = NULL;
    sl_status_t status = SL_OK;

    if (sl_device_has_host_memory(device)) {
        status = alloc_by_op(device, bytes, &ptr);
        if (status < 0) {
            /* it may have been made before the manager was canceled */
            sl_device_host_release(device, ptr);
            return status;
        }
        memset(ptr, 0, bytes);
    } else {
        ptr = calloc(1, bytes);
    }
    if (ptr == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory of %zu bytes for what goes to and from "
                "the device",
                device->name, bytes);
    }
    *ptr_p = ptr;
out:
    return status;
}

void sl_device_host_release(const sl_device_t *device, void *ptr)
{
    if (ptr == NULL) {
        return;
    }
    if (sl_device_has_host_memory(device)) {
        sl_device_kernels(device->kind)->host_release(ptr);
    } else {
        free(ptr);
    }
}
