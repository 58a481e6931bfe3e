/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device_ops.h
 * The engine's own small ops: copies and sums on a device, as ops like all
 * others, so that they are ordered, timed and charged.
 */
#ifndef SL_ENGINE_DEVICE_OPS_H
#define SL_ENGINE_DEVICE_OPS_H

#include <stddef.h>

#include "base/status.h"
#include "scheduler/scheduler.h"

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

/** Queue dst[0..bytes) = src[0..bytes). Either side may be host memory or
 *  another device's; both must stay valid until the op has run. */
SL_NODISCARD sl_status_t sl_device_copy(sl_device_t *device, void *dst,
                                        const void *src, size_t bytes,
                                        sl_op_span_t *span);

/** Queue dst[i] += src[i] for n floats. */
SL_NODISCARD sl_status_t sl_device_add(sl_device_t *device, float *dst,
                                       const float *src, size_t n,
                                       sl_op_span_t *span);

/** Queue out[i] = a[i] + b[i] for n floats. */
SL_NODISCARD sl_status_t sl_device_sum(sl_device_t *device, float *out,
                                       const float *a, const float *b, size_t n,
                                       sl_op_span_t *span);

/** Queue dst[i] = a[i] + b[i] for n doubles. */
SL_NODISCARD sl_status_t sl_device_sum_f64(sl_device_t *device, double *out,
                                           const double *a, const double *b,
                                           size_t n);

/** Queue dst[0..bytes) = 0. */
SL_NODISCARD sl_status_t sl_device_zero(sl_device_t *device, void *dst,
                                        size_t bytes);

/** Copy between host memory and a device's block and wait for it. */
SL_NODISCARD sl_status_t sl_device_copy_wait(sl_device_t *device, void *dst,
                                             const void *src, size_t bytes);

#endif /* SL_ENGINE_DEVICE_OPS_H */
