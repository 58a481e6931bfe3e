/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and checking a training config. */
#include "cli/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/parse.h"

static const int64_t COUNT_MAX = INT64_C(1) << 40;

static sl_status_t read_train(const sl_yaml_node_t *root, sl_config_t *config)
{
    const sl_yaml_node_t *train;
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(root, "train", &train), out);
    SL_TRY(status, sl_yaml_int(train, "batch", 1, 1 << 24, &config->batch),
           out);
    SL_TRY(
        status,
        sl_yaml_int(train, "micro_batches", 1, 1 << 20, &config->micro_batches),
        out);
    SL_TRY(status, sl_yaml_int(train, "steps", 0, UINT32_MAX, &config->steps),
           out);
    SL_TRY(status, sl_yaml_int(train, "seed", 0, INT64_MAX, &config->seed),
           out);
    SL_TRY(status,
           sl_yaml_int(train, "eval_every", 0, COUNT_MAX, &config->eval_every),
           out);
    SL_TRY(
        status,
        sl_yaml_int(train, "eval_batches", 0, COUNT_MAX, &config->eval_batches),
        out);
    SL_TRY(status,
           sl_yaml_choice(train, "schedule", SL_SCHEDULE_CHOICES,
                          &config->schedule),
           out);
    SL_TRY(status,
           sl_yaml_choice(train, "backward_order", SL_BACKWARD_CHOICES,
                          &config->backward_order),
           out);
    SL_TRY(status,
           sl_yaml_choice(train, "recompute", SL_RECOMPUTE_CHOICES,
                          &config->recompute),
           out);
    SL_TRY(status,
           sl_yaml_choice(train, "precision", SL_PRECISION_CHOICES,
                          &config->precision),
           out);
    SL_TRY(status, sl_yaml_bool(train, "cudnn_images", &config->dnn.has_images),
           out);
    SL_TRY(
        status,
        sl_yaml_bytes(train, "cudnn_workspace", &config->dnn.workspace_bytes),
        out);
    SL_TRY(status,
           sl_yaml_choice(train, "rebalance", SL_REBALANCE_CHOICES,
                          &config->rebalance),
           out);
    status = sl_yaml_string(train, "weights", &config->weights);
out:
    return status;
}

static sl_status_t read_checkpoint(const sl_yaml_node_t *root,
                                   sl_config_t *config)
{
    const sl_yaml_node_t *node;
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(root, "checkpoint", &node), out);
    SL_TRY(status, sl_yaml_string(node, "dir", &config->checkpoint_dir), out);
    SL_TRY(status,
           sl_yaml_int(node, "every", 0, UINT32_MAX, &config->checkpoint_every),
           out);
    SL_TRY(status,
           sl_yaml_int(node, "keep", 0, 10000, &config->checkpoint_keep), out);
    SL_TRY(status, sl_yaml_bool(node, "best", &config->checkpoint_best), out);
    SL_TRY(status,
           sl_yaml_choice(node, "on_error", SL_CHECKPOINT_FAILURE_CHOICES,
                          &config->checkpoint_on_error),
           out);
    SL_TRY(status, sl_yaml_string(node, "resume", &config->resume), out);
    SL_TRY(status,
           sl_yaml_choice(node, "resume_as", SL_RESUME_CHOICES,
                          &config->resume_as),
           out);
    if (config->checkpoint_dir == NULL &&
        (config->checkpoint_every > 0 || config->checkpoint_best)) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "checkpoint: there is no directory to write to: name it with "
                "dir, or --checkpoint DIR");
    }
out:
    return status;
}

static sl_status_t read_parallel(const sl_yaml_node_t *root,
                                 sl_config_t *config)
{
    const sl_yaml_node_t *parallel;
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(root, "parallel", &parallel), out);
    SL_TRY(status,
           sl_yaml_int(parallel, "replicas", 1, 1 << 16, &config->replicas),
           out);
    SL_TRY(status, sl_yaml_bool(parallel, "zero1", &config->zero1), out);
    SL_TRY(status,
           sl_yaml_bytes(parallel, "bucket_bytes", &config->bucket_bytes), out);
    SL_TRY(status,
           sl_yaml_choice(parallel, "batch_norm", SL_BATCH_NORM_CHOICES,
                          &config->batch_norm),
           out);
    SL_TRY(status,
           sl_yaml_choice(parallel, "not_finite", SL_NOT_FINITE_CHOICES,
                          &config->not_finite),
           out);
    SL_TRY(status,
           sl_yaml_choice(parallel, "transport", SL_TRANSPORT_CHOICES,
                          &config->transport),
           out);
    SL_TRY(status,
           sl_yaml_float(parallel, "dead_after", 0.5, 86400.0,
                         &config->dead_after_s),
           out);
    status = sl_yaml_int(parallel, "check_replicas", 0, INT32_MAX,
                         &config->check_replicas);
out:
    return status;
}

static sl_status_t read_job(const sl_yaml_node_t *root, sl_config_t *config)
{
    const sl_yaml_node_t *job;
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(root, "job", &job), out);
    SL_TRY(status, sl_yaml_string(job, "name", &config->job_name), out);
    SL_TRY(
        status,
        sl_yaml_choice(job, "class", SL_JOB_CLASS_CHOICES, &config->job_class),
        out);
    status = sl_yaml_string(job, "prometheus", &config->prometheus);
out:
    return status;
}

static sl_status_t read_devices(const sl_yaml_node_t *root, sl_config_t *config)
{
    const sl_yaml_node_t *devices;
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(root, "devices", &devices), out);
    SL_TRY(status, sl_yaml_string(devices, "use", &config->device_spec), out);
    SL_TRY(status, sl_yaml_int(devices, "threads", 0, 4096, &config->threads),
           out);
    SL_TRY(
        status,
        sl_yaml_int(devices, "stages", 0, SL_PART_MAX_STAGES, &config->stages),
        out);
    SL_TRY(status,
           sl_yaml_bytes(devices, "memory", &config->device_memory_bytes), out);
    status = sl_yaml_bytes(devices, "host_memory", &config->host_memory_bytes);
out:
    return status;
}

static sl_status_t read_cuts(const sl_yaml_node_t *node, sl_config_t *config)
{
    const size_t n = sl_yaml_count(node);
    sl_status_t status;
    size_t i;

    if (sl_yaml_kind(node) != SL_YAML_SEQUENCE || n > SL_PART_MAX_STAGES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: partition.cuts is a list of the first layer of each stage "
                "after the first, such as [12, 30]",
                sl_yaml_place(node));
    }
    config->cuts = calloc(n + 2, sizeof(int));
    if (config->cuts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for cuts");
    }
    for (i = 0; i < n; i++) {
        const sl_yaml_node_t *entry = sl_yaml_entry(node, i, NULL);
        const char *text = sl_yaml_text(entry, NULL);
        int64_t value;

        SL_TRY(status,
               sl_parse_int("partition.cuts", text == NULL ? "" : text, 1,
                            INT32_MAX, &value),
               out);
        config->cuts[i + 1] = (int)value;
    }
    config->n_cuts = (int)n;
    return SL_OK;
out:
    return status;
}

static sl_status_t read_partition(const sl_yaml_node_t *root,
                                  sl_config_t *config)
{
    const sl_yaml_node_t *partition, *cuts;
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(root, "partition", &partition), out);
    SL_TRY(status, sl_yaml_string(partition, "policy", &config->policy), out);
    SL_TRY(status,
           sl_yaml_choice(partition, "costs", SL_COST_CHOICES, &config->costs),
           out);
    cuts = sl_yaml_get(partition, "cuts");
    if (cuts != NULL) {
        SL_TRY(status, read_cuts(cuts, config), out);
    }
out:
    return status;
}

static sl_status_t read_optimizer(const sl_yaml_node_t *root,
                                  sl_config_t *config)
{
    sl_optimizer_params_t *params = &config->optimizer;
    const sl_yaml_node_t *node;
    int kind = params->kind, lr_kind = params->lr_kind;
    sl_status_t status;
    size_t i;
    const struct {
        const char *key;
        double min, max;
        double *value_p;
    } numbers[] = {
        {"lr", 0.0, 1e6, &params->lr},
        {"momentum", 0.0, 1.0, &params->momentum},
        {"beta1", 0.0, 1.0, &params->beta1},
        {"beta2", 0.0, 1.0, &params->beta2},
        {"eps", 0.0, 1.0, &params->eps},
        {"weight_decay", 0.0, 1e6, &params->weight_decay},
        {"clip_norm", 0.0, 1e12, &params->clip_norm},
        {"lr_min", 0.0, 1e6, &params->lr_min},
        {"lr_gamma", 0.0, 1e6, &params->lr_gamma},
    };

    SL_TRY(status, sl_yaml_mapping(root, "optimizer", &node), out);
    SL_TRY(status, sl_yaml_choice(node, "type", SL_OPTIMIZER_CHOICES, &kind),
           out);
    params->kind = (sl_optimizer_kind_t)kind;
    if (params->kind != SL_OPTIMIZER_SGD) {
        params->lr = 1e-3;
    }
    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        SL_TRY(status,
               sl_yaml_float(node, numbers[i].key, numbers[i].min,
                             numbers[i].max, numbers[i].value_p),
               out);
    }
    SL_TRY(status, sl_yaml_bool(node, "nesterov", &params->nesterov), out);
    SL_TRY(status, sl_yaml_bool(node, "decay_all", &params->decay_all), out);
    SL_TRY(status, sl_yaml_choice(node, "lr_schedule", SL_LR_CHOICES, &lr_kind),
           out);
    params->lr_kind = (sl_lr_kind_t)lr_kind;
    SL_TRY(status,
           sl_yaml_int(node, "lr_step_every", 0, UINT32_MAX,
                       &params->lr_step_every),
           out);
    SL_TRY(
        status,
        sl_yaml_int(node, "warmup_steps", 0, UINT32_MAX, &params->warmup_steps),
        out);
    params->total_steps = config->steps;
    SL_TRY(
        status,
        sl_yaml_int(node, "total_steps", 0, UINT32_MAX, &params->total_steps),
        out);
    status = sl_optimizer_params_check(params);
    if (status < 0 && node != NULL && !sl_fail_is_quiet()) {
        sl_error("%s: in this optimizer", sl_yaml_place(node));
    }
out:
    return status;
}

static sl_status_t read_data(const char *path, const sl_yaml_node_t *root,
                             sl_config_t *config)
{
    const sl_yaml_node_t *data;
    char *directory = NULL;
    const char *slash = strrchr(path, '/');
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(root, "data", &data), out);
    directory = malloc(strlen(path) + 2);
    if (directory == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a path");
    }
    if (slash == NULL) {
        strcpy(directory, ".");
    } else {
        const size_t n = slash == path ? 1 : (size_t)(slash - path);

        memcpy(directory, path, n);
        directory[n] = '\0';
    }
    status = sl_data_params_from_yaml(data, directory, &config->data_strings,
                                      &config->data);
out:
    free(directory);
    return status;
}

static void set_defaults(sl_config_t *config)
{
    memset(config, 0, sizeof(*config));
    config->name = "train";
    config->batch = 32;
    config->micro_batches = 4;
    config->steps = 100;
    config->seed = 1;
    config->checkpoint_keep = 3;
    config->replicas = 1;
    config->dead_after_s = 30.0;
    config->bucket_bytes = 4 << 20;
    config->check_replicas = 100;
    config->policy = "dp";
    sl_optimizer_params_default(&config->optimizer);
}

sl_status_t sl_config_open(const char *path, const char *const *overrides,
                           size_t n_overrides, sl_config_t *config)
{
    const sl_yaml_node_t *root;
    sl_status_t status;
    size_t i;

    set_defaults(config);
    status = sl_yaml_open(path, &config->yaml);
    if (status == SL_ERR_IO || status == SL_ERR_NOT_FOUND) {
        status = SL_ERR_CONFIG; /* as one that cannot be used */
    }
    SL_TRY(status, status, out);
    for (i = 0; i < n_overrides; i++) {
        SL_TRY(status, sl_yaml_override(config->yaml, overrides[i]), out);
    }
    root = sl_yaml_root(config->yaml);
    SL_TRY(status, sl_yaml_string(root, "name", &config->name), out);
    SL_TRY(status, read_train(root, config), out);
    SL_TRY(status, read_checkpoint(root, config), out);
    SL_TRY(status, read_parallel(root, config), out);
    SL_TRY(status, read_job(root, config), out);
    SL_TRY(status, read_devices(root, config), out);
    SL_TRY(status, read_partition(root, config), out);
    SL_TRY(status, read_optimizer(root, config), out);
    config->model = sl_yaml_get(root, "model");
    if (config->model == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: there is no `model:`; it is a type with its attributes, "
                "such as model: {type: gpt, layers: 6, ...}, or a list of "
                "layers",
                path);
    }
    status = read_data(path, root, config);
out:
    return status;
}

sl_status_t sl_config_check_used(const sl_config_t *config)
{
    return sl_yaml_check_used(sl_yaml_root(config->yaml));
}

void sl_config_close(sl_config_t *config)
{
    sl_data_strings_cleanup(&config->data_strings);
    free(config->cuts);
    sl_yaml_close(config->yaml);
    memset(config, 0, sizeof(*config));
}
