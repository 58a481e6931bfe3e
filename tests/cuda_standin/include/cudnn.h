/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cudnn.h
 * cuDNN 9 as far as it is used, on the CPU: names, values and arguments are
 * those of the real headers.
 */
#ifndef SL_TESTS_CUDA_STANDIN_CUDNN_H
#define SL_TESTS_CUDA_STANDIN_CUDNN_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDNN_MAJOR 9
#define CUDNN_MINOR 19
#define CUDNN_PATCHLEVEL 0
#define CUDNN_VERSION                                                          \
    (CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)

#define SL_STANDIN_DNN_STATUS_MAP(X)                                           \
    X(CUDNN_STATUS_SUCCESS, 0)                                                 \
    X(CUDNN_STATUS_NOT_INITIALIZED, 1001)                                      \
    X(CUDNN_STATUS_BAD_PARAM, 2000)                                            \
    X(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, 2002)                               \
    X(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, 2003)                         \
    X(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, 2004)                              \
    X(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, 2005)                               \
    X(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, 2006)                          \
    X(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, 2007)                            \
    X(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, 2008)                             \
    X(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, 2009)                         \
    X(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, 2010)                             \
    X(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, 2012)                            \
    X(CUDNN_STATUS_NOT_SUPPORTED, 3000)                                        \
    X(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, 3001)                          \
    X(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, 3002)                                  \
    X(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, 3003)                              \
    X(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, 3004)                                 \
    X(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, 3007)                          \
    X(CUDNN_STATUS_INTERNAL_ERROR, 4000)                                       \
    X(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003)                \
    X(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, 4004)              \
    X(CUDNN_STATUS_EXECUTION_FAILED, 5000)                                     \
    X(CUDNN_STATUS_EXECUTION_FAILED_CUDART, 5003)

typedef enum {
#define X(name, value) name = value,
    SL_STANDIN_DNN_STATUS_MAP(X)
#undef X
} cudnnStatus_t;

#define CUDNN_STATUS_CATEGORY(full_error_code) ((full_error_code) / 1000 * 1000)

typedef enum {
    CUDNN_DATA_FLOAT = 0,
    CUDNN_DATA_DOUBLE = 1,
    CUDNN_DATA_HALF = 2,
    CUDNN_DATA_INT32 = 4,
    CUDNN_DATA_BFLOAT16 = 9,
    CUDNN_DATA_INT64 = 10,
    CUDNN_DATA_BOOLEAN = 11
} cudnnDataType_t;

typedef enum {
    CUDNN_DEFAULT_MATH = 0,
    CUDNN_TENSOR_OP_MATH = 1,
    CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION = 2,
    CUDNN_FMA_MATH = 3
} cudnnMathType_t;

typedef enum {
    CUDNN_TENSOR_NCHW = 0,
    CUDNN_TENSOR_NHWC = 1
} cudnnTensorFormat_t;

typedef enum {
    CUDNN_CONVOLUTION = 0,
    CUDNN_CROSS_CORRELATION = 1
} cudnnConvolutionMode_t;

typedef enum {
    CUDNN_NON_DETERMINISTIC = 0,
    CUDNN_DETERMINISTIC = 1
} cudnnDeterminism_t;

typedef enum {
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM = 0,
    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM = 1,
    CUDNN_CONVOLUTION_FWD_ALGO_GEMM = 2,
    CUDNN_CONVOLUTION_FWD_ALGO_DIRECT = 3,
    CUDNN_CONVOLUTION_FWD_ALGO_FFT = 4,
    CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING = 5,
    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD = 6,
    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED = 7,
    CUDNN_CONVOLUTION_FWD_ALGO_COUNT = 8
} cudnnConvolutionFwdAlgo_t;

typedef enum {
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 = 0,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 = 1,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT = 2,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 = 3,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD = 4,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED = 5,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING = 6,
    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT = 7
} cudnnConvolutionBwdFilterAlgo_t;

typedef enum {
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 = 0,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 = 1,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT = 2,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING = 3,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD = 4,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED = 5,
    CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT = 6
} cudnnConvolutionBwdDataAlgo_t;

typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct *cudnnConvolutionDescriptor_t;

#define SL_STANDIN_PERF(name, algo_type)                                       \
    typedef struct name##Struct {                                              \
        algo_type algo;                                                        \
        cudnnStatus_t status;                                                  \
        float time;                                                            \
        size_t memory;                                                         \
        cudnnDeterminism_t determinism;                                        \
        cudnnMathType_t mathType;                                              \
        int reserved[3];                                                       \
    } name##_t

SL_STANDIN_PERF(cudnnConvolutionFwdAlgoPerf, cudnnConvolutionFwdAlgo_t);
SL_STANDIN_PERF(cudnnConvolutionBwdDataAlgoPerf, cudnnConvolutionBwdDataAlgo_t);
SL_STANDIN_PERF(cudnnConvolutionBwdFilterAlgoPerf,
                cudnnConvolutionBwdFilterAlgo_t);

size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t status);
void cudnnGetLastErrorString(char *message, size_t max_size);

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId);
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *streamId);

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensorDesc);
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensorDesc,
                                         cudnnTensorFormat_t format,
                                         cudnnDataType_t dataType, int n, int c,
                                         int h, int w);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensorDesc);

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *filterDesc);
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filterDesc,
                                         cudnnDataType_t dataType,
                                         cudnnTensorFormat_t format, int k,
                                         int c, int h, int w);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filterDesc);

cudnnStatus_t
cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *convDesc);
cudnnStatus_t
cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convDesc);
cudnnStatus_t cudnnSetConvolution2dDescriptor(
    cudnnConvolutionDescriptor_t convDesc, int pad_h, int pad_w, int u, int v,
    int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
    cudnnDataType_t computeType);
cudnnStatus_t
cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convDesc,
                              int groupCount);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convDesc,
                                          cudnnMathType_t mathType);

typedef enum {
    CUDNN_NOT_PROPAGATE_NAN = 0,
    CUDNN_PROPAGATE_NAN = 1
} cudnnNanPropagation_t;

typedef enum {
    CUDNN_POOLING_MAX = 0,
    CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING = 1,
    CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING = 2,
    CUDNN_POOLING_MAX_DETERMINISTIC = 3
} cudnnPoolingMode_t;

typedef struct cudnnPoolingStruct *cudnnPoolingDescriptor_t;

cudnnStatus_t
cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t *poolingDesc);
cudnnStatus_t
cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t poolingDesc);
cudnnStatus_t cudnnSetPooling2dDescriptor(
    cudnnPoolingDescriptor_t poolingDesc, cudnnPoolingMode_t mode,
    cudnnNanPropagation_t maxpoolingNanOpt, int windowHeight, int windowWidth,
    int verticalPadding, int horizontalPadding, int verticalStride,
    int horizontalStride);
cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle,
                                  const cudnnPoolingDescriptor_t poolingDesc,
                                  const void *alpha,
                                  const cudnnTensorDescriptor_t xDesc,
                                  const void *x, const void *beta,
                                  const cudnnTensorDescriptor_t yDesc, void *y);
cudnnStatus_t cudnnPoolingBackward(
    cudnnHandle_t handle, const cudnnPoolingDescriptor_t poolingDesc,
    const void *alpha, const cudnnTensorDescriptor_t yDesc, const void *y,
    const cudnnTensorDescriptor_t dyDesc, const void *dy,
    const cudnnTensorDescriptor_t xDesc, const void *x, const void *beta,
    const cudnnTensorDescriptor_t dxDesc, void *dx);

typedef enum {
    CUDNN_BATCHNORM_PER_ACTIVATION = 0,
    CUDNN_BATCHNORM_SPATIAL = 1,
    CUDNN_BATCHNORM_SPATIAL_PERSISTENT = 2
} cudnnBatchNormMode_t;

typedef enum {
    CUDNN_BATCHNORM_OPS_BN = 0,
    CUDNN_BATCHNORM_OPS_BN_ACTIVATION = 1,
    CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION = 2
} cudnnBatchNormOps_t;

typedef struct cudnnActivationStruct *cudnnActivationDescriptor_t;

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const cudnnTensorDescriptor_t xDesc, const cudnnTensorDescriptor_t zDesc,
    const cudnnTensorDescriptor_t yDesc,
    const cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc,
    const cudnnActivationDescriptor_t activationDesc, size_t *sizeInBytes);
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const cudnnTensorDescriptor_t xDesc, const cudnnTensorDescriptor_t yDesc,
    const cudnnTensorDescriptor_t dyDesc, const cudnnTensorDescriptor_t dzDesc,
    const cudnnTensorDescriptor_t dxDesc,
    const cudnnTensorDescriptor_t dBnScaleBiasDesc,
    const cudnnActivationDescriptor_t activationDesc, size_t *sizeInBytes);
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const cudnnActivationDescriptor_t activationDesc,
    const cudnnTensorDescriptor_t xDesc, size_t *sizeInBytes);
cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const void *alpha, const void *beta, const cudnnTensorDescriptor_t xDesc,
    const void *xData, const cudnnTensorDescriptor_t zDesc, const void *zData,
    const cudnnTensorDescriptor_t yDesc, void *yData,
    const cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc, const void *bnScale,
    const void *bnBias, double exponentialAverageFactor,
    void *resultRunningMean, void *resultRunningVariance, double epsilon,
    void *resultSaveMean, void *resultSaveInvVariance,
    cudnnActivationDescriptor_t activationDesc, void *workspace,
    size_t workSpaceSizeInBytes, void *reserveSpace,
    size_t reserveSpaceSizeInBytes);
cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const void *alphaDataDiff, const void *betaDataDiff,
    const void *alphaParamDiff, const void *betaParamDiff,
    const cudnnTensorDescriptor_t xDesc, const void *xData,
    const cudnnTensorDescriptor_t yDesc, const void *yData,
    const cudnnTensorDescriptor_t dyDesc, const void *dyData,
    const cudnnTensorDescriptor_t dzDesc, void *dzData,
    const cudnnTensorDescriptor_t dxDesc, void *dxData,
    const cudnnTensorDescriptor_t dBnScaleBiasDesc, const void *bnScaleData,
    const void *bnBiasData, void *dBnScaleData, void *dBnBiasData,
    double epsilon, const void *savedMean, const void *savedInvVariance,
    cudnnActivationDescriptor_t activationDesc, void *workSpace,
    size_t workSpaceSizeInBytes, void *reserveSpace,
    size_t reserveSpaceSizeInBytes);

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
    const cudnnFilterDescriptor_t filterDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t destDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionFwdAlgoPerf_t *perfResults);
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc,
    const cudnnFilterDescriptor_t wDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t yDesc, cudnnConvolutionFwdAlgo_t algo,
    size_t *sizeInBytes);
cudnnStatus_t
cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                        const cudnnTensorDescriptor_t xDesc, const void *x,
                        const cudnnFilterDescriptor_t wDesc, const void *w,
                        const cudnnConvolutionDescriptor_t convDesc,
                        cudnnConvolutionFwdAlgo_t algo, void *workSpace,
                        size_t workSpaceSizeInBytes, const void *beta,
                        const cudnnTensorDescriptor_t yDesc, void *y);

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t filterDesc,
    const cudnnTensorDescriptor_t diffDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t gradDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionBwdDataAlgoPerf_t *perfResults);
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t wDesc,
    const cudnnTensorDescriptor_t dyDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t dxDesc, cudnnConvolutionBwdDataAlgo_t algo,
    size_t *sizeInBytes);
cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void *alpha,
    const cudnnFilterDescriptor_t wDesc, const void *w,
    const cudnnTensorDescriptor_t dyDesc, const void *dy,
    const cudnnConvolutionDescriptor_t convDesc,
    cudnnConvolutionBwdDataAlgo_t algo, void *workSpace,
    size_t workSpaceSizeInBytes, const void *beta,
    const cudnnTensorDescriptor_t dxDesc, void *dx);

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
    const cudnnTensorDescriptor_t diffDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnFilterDescriptor_t gradDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionBwdFilterAlgoPerf_t *perfResults);
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc,
    const cudnnTensorDescriptor_t dyDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnFilterDescriptor_t gradDesc,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *sizeInBytes);
cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void *alpha,
    const cudnnTensorDescriptor_t xDesc, const void *x,
    const cudnnTensorDescriptor_t dyDesc, const void *dy,
    const cudnnConvolutionDescriptor_t convDesc,
    cudnnConvolutionBwdFilterAlgo_t algo, void *workSpace,
    size_t workSpaceSizeInBytes, const void *beta,
    const cudnnFilterDescriptor_t dwDesc, void *dw);

/* ---- graphs ---- */

typedef void *cudnnBackendDescriptor_t;

typedef enum {
    CUDNN_REDUCE_TENSOR_ADD = 0,
    CUDNN_REDUCE_TENSOR_MAX = 3
} cudnnReduceTensorOp_t;

typedef enum {
    CUDNN_POINTWISE_ADD = 0,
    CUDNN_POINTWISE_MUL = 1,
    CUDNN_POINTWISE_DIV = 6,
    CUDNN_POINTWISE_SUB = 9,
    CUDNN_POINTWISE_EXP = 13,
    CUDNN_POINTWISE_LOG = 15,
    CUDNN_POINTWISE_CMP_GE = 303,
    CUDNN_POINTWISE_GEN_INDEX = 501,
    CUDNN_POINTWISE_BINARY_SELECT = 601
} cudnnPointwiseMode_t;

typedef enum {
    CUDNN_NUMERICAL_NOTE_TENSOR_CORE = 0,
    CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC = 4,
    CUDNN_NUMERICAL_NOTE_TYPE_COUNT = 10
} cudnnBackendNumericalNote_t;

typedef enum {
    CUDNN_HEUR_MODE_FALLBACK = 2,
    CUDNN_HEUR_MODE_A = 3
} cudnnBackendHeurMode_t;

typedef enum {
    CUDNN_BACKEND_POINTWISE_DESCRIPTOR = 0,
    CUDNN_BACKEND_ENGINE_DESCRIPTOR = 2,
    CUDNN_BACKEND_ENGINECFG_DESCRIPTOR = 3,
    CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR = 4,
    CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR = 5,
    CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR = 13,
    CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR = 15,
    CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR = 16,
    CUDNN_BACKEND_TENSOR_DESCRIPTOR = 17,
    CUDNN_BACKEND_MATMUL_DESCRIPTOR = 18,
    CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR = 19,
    CUDNN_BACKEND_REDUCTION_DESCRIPTOR = 21,
    CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR = 22,
    CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR = 31
} cudnnBackendDescriptorType_t;

typedef enum {
    CUDNN_TYPE_HANDLE = 0,
    CUDNN_TYPE_DATA_TYPE = 1,
    CUDNN_TYPE_BOOLEAN = 2,
    CUDNN_TYPE_INT64 = 3,
    CUDNN_TYPE_VOID_PTR = 6,
    CUDNN_TYPE_HEUR_MODE = 8,
    CUDNN_TYPE_NUMERICAL_NOTE = 11,
    CUDNN_TYPE_POINTWISE_MODE = 14,
    CUDNN_TYPE_BACKEND_DESCRIPTOR = 15,
    CUDNN_TYPE_REDUCTION_OPERATOR_TYPE = 18
} cudnnBackendAttributeType_t;

/* X(name, value, type of its elements) */
#define SL_STANDIN_DNN_ATTR_MAP(X)                                             \
    X(CUDNN_ATTR_POINTWISE_MODE, 0, CUDNN_TYPE_POINTWISE_MODE)                 \
    X(CUDNN_ATTR_POINTWISE_MATH_PREC, 1, CUDNN_TYPE_DATA_TYPE)                 \
    X(CUDNN_ATTR_POINTWISE_AXIS, 9, CUDNN_TYPE_INT64)                          \
    X(CUDNN_ATTR_ENGINEHEUR_MODE, 200, CUDNN_TYPE_HEUR_MODE)                   \
    X(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 201,                              \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_ENGINEHEUR_RESULTS, 202, CUDNN_TYPE_BACKEND_DESCRIPTOR)       \
    X(CUDNN_ATTR_ENGINECFG_ENGINE, 300, CUDNN_TYPE_BACKEND_DESCRIPTOR)         \
    X(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 400, CUDNN_TYPE_HANDLE)                \
    X(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401,                            \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402, CUDNN_TYPE_INT64)         \
    X(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750,                       \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 751,                               \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 752,                               \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 753,                               \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, 758,                               \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 800, CUDNN_TYPE_HANDLE)                \
    X(CUDNN_ATTR_OPERATIONGRAPH_OPS, 801, CUDNN_TYPE_BACKEND_DESCRIPTOR)       \
    X(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 900, CUDNN_TYPE_INT64)                 \
    X(CUDNN_ATTR_TENSOR_DATA_TYPE, 901, CUDNN_TYPE_DATA_TYPE)                  \
    X(CUDNN_ATTR_TENSOR_DIMENSIONS, 902, CUDNN_TYPE_INT64)                     \
    X(CUDNN_ATTR_TENSOR_STRIDES, 903, CUDNN_TYPE_INT64)                        \
    X(CUDNN_ATTR_TENSOR_UNIQUE_ID, 906, CUDNN_TYPE_INT64)                      \
    X(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 907, CUDNN_TYPE_BOOLEAN)                   \
    X(CUDNN_ATTR_TENSOR_IS_BY_VALUE, 908, CUDNN_TYPE_BOOLEAN)                  \
    X(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 1000, CUDNN_TYPE_INT64)              \
    X(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, 1001, CUDNN_TYPE_VOID_PTR)        \
    X(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1003, CUDNN_TYPE_VOID_PTR)            \
    X(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 1303, CUDNN_TYPE_NUMERICAL_NOTE)       \
    X(CUDNN_ATTR_MATMUL_COMP_TYPE, 1500, CUDNN_TYPE_DATA_TYPE)                 \
    X(CUDNN_ATTR_OPERATION_MATMUL_ADESC, 1520, CUDNN_TYPE_BACKEND_DESCRIPTOR)  \
    X(CUDNN_ATTR_OPERATION_MATMUL_BDESC, 1521, CUDNN_TYPE_BACKEND_DESCRIPTOR)  \
    X(CUDNN_ATTR_OPERATION_MATMUL_CDESC, 1522, CUDNN_TYPE_BACKEND_DESCRIPTOR)  \
    X(CUDNN_ATTR_OPERATION_MATMUL_DESC, 1523, CUDNN_TYPE_BACKEND_DESCRIPTOR)   \
    X(CUDNN_ATTR_REDUCTION_OPERATOR, 1600, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE) \
    X(CUDNN_ATTR_REDUCTION_COMP_TYPE, 1601, CUDNN_TYPE_DATA_TYPE)              \
    X(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 1610,                              \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, 1611,                              \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_OPERATION_REDUCTION_DESC, 1612,                               \
      CUDNN_TYPE_BACKEND_DESCRIPTOR)                                           \
    X(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 2200, CUDNN_TYPE_BACKEND_DESCRIPTOR) \
    X(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, 2201, CUDNN_TYPE_BACKEND_DESCRIPTOR)

typedef enum {
#define X(name, value, type) name = value,
    SL_STANDIN_DNN_ATTR_MAP(X)
#undef X
} cudnnBackendAttributeName_t;

cudnnStatus_t
cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t descriptorType,
                             cudnnBackendDescriptor_t *descriptor);
cudnnStatus_t
cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t
cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                         cudnnBackendAttributeName_t attributeName,
                         cudnnBackendAttributeType_t attributeType,
                         int64_t elementCount, const void *arrayOfElements);
cudnnStatus_t
cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                         cudnnBackendAttributeName_t attributeName,
                         cudnnBackendAttributeType_t attributeType,
                         int64_t requestedElementCount, int64_t *elementCount,
                         void *arrayOfElements);
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t executionPlan,
                                  cudnnBackendDescriptor_t variantPack);

#ifdef __cplusplus
}
#endif

#endif /* SL_TESTS_CUDA_STANDIN_CUDNN_H */
