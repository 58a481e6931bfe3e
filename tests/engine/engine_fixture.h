/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file engine_fixture.h
 * Small models and batches for tests of the engine, and one call that trains
 * and gives back what must be equal.
 */
#ifndef SL_TESTS_ENGINE_ENGINE_FIXTURE_H
#define SL_TESTS_ENGINE_ENGINE_FIXTURE_H

#include "engine/engine.h"
#include "tests/support/sl_test.h"

enum {
    FIXTURE_MAX_STEPS = 16,
    FIXTURE_MAX_DEVICES = 8
};

/**
 * With SLUICE_TEST_DEVICES=cuda in the environment the models here are made
 * for CUDA devices, and with SLUICE_TEST_PRECISION of that precision; the
 * devices of a run are of its model's kind.
 */
int fixture_is_cuda(void);
/** Whether parts of a region of memory go back by themselves, so that free
 *  memory in pieces is no less than in one. */
int fixture_regions_shrink(void);
/** A model of the test's own, which it has built, made for these devices.
 *  @return the model */
sl_model_t *fixture_target(sl_model_t *model);
/** N devices for the model; borrowed until the next call. */
const char *fixture_spec(const sl_model_t *model, int n);

/** A two-block transformer with dropout everywhere and a tied head; context
 *  6, vocabulary 11. */
sl_model_t *fixture_gpt(void);
/** Residual convolutions with batch norm, 3x8x8 images, 5 classes. */
sl_model_t *fixture_resnet(void);
/** A U-Net: skips that cross several layers, concatenation, upsampling. */
sl_model_t *fixture_unet(void);
/** Linear layers; the output of layer 0, which needs no gradient, is read by
 *  layer 1, beside that by layer 2, and beside layer 3's by layer 4. */
sl_model_t *fixture_plain_path(void);
/** As fixture_plain_path(), with tokens: layer 0's output is i32, and is read
 *  by the embeddings that are layers 1, 3 and 5. */
sl_model_t *fixture_token_path(void);
/** Linear layers only: images 1x2x2, 3 classes. */
sl_model_t *fixture_mlp(void);

typedef struct fixture_run {
    sl_model_t *model; /**< borrowed */
    int n_devices, n_stages;
    const int *cuts; /**< NULL: as even as possible */
    int rows, n_micro, n_steps;
    sl_schedule_kind_t schedule;
    sl_backward_order_t order;
    sl_recompute_t recompute;
    const unsigned char *keeps;      /**< as in sl_engine_params_t */
    size_t memory_bytes;             /**< a device; 0 = 1 GiB */
    size_t host_bytes;               /**< host pool behind it */
    sl_optimizer_params_t optimizer; /**< kind and lr 0: SGD 0.1, momentum */
    int ignore_every; /**< every n-th target is ignored; 0 = none */
    int eval_between; /**< evaluate after each step */
    int uneven_last;  /**< the last batch has one row less */
    int n_replicas;   /**< 0 = 1; n_micro is a replica's */
    int zero1;
    size_t bucket_bytes; /**< 0 = the default */
    sl_batch_norm_mode_t batch_norm;
    sl_not_finite_t not_finite;
    uint32_t loss_scale_steps; /**< 0 = the default */
    int gpu_rank, n_gpu_ranks; /**< 0 = alone; as in sl_device_params_t */
    int is_exportable;         /**< likewise */
} fixture_run_t;

typedef struct fixture_result {
    uint64_t hash;
    double losses[FIXTURE_MAX_STEPS];
    double norms[FIXTURE_MAX_STEPS];
} fixture_result_t;

/** Most bytes of each device over the steps of a run. */
typedef struct fixture_bytes {
    size_t peak[FIXTURE_MAX_DEVICES], held[FIXTURE_MAX_DEVICES];
    uint64_t hash;
    sl_status_t status; /**< of the step that failed, or SL_OK */
} fixture_bytes_t;

/** Train; fails the test on any error, or when replicas differ. */
fixture_result_t fixture_train(const fixture_run_t *run);

/** The devices of `run`, and what its engine would be made from. The cuts
 *  are borrowed until the next call. */
void fixture_params(const fixture_run_t *run, sl_device_set_t **devices_p,
                    sl_engine_params_t *params);

/** The same, where creating the devices may fail. */
SL_NODISCARD sl_status_t fixture_try_params(const fixture_run_t *run,
                                            sl_device_set_t **devices_p,
                                            sl_engine_params_t *params);

/** As the engine would be made for `run`; the caller destroys both. */
void fixture_engine(const fixture_run_t *run, sl_device_set_t **devices_p,
                    sl_engine_t **engine_p);

/** Batch `step` of `run` is trained on. */
sl_step_report_t fixture_step(const fixture_run_t *run, sl_engine_t *engine,
                              int step);
/** The same, where it may fail. */
SL_NODISCARD sl_status_t fixture_try_step(const fixture_run_t *run,
                                          sl_engine_t *engine, int step,
                                          sl_step_report_t *report);

/** Train, which may fail for want of memory, and measure. */
fixture_bytes_t fixture_measure(const fixture_run_t *run);

/** What the engine of `run` would use, asking nothing of the devices. */
sl_memory_plan_t fixture_rehearse(const fixture_run_t *run);

/** Some cuts into stages that are never empty, n_stages + 1 of them: a function
 *  of seed and trial. */
void fixture_cuts(const sl_model_t *model, int n_stages, uint64_t seed,
                  uint32_t trial, int *cuts);

/** Batch `step` for the model; borrowed until the next call. */
sl_batch_t fixture_batch(const sl_model_t *model, int rows, int step,
                         int ignore_every);

#endif /* SL_TESTS_ENGINE_ENGINE_FIXTURE_H */
