/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file universal.h
 * The allocator's state, private to memory/.
 */
#ifndef SL_MEMORY_UNIVERSAL_H
#define SL_MEMORY_UNIVERSAL_H

#include <pthread.h>

#include "memory/memory.h"
#include "memory/pool.h"
#include "memory/record.h"

enum {
    SL_MEM_NAME_BYTES = 64
};

struct sl_mem {
    pthread_mutex_t *lock; /* &lock_storage: queries of a const one lock too */
    pthread_mutex_t lock_storage;
    char name[SL_MEM_NAME_BYTES];
    size_t capacity_bytes;

    /* all below guarded by lock */
    size_t target_bytes;     /* limit asked for last */
    int is_target_new;       /* asked since the last boundary */
    size_t tried_used_bytes; /* in use when a boundary last missed the target */
    sl_mem_pool_t device;
    sl_mem_pool_t host;
    sl_mem_records_t records;
    sl_mem_class_stats_t classes[SL_MEM_N_CLASSES];
    size_t device_caps[SL_MEM_N_CLASSES]; /* above it a class overflows */
    size_t cap_margin_bytes; /* what the caps leave for holes between blocks */
    uint64_t n_uncapped_spills; /* in this mini-batch, of other classes */
    size_t total_peak_bytes;    /* device and host together */
    size_t pinned_bytes;
    uint64_t n_live;
    FILE *trace; /* NULL = none; borrowed */
    uint64_t n_traced;
};

/** The end of a chunk that a class is cut off. */
static inline sl_mem_pool_end_t sl_mem_class_end(uint8_t mem_class)
{
    return mem_class == SL_MEM_CLASS_PERSISTENT ||
                   mem_class == SL_MEM_CLASS_STASH
               ? SL_MEM_POOL_LOW
               : SL_MEM_POOL_HIGH;
}

/** Classes in the order in which they overflow to the host. */
extern const sl_mem_class_t sl_mem_spill_order[SL_MEM_N_CLASSES];

/** From the peaks of the mini-batch that ends: how much of each class the
 *  next one keeps on the device. */
void sl_mem_plan_caps(sl_mem_t *mem);

/* one line each; the caller holds the lock and has seen to it that a trace
 * is on */
void sl_mem_trace_alloc(sl_mem_t *mem, sl_mem_record_t *record);
void sl_mem_trace_release(sl_mem_t *mem, const sl_mem_record_t *record);
void sl_mem_trace_boundary(sl_mem_t *mem);

#endif /* SL_MEMORY_UNIVERSAL_H */
