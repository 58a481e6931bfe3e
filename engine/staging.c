/* SPDX-License-Identifier: Apache-2.0 */
/* A batch's rows on their way to a device that copies only pinned memory
 * beside the host's work: through a few slots of such memory. A slot is filled
 * again when the load out of it has run, so an executor is at most so many
 * tensors ahead of its device. */
#include <string.h>

#include "engine/engine_internal.h"

static int loads(const sl_stage_t *stage, int input)
{
    int l, i;

    for (l = 0; l < stage->n_layers; l++) {
        for (i = 0; i < stage->layers[l].layer->n_inputs; i++) {
            if (stage->layers[l].layer->inputs[i] == input) {
                return 1;
            }
        }
    }
    return 0;
}

size_t sl_staging_bytes(const sl_stage_t *stage, int input)
{
    const sl_engine_t *engine = stage->engine;
    const sl_model_t *model = engine->params.model;
    sl_tensor_desc_t desc =
        input == SL_INPUT_DATA ? model->data : model->target;
    size_t bytes;

    if (!loads(stage, input)) {
        return 0;
    }
    desc.dims[0] = sl_split_rows(engine->batch->rows, engine->n_micro, 0, NULL);
    bytes = sl_tensor_bytes(&desc);
    return (bytes + SL_MEM_ALIGN_BYTES - 1) / SL_MEM_ALIGN_BYTES *
           SL_MEM_ALIGN_BYTES;
}

sl_status_t sl_staging_reserve(sl_stage_t *stage)
{
    sl_staging_t *staging = &stage->staging;
    sl_status_t status = SL_OK;
    void *memory = NULL;
    size_t bytes;

    staging->n_used = 0;
    if (!sl_device_has_host_memory(stage->device)) {
        return SL_OK;
    }
    bytes = sl_staging_bytes(stage, SL_INPUT_DATA);
    if (sl_staging_bytes(stage, SL_INPUT_TARGET) > bytes) {
        bytes = sl_staging_bytes(stage, SL_INPUT_TARGET);
    }
    if (bytes <= staging->slot_bytes) {
        return SL_OK;
    }
    SL_TRY(
        status,
        sl_device_host_alloc(stage->device, SL_STAGING_SLOTS * bytes, &memory),
        out);
    sl_staging_cleanup(stage);
    staging->memory = memory;
    staging->slot_bytes = bytes;
out:
    return status;
}

void sl_staging_cleanup(sl_stage_t *stage)
{
    sl_device_host_release(stage->device, stage->staging.memory);
    memset(&stage->staging, 0, sizeof(stage->staging));
}

sl_status_t sl_staging_load(sl_stage_t *stage, const sl_copy_args_t *copy,
                            uint64_t after, sl_op_span_t *span)
{
    sl_staging_t *staging = &stage->staging;
    const uint64_t slot = staging->n_used % SL_STAGING_SLOTS;
    sl_copy_args_t args = *copy;
    sl_status_t status;
    char *at;

    if (staging->memory == NULL) {
        return sl_device_copy(stage->device, copy->dst, copy->src, copy->bytes,
                              span);
    }
    SL_ASSERT(copy->bytes <= staging->slot_bytes);
    if (staging->n_used >= SL_STAGING_SLOTS) {
        SL_TRY(status,
               sl_op_manager_wait(stage->device->ops, staging->tickets[slot],
                                  UINT64_MAX),
               out);
    }
    at = (char *)staging->memory + slot * staging->slot_bytes;
    memcpy(at, copy->src, copy->bytes);
    args.src = at;
    SL_TRY(status,
           sl_device_load(stage->device, &args, after, &staging->tickets[slot]),
           out);
    staging->n_used++;
out:
    return status;
}
