/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation failures through the linker's --wrap. */
#include "tests/support/alloc_fail.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

/* names that --wrap=NAME gives: calls go to __wrap_, the old one is __real_ */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **ptr_p, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **ptr_p, size_t alignment, size_t bytes);

static atomic_long n_allocations;
static atomic_long n_until_failure = -1; /* < 0: none is due */
static atomic_int is_hit;

void sl_test_alloc_fail_at(long n)
{
    atomic_store(&is_hit, 0);
    atomic_store(&n_until_failure, n);
}

int sl_test_alloc_fail_end(void)
{
    atomic_store(&n_until_failure, -1);
    return atomic_exchange(&is_hit, 0);
}

long sl_test_alloc_count(void)
{
    return atomic_load(&n_allocations);
}

static int must_fail(void)
{
    long left = atomic_load(&n_until_failure);

    (void)atomic_fetch_add(&n_allocations, 1);
    while (left >= 0) {
        if (atomic_compare_exchange_weak(&n_until_failure, &left, left - 1)) {
            if (left == 0) {
                atomic_store(&is_hit, 1);
                errno = ENOMEM;
            }
            return left == 0;
        }
    }
    return 0;
}

void *__wrap_malloc(size_t bytes)
{
    return must_fail() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return must_fail() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return must_fail() ? NULL : __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return must_fail() ? NULL : __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **ptr_p, size_t alignment, size_t bytes)
{
    return must_fail() ? ENOMEM
                       : __real_posix_memalign(ptr_p, alignment, bytes);
}
