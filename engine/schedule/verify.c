/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier: each stage's list on its own, then all of them together in
 * simulated time. */
#include <stdlib.h>

#include "engine/schedule/schedule.h"
#include "engine/schedule/schedule_internal.h"

/* What a micro-batch has been through on a stage, one bit an instruction. */
#define DONE(kind) (1u << (unsigned)(kind))

typedef struct checker {
    const sl_schedule_params_t *params;
    const sl_instruction_list_t *list;
    int stage;
    unsigned *done; /* per micro-batch */
    int n_forwards, n_backwards;
} checker_t;

/* Instructions that must come before `kind`, on a stage of this place. */
static unsigned needed_before(const checker_t *checker,
                              sl_instruction_kind_t kind, int micro_batch)
{
    const sl_schedule_params_t *params = checker->params;
    const int is_first = checker->stage == 0;
    const int is_last = checker->stage == params->n_stages - 1;
    unsigned needed = 0;

    switch (kind) {
    case SL_INSTRUCTION_FORWARD:
        return is_first ? 0 : DONE(SL_INSTRUCTION_RECV_FORWARD);
    case SL_INSTRUCTION_RECOMPUTE:
    case SL_INSTRUCTION_SEND_FORWARD:
        return DONE(SL_INSTRUCTION_FORWARD);
    case SL_INSTRUCTION_BACKWARD:
        needed = DONE(SL_INSTRUCTION_FORWARD);
        needed |= is_last ? 0 : DONE(SL_INSTRUCTION_RECV_BACKWARD);
        needed |= sl_schedule_is_recomputed(params, micro_batch)
                      ? DONE(SL_INSTRUCTION_RECOMPUTE)
                      : 0;
        return needed;
    case SL_INSTRUCTION_SEND_BACKWARD:
        return DONE(SL_INSTRUCTION_BACKWARD);
    case SL_INSTRUCTION_RECV_FORWARD:
    case SL_INSTRUCTION_RECV_BACKWARD:
    case SL_INSTRUCTION_UPDATE:
        break;
    }
    return 0;
}

/* All that a micro-batch goes through on a stage of this place. */
static unsigned needed_at_end(const checker_t *checker, int micro_batch)
{
    const int is_first = checker->stage == 0;
    const int is_last = checker->stage == checker->params->n_stages - 1;
    unsigned needed =
        needed_before(checker, SL_INSTRUCTION_FORWARD, micro_batch) |
        needed_before(checker, SL_INSTRUCTION_BACKWARD, micro_batch) |
        DONE(SL_INSTRUCTION_BACKWARD);

    needed |= is_first ? 0 : DONE(SL_INSTRUCTION_SEND_BACKWARD);
    needed |= is_last ? 0 : DONE(SL_INSTRUCTION_SEND_FORWARD);
    return needed;
}

/* The reason why an instruction is wrong at this place, or NULL. */
static const char *wrong_because(const checker_t *checker,
                                 const sl_instruction_t *item)
{
    const sl_schedule_params_t *params = checker->params;
    const int m = item->micro_batch;
    const int n = params->n_micro_batches;
    unsigned done, needed;

    if ((unsigned)item->kind >= (unsigned)SL_INSTRUCTION_UPDATE || m < 0 ||
        m >= n) {
        return "there is no such instruction";
    }
    done = checker->done[m];
    needed = needed_before(checker, item->kind, m);
    if ((needed_at_end(checker, m) & DONE(item->kind)) == 0) {
        return "this stage does not need it";
    }
    if ((done & DONE(item->kind)) != 0) {
        return "it is there twice";
    }
    if ((done & needed) != needed) {
        return "what it needs does not come before it";
    }
    if (item->kind == SL_INSTRUCTION_RECOMPUTE &&
        (done & DONE(SL_INSTRUCTION_BACKWARD)) != 0) {
        return "the backward came before it";
    }
    if (item->kind == SL_INSTRUCTION_FORWARD && m != checker->n_forwards) {
        return "forwards are not in rising order";
    }
    if (item->kind == SL_INSTRUCTION_BACKWARD &&
        m != (params->order == SL_BACKWARD_FIFO
                  ? checker->n_backwards
                  : n - 1 - checker->n_backwards)) {
        return "backwards are not in the order asked";
    }
    if (item->kind == SL_INSTRUCTION_FORWARD &&
        checker->n_forwards - checker->n_backwards >=
            sl_schedule_max_in_flight(params, checker->stage)) {
        return "more micro-batches are in flight than the schedule promises";
    }
    return NULL;
}

static sl_status_t check_items(checker_t *checker)
{
    const size_t n = checker->list->n;
    sl_status_t status = SL_OK;
    size_t i;

    if (n == 0 || checker->list->items[n - 1].kind != SL_INSTRUCTION_UPDATE) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "schedule: stage %d does not end with the update",
                checker->stage);
    }
    for (i = 0; i < n - 1; i++) {
        const sl_instruction_t *item = &checker->list->items[i];
        const char *reason = wrong_because(checker, item);

        if (reason != NULL) {
            char text[SL_INSTRUCTION_TEXT_BYTES];

            sl_instruction_format(item, text);
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "schedule: stage %d, instruction %zu of %zu, %s: %s",
                    checker->stage, i, n, text, reason);
        }
        checker->done[item->micro_batch] |= DONE(item->kind);
        checker->n_forwards += item->kind == SL_INSTRUCTION_FORWARD;
        checker->n_backwards += item->kind == SL_INSTRUCTION_BACKWARD;
    }
out:
    return status;
}

static sl_status_t check_list(const sl_schedule_params_t *params, int stage,
                              const sl_instruction_list_t *list)
{
    checker_t checker = {.params = params, .list = list, .stage = stage};
    sl_status_t status;
    int m;

    checker.done =
        calloc((size_t)params->n_micro_batches, sizeof(*checker.done));
    if (checker.done == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "schedule: no host memory for %d micro-batches",
                params->n_micro_batches);
    }
    SL_TRY(status, check_items(&checker), out_free);
    for (m = 0; m < params->n_micro_batches; m++) {
        if (checker.done[m] != needed_at_end(&checker, m)) {
            SL_FAIL(status, SL_ERR_CORRUPT, out_free,
                    "schedule: stage %d leaves out a part of micro-batch %d",
                    stage, m);
        }
    }
out_free:
    free(checker.done);
out:
    return status;
}

/* ---- all stages together ---- */

/* What goes from one stage to a neighbour. */
typedef struct edge {
    int *micro_batches;  /* in the order of the sends */
    double *ready_us;    /* when a receive may take it */
    double *received_us; /* when it was taken */
    int n_sent, n_received;
} edge_t;

typedef struct simulation {
    const sl_schedule_params_t *params;
    const sl_instruction_list_t *lists;
    const sl_schedule_times_t *times;
    edge_t *edges;      /* 2 a boundary: forward, backward */
    int *micro_batches; /* the edges' arrays */
    double *edge_us;
    size_t *next;     /* per stage: the instruction it is at */
    double *clock_us; /* per stage */
    int *is_offered;  /* per stage: its send is on offer (rendezvous) */
} simulation_t;

static edge_t *edge_of(const simulation_t *sim, int stage,
                       sl_instruction_kind_t kind)
{
    switch (kind) {
    case SL_INSTRUCTION_SEND_FORWARD:
        return &sim->edges[2 * stage];
    case SL_INSTRUCTION_RECV_FORWARD:
        return &sim->edges[2 * (stage - 1)];
    case SL_INSTRUCTION_SEND_BACKWARD:
        return &sim->edges[2 * (stage - 1) + 1];
    case SL_INSTRUCTION_RECV_BACKWARD:
        return &sim->edges[2 * stage + 1];
    case SL_INSTRUCTION_FORWARD:
    case SL_INSTRUCTION_RECOMPUTE:
    case SL_INSTRUCTION_BACKWARD:
    case SL_INSTRUCTION_UPDATE:
        break;
    }
    return NULL;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* @return whether the send is over */
static int run_send(simulation_t *sim, int stage, edge_t *edge, int micro_batch)
{
    const int n_slots = sim->times->n_slots;
    double *clock_us = &sim->clock_us[stage];

    if (sim->is_offered[stage]) {
        if (edge->n_received < edge->n_sent) {
            return 0;
        }
        sim->is_offered[stage] = 0;
        *clock_us = edge->received_us[edge->n_sent - 1];
        return 1;
    }
    if (n_slots > 0) {
        const int freed_by = edge->n_sent - n_slots;

        if (freed_by >= edge->n_received) {
            return 0;
        }
        if (freed_by >= 0) {
            *clock_us = later(*clock_us, edge->received_us[freed_by]);
        }
    }
    edge->micro_batches[edge->n_sent] = micro_batch;
    edge->ready_us[edge->n_sent++] = *clock_us;
    sim->is_offered[stage] = n_slots == 0;
    return n_slots > 0;
}

/* @return whether the receive is over; *is_wrong_p when it took another
 * micro-batch */
static int run_receive(simulation_t *sim, int stage, edge_t *edge,
                       int micro_batch, int *is_wrong_p)
{
    double *clock_us = &sim->clock_us[stage];
    const int i = edge->n_received;

    if (i >= edge->n_sent) {
        return 0;
    }
    *clock_us = later(*clock_us, edge->ready_us[i]);
    edge->received_us[i] = *clock_us;
    edge->n_received++;
    *is_wrong_p = edge->micro_batches[i] != micro_batch;
    return 1;
}

/* Run a stage until it waits. @return 0 when it took a wrong micro-batch */
static int run_stage(simulation_t *sim, int stage)
{
    const sl_instruction_list_t *list = &sim->lists[stage];
    int is_over = 1, is_wrong = 0;

    while (is_over && sim->next[stage] < list->n) {
        const sl_instruction_t *item = &list->items[sim->next[stage]];
        edge_t *edge = edge_of(sim, stage, item->kind);

        switch (item->kind) {
        case SL_INSTRUCTION_FORWARD:
        case SL_INSTRUCTION_RECOMPUTE:
            sim->clock_us[stage] += sim->times->forward_us;
            break;
        case SL_INSTRUCTION_BACKWARD:
            sim->clock_us[stage] += sim->times->backward_us;
            break;
        case SL_INSTRUCTION_SEND_FORWARD:
        case SL_INSTRUCTION_SEND_BACKWARD:
            is_over = run_send(sim, stage, edge, item->micro_batch);
            break;
        case SL_INSTRUCTION_RECV_FORWARD:
        case SL_INSTRUCTION_RECV_BACKWARD:
            is_over =
                run_receive(sim, stage, edge, item->micro_batch, &is_wrong);
            break;
        case SL_INSTRUCTION_UPDATE:
            break;
        }
        if (is_wrong) {
            return 0;
        }
        sim->next[stage] += is_over ? 1 : 0;
    }
    return 1;
}

static void stage_place(const simulation_t *sim, int stage, char *text)
{
    sl_instruction_format(&sim->lists[stage].items[sim->next[stage]], text);
}

/* A stage that waits, and the neighbour that it waits for, waits too. */
static sl_status_t report_deadlock(const simulation_t *sim)
{
    char text[SL_INSTRUCTION_TEXT_BYTES] = "", other[sizeof(text)] = "its end";
    sl_status_t status;
    sl_instruction_kind_t kind;
    int stage = 0, peer;

    while (sim->next[stage] >= sim->lists[stage].n) {
        stage++;
    }
    stage_place(sim, stage, text);
    kind = sim->lists[stage].items[sim->next[stage]].kind;
    peer = kind == SL_INSTRUCTION_SEND_FORWARD ||
                   kind == SL_INSTRUCTION_RECV_BACKWARD
               ? stage + 1
               : stage - 1;
    if (sim->next[peer] < sim->lists[peer].n) {
        stage_place(sim, peer, other);
    }
    SL_FAIL(status, SL_ERR_CORRUPT, out,
            "schedule: deadlock: stage %d waits at instruction %zu of %zu, "
            "%s, for stage %d, which is at %s; edges hold %d tensors",
            stage, sim->next[stage], sim->lists[stage].n, text, peer, other,
            sim->times->n_slots);
out:
    return status;
}

static sl_status_t run_all(simulation_t *sim)
{
    const int n_stages = sim->params->n_stages;
    sl_status_t status = SL_OK;
    int stage, n_moved, n_done;

    do {
        n_moved = 0;
        n_done = 0;
        for (stage = 0; stage < n_stages; stage++) {
            const size_t before = sim->next[stage];
            const int was_offered = sim->is_offered[stage];

            if (!run_stage(sim, stage)) {
                char text[SL_INSTRUCTION_TEXT_BYTES];

                stage_place(sim, stage, text);
                SL_FAIL(status, SL_ERR_CORRUPT, out,
                        "schedule: stage %d, instruction %zu of %zu, %s: its "
                        "neighbour sends another micro-batch at this place",
                        stage, sim->next[stage], sim->lists[stage].n, text);
            }
            n_moved += sim->next[stage] != before ||
                       sim->is_offered[stage] != was_offered;
            n_done += sim->next[stage] == sim->lists[stage].n;
        }
    } while (n_moved > 0 && n_done < n_stages);
    if (n_done < n_stages) {
        status = report_deadlock(sim);
    }
out:
    return status;
}

static void simulation_cleanup(simulation_t *sim)
{
    free(sim->edges);
    free(sim->micro_batches);
    free(sim->edge_us);
    free(sim->next);
    free(sim->clock_us);
    free(sim->is_offered);
}

static sl_status_t simulation_init(simulation_t *sim)
{
    const size_t n_stages = (size_t)sim->params->n_stages;
    const size_t n = (size_t)sim->params->n_micro_batches;
    const size_t n_edges = 2 * n_stages; /* two more than there are */
    sl_status_t status = SL_OK;
    size_t i;

    sim->edges = calloc(n_edges, sizeof(*sim->edges));
    sim->micro_batches = calloc(n_edges, n * sizeof(*sim->micro_batches));
    sim->edge_us = calloc(n_edges, 2 * n * sizeof(*sim->edge_us));
    sim->next = calloc(n_stages, sizeof(*sim->next));
    sim->clock_us = calloc(n_stages, sizeof(*sim->clock_us));
    sim->is_offered = calloc(n_stages, sizeof(*sim->is_offered));
    if (sim->edges == NULL || sim->micro_batches == NULL ||
        sim->edge_us == NULL || sim->next == NULL || sim->clock_us == NULL ||
        sim->is_offered == NULL) {
        simulation_cleanup(sim);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "schedule: no host memory to simulate %zu stages", n_stages);
    }
    for (i = 0; i < n_edges; i++) {
        sim->edges[i].micro_batches = sim->micro_batches + i * n;
        sim->edges[i].ready_us = sim->edge_us + 2 * i * n;
        sim->edges[i].received_us = sim->edge_us + (2 * i + 1) * n;
    }
out:
    return status;
}

sl_status_t sl_schedule_simulate(const sl_schedule_params_t *params,
                                 const sl_instruction_list_t *lists,
                                 const sl_schedule_times_t *times,
                                 double *makespan_p)
{
    simulation_t sim = {.params = params, .lists = lists, .times = times};
    double makespan_us = 0.0;
    sl_status_t status;
    int stage;

    SL_TRY(status, sl_schedule_params_check(params), out);
    for (stage = 0; stage < params->n_stages; stage++) {
        SL_TRY(status, check_list(params, stage, &lists[stage]), out);
    }
    SL_TRY(status, simulation_init(&sim), out);
    SL_TRY(status, run_all(&sim), out_cleanup);
    for (stage = 0; stage < params->n_stages; stage++) {
        makespan_us = later(makespan_us, sim.clock_us[stage]);
    }
    if (makespan_p != NULL) {
        *makespan_p = makespan_us;
    }
out_cleanup:
    simulation_cleanup(&sim);
out:
    return status;
}

sl_status_t sl_schedule_verify(const sl_schedule_params_t *params,
                               const sl_instruction_list_t *lists,
                               double forward_us, double backward_us,
                               double *makespan_p)
{
    const sl_schedule_times_t times = {
        .forward_us = forward_us,
        .backward_us = backward_us,
        .n_slots = params->kind == SL_SCHEDULE_GPIPE ? 0 : 1};

    return sl_schedule_simulate(params, lists, &times, makespan_p);
}
