/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file kernel_bed.h
 * A stream and device arrays for kernel tests, on the stand-in or on a GPU.
 * Arrays have guard bytes on both sides, outputs start as NaN.
 */
#ifndef SL_TESTS_CUDA_KERNEL_BED_H
#define SL_TESTS_CUDA_KERNEL_BED_H

#include <stddef.h>
#include <stdint.h>

#include "layers/cuda/cuda_kernels.h"
#include "layers/layers.h"
#include "tests/support/sl_test.h"

/** The stream of the test. */
void *bed_stream(void);

/** cmocka's setup and teardown: the guards, leaks and reports are checked. */
int bed_setup(void **state);
int bed_teardown(void **state);
/** Skips (status 77) the whole program where there is no device. */
int bed_has_device(void);

/** Host numbers, freed by the teardown. */
float *bed_floats(size_t n);
/** Normal numbers times scale. */
float *bed_random(size_t n, uint32_t seed, float scale);
double *bed_doubles(size_t n);

/** A device array of n elements, all NaN. shift: elements that its start is
 *  off a multiple of 256 bytes. */
void *bed_array(sl_cuda_type_t type, size_t n, size_t shift);
/** One with these values, rounded to the type; `values` becomes what it
 *  holds. */
void *bed_upload(sl_cuda_type_t type, float *values, size_t n, size_t shift);
/** Any bytes. */
void *bed_upload_bytes(const void *data, size_t bytes);
void *bed_bytes(size_t bytes);

/** What a device array holds; waits. The result lives until the teardown. */
float *bed_fetch(sl_cuda_type_t type, const void *array, size_t n);
void bed_fetch_bytes(void *to, const void *array, size_t bytes);

/** Rounded to the type, in exact arithmetic. */
double bed_round(sl_cuda_type_t type, double value);
/** Relative error of one rounding. */
double bed_epsilon(sl_cuda_type_t type);

/** Fail unless |got - want| <= absolute + relative |want| everywhere. */
void bed_assert_close(const char *what, const float *got, const double *want,
                      size_t n, double relative, double absolute);
/** The same bits; one NaN is as good as another. */
void bed_assert_same(const char *what, const float *got, const float *want,
                     size_t n);

/** Run it twice, on the stand-in the second time with threads and blocks in
 *  reverse: the arrays must have the same bits. run() starts from the same
 *  state each time. */
typedef struct bed_output {
    const void *array;
    size_t bytes;
} bed_output_t;

void bed_assert_repeats(void (*run)(void *args), void *args,
                        const bed_output_t *outputs, size_t n_outputs);

/** A CPU layer and its plan with one thread, destroyed by the teardown. */
typedef struct bed_layer {
    sl_layer_t *layer;
    sl_layer_plan_t plan;
    sl_layer_run_t run; /**< plan, saved, workspace, step are set */
} bed_layer_t;

bed_layer_t *bed_cpu_layer(const char *type, const sl_attr_t *attrs,
                           size_t n_attrs, const sl_tensor_desc_t *in,
                           int n_inputs);
void bed_cpu_forward(bed_layer_t *cpu);
void bed_cpu_backward(bed_layer_t *cpu);

#define BED_TEST(name)                                                         \
    cmocka_unit_test_setup_teardown(name, bed_setup, bed_teardown)

#endif /* SL_TESTS_CUDA_KERNEL_BED_H */
