/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sums as ops. */
#include "engine/device_ops.h"

#include <string.h>

typedef struct sl_copy_args {
    void *dst;
    const void *src;
    size_t bytes;
} sl_copy_args_t;

typedef struct sl_sum_args {
    float *out;
    const float *a;
    const float *b;
    size_t n;
    int n_threads;
} sl_sum_args_t;

static sl_status_t op_copy(const void *args, void *stream)
{
    const sl_copy_args_t *copy = args;

    (void)stream;
    memcpy(copy->dst, copy->src, copy->bytes);
    return SL_OK;
}

static sl_status_t op_sum(const void *args, void *stream)
{
    const sl_sum_args_t *sum = args;
    const ptrdiff_t n = (ptrdiff_t)sum->n;
    const int n_threads = sum->n_threads;
    float *out = sum->out;
    const float *a = sum->a, *b = sum->b;
    ptrdiff_t i;

    (void)stream;
#pragma omp parallel for simd num_threads(n_threads) if (n_threads > 1)        \
    schedule(static)
    for (i = 0; i < n; i++) {
        out[i] = a[i] + b[i];
    }
    return SL_OK;
}

typedef struct sl_sum_f64_args {
    double *out;
    const double *a;
    const double *b;
    size_t n;
} sl_sum_f64_args_t;

static sl_status_t op_sum_f64(const void *args, void *stream)
{
    const sl_sum_f64_args_t *sum = args;
    size_t i;

    (void)stream;
    for (i = 0; i < sum->n; i++) {
        sum->out[i] = sum->a[i] + sum->b[i];
    }
    return SL_OK;
}

static sl_status_t op_zero(const void *args, void *stream)
{
    const sl_copy_args_t *zero = args;

    (void)stream;
    memset(zero->dst, 0, zero->bytes);
    return SL_OK;
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

sl_status_t sl_device_copy(sl_device_t *device, void *dst, const void *src,
                           size_t bytes, sl_op_span_t *span)
{
    const sl_copy_args_t args = {.dst = dst, .src = src, .bytes = bytes};
    const sl_op_t op = {.fn = op_copy,
                        .name_id = sl_op_manager_name(device->ops, "copy"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};

    return sl_device_submit(device, &op);
}

sl_status_t sl_device_sum(sl_device_t *device, float *out, const float *a,
                          const float *b, size_t n, sl_op_span_t *span)
{
    const sl_sum_args_t args = {
        .out = out, .a = a, .b = b, .n = n, .n_threads = device->n_threads};
    const sl_op_t op = {.fn = op_sum,
                        .name_id = sl_op_manager_name(device->ops, "sum"),
                        .args = &args,
                        .args_bytes = sizeof(args),
                        .span = span};

    return sl_device_submit(device, &op);
}

sl_status_t sl_device_add(sl_device_t *device, float *dst, const float *src,
                          size_t n, sl_op_span_t *span)
{
    return sl_device_sum(device, dst, dst, src, n, span);
}

sl_status_t sl_device_sum_f64(sl_device_t *device, double *out, const double *a,
                              const double *b, size_t n)
{
    const sl_sum_f64_args_t args = {.out = out, .a = a, .b = b, .n = n};
    const sl_op_t op = {.fn = op_sum_f64,
                        .name_id = sl_op_manager_name(device->ops, "sum"),
                        .args = &args,
                        .args_bytes = sizeof(args)};

    return sl_device_submit(device, &op);
}

sl_status_t sl_device_zero(sl_device_t *device, void *dst, size_t bytes)
{
    const sl_copy_args_t args = {.dst = dst, .bytes = bytes};
    const sl_op_t op = {.fn = op_zero,
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
