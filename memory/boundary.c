/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a mini-batch: the limit moves, and blocks with it. */
#include "memory/universal.h"

#include <string.h>

#include "base/log.h"

/* Copy between any two chunks; a failed copy leaves the source in place. */
static int copy(const sl_mem_t *mem, void *to, const void *from, size_t bytes)
{
    if (mem->device.ops.copy == NULL) {
        memcpy(to, from, bytes);
        return 1;
    }
    return mem->device.ops.copy(mem->device.ctx, to, from, bytes) == SL_OK;
}

/* The record's block is in `to` from now on: it has been copied. */
static void settle(sl_mem_t *mem, sl_mem_record_t *record, sl_mem_chunk_t *to,
                   int to_host)
{
    sl_mem_chunk_t *from = record->link.chunk;
    sl_mem_class_stats_t *stats = &mem->classes[record->mem_class];

    stats->used_bytes += to->bytes - from->bytes;
    stats->host_bytes -= record->is_on_host ? from->bytes : 0;
    stats->host_bytes += to_host ? to->bytes : 0;
    if (to_host) {
        stats->n_spills++;
        stats->spill_bytes += to->bytes;
    } else if (record->is_on_host) {
        stats->n_returns++;
        stats->return_bytes += to->bytes;
    }
    sl_mem_pool_release(record->is_on_host ? &mem->host : &mem->device, from);
    record->link.chunk = to;
    record->block.ptr = to->ptr;
    record->is_on_host = (uint8_t)to_host;
}

/* Move the record's block into `to` (of the host pool or not), unless it is
 * pinned. */
static int move(sl_mem_t *mem, sl_mem_record_t *record, sl_mem_chunk_t *to,
                int to_host)
{
    const sl_mem_chunk_t *from = record->link.chunk;

    if (record->is_pinned ||
        !copy(mem, to->ptr, from->ptr, record->block.bytes)) {
        sl_mem_pool_release(to_host ? &mem->host : &mem->device, to);
        return 0;
    }
    settle(mem, record, to, to_host);
    return 1;
}

static int move_to_host(sl_mem_t *mem, sl_mem_record_t *record)
{
    sl_mem_chunk_t *to =
        sl_mem_pool_alloc(&mem->host, sl_mem_pool_round(record->block.bytes),
                          record, sl_mem_class_end(record->mem_class));

    return to != NULL && move(mem, record, to, 1);
}

/* ---- shrink ---- */

/* The device region not yet visited with the fewest bytes in use. */
static sl_mem_region_t *next_sparsest(sl_mem_pool_t *pool)
{
    sl_mem_region_t *best = NULL;
    sl_mem_region_t *region;

    for (region = pool->regions; region != NULL; region = region->next) {
        if (!region->is_visited &&
            (best == NULL || region->used_bytes < best->used_bytes)) {
            best = region;
        }
    }
    if (best != NULL) {
        best->is_visited = 1;
    }
    return best;
}

static void visits_begin(sl_mem_pool_t *pool)
{
    sl_mem_region_t *region;

    for (region = pool->regions; region != NULL; region = region->next) {
        region->is_visited = 0;
    }
}

/* Move every block of the region to other places of the device. */
static int evacuate(sl_mem_t *mem, sl_mem_region_t *region)
{
    sl_mem_chunk_t *chunk = sl_mem_pool_next_used(region, NULL);

    while (chunk != NULL) {
        sl_mem_record_t *record = chunk->owner;
        sl_mem_chunk_t *to =
            sl_mem_pool_place(&mem->device, chunk->bytes, record,
                              sl_mem_class_end(record->mem_class), region);

        chunk = sl_mem_pool_next_used(region, chunk);
        if (to == NULL || !move(mem, record, to, 0)) {
            return 0;
        }
    }
    return 1;
}

/* Empty sparse regions into the free chunks of others. */
static void compact(sl_mem_t *mem, size_t target_bytes)
{
    sl_mem_pool_t *pool = &mem->device;
    sl_mem_region_t *region;

    visits_begin(pool);
    while (pool->held_bytes > target_bytes &&
           (region = next_sparsest(pool)) != NULL) {
        const size_t free_elsewhere =
            pool->held_bytes - pool->used_bytes -
            (sl_mem_region_held(region) - region->used_bytes);

        if (region->used_bytes <= free_elsewhere) {
            (void)evacuate(mem, region);
            sl_mem_pool_give_back(pool, target_bytes);
        }
    }
}

/* What pins a region moves into one of just its size, while the limit still
 * in force has room for both. */
static void repack(sl_mem_t *mem, size_t target_bytes)
{
    sl_mem_pool_t *pool = &mem->device;
    sl_mem_region_t *region;

    visits_begin(pool);
    while (pool->held_bytes > target_bytes &&
           (region = next_sparsest(pool)) != NULL) {
        if (sl_mem_pool_round_region(pool, region->used_bytes) <
                sl_mem_region_held(region) &&
            sl_mem_pool_add_region(pool, region->used_bytes)) {
            pool->regions->is_visited = 1;
            (void)evacuate(mem, region);
            sl_mem_pool_give_back(pool, target_bytes);
        }
    }
}

/* Move the blocks of a class to the host, sparse regions first, until no more
 * than `used_target_bytes` are in use or the target is reached. */
static void spill_class(sl_mem_t *mem, sl_mem_class_t mem_class,
                        size_t target_bytes, size_t used_target_bytes)
{
    sl_mem_pool_t *pool = &mem->device;
    sl_mem_region_t *region;

    visits_begin(pool);
    while (pool->held_bytes > target_bytes &&
           pool->used_bytes > used_target_bytes &&
           (region = next_sparsest(pool)) != NULL) {
        sl_mem_chunk_t *chunk = sl_mem_pool_next_used(region, NULL);

        while (chunk != NULL && pool->held_bytes > target_bytes &&
               pool->used_bytes > used_target_bytes) {
            sl_mem_record_t *record = chunk->owner;

            chunk = sl_mem_pool_next_used(region, chunk);
            if (record->mem_class == (uint8_t)mem_class &&
                move_to_host(mem, record)) {
                sl_mem_pool_trim(pool, target_bytes);
            }
        }
        sl_mem_pool_give_back(pool, target_bytes);
    }
}

static void spill(sl_mem_t *mem, size_t target_bytes, size_t used_target_bytes)
{
    size_t i;

    for (i = 0; i < SL_MEM_N_CLASSES && mem->host.limit_bytes > 0 &&
                mem->device.held_bytes > target_bytes;
         i++) {
        spill_class(mem, sl_mem_spill_order[i], target_bytes,
                    used_target_bytes);
    }
    compact(mem, target_bytes);
    repack(mem, target_bytes);
    sl_mem_pool_trim(&mem->device, target_bytes);
}

/* What costs no copy goes first. First only what is too much to fit at all
 * leaves; what then still lies badly leaves too. */
static void shrink(sl_mem_t *mem, size_t target_bytes)
{
    sl_mem_pool_give_back(&mem->device, target_bytes);
    sl_mem_pool_trim(&mem->device, target_bytes);
    compact(mem, target_bytes);
    if (mem->device.used_bytes <= target_bytes) {
        repack(mem, target_bytes);
    }
    sl_mem_pool_trim(&mem->device, target_bytes);
    if (mem->device.held_bytes > target_bytes) {
        spill(mem, target_bytes, target_bytes);
    }
    if (mem->device.held_bytes > target_bytes) {
        spill(mem, target_bytes, 0);
    }
}

/* ---- come back ---- */

/* Copy, or begin to where the backing can. */
static int copy_begin(const sl_mem_t *mem, void *to, const void *from,
                      size_t bytes)
{
    return mem->device.ops.copy_begin == NULL
               ? copy(mem, to, from, bytes)
               : mem->device.ops.copy_begin(mem->device.ctx, to, from, bytes) ==
                     SL_OK;
}

/* Begin to copy a block to the device, where there is room: its new chunk
 * goes to the head of the list. */
static void set_out(sl_mem_t *mem, sl_mem_record_t *record,
                    sl_mem_chunk_t **coming)
{
    const sl_mem_chunk_t *from = record->link.chunk;
    sl_mem_chunk_t *to;

    if (record->is_pinned) {
        return;
    }
    to = sl_mem_pool_alloc(&mem->device, sl_mem_pool_round(record->block.bytes),
                           record, sl_mem_class_end(record->mem_class));
    if (to == NULL) {
        return;
    }
    if (!copy_begin(mem, to->ptr, from->ptr, record->block.bytes)) {
        sl_mem_pool_release(&mem->device, to);
        return;
    }
    to->bin_next = *coming;
    *coming = to;
}

/* Wait once for all that set out. Without an answer they stay on the host.
 * Returns how many are there. */
static size_t arrive(sl_mem_t *mem, sl_mem_chunk_t *coming)
{
    const int is_done = coming == NULL || mem->device.ops.copy_wait == NULL ||
                        mem->device.ops.copy_wait(mem->device.ctx) == SL_OK;
    size_t n_moved = 0;

    while (coming != NULL) {
        sl_mem_chunk_t *to = coming;

        coming = to->bin_next;
        if (is_done) {
            settle(mem, to->owner, to, 0);
            n_moved++;
        } else {
            sl_mem_pool_release(&mem->device, to);
        }
    }
    return n_moved;
}

/* The blocks of a class, as far as there is room. */
static void bring_back_class(sl_mem_t *mem, sl_mem_class_t mem_class,
                             sl_mem_chunk_t **coming)
{
    sl_mem_region_t *region;

    for (region = mem->host.regions; region != NULL; region = region->next) {
        sl_mem_chunk_t *chunk = sl_mem_pool_next_used(region, NULL);

        while (chunk != NULL) {
            sl_mem_record_t *record = chunk->owner;

            chunk = sl_mem_pool_next_used(region, chunk);
            if (record->mem_class == (uint8_t)mem_class) {
                set_out(mem, record, coming);
            }
        }
    }
}

/* The most valuable class first. Returns how many blocks came back. */
static size_t bring_back(sl_mem_t *mem)
{
    sl_mem_chunk_t *coming = NULL;
    size_t i;

    for (i = SL_MEM_N_CLASSES; i-- > 0 && mem->host.used_bytes > 0;) {
        if (mem->classes[sl_mem_spill_order[i]].host_bytes > 0) {
            bring_back_class(mem, sl_mem_spill_order[i], &coming);
        }
    }
    return arrive(mem, coming);
}

/* All of it would fit, but not as the free chunks lie: make one piece of
 * them. */
static size_t bring_back_compacted(sl_mem_t *mem)
{
    if (mem->host.used_bytes == 0 ||
        mem->host.used_bytes >
            mem->device.limit_bytes - mem->device.used_bytes) {
        return 0;
    }
    sl_mem_pool_give_back(&mem->device, 0);
    compact(mem, 0);
    repack(mem, 0);
    return bring_back(mem);
}

/* Last resort: all blocks take the way over the host into one region of just
 * their size. */
static size_t bring_back_rebuilt(sl_mem_t *mem)
{
    const size_t total = mem->device.used_bytes + mem->host.used_bytes;
    size_t i;

    if (mem->host.used_bytes == 0 || total > mem->device.limit_bytes ||
        total > mem->host.limit_bytes) {
        return 0;
    }
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        spill_class(mem, sl_mem_spill_order[i], 0, 0);
    }
    sl_mem_pool_give_back(&mem->device, 0);
    if (mem->device.used_bytes == 0) {
        (void)sl_mem_pool_add_region(&mem->device, total);
    }
    return bring_back(mem);
}

/* ---- the boundary ---- */

/* A target that was missed, or a block that did not come back, is tried again
 * once the use has changed. */
static int is_worth_a_try(const sl_mem_t *mem)
{
    return mem->is_target_new ||
           mem->device.used_bytes != mem->tried_used_bytes;
}

static void apply_limit(sl_mem_t *mem)
{
    sl_mem_pool_t *pool = &mem->device;
    const size_t target = mem->target_bytes;

    if (pool->held_bytes > target && is_worth_a_try(mem)) {
        shrink(mem, target);
    }
    pool->limit_bytes = pool->held_bytes > target ? pool->held_bytes : target;
    mem->pinned_bytes = pool->held_bytes > target ? pool->used_bytes : 0;
    if (pool->held_bytes > target) {
        sl_debug("%s: limit of %zu bytes asked, %zu reached: %zu bytes in "
                 "live blocks hold the rest",
                 mem->name, target, pool->held_bytes, mem->pinned_bytes);
    }
}

/* Free host memory is kept only for overflow that comes every mini-batch. */
static void free_host(sl_mem_t *mem)
{
    if (mem->host.held_bytes > mem->host.used_bytes) {
        sl_mem_pool_give_back(&mem->host, 0);
        sl_mem_pool_trim(&mem->host, 0);
    }
}

static void start_peaks(sl_mem_t *mem)
{
    size_t i;

    mem->device.peak_used_bytes = mem->device.used_bytes;
    mem->device.peak_held_bytes = mem->device.held_bytes;
    mem->host.peak_used_bytes = mem->host.used_bytes;
    mem->total_peak_bytes = mem->device.used_bytes + mem->host.used_bytes;
    mem->host.peak_held_bytes = mem->host.held_bytes;
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        mem->classes[i].peak_bytes = mem->classes[i].used_bytes;
    }
}

void sl_mem_boundary(sl_mem_t *mem, size_t *limit_p)
{
    size_t n_back;
    int is_worth;

    (void)pthread_mutex_lock(mem->lock);
    if (mem->device.quiesce != NULL &&
        (mem->device.held_bytes > mem->target_bytes ||
         mem->host.held_bytes > 0)) {
        mem->device.quiesce(mem->device.quiesce_ctx);
    }
    apply_limit(mem);
    is_worth = is_worth_a_try(mem);
    n_back = bring_back(mem);
    if (is_worth) {
        n_back += bring_back_compacted(mem);
        n_back += bring_back_rebuilt(mem);
    }
    mem->tried_used_bytes = mem->device.used_bytes;
    if (n_back > 0 || mem->host.peak_used_bytes == mem->host.used_bytes) {
        free_host(mem);
    }
    sl_mem_plan_caps(mem);
    mem->is_target_new = 0;
    start_peaks(mem);
    if (mem->trace != NULL) {
        sl_mem_trace_boundary(mem);
    }
    if (limit_p != NULL) {
        *limit_p = mem->device.limit_bytes;
    }
    (void)pthread_mutex_unlock(mem->lock);
}
