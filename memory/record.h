/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file record.h
 * Block records, private to memory/: what a sl_mem_block_t handle points to.
 *
 * Records live in aligned slabs that are known to the whole process and are
 * never given back to the system. So any pointer can be judged without
 * reading through it: in no slab of ours it is foreign, else its magic says
 * whether the block is live. A slab of a destroyed allocator is reused.
 */
#ifndef SL_MEMORY_RECORD_H
#define SL_MEMORY_RECORD_H

#include "memory/memory.h"
#include "memory/pool.h"

enum {
    SL_MEM_RECORD_BYTES = 64
};

typedef struct sl_mem_record {
    sl_mem_block_t block; /* first: the caller's view */
    sl_mem_t *mem;        /* the allocator it must go back to */
    union {
        sl_mem_chunk_t *chunk;      /* live: NULL for an empty block */
        struct sl_mem_record *next; /* dead: free list */
    } link;
    uint64_t trace_id; /* 0 = not in the trace */
    uint32_t magic;
    uint8_t mem_class;
    uint8_t is_on_host;
    uint8_t is_pinned; /* never moved */
} sl_mem_record_t;

/** Source of records of one allocator; guarded by its lock. */
typedef struct sl_mem_records {
    sl_mem_record_t *free;
    struct sl_mem_slab *slabs;
} sl_mem_records_t;

/** A live record for `mem`, or NULL when memory is out. */
sl_mem_record_t *sl_mem_record_acquire(sl_mem_records_t *records,
                                       sl_mem_t *mem);
void sl_mem_record_release(sl_mem_records_t *records, sl_mem_record_t *record);

/** All records of the allocator become dead; its slabs may serve another. */
void sl_mem_records_cleanup(sl_mem_records_t *records);

/** The live record behind a handle; NULL when it is not one. Safe for any
 *  pointer. */
sl_mem_record_t *sl_mem_record_find(sl_mem_block_t *block);

int sl_mem_record_is_live(const sl_mem_record_t *record);

#endif /* SL_MEMORY_RECORD_H */
