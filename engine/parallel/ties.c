/* SPDX-License-Identifier: Apache-2.0 */
/* Tied parameters: gradients from the users to their owner, values back. */
#include "engine/parallel/parallel.h"

static size_t bytes_of(const sl_stage_param_t *param)
{
    return param->desc->storage_bytes;
}

static sl_status_t send_gradient(sl_stage_t *stage, const sl_tie_t *tie)
{
    void *grad = sl_storage_ptr(&tie->user->grad);
    sl_status_t status;

    if (stage->n_micro == 0) {
        SL_TRY(status, sl_device_zero(stage->device, grad, bytes_of(tie->user)),
               out);
    }
    status = sl_channel_send(tie->gradient, stage->device->ops, 0, grad,
                             bytes_of(tie->user));
out:
    return status;
}

static sl_status_t add_gradient(sl_stage_t *stage, const sl_tie_t *tie)
{
    const size_t bytes = bytes_of(tie->owner);
    sl_mem_block_t *copy = NULL;
    sl_status_t status;

    SL_TRY(status, sl_channel_wait(tie->gradient, 0), out);
    SL_TRY(status, sl_stage_alloc(stage, SL_MEM_CLASS_COMM, bytes, &copy), out);
    SL_TRY(status,
           sl_channel_receive(tie->gradient, stage->device->ops, 0, copy->ptr,
                              bytes, NULL),
           out);
    status = sl_device_add(stage->device, sl_storage_ptr(&tie->owner->grad),
                           copy->ptr, bytes / sizeof(float), NULL);
out:
    sl_mem_release(copy);
    return status;
}

sl_status_t sl_ties_collect(sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < engine->n_ties; i++) {
        if (engine->ties[i].user_stage == stage) {
            SL_TRY(status, send_gradient(stage, &engine->ties[i]), out);
        }
    }
    for (i = 0; i < engine->n_ties; i++) {
        if (engine->ties[i].owner_stage == stage) {
            SL_TRY(status, add_gradient(stage, &engine->ties[i]), out);
        }
    }
out:
    return status;
}

sl_status_t sl_ties_spread(sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < engine->n_ties; i++) {
        const sl_tie_t *tie = &engine->ties[i];

        if (tie->owner_stage == stage) {
            SL_TRY(status,
                   sl_channel_send(tie->value, stage->device->ops, 0,
                                   sl_storage_ptr(&tie->owner->value),
                                   bytes_of(tie->owner)),
                   out);
        }
    }
    for (i = 0; i < engine->n_ties; i++) {
        const sl_tie_t *tie = &engine->ties[i];

        if (tie->user_stage == stage) {
            SL_TRY(status, sl_channel_wait(tie->value, 0), out);
            SL_TRY(status,
                   sl_channel_receive(tie->value, stage->device->ops, 0,
                                      sl_storage_ptr(&tie->user->value),
                                      bytes_of(tie->user), NULL),
                   out);
        }
    }
out:
    return status;
}

sl_status_t sl_ties_settle(sl_stage_t *stage, int is_value)
{
    const sl_engine_t *engine = stage->engine;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < engine->n_ties; i++) {
        const sl_tie_t *tie = &engine->ties[i];

        if ((is_value ? tie->owner_stage : tie->user_stage) == stage) {
            SL_TRY(
                status,
                sl_channel_wait_taken(is_value ? tie->value : tie->gradient, 0),
                out);
        }
    }
out:
    return status;
}
