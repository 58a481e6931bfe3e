/* SPDX-License-Identifier: Apache-2.0 */
/* The policies on a simulated machine, in virtual time. */
#include "tests/scheduler/coordinator_sim.h"

static sl_coord_params_t defaults(void)
{
    sl_coord_params_t params;

    sl_coord_params_default(&params);
    return params;
}

/* Anchors: mean slowdown at most 3 %, the guest has 0.7 of the idle part,
 * whatever the length of a mini-batch and the load. */
static void guarantee_first_keeps_the_slowdown_and_feeds_the_guest(void **state)
{
    static const double base_ms[] = {2.0, 10.0, 100.0};
    static const double demands[] = {0.3, 0.6, 0.9};
    const sl_coord_params_t params = defaults();
    uint64_t seed;
    size_t b, d;

    (void)state;
    for (b = 0; b < 3; b++) {
        for (d = 0; d < 3; d++) {
            double slowdown = 0.0, share = 0.0;

            for (seed = 1; seed <= 4; seed++) {
                sim_t *sim = sim_pair(&params, seed, base_ms[b], demands[d]);

                sim_run(sim, 40.0 + 2.0 * base_ms[b]); /* find the level */
                sim_reset_sums(sim);
                sim_run(sim, 120.0);
                slowdown += sim_mean_us(&sim->jobs[HOST]) /
                            sim_alone_us(seed, base_ms[b], 120.0) / 4.0;
                share += sim_mean_share(&sim->jobs[GUEST]) / 4.0;
                sim_destroy(sim);
            }
            print_message("mini-batch %5.0f ms, load %.1f: slowdown %.2f %%, "
                          "guest %.2f of idle\n",
                          base_ms[b], demands[d], 100.0 * (slowdown - 1.0),
                          share / (1.0 - demands[d]));
            assert_true(slowdown < 1.03);
            assert_true(share >= 0.7 * (1.0 - demands[d]));
        }
    }
}

/* Its guests know when a host is idle: the share is not what keeps them off,
 * and soon gives them all of that. */
static void a_guest_of_a_pulse_has_the_idle_part_soon(void **state)
{
    static const double demands[] = {0.3, 0.64, 0.9};
    const sl_coord_params_t params = defaults();
    uint64_t seed;
    size_t d;

    (void)state;
    for (d = 0; d < 3; d++) {
        double slowdown = 0.0, share = 0.0;

        for (seed = 1; seed <= 4; seed++) {
            sim_t *sim = sim_pair(&params, seed, 34.0, demands[d]);

            sim->jobs[HOST].view.has_pulse = 1;
            sim_run(sim, 10.0);
            sim_reset_sums(sim);
            sim_run(sim, 120.0);
            assert_int_equal(sim_decision(sim, GUEST)->n_yields, 1);
            assert_int_equal(sim_decision(sim, HOST)->n_yields, 0);
            slowdown += sim_mean_us(&sim->jobs[HOST]) /
                        sim_alone_us(seed, 34.0, 120.0) / 4.0;
            share += sim_mean_share(&sim->jobs[GUEST]) / 4.0;
            sim_destroy(sim);
        }
        print_message("load %.2f: slowdown %.2f %%, guest %.2f of idle\n",
                      demands[d], 100.0 * (slowdown - 1.0),
                      share / (1.0 - demands[d]));
        assert_true(slowdown < 1.03);
        assert_true(share >= 0.9 * (1.0 - demands[d]));
    }
}

/* What the machine does to a guarantee job now and then, guests or not. */
static void a_burst_of_slow_mini_batches_cuts_no_guest_of_a_pulse(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 1, 34.0, 0.66);

    (void)state;
    sim->jobs[HOST].view.has_pulse = 1;
    sim->burst_every = 45;
    sim_run(sim, 10.0);
    sim_reset_sums(sim);
    sim_run(sim, 120.0);
    print_message("guest %.2f of idle, %.2f at least\n",
                  sim_mean_share(&sim->jobs[GUEST]) / 0.34,
                  sim->jobs[GUEST].least_share);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) >= 0.9 * 0.34);
    sim_destroy(sim);
}

/* The devices that share cores, or may. */
static void a_guest_yields_where_cores_are_shared(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 1, 10.0, 0.5);
    sim_job_t *host = &sim->jobs[HOST], *guest = &sim->jobs[GUEST];
    const sl_coord_decision_t *decision;
    int d;

    (void)state;
    host->view.n_devices = guest->view.n_devices = 2;
    host->view.devices[1] = host->view.devices[0];
    guest->view.devices[1] = guest->view.devices[0];
    for (d = 0; d < 2; d++) {
        (void)snprintf(host->view.devices[d].name, 32, "cpu:%d", d);
        (void)snprintf(guest->view.devices[d].name, 32, "cpu:%d", d);
        (void)snprintf(host->view.devices[d].core_list, 32, "%d", d);
        (void)snprintf(guest->view.devices[d].core_list, 32, "%d", 1 - d);
    }
    sim_step(sim);
    assert_int_equal(sim_decision(sim, GUEST)->n_yields, 0); /* no pulse */
    host->view.has_pulse = 1;
    sim_step(sim);
    decision = sim_decision(sim, GUEST);
    assert_int_equal(decision->n_yields, 2);
    assert_int_equal(decision->yields[0].device, 0);
    assert_int_equal(decision->yields[0].host, sim->index[HOST]);
    assert_int_equal(decision->yields[0].host_device, 1);
    assert_int_equal(decision->yields[1].device, 1);
    assert_int_equal(decision->yields[1].host_device, 0);
    guest->view.devices[0].core_list[0] = '\0'; /* anywhere */
    sim_step(sim);
    assert_int_equal(sim_decision(sim, GUEST)->n_yields, 3);
    (void)snprintf(guest->view.devices[1].name, 8, "cuda:1");
    sim_step(sim);
    assert_int_equal(sim_decision(sim, GUEST)->n_yields, 2);
    /* GPUs by their serial numbers, whatever each job calls them */
    for (d = 0; d < 2; d++) {
        (void)snprintf(host->view.devices[d].name, 32, "cuda:%d", d);
        (void)snprintf(guest->view.devices[d].name, 32, "cuda:%d", d);
    }
    sim_step(sim);
    assert_int_equal(sim_decision(sim, GUEST)->n_yields, 2);
    for (d = 0; d < 2; d++) {
        (void)snprintf(host->view.devices[d].gpu_id, 32, "GPU-0"); /* parts */
        (void)snprintf(guest->view.devices[d].gpu_id, 32, "GPU-%d", d);
    }
    sim_step(sim);
    decision = sim_decision(sim, GUEST);
    assert_int_equal(decision->n_yields, 2);
    assert_int_equal(decision->yields[0].device, 0);
    assert_int_equal(decision->yields[1].device, 0);
    host->view.is_held = 1; /* suspended by hand: it needs nothing */
    sim_step(sim);
    assert_int_equal(sim_decision(sim, GUEST)->n_yields, 0);
    sim_destroy(sim);
}

/* The unguarded row, so that the numbers above mean something. */
static void without_control_the_guest_hurts(void **state)
{
    sim_t *sim = sim_create(NULL, 1);

    (void)state;
    (void)sim_add(sim, HOST, SL_JOB_CLASS_GUARANTEE, 10.0, 0.6);
    (void)sim_add(sim, GUEST, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    sim_run(sim, 30.0);
    assert_true(sim_mean_us(&sim->jobs[HOST]) / sim_alone_us(1, 10.0, 30.0) >
                2.0);
    sim_destroy(sim);
}

/* The load steps up: the guest yields within max(1 s, 10 mini-batches). */
static void a_load_step_is_answered_in_time(void **state)
{
    static const double base_ms[] = {5.0, 50.0, 300.0};
    const sl_coord_params_t params = defaults();
    uint64_t seed;
    size_t b;

    (void)state;
    for (b = 0; b < 3; b++) {
        for (seed = 1; seed <= 5; seed++) {
            sim_t *sim = sim_pair(&params, seed, base_ms[b], 0.3);
            double before, limit_s = 10.0 * base_ms[b] * 1e-3;

            sim_run(sim, 30.0 + 0.5 * base_ms[b]); /* to open */
            before = sim->jobs[GUEST].share;
            assert_true(before > 0.2);
            /* 0.3 busy becomes 0.95 busy, in the same time alone */
            sim->jobs[HOST].demand = 0.95;
            /* its mini-batches are stretched by the guest meanwhile */
            limit_s = fmax(1.0, limit_s * 0.95 / (1.0 - before)) + 0.2;
            sim_run(sim, limit_s);
            assert_true(sim->jobs[GUEST].share <= 0.5 * before);
            sim_destroy(sim);
        }
    }
}

/* A law that never opens again would fail here (bisection does). */
static void the_share_opens_again_when_the_load_falls(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 3, 10.0, 0.9);

    (void)state;
    sim_run(sim, 40.0);
    assert_true(sim->jobs[GUEST].share < 0.2);
    sim->jobs[HOST].demand = 0.3;
    sim_run(sim, 20.0);
    sim_reset_sums(sim);
    sim_run(sim, 30.0);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) > 0.45);
    sim_destroy(sim);
}

/* The job itself gets slower (longer sequences): its old baseline must not
 * hold the guest down for ever. And faster, which would hide violations. */
static void the_baseline_follows_the_job(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 5, 10.0, 0.5);

    (void)state;
    sim_run(sim, 30.0);
    sim->jobs[HOST].base_us *= 1.4;
    sim_run(sim, 20.0);
    sim_reset_sums(sim);
    sim_run(sim, 30.0);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) > 0.3);
    assert_true(fabs(sim_decision(sim, HOST)->baseline_us / 14000.0 - 1.0) <
                0.05);
    sim->jobs[HOST].base_us = 8000.0;
    sim_run(sim, 20.0);
    assert_true(fabs(sim_decision(sim, HOST)->baseline_us / 8000.0 - 1.0) <
                0.05);
    sim_destroy(sim);
}

/* One in ten three times as long: a mean would keep the guest at the floor. */
static void outliers_do_not_starve_the_guest(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 7, 10.0, 0.5);

    (void)state;
    sim->outliers = 0.1;
    sim_run(sim, 40.0);
    sim_reset_sums(sim);
    sim_run(sim, 60.0);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) > 0.7 * 0.5);
    sim_destroy(sim);
}

static void a_guest_never_falls_below_the_floor(void **state)
{
    sl_coord_params_t params = defaults();
    sim_t *sim;

    (void)state;
    params.floor_percent = 2.0;
    sim = sim_pair(&params, 9, 10.0, 0.999); /* no idle part at all */
    sim_run(sim, 2.0);
    sim_reset_sums(sim);
    sim_run(sim, 60.0);
    assert_true(sim->jobs[GUEST].least_share >= 0.02 - 1e-9);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) < 0.08);
    sim_destroy(sim);
}

/* Probes: now and then the guest is at the floor, for a small part of the
 * time. */
static void the_baseline_is_measured_again(void **state)
{
    sl_coord_params_t params = defaults();
    sim_t *sim;
    int i, n_floor = 0;

    (void)state;
    params.probe_ns = 10 * SIM_S;
    sim = sim_pair(&params, 11, 10.0, 0.1); /* much room: no cuts */
    sim->noise = 0.0;
    sim->outliers = 0.0;
    sim_run(sim, 30.0);
    for (i = 0; i < 300; i++) {
        sim_run(sim, 0.2);
        n_floor += sim->jobs[GUEST].share <= 0.0101;
    }
    assert_true(n_floor >= 4); /* 60 s, every 10 s */
    assert_true(n_floor <= 25);
    sim_destroy(sim);
}

static void a_new_guarantee_job_finds_its_guests_at_the_floor(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_create(&params, 13);

    (void)state;
    (void)sim_add(sim, GUEST, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    sim_run(sim, 2.0);
    assert_true(sim->jobs[GUEST].share == 1.0); /* nobody else is there */
    (void)sim_add(sim, HOST, SL_JOB_CLASS_GUARANTEE, 10.0, 0.5);
    sim_run(sim, 0.2);
    assert_true(sim->jobs[GUEST].share <= 0.0101);
    sim_run(sim, 30.0);
    assert_true(sim->jobs[GUEST].share > 0.1);
    sim->jobs[HOST].is_here = 0; /* it ends */
    sim_run(sim, 0.3);
    assert_true(sim->jobs[GUEST].share == 1.0);
    sim_destroy(sim);
}

/* A coordinator that died and came again finds the shares it had set: a probe
 * for the baseline, and on from there. */
static void a_new_coordinator_takes_over(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 15, 10.0, 0.2);
    double before;

    (void)state;
    sim->noise = 0.0;
    sim->outliers = 0.0;
    sim_run(sim, 5.0);
    before = sim->jobs[GUEST].share;
    assert_true(before > 0.2 && before < 0.6);
    sl_coord_destroy(sim->coord);
    sl_assert_ok(sl_coord_create(&params, &sim->coord));
    sim_run(sim, 1.0);
    assert_true(sim->jobs[GUEST].share >= before);
    assert_true(fabs(sim_decision(sim, HOST)->baseline_us / 10000.0 - 1.0) <
                0.03);
    sim_destroy(sim);
}

/* A mini-batch that never ends shows in no median. */
static void a_stalled_guarantee_job_is_freed_of_its_guests(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 17, 10.0, 0.3);
    double base_us = sim->jobs[HOST].base_us;

    (void)state;
    sim_run(sim, 30.0);
    assert_true(sim->jobs[GUEST].share > 0.1);
    sim->jobs[HOST].base_us = 1e12;
    sim_run(sim, 3.0);
    assert_true(sim->jobs[GUEST].share <= 0.0101);
    sim_run(sim, 60.0); /* the guest was not the reason */
    assert_true(sim->jobs[GUEST].share > 0.1);
    sim->jobs[HOST].base_us = base_us;
    sim->jobs[HOST].done = 0.999999;
    sim_run(sim, 5.0);
    assert_true(sim->jobs[GUEST].share <= 0.75);
    sim_destroy(sim);
}

static void what_is_set_by_hand_stays(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 19, 10.0, 0.9);
    sl_coord_device_t *device = &sim->jobs[GUEST].view.devices[0];
    int i;

    (void)state;
    device->manual_percent = 33.0;
    device->manual_bytes = 77 * SIM_MIB;
    for (i = 0; i < 100; i++) {
        sim_run(sim, 0.2);
        assert_true(sim->jobs[GUEST].share == 0.33);
        assert_int_equal(device->limit_bytes, 77 * SIM_MIB);
    }
    device->manual_percent = 0.0; /* suspended by hand: not the floor */
    sim_run(sim, 1.0);
    assert_true(sim->jobs[GUEST].share == 0.0);
    device->manual_percent = -1.0;
    sim_run(sim, 1.0);
    assert_true(sim->jobs[GUEST].share >= 0.0099);
    sim_destroy(sim);
}

/* The guest has all of the device meanwhile, and what it had before when the
 * guarantee job goes on: no burst of all of it. */
static void a_guarantee_job_that_was_suspended_finds_its_peace(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 20, 10.0, 0.7);
    double before;
    int i;

    (void)state;
    sim_run(sim, 20.0);
    before = sim->jobs[GUEST].share;
    sim->jobs[HOST].view.is_held = 1;
    sim->jobs[HOST].view.state = SL_JOB_STATE_SUSPENDED;
    sim_run(sim, 10.0);
    assert_true(sim->jobs[GUEST].share == 1.0);
    sim->jobs[HOST].view.is_held = 0;
    sim->jobs[HOST].view.state = SL_JOB_STATE_RUNNING;
    sim->jobs[HOST].start_ns = sim->now_ns;
    for (i = 0; i < 10; i++) {
        sim_run(sim, 0.2);
        assert_true(sim->jobs[GUEST].share <= before + 0.1);
    }
    sim_destroy(sim);
}

/* Jobs without a class are nobody's guests and nobody's hosts. */
static void jobs_without_a_class_are_left_alone(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_create(&params, 21);

    (void)state;
    (void)sim_add(sim, 0, SL_JOB_CLASS_NONE, 10.0, 1.0);
    (void)sim_add(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    sim_run(sim, 3.0);
    assert_true(sim->jobs[0].share == 1.0);
    assert_true(sim->jobs[1].share == 1.0);
    sim_destroy(sim);
}

static void a_suspended_guest_gives_its_share_to_the_others(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_create(&params, 22);

    (void)state;
    (void)sim_add(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    (void)sim_add(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    sim_run(sim, 1.0);
    assert_true(sim->jobs[0].share == 0.5 && sim->jobs[1].share == 0.5);
    sim->jobs[1].view.is_held = 1;
    sim_run(sim, 0.4);
    assert_true(sim->jobs[0].share == 1.0);
    sim_destroy(sim);
}

/* Two equal guests are equal; one that makes little of its share gets less,
 * one that cannot use its share is not given more. */
static void spare_share_goes_to_the_guest_that_gains_most(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 23, 10.0, 0.4);
    double first, second;

    (void)state;
    (void)sim_add(sim, SECOND, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    sim_run(sim, 40.0);
    sim_reset_sums(sim);
    sim_run(sim, 60.0);
    first = sim_mean_share(&sim->jobs[GUEST]);
    second = sim_mean_share(&sim->jobs[SECOND]);
    print_message("equal guests: %.3f %.3f\n", first, second);
    assert_true(fabs(first - second) < 0.05);
    assert_true(first + second > 0.7 * 0.6);

    sim->jobs[SECOND].demand = 0.04; /* it waits for its data */
    sim_run(sim, 40.0);
    sim_reset_sums(sim);
    sim_run(sim, 60.0);
    first = sim_mean_share(&sim->jobs[GUEST]);
    second = sim_mean_share(&sim->jobs[SECOND]);
    print_message("one cannot use it: %.3f %.3f\n", first, second);
    assert_true(first > 3.0 * second);

    sim->jobs[SECOND].demand = 1.0;
    sim->jobs[GUEST].base_us *= 4.0; /* it works from the host now */
    sim_run(sim, 40.0);
    sim_reset_sums(sim);
    sim_run(sim, 30.0);
    first = sim_mean_share(&sim->jobs[GUEST]);
    second = sim_mean_share(&sim->jobs[SECOND]);
    print_message("one spills: %.3f %.3f\n", first, second);
    assert_true(second > first);
    sim_destroy(sim);
}

static void a_guest_of_two_guarantee_jobs_heeds_both(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *sim = sim_pair(&params, 25, 10.0, 0.2);
    double slowdown;

    (void)state;
    (void)sim_add(sim, SECOND, SL_JOB_CLASS_GUARANTEE, 30.0, 0.8);
    sim_run(sim, 60.0);
    sim_reset_sums(sim);
    sim_run(sim, 60.0);
    slowdown =
        sim_mean_us(&sim->jobs[SECOND]) / sim_alone_us(25, 30.0, 60.0) - 1.0;
    assert_true(slowdown < 0.03);
    assert_true(sim->jobs[HOST].share == 1.0);
    assert_true(sim->jobs[SECOND].share == 1.0);
    assert_true(sim_mean_share(&sim->jobs[GUEST]) < 0.3);
    sim_destroy(sim);
}

static void fair_divides_equally_and_passes_on(void **state)
{
    sl_coord_params_t params = defaults();
    sim_t *sim;

    (void)state;
    params.policy = "fair";
    sim = sim_create(&params, 27);
    (void)sim_add(sim, 0, SL_JOB_CLASS_GUARANTEE, 10.0, 1.0);
    (void)sim_add(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    (void)sim_add(sim, 2, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    sim_run(sim, 2.0);
    assert_true(fabs(sim->jobs[1].share - 1.0 / 3.0) < 1e-9);
    assert_true(fabs(sim->jobs[2].share - 1.0 / 3.0) < 1e-9);
    sim->jobs[2].demand = 0.1;
    sim_run(sim, 3.0);
    assert_true(sim->jobs[1].share > 0.42);
    sim->jobs[2].demand = 1.0; /* it wants its part again */
    sim_run(sim, 3.0);
    assert_true(fabs(sim->jobs[2].share - 1.0 / 3.0) < 0.01);
    sim_destroy(sim);
}

static void static_divides_by_class(void **state)
{
    sl_coord_params_t params = defaults();
    sim_t *sim;

    (void)state;
    params.policy = "static";
    params.static_percent = 30.0;
    sim = sim_create(&params, 29);
    (void)sim_add(sim, 0, SL_JOB_CLASS_GUARANTEE, 10.0, 1.0);
    sim_run(sim, 1.0);
    assert_true(sim->jobs[0].share == 1.0);
    (void)sim_add(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    (void)sim_add(sim, 2, SL_JOB_CLASS_OPPORTUNISTIC, 10.0, 1.0);
    sim_run(sim, 1.0);
    assert_true(fabs(sim->jobs[0].share - 0.7) < 1e-9);
    assert_true(fabs(sim->jobs[1].share - 0.15) < 1e-9);
    assert_true(fabs(sim->jobs[2].share - 0.15) < 1e-9);
    sim_destroy(sim);
}

/* Same sights, same decisions: no clock and no chance inside. */
static void decisions_depend_on_the_snapshots_alone(void **state)
{
    const sl_coord_params_t params = defaults();
    sim_t *a = sim_pair(&params, 31, 10.0, 0.6);
    sim_t *b = sim_pair(&params, 31, 10.0, 0.6);
    int i;

    (void)state;
    for (i = 0; i < 100; i++) {
        sim_run(a, 0.2);
        sim_run(b, 0.2);
        assert_memory_equal(&a->decisions, &b->decisions, sizeof(a->decisions));
    }
    sim_destroy(a);
    sim_destroy(b);
}

static void policies_are_complete_and_found_by_name(void **state)
{
    sl_coord_params_t params = defaults();
    const sl_coord_policy_t *policy;
    sl_coord_t *coord = NULL;
    size_t i, j;

    (void)state;
    for (i = 0; (policy = sl_coord_policy_at(i)) != NULL; i++) {
        assert_int_equal(policy->size, sizeof(*policy));
        assert_non_null(policy->set_shares);
        assert_true(strlen(policy->brief) > 10);
        for (j = 0; j < i; j++) {
            assert_string_not_equal(policy->name, sl_coord_policy_at(j)->name);
        }
        params.policy = policy->name;
        sl_assert_ok(sl_coord_create(&params, &coord));
        sl_coord_destroy(coord);
        coord = NULL;
    }
    assert_true(i >= 3);
    params.policy = "best";
    sl_assert_status(sl_coord_create(&params, &coord), SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), "guarantee-first, fair, static");
    assert_null(coord);
}

static void bad_parameters_are_refused(void **state)
{
    static const double bad[] = {-1.0, 0.0, 51.0, 1e300, NAN};
    sl_coord_params_t params;
    sl_coord_t *coord = NULL;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        params = defaults();
        params.floor_percent = bad[i];
        sl_assert_status(sl_coord_create(&params, &coord), SL_ERR_INVALID_ARG);
        params = defaults();
        params.threshold = bad[i];
        sl_assert_status(sl_coord_create(&params, &coord), SL_ERR_INVALID_ARG);
    }
    params = defaults();
    params.period_mini_batches = 0;
    sl_assert_status(sl_coord_create(&params, &coord), SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), "3 to 64");
    assert_null(coord);
    sl_coord_destroy(NULL);
}

/* Whatever jobs say, shares stay within the range and nothing crashes: times
 * of 0, boundaries in the future, steps that go back, classes that change. */
static void any_snapshot_gives_sane_shares(void **state)
{
    sl_coord_params_t params = defaults();
    sim_t *sim;
    size_t p;
    int round, i, k;

    (void)state;
    for (p = 0; sl_coord_policy_at(p) != NULL; p++) {
        params.policy = sl_coord_policy_at(p)->name;
        sim = sim_create(&params, 33 + p);
        for (round = 0; round < 20000; round++) {
            sim->now_ns += (uint64_t)(sim_random(sim) * 1e9);
            for (i = 0; i < SIM_MAX_JOBS; i++) {
                sim_job_t *job = &sim->jobs[i];
                const double dice = sim_random(sim);

                if (!job->is_here) {
                    if (dice < 0.1) {
                        (void)sim_add(sim, i, (sl_job_class_t)(dice * 30.0),
                                      1.0, 1.0);
                    }
                    continue;
                }
                job->is_here = dice > 0.02;
                job->view.job_class =
                    dice > 0.95 ? (sl_job_class_t)(sim_random(sim) * 3.0)
                                : job->view.job_class;
                job->view.state = (sl_job_state_t)(sim_random(sim) * 4.0);
                job->view.is_held = sim_random(sim) < 0.05;
                job->view.step = (uint64_t)(sim_random(sim) * 1e4);
                job->view.boundary_ns = sim->now_ns -
                                        (uint64_t)(sim_random(sim) * 2e9) +
                                        1000000000;
                job->view.n_recent =
                    (int)(sim_random(sim) * (SL_CONTROL_RECENT + 0.5));
                for (k = 0; k < job->view.n_recent; k++) {
                    job->view.recent_us[k] =
                        sim_random(sim) < 0.1 ? 0.0 : sim_random(sim) * 1e5;
                }
                job->view.devices[0].achieved_percent =
                    sim_random(sim) * 110.0 - 5.0;
                job->view.devices[0].held_bytes =
                    (uint64_t)(sim_random(sim) * 2e9);
                job->view.devices[0].spilled_bytes =
                    (uint64_t)(sim_random(sim) * 2e9);
            }
            sim_step(sim);
            for (i = 0; i < SIM_MAX_JOBS; i++) {
                if (sim->index[i] >= 0) {
                    const sl_coord_gate_t *gate = sim_decision(sim, i)->gates;

                    assert_true(gate->share_percent >= 1.0 &&
                                gate->share_percent <= 100.0);
                    assert_true(gate->limit_bytes <= 1024 * SIM_MIB);
                }
            }
        }
        sim_destroy(sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(guarantee_first_keeps_the_slowdown_and_feeds_the_guest),
        sl_unit_test(a_guest_of_a_pulse_has_the_idle_part_soon),
        sl_unit_test(a_burst_of_slow_mini_batches_cuts_no_guest_of_a_pulse),
        sl_unit_test(a_guest_yields_where_cores_are_shared),
        sl_unit_test(without_control_the_guest_hurts),
        sl_unit_test(a_load_step_is_answered_in_time),
        sl_unit_test(the_share_opens_again_when_the_load_falls),
        sl_unit_test(the_baseline_follows_the_job),
        sl_unit_test(outliers_do_not_starve_the_guest),
        sl_unit_test(a_guest_never_falls_below_the_floor),
        sl_unit_test(the_baseline_is_measured_again),
        sl_unit_test(a_new_guarantee_job_finds_its_guests_at_the_floor),
        sl_unit_test(a_new_coordinator_takes_over),
        sl_unit_test(a_stalled_guarantee_job_is_freed_of_its_guests),
        sl_unit_test(what_is_set_by_hand_stays),
        sl_unit_test(a_guarantee_job_that_was_suspended_finds_its_peace),
        sl_unit_test(jobs_without_a_class_are_left_alone),
        sl_unit_test(a_suspended_guest_gives_its_share_to_the_others),
        sl_unit_test(spare_share_goes_to_the_guest_that_gains_most),
        sl_unit_test(a_guest_of_two_guarantee_jobs_heeds_both),
        sl_unit_test(fair_divides_equally_and_passes_on),
        sl_unit_test(static_divides_by_class),
        sl_unit_test(decisions_depend_on_the_snapshots_alone),
        sl_unit_test(policies_are_complete_and_found_by_name),
        sl_unit_test(bad_parameters_are_refused),
        sl_unit_test(any_snapshot_gives_sane_shares),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
