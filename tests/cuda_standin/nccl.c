/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's calls. A communicator that does not block answers ncclInProgress and
 * is to be asked until it has ended; what is done with it before is an error,
 * reported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_internal.h"

/* Of the calling thread. */
static _Thread_local int depth;
static _Thread_local op_t *group, **group_end;
static _Thread_local ncclResult_t group_error;

/* Injected numbers are NCCL's; a device's sticky error is CUDA's. */
static ncclResult_t enter(standin_entry_t entry, int *is_late_p)
{
    const cudaError_t error = standin_enter(entry, is_late_p);

    if (error == cudaSuccess) {
        return ncclSuccess;
    }
    return (int)error < (int)ncclInProgress ? (ncclResult_t)error
                                            : ncclUnhandledCudaError;
}

#define ENTER(entry)                                                           \
    do {                                                                       \
        const ncclResult_t early = enter(STANDIN_##entry, NULL);               \
                                                                               \
        if (early != ncclSuccess) {                                            \
            return early;                                                      \
        }                                                                      \
    } while (0)

static void complain(const char *call)
{
    lock();
    standin_complain("%s on a communicator whose call before is still in "
                     "progress",
                     call);
    unlock();
}

/* ---- about ---- */

ncclResult_t ncclGetVersion(int *version)
{
    ENTER(ncclGetVersion);
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error";
    case ncclSystemError:
        return "unhandled system error";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    case ncclNumResults:
        break;
    }
    return "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm == NULL ? "" : comm->error;
}

int standin_n_communicators(void)
{
    int n;

    (void)pthread_mutex_lock(&nccl_lock);
    n = nccl_n_comms;
    (void)pthread_mutex_unlock(&nccl_lock);
    return n;
}

/* ---- life ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *unique_id)
{
    ENTER(ncclGetUniqueId);
    return hub_make(unique_id) ? ncclSuccess : ncclSystemError;
}

/* Wait until the communicator's job has ended. With the lock. */
static ncclResult_t await_job(ncclComm_t comm)
{
    while (comm->state == ncclInProgress) {
        (void)pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    return comm->state;
}

static int is_config(const ncclConfig_t *config)
{
    return config->magic == 0xcafebeef && config->size == sizeof(*config) &&
           (config->blocking == NCCL_CONFIG_UNDEF_INT ||
            config->blocking == 0 || config->blocking == 1);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_p, int n_ranks,
                                    ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclComm_t comm;
    ncclResult_t result = ncclInProgress;

    ENTER(ncclCommInitRankConfig);
    if (n_ranks < 1 || n_ranks > HUB_MAX_RANKS || rank < 0 || rank >= n_ranks ||
        (config != NULL && !is_config(config))) {
        return ncclInvalidArgument;
    }
    comm = calloc(1, sizeof(*comm));
    if (comm == NULL) {
        return ncclSystemError;
    }
    comm->rank = rank;
    comm->n_ranks = n_ranks;
    comm->device = standin_device();
    comm->is_blocking = config == NULL || config->blocking != 0;
    comm->id = id;
    if (!comm_start(comm)) {
        free(comm);
        return ncclSystemError;
    }
    (void)pthread_mutex_lock(&nccl_lock);
    nccl_n_comms++;
    if (comm->is_blocking && depth == 0) {
        result = await_job(comm);
    }
    (void)pthread_mutex_unlock(&nccl_lock);
    *comm_p = comm;
    return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *async_error)
{
    const int late = comm == NULL ? 0 : atomic_load(&comm->async_error);

    ENTER(ncclCommGetAsyncError);
    if (comm == NULL || async_error == NULL) {
        return ncclInvalidArgument;
    }
    (void)pthread_mutex_lock(&nccl_lock);
    *async_error = comm->state;
    if (late != 0) {
        *async_error =
            comm_fail(comm, (ncclResult_t)late, "failed while it ran");
    }
    (void)pthread_mutex_unlock(&nccl_lock);
    return ncclSuccess;
}

/* End the thread, when nothing of the communicator is in a stream. */
static void comm_free(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&nccl_lock);
    comm->is_closing = 1;
    (void)pthread_cond_broadcast(&nccl_changed);
    (void)pthread_mutex_unlock(&nccl_lock);
    (void)pthread_join(comm->thread, NULL);
    (void)pthread_mutex_lock(&nccl_lock);
    while (comm->n_running > 0) {
        (void)pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    nccl_n_comms--;
    (void)pthread_mutex_unlock(&nccl_lock);
    hub_close(comm->hub);
    free(comm);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t result = ncclInProgress;
    int is_busy;

    ENTER(ncclCommFinalize);
    if (comm == NULL) {
        return ncclInvalidArgument;
    }
    (void)pthread_mutex_lock(&nccl_lock);
    is_busy = comm->state == ncclInProgress;
    if (!is_busy) {
        comm->job = JOB_FINALIZE;
        comm->state = ncclInProgress;
        (void)pthread_cond_broadcast(&nccl_changed);
        result = comm->is_blocking ? await_job(comm) : ncclInProgress;
    }
    (void)pthread_mutex_unlock(&nccl_lock);
    if (is_busy) {
        complain("ncclCommFinalize");
        return ncclInvalidArgument;
    }
    return result;
}

/* Gone also where the device has failed. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    const ncclResult_t result = enter(STANDIN_ncclCommDestroy, NULL);
    int is_busy;

    if (comm == NULL) {
        return result;
    }
    (void)pthread_mutex_lock(&nccl_lock);
    is_busy = comm->state == ncclInProgress;
    (void)pthread_mutex_unlock(&nccl_lock);
    if (is_busy) {
        complain("ncclCommDestroy");
        atomic_store(&comm->is_aborted, 1);
    }
    comm_free(comm);
    return result;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    const ncclResult_t result = enter(STANDIN_ncclCommAbort, NULL);

    if (comm != NULL) {
        atomic_store(&comm->is_aborted, 1);
        comm_free(comm);
    }
    return result;
}

/* ---- groups ---- */

/* The batch of an operation's stream; made at the end of the list. */
static batch_t *batch_for(batch_t **list, const op_t *op)
{
    while (*list != NULL && (*list)->stream != op->stream) {
        list = &(*list)->next;
    }
    if (*list == NULL) {
        *list = calloc(1, sizeof(**list));
        if (*list == NULL) {
            abort();
        }
        (*list)->comm = op->comm;
        (*list)->stream = op->stream;
    }
    return *list;
}

/* Take one communicator's operations out of the group, by stream. */
static batch_t *take_batches(ncclComm_t comm)
{
    batch_t *batches = NULL;
    op_t **at = &group;

    while (*at != NULL) {
        op_t *op = *at;
        op_t **end;

        if (op->comm != comm) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        op->next = NULL;
        for (end = &batch_for(&batches, op)->ops; *end != NULL;
             end = &(*end)->next) {
        }
        *end = op;
    }
    return batches;
}

/* Every second launch of connected ranks is done within the call. */
static ncclResult_t launch(ncclComm_t comm)
{
    batch_t *batches = take_batches(comm);
    ncclResult_t result = ncclInProgress;
    int is_here;

    (void)pthread_mutex_lock(&nccl_lock);
    is_here = !comm->is_blocking && comm->n_launches++ % 2 == 1 &&
              comm_is_connected(comm, batches);
    if (!is_here) {
        comm->job = JOB_LAUNCH;
        comm->batches = batches;
        comm->state = ncclInProgress;
        (void)pthread_cond_broadcast(&nccl_changed);
        result = comm->is_blocking ? await_job(comm) : ncclInProgress;
    }
    (void)pthread_mutex_unlock(&nccl_lock);
    return is_here ? comm_launch(comm, batches) : result;
}

ncclResult_t ncclGroupStart(void)
{
    ENTER(ncclGroupStart);
    if (depth++ == 0) {
        group = NULL;
        group_end = &group;
        group_error = ncclSuccess;
    }
    return ncclSuccess;
}

static void drop_group(void)
{
    while (group != NULL) {
        op_t *op = group;

        group = op->next;
        free(op);
    }
}

static ncclResult_t end_group(void)
{
    ncclResult_t worst = ncclSuccess;

    if (--depth > 0) {
        return ncclSuccess;
    }
    if (group_error != ncclSuccess) {
        drop_group();
        return group_error;
    }
    while (group != NULL) {
        const ncclResult_t result = launch(group->comm);

        worst = result == ncclSuccess ? worst : result;
    }
    return worst;
}

ncclResult_t ncclGroupEnd(void)
{
    const ncclResult_t error = enter(STANDIN_ncclGroupEnd, NULL);

    if (depth == 0) {
        return ncclInvalidUsage;
    }
    group_error = group_error == ncclSuccess ? error : group_error;
    return end_group();
}

/* ---- operations ---- */

static const uint64_t type_bytes[ncclNumTypes] = {
    [ncclInt8] = 1,     [ncclUint8] = 1,      [ncclInt32] = 4,
    [ncclUint32] = 4,   [ncclInt64] = 8,      [ncclUint64] = 8,
    [ncclFloat16] = 2,  [ncclFloat32] = 4,    [ncclFloat64] = 8,
    [ncclBfloat16] = 2, [ncclFloat8e4m3] = 1, [ncclFloat8e5m2] = 1};

/* With the group begun. */
static ncclResult_t check(const op_t *op, const char *call)
{
    ncclResult_t state;
    int is_ready;

    if (op->comm == NULL || op->type >= ncclNumTypes || op->peer < 0 ||
        op->peer >= op->comm->n_ranks || op->peer == op->comm->rank ||
        (op->n > 0 && op->memory == NULL)) {
        return ncclInvalidArgument;
    }
    (void)pthread_mutex_lock(&nccl_lock);
    state = op->comm->state;
    is_ready = op->comm->is_ready;
    (void)pthread_mutex_unlock(&nccl_lock);
    if (state == ncclInProgress || !is_ready) {
        complain(call);
        return ncclInvalidArgument;
    }
    return state != ncclSuccess
               ? state
               : (ncclResult_t)atomic_load(&op->comm->async_error);
}

static ncclResult_t add_op(const op_t *like, standin_entry_t entry)
{
    int is_late = 0;
    ncclResult_t error = enter(entry, &is_late);
    op_t *op;

    if (depth++ == 0) {
        group = NULL;
        group_end = &group;
        group_error = ncclSuccess;
    }
    if (error == ncclSuccess) {
        error = check(like, standin_entry_name(entry));
    }
    if (error == ncclSuccess) {
        op = malloc(sizeof(*op));
        if (op == NULL) {
            abort();
        }
        *op = *like;
        op->is_late_error = is_late;
        op->bytes = op->n * type_bytes[op->type];
        *group_end = op;
        group_end = &op->next;
    } else if (group_error == ncclSuccess) {
        group_error = error;
    }
    if (depth == 1) {
        return end_group();
    }
    depth--;
    return error;
}

ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    const op_t op = {.comm = comm,
                     .stream = stream,
                     .is_send = 1,
                     .peer = peer,
                     .memory = (void *)(uintptr_t)from,
                     .n = n,
                     .type = type};

    return add_op(&op, STANDIN_ncclSend);
}

ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    const op_t op = {.comm = comm,
                     .stream = stream,
                     .peer = peer,
                     .memory = to,
                     .n = n,
                     .type = type};

    return add_op(&op, STANDIN_ncclRecv);
}
