/* SPDX-License-Identifier: Apache-2.0 */
/* A guarantee job's pulse in its directory, and guests that are told to
 * follow it: also when the host is killed, stopped, or never was. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scheduler/pulse.h"
#include "tests/scheduler/control_bed.h"

#define MS UINT64_C(1000000)

static sl_status_t nothing_op(const void *args, void *stream)
{
    (void)args;
    (void)stream;
    return SL_OK;
}

static sl_status_t endless_op(const void *args, void *stream)
{
    (void)args;
    (void)stream;
    for (;;) {
        bed_nap();
    }
    return SL_OK;
}

/* One that is said to take so long that its floor is far away. */
static uint64_t submit_long(const control_bed_t *bed)
{
    const sl_op_t op = {.fn = nothing_op, .cost_us = 1e6};
    uint64_t ticket = 0;

    sl_assert_ok(
        sl_op_manager_submit(bed->devices->devices[0].ops, &op, &ticket));
    return ticket;
}

static int has_run(const control_bed_t *bed, uint64_t ticket)
{
    return sl_op_manager_wait(bed->devices->devices[0].ops, ticket, 0) == SL_OK;
}

static uint64_t throttled_ns(const control_bed_t *bed)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(bed->devices->devices[0].ops, &stats);
    return stats.throttled_ns;
}

/* Until an op has to wait. More than one try: on a busy machine a host may
 * be late with its beat and be taken for a stopped one for a moment. */
static uint64_t wait_until_blocked(const control_bed_t *bed)
{
    int i;

    for (i = 0; i < BED_TRIES; i++) {
        const uint64_t before_ns = throttled_ns(bed);
        const uint64_t ticket = submit_long(bed);

        while (!has_run(bed, ticket)) {
            if (throttled_ns(bed) - before_ns >= 60 * MS) {
                return ticket;
            }
            bed_nap();
        }
        bed_nap();
    }
    fail_msg("no op had to wait");
    return 0;
}

static void yield_to(control_bed_t *bed, int sequence, const char *hosts)
{
    char text[512];

    (void)snprintf(text, sizeof(text),
                   "{\"schema\":1,\"sequence\":%d,\"floor_share\":1,"
                   "\"devices\":{\"cpu:0\":{\"yield_to\":[%s]}}}",
                   sequence, hosts);
    bed_put_control(bed, text);
    bed_wait_for(bed_status(bed).accepted_sequence == (uint64_t)sequence);
}

static const sl_pulse_map_t *open_page(const control_bed_t *bed)
{
    const sl_pulse_map_t *map = NULL;
    char path[2 * BED_PATH_BYTES];
    int fd, n_slots = 0;

    bed_path(bed, "", path);
    fd = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    sl_assert_ok(sl_pulse_open(fd, &map, &n_slots));
    assert_int_equal(n_slots, bed->devices->n_devices);
    (void)close(fd);
    return map;
}

/* ---- the host ---- */

static void only_a_guarantee_job_publishes(void **state)
{
    const sl_pulse_map_t *page;
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    page = open_page(&bed);
    bed_wait_for(atomic_load(&page->head.beat) >= 2);
    (void)submit_long(&bed);
    sl_assert_ok(sl_op_manager_drain(bed.devices->devices[0].ops));
    assert_int_equal(atomic_load(&page->slots[0].n_idles), 0);
    /* promoted */
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":1,"
                          "\"class\":\"guarantee\"}");
    bed_wait_for(atomic_load(&page->slots[0].n_idles) >= 1);
    (void)submit_long(&bed);
    bed_wait_for(atomic_load(&page->slots[0].n_idles) >= 2);
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":2,"
                          "\"class\":\"opportunistic\"}");
    bed_wait_for(bed_status(&bed).accepted_sequence == 2);
    assert_true(atomic_load(&page->slots[0].until_ns) == SL_PULSE_UNKNOWN);
    sl_pulse_unmap(page);
    bed_close(&bed);
}

static void a_job_says_on_which_cores_it_is(void **state)
{
    control_bed_t bed;
    sl_control_job_t job;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed_open(&bed);
    sl_assert_ok(sl_run_job_read(bed.dir, &bed.id, &job));
    assert_string_equal(job.devices[0].core_list, ""); /* not bound */
    bed_close(&bed);
    assert_true(sl_control_cores_overlap("0-3,8", "8"));
    assert_true(sl_control_cores_overlap("0-3,8", "2-2"));
    assert_true(sl_control_cores_overlap("1", "0-3"));
    assert_false(sl_control_cores_overlap("0-3,8", "4-7,9"));
    assert_false(sl_control_cores_overlap("0", "1"));
    /* not known, or nonsense: anywhere */
    assert_true(sl_control_cores_overlap("", "1"));
    assert_true(sl_control_cores_overlap("0", ""));
    assert_true(sl_control_cores_overlap("0", "1-"));
    assert_true(sl_control_cores_overlap("0", "-1"));
    assert_true(sl_control_cores_overlap("0", "1,,2"));
    assert_true(sl_control_cores_overlap("0", "1-99999999999999999999x"));
}

/* ---- a guest whose host dies ---- */

typedef struct host {
    pid_t pid;
    char id[SL_CONTROL_ID_BYTES];
} host_t;

/* A process with a guarantee job whose device is busy for ever. */
static void start_host(host_t *host)
{
    const sl_op_t op = {.fn = endless_op};
    control_bed_t bed;
    int ready[2];

    assert_int_equal(pipe(ready), 0);
    (void)sl_test_directory(); /* one for both */
    host->pid = fork();
    if (host->pid == 0) {
        (void)alarm(120);
        bed_init(&bed, "cpu:1");
        bed.params.name = "host";
        bed.params.job_class = SL_JOB_CLASS_GUARANTEE;
        bed_open(&bed);
        sl_assert_ok(
            sl_op_manager_submit(bed.devices->devices[0].ops, &op, NULL));
        bed_wait_for(atomic_load(&open_page(&bed)->slots[0].until_ns) == 0);
        (void)!write(ready[1], bed.id.text, sizeof(bed.id.text));
        for (;;) {
            bed_nap();
        }
    }
    assert_true(host->pid > 0);
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], host->id, sizeof(host->id)),
                     (ssize_t)sizeof(host->id));
    (void)close(ready[0]);
}

/* @return the ticket of an op that waits for that host */
static uint64_t follow(control_bed_t *bed, const host_t *host, int sequence)
{
    char name[SL_CONTROL_ID_BYTES + 8];

    (void)snprintf(name, sizeof(name), "\"%s:0\"", host->id);
    yield_to(bed, sequence, name);
    return wait_until_blocked(bed);
}

static void guest_open(control_bed_t *bed)
{
    bed_init(bed, "cpu:1");
    bed->params.job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    bed_open(bed);
}

static void a_host_killed_while_busy_releases_its_guest(void **state)
{
    control_bed_t bed;
    uint64_t ticket;
    host_t host;

    (void)state;
    start_host(&host);
    guest_open(&bed);
    ticket = follow(&bed, &host, 1);
    /* the wait is told as throttled */
    bed_wait_for(bed_status(&bed).devices[0].throttled_us >= 50000);
    assert_int_equal(kill(host.pid, SIGKILL), 0);
    assert_int_equal(waitpid(host.pid, NULL, 0), host.pid);
    bed_wait_for(has_run(&bed, ticket));
    bed_close(&bed);
}

static void a_stopped_host_releases_its_guest(void **state)
{
    control_bed_t bed;
    uint64_t ticket;
    host_t host;

    (void)state;
    start_host(&host);
    guest_open(&bed);
    ticket = follow(&bed, &host, 1);
    assert_int_equal(kill(host.pid, SIGSTOP), 0);
    bed_wait_for(has_run(&bed, ticket));
    /* and is followed again when it goes on */
    assert_int_equal(kill(host.pid, SIGCONT), 0);
    ticket = wait_until_blocked(&bed);
    assert_int_equal(kill(host.pid, SIGKILL), 0);
    assert_int_equal(waitpid(host.pid, NULL, 0), host.pid);
    bed_wait_for(has_run(&bed, ticket));
    bed_close(&bed);
}

static void an_order_to_yield_to_nobody_releases_a_guest(void **state)
{
    control_bed_t bed;
    uint64_t ticket;
    host_t host;

    (void)state;
    start_host(&host);
    guest_open(&bed);
    ticket = follow(&bed, &host, 1);
    /* an order that says nothing about it changes nothing */
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":2,\"floor_share\":1,"
                          "\"devices\":{\"cpu:0\":{\"share\":90}}}");
    bed_wait_for(bed_status(&bed).accepted_sequence == 2);
    ticket = wait_until_blocked(&bed);
    yield_to(&bed, 3, "");
    bed_wait_for(has_run(&bed, ticket));
    ticket = follow(&bed, &host, 4);
    /* whoever shall stop waits for nobody */
    bed_put_control(&bed, "{\"schema\":1,\"sequence\":5,\"action\":\"stop\"}");
    bed_wait_for(has_run(&bed, ticket));
    bed_close(&bed);
    assert_int_equal(kill(host.pid, SIGKILL), 0);
    assert_int_equal(waitpid(host.pid, NULL, 0), host.pid);
}

static void a_guest_closes_while_it_waits(void **state)
{
    control_bed_t bed;
    uint64_t ticket;
    host_t host;

    (void)state;
    start_host(&host);
    guest_open(&bed);
    ticket = follow(&bed, &host, 1);
    sl_control_close(bed.control);
    bed.control = NULL;
    sl_assert_ok(
        sl_op_manager_wait(bed.devices->devices[0].ops, ticket, UINT64_MAX));
    bed_close(&bed);
    assert_int_equal(kill(host.pid, SIGKILL), 0);
    assert_int_equal(waitpid(host.pid, NULL, 0), host.pid);
}

/* ---- hosts that are none ---- */

static void hosts_that_are_not_there_hold_nobody(void **state)
{
    control_bed_t bed;

    (void)state;
    guest_open(&bed);
    yield_to(&bed, 1, "\"nobody-1-00000000:0\",\"nobody-1-00000000:63\"");
    sl_assert_ok(sl_op_manager_wait(bed.devices->devices[0].ops,
                                    submit_long(&bed), UINT64_MAX));
    bed_close(&bed);
}

/* A page that cannot be trusted is not opened; said once, and the job goes
 * on. */
static void a_page_that_is_a_link_is_not_followed(void **state)
{
    char path[2 * BED_PATH_BYTES], name[SL_CONTROL_ID_BYTES + 8];
    control_bed_t bed, host;
    const char *log;

    (void)state;
    bed_init(&host, "cpu:1");
    host.params.name = "host";
    bed_open(&host);
    bed_path(&host, SL_PULSE_FILE, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    guest_open(&bed);
    (void)snprintf(name, sizeof(name), "\"%s:0\"", host.id.text);
    yield_to(&bed, 1, name);
    bed_wait_for(bed_status(&bed).sequence > 20);
    sl_assert_ok(sl_op_manager_wait(bed.devices->devices[0].ops,
                                    submit_long(&bed), UINT64_MAX));
    log = sl_test_log_take();
    sl_assert_contains(log, "does not yield to host-");
    assert_string_equal(strchr(log, '\n'), "\n"); /* one line */
    bed_close(&bed);
    bed_close(&host);
}

/* ---- what is said in control.json ---- */

static void what_is_no_yield_is_refused(void **state)
{
    static const char *const bad[] = {
        "\"x\"",
        "7",
        "[7]",
        "[null]",
        "[\"x\"]",
        "[\"x:\"]",
        "[\":0\"]",
        "[\"x:-1\"]",
        "[\"x:64\"]",
        "[\"x:00064\"]",
        "[\"x:0 \"]",
        "[\"x:0x\"]",
        "[\"../x:0\"]",
        "[\"a/b:0\"]",
        "[\"/etc:0\"]",
        "[\"..:0\"]",
        "[\".new-x:0\"]",
        "[\"a b:0\"]",
        "[\"x:0\\u0000\"]",
        "[\"x\\u0000y:0\"]",
        "[\"x\\n:0\"]",
        "[\"a:0\",\"a:1\",\"a:2\",\"a:3\",\"a:4\",\"a:5\",\"a:6\",\"a:7\","
        "\"a:8\"]",
        "{}",
    };
    static sl_control_order_t order;
    char text[512];
    size_t i;

    (void)state;
    order.sequence = 99;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        (void)snprintf(text, sizeof(text),
                       "{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{"
                       "\"yield_to\":%s}}}",
                       bad[i]);
        assert_int_equal(sl_control_order_parse(text, strlen(text), &order),
                         SL_ERR_CORRUPT);
        assert_true(order.sequence == 99);
    }
}

static void yields_are_written_and_read_back(void **state)
{
    static const char text[] =
        "{\"schema\":1,\"sequence\":3,\"devices\":{"
        "\"cpu:0\":{\"share\":50,\"yield_to\":[\"a-1-x:0\",\"b.c:63\"]},"
        "\"cpu:1\":{\"share\":50},\"cpu:2\":{\"yield_to\":[]}}}";
    static sl_control_order_t order, again;
    char *copy = NULL;

    (void)state;
    sl_assert_ok(sl_control_order_parse(text, strlen(text), &order));
    sl_assert_ok(sl_control_order_format(&order, &copy));
    sl_assert_ok(sl_control_order_parse(copy, strlen(copy), &again));
    free(copy);
    assert_int_equal(again.n_yields, 2);
    assert_string_equal(again.yields[0].host.text, "a-1-x");
    assert_int_equal(again.yields[0].device, 0);
    assert_string_equal(again.yields[1].host.text, "b.c");
    assert_int_equal(again.yields[1].device, 63);
    assert_int_equal(again.yields[1].gate, 0);
    assert_int_equal(again.gates[0].has_yields, 1);
    assert_int_equal(again.gates[1].has_yields, 0);
    assert_int_equal(again.gates[2].has_yields, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(only_a_guarantee_job_publishes),
        sl_unit_test(a_job_says_on_which_cores_it_is),
        sl_unit_test(a_host_killed_while_busy_releases_its_guest),
        sl_unit_test(a_stopped_host_releases_its_guest),
        sl_unit_test(an_order_to_yield_to_nobody_releases_a_guest),
        sl_unit_test(a_guest_closes_while_it_waits),
        sl_unit_test(hosts_that_are_not_there_hold_nobody),
        sl_unit_test(a_page_that_is_a_link_is_not_followed),
        sl_unit_test(what_is_no_yield_is_refused),
        sl_unit_test(yields_are_written_and_read_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
