/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated step: places and cells are made, events run, results read. */
#include "engine/simulate/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/simulate/simulate_internal.h"

const char *sl_sim_part_name(sl_sim_part_t part)
{
    static const char *const names[] = {
#define X(id, text) text,
        SL_SIM_PART_MAP(X)
#undef X
    };

    return names[part];
}

void sl_sim_params_default(sl_sim_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->n_replicas = 1;
    params->n_stages = 1;
    params->n_micro_batches = 1;
    params->bucket_bytes = (size_t)4 << 20;
    params->n_slots = 2;
}

/* ---- set-up ---- */

static void place_devices(sl_sim_t *sim)
{
    int d;

    for (d = 0; d < sim->n_devices; d++) {
        sim->devices[d].group =
            sl_cluster_device(sim->params->cluster, d, &sim->devices[d].host);
    }
}

/* Up and down a tree over the devices of a host and over the hosts. */
static double meeting_us(const sl_sim_t *sim)
{
    const int n_hosts = sim->devices[sim->n_devices - 1].host + 1;
    double near_us = 0.0, far_us = 0.0;
    int d, n_local = 0, n_most = 1;

    if (sim->n_cells == 1 || sim->params->has_free_links) {
        return 0.0;
    }
    for (d = 0; d < sim->n_devices; d++) {
        const sl_sim_device_t *device = &sim->devices[d];

        n_local =
            d > 0 && sim->devices[d - 1].host == device->host ? n_local + 1 : 1;
        n_most = n_local > n_most ? n_local : n_most;
        near_us = fmax(near_us, device->group->link.latency_us);
        far_us = fmax(far_us, device->group->network.latency_us);
    }
    return 2.0 * (ceil(log2(n_most)) * near_us + ceil(log2(n_hosts)) * far_us);
}

static void find_peers(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    int r;

    cell->near = -1;
    cell->far = -1;
    for (r = 0; r < sim->params->n_replicas; r++) {
        const int other = sl_sim_slot(r * sim->params->n_stages + cell->stage,
                                      sim->n_devices, sim->n_cells);

        if (sl_sim_is_far(sim, cell->device, other)) {
            cell->n_far++;
            cell->far = cell->far < 0 ? other : cell->far;
        } else if (other != cell->device) {
            cell->n_near++;
            cell->near = cell->near < 0 ? other : cell->near;
        }
    }
}

static void place_cells(sl_sim_t *sim)
{
    int c;

    for (c = 0; c < sim->n_cells; c++) {
        sl_sim_cell_t *cell = &sim->cells[c];

        cell->number = c;
        cell->replica = c / sim->params->n_stages;
        cell->stage = c % sim->params->n_stages;
        cell->device = sl_sim_slot(c, sim->n_devices, sim->n_cells);
        cell->work = &sim->work[cell->stage];
        cell->parts = &sim->arrivals[2 * (size_t)c * (size_t)sim->max_buckets];
        cell->values = cell->parts + sim->max_buckets;
        if (sim->params->n_replicas > 1) {
            find_peers(sim, cell);
        }
    }
}

static sl_status_t make_work(sl_sim_t *sim)
{
    sl_status_t status = SL_OK;
    int k;

    sim->work = calloc((size_t)sim->params->n_stages, sizeof(*sim->work));
    if (sim->work == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for %d stages",
                sim->params->n_stages);
    }
    for (k = 0; k < sim->params->n_stages; k++) {
        SL_TRY(status, sl_sim_work_init(sim->params, k, &sim->work[k]), out);
        sim->max_buckets = sim->work[k].n_buckets > sim->max_buckets
                               ? sim->work[k].n_buckets
                               : sim->max_buckets;
    }
out:
    return status;
}

/* Most that a timeline may have. */
static size_t n_trace_events(const sl_sim_t *sim)
{
    size_t n = 0;
    int k;

    for (k = 0; k < sim->params->n_stages; k++) {
        n += sim->work[k].list.n + (size_t)sim->max_buckets;
    }
    return n * (size_t)sim->params->n_replicas;
}

static sl_status_t sim_init(const sl_sim_params_t *params, sl_sim_t *sim)
{
    const size_t n_replicas = (size_t)params->n_replicas;
    const size_t n_stages = (size_t)params->n_stages;
    sl_status_t status;
    size_t n_buckets;

    memset(sim, 0, sizeof(*sim));
    sim->params = params;
    sim->n_cells = params->n_replicas * params->n_stages;
    sim->n_devices = sim->n_cells < params->cluster->n_devices
                         ? sim->n_cells
                         : params->cluster->n_devices;
    SL_TRY(status, make_work(sim), out);
    n_buckets = (size_t)sim->max_buckets;
    sim->devices = calloc((size_t)sim->n_devices, sizeof(*sim->devices));
    sim->hosts = calloc((size_t)params->cluster->n_hosts, sizeof(*sim->hosts));
    sim->cells = calloc((size_t)sim->n_cells, sizeof(*sim->cells));
    sim->arrivals = calloc(2 * (size_t)sim->n_cells * n_buckets + 1,
                           sizeof(*sim->arrivals));
    sim->exchanges =
        calloc(2 * n_stages * n_buckets + 1, sizeof(*sim->exchanges));
    sim->mail =
        calloc(2 * n_replicas * (size_t)params->n_ties + 1, sizeof(*sim->mail));
    if (params->has_trace) {
        sim->trace = calloc(n_trace_events(sim), sizeof(*sim->trace));
    }
    if (sim->devices == NULL || sim->hosts == NULL || sim->cells == NULL ||
        sim->arrivals == NULL || sim->exchanges == NULL || sim->mail == NULL ||
        (params->has_trace && sim->trace == NULL)) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for %d cells", sim->n_cells);
    }
    place_devices(sim);
    place_cells(sim);
    sim->meet_us = meeting_us(sim);
out:
    return status;
}

static void sim_cleanup(sl_sim_t *sim)
{
    int k;

    for (k = 0; sim->work != NULL && k < sim->params->n_stages; k++) {
        sl_sim_work_cleanup(&sim->work[k]);
    }
    free(sim->work);
    free(sim->devices);
    free(sim->hosts);
    free(sim->cells);
    free(sim->arrivals);
    free(sim->exchanges);
    free(sim->mail);
    free(sim->trace);
    free(sim->queue.heap);
}

/* ---- the run ---- */

static void handle(sl_sim_t *sim, const sl_sim_event_t *event)
{
    sl_sim_cell_t *cell = event->cell < 0 ? NULL : &sim->cells[event->cell];

    switch (event->kind) {
    case SL_SIM_EVENT_RUN:
        sl_sim_advance(sim, cell);
        break;
    case SL_SIM_EVENT_HEAD:
        sl_sim_head(sim, cell, (sl_sim_direction_t)event->arg);
        break;
    case SL_SIM_EVENT_BUCKET:
        sl_sim_bucket(sim, cell, event->arg);
        break;
    case SL_SIM_EVENT_EXCHANGE:
        sl_sim_exchange(sim, event->arg / 2, event->arg % 2);
        break;
    case SL_SIM_EVENT_TIE:
        sl_sim_tie_head(sim, cell, event->arg);
        break;
    }
}

static sl_status_t sim_run(sl_sim_t *sim)
{
    sl_status_t status;
    int c;

    for (c = 0; c < sim->n_cells; c++) {
        sl_sim_push(sim, 0.0, SL_SIM_EVENT_RUN, c, 0);
    }
    while (sim->queue.n > 0 && sim->status >= 0) {
        const sl_sim_event_t event = sl_sim_queue_pop(&sim->queue);

        SL_ASSERT(event.at_us >= sim->now_us);
        sim->now_us = event.at_us;
        sim->n_events++;
        handle(sim, &event);
    }
    SL_TRY(status, sim->status, out);
    if (sim->n_done < sim->n_cells) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "simulate: %d of %d cells wait for ever",
                sim->n_cells - sim->n_done, sim->n_cells);
    }
    /* the step ends when all know that all have ended */
    sl_sim_spend(&sim->end, SL_SIM_MEET, sim->meet_us);
out:
    return status;
}

/* ---- results ---- */

static double one_device_us(const sl_sim_t *sim)
{
    const double rate = sim->devices[0].group->memory_bytes_per_us;
    const double n =
        (double)sim->params->n_replicas * sim->params->n_micro_batches;
    double us = 0.0, bytes = 0.0;
    int k;

    for (k = 0; k < sim->params->n_stages; k++) {
        us += n * (sim->work[k].forward_us + sim->work[k].backward_us);
        bytes += sim->work[k].update_bytes;
    }
    bytes *= sl_sim_update_traffic(sim->params);
    return rate > 0.0 ? us + bytes / rate : us;
}

static void read_stages(const sl_sim_t *sim, sl_sim_result_t *result)
{
    const double n = sim->params->n_replicas;
    int c, k;

    for (c = 0; c < sim->n_cells; c++) {
        sl_sim_stage_t *stage = &result->stages[sim->cells[c].stage];

        stage->compute_us += sim->cells[c].compute_us / n;
        stage->copy_us += sim->cells[c].copy_us / n;
    }
    for (k = 0; k < sim->params->n_stages; k++) {
        sl_sim_stage_t *stage = &result->stages[k];

        stage->memory_bytes = sl_sim_memory(sim->params, k);
        stage->fits = 1;
        stage->bubble =
            result->step_us > 0.0
                ? 1.0 - (stage->compute_us + stage->copy_us) / result->step_us
                : 0.0;
        result->bubble += stage->bubble / sim->params->n_stages;
    }
}

/* Cells that share a device share its memory. */
static void check_memory(const sl_sim_t *sim, sl_sim_result_t *result)
{
    int c = 0, first;
    double bytes;

    result->fits = 1;
    while (c < sim->n_cells) {
        const int d = sim->cells[c].device;
        const double limit = (double)sim->devices[d].group->memory_bytes;

        bytes = 0.0;
        for (first = c; c < sim->n_cells && sim->cells[c].device == d; c++) {
            bytes += (double)result->stages[sim->cells[c].stage].memory_bytes;
        }
        if (limit > 0.0 && bytes > limit) {
            result->fits = 0;
            for (; first < c; first++) {
                result->stages[sim->cells[first].stage].fits = 0;
            }
        }
    }
}

static sl_status_t read_result(sl_sim_t *sim, sl_sim_result_t *result_p)
{
    sl_sim_result_t result = {.n_stages = sim->params->n_stages};
    double speeds = 0.0;
    sl_status_t status;
    int d;

    result.stages = calloc((size_t)result.n_stages, sizeof(*result.stages));
    if (result.stages == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for %d stages", result.n_stages);
    }
    for (d = 0; d < sim->n_devices; d++) {
        speeds += sim->devices[d].group->speed;
    }
    result.step_us = sim->end.at_us;
    result.one_device_us = one_device_us(sim);
    result.efficiency = result.step_us > 0.0
                            ? result.one_device_us / (speeds * result.step_us)
                            : 1.0;
    result.path = sim->end;
    result.n_events = sim->n_events;
    result.n_messages = sim->n_messages;
    result.near_bytes = sim->near_bytes;
    result.far_bytes = sim->far_bytes;
    result.n_devices = sim->n_devices;
    read_stages(sim, &result);
    check_memory(sim, &result);
    result.trace = sim->trace;
    result.n_trace = sim->n_trace;
    sim->trace = NULL;
    *result_p = result;
    return SL_OK;
out:
    return status;
}

sl_status_t sl_simulate(const sl_sim_params_t *params,
                        sl_sim_result_t *result_p)
{
    sl_sim_t sim;
    sl_status_t status;

    SL_TRY(status, sl_sim_check(params), out);
    SL_TRY(status, sim_init(params, &sim), out_sim);
    SL_TRY(status, sim_run(&sim), out_sim);
    status = read_result(&sim, result_p);
out_sim:
    sim_cleanup(&sim);
out:
    return status;
}

void sl_sim_result_cleanup(sl_sim_result_t *result)
{
    free(result->stages);
    free(result->trace);
    result->stages = NULL;
    result->trace = NULL;
}
