/* SPDX-License-Identifier: Apache-2.0 */
/* The policy of re-balancing: medians over windows, a change that lasts, a
 * pause after each answer that doubles when moves come soon after another. */
#include "engine/rebalance.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_DOUBLINGS = 8,
    MAX_REFUSALS = 4,
    /* pauses without a move after which the doubling starts again */
    QUIET_PAUSES = 8,
    /* samples between quartiles of busy time */
    QUARTILE_EVERY = 4
};

/* The latest values of something. */
typedef struct sl_window {
    double *values; /* [room] */
    int room, n, next;
} sl_window_t;

/* A deviation: how long it has been there without a break. */
typedef struct sl_streak {
    int n; /* boundaries */
    uint64_t since_ns;
} sl_streak_t;

typedef struct sl_device_record {
    double plan;  /* speed that the cuts are made for */
    double least; /* smallest quartile of busy time; 0 = none yet */
    double free;  /* of its share, what others leave: 0 to 1 */
    double plan_free;
    sl_window_t share, busy;
} sl_device_record_t;

struct sl_rebalance {
    sl_rebalance_params_t params;
    sl_device_record_t *devices; /* owned */
    sl_window_t steps;
    double *storage;           /* owned; values of all windows, and: */
    double *sorted;            /* scratch of the largest window */
    sl_streak_t by_share, all; /* by shares alone; with what others load */
    int n_pause;               /* boundaries until the next answer may come */
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
    params->load_patience = 5;
    params->threshold = 0.15;
    params->least_gain = 1.05;
    params->payback_steps = 100;
}

static sl_status_t check_params(const sl_rebalance_params_t *params)
{
    sl_status_t status = SL_OK;

    if (params->n_devices < 1 || params->n_boundaries < 1 ||
        params->load_patience < 1 ||
        params->n_boundaries > 100000 / params->load_patience ||
        !(params->threshold > 0.0 && params->threshold < 1.0) ||
        !(params->least_gain >= 1.0) || params->payback_steps < 1) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "rebalance: %d devices, %d boundaries, patience %d, threshold "
                "%g, gain %g, %d steps: not possible",
                params->n_devices, params->n_boundaries, params->load_patience,
                params->threshold, params->least_gain, params->payback_steps);
    }
out:
    return status;
}

static void window_init(sl_window_t *window, int room, double **storage_p)
{
    window->values = *storage_p;
    window->room = room;
    *storage_p += room;
}

static void give_storage(sl_rebalance_t *rebalance)
{
    const int n = rebalance->params.n_boundaries;
    const int n_long = n * rebalance->params.load_patience;
    double *next = rebalance->storage;
    int d;

    for (d = 0; d < rebalance->params.n_devices; d++) {
        window_init(&rebalance->devices[d].share, n, &next);
        window_init(&rebalance->devices[d].busy, n_long, &next);
    }
    window_init(&rebalance->steps, n, &next);
    rebalance->sorted = next;
}

sl_status_t sl_rebalance_create(const sl_rebalance_params_t *params,
                                sl_rebalance_t **rebalance_p)
{
    sl_rebalance_t *rebalance = NULL;
    sl_status_t status;
    size_t n, window, window_long;
    int d;

    SL_TRY(status, check_params(params), out);
    n = (size_t)params->n_devices;
    window = (size_t)params->n_boundaries;
    window_long = window * (size_t)params->load_patience;
    rebalance = calloc(1, sizeof(*rebalance));
    if (rebalance == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "rebalance: no host memory");
    }
    rebalance->devices = calloc(n, sizeof(*rebalance->devices));
    rebalance->storage = calloc(
        n * (window + window_long) + window + window_long, sizeof(double));
    if (rebalance->devices == NULL || rebalance->storage == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_destroy,
                "rebalance: no host memory for %zu devices", n);
    }
    rebalance->params = *params;
    rebalance->params.plan_speed = NULL;
    give_storage(rebalance);
    for (d = 0; d < params->n_devices; d++) {
        rebalance->devices[d].plan =
            params->plan_speed == NULL ? 1.0 : params->plan_speed[d];
        rebalance->devices[d].free = 1.0;
        rebalance->devices[d].plan_free = 1.0;
    }
    *rebalance_p = rebalance;
    return SL_OK;

err_destroy:
    sl_rebalance_destroy(rebalance);
out:
    return status;
}

void sl_rebalance_destroy(sl_rebalance_t *rebalance)
{
    if (rebalance != NULL) {
        free(rebalance->devices);
        free(rebalance->storage);
        free(rebalance);
    }
}

/* ---- windows ---- */

static void push(sl_window_t *window, double value)
{
    window->values[window->next] = value;
    window->next = (window->next + 1) % window->room;
    window->n += window->n < window->room;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The value that `percent` of the others do not exceed. */
static double quantile(const sl_rebalance_t *rebalance,
                       const sl_window_t *window, size_t percent)
{
    const size_t n = (size_t)window->n;

    memcpy(rebalance->sorted, window->values, n * sizeof(double));
    qsort(rebalance->sorted, n, sizeof(double), by_value);
    return rebalance->sorted[n * percent / 100];
}

static double median(const sl_rebalance_t *rebalance, const sl_window_t *window)
{
    return quantile(rebalance, window, 50);
}

static void scale(sl_window_t *window, double factor)
{
    int i;

    for (i = 0; i < window->n; i++) {
        window->values[i] *= factor;
    }
}

/* ---- speeds ---- */

/* Kernels that take longer than they did at their best leave room to
 * others. The quartile: a load that is there less than three quarters of the
 * time is none to move for. */
static void find_free(const sl_rebalance_t *rebalance,
                      sl_device_record_t *device)
{
    double busy;

    if (device->busy.n < device->busy.room ||
        device->busy.next % QUARTILE_EVERY != 0) {
        return;
    }
    busy = quantile(rebalance, &device->busy, 25);
    if (device->least <= 0.0 || busy < device->least) {
        device->least = busy;
    }
    device->free = busy > 0.0 ? device->least / busy : 1.0;
}

static double at_least(double speed)
{
    return speed > 0.01 ? speed : 0.01;
}

/* Only ratios between devices decide where to cut. Shares are as they are
 * now, so that one that comes and goes never lasts. */
static int is_deviating(const sl_rebalance_t *rebalance, const double *share,
                        int by_share)
{
    const int n = rebalance->params.n_devices;
    double plan = 0.0, now = 0.0;
    int pass, d;

    for (pass = 0; pass < 2; pass++) {
        for (d = 0; d < n; d++) {
            const sl_device_record_t *device = &rebalance->devices[d];
            const double speed = at_least(
                share[d] * (by_share ? device->plan_free : device->free));

            if (pass == 0) {
                plan += device->plan;
                now += speed;
            } else if (speed / now < device->plan / plan *
                                         (1.0 - rebalance->params.threshold)) {
                return 1;
            }
        }
    }
    return 0;
}

/* @return nonzero when it has lasted */
static int extend(sl_streak_t *streak, int is_deviating_now, uint64_t now_ns,
                  int n, uint64_t lasts_ns)
{
    if (!is_deviating_now) {
        streak->n = 0;
        return 0;
    }
    if (streak->n == 0) {
        streak->since_ns = now_ns;
    }
    streak->n++;
    return streak->n >= n && now_ns - streak->since_ns >= lasts_ns;
}

int sl_rebalance_observe(sl_rebalance_t *rebalance,
                         const sl_rebalance_sample_t *sample)
{
    const sl_rebalance_params_t *params = &rebalance->params;
    int d, has_lasted;

    for (d = 0; d < params->n_devices; d++) {
        push(&rebalance->devices[d].share, sample->share[d]);
        push(&rebalance->devices[d].busy, sample->busy_us[d]);
        find_free(rebalance, &rebalance->devices[d]);
    }
    push(&rebalance->steps, sample->step_us);
    rebalance->n_pause -= rebalance->n_pause > 0;
    has_lasted =
        extend(&rebalance->by_share, is_deviating(rebalance, sample->share, 1),
               sample->now_ns, params->n_boundaries, params->lasts_ns);
    has_lasted |=
        extend(&rebalance->all, is_deviating(rebalance, sample->share, 0),
               sample->now_ns, params->n_boundaries * params->load_patience,
               params->lasts_ns * (uint64_t)params->load_patience);
    if (rebalance->by_share.n == 0 && rebalance->all.n == 0) {
        rebalance->n_refusals = 0;
    }
    return has_lasted && rebalance->n_pause == 0 &&
           sample->now_ns >= rebalance->pause_until_ns;
}

void sl_rebalance_speeds(const sl_rebalance_t *rebalance, double *speeds)
{
    int d;

    for (d = 0; d < rebalance->params.n_devices; d++) {
        const sl_device_record_t *device = &rebalance->devices[d];

        speeds[d] =
            device->share.n == 0
                ? device->plan
                : at_least(median(rebalance, &device->share) * device->free);
    }
}

/* ---- answers ---- */

int sl_rebalance_is_worth(const sl_rebalance_t *rebalance, double step_before,
                          double step_after, double move_us)
{
    double saved_us;

    if (!(step_after > 0.0) || rebalance->steps.n == 0 ||
        step_before / step_after < rebalance->params.least_gain) {
        return 0;
    }
    saved_us =
        median(rebalance, &rebalance->steps) * (1.0 - step_after / step_before);
    return saved_us * rebalance->params.payback_steps >= move_us;
}

static uint64_t pause_ns(const sl_rebalance_t *rebalance, int n_doublings)
{
    return rebalance->params.lasts_ns << n_doublings;
}

static void pause_for(sl_rebalance_t *rebalance, uint64_t now_ns,
                      int n_doublings)
{
    rebalance->by_share.n = rebalance->all.n = 0;
    rebalance->n_pause = rebalance->params.n_boundaries << n_doublings;
    rebalance->pause_until_ns = now_ns + pause_ns(rebalance, n_doublings);
}

void sl_rebalance_moved(sl_rebalance_t *rebalance, uint64_t now_ns,
                        const double *speeds, const double *work_ratio)
{
    int d;

    if (rebalance->moved_ns == 0 ||
        now_ns - rebalance->moved_ns >
            QUIET_PAUSES * pause_ns(rebalance, rebalance->n_doublings)) {
        rebalance->n_doublings = 0;
    } else if (rebalance->n_doublings < MAX_DOUBLINGS) {
        rebalance->n_doublings++;
    }
    rebalance->moved_ns = now_ns;
    rebalance->n_refusals = 0;
    for (d = 0; d < rebalance->params.n_devices; d++) {
        sl_device_record_t *device = &rebalance->devices[d];

        device->plan = speeds[d];
        device->plan_free = device->free;
        device->least *= work_ratio[d];
        scale(&device->busy, work_ratio[d]);
    }
    pause_for(rebalance, now_ns, rebalance->n_doublings);
}

void sl_rebalance_stayed(sl_rebalance_t *rebalance, uint64_t now_ns)
{
    pause_for(rebalance, now_ns, rebalance->n_refusals);
    rebalance->n_refusals += rebalance->n_refusals < MAX_REFUSALS;
}
