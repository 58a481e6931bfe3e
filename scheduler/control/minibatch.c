/* SPDX-License-Identifier: Apache-2.0 */
/* Rolling statistics of mini-batch times. */
#include "scheduler/control/minibatch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void sl_minibatch_add(sl_minibatch_t *batch, double us, double n_units)
{
    const size_t i = (size_t)(batch->n % SL_MINIBATCH_WINDOW);

    batch->us[i] = isfinite(us) && us > 0.0 ? us : 0.0;
    batch->units[i] = isfinite(n_units) && n_units > 0.0 ? n_units : 0.0;
    batch->n++;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Number `age` from the newest (0). */
static size_t slot(const sl_minibatch_t *batch, uint64_t age)
{
    return (size_t)((batch->n - 1 - age) % SL_MINIBATCH_WINDOW);
}

static uint64_t at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void sl_minibatch_fill(const sl_minibatch_t *batch, sl_control_status_t *status)
{
    const size_t n = (size_t)at_most(batch->n, SL_MINIBATCH_WINDOW);
    const uint64_t n_recent = at_most(n, SL_CONTROL_RECENT);
    double sorted[SL_MINIBATCH_WINDOW];
    double us = 0.0, units = 0.0;
    uint64_t i;

    if (n == 0) {
        return;
    }
    for (i = 0; i < n_recent; i++) {
        const size_t s = slot(batch, n_recent - 1 - i);

        status->recent_us[i] = batch->us[s];
        us += batch->us[s];
        units += batch->units[s];
    }
    status->n_recent = (int)n_recent;
    status->units_per_s = us > 0.0 ? units / us * 1e6 : 0.0;
    memcpy(sorted, batch->us, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare);
    status->last_us = batch->us[slot(batch, 0)];
    status->median_us = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    status->p99_us = sorted[(n * 99 + 99) / 100 - 1];
}

double sl_minibatch_mean_us(const sl_minibatch_t *batch, int n_last)
{
    const uint64_t n =
        at_most(at_most(batch->n, SL_MINIBATCH_WINDOW), (uint64_t)n_last);
    double sum = 0.0;
    uint64_t i;

    for (i = 0; i < n; i++) {
        sum += batch->us[slot(batch, i)];
    }
    return n > 0 ? sum / (double)n : 0.0;
}
