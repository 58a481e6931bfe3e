/* SPDX-License-Identifier: Apache-2.0 */
/* A job that is held: suspended, not admitted yet, or short of memory. */
#include <pthread.h>

#include "tests/scheduler/control_bed.h"

/* ---- a job in another thread, which is held ---- */

typedef int (*call_fn)(control_bed_t *bed);

typedef struct walker {
    control_bed_t *bed;
    call_fn call;
    pthread_t thread;
    atomic_int n_done;
    atomic_int result;
} walker_t;

static void *run(void *arg)
{
    walker_t *walker = arg;

    atomic_store(&walker->result, walker->call(walker->bed));
    atomic_store(&walker->n_done, 1);
    return NULL;
}

static void start(walker_t *walker, control_bed_t *bed, call_fn call)
{
    walker->bed = bed;
    walker->call = call;
    atomic_store(&walker->n_done, 0);
    assert_int_equal(pthread_create(&walker->thread, NULL, run, walker), 0);
}

/* @return what the call did */
static int join(walker_t *walker)
{
    assert_int_equal(pthread_join(walker->thread, NULL), 0);
    return atomic_load(&walker->result);
}

static int pause_once(control_bed_t *bed)
{
    return sl_control_pause(bed->control);
}

static int admit(control_bed_t *bed)
{
    return sl_control_admit(bed->control);
}

static int await_order(control_bed_t *bed)
{
    return sl_control_await_order(bed->control);
}

static void open_job(control_bed_t *bed, sl_job_class_t job_class)
{
    bed_init(bed, "cpu:1");
    bed->params.job_class = job_class;
    bed_open(bed);
}

/* The first order takes the job's whole share. */
static void suspend(control_bed_t *bed, uint64_t ttl_ms)
{
    bed_write_order(bed, 1, 0.0, ttl_ms, 0);
    bed_wait_for(bed_is_near(bed_share(bed, 0), 0.0));
}

/* Likewise; the job comes to the end of a mini-batch, and is held there. */
static void hold(walker_t *walker, control_bed_t *bed, uint64_t ttl_ms)
{
    suspend(bed, ttl_ms);
    start(walker, bed, bed_boundary);
    bed_wait_for(bed_status(bed).applied_sequence == 1);
    assert_int_equal(atomic_load(&walker->n_done), 0);
}

/* An order that the job has read: MEMBERS of it after its number. */
static void order(control_bed_t *bed, int sequence, const char *members)
{
    char text[256];

    (void)snprintf(text, sizeof(text), "{\"schema\":1,\"sequence\":%d,%s}",
                   sequence, members);
    bed_put_control(bed, text);
    bed_wait_for(bed_status(bed).accepted_sequence == (uint64_t)sequence);
}

/* ---- suspension ---- */

static void a_suspended_job_holds_and_gives_memory_back(void **state)
{
    const uint64_t limit = UINT64_C(4) << 20;
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    hold(&walker, &bed, 0);
    assert_int_equal(bed_status(&bed).state, SL_JOB_STATE_SUSPENDED);
    bed_write_order(&bed, 2, 0.0, 0, limit); /* while it holds */
    bed_wait_for(bed_status(&bed).applied_sequence == 2);
    assert_true(bed_status(&bed).devices[0].limit_bytes == limit);
    assert_int_equal(atomic_load(&walker.n_done), 0);
    bed_write_order(&bed, 3, 100.0, 0, 0);
    assert_int_equal(join(&walker), 0);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_RUNNING);
    bed_close(&bed);
}

/* AntMan sleeps for ever when its coordinator dies here. */
static void a_suspended_guest_comes_back_when_the_coordinator_dies(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_OPPORTUNISTIC);
    hold(&walker, &bed, 2000);
    bed_pass_time(&bed, 2000);
    (void)join(&walker);
    assert_true(bed_is_near(bed_share(&bed, 0), 5.0));
    bed_close(&bed);
}

/* What a person set is not the coordinator's to lose, 0 included. */
static void shares_by_hand_hold_when_the_coordinator_dies(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:3");
    bed.params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    bed_open(&bed);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":1,\"ttl_ms\":2000,"
                          "\"floor_share\":7,\"devices\":{"
                          "\"cpu:0\":{\"share\":40,\"keep_share\":true},"
                          "\"cpu:1\":{\"share\":60},"
                          "\"cpu:2\":{\"share\":0,\"keep_share\":true}}}");
    bed_wait_for(bed_is_near(bed_share(&bed, 1), 60.0));
    bed_pass_time(&bed, 2000);
    bed_wait_for(bed_is_near(bed_share(&bed, 1), 7.0));
    assert_true(bed_is_near(bed_share(&bed, 0), 40.0));
    assert_true(bed_is_near(bed_share(&bed, 2), 0.0));
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":2,\"ttl_ms\":2000,"
                          "\"devices\":{\"cpu:0\":{\"share\":30},"
                          "\"cpu:2\":{\"share\":100}}}");
    bed_wait_for(bed_is_near(bed_share(&bed, 0), 30.0));
    bed_pass_time(&bed, 2000);
    bed_wait_for(bed_is_near(bed_share(&bed, 0), 5.0));
    bed_close(&bed);
}

/* A limit and a suspension in one order: the mini-batch that runs must end
 * first, or the memory could not be given back. */
static void a_suspension_lets_memory_go_first(void **state)
{
    const uint64_t limit = UINT64_C(4) << 20;
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    bed_write_order(&bed, 1, 0.0, 0, limit);
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    assert_true(bed_is_near(bed_share(&bed, 0), 100.0));
    start(&walker, &bed, bed_boundary); /* the mini-batch ends */
    bed_wait_for(bed_is_near(bed_share(&bed, 0), 0.0));
    bed_wait_for(bed_status(&bed).devices[0].limit_bytes == limit);
    bed_write_order(&bed, 2, 50.0, 0, 0);
    (void)join(&walker);
    bed_close(&bed);
}

static void orders_are_taken_where_no_minibatch_ends(void **state)
{
    const uint64_t limit = UINT64_C(4) << 20;
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    assert_int_equal(sl_control_pause(NULL), 0);
    assert_int_equal(sl_control_pause(bed.control), 0);
    bed_write_order(&bed, 1, 0.0, 0, limit);
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    start(&walker, &bed, pause_once);
    bed_wait_for(bed_is_near(bed_share(&bed, 0), 0.0));
    bed_wait_for(bed_status(&bed).devices[0].limit_bytes == limit);
    assert_int_equal(atomic_load(&walker.n_done), 0);
    bed_write_order(&bed, 2, 50.0, 0, 0);
    assert_int_equal(join(&walker), 0);
    assert_int_equal(bed_status(&bed).step, 0);
    order(&bed, 3, "\"action\":\"stop\"");
    assert_int_equal(sl_control_pause(bed.control), 1);
    bed_close(&bed);
}

static void an_interrupt_ends_a_suspension(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    hold(&walker, &bed, 0);
    atomic_store(&bed.is_interrupted, 1);
    (void)join(&walker);
    bed_wait_for(
        bed_is_near(bed_share(&bed, 0), 100.0)); /* so that it can end */
    bed_close(&bed);
}

static void closing_ends_a_suspension(void **state)
{
    control_bed_t bed;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    suspend(&bed, 0);
    sl_control_close(bed.control);
    bed.control = NULL;
    assert_true(bed_is_near(bed_share(&bed, 0), 100.0));
    bed_close(&bed);
}

static void an_order_can_stop_a_job(void **state)
{
    control_bed_t bed;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    assert_int_equal(bed_boundary(&bed), 0);
    order(&bed, 1, "\"action\":\"stop\"");
    assert_int_equal(bed_boundary(&bed), 1);
    bed_close(&bed);
}

static void a_suspended_job_that_is_stopped_can_end(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    hold(&walker, &bed, 0);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":2,\"action\":\"stop\"}");
    assert_int_equal(join(&walker), 1);
    assert_true(bed_is_near(bed_share(&bed, 0), 100.0));
    bed_close(&bed);
}

/* ---- admission ---- */

static void without_a_coordinator_a_job_starts_at_once(void **state)
{
    control_bed_t bed;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    assert_int_equal(sl_control_admit(bed.control), 0);
    assert_int_equal(sl_control_admit(NULL), 0);
    bed_close(&bed);
}

static void a_job_waits_to_be_admitted_and_starts_by_itself(void **state)
{
    const uint64_t limit = UINT64_C(2) << 20;
    control_bed_t bed;
    sl_mem_stats_t mem;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    sl_assert_ok(sl_run_dir_coordinate(bed.dir));
    order(&bed, 1,
          "\"action\":\"wait\",\"ttl_ms\":5000,\"reason\":\"needs 9 GiB\"");
    start(&walker, &bed, admit);
    bed_wait_for(bed_status(&bed).applied_sequence == 1);
    assert_int_equal(bed_status(&bed).state, SL_JOB_STATE_WAITING);
    assert_string_equal(bed_status(&bed).reason, "needs 9 GiB");
    assert_int_equal(atomic_load(&walker.n_done), 0);
    bed_write_order(&bed, 2, 50.0, 0, limit);
    assert_int_equal(join(&walker), 0);
    sl_mem_stats(bed.devices->devices[0].mem, &mem);
    assert_true(mem.limit_bytes == limit); /* before anything was allocated */
    bed_close(&bed);
}

static void a_job_starts_when_who_told_it_to_wait_died(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    order(&bed, 1, "\"action\":\"wait\",\"ttl_ms\":5000");
    start(&walker, &bed, admit);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_WAITING);
    bed_pass_time(&bed, 5000);
    assert_int_equal(join(&walker), 0);
    bed_close(&bed);
}

static void an_interrupt_ends_the_wait_for_admission(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    order(&bed, 1, "\"action\":\"wait\"");
    start(&walker, &bed, admit);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_WAITING);
    atomic_store(&bed.is_interrupted, 1);
    assert_int_not_equal(join(&walker), 0);
    bed_close(&bed);
}

/* @return whether the job waits for its orders; it waits for a coordinator, and
 * for the first of them, as long as it takes to start one */
static int comes_late(walker_t *walker, control_bed_t *bed)
{
    start(walker, bed, admit);
    bed_nap();
    sl_assert_ok(sl_run_dir_coordinate(bed->dir));
    bed_put_control(bed, "{\"schema\":1,\"sequence\":1,\"action\":\"wait\","
                         "\"ttl_ms\":5000}");
    bed_wait_for(bed_status(bed).applied_sequence == 1 ||
                 atomic_load(&walker->n_done) != 0);
    return atomic_load(&walker->n_done) == 0;
}

/* It is started together with the job, which has no memory yet. */
static void a_coordinator_that_comes_late_admits_a_job(void **state)
{
    control_bed_t bed;
    walker_t walker;
    int i;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_OPPORTUNISTIC);
    /* who has a class waits for a moment, then starts without one */
    assert_int_equal(sl_control_admit(bed.control), 0);
    for (i = 0; i < 20 && !comes_late(&walker, &bed); i++) {
        /* this machine was too busy for it: once more, with another job */
        (void)join(&walker);
        bed_close(&bed);
        open_job(&bed, SL_JOB_CLASS_OPPORTUNISTIC);
    }
    assert_int_equal(atomic_load(&walker.n_done), 0);
    assert_int_equal(bed_status(&bed).state, SL_JOB_STATE_WAITING);
    bed_write_order(&bed, 2, 50.0, 0, 0);
    assert_int_equal(join(&walker), 0);
    bed_close(&bed);
}

static void a_job_short_of_memory_is_not_running(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    open_job(&bed, SL_JOB_CLASS_NONE);
    start(&walker, &bed, await_order);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_SUSPENDED);
    assert_string_equal(bed_status(&bed).reason,
                        "waits for a higher memory limit");
    bed_write_order(&bed, 1, 100.0, 0, UINT64_C(2) << 20);
    assert_int_equal(join(&walker), 0);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_RUNNING);
    assert_string_equal(bed_status(&bed).reason, "because");
    bed_close(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_suspended_job_holds_and_gives_memory_back),
        sl_unit_test(a_suspended_guest_comes_back_when_the_coordinator_dies),
        sl_unit_test(shares_by_hand_hold_when_the_coordinator_dies),
        sl_unit_test(a_suspension_lets_memory_go_first),
        sl_unit_test(orders_are_taken_where_no_minibatch_ends),
        sl_unit_test(an_interrupt_ends_a_suspension),
        sl_unit_test(closing_ends_a_suspension),
        sl_unit_test(an_order_can_stop_a_job),
        sl_unit_test(a_suspended_job_that_is_stopped_can_end),
        sl_unit_test(without_a_coordinator_a_job_starts_at_once),
        sl_unit_test(a_job_waits_to_be_admitted_and_starts_by_itself),
        sl_unit_test(a_job_starts_when_who_told_it_to_wait_died),
        sl_unit_test(an_interrupt_ends_the_wait_for_admission),
        sl_unit_test(a_coordinator_that_comes_late_admits_a_job),
        sl_unit_test(a_job_short_of_memory_is_not_running),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
