/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file optimizer.h
 * Optimizers and learning rate schedules. Updates are ops on the device that
 * owns the parameter; formulas as PyTorch states them, so that both agree
 * step for step.
 */
#ifndef SL_ENGINE_OPTIMIZER_H
#define SL_ENGINE_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef enum sl_optimizer_kind {
    SL_OPTIMIZER_SGD,
    SL_OPTIMIZER_ADAM, /**< Kingma & Ba 2015; decay is added to the gradient */
    SL_OPTIMIZER_ADAMW /**< Loshchilov & Hutter 2019; decay is decoupled */
} sl_optimizer_kind_t;

#define SL_OPTIMIZER_CHOICES "sgd|adam|adamw"

typedef enum sl_lr_kind {
    SL_LR_CONSTANT,
    SL_LR_LINEAR, /**< from lr to lr_min over the run */
    SL_LR_COSINE, /**< half a cosine from lr to lr_min over the run */
    SL_LR_STEP    /**< times lr_gamma every lr_step_every steps */
} sl_lr_kind_t;

#define SL_LR_CHOICES "constant|linear|cosine|step"

typedef struct sl_optimizer_params {
    sl_optimizer_kind_t kind; /**< default sgd */
    double lr;                /**< default 0.1 (sgd), set it for others */
    double momentum;          /**< sgd, [0,1), default 0 */
    int nesterov;             /**< sgd, needs momentum */
    double beta1, beta2, eps; /**< adam(w): 0.9, 0.999, 1e-8 */
    double weight_decay;      /**< default 0 */
    int decay_all;            /**< also biases and norms (default 0: only
                                   parameters with has_decay) */
    double clip_norm;         /**< global gradient norm; 0 = off */
    sl_lr_kind_t lr_kind;     /**< default constant */
    double lr_min;            /**< linear, cosine (default 0) */
    double lr_gamma;          /**< step (default 0.1) */
    int64_t lr_step_every;    /**< step (default 0: required for step) */
    int64_t warmup_steps;     /**< linear from lr/warmup to lr (default 0) */
    int64_t total_steps;      /**< of the run, for linear and cosine */
} sl_optimizer_params_t;

SL_API void sl_optimizer_params_default(sl_optimizer_params_t *params);
/** @return SL_OK, SL_ERR_CONFIG naming the field and its range */
SL_API SL_NODISCARD sl_status_t
sl_optimizer_params_check(const sl_optimizer_params_t *params);

/** Learning rate of step `step` (from 0). */
SL_API double sl_optimizer_lr(const sl_optimizer_params_t *params,
                              uint32_t step);
/** State tensors of a parameter's size: 0, 1 or 2. */
SL_API int sl_optimizer_n_moments(const sl_optimizer_params_t *params);

/** Args of the update op, for one parameter. All pointers are device
 *  addresses of n floats. */
typedef struct sl_optimizer_run {
    const sl_optimizer_params_t *params; /**< borrowed */
    float *value;
    const float *grad;
    float *moments[2];
    size_t n;
    uint32_t step; /**< from 0 */
    int n_threads;
    int has_decay;
    float lr;
    const double *clip_factor; /**< gradient is scaled by it; NULL = 1 */
} sl_optimizer_run_t;

SL_API sl_status_t sl_optimizer_op_update(const void *args, void *stream);

/** Args of the op that sums squares in double, in a fixed order. */
typedef struct sl_norm_run {
    const float *values;
    size_t n;
    int n_threads;
    double *sum_p;   /**< overwritten; of the host's memory */
    void *workspace; /**< see sl_device_kernels_t; unused on CPU */
} sl_norm_run_t;

SL_API sl_status_t sl_optimizer_op_sum_squares(const void *args, void *stream);

SL_END_DECLS
#endif /* SL_ENGINE_OPTIMIZER_H */
