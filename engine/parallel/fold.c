/* SPDX-License-Identifier: Apache-2.0 */
/* ((p0 + p1) + p2) + ...: the same bits on every replica. The sum stays in
 * the block of part 0 until the own part is reached, and then lies there. */
#include "engine/parallel/parallel.h"

static sl_status_t sum(const sl_fold_t *fold, void *to, const void *part)
{
    const sl_sum_args_t args = {.dtype =
                                    fold->is_f64 ? SL_DTYPE_F64 : SL_DTYPE_F32,
                                .out = to,
                                .a = fold->sum,
                                .b = part,
                                .n = fold->n};

    return sl_device_sum(fold->stage->device, &args, NULL);
}

sl_status_t sl_fold_add(sl_fold_t *fold, int i, sl_mem_block_t *part)
{
    const void *from = part == NULL ? fold->own : part->ptr;
    void *to = i < fold->stage->replica ? fold->sum : fold->own;
    sl_status_t status;

    if (i == 0) {
        fold->sum_block = part;
        fold->sum = part == NULL ? fold->own : part->ptr;
        return SL_OK;
    }
    status = sum(fold, to, from);
    sl_mem_release(part);
    if (to == fold->own) {
        sl_fold_cleanup(fold);
    }
    fold->sum = to;
    return status;
}

void sl_fold_cleanup(sl_fold_t *fold)
{
    sl_mem_release(fold->sum_block);
    fold->sum_block = NULL;
}
