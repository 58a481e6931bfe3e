/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges and columns of curves. */
#include "engine/report/curve.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report/curve_internal.h"

static double x_at(const sl_curve_series_t *series, size_t i)
{
    return series->x == NULL ? (double)i : series->x[i];
}

static int is_drawn(const sl_curve_series_t *series, size_t i)
{
    return isfinite(series->y[i]) && isfinite(x_at(series, i));
}

void sl_curve_range_add(sl_curve_range_t *range,
                        const sl_curve_series_t *series)
{
    size_t i;

    for (i = 0; i < series->n; i++) {
        const double x = x_at(series, i), y = series->y[i];

        if (!is_drawn(series, i)) {
            continue;
        }
        if (range->n == 0) {
            range->x_min = range->x_max = x;
            range->y_min = range->y_max = y;
        }
        range->x_min = fmin(range->x_min, x);
        range->x_max = fmax(range->x_max, x);
        range->y_min = fmin(range->y_min, y);
        range->y_max = fmax(range->y_max, y);
        range->n++;
    }
}

void sl_curve_fill(const sl_curve_series_t *series,
                   const sl_curve_range_t *range, sl_curve_bucket_t *buckets,
                   size_t n_buckets)
{
    /* halves: the range itself may overflow */
    const double span = range->x_max * 0.5 - range->x_min * 0.5;
    size_t i;

    memset(buckets, 0, n_buckets * sizeof(*buckets));
    for (i = 0; i < series->n; i++) {
        const double x = x_at(series, i), y = series->y[i];
        sl_curve_bucket_t *bucket = buckets;

        if (!is_drawn(series, i)) {
            continue;
        }
        if (span > 0.0) {
            const double share = (x * 0.5 - range->x_min * 0.5) / span;

            bucket += (size_t)(share * (double)(n_buckets - 1) + 0.5);
        }
        bucket->min = bucket->n == 0 ? y : fmin(bucket->min, y);
        bucket->max = bucket->n == 0 ? y : fmax(bucket->max, y);
        bucket->sum += y;
        bucket->x_sum += x;
        bucket->n++;
    }
}

static int names_utf8(const char *locale)
{
    const char *dot = strrchr(locale, '.');
    char name[8] = "";
    size_t n = 0;

    for (dot = dot == NULL ? "" : dot + 1; *dot != '\0' && *dot != '@'; dot++) {
        if (*dot != '-' && n < sizeof(name) - 1) {
            name[n++] = (char)tolower((unsigned char)*dot);
        }
    }
    return strcmp(name, "utf8") == 0;
}

int sl_curve_is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    size_t i;

    for (i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const char *value = getenv(names[i]);

        if (value != NULL && value[0] != '\0') {
            return names_utf8(value);
        }
    }
    return 0;
}
