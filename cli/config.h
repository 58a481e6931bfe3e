/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file config.h
 * A training config: a YAML file, then the command line on top of it. Every
 * option of the command line is a key of the file ("--steps 10" is
 * train.steps), so that both say the same.
 */
#ifndef SL_CLI_CONFIG_H
#define SL_CLI_CONFIG_H

#include <stdint.h>

#include "base/status.h"
#include "base/yaml.h"
#include "engine/data/data_config.h"
#include "engine/engine.h"
#include "scheduler/control.h"

typedef enum sl_cost_source {
    SL_COST_AUTO, /**< a cached profile when there is one */
    SL_COST_ANALYTIC,
    SL_COST_PROFILE /**< a cached profile, or an error */
} sl_cost_source_t;
#define SL_COST_CHOICES "auto|analytic|profile"

typedef enum sl_checkpoint_failure {
    SL_CHECKPOINT_WARN, /**< training goes on */
    SL_CHECKPOINT_STOP
} sl_checkpoint_failure_t;
#define SL_CHECKPOINT_FAILURE_CHOICES "warn|stop"
#define SL_RESUME_CHOICES "exact|changed|weights" /* sl_resume_kind_t */
typedef enum sl_rebalance_mode {
    SL_REBALANCE_AUTO, /**< layers move when the policy dp made the cuts */
    SL_REBALANCE_OFF
} sl_rebalance_mode_t;
#define SL_REBALANCE_CHOICES "auto|off"

typedef struct sl_config {
    sl_yaml_t *yaml;  /**< owned; texts below are borrowed from it */
    const char *name; /**< of the run */
    const sl_yaml_node_t *model;
    sl_data_params_t data;
    sl_data_strings_t data_strings; /**< owned; texts of `data` */
    /* train */
    int64_t batch, micro_batches, steps, seed, eval_every, eval_batches;
    int schedule, backward_order, recompute;
    int precision;       /**< sl_precision_t */
    sl_dnn_use_t dnn;    /**< on CUDA devices */
    int rebalance;       /**< sl_rebalance_mode_t */
    const char *weights; /**< file to start from, or NULL */
    /* checkpoint */
    const char *checkpoint_dir; /**< NULL = none are written */
    int64_t checkpoint_every;   /**< steps; 0 = at the end only */
    int64_t checkpoint_keep;    /**< 0 = all */
    int checkpoint_best, checkpoint_on_error;
    const char *resume; /**< "auto", "latest", a path, or NULL */
    int resume_as;      /**< sl_resume_kind_t */
    /* parallel */
    int64_t replicas, check_replicas;
    int zero1, batch_norm, not_finite, transport;
    uint64_t bucket_bytes;
    double dead_after_s; /**< without an answer a rank counts as hung */
    /* job: how others see it while it runs */
    const char *job_name;   /**< NULL = made from `name` */
    int job_class;          /**< sl_job_class_t */
    const char *prometheus; /**< text file to keep, or NULL */
    /* devices */
    const char *device_spec; /**< NULL = what is best here */
    int64_t threads, stages;
    uint64_t device_memory_bytes, host_memory_bytes;
    /* partition */
    const char *policy;
    int costs;
    int n_cuts;
    int *cuts; /**< owned; NULL = the policy decides */
    sl_optimizer_params_t optimizer;
} sl_config_t;

/**
 * Read and check a config.
 *
 * @param[in] overrides "key=value" texts, applied in order
 * @return SL_OK, SL_ERR_IO, SL_ERR_CONFIG (file, line, column)
 */
SL_NODISCARD sl_status_t sl_config_open(const char *path,
                                        const char *const *overrides,
                                        size_t n_overrides,
                                        sl_config_t *config);
/** After the model was built: keys nobody asked for are errors. */
SL_NODISCARD sl_status_t sl_config_check_used(const sl_config_t *config);
void sl_config_close(sl_config_t *config);

#endif /* SL_CLI_CONFIG_H */
