/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport.h
 * Tensors between cells. A channel carries one kind of tensor in one direction
 * from one cell to another: of a pipeline's edge, one message a micro-batch;
 * between replicas, one a bucket; of a tied parameter, one a step.
 *
 * Within a process (transport_thread.c) a send lends the tensor: the receiver
 * copies it into its own device's memory by an op of its own device, or reads
 * it where it lies, and the sender may release it after that. The send itself
 * never blocks. That a tensor is there, or taken, is told when the ops before
 * that have run (is_host), so devices that run beside the host need no other
 * order.
 *
 * Between processes (transport_remote.c) the tensor arrives in a slot of the
 * receiver, memory that is there from the start, and is copied out of it by an
 * op; the sender may release its memory when it has left. What the slots are
 * and how the bytes come there is a way (transport_ways.h): of devices that
 * use host memory there is one, of CUDA devices there are three.
 *
 * Transfers of a dry device (op manager NULL) take place at once, without
 * the bytes, and those between replicas without the other side.
 */
#ifndef SL_ENGINE_TRANSPORT_H
#define SL_ENGINE_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/sync.h"
#include "scheduler/scheduler.h"

struct sl_nccl;
struct sl_port_stats;
struct sl_remote;
struct sl_world;

/** One tensor on its way. */
typedef struct sl_message {
    const void *data; /**< sender's device; written before is_ready */
    size_t bytes;
    uint64_t number; /**< of the port's messages; the sender's, remote */
    int is_ready;    /**< guarded by the abort's lock */
    int is_taken;    /**< the receiver has copied it; likewise guarded */
    /* the sender's by nccl: see engine/nccl/nccl.h */
    uint64_t wire_bytes;
    struct sl_channel *channel;
    struct sl_message *next;
} sl_message_t;

enum {
    SL_TRANSFER_LOG = 512 /**< transfers whose times are kept, of an edge */
};

/** From one moment to another, of sl_clock_ns(). */
typedef struct sl_interval {
    uint64_t start_ns, end_ns;
} sl_interval_t;

/** Of the transfers of an edge between ranks that were looked at, see
 *  sl_engine_measure_overlap. */
typedef struct sl_overlap {
    uint64_t n;
    uint64_t transfer_ns;            /**< all together */
    uint64_t sender_ns, receiver_ns; /**< of it, under compute there */
} sl_overlap_t;

typedef enum sl_channel_kind {
    SL_CHANNEL_FORWARD,      /**< a layer's output */
    SL_CHANNEL_BACKWARD,     /**< its gradient */
    SL_CHANNEL_PARTS,        /**< of the gradients, to the chunk's owner */
    SL_CHANNEL_RESULTS,      /**< of the chunk's owner */
    SL_CHANNEL_STATISTICS,   /**< batch norm accumulators */
    SL_CHANNEL_TIE_GRADIENT, /**< user to owner */
    SL_CHANNEL_TIE_VALUE     /**< owner to user */
} sl_channel_kind_t;

/** "auto", "staged", "cuda-aware", "nccl". */
const char *sl_transport_name(sl_transport_t transport);

typedef struct sl_channel {
    sl_channel_kind_t kind;
    sl_device_kind_t device_kind; /**< of both sides */
    int from_cell, to_cell;       /**< numbers in the grid */
    int from_stage, to_stage;
    int layer;     /**< whose output or gradient, or the tie's user; -1 */
    int param;     /**< of a tie's user; -1 */
    int is_dry;    /**< nothing is waited for */
    int peer;      /**< rank of the other side; -1: both are here */
    int tag;       /**< of all channels from that rank, or to it */
    int is_sender; /**< which side this is, when the other is elsewhere */
    int n_slots;   /**< tensors lent at once: of an edge, one more than the
                        stages that it crosses, so that a pipeline in step
                        never waits */
    int n_messages;
    sl_transport_t transport;   /**< to other ranks (default auto: staged) */
    struct sl_nccl *nccl;       /**< borrowed; of that transport */
    int from_device, to_device; /**< of their ranks; likewise */
    sl_message_t *messages;     /**< owned */
    struct sl_remote *remote;   /**< owned; NULL: both are here */
    sl_abort_t *abort;          /**< borrowed */
    sl_overlap_t overlap;       /**< measured last */
} sl_channel_t;

/**
 * The memory of a channel whose other side is on another rank. Slots that are
 * memory of `device` are blocks of it, also when it is dry.
 *
 * @param max_bytes of a message; with 0 there are none
 */
SL_NODISCARD sl_status_t sl_channel_reserve(sl_channel_t *channel,
                                            struct sl_world *world,
                                            sl_device_t *device,
                                            size_t max_bytes);
/** After that connect it; every rank must have opened its sides before the
 *  first message. */
SL_NODISCARD sl_status_t sl_channel_open(sl_channel_t *channel);
/** Of an open one. @return whether it is */
int sl_channel_stats(const sl_channel_t *channel,
                     struct sl_port_stats *stats_p);
/** The i-th of the latest transfers that a sender to another rank has kept,
 * from when the tensor was there until it had left; between steps. @return 0
 * past the last */
int sl_channel_transfer(const sl_channel_t *channel, uint64_t i,
                        sl_interval_t *interval_p);
/** Undo both. Collective per channel when it is open, with nothing under way.
 */
void sl_channel_close(sl_channel_t *channel);
/** After sl_world_recover(): messages are counted from 0. */
void sl_channel_recover(sl_channel_t *channel);

/** Make room for n messages and forget all; no stage runs. */
SL_NODISCARD sl_status_t sl_channel_reset(sl_channel_t *channel, int n);
void sl_channel_cleanup(sl_channel_t *channel);

/**
 * Lend message m's `data` to the receiver once all ops submitted so far on
 * `ops` have run. To another rank, messages go in the order of these calls,
 * and are received in that order.
 *
 * The loan is over when sl_channel_wait_taken() returns.
 */
SL_NODISCARD sl_status_t sl_channel_send(sl_channel_t *channel,
                                         sl_op_manager_t *ops, int m,
                                         const void *data, size_t bytes);

/** Wait until the memory of message m is the sender's again.
 *  @return SL_OK, SL_ERR_CANCELED */
SL_NODISCARD sl_status_t sl_channel_wait_taken(sl_channel_t *channel, int m);

/** Whether sl_channel_wait() and sl_channel_wait_taken() would return at
 *  once. */
int sl_channel_is_ready(sl_channel_t *channel, int m);
int sl_channel_is_taken(sl_channel_t *channel, int m);

/** Wait until message m was sent.
 *  @return SL_OK, SL_ERR_CANCELED */
SL_NODISCARD sl_status_t sl_channel_wait(sl_channel_t *channel, int m);

/** After wait: queue the copy into `out` on the receiver's device. */
SL_NODISCARD sl_status_t sl_channel_receive(sl_channel_t *channel,
                                            sl_op_manager_t *ops, int m,
                                            void *out, size_t bytes,
                                            sl_op_span_t *span);

/** Whether sl_channel_borrow() works instead of receive: ops of the receiver's
 *  device can read a message where it lies. The same for a dry device. */
int sl_channel_can_lend(const sl_channel_t *channel);
/** After wait: where message m lies, to be read by ops that are submitted
 *  before sl_channel_give_back(). One message of a channel at a time. */
SL_NODISCARD sl_status_t sl_channel_borrow(sl_channel_t *channel, int m,
                                           size_t bytes, const void **data_p);
SL_NODISCARD sl_status_t sl_channel_give_back(sl_channel_t *channel,
                                              sl_op_manager_t *ops, int m);

/* ---- within a process, and between; for transport.c ---- */

typedef enum sl_message_event {
    SL_MESSAGE_READY,
    SL_MESSAGE_TAKEN
} sl_message_event_t;

/* transport_thread.c */
SL_NODISCARD sl_status_t sl_thread_send(sl_channel_t *channel,
                                        sl_op_manager_t *ops, int m);
SL_NODISCARD sl_status_t sl_thread_receive(sl_channel_t *channel,
                                           sl_op_manager_t *ops, int m,
                                           void *out, size_t bytes,
                                           sl_op_span_t *span);
SL_NODISCARD sl_status_t sl_thread_borrow(sl_channel_t *channel, int m,
                                          size_t bytes, const void **data_p);
SL_NODISCARD sl_status_t sl_thread_give_back(sl_channel_t *channel,
                                             sl_op_manager_t *ops, int m);

/* transport_remote.c */
SL_NODISCARD sl_status_t sl_remote_send(sl_channel_t *channel,
                                        sl_op_manager_t *ops, int m);
SL_NODISCARD sl_status_t sl_remote_receive(sl_channel_t *channel,
                                           sl_op_manager_t *ops, void *out,
                                           size_t bytes, sl_op_span_t *span);
SL_NODISCARD sl_status_t sl_remote_borrow(sl_channel_t *channel, size_t bytes,
                                          const void **data_p);
SL_NODISCARD sl_status_t sl_remote_give_back(const sl_channel_t *channel,
                                             sl_op_manager_t *ops);
/** With the abort's lock held. */
int sl_remote_has_event(const sl_channel_t *channel, int m,
                        sl_message_event_t event);
/** n more, or fewer, threads wait. */
void sl_remote_expect(const sl_channel_t *channel, int n);

#endif /* SL_ENGINE_TRANSPORT_H */
