/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_ways.h
 * The ways of tensors between ranks, private to the transports.
 *
 * | way | slots of the receiver | the sender's tensor |
 * |---|---|---|
 * | host | blocks of its device | leaves from where it is |
 * | staged | pinned host memory | leaves from a copy in pinned memory |
 * | cuda-aware | blocks of its device | leaves from where it is |
 * | nccl | blocks of its device | ncclSend (nccl/nccl.h) |
 *
 * All use the same ports: tag, number of slots, order and failure are alike,
 * and a message leaves when there is a slot for it.
 *
 * **Bounded staging.** A sender has as many staging slots as the receiver has
 * slots, n. Message i is copied into the one of message i - n, so its send
 * waits until that has left, which it does once message i - 2n was taken. Edges
 * of a pipeline never wait there: their loans do already, for more
 * (transfers.c). Buckets do, and all replicas handle them in the same order,
 * each at most one behind the one that it sent last: whoever waits to send
 * bucket b has received all before b - 1, so of all replicas the one that is
 * least far is waited for by the others and waits for nobody.
 */
#ifndef SL_ENGINE_TRANSPORT_WAYS_H
#define SL_ENGINE_TRANSPORT_WAYS_H

#include "engine/transport.h"
#include "engine/world.h"

typedef struct sl_remote_way {
    size_t size; /**< sizeof(sl_remote_way_t) when compiled */
    const char *name;
    /** What this end needs; also of a dry one. On failure close follows. */
    sl_status_t (*open)(sl_channel_t *channel);
    /** Give it back; the port is closed. */
    void (*close)(sl_channel_t *channel);
    sl_status_t (*open_port)(sl_channel_t *channel);
    /** Submit the ops that let message m, of this number, leave. */
    sl_status_t (*send)(sl_channel_t *channel, sl_op_manager_t *ops, int m);
    /** Submit the ops that copy a slot and free it. */
    sl_status_t (*receive)(sl_channel_t *channel, sl_op_manager_t *ops,
                           const sl_op_t *op, size_t slot);
    /** (optional) After sl_world_recover(). */
    void (*recover)(sl_channel_t *channel);
} sl_remote_way_t;

struct sl_remote {
    const sl_remote_way_t *way;
    sl_world_t *world;
    sl_device_t *device;    /* borrowed */
    sl_port_t *port;        /* NULL: dry */
    sl_mem_block_t **slots; /* receiver: owned, n_slots of them, or NULL */
    void **slot_ptrs;       /* receiver: where they lie; owned */
    size_t *slot_bytes; /* receiver: of the message inside; owned; guarded by
                           the abort's lock */
    void *pinned;       /* staged: n_slots in one; owned */
    void *own;          /* the way's */
    size_t max_bytes;
    /** Sender: of message i at i % SL_TRANSFER_LOG; owned. Begun by the device,
     *  ended by who counts it in n_events; NULL: dry. */
    sl_interval_t *log;
    uint64_t n_events;        /* left or arrived; guarded likewise */
    uint64_t n_used;          /* sent or received by the executor */
    _Atomic uint64_t n_bytes; /* sent or received, ever */
};

/** Of this end's slot i. */
size_t sl_remote_slot(const sl_channel_t *channel, uint64_t number);

/* ---- parts that ways share ---- */

/** Slots as pinned blocks of the receiver's device. */
sl_status_t sl_remote_make_blocks(sl_channel_t *channel);
/** A port for the tensors themselves. */
sl_status_t sl_remote_open_port(sl_channel_t *channel);
/** One more message of this channel has left, or arrived. */
void sl_remote_advance(sl_channel_t *channel);
/** An op that lets `data` leave through the port when all before have run. */
sl_status_t sl_remote_submit_leave(const sl_channel_t *channel,
                                   sl_op_manager_t *ops, const void *data,
                                   size_t bytes);
/** An op that frees the receiver's oldest slot when all before have run. */
sl_status_t sl_remote_submit_release(const sl_channel_t *channel,
                                     sl_op_manager_t *ops);
/** The parts of `receive`: copy by `op`, whose args are those of a copy. */
sl_status_t sl_remote_copy_out(sl_channel_t *channel, sl_op_manager_t *ops,
                               const sl_op_t *op, size_t slot);

extern const sl_remote_way_t sl_remote_way_host;
extern const sl_remote_way_t sl_remote_way_staged;
extern const sl_remote_way_t sl_remote_way_cuda_aware;
#if SL_HAVE_CUDA
extern const sl_remote_way_t sl_remote_way_nccl;
#endif

#endif /* SL_ENGINE_TRANSPORT_WAYS_H */
