/* SPDX-License-Identifier: Apache-2.0 */
/* The batch's rows into device memory. Where the device has loads, those of a
 * pass run beside the ops of the pass before it. They come into two landings by
 * turns, so that none waits for an op that still reads the one before, and are
 * queued behind the ops of that pass, so that none of these waits for them; the
 * pass itself copies them to where its values lie. A stage takes the landings
 * when a job begins, next to what stays, so that all else lies as it would
 * without them, and only when there is room to spare. Should memory be short
 * all the same, it gives them up. */
#include <string.h>

#include "engine/engine_internal.h"

static const int inputs[SL_BATCH_TENSORS] = {SL_INPUT_TARGET, SL_INPUT_DATA};

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

static sl_status_t copy_rows(const sl_pass_t *pass, int value, void *to,
                             uint64_t after)
{
    const sl_copy_args_t copy = {.dst = to,
                                 .src = rows_of(pass, value),
                                 .bytes =
                                     sl_tensor_bytes(&pass->set->descs[value])};

    return sl_staging_load(pass->stage, &copy, after, pass->span);
}

/* ---- landings ---- */

/* Where tensor i lands for the next pass that reads the batch. */
static void *landing_of(const sl_ahead_t *ahead, int i)
{
    const sl_mem_block_t *block = ahead->blocks[i];

    return (char *)block->ptr + (ahead->turn % 2) * (block->bytes / 2);
}

static void release(sl_ahead_t *ahead)
{
    int i;

    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        sl_mem_release(ahead->blocks[i]);
        ahead->blocks[i] = NULL;
    }
    ahead->is_loaded = 0;
}

static int has_landings(const sl_ahead_t *ahead)
{
    int i, n = 0;

    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        n += ahead->blocks[i] != NULL;
    }
    return n > 0;
}

/* Only then can a stage that finds no room give up all that was taken. */
static int is_alone(const sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    int k, n = 0;

    for (k = 0; k < engine->n_cells; k++) {
        n += engine->stages[k].device == stage->device;
    }
    return n == 1;
}

/* Two landings of each tensor that the stage reads. */
static size_t landing_bytes(const sl_stage_t *stage, int i)
{
    return 2 * sl_staging_bytes(stage, inputs[i]);
}

/* Whether there is room to spare, by what a job without landings took under
 * the same limit: an eighth more, for blocks may lie less well. */
static int has_room(const sl_stage_t *stage)
{
    const sl_ahead_t *ahead = &stage->ahead;
    size_t need = ahead->peak_bytes + ahead->peak_bytes / 8;
    int i;

    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        need += landing_bytes(stage, i);
    }
    return stage->n_micro > 0 && !ahead->is_short && ahead->peak_bytes > 0 &&
           need <= ahead->limit_bytes;
}

static void take(sl_stage_t *stage)
{
    sl_ahead_t *ahead = &stage->ahead;
    int i;

    for (i = 0; i < SL_BATCH_TENSORS && !ahead->is_short; i++) {
        const size_t bytes = landing_bytes(stage, i);

        ahead->is_short =
            bytes > 0 &&
            sl_mem_alloc(stage->device->mem, SL_MEM_CLASS_ACTIVATION, bytes,
                         &ahead->blocks[i]) < 0;
    }
    if (ahead->is_short) {
        release(ahead);
    }
}

sl_status_t sl_loads_begin(sl_stage_t *stage)
{
    sl_ahead_t *ahead = &stage->ahead;
    sl_mem_stats_t stats;

    if (sl_device_has_loads(stage->device) && is_alone(stage)) {
        sl_mem_stats(stage->device->mem, &stats);
        if (stats.limit_bytes != ahead->limit_bytes) {
            ahead->limit_bytes = stats.limit_bytes;
            ahead->peak_bytes = 0;
            ahead->is_short = 0;
        }
        if (has_room(stage)) {
            take(stage);
        }
        ahead->has_landed = has_landings(ahead);
    }
    return sl_staging_reserve(stage);
}

void sl_loads_measure(sl_stage_t *stage)
{
    sl_ahead_t *ahead = &stage->ahead;
    sl_mem_stats_t stats;

    if (ahead->limit_bytes > 0 && !ahead->has_landed &&
        stage->engine->job == SL_JOB_TRAIN) {
        sl_mem_stats(stage->device->mem, &stats);
        if (stats.total_peak_bytes > ahead->peak_bytes) {
            ahead->peak_bytes = stats.total_peak_bytes;
        }
    }
}

void sl_loads_end(sl_stage_t *stage)
{
    release(&stage->ahead);
}

int sl_loads_give_up(sl_stage_t *stage)
{
    sl_ahead_t *ahead = &stage->ahead;
    const int had = has_landings(ahead);

    release(ahead);
    ahead->is_short = ahead->is_short || had;
    return had;
}

void sl_loads_forget(sl_stage_t *stage)
{
    release(&stage->ahead);
    stage->ahead.limit_bytes = 0; /* anew */
}

/* ---- a pass ---- */

static int is_read(const sl_pass_t *pass, int value)
{
    return pass->step.is_recompute ? pass->set->live.needed[value]
                                   : pass->set->live.last_use[value] >= 0;
}

static sl_status_t give(const sl_pass_t *pass, int i)
{
    const int value = sl_stage_value(pass->stage, inputs[i]);
    const size_t bytes = sl_tensor_bytes(&pass->set->descs[value]);
    const sl_ahead_t *ahead = &pass->stage->ahead;
    sl_ref_t **value_p = &pass->micro->values[value];
    sl_status_t status;

    if (!ahead->is_loaded) {
        SL_TRY(status, check_rows(pass, value), out);
    }
    SL_TRY(status,
           sl_ref_create(pass->stage, SL_MEM_CLASS_ACTIVATION, bytes, value_p),
           out);
    /* unless the landings were given up for this block */
    if (ahead->is_loaded) {
        status = sl_device_copy(pass->stage->device, (*value_p)->block->ptr,
                                landing_of(ahead, i), bytes, pass->span);
    } else {
        /* which the latest op may have used */
        status = copy_rows(pass, value, (*value_p)->block->ptr, 0);
    }
out:
    return status;
}

sl_status_t sl_loads_give(const sl_pass_t *pass)
{
    sl_ahead_t *ahead = &pass->stage->ahead;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        if (is_read(pass, sl_stage_value(pass->stage, inputs[i]))) {
            SL_TRY(status, give(pass, i), out);
        }
    }
    ahead->is_loaded = 0;
    ahead->turn++;
out:
    return status;
}

/* ---- the next pass ---- */

int sl_loads_look_ahead(sl_stage_t *stage)
{
    if (!has_landings(&stage->ahead)) {
        return 0;
    }
    stage->ahead.after = sl_device_after(stage->device);
    return 1;
}

sl_status_t sl_loads_queue(const sl_pass_t *next)
{
    sl_ahead_t *ahead = &next->stage->ahead;
    sl_status_t status = SL_OK;
    int i;

    if (!has_landings(ahead)) {
        return SL_OK;
    }
    for (i = 0; i < SL_BATCH_TENSORS; i++) {
        const int value = sl_stage_value(next->stage, inputs[i]);

        if (is_read(next, value)) {
            SL_TRY(status, check_rows(next, value), out);
            SL_TRY(status,
                   copy_rows(next, value, landing_of(ahead, i), ahead->after),
                   out);
        }
    }
    ahead->is_loaded = 1;
out:
    return status;
}
