/* SPDX-License-Identifier: Apache-2.0 */
/* The few things that drawing charts as SVG needs. */
#include "engine/report/svg_internal.h"

#include <math.h>
#include <string.h>

const char *sl_svg_number(double value, int decimals, char *text)
{
    size_t n, i;

    if (!isfinite(value)) {
        value = 0.0;
    }
    (void)snprintf(text, SL_SVG_NUMBER_BYTES, "%.*f", decimals,
                   value > 1e15    ? 1e15
                   : value < -1e15 ? -1e15
                                   : value);
    n = strlen(text);
    for (i = 0; i < n; i++) {
        if (text[i] != '-' && (text[i] < '0' || text[i] > '9')) {
            text[i] = '.';
        }
    }
    while (decimals > 0 && n > 1 && text[n - 1] == '0') {
        text[--n] = '\0';
    }
    if (decimals > 0 && text[n - 1] == '.') {
        text[--n] = '\0';
    }
    if (strcmp(text, "-0") == 0) {
        text[0] = '0';
        text[1] = '\0';
    }
    return text;
}

void sl_svg_attribute(FILE *stream, const char *name, double value)
{
    char text[SL_SVG_NUMBER_BYTES];

    (void)fprintf(stream, " %s=\"%s\"", name, sl_svg_number(value, 2, text));
}

void sl_svg_begin(FILE *stream, double width, double height, const char *css)
{
    char w[SL_SVG_NUMBER_BYTES], h[SL_SVG_NUMBER_BYTES];

    (void)sl_svg_number(width, 2, w);
    (void)sl_svg_number(height, 2, h);
    (void)fprintf(stream,
                  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%s\" "
                  "height=\"%s\" viewBox=\"0 0 %s %s\">\n"
                  "<style>\n"
                  "text { font: 12px sans-serif; fill: #24292f; }\n"
                  "%s</style>\n"
                  "<rect width=\"%s\" height=\"%s\" fill=\"#ffffff\"/>\n",
                  w, h, w, h, css, w, h);
}

void sl_svg_end(FILE *stream)
{
    (void)fputs("</svg>\n", stream);
}

void sl_svg_escape(FILE *stream, const char *text)
{
    const char *c;

    for (c = text; *c != '\0'; c++) {
        switch (*c) {
        case '&':
            (void)fputs("&amp;", stream);
            break;
        case '<':
            (void)fputs("&lt;", stream);
            break;
        case '>':
            (void)fputs("&gt;", stream);
            break;
        case '"':
            (void)fputs("&quot;", stream);
            break;
        default:
            if ((unsigned char)*c >= 0x20) {
                (void)fputc(*c, stream);
            }
            break;
        }
    }
}

void sl_svg_text(FILE *stream, double x, double y, const sl_svg_style_t *style,
                 const char *text)
{
    (void)fputs("<text", stream);
    sl_svg_attribute(stream, "x", x);
    sl_svg_attribute(stream, "y", y);
    (void)fprintf(stream, " class=\"%s\" text-anchor=\"%s\">",
                  style->class_name, style->anchor);
    sl_svg_escape(stream, text);
    (void)fputs("</text>\n", stream);
}

void sl_svg_line(FILE *stream, double x1, double y1, double x2, double y2,
                 const char *class_name)
{
    (void)fprintf(stream, "<line class=\"%s\"", class_name);
    sl_svg_attribute(stream, "x1", x1);
    sl_svg_attribute(stream, "y1", y1);
    sl_svg_attribute(stream, "x2", x2);
    sl_svg_attribute(stream, "y2", y2);
    (void)fputs("/>\n", stream);
}

double sl_svg_axis_step(double range, int n_max)
{
    const double least = range / (double)n_max;
    double step;

    if (!(least > 0.0) || !isfinite(least)) {
        return 1.0;
    }
    step = pow(10.0, floor(log10(least)));
    if (step >= least) {
        return step;
    }
    if (2.0 * step >= least) {
        return 2.0 * step;
    }
    return 5.0 * step >= least ? 5.0 * step : 10.0 * step;
}

int sl_svg_axis_decimals(double step)
{
    int decimals = 0;

    /* a step just below a power of ten must count as one */
    while (decimals < 6 && step < 0.999999) {
        step *= 10.0;
        decimals++;
    }
    return decimals;
}
