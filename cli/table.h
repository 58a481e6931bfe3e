/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file table.h
 * Tables for people: as wide as they like where there is room, and squeezed
 * where a terminal is narrower.
 */
#ifndef SL_CLI_TABLE_H
#define SL_CLI_TABLE_H

#include "base/status.h"

enum {
    SL_TABLE_MAX_COLUMNS = 16,
    SL_TABLE_CELL_BYTES = 128
};

typedef struct sl_table_column {
    const char *title; /**< borrowed */
    int width;         /**< at least, where there is room; negative: the text
                            stands left */
    int gap;           /**< spaces before it, where there is room */
    int drop;          /**< 0 = never; the greatest is left out first */
} sl_table_column_t;

typedef struct sl_table sl_table_t; /* opaque */

/** `columns` are borrowed. NULL without memory; then the functions below do
 *  nothing. */
sl_table_t *sl_table_create(const sl_table_column_t *columns, int n_columns);
void sl_table_destroy(sl_table_t *table);
/** Begin a row; its cells follow, in the columns' order. */
void sl_table_row(sl_table_t *table);
void sl_table_cell(sl_table_t *table, const char *fmt, ...) SL_PRINTF(2, 3);
/** A size, as sl_format_bytes writes it. */
void sl_table_bytes(sl_table_t *table, unsigned long long bytes);
/** Text after the row's last cell, or a line of its own after sl_table_row
 *  without cells. */
void sl_table_note(sl_table_t *table, const char *fmt, ...) SL_PRINTF(2, 3);

/**
 * The lines, at most `width` wide (0 = any) unless a note is longer: first
 * without spaces that only align, then sizes without their "iB", then without
 * columns that may go, last with the longest texts cut.
 *
 * @return owned text; NULL without memory
 */
char *sl_table_format(const sl_table_t *table, int width);
/** To standard output, as wide as the terminal; destroys the table. */
SL_NODISCARD sl_status_t sl_table_print(sl_table_t *table);

/** Columns of the terminal, or what COLUMNS says; 0: no terminal. */
int sl_terminal_width(void);

#endif /* SL_CLI_TABLE_H */
