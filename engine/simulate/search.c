/* SPDX-License-Identifier: Apache-2.0 */
/* Search of the best grid: bounds first, then simulation in their order. */
#include "engine/simulate/search.h"

#include <stdlib.h>
#include <string.h>

#include "engine/simulate/simulate_internal.h"

typedef struct candidate {
    int order;
    int n_stages, n_replicas, n_micro_batches;
    const sl_search_size_t *size;
    double bound_us;
    size_t memory_bytes;
    int *cuts;            /* owned */
    unsigned char *keeps; /* owned; NULL unless recompute is auto */
} candidate_t;

typedef struct search {
    const sl_search_params_t *params;
    candidate_t *candidates; /* owned */
    int n, n_tried;
} search_t;

sl_status_t sl_search_cuts(const sl_part_ops_t *policy,
                           const sl_sim_params_t *params, int *cuts)
{
    const int n_cells = params->n_replicas * params->n_stages;
    const int n_devices = n_cells < params->cluster->n_devices
                              ? n_cells
                              : params->cluster->n_devices;
    double *speeds = calloc((size_t)params->n_stages, sizeof(*speeds));
    sl_part_problem_t problem = {
        .costs = params->costs,
        .n_stages = params->n_stages,
        .recompute = params->recompute == SL_RECOMPUTE_NONE ? 0.0 : 1.0,
        .stage_speed = speeds};
    const sl_cluster_link_t *link = NULL;
    sl_status_t status;
    int k, host, first_host = 0;

    if (speeds == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for %d speeds", params->n_stages);
    }
    for (k = 0; k < params->n_stages; k++) {
        const sl_cluster_group_t *group = sl_cluster_device(
            params->cluster, sl_sim_slot(k, n_devices, n_cells), &host);

        first_host = k == 0 ? host : first_host;
        link = host == first_host ? &group->link : &group->network;
        speeds[k] = group->speed;
    }
    problem.link_bytes_per_us = link->bytes_per_us;
    problem.link_latency_us = link->latency_us;
    status = sl_part_split(policy, &problem, cuts);
out:
    free(speeds);
    return status;
}

static sl_sim_params_t grid_params(const search_t *search,
                                   const candidate_t *candidate)
{
    sl_sim_params_t params = search->params->base;

    params.costs = candidate->size->costs;
    params.cuts = candidate->cuts;
    params.keeps = candidate->keeps;
    params.n_stages = candidate->n_stages;
    params.n_replicas = candidate->n_replicas;
    params.n_micro_batches = candidate->n_micro_batches;
    params.has_trace = 0;
    return params;
}

/* Most memory of a stage, and whether all devices have that. */
static int fits(const sl_sim_params_t *params, size_t *memory_p)
{
    const int n_cells = params->n_replicas * params->n_stages;
    int c, host, k, is_fitting = 1;

    *memory_p = 0;
    for (k = 0; k < params->n_stages; k++) {
        const size_t bytes = sl_sim_memory(params, k);

        *memory_p = bytes > *memory_p ? bytes : *memory_p;
        for (c = k; c < n_cells; c += params->n_stages) {
            const uint64_t limit =
                sl_cluster_device(params->cluster, c, &host)->memory_bytes;

            is_fitting &= limit == 0 || bytes <= limit;
        }
    }
    return is_fitting;
}

static void candidate_cleanup(candidate_t *candidate)
{
    free(candidate->cuts);
    free(candidate->keeps);
}

static sl_status_t candidate_init(const search_t *search, int n_stages,
                                  const sl_search_size_t *size,
                                  candidate_t *candidate)
{
    const int64_t n_micro =
        (search->params->batch_rows + size->rows - 1) / size->rows;
    const int n_room = search->params->n_devices / n_stages;
    sl_sim_params_t params;
    sl_status_t status;

    memset(candidate, 0, sizeof(*candidate));
    candidate->order = search->n_tried;
    candidate->size = size;
    candidate->n_stages = n_stages;
    candidate->n_replicas = n_room < n_micro ? n_room : (int)n_micro;
    candidate->n_micro_batches =
        (int)((n_micro + candidate->n_replicas - 1) / candidate->n_replicas);
    candidate->cuts = calloc((size_t)n_stages + 1, sizeof(int));
    if (candidate->cuts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for %d cuts", n_stages);
    }
    params = grid_params(search, candidate);
    SL_TRY(status,
           sl_search_cuts(search->params->policy, &params, candidate->cuts),
           out);
    if (params.recompute == SL_RECOMPUTE_AUTO) {
        candidate->keeps = calloc((size_t)size->costs->n_layers, 1);
        if (candidate->keeps == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "simulate: no host memory for %d layers",
                    size->costs->n_layers);
        }
        sl_sim_choose_keeps(&params, candidate->keeps);
        params.keeps = candidate->keeps;
    }
    status = sl_sim_bound(&params, &candidate->bound_us);
out:
    return status;
}

static int is_wanted(int n_stages, int n_devices)
{
    return n_devices % n_stages == 0 || (n_stages & (n_stages - 1)) == 0;
}

static sl_status_t add_candidates(search_t *search, int n_stages)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < search->params->n_sizes; i++) {
        candidate_t *candidate = &search->candidates[search->n];
        sl_sim_params_t params;

        status = candidate_init(search, n_stages, &search->params->sizes[i],
                                candidate);
        if (status < 0) {
            candidate_cleanup(candidate);
            return status;
        }
        search->n_tried++;
        params = grid_params(search, candidate);
        if (fits(&params, &candidate->memory_bytes)) {
            search->n++;
        } else {
            candidate_cleanup(candidate);
        }
    }
    return status;
}

static int compare(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;

    if (x->bound_us < y->bound_us || x->bound_us > y->bound_us) {
        return x->bound_us < y->bound_us ? -1 : 1;
    }
    return x->order - y->order;
}

/* Equal steps: the candidate that was looked at first. */
static int is_better(const sl_search_choice_t *choice,
                     const candidate_t *candidate, int best_order,
                     double step_us)
{
    return choice->n_simulated == 0 || step_us < choice->result.step_us ||
           (!(step_us > choice->result.step_us) &&
            candidate->order < best_order);
}

static sl_status_t simulate_in_order(const search_t *search,
                                     sl_search_choice_t *choice)
{
    const candidate_t *best = NULL;
    sl_sim_result_t result;
    sl_sim_params_t params;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < search->n; i++) {
        const candidate_t *candidate = &search->candidates[i];

        if (best != NULL &&
            candidate->bound_us > choice->result.step_us * (1.0 + 1e-9)) {
            break;
        }
        params = grid_params(search, candidate);
        SL_TRY(status, sl_simulate(&params, &result), out);
        sl_sim_result_cleanup(&result);
        if (is_better(choice, candidate, best == NULL ? 0 : best->order,
                      result.step_us)) {
            best = candidate;
            choice->result = result;
        }
        choice->n_simulated++;
    }
    if (best == NULL) {
        return SL_OK;
    }
    choice->n_replicas = best->n_replicas;
    choice->n_stages = best->n_stages;
    choice->n_micro_batches = best->n_micro_batches;
    choice->rows = best->size->rows;
    choice->memory_bytes = best->memory_bytes;
    choice->rows_per_s =
        (double)search->params->batch_rows / choice->result.step_us * 1e6;
    params = grid_params(search, best);
    params.has_free_links = 1;
    SL_TRY(status, sl_simulate(&params, &result), out);
    choice->free_us = result.step_us;
    sl_sim_result_cleanup(&result);
out:
    return status;
}

static sl_status_t check(const sl_search_params_t *params)
{
    sl_status_t status = SL_OK;

    if (params->policy == NULL || params->n_sizes < 1 ||
        params->batch_rows < 1 || params->base.cluster == NULL ||
        params->n_devices < 1 ||
        params->n_devices > params->base.cluster->n_devices) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "simulate: %d devices asked, the cluster has %d; a policy, "
                "sizes of micro-batches and rows are needed too",
                params->n_devices,
                params->base.cluster == NULL ? 0
                                             : params->base.cluster->n_devices);
    }
out:
    return status;
}

sl_status_t sl_search(const sl_search_params_t *params,
                      sl_search_choice_t *choice_p)
{
    search_t search = {.params = params};
    sl_search_choice_t choice = {.n_tried = 0};
    sl_status_t status;
    int i, k, n_layers;

    SL_TRY(status, check(params), out);
    n_layers = params->sizes[0].costs->n_layers;
    search.candidates =
        calloc((size_t)params->n_devices * (size_t)params->n_sizes,
               sizeof(*search.candidates));
    if (search.candidates == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for the grids of %d devices",
                params->n_devices);
    }
    for (k = 1;
         k <= params->n_devices && k <= n_layers && k <= SL_PART_MAX_STAGES;
         k++) {
        if (is_wanted(k, params->n_devices)) {
            SL_TRY(status, add_candidates(&search, k), out);
        }
    }
    qsort(search.candidates, (size_t)search.n, sizeof(*search.candidates),
          compare);
    choice.n_tried = search.n_tried;
    choice.n_fitting = search.n;
    SL_TRY(status, simulate_in_order(&search, &choice), out);
    *choice_p = choice;
out:
    for (i = 0; i < search.n; i++) {
        candidate_cleanup(&search.candidates[i]);
    }
    free(search.candidates);
    return status;
}
