/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nccl_internal.h
 * Inside the stand-in for NCCL: nccl.c is the calls, nccl_work.c what a
 * communicator's own thread and the streams do, nccl_hub.c the memory that
 * the ranks share, be they threads or processes.
 */
#ifndef SL_TESTS_CUDA_STANDIN_NCCL_INTERNAL_H
#define SL_TESTS_CUDA_STANDIN_NCCL_INTERNAL_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "standin_internal.h"

enum {
    HUB_MAX_RANKS = 8,
    RING_BYTES = 1 << 16
};

/* ---- shared by the ranks ---- */

/* What one rank sends another: messages, each a head and its bytes. */
typedef struct ring {
    _Atomic uint64_t n_written, n_read;  /* bytes, ever */
    atomic_int has_sender, has_receiver; /* each has called once */
    unsigned char data[RING_BYTES];
} ring_t;

typedef struct hub {
    atomic_int n_ranks;
    atomic_int n_here;
    atomic_int devices[HUB_MAX_RANKS];          /* number plus 1; 0: not here */
    ring_t rings[HUB_MAX_RANKS][HUB_MAX_RANKS]; /* from, to */
} hub_t;

/* A new one, and what finds it. @return 0 on failure */
int hub_make(ncclUniqueId *id);
/* The hub of an id, mapped; NULL: there is none. */
hub_t *hub_open(const ncclUniqueId *id);
/* All are here: nobody looks for it any more. */
void hub_forget(const ncclUniqueId *id);
void hub_close(hub_t *hub);

/* ---- operations ---- */

typedef struct op {
    struct op *next;
    ncclComm_t comm;
    cudaStream_t stream;
    int is_send, peer;
    void *memory; /* as the program sees it */
    uint64_t n, type, bytes;
    int is_late_error; /* injected */
    /* progress */
    int has_head, is_done;
    uint64_t n_moved; /* bytes, without the head */
    uint64_t end;     /* sender: n_read at which all was taken */
} op_t;

/* Move what can be moved now. @return whether anything was */
int op_progress(op_t *op);

/* Operations of one communicator and stream that began together. */
typedef struct batch {
    task_t task; /* first */
    ncclComm_t comm;
    cudaStream_t stream;
    op_t *ops; /* owned */
    struct batch *next;
} batch_t;

typedef enum job {
    JOB_NONE,
    JOB_INIT,
    JOB_LAUNCH,
    JOB_FINALIZE
} job_t;

struct ncclComm {
    int rank, n_ranks, device;
    int is_blocking;
    ncclUniqueId id;
    hub_t *hub; /* the thread's, until initialised */
    pthread_t thread;
    atomic_int is_aborted;
    atomic_int async_error; /* injected, of a stream */
    /* guarded by nccl_lock */
    job_t job;
    ncclResult_t state; /* ncclInProgress while there is a job */
    int is_ready;       /* initialised */
    int is_closing;
    uint64_t n_launches;
    batch_t *batches; /* of the job */
    int n_running;    /* batches in streams */
    char error[160];
};

extern pthread_mutex_t nccl_lock;
extern pthread_cond_t nccl_changed;
/* Communicators that live; guarded by nccl_lock. */
extern int nccl_n_comms;

/* Start the thread; its first job is to meet the others. */
int comm_start(ncclComm_t comm);
/* Queue batches in their streams, the ends having met. Takes them. Without
 * the lock. */
ncclResult_t comm_launch(ncclComm_t comm, batch_t *batches);
/* Whether all peers of the batches have been spoken to before. */
int comm_is_connected(ncclComm_t comm, const batch_t *batches);
void batches_free(batch_t *batches);
/* Sleep a little between two looks. */
void nccl_pause(void);
/* With the lock held: a failure, its text kept. */
ncclResult_t comm_fail(ncclComm_t comm, ncclResult_t result, const char *text);

#endif /* SL_TESTS_CUDA_STANDIN_NCCL_INTERNAL_H */
