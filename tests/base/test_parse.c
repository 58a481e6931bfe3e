/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and sizes: what is read, what is refused, what the message says. */
#include "base/parse.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/sl_test.h"

static void refuse_int(const char *text, int64_t min, int64_t max,
                       const char *message)
{
    int64_t value = 77;

    sl_assert_status(sl_parse_int("batch", text, min, max, &value),
                     SL_ERR_INVALID_ARG);
    assert_true(value == 77);
    sl_assert_contains(sl_last_error(), "batch: ");
    sl_assert_contains(sl_last_error(), message);
}

static void integers_are_read(void **state)
{
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-0", 0},
                {"7", 7},
                {"-7", -7},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN},
                {"1000000", 1000000}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(good) / sizeof(*good); i++) {
        int64_t value = 77;

        sl_assert_ok(
            sl_parse_int("n", good[i].text, INT64_MIN, INT64_MAX, &value));
        assert_true(value == good[i].value);
    }
}

static void integers_are_refused(void **state)
{
    static const char *const bad[] = {
        "",    " ",   "1 ",   " 1",  "+1",   "01",  "-01", "00",
        "1.0", "1e3", "0x10", "1_0", "-",    "--1", "1-",  "a",
        "1a",  "1,0", "\t1",  "1\n", "\xD9", "inf", "nan", "0b1"};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        refuse_int(bad[i], INT64_MIN, INT64_MAX, "is not an integer; allowed:");
    }
    refuse_int(NULL, 0, 1, "no value given");
}

static void integer_range_is_inclusive_and_named(void **state)
{
    int64_t value = 0;

    (void)state;
    sl_assert_ok(sl_parse_int("n", "1", 1, 64, &value));
    sl_assert_ok(sl_parse_int("n", "64", 1, 64, &value));
    refuse_int("0", 1, 64, "0 is out of range; allowed: an integer from 1 to");
    refuse_int("65", 1, 64, "from 1 to 64");
    refuse_int("-1", 0, INT64_MAX,
               "-1 is out of range; allowed: an integer "
               "of at least 0");
    refuse_int("1", INT64_MIN, 0, "of at most 0");
    refuse_int("9223372036854775808", INT64_MIN, INT64_MAX, "of 64 bits");
    refuse_int("-9223372036854775809", INT64_MIN, INT64_MAX, "of 64 bits");
    refuse_int("99999999999999999999999999", 0, 9, "from 0 to 9");
}

static void refuse_float(const char *text, double min, double max,
                         const char *message)
{
    double value = 77;

    sl_assert_status(sl_parse_float("lr", text, min, max, &value),
                     SL_ERR_INVALID_ARG);
    assert_true(value >= 77 && value <= 77);
    sl_assert_contains(sl_last_error(), "lr: ");
    sl_assert_contains(sl_last_error(), message);
}

static void floats_are_read(void **state)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0},          {"0.1", 0.1},     {"1e-3", 1e-3},
                {"-2.5E+2", -250}, {"1e308", 1e308}, {"3", 3},
                {"0.0", 0},        {"-0", 0},        {"0e9999", 0},
                {"5e-324", 5e-324}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(good) / sizeof(*good); i++) {
        double value = 77;

        sl_assert_ok(
            sl_parse_float("x", good[i].text, -DBL_MAX, DBL_MAX, &value));
        assert_true(value >= good[i].value && value <= good[i].value);
    }
}

static void floats_are_refused(void **state)
{
    static const char *const bad[] = {
        "",     ".5",   "5.",   "+1",   "1e",   "1e+", "e5",  "0x1p3",
        "inf",  "nan",  "-inf", "1,5",  " 1",   "1 ",  "--1", "1.2.3",
        "1e5e", "1e.5", "01.5", "1.5f", "1_0.", "-",   ".",   "infinity"};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        refuse_float(bad[i], -HUGE_VAL, HUGE_VAL,
                     "is not a number; allowed: a decimal number");
    }
    refuse_float(NULL, 0, 1, "no value given");
    refuse_float("1e999", -HUGE_VAL, HUGE_VAL,
                 "1e999 is out of range; "
                 "allowed: a number that is");
    refuse_float("-1e999", -HUGE_VAL, HUGE_VAL, "out of range");
    refuse_float("1e-999", -HUGE_VAL, HUGE_VAL, "out of range");
    refuse_float("-0.1", 0, HUGE_VAL, "of at least 0");
    refuse_float("1.5", 0, 1, "from 0 to 1");
    refuse_float("1.5", -HUGE_VAL, 1, "of at most 1");
    refuse_float("nan", 0, 1, "not a number");
}

/* Whether or not a locale with a decimal comma is there, one is asked for. */
static void floats_ignore_the_locale(void **state)
{
    double value = 0;
    char text[32];

    (void)state;
    if (setlocale(LC_ALL, "de_DE.UTF-8") == NULL &&
        setlocale(LC_ALL, "fr_FR.UTF-8") == NULL) {
        (void)fprintf(stderr, "no locale with a decimal comma is installed\n");
        skip();
    }
    sl_assert_ok(sl_parse_float("x", "0.5", 0, 1, &value));
    assert_true(value >= 0.5 && value <= 0.5);
    sl_format_bytes(1536, text, sizeof(text));
    assert_string_equal(text, "1.50 KiB");
    assert_non_null(setlocale(LC_ALL, "C"));
}

static void long_numbers_do_not_hurt(void **state)
{
    enum {
        N_DIGITS = 1000000
    };
    char *text = malloc(N_DIGITS + 16);
    double value = 0;
    uint64_t bytes = 0;

    (void)state;
    assert_non_null(text);
    memset(text, '9', N_DIGITS);
    text[N_DIGITS] = '\0';
    refuse_int(text, 0, 5, "9999...");
    assert_true(strlen(sl_last_error()) < 300);
    refuse_float(text, 0, HUGE_VAL, "out of range");
    memcpy(text, "1.", 2);
    sl_assert_ok(sl_parse_float("x", text, 0, 2, &value));
    assert_true(value >= 2 && value <= 2);
    memcpy(text + N_DIGITS, "GB", 3);
    sl_assert_ok(sl_parse_bytes("x", text, &bytes));
    assert_true(bytes == 1999999999);
    free(text);
}

static void sizes_are_read(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"17", 17},
                {"17B", 17},
                {"4GB", UINT64_C(4000000000)},
                {"2GiB", UINT64_C(1) << 31},
                {"1.5GiB", UINT64_C(3) << 29},
                {"1kB", 1000},
                {"1KiB", 1024},
                {"3MB", 3000000},
                {"3MiB", 3 << 20},
                {"1TB", UINT64_C(1000000000000)},
                {"1TiB", UINT64_C(1) << 40},
                {"0.5kB", 500},
                {"0.0001kB", 0},
                {"1.2345678901234567890123kB", 1234},
                {"0.1GiB", 107374182},
                {"18446744073709551615", UINT64_MAX},
                {"16777215.999999999999999999999TiB", UINT64_MAX}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(good) / sizeof(*good); i++) {
        uint64_t bytes = 77;

        sl_assert_ok(sl_parse_bytes("memory", good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
    }
}

static void sizes_are_refused(void **state)
{
    static const char *const bad[] = {
        "",     "010m",  "-1",     "1e3",   "+1",   " 1",   "1 ",   "4g",
        "0x10", "4gb",   "4Gb",    "4GIB",  "4G",   "4M",   "KB",   "1KB",
        "1.5",  "1.5B",  "1.GiB",  ".5GB",  "1 GB", "GiB",  "1GBs", "00",
        "01GB", "1,5GB", "1.5.GB", "1MiBB", "inf",  "4\nGB"};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        uint64_t bytes = 77;

        sl_assert_status(sl_parse_bytes("memory", bad[i], &bytes),
                         SL_ERR_INVALID_ARG);
        assert_true(bytes == 77);
        sl_assert_contains(sl_last_error(), "memory: '");
        sl_assert_contains(sl_last_error(), "is not a size; allowed: digits");
        assert_null(strchr(sl_last_error(), '\n'));
    }
}

static void sizes_do_not_overflow(void **state)
{
    static const char *const bad[] = {"99999999999GiB", "18446744073709551616",
                                      "16777216TiB", "18446744073709551.616kB",
                                      "999999999999999999999999999B"};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        uint64_t bytes = 77;

        sl_assert_status(sl_parse_bytes("memory", bad[i], &bytes),
                         SL_ERR_INVALID_ARG);
        assert_true(bytes == 77);
        sl_assert_contains(sl_last_error(), "is out of range; allowed: at");
    }
    sl_assert_status(sl_parse_bytes("memory", NULL, NULL), SL_ERR_INVALID_ARG);
}

static void sizes_are_printed(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {UINT64_C(3) << 29, "1.50 GiB"},
                 {(1 << 20) - 1, "1.00 MiB"},
                 {UINT64_C(1) << 40, "1.00 TiB"},
                 {UINT64_MAX, "16.00 EiB"}};
    char text[32];
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        sl_format_bytes(cases[i].bytes, text, sizeof(text));
        assert_string_equal(text, cases[i].text);
    }
    sl_format_bytes(1024, text, 5);
    assert_string_equal(text, "1.00");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(integers_are_read),
        sl_unit_test(integers_are_refused),
        sl_unit_test(integer_range_is_inclusive_and_named),
        sl_unit_test(floats_are_read),
        sl_unit_test(floats_are_refused),
        sl_unit_test(floats_ignore_the_locale),
        sl_unit_test(long_numbers_do_not_hurt),
        sl_unit_test(sizes_are_read),
        sl_unit_test(sizes_are_refused),
        sl_unit_test(sizes_do_not_overflow),
        sl_unit_test(sizes_are_printed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
