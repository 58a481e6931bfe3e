/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "layers/attr.h"
#include "tests/support/sl_test.h"

typedef struct things {
    int64_t out;
    double p;
    int flag;
    int kind;
    char tie[SL_ATTR_TEXT_BYTES];
} things_t;

static const sl_attr_def_t defs[] = {{.name = "out",
                                      .kind = SL_ATTR_INT,
                                      .offset = offsetof(things_t, out),
                                      .is_required = 1,
                                      .min = 1,
                                      .max = 1000,
                                      .brief = "width"},
                                     {.name = "p",
                                      .kind = SL_ATTR_FLOAT,
                                      .offset = offsetof(things_t, p),
                                      .fallback = 0.5,
                                      .min = 0,
                                      .max = 0.9,
                                      .brief = "probability"},
                                     {.name = "flag",
                                      .kind = SL_ATTR_BOOL,
                                      .offset = offsetof(things_t, flag),
                                      .fallback = 1,
                                      .brief = "a switch"},
                                     {.name = "kind",
                                      .kind = SL_ATTR_CHOICE,
                                      .offset = offsetof(things_t, kind),
                                      .choices = "tanh|erf|x",
                                      .brief = "a word"},
                                     {.name = "tie",
                                      .kind = SL_ATTR_TEXT,
                                      .offset = offsetof(things_t, tie),
                                      .brief = "a name"},
                                     {0}};

static sl_status_t fill(things_t *out, const sl_attr_t *attrs, size_t n)
{
    memset(out, 0, sizeof(*out));
    return sl_attr_fill(defs, "layer a (b)", attrs, n, out);
}

static void absent_ones_have_their_default(void **state)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = 5}};
    things_t t;

    (void)state;
    sl_assert_ok(fill(&t, attrs, 1));
    assert_true(t.out == 5 && t.p == 0.5 && t.flag == 1 && t.kind == 0);
    assert_string_equal(t.tie, "");
}

static void numbers_and_texts_are_read(void **state)
{
    const sl_attr_t attrs[] = {{.name = "out", .text = "1000"},
                               {.name = "p", .text = "1e-3"},
                               {.name = "flag", .text = "false"},
                               {.name = "kind", .text = "erf"},
                               {.name = "tie", .text = "wte"}};
    const sl_attr_t numbers[] = {{.name = "out", .number = 1},
                                 {.name = "p", .number = 0.9},
                                 {.name = "flag", .number = 0},
                                 {.name = "kind", .number = 2}};
    things_t t;

    (void)state;
    sl_assert_ok(fill(&t, attrs, 5));
    assert_true(t.out == 1000 && t.p == 1e-3 && t.flag == 0 && t.kind == 1);
    assert_string_equal(t.tie, "wte");
    sl_assert_ok(fill(&t, numbers, 4));
    assert_true(t.out == 1 && t.p == 0.9 && t.flag == 0 && t.kind == 2);
}

static void expect_error(sl_attr_t attr, const char *part)
{
    sl_attr_t attrs[2] = {{.name = "out", .number = 5}};
    things_t t;

    attr.place = "net.yaml:12:3";
    attrs[strcmp(attr.name, "out") == 0 ? 0 : 1] = attr;
    sl_assert_status(fill(&t, attrs, strcmp(attr.name, "out") == 0 ? 1 : 2),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "layer a (b)");
    sl_assert_contains(sl_last_error(), " at net.yaml:12:3");
    sl_assert_contains(sl_last_error(), part);
}

static void bad_values_are_named(void **state)
{
    static const char long_name[] =
        "0123456789012345678901234567890123456789012345678901234567890123";

    (void)state;
    expect_error((sl_attr_t){.name = "out", .number = 0},
                 "0 is not in 1..1000");
    expect_error((sl_attr_t){.name = "out", .number = 1001}, "1001 is not in");
    expect_error((sl_attr_t){.name = "out", .number = 1.5},
                 "1.5 is not a whole number");
    expect_error((sl_attr_t){.name = "out", .text = "2.5"}, "whole number");
    expect_error((sl_attr_t){.name = "out", .text = "many"}, "many");
    expect_error((sl_attr_t){.name = "out", .text = ""}, "out");
    expect_error((sl_attr_t){.name = "out", .text = "nan"}, "out");
    expect_error((sl_attr_t){.name = "out", .text = "1e999"}, "out");
    expect_error((sl_attr_t){.name = "out", .number = NAN}, "not finite");
    expect_error((sl_attr_t){.name = "p", .number = INFINITY}, "not finite");
    expect_error((sl_attr_t){.name = "p", .number = 0.91}, "not in 0..0.9");
    expect_error((sl_attr_t){.name = "p", .text = "-0.1"}, "not in 0..0.9");
    expect_error((sl_attr_t){.name = "flag", .number = 2}, "false|true");
    expect_error((sl_attr_t){.name = "flag", .text = "yes"}, "false|true");
    expect_error((sl_attr_t){.name = "kind", .text = "er"}, "tanh|erf|x");
    expect_error((sl_attr_t){.name = "kind", .text = "tanh|erf"}, "tanh|erf|x");
    expect_error((sl_attr_t){.name = "kind", .text = ""}, "tanh|erf|x");
    expect_error((sl_attr_t){.name = "kind", .number = 3}, "tanh|erf|x");
    expect_error((sl_attr_t){.name = "kind", .number = -1}, "tanh|erf|x");
    expect_error((sl_attr_t){.name = "kind", .number = 0.5}, "tanh|erf|x");
    expect_error((sl_attr_t){.name = "kind", .number = NAN}, "tanh|erf|x");
    expect_error((sl_attr_t){.name = "tie", .text = long_name}, "longer than");
    expect_error((sl_attr_t){.name = "tie", .number = 3}, "not a text");
}

static void unknown_and_repeated_names_are_errors(void **state)
{
    const sl_attr_t twice[] = {{.name = "out", .number = 5},
                               {.name = "out", .number = 5}};
    things_t t;

    (void)state;
    expect_error((sl_attr_t){.name = "outt", .number = 1},
                 "no attribute 'outt'");
    sl_assert_contains(sl_last_error(), "out, p, flag, kind, tie");
    sl_assert_status(fill(&t, twice, 2), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "out is given twice");
}

static void a_missing_one_is_an_error(void **state)
{
    things_t t;

    (void)state;
    sl_assert_status(fill(&t, NULL, 0), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "attribute out (width) must be given");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(absent_ones_have_their_default),
        sl_unit_test(numbers_and_texts_are_read),
        sl_unit_test(bad_values_are_named),
        sl_unit_test(unknown_and_repeated_names_are_errors),
        sl_unit_test(a_missing_one_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
