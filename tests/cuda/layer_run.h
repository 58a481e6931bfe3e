/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layer_run.h
 * A layer's kernels for CUDA devices, run on the stream of kernel_bed.h.
 */
#ifndef SL_TESTS_CUDA_LAYER_RUN_H
#define SL_TESTS_CUDA_LAYER_RUN_H

#include <cuda_runtime_api.h>

#include "scheduler/cuda.h"
#include "tests/cuda/kernel_bed.h"

/** What an op on the bed's stream is given. */
sl_cuda_stream_t *run_stream(void);

/** A layer and its plan; workspaces are NaN at each run. */
typedef struct layer_run {
    sl_layer_t *layer;
    sl_layer_plan_t plan;
    sl_layer_run_t run; /**< plan, saved and step are set, as bed_cpu_layer */
} layer_run_t;

/** A layer that makes activations of this type; lives until the teardown. */
layer_run_t *run_layer(const char *type, const sl_attr_t *attrs, size_t n_attrs,
                       const sl_tensor_desc_t *in, int n_inputs,
                       sl_dtype_t dtype, int is_training);
void run_forward(layer_run_t *layer);
void run_backward(layer_run_t *layer);
/** Set the type's name for tensors. */
sl_dtype_t run_dtype(sl_cuda_type_t type);

/** cmocka's fixture: as the bed's, and handles are released. */
int run_setup(void **state);
int run_teardown(void **state);

#define RUN_TEST(name)                                                         \
    cmocka_unit_test_setup_teardown(name, run_setup, run_teardown)

#endif /* SL_TESTS_CUDA_LAYER_RUN_H */
