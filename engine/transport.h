/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport.h
 * Tensors between stages. A channel carries one value in one direction from
 * one stage to another, one message a micro-batch.
 *
 * Within a process a send lends the tensor: the receiver copies it into its
 * own device's memory by an op of its own device, and the sender may release
 * it after that. The send itself never blocks.
 *
 * Transfers of a dry device (op manager NULL) take place at once, without
 * the bytes.
 */
#ifndef SL_ENGINE_TRANSPORT_H
#define SL_ENGINE_TRANSPORT_H

#include <stddef.h>

#include "base/status.h"
#include "engine/sync.h"
#include "scheduler/scheduler.h"

/** One micro-batch's tensor on its way. */
typedef struct sl_message {
    const void *data; /**< sender's device; written before is_ready */
    size_t bytes;
    int is_ready; /**< guarded by the abort's lock */
    int is_taken; /**< the receiver has copied it; likewise guarded */
} sl_message_t;

typedef struct sl_channel {
    int from_stage, to_stage;
    int layer; /**< whose output, or whose output's gradient */
    int is_backward;
    int n_slots; /**< tensors lent at once: one more than the stages that
                      it crosses, so that a pipeline in step never waits */
    int n_messages;
    sl_message_t *messages; /**< owned, one a micro-batch */
    sl_abort_t *abort;      /**< borrowed */
} sl_channel_t;

/** Make room for n micro-batches and forget all messages; no stage runs. */
SL_NODISCARD sl_status_t sl_channel_reset(sl_channel_t *channel, int n);
void sl_channel_cleanup(sl_channel_t *channel);

/**
 * Lend `data` of micro-batch m to the receiver once all ops submitted so far
 * on `ops` have run.
 *
 * The loan is over when sl_channel_wait_taken() returns.
 */
SL_NODISCARD sl_status_t sl_channel_send(sl_channel_t *channel,
                                         sl_op_manager_t *ops, int m,
                                         const void *data, size_t bytes);

/** Wait until the receiver has copied micro-batch m.
 *  @return SL_OK, SL_ERR_CANCELED */
SL_NODISCARD sl_status_t sl_channel_wait_taken(sl_channel_t *channel, int m);

/** Whether sl_channel_wait() and sl_channel_wait_taken() would return at
 *  once. */
int sl_channel_is_ready(sl_channel_t *channel, int m);
int sl_channel_is_taken(sl_channel_t *channel, int m);

/** Wait until micro-batch m was sent.
 *  @return SL_OK, SL_ERR_CANCELED */
SL_NODISCARD sl_status_t sl_channel_wait(sl_channel_t *channel, int m);

/** After wait: queue the copy into `out` on the receiver's device. */
SL_NODISCARD sl_status_t sl_channel_receive(sl_channel_t *channel,
                                            sl_op_manager_t *ops, int m,
                                            void *out, size_t bytes,
                                            sl_op_span_t *span);

#endif /* SL_ENGINE_TRANSPORT_H */
