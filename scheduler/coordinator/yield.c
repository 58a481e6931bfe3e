/* SPDX-License-Identifier: Apache-2.0 */
/* What a guest makes of its share. Mini-batches of two jobs cannot be
 * compared, so a guest is measured against its own best: the yield falls
 * when it spills to the host, contends for caches or waits for its data. */
#include "scheduler/coordinator/coordinator_internal.h"

enum {
    YIELD_MINI_BATCHES = 5, /* a measurement takes so many, ... */
    YIELD_S = 2             /* ... and so long */
};

static const double BEST_DECAY = 0.95; /* an outlier is forgotten */

static double achieved(const sl_coord_job_t *job)
{
    double sum = 0.0;
    int d, n = 0;

    for (d = 0; d < job->n_devices; d++) {
        if (job->devices[d].achieved_percent >= 0.0) {
            sum += job->devices[d].achieved_percent;
            n++;
        }
    }
    return n == 0 ? -1.0 : sum / n;
}

static void begin(sl_coord_yield_t *yield, const sl_coord_job_t *job,
                  uint64_t now_ns)
{
    yield->since_ns = now_ns;
    yield->since_step = job->step;
    yield->used = 0.0;
}

static void note(sl_coord_yield_t *yield, double value)
{
    yield->latest = yield->latest > 0.0 ? 0.5 * (yield->latest + value) : value;
    yield->best *= BEST_DECAY;
    if (yield->latest > yield->best) {
        yield->best = yield->latest;
    }
}

/* Begins and ends at looks that saw a new mini-batch, so that the part of
 * one that is done counts neither for nor against it. */
void sl_coord_measure_yield(sl_coord_yield_t *yield, const sl_coord_job_t *job,
                            uint64_t now_ns)
{
    const double percent = achieved(job);
    const int is_first = yield->seen_ns == 0 || job->step < yield->seen_step;
    const int is_boundary = is_first || job->step > yield->seen_step;

    if (is_first) {
        begin(yield, job, now_ns);
    } else if (percent > 0.0) {
        yield->used += percent * (double)(now_ns - yield->seen_ns) * 1e-9;
    }
    yield->seen_ns = now_ns;
    yield->seen_step = job->step;
    if (!is_boundary || yield->used <= 0.0 ||
        job->step < yield->since_step + YIELD_MINI_BATCHES ||
        (double)(now_ns - yield->since_ns) < YIELD_S * 1e9) {
        return;
    }
    note(yield, (double)(job->step - yield->since_step) / yield->used);
    begin(yield, job, now_ns);
}

double sl_coord_gain(const sl_coord_yield_t *yield, const sl_coord_job_t *job)
{
    const double percent = achieved(job);
    double gain = 1.0;

    if (yield->best > 0.0) {
        gain = yield->latest / yield->best;
    }
    if (percent >= 0.0 && job->n_devices > 0 &&
        percent < job->devices[0].share_percent) {
        gain *= percent / job->devices[0].share_percent;
    }
    return gain;
}
