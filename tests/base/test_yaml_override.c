/* SPDX-License-Identifier: Apache-2.0 */
/* Changes from the command line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/yaml.h"
#include "tests/support/sl_test.h"

static sl_yaml_t *yaml;

static int open_yaml(void **state)
{
    static const char text[] = "seed: 1\n"
                               "empty:\n"
                               "none: []\n"
                               "optimizer: {lr: 0.1}\n"
                               "layers:\n"
                               "- {type: linear, out: 8}\n"
                               "- {type: relu}\n";
    const int failed = sl_test_setup(state);

    sl_assert_ok(sl_yaml_parse("t.yaml", text, strlen(text), &yaml));
    return failed;
}

static int close_yaml(void **state)
{
    sl_yaml_close(yaml);
    yaml = NULL;
    return sl_test_teardown(state);
}

#define override_test(f)                                                       \
    cmocka_unit_test_setup_teardown(f, open_yaml, close_yaml)

/* The node at a dotted path, as a reader would go to it. */
static const sl_yaml_node_t *at(const char *path)
{
    const sl_yaml_node_t *node = sl_yaml_root(yaml);
    char part[64];

    while (node != NULL && *path != '\0') {
        const size_t n = strcspn(path, ".");

        (void)snprintf(part, sizeof(part), "%.*s", (int)n, path);
        node = sl_yaml_kind(node) == SL_YAML_SEQUENCE
                   ? sl_yaml_entry(node, (size_t)atoi(part), NULL)
                   : sl_yaml_get(node, part);
        path += n + (path[n] == '.' ? 1 : 0);
    }
    return node;
}

static const char *text_at(const char *path)
{
    return sl_yaml_text(at(path), NULL);
}

static void refuse(const char *assignment, const char *message)
{
    sl_assert_status(sl_yaml_override(yaml, assignment), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), message);
}

static void values_are_replaced(void **state)
{
    (void)state;
    sl_assert_ok(sl_yaml_override(yaml, "seed=42"));
    sl_assert_ok(sl_yaml_override(yaml, "optimizer.lr=0.5"));
    sl_assert_ok(sl_yaml_override(yaml, "layers.0.out=64"));
    assert_string_equal(text_at("seed"), "42");
    assert_string_equal(text_at("optimizer.lr"), "0.5");
    assert_string_equal(text_at("layers.0.out"), "64");
    assert_int_equal(sl_yaml_count(sl_yaml_root(yaml)), 5);
    assert_string_equal(sl_yaml_place(at("layers.0.out")),
                        "--set layers.0.out");
    sl_assert_ok(sl_yaml_override(yaml, "seed=43"));
    assert_string_equal(text_at("seed"), "43");
}

static void mappings_are_made_on_the_way(void **state)
{
    (void)state;
    sl_assert_ok(sl_yaml_override(yaml, "a.b.c=1"));
    sl_assert_ok(sl_yaml_override(yaml, "a.b.d=2"));
    sl_assert_ok(sl_yaml_override(yaml, "empty.x.y=3"));
    sl_assert_ok(sl_yaml_override(yaml, "layers.1.new.key=4"));
    assert_string_equal(text_at("a.b.c"), "1");
    assert_string_equal(text_at("a.b.d"), "2");
    assert_string_equal(text_at("empty.x.y"), "3");
    assert_string_equal(text_at("layers.1.new.key"), "4");
}

static void values_are_yaml(void **state)
{
    int is_quoted = 0;

    (void)state;
    sl_assert_ok(sl_yaml_override(yaml, "devices=[cpu:0, cpu:1]"));
    assert_int_equal(sl_yaml_count(at("devices")), 2);
    assert_string_equal(text_at("devices.1"), "cpu:1");
    sl_assert_ok(sl_yaml_override(yaml, "layers.1={type: gelu, n: 3}"));
    assert_string_equal(text_at("layers.1.type"), "gelu");
    sl_assert_ok(sl_yaml_override(yaml, "name='12'"));
    assert_string_equal(sl_yaml_text(at("name"), &is_quoted), "12");
    assert_int_equal(is_quoted, 1);
    sl_assert_ok(sl_yaml_override(yaml, "path=a=b"));
    assert_string_equal(text_at("path"), "a=b");
    sl_assert_ok(sl_yaml_override(yaml, "seed="));
    assert_string_equal(text_at("seed"), "");
}

static void bad_assignments_are_refused(void **state)
{
    (void)state;
    refuse("seed", "--set seed: no '=' in it; write KEY=VALUE");
    refuse("", "no '=' in it");
    refuse("=1", "an empty name in the path");
    refuse("a..b=1", "--set a..b: an empty name in the path");
    refuse(".a=1", "an empty name");
    refuse("a.=1", "an empty name");
    refuse("seed.x=1", "--set seed.x: 'seed' is a single value, without 'x'");
    refuse("none.0=1", "'none' is an empty list, without '0'");
    refuse("layers.2=1", "--set layers.2: index into the list 'layers': 2 is "
                         "out of range; allowed: an integer from 0 to 1");
    refuse("layers.-1=1", "from 0 to 1");
    refuse("layers.00.x=1", "'00' is not an integer");
    refuse("layers.x.out=1", "'x' is not an integer");
    refuse("seed=[1", "--set seed: not valid YAML");
    refuse("seed={a: 1, a: 2}", "--set seed: key 'a' is there twice");
    refuse("seed=*x", "--set seed: alias *x has no anchor");
    refuse("seed=a\n---\nb", "a second document");
}

static void a_refused_change_changes_nothing(void **state)
{
    const size_t n = sl_yaml_count(sl_yaml_root(yaml));

    (void)state;
    refuse("new.key=[1", "not valid YAML");
    refuse("layers.7.out=1", "out of range");
    assert_int_equal(sl_yaml_count(sl_yaml_root(yaml)), n);
    assert_null(at("new"));
    assert_int_equal(sl_yaml_count(at("layers")), 2);
}

/* n parts before the value: root and n - 1 mappings around it. */
static sl_status_t set_deep(int n, const char *value)
{
    char text[400] = "";
    int i;

    for (i = 0; i < n; i++) {
        (void)strcat(text, i == 0 ? "d" : ".d");
    }
    (void)strcat(text, "=");
    (void)strcat(text, value);
    return sl_yaml_override(yaml, text);
}

static void depth_is_limited(void **state)
{
    (void)state;
    sl_assert_ok(set_deep(SL_YAML_MAX_DEPTH, "1"));
    sl_assert_ok(set_deep(SL_YAML_MAX_DEPTH - 1, "[1]"));
    sl_assert_status(set_deep(SL_YAML_MAX_DEPTH, "[1]"), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "more than 64 levels nested");
    sl_assert_status(set_deep(SL_YAML_MAX_DEPTH + 1, "1"), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "more than 64 levels nested");
}

static void messages_about_the_value_name_the_option(void **state)
{
    int64_t value = 77;

    (void)state;
    sl_assert_ok(sl_yaml_override(yaml, "seed=x"));
    sl_assert_status(sl_yaml_int(sl_yaml_root(yaml), "seed", 0, 9, &value),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "--set seed: seed: 'x' is not an");
}

static void unknown_keys_name_the_option(void **state)
{
    const sl_yaml_node_t *root = sl_yaml_root(yaml);
    size_t i;

    (void)state;
    (void)sl_yaml_get(root, "optimizer");
    (void)sl_yaml_get(at("optimizer"), "lr");
    for (i = 0; i < sl_yaml_count(at("layers")); i++) {
        const sl_yaml_node_t *layer = sl_yaml_entry(at("layers"), i, NULL);

        (void)sl_yaml_get(layer, "type");
        (void)sl_yaml_get(layer, "out");
    }
    (void)sl_yaml_get(root, "seed");
    (void)sl_yaml_get(root, "empty");
    (void)sl_yaml_get(root, "none");
    sl_assert_ok(sl_yaml_check_used(root));
    sl_assert_ok(sl_yaml_override(yaml, "empty=2"));
    sl_assert_status(sl_yaml_check_used(root), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "--set empty: key 'empty' is not");
    (void)sl_yaml_get(root, "empty");
    sl_assert_ok(sl_yaml_override(yaml, "optimizer.momentum=1"));
    sl_assert_status(sl_yaml_check_used(root), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(),
                       "--set optimizer.momentum: key 'momentum' is not known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        override_test(values_are_replaced),
        override_test(mappings_are_made_on_the_way),
        override_test(values_are_yaml),
        override_test(bad_assignments_are_refused),
        override_test(a_refused_change_changes_nothing),
        override_test(depth_is_limited),
        override_test(messages_about_the_value_name_the_option),
        override_test(unknown_keys_name_the_option),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
