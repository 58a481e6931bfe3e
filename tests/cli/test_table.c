/* SPDX-License-Identifier: Apache-2.0 */
/* Tables: as they are where there is room, squeezed where there is not. */
#include "cli/table.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/sl_test.h"

static const sl_table_column_t columns[] = {{"NAME", -10, 0, 0},
                                            {"SIZE", 12, 2, 0},
                                            {"MORE", 6, 2, 1},
                                            {"LAST", -1, 2, 0}};

static sl_table_t *make(void)
{
    sl_table_t *table = sl_table_create(columns, 4);

    sl_table_row(table);
    sl_table_cell(table, "one");
    sl_table_bytes(table, 1536);
    sl_table_cell(table, "%d", 42);
    sl_table_cell(table, "from here to there");
    sl_table_row(table);
    sl_table_note(table, "a line of its own");
    sl_table_row(table);
    sl_table_cell(table, "three");
    sl_table_bytes(table, 7);
    sl_table_cell(table, "7");
    sl_table_note(table, "note");
    return table;
}

static size_t widest(const char *text)
{
    size_t most = 0;

    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");

        most = n > most ? n : most;
        text += n + (text[n] == '\n');
    }
    return most;
}

static void where_there_is_room_columns_are_aligned(void **state)
{
    sl_table_t *table = make();
    char *text = sl_table_format(table, 0);

    (void)state;
    assert_string_equal(text, "NAME                SIZE    MORE  LAST\n"
                              "one             1.50 KiB      42  from here to "
                              "there\n"
                              "a line of its own\n"
                              "three                7 B       7  note\n");
    free(text);
    sl_table_destroy(table);
}

static void where_there_is_less_nothing_is_wider(void **state)
{
    sl_table_t *table = make();
    int width;

    (void)state;
    for (width = 60; width >= 20; width--) {
        char *text = sl_table_format(table, width);

        assert_non_null(text);
        assert_true(widest(text) <= (size_t)width);
        assert_non_null(strstr(text, "three"));
        free(text);
    }
    sl_table_destroy(table);
}

static void first_spaces_then_units_then_columns(void **state)
{
    sl_table_t *table = make();
    char *text = sl_table_format(table, 40);

    (void)state;
    assert_non_null(strstr(text, "one   1.50 KiB   42 from here to there\n"));
    free(text);
    text = sl_table_format(table, 36);
    assert_non_null(strstr(text, "one   1.50K   42 from here to there\n"));
    free(text);
    text = sl_table_format(table, 31);
    assert_non_null(strstr(text, "one   1.50K from here to there\n"));
    assert_null(strstr(text, "MORE"));
    free(text);
    text = sl_table_format(table, 24);
    assert_non_null(strstr(text, "one   1.50K from here ..\n"));
    free(text);
    sl_table_destroy(table);
}

static void columns_says_how_wide_the_terminal_is(void **state)
{
    (void)state;
    assert_int_equal(setenv("COLUMNS", "77", 1), 0);
    assert_int_equal(sl_terminal_width(), 77);
    assert_int_equal(setenv("COLUMNS", "many", 1), 0);
    assert_true(sl_terminal_width() != 77);
    assert_int_equal(unsetenv("COLUMNS"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(where_there_is_room_columns_are_aligned),
        sl_unit_test(where_there_is_less_nothing_is_wider),
        sl_unit_test(first_spaces_then_units_then_columns),
        sl_unit_test(columns_says_how_wide_the_terminal_is),
    };

    return cmocka_run_group_tests_name("cli.table", tests, NULL, NULL);
}
