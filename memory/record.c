/* SPDX-License-Identifier: Apache-2.0 */
/* Slabs of block records, and the process-wide set of slab addresses. */
#include "memory/record.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    SLAB_SHIFT = 16,
    SLAB_BYTES = 1 << SLAB_SHIFT,
    SLAB_RECORDS = SLAB_BYTES / SL_MEM_RECORD_BYTES - 1,
    SET_SHIFT = 14,
    SET_SLOTS = 1 << SET_SHIFT,
    SET_MAX = SET_SLOTS - SET_SLOTS / 4 /* room for 12 million blocks */
};

#define MAGIC_LIVE UINT32_C(0x534c4d42)
#define MAGIC_DEAD UINT32_C(0xdead4d42)

/* The head of a slab takes the room of its first record. */
typedef struct sl_mem_slab {
    struct sl_mem_slab *next;
} sl_mem_slab_t;

_Static_assert(sizeof(sl_mem_record_t) <= SL_MEM_RECORD_BYTES,
               "a record must fit its place");
_Static_assert(sizeof(sl_mem_slab_t) <= SL_MEM_RECORD_BYTES,
               "the slab's head must fit one place");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sl_mem_slab_t *reserve; /* slabs of nobody; guarded by lock */
static size_t n_slabs;         /* guarded by lock */

/* Open addressing, insert only: readers need no lock. 0 = free slot. */
static _Atomic(uintptr_t) slab_set[SET_SLOTS]; /* atomic */

static size_t slot_of(uintptr_t address)
{
    const uint64_t mixed =
        (uint64_t)(address >> SLAB_SHIFT) * UINT64_C(0x9E3779B97F4A7C15);

    return (size_t)(mixed >> (64 - SET_SHIFT));
}

static int is_slab(uintptr_t address)
{
    size_t slot = slot_of(address);
    uintptr_t entry;

    do {
        entry = atomic_load_explicit(&slab_set[slot], memory_order_acquire);
        if (entry == address) {
            return 1;
        }
        slot = (slot + 1) % SET_SLOTS;
    } while (entry != 0); /* ends: the set is never full */
    return 0;
}

static void set_insert(uintptr_t address)
{
    size_t slot = slot_of(address);

    while (atomic_load_explicit(&slab_set[slot], memory_order_relaxed) != 0) {
        slot = (slot + 1) % SET_SLOTS;
    }
    atomic_store_explicit(&slab_set[slot], address, memory_order_release);
}

static sl_mem_record_t *slab_record(sl_mem_slab_t *slab, size_t i)
{
    unsigned char *base = (void *)slab;

    return (void *)(base + (i + 1) * SL_MEM_RECORD_BYTES);
}

static sl_mem_slab_t *slab_acquire(void)
{
    sl_mem_slab_t *slab;

    (void)pthread_mutex_lock(&lock);
    slab = reserve;
    if (slab != NULL) {
        reserve = slab->next;
    } else if (n_slabs < SET_MAX) {
        slab = aligned_alloc(SLAB_BYTES, SLAB_BYTES);
        if (slab != NULL) {
            size_t i;

            for (i = 0; i < SLAB_RECORDS; i++) {
                slab_record(slab, i)->magic = MAGIC_DEAD;
            }
            set_insert((uintptr_t)slab);
            n_slabs++;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return slab;
}

static int grow(sl_mem_records_t *records)
{
    sl_mem_slab_t *slab = slab_acquire();
    size_t i;

    if (slab == NULL) {
        return 0;
    }
    slab->next = records->slabs;
    records->slabs = slab;
    for (i = SLAB_RECORDS; i-- > 0;) {
        sl_mem_record_t *record = slab_record(slab, i);

        record->link.next = records->free;
        records->free = record;
    }
    return 1;
}

sl_mem_record_t *sl_mem_record_acquire(sl_mem_records_t *records, sl_mem_t *mem)
{
    sl_mem_record_t *record;

    if (records->free == NULL && !grow(records)) {
        return NULL;
    }
    record = records->free;
    records->free = record->link.next;
    record->link.chunk = NULL;
    record->mem = mem;
    record->trace_id = 0;
    record->magic = MAGIC_LIVE;
    return record;
}

void sl_mem_record_release(sl_mem_records_t *records, sl_mem_record_t *record)
{
    record->magic = MAGIC_DEAD;
    record->block.ptr = NULL;
    record->link.next = records->free;
    records->free = record;
}

void sl_mem_records_cleanup(sl_mem_records_t *records)
{
    while (records->slabs != NULL) {
        sl_mem_slab_t *slab = records->slabs;
        size_t i;

        records->slabs = slab->next;
        for (i = 0; i < SLAB_RECORDS; i++) {
            slab_record(slab, i)->magic = MAGIC_DEAD;
        }
        (void)pthread_mutex_lock(&lock);
        slab->next = reserve;
        reserve = slab;
        (void)pthread_mutex_unlock(&lock);
    }
    records->free = NULL;
}

int sl_mem_record_is_live(const sl_mem_record_t *record)
{
    return record->magic == MAGIC_LIVE;
}

sl_mem_record_t *sl_mem_record_find(sl_mem_block_t *block)
{
    const uintptr_t address = (uintptr_t)block;
    const uintptr_t offset = address % SLAB_BYTES;
    sl_mem_record_t *record;

    if (address < SLAB_BYTES || offset == 0 ||
        offset % SL_MEM_RECORD_BYTES != 0 || !is_slab(address - offset)) {
        return NULL;
    }
    record = (void *)block;
    return sl_mem_record_is_live(record) ? record : NULL;
}
