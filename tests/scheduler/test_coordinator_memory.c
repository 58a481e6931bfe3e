/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits and admission, on the simulated machine. */
#include "tests/scheduler/coordinator_sim.h"

/* A job that runs and uses so much. Capacity of the device: 1024 MiB. */
static sim_job_t *add(sim_t *sim, int i, sl_job_class_t job_class,
                      uint64_t use_mib)
{
    sim_job_t *job = sim_add(sim, i, job_class, 10.0, 0.3);

    job->use_bytes = (double)(use_mib * SIM_MIB);
    sim_memory(job);
    return job;
}

/* One that asks for admission. */
static sim_job_t *add_waiting(sim_t *sim, int i, sl_job_class_t job_class,
                              uint64_t wanted_mib)
{
    sim_job_t *job = add(sim, i, job_class, 0);

    job->view.state = SL_JOB_STATE_WAITING;
    job->view.devices[0].wanted_bytes = wanted_mib * SIM_MIB;
    job->use_bytes = (double)(wanted_mib * SIM_MIB);
    return job;
}

static sim_t *machine(void)
{
    sl_coord_params_t params;

    sl_coord_params_default(&params);
    return sim_create(&params, 1);
}

static uint64_t limit_mib(const sim_t *sim, int i)
{
    return sim->jobs[i].view.devices[0].limit_bytes / SIM_MIB;
}

static uint64_t held_mib(const sim_t *sim, int i)
{
    return sim->jobs[i].view.devices[0].held_bytes / SIM_MIB;
}

static uint64_t spilled_mib(const sim_t *sim, int i)
{
    return sim->jobs[i].view.devices[0].spilled_bytes / SIM_MIB;
}

static void a_job_alone_has_the_whole_device(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 100);
    sim_run(sim, 1.0);
    assert_int_equal(limit_mib(sim, 0), 1024);
    sim_destroy(sim);
}

/* When both needs fit, each has its own and half of the rest. */
static void two_jobs_that_fit_divide_what_is_over(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add(sim, 0, SL_JOB_CLASS_GUARANTEE, 400);
    (void)add(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 200);
    sim_run(sim, 2.0);
    assert_true(limit_mib(sim, 0) + limit_mib(sim, 1) <= 1024);
    assert_true(limit_mib(sim, 0) >= 500 && limit_mib(sim, 1) >= 300);
    assert_int_equal(spilled_mib(sim, 0) + spilled_mib(sim, 1), 0);
    sim_destroy(sim);
}

/* The guarantee job's burst spills at first, then the guest shrinks and its
 * limit grows; when the burst is over the guest gets its memory back. */
static void a_burst_spills_then_grows_then_goes_back(void **state)
{
    sim_t *sim = machine();
    sim_job_t *host = add(sim, 0, SL_JOB_CLASS_GUARANTEE, 200);
    sim_job_t *guest = add(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 600);

    (void)state;
    sim_run(sim, 2.0);
    assert_int_equal(spilled_mib(sim, 0) + spilled_mib(sim, 1), 0);
    host->use_bytes = 800.0 * (double)SIM_MIB;
    sim_run(sim, 0.02);
    assert_true(spilled_mib(sim, 0) > 0);
    sim_run(sim, 5.0);
    assert_int_equal(spilled_mib(sim, 0), 0);
    assert_true(spilled_mib(sim, 1) > 0);
    assert_true(held_mib(sim, 1) >= 64);
    host->use_bytes = 200.0 * (double)SIM_MIB;
    sim_run(sim, 8.0);
    assert_int_equal(spilled_mib(sim, 1), 0);
    assert_true(limit_mib(sim, 1) >= 600);
    assert_true(guest->view.step > 0);
    sim_destroy(sim);
}

/* The device is never promised twice: what all hold stays within it while
 * limits move, once it was. */
static void memory_is_never_promised_twice(void **state)
{
    sim_t *sim = machine();
    int round, i;

    (void)state;
    for (i = 0; i < 4; i++) {
        (void)add(sim, i,
                  i < 2 ? SL_JOB_CLASS_GUARANTEE : SL_JOB_CLASS_OPPORTUNISTIC,
                  100);
    }
    sim_run(sim, 3.0);
    for (round = 0; round < 400; round++) {
        uint64_t held = 0;

        i = (int)(sim_random(sim) * 4.0);
        sim->jobs[i].use_bytes = sim_random(sim) * 900.0 * (double)SIM_MIB;
        sim_run(sim, 0.1);
        for (i = 0; i < 4; i++) {
            held += held_mib(sim, i);
            assert_true(limit_mib(sim, i) >= 1);
        }
        assert_true(held <= 1024);
    }
    sim_destroy(sim);
}

static void guests_keep_their_floor(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add(sim, 0, SL_JOB_CLASS_GUARANTEE, 2000); /* more than there is */
    (void)add(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 300);
    (void)add(sim, 2, SL_JOB_CLASS_OPPORTUNISTIC, 300);
    sim_run(sim, 3.0);
    assert_int_equal(limit_mib(sim, 1), 64);
    assert_int_equal(limit_mib(sim, 2), 64);
    assert_int_equal(limit_mib(sim, 0), 1024 - 128);
    sim_destroy(sim);
}

/* ---- admission ---- */

static void a_job_that_fits_starts(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add_waiting(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 700);
    sim_run(sim, 0.2);
    assert_int_equal(sim->jobs[0].view.state, SL_JOB_STATE_RUNNING);
    sim_destroy(sim);
}

static void a_guest_that_does_not_fit_waits_and_starts_by_itself(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 600);
    (void)add_waiting(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 700);
    sim_run(sim, 3.0);
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_WAITING);
    sl_assert_contains(sim_decision(sim, 1)->reason,
                       "waits for 700.00 MiB on cpu:0: 424.00 MiB of 1.00 GiB "
                       "are free");
    sim->jobs[0].is_here = 0; /* the other ends */
    sim_run(sim, 0.4);
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_RUNNING);
    assert_string_equal(sim_decision(sim, 1)->reason, "");
    sim_destroy(sim);
}

/* Guests make room for a guarantee job, which starts when they have. */
static void a_guarantee_job_waits_until_guests_have_shrunk(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 900);
    sim_run(sim, 1.0);
    (void)add_waiting(sim, 1, SL_JOB_CLASS_GUARANTEE, 700);
    sim_step(sim);
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_WAITING);
    sl_assert_contains(sim_decision(sim, 1)->reason, "waits for 700.00 MiB");
    assert_true(limit_mib(sim, 0) <= 1024 - 700);
    sim_run(sim, 1.0);
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_RUNNING);
    assert_true(held_mib(sim, 0) + held_mib(sim, 1) <= 1024);
    sim_run(sim, 2.0);
    assert_int_equal(spilled_mib(sim, 1), 0);
    sim_destroy(sim);
}

/* A guarantee job is no reason to spill another one. */
static void guarantee_jobs_do_not_push_each_other_out(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add(sim, 0, SL_JOB_CLASS_GUARANTEE, 600);
    (void)add_waiting(sim, 1, SL_JOB_CLASS_GUARANTEE, 700);
    sim_run(sim, 5.0);
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_WAITING);
    assert_int_equal(spilled_mib(sim, 0), 0);
    sim_destroy(sim);
}

/* A small job does not overtake a large one for ever; a guarantee job goes
 * before guests that came earlier. */
static void those_that_wait_keep_their_order(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 800);
    sim_run(sim, 1.0);
    (void)add_waiting(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 900);
    sim_run(sim, 1.0);
    (void)add_waiting(sim, 2, SL_JOB_CLASS_OPPORTUNISTIC, 100);
    sim_run(sim, 1.0);
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_WAITING);
    assert_int_equal(sim->jobs[2].view.state, SL_JOB_STATE_WAITING);
    sl_assert_contains(sim_decision(sim, 2)->reason, "waits behind job1-101");
    (void)add_waiting(sim, 3, SL_JOB_CLASS_GUARANTEE, 150);
    sim_run(sim, 0.4);
    assert_int_equal(sim->jobs[3].view.state, SL_JOB_STATE_RUNNING);
    sim->jobs[0].is_here = 0;
    sim->jobs[3].is_here = 0;
    sim_run(sim, 0.4);
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_RUNNING);
    sim_run(sim, 0.4);
    assert_int_equal(sim->jobs[2].view.state, SL_JOB_STATE_RUNNING);
    sim_destroy(sim);
}

/* One that fits no empty device says so, and holds up nobody. */
static void a_job_that_can_never_fit_says_so(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add_waiting(sim, 0, SL_JOB_CLASS_GUARANTEE, 2000);
    (void)add_waiting(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 100);
    sim_run(sim, 1.0);
    assert_int_equal(sim->jobs[0].view.state, SL_JOB_STATE_WAITING);
    sl_assert_contains(sim_decision(sim, 0)->reason,
                       "needs 1.95 GiB on cpu:0, which has 1.00 GiB");
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_RUNNING);
    sim_destroy(sim);
}

/* Two that each fit, but not together, are not both let in at once. */
static void two_that_wait_are_not_promised_the_same_memory(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add_waiting(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 600);
    (void)add_waiting(sim, 1, SL_JOB_CLASS_OPPORTUNISTIC, 600);
    sim_step(sim);
    assert_int_equal(sim->jobs[0].view.state, SL_JOB_STATE_RUNNING);
    assert_int_equal(sim->jobs[1].view.state, SL_JOB_STATE_WAITING);
    sim_destroy(sim);
}

/* A job that was let in and has not started yet keeps its promise. */
static void a_promise_is_kept(void **state)
{
    sim_t *sim = machine();

    (void)state;
    (void)add_waiting(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 600);
    sim_step(sim);
    sim->jobs[0].view.state = SL_JOB_STATE_WAITING; /* has not read it yet */
    (void)add_waiting(sim, 1, SL_JOB_CLASS_GUARANTEE, 600);
    sim_step(sim);
    assert_true(sim_decision(sim, 0)->is_admitted);
    assert_false(sim_decision(sim, 1)->is_admitted);
    sim_destroy(sim);
}

/* The capacity can be given, for a machine whose jobs each count all of it. */
static void a_given_capacity_counts(void **state)
{
    sl_coord_params_t params;
    sim_t *sim;

    (void)state;
    sl_coord_params_default(&params);
    params.capacity_bytes = 500 * SIM_MIB;
    sim = sim_create(&params, 1);
    (void)add_waiting(sim, 0, SL_JOB_CLASS_OPPORTUNISTIC, 600);
    sim_run(sim, 1.0);
    assert_int_equal(sim->jobs[0].view.state, SL_JOB_STATE_WAITING);
    sim_destroy(sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_job_alone_has_the_whole_device),
        sl_unit_test(two_jobs_that_fit_divide_what_is_over),
        sl_unit_test(a_burst_spills_then_grows_then_goes_back),
        sl_unit_test(memory_is_never_promised_twice),
        sl_unit_test(guests_keep_their_floor),
        sl_unit_test(a_job_that_fits_starts),
        sl_unit_test(a_guest_that_does_not_fit_waits_and_starts_by_itself),
        sl_unit_test(a_guarantee_job_waits_until_guests_have_shrunk),
        sl_unit_test(guarantee_jobs_do_not_push_each_other_out),
        sl_unit_test(those_that_wait_keep_their_order),
        sl_unit_test(a_job_that_can_never_fit_says_so),
        sl_unit_test(two_that_wait_are_not_promised_the_same_memory),
        sl_unit_test(a_promise_is_kept),
        sl_unit_test(a_given_capacity_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
