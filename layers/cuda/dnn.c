/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN: errors, descriptions of images, convolution. */
#include "layers/cuda/dnn.h"

#include <cudnn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "layers/cuda/handles.h"
#include "memory/cuda.h"

enum {
    MAX_CANDIDATES = 32,
    DETAIL_BYTES = 256,
    TEXT_BYTES = 256
};

/* Workspace that an algorithm may take: as much as the pass's own images, and
 * at least this, or what the job asks for. By that, and not by the limit that
 * the device's memory has at the moment: another algorithm has other bits, and
 * those of a job must not depend on a limit that moves at any boundary. A
 * workspace is a block as all others: the memory plan counts it, and under a
 * limit that has no room for it, it lies on the host, or the step is refused.
 */
#define WORKSPACE_BYTES ((size_t)64 << 20)

typedef struct pass {
    cudnnConvolutionDescriptor_t desc; /* NULL: not planned */
    int algo;
    size_t workspace_bytes;
} pass_t;

struct sl_cuda_conv {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    pass_t passes[SL_CUDA_CONV_N_PASSES];
};

/* An algorithm to choose from. */
typedef struct candidate {
    int algo;
    cudnnMathType_t math;
} candidate_t;

typedef struct candidates {
    candidate_t list[MAX_CANDIDATES];
    int n;
} candidates_t;

sl_status_t sl_cuda_dnn_status(int error, const char *call, const char *file,
                               int line)
{
    const cudnnStatus_t code = (cudnnStatus_t)error;
    const int is_refusal =
        code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
        code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    char detail[DETAIL_BYTES] = "", text[2 * DETAIL_BYTES];

    if (code == CUDNN_STATUS_SUCCESS) {
        return SL_OK;
    }
    cudnnGetLastErrorString(detail, sizeof(detail));
    (void)snprintf(text, sizeof(text), "%s%s%s", cudnnGetErrorString(code),
                   detail[0] == '\0' ? "" : ": ", detail);
    sl_cuda_fail_record(is_refusal, file, line, call, text);
    return is_refusal ? SL_ERR_NO_MEMORY : SL_ERR_DEVICE;
}

/* ---- descriptions ---- */

static cudnnDataType_t data_type(sl_cuda_type_t type)
{
    return type == SL_CUDA_BF16  ? CUDNN_DATA_BFLOAT16
           : type == SL_CUDA_F16 ? CUDNN_DATA_HALF
                                 : CUDNN_DATA_FLOAT;
}

/* What algorithms may compute with, before one is chosen. */
static cudnnMathType_t math_type(const sl_cuda_conv_params_t *p)
{
    return p->type != SL_CUDA_F32 ? CUDNN_TENSOR_OP_MATH
           : p->is_tf32           ? CUDNN_DEFAULT_MATH
                                  : CUDNN_FMA_MATH;
}

static cudnnTensorFormat_t format_of(const sl_cuda_conv_params_t *p)
{
    return p->is_plain ? CUDNN_TENSOR_NCHW : CUDNN_TENSOR_NHWC;
}

static double image_elements(const sl_cuda_conv_params_t *p, int is_out)
{
    return (double)p->batch *
           (is_out ? (double)p->out_channels * (double)p->out_height *
                         (double)p->out_width
                   : (double)p->in_channels * (double)p->in_height *
                         (double)p->in_width);
}

/* cuDNN counts in int. */
static sl_status_t check_sizes(const sl_cuda_conv_params_t *p)
{
    const double weights = (double)p->out_channels *
                           (double)(p->in_channels / p->groups) *
                           (double)p->kernel_height * (double)p->kernel_width;
    sl_status_t status;

    if (image_elements(p, 0) > (double)INT_MAX ||
        image_elements(p, 1) > (double)INT_MAX || weights > (double)INT_MAX) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "layer %s: a tensor of more than 2^31 - 1 elements (input "
                "%.0f, output %.0f, weights %.0f) is too large for cuDNN; use "
                "smaller micro-batches",
                p->name, image_elements(p, 0), image_elements(p, 1), weights);
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_cuda_dnn_image_create(const sl_cuda_dnn_image_t *image,
                                     cudnnTensorDescriptor_t *desc_p)
{
    const double n = (double)image->batch * (double)image->channels *
                     (double)image->height * (double)image->width;
    sl_status_t status;

    if (n > (double)INT_MAX) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "layer %s: a tensor of more than 2^31 - 1 elements (%.0f) is "
                "too large for cuDNN; use smaller micro-batches",
                image->name, n);
    }
    SL_TRY(status, SL_DNN(cudnnCreateTensorDescriptor(desc_p)), out);
    status = SL_DNN(cudnnSetTensor4dDescriptor(
        *desc_p, image->is_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
        data_type(image->type), (int)image->batch, (int)image->channels,
        (int)image->height, (int)image->width));
out:
    return status;
}

static sl_status_t make_tensor(const sl_cuda_conv_params_t *p, int is_out,
                               cudnnTensorDescriptor_t *desc_p)
{
    const sl_cuda_dnn_image_t image = {
        .type = p->type,
        .is_last = !p->is_plain,
        .batch = p->batch,
        .channels = is_out ? p->out_channels : p->in_channels,
        .height = is_out ? p->out_height : p->in_height,
        .width = is_out ? p->out_width : p->in_width,
        .name = p->name};

    return sl_cuda_dnn_image_create(&image, desc_p);
}

static sl_status_t make_filter(const sl_cuda_conv_params_t *p,
                               cudnnFilterDescriptor_t *desc_p)
{
    sl_status_t status;

    SL_TRY(status, SL_DNN(cudnnCreateFilterDescriptor(desc_p)), out);
    status = SL_DNN(cudnnSetFilter4dDescriptor(
        *desc_p, data_type(p->type), format_of(p), (int)p->out_channels,
        (int)(p->in_channels / p->groups), (int)p->kernel_height,
        (int)p->kernel_width));
out:
    return status;
}

/* One for each pass, as its algorithm decides on the math type. */
static sl_status_t make_conv(const sl_cuda_conv_params_t *p,
                             cudnnConvolutionDescriptor_t *desc_p)
{
    sl_status_t status;

    SL_TRY(status, SL_DNN(cudnnCreateConvolutionDescriptor(desc_p)), out);
    SL_TRY(status,
           SL_DNN(cudnnSetConvolution2dDescriptor(
               *desc_p, (int)p->pad, (int)p->pad, (int)p->stride,
               (int)p->stride, (int)p->dilation, (int)p->dilation,
               CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT)),
           out);
    SL_TRY(status,
           SL_DNN(cudnnSetConvolutionGroupCount(*desc_p, (int)p->groups)), out);
    status = SL_DNN(cudnnSetConvolutionMathType(*desc_p, math_type(p)));
out:
    return status;
}

/* ---- the choice of an algorithm ---- */

/* One that may be taken, if it succeeds and gives the same bits at each run;
 * exact fp32 stays exact. */
static void add_candidate(candidates_t *c, const sl_cuda_conv_params_t *p,
                          int algo, cudnnStatus_t code,
                          cudnnDeterminism_t determinism, cudnnMathType_t math)
{
    if (code != CUDNN_STATUS_SUCCESS || determinism != CUDNN_DETERMINISTIC ||
        c->n == MAX_CANDIDATES) {
        return;
    }
    if (math_type(p) == CUDNN_FMA_MATH) {
        if (math == CUDNN_TENSOR_OP_MATH ||
            math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) {
            return;
        }
        math = CUDNN_FMA_MATH;
    }
    c->list[c->n].algo = algo;
    c->list[c->n].math = math;
    c->n++;
}

/* Those that cuDNN thinks are fastest come first. */
static cudnnStatus_t ask_forward(cudnnHandle_t handle,
                                 const sl_cuda_conv_t *conv,
                                 const sl_cuda_conv_params_t *p,
                                 candidates_t *c)
{
    cudnnConvolutionFwdAlgoPerf_t perf[MAX_CANDIDATES];
    int n = 0;
    const cudnnStatus_t code = cudnnGetConvolutionForwardAlgorithm_v7(
        handle, conv->x, conv->w, conv->passes[SL_CUDA_CONV_FORWARD].desc,
        conv->y, CUDNN_CONVOLUTION_FWD_ALGO_COUNT, &n, perf);
    int i;

    for (i = 0; code == CUDNN_STATUS_SUCCESS && i < n; i++) {
        add_candidate(c, p, (int)perf[i].algo, perf[i].status,
                      perf[i].determinism, perf[i].mathType);
    }
    add_candidate(c, p, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                  CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, math_type(p));
    add_candidate(c, p, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                  CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, math_type(p));
    return code;
}

static cudnnStatus_t ask_backward_data(cudnnHandle_t handle,
                                       const sl_cuda_conv_t *conv,
                                       const sl_cuda_conv_params_t *p,
                                       candidates_t *c)
{
    cudnnConvolutionBwdDataAlgoPerf_t perf[MAX_CANDIDATES];
    int n = 0;
    const cudnnStatus_t code = cudnnGetConvolutionBackwardDataAlgorithm_v7(
        handle, conv->w, conv->y, conv->passes[SL_CUDA_CONV_BACKWARD_DATA].desc,
        conv->x, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT, &n, perf);
    int i;

    for (i = 0; code == CUDNN_STATUS_SUCCESS && i < n; i++) {
        add_candidate(c, p, (int)perf[i].algo, perf[i].status,
                      perf[i].determinism, perf[i].mathType);
    }
    add_candidate(c, p, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_STATUS_SUCCESS,
                  CUDNN_DETERMINISTIC, math_type(p));
    return code;
}

static cudnnStatus_t ask_backward_weights(cudnnHandle_t handle,
                                          const sl_cuda_conv_t *conv,
                                          const sl_cuda_conv_params_t *p,
                                          candidates_t *c)
{
    cudnnConvolutionBwdFilterAlgoPerf_t perf[MAX_CANDIDATES];
    int n = 0;
    const cudnnStatus_t code = cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        handle, conv->x, conv->y,
        conv->passes[SL_CUDA_CONV_BACKWARD_WEIGHTS].desc, conv->w,
        CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT, &n, perf);
    int i;

    for (i = 0; code == CUDNN_STATUS_SUCCESS && i < n; i++) {
        add_candidate(c, p, (int)perf[i].algo, perf[i].status,
                      perf[i].determinism, perf[i].mathType);
    }
    add_candidate(c, p, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                  CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, math_type(p));
    return code;
}

static cudnnStatus_t workspace_bytes(cudnnHandle_t handle,
                                     const sl_cuda_conv_t *conv,
                                     sl_cuda_conv_pass_t pass, int algo,
                                     size_t *bytes_p)
{
    const cudnnConvolutionDescriptor_t desc = conv->passes[pass].desc;

    switch (pass) {
    case SL_CUDA_CONV_FORWARD:
        return cudnnGetConvolutionForwardWorkspaceSize(
            handle, conv->x, conv->w, desc, conv->y,
            (cudnnConvolutionFwdAlgo_t)algo, bytes_p);
    case SL_CUDA_CONV_BACKWARD_DATA:
        return cudnnGetConvolutionBackwardDataWorkspaceSize(
            handle, conv->w, conv->y, desc, conv->x,
            (cudnnConvolutionBwdDataAlgo_t)algo, bytes_p);
    case SL_CUDA_CONV_BACKWARD_WEIGHTS:
    case SL_CUDA_CONV_N_PASSES:
        break;
    }
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(
        handle, conv->x, conv->y, desc, conv->w,
        (cudnnConvolutionBwdFilterAlgo_t)algo, bytes_p);
}

static size_t workspace_limit(const sl_cuda_conv_params_t *p)
{
    const double images = image_elements(p, 0) + image_elements(p, 1);
    const size_t bytes = (size_t)images * sl_cuda_type_bytes(p->type);

    if (p->workspace_bytes > 0) {
        return p->workspace_bytes;
    }
    return bytes > WORKSPACE_BYTES ? bytes : WORKSPACE_BYTES;
}

/* The first whose workspace is within the limit, else the one with the
 * smallest. What does not support the shape says so when asked for its size.
 * @return SL_ERR_UNSUPPORTED, without a message, when there is none */
static sl_status_t take_best(cudnnHandle_t handle, sl_cuda_conv_t *conv,
                             sl_cuda_conv_pass_t pass,
                             const sl_cuda_conv_params_t *p,
                             const candidates_t *c)
{
    pass_t *chosen = &conv->passes[pass];
    sl_status_t status = SL_OK;
    size_t least = SIZE_MAX;
    int best = -1;
    int i;

    for (i = 0; i < c->n && (best < 0 || least > workspace_limit(p)); i++) {
        size_t bytes = 0;

        SL_TRY(
            status,
            SL_DNN(cudnnSetConvolutionMathType(chosen->desc, c->list[i].math)),
            out);
        if (workspace_bytes(handle, conv, pass, c->list[i].algo, &bytes) ==
                CUDNN_STATUS_SUCCESS &&
            (best < 0 || bytes < least)) {
            best = i;
            least = bytes;
        }
    }
    if (best < 0) {
        return SL_ERR_UNSUPPORTED;
    }
    chosen->algo = c->list[best].algo;
    chosen->workspace_bytes = least;
    status =
        SL_DNN(cudnnSetConvolutionMathType(chosen->desc, c->list[best].math));
out:
    return status;
}

static sl_status_t refuse(const sl_cuda_conv_params_t *p,
                          sl_cuda_conv_pass_t pass)
{
    static const char *const passes[] = {
        [SL_CUDA_CONV_FORWARD] = "forward",
        [SL_CUDA_CONV_BACKWARD_DATA] = "the gradient of the input",
        [SL_CUDA_CONV_BACKWARD_WEIGHTS] = "the gradient of the weights"};
    static const char *const types[] = {
        [SL_CUDA_F32] = "f32", [SL_CUDA_BF16] = "bf16", [SL_CUDA_F16] = "f16"};
    char text[TEXT_BYTES];
    sl_status_t status;

    (void)snprintf(text, sizeof(text),
                   "%s, %s, of [%d, %d, %d, %d] by %d kernels of %d x %d, "
                   "stride %d, pad %d, dilation %d, groups %d",
                   passes[pass], types[p->type], (int)p->batch,
                   (int)p->in_channels, (int)p->in_height, (int)p->in_width,
                   (int)p->out_channels, (int)p->kernel_height,
                   (int)p->kernel_width, (int)p->stride, (int)p->pad,
                   (int)p->dilation, (int)p->groups);
    if (p->is_optional) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out,
                  "layer %s: cuDNN has no repeatable algorithm for %s", p->name,
                  text);
    }
    SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
            "layer %s: cuDNN has no repeatable algorithm for %s; another "
            "precision may have one",
            p->name, text);
out:
    return status;
}

static sl_status_t choose(cudnnHandle_t handle, sl_cuda_conv_t *conv,
                          sl_cuda_conv_pass_t pass,
                          const sl_cuda_conv_params_t *p)
{
    candidates_t candidates = {.n = 0};
    cudnnStatus_t code;
    sl_status_t status;

    code = pass == SL_CUDA_CONV_FORWARD
               ? ask_forward(handle, conv, p, &candidates)
           : pass == SL_CUDA_CONV_BACKWARD_DATA
               ? ask_backward_data(handle, conv, p, &candidates)
               : ask_backward_weights(handle, conv, p, &candidates);
    if (CUDNN_STATUS_CATEGORY(code) != CUDNN_STATUS_NOT_SUPPORTED) {
        SL_TRY(status,
               sl_cuda_dnn_status((int)code, "cudnnGetConvolution*Algorithm_v7",
                                  __FILE__, __LINE__),
               out);
    }
    status = take_best(handle, conv, pass, p, &candidates);
    if (status == SL_ERR_UNSUPPORTED) {
        return refuse(p, pass);
    }
out:
    return status;
}

/* ---- life ---- */

static sl_status_t make_passes(sl_cuda_conv_t *conv,
                               const sl_cuda_conv_params_t *p)
{
    struct cudnnContext *handle = NULL;
    sl_status_t status;
    int i;

    SL_TRY(status, sl_cuda_dnn_borrow(&handle), out);
    for (i = 0; i < SL_CUDA_CONV_N_PASSES; i++) {
        if ((p->passes >> i & 1) == 0) {
            continue;
        }
        SL_TRY(status, make_conv(p, &conv->passes[i].desc), err_give_back);
        SL_TRY(status, choose(handle, conv, (sl_cuda_conv_pass_t)i, p),
               err_give_back);
    }
err_give_back:
    sl_cuda_dnn_give_back();
out:
    return status;
}

sl_status_t sl_cuda_conv_create(const sl_cuda_conv_params_t *params,
                                sl_cuda_conv_t **conv_p)
{
    sl_cuda_conv_t *conv = NULL;
    sl_status_t status;

    SL_TRY(status, check_sizes(params), out);
    conv = calloc(1, sizeof(*conv));
    if (conv == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "layer %s: no host memory",
                params->name);
    }
    SL_TRY(status, make_tensor(params, 0, &conv->x), err_destroy);
    SL_TRY(status, make_tensor(params, 1, &conv->y), err_destroy);
    SL_TRY(status, make_filter(params, &conv->w), err_destroy);
    SL_TRY(status, make_passes(conv, params), err_destroy);
    *conv_p = conv;
    return SL_OK;

err_destroy:
    sl_cuda_conv_destroy(conv);
out:
    return status;
}

void sl_cuda_conv_destroy(sl_cuda_conv_t *conv)
{
    int i;

    if (conv == NULL) {
        return;
    }
    for (i = 0; i < SL_CUDA_CONV_N_PASSES; i++) {
        if (conv->passes[i].desc != NULL) {
            (void)cudnnDestroyConvolutionDescriptor(conv->passes[i].desc);
        }
    }
    if (conv->w != NULL) {
        (void)cudnnDestroyFilterDescriptor(conv->w);
    }
    if (conv->y != NULL) {
        (void)cudnnDestroyTensorDescriptor(conv->y);
    }
    if (conv->x != NULL) {
        (void)cudnnDestroyTensorDescriptor(conv->x);
    }
    free(conv);
}

size_t sl_cuda_conv_workspace_bytes(const sl_cuda_conv_t *conv,
                                    sl_cuda_conv_pass_t pass)
{
    return conv->passes[pass].workspace_bytes;
}

/* ---- run ---- */

sl_status_t sl_cuda_conv_run(const sl_cuda_conv_t *conv,
                             sl_cuda_conv_pass_t pass,
                             const sl_cuda_conv_args_t *args,
                             sl_cuda_stream_t *stream)
{
    const pass_t *p = &conv->passes[pass];
    const float one = 1.0f, beta = args->is_added ? 1.0f : 0.0f;
    struct cudnnContext *handle = NULL;
    sl_status_t status;

    SL_ASSERT(p->desc != NULL);
    SL_TRY(status, sl_cuda_dnn(stream, &handle), out);
    switch (pass) {
    case SL_CUDA_CONV_FORWARD:
        return SL_DNN(cudnnConvolutionForward(
            handle, &one, conv->x, args->x, conv->w, args->w, p->desc,
            (cudnnConvolutionFwdAlgo_t)p->algo, args->workspace,
            p->workspace_bytes, &beta, conv->y, args->result));
    case SL_CUDA_CONV_BACKWARD_DATA:
        return SL_DNN(cudnnConvolutionBackwardData(
            handle, &one, conv->w, args->w, conv->y, args->y, p->desc,
            (cudnnConvolutionBwdDataAlgo_t)p->algo, args->workspace,
            p->workspace_bytes, &beta, conv->x, args->result));
    case SL_CUDA_CONV_BACKWARD_WEIGHTS:
    case SL_CUDA_CONV_N_PASSES:
        break;
    }
    status = SL_DNN(cudnnConvolutionBackwardFilter(
        handle, &one, conv->x, args->x, conv->y, args->y, p->desc,
        (cudnnConvolutionBwdFilterAlgo_t)p->algo, args->workspace,
        p->workspace_bytes, &beta, conv->w, args->result));
out:
    return status;
}
