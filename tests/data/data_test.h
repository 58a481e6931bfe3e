/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file data_test.h
 * Small files for the tests of data sets.
 */
#ifndef SL_TESTS_DATA_DATA_TEST_H
#define SL_TESTS_DATA_DATA_TEST_H

#include "tests/support/sl_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/data.h"

/** Path of `name` in the test's directory; valid for 8 more calls. */
static inline const char *test_path(const char *name)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", sl_test_directory(), name);
    return path;
}

/** Write a file into the test's directory. @return its path, as above */
static inline const char *test_file(const char *name, const void *bytes,
                                    size_t n_bytes)
{
    const char *path = test_path(name);
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

/** Samples of one desc, one target desc, big enough for `rows`. */
typedef struct test_sample {
    void *data;
    int32_t *target;
    size_t data_bytes, n_targets;
} test_sample_t;

static inline test_sample_t test_sample(const sl_dataset_t *dataset)
{
    sl_tensor_desc_t data, target;
    test_sample_t sample;

    sl_dataset_descs(dataset, &data, &target);
    sample.data_bytes = sl_tensor_bytes(&data);
    sample.n_targets = (size_t)sl_tensor_elements(&target);
    sample.data = calloc(1, sample.data_bytes);
    sample.target = calloc(sample.n_targets, sizeof(*sample.target));
    assert_non_null(sample.data);
    assert_non_null(sample.target);
    return sample;
}

static inline void test_sample_free(test_sample_t *sample)
{
    free(sample->data);
    free(sample->target);
}

#endif /* SL_TESTS_DATA_DATA_TEST_H */
