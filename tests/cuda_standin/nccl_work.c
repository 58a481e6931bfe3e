/* SPDX-License-Identifier: Apache-2.0 */
/* What goes on beside the program: a communicator's thread meets the other
 * ranks and puts operations into streams some time after the call, as the
 * real one may; streams move the bytes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_internal.h"

pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t nccl_changed = PTHREAD_COND_INITIALIZER;
int nccl_n_comms;

ncclResult_t comm_fail(ncclComm_t comm, ncclResult_t result, const char *text)
{
    size_t n = strlen(text);

    n = n < sizeof(comm->error) - 1 ? n : sizeof(comm->error) - 1;
    memcpy(comm->error, text, n);
    comm->error[n] = '\0';
    return result;
}

void batches_free(batch_t *batches)
{
    while (batches != NULL) {
        batch_t *next = batches->next;

        while (batches->ops != NULL) {
            op_t *op = batches->ops;

            batches->ops = op->next;
            free(op);
        }
        free(batches);
        batches = next;
    }
}

/* ---- on a stream ---- */

/* Messages between two ranks go one after the other. */
static int is_behind(const batch_t *batch, const op_t *op)
{
    const op_t *other;

    for (other = batch->ops; other != op; other = other->next) {
        if (other->peer == op->peer && other->is_send == op->is_send &&
            !other->is_done &&
            !(op->is_send && other->has_head &&
              other->n_moved == other->bytes)) {
            return 1;
        }
    }
    return 0;
}

/* @return -1: all done; else whether anything moved */
static int batch_progress(const batch_t *batch)
{
    int is_done = 1, has_moved = 0;
    op_t *op;

    for (op = batch->ops; op != NULL; op = op->next) {
        if (!op->is_done && !is_behind(batch, op)) {
            has_moved |= op_progress(op);
        }
        is_done &= op->is_done;
    }
    return is_done ? -1 : has_moved;
}

static int has_late_error(const batch_t *batch)
{
    const op_t *op;

    for (op = batch->ops; op != NULL; op = op->next) {
        if (op->is_late_error) {
            return 1;
        }
    }
    return 0;
}

static void batch_run(task_t *task)
{
    batch_t *batch = (batch_t *)(void *)task;
    ncclComm_t comm = batch->comm;

    if (has_late_error(batch)) {
        atomic_store(&comm->async_error, (int)standin_late_error());
    }
    /* what has failed goes no further, and ends when it is aborted */
    while (!atomic_load(&comm->is_aborted)) {
        const int moved =
            atomic_load(&comm->async_error) == 0 ? batch_progress(batch) : 0;

        if (moved < 0) {
            break;
        }
        if (moved == 0) {
            nccl_pause();
        }
    }
}

/* Under the lock of the stand-in, as all releases are. */
static void batch_release(task_t *task)
{
    batch_t *batch = (batch_t *)(void *)task;
    ncclComm_t comm = batch->comm;

    unlock();
    (void)pthread_mutex_lock(&nccl_lock);
    comm->n_running--;
    (void)pthread_cond_broadcast(&nccl_changed);
    (void)pthread_mutex_unlock(&nccl_lock);
    batch->next = NULL;
    batches_free(batch);
    lock();
}

/* ---- launching ---- */

static ring_t *ring_to(ncclComm_t comm, const op_t *op)
{
    return op->is_send ? &comm->hub->rings[comm->rank][op->peer]
                       : &comm->hub->rings[op->peer][comm->rank];
}

int comm_is_connected(ncclComm_t comm, const batch_t *batches)
{
    const op_t *op;

    for (; batches != NULL; batches = batches->next) {
        for (op = batches->ops; op != NULL; op = op->next) {
            ring_t *ring = ring_to(comm, op);

            if (!atomic_load(&ring->has_sender) ||
                !atomic_load(&ring->has_receiver)) {
                return 0;
            }
        }
    }
    return 1;
}

/* The first message between two ranks: each waits for the other's call. */
static int connect_all(ncclComm_t comm, const batch_t *batches)
{
    const batch_t *batch;
    const op_t *op;

    for (batch = batches; batch != NULL; batch = batch->next) {
        for (op = batch->ops; op != NULL; op = op->next) {
            ring_t *ring = ring_to(comm, op);

            atomic_store(op->is_send ? &ring->has_sender : &ring->has_receiver,
                         1);
        }
    }
    while (!comm_is_connected(comm, batches)) {
        if (atomic_load(&comm->is_aborted)) {
            return 0;
        }
        nccl_pause();
    }
    return 1;
}

/* With the stand-in's lock. @return 0: memory that is not there, reported */
static int declare(cudaStream_t stream, const batch_t *batch)
{
    const op_t *op;

    stream_begin(stream);
    for (op = batch->ops; op != NULL; op = op->next) {
        if (op->bytes > 0 &&
            !order_use(stream, op->memory, (size_t)op->bytes, !op->is_send,
                       op->is_send ? "ncclSend" : "ncclRecv")) {
            return 0;
        }
    }
    return 1;
}

ncclResult_t comm_launch(ncclComm_t comm, batch_t *batches)
{
    if (!connect_all(comm, batches)) {
        batches_free(batches);
        return ncclInternalError;
    }
    while (batches != NULL) {
        batch_t *batch = batches;
        cudaStream_t stream;

        batches = batch->next;
        lock();
        stream = stream_resolve(batch->stream);
        if (stream == NULL || stream->device != comm->device ||
            !declare(stream, batch)) {
            unlock();
            batch->next = batches;
            batches_free(batch);
            return ncclInvalidArgument;
        }
        batch->task.run = batch_run;
        batch->task.release = batch_release;
        unlock();
        (void)pthread_mutex_lock(&nccl_lock);
        comm->n_running++;
        (void)pthread_mutex_unlock(&nccl_lock);
        lock();
        stream_queue(stream, &batch->task);
        unlock();
    }
    return ncclSuccess;
}

/* ---- a communicator's thread ---- */

static int has_twin(ncclComm_t comm)
{
    int r;

    for (r = 0; r < comm->n_ranks; r++) {
        if (r != comm->rank && atomic_load(&comm->hub->devices[r]) ==
                                   standin_host_number(comm->device) + 1) {
            return 1;
        }
    }
    return 0;
}

static ncclResult_t meet(ncclComm_t comm, const char **text_p)
{
    comm->hub = hub_open(&comm->id);
    if (comm->hub == NULL) {
        *text_p = "no communicator of this id";
        return ncclSystemError;
    }
    atomic_store(&comm->hub->n_ranks, comm->n_ranks);
    atomic_store(&comm->hub->devices[comm->rank],
                 standin_host_number(comm->device) + 1);
    (void)atomic_fetch_add(&comm->hub->n_here, 1);
    while (atomic_load(&comm->hub->n_here) < comm->n_ranks) {
        if (atomic_load(&comm->is_aborted)) {
            hub_forget(&comm->id);
            *text_p = "aborted while it waited for other ranks";
            return ncclInternalError;
        }
        nccl_pause();
    }
    hub_forget(&comm->id);
    if (has_twin(comm)) {
        *text_p = "Duplicate GPU detected : two ranks use the same device";
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

static void await_running(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&nccl_lock);
    while (comm->n_running > 0) {
        (void)pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    (void)pthread_mutex_unlock(&nccl_lock);
}

/* A test has asked that it does not end by itself. */
static void stall(ncclComm_t comm, job_t job)
{
    static const standin_nccl_job_t names[] = {
        [JOB_NONE] = STANDIN_NCCL_NONE,
        [JOB_INIT] = STANDIN_NCCL_MEET,
        [JOB_LAUNCH] = STANDIN_NCCL_LAUNCH,
        [JOB_FINALIZE] = STANDIN_NCCL_FINALIZE};

    while (job != JOB_NONE && standin_stalled() == names[job] &&
           !atomic_load(&comm->is_aborted)) {
        nccl_pause();
    }
}

static ncclResult_t do_job(ncclComm_t comm, job_t job, batch_t *batches,
                           const char **text_p)
{
    ncclResult_t result = ncclSuccess;

    stall(comm, job);
    switch (job) {
    case JOB_INIT:
        return meet(comm, text_p);
    case JOB_LAUNCH:
        nccl_pause(); /* later than the call */
        result = comm_launch(comm, batches);
        *text_p = "operation not launched";
        return result;
    case JOB_FINALIZE:
        await_running(comm);
        return ncclSuccess;
    case JOB_NONE:
        break;
    }
    return ncclSuccess;
}

static void *comm_main(void *arg)
{
    ncclComm_t comm = arg;

    (void)pthread_mutex_lock(&nccl_lock);
    for (;;) {
        const job_t job = comm->job;
        batch_t *batches = comm->batches;
        const char *text = "";
        ncclResult_t result;

        if (job == JOB_NONE) {
            if (comm->is_closing) {
                break;
            }
            (void)pthread_cond_wait(&nccl_changed, &nccl_lock);
            continue;
        }
        comm->batches = NULL;
        (void)pthread_mutex_unlock(&nccl_lock);
        result = do_job(comm, job, batches, &text);
        (void)pthread_mutex_lock(&nccl_lock);
        comm->job = JOB_NONE;
        comm->is_ready |= job == JOB_INIT && result == ncclSuccess;
        comm->state =
            result == ncclSuccess ? result : comm_fail(comm, result, text);
        (void)pthread_cond_broadcast(&nccl_changed);
    }
    (void)pthread_mutex_unlock(&nccl_lock);
    return NULL;
}

int comm_start(ncclComm_t comm)
{
    comm->job = JOB_INIT;
    comm->state = ncclInProgress;
    return pthread_create(&comm->thread, NULL, comm_main, comm) == 0;
}
