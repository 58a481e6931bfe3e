/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file curve.h
 * Curves of a run, such as its loss: as characters for a terminal, and as
 * SVG. Values that are not finite are left out.
 */
#ifndef SL_ENGINE_REPORT_CURVE_H
#define SL_ENGINE_REPORT_CURVE_H

#include <stddef.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef struct sl_curve_series {
    const char *name; /**< borrowed; "loss" */
    const double *x;  /**< borrowed; n rising numbers, NULL = 0, 1, 2, ... */
    const double *y;  /**< borrowed; n numbers */
    size_t n;
} sl_curve_series_t;

typedef enum sl_curve_charset {
    SL_CURVE_AUTO, /**< braille when the environment's locale is UTF-8 */
    SL_CURVE_ASCII,
    SL_CURVE_BRAILLE /**< 2 x 4 dots a character, in UTF-8 */
} sl_curve_charset_t;

typedef struct sl_curve_text_params {
    int width;  /**< columns in all; 0 = 72 */
    int height; /**< rows of the plot; 0 = 12 */
    sl_curve_charset_t charset;
} sl_curve_text_params_t;

/** Whether the environment (LC_ALL, LC_CTYPE, LANG) asks for UTF-8. */
SL_API int sl_curve_is_utf8(void);

/**
 * One curve as lines of text. Where several values share a column, their
 * mean is drawn.
 *
 * @param[out] text_p owned (free); says so when there is nothing to draw
 * @return SL_OK, SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t
sl_curve_text(const sl_curve_series_t *series,
              const sl_curve_text_params_t *params, char **text_p);

/**
 * Up to eight curves over the same axes as SVG, written atomically. A long
 * curve is drawn as its mean, with a band from least to most around it.
 *
 * @return SL_OK; SL_ERR_INVALID_ARG (nothing to draw, or too many);
 *         SL_ERR_IO; SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t
sl_curve_svg_write(const char *path, const char *title,
                   const sl_curve_series_t *series, size_t n_series);

SL_END_DECLS
#endif /* SL_ENGINE_REPORT_CURVE_H */
