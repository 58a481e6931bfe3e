/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file op_backend.h
 * How an op manager drives a device that runs beside the host, private to
 * scheduler/. A CPU device has none: its thread runs the ops itself.
 *
 * A device has a few queues, each in order, and marks: points in a queue that
 * can be waited for, and the times between them. All functions are called on
 * the manager's thread.
 */
#ifndef SL_SCHEDULER_OP_BACKEND_H
#define SL_SCHEDULER_OP_BACKEND_H

#include <stdint.h>

#include "scheduler/scheduler.h"

typedef enum sl_op_queue {
    SL_OP_QUEUE_MAIN,
    SL_OP_QUEUE_LOAD, /* copies to the device beside it */
    SL_OP_QUEUE_SEND, /* copies from it */
    SL_OP_N_QUEUES
} sl_op_queue_t;

typedef struct sl_op_backend_params {
    const char *name; /* for messages; borrowed */
    int device;
    int n_marks;
    /* Call it from any thread when a watched mark has passed. */
    void (*wake)(void *arg);
    void *arg;
} sl_op_backend_params_t;

struct sl_op_backend {
    const char *name;

    /** @param[out] ctx_p passed to all others */
    sl_status_t (*open)(const sl_op_backend_params_t *params, void **ctx_p);
    /** Nothing is in flight, or the device has failed. Cannot fail. */
    void (*close)(void *ctx);

    /** What an op gets as its `stream`. */
    void *(*stream)(void *ctx, sl_op_queue_t queue);
    /** Queue mark number `mark`, from 0. */
    sl_status_t (*mark)(void *ctx, sl_op_queue_t queue, int mark);
    /** What is queued from now on waits for a mark of another queue. */
    sl_status_t (*follow)(void *ctx, sl_op_queue_t queue, int mark);
    /** @return SL_OK = it has passed, SL_INPROGRESS, or what the device has
     *          failed with */
    sl_status_t (*query)(void *ctx, int mark);
    /** Time from one passed mark to another; below zero when it passed
     *  first. */
    sl_status_t (*elapsed)(void *ctx, int from, int to, int64_t *ns_p);

    /** Call `wake` when the mark has passed or the device has failed; ignored
     *  while another is watched. */
    void (*watch)(void *ctx, int mark);
    /** The mark that is watched, not to be queued now; -1 = none. */
    int (*watched)(void *ctx);

    /** Wait until the device does nothing any more, failed or not. */
    void (*settle)(void *ctx);

    /* (optional, all or none) What is queued on the main queue between begin
     * and end is not run but becomes a graph: that of *graph_p with other
     * arguments, where it has the same form; NULL = a new one. Graphs of a
     * device are dropped before it is closed. */
    sl_status_t (*capture_begin)(void *ctx);
    sl_status_t (*capture_end)(void *ctx, void **graph_p);
    void (*capture_cancel)(void *ctx);
    sl_status_t (*launch)(void *ctx, void *graph);
    void (*drop)(void *ctx, void *graph);
};

#endif /* SL_SCHEDULER_OP_BACKEND_H */
