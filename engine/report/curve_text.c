/* SPDX-License-Identifier: Apache-2.0 */
/* A curve as lines of text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report/curve.h"
#include "engine/report/curve_internal.h"

enum {
    DEFAULT_WIDTH = 72,
    DEFAULT_HEIGHT = 12,
    MIN_PLOT_WIDTH = 10,
    MIN_HEIGHT = 2,
    MAX_WIDTH = 1000,
    MAX_HEIGHT = 200,
    LABEL_BYTES = 32
};

typedef struct canvas {
    const sl_curve_range_t *range;
    int is_braille;
    int columns, rows;    /* characters */
    int x_dots, y_dots;   /* dots */
    unsigned char *cells; /* columns x rows: the dots that are set */
} canvas_t;

/* Dots of a braille character by row and column, as bits of its code. */
static const unsigned char dot_bits[4][2] = {
    {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

static void set_dot(canvas_t *canvas, int x, int y)
{
    const int x_per_cell = canvas->is_braille ? 2 : 1;
    const int y_per_cell = canvas->is_braille ? 4 : 1;
    const int cell = y / y_per_cell * canvas->columns + x / x_per_cell;

    canvas->cells[cell] |= dot_bits[y % y_per_cell][x % x_per_cell];
}

static int dot_y(const canvas_t *canvas, double value)
{
    const sl_curve_range_t *range = canvas->range;
    const double span = range->y_max * 0.5 - range->y_min * 0.5;
    const double share =
        span > 0.0 ? (range->y_max * 0.5 - value * 0.5) / span : 0.5;
    const int y = (int)(share * (double)(canvas->y_dots - 1) + 0.5);

    return y < 0 ? 0 : y >= canvas->y_dots ? canvas->y_dots - 1 : y;
}

/* From one dot to another, without gaps. */
static void draw_line(canvas_t *canvas, int x1, int y1, int x2, int y2)
{
    const int width = x2 - x1, height = abs(y2 - y1);
    const int n = width > height ? width : height;
    int i;

    for (i = 0; i <= n; i++) {
        const double share = n == 0 ? 0.0 : (double)i / (double)n;

        set_dot(canvas, x1 + (int)lround(share * width),
                y1 + (int)lround(share * (y2 - y1)));
    }
}

static void draw_curve(canvas_t *canvas, const sl_curve_bucket_t *buckets)
{
    int last_x = -1, last_y = 0, x;

    for (x = 0; x < canvas->x_dots; x++) {
        int y;

        if (buckets[x].n == 0) {
            continue;
        }
        y = dot_y(canvas, buckets[x].sum / (double)buckets[x].n);
        draw_line(canvas, last_x < 0 ? x : last_x, last_x < 0 ? y : last_y, x,
                  y);
        last_x = x;
        last_y = y;
    }
}

static void format_label(double value, char *text)
{
    (void)snprintf(text, LABEL_BYTES, "%.4g", value);
}

/* Labels of the first, middle and last row; others are empty. */
static void row_label(const canvas_t *canvas, int row, char *text)
{
    const sl_curve_range_t *range = canvas->range;
    const int last = canvas->rows - 1;

    text[0] = '\0';
    if (row == 0) {
        format_label(range->y_max, text);
    } else if (row == last) {
        format_label(range->y_min, text);
    } else if (row * 2 == last) {
        format_label(range->y_max * 0.5 + range->y_min * 0.5, text);
    }
}

static int label_width(const canvas_t *canvas)
{
    int width = 0, row;

    for (row = 0; row < canvas->rows; row++) {
        char label[LABEL_BYTES];

        row_label(canvas, row, label);
        width = (int)strlen(label) > width ? (int)strlen(label) : width;
    }
    return width;
}

static void put_cell(const canvas_t *canvas, unsigned char dots, FILE *to)
{
    if (!canvas->is_braille) {
        (void)fputc(dots != 0 ? '*' : ' ', to);
    } else if (dots == 0) {
        (void)fputc(' ', to);
    } else { /* U+2800 + dots */
        (void)fputc(0xE2, to);
        (void)fputc(0xA0 | dots >> 6, to);
        (void)fputc(0x80 | (dots & 0x3F), to);
    }
}

static void put_row(const canvas_t *canvas, int row, int n_label, FILE *to)
{
    const char *const axes[2][2] = {{"|", "+"}, {"│", "┤"}};
    const unsigned char *cells = canvas->cells + row * canvas->columns;
    char label[LABEL_BYTES];
    int column, n = canvas->columns;

    row_label(canvas, row, label);
    (void)fprintf(to, "%*s %s", n_label, label,
                  axes[canvas->is_braille][label[0] != '\0']);
    while (n > 0 && cells[n - 1] == 0) {
        n--;
    }
    for (column = 0; column < n; column++) {
        put_cell(canvas, cells[column], to);
    }
    (void)fputc('\n', to);
}

static void put_x_axis(const canvas_t *canvas, int n_label, FILE *to)
{
    char first[LABEL_BYTES], last[LABEL_BYTES];
    int column, gap;

    (void)fprintf(to, "%*s %s", n_label, "", canvas->is_braille ? "└" : "+");
    for (column = 0; column < canvas->columns; column++) {
        (void)fputs(canvas->is_braille ? "─" : "-", to);
    }
    format_label(canvas->range->x_min, first);
    format_label(canvas->range->x_max, last);
    gap = canvas->columns - (int)strlen(first);
    if (gap <= (int)strlen(last)) {
        last[0] = '\0';
        gap = 0;
    }
    (void)fprintf(to, "\n%*s  %s%*s\n", n_label, "", first, gap, last);
}

static void canvas_init(canvas_t *canvas, const sl_curve_range_t *range,
                        const sl_curve_text_params_t *params)
{
    const int width = params->width > 0 ? params->width : DEFAULT_WIDTH;
    const int height = params->height > 0 ? params->height : DEFAULT_HEIGHT;

    canvas->range = range;
    canvas->is_braille =
        params->charset == SL_CURVE_BRAILLE ||
        (params->charset == SL_CURVE_AUTO && sl_curve_is_utf8());
    canvas->rows = height < MIN_HEIGHT   ? MIN_HEIGHT
                   : height > MAX_HEIGHT ? MAX_HEIGHT
                                         : height;
    canvas->columns =
        (width < MAX_WIDTH ? width : MAX_WIDTH) - label_width(canvas) - 2;
    if (canvas->columns < MIN_PLOT_WIDTH) {
        canvas->columns = MIN_PLOT_WIDTH;
    }
    canvas->x_dots = canvas->columns * (canvas->is_braille ? 2 : 1);
    canvas->y_dots = canvas->rows * (canvas->is_braille ? 4 : 1);
    canvas->cells = NULL;
}

static void put_all(const canvas_t *canvas, const sl_curve_series_t *series,
                    FILE *to)
{
    const int n_label = label_width(canvas);
    int row;

    (void)fprintf(to, "%*s  %s\n", n_label, "", series->name);
    for (row = 0; row < canvas->rows; row++) {
        put_row(canvas, row, n_label, to);
    }
    put_x_axis(canvas, n_label, to);
}

sl_status_t sl_curve_text(const sl_curve_series_t *series,
                          const sl_curve_text_params_t *params, char **text_p)
{
    sl_curve_range_t range = {0};
    sl_curve_bucket_t *buckets = NULL;
    canvas_t canvas = {0};
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *to = open_memstream(&text, &n_bytes);
    sl_status_t status = SL_OK;

    sl_curve_range_add(&range, series);
    if (to != NULL && range.n == 0) {
        (void)fprintf(to, "%s: no finite values to draw\n", series->name);
    } else if (to != NULL) {
        canvas_init(&canvas, &range, params);
        canvas.cells = calloc((size_t)canvas.columns, (size_t)canvas.rows);
        buckets = calloc((size_t)canvas.x_dots, sizeof(*buckets));
        if (canvas.cells == NULL || buckets == NULL) {
            goto err_close;
        }
        sl_curve_fill(series, &range, buckets, (size_t)canvas.x_dots);
        draw_curve(&canvas, buckets);
        put_all(&canvas, series, to);
    }
    if (to == NULL || fclose(to) != 0) {
        to = NULL;
        goto err_close;
    }
    *text_p = text;
    free(canvas.cells);
    free(buckets);
    return SL_OK;

err_close:
    if (to != NULL) {
        (void)fclose(to);
    }
    free(text);
    free(canvas.cells);
    free(buckets);
    SL_FAIL(status, SL_ERR_NO_MEMORY, out, "curve %.60s: no host memory",
            series->name);
out:
    return status;
}
