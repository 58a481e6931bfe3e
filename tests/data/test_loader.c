/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: order, epochs, passes, prefetching, failures, ending. */
#include <time.h>

#include "tests/data/data_test.h"

/** A set of n one-pixel images: the label of image i is i, its pixel too. */
static sl_dataset_t *numbered_set(int n, int n_valid)
{
    uint8_t images[16 + 256] = {0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1};
    uint8_t labels[8 + 256] = {0, 0, 8, 1};
    sl_data_params_t params;
    sl_dataset_t *dataset = NULL;
    int i;

    assert_in_range(n, 1, 255);
    images[7] = (uint8_t)n;
    labels[7] = (uint8_t)n;
    for (i = 0; i < n; i++) {
        images[16 + i] = (uint8_t)i;
        labels[8 + i] = (uint8_t)i;
    }
    sl_data_params_default(&params);
    params.format = "idx";
    params.path = test_file("images", images, 16 + (size_t)n);
    params.labels = test_file("labels", labels, 8 + (size_t)n);
    params.deviation[0] = 1.0 / 255.0;
    params.n_valid = n_valid;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    return dataset;
}

static sl_dataset_t *text_set(int64_t context)
{
    uint8_t bytes[2000];
    sl_data_params_t params;
    sl_dataset_t *dataset = NULL;
    size_t i;

    for (i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(i % 256);
    }
    sl_data_params_default(&params);
    params.format = "text";
    params.path = test_file("text", bytes, sizeof(bytes));
    params.context = context;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    return dataset;
}

static sl_loader_t *loader_of(sl_dataset_t *dataset, sl_data_split_t split,
                              int64_t batch_rows, uint32_t first_step,
                              int n_ahead)
{
    const sl_loader_params_t params = {.split = split,
                                       .batch_rows = batch_rows,
                                       .shuffle = 1,
                                       .seed = 42,
                                       .first_step = first_step,
                                       .n_ahead = n_ahead};
    sl_loader_t *loader = NULL;

    sl_assert_ok(sl_loader_create(dataset, &params, &loader));
    return loader;
}

/** The next batch, which must be a full one of this step; marks its labels. */
static void next_full(sl_loader_t *loader, int64_t rows, uint32_t step,
                      int *counts)
{
    sl_batch_t batch;
    int64_t i;

    sl_assert_ok(sl_loader_next(loader, &batch));
    assert_int_equal(batch.rows, rows);
    assert_int_equal(batch.step, step);
    for (i = 0; i < rows; i++) {
        const float *pixels = batch.data;

        assert_float_equal(pixels[i], (float)batch.target[i], 1e-3);
        counts[batch.target[i]]++;
    }
}

static void an_epoch_uses_every_sample_once(void **state)
{
    enum {
        N = 12,
        BATCH = 4,
        EPOCHS = 5
    };
    sl_dataset_t *dataset = numbered_set(N, 0);
    sl_loader_t *loader = loader_of(dataset, SL_DATA_TRAIN, BATCH, 0, 2);
    uint32_t step = 0;
    int epoch, k;

    (void)state;
    for (epoch = 0; epoch < EPOCHS; epoch++) {
        int counts[N] = {0};

        for (k = 0; k < N / BATCH; k++) {
            next_full(loader, BATCH, step++, counts);
        }
        for (k = 0; k < N; k++) {
            assert_int_equal(counts[k], 1);
        }
    }
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
}

static void the_tail_of_an_epoch_is_dropped(void **state)
{
    enum {
        N = 10,
        BATCH = 3,
        EPOCHS = 200
    };
    sl_dataset_t *dataset = numbered_set(N, 0);
    sl_loader_t *loader = loader_of(dataset, SL_DATA_TRAIN, BATCH, 0, 3);
    int dropped[N] = {0};
    uint32_t step = 0;
    int epoch, k;

    (void)state;
    for (epoch = 0; epoch < EPOCHS; epoch++) {
        int counts[N] = {0};

        for (k = 0; k < N / BATCH; k++) {
            next_full(loader, BATCH, step++, counts);
        }
        for (k = 0; k < N; k++) {
            assert_in_range(counts[k], 0, 1);
            dropped[k] += counts[k] == 0;
        }
    }
    /* another one each time: the permutations differ */
    for (k = 0; k < N; k++) {
        assert_in_range(dropped[k], 5, 45);
    }
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
}

static void a_set_smaller_than_a_batch_wraps(void **state)
{
    enum {
        N = 10,
        BATCH = 16,
        STEPS = 50
    };
    sl_dataset_t *dataset = numbered_set(N, 0);
    sl_loader_t *loader = loader_of(dataset, SL_DATA_TRAIN, BATCH, 0, 1);
    int counts[N] = {0};
    uint32_t step;
    int k;

    (void)state;
    for (step = 0; step < STEPS; step++) {
        next_full(loader, BATCH, step, counts);
    }
    for (k = 0; k < N; k++) {
        assert_int_equal(counts[k], STEPS * BATCH / N);
    }
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
}

static void unshuffled_training_goes_in_order(void **state)
{
    sl_dataset_t *dataset = numbered_set(7, 0);
    const sl_loader_params_t params = {.split = SL_DATA_TRAIN, .batch_rows = 3};
    sl_loader_t *loader = NULL;
    sl_batch_t batch;
    int step, i;

    (void)state;
    sl_assert_ok(sl_loader_create(dataset, &params, &loader));
    for (step = 0; step < 6; step++) {
        sl_assert_ok(sl_loader_next(loader, &batch));
        for (i = 0; i < 3; i++) {
            assert_int_equal(batch.target[i], step % 2 * 3 + i);
        }
    }
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
}

static void a_valid_pass_ends_and_starts_over(void **state)
{
    sl_dataset_t *dataset = numbered_set(20, 8);
    sl_loader_t *loader = loader_of(dataset, SL_DATA_VALID, 3, 77, 2);
    static const int rows[4] = {3, 3, 2, 0};
    sl_batch_t batch;
    int pass, k, i, label;

    (void)state;
    for (pass = 0; pass < 4; pass++) {
        label = 12;
        for (k = 0; k < 4; k++) {
            sl_assert_ok(sl_loader_next(loader, &batch));
            assert_int_equal(batch.rows, rows[k]);
            for (i = 0; i < rows[k]; i++) {
                assert_int_equal(batch.target[i], label++);
            }
        }
    }
    sl_loader_destroy(loader);
    /* a whole number of batches, and one batch larger than the split */
    loader = loader_of(dataset, SL_DATA_VALID, 4, 0, 1);
    for (k = 0; k < 9; k++) {
        sl_assert_ok(sl_loader_next(loader, &batch));
        assert_int_equal(batch.rows, k % 3 == 2 ? 0 : 4);
    }
    sl_loader_destroy(loader);
    loader = loader_of(dataset, SL_DATA_VALID, 100, 0, 1);
    for (k = 0; k < 4; k++) {
        sl_assert_ok(sl_loader_next(loader, &batch));
        assert_int_equal(batch.rows, k % 2 == 1 ? 0 : 8);
    }
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
}

/** Batches of loader b must be those of a, from here on. */
static void check_same(sl_loader_t *a, sl_loader_t *b, int n_batches,
                       size_t row_data_bytes, size_t row_targets)
{
    int k;

    for (k = 0; k < n_batches; k++) {
        sl_batch_t x, y;

        sl_assert_ok(sl_loader_next(a, &x));
        sl_assert_ok(sl_loader_next(b, &y));
        assert_int_equal(x.step, y.step);
        assert_int_equal(x.rows, y.rows);
        assert_memory_equal(x.data, y.data, (size_t)x.rows * row_data_bytes);
        assert_memory_equal(x.target, y.target,
                            (size_t)x.rows * row_targets * sizeof(*x.target));
    }
}

/** A run from `first`, and one that skips there, give the same batches. */
static void check_resume(sl_dataset_t *dataset, int64_t batch_rows,
                         uint32_t first)
{
    test_sample_t sample = test_sample(dataset);
    sl_loader_t *a = loader_of(dataset, SL_DATA_TRAIN, batch_rows, 0, 1);
    sl_loader_t *b = loader_of(dataset, SL_DATA_TRAIN, batch_rows, first, 5);
    sl_batch_t batch;
    uint32_t k;

    for (k = 0; k < first; k++) {
        sl_assert_ok(sl_loader_next(a, &batch));
    }
    check_same(a, b, 20, sample.data_bytes, sample.n_targets);
    sl_loader_destroy(a);
    sl_loader_destroy(b);
    test_sample_free(&sample);
}

static void a_batch_is_a_function_of_seed_and_step(void **state)
{
    sl_dataset_t *images = numbered_set(50, 5);
    sl_dataset_t *text = text_set(8);
    uint32_t first;

    (void)state;
    for (first = 0; first < 40; first += 13) {
        check_resume(images, 7, first);
        check_resume(images, 64, first);
        check_resume(text, 4, first);
    }
    sl_dataset_close(images);
    sl_dataset_close(text);
}

static void another_seed_gives_another_order(void **state)
{
    sl_dataset_t *dataset = numbered_set(50, 0);
    sl_loader_params_t params = {
        .split = SL_DATA_TRAIN, .batch_rows = 50, .shuffle = 1, .seed = 1};
    sl_loader_t *a = NULL, *b = NULL;
    sl_batch_t x, y;

    (void)state;
    sl_assert_ok(sl_loader_create(dataset, &params, &a));
    params.seed = 2;
    sl_assert_ok(sl_loader_create(dataset, &params, &b));
    sl_assert_ok(sl_loader_next(a, &x));
    sl_assert_ok(sl_loader_next(b, &y));
    assert_memory_not_equal(x.target, y.target, 50 * sizeof(*x.target));
    sl_loader_destroy(a);
    sl_loader_destroy(b);
    sl_dataset_close(dataset);
}

static void text_windows_of_a_run_differ(void **state)
{
    sl_dataset_t *dataset = text_set(8);
    sl_loader_t *loader = loader_of(dataset, SL_DATA_TRAIN, 16, 0, 2);
    int seen[256] = {0}, n_seen = 0;
    sl_batch_t batch;
    int step, row, k;

    (void)state;
    for (step = 0; step < 100; step++) {
        sl_assert_ok(sl_loader_next(loader, &batch));
        for (row = 0; row < 16; row++) {
            const int32_t *inputs = (const int32_t *)batch.data + row * 8;

            for (k = 0; k < 8; k++) {
                assert_int_equal(batch.target[row * 8 + k],
                                 (inputs[0] + k + 1) % 256);
            }
            seen[inputs[0]] = 1;
        }
    }
    for (k = 0; k < 256; k++) {
        n_seen += seen[k];
    }
    assert_in_range(n_seen, 250, 256);
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
}

static void a_held_batch_is_not_overwritten(void **state)
{
    sl_dataset_t *dataset = numbered_set(100, 0);
    sl_loader_t *loader = loader_of(dataset, SL_DATA_TRAIN, 10, 0, 1);
    const struct timespec moment = {.tv_nsec = 200000};
    int32_t before[10];
    sl_batch_t batch;
    int step;

    (void)state;
    for (step = 0; step < 50; step++) {
        sl_assert_ok(sl_loader_next(loader, &batch));
        memcpy(before, batch.target, sizeof(before));
        /* time for the thread to do wrong */
        (void)nanosleep(&moment, NULL);
        assert_memory_equal(before, batch.target, sizeof(before));
    }
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
}

static void a_failed_read_reaches_the_reader_and_stays(void **state)
{
    sl_dataset_t *dataset = text_set(8);
    sl_loader_t *loader = loader_of(dataset, SL_DATA_TRAIN, 4, 0, 2);
    sl_status_t status = SL_OK;
    sl_batch_t batch;
    int n_good;

    (void)state;
    (void)test_file("text", "short", 5);
    for (n_good = 0; n_good < 100 && status == SL_OK; n_good++) {
        status = sl_loader_next(loader, &batch);
    }
    assert_int_equal(status, SL_ERR_CORRUPT);
    sl_last_error_set("");
    sl_assert_status(sl_loader_next(loader, &batch), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), "ends at offset");
    (void)sl_test_log_take();
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
}

static void destroy_never_waits_for_a_reader(void **state)
{
    sl_data_params_t params;
    sl_dataset_t *dataset = NULL;
    sl_batch_t batch;
    int round, k;

    (void)state;
    sl_data_params_default(&params);
    params.format = "synthetic_images";
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    for (round = 0; round < 60; round++) {
        sl_loader_t *loader =
            loader_of(dataset, SL_DATA_TRAIN, 64, 0, 1 + round % 4);

        for (k = 0; k < round % 5; k++) {
            sl_assert_ok(sl_loader_next(loader, &batch));
        }
        sl_loader_destroy(loader);
    }
    sl_loader_destroy(NULL);
    sl_dataset_close(dataset);
}

/* Whole batches an epoch; a split smaller than a batch wraps. */
static void the_position_of_a_step(void **state)
{
    static const struct {
        int64_t n_samples, rows;
        uint64_t step, epoch, sample;
    } cases[] = {{10, 3, 0, 0, 0}, {10, 3, 2, 0, 6}, {10, 3, 3, 1, 0},
                 {10, 3, 7, 2, 3}, {9, 3, 3, 1, 0},  {3, 8, 1, 2, 2},
                 {3, 8, 3, 8, 0},  {1, 1, 5, 5, 0},  {64, 7, 28, 3, 7}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint64_t epoch = 99, sample = 99;

        sl_data_position(cases[i].n_samples, cases[i].rows, cases[i].step,
                         &epoch, &sample);
        assert_int_equal(epoch, cases[i].epoch);
        assert_int_equal(sample, cases[i].sample);
    }
}

static void bad_loader_params_are_refused(void **state)
{
    sl_dataset_t *dataset = numbered_set(5, 0);
    sl_loader_params_t params = {.split = SL_DATA_TRAIN, .batch_rows = 0};
    sl_loader_t *loader = NULL;

    (void)state;
    sl_assert_status(sl_loader_create(dataset, &params, &loader),
                     SL_ERR_INVALID_ARG);
    params.batch_rows = INT64_MAX;
    sl_assert_status(sl_loader_create(dataset, &params, &loader),
                     SL_ERR_INVALID_ARG);
    params.batch_rows = 1;
    params.n_ahead = -1;
    sl_assert_status(sl_loader_create(dataset, &params, &loader),
                     SL_ERR_INVALID_ARG);
    params.n_ahead = 1;
    params.split = SL_DATA_VALID;
    sl_assert_status(sl_loader_create(dataset, &params, &loader),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "the held-out split has no samples");
    assert_null(loader);
    sl_dataset_close(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(an_epoch_uses_every_sample_once),
        sl_unit_test(the_tail_of_an_epoch_is_dropped),
        sl_unit_test(a_set_smaller_than_a_batch_wraps),
        sl_unit_test(unshuffled_training_goes_in_order),
        sl_unit_test(a_valid_pass_ends_and_starts_over),
        sl_unit_test(a_batch_is_a_function_of_seed_and_step),
        sl_unit_test(another_seed_gives_another_order),
        sl_unit_test(text_windows_of_a_run_differ),
        sl_unit_test(a_held_batch_is_not_overwritten),
        sl_unit_test(a_failed_read_reaches_the_reader_and_stays),
        sl_unit_test(destroy_never_waits_for_a_reader),
        sl_unit_test(the_position_of_a_step),
        sl_unit_test(bad_loader_params_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
