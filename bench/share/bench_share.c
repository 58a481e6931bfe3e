/* SPDX-License-Identifier: Apache-2.0 */
/* How well an op manager keeps a share, and what its gate costs.
 *
 * The share is measured beside the manager: by the CPU clock of the device's
 * thread, read at the edges of seconds, so an op that runs over an edge is
 * counted in both. It includes the manager's own work. */
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "scheduler/machine.h"
#include "scheduler/scheduler.h"

enum {
    SECONDS_MAX = 60,
    N_STARTS = 20000,
    OVERHEAD_OPS = 200, /* fit the ring */
    OVERHEAD_TRIES = 40,
    STEP_MS = 100 /* of ops in a mini-batch, which AntMan's law needs */
};

static const double op_lengths_ms[] = {0.05, 0.5, 5.0, 50.0};

#define N_LENGTHS (sizeof(op_lengths_ms) / sizeof(*op_lengths_ms))

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now = {0};

    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A given amount of CPU time, as a kernel takes. */
static sl_status_t spin_op(const void *args, void *stream)
{
    const uint64_t end_ns =
        read_ns(CLOCK_THREAD_CPUTIME_ID) + *(const uint64_t *)args;

    (void)stream;
    while (read_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns) {
    }
    return SL_OK;
}

static sl_status_t clock_op(const void *args, void *stream)
{
    (void)stream;
    return pthread_getcpuclockid(pthread_self(), *(clockid_t *const *)args) == 0
               ? SL_OK
               : SL_ERR_UNSUPPORTED;
}

static sl_status_t stamp_op(const void *args, void *stream)
{
    (void)stream;
    **(uint64_t *const *)args = sl_clock_ns();
    return SL_OK;
}

/* A device on the last core; the submitter binds to the first. */
static sl_op_manager_t *open_device(void)
{
    static int cores[1024];
    const int n_cores = sl_device_cores(cores, 1024);
    sl_op_manager_params_t params;
    sl_op_manager_t *manager = NULL;

    sl_op_manager_params_default(&params);
    params.name = "bench:0";
    if (n_cores > 1 && n_cores <= 1024) {
        params.cores = &cores[n_cores - 1];
        params.n_cores = 1;
    }
    if (sl_op_manager_create(&params, &manager) != SL_OK) {
        exit(1);
    }
    return manager;
}

static void check(sl_status_t status)
{
    if (status != SL_OK) {
        (void)fprintf(stderr, "bench_share: %s\n", sl_last_error());
        exit(1);
    }
}

static void submit(sl_op_manager_t *manager, sl_op_fn fn, const void *args,
                   size_t bytes)
{
    const sl_op_t op = {.fn = fn, .args = args, .args_bytes = (uint32_t)bytes};

    check(sl_op_manager_submit(manager, &op, NULL));
}

/* ---- accuracy ---- */

typedef struct feeder {
    sl_op_manager_t *manager;
    uint64_t op_ns;
    int has_steps;
    pthread_t thread;
} feeder_t;

static void *feed(void *arg)
{
    feeder_t *feeder = arg;
    const sl_op_t op = {.fn = spin_op,
                        .args = &feeder->op_ns,
                        .args_bytes = sizeof(feeder->op_ns)};

    uint64_t start_ns = sl_clock_ns();
    uint64_t end_ns;
    uint64_t i;

    for (;;) {
        for (i = 0; i < STEP_MS * UINT64_C(1000000) / feeder->op_ns; i++) {
            if (sl_op_manager_submit(feeder->manager, &op, NULL) != SL_OK) {
                return NULL; /* canceled */
            }
        }
        if (feeder->has_steps) {
            if (sl_op_manager_drain(feeder->manager) != SL_OK) {
                return NULL;
            }
            end_ns = sl_clock_ns();
            sl_op_manager_boundary(feeder->manager,
                                   (double)(end_ns - start_ns) / 1e3);
            start_ns = end_ns;
        }
    }
}

static void sleep_until(uint64_t at_ns)
{
    const struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000),
                                .tv_nsec = (long)(at_ns % 1000000000)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) {
    }
}

/* One cell: its share over `seconds` windows, in percent. */
static void measure(double percent, sl_share_law_t law, double op_ms,
                    int seconds, double *windows, double *charged_p)
{
    feeder_t feeder = {.manager = open_device(),
                       .op_ns = (uint64_t)(op_ms * 1e6),
                       .has_steps = law == SL_SHARE_ANTMAN};
    clockid_t clock = CLOCK_MONOTONIC;
    clockid_t *place = &clock;
    sl_op_stats_t before;
    sl_op_stats_t after;
    uint64_t at_ns;
    int i;

    submit(feeder.manager, clock_op, &place, sizeof(place));
    check(sl_op_manager_drain(feeder.manager));
    check(sl_op_manager_share_set(feeder.manager, percent, law));
    if (pthread_create(&feeder.thread, NULL, feed, &feeder) != 0) {
        exit(1);
    }
    /* until the law has settled: AntMan's takes some mini-batches */
    at_ns = sl_clock_ns() + (feeder.has_steps ? 3000000000u : 500000000u);
    sleep_until(at_ns);
    sl_op_manager_stats(feeder.manager, &before);
    for (i = 0; i < seconds; i++) {
        const uint64_t cpu_ns = read_ns(clock);
        const uint64_t start_ns = sl_clock_ns();

        at_ns += 1000000000;
        sleep_until(at_ns);
        windows[i] = (double)(read_ns(clock) - cpu_ns) /
                     (double)(sl_clock_ns() - start_ns) * 100.0;
    }
    sl_op_manager_stats(feeder.manager, &after);
    *charged_p = (double)(after.charged_ns - before.charged_ns) /
                 (double)(after.elapsed_ns - before.elapsed_ns) * 100.0;
    sl_op_manager_cancel(feeder.manager); /* hours may be queued */
    (void)pthread_join(feeder.thread, NULL);
    sl_op_manager_destroy(feeder.manager);
}

static void print_cell(const char *law_name, double percent, double op_ms,
                       int seconds, const double *windows, double charged)
{
    double sum = 0.0;
    double squares = 0.0;
    int i;

    for (i = 0; i < seconds; i++) {
        sum += windows[i];
        squares += (windows[i] - percent) * (windows[i] - percent);
    }
    (void)printf("%-12s  %6.2f  %5.0f  %6.2f  %+6.2f  %6.2f  %7.2f\n", law_name,
                 op_ms, percent, sum / seconds, sum / seconds - percent,
                 sqrt(squares / seconds), charged);
    (void)fflush(stdout);
}

static void bench_accuracy(sl_share_law_t law, const int *percents, int seconds)
{
    const char *law_name = law == SL_SHARE_ANTMAN ? "antman" : "token-bucket";
    double windows[SECONDS_MAX];
    double charged;
    size_t k;
    int percent;

    (void)printf(
        "law           op ms   asked   got    error   rms/s   charged\n");
    for (k = 0; k < N_LENGTHS; k++) {
        for (percent = percents[0]; percent <= 90; percent += percents[1]) {
            measure(percent, law, op_lengths_ms[k], seconds, windows, &charged);
            print_cell(law_name, percent, op_lengths_ms[k], seconds, windows,
                       charged);
        }
    }
    /* what the machine had to give */
    measure(100, law, op_lengths_ms[2], seconds, windows, &charged);
    print_cell(law_name, 100, op_lengths_ms[2], seconds, windows, charged);
}

/* ---- cost ---- */

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int compare_double(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void bench_start(void)
{
    static uint64_t delays[N_STARTS];
    sl_op_manager_t *manager = open_device();
    uint64_t started_ns = 0;
    uint64_t *place = &started_ns;
    int core = 0;
    int i;

    if (sl_device_cores(&core, 1) > 1) {
        (void)sl_machine_bind_self(&core, 1);
    }
    for (i = 0; i < N_STARTS; i++) {
        const uint64_t submit_ns = sl_clock_ns();

        submit(manager, stamp_op, &place, sizeof(place));
        check(sl_op_manager_drain(manager));
        delays[i] = started_ns - submit_ns;
    }
    qsort(delays, N_STARTS, sizeof(*delays), compare_u64);
    (void)printf("submit to start, device awake: median %.0f ns, 99 %% %.0f "
                 "ns\n",
                 (double)delays[N_STARTS / 2],
                 (double)delays[N_STARTS * 99 / 100]);
    sl_op_manager_destroy(manager);
}

typedef struct work_args {
    long n_repeats;
    long n_rounds;
} work_args_t;

/* A chain of additions that no clock is read in. */
static sl_status_t work_op(const void *args, void *stream)
{
    const work_args_t *work = args;
    double sum = 1.0;
    long i;
    long k;

    (void)stream;
    for (k = 0; k < work->n_repeats; k++) {
        for (i = 0; i < work->n_rounds; i++) {
            sum = sum * 0.5 + 1.0;
        }
    }
    return sum > 0.0 ? SL_OK : SL_ERR_NUMERIC;
}

static double rounds_per_us(void)
{
    const work_args_t work = {.n_repeats = 1, .n_rounds = 10000000};
    uint64_t start_ns;

    start_ns = read_ns(CLOCK_THREAD_CPUTIME_ID);
    check(work_op(&work, NULL));
    return (double)work.n_rounds /
           ((double)(read_ns(CLOCK_THREAD_CPUTIME_ID) - start_ns) / 1e3);
}

/* CPU time of the device's thread for `n_ops` ops of work that were queued
 * before any started. */
static double work_ns(sl_op_manager_t *manager, clockid_t clock, double percent,
                      int n_ops, work_args_t work)
{
    uint64_t before_ns;
    int i;

    check(sl_op_manager_share_set(manager, 0, SL_SHARE_TOKEN_BUCKET));
    for (i = 0; i < n_ops; i++) {
        submit(manager, work_op, &work, sizeof(work));
    }
    before_ns = read_ns(clock);
    check(sl_op_manager_share_set(manager, percent, SL_SHARE_TOKEN_BUCKET));
    check(sl_op_manager_drain(manager));
    return (double)(read_ns(clock) - before_ns);
}

/* N ops against one op that does the work of all, in turn. */
static void bench_overhead(double percent, double op_us)
{
    sl_op_manager_t *manager = open_device();
    const work_args_t one = {.n_repeats = 1,
                             .n_rounds = (long)(op_us * rounds_per_us())};
    const work_args_t all = {.n_repeats = OVERHEAD_OPS,
                             .n_rounds = one.n_rounds};
    double extra_ns[OVERHEAD_TRIES];
    double alone_ns = 0.0;
    clockid_t clock = CLOCK_MONOTONIC;
    clockid_t *place = &clock;
    int i;

    submit(manager, clock_op, &place, sizeof(place));
    check(sl_op_manager_drain(manager));
    for (i = 0; i < OVERHEAD_TRIES; i++) {
        alone_ns = work_ns(manager, clock, percent, 1, all);
        extra_ns[i] =
            work_ns(manager, clock, percent, OVERHEAD_OPS, one) - alone_ns;
    }
    qsort(extra_ns, OVERHEAD_TRIES, sizeof(*extra_ns), compare_double);
    alone_ns /= OVERHEAD_OPS;
    (void)printf(
        "ops of %.1f us at %g %%: the manager takes %.0f ns each (%.0f "
        "to %.0f), %.2f %%\n",
        alone_ns / 1e3, percent, extra_ns[OVERHEAD_TRIES / 2] / OVERHEAD_OPS,
        extra_ns[OVERHEAD_TRIES / 4] / OVERHEAD_OPS,
        extra_ns[OVERHEAD_TRIES * 3 / 4] / OVERHEAD_OPS,
        extra_ns[OVERHEAD_TRIES / 2] / OVERHEAD_OPS / alone_ns * 100.0);
    sl_op_manager_destroy(manager);
}

/* ---- the program ---- */

static void usage(void)
{
    (void)puts(
        "usage: bench_share [--seconds N] [--first SHARE] [--step POINTS]"
        " [--law token-bucket|antman]\n"
        "       bench_share --cost\n"
        "  --seconds N    per cell, 1 to 60 (default 4)\n"
        "  --first SHARE  the first share asked (default 10)\n"
        "  --step POINTS  to the next, up to 90 (default 20)\n"
        "  --law LAW      (default token-bucket)\n"
        "  --cost         what the manager costs, instead");
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seconds", required_argument, NULL, 's'},
        {"first", required_argument, NULL, 'f'},
        {"step", required_argument, NULL, 'p'},
        {"law", required_argument, NULL, 'l'},
        {"cost", no_argument, NULL, 'c'},
        {NULL, 0, NULL, 0}};
    sl_share_law_t law = SL_SHARE_TOKEN_BUCKET;
    int seconds = 4;
    int percents[] = {10, 20};
    int is_cost = 0;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 's':
            seconds = (int)strtol(optarg, NULL, 10);
            break;
        case 'f':
            percents[0] = (int)strtol(optarg, NULL, 10);
            break;
        case 'p':
            percents[1] = (int)strtol(optarg, NULL, 10);
            break;
        case 'l':
            law = strcmp(optarg, "antman") == 0 ? SL_SHARE_ANTMAN
                                                : SL_SHARE_TOKEN_BUCKET;
            break;
        case 'c':
            is_cost = 1;
            break;
        default:
            usage();
            return 2;
        }
    }
    if (seconds < 1 || seconds > SECONDS_MAX || percents[0] < 1 ||
        percents[1] < 1) {
        usage();
        return 2;
    }
    if (is_cost) {
        bench_start();
        bench_overhead(100, 0.1);
        bench_overhead(100, 50);
        bench_overhead(99.9, 50);
        return 0;
    }
    bench_accuracy(law, percents, seconds);
    return 0;
}
