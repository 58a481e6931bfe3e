/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice simulate`: a training step on a described cluster. */
#include "cli/simulate.h"

#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"

/* What is not measured is known from the shapes. */
static sl_status_t find_costs(const sl_job_t *job, int64_t rows,
                              int is_optional, sl_part_costs_t *costs)
{
    const sl_device_t *device = &job->devices->devices[0];
    char path[512];
    sl_status_t status;
    uint64_t key;

    SL_TRY(status, sl_part_costs_analytic(job->model, rows, &job->speed, costs),
           out);
    if (job->config.costs == SL_COST_ANALYTIC) {
        return SL_OK;
    }
    key =
        sl_part_profile_key(job->model, rows, device->kind, device->n_threads);
    sl_part_profile_path(key, path, sizeof(path));
    status = sl_part_profile_load(path, key, costs);
    if (status < 0 && !is_optional && job->config.costs == SL_COST_PROFILE) {
        SL_FAIL(status, SL_ERR_NOT_FOUND, err_costs,
                "simulate: no profile of this model, micro-batch of %lld rows "
                "and %d threads: run `sluice profile` with this config and "
                "--batch %lld --micro-batches 1 first",
                (long long)rows, device->n_threads, (long long)rows);
    }
    return SL_OK;
err_costs:
    sl_part_costs_cleanup(costs);
out:
    return status;
}

sl_status_t sl_simulation_add_size(sl_simulation_t *simulation, int64_t rows,
                                   int is_optional)
{
    sl_part_costs_t costs;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < simulation->n_sizes; i++) {
        if (simulation->sizes[i].rows == rows) {
            return SL_OK;
        }
    }
    if (simulation->n_sizes == SL_SIMULATION_MAX_SIZES) {
        return SL_OK;
    }
    SL_TRY(status, find_costs(&simulation->job, rows, is_optional, &costs),
           out);
    if (is_optional && costs.is_measured != simulation->costs[0].is_measured) {
        sl_part_costs_cleanup(&costs);
        return SL_OK;
    }
    i = simulation->n_sizes++;
    simulation->costs[i] = costs;
    simulation->sizes[i].rows = rows;
    simulation->sizes[i].costs = &simulation->costs[i];
out:
    return status;
}

/* Parameters that layers share. */
static sl_status_t find_ties(sl_simulation_t *simulation)
{
    const sl_model_t *model = simulation->job.model;
    sl_status_t status;
    int l, p, n = 0;

    simulation->ties = calloc((size_t)model->n_layers * SL_LAYER_MAX_PARAMS + 1,
                              sizeof(*simulation->ties));
    if (simulation->ties == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for the ties of %d layers",
                model->n_layers);
    }
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *param = &model->layers[l]->params[p];

            if (param->kind == SL_PARAM_TRAINED && param->tied_layer >= 0) {
                simulation->ties[n++] =
                    (sl_sim_tie_t){.owner_layer = param->tied_layer,
                                   .user_layer = l,
                                   .bytes = param->storage_bytes};
            }
        }
    }
    simulation->base.ties = simulation->ties;
    simulation->base.n_ties = n;
    return SL_OK;
out:
    return status;
}

static sl_status_t simulation_open(const sl_options_t *options,
                                   sl_simulation_t *simulation)
{
    sl_sim_params_t *base = &simulation->base;
    const sl_config_t *config = &simulation->job.config;
    sl_status_t status;

    simulation->options = options;
    if (options->cluster == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "simulate: --cluster FILE is missing, such as "
                "examples/cluster_1024.yaml");
    }
    SL_TRY(status, sl_cluster_open(options->cluster, &simulation->cluster),
           out);
    SL_TRY(status,
           sl_job_open_uncut(options->config,
                             (const char *const *)options->overrides,
                             options->n_overrides, &simulation->job),
           out);
    sl_sim_params_default(base);
    base->cluster = &simulation->cluster;
    base->schedule = (sl_schedule_kind_t)config->schedule;
    base->backward_order = (sl_backward_order_t)config->backward_order;
    base->recompute = (sl_recompute_t)config->recompute;
    base->n_moments = sl_optimizer_n_moments(&config->optimizer);
    base->is_sharded = config->zero1;
    base->bucket_bytes =
        config->bucket_bytes > 0 ? (size_t)config->bucket_bytes : 1;
    status = find_ties(simulation);
out:
    return status;
}

static void simulation_close(sl_simulation_t *simulation)
{
    int i;

    for (i = 0; i < simulation->n_sizes; i++) {
        sl_part_costs_cleanup(&simulation->costs[i]);
    }
    free(simulation->ties);
    sl_job_close(&simulation->job);
}

int sl_command_simulate(int argc, char **argv)
{
    int quiet_status;
    sl_options_t options;
    sl_simulation_t simulation;
    sl_status_t status;

    memset(&simulation, 0, sizeof(simulation));
    SL_TRY(status,
           sl_options_parse("simulate",
                            "Run a training step of CONFIG in simulated time "
                            "on the cluster that --cluster describes: R "
                            "replicas of K stages, or the best grid for each "
                            "number of devices in --scale. Nothing is trained.",
                            SL_OPTIONS_SIMULATE | SL_OPTIONS_JSON, argc, argv,
                            &options),
           out);
    SL_TRY(status, simulation_open(&options, &simulation), out);
    status = options.scale == NULL ? sl_simulation_run(&simulation)
                                   : sl_simulation_scale(&simulation);
out:
    quiet_status = sl_job_tell_failure(&simulation.job, &status);
    simulation_close(&simulation);
    sl_options_cleanup(&options);
    return quiet_status != 0 ? quiet_status : sl_exit_status(status);
}
