/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of the vendor's libraries, in slots of streams and of the process. */
#include "layers/cuda/handles.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "layers/cuda/blas.h"
#include "memory/cuda.h"

enum {
    MAX_DEVICES = 64
};

/* What the process keeps: never destroyed, as the libraries may be gone by
 * the time that static destructors run. */
static struct {
    pthread_mutex_t lock;
    void *handles[MAX_DEVICES]; /* guarded by lock */
} kept[SL_CUDA_N_LIBRARIES] = {
    [SL_CUDA_LIBRARY_BLAS] = {.lock = PTHREAD_MUTEX_INITIALIZER},
    [SL_CUDA_LIBRARY_DNN] = {.lock = PTHREAD_MUTEX_INITIALIZER},
};

static sl_status_t set_capture_mode(enum cudaStreamCaptureMode *mode)
{
    return SL_CUDA(cudaThreadExchangeStreamCaptureMode(mode));
}

static sl_status_t make_bound(const sl_cuda_handle_ops_t *ops, void *queue,
                              void **handle_p)
{
    void *handle = NULL;
    sl_status_t status;

    SL_TRY(status, ops->create(&handle), out);
    if (ops->bind != NULL) {
        SL_TRY(status, ops->bind(handle, queue), err_destroy);
    }
    *handle_p = handle;
    return SL_OK;

err_destroy:
    ops->destroy(handle);
out:
    return status;
}

/* The first op of a library may come while the queue is captured. What the
 * library allocates then is not of the capture: the thread says so. */
static sl_status_t make(const sl_cuda_handle_ops_t *ops, void *queue,
                        void **handle_p)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    sl_status_t status;

    SL_TRY(status, set_capture_mode(&mode), out);
    status = make_bound(ops, queue, handle_p);
    SL_KEEP(status, set_capture_mode(&mode));
out:
    return status;
}

sl_status_t sl_cuda_handle(sl_cuda_stream_t *stream, sl_cuda_library_t library,
                           const sl_cuda_handle_ops_t *ops, void **handle_p)
{
    sl_status_t status = SL_OK;

    if (stream->handles[library] == NULL) {
        SL_TRY(status, make(ops, stream->queue, &stream->handles[library]),
               out);
        stream->release[library] = ops->destroy;
    }
    *handle_p = stream->handles[library];
out:
    return status;
}

sl_status_t sl_cuda_handle_borrow(sl_cuda_library_t library,
                                  const sl_cuda_handle_ops_t *ops,
                                  void **handle_p)
{
    sl_status_t status = SL_OK;
    int device = 0;

    SL_TRY(status, SL_CUDA(cudaGetDevice(&device)), out);
    if (device >= MAX_DEVICES) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "CUDA device %d: only %d are supported in a process", device,
                (int)MAX_DEVICES);
    }
    (void)pthread_mutex_lock(&kept[library].lock);
    if (kept[library].handles[device] == NULL) {
        SL_TRY(status, make(ops, NULL, &kept[library].handles[device]),
               err_unlock);
    }
    *handle_p = kept[library].handles[device];
    return SL_OK;

err_unlock:
    (void)pthread_mutex_unlock(&kept[library].lock);
out:
    return status;
}

void sl_cuda_handle_give_back(sl_cuda_library_t library)
{
    (void)pthread_mutex_unlock(&kept[library].lock);
}

/* ---- cuBLASLt ---- */

static sl_status_t blas_create(void **handle_p)
{
    cublasLtHandle_t handle = NULL;
    sl_status_t status;

    SL_TRY(status, SL_BLAS(cublasLtCreate(&handle)), out);
    *handle_p = handle;
out:
    return status;
}

static void blas_destroy(void *handle)
{
    (void)cublasLtDestroy(handle);
}

/* The queue is an argument of each product. */
static const sl_cuda_handle_ops_t blas_ops = {.create = blas_create,
                                              .destroy = blas_destroy};

sl_status_t sl_cuda_blas(sl_cuda_stream_t *stream,
                         struct cublasLtContext **handle_p)
{
    void *handle = NULL;
    sl_status_t status;

    SL_TRY(status,
           sl_cuda_handle(stream, SL_CUDA_LIBRARY_BLAS, &blas_ops, &handle),
           out);
    *handle_p = handle;
out:
    return status;
}

sl_status_t sl_cuda_blas_borrow(struct cublasLtContext **handle_p)
{
    void *handle = NULL;
    sl_status_t status;

    SL_TRY(status,
           sl_cuda_handle_borrow(SL_CUDA_LIBRARY_BLAS, &blas_ops, &handle),
           out);
    *handle_p = handle;
out:
    return status;
}

void sl_cuda_blas_give_back(void)
{
    sl_cuda_handle_give_back(SL_CUDA_LIBRARY_BLAS);
}
