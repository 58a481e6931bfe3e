/* SPDX-License-Identifier: Apache-2.0 */
/* Captured graphs: pieces of work with the bytes they use, in a row. What a
 * graph uses is checked at each launch, not when it is captured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin_internal.h"

typedef struct use {
    struct use *next;
    const void *ptr;
    size_t bytes;
    int is_write;
    char name[NAME_BYTES];
} use_t;

typedef struct CUgraphNode_st {
    struct CUgraphNode_st *next;
    task_t *task;
    use_t *uses;
} node_t;

/* Lives until nobody can run it any more. */
struct CUgraph_st {
    int n_refs; /* the program's, its executables', and of queued work */
    node_t *head, *tail;
    use_t *uses; /* of the node to come */
    pthread_t thread;
    int is_invalid;
};

struct CUgraphExec_st {
    struct CUgraph_st *graph;
};

/* guarded by the lock */
static int n_live;
static void (*graph_hook)(int device);
static _Thread_local struct CUgraph_st *own_capture;
static _Thread_local enum cudaStreamCaptureMode own_mode; /* global at first */

int graphs_n_live(void)
{
    return n_live;
}

/* ---- life of a graph; lock held ---- */

static void uses_free(use_t *use)
{
    while (use != NULL) {
        use_t *next = use->next;

        free(use);
        use = next;
    }
}

static void task_free(task_t *task)
{
    if (task->release != NULL) {
        task->release(task);
    } else {
        free(task);
    }
}

static void graph_unref(struct CUgraph_st *graph)
{
    if (--graph->n_refs > 0) {
        return;
    }
    while (graph->head != NULL) {
        node_t *node = graph->head;

        graph->head = node->next;
        uses_free(node->uses);
        task_free(node->task);
        free(node);
    }
    uses_free(graph->uses);
    free(graph);
}

/* ---- capture; lock held ---- */

void graph_begin(struct CUgraph_st *graph)
{
    uses_free(graph->uses);
    graph->uses = NULL;
}

int graph_use(struct CUgraph_st *graph, const void *ptr, size_t bytes,
              int is_write, const char *name)
{
    use_t *use = calloc(1, sizeof(*use));

    if (use == NULL) {
        abort();
    }
    use->ptr = ptr;
    use->bytes = bytes;
    use->is_write = is_write;
    (void)snprintf(use->name, sizeof(use->name), "%s", name);
    use->next = graph->uses;
    graph->uses = use;
    return 1;
}

void graph_queue(struct CUgraph_st *graph, task_t *task)
{
    node_t *node = calloc(1, sizeof(*node));

    if (node == NULL) {
        abort();
    }
    node->task = task;
    node->uses = graph->uses;
    graph->uses = NULL;
    if (graph->tail == NULL) {
        graph->head = node;
    } else {
        graph->tail->next = node;
    }
    graph->tail = node;
}

int graph_refuses(cudaStream_t stream)
{
    if (stream->capture != NULL) {
        stream->capture->is_invalid = 1;
        return 1;
    }
    return 0;
}

/* Calls that wait, or may: not in the thread of a capture, unless it says
 * that they have nothing to do with it. */
int graph_refuses_entry(standin_entry_t entry)
{
    static const standin_entry_t unsafe[] = {
        STANDIN_cudaMalloc,      STANDIN_cudaFree,
        STANDIN_cudaMallocAsync, STANDIN_cudaFreeAsync,
        STANDIN_cudaHostAlloc,   STANDIN_cudaFreeHost,
        STANDIN_cudaMemcpy,      STANDIN_cudaMemset,
        STANDIN_cudaEventQuery,  STANDIN_cudaDeviceSynchronize,
        STANDIN_cublasLtCreate,  STANDIN_cudnnCreate,
    };
    size_t i;

    if (own_capture == NULL || own_mode == cudaStreamCaptureModeRelaxed) {
        return 0;
    }
    for (i = 0; i < sizeof(unsafe) / sizeof(*unsafe); i++) {
        if (unsafe[i] == entry) {
            own_capture->is_invalid = 1;
            return 1;
        }
    }
    return 0;
}

void graph_forget(cudaStream_t stream)
{
    if (stream->capture != NULL) {
        if (own_capture == stream->capture) {
            own_capture = NULL;
        }
        graph_unref(stream->capture);
        stream->capture = NULL;
    }
}

cudaError_t
cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    const enum cudaStreamCaptureMode given = *mode;

    STANDIN_ENTER(cudaThreadExchangeStreamCaptureMode);
    *mode = own_mode;
    own_mode = given;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   enum cudaStreamCaptureMode mode)
{
    cudaError_t error = cudaSuccess;
    struct CUgraph_st *graph;

    STANDIN_ENTER(cudaStreamBeginCapture);
    if (stream == NULL || mode != cudaStreamCaptureModeThreadLocal) {
        return standin_give(cudaErrorStreamCaptureUnsupported);
    }
    graph = calloc(1, sizeof(*graph));
    if (graph == NULL) {
        return standin_give(cudaErrorMemoryAllocation);
    }
    graph->n_refs = 1;
    graph->thread = pthread_self();
    lock();
    if (stream_resolve(stream) == NULL) {
        error = cudaErrorInvalidResourceHandle;
    } else if (stream->capture != NULL || own_capture != NULL) {
        error = cudaErrorStreamCaptureUnsupported;
    } else {
        stream->capture = own_capture = graph;
        graph = NULL;
    }
    unlock();
    free(graph);
    return standin_give(error);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t error = cudaSuccess;

    *graph = NULL;
    STANDIN_ENTER(cudaStreamEndCapture);
    lock();
    if (stream_resolve(stream) == NULL) {
        error = cudaErrorInvalidResourceHandle;
    } else if (stream->capture == NULL) {
        error = cudaErrorStreamCaptureUnmatched;
    } else if (!pthread_equal(stream->capture->thread, pthread_self())) {
        error = cudaErrorStreamCaptureWrongThread;
    } else if (stream->capture->is_invalid) {
        graph_forget(stream);
        error = cudaErrorStreamCaptureInvalidated;
    } else {
        *graph = stream->capture;
        stream->capture = own_capture = NULL;
        n_live++;
    }
    unlock();
    return standin_give(error);
}

/* ---- graphs that can run ---- */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags)
{
    cudaGraphExec_t made;

    STANDIN_ENTER(cudaGraphInstantiate);
    made = flags == 0 ? calloc(1, sizeof(*made)) : NULL;
    if (made == NULL) {
        return standin_give(cudaErrorInvalidValue);
    }
    lock();
    made->graph = graph;
    graph->n_refs++;
    n_live++;
    unlock();
    *exec = made;
    return cudaSuccess;
}

/* Kernels may be others, kinds of work may not. */
static int has_form_of(const struct CUgraph_st *a, const struct CUgraph_st *b)
{
    const node_t *x = a->head, *y = b->head;

    while (x != NULL && y != NULL && x->task->run == y->task->run) {
        x = x->next;
        y = y->next;
    }
    return x == NULL && y == NULL;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info)
{
    cudaError_t error = cudaSuccess;

    memset(info, 0, sizeof(*info));
    STANDIN_ENTER(cudaGraphExecUpdate);
    lock();
    if (!has_form_of(exec->graph, graph)) {
        info->result = cudaGraphExecUpdateErrorTopologyChanged;
        error = cudaErrorGraphExecUpdateFailure;
    } else {
        graph->n_refs++;
        graph_unref(exec->graph);
        exec->graph = graph;
    }
    unlock();
    return standin_give(error);
}

void standin_set_graph_hook(void (*hook)(int device))
{
    lock();
    graph_hook = hook;
    unlock();
}

/* A node of a launch. */
typedef struct node_task {
    task_t task;
    node_t *node;
    struct CUgraph_st *graph;
    int device;
} node_task_t;

static void tell_hook(int device)
{
    void (*hook)(int device);

    lock();
    hook = graph_hook;
    unlock();
    if (hook != NULL) {
        hook(device);
    }
}

static void node_run(task_t *task)
{
    const node_task_t *job = (const node_task_t *)(const void *)task;

    if (job->node == job->graph->head) {
        tell_hook(job->device);
    }
    job->node->task->run(job->node->task);
}

static void node_release(task_t *task)
{
    node_task_t *job = (node_task_t *)(void *)task;

    graph_unref(job->graph);
    free(job);
}

static void node_queue(cudaStream_t stream, struct CUgraph_st *graph,
                       node_t *node, cudaError_t error)
{
    node_task_t *job = calloc(1, sizeof(*job));
    const use_t *use;

    if (job == NULL) {
        abort();
    }
    job->task.run = node_run;
    job->task.release = node_release;
    job->task.error = error != cudaSuccess ? error : node->task->error;
    job->node = node;
    job->graph = graph;
    job->device = stream->device;
    graph->n_refs++;
    stream_begin(stream);
    for (use = node->uses; use != NULL; use = use->next) {
        if (!order_use(stream, use->ptr, use->bytes, use->is_write,
                       use->name)) {
            job->task.error = cudaErrorIllegalAddress;
        }
    }
    stream_queue(stream, &job->task);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    int is_late = 0;
    cudaError_t error = standin_enter(STANDIN_cudaGraphLaunch, &is_late);
    node_t *node;

    if (error != cudaSuccess) {
        return standin_give(error);
    }
    lock();
    if (stream_resolve(stream) == NULL) {
        error = cudaErrorInvalidResourceHandle;
    } else if (graph_refuses(stream)) {
        error = cudaErrorStreamCaptureUnsupported;
    } else {
        for (node = exec->graph->head; node != NULL; node = node->next) {
            node_queue(stream, exec->graph, node,
                       is_late ? standin_late_error() : cudaSuccess);
        }
    }
    unlock();
    return standin_give(error);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    const cudaError_t error = standin_enter(STANDIN_cudaGraphExecDestroy, NULL);

    lock();
    graph_unref(exec->graph);
    n_live--;
    unlock();
    free(exec);
    return standin_give(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    const cudaError_t error = standin_enter(STANDIN_cudaGraphDestroy, NULL);

    if (graph == NULL) {
        return standin_give(cudaErrorInvalidValue);
    }
    lock();
    graph_unref(graph);
    n_live--;
    unlock();
    return standin_give(error);
}
