/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a step: gradients of tied parameters, the sum over replicas, the
 * meeting of all, the update, and the new values' way back. */
#include "engine/simulate/simulate_internal.h"

static int exchange_index(const sl_sim_t *sim, int stage, int bucket,
                          int is_second)
{
    return (stage * sim->max_buckets + bucket) * 2 + is_second;
}

static double chunk_bytes(const sl_sim_t *sim, const sl_sim_cell_t *cell,
                          int bucket)
{
    return cell->work->buckets[bucket].bytes / sim->params->n_replicas;
}

/* ---- exchanges among the replicas of a stage ---- */

/* All have sent, and all links have been asked for: members know when the
 * last byte is there. */
static void open_exchange(sl_sim_t *sim, int index)
{
    sl_sim_exchange_t *exchange = &sim->exchanges[index];
    const int is_second = index % 2, bucket = index / 2 % sim->max_buckets;
    const int stage = index / 2 / sim->max_buckets;
    int r;

    if (exchange->n_posted < sim->params->n_replicas ||
        exchange->n_awaited > 0) {
        return;
    }
    exchange->is_open = 1;
    for (r = 0; r < sim->params->n_replicas; r++) {
        sl_sim_cell_t *cell = &sim->cells[r * sim->params->n_stages + stage];
        sl_sim_path_t *arrival =
            &(is_second ? cell->values : cell->parts)[bucket];

        *arrival = *sl_sim_later(arrival, &exchange->tail);
        sl_sim_wake(sim, cell, SL_SIM_WAIT_EXCHANGE, index, arrival->at_us);
    }
}

/* The cell's part of a bucket goes to all other replicas, one message each. */
static void post(sl_sim_t *sim, const sl_sim_cell_t *cell, int bucket,
                 int is_second, const sl_sim_path_t *path)
{
    const int index = exchange_index(sim, cell->stage, bucket, is_second);
    const double bytes = chunk_bytes(sim, cell, bucket);
    const struct {
        int n, device;
    } peers[] = {{cell->n_near, cell->near}, {cell->n_far, cell->far}};
    sl_sim_exchange_t *exchange = &sim->exchanges[index];
    sl_sim_flight_t flight;
    int is_far;

    exchange->tail = *sl_sim_later(&exchange->tail, path);
    for (is_far = 0; is_far < 2; is_far++) {
        const int n = peers[is_far].n;

        if (n == 0) {
            continue;
        }
        sl_sim_send(sim, cell->device, peers[is_far].device, bytes * n, n, path,
                    &flight);
        exchange->tail = *sl_sim_later(&exchange->tail, &flight.tail);
        if (!exchange->has_first[is_far]) {
            exchange->has_first[is_far] = 1;
            exchange->first[is_far] = flight.head;
            exchange->n_awaited++;
            sl_sim_push(sim, flight.head.at_us, SL_SIM_EVENT_EXCHANGE, -1,
                        2 * index + is_far);
        }
    }
    exchange->n_posted++;
    open_exchange(sim, index);
}

/* The first byte is there: each member's link is asked for all that comes to
 * it. That it cannot end before the last byte was sent is seen to later. */
void sl_sim_exchange(sl_sim_t *sim, int index, int is_far)
{
    sl_sim_exchange_t *exchange = &sim->exchanges[index];
    const int is_second = index % 2, bucket = index / 2 % sim->max_buckets;
    const int stage = index / 2 / sim->max_buckets;
    int r;

    for (r = 0; r < sim->params->n_replicas; r++) {
        sl_sim_cell_t *cell = &sim->cells[r * sim->params->n_stages + stage];
        sl_sim_path_t *arrival =
            &(is_second ? cell->values : cell->parts)[bucket];
        const int n = is_far ? cell->n_far : cell->n_near;
        sl_sim_flight_t flight = {.head = exchange->first[is_far],
                                  .tail = exchange->first[is_far]};

        if (n > 0) {
            sl_sim_arrive(sim, cell->device, is_far,
                          chunk_bytes(sim, cell, bucket) * n, n, &flight);
            *arrival = *sl_sim_later(arrival, &flight.tail);
        }
    }
    exchange->n_awaited--;
    open_exchange(sim, index);
}

void sl_sim_announce_buckets(sl_sim_t *sim, const sl_sim_cell_t *cell,
                             double backward_us)
{
    int b;

    for (b = 0; b < cell->work->n_buckets; b++) {
        const sl_sim_bucket_t *bucket = &cell->work->buckets[b];

        if (!bucket->waits_tie) {
            sl_sim_push(sim,
                        cell->last_backward.at_us + bucket->ready * backward_us,
                        SL_SIM_EVENT_BUCKET, cell->number, b);
        }
    }
}

void sl_sim_bucket(sl_sim_t *sim, const sl_sim_cell_t *cell, int bucket)
{
    sl_sim_path_t path = cell->last_backward;

    sl_sim_spend(&path, SL_SIM_BACKWARD,
                 cell->work->buckets[bucket].ready *
                     (cell->work->backward_us /
                      sim->devices[cell->device].group->speed));
    post(sim, cell, bucket, 0, &path);
}

/* ---- ties ---- */

static int stage_of(const sl_sim_t *sim, int layer)
{
    int k = 0;

    while (layer >= sim->params->cuts[k + 1]) {
        k++;
    }
    return k;
}

static int mail_index(const sl_sim_t *sim, const sl_sim_cell_t *cell, int tie,
                      int is_value)
{
    return (cell->replica * sim->params->n_ties + tie) * 2 + is_value;
}

static void send_mail(sl_sim_t *sim, const sl_sim_cell_t *cell, int to_stage,
                      int index)
{
    const sl_sim_cell_t *to =
        &sim->cells[cell->number + to_stage - cell->stage];
    sl_sim_mail_t *mail = &sim->mail[index];
    const int tie = index / 2 % sim->params->n_ties;

    sl_sim_send(sim, cell->device, to->device,
                (double)sim->params->ties[tie].bytes, 1, &cell->path,
                &mail->flight);
    mail->from_device = cell->device;
    sl_sim_push(sim, mail->flight.head.at_us, SL_SIM_EVENT_TIE, to->number,
                index);
}

void sl_sim_tie_head(sl_sim_t *sim, sl_sim_cell_t *cell, int index)
{
    sl_sim_mail_t *mail = &sim->mail[index];
    const int tie = index / 2 % sim->params->n_ties;

    if (mail->from_device != cell->device) {
        sl_sim_arrive(sim, cell->device,
                      sl_sim_is_far(sim, mail->from_device, cell->device),
                      (double)sim->params->ties[tie].bytes, 1, &mail->flight);
    }
    mail->is_there = 1;
    sl_sim_wake(sim, cell, SL_SIM_WAIT_MAIL, index, mail->flight.tail.at_us);
}

/* Wait for what is on its way, then let the device work on it. @return 0: the
 * cell is blocked; 1: call again; 2: done */
static int work_on(sl_sim_t *sim, sl_sim_cell_t *cell,
                   const sl_sim_path_t *arrival, sl_sim_part_t part, double us)
{
    if (cell->is_working) {
        cell->is_working = 0;
        return 2;
    }
    if (arrival != NULL && sl_sim_wait_for(cell, arrival)) {
        return 1;
    }
    cell->is_working = 1;
    if (part != SL_SIM_COPY || !sim->params->has_free_links) {
        sl_sim_occupy(sim, cell, part, us);
    }
    return 1;
}

static void next_phase(sl_sim_cell_t *cell, sl_sim_phase_t phase)
{
    cell->phase = phase;
    cell->cursor = 0;
}

/* One tie: gradients from the user to the owner, or values back. */
static int tie_step(sl_sim_t *sim, sl_sim_cell_t *cell, int is_value)
{
    const sl_sim_tie_t *tie = &sim->params->ties[cell->cursor];
    const int index = mail_index(sim, cell, cell->cursor, is_value);
    const int owner = stage_of(sim, tie->owner_layer);
    const int user = stage_of(sim, tie->user_layer);
    const int from = is_value ? owner : user, to = is_value ? user : owner;
    int state = 2;

    if (owner != user && cell->stage == from) {
        send_mail(sim, cell, to, index);
    } else if (owner != user && cell->stage == to) {
        if (!sim->mail[index].is_there) {
            return sl_sim_block(cell, SL_SIM_WAIT_MAIL, index);
        }
        state = work_on(
            sim, cell, &sim->mail[index].flight.tail,
            is_value ? SL_SIM_COPY : SL_SIM_SUM,
            sl_sim_memory_us(sim, cell,
                             (is_value ? 2.0 : 3.0) * (double)tie->bytes));
    }
    cell->cursor += state == 2;
    return 1;
}

static int ties_step(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    int b;

    if (cell->cursor < sim->params->n_ties) {
        return tie_step(sim, cell, 0);
    }
    for (b = 0; b < cell->work->n_buckets; b++) {
        if (cell->work->buckets[b].waits_tie) {
            post(sim, cell, b, 0, &cell->path);
        }
    }
    next_phase(cell, SL_SIM_PHASE_SUM);
    return 1;
}

/* ---- sums, update, values ---- */

/* Whether the sum of a bucket, or the new values, travel to all. */
static int travels(const sl_sim_t *sim, const sl_sim_cell_t *cell, int is_value)
{
    return cell->work->n_buckets > 0 && sim->params->is_sharded == is_value;
}

static int sum_step(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    const int b = cell->cursor;
    int index;

    if (b == cell->work->n_buckets) {
        next_phase(cell, travels(sim, cell, 0) ? SL_SIM_PHASE_SUMMED
                                               : SL_SIM_PHASE_MEET);
        return 1;
    }
    index = exchange_index(sim, cell->stage, b, 0);
    if (!sim->exchanges[index].is_open) {
        return sl_sim_block(cell, SL_SIM_WAIT_EXCHANGE, index);
    }
    /* R parts are read, one is written */
    if (work_on(sim, cell, &cell->parts[b], SL_SIM_SUM,
                sl_sim_memory_us(sim, cell,
                                 chunk_bytes(sim, cell, b) *
                                     (sim->params->n_replicas + 1))) == 2) {
        if (travels(sim, cell, 0)) {
            post(sim, cell, b, 1, &cell->path);
        }
        cell->cursor++;
    }
    return 1;
}

/* What the other owners sent is copied to its place. */
static int collect_step(sl_sim_t *sim, sl_sim_cell_t *cell,
                        sl_sim_phase_t after)
{
    const int b = cell->cursor;
    int index;

    if (b == cell->work->n_buckets) {
        next_phase(cell, after);
        return 1;
    }
    index = exchange_index(sim, cell->stage, b, 1);
    if (!sim->exchanges[index].is_open) {
        return sl_sim_block(cell, SL_SIM_WAIT_EXCHANGE, index);
    }
    cell->cursor +=
        work_on(sim, cell, &cell->values[b], SL_SIM_COPY,
                sl_sim_memory_us(sim, cell,
                                 2.0 * chunk_bytes(sim, cell, b) *
                                     (sim->params->n_replicas - 1))) == 2;
    return 1;
}

static int meet_step(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    int c;

    if (cell->cursor == 0) {
        cell->cursor = 1;
        sim->n_met++;
        sim->met = *sl_sim_later(&sim->met, &cell->path);
        if (sim->n_met == sim->n_cells) {
            sl_sim_spend(&sim->met, SL_SIM_MEET, sim->meet_us);
            for (c = 0; c < sim->n_cells; c++) {
                sl_sim_wake(sim, &sim->cells[c], SL_SIM_WAIT_MEETING, 0,
                            sim->met.at_us);
            }
        }
    }
    if (sim->n_met < sim->n_cells) {
        return sl_sim_block(cell, SL_SIM_WAIT_MEETING, 0);
    }
    (void)sl_sim_wait_for(cell, &sim->met);
    next_phase(cell, SL_SIM_PHASE_UPDATE);
    return 1;
}

static int update_step(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    const double traffic = sl_sim_update_traffic(sim->params);
    const int is_sharded = travels(sim, cell, 1);
    const int n = is_sharded ? cell->work->n_buckets : 1;
    double bytes;

    if (cell->cursor == n) {
        next_phase(cell,
                   is_sharded ? SL_SIM_PHASE_VALUES : SL_SIM_PHASE_TIED_VALUES);
        return 1;
    }
    bytes = is_sharded ? chunk_bytes(sim, cell, cell->cursor)
                       : cell->work->update_bytes;
    if (work_on(sim, cell, NULL, SL_SIM_UPDATE,
                sl_sim_memory_us(sim, cell, traffic * bytes)) == 2) {
        if (is_sharded) {
            post(sim, cell, cell->cursor, 1, &cell->path);
        }
        cell->cursor++;
    }
    return 1;
}

static int tied_values_step(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    if (cell->cursor < sim->params->n_ties) {
        return tie_step(sim, cell, 1);
    }
    next_phase(cell, SL_SIM_PHASE_DONE);
    sim->n_done++;
    sim->end = *sl_sim_later(&sim->end, &cell->path);
    return 1;
}

int sl_sim_update_step(sl_sim_t *sim, sl_sim_cell_t *cell)
{
    switch (cell->phase) {
    case SL_SIM_PHASE_TIES:
        return ties_step(sim, cell);
    case SL_SIM_PHASE_SUM:
        return sum_step(sim, cell);
    case SL_SIM_PHASE_SUMMED:
        return collect_step(sim, cell, SL_SIM_PHASE_MEET);
    case SL_SIM_PHASE_MEET:
        return meet_step(sim, cell);
    case SL_SIM_PHASE_UPDATE:
        return update_step(sim, cell);
    case SL_SIM_PHASE_VALUES:
        return collect_step(sim, cell, SL_SIM_PHASE_TIED_VALUES);
    case SL_SIM_PHASE_TIED_VALUES:
        return tied_values_step(sim, cell);
    case SL_SIM_PHASE_LIST:
    case SL_SIM_PHASE_DONE:
        break;
    }
    return 1;
}
