/* SPDX-License-Identifier: Apache-2.0 */
/* The batch's rows into device memory. Where the device has loads, those of a
 * pass run beside the ops of the pass before it: their memory is taken before
 * these ops are submitted, so that none of them uses it, and they are queued
 * behind them, so that none of them waits. What is taken ahead costs memory
 * for one pass more; where there is none it is not taken, or given up. */
#include <string.h>

#include "engine/engine_internal.h"

/* ---- one tensor ---- */

/* Whether its layers can take these values of the batch, where their kernels
 * do not look themselves. */
static sl_status_t check_input(const sl_pass_t *pass, int value,
                               const void *rows)
{
    sl_status_t status = SL_OK;
    int l, i;

    for (l = 0; l < pass->stage->n_layers; l++) {
        const sl_stage_layer_t *layer = &pass->stage->layers[l];
        const sl_layer_plan_t *plan = &pass->set->plans[l];

        if (layer->layer->ops->kernels[plan->kind]->checks_input) {
            continue;
        }
        for (i = 0; i < layer->layer->n_inputs; i++) {
            if (layer->inputs[i] == value) {
                SL_TRY(status, sl_layer_check_input(plan, i, rows), out);
            }
        }
    }
out:
    return status;
}

/* The batch's rows of this micro-batch; NULL in a rehearsal, whose batch has
 * no contents. */
static const void *rows_of(const sl_pass_t *pass, int value)
{
    const sl_batch_t *batch = pass->stage->engine->batch;
    const int is_data = pass->stage->value_layer[value] == SL_INPUT_DATA;
    const size_t bytes = sl_tensor_bytes(&pass->set->descs[value]);
    const char *rows = is_data ? batch->data : (const void *)batch->target;

    return rows == NULL ? NULL
                        : rows + bytes / (size_t)pass->set->rows *
                                     (size_t)pass->first_row;
}

static sl_status_t check_rows(const sl_pass_t *pass, int value)
{
    const void *rows = rows_of(pass, value);

    return rows == NULL || pass->step.is_recompute
               ? SL_OK
               : check_input(pass, value, rows);
}

static sl_status_t copy_rows(const sl_pass_t *pass, int value,
                             const sl_mem_block_t *block, uint64_t after)
{
    const sl_copy_args_t copy = {.dst = block->ptr,
                                 .src = rows_of(pass, value),
                                 .bytes =
                                     sl_tensor_bytes(&pass->set->descs[value])};

    return sl_staging_load(pass->stage, &copy, after, pass->span);
}

static sl_status_t load_now(const sl_pass_t *pass, int value)
{
    sl_ref_t **value_p = &pass->micro->values[value];
    sl_status_t status;

    SL_TRY(status, check_rows(pass, value), out);
    SL_TRY(status,
           sl_ref_create(pass->stage, SL_MEM_CLASS_ACTIVATION,
                         sl_tensor_bytes(&pass->set->descs[value]), value_p),
           out);
    /* the block may be one that the latest op has used */
    status = copy_rows(pass, value, (*value_p)->block, 0);
out:
    return status;
}

/* ---- all of a pass ---- */

static int value_of(const sl_stage_t *stage, int i)
{
    return stage->n_values - 1 - i;
}

static int is_read(const sl_pass_t *pass, int value)
{
    return pass->step.is_recompute ? pass->set->live.needed[value]
                                   : pass->set->live.last_use[value] >= 0;
}

/* Only then can a stage that finds no room give up all that was taken ahead. */
static int is_alone(const sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    int k, n = 0;

    for (k = 0; k < engine->n_cells; k++) {
        n += engine->stages[k].device == stage->device;
    }
    return n == 1;
}

sl_status_t sl_loads_begin(sl_stage_t *stage)
{
    sl_ahead_t *ahead = &stage->ahead;
    sl_mem_stats_t stats;

    if (sl_device_has_loads(stage->device)) {
        sl_mem_stats(stage->device->mem, &stats);
        ahead->has_no_room =
            ahead->has_no_room && ahead->limit_bytes == stats.limit_bytes;
        ahead->limit_bytes = stats.limit_bytes;
        ahead->is_on = is_alone(stage);
    }
    return sl_staging_reserve(stage);
}

sl_status_t sl_loads_give(const sl_pass_t *pass)
{
    sl_stage_t *stage = pass->stage;
    sl_ahead_t *ahead = &stage->ahead;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        const int value = value_of(stage, i);

        if (!is_read(pass, value)) {
            continue;
        }
        if (ahead->blocks[i] == NULL) {
            SL_TRY(status, load_now(pass, value), out);
            continue;
        }
        SL_TRY(
            status,
            sl_ref_adopt(stage, ahead->blocks[i], &pass->micro->values[value]),
            out);
        ahead->blocks[i] = NULL;
    }
out:
    return status;
}

/* ---- ahead ---- */

int sl_loads_look_ahead(const sl_stage_t *stage)
{
    return stage->ahead.is_on && !stage->ahead.has_no_room;
}

/* While something lies on the host, memory is worth more than time. */
static int has_overflow(const sl_stage_t *stage)
{
    sl_mem_stats_t stats;

    sl_mem_stats(stage->device->mem, &stats);
    return stats.host_used_bytes > 0;
}

void sl_loads_take(const sl_pass_t *next)
{
    sl_stage_t *stage = next->stage;
    sl_ahead_t *ahead = &stage->ahead;
    int i;

    if (has_overflow(stage)) {
        return;
    }
    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        const int value = value_of(stage, i);

        if (is_read(next, value) &&
            sl_mem_alloc(stage->device->mem, SL_MEM_CLASS_ACTIVATION,
                         sl_tensor_bytes(&next->set->descs[value]),
                         &ahead->blocks[i]) < 0) {
            (void)sl_loads_drop(stage);
            /* the device was waited for: not again under this limit */
            ahead->has_no_room = 1;
            return;
        }
    }
    ahead->after = sl_device_after(stage->device);
}

sl_status_t sl_loads_queue(const sl_pass_t *next)
{
    const sl_ahead_t *ahead = &next->stage->ahead;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        const int value = value_of(next->stage, i);

        if (ahead->blocks[i] != NULL) {
            SL_TRY(status, check_rows(next, value), out);
            SL_TRY(status,
                   copy_rows(next, value, ahead->blocks[i], ahead->after), out);
        }
    }
out:
    return status;
}

int sl_loads_drop(sl_stage_t *stage)
{
    sl_ahead_t *ahead = &stage->ahead;
    int i, n = 0;

    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        n += ahead->blocks[i] != NULL;
        sl_mem_release(ahead->blocks[i]);
        ahead->blocks[i] = NULL;
    }
    ahead->has_no_room = ahead->has_no_room || n > 0;
    return n > 0;
}

void sl_loads_forget(sl_stage_t *stage)
{
    (void)sl_loads_drop(stage);
    stage->ahead.has_no_room = 0;
}
