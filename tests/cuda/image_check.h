/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file image_check.h
 * An image layer on a CUDA device against the same layer's kernels for the
 * CPU, on the same numbers: in both layouts and all types, with poisoned
 * outputs and workspace. Checked are the output, all gradients and running
 * statistics; that what is there is added to; that parts of the results can
 * be left out; and that all bits repeat.
 */
#ifndef SL_TESTS_CUDA_IMAGE_CHECK_H
#define SL_TESTS_CUDA_IMAGE_CHECK_H

#include <cuda_runtime_api.h>

#include "scheduler/cuda.h"
#include "tests/cuda/kernel_bed.h"

typedef struct image_case {
    const char *type;
    sl_attr_t attrs[10]; /**< up to the first NULL name */
    int n_inputs;
    int n_dims; /**< 0: 4 */
    int64_t dims[SL_LAYER_MAX_INPUTS][SL_MAX_DIMS];
    sl_layout_t layouts[SL_LAYER_MAX_INPUTS];
    sl_cuda_type_t dtype; /**< of activations */
    int is_data;          /**< the input is the batch's data: f32 */
    int is_evaluation;
    int is_tf32;
    int is_dnn;      /**< by cuDNN, where there are own kernels too */
    int is_distinct; /**< no two values of a window of the input are equal */
    double terms;    /**< of the longest sum, for the tolerance; 0: 32 */
} image_case_t;

/** A layer on the device, with all its arrays. */
typedef struct image_layer {
    sl_layer_t *layer;
    sl_layer_plan_t plan;
    sl_layer_run_t run;
    float *in[SL_LAYER_MAX_INPUTS]; /**< plain, as stored */
    float *param[SL_LAYER_MAX_PARAMS];
    float *dout;
} image_layer_t;

/** The stream that ops are given. */
sl_cuda_stream_t *image_stream(void);

void image_layer_make(image_layer_t *image, const image_case_t *c);
void image_layer_free(image_layer_t *image);
/** Release the handles of the stream: at the end of a test. */
void image_end(void);

/** Elements of a tensor of the device, in plain order. */
float *image_fetch(const sl_tensor_desc_t *desc, const void *array);

/** Plan, forward and backward, until one fails. */
sl_status_t image_run_all(const image_layer_t *image);

void image_check(const image_case_t *c);

/** For both layouts and all types; by own kernels, or also by cuDNN's. */
void image_check_all(image_case_t c);
void image_check_both(image_case_t c);

#ifdef SL_CUDA_STANDIN
/** Each of cuDNN's entry points fails once, at plan or run, but the backend's
 *  and those that have one of `others` (ended by NULL) in their names: the
 *  layer tells, and nothing stays. */
void image_check_failures(const image_case_t *c, const char *const *others);
#endif

#endif /* SL_TESTS_CUDA_IMAGE_CHECK_H */
