/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file exchange.h
 * Between the coordinator's step and the files of the run directory.
 */
#ifndef SL_SCHEDULER_COORDINATOR_EXCHANGE_H
#define SL_SCHEDULER_COORDINATOR_EXCHANGE_H

#include "scheduler/control.h"
#include "scheduler/coordinator/coordinator.h"

SL_BEGIN_DECLS

typedef struct sl_exchange sl_exchange_t; /* opaque */

typedef struct sl_exchange_params {
    sl_run_dir_t *dir;    /**< borrowed until destroy */
    double floor_percent; /**< guests' share when the coordinator is gone */
    uint64_t ttl_ms;      /**< after so long without it (default 10000) */
    int is_dry_run;       /**< tell what would be written, write nothing */
    /** Told of each new order; `before` is the one it replaces or NULL. */
    void (*on_order)(void *ctx, const sl_run_id_t *id,
                     const sl_control_order_t *order,
                     const sl_control_order_t *before);
    void *ctx;
} sl_exchange_params_t;

/** @return SL_OK, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_exchange_create(
    const sl_exchange_params_t *params, sl_exchange_t **exchange_p);
SL_API void sl_exchange_destroy(sl_exchange_t *exchange);

/** Read all jobs' files. A job whose files cannot be read keeps what was
 *  last read of it, with one warning. */
SL_API void sl_exchange_read(sl_exchange_t *exchange, uint64_t now_ns,
                             sl_coord_snapshot_t *seen);

/** Write the orders that say something new, or whose TTL runs. */
SL_API void sl_exchange_write(sl_exchange_t *exchange,
                              const sl_coord_snapshot_t *seen,
                              const sl_coord_decisions_t *decisions);

/* ---- what the coordinator tells `sluice top` ---- */

typedef struct sl_coord_report_job {
    sl_run_id_t id;
    double baseline_us; /**< 0 = not known */
    double slowdown;    /**< 0 = not known */
} sl_coord_report_job_t;

typedef struct sl_coord_report {
    char policy[32];
    int n_jobs;
    sl_coord_report_job_t jobs[SL_COORD_MAX_JOBS];
} sl_coord_report_t;

SL_API SL_NODISCARD sl_status_t sl_coord_report_write(
    sl_run_dir_t *dir, const char *policy, const sl_coord_snapshot_t *seen,
    const sl_coord_decisions_t *decisions);
/** The report of the living coordinator. SL_ERR_NOT_FOUND when there is none,
 *  SL_ERR_IO, SL_ERR_CORRUPT; not logged. */
SL_API SL_NODISCARD sl_status_t
sl_coord_report_read(sl_run_dir_t *dir, sl_coord_report_t *report_p);

SL_END_DECLS
#endif /* SL_SCHEDULER_COORDINATOR_EXCHANGE_H */
