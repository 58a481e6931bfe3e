/* SPDX-License-Identifier: Apache-2.0 */
/* The universal allocator: where a block goes, its record and statistics. */
#include "memory/universal.h"

#include <inttypes.h>
#include <sched.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* Empty blocks point here: aligned, not NULL, nothing to read. */
static alignas(SL_MEM_ALIGN_BYTES) unsigned char empty[SL_MEM_ALIGN_BYTES];

/* The lock is held for tens of nanoseconds: less than sleeping costs. */
static void lock(const sl_mem_t *mem)
{
    enum {
        N_TRIES = 100
    };
    int i;

    for (i = 0; i < N_TRIES; i++) {
        if (pthread_mutex_trylock(mem->lock) == 0) {
            return;
        }
    }
    (void)pthread_mutex_lock(mem->lock);
}

const char *sl_mem_class_name(sl_mem_class_t mem_class)
{
    static const char *const names[] = {
#define X(id, text) text,
        SL_MEM_CLASS_MAP(X)
#undef X
    };

    return (unsigned)mem_class < SL_MEM_N_CLASSES ? names[mem_class]
                                                  : "unknown";
}

void sl_mem_params_default(sl_mem_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->name = "mem";
    params->device = sl_mem_ops_host();
    params->host = sl_mem_ops_host_pool();
    params->limit_bytes = SIZE_MAX;
}

static int ops_are_complete(const sl_mem_ops_t *ops)
{
    return ops != NULL &&
           ops->size >=
               offsetof(sl_mem_ops_t, release) + sizeof(ops->release) &&
           ops->alloc != NULL && ops->release != NULL;
}

sl_status_t sl_mem_create(const sl_mem_params_t *params, sl_mem_t **mem_p)
{
    sl_mem_t *mem;
    sl_status_t status;
    size_t i;

    if (params == NULL || mem_p == NULL || params->name == NULL ||
        !ops_are_complete(params->device) || !ops_are_complete(params->host)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "memory parameters incomplete: a name and two tables with "
                "alloc and release are needed");
    }
    mem = calloc(1, sizeof(*mem));
    if (mem == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                params->name);
    }
    (void)snprintf(mem->name, sizeof(mem->name), "%s", params->name);
    (void)pthread_mutex_init(&mem->lock_storage, NULL);
    mem->lock = &mem->lock_storage;
    mem->capacity_bytes = params->limit_bytes;
    mem->target_bytes = params->limit_bytes;
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        mem->device_caps[i] = SIZE_MAX;
    }
    sl_mem_pool_init(&mem->device, params->device, params->device_ctx,
                     params->limit_bytes);
    sl_mem_pool_init(&mem->host, params->host, params->host_ctx,
                     params->host_limit_bytes);
    mem->device.quiesce = params->quiesce;
    mem->device.quiesce_ctx = params->quiesce_ctx;
    mem->host.quiesce = params->quiesce;
    mem->host.quiesce_ctx = params->quiesce_ctx;
    *mem_p = mem;
    return SL_OK;
out:
    return status;
}

void sl_mem_destroy(sl_mem_t *mem)
{
    if (mem == NULL) {
        return;
    }
    if (mem->n_live > 0) {
        sl_warn("%s: destroyed with %" PRIu64 " blocks live, %zu bytes",
                mem->name, mem->n_live,
                mem->device.used_bytes + mem->host.used_bytes);
    }
    sl_mem_records_cleanup(&mem->records);
    sl_mem_pool_cleanup(&mem->device);
    sl_mem_pool_cleanup(&mem->host);
    (void)pthread_mutex_destroy(mem->lock);
    free(mem);
}

/* Statistics of a block that was placed. */
static void count_alloc(sl_mem_t *mem, const sl_mem_record_t *record)
{
    sl_mem_class_stats_t *stats = &mem->classes[record->mem_class];
    const size_t total = mem->device.used_bytes + mem->host.used_bytes;

    mem->n_live++;
    stats->n_allocs++;
    if (record->link.chunk == NULL) {
        return;
    }
    stats->asked_bytes += record->block.bytes;
    stats->used_bytes += record->link.chunk->bytes;
    if (stats->used_bytes > stats->peak_bytes) {
        stats->peak_bytes = stats->used_bytes;
    }
    if (total > mem->total_peak_bytes) {
        mem->total_peak_bytes = total;
    }
    if (record->is_on_host) {
        stats->host_bytes += record->link.chunk->bytes;
        stats->n_spills++;
        stats->spill_bytes += record->link.chunk->bytes;
        mem->n_uncapped_spills +=
            mem->device_caps[record->mem_class] == SIZE_MAX;
    }
}

static int place_in(sl_mem_t *mem, sl_mem_record_t *record, size_t rounded,
                    int on_host)
{
    record->link.chunk =
        sl_mem_pool_alloc(on_host ? &mem->host : &mem->device, rounded, record,
                          sl_mem_class_end(record->mem_class));
    record->is_on_host = (uint8_t)on_host;
    return record->link.chunk != NULL;
}

/* Find a place for the record's block: the device, unless its class has had
 * what the boundary left for it there. */
static int place(sl_mem_t *mem, sl_mem_record_t *record, size_t rounded)
{
    const sl_mem_class_stats_t *stats = &mem->classes[record->mem_class];
    const size_t cap = mem->device_caps[record->mem_class];
    const size_t on_device = stats->used_bytes - stats->host_bytes;
    const int host_first =
        cap < SIZE_MAX && (on_device > cap || rounded > cap - on_device);

    if (!place_in(mem, record, rounded, host_first) &&
        !place_in(mem, record, rounded, !host_first)) {
        return 0;
    }
    record->block.ptr = record->link.chunk->ptr;
    return 1;
}

/* Nothing fits. Before giving up: let the ops in flight end, and with them
 * what others release when theirs have; then give every free region back,
 * since both pools may draw on the same memory, and look again. */
static int place_at_last(sl_mem_t *mem, sl_mem_record_t *record, size_t rounded)
{
    if (rounded > mem->device.limit_bytes && rounded > mem->host.limit_bytes) {
        return 0; /* no wait helps */
    }
    if (mem->device.quiesce != NULL) {
        (void)pthread_mutex_unlock(mem->lock);
        mem->device.quiesce(mem->device.quiesce_ctx);
        (void)sched_yield();
        (void)pthread_mutex_lock(mem->lock);
        if (place(mem, record, rounded)) {
            return 1;
        }
        mem->device.quiesce(mem->device.quiesce_ctx);
    }
    sl_mem_pool_give_back(&mem->device, 0);
    sl_mem_pool_give_back(&mem->host, 0);
    return place(mem, record, rounded);
}

static int find_place(sl_mem_t *mem, sl_mem_record_t *record)
{
    const size_t rounded = sl_mem_pool_round(record->block.bytes);

    if (record->block.bytes == 0) {
        record->is_on_host = 0;
        record->block.ptr = empty;
        return 1;
    }
    return rounded != 0 &&
           (place(mem, record, rounded) || place_at_last(mem, record, rounded));
}

void sl_mem_pin(sl_mem_block_t *block)
{
    sl_mem_record_t *record = sl_mem_record_find(block);

    if (record != NULL) {
        lock(record->mem);
        record->is_pinned = 1;
        (void)pthread_mutex_unlock(record->mem->lock);
    }
}

sl_status_t sl_mem_alloc(sl_mem_t *mem, sl_mem_class_t mem_class, size_t bytes,
                         sl_mem_block_t **block_p)
{
    sl_mem_record_t *record;
    sl_mem_stats_t stats;
    sl_status_t status;

    if (mem == NULL || block_p == NULL ||
        (unsigned)mem_class >= SL_MEM_N_CLASSES) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "memory block: allocator %p, class %d, output %p", (void *)mem,
                (int)mem_class, (void *)block_p);
    }
    lock(mem);
    record = sl_mem_record_acquire(&mem->records, mem);
    if (record != NULL) {
        record->mem_class = (uint8_t)mem_class;
        record->is_pinned = 0;
        record->block.bytes = bytes;
        if (find_place(mem, record)) {
            count_alloc(mem, record);
            if (mem->trace != NULL) {
                sl_mem_trace_alloc(mem, record);
            }
            (void)pthread_mutex_unlock(mem->lock);
            *block_p = &record->block;
            return SL_OK;
        }
        sl_mem_record_release(&mem->records, record);
    }
    (void)pthread_mutex_unlock(mem->lock);
    if (record == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for block records", mem->name);
    }
    sl_mem_stats(mem, &stats);
    SL_REFUSE(status, SL_ERR_QUOTA, out,
              "%s: %s block of %zu bytes refused: %zu bytes held of limit "
              "%zu, %zu free in them, largest free block %zu; host pool holds "
              "%zu of %zu; raise the limit or the host pool, or use smaller "
              "micro-batches",
              mem->name, sl_mem_class_name(mem_class), bytes, stats.held_bytes,
              stats.limit_bytes, stats.held_bytes - stats.used_bytes,
              stats.largest_free_bytes, stats.host_held_bytes,
              mem->host.limit_bytes);
out:
    return status;
}

/* Take the record out of use; 0 when another thread was first. */
static int release_record(sl_mem_record_t *record)
{
    sl_mem_t *mem = record->mem;
    int is_live;

    lock(mem);
    is_live = sl_mem_record_is_live(record);
    if (is_live) {
        sl_mem_chunk_t *chunk = record->link.chunk;

        if (chunk != NULL) {
            sl_mem_class_stats_t *stats = &mem->classes[record->mem_class];

            stats->asked_bytes -= record->block.bytes;
            stats->used_bytes -= chunk->bytes;
            stats->host_bytes -= record->is_on_host ? chunk->bytes : 0;
            sl_mem_pool_release(record->is_on_host ? &mem->host : &mem->device,
                                chunk);
        }
        mem->n_live--;
        if (mem->trace != NULL) {
            sl_mem_trace_release(mem, record);
        }
        sl_mem_record_release(&mem->records, record);
    }
    (void)pthread_mutex_unlock(mem->lock);
    return is_live;
}

void sl_mem_release(sl_mem_block_t *block)
{
    sl_mem_record_t *record;

    if (block == NULL) {
        return;
    }
    record = sl_mem_record_find(block);
    if (record == NULL || !release_record(record)) {
        sl_error("release of %p: not a live memory block, released twice or "
                 "never allocated",
                 (void *)block);
    }
}

void sl_mem_limit_request(sl_mem_t *mem, size_t limit_bytes)
{
    (void)pthread_mutex_lock(mem->lock);
    mem->target_bytes =
        limit_bytes < mem->capacity_bytes ? limit_bytes : mem->capacity_bytes;
    mem->is_target_new = 1;
    (void)pthread_mutex_unlock(mem->lock);
}
