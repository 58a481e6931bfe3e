/* SPDX-License-Identifier: Apache-2.0 */
/* Best fit with coalescing in growing regions. */
#include "memory/pool.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define REGION_MIN_BYTES MIB          /* the first region */
#define REGION_STEP_BYTES (256 * MIB) /* growth doubles up to this */
#define REGION_UNIT_BYTES ((size_t)64 << 10)

enum {
    SLAB_CHUNKS = 255,
    SUB_BINS = 16,
    SUB_SHIFT = 4
};

typedef struct chunk_slab {
    struct chunk_slab *next;
    sl_mem_chunk_t chunks[SLAB_CHUNKS];
} chunk_slab_t;

size_t sl_mem_pool_round(size_t bytes)
{
    const size_t mask = SL_MEM_ALIGN_BYTES - 1;

    return bytes > SIZE_MAX - mask ? 0 : (bytes + mask) & ~mask;
}

size_t sl_mem_pool_round_region(const sl_mem_pool_t *pool, size_t bytes)
{
    const size_t mask = pool->unit_bytes - 1;

    return bytes > SIZE_MAX - mask ? 0 : (bytes + mask) & ~mask;
}

/* ---- bins ---- */

static size_t bin_of(size_t bytes)
{
    const size_t units = bytes / SL_MEM_ALIGN_BYTES;
    size_t log2;

    if (units < SUB_BINS) {
        return units;
    }
    log2 = 63 - (size_t)__builtin_clzll((unsigned long long)units);
    return (log2 - SUB_SHIFT + 1) * SUB_BINS +
           (units >> (log2 - SUB_SHIFT)) % SUB_BINS;
}

void sl_mem_chunk_bin(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk)
{
    const size_t bin = bin_of(chunk->bytes);
    sl_mem_chunk_t *before = NULL;
    sl_mem_chunk_t *after = pool->bins[bin];

    while (after != NULL && after->bytes < chunk->bytes) {
        before = after;
        after = after->bin_next;
    }
    chunk->bin_prev = before;
    chunk->bin_next = after;
    if (after != NULL) {
        after->bin_prev = chunk;
    }
    if (before != NULL) {
        before->bin_next = chunk;
        return;
    }
    pool->bins[bin] = chunk;
    pool->bin_bits[bin / 64] |= UINT64_C(1) << (bin % 64);
    pool->bin_summary |= UINT32_C(1) << (bin / 64);
}

void sl_mem_chunk_unbin(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk)
{
    size_t bin;

    if (chunk->bin_next != NULL) {
        chunk->bin_next->bin_prev = chunk->bin_prev;
    }
    if (chunk->bin_prev != NULL) {
        chunk->bin_prev->bin_next = chunk->bin_next;
        return;
    }
    bin = bin_of(chunk->bytes);
    pool->bins[bin] = chunk->bin_next;
    if (chunk->bin_next == NULL) {
        pool->bin_bits[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
        if (pool->bin_bits[bin / 64] == 0) {
            pool->bin_summary &= ~(UINT32_C(1) << (bin / 64));
        }
    }
}

/* The first bin from `bin` on that is not empty; SL_MEM_POOL_BINS if none. */
static size_t bin_next_filled(const sl_mem_pool_t *pool, size_t bin)
{
    size_t word = bin / 64;
    uint64_t bits;
    uint32_t summary;

    if (bin >= SL_MEM_POOL_BINS) {
        return SL_MEM_POOL_BINS;
    }
    bits = pool->bin_bits[word] & (UINT64_MAX << (bin % 64));
    if (bits == 0) {
        summary = pool->bin_summary & ~((UINT32_C(2) << word) - 1);
        if (summary == 0) {
            return SL_MEM_POOL_BINS;
        }
        word = (size_t)__builtin_ctz(summary);
        bits = pool->bin_bits[word];
    }
    return word * 64 + (size_t)__builtin_ctzll(bits);
}

/* The smallest free chunk of at least `bytes` that is not in `avoid`. */
static sl_mem_chunk_t *best_fit(const sl_mem_pool_t *pool, size_t bytes,
                                const sl_mem_region_t *avoid)
{
    size_t bin = bin_next_filled(pool, bin_of(bytes));

    while (bin < SL_MEM_POOL_BINS) {
        sl_mem_chunk_t *chunk = pool->bins[bin];

        while (chunk != NULL &&
               (chunk->bytes < bytes || chunk->region == avoid)) {
            chunk = chunk->bin_next;
        }
        if (chunk != NULL) {
            return chunk;
        }
        bin = bin_next_filled(pool, bin + 1);
    }
    return NULL;
}

/* ---- chunk records ---- */

static sl_mem_chunk_t *chunk_acquire(sl_mem_pool_t *pool)
{
    sl_mem_chunk_t *chunk = pool->spare_chunks;

    if (chunk == NULL) {
        chunk_slab_t *slab = malloc(sizeof(*slab));
        size_t i;

        if (slab == NULL) {
            return NULL;
        }
        slab->next = pool->chunk_slabs;
        pool->chunk_slabs = slab;
        for (i = 0; i < SLAB_CHUNKS; i++) {
            slab->chunks[i].next = chunk;
            chunk = &slab->chunks[i];
        }
    }
    pool->spare_chunks = chunk->next;
    return chunk;
}

static void chunk_give(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk)
{
    chunk->next = pool->spare_chunks;
    pool->spare_chunks = chunk;
}

sl_mem_chunk_t *sl_mem_chunk_split(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk,
                                   size_t bytes)
{
    sl_mem_chunk_t *rest = chunk_acquire(pool);

    if (rest == NULL) {
        return NULL;
    }
    rest->ptr = chunk->ptr + bytes;
    rest->bytes = chunk->bytes - bytes;
    rest->region = chunk->region;
    rest->owner = NULL;
    rest->prev = chunk;
    rest->next = chunk->next;
    if (rest->next != NULL) {
        rest->next->prev = rest;
    }
    chunk->next = rest;
    chunk->bytes = bytes;
    return rest;
}

void sl_mem_chunk_merge_next(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk)
{
    sl_mem_chunk_t *next = chunk->next;

    chunk->bytes += next->bytes;
    chunk->next = next->next;
    if (chunk->next != NULL) {
        chunk->next->prev = chunk;
    }
    chunk_give(pool, next);
}

/* Take `bytes` off one end of a free chunk. */
static sl_mem_chunk_t *chunk_take(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk,
                                  size_t bytes, void *owner,
                                  sl_mem_pool_end_t end)
{
    const size_t rest_bytes = chunk->bytes - bytes;
    sl_mem_chunk_t *rest = NULL;

    sl_mem_chunk_unbin(pool, chunk);
    if (rest_bytes > 0) {
        rest = sl_mem_chunk_split(pool, chunk,
                                  end == SL_MEM_POOL_LOW ? bytes : rest_bytes);
    }
    if (rest != NULL && end == SL_MEM_POOL_HIGH) {
        sl_mem_chunk_t *low = chunk;

        chunk = rest;
        rest = low;
    }
    if (rest != NULL) {
        sl_mem_chunk_bin(pool, rest);
    }
    chunk->owner = owner;
    chunk->region->used_bytes += chunk->bytes;
    pool->used_bytes += chunk->bytes;
    if (pool->used_bytes > pool->peak_used_bytes) {
        pool->peak_used_bytes = pool->used_bytes;
    }
    return chunk;
}

/* ---- regions ---- */

static size_t room_bytes(const sl_mem_pool_t *pool)
{
    return pool->limit_bytes > pool->held_bytes
               ? pool->limit_bytes - pool->held_bytes
               : 0;
}

/* Ask the backing for `bytes`; NULL when it refuses. */
static sl_mem_region_t *region_open(sl_mem_pool_t *pool, size_t bytes)
{
    sl_mem_region_t *region = calloc(1, sizeof(*region));
    sl_mem_chunk_t *chunk = chunk_acquire(pool);
    void *ptr = NULL;

    if (region == NULL || chunk == NULL ||
        pool->ops.alloc(pool->ctx, bytes, &ptr) != SL_OK) {
        if (chunk != NULL) {
            chunk_give(pool, chunk);
        }
        free(region);
        return NULL;
    }
    memset(chunk, 0, sizeof(*chunk));
    chunk->ptr = ptr;
    chunk->bytes = bytes;
    chunk->region = region;
    region->ptr = ptr;
    region->bytes = bytes;
    region->piece_bytes =
        pool->ops.piece == NULL ? 0 : pool->ops.piece(pool->ctx, bytes);
    region->first = chunk;
    region->next = pool->regions;
    if (region->next != NULL) {
        region->next->prev = region;
    }
    pool->regions = region;
    sl_mem_pool_hold(pool, bytes);
    pool->n_region_allocs++;
    sl_mem_chunk_bin(pool, chunk);
    return region;
}

/* Give a region without a used chunk back. */
static void region_close(sl_mem_pool_t *pool, sl_mem_region_t *region)
{
    sl_mem_chunk_t *chunk = region->first;

    while (chunk != NULL) {
        sl_mem_chunk_t *next = chunk->next;

        if (chunk->owner == NULL) {
            sl_mem_chunk_unbin(pool, chunk);
        }
        chunk_give(pool, chunk);
        chunk = next;
    }
    if (region->prev != NULL) {
        region->prev->next = region->next;
    } else {
        pool->regions = region->next;
    }
    if (region->next != NULL) {
        region->next->prev = region->prev;
    }
    pool->ops.release(pool->ctx, region->ptr, region->bytes);
    pool->held_bytes -= sl_mem_region_held(region);
    free(region);
}

/* One more region with room for `bytes`: the growth step if limit and backing
 * allow, else all that the limit leaves (one piece packs better than many),
 * else what the backing gives by halving, at last exactly what is needed. */
static sl_mem_region_t *open_larger(sl_mem_pool_t *pool, size_t bytes)
{
    const size_t mask = pool->unit_bytes - 1;
    const size_t room = room_bytes(pool) & ~mask;
    const size_t need = sl_mem_pool_round_region(pool, bytes);
    size_t want = pool->next_region_bytes;
    sl_mem_region_t *region;

    if (need == 0 || need > room) {
        return NULL;
    }
    if (want < need && need <= SIZE_MAX - REGION_UNIT_BYTES) {
        want = (need + REGION_UNIT_BYTES - 1) & ~(REGION_UNIT_BYTES - 1);
    }
    want = sl_mem_pool_round_region(pool, want);
    want = want != 0 && want < room ? want : room;
    region = region_open(pool, want);
    while (region == NULL && want > need) {
        want = (want / 2) & ~mask;
        want = want > need ? want : need;
        region = region_open(pool, want);
    }
    if (region != NULL && pool->next_region_bytes < REGION_STEP_BYTES) {
        pool->next_region_bytes *= 2;
    }
    return region;
}

/* A free chunk of `bytes` that was not there: holes filled, or a region. */
static sl_mem_chunk_t *grow(sl_mem_pool_t *pool, size_t bytes)
{
    sl_mem_chunk_t *chunk = sl_mem_pool_fill(pool, bytes, room_bytes(pool));
    sl_mem_region_t *region;

    if (chunk != NULL) {
        return chunk;
    }
    region = open_larger(pool, bytes);
    return region == NULL ? NULL : region->first;
}

/* Bytes that can be given back: of regions without a used chunk, and of
 * pieces in the others. */
static size_t returnable_bytes(const sl_mem_pool_t *pool)
{
    const sl_mem_region_t *region;
    size_t bytes = 0;

    for (region = pool->regions; region != NULL; region = region->next) {
        bytes += region->used_bytes == 0 ? sl_mem_region_held(region)
                                         : sl_mem_region_trimmable(region);
    }
    return bytes;
}

/* Make room under the limit, or at the backing, for a region of `bytes`. */
static int make_room(sl_mem_pool_t *pool, size_t bytes)
{
    const size_t need = sl_mem_pool_round_region(pool, bytes);
    const size_t returnable = returnable_bytes(pool);
    size_t target;

    if (need == 0 || returnable == 0 || need > pool->limit_bytes ||
        pool->held_bytes - returnable > pool->limit_bytes - need) {
        return 0; /* would throw memory away and fail all the same */
    }
    if (pool->quiesce != NULL) {
        pool->quiesce(pool->quiesce_ctx);
    }
    if (room_bytes(pool) >= need) { /* it was the backing that refused */
        target = pool->held_bytes > need ? pool->held_bytes - need : 0;
        sl_mem_pool_give_back(pool, 0);
    } else {
        target = pool->limit_bytes - need;
        sl_mem_pool_give_back(pool, target);
    }
    sl_mem_pool_trim(pool, target);
    return 1;
}

int sl_mem_pool_add_region(sl_mem_pool_t *pool, size_t bytes)
{
    const size_t need = sl_mem_pool_round_region(pool, bytes);

    return need > 0 && need <= room_bytes(pool) &&
           region_open(pool, need) != NULL;
}

/* Whether to give region `a` back before `b`: the smallest that is enough
 * alone, else the largest. */
static int is_better_to_close(const sl_mem_region_t *a,
                              const sl_mem_region_t *b, size_t excess)
{
    const size_t held_a = sl_mem_region_held(a);
    const size_t held_b = b == NULL ? 0 : sl_mem_region_held(b);

    return b == NULL ||
           (held_a >= excess && (held_b < excess || held_a < held_b)) ||
           (held_a > held_b && held_b < excess);
}

/* Regions that are one hole: addresses alone. */
static void close_hollow(sl_mem_pool_t *pool)
{
    sl_mem_region_t *region = pool->regions;

    while (region != NULL) {
        sl_mem_region_t *next = region->next;

        if (sl_mem_region_held(region) == 0) {
            region_close(pool, region);
        }
        region = next;
    }
}

void sl_mem_pool_give_back(sl_mem_pool_t *pool, size_t target_bytes)
{
    close_hollow(pool);
    while (pool->held_bytes > target_bytes) {
        const size_t excess = pool->held_bytes - target_bytes;
        sl_mem_region_t *best = NULL;
        sl_mem_region_t *region;

        for (region = pool->regions; region != NULL; region = region->next) {
            if (region->used_bytes == 0 &&
                is_better_to_close(region, best, excess)) {
                best = region;
            }
        }
        if (best == NULL) {
            return;
        }
        region_close(pool, best);
        pool->next_region_bytes = REGION_MIN_BYTES; /* grow anew, gently */
    }
}

/* ---- the pool ---- */

void sl_mem_pool_init(sl_mem_pool_t *pool, const sl_mem_ops_t *ops, void *ctx,
                      size_t limit_bytes)
{
    memset(pool, 0, sizeof(*pool));
    /* an older, shorter table reads as "not provided" */
    memcpy(&pool->ops, ops,
           ops->size < sizeof(pool->ops) ? ops->size : sizeof(pool->ops));
    if (pool->ops.trim == NULL || pool->ops.fill == NULL) {
        pool->ops.piece = NULL;
    }
    pool->ctx = ctx;
    pool->limit_bytes = limit_bytes;
    pool->next_region_bytes = REGION_MIN_BYTES;
    pool->unit_bytes =
        pool->ops.unit == NULL ? SL_MEM_ALIGN_BYTES : pool->ops.unit(ctx);
}

void sl_mem_pool_cleanup(sl_mem_pool_t *pool)
{
    while (pool->regions != NULL) {
        sl_mem_region_t *region = pool->regions;

        pool->regions = region->next;
        pool->ops.release(pool->ctx, region->ptr, region->bytes);
        free(region);
    }
    while (pool->chunk_slabs != NULL) {
        chunk_slab_t *slab = pool->chunk_slabs;

        pool->chunk_slabs = slab->next;
        free(slab);
    }
}

sl_mem_chunk_t *sl_mem_pool_alloc(sl_mem_pool_t *pool, size_t bytes,
                                  void *owner, sl_mem_pool_end_t end)
{
    sl_mem_chunk_t *chunk = best_fit(pool, bytes, NULL);

    if (chunk == NULL) {
        chunk = grow(pool, bytes);
        if (chunk == NULL && make_room(pool, bytes)) {
            chunk = grow(pool, bytes);
        }
        if (chunk == NULL) {
            return NULL;
        }
    }
    return chunk_take(pool, chunk, bytes, owner, end);
}

sl_mem_chunk_t *sl_mem_pool_place(sl_mem_pool_t *pool, size_t bytes,
                                  void *owner, sl_mem_pool_end_t end,
                                  const sl_mem_region_t *avoid)
{
    sl_mem_chunk_t *chunk = best_fit(pool, bytes, avoid);

    return chunk == NULL ? NULL : chunk_take(pool, chunk, bytes, owner, end);
}

void sl_mem_pool_release(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk)
{
    chunk->owner = NULL;
    chunk->region->used_bytes -= chunk->bytes;
    pool->used_bytes -= chunk->bytes;
    if (chunk->next != NULL && chunk->next->owner == NULL) {
        sl_mem_chunk_unbin(pool, chunk->next);
        sl_mem_chunk_merge_next(pool, chunk);
    }
    if (chunk->prev != NULL && chunk->prev->owner == NULL) {
        chunk = chunk->prev;
        sl_mem_chunk_unbin(pool, chunk);
        sl_mem_chunk_merge_next(pool, chunk);
    }
    sl_mem_chunk_bin(pool, chunk);
}

sl_mem_chunk_t *sl_mem_pool_next_used(const sl_mem_region_t *region,
                                      const sl_mem_chunk_t *chunk)
{
    sl_mem_chunk_t *next = chunk == NULL ? region->first : chunk->next;

    while (next != NULL && !sl_mem_chunk_is_used(next)) {
        next = next->next;
    }
    return next;
}

size_t sl_mem_pool_largest_free(const sl_mem_pool_t *pool)
{
    const sl_mem_chunk_t *chunk;
    size_t word;
    size_t bin;

    if (pool->bin_summary == 0) {
        return 0;
    }
    word = 31 - (size_t)__builtin_clz(pool->bin_summary);
    bin = word * 64 + 63 - (size_t)__builtin_clzll(pool->bin_bits[word]);
    chunk = pool->bins[bin];
    while (chunk->bin_next != NULL) {
        chunk = chunk->bin_next;
    }
    return chunk->bytes;
}

size_t sl_mem_pool_touched(const sl_mem_pool_t *pool)
{
    const sl_mem_region_t *region;
    size_t bytes = 0;

    if (pool->ops.touched == NULL) {
        return pool->held_bytes;
    }
    for (region = pool->regions; region != NULL; region = region->next) {
        const size_t held = sl_mem_region_held(region);
        const size_t touched =
            pool->ops.touched(pool->ctx, region->ptr, region->bytes);

        bytes += touched < held ? touched : held; /* not told of holes */
    }
    return bytes;
}

static int region_is_valid(const sl_mem_region_t *region, size_t *n_free_p)
{
    const sl_mem_chunk_t *chunk;
    const unsigned char *at = region->ptr;
    size_t used = 0, holes = 0;

    for (chunk = region->first; chunk != NULL; chunk = chunk->next) {
        if (chunk->ptr != at || chunk->region != region || chunk->bytes == 0 ||
            chunk->bytes % SL_MEM_ALIGN_BYTES != 0 ||
            (chunk->next != NULL && chunk->next->prev != chunk) ||
            (!sl_mem_chunk_is_used(chunk) && chunk->next != NULL &&
             chunk->next->owner == chunk->owner)) {
            return 0;
        }
        at += chunk->bytes;
        used += sl_mem_chunk_is_used(chunk) ? chunk->bytes : 0;
        holes += chunk->owner == sl_mem_pool_hole ? chunk->bytes : 0;
        *n_free_p += chunk->owner == NULL;
    }
    return used == region->used_bytes && holes == region->hole_bytes &&
           (size_t)(at - (unsigned char *)region->ptr) == region->bytes;
}

int sl_mem_pool_is_valid(const sl_mem_pool_t *pool)
{
    const sl_mem_region_t *region;
    size_t held = 0;
    size_t used = 0;
    size_t n_free = 0;
    size_t n_binned = 0;
    size_t bin;

    for (region = pool->regions; region != NULL; region = region->next) {
        if (!region_is_valid(region, &n_free)) {
            return 0;
        }
        held += sl_mem_region_held(region);
        used += region->used_bytes;
    }
    for (bin = 0; bin < SL_MEM_POOL_BINS; bin++) {
        const int bit = (int)(pool->bin_bits[bin / 64] >> (bin % 64)) & 1;
        const sl_mem_chunk_t *chunk = pool->bins[bin];

        if (bit != (chunk != NULL)) {
            return 0;
        }
        for (; chunk != NULL; chunk = chunk->bin_next) {
            if (bin_of(chunk->bytes) != bin || chunk->owner != NULL ||
                (chunk->bin_next != NULL &&
                 chunk->bin_next->bytes < chunk->bytes)) {
                return 0;
            }
            n_binned++;
        }
    }
    return n_binned == n_free && held == pool->held_bytes &&
           used == pool->used_bytes && held <= pool->limit_bytes;
}
