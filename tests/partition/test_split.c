/* SPDX-License-Identifier: Apache-2.0 */
/* Policies against brute force, known lists, bad problems, the prediction. */
#include "tests/support/sl_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "partition/partition.h"

enum {
    MAX_N = 12,
    MID_N = 100,
    MANY = 5000,
    MANY_STAGES = 64
};

/** Costs on the stack; forward takes a third of `us`. */
typedef struct fixture {
    sl_part_layer_t layers[MID_N];
    sl_part_costs_t costs;
    sl_part_problem_t problem;
    double speed[MID_N];
    int cuts[SL_PART_MAX_STAGES + 1];
} fixture_t;

static void fixture_init(fixture_t *f, int n_layers, int n_stages,
                         const double *us)
{
    int i;

    memset(f, 0, sizeof(*f));
    f->costs.n_layers = n_layers;
    f->costs.layers = f->layers;
    f->problem.costs = &f->costs;
    f->problem.n_stages = n_stages;
    for (i = 0; i < n_layers; i++) {
        f->layers[i].backward_us = us == NULL ? 1.0 : us[i];
        f->layers[i].forward_flops = us == NULL ? 1.0 : us[i];
    }
}

static void assert_cuts(const int *cuts, const int *want, int n_stages)
{
    int i;

    for (i = 0; i <= n_stages; i++) {
        assert_int_equal(cuts[i], want[i]);
    }
}

static const sl_part_ops_t *policy(const char *name)
{
    const sl_part_ops_t *ops = sl_part_find(name);

    assert_non_null(ops);
    return ops;
}

static void split(fixture_t *f, const char *name)
{
    sl_assert_ok(sl_part_split(policy(name), &f->problem, f->cuts));
    sl_assert_ok(
        sl_part_check_cuts(f->costs.n_layers, f->problem.n_stages, f->cuts));
}

/* ---- brute force ---- */

/** What the brute force found best, and how. */
typedef struct best {
    double bottleneck_us;
    double bytes;
    double squares;
} best_t;

/** The same sums as a policy should see, written without its code. */
static double plain_stage_us(const fixture_t *f, int begin, int end, int stage)
{
    double us = 0.0, link = 0.0;
    int i;

    for (i = begin; i < end; i++) {
        us += f->layers[i].forward_us * (1.0 + f->problem.recompute) +
              f->layers[i].backward_us;
    }
    if (f->problem.stage_speed != NULL) {
        us /= f->speed[stage];
    }
    for (i = begin; i <= end; i += end - begin) {
        if (i > 0 && i < f->costs.n_layers && f->layers[i].cut_bytes > 0) {
            link += f->problem.link_latency_us;
            if (f->problem.link_bytes_per_us > 0.0) {
                link += (double)f->layers[i].cut_bytes /
                        f->problem.link_bytes_per_us;
            }
        }
    }
    return us + link;
}

static best_t judge(const fixture_t *f, const int *cuts)
{
    best_t b = {.bottleneck_us = sl_part_bottleneck_us(&f->problem, cuts)};
    double plain = 0.0;
    int k;

    for (k = 0; k < f->problem.n_stages; k++) {
        const double us =
            sl_part_stage_us(&f->problem, cuts[k], cuts[k + 1], k);

        plain = fmax(plain, plain_stage_us(f, cuts[k], cuts[k + 1], k));
        b.squares += us * us;
        b.bytes += k == 0 ? 0.0 : (double)f->layers[cuts[k]].cut_bytes;
    }
    assert_true(fabs(plain - b.bottleneck_us) <= 1e-5 + 1e-9 * plain);
    return b;
}

static int is_better(const best_t *a, const best_t *b)
{
    if (a->bottleneck_us != b->bottleneck_us) {
        return a->bottleneck_us < b->bottleneck_us;
    }
    if (a->bytes != b->bytes) {
        return a->bytes < b->bytes;
    }
    return a->squares < b->squares;
}

/** Try every cut list from `stage` on. */
static void try_all(const fixture_t *f, int *cuts, int stage, best_t *best)
{
    const int n = f->costs.n_layers, k = f->problem.n_stages;
    int cut;

    if (stage == k) {
        const best_t b = judge(f, cuts);

        if (is_better(&b, best)) {
            *best = b;
        }
        return;
    }
    for (cut = cuts[stage - 1] + 1; cut <= n - (k - stage); cut++) {
        cuts[stage] = cut;
        try_all(f, cuts, stage + 1, best);
    }
}

/** A cost of one of several kinds: any, with ties, zeros, one giant. */
static double draw_us(int kind, double normal, uint32_t word)
{
    switch (kind) {
    case 0:
        return exp(1.5 * normal);
    case 1:
        return (double)(word % 4u);
    case 2:
        return word % 3u == 0 ? 0.0 : exp(normal);
    case 3:
        return word % 7u == 0 ? 1000.0 : 1.0;
    default:
        return 1.0;
    }
}

static void fill_random(fixture_t *f, int n, int k, uint32_t trial)
{
    const sl_rng_t rng = sl_rng_at(7, trial, (uint32_t)n, (uint32_t)k, 0);
    const int kind = (int)(trial % 5u);
    float normal[2 * MID_N];
    int i;

    fixture_init(f, n, k, NULL);
    sl_rng_normal(&rng, normal, 2 * MID_N);
    for (i = 0; i < n; i++) {
        const uint32_t word = sl_rng_u32(&rng, (uint64_t)(1000 + i));

        f->layers[i].forward_us = draw_us(kind, normal[2 * i], word);
        f->layers[i].backward_us = draw_us(kind, normal[2 * i + 1], word >> 8);
        /* every fourth: nothing crosses, so that only evenness decides */
        f->layers[i].cut_bytes =
            i == 0 || trial % 4u == 0 ? 0 : (word >> 16) % 5u * 100u;
        f->speed[i] = 0.25 * (1 + (word >> 24) % 8u);
    }
    f->problem.recompute = trial / 5u % 2u == 0 ? 0.0 : 1.0;
    f->problem.link_bytes_per_us = trial / 10u % 3u == 0 ? 0.0 : 130.0;
    f->problem.link_latency_us = trial / 10u % 3u == 2 ? 0.7 : 0.0;
    f->problem.stage_speed = trial / 30u % 2u == 0 ? NULL : f->speed;
}

static void dp_equals_brute_force(void **state)
{
    fixture_t f;
    uint32_t trial;
    int n, k;

    (void)state;
    for (n = 1; n <= MAX_N; n++) {
        for (k = 1; k <= n; k++) {
            for (trial = 0; trial < 60; trial++) {
                best_t best = {HUGE_VAL, HUGE_VAL, HUGE_VAL}, got;
                int cuts[MAX_N + 1] = {0};

                fill_random(&f, n, k, trial);
                cuts[k] = n;
                try_all(&f, cuts, 1, &best);
                split(&f, "dp");
                got = judge(&f, f.cuts);
                assert_true(got.bottleneck_us == best.bottleneck_us);
                assert_true(got.bytes == best.bytes);
                assert_true(got.squares <= best.squares * (1 + 1e-12));
            }
        }
    }
}

/** The textbook recurrence over all starts, nothing skipped. */
static best_t plain_dp(const fixture_t *f)
{
    static best_t now[MID_N + 1], then[MID_N + 1];
    const best_t none = {HUGE_VAL, HUGE_VAL, HUGE_VAL};
    const int n = f->costs.n_layers;
    double limit = HUGE_VAL;
    int pass, stage, begin, end;

    for (pass = 0; pass < 2; pass++) { /* 0: the limit; 1: ties within it */
        for (end = 0; end <= n; end++) {
            then[end] = end == 0 ? (best_t){0} : none;
        }
        for (stage = 0; stage < f->problem.n_stages; stage++) {
            for (end = 0; end <= n; end++) {
                now[end] = none;
                for (begin = 0; begin < end; begin++) {
                    const double us =
                        sl_part_stage_us(&f->problem, begin, end, stage);
                    best_t b = then[begin];

                    if (us > limit) {
                        continue;
                    }
                    b.bottleneck_us =
                        pass == 0 ? fmax(b.bottleneck_us, us) : limit;
                    b.bytes += (double)f->layers[begin].cut_bytes;
                    b.squares += us * us;
                    if (is_better(&b, &now[end])) {
                        now[end] = b;
                    }
                }
            }
            memcpy(then, now, sizeof(then));
        }
        limit = then[n].bottleneck_us;
    }
    return then[n];
}

static void dp_skips_nothing_that_matters(void **state)
{
    fixture_t f;
    uint32_t trial;

    (void)state;
    for (trial = 0; trial < 60; trial++) {
        best_t best, got;

        fill_random(&f, MID_N, 2 + (int)(trial % 17u), trial);
        best = plain_dp(&f);
        split(&f, "dp");
        got = judge(&f, f.cuts);
        assert_true(got.bottleneck_us == best.bottleneck_us);
        assert_true(got.bytes == best.bytes);
        assert_true(got.squares <= best.squares * (1 + 1e-12));
    }
}

static void no_policy_leaves_a_stage_empty(void **state)
{
    fixture_t f;
    uint32_t trial;
    size_t i;
    int n, k;

    (void)state;
    for (i = 0; sl_part_builtin(i) != NULL; i++) {
        for (n = 1; n <= MAX_N; n++) {
            for (k = 1; k <= n; k++) {
                for (trial = 0; trial < 60; trial++) {
                    fill_random(&f, n, k, trial);
                    f.layers[trial % (uint32_t)n].forward_flops = 1e9;
                    split(&f, sl_part_builtin(i)->name);
                }
            }
        }
    }
}

/* ---- known lists ---- */

static double bottleneck(fixture_t *f, const char *name)
{
    split(f, name);
    return sl_part_bottleneck_us(&f->problem, f->cuts);
}

static void dp_on_known_lists(void **state)
{
    const double sparse[] = {0, 2, 0, 1, 1, 1, 1, 0, 0, 2, 0};
    const double falling[] = {6, 5, 4, 3, 2, 1};
    const double gap[] = {0, 0, 0, 9, 0, 0, 0};
    fixture_t f;
    int k;

    (void)state;
    fixture_init(&f, 5, 4, NULL);
    split(&f, "dp");
    assert_cuts(f.cuts, (int[]){0, 2, 3, 4, 5}, 4);

    fixture_init(&f, 42, 16, NULL);
    assert_true(bottleneck(&f, "dp") == 3.0);
    for (k = 0; k < 16; k++) {
        const int n = f.cuts[k + 1] - f.cuts[k];

        assert_true(n == 2 || n == 3); /* as even as 42 / 16 can be */
    }
    fixture_init(&f, 38, 8, NULL);
    assert_true(bottleneck(&f, "dp") == 5.0);
    fixture_init(&f, 11, 4, sparse);
    assert_true(bottleneck(&f, "dp") == 2.0);
    fixture_init(&f, 6, 2, falling);
    split(&f, "dp");
    assert_cuts(f.cuts, (int[]){0, 2, 6}, 2);
    fixture_init(&f, 7, 7, gap);
    assert_true(bottleneck(&f, "dp") == 9.0);
    fixture_init(&f, 7, 1, gap);
    split(&f, "dp");
    assert_cuts(f.cuts, (int[]){0, 7}, 1);
}

static void dp_weighs_transfers_and_speeds(void **state)
{
    const double twos[] = {2, 2, 2, 2};
    const double speed[] = {3, 1};
    fixture_t f;

    (void)state;
    /* The even cut carries most: with a slow link both of its stages would
     * take 4 + 10 us, and of the two equal others the later wins. */
    fixture_init(&f, 4, 2, twos);
    f.layers[1].cut_bytes = 100;
    f.layers[2].cut_bytes = 1000;
    f.layers[3].cut_bytes = 100;
    split(&f, "dp");
    assert_int_equal(f.cuts[1], 2);
    f.problem.link_bytes_per_us = 100.0;
    split(&f, "dp");
    assert_int_equal(f.cuts[1], 3);
    assert_true(sl_part_bottleneck_us(&f.problem, f.cuts) == 7.0);

    fixture_init(&f, 4, 2, twos);
    f.problem.stage_speed = speed;
    split(&f, "dp");
    assert_int_equal(f.cuts[1], 3);
    assert_true(sl_part_bottleneck_us(&f.problem, f.cuts) == 2.0);
}

static void gpipe_rule(void **state)
{
    const double heavy_first[] = {10, 1, 1, 1, 1, 1, 1};
    const double heavy_last[] = {1, 1, 1, 1, 1, 1, 10};
    const double zeros[] = {0, 0, 0, 0, 0};
    fixture_t f;

    (void)state;
    fixture_init(&f, 16, 2, NULL);
    split(&f, "gpipe");
    assert_cuts(f.cuts, (int[]){0, 7, 16}, 2);
    fixture_init(&f, 16, 4, NULL);
    split(&f, "gpipe");
    assert_cuts(f.cuts, (int[]){0, 3, 7, 11, 16}, 4);
    /* 10/16 of the flops end with layer 0: the rule leaves stage 0 empty. */
    fixture_init(&f, 7, 2, heavy_first);
    split(&f, "gpipe");
    assert_cuts(f.cuts, (int[]){0, 1, 7}, 2);
    fixture_init(&f, 7, 4, heavy_first);
    split(&f, "gpipe");
    assert_cuts(f.cuts, (int[]){0, 1, 2, 3, 7}, 4);
    fixture_init(&f, 7, 4, heavy_last);
    split(&f, "gpipe");
    assert_cuts(f.cuts, (int[]){0, 3, 5, 6, 7}, 4);
    fixture_init(&f, 5, 5, zeros);
    split(&f, "gpipe");
    assert_cuts(f.cuts, (int[]){0, 1, 2, 3, 4, 5}, 5);
}

static void uniform_counts(void **state)
{
    fixture_t f;

    (void)state;
    fixture_init(&f, 5, 4, NULL);
    split(&f, "uniform");
    assert_cuts(f.cuts, (int[]){0, 2, 3, 4, 5}, 4);
    fixture_init(&f, 38, 8, NULL);
    assert_true(bottleneck(&f, "uniform") == 5.0);
    fixture_init(&f, 8, 4, NULL);
    split(&f, "uniform");
    assert_cuts(f.cuts, (int[]){0, 2, 4, 6, 8}, 4);
}

/* ---- refusals ---- */

static void more_stages_than_layers(void **state)
{
    int cuts[8] = {-7, -7, -7, -7, -7, -7, -7, -7};
    fixture_t f;
    size_t i;

    (void)state;
    fixture_init(&f, 5, 6, NULL);
    for (i = 0; sl_part_builtin(i) != NULL; i++) {
        sl_assert_status(sl_part_split(sl_part_builtin(i), &f.problem, cuts),
                         SL_ERR_CONFIG);
        sl_assert_contains(sl_last_error(), "6 stages");
        sl_assert_contains(sl_last_error(), "5 layers");
        assert_int_equal(cuts[0], -7);
    }
}

static void bad_problems_are_refused(void **state)
{
    const double bad[] = {-1.0, NAN, HUGE_VAL};
    const double speed[] = {1.0, 0.0};
    fixture_t f;
    size_t i;

    (void)state;
    for (i = 0; i < 3; i++) {
        fixture_init(&f, 5, 2, NULL);
        f.layers[3].forward_us = bad[i];
        sl_assert_status(sl_part_split(&sl_part_dp, &f.problem, f.cuts),
                         SL_ERR_INVALID_ARG);
        sl_assert_contains(sl_last_error(), "layer 3");
        fixture_init(&f, 5, 2, NULL);
        f.problem.recompute = bad[i];
        sl_assert_status(sl_part_split(&sl_part_dp, &f.problem, f.cuts),
                         SL_ERR_INVALID_ARG);
    }
    fixture_init(&f, 5, 2, NULL);
    f.problem.stage_speed = speed;
    sl_assert_status(sl_part_split(&sl_part_dp, &f.problem, f.cuts),
                     SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), "stage 1");
    f.problem.stage_speed = NULL;
    f.problem.link_bytes_per_us = NAN;
    sl_assert_status(sl_part_split(&sl_part_dp, &f.problem, f.cuts),
                     SL_ERR_INVALID_ARG);
    f.problem.link_bytes_per_us = 0.0;
    f.problem.n_stages = 0;
    sl_assert_status(sl_part_split(&sl_part_dp, &f.problem, f.cuts),
                     SL_ERR_CONFIG);
    sl_assert_status(sl_part_split(NULL, &f.problem, f.cuts),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_part_split(&sl_part_dp, NULL, f.cuts),
                     SL_ERR_INVALID_ARG);
}

static void cuts_by_hand(void **state)
{
    (void)state;
    sl_assert_ok(sl_part_check_cuts(5, 2, (int[]){0, 3, 5}));
    sl_assert_status(sl_part_check_cuts(5, 2, (int[]){1, 3, 5}), SL_ERR_CONFIG);
    sl_assert_status(sl_part_check_cuts(5, 2, (int[]){0, 3, 6}), SL_ERR_CONFIG);
    sl_assert_status(sl_part_check_cuts(5, 3, (int[]){0, 3, 3, 5}),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "stage 1 of 3 is empty");
    sl_assert_status(sl_part_check_cuts(5, 3, (int[]){0, 4, 3, 5}),
                     SL_ERR_CONFIG);
    sl_assert_status(sl_part_check_cuts(2, 3, (int[]){0, 1, 1, 2}),
                     SL_ERR_CONFIG);
}

static void policies_by_name(void **state)
{
    size_t i, j;

    (void)state;
    assert_ptr_equal(sl_part_find("dp"), &sl_part_dp);
    assert_ptr_equal(sl_part_find("gpipe"), &sl_part_gpipe);
    assert_ptr_equal(sl_part_find("uniform"), &sl_part_uniform);
    assert_null(sl_part_find("metis"));
    assert_null(sl_part_find(NULL));
    for (i = 0; sl_part_builtin(i) != NULL; i++) {
        assert_true(sl_part_builtin(i)->size == sizeof(sl_part_ops_t));
        assert_true(strlen(sl_part_builtin(i)->brief) > 0);
        for (j = 0; j < i; j++) {
            assert_string_not_equal(sl_part_builtin(i)->name,
                                    sl_part_builtin(j)->name);
        }
    }
    assert_int_equal(i, 3);
}

/* ---- prediction ---- */

static void prediction_of_a_step(void **state)
{
    const double uneven[] = {3, 1};
    sl_part_prediction_t p;
    fixture_t f;

    (void)state;
    /* Equal stages: the bubble of GPipe, (K-1) / (M+K-1). */
    fixture_init(&f, 4, 4, NULL);
    split(&f, "dp");
    sl_part_predict(&f.problem, f.cuts, 8, &p);
    assert_true(p.step_us == 11.0);
    assert_true(fabs(p.bubble - 3.0 / 11.0) < 1e-12);

    fixture_init(&f, 2, 2, uneven);
    split(&f, "dp");
    sl_part_predict(&f.problem, f.cuts, 5, &p);
    assert_true(p.step_us == 4.0 + 4 * 3.0);
    assert_true(fabs(p.bubble - (1.0 - 20.0 / 32.0)) < 1e-12);

    fixture_init(&f, 2, 1, uneven);
    split(&f, "dp");
    sl_part_predict(&f.problem, f.cuts, 5, &p);
    assert_true(p.step_us == 20.0);
    assert_true(p.bubble == 0.0);
}

/* ---- size ---- */

static void many_layers(void **state)
{
    static sl_part_layer_t layers[MANY];
    sl_part_costs_t costs = {.n_layers = MANY, .layers = layers};
    sl_part_problem_t problem = {.costs = &costs,
                                 .n_stages = MANY_STAGES,
                                 .link_bytes_per_us = 1e4,
                                 .link_latency_us = 5.0};
    const sl_rng_t rng = sl_rng_at(3, 0, 0, 0, 0);
    static float normal[MANY];
    int cuts[MANY_STAGES + 1], kind, i;

    (void)state;
    sl_rng_normal(&rng, normal, MANY);
    for (kind = 0; kind < 6; kind++) {
        uint64_t start_ns;

        for (i = 0; i < MANY; i++) {
            layers[i].forward_us = kind == 0   ? exp(2.0 * (double)normal[i])
                                   : kind == 1 ? 1.0
                                   : kind == 2 ? 0.0
                                               : 1.0 + i % 3;
            layers[i].cut_bytes =
                i == 0 ? 0 : 1000 + sl_rng_u32(&rng, (uint64_t)i) % 100000u;
            if (kind == 5) {
                layers[i].cut_bytes = i == 0 ? 0 : 1000;
            }
        }
        if (kind >= 3) {
            layers[kind == 3 ? MANY / 10 : MANY / 2].forward_us = 1e6;
        }
        start_ns = sl_clock_ns();
        sl_assert_ok(sl_part_split(&sl_part_dp, &problem, cuts));
        print_message("%d layers, %d stages, costs of kind %d: %.0f ms\n", MANY,
                      MANY_STAGES, kind,
                      (double)(sl_clock_ns() - start_ns) * 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(dp_equals_brute_force),
        sl_unit_test(dp_skips_nothing_that_matters),
        sl_unit_test(no_policy_leaves_a_stage_empty),
        sl_unit_test(dp_on_known_lists),
        sl_unit_test(dp_weighs_transfers_and_speeds),
        sl_unit_test(gpipe_rule),
        sl_unit_test(uniform_counts),
        sl_unit_test(more_stages_than_layers),
        sl_unit_test(bad_problems_are_refused),
        sl_unit_test(cuts_by_hand),
        sl_unit_test(policies_by_name),
        sl_unit_test(prediction_of_a_step),
        sl_unit_test(many_layers),
    };

    return cmocka_run_group_tests_name("partition.split", tests, NULL, NULL);
}
