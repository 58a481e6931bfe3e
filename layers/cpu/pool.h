/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pool.h
 * The window pools' view of a tensor: planes of height x width points of
 * `lanes` channels each, so that plain (1 channel) and blocked (8 or 16) run
 * the same code.
 */
#ifndef SL_LAYERS_CPU_POOL_H
#define SL_LAYERS_CPU_POOL_H

#include <stdint.h>

#include "layers/image_internal.h"

SL_BEGIN_DECLS

/** Always inlined, so that the lane count given by the caller is a constant
 *  and its loops become vectors. */
#define SL_POOL_INLINE static inline __attribute__((always_inline))

enum {
    SL_POOL_MAX_LANES = 16
};

typedef struct sl_pool {
    int64_t planes; /**< batch * blocks of channels */
    int64_t lanes;  /**< 1, 8 or 16 */
    int64_t in_height, in_width, out_height, out_width;
    int64_t kernel, stride, pad;
    int count_include_pad;
} sl_pool_t;

static inline sl_pool_t sl_pool_of(const sl_layer_plan_t *plan)
{
    const sl_pool2d_attrs_t *attrs = plan->layer->attrs;
    const sl_tensor_desc_t *in = &plan->in[0];
    sl_pool_t pool;

    pool.lanes = in->layout == SL_LAYOUT_BLOCKED ? sl_channel_block() : 1;
    pool.planes = in->dims[0] * (sl_padded_channels(in) / pool.lanes);
    pool.in_height = in->dims[2];
    pool.in_width = in->dims[3];
    pool.out_height = plan->out.dims[2];
    pool.out_width = plan->out.dims[3];
    pool.kernel = attrs->kernel;
    pool.stride = attrs->stride == 0 ? attrs->kernel : attrs->stride;
    pool.pad = attrs->pad;
    pool.count_include_pad = attrs->count_include_pad;
    return pool;
}

/** A window's points inside the image along one side: [begin, end), where
 *  the window starts at `first`, which may be negative. */
typedef struct sl_pool_span {
    int64_t first, begin, end;
} sl_pool_span_t;

static inline sl_pool_span_t sl_pool_window(const sl_pool_t *pool, int64_t out,
                                            int64_t in_size)
{
    sl_pool_span_t span;

    span.first = out * pool->stride - pool->pad;
    span.begin = span.first < 0 ? 0 : span.first;
    span.end = span.first + pool->kernel;
    span.end = span.end > in_size ? in_size : span.end;
    return span;
}

/** Move on from the windows that contain point in - 1 (zeroed: none) to those
 *  that contain `in`: [begin, end), empty when none does. */
static inline void sl_pool_covering_next(const sl_pool_t *pool, int64_t in,
                                         int64_t out_size, sl_pool_span_t *span)
{
    while (span->begin * pool->stride + pool->kernel <= in + pool->pad) {
        span->begin++;
    }
    while (span->end < out_size && span->end * pool->stride <= in + pool->pad) {
        span->end++;
    }
}

SL_END_DECLS
#endif /* SL_LAYERS_CPU_POOL_H */
