/* SPDX-License-Identifier: Apache-2.0 */
/* Generation of a stage's list: a generator's compute order, with transfers
 * and recomputations placed around it. */
#include "engine/schedule/schedule.h"

#include <stdlib.h>

#include "engine/schedule/schedule_internal.h"

/* rf F sf R rb B sb */
enum {
    MAX_PER_MICRO_BATCH = 7
};

static void add(sl_schedule_builder_t *builder, sl_instruction_kind_t kind,
                int micro_batch)
{
    sl_instruction_t *item = &builder->list.items[builder->list.n++];

    item->kind = kind;
    item->micro_batch = micro_batch;
}

void sl_schedule_add_forward(sl_schedule_builder_t *builder, int micro_batch)
{
    if (builder->stage > 0) {
        add(builder, SL_INSTRUCTION_RECV_FORWARD, micro_batch);
    }
    add(builder, SL_INSTRUCTION_FORWARD, micro_batch);
    if (builder->stage < builder->params->n_stages - 1) {
        add(builder, SL_INSTRUCTION_SEND_FORWARD, micro_batch);
    }
}

void sl_schedule_add_backward(sl_schedule_builder_t *builder, int micro_batch)
{
    if (sl_schedule_is_recomputed(builder->params, micro_batch)) {
        add(builder, SL_INSTRUCTION_RECOMPUTE, micro_batch);
    }
    if (builder->stage < builder->params->n_stages - 1) {
        add(builder, SL_INSTRUCTION_RECV_BACKWARD, micro_batch);
    }
    add(builder, SL_INSTRUCTION_BACKWARD, micro_batch);
    if (builder->stage > 0) {
        add(builder, SL_INSTRUCTION_SEND_BACKWARD, micro_batch);
    }
}

sl_status_t sl_schedule_params_check(const sl_schedule_params_t *params)
{
    sl_status_t status = SL_OK;

    if (params->kind != SL_SCHEDULE_GPIPE && params->kind != SL_SCHEDULE_1F1B) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "schedule: kind %d is none of " SL_SCHEDULE_CHOICES,
                (int)params->kind);
    }
    if (params->order != SL_BACKWARD_FIFO &&
        params->order != SL_BACKWARD_LIFO) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "schedule: backward order %d is none of " SL_BACKWARD_CHOICES,
                (int)params->order);
    }
    if (params->recompute != SL_RECOMPUTE_NONE &&
        params->recompute != SL_RECOMPUTE_FULL &&
        params->recompute != SL_RECOMPUTE_EXCEPT_LAST &&
        params->recompute != SL_RECOMPUTE_AUTO) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "schedule: recompute %d is none of " SL_RECOMPUTE_CHOICES,
                (int)params->recompute);
    }
    if (params->kind == SL_SCHEDULE_1F1B && params->order == SL_BACKWARD_LIFO) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "schedule: 1f1b runs its backwards first in, first out; "
                "backward order lifo needs schedule gpipe");
    }
    if (params->n_stages < 1) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "schedule: %d stages asked; at least 1 is needed",
                params->n_stages);
    }
    if (params->n_micro_batches < 1) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "schedule: %d micro-batches asked; at least 1 is needed",
                params->n_micro_batches);
    }
out:
    return status;
}

int sl_schedule_is_recomputed(const sl_schedule_params_t *params,
                              int micro_batch)
{
    switch (params->recompute) {
    case SL_RECOMPUTE_NONE:
        return 0;
    case SL_RECOMPUTE_FULL:
    case SL_RECOMPUTE_AUTO:
        return 1;
    case SL_RECOMPUTE_EXCEPT_LAST:
        return micro_batch != params->n_micro_batches - 1;
    }
    return 0;
}

int sl_schedule_max_in_flight(const sl_schedule_params_t *params, int stage)
{
    const int n = params->n_micro_batches;
    const int n_ahead = params->n_stages - stage;

    return params->kind == SL_SCHEDULE_1F1B && n_ahead < n ? n_ahead : n;
}

sl_status_t sl_schedule_generate(const sl_schedule_params_t *params, int stage,
                                 sl_instruction_list_t *list_p)
{
    sl_schedule_builder_t builder = {.params = params, .stage = stage};
    sl_status_t status;

    SL_TRY(status, sl_schedule_params_check(params), out);
    if (stage < 0 || stage >= params->n_stages) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "schedule: stage %d asked; there are stages 0 to %d", stage,
                params->n_stages - 1);
    }
    builder.list.items =
        calloc((size_t)params->n_micro_batches * MAX_PER_MICRO_BATCH + 1,
               sizeof(*builder.list.items));
    if (builder.list.items == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "schedule: no host memory for %d micro-batches",
                params->n_micro_batches);
    }
    switch (params->kind) {
    case SL_SCHEDULE_GPIPE:
        sl_schedule_order_gpipe(&builder);
        break;
    case SL_SCHEDULE_1F1B:
        sl_schedule_order_1f1b(&builder);
        break;
    }
    add(&builder, SL_INSTRUCTION_UPDATE, -1);
    *list_p = builder.list;
out:
    return status;
}

void sl_schedule_cleanup(sl_instruction_list_t *list)
{
    free(list->items);
    list->items = NULL;
    list->n = 0;
}
