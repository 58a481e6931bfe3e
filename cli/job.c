/* SPDX-License-Identifier: Apache-2.0 */
/* From a config to an engine. */
#include "cli/job.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "cli/train_signals.h"
#include "layers/model_config.h"

int sl_job_is_first(const sl_job_t *job)
{
    return sl_world_rank(job->world) == 0;
}

static sl_status_t join_world(sl_job_t *job)
{
    sl_world_params_t params;
    sl_status_t status;

    sl_world_params_default(&params);
    SL_TRY(status, sl_world_join(&params, &job->world), out);
    /* what fails on all ranks alike is told by the first */
    sl_fail_quiet_set(!sl_job_is_first(job));
out:
    return status;
}

/* As many stages as there are devices for each replica. */
static sl_status_t find_stages(sl_job_t *job)
{
    sl_status_t status;

    SL_TRY(status, sl_grid_create(job->world, job->devices, &job->grid), out);
    job->n_stages = (int)job->config.stages;
    if (job->n_stages == 0) {
        job->n_stages = (int)(job->grid->n_slots / job->config.replicas);
        job->n_stages = job->n_stages > 0 ? job->n_stages : 1;
    }
    status = sl_grid_check(job->grid, (int)job->config.replicas, job->n_stages,
                           job->devices->n_devices);
out:
    return status;
}

/* One of several processes has one device, as the launcher takes it. */
static const char *default_spec(const sl_world_t *world)
{
    const char *spec = sl_device_default_spec();

    if (sl_world_size(world) == 1) {
        return spec;
    }
    return strncmp(spec, "cuda", 4) == 0 ? "cuda:1" : "cpu:1";
}

static sl_status_t open_devices(sl_job_t *job)
{
    sl_device_params_t params;
    sl_status_t status;

    sl_device_params_default(&params);
    params.spec = job->config.device_spec != NULL ? job->config.device_spec
                                                  : default_spec(job->world);
    params.n_threads = (int)job->config.threads;
    params.memory_bytes = job->config.device_memory_bytes;
    params.host_bytes = job->config.host_memory_bytes;
    params.is_exportable = job->config.transport == SL_TRANSPORT_CUDA_AWARE &&
                           sl_world_size(job->world) > 1;
    SL_TRY(status,
           sl_ranks_check_gpus(job->world, params.spec,
                               job->config.device_spec != NULL),
           out);
    SL_TRY(status, sl_ranks_share_host(job->world, &params), out);
    SL_TRY(status, sl_device_set_create(&params, &job->devices), out);
    SL_TRY(status, sl_ranks_check_run(job->world, job->dataset, job->devices),
           out);
    sl_model_use_dnn(job->model, &job->config.dnn);
    status = sl_model_set_precision(job->model, job->devices->devices[0].kind,
                                    (sl_precision_t)job->config.precision);
out:
    return status;
}

static sl_status_t open_model(sl_job_t *job)
{
    sl_tensor_desc_t data, target;
    sl_status_t status;

    SL_TRY(status, sl_dataset_open(&job->config.data, &job->dataset), out);
    sl_dataset_descs(job->dataset, &data, &target);
    SL_TRY(status,
           sl_model_from_yaml(job->config.model, &data, &target, &job->model),
           out);
    status = sl_config_check_used(&job->config);
out:
    return status;
}

/* Of all replicas; as many as rows are all there can be. */
static int n_micro_batches(const sl_job_t *job)
{
    const int64_t n = job->config.micro_batches * job->config.replicas;

    return (int)(n < job->config.batch ? n : job->config.batch);
}

/* Analytic costs, with the times of a cached profile when there is one. */
static sl_status_t find_costs(sl_job_t *job)
{
    const sl_device_t *device = &job->devices->devices[0];
    sl_status_t status;

    job->micro_rows =
        sl_split_rows(job->config.batch, n_micro_batches(job), 0, NULL);
    sl_part_speed_for(&job->speed, job->model, device->n_threads);
    SL_TRY(status,
           sl_part_costs_analytic(job->model, job->micro_rows, &job->speed,
                                  &job->costs),
           out);
    job->profile_key = sl_part_profile_key(job->model, job->micro_rows,
                                           device->kind, device->n_threads);
    sl_part_profile_path(job->profile_key, job->profile_path,
                         sizeof(job->profile_path));
    if (job->config.costs == SL_COST_ANALYTIC) {
        return SL_OK;
    }
    status =
        sl_part_profile_load(job->profile_path, job->profile_key, &job->costs);
    if (status < 0 && job->config.costs == SL_COST_PROFILE) {
        SL_FAIL(status, SL_ERR_NOT_FOUND, out,
                "no profile of this model, micro-batch of %lld rows and %d "
                "threads: run `sluice profile` with this config first",
                (long long)job->micro_rows, device->n_threads);
    }
    return SL_OK;
out:
    return status;
}

sl_part_problem_t sl_job_problem(const sl_job_t *job)
{
    sl_part_problem_t problem;

    memset(&problem, 0, sizeof(problem));
    problem.costs = &job->costs;
    problem.n_stages = job->n_stages;
    problem.recompute = job->config.recompute == SL_RECOMPUTE_NONE ? 0.0 : 1.0;
    problem.link_bytes_per_us = job->speed.link_bytes_per_us;
    problem.link_latency_us = job->speed.link_latency_us;
    problem.stage_speed = job->stage_speed;
    return problem;
}

int sl_job_has_free_cuts(const sl_job_t *job)
{
    return job->config.cuts == NULL && strcmp(job->config.policy, "dp") == 0;
}

int sl_job_slot_of(const sl_job_t *job, int replica, int stage)
{
    const int n_replicas = (int)job->config.replicas;

    return (int)(sl_grid_slot(job->grid, replica * job->n_stages + stage,
                              n_replicas * job->n_stages) -
                 job->grid->slots);
}

/* Of all replicas. */
static int stages_on(const sl_job_t *job, int slot)
{
    int k, r, n = 0;

    for (r = 0; r < job->config.replicas; r++) {
        for (k = 0; k < job->n_stages; k++) {
            n += sl_job_slot_of(job, r, k) == slot;
        }
    }
    return n;
}

/* Where all devices have equally many stages, costs are those of a device of
 * its own, as where each has one. Replicas wait for their slowest. */
void sl_job_stage_speeds(const sl_job_t *job, const double *slot_speed,
                         double *stage_speed)
{
    const int n_cells = (int)job->config.replicas * job->n_stages;
    const int least = n_cells / job->grid->n_slots;
    int k, r;

    for (k = 0; k < job->n_stages; k++) {
        for (r = 0; r < job->config.replicas; r++) {
            const int slot = sl_job_slot_of(job, r, k);
            const double speed = slot_speed[slot] * (least > 1 ? least : 1) /
                                 stages_on(job, slot);

            if (r == 0 || speed < stage_speed[k]) {
                stage_speed[k] = speed;
            }
        }
    }
}

/* The share of each device that the job has now. One that is suspended will
 * not stay so: it counts as whole. */
static sl_status_t read_speeds(sl_job_t *job)
{
    const int n = job->grid->n_slots;
    sl_status_t status;
    int s;

    for (s = 0; s < n; s++) {
        const sl_grid_slot_t *slot = &job->grid->slots[s];
        double percent = 0.0;

        if (slot->rank == job->grid->rank) {
            percent = sl_op_manager_share_get(
                job->devices->devices[slot->device].ops, NULL);
            percent = percent > 0.0 ? percent : 100.0;
        }
        job->slot_speed[s] = percent / 100.0;
    }
    SL_TRY(status, sl_world_sum(job->world, job->slot_speed, (size_t)n), out);
    sl_job_stage_speeds(job, job->slot_speed, job->stage_speed);
out:
    return status;
}

sl_status_t sl_job_cut(sl_job_t *job)
{
    const sl_part_problem_t problem = sl_job_problem(job);
    sl_engine_params_t params;
    sl_status_t status;

    SL_TRY(status, read_speeds(job), out);
    sl_job_engine_params(job, &params);
    status = sl_engine_fit(&params, &problem, job->cuts, &job->fit);
out:
    return status;
}

static sl_status_t find_cuts(sl_job_t *job, int is_uncut)
{
    const sl_part_ops_t *policy = sl_part_find(job->config.policy);
    sl_status_t status;

    if (policy == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "partition.policy: there is no '%s'; there are dp, gpipe and "
                "uniform",
                job->config.policy);
    }
    job->cuts = calloc((size_t)job->n_stages + 1, sizeof(int));
    job->slot_speed = calloc((size_t)job->grid->n_slots, sizeof(double));
    job->stage_speed = calloc((size_t)job->n_stages, sizeof(double));
    if (job->cuts == NULL || job->slot_speed == NULL ||
        job->stage_speed == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for cuts");
    }
    SL_TRY(status, read_speeds(job), out);
    if (job->config.cuts == NULL && is_uncut) {
        return SL_OK;
    }
    if (sl_job_has_free_cuts(job)) {
        return sl_job_cut(job);
    }
    if (job->config.cuts == NULL) {
        const sl_part_problem_t problem = sl_job_problem(job);

        return sl_part_split(policy, &problem, job->cuts);
    }
    if (job->config.n_cuts != job->n_stages - 1) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "partition.cuts: %d cuts make %d stages, but there are %d",
                job->config.n_cuts, job->config.n_cuts + 1, job->n_stages);
    }
    memcpy(job->cuts, job->config.cuts, (size_t)job->n_stages * sizeof(int));
    job->cuts[job->n_stages] = job->model->n_layers;
    status = sl_part_check_cuts(job->model->n_layers, job->n_stages, job->cuts);
out:
    return status;
}

static sl_status_t open_job(const char *path, const char *const *overrides,
                            size_t n_overrides, int is_uncut, sl_job_t *job)
{
    sl_status_t status;

    memset(job, 0, sizeof(*job));
    /* first, so that what is wrong on all ranks is told by one of them */
    SL_TRY(status, join_world(job), out);
    SL_TRY(status, sl_config_open(path, overrides, n_overrides, &job->config),
           out);
    SL_TRY(status, open_model(job), out);
    SL_TRY(status, sl_ranks_check_config(job->world, SL_VERSION, &job->config),
           out);
    sl_world_dead_after(job->world, (uint64_t)(job->config.dead_after_s * 1e9));
    SL_TRY(status, open_devices(job), out);
    SL_TRY(status, find_stages(job), out);
    SL_TRY(status, find_costs(job), out);
    SL_TRY(status, find_cuts(job, is_uncut), out);
    if (job->world != NULL) {
        /* a rank may have measured other times */
        status = sl_world_broadcast(job->world, 0, job->cuts,
                                    ((size_t)job->n_stages + 1) * sizeof(int));
    }
out:
    return status;
}

sl_status_t sl_job_open(const char *path, const char *const *overrides,
                        size_t n_overrides, sl_job_t *job)
{
    return open_job(path, overrides, n_overrides, 0, job);
}

sl_status_t sl_job_open_uncut(const char *path, const char *const *overrides,
                              size_t n_overrides, sl_job_t *job)
{
    return open_job(path, overrides, n_overrides, 1, job);
}

void sl_job_engine_params(const sl_job_t *job, sl_engine_params_t *params)
{
    sl_engine_params_default(params);
    params->model = job->model;
    params->devices = job->devices;
    params->n_stages = job->n_stages;
    params->cuts = job->cuts;
    params->batch_rows = job->config.batch;
    params->n_micro_batches = (int)job->config.micro_batches;
    params->schedule = (sl_schedule_kind_t)job->config.schedule;
    params->backward_order = (sl_backward_order_t)job->config.backward_order;
    params->recompute = (sl_recompute_t)job->config.recompute;
    params->costs = &job->costs;
    params->optimizer = job->config.optimizer;
    params->seed = (uint64_t)job->config.seed;
    params->trace = 1;
    params->world = job->world;
    params->grid = job->grid;
    params->n_replicas = (int)job->config.replicas;
    params->zero1 = job->config.zero1;
    params->bucket_bytes = (size_t)job->config.bucket_bytes;
    params->batch_norm = (sl_batch_norm_mode_t)job->config.batch_norm;
    params->not_finite = (sl_not_finite_t)job->config.not_finite;
    params->transport = (sl_transport_t)job->config.transport;
    params->check_replicas = (int)job->config.check_replicas;
}

sl_status_t sl_job_start(sl_job_t *job)
{
    sl_engine_params_t params;
    sl_status_t status;

    sl_job_engine_params(job, &params);
    SL_TRY(status, sl_engine_create(&params, &job->engine), out);
    if (job->config.weights != NULL) {
        status = sl_engine_weights_load(job->engine, job->config.weights);
    }
out:
    return status;
}

static void keep_status(void *ctx, sl_status_t status, const char *detail)
{
    (void)detail;
    *(sl_status_t *)ctx = status;
}

/* Rank 0 has told why a device of its own failed, but not where it is. */
static void tell_device_host(const sl_job_t *job)
{
    if (sl_job_is_first(job) &&
        strstr(sl_last_error(), SL_WORLD_DEVICE_FAILURE) == NULL) {
        sl_error("rank 0 on host %s " SL_WORLD_DEVICE_FAILURE "see above",
                 sl_world_host(job->world, 0));
    }
}

int sl_job_tell_failure(const sl_job_t *job, sl_status_t *status_p)
{
    sl_world_t *world = job->world;
    sl_status_t cause = SL_OK;
    int code;

    if (*status_p >= 0 || world == NULL) {
        return 0;
    }
    sl_world_watch(world, keep_status, &cause);
    sl_world_watch(world, NULL, NULL);
    if (cause < 0) {
        *status_p = cause;
    }
    sl_world_abort(world, *status_p, sl_last_error());
    /* before this rank leaves: then the others end, and their launcher may end
     * this one */
    code = sl_job_is_first(job) ? sl_exit_status(*status_p)
                                : sl_exit_code(*status_p);
    if (*status_p == SL_ERR_DEVICE && cause == SL_OK) {
        tell_device_host(job);
    }
    return code;
}

void sl_job_close(sl_job_t *job)
{
    sl_engine_destroy(job->engine);
    sl_world_leave(job->world);
    free(job->cuts);
    free(job->slot_speed);
    free(job->stage_speed);
    sl_part_costs_cleanup(&job->costs);
    sl_grid_destroy(job->grid);
    sl_device_set_destroy(job->devices);
    sl_model_destroy(job->model);
    sl_dataset_close(job->dataset);
    sl_config_close(&job->config);
}

/* Whether the evaluation ends before the next batch. Other ranks hear of the
 * wish with a batch, so that all end before the same one. */
static int is_wished(sl_job_t *job, const sl_eval_sums_t *sums)
{
    if (sl_train_signals_is_stop(job->world)) {
        if (job->world == NULL) {
            return 1;
        }
        sl_engine_signal(job->engine, SL_TRAIN_STOP);
    }
    return (sums->flags & SL_TRAIN_STOP) != 0;
}

sl_status_t sl_job_evaluate(sl_job_t *job, int64_t max_batches,
                            sl_control_t *control,
                            sl_job_evaluation_t *evaluation)
{
    const sl_loader_params_t params = {.split = SL_DATA_VALID,
                                       .batch_rows = job->config.batch,
                                       .seed = (uint64_t)job->config.seed,
                                       .n_ahead = 2};
    sl_loader_t *loader = NULL;
    sl_batch_t batch;
    sl_status_t status;
    int64_t i;

    memset(evaluation, 0, sizeof(*evaluation));
    SL_TRY(status, sl_loader_create(job->dataset, &params, &loader), out);
    for (i = 0; max_batches == 0 || i < max_batches; i++) {
        SL_TRY(status, sl_loader_next(loader, &batch), out);
        if (batch.rows == 0) {
            break;
        }
        if (sl_control_pause(control)) {
            sl_train_signals_stop(NULL); /* told to stop */
        }
        evaluation->is_cut = is_wished(job, &evaluation->sums);
        if (evaluation->is_cut) {
            break;
        }
        SL_TRY(status,
               sl_engine_evaluate(job->engine, &batch, &evaluation->sums), out);
    }
    evaluation->is_wished =
        evaluation->is_cut || (evaluation->sums.flags & SL_TRAIN_STOP) != 0;
out:
    sl_loader_destroy(loader);
    return status;
}
