/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sync.h
 * What the executors wait with. Every wait ends when the job is aborted.
 */
#ifndef SL_ENGINE_SYNC_H
#define SL_ENGINE_SYNC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"

enum {
    SL_ERROR_DETAIL_BYTES = 1024
};

/** The first failure of a job; later ones are dropped. */
typedef struct sl_abort {
    pthread_mutex_t lock;
    pthread_cond_t changed; /**< broadcast by every event of the engine */
    atomic_int is_set;      /**< set once per job, under lock */
    sl_status_t status;     /**< guarded by lock */
    int is_remote;          /**< of another rank; guarded by lock */
    char detail[SL_ERROR_DETAIL_BYTES]; /**< guarded by lock */
} sl_abort_t;

void sl_abort_init(sl_abort_t *abort);
void sl_abort_cleanup(sl_abort_t *abort);
/** Forget the failure; nobody waits or raises. */
void sl_abort_reset(sl_abort_t *abort);
/** Record a failure with the calling thread's detail and wake all waiters. */
void sl_abort_raise(sl_abort_t *abort, sl_status_t status);
static inline int sl_abort_is_set(const sl_abort_t *abort)
{
    return atomic_load_explicit(&abort->is_set, memory_order_acquire);
}
/** Likewise a failure of another rank. */
void sl_abort_raise_remote(sl_abort_t *abort, sl_status_t status,
                           const char *detail);
int sl_abort_is_remote(sl_abort_t *abort);
/** Wait at most `ms` for a failure. @return whether there is one */
int sl_abort_await(sl_abort_t *abort, int ms);
/** The recorded failure (SL_OK when none), its detail as sl_last_error(). */
sl_status_t sl_abort_status(sl_abort_t *abort);

/** All n executors meet. Uses the abort's lock and condition. */
typedef struct sl_barrier {
    int n;
    int n_waiting;       /**< guarded by abort lock */
    uint64_t generation; /**< guarded by abort lock */
} sl_barrier_t;

/** @return SL_OK; SL_ERR_CANCELED when the job is aborted */
SL_NODISCARD sl_status_t sl_barrier_wait(sl_barrier_t *barrier,
                                         sl_abort_t *abort);

/** Starts jobs and waits for their end: one caller, n workers. */
typedef struct sl_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t job;  /**< guarded by lock; counts jobs */
    int n_running; /**< guarded by lock */
} sl_gate_t;

void sl_gate_init(sl_gate_t *gate);
void sl_gate_cleanup(sl_gate_t *gate);
/** Caller: start the next job with n workers. */
void sl_gate_open(sl_gate_t *gate, int n);
/** Caller: wait until all workers are done. */
void sl_gate_wait(sl_gate_t *gate);
/** Worker: wait for a job newer than *seen_p, which is then updated. */
void sl_gate_enter(sl_gate_t *gate, uint64_t *seen_p);
/** Worker: this job is done. */
void sl_gate_leave(sl_gate_t *gate);

#endif /* SL_ENGINE_SYNC_H */
