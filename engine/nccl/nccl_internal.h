/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nccl_internal.h
 * Inside engine/nccl/: lanes, and what the driver does with them. nccl.c is
 * the driver, lane.c its turns on one lane, connect.c the making of
 * communicators, recover.c what follows a failure, channel.c the way that
 * channels see (transport_ways.h).
 */
#ifndef SL_ENGINE_NCCL_NCCL_INTERNAL_H
#define SL_ENGINE_NCCL_NCCL_INTERNAL_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "engine/nccl/nccl.h"
#include "engine/transport_ways.h"

enum {
    SL_LANE_GROUP = 16, /* most tensors of a group */
    SL_LANE_NOTICES = 8 /* slots of a lane's port */
};

/** Which channels' tensors are in the next group. */
typedef struct sl_lane_notice {
    uint16_t n;
    uint16_t tags[SL_LANE_GROUP];
} sl_lane_notice_t;

/** What the sender's rank gives the receiver's to meet by. */
typedef struct sl_lane_hello {
    int32_t status;
    ncclUniqueId id;
} sl_lane_hello_t;

typedef struct sl_lane sl_lane_t;

/** Tensors that are under way together. */
typedef struct sl_lane_group {
    sl_lane_t *lane;
    int n;
    struct {
        sl_channel_t *channel;
        void *memory; /**< on the device */
        size_t bytes;
    } items[SL_LANE_GROUP];
} sl_lane_group_t;

typedef enum sl_lane_state {
    SL_LANE_UNMADE,    /**< no communicator */
    SL_LANE_MEETING,   /**< it is being made */
    SL_LANE_IDLE,      /**< the next group can be queued */
    SL_LANE_LAUNCHING, /**< NCCL has not put the latest into the stream yet */
    SL_LANE_BROKEN
} sl_lane_state_t;

struct sl_lane {
    sl_lane_t *next; /**< in the order of keys; fixed while the driver runs */
    sl_nccl_t *nccl;
    sl_lane_key_t key;
    int is_sender, peer;
    int gpu; /**< as CUDA numbers them */
    sl_port_t *port;
    sl_lane_notice_t notices[SL_LANE_NOTICES]; /**< the port's memory */

    /* the driver's; of others only while it is paused */
    sl_lane_state_t state;
    sl_lane_hello_t hello; /**< of the communicator that is being made */
    ncclComm_t comm;
    cudaStream_t stream;
    sl_lane_group_t *launching; /**< owned */
    uint64_t n_queued;          /**< groups, since recovery */
    uint64_t since_ns;          /**< the latest group, or meeting */

    /* guarded by nccl->lock */
    sl_message_t *ready, **ready_end; /**< sender: headers that have left */
    uint64_t n_notices;               /**< that have left, or arrived */
    uint64_t n_ended;                 /**< groups */
    sl_channel_t **channels; /**< receiver: owned; by tag, NULL: not open */
    size_t n_channels;
};

struct sl_nccl {
    sl_nccl_params_t params;
    int rank;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int is_stopping, is_paused; /**< asked; guarded by lock */
    int is_parked;              /**< the driver does nothing; likewise */
    int is_taken;     /**< lanes are another thread's meanwhile; likewise */
    sl_lane_t *lanes; /**< owned; changed while parked */
    int has_failed;   /**< of this job, told; guarded by lock */
    int is_lost;      /**< for good */
    uint64_t n_made;
};

/* ---- lane.c: the driver's turns ---- */

/** Whether the next group can be queued; lock held. */
int sl_lane_has_work(const sl_lane_t *lane);
/** Take the next group and hand it to NCCL. Called with the lock held, returns
 *  with it. */
sl_status_t sl_lane_begin(sl_lane_t *lane);
/** Ask whether a launch has ended, then queue what tells of the group's end. */
sl_status_t sl_lane_poll(sl_lane_t *lane);
/** Whether what runs is well, and not for too long. */
sl_status_t sl_lane_check(sl_lane_t *lane);
/** A failure of the lane, with the calling thread's detail. */
sl_status_t sl_lane_explain(const sl_lane_t *lane, sl_status_t status);

/* ---- nccl.c ---- */

/** Pause, and take the lanes from the driver; then give them back. */
void sl_nccl_take(sl_nccl_t *nccl);
void sl_nccl_resume(sl_nccl_t *nccl);

/* ---- connect.c ---- */

/** This rank's status; when one rank has failed all do. Collective. */
sl_status_t sl_nccl_agree(sl_world_t *world, sl_status_t own);
/** Communicators for the lanes that have none. Collective, driver parked; when
 *  one rank fails all do. */
sl_status_t sl_nccl_meet(sl_nccl_t *nccl);
/** Abort the communicator and wait until the stream is empty. */
void sl_lane_abort(sl_lane_t *lane);
/** End the communicator in peace, or abort it. */
void sl_lane_end(sl_lane_t *lane);

/* ---- channel.c, for lane.c ---- */

/** What a channel has beside the common part (sl_remote.own). */
typedef struct sl_nccl_end {
    sl_lane_t *lane;
    uint64_t *sizes;    /**< receiver: owned, the headers' memory */
    void **size_ptrs;   /**< owned, of these */
    uint64_t n_headers; /**< receiver: arrived; guarded by nccl->lock */
    uint64_t n_posted;  /**< receiver: the driver's */
    /** Sender: whose headers are on their way; guarded likewise. */
    sl_message_t *sent, **sent_end;
} sl_nccl_end_t;

static inline sl_nccl_end_t *sl_nccl_end(const sl_channel_t *channel)
{
    return channel->remote->own;
}

/** The lane of a channel that ends here, or NULL. */
sl_lane_t *sl_nccl_find(const sl_nccl_t *nccl, const sl_lane_key_t *key);

/** Make a lane's GPU the calling thread's. */
sl_status_t sl_lane_enter(const sl_lane_t *lane);

#endif /* SL_ENGINE_NCCL_NCCL_INTERNAL_H */
