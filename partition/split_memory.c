/* SPDX-License-Identifier: Apache-2.0 */
/* The cuts that need the least memory: for the message when none fits. */
#include <math.h>
#include <stdlib.h>

#include "partition/partition_internal.h"

/* Part of its memory that a stage needs; 1 = all. */
static double part_needed(const sl_part_problem_t *problem, int begin, int end,
                          int stage)
{
    const double has = (double)problem->memory_bytes[stage];
    const size_t need =
        problem->stage_need(problem->need_ctx, begin, end, stage);

    if (problem->memory_bytes[stage] == SIZE_MAX) {
        return 0.0;
    }
    return (double)need / (has < 1.0 ? 1.0 : has);
}

/* worst[end] and parent[end] of one stage more, from the stages before. */
static void add_stage(const sl_part_problem_t *problem, int stage,
                      const double *before, double *worst, int *parent)
{
    const int n = problem->costs->n_layers;
    const int last = n - (problem->n_stages - stage - 1);
    int begin, end;

    for (end = 0; end <= n; end++) {
        worst[end] = HUGE_VAL;
        parent[end] = -1;
    }
    for (end = stage + 1; end <= last; end++) {
        for (begin = end - 1; begin >= stage; begin--) {
            double part;

            if (before[begin] >= worst[end]) {
                continue;
            }
            part = fmax(before[begin], part_needed(problem, begin, end, stage));
            if (part < worst[end]) {
                worst[end] = part;
                parent[end] = begin;
            }
        }
    }
}

sl_status_t sl_part_least_memory(const sl_part_problem_t *problem, int *cuts)
{
    double *worst = NULL, *before, *after;
    int *parents = NULL, stage, i, end;
    sl_status_t status;
    size_t row;

    SL_TRY(status, sl_part_check_problem(problem), out);
    if (problem->memory_bytes == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "partition: no memory is given to compare needs with");
    }
    row = (size_t)problem->costs->n_layers + 1;
    worst = calloc(2 * row, sizeof(*worst));
    parents = calloc((size_t)problem->n_stages * row, sizeof(*parents));
    if (worst == NULL || parents == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "partition: no memory for %zu layers", row - 1);
    }
    before = worst;
    after = worst + row;
    for (i = 1; i < (int)row; i++) {
        before[i] = HUGE_VAL;
    }
    for (stage = 0; stage < problem->n_stages; stage++) {
        double *const swap = before;

        add_stage(problem, stage, before, after, &parents[(size_t)stage * row]);
        before = after;
        after = swap;
    }
    end = problem->costs->n_layers;
    for (stage = problem->n_stages - 1; stage >= 0; stage--) {
        cuts[stage + 1] = end;
        end = parents[(size_t)stage * row + (size_t)end];
    }
    cuts[0] = end;
out:
    free(worst);
    free(parents);
    return status;
}
