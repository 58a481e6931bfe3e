/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file op_manager_internal.h
 * The inside of the op manager, private to scheduler/: op_manager.c runs the
 * ring, op_stream.c hands it to a device beside the host, op_gate.c decides
 * when an op may start, op_stats.c reads.
 */
#ifndef SL_SCHEDULER_OP_MANAGER_INTERNAL_H
#define SL_SCHEDULER_OP_MANAGER_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "scheduler/op_backend.h"
#include "scheduler/op_names.h"
#include "scheduler/pulse.h"
#include "scheduler/scheduler.h"
#include "scheduler/share.h"

enum {
    SL_LINE_BYTES = 64,
    SL_OP_NAME_BYTES = 64,
    SL_OP_DETAIL_BYTES = 1024
};

typedef struct sl_op_slot {
    alignas(SL_LINE_BYTES) unsigned char args[SL_OP_ARGS_BYTES];
    sl_op_fn fn;
    sl_op_span_t *span;
    double cost_us;
    uint64_t after;
    uint64_t section; /* and piece of it; 0 = none */
    uint32_t name_id;
    int8_t is_host;
    int8_t is_load;
    int8_t is_send;
    int8_t is_last; /* of its piece */
} sl_op_slot_t;

/* What the device's thread sleeps for. */
enum {
    SL_OP_AWAKE,
    SL_OP_FULL,  /* the end of ops that a backend runs: no other can start */
    SL_OP_RESTS, /* that, or an op */
    SL_OP_IDLE   /* an op; there is none */
};

struct sl_op_manager {
    pthread_mutex_t *lock; /* &lock_storage: queries of a const one lock too */
    pthread_mutex_t lock_storage;
    pthread_cond_t work;     /* the device's thread sleeps here */
    pthread_cond_t progress; /* waiters and blocked submitters sleep here */
    pthread_cond_t gate;     /* told when share, failure or life change */
    pthread_t thread;
    sl_op_slot_t *ring; /* slot i % n_slots; the submitter's until published */
    uint64_t n_slots;
    sl_op_names_t *names;
    char name[SL_OP_NAME_BYTES];
    int n_threads;
    int n_procs; /* of this process; asking each time is a system call */
    int *cores;
    int n_cores;
    uint64_t created_ns;
    int start_error;         /* guarded by lock, errno of the start */
    int is_started;          /* guarded by lock */
    int is_stopping;         /* guarded by lock */
    sl_status_t open_status; /* guarded by lock, of the backend */
    int is_asleep;           /* guarded by lock, SL_OP_* */
    int is_woken;            /* guarded by lock: by the backend */
    /* the section that is open, guarded by lock; ops held are in the ring and
     * not published yet */
    uint32_t section; /* 0 = none */
    uint32_t section_piece;
    pthread_t section_thread;
    uint64_t n_held;
    char detail[SL_OP_DETAIL_BYTES]; /* of the failure; guarded by lock */
    sl_op_watch_t *watches;          /* guarded by lock */
    sl_share_t share;                /* guarded by lock */
    sl_pulse_writer_t pulse;         /* guarded by lock */
    sl_yield_set_t *yield;           /* guarded by lock; NULL = to nobody */
    double yield_floor;              /* guarded by lock */

    /* written under lock by submitters, read by the device's thread */
    alignas(SL_LINE_BYTES) _Atomic uint64_t n_submitted;
    _Atomic uint64_t wake_at;  /* least n_done a sleeper waits for */
    _Atomic uint32_t position; /* of the submitter in its instructions */

    /* written by the device's thread; n_done counts skipped ops too */
    alignas(SL_LINE_BYTES) _Atomic uint64_t n_done;
    _Atomic uint64_t n_run;
    _Atomic uint64_t n_skipped;
    _Atomic uint64_t charged_ns;
    _Atomic uint64_t busy;      /* a meter, see below */
    _Atomic uint64_t throttled; /* a meter */
    uint64_t cpu_ns;            /* the device's thread's alone: its CPU time at
                                   the end of the op just run; 0 = not known */
    _Atomic int failure;        /* sl_status_t; written under lock */
    _Atomic int is_gated;       /* share below 100; written under lock */
    _Atomic int is_yielding;    /* to somebody; written under lock */
    _Atomic uint64_t yield_version; /* of `yield`; written under lock */
    /* the device's thread's alone */
    sl_yield_set_t *own_yield; /* a reference of its own */
    uint64_t own_yield_version;
    sl_yield_law_t yield_law;
    /* of managers with a backend (op_stream.c); NULL: the thread runs ops */
    const sl_op_backend_t *backend;
    struct sl_op_stream *stream;
    int device;
    int max_in_flight;
};

/* One writer: no locked instruction needed. */
static inline void sl_counter_add(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_store_explicit(
        counter, atomic_load_explicit(counter, memory_order_relaxed) + value,
        memory_order_relaxed);
}

/* ---- meters ----
 *
 * A stopwatch in one word, so that a reader sees the running interval too:
 * the total while it stands; while it runs, a mark and the instant at which
 * a total of 0 would have started. One writer. */

#define SL_METER_RUNS (UINT64_C(1) << 63)
#define SL_METER_BITS (SL_METER_RUNS - 1)

static inline void sl_meter_start(_Atomic uint64_t *meter, uint64_t now_ns)
{
    const uint64_t total_ns = atomic_load_explicit(meter, memory_order_relaxed);

    atomic_store_explicit(meter,
                          ((now_ns - total_ns) & SL_METER_BITS) | SL_METER_RUNS,
                          memory_order_relaxed);
}

static inline void sl_meter_stop(_Atomic uint64_t *meter, uint64_t now_ns)
{
    const uint64_t mark = atomic_load_explicit(meter, memory_order_relaxed);

    atomic_store_explicit(meter, (now_ns - mark) & SL_METER_BITS,
                          memory_order_relaxed);
}

static inline uint64_t sl_meter_total(uint64_t value, uint64_t now_ns)
{
    return (value & SL_METER_RUNS) != 0 ? (now_ns - value) & SL_METER_BITS
                                        : value;
}

/* ---- the gate (op_gate.c), for the device's thread ---- */

/** Wait until the share lets this op start. @return 0 when the manager was
 *  canceled meanwhile: the op is to be skipped */
int sl_op_gate_enter(sl_op_manager_t *manager, const sl_op_slot_t *slot);

/** The op that entered has run. @return device time it is charged */
uint64_t sl_op_gate_leave(sl_op_manager_t *manager, uint64_t busy_ns,
                          uint64_t now_ns);

/** The same for an op that is expected to take so long and is not alone in
 *  flight; `may_wait` 0 = without a wait. @return SL_GATE_* */
enum {
    SL_GATE_SHUT,
    SL_GATE_OPEN,
    SL_GATE_CANCELED
};
int sl_op_gate_pass(sl_op_manager_t *manager, double expected_ns, int may_wait);
/** The op that passed has run and took `used_ns`. */
void sl_op_gate_settle(sl_op_manager_t *manager, double expected_ns,
                       uint64_t used_ns, uint64_t now_ns);

/** What the op is expected to take. */
double sl_op_gate_expected_ns(const sl_op_manager_t *manager,
                              const sl_op_slot_t *slot);

/* ---- the pulse (op_pulse.c) ---- */

/** The device's thread is about to sleep, or goes on; lock held.
 *  @return as sl_pulse_idle */
uint64_t sl_op_pulse_idle(sl_op_manager_t *manager);
void sl_op_pulse_busy(sl_op_manager_t *manager);

/** Wait until jobs that go first let this op start, as sl_op_gate_enter. */
int sl_op_yield_enter(sl_op_manager_t *manager, uint64_t cost_ns);
/** The op that entered has run. */
void sl_op_yield_leave(sl_op_manager_t *manager, uint64_t busy_ns,
                       uint64_t now_ns);

/* ---- ops that a backend runs (op_stream.c), for the device's thread ---- */

/** @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_op_stream_open(sl_op_manager_t *manager);
/** Until the manager is to end and all ops have. */
void sl_op_stream_run(sl_op_manager_t *manager);
void sl_op_stream_close(struct sl_op_stream *stream);
/** When no thread looks at it any more; NULL is allowed. */
void sl_op_stream_free(struct sl_op_stream *stream);
/** Busy time as it is told: what was told before is not taken back. Lock
 *  held. */
uint64_t sl_op_stream_show(struct sl_op_stream *stream, uint64_t busy_ns);

/* ---- sections (op_section.c); lock held ---- */

/** Publish that so many ops are submitted. */
static inline void sl_op_manager_announce(sl_op_manager_t *manager,
                                          uint64_t n_submitted)
{
    atomic_store_explicit(&manager->n_submitted, n_submitted,
                          memory_order_release);
    if (manager->is_asleep > SL_OP_FULL) {
        (void)pthread_cond_signal(&manager->work);
    }
}

/** The ops held become one piece. */
void sl_op_section_cut(sl_op_manager_t *manager);
/** Whether the op in its slot waits for the rest of its piece. */
int sl_op_section_hold(sl_op_manager_t *manager, sl_op_slot_t *slot);
/** As cut; lock not held. */
void sl_op_section_flush(sl_op_manager_t *manager);

/* ---- what both loops use (op_manager.c) ---- */

/** Wait for op number `n_done` (from 0); 0 when the manager is to end. */
int sl_op_manager_await(sl_op_manager_t *manager, uint64_t n_done);
/** `n_done` ops are done: wake who waits for that. */
void sl_op_manager_publish(sl_op_manager_t *manager, uint64_t n_done);
/** The op failed, the detail is the last error. */
void sl_op_manager_fail(sl_op_manager_t *manager, const sl_op_slot_t *slot,
                        sl_status_t status);
/** Whether the calling thread is inside an op from now on. */
void sl_op_set_running(int is_running);
/** How long an idle thread looks before it sleeps. */
uint64_t sl_op_manager_spin_ns(const sl_op_manager_t *manager);
void sl_op_manager_relax(void);

/** Publish a failure whose text is in `detail` and tell the watches; the
 *  calling thread's last error is that text afterwards. Lock held. */
void sl_op_manager_fail_locked(sl_op_manager_t *manager, sl_status_t status);

#endif /* SL_SCHEDULER_OP_MANAGER_INTERNAL_H */
