/* SPDX-License-Identifier: Apache-2.0 */
/* Streams are threads with a queue. What is ordered is known when work is
 * queued: the clocks move then, whatever the threads do. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "standin_internal.h"

enum {
    STACK_BYTES = 1 << 20
};

struct CUevent_st {
    int device;
    int has_time;
    int is_recorded;
    int n_pending;    /* record tasks that still write the time */
    int slot;         /* of the stream it was recorded on */
    uint64_t n_ended; /* that the stream must have ended */
    vclock_t clock;
    uint64_t time_ns;
};

uint64_t standin_done[N_SLOTS];

/* guarded by the lock */
static uint64_t n_queued[N_SLOTS]; /* of a slot, over its streams */
static cudaStream_t streams[N_SLOTS];
static cudaStream_t default_streams[MAX_DEVICES];
static int next_slot;
static int n_events;

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void run_task(cudaStream_t stream, task_t *task)
{
    const unsigned delay = standin_delay_us();
    const int is_dead = standin_sticky(stream->device) != cudaSuccess;

    if (task->error != cudaSuccess) {
        standin_raise(stream->device, task->error);
    } else if (!is_dead || task->is_control) {
        unlock();
        if (delay > 0) {
            const struct timespec pause = {.tv_sec = delay / 1000000,
                                           .tv_nsec =
                                               (long)(delay % 1000000) * 1000};

            (void)nanosleep(&pause, NULL);
        }
        task->run(task);
        lock();
    }
}

static void *stream_main(void *arg)
{
    cudaStream_t stream = arg;

    lock();
    for (;;) {
        task_t *task = stream->head;

        if (task == NULL) {
            if (stream->is_closing) {
                break;
            }
            (void)pthread_cond_wait(&standin_changed, &standin_lock);
            continue;
        }
        run_task(stream, task);
        stream->head = task->next;
        if (stream->head == NULL) {
            stream->tail = NULL;
        }
        standin_done[stream->slot]++;
        (void)pthread_cond_broadcast(&standin_changed);
        if (task->release != NULL) {
            task->release(task);
        } else {
            free(task);
        }
    }
    unlock();
    return NULL;
}

/* ---- life ---- */

static int free_slot(void)
{
    int i;

    for (i = 0; i < N_SLOTS; i++) {
        const int slot = (next_slot + i) % N_SLOTS;

        if (streams[slot] == NULL) {
            next_slot = (slot + 1) % N_SLOTS;
            return slot;
        }
    }
    return -1;
}

static cudaStream_t stream_make(int device, int is_blocking)
{
    const int slot = free_slot();
    cudaStream_t stream = slot < 0 ? NULL : calloc(1, sizeof(*stream));
    pthread_attr_t attr;
    int failed;

    if (stream == NULL) {
        return NULL;
    }
    stream->slot = slot;
    stream->device = device;
    stream->is_blocking = is_blocking;
    stream->clock = standin_host;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    failed = pthread_create(&stream->thread, &attr, stream_main, stream);
    (void)pthread_attr_destroy(&attr);
    if (failed) {
        free(stream);
        return NULL;
    }
    streams[slot] = stream;
    return stream;
}

static int is_stream(cudaStream_t stream)
{
    int i;

    for (i = 0; i < N_SLOTS; i++) {
        if (streams[i] == stream && stream != NULL) {
            return 1;
        }
    }
    return 0;
}

cudaStream_t stream_resolve(cudaStream_t stream)
{
    const int device = standin_device();

    if (stream != NULL) {
        return is_stream(stream) ? stream : NULL;
    }
    if (default_streams[device] == NULL) {
        default_streams[device] = stream_make(device, 1);
    }
    return default_streams[device];
}

static int is_default(cudaStream_t stream)
{
    return default_streams[stream->device] == stream;
}

int streams_n_live(void)
{
    int n = n_events;
    int i;

    for (i = 0; i < N_SLOTS; i++) {
        n += streams[i] != NULL && !is_default(streams[i]);
    }
    return n;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    cudaStream_t made;

    STANDIN_ENTER(cudaStreamCreateWithFlags);
    if ((flags & ~cudaStreamNonBlocking) != 0) {
        return standin_give(cudaErrorInvalidValue);
    }
    lock();
    made = stream_make(standin_device(), (flags & cudaStreamNonBlocking) == 0);
    unlock();
    if (made == NULL) {
        return standin_give(cudaErrorMemoryAllocation);
    }
    *stream = made;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    const cudaError_t error = standin_enter(STANDIN_cudaStreamDestroy, NULL);
    pthread_t thread;

    /* gone also where the device has failed */
    lock();
    if (!is_stream(stream) || is_default(stream)) {
        unlock();
        return standin_give(cudaErrorInvalidResourceHandle);
    }
    stream->is_closing = 1;
    thread = stream->thread;
    (void)pthread_cond_broadcast(&standin_changed);
    unlock();
    (void)pthread_join(thread, NULL);
    lock();
    streams[stream->slot] = NULL;
    graph_forget(stream);
    unlock();
    free(stream);
    return standin_give(error);
}

/* ---- work ---- */

typedef struct wait_task {
    task_t task;
    int slot;
    uint64_t n_ended;
} wait_task_t;

static void wait_run(task_t *task)
{
    const wait_task_t *wait = (const wait_task_t *)(const void *)task;

    lock();
    while (standin_done[wait->slot] < wait->n_ended) {
        (void)pthread_cond_wait(&standin_changed, &standin_lock);
    }
    unlock();
}

void stream_queue(cudaStream_t stream, task_t *task)
{
    if (stream->capture != NULL) {
        graph_queue(stream->capture, task);
        return;
    }
    task->next = NULL;
    if (stream->tail == NULL) {
        stream->head = task;
    } else {
        stream->tail->next = task;
    }
    stream->tail = task;
    n_queued[stream->slot]++;
    (void)pthread_cond_broadcast(&standin_changed);
}

/* Queue a wait for work of another stream. */
static void queue_wait(cudaStream_t stream, int slot, uint64_t n_ended)
{
    wait_task_t *wait = calloc(1, sizeof(*wait));

    if (wait == NULL) {
        abort();
    }
    wait->task.run = wait_run;
    wait->task.is_control = 1;
    wait->slot = slot;
    wait->n_ended = n_ended;
    stream_queue(stream, &wait->task);
}

static void follow(cudaStream_t stream, cudaStream_t other)
{
    vclock_join(&stream->clock, &other->clock);
    queue_wait(stream, other->slot, n_queued[other->slot]);
}

/* The default stream and the blocking ones wait for each other. */
static void follow_default(cudaStream_t stream)
{
    cudaStream_t common = default_streams[stream->device];
    int i;

    if (common == NULL || !stream->is_blocking) {
        return;
    }
    if (stream != common) {
        follow(stream, common);
        return;
    }
    for (i = 0; i < N_SLOTS; i++) {
        if (streams[i] != NULL && streams[i] != common &&
            streams[i]->device == stream->device && streams[i]->is_blocking) {
            follow(stream, streams[i]);
        }
    }
}

void stream_begin(cudaStream_t stream)
{
    if (stream->capture != NULL) {
        graph_begin(stream->capture);
        return;
    }
    follow_default(stream);
    vclock_join(&stream->clock, &standin_host);
    stream->clock.at[stream->slot]++;
}

void stream_wait(cudaStream_t stream)
{
    const int slot = stream->slot;
    const uint64_t n = n_queued[slot];
    const vclock_t clock = stream->clock;

    while (standin_done[slot] < n) {
        (void)pthread_cond_wait(&standin_changed, &standin_lock);
    }
    vclock_join(&standin_host, &clock);
}

void standin_wait_unseen(cudaStream_t stream)
{
    uint64_t n;

    lock();
    stream = stream_resolve(stream);
    n = n_queued[stream->slot];
    while (standin_done[stream->slot] < n) {
        (void)pthread_cond_wait(&standin_changed, &standin_lock);
    }
    unlock();
}

void streams_wait(int device)
{
    int i;

    for (i = 0; i < N_SLOTS; i++) {
        if (streams[i] != NULL &&
            (device < 0 || streams[i]->device == device)) {
            stream_wait(streams[i]);
        }
    }
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t error;

    STANDIN_ENTER(cudaStreamSynchronize);
    lock();
    stream = stream_resolve(stream);
    if (stream == NULL) {
        unlock();
        return standin_give(cudaErrorInvalidResourceHandle);
    }
    if (graph_refuses(stream)) {
        unlock();
        return standin_give(cudaErrorStreamCaptureUnsupported);
    }
    stream_wait(stream);
    error = standin_sticky(stream->device);
    unlock();
    return standin_give(error);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t error;

    STANDIN_ENTER(cudaStreamQuery);
    lock();
    stream = stream_resolve(stream);
    if (stream == NULL) {
        unlock();
        return standin_give(cudaErrorInvalidResourceHandle);
    }
    error = standin_sticky(stream->device);
    if (graph_refuses(stream)) {
        error = cudaErrorStreamCaptureUnsupported;
    }
    if (error == cudaSuccess) {
        if (standin_done[stream->slot] < n_queued[stream->slot]) {
            error = cudaErrorNotReady;
        } else {
            vclock_join(&standin_host, &stream->clock);
        }
    }
    unlock();
    return standin_give(error);
}

typedef struct call_task {
    task_t task;
    cudaHostFn_t fn;
    void *user_data;
    vclock_t clock;
} call_task_t;

static void call_run(task_t *task)
{
    const call_task_t *call = (const call_task_t *)(const void *)task;

    /* the host knows that all before it have ended */
    lock();
    vclock_join(&standin_host, &call->clock);
    unlock();
    call->fn(call->user_data);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn,
                               void *user_data)
{
    call_task_t *call;

    STANDIN_ENTER(cudaLaunchHostFunc);
    call = calloc(1, sizeof(*call));
    if (call == NULL) {
        return standin_give(cudaErrorMemoryAllocation);
    }
    call->task.run = call_run;
    call->fn = fn;
    call->user_data = user_data;
    lock();
    stream = stream_resolve(stream);
    if (stream == NULL) {
        unlock();
        free(call);
        return standin_give(cudaErrorInvalidResourceHandle);
    }
    stream_begin(stream);
    call->clock = stream->clock;
    stream_queue(stream, &call->task);
    unlock();
    return cudaSuccess;
}

typedef struct sleep_task {
    task_t task;
    unsigned microseconds;
} sleep_task_t;

static void sleep_run(task_t *task)
{
    const sleep_task_t *job = (const sleep_task_t *)(const void *)task;
    const struct timespec pause = {
        .tv_sec = job->microseconds / 1000000,
        .tv_nsec = (long)(job->microseconds % 1000000) * 1000};

    (void)nanosleep(&pause, NULL);
}

cudaError_t standin_sleep(cudaStream_t stream, unsigned microseconds)
{
    sleep_task_t *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        abort();
    }
    job->task.run = sleep_run;
    job->microseconds = microseconds;
    lock();
    stream = stream_resolve(stream);
    if (stream == NULL) {
        unlock();
        free(job);
        return standin_give(cudaErrorInvalidResourceHandle);
    }
    stream_begin(stream);
    stream_queue(stream, &job->task);
    unlock();
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    cudaEvent_t made;

    STANDIN_ENTER(cudaEventCreateWithFlags);
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return standin_give(cudaErrorMemoryAllocation);
    }
    made->device = standin_device();
    made->has_time = (flags & cudaEventDisableTiming) == 0;
    lock();
    n_events++;
    unlock();
    *event = made;
    return cudaSuccess;
}

/* Lock held: the work that the event marks has ended. */
static int event_has_ended(cudaEvent_t event)
{
    return !event->is_recorded || standin_done[event->slot] >= event->n_ended;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t error = standin_enter(STANDIN_cudaEventDestroy, NULL);

    lock();
    /* its task still writes the time */
    while (event->n_pending > 0) {
        (void)pthread_cond_wait(&standin_changed, &standin_lock);
    }
    n_events--;
    unlock();
    free(event);
    return standin_give(error);
}

typedef struct record_task {
    task_t task;
    cudaEvent_t event;
} record_task_t;

static void record_run(task_t *task)
{
    const record_task_t *record = (const record_task_t *)(const void *)task;

    lock();
    record->event->time_ns = now_ns();
    record->event->n_pending--;
    (void)pthread_cond_broadcast(&standin_changed);
    unlock();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    record_task_t *record;

    STANDIN_ENTER(cudaEventRecord);
    record = calloc(1, sizeof(*record));
    if (record == NULL) {
        return standin_give(cudaErrorMemoryAllocation);
    }
    record->task.run = record_run;
    record->task.is_control = 1;
    record->event = event;
    lock();
    stream = stream_resolve(stream);
    if (stream == NULL || stream->device != event->device) {
        unlock();
        free(record);
        return standin_give(cudaErrorInvalidResourceHandle);
    }
    if (graph_refuses(stream)) {
        unlock();
        free(record);
        return standin_give(cudaErrorStreamCaptureUnsupported);
    }
    stream_begin(stream);
    stream_queue(stream, &record->task);
    event->is_recorded = 1;
    event->n_pending++;
    event->slot = stream->slot;
    event->n_ended = n_queued[stream->slot];
    event->clock = stream->clock;
    unlock();
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags)
{
    STANDIN_ENTER(cudaStreamWaitEvent);
    if (flags != 0) {
        return standin_give(cudaErrorInvalidValue);
    }
    lock();
    stream = stream_resolve(stream);
    if (stream == NULL) {
        unlock();
        return standin_give(cudaErrorInvalidResourceHandle);
    }
    if (graph_refuses(stream)) {
        unlock();
        return standin_give(cudaErrorStreamCaptureUnsupported);
    }
    if (event->is_recorded) {
        vclock_join(&stream->clock, &event->clock);
        queue_wait(stream, event->slot, event->n_ended);
    }
    unlock();
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t error;

    STANDIN_ENTER(cudaEventQuery);
    lock();
    error = standin_sticky(event->device);
    if (error == cudaSuccess) {
        if (!event_has_ended(event)) {
            error = cudaErrorNotReady;
        } else if (event->is_recorded) {
            vclock_join(&standin_host, &event->clock);
        }
    }
    unlock();
    return standin_give(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t error;

    STANDIN_ENTER(cudaEventSynchronize);
    lock();
    while (!event_has_ended(event)) {
        (void)pthread_cond_wait(&standin_changed, &standin_lock);
    }
    if (event->is_recorded) {
        vclock_join(&standin_host, &event->clock);
    }
    error = standin_sticky(event->device);
    unlock();
    return standin_give(error);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    cudaError_t error = cudaSuccess;

    STANDIN_ENTER(cudaEventElapsedTime);
    lock();
    if (!start->has_time || !end->has_time || !start->is_recorded ||
        !end->is_recorded) {
        error = cudaErrorInvalidResourceHandle;
    } else if (!event_has_ended(start) || !event_has_ended(end)) {
        error = cudaErrorNotReady;
    } else {
        *ms =
            (float)((double)((int64_t)end->time_ns - (int64_t)start->time_ns) *
                    1e-6);
    }
    unlock();
    return standin_give(error);
}
