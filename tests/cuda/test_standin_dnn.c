/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for cuDNN: what it must not let pass. */
#include "tests/cuda/standin_bed.h"

#include "dnn.h"

enum {
    N_FLOATS = 1 << 16
};

/* 2 images of [3, 4, 4] by 5 kernels of 3 x 3, padded. */
typedef struct conv {
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t c;
    float *data; /* on the device: x, w, y, workspace at quarters of it */
    cudaStream_t stream;
} conv_t;

#define good(call) assert_int_equal((call), CUDNN_STATUS_SUCCESS)

static conv_t conv_make(void)
{
    conv_t v;

    ok(cudaStreamCreateWithFlags(&v.stream, cudaStreamNonBlocking));
    v.data = device_alloc(N_FLOATS * sizeof(float));
    ok(cudaMemsetAsync(v.data, 0, N_FLOATS * sizeof(float), v.stream));
    good(cudnnCreate(&v.handle));
    good(cudnnSetStream(v.handle, v.stream));
    good(cudnnCreateTensorDescriptor(&v.x));
    good(cudnnCreateTensorDescriptor(&v.y));
    good(cudnnCreateFilterDescriptor(&v.w));
    good(cudnnCreateConvolutionDescriptor(&v.c));
    good(cudnnSetTensor4dDescriptor(v.x, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 2,
                                    3, 4, 4));
    good(cudnnSetTensor4dDescriptor(v.y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 2,
                                    5, 4, 4));
    good(cudnnSetFilter4dDescriptor(v.w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, 5,
                                    3, 3, 3));
    good(cudnnSetConvolution2dDescriptor(
        v.c, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    return v;
}

static void conv_free(conv_t *v)
{
    good(cudnnDestroyConvolutionDescriptor(v->c));
    good(cudnnDestroyFilterDescriptor(v->w));
    good(cudnnDestroyTensorDescriptor(v->y));
    good(cudnnDestroyTensorDescriptor(v->x));
    good(cudnnDestroy(v->handle));
    ok(cudaStreamSynchronize(v->stream));
    ok(cudaFree(v->data));
    ok(cudaStreamDestroy(v->stream));
    assert_int_equal(standin_n_live(), 0);
}

static cudnnStatus_t run_at(conv_t *v, cudnnConvolutionFwdAlgo_t algo,
                            const float *x, size_t workspace_bytes)
{
    const float one = 1, zero = 0;

    return cudnnConvolutionForward(v->handle, &one, v->x, x, v->w,
                                   v->data + N_FLOATS / 4, v->c, algo,
                                   v->data + 3 * N_FLOATS / 4, workspace_bytes,
                                   &zero, v->y, v->data + N_FLOATS / 2);
}

static cudnnStatus_t run(conv_t *v)
{
    return run_at(v, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, v->data, 0);
}

static void descriptions_must_fit(void **state)
{
    conv_t v = conv_make();

    (void)state;
    good(run(&v));
    good(cudnnSetConvolutionGroupCount(v.c, 3));
    assert_int_equal(run(&v), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    good(cudnnSetConvolutionGroupCount(v.c, 1));
    good(cudnnSetTensor4dDescriptor(v.y, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 2,
                                    5, 4, 3));
    assert_int_equal(run(&v), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    good(cudnnSetTensor4dDescriptor(v.y, CUDNN_TENSOR_NHWC, CUDNN_DATA_HALF, 2,
                                    5, 4, 4));
    assert_int_equal(run(&v), CUDNN_STATUS_BAD_PARAM);
    good(cudnnSetTensor4dDescriptor(v.y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2,
                                    5, 4, 4));
    assert_int_equal(run(&v), CUDNN_STATUS_NOT_SUPPORTED);
    conv_free(&v);
}

static void workspaces_are_asked_for(void **state)
{
    conv_t v = conv_make();
    const cudnnConvolutionFwdAlgo_t algo =
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    size_t bytes = 0;

    (void)state;
    good(cudnnGetConvolutionForwardWorkspaceSize(v.handle, v.x, v.w, v.c, v.y,
                                                 algo, &bytes));
    assert_true(bytes > 0);
    good(run_at(&v, algo, v.data, bytes));
    assert_int_equal(run_at(&v, algo, v.data, bytes - 1),
                     CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
    assert_int_equal(cudnnGetConvolutionForwardWorkspaceSize(
                         v.handle, v.x, v.w, v.c, v.y,
                         CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, &bytes),
                     CUDNN_STATUS_NOT_SUPPORTED);
    conv_free(&v);
}

static void overlaps_are_reported(void **state)
{
    conv_t v = conv_make();

    (void)state;
    good(run_at(&v, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                v.data + N_FLOATS / 2 + 4, 0));
    expect_report("writes what it also uses");
    conv_free(&v);
}

/* Work is ordered with that of its stream only. */
static void other_streams_are_not_waited_for(void **state)
{
    conv_t v = conv_make();
    cudaStream_t other;

    (void)state;
    ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    good(run(&v));
    ok(cudaStreamSynchronize(v.stream));
    ok(cudaMemsetAsync(v.data, 0, 64, other));
    good(run(&v));
    expect_report("is not ordered before it");
    ok(cudaStreamSynchronize(other));
    ok(cudaStreamDestroy(other));
    conv_free(&v);
}

static void memory_is_checked(void **state)
{
    conv_t v = conv_make();

    (void)state;
    good(run_at(&v, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                v.data + N_FLOATS - 8, 0));
    expect_report("past the end");
    assert_error(cudaStreamSynchronize(v.stream), cudaErrorIllegalAddress);
    assert_int_equal(run(&v), CUDNN_STATUS_EXECUTION_FAILED_CUDART);
    standin_reset();
    conv_free(&v);
}

static void streams_are_of_the_device(void **state)
{
    conv_t v = conv_make();

    (void)state;
    ok(cudaSetDevice(1));
    assert_int_equal(run(&v), CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
    ok(cudaSetDevice(0));
    conv_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(descriptions_must_fit), T(workspaces_are_asked_for),
        T(overlaps_are_reported), T(other_streams_are_not_waited_for),
        T(memory_is_checked),     T(streams_are_of_the_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
