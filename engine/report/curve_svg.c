/* SPDX-License-Identifier: Apache-2.0 */
/* Curves as SVG. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/report/curve.h"
#include "engine/report/curve_internal.h"
#include "engine/report/svg_internal.h"

/* Pixels, but for the numbers of things. */
enum {
    WIDTH = 820,
    HEIGHT = 400,
    LEFT = 76,
    RIGHT = 796,
    TOP = 72,
    BOTTOM = 344,
    TITLE_Y = 30,
    LEGEND_Y = 54,
    CHAR_WIDTH = 7,
    N_BUCKETS = 360,
    N_MARKED = 40, /* points of a short curve are marked */
    MAX_SERIES = 8
};

static const char css[] =
    ".title { font-size: 16px; font-weight: bold; }\n"
    ".t { font-size: 11px; fill: #57606a; }\n"
    ".grid { stroke: #e3e6ea; stroke-width: 1; }\n"
    ".axis { stroke: #8c959f; stroke-width: 1; }\n"
    "polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }\n"
    "polygon { stroke: none; fill-opacity: 0.18; }\n";

static const char *const colors[MAX_SERIES] = {"#2b65c0", "#d9700a", "#2f9157",
                                               "#8250df", "#cf222e", "#0b7f8c",
                                               "#9a6700", "#57606a"};

typedef struct plot {
    FILE *stream;
    sl_curve_range_t range; /* as the axes show it */
} plot_t;

static double x_of(const plot_t *plot, double x)
{
    const double span = plot->range.x_max - plot->range.x_min;

    return LEFT + (x - plot->range.x_min) / span * (RIGHT - LEFT);
}

static double y_of(const plot_t *plot, double y)
{
    const double span = plot->range.y_max - plot->range.y_min;

    return BOTTOM - (y - plot->range.y_min) / span * (BOTTOM - TOP);
}

/* Room around the values; never an empty range. */
static void widen(sl_curve_range_t *range)
{
    const double span = range->y_max - range->y_min;
    const double pad =
        span > 0.0 ? span * 0.04 : fmax(fabs(range->y_max) * 0.1, 1e-12);

    /* a loss is not negative: no room is made below 0 */
    range->y_min =
        range->y_min >= 0.0 && range->y_min < pad ? 0.0 : range->y_min - pad;
    range->y_max += pad;
    if (!(range->x_max > range->x_min)) {
        range->x_min -= 0.5;
        range->x_max += 0.5;
    }
}

static void draw_y_axis(const plot_t *plot)
{
    const sl_svg_style_t style = {"t", "end"};
    const sl_curve_range_t *range = &plot->range;
    const double step = sl_svg_axis_step(range->y_max - range->y_min, 7);
    const int decimals = sl_svg_axis_decimals(step);
    const double first = ceil(range->y_min / step);
    int i;

    for (i = 0; (first + i) * step <= range->y_max; i++) {
        const double value = (first + i) * step;
        const double y = y_of(plot, value);
        char text[SL_SVG_NUMBER_BYTES];

        if (fabs(value) >= 1e7 || step < 1e-6) {
            (void)snprintf(text, sizeof(text), "%.3g", value);
        } else {
            (void)sl_svg_number(value, decimals, text);
        }
        sl_svg_line(plot->stream, LEFT, y, RIGHT, y, "grid");
        sl_svg_text(plot->stream, LEFT - 8, y + 4, &style, text);
    }
}

static void draw_x_axis(const plot_t *plot)
{
    const sl_svg_style_t style = {"t", "middle"};
    const sl_curve_range_t *range = &plot->range;
    const double span = range->x_max - range->x_min;
    /* steps are whole */
    const double step = fmax(sl_svg_axis_step(span, 8), 1.0);
    const double first = ceil(range->x_min / step);
    int i;

    for (i = 0; (first + i) * step <= range->x_max; i++) {
        const double value = (first + i) * step;
        const double x = x_of(plot, value);
        char text[SL_SVG_NUMBER_BYTES];

        sl_svg_line(plot->stream, x, BOTTOM, x, BOTTOM + 5, "axis");
        sl_svg_text(plot->stream, x, BOTTOM + 19, &style,
                    sl_svg_number(value, 0, text));
    }
    sl_svg_line(plot->stream, LEFT, BOTTOM, RIGHT, BOTTOM, "axis");
    sl_svg_text(plot->stream, (LEFT + RIGHT) / 2.0, BOTTOM + 40, &style,
                "step");
}

static void put_point(const plot_t *plot, double x, double y)
{
    char a[SL_SVG_NUMBER_BYTES], b[SL_SVG_NUMBER_BYTES];

    (void)fprintf(plot->stream, "%s,%s ", sl_svg_number(x_of(plot, x), 2, a),
                  sl_svg_number(y_of(plot, y), 2, b));
}

static double mean_x(const sl_curve_bucket_t *bucket)
{
    return bucket->x_sum / (double)bucket->n;
}

static double mean_y(const sl_curve_bucket_t *bucket)
{
    return bucket->sum / (double)bucket->n;
}

/* There along the most, back along the least. */
static void draw_band(const plot_t *plot, const sl_curve_bucket_t *buckets,
                      const char *color)
{
    size_t i;

    (void)fprintf(plot->stream, "<polygon fill=\"%s\" points=\"", color);
    for (i = 0; i < N_BUCKETS; i++) {
        if (buckets[i].n > 0) {
            put_point(plot, mean_x(&buckets[i]), buckets[i].max);
        }
    }
    for (i = N_BUCKETS; i > 0; i--) {
        if (buckets[i - 1].n > 0) {
            put_point(plot, mean_x(&buckets[i - 1]), buckets[i - 1].min);
        }
    }
    (void)fputs("\"/>\n", plot->stream);
}

static void draw_markers(const plot_t *plot, const sl_curve_bucket_t *buckets,
                         const char *color)
{
    size_t i;

    for (i = 0; i < N_BUCKETS; i++) {
        if (buckets[i].n > 0) {
            (void)fprintf(plot->stream, "<circle r=\"3\" fill=\"%s\"", color);
            sl_svg_attribute(plot->stream, "cx",
                             x_of(plot, mean_x(&buckets[i])));
            sl_svg_attribute(plot->stream, "cy",
                             y_of(plot, mean_y(&buckets[i])));
            (void)fputs("/>\n", plot->stream);
        }
    }
}

static void draw_series(const plot_t *plot, const sl_curve_series_t *series,
                        const char *color)
{
    sl_curve_bucket_t buckets[N_BUCKETS];
    size_t i;

    sl_curve_fill(series, &plot->range, buckets, N_BUCKETS);
    if (series->n > N_BUCKETS) {
        draw_band(plot, buckets, color);
    }
    (void)fprintf(plot->stream, "<polyline stroke=\"%s\" points=\"", color);
    for (i = 0; i < N_BUCKETS; i++) {
        if (buckets[i].n > 0) {
            put_point(plot, mean_x(&buckets[i]), mean_y(&buckets[i]));
        }
    }
    (void)fputs("\"/>\n", plot->stream);
    if (series->n <= N_MARKED) {
        draw_markers(plot, buckets, color);
    }
}

static void draw_legend(const plot_t *plot, const sl_curve_series_t *series,
                        size_t n_series)
{
    const sl_svg_style_t style = {"t", "start"};
    double x = LEFT;
    size_t i;

    for (i = 0; i < n_series; i++) {
        (void)fprintf(plot->stream,
                      "<rect fill=\"%s\" y=\"%d\" width=\"16\" height=\"4\"",
                      colors[i], LEGEND_Y - 6);
        sl_svg_attribute(plot->stream, "x", x);
        (void)fputs("/>\n", plot->stream);
        sl_svg_text(plot->stream, x + 22, LEGEND_Y, &style, series[i].name);
        x += 42 + (double)(CHAR_WIDTH * strlen(series[i].name));
    }
}

static void draw(const plot_t *plot, const char *title,
                 const sl_curve_series_t *series, size_t n_series)
{
    const sl_svg_style_t style = {"title", "start"};
    size_t i;

    sl_svg_begin(plot->stream, WIDTH, HEIGHT, css);
    sl_svg_text(plot->stream, LEFT, TITLE_Y, &style, title);
    draw_legend(plot, series, n_series);
    draw_y_axis(plot);
    draw_x_axis(plot);
    for (i = 0; i < n_series; i++) {
        draw_series(plot, &series[i], colors[i]);
    }
    sl_svg_end(plot->stream);
}

sl_status_t sl_curve_svg_write(const char *path, const char *title,
                               const sl_curve_series_t *series, size_t n_series)
{
    plot_t plot = {0};
    sl_file_writer_t *writer = NULL;
    sl_status_t status;
    size_t i;

    if (n_series > MAX_SERIES) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: %zu curves asked; at most %d fit", path, n_series,
                MAX_SERIES);
    }
    for (i = 0; i < n_series; i++) {
        sl_curve_range_add(&plot.range, &series[i]);
    }
    if (plot.range.n == 0 || plot.range.y_max > 1e100 ||
        plot.range.y_min < -1e100 || plot.range.x_max > 1e15 ||
        plot.range.x_min < -1e15) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: no finite values to draw, or values beyond 1e100", path);
    }
    widen(&plot.range);
    SL_TRY(status, sl_file_begin(path, &writer), out);
    plot.stream = sl_file_stream(writer);
    draw(&plot, title, series, n_series);
    status = sl_file_end(writer);
out:
    return status;
}
