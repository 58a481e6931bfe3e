/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file standin_bed.h
 * Streams, arrays and checks for the tests of the stand-in itself.
 */
#ifndef SL_TESTS_CUDA_STANDIN_BED_H
#define SL_TESTS_CUDA_STANDIN_BED_H

#include "tests/support/sl_test.h"

#include <stdio.h>
#include <string.h>

#include "standin.h"
#include "tests/cuda/standin_kernels.h"

enum {
    N = 1000
};

/* Two streams, two arrays on device 0. */
typedef struct bed {
    cudaStream_t a, b;
    float *x, *y;
} bed_t;

static inline void ok(cudaError_t error)
{
    assert_string_equal(cudaGetErrorName(error), "cudaSuccess");
}

#define assert_error(call, error)                                              \
    assert_string_equal(cudaGetErrorName(call), cudaGetErrorName(error))

static inline void *device_alloc(size_t bytes)
{
    void *ptr = NULL;

    ok(cudaMalloc(&ptr, bytes));
    return ptr;
}

static inline bed_t bed_make(void)
{
    bed_t bed;

    ok(cudaStreamCreateWithFlags(&bed.a, cudaStreamNonBlocking));
    ok(cudaStreamCreateWithFlags(&bed.b, cudaStreamNonBlocking));
    bed.x = device_alloc(N * sizeof(float));
    bed.y = device_alloc(N * sizeof(float));
    return bed;
}

static inline void bed_free(bed_t *bed)
{
    ok(cudaFree(bed->x));
    ok(cudaFree(bed->y));
    ok(cudaStreamDestroy(bed->a));
    ok(cudaStreamDestroy(bed->b));
}

static inline int reset(void **state)
{
    const int n_live = standin_n_live();
    const int n_reports = standin_n_reports();

    if (n_reports > 0) {
        (void)fprintf(stderr, "%s\n", standin_report(0));
    }
    standin_reset();
    return sl_test_teardown(state) || n_live != 0 || n_reports != 0;
}

static inline void launch(kernel_t kernel, const bed_t *bed,
                          cudaStream_t stream)
{
    ok(kernel_launch(kernel, 4, 256, bed->x, bed->y, N, N, 1, stream));
}

static inline void expect_report(const char *part)
{
    assert_int_equal(standin_n_reports(), 1);
    sl_assert_contains(standin_report(0), part);
    standin_clear_reports();
}

#define T(name) cmocka_unit_test_setup_teardown(name, sl_test_setup, reset)

#endif /* SL_TESTS_CUDA_STANDIN_BED_H */
