/* SPDX-License-Identifier: Apache-2.0 */
/* Random input: nothing crashes, every refusal is the right code, and a tree
 * that was accepted can be walked. SLUICE_TEST_SEED picks the numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/parse.h"
#include "base/rng.h"
#include "base/yaml.h"
#include "tests/support/sl_test.h"

enum {
    N_INPUTS = 100000,
    MAX_BYTES = 96
};

static sl_rng_t rng;
static uint64_t n_drawn;

static uint32_t draw(uint32_t bound)
{
    return (uint32_t)sl_rng_below(&rng, n_drawn++, bound);
}

/* Refusals are what is tested here: their messages are dropped. */
static void drop(void *ctx, sl_log_level_t level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

static int setup(void **state)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    int64_t seed = 20240501;
    const int failed = sl_test_setup(state);

    if (text != NULL) {
        sl_assert_ok(
            sl_parse_int("SLUICE_TEST_SEED", text, 0, INT64_MAX, &seed));
    }
    (void)fprintf(stderr, "seed %lld\n", (long long)seed);
    rng = sl_rng_at((uint64_t)seed, 0, 0, 0, SL_RNG_USE_SYNTHETIC);
    n_drawn = 0;
    sl_log_sink_set(drop, NULL);
    return failed;
}

#define fuzz_test(f) cmocka_unit_test_setup_teardown(f, setup, sl_test_teardown)

static size_t random_bytes(char *out)
{
    const size_t n = draw(MAX_BYTES);
    size_t i;

    for (i = 0; i < n; i++) {
        out[i] = (char)draw(256);
    }
    return n;
}

/* Pieces that mean something to YAML, so that the deep code is reached. */
static size_t random_pieces(char *out)
{
    static const char *const pieces[] = {"a",        "b",     ": ",
                                         "\n",       "  ",    "- ",
                                         "[",        "]",     "{",
                                         "}",        ",",     "&a ",
                                         "*a",       "'",     "\"",
                                         "\n- ",     "|\n",   ">-\n",
                                         "? ",       "#",     "\t",
                                         "---\n",    "...\n", "%TAG ",
                                         "!!x ",     "<<",    "\\x00",
                                         "~",        "1",     "\r\n",
                                         "a: ",      "b: ",   "\xEF\xBB\xBF",
                                         "\xC2\x85", "\n  ",  "\n    ",
                                         "key: ",    "\n\n",  "@",
                                         "`"};
    size_t n = 0;

    while (n + 8 < MAX_BYTES && draw(24) != 0) {
        const char *piece = pieces[draw(sizeof(pieces) / sizeof(*pieces))];

        memcpy(out + n, piece, strlen(piece));
        n += strlen(piece);
    }
    return n;
}

/* Touch every node as a reader would. */
static void walk(const sl_yaml_node_t *node)
{
    const char *key = NULL, *text = NULL;
    int64_t integer = 0;
    double real = 0;
    uint64_t bytes = 0;
    int word = 0;
    size_t i;

    assert_true(strlen(sl_yaml_place(node)) > 0);
    for (i = 0; i < sl_yaml_count(node); i++) {
        const sl_yaml_node_t *child = sl_yaml_entry(node, i, &key);

        assert_non_null(child);
        if (sl_yaml_kind(node) == SL_YAML_MAPPING) {
            assert_ptr_equal(sl_yaml_get(node, key), child);
            (void)(sl_yaml_int(node, key, -5, 5, &integer) == SL_OK);
            (void)(sl_yaml_float(node, key, -5, 5, &real) == SL_OK);
            (void)(sl_yaml_bytes(node, key, &bytes) == SL_OK);
            (void)(sl_yaml_bool(node, key, &word) == SL_OK);
            (void)(sl_yaml_choice(node, key, "a|b", &word) == SL_OK);
            (void)(sl_yaml_string(node, key, &text) == SL_OK);
        }
        walk(child);
    }
}

static int try_yaml(const char *text, size_t n)
{
    /* a block of the exact size: reading past its end is seen by ASan */
    char *exact = malloc(n == 0 ? 1 : n);
    sl_yaml_t *yaml = NULL;
    sl_status_t status;

    assert_non_null(exact);
    memcpy(exact, text, n);
    status = sl_yaml_parse("fuzz", exact, n, &yaml);
    free(exact);
    assert_true(status == SL_OK || status == SL_ERR_CONFIG);
    assert_true((status == SL_OK) == (yaml != NULL));
    if (yaml != NULL) {
        assert_true(sl_yaml_check_used(sl_yaml_root(yaml)) == SL_OK ||
                    sl_yaml_count(sl_yaml_root(yaml)) > 0);
        walk(sl_yaml_root(yaml));
        assert_true(sl_yaml_check_used(sl_yaml_root(yaml)) == SL_OK);
        sl_yaml_close(yaml);
    } else {
        sl_assert_contains(sl_last_error(), "fuzz");
    }
    return status == SL_OK;
}

static void yaml_of_random_bytes(void **state)
{
    char text[MAX_BYTES];
    int i;

    (void)state;
    for (i = 0; i < N_INPUTS; i++) {
        (void)try_yaml(text, random_bytes(text));
    }
}

static void yaml_of_random_pieces(void **state)
{
    char text[MAX_BYTES];
    int i, n_good = 0;

    (void)state;
    for (i = 0; i < N_INPUTS; i++) {
        n_good += try_yaml(text, random_pieces(text));
    }
    /* or the pieces no longer reach the tree */
    assert_true(n_good > N_INPUTS / 100);
}

/* One byte of a good config changed, removed or doubled. */
static void yaml_with_one_byte_wrong(void **state)
{
    static const char good[] = "model: {type: gpt, n_layers: 4}\n"
                               "seed: 7\n"
                               "defaults: &d\n  lr: 1e-3\n  beta: [0.9, 0.95]\n"
                               "optimizer: *d\n"
                               "text: \"a\\tb\"\n";
    const size_t n = sizeof(good) - 1;
    int i;

    (void)state;
    assert_true(try_yaml(good, n));
    for (i = 0; i < N_INPUTS / 5; i++) {
        char text[sizeof(good) + 1];
        const size_t where = draw((uint32_t)n);
        const uint32_t how = draw(3);

        memcpy(text, good, n);
        if (how == 0) {
            text[where] = (char)draw(256);
        } else if (how == 1) {
            memmove(text + where, text + where + 1, n - where - 1);
        } else {
            memmove(text + where + 1, text + where, n - where);
        }
        (void)try_yaml(text, how == 0 ? n : how == 1 ? n - 1 : n + 1);
    }
}

static void overrides_of_random_text(void **state)
{
    char text[MAX_BYTES + 1];
    sl_yaml_t *yaml = NULL;
    int i;

    (void)state;
    for (i = 0; i < N_INPUTS; i++) {
        size_t n, j;

        if (i % 100 == 0) {
            sl_yaml_close(yaml);
            yaml = NULL;
            sl_assert_ok(sl_yaml_parse("fuzz", "a: [b, {a: 1}]\n", 15, &yaml));
        }
        n = i % 2 == 0 ? random_bytes(text) : random_pieces(text);
        text[n] = '\0';
        for (j = 0; j < 4 && j < n; j++) {
            text[draw((uint32_t)n)] = "=.a0"[j];
        }
        if (sl_yaml_override(yaml, text) != SL_OK) {
            sl_assert_contains(sl_last_error(), "--set ");
        }
    }
    walk(sl_yaml_root(yaml));
    sl_yaml_close(yaml);
}

/* Characters of numbers, mostly; a reader either takes the text and says
 * the same as the C library, or refuses it and leaves the value alone. */
static void numbers_of_random_text(void **state)
{
    static const char letters[] = "0123456789012345678901234567.-+eExkKMGTiB ";
    int i, n_good = 0;

    (void)state;
    for (i = 0; i < N_INPUTS; i++) {
        char text[24];
        const size_t n = draw(i % 2 == 0 ? 6 : sizeof(text));
        int64_t integer = 77;
        double real = 77;
        uint64_t bytes = 77;
        size_t j;

        for (j = 0; j < n; j++) {
            text[j] = draw(50) == 0 ? (char)(1 + draw(255))
                                    : letters[draw(sizeof(letters) - 1)];
        }
        text[n] = '\0';
        if (sl_parse_int("x", text, INT64_MIN, INT64_MAX, &integer) == SL_OK) {
            assert_true(integer == strtoll(text, NULL, 10));
            n_good++;
        } else {
            assert_true(integer == 77);
        }
        if (sl_parse_float("x", text, -1e30, 1e30, &real) == SL_OK) {
            const double same = strtod(text, NULL);

            assert_memory_equal(&real, &same, sizeof(same));
        } else {
            assert_true(real >= 77 && real <= 77);
        }
        if (sl_parse_bytes("x", text, &bytes) != SL_OK) {
            assert_true(bytes == 77);
        } else if (strspn(text, "0123456789") == n) {
            assert_true(bytes == strtoull(text, NULL, 10));
        }
    }
    assert_true(n_good > N_INPUTS / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        fuzz_test(yaml_of_random_bytes),
        fuzz_test(yaml_of_random_pieces),
        fuzz_test(yaml_with_one_byte_wrong),
        fuzz_test(overrides_of_random_text),
        fuzz_test(numbers_of_random_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
