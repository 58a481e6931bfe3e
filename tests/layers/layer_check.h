/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layer_check.h
 * One harness for every layer type: kernels against a reference in double,
 * gradients against central differences of that reference.
 *
 * sl_layer_check() builds the layer, makes random plain inputs and
 * parameters, and runs its kernels as ops of a CPU device, with 1 and 2
 * threads. Every buffer has guard bytes and starts as NaN. It checks
 *  - the output against the reference; zero channel padding; guard bytes;
 *  - each gradient of sum(out * dout) against central differences;
 *  - two runs give the same bits; so does running in place when allowed;
 *  - `din_prev` is added when the plan says it accumulates;
 *  - gradients are overwritten first, then added to;
 *  - a NULL din or grad leaves the other results as they were;
 *  - a recomputed forward gives the same output and no new statistics;
 *  - backward gets only what the plan keeps (other pointers are NULL).
 *
 * With SLUICE_TEST_LAYER_KIND=cuda in the environment all of it runs on a
 * CUDA device, with activations of SLUICE_TEST_LAYER_DTYPE (f32, bf16, f16):
 * real inputs become that type, blocked images channels-last ones. Plain
 * values are then what the tensors hold, rounded; tolerances grow by the
 * roundings of outputs. Addresses in a run are of host memory there too: a
 * run takes all buffers to the device and back.
 */
#ifndef SL_TESTS_LAYERS_LAYER_CHECK_H
#define SL_TESTS_LAYERS_LAYER_CHECK_H

#include "layers/layers.h"
#include "tests/support/sl_test.h"

/** What a reference sees: plain tensors in double, whatever the layout
 *  (integers are exact). A reference writes args->out, and nothing else. */
typedef struct sl_layer_reference {
    const sl_layer_t *layer;
    const sl_tensor_desc_t *in_desc; /**< read the dims only */
    const sl_tensor_desc_t *out_desc;
    const double *in[SL_LAYER_MAX_INPUTS];
    const double *param[SL_LAYER_MAX_PARAMS];
    const sl_step_info_t *step;
    double *out;
} sl_layer_reference_t;

typedef void (*sl_layer_reference_fn)(const sl_layer_reference_t *args);

/** What to check. Zeroed fields mean the default. */
typedef struct sl_layer_check {
    const char *type;
    sl_attr_t attrs[12]; /**< up to the first NULL name */
    int n_inputs;
    sl_tensor_desc_t inputs[SL_LAYER_MAX_INPUTS]; /**< with their layouts */
    sl_layer_reference_fn reference;              /**< required */

    double tolerance;          /**< |got - want| <= tolerance * (1 + |want|);
                                    default 2e-5 */
    double gradient_tolerance; /**< default: tolerance */
    double input_scale;        /**< deviation of random f32 inputs; default 1 */
    int64_t n_classes;         /**< i32 inputs are uniform in [0, n_classes);
                                    default 2 */
    /** Plain values of input i instead of random ones (i32: whole floats). */
    const float *values[SL_LAYER_MAX_INPUTS];
    int is_evaluation; /**< forward only, in evaluation mode */
    int n_positions;   /**< gradient positions a tensor; default 24 */
    int is_kinked;     /**< skip positions where the differences of two widths,
                            or to both sides, disagree (max, relu near 0) */
    int is_data;       /**< the inputs are the batch's: f32 on every device,
                            no gradient on CUDA devices */
    double roundings;  /**< of values within the layer to the activations'
                            type, beside those of its results; default 0 */
} sl_layer_check_t;

/** Run all checks; a failure fails the cmocka test, saying where. */
void sl_layer_check(const sl_layer_check_t *check);

/* ---- the pieces, for tests of one's own ---- */

enum {
    SL_LAYER_BED_MAX_BLOCKS = 64
};

/** A layer on a device with all its buffers (host addresses, guarded). */
typedef struct sl_layer_bed {
    sl_device_set_t *devices;
    sl_layer_t *layer;
    sl_layer_plan_t plan;
    sl_layer_run_t run; /**< all pointers set; change them freely */
    float *plain_in[SL_LAYER_MAX_INPUTS];    /**< owned; i32 as floats */
    float *plain_param[SL_LAYER_MAX_PARAMS]; /**< owned */
    float *plain_dout;                       /**< owned; NULL for a loss */
    sl_mem_block_t *blocks[SL_LAYER_BED_MAX_BLOCKS];
    int n_blocks;
    struct sl_bed_cuda *cuda; /**< NULL on a CPU device */
} sl_layer_bed_t;

/** Kind of the bed's device, and type of its activations. */
sl_device_kind_t sl_layer_bed_kind(void);
sl_dtype_t sl_layer_bed_dtype(void);

/** Build it: random values from a fixed seed; step: seed 7, step 3,
 *  micro-batch 2, training unless is_evaluation, first forward and backward,
 *  loss_scale 0.25. Parameters: trained normal * 0.5 (1 + 0.2 * normal when
 *  they start as one), statistics in 0.5..1.5, accumulators NaN. */
void sl_layer_bed_init(sl_layer_bed_t *bed, const sl_layer_check_t *check,
                       int n_threads);
void sl_layer_bed_cleanup(sl_layer_bed_t *bed);

/** Run sl_layer_op_* as an op on bed->run and wait; checks guard bytes. */
sl_status_t sl_layer_bed_forward(sl_layer_bed_t *bed);
sl_status_t sl_layer_bed_backward(sl_layer_bed_t *bed);
sl_status_t sl_layer_bed_finish_batch(sl_layer_bed_t *bed);

/** A guarded block of the bed filled with 0xFF (NaN); bytes may be 0. */
void *sl_layer_bed_buffer(sl_layer_bed_t *bed, size_t bytes);

/** Plain floats to a tensor in its layout and type, and back (from f64 and
 *  i32 too). Back fails the test when channel padding is not zero. */
void sl_layer_to_tensor(const sl_tensor_desc_t *desc, const float *plain,
                        void *tensor);
void sl_layer_from_tensor(const sl_tensor_desc_t *desc, const void *tensor,
                          float *plain);
/** Place in memory of the element with this plain index. */
size_t sl_layer_offset(const sl_tensor_desc_t *desc, int64_t i);
/** Relative error of one rounding to the type; f32 counts as exact. */
double sl_dtype_rounding(sl_dtype_t dtype);

/** The i-th input desc made quickly: f32, i32, or blocked f32 image. */
sl_tensor_desc_t sl_f32(int n_dims, int64_t a, int64_t b, int64_t c, int64_t d);
sl_tensor_desc_t sl_i32(int n_dims, int64_t a, int64_t b);
sl_tensor_desc_t sl_blocked(int64_t batch, int64_t channels, int64_t height,
                            int64_t width);

#endif /* SL_TESTS_LAYERS_LAYER_CHECK_H */
