/* SPDX-License-Identifier: Apache-2.0 */
/* A job under orders: sequence, acknowledgement, TTL, suspension, and a
 * control plane that breaks under it. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/scheduler/control_bed.h"

static int is_near(double a, double b)
{
    const double gap = a - b;

    return gap < 1e-6 && gap > -1e-6;
}

static void write_order(control_bed_t *bed, uint64_t sequence, double share,
                        uint64_t ttl_ms, uint64_t limit_bytes)
{
    sl_control_order_t order;

    sl_control_order_default(&order);
    order.sequence = sequence;
    order.ttl_ms = ttl_ms;
    order.n_gates = 1;
    strcpy(order.gates[0].name, "cpu:0");
    order.gates[0].share = share;
    order.gates[0].limit_bytes = limit_bytes;
    strcpy(order.writer_token, "tester");
    strcpy(order.reason, "because");
    sl_assert_ok(sl_run_order_write(bed->dir, &bed->id, &order));
}

static void a_job_says_who_it_is(void **state)
{
    control_bed_t bed;
    sl_control_job_t job;
    sl_run_id_t ids[2];

    (void)state;
    bed_init(&bed, "cpu:2");
    bed.params.job_class = SL_JOB_CLASS_GUARANTEE;
    bed.params.n_steps = 9;
    bed_open(&bed);
    assert_int_equal(sl_run_dir_list(bed.dir, ids, 2), 1);
    assert_string_equal(ids[0].text, bed.id.text);
    sl_assert_ok(sl_run_job_read(bed.dir, &bed.id, &job));
    assert_string_equal(job.name, "bed");
    assert_int_equal(job.pid, getpid());
    assert_true(job.start_ticks > 0);
    assert_int_equal(job.job_class, SL_JOB_CLASS_GUARANTEE);
    assert_int_equal(job.n_devices, 2);
    assert_string_equal(job.devices[1].name, "cpu:1");
    assert_true(job.devices[0].capacity_bytes == BED_CAPACITY);
    assert_int_equal(job.devices[0].n_threads, 1);
    bed_wait_for(bed_status(&bed).sequence > 0);
    assert_int_equal(bed_status(&bed).n_steps, 9);
    assert_int_equal(bed_status(&bed).state, SL_JOB_STATE_RUNNING);
    bed_close(&bed);
}

static void a_closed_job_leaves_nothing(void **state)
{
    control_bed_t bed;
    sl_run_dir_t *dir = NULL;
    sl_run_id_t ids[2];

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    (void)bed_boundary(&bed);
    bed_close(&bed);
    sl_assert_ok(sl_run_dir_open(bed.run, &dir));
    assert_int_equal(sl_run_dir_list(dir, ids, 2), 0);
    sl_run_dir_close(dir);
}

static void a_status_tells_the_minibatches(void **state)
{
    control_bed_t bed;
    sl_control_status_t status;
    int i;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    for (i = 0; i < 100; i++) {
        assert_false(bed_boundary(&bed));
    }
    bed_wait_for(bed_status(&bed).step == 100);
    status = bed_status(&bed);
    assert_int_equal(status.n_recent, SL_CONTROL_RECENT);
    assert_true(is_near(status.median_us, 1000.0));
    assert_true(is_near(status.p99_us, 1000.0));
    assert_true(is_near(status.units_per_s, 32000.0));
    assert_int_equal(status.devices[0].peak_bytes, 100000);
    assert_true(status.devices[0].limit_bytes == BED_CAPACITY);
    assert_true(status.devices[0].limit_asked_bytes == BED_CAPACITY);
    assert_true(is_near(status.devices[0].share_asked, 100.0));
    bed_close(&bed);
}

static void an_order_is_applied_and_acknowledged(void **state)
{
    const uint64_t limit = UINT64_C(8) << 20;
    control_bed_t bed;
    sl_mem_stats_t mem;
    sl_control_status_t status;

    (void)state;
    bed_init(&bed, "cpu:2");
    bed_open(&bed);
    (void)bed_boundary(&bed);
    write_order(&bed, 41, 30.0, 0, limit);
    bed_wait_for(bed_status(&bed).accepted_sequence == 41);
    assert_true(is_near(bed_share(&bed, 0), 30.0)); /* at once */
    assert_true(is_near(bed_share(&bed, 1), 100.0));
    assert_int_equal(bed_status(&bed).applied_sequence, 0);
    sl_mem_stats(bed.devices->devices[0].mem, &mem);
    assert_true(mem.limit_bytes == BED_CAPACITY); /* not before a boundary */
    (void)bed_boundary(&bed);
    sl_mem_stats(bed.devices->devices[0].mem, &mem);
    assert_true(mem.limit_bytes == limit);
    bed_wait_for(bed_status(&bed).applied_sequence == 41);
    status = bed_status(&bed);
    assert_int_equal(status.applied_step, 2);
    assert_string_equal(status.writer_token, "tester");
    assert_string_equal(status.reason, "because");
    assert_true(status.devices[0].limit_bytes == limit);
    assert_true(status.devices[0].limit_asked_bytes == limit);
    bed_close(&bed);
}

static void a_limit_above_the_capacity_is_the_capacity(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    write_order(&bed, 1, -1.0, 0, SL_CONTROL_MAX_SEQUENCE);
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    (void)bed_boundary(&bed);
    bed_wait_for(bed_status(&bed).applied_sequence == 1);
    assert_true(bed_status(&bed).devices[0].limit_bytes == BED_CAPACITY);
    assert_true(bed_status(&bed).devices[0].limit_asked_bytes == BED_CAPACITY);
    bed_close(&bed);
}

/* Refuses the text once, with a reason; nothing changes. */
static void refuses(control_bed_t *bed, const char *text, const char *why)
{
    const sl_control_status_t before = bed_status(bed);

    (void)sl_test_log_take();
    bed_put_control(bed, text);
    bed_wait_for(bed_status(bed).n_refused == before.n_refused + 1);
    sl_assert_contains(sl_test_log_take(), why);
    bed_nap();
    bed_nap();
    bed_nap();
    bed_nap();
    bed_nap(); /* polled again meanwhile: no second warning */
    assert_string_equal(sl_test_log_take(), "");
    assert_int_equal(bed_status(bed).n_refused, before.n_refused + 1);
    assert_int_equal(bed_status(bed).accepted_sequence,
                     before.accepted_sequence);
    assert_true(is_near(bed_status(bed).devices[0].share_asked,
                        before.devices[0].share_asked));
}

static void a_bad_order_is_refused_once_and_the_last_good_stays(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    write_order(&bed, 10, 25.0, 0, 0);
    bed_wait_for(bed_status(&bed).accepted_sequence == 10);
    refuses(&bed, "{\"schema\":1,\"sequence\":11", "line 1");
    refuses(&bed, "{\"schema\":1,\"sequence\":11,\"x\":0}", "unknown key");
    refuses(&bed, "{\"schema\":1,\"sequence\":9}", "must grow");
    refuses(&bed, "{\"schema\":1,\"sequence\":10}", "must grow");
    refuses(&bed, "{\"schema\":1,\"sequence\":11,\"devices\":{\"cpu:7\":{}}}",
            "no device cpu:7");
    refuses(&bed,
            "{\"schema\":1,\"sequence\":11,\"devices\":{\"cpu:0\":"
            "{\"share\":7000}}}",
            "7000");
    assert_true(is_near(bed_share(&bed, 0), 25.0));
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":11,\"devices\":"
                          "{\"cpu:0\":{\"share\":55}}}");
    bed_wait_for(bed_status(&bed).accepted_sequence == 11);
    assert_true(is_near(bed_share(&bed, 0), 55.0));
    bed_close(&bed);
}

/* What is no trustworthy file has no effect; then a good one has. */
static void an_untrusted_file_has_no_effect(void **state)
{
    static const char text[] = "{\"schema\":1,\"sequence\":1,\"devices\":"
                               "{\"cpu:0\":{\"share\":1}}}";
    char path[2 * BED_PATH_BYTES], other[2 * BED_PATH_BYTES];
    control_bed_t bed;
    int fd;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    bed_path(&bed, "control.json", path);
    bed_path(&bed, "other.json", other);
    bed_put(other, text);
    assert_int_equal(symlink(other, path), 0);
    bed_wait_for(bed_status(&bed).n_refused == 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    bed_wait_for(bed_status(&bed).n_refused == 2);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    bed_wait_for(bed_status(&bed).n_refused == 3);
    assert_int_equal(rmdir(path), 0);
    fd = open(other, O_WRONLY);
    assert_int_equal(fchmod(fd, 0666), 0);
    (void)close(fd);
    assert_int_equal(rename(other, path), 0);
    bed_wait_for(bed_status(&bed).n_refused == 4);
    assert_true(is_near(bed_share(&bed, 0), 100.0));
    sl_assert_contains(sl_test_log_take(), "symbolic link");
    bed_put_control(&bed, text);
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    assert_true(is_near(bed_share(&bed, 0), 1.0));
    bed_close(&bed);
}

/* Written in place in two halves: the first is refused, the whole taken. */
static void a_half_written_order_waits_for_its_other_half(void **state)
{
    char path[2 * BED_PATH_BYTES];
    control_bed_t bed;
    FILE *file;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    bed_path(&bed, "control.json", path);
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\"", file);
    assert_int_equal(fflush(file), 0);
    bed_wait_for(bed_status(&bed).n_refused == 1);
    assert_true(is_near(bed_share(&bed, 0), 100.0));
    (void)fputs(":{\"share\":35}}}", file);
    assert_int_equal(fclose(file), 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 35.0));
    sl_assert_contains(sl_test_log_take(), "refused");
    bed_close(&bed);
}

/* ---- TTL ---- */

static void pass_time(control_bed_t *bed, uint64_t ms)
{
    (void)atomic_fetch_add(&bed->now_ns, ms * UINT64_C(1000000));
}

static void an_opportunistic_job_falls_to_its_floor(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:2");
    bed.params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    bed_open(&bed);
    write_order(&bed, 1, 80.0, 3000, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 80.0));
    pass_time(&bed, 2999);
    bed_nap();
    bed_nap();
    bed_nap();
    assert_true(is_near(bed_share(&bed, 0), 80.0));
    pass_time(&bed, 1);
    bed_wait_for(is_near(bed_share(&bed, 0), 5.0));
    bed_wait_for(is_near(bed_share(&bed, 1), 5.0));
    bed_wait_for(bed_status(&bed).is_expired);
    write_order(&bed, 2, 60.0, 3000, 0); /* the coordinator is back */
    bed_wait_for(is_near(bed_share(&bed, 0), 60.0));
    assert_true(is_near(bed_share(&bed, 1), 100.0));
    bed_close(&bed);
}

static void a_guarantee_job_stays_as_it_is(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed.params.job_class = SL_JOB_CLASS_GUARANTEE;
    bed_open(&bed);
    write_order(&bed, 1, 80.0, 1000, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 80.0));
    pass_time(&bed, 5000);
    bed_wait_for(bed_status(&bed).is_expired);
    assert_true(is_near(bed_share(&bed, 0), 80.0));
    write_order(&bed, 2, 0.0, 1000, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 0.0));
    pass_time(&bed, 5000); /* but nobody who died suspends it for ever */
    bed_wait_for(is_near(bed_share(&bed, 0), 100.0));
    bed_close(&bed);
}

/* The virtual clock going back, as none should, makes nothing expire. */
static void a_clock_that_goes_back_is_harmless(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed.params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    bed_open(&bed);
    write_order(&bed, 1, 80.0, 1000, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 80.0));
    atomic_store(&bed.now_ns, 5);
    bed_nap();
    bed_nap();
    bed_nap();
    assert_true(is_near(bed_share(&bed, 0), 80.0));
    bed_close(&bed);
}

static void an_order_can_change_the_class(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed.params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    bed_open(&bed);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":1,\"ttl_ms\":1000,"
                          "\"class\":\"guarantee\",\"devices\":{\"cpu:0\":"
                          "{\"share\":70}}}");
    bed_wait_for(bed_status(&bed).job_class == SL_JOB_CLASS_GUARANTEE);
    pass_time(&bed, 2000);
    bed_wait_for(bed_status(&bed).is_expired);
    assert_true(is_near(bed_share(&bed, 0), 70.0));
    bed_close(&bed);
}

/* ---- suspension ---- */

typedef struct walker {
    control_bed_t *bed;
    pthread_t thread;
    atomic_int n_done;
    atomic_int result;
} walker_t;

static void *walk(void *arg)
{
    walker_t *walker = arg;

    atomic_store(&walker->result, bed_boundary(walker->bed));
    atomic_store(&walker->n_done, 1);
    return NULL;
}

static void start(walker_t *walker, control_bed_t *bed, void *(*run)(void *))
{
    walker->bed = bed;
    atomic_store(&walker->n_done, 0);
    assert_int_equal(pthread_create(&walker->thread, NULL, run, walker), 0);
}

static void a_suspended_job_holds_and_gives_memory_back(void **state)
{
    const uint64_t limit = UINT64_C(4) << 20;
    control_bed_t bed;
    walker_t walker;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    write_order(&bed, 1, 0.0, 0, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 0.0));
    start(&walker, &bed, walk);
    bed_wait_for(bed_status(&bed).applied_sequence == 1);
    assert_int_equal(bed_status(&bed).state, SL_JOB_STATE_SUSPENDED);
    assert_int_equal(atomic_load(&walker.n_done), 0);
    write_order(&bed, 2, 0.0, 0, limit); /* while it holds */
    bed_wait_for(bed_status(&bed).applied_sequence == 2);
    assert_true(bed_status(&bed).devices[0].limit_bytes == limit);
    assert_int_equal(atomic_load(&walker.n_done), 0);
    write_order(&bed, 3, 100.0, 0, 0);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    assert_int_equal(atomic_load(&walker.result), 0);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_RUNNING);
    bed_close(&bed);
}

/* AntMan sleeps for ever when its coordinator dies here. */
static void a_suspended_guest_comes_back_when_the_coordinator_dies(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed.params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    bed_open(&bed);
    write_order(&bed, 1, 0.0, 2000, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 0.0));
    start(&walker, &bed, walk);
    bed_wait_for(bed_status(&bed).applied_sequence == 1);
    pass_time(&bed, 2000);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    assert_true(is_near(bed_share(&bed, 0), 5.0));
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
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    write_order(&bed, 1, 0.0, 0, limit);
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    assert_true(is_near(bed_share(&bed, 0), 100.0));
    start(&walker, &bed, walk); /* the mini-batch ends */
    bed_wait_for(is_near(bed_share(&bed, 0), 0.0));
    bed_wait_for(bed_status(&bed).devices[0].limit_bytes == limit);
    write_order(&bed, 2, 50.0, 0, 0);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    bed_close(&bed);
}

static void an_interrupt_ends_a_suspension(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    write_order(&bed, 1, 0.0, 0, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 0.0));
    start(&walker, &bed, walk);
    bed_wait_for(bed_status(&bed).applied_sequence == 1);
    atomic_store(&bed.is_interrupted, 1);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 100.0)); /* so that it can end */
    bed_close(&bed);
}

static void closing_ends_a_suspension(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    write_order(&bed, 1, 0.0, 0, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 0.0));
    sl_control_close(bed.control);
    bed.control = NULL;
    assert_true(is_near(bed_share(&bed, 0), 100.0));
    bed_close(&bed);
}

static void an_order_can_stop_a_job(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    assert_int_equal(bed_boundary(&bed), 0);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":1,\"action\":\"stop\"}");
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    assert_int_equal(bed_boundary(&bed), 1);
    bed_close(&bed);
}

static void a_suspended_job_that_is_stopped_can_end(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    write_order(&bed, 1, 0.0, 0, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 0.0));
    start(&walker, &bed, walk);
    bed_wait_for(bed_status(&bed).applied_sequence == 1);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":2,\"action\":\"stop\"}");
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    assert_int_equal(atomic_load(&walker.result), 1);
    assert_true(is_near(bed_share(&bed, 0), 100.0));
    bed_close(&bed);
}

/* ---- admission ---- */

static void *admit(void *arg)
{
    walker_t *walker = arg;

    atomic_store(&walker->result, sl_control_admit(walker->bed->control));
    atomic_store(&walker->n_done, 1);
    return NULL;
}

static void without_a_coordinator_a_job_starts_at_once(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
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
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    sl_assert_ok(sl_run_dir_coordinate(bed.dir));
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":1,\"action\":\"wait\","
                          "\"ttl_ms\":5000,\"reason\":\"needs 9 GiB\"}");
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    start(&walker, &bed, admit);
    bed_wait_for(bed_status(&bed).applied_sequence == 1);
    assert_int_equal(bed_status(&bed).state, SL_JOB_STATE_WAITING);
    assert_string_equal(bed_status(&bed).reason, "needs 9 GiB");
    assert_int_equal(atomic_load(&walker.n_done), 0);
    write_order(&bed, 2, 50.0, 0, limit);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    assert_int_equal(atomic_load(&walker.result), 0);
    sl_mem_stats(bed.devices->devices[0].mem, &mem);
    assert_true(mem.limit_bytes == limit); /* before anything was allocated */
    bed_close(&bed);
}

static void a_job_starts_when_who_told_it_to_wait_died(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":1,\"action\":\"wait\","
                          "\"ttl_ms\":5000}");
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    start(&walker, &bed, admit);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_WAITING);
    pass_time(&bed, 5000);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    assert_int_equal(atomic_load(&walker.result), 0);
    bed_close(&bed);
}

static void an_interrupt_ends_the_wait_for_admission(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":1,\"action\":\"wait\"}");
    bed_wait_for(bed_status(&bed).accepted_sequence == 1);
    start(&walker, &bed, admit);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_WAITING);
    atomic_store(&bed.is_interrupted, 1);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    assert_int_not_equal(atomic_load(&walker.result), 0);
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
    bed_init(&bed, "cpu:1");
    bed.params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    bed_open(&bed);
    /* who has a class waits for a moment, then starts without one */
    assert_int_equal(sl_control_admit(bed.control), 0);
    for (i = 0; i < 20 && !comes_late(&walker, &bed); i++) {
        /* this machine was too busy for it: once more, with another job */
        assert_int_equal(pthread_join(walker.thread, NULL), 0);
        bed_close(&bed);
        bed_init(&bed, "cpu:1");
        bed.params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
        bed_open(&bed);
    }
    assert_int_equal(atomic_load(&walker.n_done), 0);
    assert_int_equal(bed_status(&bed).state, SL_JOB_STATE_WAITING);
    write_order(&bed, 2, 50.0, 0, 0);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    assert_int_equal(atomic_load(&walker.result), 0);
    bed_close(&bed);
}

static void *await_order(void *arg)
{
    walker_t *walker = arg;

    atomic_store(&walker->result, sl_control_await_order(walker->bed->control));
    atomic_store(&walker->n_done, 1);
    return NULL;
}

static void a_job_short_of_memory_is_not_running(void **state)
{
    control_bed_t bed;
    walker_t walker;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    start(&walker, &bed, await_order);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_SUSPENDED);
    assert_string_equal(bed_status(&bed).reason,
                        "waits for a higher memory limit");
    write_order(&bed, 1, 100.0, 0, UINT64_C(2) << 20);
    assert_int_equal(pthread_join(walker.thread, NULL), 0);
    assert_int_equal(atomic_load(&walker.result), 0);
    bed_wait_for(bed_status(&bed).state == SL_JOB_STATE_RUNNING);
    assert_string_equal(bed_status(&bed).reason, "because");
    bed_close(&bed);
}

static sl_status_t stamp_op(const void *args, void *stream)
{
    (void)stream;
    **(uint64_t *const *)args = sl_clock_ns();
    return SL_OK;
}

/* What lies between two mini-batches, such as an evaluation, is in the step
 * that the law is told, not only the mini-batch. */
static void antman_counts_from_boundary_to_boundary(void **state)
{
    uint64_t start_ns = 0, told_ns;
    uint64_t *start_p = &start_ns;
    const sl_op_t op = {
        .fn = stamp_op, .args = &start_p, .args_bytes = sizeof(start_p)};
    control_bed_t bed;
    int i;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed.params.share_law = SL_SHARE_ANTMAN;
    bed_open(&bed);
    write_order(&bed, 1, 50.0, 0, 0);
    bed_wait_for(is_near(bed_share(&bed, 0), 50.0));
    assert_int_equal(bed_boundary(&bed), 0); /* says 1 ms */
    for (i = 0; i < 12; i++) {               /* 60 ms */
        bed_nap();
    }
    told_ns = sl_clock_ns();
    assert_int_equal(bed_boundary(&bed), 0);
    sl_assert_ok(sl_op_manager_submit(bed.devices->devices[0].ops, &op, NULL));
    sl_assert_ok(sl_op_manager_drain(bed.devices->devices[0].ops));
    /* at 50 % as long a pause as the step was */
    assert_true(start_ns - told_ns >= UINT64_C(50000000));
    bed_close(&bed);
}

/* ---- a control plane that breaks ---- */

static void names_that_could_leave_the_directory_are_refused(void **state)
{
    static const char *const bad[] = {"../x", "a/b", "..",   ".hidden", "",
                                      "-v",   "a b", "a\nb", "\xc3\xa4"};
    control_bed_t bed;
    char longest[SL_CONTROL_NAME_BYTES + 1];
    size_t i;

    (void)state;
    bed_init(&bed, "cpu:1");
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        bed.params.name = bad[i];
        sl_assert_status(sl_control_open(&bed.params, &bed.control),
                         SL_ERR_INVALID_ARG);
    }
    memset(longest, 'a', sizeof(longest));
    longest[SL_CONTROL_NAME_BYTES] = '\0';
    bed.params.name = longest;
    sl_assert_status(sl_control_open(&bed.params, &bed.control),
                     SL_ERR_INVALID_ARG);
    longest[SL_CONTROL_NAME_BYTES - 1] = '\0';
    bed_open(&bed);
    bed_close(&bed);
}

static void without_a_run_directory_a_job_trains_on(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    assert_int_equal(mkdir(bed.run, 0700), 0);
    assert_int_equal(chmod(bed.run, 0777), 0);
    bed_open(&bed);
    assert_null(sl_control_id(bed.control));
    sl_assert_contains(sl_test_log_take(), "chmod go-w");
    assert_int_equal(sl_control_admit(bed.control), 0);
    assert_int_equal(bed_boundary(&bed), 0);
    bed_close(&bed);
}

/* One warning, however many statuses cannot be written. */
static void trains_on_with_one_warning(control_bed_t *bed)
{
    const char *log;
    int i;

    bed_nap();
    for (i = 0; i < 40; i++) {
        assert_int_equal(bed_boundary(bed), 0);
        bed_nap();
    }
    log = sl_test_log_take();
    sl_assert_contains(log, "training goes on");
    sl_assert_contains(log, "\n");
    assert_string_equal(strchr(log, '\n'), "\n"); /* one line */
}

/* As `rm -r` does; a status, or the new directory, may come between. */
static void remove_directory(const control_bed_t *bed)
{
    static const char *const files[] = {"job.json", "pulse", "control.json",
                                        "lock", "status.json"};
    char path[2 * BED_PATH_BYTES];
    size_t i;

    for (i = 0; i < sizeof(files) / sizeof(*files); i++) {
        bed_path(bed, files[i], path);
        (void)unlink(path);
    }
    bed_path(bed, "", path);
    (void)rmdir(path);
}

static int is_listed(const control_bed_t *bed)
{
    sl_run_id_t id;
    sl_control_job_t job;

    return sl_run_dir_list(bed->dir, &id, 1) == 1 &&
           strcmp(id.text, bed->id.text) == 0 &&
           sl_run_job_read(bed->dir, &id, &job) == SL_OK;
}

static void a_removed_directory_is_made_again(void **state)
{
    char path[2 * BED_PATH_BYTES];
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    write_order(&bed, 4, 50.0, 0, 0);
    bed_wait_for(bed_status(&bed).accepted_sequence == 4);
    remove_directory(&bed);
    bed_wait_for(is_listed(&bed) && bed_status(&bed).sequence > 0);
    assert_int_equal(bed_status(&bed).accepted_sequence, 4);
    bed_path(&bed, "pulse", path);
    assert_int_equal(access(path, F_OK), 0);
    assert_string_equal(sl_control_id(bed.control), bed.id.text);
    write_order(&bed, 5, 70.0, 0, 0); /* it is heard there too */
    bed_wait_for(is_near(bed_share(&bed, 0), 70.0));
    bed_close(&bed);
}

static void a_removed_run_directory_is_made_again(void **state)
{
    char path[2 * BED_PATH_BYTES];
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    bed_wait_for(bed_status(&bed).sequence > 0);
    (void)snprintf(path, sizeof(path), "%s/gone", sl_test_directory());
    assert_int_equal(rename(bed.run, path), 0); /* first out of its reach */
    sl_run_dir_close(bed.dir);
    bed.dir = NULL;
    do {
        (void)snprintf(path, sizeof(path), "rm -rf '%s/gone'",
                       sl_test_directory());
    } while (system(path) != 0);
    bed_wait_for(bed.dir != NULL ||
                 sl_run_dir_open(bed.run, &bed.dir) == SL_OK);
    bed_wait_for(is_listed(&bed) && bed_status(&bed).sequence > 0);
    bed_close(&bed);
}

/* A file is where the run directory was: it cannot be made again. */
static void a_removed_directory_does_not_stop_a_job(void **state)
{
    char path[2 * BED_PATH_BYTES];
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    bed_wait_for(bed_status(&bed).sequence > 0);
    (void)snprintf(path, sizeof(path), "%s/gone", sl_test_directory());
    assert_int_equal(rename(bed.run, path), 0);
    bed_put(bed.run, "no directory");
    do {
        (void)snprintf(path, sizeof(path), "rm -rf '%s/gone'",
                       sl_test_directory());
    } while (system(path) != 0);
    trains_on_with_one_warning(&bed);
    bed_close(&bed);
}

static void a_full_disk_does_not_stop_a_job(void **state)
{
    struct rlimit before, tiny;
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    bed_wait_for(bed_status(&bed).sequence > 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tiny = before;
    tiny.rlim_cur = 64;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tiny), 0);
    trains_on_with_one_warning(&bed);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    bed_wait_for(bed_status(&bed).step == bed.step); /* there is room again */
    (void)signal(SIGXFSZ, SIG_DFL);
    bed_close(&bed);
}

static void the_dead_are_buried_by_the_next_job(void **state)
{
    control_bed_t bed;
    sl_run_id_t ids[2];
    char path[2 * BED_PATH_BYTES];
    int ready[2];
    char id[SL_CONTROL_ID_BYTES] = "";
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(ready), 0);
    (void)sl_test_directory(); /* one for both */
    pid = fork();
    if (pid == 0) {
        control_bed_t victim;

        (void)alarm(60);
        bed_init(&victim, "cpu:1");
        bed_open(&victim);
        (void)!write(ready[1], victim.id.text, sizeof(victim.id.text));
        for (;;) {
            (void)bed_boundary(&victim);
        }
    }
    assert_true(pid > 0);
    assert_int_equal(read(ready[0], id, sizeof(id)), sizeof(id));
    bed_init(&bed, "cpu:1");
    (void)snprintf(path, sizeof(path), "%s/jobs/%s", bed.run, id);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(access(path, F_OK), 0); /* it is left behind */
    bed_open(&bed);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(sl_run_dir_list(bed.dir, ids, 2), 1);
    bed_close(&bed);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_job_says_who_it_is),
        sl_unit_test(a_closed_job_leaves_nothing),
        sl_unit_test(a_status_tells_the_minibatches),
        sl_unit_test(an_order_is_applied_and_acknowledged),
        sl_unit_test(a_limit_above_the_capacity_is_the_capacity),
        sl_unit_test(a_bad_order_is_refused_once_and_the_last_good_stays),
        sl_unit_test(an_untrusted_file_has_no_effect),
        sl_unit_test(a_half_written_order_waits_for_its_other_half),
        sl_unit_test(an_opportunistic_job_falls_to_its_floor),
        sl_unit_test(a_guarantee_job_stays_as_it_is),
        sl_unit_test(a_clock_that_goes_back_is_harmless),
        sl_unit_test(an_order_can_change_the_class),
        sl_unit_test(a_suspended_job_holds_and_gives_memory_back),
        sl_unit_test(a_suspended_guest_comes_back_when_the_coordinator_dies),
        sl_unit_test(a_suspension_lets_memory_go_first),
        sl_unit_test(an_interrupt_ends_a_suspension),
        sl_unit_test(closing_ends_a_suspension),
        sl_unit_test(an_order_can_stop_a_job),
        sl_unit_test(a_suspended_job_that_is_stopped_can_end),
        sl_unit_test(without_a_coordinator_a_job_starts_at_once),
        sl_unit_test(a_job_waits_to_be_admitted_and_starts_by_itself),
        sl_unit_test(a_job_starts_when_who_told_it_to_wait_died),
        sl_unit_test(an_interrupt_ends_the_wait_for_admission),
        sl_unit_test(names_that_could_leave_the_directory_are_refused),
        sl_unit_test(without_a_run_directory_a_job_trains_on),
        sl_unit_test(a_removed_directory_is_made_again),
        sl_unit_test(a_removed_run_directory_is_made_again),
        sl_unit_test(a_removed_directory_does_not_stop_a_job),
        sl_unit_test(a_coordinator_that_comes_late_admits_a_job),
        sl_unit_test(a_job_short_of_memory_is_not_running),
        sl_unit_test(antman_counts_from_boundary_to_boundary),
        sl_unit_test(a_full_disk_does_not_stop_a_job),
        sl_unit_test(the_dead_are_buried_by_the_next_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
