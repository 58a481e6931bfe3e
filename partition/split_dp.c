/* SPDX-License-Identifier: Apache-2.0 */
/* Exact cuts by dynamic programming: the least time of the slowest stage,
 * then the fewest bytes across the cuts, then the smallest sum of squared
 * stage times, among the stages that have the memory they need. O(K n^2) at
 * worst, about O(n^2) as far as it is needed. */
#include <math.h>
#include <stdlib.h>

#include "partition/partition_internal.h"

/* Starts of a stage are skipped by whole blocks that cannot win. */
enum {
    BLOCK = 32
};

typedef struct dp {
    int n_layers;
    int n_stages;
    const sl_part_problem_t *problem;
    double *prefix;      /* [n+1] compute time of the layers before */
    double *transfer;    /* [n+1] one way, at the cut before the layer */
    double *prev;        /* [n+1] state of one stage less */
    double *next;        /* [n+1] */
    double *prev_square; /* [n+1] second part of the state: see refine */
    double *next_square; /* [n+1] */
    double *low;         /* [n_blocks] least of prev in a block */
    double *low_square;  /* [n_blocks] */
    double *low_link;    /* [n_blocks] of transfer; a stage may begin there */
    int *parent;         /* [K * (n+1)] best start of a stage by its end */
    double *storage;     /* owned; all of the doubles above */
} dp_t;

/** Least value of each block of `values`. */
static void find_lows(const dp_t *dp, const double *values, double *low)
{
    int i;

    for (i = 0; i <= dp->n_layers; i++) {
        double *block = &low[i / BLOCK];

        *block = i % BLOCK == 0 ? values[i] : fmin(*block, values[i]);
    }
}

static sl_status_t dp_init(dp_t *dp, const sl_part_problem_t *problem)
{
    const int n = problem->costs->n_layers;
    const size_t row = (size_t)n + 1;
    const size_t n_blocks = row / BLOCK + 1;
    sl_status_t status;
    int i;

    *dp = (dp_t){
        .n_layers = n, .n_stages = problem->n_stages, .problem = problem};
    dp->storage = calloc(6 * row + 3 * n_blocks, sizeof(double));
    dp->parent = calloc((size_t)problem->n_stages * row, sizeof(int));
    if (dp->storage == NULL || dp->parent == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "partition dp: no memory for %d layers in %d stages", n,
                problem->n_stages);
    }
    dp->prefix = dp->storage;
    dp->transfer = dp->prefix + row;
    dp->prev = dp->transfer + row;
    dp->next = dp->prev + row;
    dp->prev_square = dp->next + row;
    dp->next_square = dp->prev_square + row;
    dp->low = dp->next_square + row;
    dp->low_square = dp->low + n_blocks;
    dp->low_link = dp->low_square + n_blocks;
    for (i = 0; i < n; i++) {
        dp->prefix[i + 1] = dp->prefix[i] + sl_part_layer_us(problem, i);
        dp->transfer[i] = sl_part_transfer_us(problem, i);
    }
    find_lows(dp, dp->transfer, dp->low_link);
    return SL_OK;

err_free:
    free(dp->storage);
    free(dp->parent);
    return status;
}

static void dp_cleanup(dp_t *dp)
{
    free(dp->storage);
    free(dp->parent);
}

static void swap(double **a, double **b)
{
    double *const t = *a;

    *a = *b;
    *b = t;
}

/** No stage yet: only the start of the list is reached. */
static void reset_states(dp_t *dp)
{
    int i;

    for (i = 0; i <= dp->n_layers; i++) {
        dp->prev[i] = i == 0 ? 0.0 : HUGE_VAL;
        dp->prev_square[i] = dp->prev[i];
    }
}

static double stage_us(const dp_t *dp, int begin, int end, double speed)
{
    return sl_part_sum_us(dp->prefix[end] - dp->prefix[begin], speed,
                          dp->transfer[begin] + dp->transfer[end]);
}

/** Bound from below for all stages that end at `end` and begin at `begin` or
 *  earlier, there receiving at least `received_us`. */
static double least_us(const dp_t *dp, int begin, int end, double speed,
                       double received_us)
{
    return sl_part_sum_us(dp->prefix[end] - dp->prefix[begin], speed,
                          received_us + dp->transfer[end]);
}

/** Whether a stage has the memory it needs. Need does not grow steadily with
 *  the layers (a longer stage may have less to receive), so every stage that
 *  is fast enough is asked about by itself. */
static int has_memory(const dp_t *dp, int begin, int end, int stage)
{
    const sl_part_problem_t *problem = dp->problem;

    return problem->memory_bytes == NULL ||
           problem->memory_bytes[stage] == SIZE_MAX ||
           problem->stage_need(problem->need_ctx, begin, end, stage) <=
               problem->memory_bytes[stage];
}

/** Least slowest-stage time of the first `stage` + 1 stages ending at `end`,
 *  from dp->prev, that of `stage` stages. */
static double best_end(const dp_t *dp, int stage, int end, double speed)
{
    double best = HUGE_VAL;
    int block, hi = end - 1;

    for (block = hi / BLOCK; block >= 0;
         block--, hi = block * BLOCK + BLOCK - 1) {
        const int lo = block * BLOCK < stage ? stage : block * BLOCK;
        int begin;

        if (hi < stage || least_us(dp, hi, end, speed, 0.0) >= best) {
            break;
        }
        if (dp->low[block] >= best ||
            least_us(dp, hi, end, speed, dp->low_link[block]) >= best) {
            continue;
        }
        for (begin = hi; begin >= lo; begin--) {
            const double us =
                fmax(dp->prev[begin], stage_us(dp, begin, end, speed));

            if (us < best && has_memory(dp, begin, end, stage)) {
                best = us;
            }
        }
    }
    return best;
}

/** The least time of the slowest stage. */
static double find_bottleneck(dp_t *dp)
{
    int stage, end, i;

    reset_states(dp);
    for (stage = 0; stage < dp->n_stages; stage++) {
        const double speed = sl_part_speed_of(dp->problem, stage);
        const int last = dp->n_layers - (dp->n_stages - stage - 1);

        find_lows(dp, dp->prev, dp->low);
        for (i = 0; i <= dp->n_layers; i++) {
            dp->next[i] = HUGE_VAL;
        }
        for (end = stage + 1; end <= last; end++) {
            dp->next[end] = best_end(dp, stage, end, speed);
        }
        swap(&dp->prev, &dp->next);
    }
    return dp->prev[dp->n_layers];
}

/**
 * Among cuts whose stages all stay within `limit`: fewest bytes, then least
 * sum of squares, for the first `stage` + 1 stages ending at `end`. dp->prev
 * has the bytes of `stage` stages with those of their last cut, and
 * dp->prev_square the squares. The shortest last stage wins a full tie, so
 * larger stages come first.
 */
static void refine_end(dp_t *dp, int stage, int end, double speed, double limit)
{
    double bytes = HUGE_VAL, square = HUGE_VAL;
    int parent = -1, block, hi = end - 1;

    for (block = hi / BLOCK; block >= 0;
         block--, hi = block * BLOCK + BLOCK - 1) {
        const int lo = block * BLOCK < stage ? stage : block * BLOCK;
        const double least = least_us(dp, hi, end, speed, dp->low_link[block]);
        int begin;

        if (hi < stage || least_us(dp, hi, end, speed, 0.0) > limit) {
            break;
        }
        if (least > limit || dp->low[block] > bytes ||
            (dp->low[block] >= bytes &&
             dp->low_square[block] + least * least >= square)) {
            continue;
        }
        for (begin = hi; begin >= lo; begin--) {
            const double us = stage_us(dp, begin, end, speed);
            const double sum = dp->prev_square[begin] + us * us;

            if (us <= limit &&
                (dp->prev[begin] < bytes ||
                 (dp->prev[begin] <= bytes && sum < square)) &&
                has_memory(dp, begin, end, stage)) {
                bytes = dp->prev[begin];
                square = sum;
                parent = begin;
            }
        }
    }
    dp->next[end] = bytes;
    dp->next_square[end] = square;
    dp->parent[(size_t)stage * ((size_t)dp->n_layers + 1) + (size_t)end] =
        parent;
}

/** Fill dp->parent with the best cuts within `limit`. */
static void refine(dp_t *dp, double limit)
{
    const sl_part_layer_t *layers = dp->problem->costs->layers;
    int stage, end, i;

    reset_states(dp);
    for (stage = 0; stage < dp->n_stages; stage++) {
        const double speed = sl_part_speed_of(dp->problem, stage);
        const int last = dp->n_layers - (dp->n_stages - stage - 1);

        find_lows(dp, dp->prev, dp->low);
        find_lows(dp, dp->prev_square, dp->low_square);
        for (i = 0; i <= dp->n_layers; i++) {
            dp->next[i] = HUGE_VAL;
            dp->next_square[i] = HUGE_VAL;
        }
        for (end = stage + 1; end <= last; end++) {
            refine_end(dp, stage, end, speed, limit);
        }
        for (i = 1; i < dp->n_layers; i++) {
            dp->next[i] += (double)layers[i].cut_bytes;
        }
        swap(&dp->prev, &dp->next);
        swap(&dp->prev_square, &dp->next_square);
    }
}

static sl_status_t dp_split(const sl_part_problem_t *problem, int *cuts)
{
    dp_t dp;
    sl_status_t status;
    double limit;
    int stage, end;

    SL_TRY(status, dp_init(&dp, problem), out);
    limit = find_bottleneck(&dp);
    if (!(limit < HUGE_VAL)) {
        SL_REFUSE(status, SL_ERR_QUOTA, err_cleanup,
                  "partition dp: no cut of %d layers into %d stages fits the "
                  "memory of its devices",
                  dp.n_layers, dp.n_stages);
    }
    refine(&dp, limit);
    end = dp.n_layers;
    for (stage = dp.n_stages - 1; stage >= 0; stage--) {
        cuts[stage + 1] = end;
        end =
            dp.parent[(size_t)stage * ((size_t)dp.n_layers + 1) + (size_t)end];
        SL_ASSERT(end >= 0);
    }
    cuts[0] = end;
err_cleanup:
    dp_cleanup(&dp);
out:
    return status;
}

const sl_part_ops_t sl_part_dp = {
    .size = sizeof(sl_part_ops_t),
    .name = "dp",
    .brief = "exact: the fastest slowest stage, transfers included",
    .split = dp_split,
};
