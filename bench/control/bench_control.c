/* SPDX-License-Identifier: Apache-2.0 */
/* What the control plane costs a job: time in the boundary, CPU time of the
 * thread that reads and writes the files, time from order to effect.
 *     bench_control [SECONDS] [DEVICES] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "scheduler/control.h"

enum {
    MAX_SAMPLES = 1 << 20,
    STEP_US = 1000, /* between two boundaries */
    N_ORDERS = 100
};

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_row(const char *what, double *us, size_t n)
{
    qsort(us, n, sizeof(*us), compare);
    (void)printf("%-28s n %7zu  median %8.2f us  p99 %8.2f us  max %8.2f us\n",
                 what, n, us[n / 2], us[n * 99 / 100], us[n - 1]);
}

static double cpu_seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void nap_us(long us)
{
    const struct timespec nap = {.tv_nsec = us * 1000};

    (void)nanosleep(&nap, NULL);
}

static uint64_t n_steps;

static double boundary_us(sl_control_t *control)
{
    const sl_control_step_t step = {
        .step = ++n_steps, .step_us = STEP_US, .n_units = 32.0};
    const uint64_t start_ns = sl_clock_ns();

    (void)sl_control_boundary(control, &step);
    return (double)(sl_clock_ns() - start_ns) * 1e-3;
}

static void measure_boundary(sl_control_t *control, double seconds, double *us)
{
    const uint64_t start_ns = sl_clock_ns();
    size_t n = 0;

    while ((double)(sl_clock_ns() - start_ns) < seconds * 1e9 &&
           n < MAX_SAMPLES) {
        us[n++] = boundary_us(control);
        nap_us(STEP_US);
    }
    print_row("boundary", us, n);
}

static void measure_idle(void)
{
    enum {
        SECONDS = 5,
        NAP_US = 500000
    };
    const double before = cpu_seconds();
    int i;

    for (i = 0; i < SECONDS * 1000000 / NAP_US; i++) {
        nap_us(NAP_US);
    }
    (void)printf("%-28s %.3f %% of one core\n", "idle job, all its threads",
                 (cpu_seconds() - before) / SECONDS * 100.0);
}

/* From rename to the share in force. */
static void measure_orders(sl_control_t *control, const sl_device_t *device,
                           double *us)
{
    sl_run_dir_t *dir = NULL;
    sl_control_order_t order;
    sl_run_id_t id;
    size_t i;

    if (sl_run_dir_open(NULL, &dir) < 0) {
        return;
    }
    (void)snprintf(id.text, sizeof(id.text), "%s", sl_control_id(control));
    sl_control_order_default(&order);
    order.n_gates = 1;
    memcpy(order.gates[0].name, device->name, sizeof(order.gates[0].name));
    for (i = 0; i < N_ORDERS; i++) {
        const double share = 20.0 + (double)(i % 50);
        uint64_t start_ns;

        order.sequence = i + 1;
        order.gates[0].share = share;
        start_ns = sl_clock_ns();
        if (sl_run_order_write(dir, &id, &order) < 0) {
            break;
        }
        while (sl_op_manager_share_get(device->ops, NULL) != share) {
            nap_us(10);
        }
        us[i] = (double)(sl_clock_ns() - start_ns) * 1e-3;
        nap_us(20000);
    }
    if (i > 0) {
        print_row("order written to in force", us, i);
    }
    sl_run_dir_close(dir);
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : 5.0;
    char spec[32];
    sl_device_params_t device_params;
    sl_control_params_t params;
    sl_device_set_t *devices = NULL;
    sl_control_t *control = NULL;
    double *us = calloc(MAX_SAMPLES, sizeof(*us));

    (void)snprintf(spec, sizeof(spec), "cpu:%d", argc > 2 ? atoi(argv[2]) : 2);
    sl_device_params_default(&device_params);
    device_params.spec = spec;
    device_params.n_threads = 1;
    if (us == NULL || sl_device_set_create(&device_params, &devices) < 0) {
        return 1;
    }
    sl_control_params_default(&params);
    params.name = "bench";
    params.devices = devices;
    if (sl_control_open(&params, &control) < 0 ||
        sl_control_id(control) == NULL) {
        return 1;
    }
    measure_boundary(control, seconds, us);
    measure_idle();
    measure_orders(control, &devices->devices[0], us);
    sl_control_close(control);
    sl_device_set_destroy(devices);
    free(us);
    return 0;
}
