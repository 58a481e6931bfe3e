/* SPDX-License-Identifier: Apache-2.0 */
/* Holes: pieces of free chunks whose memory went back to the system while
 * the rest of their region stays. */
#include "memory/pool.h"

char sl_mem_pool_hole[1];

/* The whole pieces inside a free chunk: where they start in the region, and
 * how many bytes they are. */
static size_t pieces_of(const sl_mem_chunk_t *chunk, size_t *offset_p)
{
    const sl_mem_region_t *region = chunk->region;
    const size_t piece = region->piece_bytes;
    const size_t begin = (size_t)(chunk->ptr - (unsigned char *)region->ptr);
    const size_t end = begin + chunk->bytes;
    size_t from, to;

    if (piece == 0 || chunk->owner != NULL) {
        return 0;
    }
    from = (begin + piece - 1) / piece * piece;
    to = end == region->bytes ? end : end / piece * piece;
    *offset_p = from;
    return to > from ? to - from : 0;
}

size_t sl_mem_region_trimmable(const sl_mem_region_t *region)
{
    const sl_mem_chunk_t *chunk;
    size_t bytes = 0, offset;

    if (region->piece_bytes == 0) {
        return 0;
    }
    for (chunk = region->first; chunk != NULL; chunk = chunk->next) {
        bytes += pieces_of(chunk, &offset);
    }
    return bytes;
}

/* Cut [ptr, ptr + bytes) out of a free chunk in no bin. The parts around it
 * stay free, in no bin. NULL, and the chunk whole, without records. */
static sl_mem_chunk_t *cut_out(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk,
                               unsigned char *ptr, size_t bytes)
{
    sl_mem_chunk_t *middle = chunk;

    if (ptr > chunk->ptr) {
        middle = sl_mem_chunk_split(pool, chunk, (size_t)(ptr - chunk->ptr));
        if (middle == NULL) {
            return NULL;
        }
    }
    if (middle->bytes > bytes &&
        sl_mem_chunk_split(pool, middle, bytes) == NULL) {
        if (middle != chunk) {
            sl_mem_chunk_merge_next(pool, chunk);
        }
        return NULL;
    }
    return middle;
}

/* The chunk, in no bin, and its free neighbours in no bin: together again. */
static void put_back(sl_mem_pool_t *pool, sl_mem_chunk_t *first,
                     const unsigned char *end)
{
    while (first->ptr + first->bytes < end) {
        sl_mem_chunk_merge_next(pool, first);
    }
    sl_mem_chunk_bin(pool, first);
}

/* A chunk that has just become a hole joins the holes beside it. */
static void join_holes(sl_mem_pool_t *pool, sl_mem_chunk_t *hole)
{
    if (hole->next != NULL && hole->next->owner == sl_mem_pool_hole) {
        sl_mem_chunk_merge_next(pool, hole);
    }
    if (hole->prev != NULL && hole->prev->owner == sl_mem_pool_hole) {
        sl_mem_chunk_merge_next(pool, hole->prev);
    }
}

/* Give back pieces of a free chunk, at its high end, as far as they are
 * `excess` bytes. */
static void chunk_trim(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk,
                       size_t excess)
{
    sl_mem_region_t *region = chunk->region;
    unsigned char *const end = chunk->ptr + chunk->bytes;
    sl_mem_chunk_t *hole;
    size_t offset = 0;
    size_t bytes = pieces_of(chunk, &offset);

    if (bytes == 0) {
        return;
    }
    if (excess < bytes) {
        const size_t kept =
            (bytes - excess) / region->piece_bytes * region->piece_bytes;

        offset += kept;
        bytes -= kept;
    }
    sl_mem_chunk_unbin(pool, chunk);
    hole = cut_out(pool, chunk, (unsigned char *)region->ptr + offset, bytes);
    if (hole == NULL ||
        pool->ops.trim(pool->ctx, region->ptr, offset, bytes) != SL_OK) {
        put_back(pool, chunk, end);
        return;
    }
    hole->owner = sl_mem_pool_hole;
    region->hole_bytes += bytes;
    pool->held_bytes -= bytes;
    pool->trimmed_bytes += bytes;
    if (hole != chunk) {
        sl_mem_chunk_bin(pool, chunk);
    }
    if (hole->ptr + hole->bytes < end) {
        sl_mem_chunk_bin(pool, hole->next);
    }
    join_holes(pool, hole);
}

void sl_mem_pool_trim(sl_mem_pool_t *pool, size_t target_bytes)
{
    size_t bin;

    if (pool->ops.piece == NULL) {
        return;
    }
    /* what is left of a chunk goes to this bin or a lower one */
    for (bin = SL_MEM_POOL_BINS; bin-- > 0;) {
        sl_mem_chunk_t *chunk = pool->bins[bin];

        while (chunk != NULL && pool->held_bytes > target_bytes) {
            sl_mem_chunk_t *next = chunk->bin_next;

            chunk_trim(pool, chunk, pool->held_bytes - target_bytes);
            chunk = next;
        }
        if (pool->held_bytes <= target_bytes) {
            return;
        }
    }
}

/* ---- fill ---- */

/* Neighbours that are free or holes. */
typedef struct run {
    sl_mem_chunk_t *first; /* NULL = none */
    size_t bytes;
    size_t hole_bytes; /* of them */
} run_t;

/* The run that starts at `chunk`, which is not in use. */
static run_t run_at(sl_mem_chunk_t *chunk)
{
    run_t run = {.first = chunk};

    for (; chunk != NULL && !sl_mem_chunk_is_used(chunk); chunk = chunk->next) {
        run.bytes += chunk->bytes;
        run.hole_bytes += chunk->owner == sl_mem_pool_hole ? chunk->bytes : 0;
    }
    return run;
}

/* The run of the region that has `bytes` with the least to fill, when that
 * is less than `best` has. */
static run_t better_run(const sl_mem_region_t *region, size_t bytes,
                        size_t room_bytes, run_t best)
{
    sl_mem_chunk_t *chunk = region->first;

    while (chunk != NULL) {
        if (!sl_mem_chunk_is_used(chunk)) {
            const run_t run = run_at(chunk);

            if (run.bytes >= bytes && run.hole_bytes <= room_bytes &&
                (best.first == NULL || run.hole_bytes < best.hole_bytes)) {
                best = run;
            }
            while (chunk->next != NULL && !sl_mem_chunk_is_used(chunk->next)) {
                chunk = chunk->next;
            }
        }
        chunk = chunk->next;
    }
    return best;
}

/* Memory for the low end of a hole, `most` bytes in whole pieces; it becomes
 * a free chunk in no bin. Without a record for the rest all of it is filled. */
static int fill_hole(sl_mem_pool_t *pool, sl_mem_chunk_t *hole, size_t most)
{
    sl_mem_region_t *region = hole->region;
    const size_t piece = region->piece_bytes;
    const size_t offset = (size_t)(hole->ptr - (unsigned char *)region->ptr);
    sl_mem_chunk_t *rest = NULL;

    if (most < hole->bytes && piece < hole->bytes - most) {
        rest =
            sl_mem_chunk_split(pool, hole, (most + piece - 1) / piece * piece);
    }
    if (rest != NULL) {
        rest->owner = sl_mem_pool_hole;
    }
    if (pool->ops.fill(pool->ctx, region->ptr, offset, hole->bytes) != SL_OK) {
        if (rest != NULL) {
            sl_mem_chunk_merge_next(pool, hole);
        }
        return 0;
    }
    hole->owner = NULL;
    region->hole_bytes -= hole->bytes;
    sl_mem_pool_hold(pool, hole->bytes);
    return 1;
}

/* Take a chunk that is not in use out of its bin, filled, `most` bytes of it
 * when it is a hole. */
static int take_out(sl_mem_pool_t *pool, sl_mem_chunk_t *chunk, size_t most)
{
    if (chunk->owner == sl_mem_pool_hole) {
        return fill_hole(pool, chunk, most);
    }
    sl_mem_chunk_unbin(pool, chunk);
    return 1;
}

/* No more than the growth step, which is a region's, or what is needed. */
sl_mem_chunk_t *sl_mem_pool_fill(sl_mem_pool_t *pool, size_t bytes,
                                 size_t room_bytes)
{
    const size_t want =
        bytes > pool->next_region_bytes ? bytes : pool->next_region_bytes;
    run_t run = {.first = NULL};
    sl_mem_region_t *region;
    sl_mem_chunk_t *chunk;
    int is_filled = 1;

    for (region = pool->regions; region != NULL; region = region->next) {
        if (region->hole_bytes > 0) {
            run = better_run(region, bytes, room_bytes, run);
        }
    }
    chunk = run.first;
    if (chunk == NULL || !take_out(pool, chunk, want)) {
        return NULL;
    }
    while (is_filled && chunk->next != NULL &&
           (chunk->next->owner == NULL ||
            (chunk->next->owner == sl_mem_pool_hole && chunk->bytes < want))) {
        is_filled = take_out(pool, chunk->next, want - chunk->bytes);
        if (is_filled) {
            sl_mem_chunk_merge_next(pool, chunk);
        }
    }
    sl_mem_chunk_bin(pool, chunk);
    return is_filled || chunk->bytes >= bytes ? chunk : NULL;
}
