/* SPDX-License-Identifier: Apache-2.0 */
/* Token formats: text, token shards, synthetic; what is refused, and why. */
#include <math.h>

#include "base/rng.h"
#include "tests/data/data_test.h"

enum {
    HEADER = 1024,
    MAGIC = 20240520
};

static sl_data_params_t params_of(const char *format, const char *path,
                                  int64_t context)
{
    sl_data_params_t params;

    sl_data_params_default(&params);
    params.format = format;
    params.path = path;
    params.context = context;
    return params;
}

/** A text whose byte i is i % 251. */
static const char *counting_text(const char *name, size_t n)
{
    uint8_t *bytes = malloc(n);
    const char *path;
    size_t i;

    assert_non_null(bytes);
    for (i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(i % 251);
    }
    path = test_file(name, bytes, n);
    free(bytes);
    return path;
}

static void put16(uint8_t *bytes, unsigned value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

static void put32(uint8_t *bytes, uint32_t value)
{
    put16(bytes, value & 0xFFFF);
    put16(bytes + 2, value >> 16);
}

/** Bytes of a shard of n tokens 3 * i, after a header of n_header bytes. */
static uint8_t *shard(size_t n, size_t n_header)
{
    uint8_t *bytes = calloc(1, n_header + 2 * n);
    size_t i;

    assert_non_null(bytes);
    if (n_header > 0) {
        put32(bytes, MAGIC);
        put32(bytes + 4, 1);
        put32(bytes + 8, (uint32_t)n);
    }
    for (i = 0; i < n; i++) {
        put16(bytes + n_header + 2 * i, (unsigned)(3 * i));
    }
    return bytes;
}

static void text_windows_are_shifted_by_one(void **state)
{
    enum {
        BYTES = 1000,
        CONTEXT = 16
    };
    const sl_data_params_t params =
        params_of("text", counting_text("t", BYTES), CONTEXT);
    sl_dataset_t *dataset = NULL;
    sl_tensor_desc_t data, target_desc;
    int32_t inputs[CONTEXT], target[CONTEXT];
    int is_start_seen[BYTES] = {0};
    int n_starts = 0;
    int64_t i;
    int k;

    (void)state;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_classes(dataset), 256);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 899 / CONTEXT);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 99 / CONTEXT);
    sl_dataset_descs(dataset, &data, &target_desc);
    assert_int_equal(data.dtype, SL_DTYPE_I32);
    assert_int_equal(data.n_dims, 2);
    assert_int_equal(data.dims[1], CONTEXT);
    assert_true(sl_tensor_desc_is_equal(&data, &target_desc));
    for (i = 0; i < sl_dataset_count(dataset, SL_DATA_VALID); i++) {
        sl_dataset_sample(dataset, SL_DATA_VALID, i, 0, 0, inputs, target);
        for (k = 0; k < CONTEXT; k++) {
            assert_int_equal(inputs[k], (900 + i * CONTEXT + k) % 251);
            assert_int_equal(target[k], (901 + i * CONTEXT + k) % 251);
        }
    }
    for (i = 0; i < 5000; i++) {
        sl_dataset_sample(dataset, SL_DATA_TRAIN, 0, 1, (uint64_t)i, inputs,
                          target);
        for (k = 0; k < CONTEXT; k++) {
            assert_int_equal(target[k], (inputs[0] + k + 1) % 251);
            assert_int_equal(inputs[k], (inputs[0] + k) % 251);
        }
        is_start_seen[inputs[0]] = 1;
    }
    for (i = 0; i < BYTES; i++) {
        n_starts += is_start_seen[i];
    }
    assert_int_equal(n_starts, 251);
    sl_dataset_close(dataset);
}

static void train_windows_stay_in_the_train_part(void **state)
{
    enum {
        BYTES = 40,
        CONTEXT = 5
    };
    sl_data_params_t params =
        params_of("text", counting_text("t", BYTES), CONTEXT);
    sl_dataset_t *dataset = NULL;
    int32_t inputs[CONTEXT], target[CONTEXT];
    int seen[BYTES] = {0};
    int i;

    (void)state;
    params.valid_fraction = 0.25;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    for (i = 0; i < 2000; i++) {
        sl_dataset_sample(dataset, SL_DATA_TRAIN, 0, 9, (uint64_t)i, inputs,
                          target);
        assert_in_range(inputs[0], 0, 24);
        seen[inputs[0]]++;
    }
    /* the last start has its last target at the part's last byte, 29 */
    for (i = 0; i < 25; i++) {
        assert_in_range(seen[i], 40, 130);
    }
    sl_dataset_close(dataset);
}

static void a_separate_file_is_held_out_whole(void **state)
{
    sl_data_params_t params = params_of("text", counting_text("t", 20), 19);
    sl_dataset_t *dataset = NULL;
    int32_t inputs[19], target[19];

    (void)state;
    params.valid_path = test_file("v", "abcdefghijklmnopqrst", 20);
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 1);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 1);
    sl_dataset_sample(dataset, SL_DATA_TRAIN, 0, 1, 1, inputs, target);
    assert_int_equal(inputs[0], 0);
    assert_int_equal(target[18], 19);
    sl_dataset_sample(dataset, SL_DATA_VALID, 0, 1, 1, inputs, target);
    assert_int_equal(inputs[0], 'a');
    assert_int_equal(target[18], 't');
    sl_dataset_close(dataset);
}

static void a_context_longer_than_the_text_is_refused(void **state)
{
    sl_data_params_t params = params_of("text", counting_text("t", 100), 100);
    sl_dataset_t *dataset = NULL;

    (void)state;
    params.valid_fraction = 0.0;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(),
                       "the train split has 100 tokens, context 100 needs at "
                       "least 101");
    params.context = 99;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 0);
    sl_dataset_close(dataset);
    params.context = 20;
    params.valid_fraction = 0.1;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "the held-out split has 10 tokens");
    params.context = 0;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params.context = INT64_MAX;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params.context = 8;
    params.valid_fraction = NAN;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params.valid_fraction = 1.0;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params.valid_fraction = 0.1;
    params.classes = 65;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "tokens are bytes");
    params.classes = 0;
    params.path = test_file("empty", "", 0);
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), "is empty");
    params.path = sl_test_directory();
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_IO);
    params.path = NULL;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
}

/** Check the windows of a shard made by shard(), which `path` holds. */
static void check_shard(const char *path)
{
    enum {
        CONTEXT = 1500,
        N = 4000
    };
    sl_data_params_t params = params_of("tokens", path, CONTEXT);
    static int32_t inputs[CONTEXT], target[CONTEXT];
    sl_dataset_t *dataset = NULL;
    uint64_t draw;
    int k;

    params.valid_fraction = 0.5;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_classes(dataset), 50257);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 1);
    sl_dataset_sample(dataset, SL_DATA_VALID, 0, 0, 0, inputs, target);
    for (k = 0; k < CONTEXT; k++) {
        assert_int_equal(inputs[k], 3 * (N / 2 + k));
        assert_int_equal(target[k], 3 * (N / 2 + k + 1));
    }
    for (draw = 0; draw < 50; draw++) {
        sl_dataset_sample(dataset, SL_DATA_TRAIN, 0, 4, draw, inputs, target);
        assert_in_range(inputs[0], 0, 3 * (N / 2 - CONTEXT - 1));
        for (k = 0; k < CONTEXT; k++) {
            assert_int_equal(inputs[k], inputs[0] + 3 * k);
            assert_int_equal(target[k], inputs[0] + 3 * (k + 1));
        }
    }
    sl_dataset_close(dataset);
}

static void shards_are_read_with_and_without_header(void **state)
{
    uint8_t *raw = shard(4000, 0), *headed = shard(4000, HEADER);

    (void)state;
    check_shard(test_file("raw", raw, 8000));
    check_shard(test_file("headed", headed, HEADER + 8000));
    free(raw);
    free(headed);
}

/** Open a file of these bytes; the reason must hold `part`. */
static void shard_refused(const void *bytes, size_t n, int64_t classes,
                          sl_status_t want, const char *part)
{
    sl_data_params_t params =
        params_of("tokens", test_file("bad", bytes, n), 4);
    sl_dataset_t *dataset = NULL;

    params.classes = classes;
    sl_assert_status(sl_dataset_open(&params, &dataset), want);
    sl_assert_contains(sl_last_error(), part);
    assert_null(dataset);
}

static void bad_shards_are_refused_with_the_reason(void **state)
{
    uint8_t *bytes = shard(100, HEADER);
    const size_t n = HEADER + 200;

    (void)state;
    shard_refused(bytes, n, 297, SL_ERR_CORRUPT,
                  "token 297 at offset 1222; the vocabulary is 297");
    shard_refused(bytes + HEADER, 200, 150, SL_ERR_CORRUPT,
                  "token 150 at offset 100; the vocabulary is 150");
    shard_refused(bytes, n - 1, 0, SL_ERR_CORRUPT, "whole number of 2-byte");
    shard_refused(bytes, n - 2, 0, SL_ERR_CORRUPT,
                  "says 100 tokens at offset 8, but 198 bytes after it");
    shard_refused(bytes, HEADER - 2, 0, SL_ERR_CORRUPT, "ends at offset 1022");
    shard_refused(bytes, 0, 0, SL_ERR_CORRUPT, "is empty");
    shard_refused(bytes, n, -1, SL_ERR_CONFIG, "vocabulary");
    put32(bytes + 4, 2);
    shard_refused(bytes, n, 0, SL_ERR_CORRUPT, "header version 2");
    put32(bytes + 4, 1);
    put32(bytes + 8, 0xFFFFFFFFu);
    shard_refused(bytes, n, 0, SL_ERR_CORRUPT, "says 4294967295 tokens");
    put32(bytes + 8, 0);
    shard_refused(bytes, HEADER, 0, SL_ERR_CONFIG, "has 0 tokens");
    put32(bytes, 20240801);
    shard_refused(bytes, n, 0, SL_ERR_UNSUPPORTED, "32-bit tokens");
    put32(bytes, MAGIC ^ 1);
    shard_refused(bytes, n, 0, SL_ERR_CORRUPT, "token 55433 at offset 0");
    free(bytes);
}

static void random_shards_never_crash(void **state)
{
    enum {
        ROUNDS = 3000,
        MAX = HEADER + 64
    };
    uint8_t bytes[MAX];
    uint32_t round;

    (void)state;
    for (round = 0; round < ROUNDS; round++) {
        const sl_rng_t rng = sl_rng_at(5, round, 0, 0, SL_RNG_USE_SYNTHETIC);
        const size_t n =
            sl_rng_below(&rng, 0, 4) == 0 ? sl_rng_below(&rng, 1, MAX) : MAX;
        sl_data_params_t params;
        sl_dataset_t *dataset = NULL;
        sl_status_t status;
        int i;

        memset(bytes, 0, sizeof(bytes));
        put32(bytes, MAGIC);
        put32(bytes + 4, 1);
        put32(bytes + 8, 32);
        for (i = 0; i < (int)(round % 4); i++) {
            bytes[sl_rng_below(&rng, (uint64_t)(2 * i + 2), 16)] =
                (uint8_t)sl_rng_u32(&rng, (uint64_t)(99 + i));
        }
        params = params_of("tokens", test_file("f", bytes, n), 3);
        params.classes = 1 + (int64_t)sl_rng_below(&rng, 80, 65536);
        status = sl_dataset_open(&params, &dataset);
        (void)sl_test_log_take();
        assert_true(status == SL_OK || status == SL_ERR_CORRUPT ||
                    status == SL_ERR_CONFIG || status == SL_ERR_UNSUPPORTED);
        if (status == SL_OK) {
            int32_t inputs[3], target[3];

            sl_dataset_sample(dataset, SL_DATA_TRAIN, 0, 1, round, inputs,
                              target);
            sl_dataset_close(dataset);
        }
    }
}

static void a_file_that_shrinks_is_an_error_of_the_read(void **state)
{
    const sl_data_params_t params =
        params_of("text", counting_text("t", 1000), 8);
    sl_dataset_t *dataset = NULL;
    int32_t inputs[8], target[8];

    (void)state;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    (void)test_file("t", "short", 5);
    sl_dataset_sample(dataset, SL_DATA_VALID, 2, 0, 0, inputs, target);
    sl_assert_contains(sl_test_log_take(), "ends at offset");
    assert_int_equal(inputs[0], 0);
    assert_int_equal(target[0], SL_DATA_IGNORE);
    assert_int_equal(target[7], SL_DATA_IGNORE);
    sl_dataset_close(dataset);
}

static void a_rewritten_shard_gives_no_token_past_the_vocabulary(void **state)
{
    uint8_t *bytes = shard(100, 0);
    sl_data_params_t params =
        params_of("tokens", test_file("t", bytes, 200), 8);
    sl_dataset_t *dataset = NULL;
    int32_t inputs[8], target[8];

    (void)state;
    params.classes = 298;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    memset(bytes, 0xFF, 200);
    (void)test_file("t", bytes, 200);
    sl_dataset_sample(dataset, SL_DATA_VALID, 0, 0, 0, inputs, target);
    sl_assert_contains(sl_test_log_take(), "token 65535 at offset 180");
    assert_int_equal(inputs[0], 0);
    assert_int_equal(target[0], SL_DATA_IGNORE);
    sl_dataset_close(dataset);
    free(bytes);
}

static void synthetic_tokens_are_a_markov_chain(void **state)
{
    enum {
        CONTEXT = 64,
        CLASSES = 20,
        N = 200
    };
    static int counts[CLASSES][CLASSES];
    sl_data_params_t params = params_of("synthetic_tokens", NULL, CONTEXT);
    int32_t inputs[CONTEXT], target[CONTEXT], again[CONTEXT];
    sl_dataset_t *dataset = NULL;
    int n_likely = 0, i, k, to;

    (void)state;
    params.classes = CLASSES;
    params.n_samples = N;
    params.n_valid = 3;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), N);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 3);
    assert_int_equal(sl_dataset_classes(dataset), CLASSES);
    for (i = 0; i < N; i++) {
        sl_dataset_sample(dataset, SL_DATA_TRAIN, i, 1, 2, inputs, target);
        sl_dataset_sample(dataset, SL_DATA_TRAIN, i, 3, 4, again, target);
        assert_memory_equal(inputs, again, sizeof(inputs));
        for (k = 0; k < CONTEXT; k++) {
            assert_in_range(inputs[k], 0, CLASSES - 1);
            assert_in_range(target[k], 0, CLASSES - 1);
            assert_true(k + 1 == CONTEXT || inputs[k + 1] == target[k]);
            counts[inputs[k]][target[k]]++;
        }
    }
    for (i = 0; i < CLASSES; i++) {
        int most = 0;

        for (to = 0; to < CLASSES; to++) {
            most = counts[i][to] > most ? counts[i][to] : most;
        }
        n_likely += most;
    }
    /* knowing the token tells the next half of the time, and not always */
    assert_in_range(n_likely, N * CONTEXT * 45 / 100, N * CONTEXT * 85 / 100);
    sl_dataset_sample(dataset, SL_DATA_TRAIN, 0, 0, 0, inputs, target);
    sl_dataset_sample(dataset, SL_DATA_VALID, 0, 0, 0, again, target);
    assert_memory_not_equal(inputs, again, sizeof(inputs));
    sl_dataset_close(dataset);
}

static void real_text_is_read(void **state)
{
    static const char first[] = "First Citizen:\nBefore we proceed";
    const char *path = sl_test_data("tinyshakespeare.txt");
    sl_data_params_t params;
    sl_dataset_t *dataset = NULL;
    int32_t inputs[256], target[256];
    size_t k;

    (void)state;
    if (path == NULL) {
        skip();
    }
    params = params_of("text", path, 256);
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 3921);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 435);
    sl_dataset_close(dataset);
    params.valid_path = path;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    sl_dataset_sample(dataset, SL_DATA_VALID, 0, 0, 0, inputs, target);
    for (k = 0; k + 1 < sizeof(first) - 1; k++) {
        assert_int_equal(inputs[k], first[k]);
        assert_int_equal(target[k], first[k + 1]);
    }
    sl_dataset_close(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(text_windows_are_shifted_by_one),
        sl_unit_test(train_windows_stay_in_the_train_part),
        sl_unit_test(a_separate_file_is_held_out_whole),
        sl_unit_test(a_context_longer_than_the_text_is_refused),
        sl_unit_test(shards_are_read_with_and_without_header),
        sl_unit_test(bad_shards_are_refused_with_the_reason),
        sl_unit_test(random_shards_never_crash),
        sl_unit_test(a_file_that_shrinks_is_an_error_of_the_read),
        sl_unit_test(a_rewritten_shard_gives_no_token_past_the_vocabulary),
        sl_unit_test(synthetic_tokens_are_a_markov_chain),
        sl_unit_test(real_text_is_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
