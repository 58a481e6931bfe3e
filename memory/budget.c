/* SPDX-License-Identifier: Apache-2.0 */
/* Which classes overflow to the host, and how much of each. */
#include "memory/universal.h"

/*
 * Bytes moved per mini-batch for each byte of a class's peak. A stash byte is
 * written by a forward and read by its backward, once each. A message is
 * written and read by one side, and its room serves every micro-batch. The
 * room of activations and of workspaces serves every layer of every
 * micro-batch, both ways; a workspace is gone over several times by its
 * kernel. Parameters are read twice per micro-batch, gradients read and
 * written once, both moments once per step. The figures are for 4 micro-batches
 * and 8 layers; the order holds for any number of both.
 */
static const double costs[SL_MEM_N_CLASSES] = {
    [SL_MEM_CLASS_STASH] = 2.0,       [SL_MEM_CLASS_COMM] = 8.0,
    [SL_MEM_CLASS_ACTIVATION] = 64.0, [SL_MEM_CLASS_WORKSPACE] = 128.0,
    [SL_MEM_CLASS_PERSISTENT] = 5.0,
};

/* By cost, with one rule above it: what lives across mini-batches stays as
 * long as anything else can go. */
const sl_mem_class_t sl_mem_spill_order[SL_MEM_N_CLASSES] = {
    SL_MEM_CLASS_STASH, SL_MEM_CLASS_COMM, SL_MEM_CLASS_ACTIVATION,
    SL_MEM_CLASS_WORKSPACE, SL_MEM_CLASS_PERSISTENT};

double sl_mem_class_cost(sl_mem_class_t mem_class)
{
    return (unsigned)mem_class < SL_MEM_N_CLASSES ? costs[mem_class] : 0.0;
}

/* Costlier classes overflowed although the sizes add up: the blocks lie so
 * that they leave holes. Leave more room, up to a bound, until a new limit
 * changes the picture. */
static void learn_margin(sl_mem_t *mem)
{
    const size_t limit = mem->device.limit_bytes;
    const size_t step = limit / 32;

    if (mem->is_target_new) {
        mem->cap_margin_bytes = 0;
    } else if (mem->n_uncapped_spills > 0 &&
               mem->cap_margin_bytes < limit / 2) {
        mem->cap_margin_bytes += step;
    }
    if (mem->cap_margin_bytes > limit / 2) { /* missed limits fall later */
        mem->cap_margin_bytes = limit / 2;
    }
    mem->n_uncapped_spills = 0;
}

void sl_mem_plan_caps(sl_mem_t *mem)
{
    const size_t need = mem->total_peak_bytes;
    const size_t limit = mem->device.limit_bytes;
    size_t missing = 0;
    size_t room;
    size_t i;

    learn_margin(mem);
    room = limit - mem->cap_margin_bytes;
    if (need > room && mem->host.limit_bytes > 0) {
        missing = need - room;
    }
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        const sl_mem_class_t mem_class = sl_mem_spill_order[i];
        const size_t peak = mem->classes[mem_class].peak_bytes;
        const size_t cut = missing < peak ? missing : peak;

        mem->device_caps[mem_class] = SIZE_MAX;
        if (cut > 0 && mem_class != SL_MEM_CLASS_PERSISTENT) {
            mem->device_caps[mem_class] = peak - cut;
            missing -= cut;
        }
    }
}
