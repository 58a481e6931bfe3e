/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file world_internal.h
 * Inside engine/world/: what the communication thread works on.
 *
 * All protocol state belongs to the communication thread and has no lock.
 * Other threads reach it through the inbox (guarded by lock): requests, which
 * lie on the stack of a caller who waits, and ports with something new.
 */
#ifndef SL_ENGINE_WORLD_INTERNAL_H
#define SL_ENGINE_WORLD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/world.h"

enum {
    SL_WORLD_DETAIL_BYTES = 1024,
    SL_WORLD_HOST_BYTES = 128,
    SL_WORLD_MAX_RANKS = 65536,
    /* sl_world_put and sl_world_get, one at a time a pair and direction */
    SL_TAG_DIRECT = SL_WORLD_MAX_TAG + 1
};

/* ---- links: the library below ---- */

typedef enum sl_notice_kind {
    SL_NOTICE_BEAT,
    SL_NOTICE_CREDIT,     /* receiver: n more receives are posted */
    SL_NOTICE_CLOSE,      /* receiver: no more credits, send what is owed */
    SL_NOTICE_CLOSE_ACK,  /* sender: the close is known */
    SL_NOTICE_ABORT,      /* the job has failed here too */
    SL_NOTICE_READY,      /* to rank 0: drained, and recovery was asked for */
    SL_NOTICE_RESUME,     /* from rank 0: all were ready */
    SL_NOTICE_LEAVE,      /* to rank 0 (after a failure to all) */
    SL_NOTICE_GOODBYE,    /* from rank 0: all leave */
    SL_NOTICE_WISH,       /* a rank wishes, see sl_world_wish_set */
    SL_NOTICE_SETTLED,    /* up a tree: all there have settled n times */
    SL_NOTICE_ALL_SETTLED /* down from rank 0: all have */
} sl_notice_kind_t;

/** A small message between communication threads; in order per pair. */
typedef struct sl_notice {
    uint32_t kind;
    int32_t tag;
    uint64_t epoch;
    uint64_t n;      /**< credit: messages; settled: how often */
    uint64_t bytes;  /**< credit: room of each */
    int32_t n_slots; /**< credit */
    int32_t rank;    /**< abort: whose failure */
    int32_t status;  /**< abort */
    int32_t is_gone; /**< abort: that rank will not come back; leave: the
                          job has failed */
    char detail[SL_WORLD_DETAIL_BYTES]; /**< abort only */
} sl_notice_t;

typedef struct sl_link sl_link_t;

/** One piece of a message on its way. Memory of the port. */
typedef struct sl_xfer {
    struct sl_xfer *next; /**< the link's */
    void *link_data;      /**< the link's */
    sl_port_t *port;
    uint64_t message;
    const void *source;
    void *target;
    size_t bytes; /**< to send; room to receive, then what came */
    int peer, tag;
    int is_receive;
    int is_active; /**< between start and completion */
} sl_xfer_t;

/** How soon the next message matters. */
typedef enum sl_pace {
    SL_PACE_EAGER, /* somebody waits, or a send is under way */
    SL_PACE_LAZY,  /* messages may come */
    SL_PACE_IDLE   /* only signs of life, failures */
} sl_pace_t;

/** What stop can count on. */
typedef enum sl_stop {
    SL_STOP_CLEAN,      /* all leave, nothing is under way */
    SL_STOP_FAILED,     /* the job failed, all leave */
    SL_STOP_LOST,       /* some rank does not answer */
    SL_STOP_LOST_FIRST, /* and this is the one to do something about it */
    SL_STOP_UNMET       /* start failed */
} sl_stop_t;

/** All but wake are called on the communication thread. A send's receive is
 *  always posted before; several on one (peer, tag) match in order. */
typedef struct sl_link_ops {
    const char *name;
    /** A failed job is left together too, boundedly. */
    int waits_for_all;
    /** Meet the others: sets rank, size, hosts. */
    sl_status_t (*start)(sl_link_t *link);
    /** Queue a control message; a copy is taken. */
    sl_status_t (*control)(sl_link_t *link, int peer, const void *data,
                           size_t bytes);
    sl_status_t (*send)(sl_link_t *link, sl_xfer_t *xfer);
    sl_status_t (*receive)(sl_link_t *link, sl_xfer_t *xfer);
    /** Forget a transfer with a rank that is gone. */
    void (*drop)(sl_link_t *link, sl_xfer_t *xfer);
    /** Progress; reports through sl_world_on_...; number of events. */
    int (*poll)(sl_link_t *link);
    /** Sleep until something comes, wake or the timeout. */
    void (*wait)(sl_link_t *link, sl_pace_t pace, uint64_t timeout_ns);
    void (*wake)(sl_link_t *link);
    void (*stop)(sl_link_t *link, sl_stop_t how);
    /** After stop, when the thread has ended; frees the link. */
    void (*destroy)(sl_link_t *link);
} sl_link_ops_t;

struct sl_link {
    const sl_link_ops_t *ops;
    sl_world_t *world;
    int rank, size;
    char (*hosts)[SL_WORLD_HOST_BYTES]; /**< owned, one a rank */
    int is_cuda_aware;                  /**< set by start */
};

/** Called by links, on the communication thread, from poll. */
void sl_world_on_control(sl_world_t *world, int from, const void *data,
                         size_t bytes);
void sl_world_on_xfer(sl_world_t *world, sl_xfer_t *xfer);
/** The connection to a rank broke. */
void sl_world_on_lost(sl_world_t *world, int peer, const char *why);

sl_status_t sl_link_mpi_create(sl_link_t **link_p);
/** *link_p is NULL when the environment says that there is one rank. */
sl_status_t sl_link_tcp_create(sl_link_t **link_p);
sl_status_t sl_link_local_create(int n, sl_link_t **links);

/** This host, or what SLUICE_HOST says that it is. */
void sl_link_host_name(char name[SL_WORLD_HOST_BYTES]);

/** Sleeping for links that have nothing better. */
typedef struct sl_waker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int has_news; /**< guarded by lock */
} sl_waker_t;

void sl_waker_init(sl_waker_t *waker);
void sl_waker_cleanup(sl_waker_t *waker);
void sl_waker_wake(sl_waker_t *waker);
/** @return whether it was woken */
int sl_waker_wait(sl_waker_t *waker, uint64_t timeout_ns);

/* ---- ports ---- */

typedef struct sl_outgoing {
    const void *data;
    size_t bytes;
    uint64_t queued_ns;
} sl_outgoing_t;

/** First in, first out; grows. */
typedef struct sl_outbox {
    sl_outgoing_t *items;
    size_t first, n, n_items;
} sl_outbox_t;

sl_status_t sl_outbox_push(sl_outbox_t *box, const sl_outgoing_t *item);
sl_outgoing_t sl_outbox_pop(sl_outbox_t *box);
void sl_outbox_cleanup(sl_outbox_t *box);

/** Message i is in slot i % n_slots, on both sides. */
typedef struct sl_port_slot {
    void *memory;     /**< receiver: borrowed */
    const void *data; /**< sender: borrowed */
    size_t bytes;
    uint64_t queued_ns;
    size_t n_open; /**< pieces under way */
    int is_empty;  /**< sender: pays a credit back, no message */
    sl_xfer_t *pieces;
} sl_port_slot_t;

struct sl_port {
    sl_world_t *world;
    sl_port_t *next; /**< of the same peer */
    int peer, tag, is_sender;
    int n_slots;
    size_t max_bytes; /**< direct: of the present message */
    size_t n_pieces;  /**< of each message, the last may be empty */
    sl_port_events_t events;

    /* guarded by world->lock */
    sl_outbox_t queue; /**< sender: not begun */
    uint64_t n_release_pending;
    int is_dirty;
    sl_port_t *next_dirty;
    sl_port_t *next_taken; /**< the communication thread's */

    /* the communication thread's */
    int has_user;     /**< opened and not closed here */
    int is_peer_done; /**< sender: the receiver closed */
    int is_acked;     /**< receiver: the sender knows of the close */
    int is_shadow;    /**< sender: the receiver came first, no user yet */
    int is_direct;    /**< of put and get: room differs from one to the next */
    uint64_t n_waiting; /**< queued messages already counted as stalled */
    uint64_t n_credits;
    int has_next_room; /**< direct sender: a credit that is not yet one */
    size_t next_room;
    uint64_t n_started; /**< messages begun: sent, or posted to receive */
    uint64_t n_ended;   /**< of these, left or arrived */
    uint64_t n_released;
    sl_port_slot_t *slots;
    struct sl_request *direct; /**< put or get that waits */
    struct sl_request *close;  /**< close that waits */

    /* statistics, relaxed */
    _Atomic uint64_t n_messages, n_bytes, latency_ns, n_stalls;
};

/* ---- requests of other threads ---- */

typedef enum sl_request_kind {
    SL_REQUEST_OPEN,
    SL_REQUEST_CLOSE,
    SL_REQUEST_PUT,
    SL_REQUEST_GET,
    SL_REQUEST_RECOVER,
    SL_REQUEST_CALL,
    SL_REQUEST_LEAVE
} sl_request_kind_t;

typedef struct sl_request {
    struct sl_request *next;
    sl_request_kind_t kind;
    sl_port_t *port; /**< open: what to add, then what to use */
    int peer;
    const void *source; /**< put */
    void *target;       /**< get */
    size_t bytes;
    uint64_t n_sums;       /**< recover: that this rank has ended */
    int is_uneven;         /**< recover: ranks have ended different numbers */
    void (*fn)(void *ctx); /**< call */
    void *ctx;             /**< likewise */
    int is_done;           /**< guarded by world->lock */
    sl_status_t status;    /**< guarded by world->lock */
    char detail[SL_WORLD_DETAIL_BYTES];
} sl_request_t;

typedef struct sl_peer {
    sl_port_t *ports;       /**< in the order of opening */
    uint64_t seen_ns;       /**< last sign of life */
    uint64_t aborted_epoch; /**< latest job that it has given up, plus 1 */
    int is_gone;            /**< dead, hung, left */
    int is_dead;            /**< of these, not left */
    int is_ready;           /**< rank 0: waits for resume */
    uint64_t n_sums;        /**< rank 0: with is_ready */
    uint64_t n_settled;     /**< it and all below it, see settle.c */
    int is_leaving;         /**< rank 0: waits for goodbye */
    int is_broken;          /**< nothing can be sent to it */
    int is_lost;            /**< that is to be told: lost_why */
} sl_peer_t;

typedef struct sl_deferred {
    struct sl_deferred *next;
    int from;
    sl_notice_t control;
} sl_deferred_t;

struct sl_world {
    sl_link_t *link; /**< owned */
    sl_world_params_t params;
    size_t piece_bytes;
    int rank, size;
    int local_rank, n_local;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    sl_request_t *requests, **requests_end; /**< guarded by lock */
    sl_port_t *dirty;                       /**< guarded by lock */
    int is_failed;                          /**< guarded by lock */
    int is_abort_asked;  /**< guarded by lock: this rank's own failure, which
                              waits until all have settled as often */
    uint64_t n_settled;  /**< guarded by lock: what this rank has ended */
    sl_status_t failure; /**< guarded by lock */
    char failure_detail[SL_WORLD_DETAIL_BYTES]; /**< guarded by lock */
    uint64_t dead_asked_ns;                     /**< guarded by lock; 0 = no */
    int is_started;                             /**< guarded by lock */
    sl_status_t start_status;                   /**< guarded by lock */

    pthread_mutex_t watch_lock; /**< held during the call */
    void (*on_abort)(void *ctx, sl_status_t status, const char *detail);
    void *on_abort_ctx;
    /* of another rank, in this job; guarded by watch_lock */
    sl_status_t other_failure;
    char other_detail[SL_WORLD_DETAIL_BYTES];

    int (*wish)(void *ctx); /**< guarded by watch_lock, as its ctx */
    void *wish_ctx;
    atomic_int is_wished; /**< by this rank or another */

    /* of the thread that calls what all do together */
    uint64_t n_waits; /**< sums, gathers, broadcasts that were begun */
    uint64_t n_sums;  /**< ended here */
    double *last_sum; /**< owned: the result of the last */
    size_t n_last_sum;
    int is_late_sum; /**< ended by another rank, canceled here */

    atomic_int n_expected;
    atomic_int is_stalled; /**< test hook: stop polling */

    /* the communication thread's */
    sl_peer_t *peers;
    uint64_t epoch;
    int is_aborted;
    int is_resuming; /**< all were ready: begin anew when drained */
    int is_uneven;   /**< comes with is_resuming */
    int is_ready_sent;
    int is_over;     /**< goodbye came, or left after a failure */
    int is_expelled; /**< the others gave this rank up */
    int is_finder;   /**< this rank found a dead one: tell all */
    int is_reported; /**< and has told the user */
    int is_wish_told;
    uint64_t n_settled_here; /**< n_settled, as far as it was seen */
    uint64_t n_settled_told; /**< by this rank and all below it */
    uint64_t n_all_settled;  /**< by all ranks */
    int n_gone;
    int n_lost; /**< to be marked as gone at the end of the turn */
    char lost_why[SL_WORLD_DETAIL_BYTES / 2];
    uint64_t n_sending; /**< pieces */
    uint64_t n_direct;  /**< put and get that wait */
    uint64_t n_ports;
    uint64_t n_events; /**< of this turn */
    uint64_t beat_ns, turn_ns;
    char abort_detail[SL_WORLD_DETAIL_BYTES]; /**< what rank 0 is to tell of the
                                                   failure; empty when a rank
                                                   is gone, which is told by
                                                   who finds it */
    uint64_t leave_deadline_ns;
    int is_leaving;                /**< after a failure: the others were told */
    sl_request_t *recover, *leave; /**< that wait */
    sl_deferred_t *deferred, **deferred_end;
};

/* world.c */
void sl_world_wake(sl_world_t *world);
/** Hand a request to the communication thread and wait until it is done. */
void sl_world_request(sl_world_t *world, sl_request_t *request);
/** `detail` NULL: the job's failure. The request is then the caller's. */
void sl_request_finish(sl_world_t *world, sl_request_t *request,
                       sl_status_t status, const char *detail);

/* notice.c */
void sl_notice_send(sl_world_t *world, int peer, const sl_notice_t *control);
/** Handle what came early, from ranks that had begun this job before. */
void sl_notice_replay(sl_world_t *world);

/* port_make.c */
/** Room for n_slots messages of max_bytes; memory NULL for a sender. */
sl_status_t sl_port_make(sl_world_t *world, const sl_port_t *like,
                         void *const *memory, sl_port_t **port_p);
/** Other room for the next message, none being under way. */
sl_status_t sl_port_fit(sl_port_t *port, size_t max_bytes);
void sl_port_free(sl_port_t *port);

/* port.c: the communication thread's side */
/** With the lock held: take over what the inbox holds. */
void sl_port_take_dirty(sl_port_t *dirty);
void sl_port_progress_dirty(sl_port_t *dirty);
void sl_port_progress(sl_port_t *port);
void sl_port_on_open(sl_world_t *world, sl_request_t *request);
void sl_port_on_close(sl_world_t *world, sl_request_t *request);
void sl_port_on_put(sl_world_t *world, sl_request_t *request);
void sl_port_on_get(sl_world_t *world, sl_request_t *request);
void sl_port_on_credit(sl_world_t *world, int from, const sl_notice_t *control);
void sl_port_on_peer_close(sl_world_t *world, int from,
                           const sl_notice_t *control);
void sl_port_on_close_ack(sl_world_t *world, int from,
                          const sl_notice_t *control);

/* port_failure.c */
/** The job failed: nothing new is begun, what is queued is dropped. */
void sl_port_abort_all(sl_world_t *world);
void sl_port_clear_queue(sl_port_t *port);
/** A receiver takes no messages any more: send the empty ones it waits for. */
void sl_port_pay_back(sl_world_t *world, int peer);
void sl_port_drop_peer(sl_world_t *world, int peer);
int sl_port_all_drained(const sl_world_t *world);
void sl_port_restart_all(sl_world_t *world);
void sl_port_free_all(sl_world_t *world);
/** The end of a close, if it can be; the port may be gone after it. */
void sl_port_try_end(sl_port_t *port);
void sl_port_finish_direct(sl_port_t *port, sl_status_t status,
                           const char *detail);

/* failure.c */
/** The job fails here, because of `rank`. Once a job. */
void sl_failure_enter(sl_world_t *world, sl_status_t status, int rank,
                      int is_gone, const char *detail);
/** sl_world_abort was called. */
void sl_failure_enter_own(sl_world_t *world);
void sl_failure_on_abort(sl_world_t *world, int from,
                         const sl_notice_t *control);
/** This rank finds that another is dead. */
void sl_failure_gone(sl_world_t *world, int peer, const char *why,
                     int is_reporter);
/** Another rank says that it leaves a failed job. */
void sl_failure_left(sl_world_t *world, int peer);
void sl_failure_beat(sl_world_t *world, uint64_t now_ns);
void sl_failure_on_recover(sl_world_t *world, sl_request_t *request);
void sl_failure_on_ready(sl_world_t *world, int from,
                         const sl_notice_t *control);
void sl_failure_on_resume(sl_world_t *world, const sl_notice_t *control);
void sl_failure_progress(sl_world_t *world);

/* wish.c */
/** At a sign of life: whether this rank wishes, and if so, tell all. */
void sl_wish_look(sl_world_t *world);
void sl_wish_heard(sl_world_t *world);
void sl_wish_take_dead(sl_world_t *world, uint64_t dead_ns);

/* settle.c */
/** This rank has settled `n` times. */
void sl_settle_here(sl_world_t *world, uint64_t n);
void sl_settle_heard(sl_world_t *world, int from, const sl_notice_t *control);
void sl_settle_restart(sl_world_t *world);

/* collectives.c */
/** All ranks: those whose last sum was canceled get it from rank 0. */
sl_status_t sl_world_share_sum(sl_world_t *world);

/* ---- hooks for tests ---- */

/** Largest piece of a message; 0 is the default. For worlds made later. */
void sl_world_hook_piece_bytes(size_t bytes);
/** Let the communication thread of this rank neither answer nor ask. */
void sl_world_hook_stall(sl_world_t *world, int is_stalled);
/** Local link: move bytes so, as a library does that knows the memory of
 *  devices. For worlds made later; NULL ends it. */
void sl_world_hook_copy(void (*copy)(void *to, const void *from, size_t bytes));
/** Local link: deliver late, at random. For worlds made later; 0 ends it. */
void sl_world_hook_jitter(uint64_t seed);

#endif /* SL_ENGINE_WORLD_INTERNAL_H */
