/* SPDX-License-Identifier: Apache-2.0 */
/* A cell follows its list of instructions, as an executor does. */
#include <math.h>

#include "engine/simulate/simulate_internal.h"

void sl_sim_push(sl_sim_t *sim, double at_us, sl_sim_event_kind_t kind,
                 int cell, int arg)
{
    const sl_sim_event_t event = {
        .at_us = at_us, .kind = kind, .cell = cell, .arg = arg};

    SL_KEEP(sim->status, sl_sim_queue_push(&sim->queue, &event));
}

static uint64_t ns_of(double us)
{
    return (uint64_t)fmin(us * 1e3, 1e18) + 1;
}

static void record(sl_sim_t *sim, const sl_sim_cell_t *cell, double start_us)
{
    sl_trace_event_t *event = &sim->trace[sim->n_trace];

    if (cell->phase != SL_SIM_PHASE_LIST &&
        cell->phase != SL_SIM_PHASE_UPDATE) {
        return;
    }
    sim->n_trace++;
    event->stage = cell->number;
    event->instruction = cell->work->list.items[cell->pc];
    event->start_ns = ns_of(start_us);
    event->end_ns = ns_of(cell->path.at_us);
    event->busy_ns = event->end_ns - event->start_ns;
}

void sl_sim_occupy(sl_sim_t *sim, sl_sim_cell_t *cell, sl_sim_part_t part,
                   double us)
{
    sl_sim_path_t *device = &sim->devices[cell->device].compute;
    double start_us;

    cell->path = *sl_sim_later(&cell->path, device);
    start_us = cell->path.at_us;
    sl_sim_spend(&cell->path, part, us);
    *device = cell->path;
    *(part == SL_SIM_COPY ? &cell->copy_us : &cell->compute_us) += us;
    if (sim->trace != NULL && us > 0.0) {
        record(sim, cell, start_us);
    }
}

double sl_sim_memory_us(const sl_sim_t *sim, const sl_sim_cell_t *cell,
                        double bytes)
{
    const double rate = sim->devices[cell->device].group->memory_bytes_per_us;

    return rate > 0.0 ? bytes / rate : 0.0;
}

int sl_sim_block(sl_sim_cell_t *cell, sl_sim_wait_t waits, int arg)
{
    cell->waits = waits;
    cell->waits_arg = arg;
    return 0;
}

void sl_sim_wake(sl_sim_t *sim, sl_sim_cell_t *cell, sl_sim_wait_t waits,
                 int arg, double at_us)
{
    if (cell->waits == waits && cell->waits_arg == arg) {
        cell->waits = SL_SIM_WAIT_NOTHING;
        sl_sim_push(sim, at_us > sim->now_us ? at_us : sim->now_us,
                    SL_SIM_EVENT_RUN, cell->number, 0);
    }
}

int sl_sim_wait_for(sl_sim_cell_t *cell, const sl_sim_path_t *path)
{
    const int is_later = path->at_us > cell->path.at_us;

    if (is_later) {
        cell->path = *path;
    }
    return is_later;
}

/* ---- transfers ---- */

static sl_sim_cell_t *neighbour(sl_sim_t *sim, const sl_sim_cell_t *cell,
                                int is_behind)
{
    return &sim->cells[cell->number + (is_behind ? 1 : -1)];
}

static double edge_bytes(const sl_sim_t *sim, const sl_sim_cell_t *to,
                         sl_sim_direction_t from)
{
    return from == SL_SIM_FROM_BEFORE ? to->work->in_bytes
                                      : sim->work[to->stage + 1].in_bytes;
}

/* @return 0: no slot is free */
static int send(sl_sim_t *sim, sl_sim_cell_t *cell, int is_forward)
{
    const sl_sim_direction_t from =
        is_forward ? SL_SIM_FROM_BEFORE : SL_SIM_FROM_BEHIND;
    const uint64_t n_slots = (uint64_t)sim->params->n_slots;
    sl_sim_cell_t *to = neighbour(sim, cell, is_forward);
    sl_sim_edge_t *edge = &to->edges[from];
    const uint64_t slot = edge->n_sent % n_slots;

    if (edge->n_sent >= n_slots) {
        if (edge->n_taken + n_slots <= edge->n_sent) {
            return sl_sim_block(cell, SL_SIM_WAIT_SLOT, is_forward);
        }
        if (sl_sim_wait_for(cell, &edge->taken[slot])) {
            return 1;
        }
    }
    sl_sim_send(sim, cell->device, to->device, edge_bytes(sim, to, from), 1,
                &cell->path, &edge->flights[slot]);
    edge->n_sent++;
    sl_sim_push(sim, edge->flights[slot].head.at_us, SL_SIM_EVENT_HEAD,
                to->number, (int)from);
    cell->pc++;
    return 1;
}

void sl_sim_head(sl_sim_t *sim, sl_sim_cell_t *cell, sl_sim_direction_t from)
{
    sl_sim_edge_t *edge = &cell->edges[from];
    sl_sim_flight_t *flight =
        &edge->flights[edge->n_heads % (uint64_t)sim->params->n_slots];
    const sl_sim_cell_t *sender =
        neighbour(sim, cell, from == SL_SIM_FROM_BEHIND);

    if (sender->device != cell->device) {
        sl_sim_arrive(sim, cell->device,
                      sl_sim_is_far(sim, sender->device, cell->device),
                      edge_bytes(sim, cell, from), 1, flight);
    }
    edge->n_heads++;
    sl_sim_wake(sim, cell, SL_SIM_WAIT_HEAD, (int)from, flight->tail.at_us);
}

/* The copy is done: the slot is free, and the sender hears of it. */
static void take(sl_sim_t *sim, sl_sim_cell_t *cell, sl_sim_direction_t from)
{
    sl_sim_cell_t *sender = neighbour(sim, cell, from == SL_SIM_FROM_BEHIND);
    sl_sim_edge_t *edge = &cell->edges[from];
    sl_sim_path_t *taken =
        &edge->taken[edge->n_taken % (uint64_t)sim->params->n_slots];

    *taken = cell->path;
    sl_sim_spend(taken, SL_SIM_LATENCY,
                 sl_sim_latency(sim, cell->device, sender->device));
    edge->n_taken++;
    cell->is_working = 0;
    cell->pc++;
    sl_sim_wake(sim, sender, SL_SIM_WAIT_SLOT, from == SL_SIM_FROM_BEFORE,
                taken->at_us);
}

/* @return 0: nothing has come */
static int receive(sl_sim_t *sim, sl_sim_cell_t *cell, sl_sim_direction_t from)
{
    sl_sim_edge_t *edge = &cell->edges[from];
    const sl_sim_flight_t *flight =
        &edge->flights[edge->n_taken % (uint64_t)sim->params->n_slots];

    if (cell->is_working) {
        take(sim, cell, from);
        return 1;
    }
    if (edge->n_heads == edge->n_taken) {
        return sl_sim_block(cell, SL_SIM_WAIT_HEAD, (int)from);
    }
    if (sl_sim_wait_for(cell, &flight->tail)) {
        return 1;
    }
    cell->is_working = 1;
    if (!sim->params->has_free_links) {
        /* read and written */
        sl_sim_occupy(
            sim, cell, SL_SIM_COPY,
            sl_sim_memory_us(sim, cell, 2.0 * edge_bytes(sim, cell, from)));
    }
    return 1;
}

/* ---- instructions ---- */

static void backward(sl_sim_t *sim, sl_sim_cell_t *cell, double us)
{
    sl_sim_occupy(sim, cell, SL_SIM_BACKWARD, us);
    if (cell->pc == cell->work->last_backward) {
        cell->last_backward = cell->path;
        sl_sim_spend(&cell->last_backward, SL_SIM_BACKWARD, -us);
        sl_sim_announce_buckets(sim, cell, us);
    }
}

/* @return 0: the cell is blocked */
static int execute(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    const sl_sim_work_t *work = cell->work;
    const double speed = sim->devices[cell->device].group->speed;

    switch (work->list.items[cell->pc].kind) {
    case SL_INSTRUCTION_FORWARD:
        sl_sim_occupy(sim, cell, SL_SIM_FORWARD, work->forward_us / speed);
        break;
    case SL_INSTRUCTION_RECOMPUTE:
        sl_sim_occupy(sim, cell, SL_SIM_RECOMPUTE, work->recompute_us / speed);
        break;
    case SL_INSTRUCTION_BACKWARD:
        backward(sim, cell, work->backward_us / speed);
        break;
    case SL_INSTRUCTION_RECV_FORWARD:
        return receive(sim, cell, SL_SIM_FROM_BEFORE);
    case SL_INSTRUCTION_SEND_FORWARD:
        return send(sim, cell, 1);
    case SL_INSTRUCTION_RECV_BACKWARD:
        return receive(sim, cell, SL_SIM_FROM_BEHIND);
    case SL_INSTRUCTION_SEND_BACKWARD:
        return send(sim, cell, 0);
    case SL_INSTRUCTION_UPDATE:
        cell->phase = SL_SIM_PHASE_TIES;
        return 1;
    }
    cell->pc++;
    return 1;
}

void sl_sim_advance(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    while (cell->phase != SL_SIM_PHASE_DONE) {
        if (cell->path.at_us > sim->now_us) {
            sl_sim_push(sim, cell->path.at_us, SL_SIM_EVENT_RUN, cell->number,
                        0);
            return;
        }
        if (!(cell->phase == SL_SIM_PHASE_LIST
                  ? execute(sim, cell)
                  : sl_sim_update_step(sim, cell))) {
            return;
        }
    }
}
