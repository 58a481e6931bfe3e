/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that fit a terminal. */
#include "cli/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/parse.h"

enum {
    LEAST_CUT = 8 /* a text is not cut shorter than that */
};

typedef struct sl_table_line {
    int n_cells;
    char cells[SL_TABLE_MAX_COLUMNS][SL_TABLE_CELL_BYTES];
    char *note; /* owned; NULL = none */
} sl_table_line_t;

struct sl_table {
    const sl_table_column_t *columns;
    int n_columns;
    int n_lines, lines_room;
    sl_table_line_t *lines; /* owned; the first has the titles */
    int is_broken;          /* no memory */
};

/* How it is printed. */
typedef struct sl_table_layout {
    int width[SL_TABLE_MAX_COLUMNS]; /* 0 = left out */
    int gap[SL_TABLE_MAX_COLUMNS];
    int is_squeezed;
} sl_table_layout_t;

int sl_terminal_width(void)
{
    const char *columns = getenv("COLUMNS");
    const long given = columns == NULL ? 0 : strtol(columns, NULL, 10);
    struct winsize size;

    if (given > 0 && given < 10000) {
        return (int)given;
    }
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        return size.ws_col;
    }
    return 0;
}

/* ---- filling ---- */

sl_table_t *sl_table_create(const sl_table_column_t *columns, int n_columns)
{
    sl_table_t *table = calloc(1, sizeof(*table));
    int c;

    if (table == NULL) {
        return NULL;
    }
    table->columns = columns;
    table->n_columns = n_columns;
    sl_table_row(table);
    for (c = 0; c < n_columns; c++) {
        sl_table_cell(table, "%s", columns[c].title);
    }
    return table;
}

void sl_table_destroy(sl_table_t *table)
{
    int i;

    for (i = 0; table != NULL && i < table->n_lines; i++) {
        free(table->lines[i].note);
    }
    if (table != NULL) {
        free(table->lines);
    }
    free(table);
}

void sl_table_row(sl_table_t *table)
{
    if (table == NULL || table->is_broken) {
        return;
    }
    if (table->n_lines == table->lines_room) {
        const int room = 2 * table->lines_room + 8;
        sl_table_line_t *lines =
            realloc(table->lines, (size_t)room * sizeof(*lines));

        if (lines == NULL) {
            table->is_broken = 1;
            return;
        }
        table->lines = lines;
        table->lines_room = room;
    }
    memset(&table->lines[table->n_lines++], 0, sizeof(*table->lines));
}

static sl_table_line_t *last_line(sl_table_t *table)
{
    return table == NULL || table->is_broken || table->n_lines == 0
               ? NULL
               : &table->lines[table->n_lines - 1];
}

void sl_table_cell(sl_table_t *table, const char *fmt, ...)
{
    sl_table_line_t *line = last_line(table);
    va_list args;

    if (line == NULL || line->n_cells == table->n_columns) {
        return;
    }
    va_start(args, fmt);
    (void)vsnprintf(line->cells[line->n_cells++], SL_TABLE_CELL_BYTES, fmt,
                    args);
    va_end(args);
}

void sl_table_bytes(sl_table_t *table, unsigned long long bytes)
{
    char text[32];

    sl_format_bytes(bytes, text, sizeof(text));
    sl_table_cell(table, "%s", text);
}

void sl_table_note(sl_table_t *table, const char *fmt, ...)
{
    sl_table_line_t *line = last_line(table);
    char text[1024];
    va_list args;

    if (line == NULL) {
        return;
    }
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    free(line->note);
    line->note = strdup(text);
    table->is_broken = line->note == NULL;
}

/* ---- the layout ---- */

/* "21.2 MiB" to "21.2M": whether a text ends as a size does, and then its
 * length without the end. */
static int size_length(const char *text)
{
    const size_t n = strlen(text);

    if (n > 4 && text[0] >= '0' && text[0] <= '9' && text[n - 4] == ' ' &&
        strcmp(text + n - 2, "iB") == 0) {
        return (int)n - 4;
    }
    return -1;
}

static void cell_text(const sl_table_layout_t *layout, const char *cell,
                      char text[SL_TABLE_CELL_BYTES])
{
    const int n = layout->is_squeezed ? size_length(cell) : -1;

    (void)snprintf(text, SL_TABLE_CELL_BYTES, "%s", cell);
    if (n >= 0) {
        text[n] = cell[n + 1];
        text[n + 1] = '\0';
    }
}

/* The longest cell of a column. */
static int longest(const sl_table_t *table, const sl_table_layout_t *layout,
                   int c)
{
    char text[SL_TABLE_CELL_BYTES];
    int i, most = 1;

    for (i = 0; i < table->n_lines; i++) {
        if (c < table->lines[i].n_cells) {
            int n;

            cell_text(layout, table->lines[i].cells[c], text);
            n = (int)strlen(text);
            most = n > most ? n : most;
        }
    }
    return most;
}

static void set_natural(const sl_table_t *table, sl_table_layout_t *layout)
{
    int c;

    for (c = 0; c < table->n_columns; c++) {
        if (layout->width[c] > 0) {
            layout->width[c] = longest(table, layout, c);
            layout->gap[c] = c == 0 ? 0 : 1;
        }
    }
}

static int total(const sl_table_t *table, const sl_table_layout_t *layout)
{
    int c, n = 0;

    for (c = 0; c < table->n_columns; c++) {
        n += layout->width[c] > 0 ? layout->width[c] + layout->gap[c] : 0;
    }
    return n;
}

/* The column that goes first; -1: none may. */
static int next_to_drop(const sl_table_t *table,
                        const sl_table_layout_t *layout)
{
    int c, best = -1;

    for (c = 0; c < table->n_columns; c++) {
        if (layout->width[c] > 0 && table->columns[c].drop > 0 &&
            (best < 0 || table->columns[c].drop > table->columns[best].drop)) {
            best = c;
        }
    }
    return best;
}

/* The widest text; numbers are not cut. -1: none can be. */
static int next_to_cut(const sl_table_t *table, const sl_table_layout_t *layout)
{
    int c, best = -1;

    for (c = 0; c < table->n_columns; c++) {
        if (table->columns[c].width < 0 && layout->width[c] > LEAST_CUT &&
            (best < 0 || layout->width[c] > layout->width[best])) {
            best = c;
        }
    }
    return best;
}

static void find_layout(const sl_table_t *table, int width,
                        sl_table_layout_t *layout)
{
    int c;

    layout->is_squeezed = 0;
    for (c = 0; c < table->n_columns; c++) {
        const int n = longest(table, layout, c);
        const int least = abs(table->columns[c].width);

        layout->width[c] = n > least ? n : least;
        layout->gap[c] = c == 0 ? 0 : table->columns[c].gap;
    }
    if (width <= 0 || total(table, layout) <= width) {
        return;
    }
    set_natural(table, layout);
    if (total(table, layout) > width) {
        layout->is_squeezed = 1;
        set_natural(table, layout);
    }
    while (total(table, layout) > width &&
           (c = next_to_drop(table, layout)) >= 0) {
        layout->width[c] = 0;
    }
    while (total(table, layout) > width &&
           (c = next_to_cut(table, layout)) >= 0) {
        layout->width[c]--;
    }
}

/* ---- printing ---- */

static void write_line(const sl_table_t *table, const sl_table_layout_t *layout,
                       const sl_table_line_t *line, FILE *out)
{
    char text[SL_TABLE_CELL_BYTES];
    int c, n_pending = 0, n;

    for (c = 0; c < line->n_cells; c++) {
        const int width = layout->width[c];

        if (width == 0) {
            continue;
        }
        cell_text(layout, line->cells[c], text);
        n = (int)strlen(text);
        if (n > width) {
            text[width] = '\0';
            text[width - 1] = text[width - 2] = '.';
            n = width;
        }
        /* no spaces at the end of a line */
        n_pending += layout->gap[c];
        if (table->columns[c].width >= 0) {
            n_pending += width - n;
        }
        if (n > 0) {
            (void)fprintf(out, "%*s%s", n_pending, "", text);
            n_pending = 0;
        }
        if (table->columns[c].width < 0) {
            n_pending += width - n;
        }
    }
    if (line->note != NULL) {
        (void)fprintf(out, "%s%s", line->n_cells > 0 ? "  " : "", line->note);
    }
    (void)fputc('\n', out);
}

char *sl_table_format(const sl_table_t *table, int width)
{
    sl_table_layout_t layout;
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out;
    int i;

    if (table == NULL || table->is_broken) {
        return NULL;
    }
    out = open_memstream(&text, &n_bytes);
    if (out == NULL) {
        return NULL;
    }
    find_layout(table, width, &layout);
    for (i = 0; i < table->n_lines; i++) {
        write_line(table, &layout, &table->lines[i], out);
    }
    if (fclose(out) != 0) {
        free(text);
        text = NULL;
    }
    return text;
}

sl_status_t sl_table_print(sl_table_t *table)
{
    char *text = sl_table_format(table, sl_terminal_width());
    sl_status_t status = SL_OK;

    sl_table_destroy(table);
    if (text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a table");
    }
    (void)fputs(text, stdout);
    free(text);
out:
    return status;
}
