/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnn.h
 * Convolution by cuDNN, planned once and run often, and how cuDNN's errors
 * become ours.
 *
 * Images have their channels last, weights are [out, height, width, in /
 * groups], unless asked for otherwise, all of one type; sums are in fp32. The
 * algorithms are chosen when the convolution is made, among those that give the
 * same bits at each run, by shape and device alone.
 *
 * cuDNN's fixed-function calls are used: each does just this product, for all
 * types, groups and dilations, and adds to what is there. Its graphs would
 * fuse more, but leave to run time which of them a device supports.
 */
#ifndef SL_LAYERS_CUDA_DNN_H
#define SL_LAYERS_CUDA_DNN_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layers/cuda/cuda_kernels.h"
#include "scheduler/cuda.h"

SL_BEGIN_DECLS

/**
 * Our status for what a call of cuDNN returned: SL_ERR_NO_MEMORY, logged at
 * debug, for a refused allocation, SL_ERR_DEVICE otherwise.
 *
 * @param error the cudnnStatus_t
 */
SL_API SL_NODISCARD sl_status_t sl_cuda_dnn_status(int error, const char *call,
                                                   const char *file, int line);

/** Status of one call, e.g. SL_TRY(status, SL_DNN(cudnnDestroy(h)), out). */
#define SL_DNN(call) sl_cuda_dnn_status((int)(call), #call, __FILE__, __LINE__)

/* as cudnn.h names it */
struct cudnnTensorStruct;

/** An image as cuDNN describes it. */
typedef struct sl_cuda_dnn_image {
    sl_cuda_type_t type;
    int is_last; /**< [batch, height, width, channels] in memory */
    int64_t batch, channels, height, width;
    const char *name; /**< of the layer, for messages */
} sl_cuda_dnn_image_t;

/** @param[out] desc_p  a cudnnTensorDescriptor_t; also on failure, when it is
 *                      not NULL, to be destroyed
 *  @return SL_OK, SL_ERR_UNSUPPORTED (cuDNN counts elements in int),
 *          SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_API SL_NODISCARD sl_status_t sl_cuda_dnn_image_create(
    const sl_cuda_dnn_image_t *image, struct cudnnTensorStruct **desc_p);

typedef enum sl_cuda_conv_pass {
    SL_CUDA_CONV_FORWARD,
    SL_CUDA_CONV_BACKWARD_DATA,
    SL_CUDA_CONV_BACKWARD_WEIGHTS,
    SL_CUDA_CONV_N_PASSES
} sl_cuda_conv_pass_t;

typedef struct sl_cuda_conv_params {
    sl_cuda_type_t type;
    int is_tf32; /**< fp32 products may be computed in TF32 */
    int64_t batch;
    int64_t in_channels, in_height, in_width;
    int64_t out_channels, out_height, out_width;
    int64_t kernel_height, kernel_width;
    int64_t stride, pad, dilation, groups;
    size_t workspace_bytes; /**< the most an algorithm may take, if there is a
                                 smaller one; 0: as much as the pass's images,
                                 or 64 MiB */
    int is_plain;     /**< instead images are [batch, channels, height, width]
                           and weights [out, in / groups, height, width] */
    int passes;       /**< bit p: pass p will be run */
    int is_optional;  /**< the caller has another way: when there is no
                           algorithm, that is logged at debug only */
    const char *name; /**< borrowed for the call: of the layer */
} sl_cuda_conv_params_t;

typedef struct sl_cuda_conv sl_cuda_conv_t;

/** Plan it, for the calling thread's current device.
 *  @return SL_OK, SL_ERR_UNSUPPORTED (no algorithm), SL_ERR_NO_MEMORY,
 *          SL_ERR_DEVICE */
SL_API SL_NODISCARD sl_status_t sl_cuda_conv_create(
    const sl_cuda_conv_params_t *params, sl_cuda_conv_t **conv_p);
/** NULL is allowed. */
SL_API void sl_cuda_conv_destroy(sl_cuda_conv_t *conv);

/** What a run of a planned pass must be given, aligned to 256 bytes. */
SL_API size_t sl_cuda_conv_workspace_bytes(const sl_cuda_conv_t *conv,
                                           sl_cuda_conv_pass_t pass);

/** Device addresses of one run. The pass overwrites its result: y, dx (as x)
 *  or dw (as w), or adds to it. */
typedef struct sl_cuda_conv_args {
    const void *x, *w, *y; /**< but the result */
    void *result;
    int is_added;
    void *workspace;
} sl_cuda_conv_args_t;

/** Queue a pass on the device.
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_API SL_NODISCARD sl_status_t
sl_cuda_conv_run(const sl_cuda_conv_t *conv, sl_cuda_conv_pass_t pass,
                 const sl_cuda_conv_args_t *args, sl_cuda_stream_t *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_DNN_H */
