/* SPDX-License-Identifier: Apache-2.0 */
/* What a stage has to do and to hold, from the costs of its layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/schedule/schedule_internal.h"
#include "engine/simulate/simulate_internal.h"

static void schedule_params(const sl_sim_params_t *params,
                            sl_schedule_params_t *schedule)
{
    *schedule =
        (sl_schedule_params_t){.kind = params->schedule,
                               .order = params->backward_order,
                               .recompute = params->recompute,
                               .n_stages = params->n_stages,
                               .n_micro_batches = params->n_micro_batches};
}

static sl_status_t check_ties(const sl_sim_params_t *params)
{
    sl_status_t status;
    int i;

    for (i = 0; i < params->n_ties; i++) {
        const sl_sim_tie_t *tie = &params->ties[i];

        if (tie->owner_layer < 0 || tie->user_layer < tie->owner_layer ||
            tie->user_layer >= params->costs->n_layers) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "simulate: layer %d cannot share a parameter of layer %d "
                    "of %d",
                    tie->user_layer, tie->owner_layer, params->costs->n_layers);
        }
    }
    return SL_OK;
out:
    return status;
}

/* Times that can be added up: not NaN, not negative, below 31 years. */
static int is_time(double us)
{
    return us >= 0.0 && us <= 1e15;
}

static sl_status_t check_costs(const sl_part_costs_t *costs)
{
    sl_status_t status;
    int l;

    for (l = 0; l < costs->n_layers; l++) {
        const sl_part_layer_t *layer = &costs->layers[l];

        if (!is_time(layer->forward_us) || !is_time(layer->backward_us)) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "simulate: layer %d takes %g + %g us; times must be finite "
                    "and not negative",
                    l, layer->forward_us, layer->backward_us);
        }
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_sim_check(const sl_sim_params_t *params)
{
    sl_schedule_params_t schedule;
    sl_status_t status;

    if (params->cluster == NULL || params->cluster->n_devices < 1 ||
        params->costs == NULL || params->n_slots < 1 ||
        params->n_slots > SL_SIM_MAX_SLOTS || params->bucket_bytes < 1 ||
        params->n_moments < 0 || params->n_moments > 2 || params->n_ties < 0) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "simulate: a cluster and costs are needed, 1 to %d slots (not "
                "%d), 0 to 2 moments (not %d) and buckets of a byte or more",
                SL_SIM_MAX_SLOTS, params->n_slots, params->n_moments);
    }
    if (params->n_replicas < 1 || params->n_replicas > SL_CLUSTER_MAX_DEVICES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "simulate: %d replicas asked; 1 to %d are possible",
                params->n_replicas, SL_CLUSTER_MAX_DEVICES);
    }
    schedule_params(params, &schedule);
    SL_TRY(status, sl_schedule_params_check(&schedule), out);
    SL_TRY(status, check_costs(params->costs), out);
    SL_TRY(status,
           sl_part_check_cuts(params->costs->n_layers, params->n_stages,
                              params->cuts),
           out);
    if ((int64_t)params->n_replicas * params->n_stages >
        SL_CLUSTER_MAX_DEVICES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "simulate: %d replicas of %d stages are more than %d cells",
                params->n_replicas, params->n_stages, SL_CLUSTER_MAX_DEVICES);
    }
    status = check_ties(params);
out:
    return status;
}

double sl_sim_update_traffic(const sl_sim_params_t *params)
{
    /* norm: the gradient; update: gradient, value and moments are read,
     * value and moments written */
    return 4.0 + 2.0 * params->n_moments;
}

/* Trained bytes that a layer owns: those it shares are their owner's. */
static double owned_bytes(const sl_sim_params_t *params, int layer)
{
    double bytes = (double)params->costs->layers[layer].trained_bytes;
    int i;

    for (i = 0; i < params->n_ties; i++) {
        if (params->ties[i].user_layer == layer) {
            bytes -= (double)params->ties[i].bytes;
        }
    }
    return bytes > 0.0 ? bytes : 0.0;
}

/* Of those, what other layers share: one parameter of a layer. */
static double shared_bytes(const sl_sim_params_t *params, int layer)
{
    double bytes = 0.0;
    int i;

    for (i = 0; i < params->n_ties; i++) {
        if (params->ties[i].owner_layer == layer) {
            bytes = fmax(bytes, (double)params->ties[i].bytes);
        }
    }
    return fmin(bytes, owned_bytes(params, layer));
}

static int is_recomputed(const sl_sim_params_t *params, int layer)
{
    return params->recompute != SL_RECOMPUTE_NONE &&
           (params->recompute != SL_RECOMPUTE_AUTO || params->keeps == NULL ||
            !params->keeps[layer]);
}

/* Buckets in backward order, of whole layers: closed when they are large
 * enough and at the stage's first layer. */
static void fill_buckets(const sl_sim_params_t *params, int stage,
                         int waits_tie, sl_sim_work_t *work)
{
    sl_sim_bucket_t bucket = {.waits_tie = waits_tie};
    double done_us = 0.0;
    int l;

    for (l = params->cuts[stage + 1] - 1; l >= params->cuts[stage]; l--) {
        const double shared = shared_bytes(params, l);

        done_us += params->costs->layers[l].backward_us;
        bucket.bytes += waits_tie ? shared : owned_bytes(params, l) - shared;
        if (bucket.bytes >= (double)params->bucket_bytes ||
            (l == params->cuts[stage] && bucket.bytes > 0.0)) {
            bucket.ready = work->backward_us > 0.0
                               ? fmin(done_us / work->backward_us, 1.0)
                               : 1.0;
            work->buckets[work->n_buckets++] = bucket;
            bucket.bytes = 0.0;
        }
    }
}

/* What has tied users is complete only at the update, and comes after all
 * others. */
static sl_status_t make_buckets(const sl_sim_params_t *params, int stage,
                                sl_sim_work_t *work)
{
    const int n = params->cuts[stage + 1] - params->cuts[stage];
    sl_status_t status;

    if (params->n_replicas == 1) {
        return SL_OK;
    }
    work->buckets = calloc(2 * (size_t)n, sizeof(*work->buckets));
    if (work->buckets == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for buckets of %d layers", n);
    }
    fill_buckets(params, stage, 0, work);
    fill_buckets(params, stage, 1, work);
    return SL_OK;
out:
    return status;
}

static void find_last_backward(sl_sim_work_t *work)
{
    size_t i;

    for (i = 0; i < work->list.n; i++) {
        if (work->list.items[i].kind == SL_INSTRUCTION_BACKWARD) {
            work->last_backward = i;
        }
    }
}

sl_status_t sl_sim_work_init(const sl_sim_params_t *params, int stage,
                             sl_sim_work_t *work)
{
    sl_schedule_params_t schedule;
    sl_status_t status;
    int l;

    memset(work, 0, sizeof(*work));
    for (l = params->cuts[stage]; l < params->cuts[stage + 1]; l++) {
        const sl_part_layer_t *layer = &params->costs->layers[l];

        work->forward_us += layer->forward_us;
        work->backward_us += layer->backward_us;
        work->recompute_us +=
            is_recomputed(params, l) ? layer->forward_us : 0.0;
        work->update_bytes += owned_bytes(params, l);
    }
    work->in_bytes =
        (double)params->costs->layers[params->cuts[stage]].cut_bytes;
    schedule_params(params, &schedule);
    SL_TRY(status, sl_schedule_generate(&schedule, stage, &work->list), out);
    find_last_backward(work);
    status = make_buckets(params, stage, work);
out:
    return status;
}

void sl_sim_work_cleanup(sl_sim_work_t *work)
{
    sl_schedule_cleanup(&work->list);
    free(work->buckets);
    work->buckets = NULL;
}

/* ---- memory ---- */

static double cut_bytes(const sl_sim_params_t *params, int stage)
{
    return stage <= 0 || stage >= params->n_stages
               ? 0.0
               : (double)params->costs->layers[params->cuts[stage]].cut_bytes;
}

size_t sl_sim_memory(const sl_sim_params_t *params, int stage)
{
    const int n_parts = params->is_sharded ? params->n_replicas : 1;
    double state = 0.0, owned = 0.0, kept = 0.0, all = 0.0, edges, in_flight;
    sl_schedule_params_t schedule;
    int l;

    for (l = params->cuts[stage]; l < params->cuts[stage + 1]; l++) {
        const sl_part_layer_t *layer = &params->costs->layers[l];

        state += (double)(layer->param_bytes + layer->trained_bytes);
        owned += owned_bytes(params, l);
        all += (double)layer->kept_bytes;
        kept += is_recomputed(params, l) ? 0.0 : (double)layer->kept_bytes;
    }
    schedule_params(params, &schedule);
    in_flight = sl_schedule_max_in_flight(&schedule, stage);
    if (params->recompute != SL_RECOMPUTE_NONE) {
        /* what is stashed, and the rest of one micro-batch */
        kept = in_flight * (kept + cut_bytes(params, stage)) + all - kept;
    } else {
        kept = in_flight * all;
    }
    edges = params->n_slots *
            (cut_bytes(params, stage) + cut_bytes(params, stage + 1));
    return (size_t)fmin(state + owned * params->n_moments / n_parts + kept +
                            edges + (params->n_replicas > 1 ? owned : 0.0),
                        1e18);
}

/* ---- a bound ---- */

/* The device of a stage in replica 0. */
static const sl_cluster_group_t *group_of(const sl_sim_params_t *params,
                                          int stage)
{
    const int n_cells = params->n_replicas * params->n_stages;
    const int n_devices = n_cells < params->cluster->n_devices
                              ? n_cells
                              : params->cluster->n_devices;
    int host;

    return sl_cluster_device(params->cluster,
                             sl_sim_slot(stage, n_devices, n_cells), &host);
}

static int n_recomputed(const sl_sim_params_t *params)
{
    switch (params->recompute) {
    case SL_RECOMPUTE_NONE:
        return 0;
    case SL_RECOMPUTE_EXCEPT_LAST:
        return params->n_micro_batches - 1;
    case SL_RECOMPUTE_FULL:
    case SL_RECOMPUTE_AUTO:
        break;
    }
    return params->n_micro_batches;
}

sl_status_t sl_sim_bound(const sl_sim_params_t *params, double *bound_us_p)
{
    const double n = params->n_micro_batches;
    const double n_again = n_recomputed(params);
    double around_us = 0.0, bound_us = 0.0, update_us = 0.0;
    sl_status_t status;
    int k, l;

    SL_TRY(status, sl_sim_check(params), out);
    for (k = 0; k < params->n_stages; k++) {
        const sl_cluster_group_t *group = group_of(params, k);
        double pass_us = 0.0, again_us = 0.0, bytes = 0.0, us;

        for (l = params->cuts[k]; l < params->cuts[k + 1]; l++) {
            const sl_part_layer_t *layer = &params->costs->layers[l];

            pass_us += (layer->forward_us + layer->backward_us) / group->speed;
            again_us += is_recomputed(params, l)
                            ? layer->forward_us / group->speed
                            : 0.0;
            bytes += owned_bytes(params, l);
        }
        us = around_us + n * pass_us + n_again * again_us;
        bound_us = us > bound_us ? us : bound_us;
        around_us += pass_us;
        us = group->memory_bytes_per_us > 0.0
                 ? bytes * sl_sim_update_traffic(params) /
                       group->memory_bytes_per_us
                 : 0.0;
        us /= params->is_sharded ? params->n_replicas : 1;
        update_us = us > update_us ? us : update_us;
    }
    *bound_us_p = bound_us + update_us;
out:
    return status;
}

/* ---- recompute `auto` ---- */

/* The layer whose results cost most memory for their time, -1: none is kept */
static int most_wasteful(const sl_sim_params_t *params, int stage,
                         const unsigned char *keeps)
{
    double worst = -1.0;
    int l, found = -1;

    for (l = params->cuts[stage]; l < params->cuts[stage + 1]; l++) {
        const sl_part_layer_t *layer = &params->costs->layers[l];
        const double waste =
            (double)layer->kept_bytes / (layer->forward_us + 1e-3);

        if (keeps[l] && waste > worst) {
            worst = waste;
            found = l;
        }
    }
    return found;
}

void sl_sim_choose_keeps(const sl_sim_params_t *params, unsigned char *keeps)
{
    sl_sim_params_t own = *params;
    int k, l;

    memset(keeps, 1, (size_t)params->costs->n_layers);
    own.keeps = keeps;
    for (k = 0; k < params->n_stages; k++) {
        const uint64_t limit = group_of(params, k)->memory_bytes;

        while (limit > 0 && sl_sim_memory(&own, k) > limit &&
               (l = most_wasteful(&own, k, keeps)) >= 0) {
            keeps[l] = 0;
        }
    }
}
