/* SPDX-License-Identifier: Apache-2.0 */
/* dp under memory: against every cut there is, for random needs, speeds,
 * links and limits. */
#include "tests/support/sl_test.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "partition/partition.h"

enum {
    MAX_N = 11
};

typedef struct fixture {
    sl_part_layer_t layers[MAX_N];
    sl_part_costs_t costs;
    sl_part_problem_t problem;
    double speed[MAX_N];
    size_t limits[MAX_N];
    size_t needs[MAX_N][MAX_N + 1][MAX_N + 1];
} fixture_t;

static size_t need(void *ctx, int begin, int end, int stage)
{
    const fixture_t *f = ctx;

    assert_true(begin >= 0 && begin < end && end <= f->costs.n_layers);
    return f->needs[stage][begin][end];
}

/* Needs that grow with the layers, with bumps; now and then any. */
static void fill(fixture_t *f, int n, int k, uint32_t trial)
{
    const sl_rng_t rng = sl_rng_at(5, trial, (uint32_t)n, (uint32_t)k, 0);
    uint64_t draw = 0;
    int i, b, e;

    memset(f, 0, sizeof(*f));
    f->costs = (sl_part_costs_t){.n_layers = n, .layers = f->layers};
    f->problem = (sl_part_problem_t){.costs = &f->costs,
                                     .n_stages = k,
                                     .recompute = trial % 2u,
                                     .memory_bytes = f->limits,
                                     .stage_need = need,
                                     .need_ctx = f};
    for (i = 0; i < n; i++) {
        f->layers[i].forward_us = 1.0 + sl_rng_u32(&rng, draw++) % 9u;
        f->layers[i].backward_us = sl_rng_u32(&rng, draw++) % 9u;
        f->layers[i].cut_bytes =
            i == 0 ? 0 : sl_rng_u32(&rng, draw++) % 5u * 100u;
        f->speed[i] = 0.25 * (1 + sl_rng_u32(&rng, draw++) % 8u);
        f->limits[i] = sl_rng_u32(&rng, draw++) % 8u == 0
                           ? SIZE_MAX
                           : 200 + sl_rng_u32(&rng, draw++) % 400u;
    }
    if (trial % 3u != 0) {
        f->problem.stage_speed = f->speed;
        f->problem.link_bytes_per_us = 130.0;
        f->problem.link_latency_us = 0.7;
    }
    for (i = 0; i < k; i++) {
        for (b = 0; b < n; b++) {
            for (e = b + 1; e <= n; e++) {
                const uint32_t word = sl_rng_u32(&rng, draw++);

                f->needs[i][b][e] = trial % 5u == 0
                                        ? word % 700u
                                        : (size_t)(e - b) * 100 + word % 120u;
            }
        }
    }
}

typedef struct best {
    double us, bytes, squares; /* of the cuts that fit; HUGE_VAL: none */
    double part;               /* of the memory, at the worst stage */
} best_t;

static best_t judge(const fixture_t *f, const int *cuts)
{
    best_t b = {0};
    int k;

    for (k = 0; k < f->problem.n_stages; k++) {
        const double us =
            sl_part_stage_us(&f->problem, cuts[k], cuts[k + 1], k);
        const double part = f->limits[k] == SIZE_MAX
                                ? 0.0
                                : (double)f->needs[k][cuts[k]][cuts[k + 1]] /
                                      (double)f->limits[k];

        b.us = fmax(b.us, us);
        b.squares += us * us;
        b.bytes += k == 0 ? 0.0 : (double)f->layers[cuts[k]].cut_bytes;
        b.part = fmax(b.part, part);
    }
    return b;
}

static int is_better(const best_t *a, const best_t *b)
{
    if (a->us != b->us) {
        return a->us < b->us;
    }
    if (a->bytes != b->bytes) {
        return a->bytes < b->bytes;
    }
    return a->squares < b->squares;
}

static void try_all(const fixture_t *f, int *cuts, int stage, best_t *best)
{
    const int n = f->costs.n_layers, k = f->problem.n_stages;
    int cut;

    if (stage == k) {
        const best_t b = judge(f, cuts);
        const double part = fmin(best->part, b.part);

        if (b.part <= 1.0 && is_better(&b, best)) {
            *best = b;
        }
        best->part = part;
        return;
    }
    for (cut = cuts[stage - 1] + 1; cut <= n - (k - stage); cut++) {
        cuts[stage] = cut;
        try_all(f, cuts, stage + 1, best);
    }
}

static void dp_under_memory_equals_brute_force(void **state)
{
    static fixture_t f;
    int n, k, n_fit = 0, n_none = 0, n_other = 0;
    uint32_t trial;

    (void)state;
    for (n = 1; n <= MAX_N; n++) {
        for (k = 1; k <= n; k++) {
            for (trial = 0; trial < 60; trial++) {
                best_t best = {HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL}, got;
                int cuts[MAX_N + 1] = {0}, free_cuts[MAX_N + 1];
                sl_status_t status;

                fill(&f, n, k, trial);
                cuts[k] = n;
                try_all(&f, cuts, 1, &best);
                memset(cuts, 0, sizeof(cuts));
                status = sl_part_split(&sl_part_dp, &f.problem, cuts);
                if (!(best.us < HUGE_VAL)) {
                    assert_int_equal(status, SL_ERR_QUOTA);
                    sl_assert_contains(sl_last_error(), "no cut of");
                    assert_int_equal(cuts[k], 0);
                    n_none++;
                } else {
                    sl_assert_ok(status);
                    got = judge(&f, cuts);
                    assert_true(got.part <= 1.0);
                    assert_true(got.us == best.us);
                    assert_true(got.bytes == best.bytes);
                    assert_true(got.squares <= best.squares * (1 + 1e-12));
                    n_fit++;
                }
                sl_assert_ok(sl_part_least_memory(&f.problem, cuts));
                sl_assert_ok(sl_part_check_cuts(n, k, cuts));
                assert_true(judge(&f, cuts).part == best.part);
                f.problem.memory_bytes = NULL;
                sl_assert_ok(sl_part_split(&sl_part_dp, &f.problem, free_cuts));
                n_other += status >= 0 && judge(&f, free_cuts).part > 1.0;
            }
        }
    }
    print_message("%d problems with a cut that fits, %d of them not with the "
                  "fastest; %d without\n",
                  n_fit, n_other, n_none);
    assert_true(n_fit > 500 && n_none > 500 && n_other > 100);
}

static void memory_needs_somebody_to_ask(void **state)
{
    static fixture_t f;
    int cuts[MAX_N + 1];

    (void)state;
    fill(&f, 5, 2, 1);
    f.problem.stage_need = NULL;
    sl_assert_status(sl_part_split(&sl_part_dp, &f.problem, cuts),
                     SL_ERR_INVALID_ARG);
    f.problem.memory_bytes = NULL;
    sl_assert_ok(sl_part_split(&sl_part_dp, &f.problem, cuts));
    sl_assert_status(sl_part_least_memory(&f.problem, cuts),
                     SL_ERR_INVALID_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(dp_under_memory_equals_brute_force),
        sl_unit_test(memory_needs_somebody_to_ask),
    };

    return cmocka_run_group_tests_name("partition.split_memory", tests, NULL,
                                       NULL);
}
