/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of open and create fails once: each failure is a plain
 * SL_ERR_NO_MEMORY and leaves nothing behind (run it under a leak checker).
 * The linker sends the allocation calls of the library here (--wrap). */
#include <stdatomic.h>

#include "engine/data/data_config.h"
#include "tests/data/data_test.h"

/* Calls to go until one fails; below 0: none. atomic, as the prefetch thread
 * allocates too */
static atomic_int countdown = -1;

static int fails_now(void)
{
    return atomic_load(&countdown) >= 0 && atomic_fetch_sub(&countdown, 1) == 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : __real_aligned_alloc(alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails_now() ? NULL : __real_strdup(text);
}

/** Open the data and take a batch. */
static sl_status_t use(const sl_data_params_t *params)
{
    const sl_loader_params_t loading = {
        .split = SL_DATA_TRAIN, .batch_rows = 2, .shuffle = 1, .n_ahead = 1};
    sl_dataset_t *dataset = NULL;
    sl_loader_t *loader = NULL;
    sl_batch_t batch;
    sl_status_t status;

    SL_TRY(status, sl_dataset_open(params, &dataset), out);
    SL_TRY(status, sl_loader_create(dataset, &loading, &loader), out);
    SL_TRY(status, sl_loader_next(loader, &batch), out);
out:
    sl_loader_destroy(loader);
    sl_dataset_close(dataset);
    return status;
}

/** Fail allocation 0, 1, 2... of use() until it needs no more. */
static void sweep(const sl_data_params_t *params, int min_failures)
{
    sl_status_t status;
    int n = 0;

    do {
        atomic_store(&countdown, n);
        status = use(params);
        if (atomic_exchange(&countdown, -1) < 0) {
            /* one failed: before the batch was asked for, or ahead of it */
            assert_true(status == SL_ERR_NO_MEMORY || status == SL_OK);
            (void)sl_test_log_take();
            n++;
        } else {
            assert_int_equal(status, SL_OK);
            break;
        }
    } while (n < 1000);
    assert_in_range(n, min_failures, 999);
}

static void every_format_unwinds(void **state)
{
    static const uint8_t images[16 + 4] = {0, 0, 8, 3, 0, 0, 0, 4, 0, 0,
                                           0, 1, 0, 0, 0, 1, 1, 2, 3, 4};
    static const uint8_t labels[8 + 4] = {0, 0, 8, 1, 0, 0, 0, 4, 0, 1, 2, 3};
    static const uint8_t records[3 * 3073];
    sl_data_params_t params;

    (void)state;
    sl_data_params_default(&params);
    params.context = 4;
    params.valid_fraction = 0.0;
    params.format = "idx";
    params.path = test_file("i", images, sizeof(images));
    params.labels = test_file("l", labels, sizeof(labels));
    sweep(&params, 8);
    params.format = "cifar10";
    params.path = test_file("c", records, sizeof(records));
    params.valid_path = params.path;
    sweep(&params, 8);
    params.format = "text";
    params.path = test_file("t", labels, sizeof(labels));
    params.valid_path = params.path;
    sweep(&params, 8);
    params.format = "tokens";
    params.classes = 70;
    sl_assert_status(use(&params), SL_ERR_CORRUPT);
    params.classes = 2000;
    sweep(&params, 10);
    params.classes = 0;
    params.format = "synthetic_images";
    sweep(&params, 8);
    params.format = "synthetic_tokens";
    sweep(&params, 6);
}

static void paths_of_a_config_unwind(void **state)
{
    static const char text[] =
        "data: {format: idx, path: a, labels: b, valid_path: c,\n"
        "  valid_labels: d}\n";
    const sl_yaml_node_t *data;
    sl_yaml_t *yaml = NULL;
    int n;

    (void)state;
    sl_assert_ok(sl_yaml_parse("t.yaml", text, sizeof(text) - 1, &yaml));
    data = sl_yaml_get(sl_yaml_root(yaml), "data");
    for (n = 0; n < 4; n++) {
        sl_data_strings_t strings = {{NULL}};
        sl_data_params_t params;
        sl_status_t status;

        atomic_store(&countdown, n);
        status = sl_data_params_from_yaml(data, "d", &strings, &params);
        atomic_store(&countdown, -1);
        sl_assert_status(status, SL_ERR_NO_MEMORY);
        assert_null(strings.paths[0]);
    }
    sl_yaml_close(yaml);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_format_unwinds),
        sl_unit_test(paths_of_a_config_unwind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
