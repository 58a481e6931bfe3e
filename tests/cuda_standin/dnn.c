/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN: handles, descriptors, errors, and how its work is queued. */
#define SL_STANDIN_INSIDE
#include "dnn.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "real.h"

enum {
    DETAIL_BYTES = 256
};

static _Thread_local char detail[DETAIL_BYTES];

/* guarded by the lock */
static int n_live;
static int refused_type = -1;
static int is_last_refused;

void standin_dnn_refuse(int data_type)
{
    lock();
    refused_type = data_type;
    unlock();
}

void standin_dnn_refuse_last(int is_refused)
{
    lock();
    is_last_refused = is_refused;
    unlock();
}

int dnn_is_refused(cudnnDataType_t type, cudnnTensorFormat_t format)
{
    int is_refused;

    lock();
    is_refused = refused_type == (int)type ||
                 (is_last_refused && format == CUDNN_TENSOR_NHWC);
    unlock();
    return is_refused;
}

int dnn_n_live(void)
{
    return n_live;
}

/* ---- errors ---- */

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (status) {
#define X(name, value)                                                         \
    case name:                                                                 \
        return #name;
        SL_STANDIN_DNN_STATUS_MAP(X)
#undef X
    }
    return "unrecognized status";
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    (void)snprintf(message, max_size, "%s", detail);
    detail[0] = '\0';
}

cudnnStatus_t dnn_fail(cudnnStatus_t code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(detail, sizeof(detail), fmt, args);
    va_end(args);
    return code;
}

cudnnStatus_t dnn_enter(standin_entry_t entry, int needs_device, int *is_late_p)
{
    const cudaError_t error = standin_enter(entry, is_late_p);
    cudaError_t sticky;

    lock();
    sticky = standin_sticky(standin_device());
    unlock();
    if (sticky != cudaSuccess) {
        return needs_device ? dnn_fail(CUDNN_STATUS_EXECUTION_FAILED_CUDART,
                                       "the device has failed")
                            : CUDNN_STATUS_SUCCESS;
    }
    return error == cudaSuccess
               ? CUDNN_STATUS_SUCCESS
               : dnn_fail((cudnnStatus_t)error, "made to fail");
}

/* ---- handles ---- */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    const cudnnStatus_t early = dnn_enter(STANDIN_cudnnCreate, 1, NULL);
    cudnnHandle_t made;

    if (early != CUDNN_STATUS_SUCCESS) {
        return early;
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    }
    made->device = standin_device();
    *handle = made;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    const cudnnStatus_t early = dnn_enter(STANDIN_cudnnDestroy, 0, NULL);

    free(handle);
    return early;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId)
{
    const cudnnStatus_t early = dnn_enter(STANDIN_cudnnSetStream, 1, NULL);
    cudaStream_t stream;
    int device;

    if (early != CUDNN_STATUS_SUCCESS) {
        return early;
    }
    lock();
    stream = stream_resolve(streamId);
    device = stream == NULL ? -1 : stream->device;
    unlock();
    if (device != handle->device) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH,
                        "a stream of another device, or none");
    }
    handle->stream = streamId;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *streamId)
{
    *streamId = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

void *dnn_make(size_t bytes)
{
    void *made = calloc(1, bytes);

    if (made == NULL) {
        abort();
    }
    lock();
    n_live++;
    unlock();
    return made;
}

void dnn_free(void *descriptor)
{
    if (descriptor != NULL) {
        lock();
        n_live--;
        unlock();
        free(descriptor);
    }
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensorDesc)
{
    DNN_ENTER(cudnnCreateTensorDescriptor);
    *tensorDesc = dnn_make(sizeof(**tensorDesc));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensorDesc)
{
    const cudnnStatus_t early =
        dnn_enter(STANDIN_cudnnDestroyTensorDescriptor, 0, NULL);

    dnn_free(tensorDesc);
    return early;
}

static int is_size(int a, int b, int c, int d)
{
    return a > 0 && b > 0 && c > 0 && d > 0 &&
           (double)a * (double)b * (double)c * (double)d <= 2147483647.0;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensorDesc,
                                         cudnnTensorFormat_t format,
                                         cudnnDataType_t dataType, int n, int c,
                                         int h, int w)
{
    DNN_ENTER(cudnnSetTensor4dDescriptor);
    if (!is_size(n, c, h, w)) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "tensor of %d %d %d %d", n, c,
                        h, w);
    }
    *tensorDesc = (struct cudnnTensorStruct){1, format, dataType, n, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *filterDesc)
{
    DNN_ENTER(cudnnCreateFilterDescriptor);
    *filterDesc = dnn_make(sizeof(**filterDesc));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filterDesc)
{
    const cudnnStatus_t early =
        dnn_enter(STANDIN_cudnnDestroyFilterDescriptor, 0, NULL);

    dnn_free(filterDesc);
    return early;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filterDesc,
                                         cudnnDataType_t dataType,
                                         cudnnTensorFormat_t format, int k,
                                         int c, int h, int w)
{
    DNN_ENTER(cudnnSetFilter4dDescriptor);
    if (!is_size(k, c, h, w)) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "filter of %d %d %d %d", k, c,
                        h, w);
    }
    *filterDesc = (struct cudnnFilterStruct){1, format, dataType, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t
cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *convDesc)
{
    DNN_ENTER(cudnnCreateConvolutionDescriptor);
    *convDesc = dnn_make(sizeof(**convDesc));
    (*convDesc)->groups = 1;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t
cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convDesc)
{
    const cudnnStatus_t early =
        dnn_enter(STANDIN_cudnnDestroyConvolutionDescriptor, 0, NULL);

    dnn_free(convDesc);
    return early;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(
    cudnnConvolutionDescriptor_t convDesc, int pad_h, int pad_w, int u, int v,
    int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
    cudnnDataType_t computeType)
{
    DNN_ENTER(cudnnSetConvolution2dDescriptor);
    if (pad_h < 0 || pad_w < 0 || u < 1 || v < 1 || dilation_h < 1 ||
        dilation_w < 1 || mode != CUDNN_CROSS_CORRELATION) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "convolution");
    }
    convDesc->is_set = 1;
    convDesc->pad_h = pad_h;
    convDesc->pad_w = pad_w;
    convDesc->stride_h = u;
    convDesc->stride_w = v;
    convDesc->dilation_h = dilation_h;
    convDesc->dilation_w = dilation_w;
    convDesc->compute = computeType;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t
cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convDesc,
                              int groupCount)
{
    DNN_ENTER(cudnnSetConvolutionGroupCount);
    convDesc->groups = groupCount;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convDesc,
                                          cudnnMathType_t mathType)
{
    DNN_ENTER(cudnnSetConvolutionMathType);
    convDesc->math = mathType;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- work ---- */

void dnn_check_overlap(const char *name, const dnn_use_t *uses, int n_uses)
{
    int i, j;

    for (i = 0; i < n_uses; i++) {
        for (j = 0; uses[i].is_write && j < n_uses; j++) {
            const uintptr_t a = (uintptr_t)uses[i].ptr;
            const uintptr_t b = (uintptr_t)uses[j].ptr;

            if (i != j && a < b + uses[j].bytes && b < a + uses[i].bytes) {
                lock();
                standin_complain("%s writes what it also uses otherwise", name);
                unlock();
                return;
            }
        }
    }
}

cudnnStatus_t dnn_queue(cudnnHandle_t handle, const char *name, task_t *task,
                        const dnn_use_t *uses, int n_uses, int is_late)
{
    cudaStream_t stream;
    int i;

    lock();
    stream = stream_resolve(handle->stream);
    if (stream == NULL || stream->device != handle->device ||
        handle->device != standin_device()) {
        unlock();
        free(task);
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH,
                        "the handle's device is not the current one");
    }
    stream_begin(stream);
    task->error = is_late ? standin_late_error() : cudaSuccess;
    for (i = 0; i < n_uses; i++) {
        if (uses[i].bytes > 0 && !order_use(stream, uses[i].ptr, uses[i].bytes,
                                            uses[i].is_write, name)) {
            task->error = cudaErrorIllegalAddress;
        }
        *uses[i].alias_p = uses[i].bytes > 0 ? memory_alias(uses[i].ptr) : NULL;
    }
    stream_queue(stream, task);
    unlock();
    return CUDNN_STATUS_SUCCESS;
}

/* ---- numbers ---- */

size_t dnn_image_bytes(const struct cudnnTensorStruct *image)
{
    return (size_t)image->n * (size_t)image->c * (size_t)image->h *
           (size_t)image->w * dnn_type_bytes(image->type);
}

size_t dnn_image_place(const struct cudnnTensorStruct *image, int n, int c,
                       int h, int w)
{
    const size_t pixels = (size_t)image->h * (size_t)image->w;
    const size_t pixel = (size_t)h * (size_t)image->w + (size_t)w;
    const size_t channels = (size_t)image->c;

    return image->format == CUDNN_TENSOR_NHWC
               ? ((size_t)n * pixels + pixel) * channels + (size_t)c
               : ((size_t)n * channels + (size_t)c) * pixels + pixel;
}

size_t dnn_type_bytes(cudnnDataType_t type)
{
    return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

float dnn_load(cudnnDataType_t type, const void *array, size_t i)
{
    return type == CUDNN_DATA_FLOAT ? ((const float *)array)[i]
           : type == CUDNN_DATA_BFLOAT16
               ? real_of_bf16(((const uint16_t *)array)[i])
               : real_of_f16(((const uint16_t *)array)[i]);
}

void dnn_store(cudnnDataType_t type, void *array, size_t i, float value)
{
    if (type == CUDNN_DATA_FLOAT) {
        ((float *)array)[i] = value;
    } else {
        ((uint16_t *)array)[i] = type == CUDNN_DATA_BFLOAT16
                                     ? real_to_bf16(value)
                                     : real_to_f16(value);
    }
}

float *dnn_floats(cudnnDataType_t type, const void *array, size_t n,
                  int is_tf32)
{
    float *values = malloc((n + 1) * sizeof(*values));
    size_t i;

    if (values == NULL) {
        abort();
    }
    for (i = 0; i < n; i++) {
        values[i] = dnn_load(type, array, i);
        if (is_tf32) {
            values[i] = real_to_tf32(values[i]);
        }
    }
    return values;
}
