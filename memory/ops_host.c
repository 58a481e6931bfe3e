/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of host memory, mapped from the system and unmapped on release, so
 * that the resident size really falls. MAP_ANONYMOUS and madvise are not in
 * POSIX: this file asks the C library for more than the rest of the code. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memory.h"

#define HUGE_BYTES ((size_t)2 << 20)

static size_t page_round(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return bytes > SIZE_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

static void *map(size_t bytes)
{
    void *ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return ptr == MAP_FAILED ? NULL : ptr;
}

/* Map more and cut both ends off, so that huge pages can back all of it. */
static void *map_huge(size_t bytes)
{
    unsigned char *base;
    unsigned char *ptr;
    size_t head;

    if (bytes > SIZE_MAX - HUGE_BYTES) {
        return NULL;
    }
    base = map(bytes + HUGE_BYTES);
    if (base == NULL) {
        return map(bytes);
    }
    head = (HUGE_BYTES - (uintptr_t)base % HUGE_BYTES) % HUGE_BYTES;
    ptr = base + head;
    if (head > 0) {
        (void)munmap(base, head);
    }
    (void)munmap(ptr + bytes, HUGE_BYTES - head);
#ifdef MADV_HUGEPAGE
    (void)madvise(ptr, bytes, MADV_HUGEPAGE); /* only advice */
#endif
    return ptr;
}

static sl_status_t host_alloc(void *ctx, size_t bytes, void **ptr_p)
{
    const size_t mapped = page_round(bytes);
    void *ptr = NULL;

    (void)ctx;
    if (mapped > 0) {
        ptr = mapped >= HUGE_BYTES ? map_huge(mapped) : map(mapped);
    }
    if (ptr == NULL) {
        return SL_ERR_NO_MEMORY;
    }
    *ptr_p = ptr;
    return SL_OK;
}

static void host_release(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)munmap(ptr, page_round(bytes));
}

/* ---- parts of regions ---- */

/* Huge pages go back whole: a part of one frees nothing until all of it is
 * unused. */
static size_t host_piece(void *ctx, size_t bytes)
{
    (void)ctx;
    return page_round(bytes) >= HUGE_BYTES ? HUGE_BYTES
                                           : (size_t)sysconf(_SC_PAGESIZE);
}

static sl_status_t host_trim(void *ctx, void *region, size_t offset,
                             size_t bytes)
{
    (void)ctx;
    /* fails on memory that somebody has locked */
    return madvise((unsigned char *)region + offset, page_round(bytes),
                   MADV_DONTNEED) == 0
               ? SL_OK
               : SL_ERR_UNSUPPORTED;
}

/* Pages come back, as zeros, when they are touched. */
static sl_status_t host_fill(void *ctx, void *region, size_t offset,
                             size_t bytes)
{
    (void)ctx;
    (void)region;
    (void)offset;
    (void)bytes;
    return SL_OK;
}

/* The kernel says which pages are there, a batch at a time. */
static size_t host_touched(void *ctx, const void *ptr, size_t bytes)
{
    enum {
        BATCH_PAGES = 4096
    };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char present[BATCH_PAGES];
    uintptr_t at = (uintptr_t)ptr;
    const uintptr_t end = at + page_round(bytes);
    size_t n_present = 0;

    (void)ctx;
    while (at < end) {
        const size_t left = (end - at) / page;
        const size_t n = left < BATCH_PAGES ? left : BATCH_PAGES;
        size_t i;

        if (mincore((void *)at, n * page, present) != 0) {
            return bytes; /* not known: the most it can be */
        }
        for (i = 0; i < n; i++) {
            n_present += present[i] & 1;
        }
        at += n * page;
    }
    return n_present * page < bytes ? n_present * page : bytes;
}

const sl_mem_ops_t *sl_mem_ops_host(void)
{
    static const sl_mem_ops_t ops = {
        .size = sizeof(sl_mem_ops_t),
        .name = "host",
        .alloc = host_alloc,
        .release = host_release,
        .touched = host_touched,
    };

    return &ops;
}

const sl_mem_ops_t *sl_mem_ops_host_pool(void)
{
    static const sl_mem_ops_t ops = {
        .size = sizeof(sl_mem_ops_t),
        .name = "host pool",
        .alloc = host_alloc,
        .release = host_release,
        .touched = host_touched,
        .piece = host_piece,
        .trim = host_trim,
        .fill = host_fill,
    };

    return &ops;
}
