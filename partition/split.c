/* SPDX-License-Identifier: Apache-2.0 */
/* The list of policies, checks around them, and the prediction of a step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/partition_internal.h"

static const sl_part_ops_t *const builtin[] = {
#define X(id) &sl_part_##id,
    SL_PART_BUILTIN_MAP(X)
#undef X
};

const sl_part_ops_t *sl_part_builtin(size_t i)
{
    return i < sizeof(builtin) / sizeof(builtin[0]) ? builtin[i] : NULL;
}

const sl_part_ops_t *sl_part_find(const char *name)
{
    size_t i;

    for (i = 0; name != NULL && sl_part_builtin(i) != NULL; i++) {
        if (strcmp(builtin[i]->name, name) == 0) {
            return builtin[i];
        }
    }
    return NULL;
}

/** Not NaN, not negative, not absurd. */
static int is_amount(double value, double max)
{
    return value >= 0.0 && value <= max;
}

/** 0 (transfers cost their latency only) or a speed that cannot overflow. */
static int is_link_valid(double bytes_per_us)
{
    return is_amount(bytes_per_us, 0.0) || bytes_per_us >= 1e-3;
}

static int is_layer_valid(const sl_part_layer_t *layer)
{
    return is_amount(layer->forward_us, SL_PART_MAX_US) &&
           is_amount(layer->backward_us, SL_PART_MAX_US) &&
           is_amount(layer->forward_flops, 1e290) &&
           is_amount(layer->backward_flops, 1e290);
}

static sl_status_t check_counts(int n_layers, int n_stages)
{
    sl_status_t status;

    if (n_stages < 1 || n_stages > SL_PART_MAX_STAGES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "partition: %d stages asked, 1 to %d are possible", n_stages,
                SL_PART_MAX_STAGES);
    }
    if (n_stages > n_layers) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "partition: %d stages asked, but the model has %d layers and "
                "a stage needs at least one; ask for %d stages or fewer",
                n_stages, n_layers, n_layers);
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t check_speeds(const sl_part_problem_t *problem)
{
    sl_status_t status;
    int stage;

    for (stage = 0; problem->stage_speed != NULL && stage < problem->n_stages;
         stage++) {
        const double speed = problem->stage_speed[stage];

        if (!(speed >= 1e-6 && speed <= 1e6)) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "partition: stage %d has speed %g, 1e-6 to 1e6 is allowed",
                    stage, speed);
        }
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_part_check_problem(const sl_part_problem_t *problem)
{
    sl_status_t status;
    int i;

    if (problem == NULL || problem->costs == NULL ||
        problem->costs->layers == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "partition: no costs");
    }
    SL_TRY(status, check_counts(problem->costs->n_layers, problem->n_stages),
           out);
    if (!is_amount(problem->recompute, 1e3) ||
        !is_link_valid(problem->link_bytes_per_us) ||
        !is_amount(problem->link_latency_us, SL_PART_MAX_US)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "partition: recompute %g, link %g bytes/us and %g us latency "
                "must be finite and not negative",
                problem->recompute, problem->link_bytes_per_us,
                problem->link_latency_us);
    }
    for (i = 0; i < problem->costs->n_layers; i++) {
        const sl_part_layer_t *layer = &problem->costs->layers[i];

        if (!is_layer_valid(layer)) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "partition: layer %d costs %g + %g us, %g + %g flops; "
                    "costs must be finite and not negative",
                    i, layer->forward_us, layer->backward_us,
                    layer->forward_flops, layer->backward_flops);
        }
    }
    SL_TRY(status, check_speeds(problem), out);
    if (problem->memory_bytes != NULL && problem->stage_need == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "partition: memory is limited, but nothing says what a stage "
                "needs");
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_part_check_cuts(int n_layers, int n_stages, const int *cuts)
{
    sl_status_t status;
    int stage;

    SL_TRY(status, check_counts(n_layers, n_stages), out);
    if (cuts == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "partition: no cuts");
    }
    if (cuts[0] != 0 || cuts[n_stages] != n_layers) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "partition: cuts go from layer %d to %d, must go from 0 to %d",
                cuts[0], cuts[n_stages], n_layers);
    }
    for (stage = 0; stage < n_stages; stage++) {
        if (cuts[stage + 1] <= cuts[stage]) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "partition: stage %d of %d is empty: cut at layer %d, "
                    "then at %d; cuts must ascend",
                    stage, n_stages, cuts[stage], cuts[stage + 1]);
        }
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_part_split(const sl_part_ops_t *policy,
                          const sl_part_problem_t *problem, int *cuts)
{
    int *found = NULL;
    sl_status_t status;

    if (policy == NULL || policy->split == NULL || cuts == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "partition: no policy or no room for cuts");
    }
    SL_TRY(status, sl_part_check_problem(problem), out);
    found = calloc((size_t)problem->n_stages + 1, sizeof(*found));
    if (found == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "partition %s: no memory for %d cuts", policy->name,
                problem->n_stages + 1);
    }
    SL_TRY(status, policy->split(problem, found), out);
    SL_TRY(
        status,
        sl_part_check_cuts(problem->costs->n_layers, problem->n_stages, found),
        out);
    memcpy(cuts, found, ((size_t)problem->n_stages + 1) * sizeof(*cuts));
out:
    free(found);
    return status;
}

double sl_part_stage_us(const sl_part_problem_t *problem, int begin, int end,
                        int stage)
{
    double compute_us = 0.0;
    int i;

    for (i = begin; i < end; i++) {
        compute_us += sl_part_layer_us(problem, i);
    }
    return sl_part_sum_us(compute_us, sl_part_speed_of(problem, stage),
                          sl_part_transfer_us(problem, begin) +
                              sl_part_transfer_us(problem, end));
}

double sl_part_bottleneck_us(const sl_part_problem_t *problem, const int *cuts)
{
    double us = 0.0;
    int stage;

    for (stage = 0; stage < problem->n_stages; stage++) {
        us = fmax(
            us, sl_part_stage_us(problem, cuts[stage], cuts[stage + 1], stage));
    }
    return us;
}

void sl_part_predict(const sl_part_problem_t *problem, const int *cuts,
                     int n_micro_batches, sl_part_prediction_t *prediction_p)
{
    const int n = n_micro_batches < 1 ? 1 : n_micro_batches;
    const double slowest = sl_part_bottleneck_us(problem, cuts);
    double sum = 0.0, step_us;
    int stage;

    for (stage = 0; stage < problem->n_stages; stage++) {
        sum += sl_part_stage_us(problem, cuts[stage], cuts[stage + 1], stage);
    }
    step_us = sum + (n - 1) * slowest;
    prediction_p->step_us = step_us;
    prediction_p->bubble =
        step_us > 0.0 ? 1.0 - n * sum / (problem->n_stages * step_us) : 0.0;
}
