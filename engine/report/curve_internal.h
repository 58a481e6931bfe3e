/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file curve_internal.h
 * What both forms of a curve share: its range, and values by column.
 */
#ifndef SL_ENGINE_REPORT_CURVE_INTERNAL_H
#define SL_ENGINE_REPORT_CURVE_INTERNAL_H

#include "engine/report/curve.h"

/** Of the finite values. */
typedef struct sl_curve_range {
    size_t n;
    double x_min, x_max;
    double y_min, y_max;
} sl_curve_range_t;

/** The values that fall into one column. */
typedef struct sl_curve_bucket {
    size_t n; /**< 0 = none */
    double sum, min, max;
    double x_sum;
} sl_curve_bucket_t;

/** Widen *range by the series; start from a zeroed one. */
void sl_curve_range_add(sl_curve_range_t *range,
                        const sl_curve_series_t *series);

/** Sort the values of a series into n_buckets equal parts of the range's x. */
void sl_curve_fill(const sl_curve_series_t *series,
                   const sl_curve_range_t *range, sl_curve_bucket_t *buckets,
                   size_t n_buckets);

#endif /* SL_ENGINE_REPORT_CURVE_INTERNAL_H */
