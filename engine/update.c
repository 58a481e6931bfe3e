/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a training step on a stage: tied gradients, global norm, then
 * running statistics and optimizer. */
#include <math.h>
#include <stdatomic.h>

#include "engine/engine_internal.h"

static sl_status_t finish_statistics(sl_stage_t *stage,
                                     const sl_plan_set_t *set)
{
    const sl_step_info_t step = {.seed = stage->engine->params.seed,
                                 .step = stage->engine->n_steps,
                                 .is_training = 1};
    sl_status_t status = SL_OK;
    int l, p;

    for (l = 0; l < stage->n_layers; l++) {
        const sl_stage_layer_t *layer = &stage->layers[l];
        const sl_layer_kernels_t *kernels =
            layer->layer->ops->kernels[stage->device->kind];
        sl_layer_run_t run = {.plan = &set->plans[l], .step = step};
        const sl_op_t op = {.fn = sl_layer_op_finish_batch,
                            .name_id = layer->forward_name,
                            .args = &run,
                            .args_bytes = sizeof(run)};

        if (kernels->finish_batch == NULL) {
            continue;
        }
        for (p = 0; p < layer->layer->n_params; p++) {
            run.param[p] = stage->params[layer->first_param + p].value->ptr;
        }
        SL_TRY(status, sl_device_submit(stage->device, &op), out);
    }
out:
    return status;
}

/* The gradients of tied users, in layer order, added to their owner's. */
static sl_status_t collect_ties(sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < engine->n_ties; i++) {
        const sl_tie_t *tie = &engine->ties[i];
        const size_t bytes = tie->owner->desc->storage_bytes;
        sl_mem_block_t *copy;

        if (tie->owner_stage != stage) {
            continue;
        }
        SL_TRY(status, sl_stage_alloc(stage, SL_MEM_CLASS_COMM, bytes, &copy),
               out);
        status = sl_device_copy(stage->device, copy->ptr, tie->user->grad->ptr,
                                bytes, NULL);
        SL_KEEP(status, sl_device_add(stage->device, tie->owner->grad->ptr,
                                      copy->ptr, bytes / sizeof(float), NULL));
        sl_mem_release(copy);
        SL_TRY(status, status, out);
    }
out:
    return status;
}

static int is_updated(const sl_stage_param_t *param)
{
    return param->grad != NULL && param->desc->tied_layer < 0;
}

static sl_status_t sum_squares(sl_stage_t *stage)
{
    const uint32_t name = sl_op_manager_name(stage->device->ops, "norm");
    sl_status_t status = SL_OK;
    int p;

    for (p = 0; p < stage->n_params; p++) {
        const sl_stage_param_t *param = &stage->params[p];

        if (is_updated(param)) {
            const sl_norm_run_t run = {.values = param->grad->ptr,
                                       .n = param->desc->storage_bytes /
                                            sizeof(float),
                                       .n_threads = stage->device->n_threads,
                                       .sum_p = param->norm_p};
            const sl_op_t op = {.fn = sl_optimizer_op_sum_squares,
                                .name_id = name,
                                .args = &run,
                                .args_bytes = sizeof(run)};

            SL_TRY(status, sl_device_submit(stage->device, &op), out);
        }
    }
out:
    return status;
}

static sl_status_t apply_optimizer(sl_stage_t *stage, const double *clip_factor)
{
    const sl_engine_t *engine = stage->engine;
    const uint32_t name = sl_op_manager_name(stage->device->ops, "update");
    const float lr =
        (float)sl_optimizer_lr(&engine->params.optimizer, engine->n_steps);
    sl_status_t status = SL_OK;
    int p;

    for (p = 0; p < stage->n_params; p++) {
        const sl_stage_param_t *param = &stage->params[p];
        sl_optimizer_run_t run = {
            .params = &engine->params.optimizer,
            .n = param->desc->storage_bytes / sizeof(float),
            .step = engine->n_steps,
            .n_threads = stage->device->n_threads,
            .has_decay =
                param->desc->has_decay || engine->params.optimizer.decay_all,
            .lr = lr,
            .clip_factor = clip_factor};
        const sl_op_t op = {.fn = sl_optimizer_op_update,
                            .name_id = name,
                            .args = &run,
                            .args_bytes = sizeof(run)};
        int i;

        if (!is_updated(param)) {
            continue;
        }
        run.value = param->value->ptr;
        run.grad = param->grad->ptr;
        for (i = 0; i < 2 && param->moments[i] != NULL; i++) {
            run.moments[i] = param->moments[i]->ptr;
        }
        SL_TRY(status, sl_device_submit(stage->device, &op), out);
    }
out:
    return status;
}

double sl_engine_gradient_norm(const sl_engine_t *engine)
{
    double sum = 0.0;
    int i;

    for (i = 0; i < engine->n_norms; i++) {
        sum += engine->norms[i];
    }
    return sqrt(sum);
}

double sl_engine_loss_sum(const sl_engine_t *engine)
{
    double sum = 0.0;
    int m;

    for (m = 0; m < engine->n_micro; m++) {
        sum += engine->losses[m][0];
    }
    return sum;
}

/* A norm that is not finite would poison every parameter. All stages see the
 * same norm and losses, so all decide alike; the first one says it. */
static sl_status_t check_finite(const sl_stage_t *stage, double norm)
{
    const sl_engine_t *engine = stage->engine;
    const double loss = sl_engine_loss_sum(engine) * engine->loss_scale;
    sl_status_t status = SL_OK;

    if (engine->dry != NULL || !engine->params.check_finite ||
        (isfinite(norm) && isfinite(loss))) {
        return SL_OK;
    }
    if (stage->index > 0) {
        return SL_ERR_CANCELED;
    }
    SL_FAIL(status, SL_ERR_NUMERIC, out,
            "step %u: loss %g, gradient norm %g: not finite; lower the "
            "learning rate, clip the gradient, or look for bad data",
            engine->n_steps, loss, norm);
out:
    return status;
}

static void set_clip_factor(sl_stage_t *stage, double norm)
{
    stage->clip_factor =
        stage->engine->params.optimizer.clip_norm / (norm + 1e-6);
    stage->clip_factor = stage->clip_factor < 1.0 ? stage->clip_factor : 1.0;
}

/* What may still fail: gradients are complete, their norm is known. */
static sl_status_t prepare_update(sl_stage_t *stage)
{
    sl_status_t status;
    double norm;

    if (stage->engine->n_ties > 0) {
        SL_TRY(status, sl_stage_meet(stage), out);
        SL_TRY(status, collect_ties(stage), out);
    }
    SL_TRY(status, sum_squares(stage), out);
    SL_TRY(status, sl_stage_meet(stage), out);
    norm = sl_engine_gradient_norm(stage->engine);
    SL_TRY(status, check_finite(stage, norm), out);
    set_clip_factor(stage, norm);
out:
    return status;
}

/* A step changes the state on all stages or on none: nothing of the state is
 * written before all have met with everything done that can fail. */
sl_status_t sl_stage_update(sl_stage_t *stage)
{
    sl_engine_t *engine = stage->engine;
    const int has_clip = engine->params.optimizer.clip_norm > 0.0;
    const sl_plan_set_t *set;
    sl_status_t status;

    SL_TRY(status,
           sl_plan_set_get(
               stage,
               sl_split_rows(engine->batch->rows, engine->n_micro, 0, NULL), 1,
               &set),
           out);
    SL_TRY(status, prepare_update(stage), out);
    atomic_store(&engine->is_committed, 1);
    SL_TRY(status, finish_statistics(stage, set), out);
    SL_TRY(status,
           apply_optimizer(stage, has_clip ? &stage->clip_factor : NULL), out);
    if (engine->n_ties > 0) {
        SL_TRY(status, sl_stage_meet(stage), out);
        status = sl_stage_copy_ties(stage);
    }
out:
    return status;
}

sl_status_t sl_stage_copy_ties(sl_stage_t *stage)
{
    const sl_engine_t *engine = stage->engine;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < engine->n_ties; i++) {
        const sl_tie_t *tie = &engine->ties[i];

        if (tie->user_stage == stage) {
            SL_TRY(status,
                   sl_device_copy(stage->device, tie->user->value->ptr,
                                  tie->owner->value->ptr,
                                  tie->owner->desc->storage_bytes, NULL),
                   out);
        }
    }
    status = sl_device_drain(stage->device);
out:
    return status;
}
