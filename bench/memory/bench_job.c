/* SPDX-License-Identifier: Apache-2.0 */
/* A training job whose memory limit moves.
 *
 *     bench_job resize CONFIG [KEY=VALUE...]
 *     bench_job limits CONFIG [KEY=VALUE...]
 *
 * `resize` prints how long requests took to be honoured, from the call to the
 * end of the boundary; `limits` prints the time of a step under limits from
 * 100 % to 30 % of what the job needs. JSON, one line a row. The host pool
 * must be large enough: devices.host_memory=8GiB. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "cli/job.h"

enum {
    N_WARM = 5,
    N_REQUESTS = 330,
    N_KINDS = 3,
    N_STEPS_MAX = 100000,
    N_TIMED = 12
};

static const char *const kind_names[N_KINDS] = {"shrink_free", "shrink_live",
                                                "grow"};

typedef struct bench {
    sl_job_t job;
    sl_loader_t *loader;
    size_t *need_bytes; /* per device; owned */
    double *step_ms;    /* owned */
    size_t n_steps;
    int is_warm; /* need_bytes is known */
    /* the request under way */
    atomic_int is_waiting; /* asked, not yet honoured */
    atomic_int is_ended;
    uint64_t asked_ns; /* written before is_waiting is set */
    double latency_ms[N_KINDS][N_REQUESTS];
    size_t n_latencies[N_KINDS];
    size_t n_first; /* honoured by the first boundary after the request */
    int n_crossed;  /* boundaries since the request */
    int kind;
} bench_t;

static int by_value(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

/* Sorts. */
static double quantile(double *values, size_t n, double q)
{
    size_t i = (size_t)(q * (double)n);

    if (n == 0) {
        return 0.0;
    }
    qsort(values, n, sizeof(*values), by_value);
    return values[i < n ? i : n - 1];
}

static sl_mem_t *device_mem(const bench_t *bench, int d)
{
    return bench->job.devices->devices[d].mem;
}

/* ---- steps ---- */

static sl_status_t step(bench_t *bench)
{
    sl_step_report_t report;
    sl_batch_t batch;
    sl_status_t status;
    int d;

    SL_TRY(status, sl_loader_next(bench->loader, &batch), out);
    SL_TRY(status, sl_engine_step(bench->job.engine, &batch, &report), out);
    bench->step_ms[bench->n_steps++ % N_STEPS_MAX] = report.step_us * 1e-3;
    if (!bench->is_warm) {
        for (d = 0; d < report.n_devices; d++) {
            bench->need_bytes[d] = report.devices[d].peak_bytes;
        }
    }
out:
    return status;
}

static sl_status_t start(bench_t *bench, int argc, char **argv)
{
    sl_loader_params_t params = {
        .split = SL_DATA_TRAIN, .shuffle = 1, .n_ahead = 2};
    sl_status_t status;
    int i;

    SL_TRY(status,
           sl_job_open(argv[2], (const char *const *)(argv + 3),
                       (size_t)(argc - 3), &bench->job),
           out);
    SL_TRY(status, sl_job_start(&bench->job), out);
    params.batch_rows = bench->job.config.batch;
    params.seed = (uint64_t)bench->job.config.seed;
    SL_TRY(status,
           sl_loader_create(bench->job.dataset, &params, &bench->loader), out);
    bench->need_bytes =
        calloc((size_t)bench->job.devices->n_devices, sizeof(size_t));
    bench->step_ms = calloc(N_STEPS_MAX, sizeof(double));
    if (bench->need_bytes == NULL || bench->step_ms == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory");
    }
    for (i = 0; i < N_WARM; i++) {
        SL_TRY(status, step(bench), out);
    }
    bench->n_steps = 0;
    bench->is_warm = 1;
out:
    return status;
}

static void stop(bench_t *bench)
{
    sl_loader_destroy(bench->loader);
    sl_job_close(&bench->job);
    free(bench->need_bytes);
    free(bench->step_ms);
}

/* ---- resize ---- */

/* After the boundary: was the request honoured? */
static void settle_request(bench_t *bench)
{
    const uint64_t now_ns = sl_clock_ns();
    int d;

    if (!atomic_load(&bench->is_waiting)) {
        return;
    }
    for (d = 0; d < bench->job.devices->n_devices; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(device_mem(bench, d), &stats);
        if (stats.limit_bytes != stats.asked_limit_bytes) {
            bench->n_crossed++;
            return; /* asked after this boundary, or not reached */
        }
    }
    bench->latency_ms[bench->kind][bench->n_latencies[bench->kind]++] =
        (double)(now_ns - bench->asked_ns) * 1e-6;
    bench->n_first += bench->n_crossed == 0;
    atomic_store(&bench->is_waiting, 0);
}

static void nap(uint64_t ns)
{
    const struct timespec time = {.tv_sec = (time_t)(ns / 1000000000),
                                  .tv_nsec = (long)(ns % 1000000000)};

    (void)nanosleep(&time, NULL);
}

/* Limits at random moments, kinds in turn. */
static void *ask(void *arg)
{
    bench_t *bench = arg;
    const sl_rng_t rng = sl_rng_at(1, 0, 0, 0, 0);
    uint64_t i;

    for (i = 0; i < N_REQUESTS && !atomic_load(&bench->is_ended); i++) {
        int d;

        nap(sl_rng_below(&rng, i, 100) * 1000000);
        bench->kind = (int)(i % N_KINDS);
        bench->n_crossed = 0;
        bench->asked_ns = sl_clock_ns();
        for (d = 0; d < bench->job.devices->n_devices; d++) {
            const size_t need = bench->need_bytes[d];
            const size_t limits[N_KINDS] = {need, need / 2, SIZE_MAX};

            sl_mem_limit_request(device_mem(bench, d), limits[bench->kind]);
        }
        atomic_store(&bench->is_waiting, 1);
        while (atomic_load(&bench->is_waiting) &&
               !atomic_load(&bench->is_ended)) {
            nap(1000000);
        }
    }
    atomic_store(&bench->is_ended, 1);
    return NULL;
}

static sl_status_t resize(bench_t *bench)
{
    pthread_t thread;
    sl_status_t status = SL_OK;
    size_t n;
    int k;

    if (pthread_create(&thread, NULL, ask, bench) != 0) {
        SL_FAIL(status, SL_ERR_DEVICE, out, "cannot start a thread");
    }
    while (status >= 0 && !atomic_load(&bench->is_ended)) {
        status = step(bench);
        settle_request(bench);
    }
    atomic_store(&bench->is_ended, 1);
    (void)pthread_join(thread, NULL);
    for (k = 0; k < N_KINDS; k++) {
        double *values = bench->latency_ms[k];

        n = bench->n_latencies[k];
        (void)printf("{\"request\": \"%s\", \"n\": %zu, \"p50_ms\": %.2f, "
                     "\"p90_ms\": %.2f, \"p99_ms\": %.2f, \"max_ms\": %.2f}\n",
                     kind_names[k], n, quantile(values, n, 0.5),
                     quantile(values, n, 0.9), quantile(values, n, 0.99),
                     quantile(values, n, 1.0));
    }
    n = bench->n_steps < N_STEPS_MAX ? bench->n_steps : N_STEPS_MAX;
    (void)printf("{\"steps\": %zu, \"step_p50_ms\": %.2f, \"step_p99_ms\": "
                 "%.2f, \"step_max_ms\": %.2f, \"at_first_boundary\": %zu}\n",
                 n, quantile(bench->step_ms, n, 0.5),
                 quantile(bench->step_ms, n, 0.99),
                 quantile(bench->step_ms, n, 1.0), bench->n_first);
out:
    return status;
}

/* ---- limits ---- */

typedef struct totals {
    uint64_t spill_bytes;
    uint64_t n_region_allocs;
    size_t held_bytes;
    size_t limit_bytes;
} totals_t;

static totals_t sum_devices(const bench_t *bench)
{
    totals_t totals = {0};
    int d, c;

    for (d = 0; d < bench->job.devices->n_devices; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(device_mem(bench, d), &stats);
        totals.n_region_allocs += stats.n_region_allocs;
        totals.held_bytes += stats.held_bytes;
        totals.limit_bytes += stats.limit_bytes;
        for (c = 0; c < SL_MEM_N_CLASSES; c++) {
            totals.spill_bytes += stats.classes[c].spill_bytes;
        }
    }
    return totals;
}

/* Of all threads: unlike wall time it does not count what other programs on
 * the machine take. */
static double cpu_ms(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

static sl_status_t run_at(bench_t *bench, int percent)
{
    totals_t before, after;
    double start_ms;
    sl_status_t status;
    int i, d;

    for (d = 0; d < bench->job.devices->n_devices; d++) {
        sl_mem_limit_request(device_mem(bench, d),
                             bench->need_bytes[d] / 100 * (size_t)percent);
    }
    for (i = 0; i < N_WARM + 3; i++) {
        SL_TRY(status, step(bench), out);
    }
    bench->n_steps = 0;
    before = sum_devices(bench);
    start_ms = cpu_ms();
    for (i = 0; i < N_TIMED; i++) {
        SL_TRY(status, step(bench), out);
    }
    start_ms = cpu_ms() - start_ms;
    after = sum_devices(bench);
    (void)printf("{\"percent\": %d, \"limit\": %zu, \"held\": %zu, "
                 "\"step_ms\": %.2f, \"step_min_ms\": %.2f, \"cpu_ms\": %.2f, "
                 "\"spill_bytes_per_step\": "
                 "%" PRIu64 ", \"regions_per_step\": %.1f}\n",
                 percent, after.limit_bytes, after.held_bytes,
                 quantile(bench->step_ms, N_TIMED, 0.5),
                 quantile(bench->step_ms, N_TIMED, 0.0), start_ms / N_TIMED,
                 (after.spill_bytes - before.spill_bytes) / N_TIMED,
                 (double)(after.n_region_allocs - before.n_region_allocs) /
                     N_TIMED);
    (void)fflush(stdout);
out:
    return status;
}

static sl_status_t limits(bench_t *bench)
{
    sl_status_t status = SL_OK;
    int percent;

    for (percent = 100; percent >= 30 && status >= 0; percent -= 10) {
        status = run_at(bench, percent);
    }
    if (status >= 0) {
        status = run_at(bench, 100); /* and back: is the start the same? */
    }
    return status;
}

int main(int argc, char **argv)
{
    static bench_t bench;
    sl_status_t status;

    if (argc < 3 ||
        (strcmp(argv[1], "resize") != 0 && strcmp(argv[1], "limits") != 0)) {
        (void)fprintf(stderr,
                      "usage: bench_job resize|limits CONFIG [KEY=VALUE...]\n");
        return 2;
    }
    status = start(&bench, argc, argv);
    if (status >= 0) {
        status = argv[1][0] == 'r' ? resize(&bench) : limits(&bench);
    }
    stop(&bench);
    return status < 0;
}
