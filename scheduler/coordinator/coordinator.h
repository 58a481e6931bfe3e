/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coordinator.h
 * Moves the gates of all jobs that share devices.
 *
 * The core is a step function: what is seen of the jobs goes in, what each
 * job should be told comes out. It reads no clock and no file, so that tests
 * drive it with a simulated cluster and virtual time. Reading job
 * directories and writing control files is exchange.h's.
 *
 * Thread safety: one coordinator, one thread.
 */
#ifndef SL_SCHEDULER_COORDINATOR_COORDINATOR_H
#define SL_SCHEDULER_COORDINATOR_COORDINATOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "scheduler/control.h"

SL_BEGIN_DECLS

enum {
    SL_COORD_MAX_JOBS = 64
};

/** One device of a job, as its files say. */
typedef struct sl_coord_device {
    char name[32];           /**< "cpu:0" */
    uint64_t capacity_bytes; /**< largest limit it can be given */
    uint64_t wanted_bytes;   /**< what the job expects to need; 0 = not
                                  known */
    uint64_t limit_bytes;    /**< in force */
    uint64_t held_bytes;     /**< on the device now */
    uint64_t spilled_bytes;  /**< of its blocks, on the host */
    double share_percent;    /**< in force */
    double achieved_percent; /**< measured; negative = not known */
    double manual_percent;   /**< set by hand; negative = not set */
    uint64_t manual_bytes;   /**< limit set by hand; 0 = not set */
    char core_list[SL_CONTROL_CORE_LIST_BYTES]; /**< "" = not known */
    char gpu_id[SL_GPU_ID_BYTES];               /**< "" = none, or not known */
    uint64_t gpu_bytes; /**< all of that GPU; 0 = none, or not known */
} sl_coord_device_t;

typedef struct sl_coord_job {
    sl_run_id_t id;
    sl_job_class_t job_class;
    sl_job_state_t state;
    int is_held;          /**< suspended by hand */
    int has_pulse;        /**< guests can tell when its devices are idle */
    uint64_t created_ns;  /**< order of arrival */
    uint64_t step;        /**< mini-batches done */
    uint64_t boundary_ns; /**< end of the last one; 0 = none yet */
    int n_recent;
    double recent_us[SL_CONTROL_RECENT]; /**< times of the latest, oldest
                                              first; the last one ended at
                                              boundary_ns */
    int n_devices;
    sl_coord_device_t devices[SL_CONTROL_MAX_DEVICES];
} sl_coord_job_t;

/** Everything seen at one instant. */
typedef struct sl_coord_snapshot {
    uint64_t now_ns; /**< the clock of boundary_ns */
    int n_jobs;
    sl_coord_job_t jobs[SL_COORD_MAX_JOBS];
} sl_coord_snapshot_t;

/** What one device of a job should be told. */
typedef struct sl_coord_gate {
    double share_percent; /**< 0 only when it was set so by hand */
    uint64_t limit_bytes;
} sl_coord_gate_t;

/** A device of a guest waits for idle times of one of a guarantee job. */
typedef struct sl_coord_yield_to {
    int device;
    int host; /**< index in the snapshot */
    int host_device;
} sl_coord_yield_to_t;

/** What one job should be told; the same index as in the snapshot. */
typedef struct sl_coord_decision {
    int is_admitted;                      /**< 0: go on waiting */
    char reason[SL_CONTROL_REASON_BYTES]; /**< of the wait or the share */
    int is_background;  /**< the system shall run it on idle cores only */
    double baseline_us; /**< guarantee job without its guests; 0 = not known */
    double slowdown;    /**< recent median over the baseline; 0 = not known */
    sl_coord_gate_t gates[SL_CONTROL_MAX_DEVICES];
    int n_yields; /**< of all devices, in their order */
    sl_coord_yield_to_t yields[SL_CONTROL_MAX_YIELDS];
} sl_coord_decision_t;

typedef struct sl_coord_decisions {
    int n_jobs;
    sl_coord_decision_t jobs[SL_COORD_MAX_JOBS];
} sl_coord_decisions_t;

typedef struct sl_coord sl_coord_t; /* opaque */

typedef struct sl_coord_params {
    const char *policy;      /**< default "guarantee-first" */
    double floor_percent;    /**< least share of a guest, 1-50 (default 1) */
    double threshold;        /**< slowdown that is allowed, 0.005-1 (default
                                  0.03) */
    double static_percent;   /**< guests' share under "static", 1-99 (default
                                  50) */
    uint64_t period_ns;      /**< least time between raises (default 0.2 s) */
    int period_mini_batches; /**< and mini-batches, 3-64 (default 10) */
    uint64_t probe_ns;       /**< between re-baselinings (default 60 s) */
    uint64_t floor_bytes;    /**< least memory of a guest (default 64 MiB) */
    uint64_t capacity_bytes; /**< of each GPU and each CPU device; 0 = what
                                  jobs report (default) */
} sl_coord_params_t;

SL_API void sl_coord_params_default(sl_coord_params_t *params);

/** A policy: what shares running jobs get. */
typedef struct sl_coord_policy {
    size_t size; /**< sizeof(sl_coord_policy_t) when compiled */
    const char *name;
    const char *brief;
    /** Fill the shares of the running jobs; may fill `reason`. */
    void (*set_shares)(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                       sl_coord_decisions_t *decisions);
} sl_coord_policy_t;

/** The i-th policy; NULL past the last. The first is the default. */
SL_API const sl_coord_policy_t *sl_coord_policy_at(size_t i);

/** @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_coord_create(const sl_coord_params_t *params,
                                                sl_coord_t **coord_p);

/** NULL is allowed. */
SL_API void sl_coord_destroy(sl_coord_t *coord);

/** Decide for the jobs of `seen`. A job it does not have is forgotten. */
SL_API void sl_coord_step(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                          sl_coord_decisions_t *decisions);

/** Median of `n` values, which are sorted on the way; 0 when n is 0. */
SL_API double sl_coord_median(double *values, int n);

SL_END_DECLS
#endif /* SL_SCHEDULER_COORDINATOR_COORDINATOR_H */
