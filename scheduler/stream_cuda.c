/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA behind an op manager: a stream a queue, marks are events. An event with
 * blocking waits lets a second thread sleep until a mark has passed, while
 * the manager's own thread sleeps where new ops wake it too. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "memory/cuda.h"
#include "scheduler/cuda.h"
#include "scheduler/machine.h"
#include "scheduler/op_backend.h"

enum {
    NONE = -1,
    TRIES = 3 /* to hear that the device has come to rest */
};

typedef struct executor {
    int device;
    sl_cuda_stream_t streams[SL_OP_N_QUEUES];
    cudaEvent_t *marks;
    int n_marks;
    void (*wake)(void *arg);
    void *arg;
    /* the thread that waits */
    pthread_t watcher;
    int has_watcher;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int is_ending;      /* guarded by lock */
    atomic_int watched; /* written under lock */
} executor_t;

/* ---- the thread that waits ---- */

/* What the wait returns is not looked at: the manager's thread asks itself. */
static void *watch_main(void *arg)
{
    executor_t *executor = arg;

    if (cudaSetDevice(executor->device) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    (void)pthread_mutex_lock(&executor->lock);
    while (!executor->is_ending) {
        const int mark = atomic_load(&executor->watched);

        if (mark == NONE) {
            (void)pthread_cond_wait(&executor->changed, &executor->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&executor->lock);
        if (cudaEventSynchronize(executor->marks[mark]) != cudaSuccess) {
            (void)cudaGetLastError();
        }
        (void)pthread_mutex_lock(&executor->lock);
        atomic_store(&executor->watched, NONE);
        (void)pthread_mutex_unlock(&executor->lock);
        executor->wake(executor->arg);
        (void)pthread_mutex_lock(&executor->lock);
    }
    (void)pthread_mutex_unlock(&executor->lock);
    return NULL;
}

static void watch(void *ctx, int mark)
{
    executor_t *executor = ctx;

    (void)pthread_mutex_lock(&executor->lock);
    if (atomic_load(&executor->watched) == NONE) {
        atomic_store(&executor->watched, mark);
        (void)pthread_cond_signal(&executor->changed);
    }
    (void)pthread_mutex_unlock(&executor->lock);
}

static int watched(void *ctx)
{
    executor_t *executor = ctx;

    return atomic_load(&executor->watched);
}

/* ---- queues and marks ---- */

static cudaStream_t queue_of(const executor_t *executor, sl_op_queue_t queue)
{
    return executor->streams[queue].queue;
}

static void *stream_of(void *ctx, sl_op_queue_t queue)
{
    executor_t *executor = ctx;

    return &executor->streams[queue];
}

static sl_status_t mark_put(void *ctx, sl_op_queue_t queue, int mark)
{
    const executor_t *executor = ctx;

    return SL_CUDA(
        cudaEventRecord(executor->marks[mark], queue_of(executor, queue)));
}

static sl_status_t mark_follow(void *ctx, sl_op_queue_t queue, int mark)
{
    const executor_t *executor = ctx;

    return SL_CUDA(cudaStreamWaitEvent(queue_of(executor, queue),
                                       executor->marks[mark], 0));
}

static sl_status_t mark_query(void *ctx, int mark)
{
    const executor_t *executor = ctx;
    const cudaError_t error = cudaEventQuery(executor->marks[mark]);

    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* not an error */
        return SL_INPROGRESS;
    }
    return sl_cuda_status((int)error, "work of the device", __FILE__, __LINE__);
}

static sl_status_t mark_elapsed(void *ctx, int from, int to, int64_t *ns_p)
{
    const executor_t *executor = ctx;
    sl_status_t status;
    float ms = 0.0f;

    SL_TRY(status,
           SL_CUDA(cudaEventElapsedTime(&ms, executor->marks[from],
                                        executor->marks[to])),
           out);
    *ns_p = (int64_t)((double)ms * 1e6);
out:
    return status;
}

/* A failure is known already; a device that has failed for good does nothing
 * any more. */
static void settle(void *ctx)
{
    const executor_t *executor = ctx;
    int i;
    int k;

    for (i = 0; i < SL_OP_N_QUEUES; i++) {
        const cudaStream_t queue = queue_of(executor, (sl_op_queue_t)i);

        for (k = 0; k < TRIES && cudaStreamSynchronize(queue) != cudaSuccess;
             k++) {
            (void)cudaGetLastError();
        }
    }
}

/* ---- graphs ---- */

/* As SL_CUDA(), but no error: without a capture it goes on. */
static sl_status_t capture_status(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) {
        return SL_OK;
    }
    (void)cudaGetLastError();
    sl_fail_record(1, __FILE__, __LINE__, "%s: %s (%s)", call,
                   cudaGetErrorString(error), cudaGetErrorName(error));
    return SL_ERR_DEVICE;
}

static sl_status_t capture_begin(void *ctx)
{
    const executor_t *executor = ctx;

    return capture_status(
        cudaStreamBeginCapture(queue_of(executor, SL_OP_QUEUE_MAIN),
                               cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}

/* One that is not valid ends with an error. */
static void capture_cancel(void *ctx)
{
    const executor_t *executor = ctx;
    cudaGraph_t graph = NULL;
    int k;

    for (k = 0; k < TRIES && graph == NULL; k++) {
        if (cudaStreamEndCapture(queue_of(executor, SL_OP_QUEUE_MAIN),
                                 &graph) != cudaSuccess) {
            (void)cudaGetLastError();
            graph = NULL;
        }
    }
    if (graph != NULL && cudaGraphDestroy(graph) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

/* One that runs is destroyed only when it has ended. */
static void drop(void *ctx, void *graph)
{
    const executor_t *executor = ctx;

    (void)cudaStreamSynchronize(queue_of(executor, SL_OP_QUEUE_MAIN));
    if (cudaGraphExecDestroy(graph) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

/* @return whether the graph could be updated; a failure of the device shows
 *         at the next call */
static int update(cudaGraphExec_t exec, cudaGraph_t graph)
{
    cudaGraphExecUpdateResultInfo info;

    memset(&info, 0, sizeof(info));
    if (cudaGraphExecUpdate(exec, graph, &info) == cudaSuccess) {
        return 1;
    }
    (void)cudaGetLastError();
    return 0;
}

static sl_status_t capture_end(void *ctx, void **graph_p)
{
    const executor_t *executor = ctx;
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = NULL;
    sl_status_t status;

    status = capture_status(
        cudaStreamEndCapture(queue_of(executor, SL_OP_QUEUE_MAIN), &graph),
        "cudaStreamEndCapture");
    if (status < 0) {
        capture_cancel(ctx);
        return status;
    }
    if (*graph_p == NULL || !update(*graph_p, graph)) {
        SL_TRY(status,
               capture_status(cudaGraphInstantiate(&exec, graph, 0),
                              "cudaGraphInstantiate"),
               out_graph);
        if (*graph_p != NULL) {
            drop(ctx, *graph_p);
        }
        *graph_p = exec;
    }
out_graph:
    if (cudaGraphDestroy(graph) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return status;
}

static sl_status_t launch(void *ctx, void *graph)
{
    const executor_t *executor = ctx;

    return SL_CUDA(
        cudaGraphLaunch(graph, queue_of(executor, SL_OP_QUEUE_MAIN)));
}

/* ---- life ---- */

static void watcher_end(executor_t *executor)
{
    if (executor->has_watcher) {
        (void)pthread_mutex_lock(&executor->lock);
        executor->is_ending = 1;
        (void)pthread_cond_signal(&executor->changed);
        (void)pthread_mutex_unlock(&executor->lock);
        (void)pthread_join(executor->watcher, NULL);
    }
}

static void stream_end(sl_cuda_stream_t *stream)
{
    int i;

    for (i = 0; i < SL_CUDA_N_LIBRARIES; i++) {
        if (stream->handles[i] != NULL && stream->release[i] != NULL) {
            stream->release[i](stream->handles[i]);
        }
    }
    /* a device that has failed says so once more */
    if (stream->queue != NULL &&
        cudaStreamDestroy(stream->queue) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

static void executor_close(void *ctx)
{
    executor_t *executor = ctx;
    int i;

    watcher_end(executor);
    for (i = 0; i < SL_OP_N_QUEUES; i++) {
        stream_end(&executor->streams[i]);
    }
    for (i = 0; executor->marks != NULL && i < executor->n_marks; i++) {
        if (executor->marks[i] != NULL &&
            cudaEventDestroy(executor->marks[i]) != cudaSuccess) {
            (void)cudaGetLastError();
        }
    }
    free(executor->marks);
    (void)pthread_cond_destroy(&executor->changed);
    (void)pthread_mutex_destroy(&executor->lock);
    free(executor);
}

static sl_status_t make_queues(executor_t *executor)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < SL_OP_N_QUEUES; i++) {
        cudaStream_t queue = NULL;

        SL_TRY(
            status,
            SL_CUDA(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking)),
            out);
        executor->streams[i].device = executor->device;
        executor->streams[i].queue = queue;
    }
    for (i = 0; i < executor->n_marks; i++) {
        SL_TRY(status,
               SL_CUDA(cudaEventCreateWithFlags(&executor->marks[i],
                                                cudaEventBlockingSync)),
               out);
    }
out:
    return status;
}

static sl_status_t executor_open(const sl_op_backend_params_t *params,
                                 void **ctx_p)
{
    executor_t *executor = calloc(1, sizeof(*executor));
    sl_status_t status;

    if (executor == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                params->name);
    }
    (void)pthread_mutex_init(&executor->lock, NULL);
    (void)pthread_cond_init(&executor->changed, NULL);
    atomic_store(&executor->watched, NONE);
    executor->device = params->device;
    executor->n_marks = params->n_marks;
    executor->wake = params->wake;
    executor->arg = params->arg;
    executor->marks = calloc((size_t)params->n_marks, sizeof(*executor->marks));
    if (executor->marks == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_close, "%s: no host memory",
                params->name);
    }
    SL_TRY(status, SL_CUDA(cudaSetDevice(params->device)), err_close);
    SL_TRY(status, make_queues(executor), err_close);
    if (pthread_create(&executor->watcher, NULL, watch_main, executor) != 0) {
        SL_FAIL(status, SL_ERR_DEVICE, err_close,
                "%s: the thread that waits for the device not started",
                params->name);
    }
    executor->has_watcher = 1;
    *ctx_p = executor;
    return SL_OK;

err_close:
    executor_close(executor);
out:
    return status;
}

const sl_op_backend_t *sl_op_backend_cuda(void)
{
    static const sl_op_backend_t backend = {
        .name = "cuda",
        .open = executor_open,
        .close = executor_close,
        .stream = stream_of,
        .mark = mark_put,
        .follow = mark_follow,
        .query = mark_query,
        .elapsed = mark_elapsed,
        .watch = watch,
        .watched = watched,
        .settle = settle,
        .capture_begin = capture_begin,
        .capture_end = capture_end,
        .capture_cancel = capture_cancel,
        .launch = launch,
        .drop = drop,
    };

    return &backend;
}
