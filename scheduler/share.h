/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file share.h
 * When the next op may start, private to scheduler/: arithmetic on times it
 * is told, so that it is tested without a clock. Not thread-safe.
 *
 * Token bucket: device time flows in at the share's rate and ops take out
 * what they use. Short ops start while the bucket holds what they are
 * expected to take; the true use is settled at the end, below zero if need
 * be, and such a debt is paid by idle time. So in any stretch of time t the
 * device time used is at most rate * t + depth + one op.
 */
#ifndef SL_SCHEDULER_SHARE_H
#define SL_SCHEDULER_SHARE_H

#include "scheduler/scheduler.h"

/** What the bucket holds at most: the longest burst after a pause. */
#define SL_SHARE_DEPTH_NS 20e6
/** An op expected to take more starts with this much: the rest of the bucket
 *  takes in what flows while a sleeper wakes up late. */
#define SL_SHARE_START_NS 10e6
/** An empty bucket fills to at least this before short ops go on: they run
 *  in bunches, with one sleep for each. */
#define SL_SHARE_BUNCH_NS 1e6
/** Largest debt, so that a process stopped inside an op comes back. */
#define SL_SHARE_DEBT_NS 10e9
/** AntMan's constant: idle time below it is not inserted. */
#define SL_SHARE_ANTMAN_FIXED_NS 50e3

/** A wait that only a change of the share ends. */
#define SL_SHARE_SUSPENDED UINT64_MAX

typedef struct sl_share {
    double percent; /* 0 to 100 */
    sl_share_law_t law;
    uint64_t at_ns; /* up to which time has flowed into the bucket */
    /* token bucket */
    double tokens_ns; /* of device time; below zero = debt */
    double flight_ns; /* expected of the ops that run, taken out already */
    /* AntMan */
    double planned_ns;       /* idle time planned at the last boundary */
    double left_ns;          /* of it, not yet inserted between ops */
    double lump_ns;          /* of the same length, at once after a boundary */
    double suspended_ns;     /* since the last boundary */
    uint64_t not_before_ns;  /* end of the lump, or of the last op's slot */
    uint64_t n_step_ops;     /* of this mini-batch */
    uint64_t n_step_ops_max; /* of any whole mini-batch; 0 = none yet */
} sl_share_t;

/** All of the device. */
void sl_share_init(sl_share_t *share);

/** A debt outlives a change of the share; after 100 percent, and under
 *  another law, all begins anew. */
void sl_share_set(sl_share_t *share, double percent, sl_share_law_t law,
                  uint64_t now_ns);

/** Time until an op that is expected to take `expected_ns` may start: 0 =
 *  now, SL_SHARE_SUSPENDED = when the share changes. Ask again then. */
uint64_t sl_share_wait_ns(sl_share_t *share, double expected_ns,
                          uint64_t now_ns);

/** The op starts, after a wait of 0 or in spite of it. */
void sl_share_start(sl_share_t *share, double expected_ns, uint64_t now_ns);

/** The op that started has ended and took `used_ns` of device time. */
void sl_share_finish(sl_share_t *share, double used_ns, uint64_t now_ns);

/** The same for one of several that started: the one expected to take
 *  `expected_ns`. */
void sl_share_settle(sl_share_t *share, double expected_ns, double used_ns,
                     uint64_t now_ns);

/** A mini-batch that took `step_ns`, all idle time included, has ended. */
void sl_share_boundary(sl_share_t *share, double step_ns, uint64_t now_ns);

#endif /* SL_SCHEDULER_SHARE_H */
