/* SPDX-License-Identifier: Apache-2.0 */
/* The signal of a guarantee job: the median of its latest mini-batches over
 * its baseline, the median while its guests were at the floor. A mean would
 * let single outliers starve the guests. Only mini-batches that began after
 * the shares last moved count, so each move starts a new window. */
#include <stdlib.h>

#include "scheduler/coordinator/coordinator_internal.h"

#define SECOND_NS UINT64_C(1000000000)

enum {
    STALL_MINI_BATCHES = 3,   /* one that lasts so long is a stall */
    STALL_GIVE_UP_S = 30,     /* guests at the floor are not its reason */
    PROBE_EVERY_PERIODS = 20, /* keeps probes below 5 % of the time */
    PULSE_PERIODS = 2,        /* before a cut of guests that follow a pulse */
    SURE_CUT = 2,             /* thresholds: cut at once */
    DEEP_CUT = 3              /* and by more */
};

void sl_coord_signal_moved(sl_coord_signal_t *signal, uint64_t now_ns,
                           int is_cut)
{
    signal->change_ns = now_ns;
    signal->was_cut = is_cut;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double sl_coord_median(double *values, int n)
{
    if (n <= 0) {
        return 0.0;
    }
    qsort(values, (size_t)n, sizeof(*values), compare);
    return n % 2 == 1 ? values[n / 2]
                      : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* The latest mini-batches, at most `n_max`, that began at `since_ns` or
 * later. Their starts are found backwards from the last boundary. */
static int window(const sl_coord_job_t *job, uint64_t since_ns, int n_max,
                  double *median_us_p)
{
    double values[SL_CONTROL_RECENT];
    double start_ns = (double)job->boundary_ns;
    int n = 0;

    while (n < n_max && n < job->n_recent) {
        values[n] = job->recent_us[job->n_recent - 1 - n];
        start_ns -= values[n] * 1e3;
        if (start_ns < (double)since_ns) {
            break;
        }
        n++;
    }
    *median_us_p = sl_coord_median(values, n);
    return n;
}

static void set_baseline(sl_coord_signal_t *signal, uint64_t now_ns)
{
    signal->baseline_us = signal->median_us;
    signal->baseline_ns = now_ns;
    signal->n_baselines++;
}

static int is_probe_due(const sl_coord_params_t *params,
                        const sl_coord_signal_t *signal, uint64_t now_ns)
{
    const uint64_t period_ns = (uint64_t)(signal->baseline_us * 1e3) *
                               (uint64_t)params->period_mini_batches;
    uint64_t every_ns = params->probe_ns;

    if (every_ns < period_ns * PROBE_EVERY_PERIODS) {
        every_ns = period_ns * PROBE_EVERY_PERIODS;
    }
    return now_ns - signal->baseline_ns >= every_ns;
}

/* A mini-batch that still runs is in no median. */
static int is_stalled(const sl_coord_signal_t *signal, uint64_t since_ns)
{
    return since_ns > SECOND_NS &&
           (double)since_ns > signal->baseline_us * 1e3 * STALL_MINI_BATCHES;
}

static sl_coord_verdict_t judge_stall(const sl_coord_params_t *params,
                                      const sl_coord_signal_t *signal,
                                      uint64_t now_ns, uint64_t since_ns,
                                      int is_at_floor)
{
    if (now_ns - signal->change_ns < params->period_ns) {
        return SL_COORD_STAY;
    }
    if (since_ns >= STALL_GIVE_UP_S * SECOND_NS) {
        return SL_COORD_RAISE;
    }
    return is_at_floor ? SL_COORD_STAY : SL_COORD_CUT;
}

/* A full window without a violation. With all guests at the floor it is a
 * baseline for nothing, and so is one faster than the baseline. */
static sl_coord_verdict_t judge_clean(const sl_coord_params_t *params,
                                      sl_coord_signal_t *signal,
                                      uint64_t now_ns, int is_at_floor)
{
    if (is_at_floor ||
        signal->median_us < (1.0 - params->threshold) * signal->baseline_us) {
        set_baseline(signal, now_ns);
    } else if (is_probe_due(params, signal, now_ns)) {
        signal->is_probing = 1;
        sl_coord_signal_moved(signal, now_ns, 1);
        return SL_COORD_FLOOR;
    }
    /* Between half the threshold and the threshold there is no move: a law
     * that always moves would violate again and again. */
    return signal->median_us >
                   (1.0 + 0.5 * params->threshold) * signal->baseline_us
               ? SL_COORD_STAY
               : SL_COORD_RAISE;
}

/* How much slower than the baseline. What is far above the threshold is
 * judged on the latest mini-batches alone, half a period of them when the
 * shares last rose; what is near it, where noise could be the reason, on all
 * since the last move, two periods at least. SL_COORD_RAISE: all is
 * well. */
static sl_coord_verdict_t judge_excess(const sl_coord_params_t *params,
                                       const sl_coord_signal_t *signal,
                                       const sl_coord_job_t *job)
{
    const int period = params->period_mini_batches;
    /* the pulse answers at once; what it does not see lasts, while a burst of
     * some slow mini-batches is the machine's */
    const int least = job->has_pulse    ? PULSE_PERIODS * period
                      : signal->was_cut ? period
                                        : (period + 1) / 2;
    double latest_us, all_us, excess;
    const int n = window(job, signal->change_ns,
                         job->has_pulse ? least : period, &latest_us);
    const int n_all =
        window(job, signal->change_ns, SL_CONTROL_RECENT, &all_us);

    excess = latest_us / signal->baseline_us - 1.0;
    if (n >= least && excess > DEEP_CUT * params->threshold) {
        return SL_COORD_CUT_DEEP;
    }
    if (n >= least && excess > SURE_CUT * params->threshold) {
        return SL_COORD_CUT;
    }
    excess = all_us / signal->baseline_us - 1.0;
    if (n_all < period || excess <= params->threshold) {
        return SL_COORD_RAISE;
    }
    return n_all >= 2 * period || n_all >= SL_CONTROL_RECENT ? SL_COORD_CUT
                                                             : SL_COORD_STAY;
}

sl_coord_verdict_t sl_coord_judge(const sl_coord_params_t *params,
                                  sl_coord_signal_t *signal,
                                  const sl_coord_job_t *job, uint64_t now_ns,
                                  int is_at_floor)
{
    const int period = params->period_mini_batches;
    const uint64_t alive_ns =
        job->boundary_ns > signal->idle_ns ? job->boundary_ns : signal->idle_ns;
    const uint64_t since_ns = now_ns > alive_ns ? now_ns - alive_ns : 0;
    sl_coord_verdict_t verdict = SL_COORD_RAISE;
    double median_us;
    int n, is_full;

    if (signal->change_ns == 0) { /* seen for the first time */
        sl_coord_signal_moved(signal, now_ns, 1);
    }
    n = window(job, signal->change_ns, SL_CONTROL_RECENT, &median_us);
    is_full = n >= period && now_ns - signal->change_ns >= params->period_ns;
    if (2 * n >= period) {
        signal->median_us = median_us;
    }
    if (signal->baseline_us <= 0.0 || signal->is_probing) {
        if (!is_full) {
            return SL_COORD_FLOOR;
        }
        set_baseline(signal, now_ns);
        signal->is_probing = 0;
        return SL_COORD_RESTORE;
    }
    if (is_stalled(signal, since_ns)) {
        return judge_stall(params, signal, now_ns, since_ns, is_at_floor);
    }
    if (!is_at_floor) {
        verdict = judge_excess(params, signal, job);
    }
    if (verdict == SL_COORD_RAISE) {
        verdict = is_full ? judge_clean(params, signal, now_ns, is_at_floor)
                          : SL_COORD_STAY;
    }
    return verdict;
}
