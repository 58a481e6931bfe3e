/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sl_test.h
 * What every test includes: cmocka, log capture, comparisons.
 *
 * Use sl_test_setup and sl_test_teardown as the fixture: an unexpected warn
 * or error message fails the test.
 */
#ifndef SL_TESTS_SUPPORT_SL_TEST_H
#define SL_TESTS_SUPPORT_SL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"

/** Test with the fixture. */
#define sl_unit_test(f)                                                        \
    cmocka_unit_test_setup_teardown(f, sl_test_setup, sl_test_teardown)

int sl_test_setup(void **state);
int sl_test_teardown(void **state);

/** Take the captured warn and error lines (joined by newlines) off the
 *  record: the test expected them. Borrowed until the next message. */
const char *sl_test_log_take(void);

/** Fail unless `call` returns SL_OK; shows sl_last_error(). */
#define sl_assert_ok(call)                                                     \
    sl_test_assert_status((call), SL_OK, #call, __FILE__, __LINE__)
/** Fail unless `call` returns `status`; takes the log. */
#define sl_assert_status(call, status)                                         \
    sl_test_assert_status((call), (status), #call, __FILE__, __LINE__)
void sl_test_assert_status(sl_status_t got, sl_status_t want, const char *call,
                           const char *file, int line);

/** Fail unless the text contains the part. */
#define sl_assert_contains(text, part)                                         \
    sl_test_assert_contains((text), (part), __FILE__, __LINE__)
void sl_test_assert_contains(const char *text, const char *part,
                             const char *file, int line);

/** Fail unless |a - b| <= absolute + relative * |b| everywhere; NaN fails. */
#define sl_assert_close(a, b, n, relative, absolute)                           \
    sl_test_assert_close((a), (b), (n), (relative), (absolute), __FILE__,      \
                         __LINE__)
void sl_test_assert_close(const float *a, const float *b, size_t n,
                          double relative, double absolute, const char *file,
                          int line);

/** Path of a file in the test data folder (SLUICE_TEST_DATA), or NULL, in
 *  which case call skip(). Borrowed until the next call. */
const char *sl_test_data(const char *name);

/** A fresh directory for the test's files, removed by the teardown. */
const char *sl_test_directory(void);

#endif /* SL_TESTS_SUPPORT_SL_TEST_H */
