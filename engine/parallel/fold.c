/* SPDX-License-Identifier: Apache-2.0 */
/* ((p0 + p1) + p2) + ...: the same bits on every replica. The sum stays in
 * the memory of part 0, or when that is only lent, in a block of its own,
 * until the own part is reached, and then lies there. */
#include "engine/parallel/parallel.h"

/* A loan ends when the ops so far have run. */
static sl_status_t drop(sl_stage_t *stage, sl_fold_part_t *part)
{
    sl_channel_t *lender = part->lender;

    sl_mem_release(part->block);
    part->block = NULL;
    part->lender = NULL;
    return lender == NULL
               ? SL_OK
               : sl_channel_give_back(lender, stage->device->ops, part->m);
}

static sl_status_t sum(const sl_fold_t *fold, void *to, const void *part)
{
    const sl_sum_args_t args = {.dtype =
                                    fold->is_f64 ? SL_DTYPE_F64 : SL_DTYPE_F32,
                                .out = to,
                                .a = fold->sum.data,
                                .b = part,
                                .n = fold->n};

    return sl_device_sum(fold->stage->device, &args, NULL);
}

/* Where the sum of the parts up to that of replica i goes. */
static sl_status_t place(const sl_fold_t *fold, int i, sl_fold_part_t *to)
{
    const size_t bytes =
        fold->n * (fold->is_f64 ? sizeof(double) : sizeof(float));
    sl_status_t status = SL_OK;

    *to = (sl_fold_part_t){.data = fold->own};
    if (i < fold->stage->replica && fold->sum.block != NULL) {
        to->data = fold->sum.data;
    } else if (i < fold->stage->replica) {
        SL_TRY(
            status,
            sl_stage_alloc(fold->stage, SL_MEM_CLASS_COMM, bytes, &to->block),
            out);
        to->data = to->block->ptr;
    }
out:
    return status;
}

sl_status_t sl_fold_add(sl_fold_t *fold, int i, sl_fold_part_t *part)
{
    const sl_fold_part_t own = {.data = fold->own};
    sl_fold_part_t from = part == NULL ? own : *part, to;
    sl_status_t status;

    if (part != NULL) {
        *part = (sl_fold_part_t){0};
    }
    if (i == 0) {
        fold->sum = from;
        return SL_OK;
    }
    SL_TRY(status, place(fold, i, &to), out);
    status = sum(fold, (void *)(uintptr_t)to.data, from.data);
    if (to.data != fold->sum.data) {
        SL_KEEP(status, drop(fold->stage, &fold->sum));
        fold->sum = to;
    }
out:
    SL_KEEP(status, drop(fold->stage, &from));
    return status;
}

void sl_fold_cleanup(sl_fold_t *fold)
{
    (void)!drop(fold->stage, &fold->sum);
}
