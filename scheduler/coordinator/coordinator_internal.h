/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coordinator_internal.h
 * What the coordinator remembers of each job between two steps.
 */
#ifndef SL_SCHEDULER_COORDINATOR_COORDINATOR_INTERNAL_H
#define SL_SCHEDULER_COORDINATOR_COORDINATOR_INTERNAL_H

#include "scheduler/coordinator/coordinator.h"

/** Adding a policy = one file and one line. The first is the default. */
#define SL_COORD_POLICY_MAP(X)                                                 \
    X(guarantee_first)                                                         \
    X(fair)                                                                    \
    X(static)

#define X(id) extern const sl_coord_policy_t sl_coord_policy_##id;
SL_COORD_POLICY_MAP(X)
#undef X

/** What a guarantee job's mini-batch times say, since its guests' shares
 *  last moved. */
typedef struct sl_coord_signal {
    double baseline_us;   /**< 0 = not known yet */
    uint64_t baseline_ns; /**< when it was measured */
    double median_us;     /**< of the latest window; 0 = none yet */
    uint64_t change_ns;   /**< when its guests' shares last moved */
    uint64_t idle_ns;     /**< when it was last suspended or waiting */
    int was_cut;          /**< that move was a cut */
    int is_probing;       /**< its guests are at the floor to measure it */
    int n_baselines;      /**< measured so far */
} sl_coord_signal_t;

/** A guest's mini-batches per percent-second of achieved share. */
typedef struct sl_coord_yield {
    double best, latest; /**< 0 = not known yet */
    double used;         /**< percent-seconds since since_ns */
    uint64_t since_ns;   /**< start of the measurement, just after ... */
    uint64_t since_step; /**< ... this mini-batch; */
    uint64_t seen_ns;    /**< the latest look; 0 = none yet */
    uint64_t seen_step;
} sl_coord_yield_t;

/** A job between two steps. */
typedef struct sl_coord_memory {
    sl_run_id_t id;
    int is_present;         /**< seen in this step */
    int is_taken_over;      /**< was there before this coordinator */
    int is_reserved;        /**< waits; memory is being freed for it */
    int is_admitted;        /**< was let in, perhaps still waiting */
    double share_percent;   /**< a guest's; negative = not decided yet */
    double ceiling_percent; /**< a guest's share that was too much; 0 =
                                 none yet */
    int n_clean;            /**< a guest's raises above 0.85 of that */
    uint64_t told_bytes[SL_CONTROL_MAX_DEVICES]; /**< limits; 0 = none yet */
    sl_coord_signal_t signal;                    /**< a guarantee job's */
    sl_coord_yield_t yield;                      /**< a guest's */
} sl_coord_memory_t;

enum {
    SL_COORD_MAX_MEMBERS = SL_COORD_MAX_JOBS * SL_CONTROL_MAX_DEVICES
};

/** Which devices have one memory, and divide it: those that are parts of a
 *  GPU, whatever their jobs call them, or CPU devices of one name. */
typedef struct sl_coord_pools {
    int n;
    /** Pool of the device, by job in the snapshot and device in the job. */
    int of[SL_COORD_MAX_JOBS][SL_CONTROL_MAX_DEVICES];
} sl_coord_pools_t;

/** A device in a pool that has, or will have, memory. */
typedef struct sl_coord_member {
    int job;    /**< index in the snapshot */
    int device; /**< index in the job */
    int is_guarantee;
    const sl_coord_device_t *seen;
    uint64_t need;  /**< bytes */
    uint64_t may;   /**< most that it can hold now */
    uint64_t limit; /**< the target */
} sl_coord_member_t;

struct sl_coord {
    sl_coord_params_t params;
    const sl_coord_policy_t *policy;
    int has_stepped; /**< 0: the jobs seen now were there before */
    int n_memories;
    sl_coord_memory_t memories[SL_COORD_MAX_JOBS];
    int index[SL_COORD_MAX_JOBS]; /**< memory of the snapshot's i-th job */
    sl_coord_pools_t pools;       /**< of the snapshot */
    sl_coord_member_t members[SL_COORD_MAX_MEMBERS]; /**< of one pool at a
                                                          time */
};

/** The memory of the snapshot's i-th job. */
sl_coord_memory_t *sl_coord_memory(sl_coord_t *coord, int i);

/** Whether policies steer the i-th job: it has a class, may run and is not
 *  suspended by hand. */
int sl_coord_is_active(const sl_coord_snapshot_t *seen,
                       const sl_coord_decisions_t *decisions, int i);
int sl_coord_is_cpu(const sl_coord_device_t *device);
/** Whether two devices are one, or parts of one: on the same GPU, or of the
 *  same name where that is not known and for CPUs. */
int sl_coord_is_same(const sl_coord_device_t *a, const sl_coord_device_t *b);
/** Whether two jobs have hardware in common. CPU devices always have: the
 *  system may place their threads on the same cores. */
int sl_coord_is_neighbour(const sl_coord_job_t *a, const sl_coord_job_t *b);
/** Set one share on all devices of the i-th job. */
void sl_coord_set_share(sl_coord_decisions_t *decisions,
                        const sl_coord_snapshot_t *seen, int i, double percent);

/** What a guarantee job's mini-batch times ask of its guests' shares, most
 *  urgent last. */
typedef enum sl_coord_verdict {
    SL_COORD_RAISE,   /**< one guest may have more */
    SL_COORD_STAY,    /**< not enough mini-batches since the last move */
    SL_COORD_RESTORE, /**< a probe ended: back to the shares before it */
    SL_COORD_CUT,
    SL_COORD_CUT_DEEP,
    SL_COORD_FLOOR /**< a probe runs: guests at the floor */
} sl_coord_verdict_t;

/** Judge guarantee job `job`; `is_at_floor`: all its guests are. */
sl_coord_verdict_t sl_coord_judge(const sl_coord_params_t *params,
                                  sl_coord_signal_t *signal,
                                  const sl_coord_job_t *job, uint64_t now_ns,
                                  int is_at_floor);
/** Its guests' shares move now: start a new window. */
void sl_coord_signal_moved(sl_coord_signal_t *signal, uint64_t now_ns,
                           int is_cut);

/** Decide who may start, with reasons for who may not. */
void sl_coord_admit(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                    sl_coord_decisions_t *decisions);

/** Memory limits of all jobs that have or will have memory. */
void sl_coord_set_limits(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                         sl_coord_decisions_t *decisions);

void sl_coord_find_pools(sl_coord_pools_t *pools,
                         const sl_coord_snapshot_t *seen);
/** What the jobs on a pool divide, or what one of them has when it is alone
 *  there; 0 = not known. */
uint64_t sl_coord_capacity(const sl_coord_t *coord,
                           const sl_coord_snapshot_t *seen, int pool,
                           int is_alone);
/** Sums that stay at the largest number where they would pass it: what files
 *  say may be anything. */
uint64_t sl_coord_plus(uint64_t a, uint64_t b);
/** Bytes that a job needs on a device, some growth included. */
uint64_t sl_coord_needed(const sl_coord_device_t *device);

/** Whose idle times the devices of background jobs wait for. */
void sl_coord_set_yields(const sl_coord_snapshot_t *seen,
                         sl_coord_decisions_t *decisions);

/** Note what a guest does with its share. */
void sl_coord_measure_yield(sl_coord_yield_t *yield, const sl_coord_job_t *job,
                            uint64_t now_ns);
/** What a guest would make of more share, 0-1: its yield over the best it
 *  had, times the part of its share that it uses. */
double sl_coord_gain(const sl_coord_yield_t *yield, const sl_coord_job_t *job);

#endif /* SL_SCHEDULER_COORDINATOR_COORDINATOR_INTERNAL_H */
