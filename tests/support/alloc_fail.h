/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file alloc_fail.h
 * Host allocations that fail on demand, for tests registered with WRAP_ALLOC:
 * the linker sends the malloc, calloc, realloc, aligned_alloc and
 * posix_memalign of our code and of the test here. Those inside shared
 * libraries are not seen. Thread safe.
 *
 * A create path is swept by failing allocation 0, 1, 2, ... until none is
 * left to fail:
 *
 *     for (n = 0, is_hit = 1; is_hit; n++) {
 *         sl_test_alloc_fail_at(n);
 *         status = sl_thing_create(&thing);
 *         is_hit = sl_test_alloc_fail_end();
 *         ... status is SL_ERR_NO_MEMORY if hit, else SL_OK ...
 *     }
 *
 * Leaks on the way are the leak checker's to find.
 */
#ifndef SL_TESTS_SUPPORT_ALLOC_FAIL_H
#define SL_TESTS_SUPPORT_ALLOC_FAIL_H

/** Let the n-th allocation from now (the next is 0) fail, once. */
void sl_test_alloc_fail_at(long n);

/** Let all succeed again. Returns whether the failure happened. */
int sl_test_alloc_fail_end(void);

/** Allocations since the program began, failed ones too. */
long sl_test_alloc_count(void);

#endif /* SL_TESTS_SUPPORT_ALLOC_FAIL_H */
