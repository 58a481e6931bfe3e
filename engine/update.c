/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a training step on a stage: tied gradients, global norm, then
 * running statistics and optimizer. */
#include <math.h>
#include <stdatomic.h>

#include "engine/parallel/drift.h"
#include "engine/parallel/parallel.h"

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
            run.param[p] =
                sl_storage_ptr(&stage->params[layer->first_param + p].value);
        }
        SL_TRY(status, sl_device_submit(stage->device, &op), out);
    }
out:
    return status;
}

static int is_updated(const sl_stage_param_t *param)
{
    return param->grad.block != NULL && param->desc->tied_layer < 0;
}

static size_t floats_of(const sl_stage_param_t *param)
{
    return param->desc->storage_bytes / sizeof(float);
}

/* ---- the norm ---- */

static sl_status_t sum_segment(sl_stage_t *stage, const sl_stage_param_t *param,
                               size_t start, size_t end, double *sum_p)
{
    const sl_device_kernels_t *kernels = sl_device_kernels(stage->device->kind);
    const float *grad = sl_storage_ptr(&param->grad);
    sl_norm_run_t run = {.values = grad + start,
                         .n = end - start,
                         .n_threads = stage->device->n_threads,
                         .sum_p = sum_p};
    const sl_op_t op = {.fn = kernels->sum_squares,
                        .name_id =
                            sl_op_manager_name(stage->device->ops, "norm"),
                        .args = &run,
                        .args_bytes = sizeof(run)};
    sl_mem_block_t *workspace = NULL;
    sl_status_t status;

    if (kernels->sum_squares_workspace_bytes != NULL) {
        SL_TRY(status,
               sl_stage_alloc(stage, SL_MEM_CLASS_WORKSPACE,
                              kernels->sum_squares_workspace_bytes(run.n),
                              &workspace),
               out);
        run.workspace = workspace->ptr;
    }
    status = sl_device_submit(stage->device, &op);
    sl_mem_release(workspace);
out:
    return status;
}

/* The segments of a parameter in this replica's chunk: all when it is alone,
 * and then there is one. */
static sl_status_t sum_param(sl_stage_t *stage, const sl_stage_param_t *param)
{
    const int n_segments = stage->engine->n_replicas;
    const size_t n = floats_of(param);
    size_t own_start = 0, own_end = n;
    sl_status_t status = SL_OK;
    int i;

    if (param->bucket >= 0) {
        own_end = sl_param_chunk(stage, param, stage->replica, &own_start);
    }
    for (i = 0; i < n_segments; i++) {
        const size_t start = sl_segment_start(n, i, n_segments);
        const size_t end = sl_segment_start(n, i + 1, n_segments);

        if (start < end && start >= own_start && start < own_end) {
            SL_TRY(status,
                   sum_segment(stage, param, start, end, &param->norm_p[i]),
                   out);
        }
    }
out:
    return status;
}

static sl_status_t sum_squares(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int p;

    for (p = 0; p < stage->n_params; p++) {
        if (is_updated(&stage->params[p])) {
            SL_TRY(status, sum_param(stage, &stage->params[p]), out);
        }
    }
out:
    return status;
}

double sl_engine_gradient_norm(const sl_engine_t *engine)
{
    double sum = 0.0;
    int i;

    for (i = 0; i < engine->n_norms * engine->n_replicas; i++) {
        sum += engine->norms[i];
    }
    return sqrt(sum) / engine->scale.factor;
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

static void set_clip_factor(sl_stage_t *stage, double norm)
{
    const sl_engine_t *engine = stage->engine;
    const double clip_norm = engine->params.optimizer.clip_norm;
    const double factor = clip_norm > 0.0 ? clip_norm / (norm + 1e-6) : 1.0;

    stage->clip_factor = (factor < 1.0 ? factor : 1.0) / engine->scale.factor;
}

/* ---- the optimizer ---- */

/* Elements [start, end) of a parameter. */
static sl_status_t update_part(sl_stage_t *stage, const sl_stage_param_t *param,
                               size_t start, size_t end)
{
    const sl_engine_t *engine = stage->engine;
    sl_optimizer_run_t run = {
        .params = &engine->params.optimizer,
        .value = (float *)sl_storage_ptr(&param->value) + start,
        .grad = (float *)sl_storage_ptr(&param->grad) + start,
        .n = end - start,
        .step = engine->n_steps,
        .n_threads = stage->device->n_threads,
        .has_decay =
            param->desc->has_decay || engine->params.optimizer.decay_all,
        .lr =
            (float)sl_optimizer_lr(&engine->params.optimizer, engine->n_steps),
        .clip_factor = engine->params.optimizer.clip_norm > 0.0 ||
                               engine->scale.factor != 1.0
                           ? &stage->clip_factor
                           : NULL};
    const sl_op_t op = {.fn = sl_device_kernels(stage->device->kind)->update,
                        .name_id =
                            sl_op_manager_name(stage->device->ops, "update"),
                        .args = &run,
                        .args_bytes = sizeof(run)};
    int i;

    for (i = 0; i < sl_optimizer_n_moments(&engine->params.optimizer); i++) {
        const sl_storage_t moment = sl_param_moment(stage, param, i, start);

        run.moments[i] = sl_storage_ptr(&moment);
    }
    return sl_device_submit(stage->device, &op);
}

static sl_status_t update_all(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int p;

    for (p = 0; p < stage->n_params; p++) {
        const sl_stage_param_t *param = &stage->params[p];

        if (is_updated(param)) {
            SL_TRY(status, update_part(stage, param, 0, floats_of(param)), out);
        }
    }
out:
    return status;
}

/* ZeRO-1: the own chunk of every bucket, then everybody's. */
static sl_status_t update_chunks(sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int b, p;

    for (b = 0; b < stage->n_buckets; b++) {
        for (p = 0; p < stage->n_params; p++) {
            const sl_stage_param_t *param = &stage->params[p];
            size_t start = 0, end = 0;

            if (param->bucket == b) {
                end = sl_param_chunk(stage, param, stage->replica, &start);
            }
            if (start < end) {
                SL_TRY(status, update_part(stage, param, start, end), out);
            }
        }
        SL_TRY(status, sl_values_send(stage, b), out);
    }
    status = sl_values_receive(stage);
out:
    return status;
}

/* ---- the end of a step ---- */

static sl_status_t change_state(sl_stage_t *stage, const sl_plan_set_t *set)
{
    const sl_engine_t *engine = stage->engine;
    sl_status_t status;

    SL_TRY(status, finish_statistics(stage, set), out);
    status = engine->n_replicas > 1 && engine->params.zero1
                 ? update_chunks(stage)
                 : update_all(stage);
out:
    return status;
}

/* What may still fail: gradients are complete, their norm is known. */
static sl_status_t prepare_update(sl_stage_t *stage, int *is_skipped_p)
{
    sl_status_t status;
    double norm;

    SL_TRY(status, sl_ties_collect(stage), out);
    SL_TRY(status, sl_reduce_finish(stage), out);
    SL_TRY(status, sl_statistics_reduce(stage), out);
    SL_TRY(status, sl_ties_settle(stage, 0), out);
    SL_TRY(status, sum_squares(stage), out);
    if (sl_drift_is_due(stage->engine)) {
        SL_TRY(status, sl_drift_hash(stage), out);
    }
    SL_TRY(status, sl_stage_agree(stage), out);
    SL_TRY(status, sl_drift_check(stage), out);
    norm = sl_engine_gradient_norm(stage->engine);
    SL_TRY(status, sl_stage_check_finite(stage, norm, is_skipped_p), out);
    set_clip_factor(stage, norm);
out:
    return status;
}

/* A step changes the state on all stages or on none: nothing of the state is
 * written before all have met with everything done that can fail. */
sl_status_t sl_stage_update(sl_stage_t *stage)
{
    sl_engine_t *engine = stage->engine;
    const int64_t rows =
        sl_split_rows(engine->batch->rows, engine->n_micro, 0, NULL);
    const sl_plan_set_t *set;
    sl_status_t status;
    int is_skipped = 0;

    SL_TRY(status, sl_plan_set_get(stage, rows, 1, &set), out);
    SL_TRY(status, prepare_update(stage, &is_skipped), out);
    if (is_skipped) {
        return SL_OK;
    }
    atomic_store(&engine->is_committed, 1);
    sl_device_section_begin(stage->device, (uint32_t)stage->cell + 1);
    status = change_state(stage, set);
    sl_device_section_end(stage->device);
    SL_TRY(status, status, out);
    SL_TRY(status, sl_ties_spread(stage), out);
    status = sl_ties_settle(stage, 1);
out:
    return status;
}
