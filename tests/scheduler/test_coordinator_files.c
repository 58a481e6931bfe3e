/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's files: jobs are made up here, as they would be on disk. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "scheduler/coordinator/pins.h"
#include "scheduler/pulse.h"
#include "tests/scheduler/coordinator_bed.h"

#define MIB (UINT64_C(1) << 20)

/* A run directory with one job and a coordinator's side. */
typedef struct bed {
    coordinator_bed_t coordinator;
    sl_job_dir_t job_dir;
    sl_control_job_t job;
    sl_control_status_t status;
    sl_control_order_t order;
    int n_orders; /* news told */
} bed_t;

static void count_order(void *ctx, const sl_run_id_t *id,
                        const sl_control_order_t *order,
                        const sl_control_order_t *before)
{
    (void)id;
    (void)order;
    (void)before;
    ((bed_t *)ctx)->n_orders++;
}

static void publish(bed_t *bed)
{
    bed->status.sequence++;
    coordinator_bed_tell(&bed->job_dir, &bed->status);
}

static void begin_coordinator(bed_t *bed, int is_dry_run)
{
    const sl_exchange_params_t params = {.floor_percent = 2.0,
                                         .ttl_ms = 8000,
                                         .is_dry_run = is_dry_run,
                                         .on_order = count_order,
                                         .ctx = bed};

    coordinator_bed_begin(&bed->coordinator, &params);
}

static void end_coordinator(bed_t *bed)
{
    coordinator_bed_end(&bed->coordinator);
}

static void look(bed_t *bed)
{
    coordinator_bed_look(&bed->coordinator);
}

static bed_t *make_bed(sl_job_class_t job_class)
{
    bed_t *bed = calloc(1, sizeof(*bed));

    assert_non_null(bed);
    coordinator_bed_open(&bed->coordinator);
    (void)snprintf(bed->job.name, sizeof(bed->job.name), "made-up");
    bed->job.pid = 77;
    bed->job.start_ticks = 1;
    bed->job.job_class = job_class;
    bed->job.created_ns = 1;
    bed->job.n_devices = 2;
    (void)snprintf(bed->job.devices[0].name, sizeof(bed->job.devices[0].name),
                   "cpu:0");
    (void)snprintf(bed->job.devices[1].name, sizeof(bed->job.devices[1].name),
                   "cpu:1");
    bed->job.devices[0].capacity_bytes = 1024 * MIB;
    bed->job.devices[1].capacity_bytes = 1024 * MIB;
    bed->job.devices[0].n_threads = bed->job.devices[1].n_threads = 1;
    sl_assert_ok(
        sl_job_dir_create(bed->coordinator.dir, &bed->job, &bed->job_dir));
    bed->status.state = SL_JOB_STATE_RUNNING;
    bed->status.job_class = job_class;
    (void)snprintf(bed->status.unit, sizeof(bed->status.unit), "samples");
    bed->status.n_devices = 2;
    memcpy(bed->status.devices[0].name, "cpu:0", 6);
    memcpy(bed->status.devices[1].name, "cpu:1", 6);
    bed->status.devices[0].limit_bytes = 1024 * MIB;
    bed->status.devices[1].limit_bytes = 1024 * MIB;
    bed->status.devices[0].share_asked = 100.0;
    bed->status.devices[1].share_asked = 100.0;
    publish(bed);
    begin_coordinator(bed, 0);
    return bed;
}

static void free_bed(bed_t *bed)
{
    end_coordinator(bed);
    sl_job_dir_remove(bed->coordinator.dir, &bed->job_dir);
    coordinator_bed_close(&bed->coordinator);
    free(bed);
}

static const sl_control_order_t *order_in_file(bed_t *bed)
{
    sl_assert_ok(
        sl_run_order_read(bed->coordinator.dir, &bed->job_dir.id, &bed->order));
    return &bed->order;
}

/* The job takes what the file says. */
static void obey(bed_t *bed)
{
    const sl_control_order_t *order = order_in_file(bed);
    int g;

    bed->status.accepted_sequence = order->sequence;
    for (g = 0; g < order->n_gates && g < 2; g++) {
        if (order->gates[g].share >= 0.0) {
            bed->status.devices[g].share_asked = order->gates[g].share;
        }
        if (order->gates[g].limit_bytes > 0) {
            bed->status.devices[g].limit_bytes = order->gates[g].limit_bytes;
        }
    }
    publish(bed);
}

static void write_order(bed_t *bed, const sl_control_order_t *order)
{
    sl_assert_ok(
        sl_run_order_write(bed->coordinator.dir, &bed->job_dir.id, order));
}

static void a_new_job_is_answered_at_once(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    const sl_control_order_t *order;

    (void)state;
    look(bed);
    order = order_in_file(bed);
    assert_int_equal(order->sequence, 1);
    assert_int_equal(order->n_gates, 2);
    assert_true(order->gates[1].share == 100.0);
    assert_true(order->floor_share == 2.0);
    assert_int_equal(order->ttl_ms, 8000);
    assert_string_equal(order->writer_token, "coordinator");
    free_bed(bed);
}

static int n_written(bed_t *bed, const char *part)
{
    char path[640], text[8192];
    const char *at = text;
    FILE *file;
    size_t n;
    int count = 0;

    (void)snprintf(path, sizeof(path), "%s/jobs/%s/%s",
                   sl_run_dir_path(bed->coordinator.dir), bed->job_dir.id.text,
                   SL_FILE_CONTROL);
    file = fopen(path, "r");
    assert_non_null(file);
    n = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    while ((at = strstr(at, part)) != NULL) {
        count++;
        at++;
    }
    return count;
}

/* Beside a guarantee job with a page; and no more when that has gone. */
static void a_guest_is_told_whose_pulse_to_follow(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    sl_control_status_t status = bed->status;
    sl_control_job_t job = bed->job;
    sl_pulse_map_t *page = NULL;
    sl_job_dir_t host;
    char part[3 * SL_CONTROL_ID_BYTES];

    (void)state;
    look(bed);
    assert_int_equal(n_written(bed, "\"yield_to\":[]"), 2);
    (void)snprintf(job.name, sizeof(job.name), "host");
    (void)snprintf(job.devices[0].core_list, 8, "0");
    job.job_class = SL_JOB_CLASS_GUARANTEE;
    sl_assert_ok(sl_job_dir_create(bed->coordinator.dir, &job, &host));
    sl_assert_ok(sl_pulse_create(host.fd, 2, &page));
    status.job_class = SL_JOB_CLASS_GUARANTEE;
    status.sequence = 1;
    coordinator_bed_tell(&host, &status);
    look(bed);
    /* it is not known where this job's devices run: both of the host's */
    (void)snprintf(part, sizeof(part), "\"yield_to\":[\"%s:0\",\"%s:1\"]",
                   host.id.text, host.id.text);
    assert_int_equal(n_written(bed, part), 2);
    assert_int_equal(order_in_file(bed)->n_yields, 4);
    obey(bed);
    look(bed); /* the same again is no news */
    look(bed);
    assert_true(order_in_file(bed)->sequence <= 3);
    sl_pulse_unmap(page);
    sl_job_dir_remove(bed->coordinator.dir, &host);
    look(bed);
    assert_int_equal(n_written(bed, "\"yield_to\":[]"), 2);
    free_bed(bed);
}

/* A guarantee job keeps what it has when the coordinator is gone. */
static void a_guarantee_order_holds_for_ever(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_GUARANTEE);

    (void)state;
    look(bed);
    assert_int_equal(order_in_file(bed)->ttl_ms, 0);
    free_bed(bed);
}

/* No news, no order; but a guest's TTL is kept from running out. */
static void orders_are_written_for_news_and_ttl_only(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    int i;

    (void)state;
    look(bed);
    obey(bed);
    for (i = 0; i < 8; i++) {
        look(bed);
    }
    assert_int_equal(order_in_file(bed)->sequence, 1);
    for (i = 0; i < 8; i++) {
        look(bed);
    }
    assert_true(order_in_file(bed)->sequence > 1);
    assert_true(order_in_file(bed)->sequence <= 3);
    assert_int_equal(bed->n_orders, 1); /* a renewal is no news */
    free_bed(bed);
}

static void sequence_numbers_are_taken_over(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    uint64_t before;

    (void)state;
    bed->status.accepted_sequence = 41; /* from a coordinator of the past */
    publish(bed);
    look(bed);
    assert_int_equal(order_in_file(bed)->sequence, 42);
    obey(bed);
    before = bed->order.sequence;
    end_coordinator(bed);
    begin_coordinator(bed, 0);
    look(bed);
    look(bed);
    assert_true(order_in_file(bed)->sequence >= before);
    assert_true(bed->order.gates[0].share == 100.0);
    free_bed(bed);
}

static void a_dry_run_writes_nothing(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    int i;

    (void)state;
    end_coordinator(bed);
    begin_coordinator(bed, 1);
    for (i = 0; i < 50; i++) {
        look(bed);
    }
    sl_assert_status(
        sl_run_order_read(bed->coordinator.dir, &bed->job_dir.id, &bed->order),
        SL_ERR_NOT_FOUND);
    assert_int_equal(bed->n_orders, 1);
    free_bed(bed);
}

/* Shares by hand: with the marks of `sluice ctl`, over many looks and a
 * restart, until the mark goes. */
static void what_ctl_set_outlives_the_coordinator(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    sl_control_order_t order;
    sl_pins_t pins;
    int i;

    (void)state;
    look(bed);
    obey(bed);
    order = *order_in_file(bed);
    order.sequence++;
    order.gates[1].share = 12.5;
    memset(&pins, 0, sizeof(pins));
    pins.shares = 2;
    sl_pins_token(&pins, SL_PINS_CTL, order.writer_token);
    assert_string_equal(order.writer_token, "ctl.s2");
    write_order(bed, &order);
    for (i = 0; i < 40; i++) {
        look(bed);
        obey(bed);
        if (i == 20) {
            end_coordinator(bed);
            begin_coordinator(bed, 0);
        }
    }
    assert_string_equal(bed->order.writer_token, "coordinator.s2");
    assert_true(bed->order.gates[1].share == 12.5);
    assert_true(bed->order.gates[0].share == 100.0);
    assert_true(bed->order.ttl_ms > 0); /* for the other device */
    assert_true(bed->order.gates[1].is_kept && !bed->order.gates[0].is_kept);
    order = bed->order;
    order.sequence++;
    (void)snprintf(order.writer_token, sizeof(order.writer_token), "ctl");
    write_order(bed, &order);
    look(bed);
    look(bed);
    assert_true(order_in_file(bed)->gates[1].share == 100.0);
    assert_true(!bed->order.gates[1].is_kept);
    free_bed(bed);
}

/* Three lines of shell have no marks: all they say is by hand. */
static void what_anybody_wrote_stays(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    sl_control_order_t order;
    int i;

    (void)state;
    sl_control_order_default(&order);
    order.sequence = 9;
    order.n_gates = 1;
    memcpy(order.gates[0].name, "cpu:0", 6);
    order.gates[0].share = 40.0;
    order.gates[0].limit_bytes = 0;
    write_order(bed, &order);
    for (i = 0; i < 5; i++) {
        look(bed);
        obey(bed);
    }
    assert_string_equal(bed->order.writer_token, "coordinator.s1");
    assert_true(bed->order.gates[0].share == 40.0);
    assert_true(bed->order.gates[1].share == 100.0);
    assert_true(bed->order.sequence > 9);
    free_bed(bed);
}

static void suspended_by_hand_holds_for_ever(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    sl_control_order_t order;

    (void)state;
    look(bed);
    order = *order_in_file(bed);
    order.sequence++;
    order.action = SL_CONTROL_ACTION_WAIT;
    memcpy(order.writer_token, "ctl.h", 6);
    write_order(bed, &order);
    look(bed);
    look(bed);
    assert_int_equal(order_in_file(bed)->action, SL_CONTROL_ACTION_WAIT);
    assert_int_equal(bed->order.ttl_ms, 0);
    assert_string_equal(bed->order.reason, "suspended by hand");
    order.sequence = bed->order.sequence + 1;
    order.action = SL_CONTROL_ACTION_NONE;
    memcpy(order.writer_token, "ctl", 4);
    write_order(bed, &order);
    look(bed);
    look(bed);
    assert_int_equal(order_in_file(bed)->action, SL_CONTROL_ACTION_NONE);
    free_bed(bed);
}

static void stop_and_class_are_passed_on(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    sl_control_order_t order;

    (void)state;
    look(bed);
    order = *order_in_file(bed);
    order.sequence++;
    order.action = SL_CONTROL_ACTION_STOP;
    order.job_class = SL_JOB_CLASS_GUARANTEE;
    memcpy(order.writer_token, "ctl", 4);
    write_order(bed, &order);
    bed->coordinator.now_ns += 10 * COORDINATOR_SECOND_NS;
    look(bed);
    assert_true(order_in_file(bed)->sequence > order.sequence);
    assert_int_equal(bed->order.action, SL_CONTROL_ACTION_STOP);
    assert_int_equal(bed->order.job_class, SL_JOB_CLASS_GUARANTEE);
    free_bed(bed);
}

/* A job without a class is told nothing but that it may start. */
static void a_job_without_a_class_is_told_nothing(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_NONE);

    (void)state;
    look(bed);
    assert_int_equal(order_in_file(bed)->n_gates, 0);
    assert_int_equal(bed->order.action, SL_CONTROL_ACTION_NONE);
    assert_int_equal(bed->order.ttl_ms, 0);
    free_bed(bed);
}

static void a_job_that_waits_is_told_why(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);

    (void)state;
    sl_job_dir_remove(bed->coordinator.dir, &bed->job_dir);
    bed->job.devices[1].wanted_bytes = 4096 * MIB;
    bed->status.state = SL_JOB_STATE_WAITING;
    sl_assert_ok(
        sl_job_dir_create(bed->coordinator.dir, &bed->job, &bed->job_dir));
    publish(bed);
    look(bed);
    assert_int_equal(order_in_file(bed)->action, SL_CONTROL_ACTION_WAIT);
    sl_assert_contains(bed->order.reason, "needs 4.00 GiB on cpu:1");
    assert_int_equal(bed->order.ttl_ms, 8000); /* not for ever */
    free_bed(bed);
}

/* It is read between its opening and its question whether it may start. */
static void a_job_that_has_not_asked_yet_is_not_let_in(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);

    (void)state;
    sl_job_dir_remove(bed->coordinator.dir, &bed->job_dir);
    bed->job.devices[0].wanted_bytes = 4096 * MIB;
    sl_assert_ok(
        sl_job_dir_create(bed->coordinator.dir, &bed->job, &bed->job_dir));
    publish(bed);
    assert_int_equal(bed->status.state, SL_JOB_STATE_RUNNING);
    look(bed);
    assert_int_equal(order_in_file(bed)->action, SL_CONTROL_ACTION_WAIT);
    free_bed(bed);
}

/* HAMi-core 282, Gemini: half a file must not become defaults. */
static void a_half_written_status_keeps_the_last_one(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_GUARANTEE);
    int i;

    (void)state;
    bed->status.step = 5;
    publish(bed);
    look(bed);
    sl_assert_ok(
        sl_atomic_write(bed->job_dir.fd, SL_FILE_STATUS, 0600, "{\"schema", 9));
    for (i = 0; i < 5; i++) {
        look(bed);
    }
    assert_int_equal(bed->coordinator.seen.n_jobs, 1);
    assert_int_equal(bed->coordinator.seen.jobs[0].step, 5);
    sl_assert_contains(sl_test_log_take(), "cannot read its status");
    look(bed);
    assert_string_equal(sl_test_log_take(), ""); /* said once */
    publish(bed);
    look(bed);
    assert_int_equal(bed->coordinator.seen.n_jobs, 1);
    free_bed(bed);
}

static void a_job_that_ended_is_forgotten(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_GUARANTEE);

    (void)state;
    look(bed);
    assert_int_equal(bed->coordinator.seen.n_jobs, 1);
    (void)close(bed->job_dir.lock_fd); /* as kill -9 does */
    bed->job_dir.lock_fd = -1;
    look(bed);
    assert_int_equal(bed->coordinator.seen.n_jobs, 0);
    (void)close(bed->job_dir.fd);
    sl_assert_ok(
        sl_job_dir_create(bed->coordinator.dir, &bed->job, &bed->job_dir));
    publish(bed);
    look(bed);
    assert_int_equal(bed->coordinator.seen.n_jobs, 1);
    free_bed(bed);
}

/* ---- marks ---- */

static void marks_survive_their_text(void **state)
{
    sl_control_order_t order;
    sl_control_job_t job;
    sl_pins_t pins, back;
    int d;

    (void)state;
    memset(&job, 0, sizeof(job));
    sl_control_order_default(&order);
    job.n_devices = order.n_gates = SL_CONTROL_MAX_DEVICES;
    for (d = 0; d < SL_CONTROL_MAX_DEVICES; d++) {
        (void)snprintf(job.devices[d].name, sizeof(job.devices[d].name),
                       "cpu:%d", d);
        memcpy(order.gates[d].name, job.devices[d].name,
               sizeof(order.gates[d].name));
        order.gates[d].share = 1.0;
        order.gates[d].limit_bytes = 1;
    }
    pins.shares = pins.limits = UINT64_MAX;
    pins.is_held = 1;
    sl_pins_token(&pins, SL_PINS_COORDINATOR, order.writer_token);
    sl_pins_read(&order, &job, &back);
    assert_memory_equal(&pins, &back, sizeof(pins));
    order.gates[3].share = -1.0; /* nothing to hold on to */
    sl_pins_read(&order, &job, &back);
    assert_true(back.shares == ~(UINT64_C(1) << 3));
}

static void odd_tokens_are_harmless(void **state)
{
    static const char *const tokens[] = {"",
                                         "ctl.",
                                         "ctl.s",
                                         "ctl.szz",
                                         "ctl....h",
                                         "coordinatorx",
                                         "ctl.sffffffffffffffffffffffffffff",
                                         "ctl.l-1",
                                         "ctl.q4.s1",
                                         "coordinator.h.h.s1.s2"};
    sl_control_order_t order;
    sl_control_job_t job;
    sl_pins_t pins;
    size_t i;

    (void)state;
    memset(&job, 0, sizeof(job));
    job.n_devices = 1;
    memcpy(job.devices[0].name, "cpu:0", 6);
    for (i = 0; i < sizeof(tokens) / sizeof(*tokens); i++) {
        sl_control_order_default(&order);
        order.n_gates = 1;
        memcpy(order.gates[0].name, "cpu:0", 6);
        order.gates[0].share = 5.0;
        (void)snprintf(order.writer_token, sizeof(order.writer_token), "%s",
                       tokens[i]);
        sl_pins_read(&order, &job, &pins);
        assert_true(pins.shares <= 1);
        assert_int_equal(pins.limits, 0);
    }
}

/* ---- the report ---- */

static void the_report_is_read_back(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_GUARANTEE);
    sl_coord_report_t report;

    (void)state;
    look(bed);
    bed->coordinator.decisions.jobs[0].baseline_us = 1234.5;
    bed->coordinator.decisions.jobs[0].slowdown = 1.02;
    sl_assert_ok(sl_coord_report_write(bed->coordinator.dir, "guarantee-first",
                                       &bed->coordinator.seen,
                                       &bed->coordinator.decisions));
    sl_assert_status(sl_coord_report_read(bed->coordinator.dir, &report),
                     SL_ERR_NOT_FOUND); /* written by nobody who lives */
    sl_assert_ok(sl_run_dir_coordinate(bed->coordinator.dir));
    sl_assert_ok(sl_coord_report_read(bed->coordinator.dir, &report));
    assert_string_equal(report.policy, "guarantee-first");
    assert_int_equal(report.n_jobs, 1);
    assert_string_equal(report.jobs[0].id.text, bed->job_dir.id.text);
    assert_true(report.jobs[0].slowdown == 1.02);
    free_bed(bed);
}

static void a_bad_report_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{}",
        "7",
        "{\"schema\": 1}",
        "{\"schema\": 1, \"policy\": 3, \"jobs\": {}}",
        "{\"schema\": 2, \"policy\": \"fair\", \"jobs\": {}}",
        "{\"schema\": 1, \"policy\": \"fair\", \"jobs\": []}"};
    bed_t *bed = make_bed(SL_JOB_CLASS_GUARANTEE);
    sl_coord_report_t report;
    size_t i;

    (void)state;
    sl_assert_ok(sl_run_dir_coordinate(bed->coordinator.dir));
    for (i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        sl_assert_ok(sl_atomic_write(bed->coordinator.dir->fd,
                                     "coordinator.json", 0600, texts[i],
                                     strlen(texts[i])));
        sl_assert_status(sl_coord_report_read(bed->coordinator.dir, &report),
                         SL_ERR_CORRUPT);
    }
    free_bed(bed);
}

/* One coordinator per directory, whatever the other one's pid file says. */
static void there_is_one_coordinator(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_GUARANTEE);
    sl_run_dir_t *other = NULL;

    (void)state;
    sl_assert_ok(sl_run_dir_coordinate(bed->coordinator.dir));
    sl_assert_ok(
        sl_run_dir_open(sl_run_dir_path(bed->coordinator.dir), &other));
    sl_assert_status(sl_run_dir_coordinate(other), SL_ERR_CANCELED);
    sl_run_dir_close(other);
    free_bed(bed);
}

/* What job.json says of its GPUs reaches the decisions. */
static void gpus_are_read_from_the_file(void **state)
{
    bed_t *bed = make_bed(SL_JOB_CLASS_OPPORTUNISTIC);
    const sl_control_order_t *order;
    char *text = NULL;
    int d;

    (void)state;
    for (d = 0; d < 2; d++) {
        sl_control_device_t *device = &bed->job.devices[d];

        (void)snprintf(device->name, sizeof(device->name), "cuda:%d", d);
        memcpy(bed->status.devices[d].name, device->name, sizeof(device->name));
        device->kind = SL_DEVICE_KIND_CUDA;
        (void)snprintf(device->gpu_id, sizeof(device->gpu_id), "GPU-7");
        device->gpu_bytes = 1024 * MIB;
    }
    sl_assert_ok(sl_control_job_format(&bed->job, &text));
    sl_assert_ok(sl_atomic_write(bed->job_dir.fd, SL_FILE_JOB, 0600, text,
                                 strlen(text)));
    free(text);
    publish(bed);
    look(bed);
    assert_string_equal(bed->coordinator.seen.jobs[0].devices[1].gpu_id,
                        "GPU-7");
    assert_true(bed->coordinator.seen.jobs[0].devices[1].gpu_bytes ==
                1024 * MIB);
    obey(bed);
    look(bed);
    order = order_in_file(bed);
    assert_int_equal(order->n_gates, 2); /* of 896 MiB */
    assert_true(order->gates[0].limit_bytes == 448 * MIB);
    assert_true(order->gates[1].limit_bytes == 448 * MIB);
    free_bed(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_new_job_is_answered_at_once),
        sl_unit_test(a_guest_is_told_whose_pulse_to_follow),
        sl_unit_test(a_guarantee_order_holds_for_ever),
        sl_unit_test(orders_are_written_for_news_and_ttl_only),
        sl_unit_test(sequence_numbers_are_taken_over),
        sl_unit_test(a_dry_run_writes_nothing),
        sl_unit_test(what_ctl_set_outlives_the_coordinator),
        sl_unit_test(what_anybody_wrote_stays),
        sl_unit_test(suspended_by_hand_holds_for_ever),
        sl_unit_test(stop_and_class_are_passed_on),
        sl_unit_test(a_job_without_a_class_is_told_nothing),
        sl_unit_test(a_job_that_waits_is_told_why),
        sl_unit_test(a_job_that_has_not_asked_yet_is_not_let_in),
        sl_unit_test(a_half_written_status_keeps_the_last_one),
        sl_unit_test(a_job_that_ended_is_forgotten),
        sl_unit_test(marks_survive_their_text),
        sl_unit_test(odd_tokens_are_harmless),
        sl_unit_test(gpus_are_read_from_the_file),
        sl_unit_test(the_report_is_read_back),
        sl_unit_test(a_bad_report_is_refused),
        sl_unit_test(there_is_one_coordinator),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
