/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pool.h
 * Best fit with coalescing in growing regions, private to memory/.
 *
 * A region is one piece of backing memory, cut into chunks in address order;
 * no two neighbours are both free. Free chunks hang in bins by size, sorted,
 * so the first that fits is the smallest that fits. What lives long is cut off
 * the low end of a free chunk, what lives short off the high end, which keeps
 * the holes of the one from cutting up the room of the other. The limit counts
 * regions held, not chunks in use. Where the backing can, whole pieces of free
 * chunks give their memory back and become holes: chunks in no bin that count
 * as neither held nor used, until they are filled again. Not thread safe: the
 * allocator's lock guards it.
 */
#ifndef SL_MEMORY_POOL_H
#define SL_MEMORY_POOL_H

#include "memory/memory.h"

enum {
    /* 31 exact sizes of 256 bytes, then 16 bins per power of two */
    SL_MEM_POOL_BINS = 832,
    SL_MEM_POOL_BIN_WORDS = SL_MEM_POOL_BINS / 64
};

typedef enum sl_mem_pool_end {
    SL_MEM_POOL_LOW,
    SL_MEM_POOL_HIGH
} sl_mem_pool_end_t;

typedef struct sl_mem_region sl_mem_region_t;
typedef struct sl_mem_chunk sl_mem_chunk_t;

struct sl_mem_chunk {
    unsigned char *ptr;
    size_t bytes; /* multiple of SL_MEM_ALIGN_BYTES */
    sl_mem_region_t *region;
    void *owner;          /* NULL = free; sl_mem_pool_hole = a hole */
    sl_mem_chunk_t *prev; /* in address order, within the region */
    sl_mem_chunk_t *next;
    sl_mem_chunk_t *bin_prev; /* while free */
    sl_mem_chunk_t *bin_next; /* likewise; in use: scratch of a boundary */
};

struct sl_mem_region {
    sl_mem_region_t *prev;
    sl_mem_region_t *next;
    void *ptr;
    size_t bytes;
    size_t used_bytes;
    size_t hole_bytes;
    size_t piece_bytes; /* holes are made of these; 0 = none are made */
    sl_mem_chunk_t *first;
    int is_visited; /* scratch of a boundary */
};

typedef struct sl_mem_pool {
    sl_mem_ops_t ops;
    void *ctx;
    void (*quiesce)(void *ctx); /* before a region goes back; may be NULL */
    void *quiesce_ctx;
    size_t limit_bytes;
    size_t held_bytes;
    size_t used_bytes;
    size_t peak_held_bytes;
    size_t peak_used_bytes;
    size_t next_region_bytes; /* growth */
    size_t unit_bytes;        /* of region sizes; a power of two */
    uint64_t n_region_allocs;
    uint64_t trimmed_bytes; /* in all */
    sl_mem_region_t *regions;
    sl_mem_chunk_t *spare_chunks; /* records, linked by next */
    void *chunk_slabs;
    uint32_t bin_summary; /* bit w: bin_bits[w] is not zero */
    uint64_t bin_bits[SL_MEM_POOL_BIN_WORDS];
    sl_mem_chunk_t *bins[SL_MEM_POOL_BINS];
} sl_mem_pool_t;

/** The owner of holes. */
extern char sl_mem_pool_hole[];

/** `bytes` in whole units of SL_MEM_ALIGN_BYTES; 0 when that overflows. */
size_t sl_mem_pool_round(size_t bytes);

/** What a region for `bytes` takes; 0 when that overflows. */
size_t sl_mem_pool_round_region(const sl_mem_pool_t *pool, size_t bytes);

static inline int sl_mem_chunk_is_used(const sl_mem_chunk_t *chunk)
{
    return chunk->owner != NULL && chunk->owner != sl_mem_pool_hole;
}

/** Bytes of the region that are held. */
static inline size_t sl_mem_region_held(const sl_mem_region_t *region)
{
    return region->bytes - region->hole_bytes;
}

void sl_mem_pool_init(sl_mem_pool_t *pool, const sl_mem_ops_t *ops, void *ctx,
                      size_t limit_bytes);
/** Gives all regions back, with live chunks in them too. */
void sl_mem_pool_cleanup(sl_mem_pool_t *pool);

/** A chunk of rounded `bytes` for `owner`; NULL when neither the free chunks
 *  nor the limit nor the backing have room. */
sl_mem_chunk_t *sl_mem_pool_alloc(sl_mem_pool_t *pool, size_t bytes,
                                  void *owner, sl_mem_pool_end_t end);

/** As alloc, from what is held and outside of region `avoid` only. */
sl_mem_chunk_t *sl_mem_pool_place(sl_mem_pool_t *pool, size_t bytes,
                                  void *owner, sl_mem_pool_end_t end,
                                  const sl_mem_region_t *avoid);

void sl_mem_pool_release(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk);

/** Give wholly free regions back until `target_bytes` are held or none is
 *  left. The caller has seen to it that no op uses them. */
void sl_mem_pool_give_back(sl_mem_pool_t *pool, size_t target_bytes);

/** Give whole pieces of free chunks back, the largest chunks first, until
 *  `target_bytes` are held or none is left. As above. */
void sl_mem_pool_trim(sl_mem_pool_t *pool, size_t target_bytes);

/** Bytes that trim can give back of the region's free chunks. */
size_t sl_mem_region_trimmable(const sl_mem_region_t *region);

/** Fill holes of at most `room_bytes` so that a free chunk of `bytes` comes
 *  about, with the least memory. NULL when no holes do or the backing
 *  refuses. */
sl_mem_chunk_t *sl_mem_pool_fill(sl_mem_pool_t *pool, size_t bytes,
                                 size_t room_bytes);

/** Hold one more region of `bytes`, in whole units; 0 when the limit or the
 *  backing has no room. */
int sl_mem_pool_add_region(sl_mem_pool_t *pool, size_t bytes);

/** The next chunk in use of the region after `chunk` (NULL = its first). */
sl_mem_chunk_t *sl_mem_pool_next_used(const sl_mem_region_t *region,
                                      const sl_mem_chunk_t *chunk);

size_t sl_mem_pool_largest_free(const sl_mem_pool_t *pool);

/** Bytes of the regions held that take physical memory. */
size_t sl_mem_pool_touched(const sl_mem_pool_t *pool);

/* ---- parts of the pool's own work ---- */

/** Count bytes that the pool now holds. */
static inline void sl_mem_pool_hold(sl_mem_pool_t *pool, size_t bytes)
{
    pool->held_bytes += bytes;
    if (pool->held_bytes > pool->peak_held_bytes) {
        pool->peak_held_bytes = pool->held_bytes;
    }
}

/** Into the bin of its size, and out of it. */
void sl_mem_chunk_bin(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk);
void sl_mem_chunk_unbin(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk);

/** Cut the chunk (in no bin) to `bytes`; the rest becomes a free chunk in no
 *  bin. NULL when there is no record for the rest: the chunk stays whole. */
sl_mem_chunk_t *sl_mem_chunk_split(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk,
                                   size_t bytes);

/** Append `chunk->next` (in no bin) to `chunk`. */
void sl_mem_chunk_merge_next(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk);

/** Every invariant of the pool; for tests and asserts, O(n). */
int sl_mem_pool_is_valid(const sl_mem_pool_t *pool);

#endif /* SL_MEMORY_POOL_H */
