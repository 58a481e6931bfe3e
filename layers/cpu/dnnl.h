/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnnl.h
 * oneDNN's convolutions and layout changes as ready ops.
 *
 * oneDNN's own types stay in dnnl_internal.h, the differences between its
 * versions in dnnl_compat.h. An op is made once in a kernel plan and run many
 * times by one thread at a time; its scratch memory comes from the caller.
 */
#ifndef SL_LAYERS_CPU_DNNL_H
#define SL_LAYERS_CPU_DNNL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layers/tensor.h"

SL_BEGIN_DECLS

/** How a tensor lies in memory, as oneDNN describes it (opaque). */
typedef struct sl_dnnl_format sl_dnnl_format_t;
/** Something ready to run (opaque). */
typedef struct sl_dnnl_op sl_dnnl_op_t;

typedef enum sl_dnnl_pass {
    SL_DNNL_PASS_FORWARD,         /**< y = conv(x, weights) + bias */
    SL_DNNL_PASS_BACKWARD_DATA,   /**< x = its gradient from y's */
    SL_DNNL_PASS_BACKWARD_WEIGHTS /**< weights, bias = theirs from y's, x */
} sl_dnnl_pass_t;

enum {
    SL_DNNL_N_PASSES = 3
};

/** A 2-d convolution. */
typedef struct sl_dnnl_conv {
    int64_t batch;
    int64_t in_channels, in_height, in_width;
    int64_t out_channels, out_height, out_width;
    int64_t kernel_height, kernel_width;
    int64_t stride, pad, dilation, groups; /**< dilation 1: none */
    int has_bias;
    sl_layout_t in_layout, out_layout;
} sl_dnnl_conv_t;

/** Addresses for one run. A layout change goes from `x` to `y`. */
typedef struct sl_dnnl_args {
    const void *x, *weights, *bias, *y; /**< written by the op if outputs */
    void *scratch; /**< sl_dnnl_op_scratch_bytes(), aligned to 64 */
} sl_dnnl_args_t;

/** Channels in a block of the layout that oneDNN's kernels on this processor
 *  want: 16 or 8. DNNL_MAX_CPU_ISA lowers it as it lowers the kernels. */
int64_t sl_dnnl_channel_block(void);

/** The convolution's weights in plain order, and its input or output.
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_dnnl_format_weights(const sl_dnnl_conv_t *conv,
                                                sl_dnnl_format_t **format_p);
SL_NODISCARD sl_status_t sl_dnnl_format_image(const sl_tensor_desc_t *desc,
                                              sl_dnnl_format_t **format_p);
/** The layout of the weights that the forward pass likes best on one thread;
 *  no code is made.
 *  @return SL_OK; SL_ERR_UNSUPPORTED (expected) when there is no fast code */
SL_NODISCARD sl_status_t sl_dnnl_format_best(const sl_dnnl_conv_t *conv,
                                             sl_dnnl_format_t **format_p);
void sl_dnnl_format_destroy(sl_dnnl_format_t *format);
size_t sl_dnnl_format_bytes(const sl_dnnl_format_t *format);
int sl_dnnl_format_is_equal(const sl_dnnl_format_t *a,
                            const sl_dnnl_format_t *b);

/**
 * Make one pass of a convolution ready.
 *
 * @param[in] weights     borrowed; layout of the weights (of their gradient),
 *                        or NULL: the one that oneDNN likes best
 * @param[in] n_threads   of the later runs
 * @param[in] allows_slow whether oneDNN's reference code will do
 * @return SL_OK; SL_ERR_UNSUPPORTED (expected) when there is no (fast) code
 *         for these layouts; SL_ERR_NO_MEMORY, SL_ERR_DEVICE
 */
SL_NODISCARD sl_status_t sl_dnnl_conv_create(const sl_dnnl_conv_t *conv,
                                             sl_dnnl_pass_t pass,
                                             const sl_dnnl_format_t *weights,
                                             int n_threads, int allows_slow,
                                             sl_dnnl_op_t **op_p);

/** Make a layout change ready. Channel padding of the result is zeroed. */
SL_NODISCARD sl_status_t sl_dnnl_reorder_create(const sl_dnnl_format_t *from,
                                                const sl_dnnl_format_t *to,
                                                int n_threads,
                                                sl_dnnl_op_t **op_p);
void sl_dnnl_op_destroy(sl_dnnl_op_t *op);

size_t sl_dnnl_op_scratch_bytes(const sl_dnnl_op_t *op);
/** Layout of a convolution's weights; borrowed from the op. */
const sl_dnnl_format_t *sl_dnnl_op_weights(const sl_dnnl_op_t *op);
/** oneDNN's name of the code it chose, for logs and benchmarks. */
const char *sl_dnnl_op_code(const sl_dnnl_op_t *op);

/** Run and wait. @return SL_OK, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_dnnl_op_run(const sl_dnnl_op_t *op,
                                        const sl_dnnl_args_t *args);

SL_END_DECLS
#endif /* SL_LAYERS_CPU_DNNL_H */
