/* SPDX-License-Identifier: Apache-2.0 */
/* Typed values, and keys that nobody asked for. */
#include <stdio.h>
#include <string.h>

#include "base/yaml.h"
#include "tests/support/sl_test.h"

static sl_yaml_t *yaml;

static const sl_yaml_node_t *parse(const char *text)
{
    sl_yaml_close(yaml);
    yaml = NULL;
    sl_assert_ok(sl_yaml_parse("t.yaml", text, strlen(text), &yaml));
    return sl_yaml_root(yaml);
}

static int close_yaml(void **state)
{
    sl_yaml_close(yaml);
    yaml = NULL;
    return sl_test_teardown(state);
}

#define read_test(f)                                                           \
    cmocka_unit_test_setup_teardown(f, sl_test_setup, close_yaml)

#define refuse(call, message)                                                  \
    do {                                                                       \
        sl_assert_status((call), SL_ERR_CONFIG);                               \
        sl_assert_contains(sl_last_error(), (message));                        \
    } while (0)

static void integers(void **state)
{
    const sl_yaml_node_t *m =
        parse("a: 5\nb: five\nc: '5'\nd: [5]\ne: ~\nf:\n");
    int64_t value = 77;

    (void)state;
    sl_assert_ok(sl_yaml_int(m, "e", 1, 9, &value));
    sl_assert_ok(sl_yaml_int(m, "f", 1, 9, &value));
    sl_assert_ok(sl_yaml_int(m, "absent", 1, 9, &value));
    sl_assert_ok(sl_yaml_int(NULL, "a", 1, 9, &value));
    refuse(sl_yaml_int(m, "a", 1, 4, &value),
           "t.yaml:1:4: a: 5 is out of range; allowed: an integer from 1 to 4");
    refuse(sl_yaml_int(m, "b", 1, 9, &value),
           "t.yaml:2:4: b: 'five' is not an integer; allowed: ");
    refuse(sl_yaml_int(m, "c", 1, 9, &value),
           "t.yaml:3:4: c: '5' in quotes is a text; allowed: an integer");
    refuse(sl_yaml_int(m, "d", 1, 9, &value),
           "t.yaml:4:4: d: it is a list; allowed: an integer");
    assert_int_equal(value, 77);
    sl_assert_ok(sl_yaml_int(m, "a", 1, 9, &value));
    assert_int_equal(value, 5);
}

static void floats(void **state)
{
    const sl_yaml_node_t *m = parse("a: 1e-3\nb: .inf\nc: {}\n");
    double value = 77;

    (void)state;
    sl_assert_ok(sl_yaml_float(m, "absent", 0, 1, &value));
    refuse(sl_yaml_float(m, "b", 0, 1, &value),
           "t.yaml:2:4: b: '.inf' is not a number; allowed:");
    refuse(sl_yaml_float(m, "c", 0, 1, &value),
           "t.yaml:3:4: c: it is a mapping; allowed: a number");
    refuse(sl_yaml_float(m, "a", 1, 2, &value), "from 1 to 2");
    assert_true(value >= 77 && value <= 77);
    sl_assert_ok(sl_yaml_float(m, "a", 0, 1, &value));
    assert_true(value >= 1e-3 && value <= 1e-3);
}

static void booleans(void **state)
{
    const sl_yaml_node_t *m =
        parse("a: true\nb: False\nc: yes\nd: 1\ne: 'true'\nf: null\n");
    int value = 77;

    (void)state;
    sl_assert_ok(sl_yaml_bool(m, "f", &value));
    refuse(sl_yaml_bool(m, "c", &value),
           "t.yaml:3:4: c: 'yes'; allowed: true or false");
    refuse(sl_yaml_bool(m, "d", &value), "'1'; allowed: true or false");
    refuse(sl_yaml_bool(m, "e", &value), "in quotes is a text");
    assert_int_equal(value, 77);
    sl_assert_ok(sl_yaml_bool(m, "a", &value));
    assert_int_equal(value, 1);
    sl_assert_ok(sl_yaml_bool(m, "b", &value));
    assert_int_equal(value, 0);
}

static void strings(void **state)
{
    const sl_yaml_node_t *m =
        parse("a: word\nb: 'null'\nc: ''\nd: 12\ne: [x]\nf: |\n  two\n"
              "  lines\n");
    const char *value = "default";

    (void)state;
    sl_assert_ok(sl_yaml_string(m, "absent", &value));
    refuse(sl_yaml_string(m, "c", &value), "t.yaml:3:4: c: the text is empty");
    refuse(sl_yaml_string(m, "e", &value), "it is a list; allowed: a text");
    assert_string_equal(value, "default");
    sl_assert_ok(sl_yaml_string(m, "a", &value));
    assert_string_equal(value, "word");
    sl_assert_ok(sl_yaml_string(m, "b", &value));
    assert_string_equal(value, "null");
    sl_assert_ok(sl_yaml_string(m, "d", &value));
    assert_string_equal(value, "12");
    sl_assert_ok(sl_yaml_string(m, "f", &value));
    assert_string_equal(value, "two\nlines\n");
}

static void choices(void **state)
{
    const sl_yaml_node_t *m =
        parse("a: 1f1b\nb: gpip\nc: 'zb-h1'\nd: ''\ne: 'gpipe|1f1b'\n");
    const char *words = "gpipe|1f1b|zb-h1";
    int value = 77;

    (void)state;
    sl_assert_ok(sl_yaml_choice(m, "absent", words, &value));
    refuse(sl_yaml_choice(m, "b", words, &value),
           "t.yaml:2:4: b: 'gpip'; allowed: gpipe|1f1b|zb-h1");
    refuse(sl_yaml_choice(m, "d", words, &value), "allowed: gpipe");
    refuse(sl_yaml_choice(m, "e", words, &value), "allowed: gpipe");
    assert_int_equal(value, 77);
    sl_assert_ok(sl_yaml_choice(m, "a", words, &value));
    assert_int_equal(value, 1);
    sl_assert_ok(sl_yaml_choice(m, "c", words, &value));
    assert_int_equal(value, 2);
}

static void sizes(void **state)
{
    const sl_yaml_node_t *m = parse("a: 4GB\nb: 4g\nc: '2GiB'\nd: [1]\n");
    uint64_t value = 77;

    (void)state;
    sl_assert_ok(sl_yaml_bytes(m, "absent", &value));
    refuse(sl_yaml_bytes(m, "b", &value),
           "t.yaml:2:4: b: '4g' is not a size; allowed: ");
    refuse(sl_yaml_bytes(m, "d", &value), "it is a list; allowed: a size");
    assert_true(value == 77);
    sl_assert_ok(sl_yaml_bytes(m, "a", &value));
    assert_true(value == UINT64_C(4000000000));
    sl_assert_ok(sl_yaml_bytes(m, "c", &value));
    assert_true(value == UINT64_C(1) << 31);
}

static void mappings(void **state)
{
    const sl_yaml_node_t *m = parse("a: {b: 1}\nc: [1]\nd: 1\ne:\n");
    const sl_yaml_node_t *node = m;

    (void)state;
    refuse(sl_yaml_mapping(m, "c", &node),
           "t.yaml:2:4: c: it is a list; allowed: a mapping");
    refuse(sl_yaml_mapping(m, "d", &node), "it is a single value");
    assert_ptr_equal(node, m);
    sl_assert_ok(sl_yaml_mapping(m, "a", &node));
    assert_int_equal(sl_yaml_count(node), 1);
    sl_assert_ok(sl_yaml_mapping(m, "e", &node));
    assert_null(node);
    sl_assert_ok(sl_yaml_mapping(NULL, "a", &node));
    assert_null(node);
}

static void unknown_keys_are_named_with_the_nearest(void **state)
{
    const sl_yaml_node_t *m =
        parse("model: x\noptimizer:\n  momentun: 0.9\n  lr: 1\n");
    const sl_yaml_node_t *optimizer = NULL;

    (void)state;
    (void)sl_yaml_get(m, "model");
    refuse(sl_yaml_check_used(m), "t.yaml:2:1: key 'optimizer' is not known; "
                                  "known keys: model");
    sl_assert_ok(sl_yaml_mapping(m, "optimizer", &optimizer));
    (void)sl_yaml_get(optimizer, "momentum");
    (void)sl_yaml_get(optimizer, "lr");
    (void)sl_yaml_get(optimizer, "lr");
    (void)sl_yaml_get(optimizer, "weight_decay");
    refuse(sl_yaml_check_used(m), "t.yaml:3:3: key 'momentun' is not known; "
                                  "did you mean 'momentum'?");
    sl_assert_ok(sl_yaml_check_used(NULL));
}

static void far_keys_are_not_suggested(void **state)
{
    const sl_yaml_node_t *m = parse("zzzzzz: 1\n");

    (void)state;
    refuse(sl_yaml_check_used(m), "t.yaml:1:1: key 'zzzzzz' is not known");
    assert_null(strstr(sl_last_error(), "mean"));
    (void)sl_yaml_get(m, "lr");
    (void)sl_yaml_get(m, "seed");
    refuse(sl_yaml_check_used(m), "; known keys: lr, seed");
}

/* 'lr' is there already: it cannot be what the other key should be. */
static void keys_in_use_are_not_suggested(void **state)
{
    const sl_yaml_node_t *m = parse("lr: 1\nlrr: 2\n");

    (void)state;
    (void)sl_yaml_get(m, "lr");
    refuse(sl_yaml_check_used(m), "key 'lrr' is not known; known keys: lr");
}

static void lists_are_looked_into(void **state)
{
    const sl_yaml_node_t *m =
        parse("layers:\n- {type: a}\n- {type: b, outt: 3}\n");
    const sl_yaml_node_t *layers = sl_yaml_get(m, "layers");
    size_t i;

    (void)state;
    for (i = 0; i < sl_yaml_count(layers); i++) {
        const sl_yaml_node_t *layer = sl_yaml_entry(layers, i, NULL);

        (void)sl_yaml_get(layer, "type");
        (void)sl_yaml_get(layer, "out");
    }
    refuse(sl_yaml_check_used(m),
           "t.yaml:3:13: key 'outt' is not known; did you mean 'out'?");
}

static void copies_of_an_alias_are_checked_apart(void **state)
{
    const sl_yaml_node_t *m = parse("a: &x {k: 1}\nb: *x\n");

    (void)state;
    (void)sl_yaml_get(sl_yaml_get(m, "a"), "k");
    (void)sl_yaml_get(m, "b");
    refuse(sl_yaml_check_used(m), "key 'k' is not known");
    (void)sl_yaml_get(sl_yaml_get(m, "b"), "k");
    sl_assert_ok(sl_yaml_check_used(m));
}

static void everything_read_is_fine(void **state)
{
    const sl_yaml_node_t *m = parse("a: 1\nb: [1, 2]\nc: {x: 1, y: 2}\n");
    const sl_yaml_node_t *c;
    size_t i;

    (void)state;
    (void)sl_yaml_get(m, "a");
    (void)sl_yaml_get(m, "b");
    c = sl_yaml_get(m, "c");
    for (i = 0; i < sl_yaml_count(c); i++) {
        (void)sl_yaml_entry(c, i, NULL);
    }
    sl_assert_ok(sl_yaml_check_used(m));
}

static void many_known_keys_are_remembered(void **state)
{
    const sl_yaml_node_t *m = parse("known_399x: 1\nzqzqzqzqzq: 2\n");
    char key[32];
    int i;

    (void)state;
    for (i = 0; i < 400; i++) {
        (void)snprintf(key, sizeof(key), "known_%d", i);
        (void)sl_yaml_get(m, key);
        (void)sl_yaml_get(m, key);
    }
    refuse(sl_yaml_check_used(m), "key 'known_399x' is not known; did you");
    (void)sl_yaml_get(m, "known_399x");
    refuse(sl_yaml_check_used(m), "known keys: known_0, known_1, ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        read_test(integers),
        read_test(floats),
        read_test(booleans),
        read_test(strings),
        read_test(choices),
        read_test(sizes),
        read_test(mappings),
        read_test(unknown_keys_are_named_with_the_nearest),
        read_test(far_keys_are_not_suggested),
        read_test(keys_in_use_are_not_suggested),
        read_test(lists_are_looked_into),
        read_test(copies_of_an_alias_are_checked_apart),
        read_test(everything_read_is_fine),
        read_test(many_known_keys_are_remembered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
