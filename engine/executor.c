/* SPDX-License-Identifier: Apache-2.0 */
/* A stage's executor: a thread that follows the stage's instructions. It
 * submits ops and waits for other stages; it decides nothing. */
#include <stdlib.h>
#include <string.h>

#include "engine/parallel/parallel.h"
#include "engine/world.h"

typedef struct sl_run {
    sl_stage_t *stage;
    const sl_instruction_list_t *list;
    sl_op_span_t *spans; /**< NULL: not traced */
    int is_training;
} sl_run_t;

static int first_backward(const sl_stage_t *stage)
{
    return stage->engine->params.backward_order == SL_BACKWARD_LIFO
               ? stage->n_micro - 1
               : 0;
}

static void schedule_params(const sl_stage_t *stage,
                            sl_schedule_params_t *params)
{
    const sl_engine_t *engine = stage->engine;

    params->kind = engine->params.schedule;
    params->order = engine->params.backward_order;
    params->recompute = engine->recompute;
    params->n_stages = engine->n_stages;
    params->n_micro_batches = stage->n_micro;
}

/* ---- room for n micro-batches ---- */

static sl_status_t micro_state_init(sl_stage_t *stage, sl_micro_state_t *micro)
{
    const size_t n_values = (size_t)stage->n_values;
    const size_t n_layers = (size_t)stage->n_layers;
    sl_status_t status;
    void **room = calloc(4 * n_values + n_layers, sizeof(void *));

    if (room == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for a micro-batch's records",
                stage->index);
    }
    micro->values = (sl_ref_t **)room;
    micro->stash = micro->values + n_values;
    micro->kept = micro->stash + n_values;
    micro->grads = micro->kept + n_values;
    micro->saved = (sl_mem_block_t **)(room + 4 * n_values);
    return SL_OK;
out:
    return status;
}

static sl_status_t make_room(sl_stage_t *stage, int n_micro)
{
    const int n_loans = n_micro * (stage->n_exports + stage->n_imports);
    sl_status_t status = SL_OK;

    if (n_micro > stage->n_micro_states) {
        sl_micro_state_t *micro =
            realloc(stage->micro, (size_t)n_micro * sizeof(*micro));

        if (micro == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "stage %d: no host memory for %d micro-batches",
                    stage->index, n_micro);
        }
        stage->micro = micro;
        while (stage->n_micro_states < n_micro) {
            SL_TRY(status,
                   micro_state_init(stage, &micro[stage->n_micro_states]), out);
            stage->n_micro_states++;
        }
    }
    if (n_loans > stage->loans_room) {
        sl_loan_t *loans =
            realloc(stage->loans, (size_t)n_loans * sizeof(*loans));

        if (loans == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "stage %d: no host memory for %d transfers", stage->index,
                    n_loans);
        }
        stage->loans = loans;
        stage->loans_room = n_loans;
    }
out:
    return status;
}

/* ---- transfers ---- */

/* Loans end at fixed points of the program and not when the receiver happens
 * to have taken them: so memory use is the same in every run, and a rehearsal
 * predicts it. */

static void end_loan(sl_stage_t *stage, int i)
{
    sl_ref_drop(stage, &stage->loans[i].ref);
    stage->n_loans--;
    for (; i < stage->n_loans; i++) {
        stage->loans[i] = stage->loans[i + 1];
    }
}

/* The oldest loan of a channel whose slots are all lent; -1: there are
 * others. */
static int loan_to_end(const sl_stage_t *stage, const sl_channel_t *channel)
{
    int i, oldest = -1, n = 0;

    for (i = stage->n_loans - 1; i >= 0; i--) {
        if (stage->loans[i].channel == channel) {
            oldest = i;
            n++;
        }
    }
    return n < channel->n_slots ? -1 : oldest;
}

static sl_status_t lend(const sl_pass_t *pass, sl_channel_t *channel,
                        sl_ref_t **ref_p, int value)
{
    sl_stage_t *stage = pass->stage;
    const int m = pass->m;
    const int oldest = loan_to_end(stage, channel);
    sl_status_t status;

    if (oldest >= 0) {
        SL_TRY(status, sl_channel_wait_taken(channel, stage->loans[oldest].m),
               out);
        end_loan(stage, oldest);
    }
    SL_TRY(status,
           sl_channel_send(channel, stage->device->ops, m, (*ref_p)->block->ptr,
                           sl_tensor_bytes(&pass->set->descs[value])),
           out);
    stage->loans[stage->n_loans].ref = *ref_p;
    stage->loans[stage->n_loans].channel = channel;
    stage->loans[stage->n_loans].m = m;
    stage->n_loans++;
    *ref_p = NULL;
out:
    return status;
}

/* A gradient of micro-batch m has come from a later stage, so that stage has
 * taken all the forward results that its program takes before that. */
static sl_status_t end_forward_loans(sl_stage_t *stage, sl_channel_t *forward,
                                     int m)
{
    const sl_engine_t *engine = stage->engine;
    const int last = engine->params.schedule == SL_SCHEDULE_1F1B
                         ? m + engine->n_stages - 1 - forward->to_stage
                         : stage->n_micro - 1;
    sl_status_t status = SL_OK;
    int i = 0;

    while (i < stage->n_loans) {
        if (stage->loans[i].channel == forward && stage->loans[i].m <= last) {
            SL_TRY(status, sl_channel_wait_taken(forward, stage->loans[i].m),
                   out);
            end_loan(stage, i);
        } else {
            i++;
        }
    }
out:
    return status;
}

static sl_status_t receive(const sl_pass_t *pass, sl_channel_t *channel,
                           sl_mem_class_t mem_class, int value,
                           sl_ref_t **ref_p)
{
    const size_t bytes = sl_tensor_bytes(&pass->set->descs[value]);
    const int m = pass->m;
    sl_status_t status;

    SL_TRY(status, sl_channel_wait(channel, m), out);
    SL_TRY(status, sl_ref_create(pass->stage, mem_class, bytes, ref_p), out);
    status = sl_channel_receive(channel, pass->stage->device->ops, m,
                                (*ref_p)->block->ptr, bytes, pass->span);
out:
    return status;
}

static sl_status_t receive_forward(const sl_pass_t *pass)
{
    const sl_stage_t *stage = pass->stage;
    sl_status_t status = SL_OK;
    int e;

    for (e = 0; e < stage->n_imports; e++) {
        const int v = stage->imports[e].value;

        SL_TRY(status,
               receive(pass, stage->imports[e].forward,
                       pass->step.is_training ? SL_MEM_CLASS_STASH
                                              : SL_MEM_CLASS_ACTIVATION,
                       v, &pass->micro->values[v]),
               out);
    }
out:
    return status;
}

static sl_status_t send_forward(const sl_pass_t *pass)
{
    const sl_stage_t *stage = pass->stage;
    sl_status_t status = SL_OK;
    int e;

    for (e = 0; e < stage->n_exports; e++) {
        const int v = stage->exports[e].value;

        SL_TRY(
            status,
            lend(pass, stage->exports[e].forward, &pass->micro->values[v], v),
            out);
    }
out:
    return status;
}

static sl_status_t receive_backward(const sl_pass_t *pass)
{
    sl_stage_t *stage = pass->stage;
    sl_status_t status = SL_OK;
    int e;

    for (e = 0; e < stage->n_exports; e++) {
        const sl_stage_edge_t *edge = &stage->exports[e];

        if (edge->backward != NULL) {
            SL_TRY(status, sl_channel_wait(edge->backward, pass->m), out);
            SL_TRY(status, end_forward_loans(stage, edge->forward, pass->m),
                   out);
            SL_TRY(status,
                   receive(pass, edge->backward, SL_MEM_CLASS_ACTIVATION,
                           edge->value, &pass->micro->grads[edge->value]),
                   out);
        }
    }
out:
    return status;
}

static sl_status_t send_backward(const sl_pass_t *pass)
{
    const sl_stage_t *stage = pass->stage;
    sl_status_t status = SL_OK;
    int e;

    for (e = 0; e < stage->n_imports; e++) {
        const int v = stage->imports[e].value;

        if (stage->imports[e].backward != NULL) {
            SL_TRY(status,
                   lend(pass, stage->imports[e].backward,
                        &pass->micro->grads[v], v),
                   out);
        }
    }
out:
    return status;
}

/* ---- instructions ---- */

static sl_status_t pass_init(const sl_run_t *run, size_t i, sl_pass_t *pass)
{
    sl_stage_t *stage = run->stage;
    const sl_engine_t *engine = stage->engine;
    const int m = run->list->items[i].micro_batch;
    const int of_all = stage->first_micro + m;
    const int64_t rows =
        sl_split_rows(engine->batch->rows, engine->n_micro, of_all, NULL);
    const int first = first_backward(stage);
    sl_schedule_params_t params;

    schedule_params(stage, &params);
    memset(pass, 0, sizeof(*pass));
    pass->stage = stage;
    pass->micro = &stage->micro[m];
    pass->span = run->spans == NULL ? NULL : &run->spans[i];
    pass->m = m;
    pass->first_row =
        sl_split_first(engine->batch->rows, engine->n_micro, of_all);
    pass->step.seed = engine->params.seed;
    pass->step.step = engine->n_steps;
    pass->step.micro_batch = (uint32_t)of_all;
    pass->step.is_training = run->is_training;
    pass->step.is_recompute =
        run->list->items[i].kind == SL_INSTRUCTION_RECOMPUTE;
    pass->step.is_first_forward = m == 0;
    pass->step.is_first_backward = m == first;
    pass->is_last_backward =
        run->is_training && m == (first == 0 ? stage->n_micro - 1 : 0);
    pass->step.loss_scale = engine->loss_scale;
    pass->is_stashed = run->is_training && !pass->step.is_recompute &&
                       sl_schedule_is_recomputed(&params, m);
    pass->keeps = run->is_training && !pass->is_stashed;
    return sl_plan_set_get(stage, rows, run->is_training, &pass->set);
}

static sl_status_t execute(const sl_run_t *run, size_t i)
{
    sl_pass_t pass;
    sl_status_t status;

    if (run->list->items[i].kind == SL_INSTRUCTION_UPDATE) {
        return sl_stage_update(run->stage);
    }
    SL_TRY(status, pass_init(run, i, &pass), out);
    switch (run->list->items[i].kind) {
    case SL_INSTRUCTION_FORWARD:
    case SL_INSTRUCTION_RECOMPUTE:
        return sl_pass_forward(&pass);
    case SL_INSTRUCTION_BACKWARD:
        return sl_pass_backward(&pass);
    case SL_INSTRUCTION_RECV_FORWARD:
        return receive_forward(&pass);
    case SL_INSTRUCTION_SEND_FORWARD:
        return send_forward(&pass);
    case SL_INSTRUCTION_RECV_BACKWARD:
        return receive_backward(&pass);
    case SL_INSTRUCTION_SEND_BACKWARD:
        return send_backward(&pass);
    case SL_INSTRUCTION_UPDATE:
        break;
    }
out:
    return status;
}

static sl_status_t run_list(const sl_run_t *run)
{
    sl_engine_t *engine = run->stage->engine;
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; i < run->list->n; i++) {
        if (sl_abort_is_set(&engine->abort)) {
            return SL_ERR_CANCELED;
        }
        SL_TRY(status, execute(run, i), out);
    }
    /* an update has agreed already */
    status = run->is_training ? sl_stage_meet(run->stage)
                              : sl_stage_agree(run->stage);
out:
    return status;
}

/* Everything that was sent has left. Within a process that follows from all
 * being here. */
static sl_status_t settle_loans(const sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < stage->n_loans; i++) {
        SL_TRY(
            status,
            sl_channel_wait_taken(stage->loans[i].channel, stage->loans[i].m),
            out);
    }
out:
    return status;
}

sl_status_t sl_stage_meet(sl_stage_t *stage)
{
    sl_engine_t *engine = stage->engine;
    sl_status_t status;

    SL_TRY(status, sl_device_drain(stage->device), out);
    SL_TRY(status, settle_loans(stage), out);
    if (engine->dry == NULL) {
        SL_TRY(status, sl_barrier_wait(&engine->barrier, &engine->abort), out);
    }
    /* when all have met, everything that was sent was taken */
    sl_stage_release_loans(stage);
out:
    return status;
}

/* ---- jobs ---- */

/* A replica that a small batch leaves without work takes part in the update
 * only. */
static sl_status_t idle_list(const sl_stage_t *stage,
                             sl_instruction_list_t *list)
{
    sl_status_t status;

    list->items = calloc(1, sizeof(*list->items));
    if (list->items == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for instructions", stage->index);
    }
    list->items[0].kind = SL_INSTRUCTION_UPDATE;
    list->items[0].micro_batch = -1;
    list->n = 1;
    return SL_OK;
out:
    return status;
}

static sl_status_t train_list(sl_stage_t *stage)
{
    sl_schedule_params_t params;
    sl_status_t status = SL_OK;

    if (stage->list_micro == stage->n_micro + 1) {
        return SL_OK;
    }
    schedule_params(stage, &params);
    sl_schedule_cleanup(&stage->train_list);
    free(stage->spans);
    stage->spans = NULL;
    stage->list_micro = 0;
    SL_TRY(status,
           stage->n_micro == 0 ? idle_list(stage, &stage->train_list)
                               : sl_schedule_generate(&params, stage->index,
                                                      &stage->train_list),
           out);
    stage->spans = calloc(stage->train_list.n + 1, sizeof(*stage->spans));
    if (stage->spans == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for a timeline", stage->index);
    }
    stage->list_micro = stage->n_micro + 1;
out:
    return status;
}

sl_status_t sl_executor_prepare(sl_stage_t *stage)
{
    sl_status_t status;

    SL_TRY(status, make_room(stage, stage->n_micro), out);
    SL_TRY(status, train_list(stage), out);
    memset(stage->spans, 0, stage->train_list.n * sizeof(*stage->spans));
    sl_reduce_begin(stage);
out:
    return status;
}

static sl_run_t training_run(sl_stage_t *stage)
{
    const sl_run_t run = {.stage = stage,
                          .list = &stage->train_list,
                          .spans = stage->spans,
                          .is_training = 1};

    return run;
}

sl_status_t sl_executor_step_one(sl_stage_t *stage, size_t i)
{
    const sl_run_t run = training_run(stage);

    return execute(&run, i);
}

static int all_are_ready(const sl_stage_edge_t *edges, int n, int m,
                         int is_backward)
{
    int e;

    for (e = 0; e < n; e++) {
        sl_channel_t *channel =
            is_backward ? edges[e].backward : edges[e].forward;

        if (channel != NULL && !sl_channel_is_ready(channel, m)) {
            return 0;
        }
    }
    return 1;
}

static int all_have_a_slot(const sl_stage_t *stage,
                           const sl_stage_edge_t *edges, int n, int is_backward)
{
    int e;

    for (e = 0; e < n; e++) {
        sl_channel_t *channel =
            is_backward ? edges[e].backward : edges[e].forward;
        const int i = channel == NULL ? -1 : loan_to_end(stage, channel);

        if (i >= 0 && !sl_channel_is_taken(channel, stage->loans[i].m)) {
            return 0;
        }
    }
    return 1;
}

int sl_executor_would_wait(const sl_stage_t *stage, size_t i)
{
    const sl_instruction_t *item = &stage->train_list.items[i];

    switch (item->kind) {
    case SL_INSTRUCTION_RECV_FORWARD:
        return !all_are_ready(stage->imports, stage->n_imports,
                              item->micro_batch, 0);
    case SL_INSTRUCTION_RECV_BACKWARD:
        return !all_are_ready(stage->exports, stage->n_exports,
                              item->micro_batch, 1);
    case SL_INSTRUCTION_SEND_FORWARD:
        return !all_have_a_slot(stage, stage->exports, stage->n_exports, 0);
    case SL_INSTRUCTION_SEND_BACKWARD:
        return !all_have_a_slot(stage, stage->imports, stage->n_imports, 1);
    case SL_INSTRUCTION_FORWARD:
    case SL_INSTRUCTION_RECOMPUTE:
    case SL_INSTRUCTION_BACKWARD:
    case SL_INSTRUCTION_UPDATE:
        break;
    }
    return 0;
}

static sl_status_t run_training(sl_stage_t *stage)
{
    sl_run_t run;
    sl_status_t status;

    SL_TRY(status, sl_executor_prepare(stage), out);
    run = training_run(stage);
    status = run_list(&run);
out:
    return status;
}

/* Forward only: the same for every schedule. */
static sl_status_t evaluation_list(sl_stage_t *stage)
{
    const int n = stage->n_micro;
    const sl_instruction_kind_t kinds[] = {SL_INSTRUCTION_RECV_FORWARD,
                                           SL_INSTRUCTION_FORWARD,
                                           SL_INSTRUCTION_SEND_FORWARD};
    sl_instruction_t *items;
    sl_status_t status;
    int i;

    if (stage->eval_list_micro == n + 1) {
        return SL_OK;
    }
    items = calloc(3 * (size_t)n + 1, sizeof(*items));
    if (items == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for instructions", stage->index);
    }
    for (i = 0; i < 3 * n; i++) {
        items[i].kind = kinds[i % 3];
        items[i].micro_batch = i / 3;
    }
    sl_schedule_cleanup(&stage->eval_list);
    stage->eval_list.items = items;
    stage->eval_list.n = 3 * (size_t)n;
    stage->eval_list_micro = n + 1;
    return SL_OK;
out:
    return status;
}

static sl_status_t run_evaluation(sl_stage_t *stage)
{
    sl_run_t run = {.stage = stage, .list = &stage->eval_list};
    sl_status_t status;

    SL_TRY(status, make_room(stage, stage->n_micro), out);
    SL_TRY(status, evaluation_list(stage), out);
    status = run_list(&run);
out:
    return status;
}

static void run_job(sl_stage_t *stage)
{
    sl_engine_t *engine = stage->engine;
    sl_status_t status;
    int d;

    status = engine->job == SL_JOB_TRAIN ? run_training(stage)
                                         : run_evaluation(stage);
    if (status < 0 && status != SL_ERR_CANCELED) {
        sl_abort_raise(&engine->abort, status);
        sl_world_abort(engine->params.world, status, sl_last_error());
    }
    /* what is queued is dropped, also behind a peer that waits for a device
     * that is suspended; never before the failure itself is on record */
    for (d = 0; status < 0 && sl_abort_is_set(&engine->abort) &&
                d < engine->params.devices->n_devices;
         d++) {
        sl_op_manager_cancel(engine->params.devices->devices[d].ops);
    }
    if (status < 0) {
        /* nothing of ours may still run when the caller hears of it */
        (void)!sl_device_drain(stage->device);
    }
}

void *sl_executor_main(void *arg)
{
    sl_stage_t *stage = arg;
    uint64_t seen = 0;

    for (;;) {
        sl_gate_enter(&stage->engine->gate, &seen);
        if (stage->engine->job == SL_JOB_END) {
            sl_gate_leave(&stage->engine->gate);
            return NULL;
        }
        run_job(stage);
        sl_gate_leave(&stage->engine->gate);
    }
}
