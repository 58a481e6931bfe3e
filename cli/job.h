/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file job.h
 * From a config to everything a command needs: data set, model, devices,
 * costs, cuts, engine. The same steps for every subcommand. Started by a
 * launcher, the processes join before the devices are opened.
 */
#ifndef SL_CLI_JOB_H
#define SL_CLI_JOB_H

#include "cli/config.h"
#include "engine/fit.h"
#include "engine/grid.h"
#include "engine/world.h"
#include "scheduler/control.h"

typedef struct sl_job {
    sl_config_t config;
    sl_dataset_t *dataset;
    sl_model_t *model;
    sl_world_t *world; /**< the job's processes; NULL: this one is alone */
    sl_device_set_t *devices; /**< of this rank */
    sl_grid_t *grid;          /**< those of all ranks */
    int n_stages;
    int64_t micro_rows; /**< of the largest micro-batch */
    sl_part_speed_t speed;
    sl_part_costs_t costs;
    char profile_path[512];
    uint64_t profile_key;
    int *cuts;           /**< owned, n_stages + 1 */
    double *slot_speed;  /**< owned, one a slot of the grid: its share when
                              the cuts were made */
    double *stage_speed; /**< owned, one a stage */
    sl_fit_t fit;        /**< how the policy dp found the cuts */
    sl_engine_t *engine; /**< NULL until sl_job_start */
} sl_job_t;

/** Whether this process speaks for the job: rank 0. */
int sl_job_is_first(const sl_job_t *job);
/** Config, data set, model, devices, costs, cuts. Clean up in any case. */
SL_NODISCARD sl_status_t sl_job_open(const char *path,
                                     const char *const *overrides,
                                     size_t n_overrides, sl_job_t *job);
/** The same without the cuts that a policy makes, which takes a rehearsal on
 *  the devices of this machine; those given by hand are there. */
SL_NODISCARD sl_status_t sl_job_open_uncut(const char *path,
                                           const char *const *overrides,
                                           size_t n_overrides, sl_job_t *job);
/** The engine's parameters for this job. */
void sl_job_engine_params(const sl_job_t *job, sl_engine_params_t *params);
/** Whether the policy dp decides: then cuts may be made again. */
int sl_job_has_free_cuts(const sl_job_t *job);
/** Make the cuts under the shares and memory limits of this moment.
 *  Collective. */
SL_NODISCARD sl_status_t sl_job_cut(sl_job_t *job);
/** Index in the grid of a stage's slot. */
int sl_job_slot_of(const sl_job_t *job, int replica, int stage);
/** Speeds of the stages when the slots have these; stages of a device share
 *  it. */
void sl_job_stage_speeds(const sl_job_t *job, const double *slot_speed,
                         double *stage_speed);
/**
 * After a failure, before the job is closed: the other ranks end with this
 * rank's failure, or this one with that of another. Rank 0 prints for all,
 * here, so that a failure is one message: a rank that only heard of it is
 * quiet.
 *
 * @return the exit status, which is the same on all; 0 = there are no other
 * ranks, see sl_exit_status
 */
int sl_job_tell_failure(const sl_job_t *job, sl_status_t *status_p);
/** Create the engine, load the weights the config names. */
SL_NODISCARD sl_status_t sl_job_start(sl_job_t *job);
/** Print which rank computes what. */
void sl_job_print_mapping(const sl_job_t *job);
/** What the policies and the prediction see; borrows from the job. */
sl_part_problem_t sl_job_problem(const sl_job_t *job);
void sl_job_close(sl_job_t *job);

/** How an evaluation went. */
typedef struct sl_job_evaluation {
    sl_eval_sums_t sums;
    int is_wished; /**< a rank wishes the end, and all know */
    int is_cut;    /**< ... and so it ended early: the sums are of a part */
} sl_job_evaluation_t;

/**
 * Evaluate up to `max_batches` (0 = all) of the held-out split. Between two
 * batches orders to `control` (NULL: none) are taken, and the wish to end
 * (train_signals.h), of any rank, ends it, on all ranks before the same batch.
 */
SL_NODISCARD sl_status_t sl_job_evaluate(sl_job_t *job, int64_t max_batches,
                                         sl_control_t *control,
                                         sl_job_evaluation_t *evaluation);

#endif /* SL_CLI_JOB_H */
