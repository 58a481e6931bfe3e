/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file control_bed.h
 * A job with devices and a control plane, in the test's folder.
 */
#ifndef SL_TESTS_SCHEDULER_CONTROL_BED_H
#define SL_TESTS_SCHEDULER_CONTROL_BED_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "scheduler/control.h"
#include "tests/support/sl_test.h"

enum {
    BED_PATH_BYTES = 512,
    BED_TRIES = 4000 /* of 5 ms: a bound, not a measure */
};
static const uint64_t BED_CAPACITY = UINT64_C(64) << 20;

typedef struct control_bed {
    sl_device_set_t *devices;
    sl_control_t *control;
    sl_run_dir_t *dir; /* the coordinator's view */
    sl_run_id_t id;
    sl_control_params_t params;
    atomic_int is_interrupted;
    _Atomic uint64_t now_ns; /* the virtual clock */
    uint64_t step;
    char run[BED_PATH_BYTES];
} control_bed_t;

static inline int bed_is_interrupted(void *ctx)
{
    return atomic_load(&((control_bed_t *)ctx)->is_interrupted);
}

static inline uint64_t bed_clock(void *ctx)
{
    return atomic_load(&((control_bed_t *)ctx)->now_ns);
}

static inline void bed_nap(void)
{
    const struct timespec nap = {.tv_nsec = 5000000};

    (void)nanosleep(&nap, NULL);
}

/* Until the condition holds; a test that waits in vain fails. */
#define bed_wait_for(condition)                                                \
    do {                                                                       \
        int bed_tries = 0;                                                     \
        while (!(condition) && bed_tries++ < BED_TRIES) {                      \
            bed_nap();                                                         \
        }                                                                      \
        assert_true(condition);                                                \
    } while (0)

/* Devices and parameters; change them, then bed_open(). */
static inline void bed_init(control_bed_t *bed, const char *spec)
{
    sl_device_params_t params;

    memset(bed, 0, sizeof(*bed));
    atomic_store(&bed->now_ns, UINT64_C(1000000000));
    sl_device_params_default(&params);
    params.spec = spec;
    params.n_threads = 1;
    params.memory_bytes = (size_t)BED_CAPACITY;
    params.host_bytes = (size_t)BED_CAPACITY;
    params.bind = 0;
    sl_assert_ok(sl_device_set_create(&params, &bed->devices));
    (void)snprintf(bed->run, sizeof(bed->run), "%s/run", sl_test_directory());
    sl_control_params_default(&bed->params);
    bed->params.run_dir = bed->run;
    bed->params.name = "bed";
    bed->params.devices = bed->devices;
    bed->params.status_ms = 5;
    bed->params.poll_ms = 20;
    bed->params.is_interrupted = bed_is_interrupted;
    bed->params.interrupt_ctx = bed;
    bed->params.clock_ns = bed_clock;
    bed->params.clock_ctx = bed;
}

static inline void bed_open(control_bed_t *bed)
{
    sl_assert_ok(sl_control_open(&bed->params, &bed->control));
    if (sl_control_id(bed->control) != NULL) {
        sl_assert_ok(sl_run_dir_open(bed->run, &bed->dir));
        (void)snprintf(bed->id.text, sizeof(bed->id.text), "%s",
                       sl_control_id(bed->control));
    }
}

static inline void bed_close(control_bed_t *bed)
{
    sl_control_close(bed->control);
    sl_run_dir_close(bed->dir);
    sl_device_set_destroy(bed->devices);
}

static inline int bed_boundary(control_bed_t *bed)
{
    const uint64_t peaks[SL_CONTROL_MAX_DEVICES] = {1000 * (bed->step + 1)};
    const sl_control_step_t step = {.step = ++bed->step,
                                    .step_us = 1000.0,
                                    .n_units = 32.0,
                                    .peak_bytes = peaks};

    return sl_control_boundary(bed->control, &step);
}

static inline sl_control_status_t bed_status(control_bed_t *bed)
{
    sl_control_status_t status;

    memset(&status, 0, sizeof(status));
    if (sl_run_status_read(bed->dir, &bed->id, &status) < 0) {
        status.sequence = 0; /* not written yet */
    }
    return status;
}

static inline void bed_path(const control_bed_t *bed, const char *file,
                            char path[2 * BED_PATH_BYTES])
{
    (void)snprintf(path, 2 * BED_PATH_BYTES, "%s/jobs/%s/%s", bed->run,
                   bed->id.text, file);
}

/* As a shell script would: write, then rename. */
static inline void bed_put(const char *path, const char *text)
{
    char temp[2 * BED_PATH_BYTES + 8];
    FILE *file;

    (void)snprintf(temp, sizeof(temp), "%s.tmp", path);
    file = fopen(temp, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(temp, path), 0);
}

static inline void bed_put_control(const control_bed_t *bed, const char *text)
{
    char path[2 * BED_PATH_BYTES];

    bed_path(bed, "control.json", path);
    bed_put(path, text);
}

static inline double bed_share(const control_bed_t *bed, int device)
{
    return sl_op_manager_share_get(bed->devices->devices[device].ops, NULL);
}

static inline int bed_is_near(double a, double b)
{
    const double gap = a - b;

    return gap < 1e-6 && gap > -1e-6;
}

static inline void bed_write_order(control_bed_t *bed, uint64_t sequence,
                                   double share, uint64_t ttl_ms,
                                   uint64_t limit_bytes)
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

static inline void bed_pass_time(control_bed_t *bed, uint64_t ms)
{
    (void)atomic_fetch_add(&bed->now_ns, ms * UINT64_C(1000000));
}

#endif /* SL_TESTS_SCHEDULER_CONTROL_BED_H */
