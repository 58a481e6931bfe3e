/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file svg_internal.h
 * Writing SVG text: numbers that no locale changes, escaped text, round axis
 * steps. Errors stay in the stream.
 */
#ifndef SL_ENGINE_REPORT_SVG_INTERNAL_H
#define SL_ENGINE_REPORT_SVG_INTERNAL_H

#include <stddef.h>
#include <stdio.h>

typedef struct sl_svg_style {
    const char *class_name; /**< of the document's style sheet */
    const char *anchor;     /**< "start", "middle", "end" */
} sl_svg_style_t;

/** A number with at most `decimals` (0 to 6) of them, "." in any locale, no
 *  zeros at the end, into text of SL_SVG_NUMBER_BYTES. */
enum {
    SL_SVG_NUMBER_BYTES = 48
};
const char *sl_svg_number(double value, int decimals, char *text);

/** The document's start: size, white ground, fonts and `css`. */
void sl_svg_begin(FILE *stream, double width, double height, const char *css);
void sl_svg_end(FILE *stream);

/** name="value" */
void sl_svg_attribute(FILE *stream, const char *name, double value);
/** Text as XML content: escaped, control characters left out. */
void sl_svg_escape(FILE *stream, const char *text);
void sl_svg_text(FILE *stream, double x, double y, const sl_svg_style_t *style,
                 const char *text);
void sl_svg_line(FILE *stream, double x1, double y1, double x2, double y2,
                 const char *class_name);

/** The step of an axis: 1, 2 or 5 times a power of ten, so that `range`
 *  has at most n_max steps. */
double sl_svg_axis_step(double range, int n_max);
/** Decimals that show multiples of the step. */
int sl_svg_axis_decimals(double step);

#endif /* SL_ENGINE_REPORT_SVG_INTERNAL_H */
