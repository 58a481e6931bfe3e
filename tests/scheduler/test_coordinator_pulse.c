/* SPDX-License-Identifier: Apache-2.0 */
/* The law of guarantee-first beside hosts with a pulse, which is the case of
 * every `sluice train --class guarantee`: on a simulated machine, in virtual
 * time. */
#include "tests/scheduler/coordinator_sim.h"

static sim_t *pulse_pair(uint64_t seed, double base_ms, double demand)
{
    sl_coord_params_t params;
    sim_t *sim;

    sl_coord_params_default(&params);
    sim = sim_pair(&params, seed, base_ms, demand);
    sim->jobs[HOST].view.has_pulse = 1;
    return sim;
}

/* The guest is off the device at once; what it asks for may stay, if that
 * hurts nobody. */
static void a_load_step_with_a_pulse_costs_nothing(void **state)
{
    static const double base_ms[] = {5.0, 50.0, 300.0};
    uint64_t seed;
    size_t b;

    (void)state;
    for (b = 0; b < 3; b++) {
        const double seconds = fmax(1.0, 10.0 * base_ms[b] * 1e-3);
        double slowdown = 0.0;

        for (seed = 1; seed <= 3; seed++) {
            sim_t *sim = pulse_pair(seed, base_ms[b], 0.3);

            sim->outliers = 0.0;
            sim_run(sim, 30.0 + 0.5 * base_ms[b]);
            sim->jobs[HOST].demand = 0.95;
            sim_reset_sums(sim);
            sim_run(sim, seconds);
            slowdown += sim_mean_us(&sim->jobs[HOST]) / (base_ms[b] * 1e3) / 3;
            assert_true(sim->jobs[GUEST].least_share >= 0.0099);
            sim_destroy(sim);
        }
        print_message("mini-batch %3.0f ms: slowdown %.2f %%\n", base_ms[b],
                      100.0 * (slowdown - 1.0));
        assert_true(slowdown < 1.03);
    }
}

/* What the pulse does not see, such as memory bandwidth: the law cuts the
 * guest. */
static void what_a_pulse_does_not_see_is_cut(void **state)
{
    static const double base_ms[] = {5.0, 34.0};
    uint64_t seed;
    size_t b;

    (void)state;
    for (b = 0; b < 2; b++) {
        double slowdown = 0.0, share = 0.0;

        for (seed = 1; seed <= 3; seed++) {
            sim_t *sim = pulse_pair(seed, base_ms[b], 0.3);
            double before;

            sim->outliers = 0.0;
            sim_run(sim, 30.0);
            before = sim->jobs[GUEST].share;
            assert_true(before > 0.7);
            sim->spoil = 0.3; /* all of the idle part costs 21 % */
            sim_run(sim, fmax(1.0, 25.0 * base_ms[b] * 1e-3) + 0.2);
            assert_true(sim->jobs[GUEST].share <= 0.75 * before);
            sim_run(sim, 30.0);
            sim_reset_sums(sim);
            sim_run(sim, 60.0);
            slowdown += sim_mean_us(&sim->jobs[HOST]) / (base_ms[b] * 1e3) / 3;
            share += sim_mean_share(&sim->jobs[GUEST]) / 3;
            sim_destroy(sim);
        }
        print_message("mini-batch %3.0f ms: slowdown %.2f %%, guest %.2f\n",
                      base_ms[b], 100.0 * (slowdown - 1.0), share);
        assert_true(slowdown < 1.05);
        assert_true(share > 0.03); /* a tenth would cost 3 % */
    }
}

static void a_share_of_a_pulse_opens_again(void **state)
{
    sim_t *sim = pulse_pair(3, 10.0, 0.3);

    (void)state;
    sim->spoil = 0.5;
    sim_run(sim, 40.0);
    assert_true(sim->jobs[GUEST].share < 0.3);
    sim->spoil = 0.01;
    sim_run(sim, 70.0); /* a probe for the baseline is in it */
    sim_reset_sums(sim);
    sim_run(sim, 30.0);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) > 0.9 * 0.7);
    sim_destroy(sim);
}

static void the_baseline_of_a_pulse_follows_the_job(void **state)
{
    sim_t *sim = pulse_pair(5, 10.0, 0.5);

    (void)state;
    sim_run(sim, 30.0);
    sim->jobs[HOST].base_us *= 1.4;
    sim_run(sim, 70.0);
    sim_reset_sums(sim);
    sim_run(sim, 30.0);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) > 0.9 * 0.5);
    assert_true(fabs(sim_decision(sim, HOST)->baseline_us / 14000.0 - 1.0) <
                0.05);
    sim->jobs[HOST].base_us = 8000.0;
    sim_run(sim, 70.0);
    assert_true(fabs(sim_decision(sim, HOST)->baseline_us / 8000.0 - 1.0) <
                0.05);
    sim_destroy(sim);
}

static void outliers_cut_no_guest_of_a_pulse(void **state)
{
    sim_t *sim = pulse_pair(7, 10.0, 0.5);

    (void)state;
    sim->outliers = 0.1;
    sim_run(sim, 40.0);
    sim_reset_sums(sim);
    sim_run(sim, 60.0);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) >= 0.9 * 0.5);
    sim_destroy(sim);
}

static void a_new_coordinator_takes_over_with_a_pulse(void **state)
{
    sl_coord_params_t params;
    sim_t *sim = pulse_pair(15, 10.0, 0.2);
    double before;

    (void)state;
    sim->noise = 0.0;
    sim->outliers = 0.0;
    sim_run(sim, 2.0);
    before = sim->jobs[GUEST].share;
    assert_true(before > 0.5 && before < 1.0); /* 1: as if nobody had said */
    sl_coord_params_default(&params);
    sl_coord_destroy(sim->coord);
    sl_assert_ok(sl_coord_create(&params, &sim->coord));
    sim_run(sim, 1.0);
    assert_true(sim->jobs[GUEST].share >= before);
    assert_int_equal(sim_decision(sim, GUEST)->n_yields, 1);
    assert_true(fabs(sim_decision(sim, HOST)->baseline_us / 10000.0 - 1.0) <
                0.03);
    sim_destroy(sim);
}

static void guests_of_a_pulse_divide_the_idle_part(void **state)
{
    sim_t *sim = pulse_pair(23, 10.0, 0.4);
    double first, second;

    (void)state;
    (void)sim_add(sim, SECOND, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    sim_run(sim, 40.0);
    sim_reset_sums(sim);
    sim_run(sim, 60.0);
    first = sim_mean_share(&sim->jobs[GUEST]);
    second = sim_mean_share(&sim->jobs[SECOND]);
    print_message("equal guests: %.3f %.3f\n", first, second);
    assert_int_equal(sim_decision(sim, GUEST)->n_yields, 1);
    assert_int_equal(sim_decision(sim, SECOND)->n_yields, 1);
    assert_true(fabs(first - second) < 0.05);
    assert_true(first + second > 0.9 * 0.6);
    assert_true(sim_mean_us(&sim->jobs[HOST]) / sim_alone_us(23, 10.0, 60.0) <
                1.03);
    sim_destroy(sim);
}

static void a_guest_of_two_pulses_heeds_both(void **state)
{
    sim_t *sim = pulse_pair(25, 10.0, 0.2);

    (void)state;
    sim_add(sim, SECOND, SL_JOB_CLASS_GUARANTEE, 30.0, 0.8)->view.has_pulse = 1;
    sim_run(sim, 60.0);
    sim_reset_sums(sim);
    sim_run(sim, 60.0);
    assert_int_equal(sim_decision(sim, GUEST)->n_yields, 2);
    assert_true(sim_mean_us(&sim->jobs[SECOND]) / sim_alone_us(25, 30.0, 60.0) <
                1.03);
    assert_true(sim_mean_us(&sim->jobs[HOST]) / sim_alone_us(25, 10.0, 60.0) <
                1.03);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) > 0.9 * 0.2);
    sim_destroy(sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_load_step_with_a_pulse_costs_nothing),
        sl_unit_test(what_a_pulse_does_not_see_is_cut),
        sl_unit_test(a_share_of_a_pulse_opens_again),
        sl_unit_test(the_baseline_of_a_pulse_follows_the_job),
        sl_unit_test(outliers_cut_no_guest_of_a_pulse),
        sl_unit_test(a_new_coordinator_takes_over_with_a_pulse),
        sl_unit_test(guests_of_a_pulse_divide_the_idle_part),
        sl_unit_test(a_guest_of_two_pulses_heeds_both),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
