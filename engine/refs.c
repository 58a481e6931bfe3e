/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a stage, and blocks with several holders within it. */
#include <stdlib.h>

#include "engine/engine_internal.h"

sl_status_t sl_stage_alloc(sl_stage_t *stage, sl_mem_class_t c, size_t bytes,
                           sl_mem_block_t **block_p)
{
    sl_status_t status = sl_mem_alloc(stage->device->mem, c, bytes, block_p);

    if (status == SL_ERR_QUOTA && sl_loads_give_up(stage)) {
        status = sl_mem_alloc(stage->device->mem, c, bytes, block_p);
    }
    if (status == SL_ERR_QUOTA && stage->engine->dry != NULL) {
        /* a rehearsal notes it and goes on, to say how much would do */
        sl_dry_lift_limit(stage->engine, stage->device);
        status = sl_mem_alloc(stage->device->mem, c, bytes, block_p);
    }
    return status;
}

sl_status_t sl_ref_create(sl_stage_t *stage, sl_mem_class_t c, size_t bytes,
                          sl_ref_t **ref_p)
{
    sl_ref_t *ref = stage->free_refs;
    sl_status_t status;

    if (ref != NULL) {
        stage->free_refs = ref->next_free;
    } else {
        ref = calloc(1, sizeof(*ref));
        if (ref == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "stage %d: no host memory for a tensor record",
                    stage->index);
        }
    }
    SL_TRY(status, sl_stage_alloc(stage, c, bytes, &ref->block), err_free);
    ref->n_refs = 1;
    ref->next_free = NULL;
    *ref_p = ref;
    return SL_OK;

err_free:
    ref->next_free = stage->free_refs;
    stage->free_refs = ref;
out:
    return status;
}

sl_ref_t *sl_ref_share(sl_ref_t *ref)
{
    ref->n_refs++;
    return ref;
}

void sl_ref_drop(sl_stage_t *stage, sl_ref_t **ref_p)
{
    sl_ref_t *ref = *ref_p;

    *ref_p = NULL;
    if (ref == NULL || --ref->n_refs > 0) {
        return;
    }
    sl_mem_release(ref->block);
    ref->block = NULL;
    ref->next_free = stage->free_refs;
    stage->free_refs = ref;
}
