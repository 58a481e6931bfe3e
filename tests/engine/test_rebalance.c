/* SPDX-License-Identifier: Apache-2.0 */
/* The policy of re-balancing in a simulated pipeline: it moves when a change
 * stays, and it does not swing. */
#include "tests/support/sl_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/rebalance.h"
#include "partition/partition.h"

enum {
    DEVICES = 3,
    LAYERS = 60,
    MICRO = 8
};

/* A pipeline of a device a stage, its time and its cuts. */
typedef struct pipeline {
    sl_part_layer_t layers[LAYERS];
    sl_part_costs_t costs;
    sl_part_problem_t problem;
    double speed[DEVICES]; /* that dp is asked for */
    int cuts[DEVICES + 1];
    sl_rebalance_t *policy;
    double share[DEVICES], load[DEVICES]; /* load: kernels take so long */
    double noise;
    double move_us;
    uint64_t now_ns;
    uint32_t n_steps;
    int n_moves, n_asked;
    double total_us;
} pipeline_t;

static void pipeline_init(pipeline_t *p, double step_us)
{
    sl_rebalance_params_t params;
    int i;

    memset(p, 0, sizeof(*p));
    p->costs = (sl_part_costs_t){.n_layers = LAYERS, .layers = p->layers};
    p->problem = (sl_part_problem_t){
        .costs = &p->costs, .n_stages = DEVICES, .stage_speed = p->speed};
    for (i = 0; i < LAYERS; i++) {
        p->layers[i].forward_us = step_us / LAYERS;
    }
    for (i = 0; i < DEVICES; i++) {
        p->speed[i] = p->share[i] = p->load[i] = 1.0;
    }
    p->now_ns = 1;
    sl_assert_ok(sl_part_split(&sl_part_dp, &p->problem, p->cuts));
    sl_rebalance_params_default(&params);
    params.n_devices = DEVICES;
    sl_assert_ok(sl_rebalance_create(&params, &p->policy));
}

static double work_of(const pipeline_t *p, const int *cuts, int d)
{
    return MICRO * (cuts[d + 1] - cuts[d]) * p->layers[0].forward_us;
}

static double predict(pipeline_t *p, const int *cuts)
{
    sl_part_prediction_t prediction;

    sl_part_predict(&p->problem, cuts, MICRO, &prediction);
    return prediction.step_us;
}

static void cut_again(pipeline_t *p)
{
    double ratio[DEVICES], before, after;
    int cuts[DEVICES + 1], d;

    p->n_asked++;
    sl_rebalance_speeds(p->policy, p->speed);
    sl_assert_ok(sl_part_split(&sl_part_dp, &p->problem, cuts));
    before = predict(p, p->cuts);
    after = predict(p, cuts);
    if (!sl_rebalance_is_worth(p->policy, before, after, p->move_us)) {
        sl_rebalance_stayed(p->policy, p->now_ns);
        return;
    }
    for (d = 0; d < DEVICES; d++) {
        ratio[d] = work_of(p, cuts, d) / work_of(p, p->cuts, d);
    }
    memcpy(p->cuts, cuts, sizeof(cuts));
    sl_rebalance_moved(p->policy, p->now_ns, p->speed, ratio);
    p->n_moves++;
    p->total_us += p->move_us;
}

static double noise(pipeline_t *p, uint64_t draw)
{
    const sl_rng_t rng = sl_rng_at(17, p->n_steps, 0, 0, 0);

    return 1.0 + p->noise * (sl_rng_u32(&rng, draw) / 4294967296.0 - 0.5);
}

static void run(pipeline_t *p, int n)
{
    for (; n > 0; n--) {
        double busy[DEVICES], slowest = 0.0;
        sl_rebalance_sample_t sample = {.share = p->share, .busy_us = busy};
        int d;

        p->n_steps++;
        for (d = 0; d < DEVICES; d++) {
            busy[d] =
                work_of(p, p->cuts, d) * p->load[d] * noise(p, (uint64_t)d);
            slowest = fmax(slowest, busy[d] / p->share[d]);
        }
        p->total_us += slowest;
        p->now_ns += (uint64_t)(slowest * 1e3);
        sample.now_ns = p->now_ns;
        sample.step_us = slowest;
        if (sl_rebalance_observe(p->policy, &sample)) {
            cut_again(p);
        }
    }
}

/* ---- what it must do ---- */

static void nothing_moves_without_a_reason(void **state)
{
    pipeline_t p;

    (void)state;
    pipeline_init(&p, 60e3);
    p.noise = 0.4; /* a fifth up and down */
    run(&p, 20000);
    assert_int_equal(p.n_moves, 0);
    sl_rebalance_destroy(p.policy);

    /* all devices alike slower: no other cut is better */
    pipeline_init(&p, 60e3);
    p.share[0] = p.share[1] = p.share[2] = 0.4;
    run(&p, 5000);
    assert_int_equal(p.n_asked, 0);
    sl_rebalance_destroy(p.policy);
}

static void a_lasting_share_moves_layers_once(void **state)
{
    pipeline_t p;
    double before_us;

    (void)state;
    pipeline_init(&p, 60e3);
    p.noise = 0.2;
    run(&p, 200);
    p.share[1] = 0.3;
    run(&p, 19);
    assert_int_equal(p.n_moves, 0); /* not at once */
    before_us = p.total_us;
    run(&p, 1);
    before_us = p.total_us - before_us;
    run(&p, 2000);
    assert_int_equal(p.n_moves, 1);
    assert_true(p.cuts[2] - p.cuts[1] < LAYERS / 6);
    p.total_us = 0.0;
    run(&p, 1);
    assert_true(p.total_us < 0.6 * before_us);
    /* and back when the share is back */
    p.share[1] = 1.0;
    run(&p, 2000);
    assert_int_equal(p.n_moves, 2);
    assert_int_equal(p.cuts[1], LAYERS / 3);
    assert_int_equal(p.cuts[2], 2 * LAYERS / 3);
    sl_rebalance_destroy(p.policy);
}

/* Fast steps: twenty of them are no time. */
static void a_change_must_last(void **state)
{
    pipeline_t p;

    (void)state;
    pipeline_init(&p, 600.0);
    run(&p, 200);
    p.share[2] = 0.5;
    run(&p, 500); /* about half a second */
    assert_int_equal(p.n_moves, 0);
    run(&p, 5000);
    assert_int_equal(p.n_moves, 1);
    sl_rebalance_destroy(p.policy);
}

/* Others on the core of a device: its kernels take longer. */
static void a_lasting_load_moves_layers(void **state)
{
    pipeline_t p;
    int n;

    (void)state;
    pipeline_init(&p, 60e3);
    p.noise = 0.2;
    run(&p, 200);
    p.load[0] = 2.0;
    run(&p, 3000);
    assert_true(p.n_moves >= 1 && p.n_moves <= 2);
    n = p.n_moves;
    assert_true(p.cuts[1] < LAYERS / 3);
    p.load[0] = 1.0;
    run(&p, 3000);
    assert_true(p.n_moves > n && p.n_moves <= n + 2);
    assert_true(abs(p.cuts[1] - LAYERS / 3) <= 2);
    sl_rebalance_destroy(p.policy);
}

/* A share that goes up and down, at every period. */
static void it_does_not_swing(void **state)
{
    static const int periods[] = {1, 3, 7, 10, 15, 19, 30, 60, 200, 500};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(periods) / sizeof(*periods); i++) {
        pipeline_t p;
        int n;

        pipeline_init(&p, 60e3);
        p.noise = 0.2;
        for (n = 0; n < 20000; n += periods[i]) {
            p.share[1] = n / periods[i] % 2 == 0 ? 1.0 : 0.3;
            run(&p, periods[i]);
        }
        print_message("a share that changes every %d steps: %d moves in %u "
                      "steps, asked %d times\n",
                      periods[i], p.n_moves, p.n_steps, p.n_asked);
        /* what lasts long enough to pay is followed, once a change */
        assert_true(p.n_moves <= (periods[i] < 200 ? 12 : n / periods[i]));
        assert_true(periods[i] >= 20 || p.n_moves == 0);
        sl_rebalance_destroy(p.policy);
    }
}

/* Others that come and go: what lasts too short is not followed. */
static void a_passing_load_moves_nothing(void **state)
{
    static const int periods[] = {2, 10, 25, 60};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(periods) / sizeof(*periods); i++) {
        pipeline_t p;
        int n;

        pipeline_init(&p, 60e3);
        p.noise = 0.3;
        for (n = 0; n < 20000; n += periods[i]) {
            p.load[0] = n / periods[i] % 3 == 0 ? 2.0 : 1.0;
            p.load[1] = n / periods[i] % 2 == 0 ? 1.5 : 1.0;
            run(&p, periods[i]);
        }
        print_message("loads that change every %d steps: %d moves\n",
                      periods[i], p.n_moves);
        assert_int_equal(p.n_moves, 0);
        sl_rebalance_destroy(p.policy);
    }
}

/* Rare changes are followed each time: the doubling starts again. */
static void rare_changes_are_followed(void **state)
{
    pipeline_t p;
    int n;

    (void)state;
    pipeline_init(&p, 60e3);
    for (n = 0; n < 10; n++) {
        p.share[0] = n % 2 == 0 ? 1.0 : 0.4;
        run(&p, 3000);
    }
    assert_int_equal(p.n_moves, 9);
    sl_rebalance_destroy(p.policy);
}

static void a_move_must_pay(void **state)
{
    pipeline_t p;

    (void)state;
    pipeline_init(&p, 60e3);
    p.move_us = 1e9;
    run(&p, 100);
    p.share[1] = 0.3;
    run(&p, 2000);
    assert_true(p.n_asked > 0);
    assert_true(p.n_asked < 12);
    assert_int_equal(p.n_moves, 0);
    sl_rebalance_destroy(p.policy);

    /* one layer a stage: nothing to move */
    pipeline_init(&p, 60e3);
    p.costs.n_layers = DEVICES;
    sl_assert_ok(sl_part_split(&sl_part_dp, &p.problem, p.cuts));
    p.share[1] = 0.3;
    run(&p, 2000);
    assert_true(p.n_asked > 0);
    assert_int_equal(p.n_moves, 0);
    sl_rebalance_destroy(p.policy);
}

static void bad_parameters_are_refused(void **state)
{
    sl_rebalance_params_t params;
    sl_rebalance_t *policy = NULL;

    (void)state;
    sl_rebalance_params_default(&params);
    sl_assert_status(sl_rebalance_create(&params, &policy), SL_ERR_INVALID_ARG);
    params.n_devices = 2;
    params.threshold = NAN;
    sl_assert_status(sl_rebalance_create(&params, &policy), SL_ERR_INVALID_ARG);
    params.threshold = 0.1;
    params.least_gain = 0.5;
    sl_assert_status(sl_rebalance_create(&params, &policy), SL_ERR_INVALID_ARG);
    assert_null(policy);
    sl_rebalance_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(nothing_moves_without_a_reason),
        sl_unit_test(a_lasting_share_moves_layers_once),
        sl_unit_test(a_change_must_last),
        sl_unit_test(a_lasting_load_moves_layers),
        sl_unit_test(it_does_not_swing),
        sl_unit_test(a_passing_load_moves_nothing),
        sl_unit_test(rare_changes_are_followed),
        sl_unit_test(a_move_must_pay),
        sl_unit_test(bad_parameters_are_refused),
    };

    return cmocka_run_group_tests_name("engine.rebalance", tests, NULL, NULL);
}
