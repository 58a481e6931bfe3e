/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file standin_internal.h
 * Inside the stand-in. One lock guards all of its state; work of a stream
 * runs without it.
 */
#ifndef SL_TESTS_CUDA_STANDIN_STANDIN_INTERNAL_H
#define SL_TESTS_CUDA_STANDIN_STANDIN_INTERNAL_H

#include <pthread.h>
#include <stdint.h>

#include "standin.h"

enum {
    MAX_DEVICES = 8,
    N_SLOTS = 128, /* streams that the clocks tell apart */
    NAME_BYTES = 48
};

/* ---- vector clocks ---- */

typedef struct vclock {
    uint64_t at[N_SLOTS];
} vclock_t;

void vclock_join(vclock_t *clock, const vclock_t *other);
/* All that has ended as far as the host knows. Guarded by the lock. */
extern vclock_t standin_host;

/* ---- state ---- */

extern pthread_mutex_t standin_lock;
/* Something ended. */
extern pthread_cond_t standin_changed;

void lock(void);
void unlock(void);

/* Count the call; what it must return at once, or cudaSuccess. When the call
 * shall fail later, *is_late_p is set (NULL: not asked). */
cudaError_t standin_enter(standin_entry_t entry, int *is_late_p);
/* Remember as the thread's last error, unless it is success. */
cudaError_t standin_give(cudaError_t error);

#define STANDIN_ENTER(entry)                                                   \
    do {                                                                       \
        const cudaError_t standin_early =                                      \
            standin_enter(STANDIN_##entry, NULL);                              \
                                                                               \
        if (standin_early != cudaSuccess) {                                    \
            return standin_give(standin_early);                                \
        }                                                                      \
    } while (0)

int standin_device(void); /* of the calling thread */
int standin_n_devices(void);
int standin_host_number(int device); /* the same in all processes of the host */
standin_nccl_job_t standin_stalled(void); /* of NCCL */
size_t standin_memory(void);
int standin_is_reverse(void);
unsigned standin_delay_us(void);
int standin_is_peer(int device, int peer); /* may use its memory */
/* A device's sticky error; the lock is held. */
cudaError_t standin_sticky(int device);
void standin_raise(int device, cudaError_t error);
/* The error that late failures raise. */
cudaError_t standin_late_error(void);
/* The lock is held. */
__attribute__((format(printf, 1, 2))) void standin_complain(const char *fmt,
                                                            ...);

/* ---- memory ---- */

typedef struct access {
    struct access *next;
    uintptr_t begin, end;
    int is_write;
    int slot;
    uint64_t stamp;
    char name[NAME_BYTES];
} access_t;

/* Memory at a part of a range of addresses. */
typedef struct mapping {
    struct mapping *next; /* by address */
    uintptr_t begin, end;
    uint64_t handle;
    unsigned devices; /* bit d: device d has access */
} mapping_t;

typedef struct allocation {
    struct allocation *next; /* by address */
    uintptr_t base;
    size_t bytes;    /* as asked */
    size_t span;     /* whole pages and a guard page */
    int device;      /* -1: pinned host memory */
    int is_freed;    /* by work that is queued */
    int is_reserved; /* addresses only: usable where memory is mapped */
    mapping_t *mappings;
    access_t *accesses;
} allocation_t;

/* The lock is held by the callers of these. */
allocation_t *memory_find(const void *ptr);
int memory_is_device(const void *ptr);
void memory_free(allocation_t *allocation);
/* The address that the CPU can use: kernels and copies only. */
void *memory_alias(const void *ptr);
int memory_n_live(void);
/* Addresses of a device; NULL: none left. */
void *memory_reserve(int device, size_t bytes, size_t alignment);
/* Count memory of a device as used. @return 0 when it has not as much */
int memory_take(int device, size_t bytes);
void memory_give(int device, size_t bytes);
/* Let the CPU's address of pages be used: full of NaN; and not any more. */
void memory_open(uintptr_t at, size_t bytes);
void memory_close(uintptr_t at, size_t bytes);
/* Whether all of [begin, end) has memory. */
int memory_is_mapped(const allocation_t *allocation, uintptr_t begin,
                     uintptr_t end);
/* Whether the device may use these bytes in place. */
int memory_is_usable(int device, const allocation_t *allocation,
                     uintptr_t begin, uintptr_t end);
/* Handles of memory. */
int driver_n_live(void);
void driver_reset(void);

/* ---- streams ---- */

struct CUstream_st {
    int slot;
    int device;
    int is_blocking; /* ordered with the default stream */
    int is_closing;
    pthread_t thread;
    struct task *head, *tail;
    uint64_t n_queued;
    vclock_t clock;
    struct CUgraph_st *capture; /* what is queued goes there; NULL = it runs */
};

/* Work ended so far by the streams of a slot; only grows. */
extern uint64_t standin_done[N_SLOTS];

typedef struct task {
    struct task *next;
    void (*run)(struct task *task);
    void (*release)(struct task *task); /* NULL: free() */
    cudaError_t error;                  /* raised instead of the run */
    int is_control;                     /* runs also after a sticky error */
} task_t;

/* The stream itself, or the device's default one, made when first used; NULL:
 * not a stream. The lock is held. */
cudaStream_t stream_resolve(cudaStream_t stream);
/* Start a piece of work: its clock is the stream's after this. */
void stream_begin(cudaStream_t stream);
/* Queue it. */
void stream_queue(cudaStream_t stream, task_t *task);
/* Wait until all queued so far has ended, and learn it. Lock held. */
void stream_wait(cudaStream_t stream);
void streams_wait(int device); /* -1: all */
int streams_n_live(void);

/* ---- graphs; lock held ---- */

/* While a stream captures, these take the place of stream_begin, order_use
 * and stream_queue. */
void graph_begin(struct CUgraph_st *graph);
int graph_use(struct CUgraph_st *graph, const void *ptr, size_t bytes,
              int is_write, const char *name);
void graph_queue(struct CUgraph_st *graph, task_t *task);
/* Whether the stream captures; then the call is not allowed. */
int graph_refuses(cudaStream_t stream);
/* Whether the calling thread captures, so that the entry is not allowed. */
int graph_refuses_entry(standin_entry_t entry);
void graph_forget(cudaStream_t stream); /* which ends */
int graphs_n_live(void);
/* ---- libraries ---- */

/* Descriptors of cuDNN. The lock is held. */
int dnn_n_live(void);

/* ---- order ---- */

/* One piece of work, begun on the stream, uses bytes. Lock held.
 * @return 0 when they are not allocated, reported: it must not run */
int order_use(cudaStream_t stream, const void *ptr, size_t bytes, int is_write,
              const char *name);
/* The memory goes away by work of the stream. */
void order_free(cudaStream_t stream, allocation_t *allocation,
                const char *name);
/* Bytes lose their memory: no work may use them that the host has not seen
 * end. @return 0 when some does, reported */
int order_unmap(allocation_t *allocation, uintptr_t begin, uintptr_t end);

/* ---- kernels ---- */

/* One thread of a kernel. */
typedef void (*thread_fn)(void *data);

/* Run one block on the calling stream's thread.
 * @return cudaSuccess or cudaErrorLaunchFailure, reported */
cudaError_t block_run(unsigned n_threads, int is_reverse, const char *name,
                      thread_fn fn, void *data);

#endif /* SL_TESTS_CUDA_STANDIN_STANDIN_INTERNAL_H */
