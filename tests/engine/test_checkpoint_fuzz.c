/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest that may be anything: it is read or refused, never more. */
#include <inttypes.h>
#include <jansson.h>
#include <stdint.h>
#include <string.h>

#include "base/rng.h"
#include "engine/checkpoint/checkpoint_internal.h"
#include "tests/engine/checkpoint_bed.h"

enum {
    N_MUTATIONS = 120000,
    MAX_TEXT = 1 << 16
};

/* A small one with everything in it. */
static char *make_text(void)
{
    static const char *const layers[] = {
        "fc1: linear(out 7) of -1: weight[7x4] bias[7]",
        "loss: softmax() of 0:"};
    static const char *tensors[] = {"fc1.weight", "fc1.bias",
                                    "optimizer.0.fc1.weight"};
    static sl_manifest_shard_t shards[] = {
        {"state-0000-0000.safetensors", 300, 5, 0, 2},
        {"state-0000-0001.safetensors", 200, 6, 2, 1}};
    static sl_setting_t settings[] = {
        {"train.batch", "32", SL_SETTING_EXACT},
        {"optimizer.type", "sgd", SL_SETTING_MUST}};
    const sl_manifest_t m = {.step = 12,
                             .sequence = 3,
                             .date = "2026-01-31T12:00:00Z",
                             .program = "0.1.0",
                             .model = "mlp",
                             .fingerprint = sl_manifest_fingerprint(layers, 2),
                             .n_layers = 2,
                             .layers = layers,
                             .n_settings = 2,
                             .settings = settings,
                             .epoch = 1,
                             .sample = 64,
                             .learning_rate = 0.1,
                             .scale = {.factor = 4096.0, .n_good_steps = 7},
                             .loss = 2.5,
                             .validation_loss = (double)NAN,
                             .n_shards = 2,
                             .shards = shards,
                             .n_tensors = 3,
                             .tensors = tensors};
    char *text = NULL;

    sl_assert_ok(sl_manifest_format(&m, &text));
    return text;
}

/* What was read can be used without a further look. */
static void check_sane(const sl_manifest_t *m)
{
    size_t s, t;

    assert_true(m->n_shards <= SL_MANIFEST_MAX_SHARDS);
    assert_true(m->n_tensors <= SL_MANIFEST_MAX_TENSORS);
    assert_true(m->scale.factor == 0.0 ||
                (m->scale.factor >= 1.0 && m->scale.factor <= 16777216.0));
    for (s = 0; s < m->n_shards; s++) {
        const sl_manifest_shard_t *shard = &m->shards[s];

        assert_null(strchr(shard->file, '/'));
        assert_true(shard->file[0] != '.');
        assert_true(shard->first_tensor + shard->n_tensors <= m->n_tensors);
    }
    for (t = 0; t < m->n_tensors; t++) {
        assert_in_range(strlen(m->tensors[t]), 1, SL_MANIFEST_NAME_BYTES - 1);
    }
}

static int parse(const char *text, size_t n)
{
    sl_manifest_t m;
    const sl_status_t status = sl_manifest_parse("m", text, n, &m);

    if (status < 0) {
        assert_true(status == SL_ERR_CORRUPT || status == SL_ERR_UNSUPPORTED);
        return 0;
    }
    check_sane(&m);
    sl_manifest_cleanup(&m);
    return 1;
}

/* The text with the checksum that a liar would give it, so that the checks
 * behind it are reached. NULL when it is no object. */
static char *sign(const char *text, size_t n)
{
    json_t *root = json_loadb(text, n, 0, NULL);
    char hash[17], *out = NULL;
    uint64_t value = 0;

    if (json_is_object(root)) {
        sl_assert_ok(sl_manifest_checksum(root, &value));
        (void)snprintf(hash, sizeof(hash), "%016" PRIx64, value);
        (void)json_object_set_new(root, "checksum", json_string(hash));
        out = json_dumps(root, 0);
    }
    json_decref(root);
    return out;
}

static void test_round_trip(void **state)
{
    char *text = make_text(), *again = NULL;
    sl_manifest_t m;

    (void)state;
    sl_assert_ok(sl_manifest_parse("m", text, strlen(text), &m));
    assert_int_equal(m.step, 12);
    assert_true(isnan(m.validation_loss) && m.loss == 2.5);
    assert_true(m.scale.factor == 4096.0 && m.scale.n_good_steps == 7);
    assert_string_equal(sl_manifest_setting(&m, "train.batch"), "32");
    assert_null(sl_manifest_setting(&m, "train.nothing"));
    sl_assert_ok(sl_manifest_format(&m, &again));
    assert_string_equal(text, again);
    sl_manifest_cleanup(&m);
    free(text);
    free(again);
}

/* Bytes changed, dropped, doubled, cut off; every second one is signed. */
static void test_mutations(void **state)
{
    static const char words[][24] = {"-1",
                                     "1e400",
                                     "9223372036854775807",
                                     "18446744073709551616",
                                     "null",
                                     "[]",
                                     "{}",
                                     "\"..\"",
                                     "\"../../x.safetensors\"",
                                     "\"\\u0000\"",
                                     "\"a\\nb\"",
                                     "true",
                                     "[[[[[[[[",
                                     "\"/etc/passwd\"",
                                     "\"\""};
    const sl_rng_t rng = sl_rng_at(20, 0, 0, 0, SL_RNG_USE_SYNTHETIC);
    char *good = make_text();
    const size_t n_good = strlen(good);
    static char text[MAX_TEXT];
    uint64_t draw = 0;
    int i, n_read = 0;

    (void)state;
    for (i = 0; i < N_MUTATIONS; i++) {
        size_t n = n_good;
        const uint32_t n_changes = 1 + sl_rng_u32(&rng, draw++) % 4;
        char *own = NULL;
        uint32_t c;

        memcpy(text, good, n_good);
        for (c = 0; c < n_changes && n > 0; c++) {
            const size_t at = sl_rng_u32(&rng, draw++) % n;
            const uint32_t value = sl_rng_u32(&rng, draw++);
            const char *word = words[value % 15];
            const size_t length = strlen(word);

            switch (sl_rng_u32(&rng, draw++) % 5) {
            case 0:
                text[at] = (char)(value & 0xff);
                break;
            case 1:
                memmove(text + at, text + at + 1, n - at - 1);
                n--;
                break;
            case 2:
                memmove(text + at + length, text + at, n - at);
                memcpy(text + at, word, length);
                n += length;
                break;
            case 3: {
                const char *colon = memchr(text + at, ':', n - at);
                const size_t from = colon == NULL || colon + 2 >= text + n
                                        ? at
                                        : (size_t)(colon - text) + 2;
                size_t end = from;

                while (end < n && text[end] != ',' && text[end] != '\n') {
                    end++;
                }
                memmove(text + from + length, text + end, n - end);
                memcpy(text + from, word, length);
                n = n + length - (end - from);
                break;
            }
            default:
                n = value % 8 == 0 ? at : n;
                break;
            }
        }
        if (i % 2 == 0) {
            own = sign(text, n);
        }
        n_read += own == NULL ? parse(text, n) : parse(own, strlen(own));
        free(own);
    }
    /* some changes are harmless: a loss, a date, a blank */
    assert_true(n_read > 0 && n_read < N_MUTATIONS / 2);
    free(good);
}

static void check_refused(const char *from, const char *to, const char *why)
{
    char *good = make_text(), *text = malloc(MAX_TEXT), *own;
    const char *at = strstr(good, from);
    sl_manifest_t m;

    assert_non_null(at);
    assert_non_null(text);
    (void)snprintf(text, MAX_TEXT, "%.*s%s%s", (int)(at - good), good, to,
                   at + strlen(from));
    own = sign(text, strlen(text));
    assert_non_null(own);
    assert_true(sl_manifest_parse("m", own, strlen(own), &m) < 0);
    sl_assert_contains(sl_last_error(), why);
    free(own);
    free(text);
    free(good);
}

static void test_lies(void **state)
{
    (void)state;
    check_refused("\"state-0000-0000.safetensors\"", "\"../x.safetensors\"",
                  "cannot have the name");
    check_refused("\"state-0000-0000.safetensors\"", "\"manifest.json\"",
                  "cannot have the name");
    check_refused("state-0000-0001", "state-0000-0000", "is there twice");
    check_refused("\"fc1.bias\"", "\"fc1.weight\"", "is there twice");
    check_refused("\"bytes\": 300", "\"bytes\": -1", "bytes is not");
    check_refused("\"step\": 12", "\"step\": 4294967296", "step is not");
    check_refused("\"step\": 12", "\"step\": 1.5", "step is not");
    check_refused("out 7", "out 8", "fingerprint");
    check_refused("2026-01-31", "2026-01-31\\u001b", "control character");
    check_refused("\"version\": 1", "\"version\": 2", "a newer program");
    check_refused("\"version\": 1", "\"version\": 0", "an older program");
    check_refused("\"train.batch\": \"32\"", "\"train.batch\": 32",
                  "a setting");
    check_refused("\"shards\": [", "\"shards\": [7, ", "not an object");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_round_trip),
        sl_unit_test(test_mutations),
        sl_unit_test(test_lies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
