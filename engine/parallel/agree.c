/* SPDX-License-Identifier: Apache-2.0 */
/* What all cells of all ranks decide alike before the state changes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/parallel/drift.h"
#include "engine/parallel/parallel.h"
#include "engine/parallel/together.h"
#include "engine/world.h"

enum {
    N_FLAGS = 32
};

static size_t n_norms(const sl_engine_t *engine)
{
    return (size_t)engine->n_norms * (size_t)engine->n_replicas;
}

static size_t n_losses(const sl_engine_t *engine)
{
    return (size_t)engine->n_micro * 4;
}

static size_t n_hashes(const sl_engine_t *engine)
{
    return sl_drift_is_due(engine) ? sl_drift_n_values(engine) : 0;
}

static size_t n_given(const sl_engine_t *engine)
{
    return engine->job == SL_JOB_TRAIN ? engine->n_given : 0;
}

static size_t n_always(const sl_engine_t *engine)
{
    return n_norms(engine) + n_losses(engine) + N_FLAGS;
}

/* Room for all that a job may add up. */
static size_t n_most(const sl_engine_t *engine)
{
    return n_always(engine) + sl_drift_n_values(engine) + engine->n_given;
}

static size_t n_all(const sl_engine_t *engine)
{
    return n_always(engine) + n_hashes(engine) + n_given(engine);
}

sl_status_t sl_agreement_reserve(sl_engine_t *engine)
{
    const size_t n = n_most(engine);
    sl_status_t status = SL_OK;
    double *values;

    if (engine->params.world == NULL || n <= engine->agreement_room) {
        return SL_OK;
    }
    values = realloc(engine->agreement, n * sizeof(*values));
    if (values == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %zu sums", n);
    }
    engine->agreement = values;
    engine->agreement_room = n;
out:
    return status;
}

/* Where the sums of what was given are kept. */
static double *sums_of_given(const sl_engine_t *engine)
{
    return engine->given + engine->given_room;
}

sl_status_t sl_engine_sum_with_step(sl_engine_t *engine, const double *values,
                                    size_t n)
{
    sl_status_t status = SL_OK;

    if (n > engine->given_room) {
        double *room = malloc(2 * n * sizeof(*room));

        if (room == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "engine: no host memory for %zu sums", n);
        }
        free(engine->given);
        engine->given = room;
        engine->given_room = n;
    }
    if (n > 0) {
        memcpy(engine->given, values, n * sizeof(*values));
    }
    engine->n_given = n;
out:
    return status;
}

size_t sl_agreement_take_given(sl_engine_t *engine, const double **sums_p)
{
    const size_t n = engine->n_given;

    *sums_p = n > 0 ? sums_of_given(engine) : NULL;
    if (n > 0 && engine->params.world == NULL) {
        memcpy(sums_of_given(engine), engine->given, n * sizeof(double));
    }
    engine->n_given = 0;
    return n;
}

static void take_sums(sl_engine_t *engine)
{
    const double *norms = engine->agreement;
    const double *losses = norms + n_norms(engine);
    const double *flags = losses + n_losses(engine);
    const double *hashes = flags + N_FLAGS;
    int i;

    memcpy(engine->norms, norms, n_norms(engine) * sizeof(double));
    memcpy(engine->losses, losses, n_losses(engine) * sizeof(double));
    for (i = 0; i < N_FLAGS; i++) {
        engine->flags |= flags[i] > 0.0 ? 1u << i : 0u;
    }
    if (n_hashes(engine) > 0) {
        sl_drift_take(engine, hashes);
    }
    if (n_given(engine) > 0) {
        memcpy(sums_of_given(engine), hashes + n_hashes(engine),
               engine->n_given * sizeof(double));
    }
}

/* A value is 0 on all ranks but the one that has it, so a sum gives it to
 * all; a flag counts who has it. */
static sl_status_t add_up(sl_engine_t *engine)
{
    double *norms = engine->agreement;
    double *losses = norms + n_norms(engine);
    double *flags = losses + n_losses(engine);
    double *hashes = flags + N_FLAGS;
    sl_status_t status;
    int i;

    memcpy(norms, engine->norms, n_norms(engine) * sizeof(double));
    memcpy(losses, engine->losses, n_losses(engine) * sizeof(double));
    for (i = 0; i < N_FLAGS; i++) {
        flags[i] = (double)(engine->flags >> i & 1u);
    }
    if (n_hashes(engine) > 0) {
        sl_drift_put(engine, hashes);
    }
    if (n_given(engine) > 0) {
        memcpy(hashes + n_hashes(engine), engine->given,
               engine->n_given * sizeof(double));
    }
    engine->is_agreeing = 1;
    SL_TRY(status,
           sl_together_sum(engine->params.world, &engine->abort,
                           engine->agreement, n_all(engine)),
           out);
    engine->is_agreeing = 0;
    take_sums(engine);
out:
    return status;
}

/* By one of the executors, while the others wait. */
static sl_status_t exchange(sl_engine_t *engine)
{
    engine->flags = engine->job == SL_JOB_TRAIN
                        ? atomic_exchange(&engine->signals, 0)
                        : atomic_load(&engine->signals);
    return engine->params.world == NULL ? SL_OK : add_up(engine);
}

sl_status_t sl_stage_agree(sl_stage_t *stage)
{
    sl_engine_t *engine = stage->engine;
    sl_status_t status;

    SL_TRY(status, sl_stage_meet(stage), out);
    if (engine->dry != NULL) {
        return SL_OK;
    }
    if (stage == engine->stages) {
        SL_TRY(status, exchange(engine), out);
    }
    if (engine->params.world != NULL) {
        status = sl_barrier_wait(&engine->barrier, &engine->abort);
    }
out:
    return status;
}

static int is_finite(const sl_engine_t *engine)
{
    return isfinite(sl_engine_gradient_norm(engine)) &&
           isfinite(sl_engine_loss_sum(engine) * engine->loss_scale);
}

/* An evaluation changes nothing, nor does a step that all stop at. */
int sl_agreement_was_missed(sl_engine_t *engine)
{
    if (!engine->is_agreeing || engine->job != SL_JOB_TRAIN ||
        !sl_world_late_sum(engine->params.world, engine->agreement,
                           n_all(engine))) {
        return 0;
    }
    take_sums(engine);
    if (sl_drift_is_due(engine) && sl_drift_find(engine) >= 0) {
        return 0;
    }
    return engine->params.not_finite != SL_NOT_FINITE_STOP || is_finite(engine);
}

/* The layer whose gradient is the first that is not finite. */
static const char *first_bad_layer(const sl_engine_t *engine)
{
    const sl_model_t *model = engine->params.model;
    int l, p, i, n = 0;

    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *param = &model->layers[l]->params[p];

            if (param->kind != SL_PARAM_TRAINED || param->tied_layer >= 0) {
                continue;
            }
            for (i = 0; i < engine->n_replicas; i++, n++) {
                if (!isfinite(engine->norms[n])) {
                    return model->layers[l]->name;
                }
            }
        }
    }
    return NULL;
}

/* Where it began: a micro-batch whose loss is not finite, or a layer. */
static void describe(const sl_engine_t *engine, char *text, size_t bytes)
{
    const char *layer = first_bad_layer(engine);
    int m;

    text[0] = '\0';
    for (m = 0; m < engine->n_micro; m++) {
        if (!isfinite(engine->losses[m][0])) {
            (void)snprintf(text, bytes, " (in micro-batch %d, of replica %d)",
                           m, m / engine->params.n_micro_batches);
            return;
        }
    }
    if (layer != NULL) {
        (void)snprintf(text, bytes, " (in layer %s)", layer);
    }
}

/* A norm that is not finite would poison every parameter. All stages see the
 * same norm and losses, so all decide alike; the first one says it. */
sl_status_t sl_stage_check_finite(const sl_stage_t *stage, double norm,
                                  int *is_skipped_p)
{
    sl_engine_t *engine = stage->engine;
    const double loss = sl_engine_loss_sum(engine) * engine->loss_scale;
    char where[160];
    sl_status_t status;

    *is_skipped_p = 0;
    if (engine->dry != NULL || (isfinite(norm) && isfinite(loss))) {
        return SL_OK;
    }
    if (sl_loss_scale_is_too_large(engine, loss, norm)) {
        *is_skipped_p = 1;
        if (stage == engine->stages) {
            engine->is_skipped = engine->is_overflow = 1;
        }
        return SL_OK;
    }
    if (engine->params.not_finite == SL_NOT_FINITE_GO_ON) {
        return SL_OK;
    }
    *is_skipped_p = engine->params.not_finite == SL_NOT_FINITE_SKIP;
    if (stage != engine->stages) {
        return *is_skipped_p ? SL_OK : SL_ERR_CANCELED;
    }
    describe(engine, where, sizeof(where));
    if (*is_skipped_p) {
        engine->is_skipped = 1;
        if (engine->grid->rank > 0) {
            return SL_OK;
        }
        sl_warn("step %u: loss %g, gradient norm %g%s: skipped",
                engine->n_steps, loss, norm, where);
        return SL_OK;
    }
    if (engine->grid->rank > 0) {
        SL_REFUSE(status, SL_ERR_NUMERIC, out,
                  "step %u: loss %g, gradient norm %g: not finite%s",
                  engine->n_steps, loss, norm, where);
    }
    SL_FAIL(status, SL_ERR_NUMERIC, out,
            "step %u: loss %g, gradient norm %g: not finite%s; lower the "
            "learning rate, clip the gradient, or look for bad data",
            engine->n_steps, loss, norm, where);
out:
    return status;
}
