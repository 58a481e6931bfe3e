/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory_bed.h
 * A backing for allocator tests that counts and refuses when told: host
 * memory, or with SL_TESTS_MEMORY_CUDA a CUDA device's (1: whole regions, 2:
 * regions that give parts back), which tests touch with bed_put(), bed_get()
 * and bed_set() only.
 */
#ifndef SL_TESTS_MEMORY_BED_H
#define SL_TESTS_MEMORY_BED_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "tests/support/sl_test.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

#ifdef SL_TESTS_MEMORY_CUDA
#include "memory/cuda.h"
#include "standin.h"

/* Device 0, for the process. */
static inline void *bed_backing_ctx(void)
{
    static sl_mem_cuda_t *cuda;

    if (cuda == NULL) {
        standin_set_granularity(SL_TESTS_MEMORY_CUDA == 2 ? 4096 : 0);
        sl_assert_ok(sl_mem_cuda_create(0, &cuda));
    }
    return cuda;
}

static inline const sl_mem_ops_t *bed_backing(void)
{
    return sl_mem_ops_cuda();
}

static inline void bed_put(void *to, const void *from, size_t bytes)
{
    sl_assert_ok(bed_backing()->copy(bed_backing_ctx(), to, from, bytes));
}

/* For tests of what only memory of the CPU does. */
#define BED_HOST_ONLY() skip()
#if SL_TESTS_MEMORY_CUDA == 2
/* For tests of what regions that stay whole stand in the way of. */
#define BED_WHOLE_ONLY() skip()
#endif
#else
static inline void *bed_backing_ctx(void)
{
    return NULL;
}

static inline const sl_mem_ops_t *bed_backing(void)
{
    return sl_mem_ops_host();
}

static inline void bed_put(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

#define BED_HOST_ONLY() ((void)0)
#endif
#ifndef BED_WHOLE_ONLY
#define BED_WHOLE_ONLY() ((void)0)
#endif

/* Copy into a block's memory, out of it, and fill it. */
static inline void bed_get(void *to, const void *from, size_t bytes)
{
    bed_put(to, from, bytes);
}

static inline void bed_set(void *to, int value, size_t bytes)
{
    unsigned char image[4096];
    unsigned char *at = to;
    size_t i;

    memset(image, value, sizeof(image));
    for (i = 0; i < bytes; i += sizeof(image)) {
        bed_put(at + i, image,
                bytes - i < sizeof(image) ? bytes - i : sizeof(image));
    }
}

enum {
    BED_HOLES = 256,
    BED_BEGUN = 2048
};

typedef struct bed {
    atomic_size_t held_bytes;
    atomic_int n_live;
    atomic_int n_calls;
    int fail_at;      /* call number from 1 that is refused; 0 = none */
    int fail_from;    /* every call from this number on; 0 = none */
    size_t max_bytes; /* larger regions are refused; 0 = any */
    int n_copies;
    int fail_copies;
    /* copies that are begun and made when they are waited for */
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } begun[BED_BEGUN];
    int n_begun;
    int n_begins; /* ever */
    int n_waits;
    int fail_waits;
    /* what regions gave back of themselves; the allocator's lock guards it */
    struct {
        const void *region;
        size_t bytes;
    } holes[BED_HOLES];
} bed_t;

/* Bytes of the region that are not held: its entry, made when there is none.
 */
static inline size_t *bed_hole(bed_t *bed, const void *region)
{
    int i, free_entry = -1;

    for (i = 0; i < BED_HOLES; i++) {
        if (bed->holes[i].bytes > 0 && bed->holes[i].region == region) {
            return &bed->holes[i].bytes;
        }
        free_entry = bed->holes[i].bytes == 0 ? i : free_entry;
    }
    assert_true(free_entry >= 0);
    bed->holes[free_entry].region = region;
    return &bed->holes[free_entry].bytes;
}

static inline sl_status_t bed_alloc(void *ctx, size_t bytes, void **ptr_p)
{
    bed_t *bed = ctx;
    const int call = atomic_fetch_add(&bed->n_calls, 1) + 1;
    sl_status_t status;

    if (call == bed->fail_at ||
        (bed->fail_from > 0 && call >= bed->fail_from) ||
        (bed->max_bytes > 0 && bytes > bed->max_bytes)) {
        return SL_ERR_NO_MEMORY;
    }
    status = bed_backing()->alloc(bed_backing_ctx(), bytes, ptr_p);
    if (status == SL_OK) {
        atomic_fetch_add(&bed->held_bytes, bytes);
        atomic_fetch_add(&bed->n_live, 1);
    }
    return status;
}

static inline void bed_release(void *ctx, void *ptr, size_t bytes)
{
    bed_t *bed = ctx;
    size_t *hole = bed_hole(bed, ptr);

    atomic_fetch_sub(&bed->held_bytes, bytes - *hole);
    atomic_fetch_sub(&bed->n_live, 1);
    *hole = 0;
    bed_backing()->release(bed_backing_ctx(), ptr, bytes);
}

static inline sl_status_t bed_copy(void *ctx, void *to, const void *from,
                                   size_t bytes)
{
    bed_t *bed = ctx;

    bed->n_copies++;
    if (bed->fail_copies) {
        return SL_ERR_DEVICE;
    }
    bed_put(to, from, bytes);
    return SL_OK;
}

static inline sl_status_t bed_copy_begin(void *ctx, void *to, const void *from,
                                         size_t bytes)
{
    bed_t *bed = ctx;

    bed->n_copies++;
    if (bed->fail_copies) {
        return SL_ERR_DEVICE;
    }
    assert_true(bed->n_begun < BED_BEGUN);
    bed->begun[bed->n_begun].to = to;
    bed->begun[bed->n_begun].from = from;
    bed->begun[bed->n_begun].bytes = bytes;
    bed->n_begun++;
    bed->n_begins++;
    return SL_OK;
}

static inline sl_status_t bed_copy_wait(void *ctx)
{
    bed_t *bed = ctx;
    int i;

    bed->n_waits++;
    for (i = 0; i < bed->n_begun && !bed->fail_waits; i++) {
        bed_put(bed->begun[i].to, bed->begun[i].from, bed->begun[i].bytes);
    }
    bed->n_begun = 0;
    return bed->fail_waits ? SL_ERR_DEVICE : SL_OK;
}

static inline size_t bed_touched(void *ctx, const void *ptr, size_t bytes)
{
    (void)ctx;
    return bed_backing()->touched == NULL
               ? bytes
               : bed_backing()->touched(bed_backing_ctx(), ptr, bytes);
}

static inline size_t bed_unit(void *ctx)
{
    (void)ctx;
    return bed_backing()->unit == NULL ? (size_t)SL_MEM_ALIGN_BYTES
                                       : bed_backing()->unit(bed_backing_ctx());
}

static inline size_t bed_piece(void *ctx, size_t bytes)
{
    (void)ctx;
    return bed_backing()->piece == NULL
               ? 0
               : bed_backing()->piece(bed_backing_ctx(), bytes);
}

static inline sl_status_t bed_trim(void *ctx, void *region, size_t offset,
                                   size_t bytes)
{
    bed_t *bed = ctx;
    const sl_status_t status =
        bed_backing()->trim(bed_backing_ctx(), region, offset, bytes);

    if (status == SL_OK) {
        atomic_fetch_sub(&bed->held_bytes, bytes);
        *bed_hole(bed, region) += bytes;
    }
    return status;
}

static inline sl_status_t bed_refill(void *ctx, void *region, size_t offset,
                                     size_t bytes)
{
    bed_t *bed = ctx;
    const int call = atomic_fetch_add(&bed->n_calls, 1) + 1;
    sl_status_t status;

    if (call == bed->fail_at ||
        (bed->fail_from > 0 && call >= bed->fail_from)) {
        return SL_ERR_NO_MEMORY;
    }
    status = bed_backing()->fill(bed_backing_ctx(), region, offset, bytes);
    if (status == SL_OK) {
        atomic_fetch_add(&bed->held_bytes, bytes);
        *bed_hole(bed, region) -= bytes;
    }
    return status;
}

static const sl_mem_ops_t bed_ops = {
    .size = sizeof(sl_mem_ops_t),
    .name = "bed",
    .alloc = bed_alloc,
    .release = bed_release,
    .copy = bed_copy,
    .touched = bed_touched,
    .unit = bed_unit,
    .piece = bed_piece,
    .trim = bed_trim,
    .fill = bed_refill,
    .copy_begin = bed_copy_begin,
    .copy_wait = bed_copy_wait,
};

/* An allocator on the bed; `host_limit` bytes of plain host memory behind. */
static inline sl_mem_t *bed_mem(bed_t *bed, size_t limit, size_t host_limit)
{
    sl_mem_params_t params;
    sl_mem_t *mem = NULL;

    sl_mem_params_default(&params);
    params.name = "bed";
    params.device = &bed_ops;
    params.device_ctx = bed;
    params.limit_bytes = limit;
    params.host_limit_bytes = host_limit;
#ifdef SL_TESTS_MEMORY_CUDA
    params.host = sl_mem_ops_cuda_host();
    params.host_ctx = bed_backing_ctx();
#endif
    sl_assert_ok(sl_mem_create(&params, &mem));
    return mem;
}

static inline sl_mem_block_t *bed_block(sl_mem_t *mem, sl_mem_class_t mem_class,
                                        size_t bytes)
{
    sl_mem_block_t *block = NULL;

    sl_assert_ok(sl_mem_alloc(mem, mem_class, bytes, &block));
    assert_non_null(block);
    assert_int_equal((uintptr_t)block->ptr % SL_MEM_ALIGN_BYTES, 0);
    assert_int_equal(block->bytes, bytes);
    return block;
}

enum {
    BED_CHUNK = 4096
};

/* A part of a pattern that depends on the seed and the place. */
static inline size_t bed_pattern(const sl_mem_block_t *block, unsigned seed,
                                 size_t start, unsigned char *chunk)
{
    const size_t rest = block->bytes - start;
    const size_t n = rest < BED_CHUNK ? rest : (size_t)BED_CHUNK;
    size_t i;

    for (i = start; i < start + n; i++) {
        chunk[i - start] = (unsigned char)(seed * 31u + i * 7u + (i >> 8));
    }
    return n;
}

static inline void bed_fill(const sl_mem_block_t *block, unsigned seed)
{
    unsigned char *bytes = block->ptr;
    unsigned char chunk[BED_CHUNK];
    size_t i;

    for (i = 0; i < block->bytes; i += BED_CHUNK) {
        const size_t n = bed_pattern(block, seed, i, chunk);

        bed_put(bytes + i, chunk, n);
    }
}

static inline int bed_is_filled(const sl_mem_block_t *block, unsigned seed)
{
    const unsigned char *bytes = block->ptr;
    unsigned char chunk[BED_CHUNK], got[BED_CHUNK];
    size_t i;

    for (i = 0; i < block->bytes; i += BED_CHUNK) {
        const size_t n = bed_pattern(block, seed, i, chunk);

        bed_get(got, bytes + i, n);
        if (memcmp(got, chunk, n) != 0) {
            return 0;
        }
    }
    return 1;
}

/* Ask, apply, return what is in force. */
static inline size_t bed_limit(sl_mem_t *mem, size_t limit)
{
    sl_mem_stats_t stats;
    size_t reached = 0;

    sl_mem_limit_request(mem, limit);
    sl_mem_boundary(mem, &reached);
    sl_mem_stats(mem, &stats);
    assert_int_equal(stats.limit_bytes, reached);
    assert_true(stats.held_bytes <= reached);
    return reached;
}

static inline sl_mem_stats_t bed_stats(const sl_mem_t *mem)
{
    sl_mem_stats_t stats;

    sl_mem_stats(mem, &stats);
    return stats;
}

/* Of the process. */
static inline size_t bed_resident_bytes(void)
{
    FILE *stream = fopen("/proc/self/statm", "r");
    unsigned long total = 0;
    unsigned long resident = 0;

    assert_non_null(stream);
    assert_int_equal(fscanf(stream, "%lu %lu", &total, &resident), 2);
    (void)fclose(stream);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

#endif /* SL_TESTS_MEMORY_BED_H */
