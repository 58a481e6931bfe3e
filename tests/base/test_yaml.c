/* SPDX-License-Identifier: Apache-2.0 */
/* Reading YAML: the tree, the places, and everything that is refused. */
#include "base/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/sl_test.h"

/* Parse text that must be good; close it with sl_yaml_close. */
static sl_yaml_t *parse(const char *text)
{
    sl_yaml_t *yaml = NULL;

    sl_assert_ok(sl_yaml_parse("t.yaml", text, strlen(text), &yaml));
    assert_non_null(yaml);
    return yaml;
}

static void refuse_bytes(const char *text, size_t n, const char *message)
{
    sl_yaml_t *yaml = NULL;

    sl_assert_status(sl_yaml_parse("t.yaml", text, n, &yaml), SL_ERR_CONFIG);
    assert_null(yaml);
    sl_assert_contains(sl_last_error(), message);
}

static void refuse(const char *text, const char *message)
{
    refuse_bytes(text, strlen(text), message);
}

static const char *text_at(const sl_yaml_t *yaml, const char *key)
{
    return sl_yaml_text(sl_yaml_get(sl_yaml_root(yaml), key), NULL);
}

static void the_tree_is_read(void **state)
{
    sl_yaml_t *yaml = parse("# head\n"
                            "model:\n"
                            "  name: resnet\n"
                            "  sizes: [1, 2, 3]\n"
                            "seed: '7'\n");
    const sl_yaml_node_t *root = sl_yaml_root(yaml);
    const sl_yaml_node_t *model = sl_yaml_get(root, "model");
    const sl_yaml_node_t *sizes = sl_yaml_get(model, "sizes");
    const char *key = "untouched";
    int is_quoted = 7;

    (void)state;
    assert_int_equal(sl_yaml_kind(root), SL_YAML_MAPPING);
    assert_int_equal(sl_yaml_count(root), 2);
    assert_int_equal(sl_yaml_kind(sizes), SL_YAML_SEQUENCE);
    assert_int_equal(sl_yaml_count(sizes), 3);
    assert_string_equal(sl_yaml_text(sl_yaml_entry(sizes, 2, NULL), NULL), "3");
    assert_null(sl_yaml_entry(sizes, 3, NULL));
    assert_null(sl_yaml_text(sizes, NULL));
    assert_null(sl_yaml_get(sizes, "a"));
    assert_null(sl_yaml_get(root, "absent"));
    assert_null(sl_yaml_get(NULL, "a"));
    assert_string_equal(sl_yaml_text(sl_yaml_entry(root, 1, &key), &is_quoted),
                        "7");
    assert_string_equal(key, "seed");
    assert_int_equal(is_quoted, 1);
    assert_int_equal(sl_yaml_line(sizes), 4);
    assert_string_equal(sl_yaml_place(sizes), "t.yaml:4:10");
    assert_ptr_equal(sl_yaml_place(sizes), sl_yaml_place(sizes));
    assert_int_equal(sl_yaml_count(sl_yaml_entry(root, 1, NULL)), 0);
    (void)sl_yaml_entry(sizes, 0, &key);
    assert_null(key);
    sl_yaml_close(yaml);
}

static void empty_documents_are_empty_mappings(void **state)
{
    static const char *const texts[] = {
        "",     "\n\n", "# only a comment\n", "---", "~\n",
        "null", "{}",   "\xEF\xBB\xBF"};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        sl_yaml_t *yaml = parse(texts[i]);

        assert_int_equal(sl_yaml_kind(sl_yaml_root(yaml)), SL_YAML_MAPPING);
        assert_int_equal(sl_yaml_count(sl_yaml_root(yaml)), 0);
        sl_assert_ok(sl_yaml_check_used(sl_yaml_root(yaml)));
        sl_yaml_close(yaml);
    }
    sl_yaml_close(NULL);
}

static void dos_lines_and_a_byte_order_mark_are_fine(void **state)
{
    sl_yaml_t *yaml = parse("\xEF\xBB\xBFlr: 1\r\nname: a b\r\n\r\nn: 2\r\n");

    (void)state;
    assert_string_equal(text_at(yaml, "lr"), "1");
    assert_string_equal(text_at(yaml, "name"), "a b");
    assert_int_equal(sl_yaml_line(sl_yaml_get(sl_yaml_root(yaml), "n")), 4);
    assert_string_equal(sl_yaml_place(sl_yaml_get(sl_yaml_root(yaml), "lr")),
                        "t.yaml:1:5");
    sl_yaml_close(yaml);
}

static void the_top_must_be_a_mapping(void **state)
{
    (void)state;
    refuse("hello", "t.yaml:1:1: the document is a single value; a mapping");
    refuse("- a\n- b\n", "t.yaml:1:1: the document is a list");
    refuse("''", "a single value");
}

static void syntax_errors_name_the_place(void **state)
{
    (void)state;
    refuse("a: 1\nb: [1, 2\nc: 3\n", "t.yaml:3:");
    refuse("a: 1\n  b: 2\n", "t.yaml:2:4: not valid YAML: mapping values");
    refuse("a:\n\tb: 1\n", "t.yaml:2:1: not valid YAML: found character that "
                           "cannot start any token (a tab; indent with");
    refuse("a: @x\n", "t.yaml:1:4: not valid YAML");
    refuse("a: 'x\n", "t.yaml:2:1: not valid YAML: found unexpected end");
    refuse("a: 1\nb: \xFF\xFE\n", "t.yaml:2:4: not valid YAML");
    refuse("a: \x01\n", "t.yaml:1:4: not valid YAML: control characters");
    refuse_bytes("a: \0b\n", 6, "t.yaml:1:4: not valid YAML: control");
    refuse("a: \"x\\0y\"\n", "t.yaml:1:4: a text with a zero byte in it");
    refuse("\xFF\xFE"
           "a\0:\0",
           "not valid YAML");
}

static void duplicate_keys_are_refused(void **state)
{
    (void)state;
    refuse("a: 1\nb: 2\na: 3\n",
           "t.yaml:3:1: key 'a' is there twice; first on line 1");
    refuse("x: {k: 1, 'k': 2}\n", "t.yaml:1:11: key 'k' is there twice");
    refuse("z: 1\nb: 1\nb: 2\na: 1\na: 1\n", "t.yaml:3:1: key 'b'");
}

static void other_keys_are_refused(void **state)
{
    (void)state;
    refuse("? [a, b]\n: 1\n", "t.yaml:1:3: a list cannot be a key");
    refuse("? {a: b}\n: 1\n", "t.yaml:1:3: a mapping cannot be a key");
    refuse("a: &x {b: 1}\nc:\n  <<: *x\n",
           "t.yaml:3:3: the merge key << is not supported");
}

static void documents_tags_and_directives_are_refused(void **state)
{
    char *text = malloc(100000);
    size_t i;

    (void)state;
    refuse("a: 1\n---\nb: 2\n", "t.yaml:2:1: a second document starts here");
    refuse("a: !!int 3\n", "t.yaml:1:4: tags are not supported; remove 'tag:");
    refuse("a: !mine [3]\n", "t.yaml:1:4: tags are not supported");
    refuse("!x\na: 3\n", "tags are not supported");
    assert_non_null(text);
    text[0] = '\0';
    for (i = 0; i < 20; i++) {
        (void)snprintf(text + strlen(text), 64, "%%TAG !t%zu! t\n", i);
    }
    refuse(text, "more than 16 %TAG directives");
    free(text);
}

static void aliases_are_copies(void **state)
{
    sl_yaml_t *yaml = parse("base: &b {lr: 1, deep: [x, y]}\n"
                            "one: *b\n"
                            "two: *b\n"
                            "w: &w word\n"
                            "*w : 5\n"
                            "re: &b 3\n"
                            "last: *b\n");
    const sl_yaml_node_t *root = sl_yaml_root(yaml);
    const sl_yaml_node_t *one = sl_yaml_get(root, "one");
    int64_t value = 0;

    (void)state;
    assert_ptr_not_equal(one, sl_yaml_get(root, "two"));
    sl_assert_ok(sl_yaml_int(one, "lr", 0, 9, &value));
    assert_int_equal(value, 1);
    assert_int_equal(sl_yaml_count(sl_yaml_get(one, "deep")), 2);
    assert_string_equal(sl_yaml_place(one), "t.yaml:1:7");
    assert_string_equal(text_at(yaml, "word"), "5");
    assert_string_equal(text_at(yaml, "last"), "3");
    sl_yaml_close(yaml);
}

static void bad_aliases_are_refused(void **state)
{
    (void)state;
    refuse("a: *nope\n", "t.yaml:1:4: alias *nope has no anchor before it");
    refuse("a: &a [1, *a]\n", "t.yaml:1:11: alias *a is inside its own anchor");
    refuse("a: &a\n  b:\n    c: *a\n", "t.yaml:3:8: alias *a is inside its");
    refuse("&a a: &b {x: *b}\n", "inside its own anchor");
}

/* Ten lines that would become 10^10 nodes. */
static void alias_bombs_are_refused(void **state)
{
    char text[2000] = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
    int i, j;

    (void)state;
    for (i = 1; i < 10; i++) {
        (void)snprintf(text + strlen(text), 64, "a%d: &a%d [", i, i);
        for (j = 0; j < 10; j++) {
            (void)snprintf(text + strlen(text), 64, "*a%d%s", i - 1,
                           j == 9 ? "]\n" : ",");
        }
    }
    refuse(text, "more than 1000000 values, aliases written out");
}

/* `n` lists around one value. */
static char *nested(int n)
{
    char *text = malloc((size_t)n * 2 + 16);

    assert_non_null(text);
    memcpy(text, "a: ", 3);
    memset(text + 3, '[', (size_t)n);
    text[3 + n] = 'x';
    memset(text + 4 + n, ']', (size_t)n);
    text[4 + 2 * n] = '\0';
    return text;
}

static void depth_is_limited(void **state)
{
    char *deepest = nested(SL_YAML_MAX_DEPTH - 1);
    char *too_deep = nested(SL_YAML_MAX_DEPTH);
    char *bomb = nested(1000000);
    char text[400];

    (void)state;
    sl_yaml_close(parse(deepest));
    refuse(too_deep, "more than 64 levels nested");
    refuse(bomb, "more than 64 levels nested");
    /* through an alias: the top, 23 or 24 lists, and 40 in them */
    (void)snprintf(text, sizeof(text), "b: &b %.40s%.40s\nc: %.23s*b%.23s",
                   bomb + 3, bomb + 1000004, bomb + 3, bomb + 1000004);
    sl_yaml_close(parse(text));
    (void)snprintf(text, sizeof(text), "b: &b %.40s%.40s\nc: %.24s*b%.24s",
                   bomb + 3, bomb + 1000004, bomb + 3, bomb + 1000004);
    refuse(text, "t.yaml:2:28: with this alias more than 64 levels");
    free(deepest);
    free(too_deep);
    for (int i = 0; i < 100000; i++) {
        memcpy(bomb + 2 * i, "- ", 3);
    }
    refuse(bomb, "more than 64 levels nested");
    free(bomb);
}

static void size_is_limited(void **state)
{
    const size_t n = SL_YAML_MAX_BYTES;
    char *text = malloc(n + 1);
    char path[600];
    sl_yaml_t *yaml = NULL;
    FILE *file;

    (void)state;
    assert_non_null(text);
    memset(text, '\n', n + 1);
    refuse_bytes(text, n + 1, "16777217 bytes; allowed: at most 16777216");
    sl_assert_ok(sl_yaml_parse("t.yaml", text, n, &yaml));
    sl_yaml_close(yaml);

    (void)snprintf(path, sizeof(path), "%s/big.yaml", sl_test_directory());
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n + 1, file), n + 1);
    assert_int_equal(fclose(file), 0);
    sl_assert_status(sl_yaml_open(path, &yaml), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "more than the 16777216 allowed");
    free(text);
}

/* Inputs on which a quadratic reader would need hours. */
static void large_inputs_take_linear_time(void **state)
{
    enum {
        N = 100000
    };
    char *text = malloc((size_t)N * 32);
    size_t used = 0, i;
    sl_yaml_t *yaml = NULL;

    (void)state;
    assert_non_null(text);
    for (i = 0; i < N; i++) {
        used += (size_t)sprintf(text + used, "key%zu: v\n", i * 7919 % N);
    }
    sl_assert_ok(sl_yaml_parse("t.yaml", text, used, &yaml));
    assert_int_equal(sl_yaml_count(sl_yaml_root(yaml)), N);
    sl_yaml_close(yaml);

    for (used = 0, i = 0; i < N; i++) {
        used += (size_t)sprintf(text + used, "k%zu: &a%zu v\n", i, i);
    }
    refuse_bytes(text, used, "t.yaml:257:");
    for (used = 0, i = 0; i < N; i++) {
        used += (size_t)sprintf(text + used, "%%TAG !%zu! x\n", i);
    }
    refuse_bytes(text, used, "%TAG");
    memcpy(text, "a:\n", 3);
    for (used = 3, i = 0; i < (size_t)N * 10; i++) {
        text[used++] = '-';
        text[used++] = '\n';
    }
    refuse_bytes(text, used, "more than 1000000 values");
    free(text);
}

static void files_are_opened(void **state)
{
    char path[600];
    sl_yaml_t *yaml = NULL;
    FILE *file;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/a.yaml", sl_test_directory());
    sl_assert_status(sl_yaml_open(path, &yaml), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), path);
    sl_assert_status(sl_yaml_open(sl_test_directory(), &yaml), SL_ERR_IO);
    assert_null(yaml);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs("a: 1\nb: ]\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    sl_assert_status(sl_yaml_open(path, &yaml), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "/a.yaml:2:4: not valid YAML");
}

static void long_names_are_cut_in_messages(void **state)
{
    char name[3000];
    sl_yaml_t *yaml = NULL;

    (void)state;
    memset(name, 'd', sizeof(name));
    (void)snprintf(name + 2900, 100, "/end\n.yaml");
    sl_assert_status(sl_yaml_parse(name, "a: ]", 4, &yaml), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "ddd/end?.yaml:1:4: not valid YAML");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(the_tree_is_read),
        sl_unit_test(empty_documents_are_empty_mappings),
        sl_unit_test(dos_lines_and_a_byte_order_mark_are_fine),
        sl_unit_test(the_top_must_be_a_mapping),
        sl_unit_test(syntax_errors_name_the_place),
        sl_unit_test(duplicate_keys_are_refused),
        sl_unit_test(other_keys_are_refused),
        sl_unit_test(documents_tags_and_directives_are_refused),
        sl_unit_test(aliases_are_copies),
        sl_unit_test(bad_aliases_are_refused),
        sl_unit_test(alias_bombs_are_refused),
        sl_unit_test(depth_is_limited),
        sl_unit_test(size_is_limited),
        sl_unit_test(large_inputs_take_linear_time),
        sl_unit_test(files_are_opened),
        sl_unit_test(long_names_are_cut_in_messages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
