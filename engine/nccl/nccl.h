/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nccl.h
 * Tensors between GPUs of different ranks by NCCL. Only in builds with CUDA.
 *
 * A **lane** is one direction between two devices of two ranks, with a
 * communicator of two, a stream and a port of its own. All channels of that
 * direction share it. One thread a rank, the driver, makes all calls of NCCL.
 *
 * 1. When the ops that wrote the tensor have run, an op (is_host) sends a
 *    *header*, its size, on the channel's own port. As any message it leaves
 *    when the receiver has a slot. So it is the share's gate and the order of
 *    ops that let a tensor go.
 * 2. When the header has left, the sender's driver takes what is ready on the
 *    lane as a group, sends a *notice* that names the channels on the lane's
 *    port, and queues the group: ncclSend each.
 * 3. The receiver's driver takes notices in their order and queues the same
 *    group: ncclRecv into the slots. A function of the host at its end says
 *    that the tensors have arrived, or left.
 * 4. The op that receives copies out of the slot, the next one frees it. What
 *    arrives does so beside all ops.
 *
 * **No deadlock.** NCCL's kernels wait on the device for the other side, and
 * any call that waits for the device (cudaFree, a module's first launch) waits
 * for them; so none is queued before its match is sure to be:
 * - A send is queued when there is a slot for it, and its notice has been sent
 *   then. Notices need no room but the lane's port, which the driver empties
 *   whatever executors do. So each send is matched after a time that depends
 *   on drivers and links alone, not on any program of a stage.
 * - A tensor is written when its header goes, and has arrived when it is
 *   copied out: no stream waits for an event of another.
 * - Both sides of a lane queue the same groups in the same order, the order of
 *   the notices, on one stream each. A group's operations progress together.
 *   So the first group of a lane that has not ended waits for nothing but its
 *   other side, which is queued or will be, and is first there too. Lanes do
 *   not wait for each other: no stream or communicator is shared.
 * - A driver never waits inside a call: communicators do not block, and while
 *   one is in progress (the first message makes connections) it serves others.
 * - Kernels of all lanes may be on a device at once, one of two blocks or so
 *   each: they do not wait for room that ops hold, as ops end by themselves.
 *
 * **Failure.** Nobody waits for ever: when the job fails anywhere the world's
 * watch ends all waits. Recovery compares how many groups each side of each
 * lane has queued. If they are equal all of them end by themselves; else the
 * communicator is aborted on both sides and made anew. Until then a thread may
 * be in a call that waits for the device, and so for a kernel whose match will
 * not come: when the job has failed and a group has not ended shortly after,
 * the driver aborts it without waiting for anybody. An error of NCCL, and a
 * group that takes too long, fail the job; of a rank that died the world says
 * so first.
 *
 * **Bits.** NCCL only carries bytes. Sums over replicas are our own ops in
 * replica order, so the bits are those of every other transport.
 */
#ifndef SL_ENGINE_NCCL_NCCL_H
#define SL_ENGINE_NCCL_NCCL_H

#include "engine/sync.h"
#include "engine/transport.h"
#include "engine/world.h"

typedef struct sl_nccl sl_nccl_t; /* opaque */

enum {
    /* tags of lanes' ports, from the top of all tags down */
    SL_NCCL_LANES = 256
};

/** A lane as both sides name it. */
typedef struct sl_lane_key {
    int from_rank, from_device; /**< index in its rank's set */
    int to_rank, to_device;
} sl_lane_key_t;

typedef struct sl_nccl_params {
    sl_world_t *world;              /**< borrowed */
    sl_abort_t *abort;              /**< borrowed; failures are raised there */
    const sl_device_set_t *devices; /**< borrowed; of this rank */
    uint64_t stuck_ns; /**< a group that has not ended by then has failed
                            (default 120 s) */
    uint64_t meet_ns;  /**< likewise the making of communicators (60 s) */
    uint64_t end_ns;   /**< a communicator that has not ended by then is aborted
                            (10 s) */
} sl_nccl_params_t;

void sl_nccl_params_default(sl_nccl_params_t *params);

/** Our status of a result of NCCL; ncclInProgress is SL_INPROGRESS.
 *  @return SL_ERR_COMM for what comes from elsewhere, else SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_nccl_status(int result, const char *call,
                                        const char *file, int line);
#define SL_NCCL(call) sl_nccl_status((int)(call), #call, __FILE__, __LINE__)

/** No lanes yet, but the driver. */
SL_NODISCARD sl_status_t sl_nccl_create(const sl_nccl_params_t *params,
                                        sl_nccl_t **nccl_p);
/** All channels are closed. Aborts what is under way. NULL is allowed. */
void sl_nccl_destroy(sl_nccl_t *nccl);

/** NCCL's version as text, such as "2.28.9"; static. */
const char *sl_nccl_version(void);

/**
 * Make the lanes that are not there yet. Collective: all ranks call it, each
 * with those that end on it, in the order of sl_lane_key_compare().
 *
 * @param before this rank's failure so far, or SL_OK: with one `nccl` may be
 *               NULL, and all ranks fail
 * @return SL_OK; when one rank fails all do, and some lanes may exist then
 */
SL_NODISCARD sl_status_t sl_nccl_connect(sl_nccl_t *nccl, sl_world_t *world,
                                         const sl_lane_key_t *keys, int n,
                                         sl_status_t before);
int sl_lane_key_compare(const void *a, const void *b);

/** Begin nothing new, until sl_nccl_recover(). The job has failed. */
void sl_nccl_pause(sl_nccl_t *nccl);
/** After sl_world_recover(): lanes begin anew, those that must with another
 *  communicator. Collective.
 *  @return SL_OK; an error: no lane can be used any more */
SL_NODISCARD sl_status_t sl_nccl_recover(sl_nccl_t *nccl);

/** Instead: there will be no recovery. Aborts what is under way, so that
 * nothing waits for it. Paused before. */
void sl_nccl_lose(sl_nccl_t *nccl);

/** Communicators made since creation. */
uint64_t sl_nccl_n_made(const sl_nccl_t *nccl);

#endif /* SL_ENGINE_NCCL_NCCL_H */
