/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time and deadlines. */
#include "base/clock.h"

#include "tests/support/sl_test.h"

static uint64_t nanoseconds(struct timespec at)
{
    return (uint64_t)at.tv_sec * UINT64_C(1000000000) + (uint64_t)at.tv_nsec;
}

static void clock_never_goes_back(void **state)
{
    uint64_t before = sl_clock_ns();
    int i;

    (void)state;
    assert_true(before > 0);
    for (i = 0; i < 10000; i++) {
        const uint64_t now = sl_clock_ns();

        assert_true(now >= before);
        before = now;
    }
}

static void deadline_is_after_now(void **state)
{
    const uint64_t timeout_ns = UINT64_C(3999999999);
    const uint64_t before = sl_clock_ns();
    const struct timespec at = sl_clock_deadline(timeout_ns);
    const uint64_t after = sl_clock_ns();

    (void)state;
    assert_true(at.tv_nsec >= 0 && at.tv_nsec < 1000000000);
    assert_true(nanoseconds(at) >= before + timeout_ns);
    assert_true(nanoseconds(at) <= after + timeout_ns);
}

static void endless_timeout_does_not_wrap(void **state)
{
    (void)state;
    assert_true(nanoseconds(sl_clock_deadline(UINT64_MAX)) > sl_clock_ns());
    assert_true(nanoseconds(sl_clock_deadline(INT64_MAX)) > sl_clock_ns());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(clock_never_goes_back),
        sl_unit_test(deadline_is_after_now),
        sl_unit_test(endless_timeout_does_not_wrap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
