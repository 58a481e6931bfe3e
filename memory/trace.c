/* SPDX-License-Identifier: Apache-2.0 */
/* A record of what was allocated and released, to be replayed elsewhere. */
#include <inttypes.h>

#include "memory/universal.h"

void sl_mem_trace_alloc(sl_mem_t *mem, sl_mem_record_t *record)
{
    record->trace_id = ++mem->n_traced;
    (void)fprintf(mem->trace, "a %" PRIu64 " %d %zu\n", record->trace_id,
                  (int)record->mem_class, record->block.bytes);
}

void sl_mem_trace_release(sl_mem_t *mem, const sl_mem_record_t *record)
{
    if (record->trace_id != 0) {
        (void)fprintf(mem->trace, "r %" PRIu64 "\n", record->trace_id);
    }
}

void sl_mem_trace_boundary(sl_mem_t *mem)
{
    (void)fprintf(mem->trace, "b %zu\n", mem->device.limit_bytes);
}

/* The blocks of a pool that are live when a trace begins. */
static void trace_pool(sl_mem_t *mem, const sl_mem_pool_t *pool)
{
    const sl_mem_region_t *region;

    for (region = pool->regions; region != NULL; region = region->next) {
        sl_mem_chunk_t *chunk = sl_mem_pool_next_used(region, NULL);

        for (; chunk != NULL; chunk = sl_mem_pool_next_used(region, chunk)) {
            sl_mem_trace_alloc(mem, chunk->owner);
        }
    }
}

void sl_mem_trace_begin(sl_mem_t *mem, FILE *stream)
{
    (void)pthread_mutex_lock(mem->lock);
    mem->trace = stream;
    (void)fprintf(stream, "sluice-memory-trace 1 %s\n", mem->name);
    trace_pool(mem, &mem->device);
    trace_pool(mem, &mem->host);
    (void)pthread_mutex_unlock(mem->lock);
}

sl_status_t sl_mem_trace_end(sl_mem_t *mem)
{
    sl_status_t status = SL_OK;
    FILE *stream;

    (void)pthread_mutex_lock(mem->lock);
    stream = mem->trace;
    mem->trace = NULL;
    (void)pthread_mutex_unlock(mem->lock);
    if (stream != NULL && (fflush(stream) != 0 || ferror(stream) != 0)) {
        SL_FAIL(status, SL_ERR_IO, out,
                "%s: the memory trace could not be written; is the disk full?",
                mem->name);
    }
out:
    return status;
}
