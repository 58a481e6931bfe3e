/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file scheduler.h
 * Devices and the op manager of each (AntMan's GpuOpManager, section 4.2).
 *
 * Every kernel and every copy on a device is an op submitted to the device's
 * op manager: one thread that runs the ops of a bounded ring in order. So a
 * later op may use what an earlier one wrote without any wait, and a block of
 * memory may be released as soon as its last op is submitted. An op never
 * waits for another device: waiting belongs to whoever submits.
 *
 * The manager is also a gate: it lets ops start at such times that they take
 * no more than the device's share of this process (docs/share.md).
 *
 * On a CPU an op runs on the device's thread. A CUDA device runs beside the
 * host: there the thread hands ops to a queue of the device (a stream) in the
 * same order, so all that is said above holds, and
 * - an op counts as run once the device has finished it. The thread looks at
 *   its oldest ones while there are others to hand over, and else sleeps until
 *   the oldest has ended;
 * - only so many are handed over ahead of the device (`in_flight`), and of
 *   known length no more than 10 ms, so that a suspension acts soon. Below a
 *   share of 100 it is 2 ms, and an op whose name was never run goes alone;
 *   one that yields to another job, or obeys AntMan's law, goes alone too;
 * - times are the device's own: every op lies between two events, of about
 *   half a microsecond's resolution, and the end of one is the start of the
 *   next where the device had no pause between them. They become
 *   sl_clock_ns() by the time of the op before; no op starts before it was
 *   handed over nor ends after it was seen to have ended. An op that comes to
 *   an idle device is counted from the moment it is handed over. The time
 *   that another process has the device while an op runs counts too;
 * - an error that the device finds later is the failure of the oldest op that
 *   had not ended, with the number of those that may have caused it instead.
 *   Ops handed over already when an op fails run nevertheless. After an error
 *   that stays, all later ops fail, and destroy still ends.
 *
 * Copies between host and device are ordinary ops: of those to the host, what
 * they write is read after a wait, and a later op may overwrite what they read.
 * They can do better beside the other ops: see sl_op_t.is_load and is_send.
 *
 * Thread safety: every function may be called from any thread, except inside
 * an op, where only sl_op_* queries are allowed.
 */
#ifndef SL_SCHEDULER_SCHEDULER_H
#define SL_SCHEDULER_SCHEDULER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "memory/memory.h"

SL_BEGIN_DECLS

enum {
    SL_OP_ARGS_BYTES = 320,
    SL_OP_MAX_NAMES = 4096 /**< distinct op names per manager */
};

/** sl_op_t.after of a load that need not wait for any op. */
#define SL_OP_AFTER_NOTHING UINT64_MAX

typedef struct sl_op_manager sl_op_manager_t; /* opaque */
typedef struct sl_op_backend sl_op_backend_t; /* opaque */
typedef struct sl_op sl_op_t;

/** First start and last end of the ops that point to it. Written by the
 *  device's thread; read it after a wait for the last of those ops. */
typedef struct sl_op_span {
    uint64_t start_ns; /**< sl_clock_ns(); 0 = no op has started */
    uint64_t end_ns;
    uint64_t busy_ns; /**< sum over the ops */
} sl_op_span_t;

/**
 * An op's kernel, on the device's thread. `args` is the op's copy of its
 * arguments; `stream` is the device's execution context: NULL on a CPU, a
 * sl_cuda_stream_t (scheduler/cuda.h) on a CUDA device, where `fn` queues its
 * work on the stream and returns.
 * On failure call SL_FAIL and return the code: the manager then skips all
 * later ops and gives the failure to whoever waits.
 */
typedef sl_status_t (*sl_op_fn)(const void *args, void *stream);

/** An op: copied into the ring, so it may live on the caller's stack. */
struct sl_op {
    sl_op_fn fn;
    uint32_t name_id;    /**< from sl_op_manager_name(); 0 = "other" */
    uint32_t args_bytes; /**< of `args`, at most SL_OP_ARGS_BYTES */
    double cost_us;      /**< estimate of device time; 0 = unknown: the
                              recent mean of its name is taken */
    sl_op_span_t *span;  /**< borrowed until the op has run; NULL = none */
    int is_host;         /**< fn starts no kernel or copy: it tells somebody on
                              the host that all ops before it have run. On a
                              device that runs beside the host it is called
                              then, and not when its turn to start comes;
                              the share does not hold it up */
    /** fn only copies host memory that the device can read by itself (pinned)
     *  to the device. A CUDA device does that on a queue of its own, beside
     *  the ops submitted before: the copy waits for op `after` and those
     *  before that one, and every op submitted later waits for the copy. What
     *  it writes must be used by no op between `after` and this one; that is
     *  not so for a block just taken from the allocator, which is reused in
     *  the order of the ops: take it before `after`, or give 0. To run beside
     *  some ops, take the memory, ask sl_op_manager_after(), submit the ops,
     *  then the load. Released, the memory is as any other: the ops that come
     *  wait for the load. A load counts as run in its turn. Its time is charged
     *  to the share as that of any op, also while others run beside it; it is
     *  no part of busy_ns. */
    int is_load;
    /** fn only copies from the device to host memory that the device can write
     *  by itself (pinned). A CUDA device does that on a queue of its own,
     *  beside the ops submitted later: the copy waits for all ops before it,
     *  and none waits for it but other sends. So what it reads stays as it is,
     *  and in nobody else's hands, until it has run: until a host op after it
     *  was called, or a wait. A send counts as run in its turn, and is charged
     *  like a load. */
    int is_send;
    /** Of a load: the ticket of an op submitted earlier; 0 = all of them,
     *  SL_OP_AFTER_NOTHING = none. */
    uint64_t after;
    const void *args; /**< borrowed for the call of submit, then copied */
};

typedef struct sl_op_manager_params {
    const char *name; /**< copied; for messages, thread name */
    int n_threads;    /**< kernel threads of the device, >= 1 */
    const int *cores; /**< cores to bind to, as the system numbers them;
                           NULL = not bound */
    int n_cores;
    int ring_ops; /**< ring size in ops, a power of two; default 256 */
    /** What runs the ops; NULL = the device's thread (default). Borrowed; see
     *  sl_op_backend_cuda() in scheduler/cuda.h. */
    const sl_op_backend_t *backend;
    int device;    /**< as the backend numbers them (default 0) */
    int in_flight; /**< most ops handed to a backend and not yet ended, 2 to
                        1024; default 32 */
} sl_op_manager_params_t;

SL_API void sl_op_manager_params_default(sl_op_manager_params_t *params);

typedef struct sl_op_name_stats {
    const char *name; /**< borrowed from the manager */
    uint64_t n_ops;
    uint64_t busy_ns;
    uint64_t min_ns; /**< fastest op; UINT64_MAX when none */
    /** Recent mean of one op (each op moves it by an eighth of the way);
     *  what the next op is expected to take. Kept by a reset. */
    uint64_t mean_ns;
} sl_op_name_stats_t;

typedef struct sl_op_stats {
    uint64_t n_submitted;
    uint64_t n_run;     /**< kernels that were started */
    uint64_t n_skipped; /**< dropped after a failure */
    /* Every moment since the manager was made is one of three kinds; busy,
     * throttled and waiting add up to elapsed. */
    uint64_t elapsed_ns;
    uint64_t busy_ns;      /**< in kernels, up to this moment; of a CUDA
                                device exact up to the last op that ended */
    uint64_t throttled_ns; /**< an op was queued and the gate was shut, or
                                a job that goes first was busy */
    uint64_t waiting_ns;   /**< no op was queued */
    /** Device time as the share counts it: as busy_ns, but without the time
     *  that other processes had the core (see sl_op_manager_share_set), and
     *  with that of loads. */
    uint64_t charged_ns;
    double share_percent; /**< asked */
} sl_op_stats_t;

/** @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_API SL_NODISCARD sl_status_t sl_op_manager_create(
    const sl_op_manager_params_t *params, sl_op_manager_t **manager_p);

/** Runs what is queued, whatever the share, ends the thread. NULL is
 *  allowed. */
SL_API void sl_op_manager_destroy(sl_op_manager_t *manager);

/** The id of an op name (copied); the same name gives the same id. Returns 0
 *  ("other") when SL_OP_MAX_NAMES are taken. */
SL_API uint32_t sl_op_manager_name(sl_op_manager_t *manager, const char *name);

/**
 * Queue an op. Blocks while the ring is full, which ends because ops never
 * wait for other devices.
 *
 * @param[out] ticket_p number of the op for sl_op_manager_wait; may be NULL
 * @return SL_OK; the manager's failure when it has one (the op is dropped);
 *         SL_ERR_INVALID_ARG
 */
SL_API SL_NODISCARD sl_status_t sl_op_manager_submit(sl_op_manager_t *manager,
                                                     const sl_op_t *op,
                                                     uint64_t *ticket_p);

/**
 * What a load gives as `after` when what it writes was unused at this moment:
 * the ticket of the op submitted last, SL_OP_AFTER_NOTHING when there is none.
 * Take the memory first, then ask.
 */
SL_API uint64_t sl_op_manager_after(const sl_op_manager_t *manager);

/** Wait until the op with this ticket and all before it have run.
 *  @return SL_OK; the manager's failure with its detail as sl_last_error();
 *          SL_ERR_TIMEOUT (timeout_ns; UINT64_MAX = none) */
SL_API SL_NODISCARD sl_status_t sl_op_manager_wait(sl_op_manager_t *manager,
                                                   uint64_t ticket,
                                                   uint64_t timeout_ns);

/** Wait until everything submitted so far has run; returns as wait does. */
SL_API SL_NODISCARD sl_status_t sl_op_manager_drain(sl_op_manager_t *manager);

/** Told of a manager's failure, so that nobody waits for what will never be
 *  written. The caller's storage, until unwatch. */
typedef struct sl_op_watch {
    /** On the device's thread (the caller's for a cancel), once per failure,
     *  its detail as sl_last_error(). Must not call the manager. */
    void (*on_failure)(void *ctx, sl_status_t status);
    void *ctx;
    struct sl_op_watch *next; /**< the manager's, guarded by its lock */
} sl_op_watch_t;

SL_API void sl_op_manager_watch(sl_op_manager_t *manager, sl_op_watch_t *watch);
/** After this returns, on_failure is not called any more. */
SL_API void sl_op_manager_unwatch(sl_op_manager_t *manager,
                                  sl_op_watch_t *watch);

/** Drop what is queued and what comes later, as after a failure, with
 *  SL_ERR_CANCELED for whoever waits; an op that runs is not stopped. It ends
 *  every wait for a suspended manager. Nothing happens when the manager has
 *  failed already. */
SL_API void sl_op_manager_cancel(sl_op_manager_t *manager);

/** Forget a failure or a cancel, so that ops run again. Drain first. */
SL_API void sl_op_manager_recover(sl_op_manager_t *manager);

/**
 * Tell where in its list of instructions the thread that submits is. Should
 * the queue run empty now, the idle time is expected to be as long as it was
 * at this position before: other jobs use it (docs/share.md). One store.
 *
 * @param position any number, the same for the same wait; 0 = not known
 */
SL_API void sl_op_manager_mark(sl_op_manager_t *manager, uint32_t position);

/**
 * The ops that this thread submits up to section_end() may be launched as one:
 * on a CUDA device as a captured graph, whose launch costs the host and the
 * device less than that of its ops. On other devices nothing happens.
 *
 * The ops become pieces. A piece ends at the section's end, at a host op, a
 * load, an op of another thread, a wait for one of its ops, a drain, and when
 * half of the ring is in it. Its ops start when it ends, not before: submit
 * without long pauses, and wait for nobody who waits for them. It counts as run
 * as a whole, is let in by the gate as one op, and is charged as its measured
 * time, which the statistics by name and the spans divide by what its ops took
 * lately.
 *
 * The n-th pieces of two sections of the same number should queue the same
 * kernels and copies with any arguments: then the graph is updated, else made
 * anew, which is slow. The first time its ops go one by one. Those of a piece
 * that cannot be captured do so always; their functions are called twice that
 * once.
 *
 * @param section any number above 0, the same for the same work
 */
SL_API void sl_op_manager_section_begin(sl_op_manager_t *manager,
                                        uint32_t section);
SL_API void sl_op_manager_section_end(sl_op_manager_t *manager);

/* ---- share of the device's time ---- */

typedef enum sl_share_law {
    /** Ops start while the bucket of device time holds what they are
     *  expected to take; a longer op leaves a debt that idle time pays. */
    SL_SHARE_TOKEN_BUCKET,
    /** AntMan's published law, for comparison: idle time computed at the end
     *  of each mini-batch, in slots after the ops of the next one and in one
     *  lump before it. Needs sl_op_manager_boundary(). */
    SL_SHARE_ANTMAN,
    SL_SHARE_N_LAWS
} sl_share_law_t;

/**
 * Set the share of the device's time that this manager's ops may take, at
 * once. 100 (at the start) = all of it, with no cost; 0 = suspended: the op
 * that runs ends, later ones wait until the share is raised, and submitters
 * block only when the ring is full. Destroy and cancel end a suspension.
 *
 * Device time is the wall time of the kernel; where a CPU device has one kernel
 * thread, it is that thread's CPU time, so that a core shared with other
 * processes is charged for what was got of it. On a CUDA device it is the time
 * between the events around the op; those handed over run to their end.
 *
 * @param percent 0 to 100
 * @return SL_OK, SL_ERR_INVALID_ARG (nothing is changed)
 */
SL_API SL_NODISCARD sl_status_t sl_op_manager_share_set(
    sl_op_manager_t *manager, double percent, sl_share_law_t law);

/** The share that holds now; law_p may be NULL. @return percent */
SL_API double sl_op_manager_share_get(const sl_op_manager_t *manager,
                                      sl_share_law_t *law_p);

/**
 * Tell the end of a mini-batch, when its ops have run. Returns at once; with
 * SL_SHARE_ANTMAN the ops that follow wait for the lump of idle time that its
 * law asks for. The token bucket does not need it.
 *
 * @param step_us wall time since the boundary before, idle time included
 */
SL_API void sl_op_manager_boundary(sl_op_manager_t *manager, double step_us);

SL_API void sl_op_manager_stats(const sl_op_manager_t *manager,
                                sl_op_stats_t *stats_p);

/** Statistics by op name; `stats` has room for `n_max` (id order).
 *  @return how many names there are */
SL_API size_t sl_op_manager_name_stats(const sl_op_manager_t *manager,
                                       sl_op_name_stats_t *stats, size_t n_max);

/** Zero the statistics by name, all but the recent means. */
SL_API void sl_op_manager_name_stats_reset(sl_op_manager_t *manager);

/** Whether the calling thread is inside an op. Kernels assert it, so that
 *  nothing runs around the op managers. */
SL_API int sl_op_is_running(void);

/* ---- devices ---- */

enum {
    SL_GPU_ID_BYTES = 48 /**< with NUL */
};

typedef enum sl_device_kind {
    SL_DEVICE_KIND_CPU,
    SL_DEVICE_KIND_CUDA, /**< in builds with CUDA (docs/cuda.md) */
    SL_DEVICE_N_KINDS
} sl_device_kind_t;

/** One device: memory and execution. Read only for the user. */
typedef struct sl_device {
    char name[32]; /**< "cpu:0" */
    sl_device_kind_t kind;
    int index;
    int n_threads; /**< kernel threads; 1 on a CUDA device, where kernels do
                        not run on threads of the host */
    int n_cores;   /**< cores it is bound to; 0 = not bound */
    int gpu;       /**< of a CUDA device: as CUDA numbers them. Devices of a set
                        may share a GPU. Else -1 */
    char gpu_id[SL_GPU_ID_BYTES]; /**< its serial number, as nvidia-smi writes
                                       it, else its place on the bus; equal in
                                       all processes. Else "" */
    char bus_id[SL_GPU_ID_BYTES]; /**< of a CUDA device: its GPU's place on the
                                       bus, "0000:3D:00.0". Else "" */
    size_t gpu_bytes;  /**< the whole memory of that GPU; 0 = not known */
    int is_exportable; /**< of a CUDA device: other processes can map its
                            memory. Else 0 */
    sl_mem_t *mem;
    sl_op_manager_t *ops;
    void *own; /**< the kind's own */
} sl_device_t;

typedef struct sl_device_set {
    int n_devices;
    sl_device_t *devices;
} sl_device_set_t;

typedef struct sl_device_params {
    /** "cpu:N" (N devices share the cores out) or "cpu" (one); "cuda:N": N
     *  devices on the GPUs that CUDA shows, or "cuda" (one). When there are
     *  fewer GPUs than devices, equal runs of devices share each: each with
     *  its own op manager and an equal part of the GPU's memory. Default
     *  "cpu:1". */
    const char *spec;
    int n_threads;       /**< kernel threads per device; 0 = cores/N, at
                              least 1 (default). CPU only */
    size_t memory_bytes; /**< limit per device; 0 = what the machine has,
                              or the GPU has free but for a reserve for
                              libraries, shared out (default) */
    size_t host_bytes;   /**< host pool per device (default 0); pinned for a
                              CUDA device */
    int is_exportable;   /**< other processes must be able to map the memory
                              of a CUDA device (an MPI that sends from it):
                              regions are cudaMalloc's and go back whole
                              (default 0) */
    int bind;            /**< bind to cores (default 1; skipped when there
                              are fewer cores than threads). CPU only */
    /* With other processes of the job on this host. Those that may use the
     * same cores divide them: this one takes part `local_rank` of `n_local`
     * (default 0 of 1). Memory and a group's quota are for all `n_on_host` of
     * them (default 1), those bound to other cores too. GPUs are divided by
     * those that see the same ones (sl_device_gpus_hash): this one is number
     * `gpu_rank` (default 0) of `n_gpu_ranks` (default 1). */
    int local_rank, n_local, n_on_host, gpu_rank, n_gpu_ranks;
} sl_device_params_t;

SL_API void sl_device_params_default(sl_device_params_t *params);

/** What is best here: "cuda:N" with the N GPUs that CUDA shows, when it is
 *  built and shows any; else "cpu:1". Valid until the thread's next call. */
SL_API const char *sl_device_default_spec(void);

/** @return SL_OK, SL_ERR_INVALID_ARG (spec, with what is allowed),
 *          SL_ERR_UNSUPPORTED (a kind that is not built), SL_ERR_NO_MEMORY,
 *          SL_ERR_DEVICE (no GPU that can be used, and why) */
SL_API SL_NODISCARD sl_status_t
sl_device_set_create(const sl_device_params_t *params, sl_device_set_t **set_p);

SL_API void sl_device_set_destroy(sl_device_set_t *set);

/** Place the calling thread, which feeds this device: on the device's cores,
 *  when it is bound, with a scheduling slice so short that the two do not
 *  push each other aside. Does nothing where the system has no such slice. */
SL_API void sl_device_bind_self(const sl_device_t *device);

/** Likewise for a thread that serves all devices of the set. */
SL_API void sl_device_set_bind_self(const sl_device_set_t *set);

/** What the processor calls itself, or its architecture, into text. */
SL_API void sl_device_cpu_model(char *text, size_t text_bytes);

/** Cores this process may use (its affinity mask), and their numbers.
 *  @return how many; `cores` may be NULL or has room for `n_max` */
SL_API int sl_device_cores(int *cores, int n_max);

/** A number that is equal for processes that may use the same cores. */
SL_API uint64_t sl_device_cores_hash(void);

/** The same for GPUs, by their serial numbers; 0 = none, or no CUDA. */
SL_API uint64_t sl_device_gpus_hash(void);

SL_END_DECLS
#endif /* SL_SCHEDULER_SCHEDULER_H */
