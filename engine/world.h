/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file world.h
 * The processes (ranks) of one job: who they are, messages between them, and
 * the few things that all must do alike.
 *
 * One communication thread a rank makes every call of the library below
 * (Open MPI, sockets, or memory when the ranks are threads of one process), so
 * no other thread ever waits inside it. What the functions here do is queue
 * work for that thread and, where they say so, wait for it.
 *
 * Nobody waits for ever: a rank that fails tells all others, one that dies or
 * stops answering is found by its heartbeat, and then every wait here ends
 * with the failure, which names that rank. A rank that is slow, suspended by a
 * share of 0 or waiting for memory still answers, and is waited for.
 *
 * Flow control: a message is put on its way only when the receiver has posted
 * the memory for it, so none is ever unexpected, and after a failed job what is
 * under way can be received and dropped (sl_world_recover).
 */
#ifndef SL_ENGINE_WORLD_H
#define SL_ENGINE_WORLD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef struct sl_world sl_world_t; /* opaque */

typedef struct sl_world_params {
    uint64_t heartbeat_ns; /**< between two signs of life (default 0.5 s) */
    uint64_t dead_ns;      /**< without one a rank counts as hung
                                (default 30 s) */
} sl_world_params_t;

SL_API void sl_world_params_default(sl_world_params_t *params);

/**
 * Join the job's other processes as the launcher's environment says: mpirun,
 * srun, or SLUICE_RANK and SLUICE_WORLD (with SLUICE_MASTER host:port).
 * Collective.
 *
 * @param[out] world_p NULL when there is no launcher: this process is alone
 * @return SL_OK, SL_ERR_CONFIG (half an environment), SL_ERR_COMM
 */
SL_API SL_NODISCARD sl_status_t sl_world_join(const sl_world_params_t *params,
                                              sl_world_t **world_p);

/** Whether a launcher has started this process with others, as sl_world_join
 *  finds it, and as which of them its environment says (-1: it does not). */
SL_API int sl_world_is_launched(int *rank_p);

/** Ranks that are threads of this process, for tests: `n` worlds that see each
 *  other. Each is then used from a thread of its own. */
SL_API SL_NODISCARD sl_status_t sl_world_local(int n,
                                               const sl_world_params_t *params,
                                               sl_world_t **worlds);

/** Another time than at the join after which a rank counts as hung; the signs
 *  of life follow. All ranks should say the same. NULL is allowed. */
SL_API void sl_world_dead_after(sl_world_t *world, uint64_t dead_ns);

/** Leave: collective after success (the others are waited for, boundedly);
 * after a failure at once. NULL is allowed. */
SL_API void sl_world_leave(sl_world_t *world);

/* ---- who is there; all of these accept NULL: one rank, 0 ---- */
SL_API int sl_world_rank(const sl_world_t *world);
SL_API int sl_world_size(const sl_world_t *world);
/** Name of a rank's host; ranks with equal names share one. */
SL_API const char *sl_world_host(const sl_world_t *world, int rank);
/** Index of this rank among those of its host, and their number. */
SL_API int sl_world_local_rank(const sl_world_t *world, int *n_p);

/** "mpi", "tcp", "local" (threads), "none" (alone). */
SL_API const char *sl_world_link_name(const sl_world_t *world);

/** Whether the library below reads and writes memory of CUDA devices. */
SL_API int sl_world_is_cuda_aware(const sl_world_t *world);

/** Call fn on the communication thread, between two turns, and wait for its
 *  end. It may do what on_message of a port may. */
SL_API void sl_world_call(sl_world_t *world, void (*fn)(void *ctx), void *ctx);

/**
 * `n` more threads of this rank wait for something of another rank (negative:
 * fewer). While there is one, arrivals are looked for eagerly instead of every
 * 2 ms. Cheap; from any thread; collective calls do it themselves.
 */
SL_API void sl_world_expect(sl_world_t *world, int n);

/* ---- ports: one direction of one edge between two ranks ---- */

typedef struct sl_port sl_port_t; /* opaque */

/** Called on the communication thread: must be short and must not wait, and so
 *  may send, release and abort, but not open, close or exchange. After a
 *  failure there are no more calls until sl_world_recover. */
typedef struct sl_port_events {
    /** Sender: message `i` (from 0, counted since the last recover) has left;
     *  its memory is the caller's again. Receiver: it has arrived in `slot`. */
    void (*on_message)(void *ctx, uint64_t i, void *slot, size_t bytes);
    void *ctx;
} sl_port_events_t;

/**
 * Open the sending end. Both ends must be opened with equal `tag`, `n_slots`
 * and `max_bytes` before the first message; tags are unique per pair of ranks
 * and direction, from 0 to SL_WORLD_MAX_TAG. Ends that do not fit fail the job.
 * An edge is opened and closed on both sides before a recovery, or after it.
 */
SL_API SL_NODISCARD sl_status_t sl_port_open_send(
    sl_world_t *world, int peer, int tag, int n_slots, size_t max_bytes,
    const sl_port_events_t *events, sl_port_t **port_p);

/** Open the receiving end: message i arrives in slots[i % n_slots], each of
 *  max_bytes (more than 2 GiB are allowed), borrowed until close. */
SL_API SL_NODISCARD sl_status_t sl_port_open_receive(
    sl_world_t *world, int peer, int tag, int n_slots, size_t max_bytes,
    void *const *slots, const sl_port_events_t *events, sl_port_t **port_p);

enum {
    SL_WORLD_MAX_TAG = 30000
};

/** Queue a message of at most max_bytes; never waits, also not for a slot of
 *  the receiver: it leaves when there is one. `data` is borrowed until
 *  on_message, or when the job fails first, until sl_world_recover,
 *  sl_port_close or sl_world_leave returns. May be called from any thread, from
 * a device's op too. After a failure it does nothing. */
SL_API void sl_port_send(sl_port_t *port, const void *data, size_t bytes);
/** Receiver: the oldest arrived message was taken, its slot may be filled
 *  again. From any thread. After a failure it does nothing; no release of
 *  the old job may come after the recovery. */
SL_API void sl_port_release(sl_port_t *port);
/** Collective per edge, with nothing under way or after a failure; in any
 *  order, neither end waits for the other's close. The slots, and what was
 *  being sent, are the caller's again. NULL is allowed. */
SL_API void sl_port_close(sl_port_t *port);

typedef struct sl_port_stats {
    int peer, tag, is_sender;
    uint64_t n_messages, n_bytes;
    uint64_t latency_ns; /**< sum over messages, sender: queued to left */
    uint64_t n_stalls;   /**< messages that waited for the receiver's slot */
} sl_port_stats_t;
SL_API void sl_port_stats(const sl_port_t *port, sl_port_stats_t *stats_p);

/* ---- together: all ranks call these in the same order, from one thread of
 * each rank at a time; NULL world: nothing to do ---- */

/** values[i] = sum over the ranks, in rank order, the same bits on all.
 *  @return SL_OK; SL_ERR_CANCELED when the job was aborted, by sl_world_abort
 *          here or the failure of another rank */
SL_API SL_NODISCARD sl_status_t sl_world_sum(sl_world_t *world, double *values,
                                             size_t n);
/** Everybody's `bytes` (equal on all ranks) into `all`, in rank order. */
SL_API SL_NODISCARD sl_status_t sl_world_gather(sl_world_t *world,
                                                const void *mine, size_t bytes,
                                                void *all);
/** From `root` to all. */
SL_API SL_NODISCARD sl_status_t sl_world_broadcast(sl_world_t *world, int root,
                                                   void *data, size_t bytes);
/** How often this rank has waited for all others so: sums, gathers and
 *  broadcasts. NULL is allowed. */
SL_API uint64_t sl_world_n_waits(const sl_world_t *world);
/** One message between two ranks, waiting on both sides; any size. */
SL_API SL_NODISCARD sl_status_t sl_world_put(sl_world_t *world, int peer,
                                             const void *data, size_t bytes);
SL_API SL_NODISCARD sl_status_t sl_world_get(sl_world_t *world, int peer,
                                             void *data, size_t bytes);

/* ---- a wish: what one rank may say at any time, and all shall hear ---- */

/**
 * `is_wished` is asked at every sign of life, on the communication thread, so
 * it must be short and must not wait; once it says so, all ranks hear of it.
 * Unlike what all do together it needs nobody who listens: it reaches a rank
 * that waits for whatever, and goes past failures. Such a wish is the end of
 * the job. NULL ends the asking, and then no call is under way.
 */
SL_API void sl_world_wish_set(sl_world_t *world, int (*is_wished)(void *ctx),
                              void *ctx);
/** Whether any rank has wished it, as far as this one has heard. Cheap; from
 *  any thread. NULL is allowed. */
SL_API int sl_world_is_wished(const sl_world_t *world);

/* ---- failure ---- */

/**
 * Call `on_abort` once, when another rank has failed, died or hung; `detail`
 * names it. On the communication thread, or on this one when that has happened
 * already. One watcher a world; NULL ends it, and then no call is under way.
 *
 * Not with a lock held that on_abort takes.
 *
 * sl_world_recover ends the watch: first forget the old failure, then watch
 * anew, so that the next one, which may come at once, is not lost.
 */
SL_API void sl_world_watch(sl_world_t *world,
                           void (*on_abort)(void *ctx, sl_status_t status,
                                            const char *detail),
                           void *ctx);
/** Who watches now, to be given back to sl_world_watch. */
typedef struct sl_world_watcher {
    void (*on_abort)(void *ctx, sl_status_t status, const char *detail);
    void *ctx;
} sl_world_watcher_t;
SL_API sl_world_watcher_t sl_world_watcher(sl_world_t *world);
/**
 * What all ranks have done together, such as a step, has ended here, and this
 * one goes on. All say so as often and in the same order; nobody waits for it.
 * A failure that this rank has later is told to the others when all have said
 * the same: so none is cut off in what this rank has ended. NULL is allowed.
 */
SL_API void sl_world_settle(sl_world_t *world);

/** How others are told of SL_ERR_DEVICE, after "rank 1 on host b ": by it a
 *  launcher knows which host to do without. */
#define SL_WORLD_DEVICE_FAILURE "has a device failure: "

/** Tell all others that this rank's job has failed. Never waits. Once per job;
 *  later calls are dropped. */
SL_API void sl_world_abort(sl_world_t *world, sl_status_t status,
                           const char *detail);
/** Whether the job has failed, here or as far as is known elsewhere, and was
 *  not recovered. From any thread. */
SL_API int sl_world_has_failed(sl_world_t *world);
/**
 * After a failed job, on all ranks: what is under way is received and dropped,
 * all slots are free, memory lent to ports is the caller's, counters of ports
 * begin anew, and waits work again. The watch is over.
 *
 * @return SL_OK; SL_ERR_COMM when a rank is gone for good; SL_ERR_CANCELED when
 *         another rank's next job has failed already: recover again
 */
SL_API SL_NODISCARD sl_status_t sl_world_recover(sl_world_t *world);

/**
 * After sl_world_recover: whether the sum that was canceled here had been ended
 * by another rank before the failure, and if so what it gave. Then this rank
 * must go on from it as the others did: a sum takes place on all ranks or on
 * none, so it can decide whether a step is committed.
 */
SL_API int sl_world_late_sum(sl_world_t *world, double *values, size_t n);

SL_END_DECLS
#endif /* SL_ENGINE_WORLD_H */
