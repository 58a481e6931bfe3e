/* SPDX-License-Identifier: Apache-2.0 */
/* The record of what was allocated and released. */
#include <stdio.h>

#include "tests/memory/memory_bed.h"

static void a_trace_says_what_happened(void **state)
{
    static const char want[] = "sluice-memory-trace 1 bed\n"
                               "a 1 0 1000\n"
                               "a 2 1 300\n"
                               "a 3 4 0\n"
                               "r 1\n"
                               "b 4194304\n"
                               "r 3\n"
                               "b 1048576\n";
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 4 * MIB, 0);
    sl_mem_block_t *early = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 1000);
    sl_mem_block_t *a, *b, *late;
    FILE *stream = tmpfile();
    char text[sizeof(want) + 16] = {0};

    (void)state;
    assert_non_null(stream);
    sl_mem_trace_begin(mem, stream);
    a = bed_block(mem, SL_MEM_CLASS_STASH, 300);
    b = bed_block(mem, SL_MEM_CLASS_COMM, 0);
    sl_mem_release(early);
    sl_mem_boundary(mem, NULL);
    sl_mem_release(b);
    assert_int_equal(bed_limit(mem, MIB), MIB);
    sl_assert_ok(sl_mem_trace_end(mem));
    sl_assert_ok(sl_mem_trace_end(mem)); /* nothing is recorded: no error */
    late = bed_block(mem, SL_MEM_CLASS_STASH, 5);
    sl_mem_release(late);
    sl_mem_release(a);
    rewind(stream);
    assert_int_equal(fread(text, 1, sizeof(text) - 1, stream),
                     sizeof(want) - 1);
    assert_string_equal(text, want);
    (void)fclose(stream);
    sl_mem_destroy(mem);
}

static void a_full_disk_is_reported(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 4 * MIB, 0);
    FILE *stream = fopen("/dev/full", "w");

    (void)state;
    if (stream == NULL) {
        sl_mem_destroy(mem);
        skip();
    }
    sl_mem_trace_begin(mem, stream);
    sl_assert_status(sl_mem_trace_end(mem), SL_ERR_IO);
    (void)fclose(stream);
    sl_mem_destroy(mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_trace_says_what_happened),
        sl_unit_test(a_full_disk_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
