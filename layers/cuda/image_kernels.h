/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file image_kernels.h
 * Our own kernels for images. As in cuda_kernels.h: work is queued on
 * `stream`, sums have a fixed order, a backward function overwrites din (+
 * prev when it is not NULL, which may be din), and all return SL_OK or
 * SL_ERR_DEVICE.
 *
 * An image is [batch, channels, pixels] in memory, or with is_last
 * [batch, pixels, channels] (SL_LAYOUT_CHANNELS_LAST).
 */
#ifndef SL_LAYERS_CUDA_IMAGE_KERNELS_H
#define SL_LAYERS_CUDA_IMAGE_KERNELS_H

#include "layers/cuda/cuda_kernels.h"

SL_BEGIN_DECLS

/* ---- copies between layouts and types, bias ---- */

/** One side of a copy: channels [first, first + n) of `channels`. */
typedef struct sl_cuda_side {
    sl_cuda_type_t type;
    int is_last;
    int64_t channels, first;
} sl_cuda_side_t;

/** to = from (+ prev), for n channels; prev lies and is stored as `to`. */
typedef struct sl_cuda_move {
    int64_t batch, n_channels, pixels;
    sl_cuda_side_t from_side, to_side;
    const void *from;
    const void *prev;
    void *to;
} sl_cuda_move_t;

SL_API SL_NODISCARD sl_status_t sl_cuda_move(const sl_cuda_move_t *args,
                                             void *stream);

/** out[row, c] += bias[c]; channels are last. */
typedef struct sl_cuda_bias {
    sl_cuda_type_t type;
    int64_t rows, channels;
    const float *bias;
    void *out; /**< forward */
    const void *dout;
    float *dbias;
    int is_first;    /**< overwrite dbias */
    void *workspace; /**< of backward */
} sl_cuda_bias_t;

SL_API size_t sl_cuda_bias_workspace_bytes(int64_t rows, int64_t channels);
SL_API SL_NODISCARD sl_status_t sl_cuda_bias_add(const sl_cuda_bias_t *args,
                                                 void *stream);
/** dbias = the sums of dout over the rows (+ dbias). */
SL_API SL_NODISCARD sl_status_t
sl_cuda_bias_gradient(const sl_cuda_bias_t *args, void *stream);

/* ---- pools ---- */

typedef struct sl_cuda_pool {
    sl_cuda_type_t type;
    int is_last;
    int64_t batch, channels;
    int64_t in_height, in_width, out_height, out_width;
    int64_t kernel, stride, pad;
    int count_include_pad; /**< average */
    const void *in;
    void *out;
    uint8_t *place; /**< max: of the winner in its window, row by row; laid
                         out as out. Forward may have NULL */
    const void *dout;
    const void *prev;
    void *din;
} sl_cuda_pool_t;

/** The first largest value, or the first NaN; padding never wins. */
SL_API SL_NODISCARD sl_status_t
sl_cuda_max_pool_forward(const sl_cuda_pool_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_max_pool_backward(const sl_cuda_pool_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_avg_pool_forward(const sl_cuda_pool_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_avg_pool_backward(const sl_cuda_pool_t *args, void *stream);

/** The mean over the in_height x in_width pixels; out and dout are [batch,
 *  channels]. */
SL_API SL_NODISCARD sl_status_t
sl_cuda_global_pool_forward(const sl_cuda_pool_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_global_pool_backward(const sl_cuda_pool_t *args, void *stream);

/** Each pixel kernel x kernel times; in_height and in_width are set. */
SL_API SL_NODISCARD sl_status_t
sl_cuda_upsample_forward(const sl_cuda_pool_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_upsample_backward(const sl_cuda_pool_t *args, void *stream);

/* ---- batch norm ---- */

/** y = relu((x - mean) / deviation * weight + bias + skip). */
typedef struct sl_cuda_batch_norm {
    sl_cuda_type_t type;
    int is_last;
    int64_t batch, channels, pixels;
    double eps, momentum;
    int is_relu;
    int is_training; /**< 0: forward takes the running statistics */
    const void *in;
    const void *skip; /**< NULL: none */
    void *out;        /**< backward reads it when is_relu and has_skip */
    int has_skip;     /**< backward: there was one */
    const float *weight, *bias;
    float *running_mean, *running_var;
    double *sums;         /**< [3, channels]: count, sum, sum of squares of
                               the mini-batch; NULL: not wanted */
    int is_first_forward; /**< overwrite sums */
    float *saved; /**< [2, channels]: mean, 1 / deviation; forward may have
                       NULL */
    const void *dout;
    const void *prev[2];
    void *din[2]; /**< of x and skip */
    float *dweight, *dbias;
    int is_first_backward; /**< overwrite dweight and dbias */
    void *workspace;
} sl_cuda_batch_norm_t;

/** Reads batch, channels, pixels, is_last. */
SL_API size_t
sl_cuda_batch_norm_workspace_bytes(const sl_cuda_batch_norm_t *args);
SL_API SL_NODISCARD sl_status_t
sl_cuda_batch_norm_forward(const sl_cuda_batch_norm_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_batch_norm_backward(const sl_cuda_batch_norm_t *args, void *stream);
/** Add a micro-batch of this mean and unbiased variance, [channels] each, to
 *  `sums`. Reads batch, channels, pixels, sums, is_first_forward. */
SL_API SL_NODISCARD sl_status_t sl_cuda_batch_norm_add_moments(
    const sl_cuda_batch_norm_t *args, const float *mean, const float *var,
    void *stream);
/** The running statistics move by the mini-batch's, of `sums`. */
SL_API SL_NODISCARD sl_status_t
sl_cuda_batch_norm_finish(const sl_cuda_batch_norm_t *args, void *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_IMAGE_KERNELS_H */
