/* SPDX-License-Identifier: Apache-2.0 */
/* A stage's executor: a thread that follows the stage's instructions. It
 * submits ops and waits for other stages; it decides nothing. */
#include <stdlib.h>
#include <string.h>

#include "engine/parallel/parallel.h"
#include "engine/transfers.h"
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
    pass->step.loss_scale = engine->loss_scale * (float)engine->scale.factor;
    pass->is_stashed = run->is_training && !pass->step.is_recompute &&
                       sl_schedule_is_recomputed(&params, m);
    pass->keeps = run->is_training && !pass->is_stashed;
    return sl_plan_set_get(stage, rows, run->is_training, &pass->set);
}

/* Equal for passes that queue the same work: a device may launch that at
 * once. */
static uint32_t section_of(const sl_run_t *run, const sl_pass_t *pass,
                           sl_instruction_kind_t kind)
{
    const sl_stage_t *stage = run->stage;
    const sl_engine_t *engine = stage->engine;
    const int64_t most =
        sl_split_rows(engine->batch->rows, engine->n_micro, 0, NULL);
    uint32_t section = (uint32_t)stage->cell + 1;

    section = section * 16 + (uint32_t)kind;
    section = section * 2 + (uint32_t)run->is_training;
    section = section * 2 + (uint32_t)(pass->set->rows == most);
    section = section * 2 + (uint32_t)pass->step.is_first_forward;
    section = section * 2 + (uint32_t)pass->step.is_first_backward;
    return section * 2 + (uint32_t)pass->is_last_backward;
}

static int reads_batch(sl_instruction_kind_t kind)
{
    return kind == SL_INSTRUCTION_FORWARD || kind == SL_INSTRUCTION_RECOMPUTE;
}

/* Whether the instruction from `i` on that computes next may read the batch. */
static int find_reader(const sl_run_t *run, size_t i, size_t *reader_p)
{
    for (; i < run->list->n; i++) {
        const sl_instruction_kind_t kind = run->list->items[i].kind;

        if (reads_batch(kind)) {
            *reader_p = i;
            return 1;
        }
        if (kind == SL_INSTRUCTION_BACKWARD || kind == SL_INSTRUCTION_UPDATE) {
            return 0;
        }
    }
    return 0;
}

static int is_last_reader(const sl_run_t *run, size_t i)
{
    for (i++; i < run->list->n; i++) {
        if (reads_batch(run->list->items[i].kind)) {
            return 0;
        }
    }
    return 1;
}

static sl_status_t submit(const sl_run_t *run, size_t i, const sl_pass_t *pass)
{
    const sl_instruction_kind_t kind = run->list->items[i].kind;
    sl_device_t *device = run->stage->device;
    sl_status_t status = SL_OK;

    sl_device_section_begin(device, section_of(run, pass, kind));
    if (reads_batch(kind)) {
        SL_TRY(status, sl_loads_give(pass), out);
        if (is_last_reader(run, i)) {
            sl_loads_end(run->stage);
        }
    }
    status = kind == SL_INSTRUCTION_BACKWARD ? sl_pass_backward(pass)
                                             : sl_pass_forward(pass);
out:
    sl_device_section_end(device);
    return status;
}

/* What the next pass reads of the batch is loaded beside this one. */
static sl_status_t compute(const sl_run_t *run, size_t i, const sl_pass_t *pass)
{
    sl_status_t status;
    sl_pass_t next;
    size_t reader;

    if (!sl_loads_look_ahead(run->stage) || !find_reader(run, i + 1, &reader)) {
        return submit(run, i, pass);
    }
    SL_TRY(status, submit(run, i, pass), out);
    SL_TRY(status, pass_init(run, reader, &next), out);
    status = sl_loads_queue(&next);
out:
    return status;
}

/* The same for the first pass, which waits for another stage. */
static sl_status_t load_first(const sl_run_t *run)
{
    sl_status_t status = SL_OK;
    sl_pass_t first;
    size_t reader;

    if (sl_loads_look_ahead(run->stage) && find_reader(run, 0, &reader)) {
        SL_TRY(status, pass_init(run, reader, &first), out);
        status = sl_loads_queue(&first);
    }
out:
    return status;
}

static sl_status_t execute(const sl_run_t *run, size_t i)
{
    const sl_instruction_kind_t kind = run->list->items[i].kind;
    sl_pass_t pass;
    sl_status_t status;

    if (kind == SL_INSTRUCTION_UPDATE) {
        return sl_stage_update(run->stage);
    }
    SL_TRY(status, pass_init(run, i, &pass), out);
    switch (kind) {
    case SL_INSTRUCTION_FORWARD:
    case SL_INSTRUCTION_RECOMPUTE:
    case SL_INSTRUCTION_BACKWARD:
        return compute(run, i, &pass);
    case SL_INSTRUCTION_RECV_FORWARD:
        if (i == 0) {
            SL_TRY(status, load_first(run), out);
        }
        return sl_receive_forward(&pass);
    case SL_INSTRUCTION_SEND_FORWARD:
        return sl_send_forward(&pass);
    case SL_INSTRUCTION_RECV_BACKWARD:
        return sl_receive_backward(&pass);
    case SL_INSTRUCTION_SEND_BACKWARD:
        return sl_send_backward(&pass);
    case SL_INSTRUCTION_UPDATE:
        break;
    }
out:
    return status;
}

/* A number for each place where a device may run out of ops. */
static uint32_t position(const sl_run_t *run, size_t i)
{
    const sl_stage_t *stage = run->stage;
    const int cell = stage->replica * stage->engine->n_stages + stage->index;
    const uint32_t list = 2 * (uint32_t)cell + (uint32_t)run->is_training;

    return (list << 16) + (uint32_t)i + 1;
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
        sl_op_manager_mark(run->stage->device->ops, position(run, i));
        SL_TRY(status, execute(run, i), out);
    }
    sl_op_manager_mark(run->stage->device->ops, position(run, run->list->n));
    /* an update has agreed already */
    status = run->is_training ? sl_stage_meet(run->stage)
                              : sl_stage_agree(run->stage);
out:
    return status;
}

sl_status_t sl_stage_meet(sl_stage_t *stage)
{
    sl_engine_t *engine = stage->engine;
    sl_status_t status;

    SL_TRY(status, sl_device_drain(stage->device), out);
    SL_TRY(status, sl_loans_settle(stage), out);
    if (engine->dry == NULL) {
        SL_TRY(status, sl_barrier_wait(&engine->barrier, &engine->abort), out);
    }
    /* when all have met, everything that was sent was taken */
    sl_stage_release_loans(stage);
    sl_loads_measure(stage);
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
    SL_TRY(status, sl_loads_begin(stage), out);
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

int sl_executor_would_wait(const sl_stage_t *stage, size_t i)
{
    const sl_instruction_t *item = &stage->train_list.items[i];

    switch (item->kind) {
    case SL_INSTRUCTION_RECV_FORWARD:
        return !sl_edges_are_ready(stage->imports, stage->n_imports,
                                   item->micro_batch, 0);
    case SL_INSTRUCTION_RECV_BACKWARD:
        return !sl_edges_are_ready(stage->exports, stage->n_exports,
                                   item->micro_batch, 1);
    case SL_INSTRUCTION_SEND_FORWARD:
        return !sl_edges_have_a_slot(stage, stage->exports, stage->n_exports,
                                     0);
    case SL_INSTRUCTION_SEND_BACKWARD:
        return !sl_edges_have_a_slot(stage, stage->imports, stage->n_imports,
                                     1);
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
    SL_TRY(status, sl_loads_begin(stage), out);
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

    sl_device_bind_self(stage->device);
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
