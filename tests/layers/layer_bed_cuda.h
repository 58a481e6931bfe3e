/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layer_bed_cuda.h
 * The CUDA device of a layer bed. Every block of the bed has a twin in device
 * memory: a run copies all blocks there, calls the kernels with the twins'
 * addresses, waits, and copies all blocks back, guard bytes included.
 */
#ifndef SL_TESTS_LAYERS_LAYER_BED_CUDA_H
#define SL_TESTS_LAYERS_LAYER_BED_CUDA_H

#include "tests/layers/layer_check.h"

typedef struct sl_bed_cuda sl_bed_cuda_t;

/** Device 0 and a stream. Where there is no device the process ends with
 *  status 77: the tests are skipped. */
sl_bed_cuda_t *sl_bed_cuda_create(void);
void sl_bed_cuda_destroy(sl_bed_cuda_t *cuda);

/** A twin for the newest block of the bed. */
void sl_bed_cuda_add(sl_layer_bed_t *bed);

/** Run fn(bed->run) on the twins; on a thread that runs an op. */
sl_status_t sl_bed_cuda_run(const sl_layer_bed_t *bed, sl_op_fn fn);

#endif /* SL_TESTS_LAYERS_LAYER_BED_CUDA_H */
