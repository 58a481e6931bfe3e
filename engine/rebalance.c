/* SPDX-License-Identifier: Apache-2.0 */
/* The policy of re-balancing: medians over a window, a change that lasts, a
 * pause after each answer that doubles when moves come soon after another. */
#include "engine/rebalance.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_DOUBLINGS = 8,
    MAX_REFUSALS = 4,
    /* pauses without a move after which the doubling starts again */
    QUIET_PAUSES = 8
};

struct sl_rebalance {
    sl_rebalance_params_t params;
    double *storage; /* owned; all arrays of doubles below */
    double *plan;    /* [n_devices] speeds that the cuts are made for */
    double *least;   /* [n_devices] smallest median of busy time; 0 = none */
    double *free;    /* [n_devices] of its share, what others leave */
    double *share;   /* [n_devices * window] */
    double *busy;    /* [n_devices * window] */
    double *steps;   /* [window] */
    double *sorted;  /* [window] scratch */
    int n_samples, next;
    int n_deviating; /* boundaries in a row */
    uint64_t since_ns;
    int n_pause; /* boundaries until the next answer may come */
    uint64_t pause_until_ns;
    uint64_t moved_ns; /* 0 = never */
    int n_doublings;
    int n_refusals; /* since the last move: it was not worth it */
};

void sl_rebalance_params_default(sl_rebalance_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->n_boundaries = 20;
    params->lasts_ns = UINT64_C(2000000000);
    params->threshold = 0.15;
    params->least_gain = 1.05;
    params->payback_steps = 100;
}

sl_status_t sl_rebalance_create(const sl_rebalance_params_t *params,
                                sl_rebalance_t **rebalance_p)
{
    sl_rebalance_t *rebalance = NULL;
    sl_status_t status;
    size_t n, window;
    int d;

    if (params->n_devices < 1 || params->n_boundaries < 1 ||
        !(params->threshold > 0.0 && params->threshold < 1.0) ||
        !(params->least_gain >= 1.0) || params->payback_steps < 1) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "rebalance: %d devices, %d boundaries, threshold %g, gain %g, "
                "%d steps: not possible",
                params->n_devices, params->n_boundaries, params->threshold,
                params->least_gain, params->payback_steps);
    }
    n = (size_t)params->n_devices;
    window = (size_t)params->n_boundaries;
    rebalance = calloc(1, sizeof(*rebalance));
    if (rebalance != NULL) {
        rebalance->storage =
            calloc(3 * n + 2 * n * window + 2 * window, sizeof(double));
    }
    if (rebalance == NULL || rebalance->storage == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "rebalance: no host memory for %zu devices", n);
    }
    rebalance->params = *params;
    rebalance->plan = rebalance->storage;
    rebalance->least = rebalance->plan + n;
    rebalance->free = rebalance->least + n;
    rebalance->share = rebalance->free + n;
    rebalance->busy = rebalance->share + n * window;
    rebalance->steps = rebalance->busy + n * window;
    rebalance->sorted = rebalance->steps + window;
    for (d = 0; d < params->n_devices; d++) {
        rebalance->plan[d] =
            params->plan_speed == NULL ? 1.0 : params->plan_speed[d];
        rebalance->free[d] = 1.0;
    }
    rebalance->params.plan_speed = NULL;
    *rebalance_p = rebalance;
    return SL_OK;

err_free:
    free(rebalance);
out:
    return status;
}

void sl_rebalance_destroy(sl_rebalance_t *rebalance)
{
    if (rebalance != NULL) {
        free(rebalance->storage);
        free(rebalance);
    }
}

/* ---- speeds ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(const sl_rebalance_t *rebalance, const double *values)
{
    const size_t n = (size_t)rebalance->n_samples;

    memcpy(rebalance->sorted, values, n * sizeof(double));
    qsort(rebalance->sorted, n, sizeof(double), by_value);
    return rebalance->sorted[n / 2];
}

static void keep_sample(sl_rebalance_t *rebalance,
                        const sl_rebalance_sample_t *sample)
{
    const int window = rebalance->params.n_boundaries;
    int d;

    for (d = 0; d < rebalance->params.n_devices; d++) {
        rebalance->share[d * window + rebalance->next] = sample->share[d];
        rebalance->busy[d * window + rebalance->next] = sample->busy_us[d];
    }
    rebalance->steps[rebalance->next] = sample->step_us;
    rebalance->next = (rebalance->next + 1) % window;
    if (rebalance->n_samples < window) {
        rebalance->n_samples++;
    }
}

/* Kernels that take longer than they did at their best leave room to
 * others. */
static void find_free(sl_rebalance_t *rebalance)
{
    const int window = rebalance->params.n_boundaries;
    int d;

    for (d = 0; d < rebalance->params.n_devices; d++) {
        const double busy = median(rebalance, &rebalance->busy[d * window]);
        double *least = &rebalance->least[d];

        if (*least <= 0.0 || busy < *least) {
            *least = busy;
        }
        rebalance->free[d] = busy > 0.0 ? *least / busy : 1.0;
    }
}

static double speed_of(const sl_rebalance_t *rebalance, int d, double share)
{
    const double speed = share * rebalance->free[d];

    return speed > 0.01 ? speed : 0.01;
}

/* Only ratios between devices decide where to cut. Shares are as they are
 * now, so that one that comes and goes never lasts. */
static int is_deviating(const sl_rebalance_t *rebalance, const double *share)
{
    const int n = rebalance->params.n_devices;
    double plan = 0.0, now = 0.0;
    int d;

    for (d = 0; d < n; d++) {
        plan += rebalance->plan[d];
        now += speed_of(rebalance, d, share[d]);
    }
    for (d = 0; d < n; d++) {
        if (speed_of(rebalance, d, share[d]) / now <
            rebalance->plan[d] / plan * (1.0 - rebalance->params.threshold)) {
            return 1;
        }
    }
    return 0;
}

int sl_rebalance_observe(sl_rebalance_t *rebalance,
                         const sl_rebalance_sample_t *sample)
{
    const sl_rebalance_params_t *params = &rebalance->params;

    keep_sample(rebalance, sample);
    rebalance->n_pause -= rebalance->n_pause > 0;
    if (rebalance->n_samples == params->n_boundaries) {
        find_free(rebalance);
    }
    if (!is_deviating(rebalance, sample->share)) {
        rebalance->n_deviating = 0;
        rebalance->n_refusals = 0;
        return 0;
    }
    if (rebalance->n_deviating == 0) {
        rebalance->since_ns = sample->now_ns;
    }
    rebalance->n_deviating++;
    return rebalance->n_deviating >= params->n_boundaries &&
           sample->now_ns - rebalance->since_ns >= params->lasts_ns &&
           rebalance->n_samples == params->n_boundaries &&
           rebalance->n_pause == 0 &&
           sample->now_ns >= rebalance->pause_until_ns;
}

void sl_rebalance_speeds(const sl_rebalance_t *rebalance, double *speeds)
{
    const int window = rebalance->params.n_boundaries;
    int d;

    for (d = 0; d < rebalance->params.n_devices; d++) {
        speeds[d] =
            speed_of(rebalance, d,
                     rebalance->n_samples == 0
                         ? rebalance->plan[d]
                         : median(rebalance, &rebalance->share[d * window]));
    }
}

/* ---- answers ---- */

int sl_rebalance_is_worth(const sl_rebalance_t *rebalance, double step_before,
                          double step_after, double move_us)
{
    double saved_us;

    if (!(step_after > 0.0) ||
        step_before / step_after < rebalance->params.least_gain) {
        return 0;
    }
    saved_us =
        median(rebalance, rebalance->steps) * (1.0 - step_after / step_before);
    return saved_us * rebalance->params.payback_steps >= move_us;
}

static uint64_t pause_ns(const sl_rebalance_t *rebalance)
{
    return rebalance->params.lasts_ns << rebalance->n_doublings;
}

static void pause(sl_rebalance_t *rebalance, uint64_t now_ns, int n_doublings)
{
    rebalance->n_deviating = 0;
    rebalance->n_pause = rebalance->params.n_boundaries << n_doublings;
    rebalance->pause_until_ns =
        now_ns + (rebalance->params.lasts_ns << n_doublings);
}

void sl_rebalance_moved(sl_rebalance_t *rebalance, uint64_t now_ns,
                        const double *speeds, const double *work_ratio)
{
    int d;

    if (rebalance->moved_ns == 0 ||
        now_ns - rebalance->moved_ns > QUIET_PAUSES * pause_ns(rebalance)) {
        rebalance->n_doublings = 0;
    } else if (rebalance->n_doublings < MAX_DOUBLINGS) {
        rebalance->n_doublings++;
    }
    rebalance->moved_ns = now_ns;
    for (d = 0; d < rebalance->params.n_devices; d++) {
        rebalance->plan[d] = speeds[d];
        rebalance->least[d] *= work_ratio[d];
    }
    rebalance->n_samples = 0;
    rebalance->next = 0;
    rebalance->n_refusals = 0;
    pause(rebalance, now_ns, rebalance->n_doublings);
}

void sl_rebalance_stayed(sl_rebalance_t *rebalance, uint64_t now_ns)
{
    pause(rebalance, now_ns, rebalance->n_refusals);
    rebalance->n_refusals += rebalance->n_refusals < MAX_REFUSALS;
}
