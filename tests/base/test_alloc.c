/* SPDX-License-Identifier: Apache-2.0 */
/* Every host allocation of base/ fails once: the call says so, leaves no
 * trace, and works the next time. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/yaml.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/sl_test.h"

static const char config[] = "seed: 1\n"
                             "model: &m {type: gpt, sizes: [1, 2, 3]}\n"
                             "copy: *m\n"
                             "layers:\n- {type: a}\n- {type: b}\n";

/* Run `call`, and check its status against what was injected. */
static int check(sl_status_t status)
{
    const int is_hit = sl_test_alloc_fail_end();

    if (is_hit) {
        sl_assert_status(status, SL_ERR_NO_MEMORY);
        sl_assert_contains(sl_last_error(), "no memory");
    } else {
        sl_assert_ok(status);
    }
    return is_hit;
}

static void injection_hits_the_nth(void **state)
{
    const long before = sl_test_alloc_count();
    /* volatile: a compiler may leave out an allocation nobody looks at */
    void *volatile first;
    void *volatile second;
    void *volatile third;

    (void)state;
    sl_test_alloc_fail_at(1);
    first = malloc(8);
    second = calloc(1, 8);
    third = realloc(NULL, 8);
    assert_int_equal(sl_test_alloc_fail_end(), 1);
    assert_non_null(first);
    assert_null(second);
    assert_non_null(third);
    assert_int_equal(sl_test_alloc_count() - before, 3);
    assert_int_equal(sl_test_alloc_fail_end(), 0);
    free(first);
    free(third);
}

static void parse_unwinds(void **state)
{
    int is_hit = 1;
    long n;

    (void)state;
    for (n = 0; is_hit; n++) {
        sl_yaml_t *yaml = NULL;

        sl_test_alloc_fail_at(n);
        is_hit =
            check(sl_yaml_parse("t.yaml", config, sizeof(config) - 1, &yaml));
        assert_true((yaml == NULL) == is_hit);
        sl_yaml_close(yaml);
    }
    assert_true(n > 3);
}

/* A document so large that its arena grows while it is read. */
static void parse_of_a_large_text_unwinds(void **state)
{
    enum {
        N = 2000
    };
    char *text = malloc((size_t)N * 16);
    size_t used = 0;
    int is_hit = 1, i;
    long n;

    (void)state;
    assert_non_null(text);
    for (i = 0; i < N; i++) {
        used += (size_t)snprintf(text + used, 16, "k%d: [a]\n", i);
    }
    for (n = 0; is_hit; n++) {
        sl_yaml_t *yaml = NULL;

        sl_test_alloc_fail_at(n);
        is_hit = check(sl_yaml_parse("t.yaml", text, used, &yaml));
        assert_true((yaml == NULL) == is_hit);
        sl_yaml_close(yaml);
    }
    assert_true(n > 20);
    free(text);
}

static void override_leaves_the_tree(void **state)
{
    static char value[40000]; /* does not fit the arena's chunk */
    int is_hit = 1;
    long n;

    (void)state;
    (void)snprintf(value, sizeof(value), "new.a.b=");
    memset(value + 8, 'x', sizeof(value) - 9);
    for (n = 0; is_hit; n++) {
        sl_yaml_t *yaml = NULL;
        const sl_yaml_node_t *root;

        sl_assert_ok(
            sl_yaml_parse("t.yaml", config, sizeof(config) - 1, &yaml));
        root = sl_yaml_root(yaml);
        sl_test_alloc_fail_at(n);
        is_hit = check(sl_yaml_override(yaml, value));
        assert_int_equal(sl_yaml_count(root), is_hit ? 4 : 5);
        sl_yaml_close(yaml);
    }
    assert_true(n > 2);
}

/* Places and suggestions are only text: without memory they are shorter. */
static void reading_goes_on_without_memory(void **state)
{
    char key[20000];
    sl_yaml_t *yaml = NULL;
    const sl_yaml_node_t *root;
    int64_t value = 0;
    int i, is_hit = 0;

    (void)state;
    sl_assert_ok(sl_yaml_parse("t.yaml", config, sizeof(config) - 1, &yaml));
    root = sl_yaml_root(yaml);
    memset(key, 'k', sizeof(key) - 1);
    key[sizeof(key) - 1] = '\0';
    for (i = 0; i < 20; i++) {
        key[0] = (char)('a' + i);
        sl_test_alloc_fail_at(0);
        assert_null(sl_yaml_get(root, key));
        sl_assert_ok(sl_yaml_int(root, "seed", 0, 9, &value));
        sl_assert_contains(sl_yaml_place(root), "t.yaml");
        is_hit += sl_test_alloc_fail_end();
    }
    assert_true(is_hit > 0);
    assert_int_equal(value, 1);
    sl_yaml_close(yaml);
}

static int n_files(void)
{
    DIR *dir = opendir(sl_test_directory());
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n - 2; /* . and .. */
}

static void files_unwind(void **state)
{
    char path[600], dir[600];
    char *data = NULL;
    size_t n_bytes = 0;
    sl_yaml_t *yaml = NULL;
    int is_hit = 1;
    long n;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/a", sl_test_directory());
    (void)snprintf(dir, sizeof(dir), "%s/b/c", sl_test_directory());
    for (n = 0; is_hit; n++) {
        sl_test_alloc_fail_at(n);
        is_hit = check(sl_file_write(path, config, sizeof(config) - 1));
        assert_int_equal(n_files(), is_hit ? 0 : 1);
    }
    assert_true(n > 4);
    for (n = 0, is_hit = 1; is_hit; n++) {
        sl_test_alloc_fail_at(n);
        is_hit = check(sl_file_read(path, 1 << 20, &data, &n_bytes));
    }
    assert_int_equal(n_bytes, sizeof(config) - 1);
    free(data);
    for (n = 0, is_hit = 1; is_hit; n++) {
        sl_test_alloc_fail_at(n);
        is_hit = check(sl_yaml_open(path, &yaml));
    }
    sl_yaml_close(yaml);
    for (n = 0, is_hit = 1; is_hit; n++) {
        sl_test_alloc_fail_at(n);
        is_hit = check(sl_file_make_dirs(dir));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(injection_hits_the_nth),
        sl_unit_test(parse_unwinds),
        sl_unit_test(parse_of_a_large_text_unwinds),
        sl_unit_test(override_leaves_the_tree),
        sl_unit_test(reading_goes_on_without_memory),
        sl_unit_test(files_unwind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
