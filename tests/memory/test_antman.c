/* SPDX-License-Identifier: Apache-2.0 */
/* The scenarios of AntMan's published allocator tests: a device pool with an
 * adjustable limit, and the host behind it. */
#include "tests/memory/memory_bed.h"

static size_t on_host(const sl_mem_t *mem)
{
    return bed_stats(mem).host_used_bytes;
}

/* 512 MiB on the device, 512 MiB + 1 KiB more than it has: the host takes it,
 * and the peak counts both. Nothing is touched, so the sizes cost nothing. */
static void half_and_a_bit_more(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, GIB, GIB);
    sl_mem_block_t *a = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 512 * MIB);
    sl_mem_block_t *b =
        bed_block(mem, SL_MEM_CLASS_ACTIVATION, 512 * MIB + KIB);
    sl_mem_stats_t stats = bed_stats(mem);

    (void)state;
    assert_int_equal(stats.used_bytes, 512 * MIB);
    assert_int_equal(stats.host_used_bytes, 512 * MIB + KIB);
    assert_int_equal(stats.total_peak_bytes, GIB + KIB);
    sl_mem_release(b);
    assert_int_equal(bed_stats(mem).total_peak_bytes, GIB + KIB);
    sl_mem_boundary(mem, NULL);
    assert_int_equal(bed_stats(mem).total_peak_bytes, 512 * MIB);
    sl_mem_release(a);
    sl_mem_destroy(mem);

    mem = bed_mem(&(bed_t){0}, GIB, 0);
    a = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 512 * MIB);
    sl_assert_status(
        sl_mem_alloc(mem, SL_MEM_CLASS_ACTIVATION, 512 * MIB + KIB, &b),
        SL_ERR_QUOTA);
    sl_mem_release(a);
    sl_mem_destroy(mem);
}

/* ShrinkMemoryLimitAndAllocateToHost */
static void shrink_and_allocate_to_the_host(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 2 * GIB, GIB);
    sl_mem_block_t *kept = bed_block(mem, SL_MEM_CLASS_PERSISTENT, MIB);
    sl_mem_block_t *a = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 2 * MIB);
    sl_mem_block_t *b = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 8 * MIB);

    (void)state;
    assert_int_equal(on_host(mem), 0);
    sl_mem_release(a);
    sl_mem_release(b);
    assert_int_equal(bed_limit(mem, 2 * MIB), 2 * MIB);
    a = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 2 * MIB);
    assert_int_equal(on_host(mem), 2 * MIB);
    b = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 8 * MIB);
    assert_int_equal(on_host(mem), 10 * MIB);
    assert_true(bed_stats(mem).held_bytes <= 2 * MIB);
    sl_mem_release(a);
    sl_mem_release(b);
    sl_mem_release(kept);
    sl_mem_destroy(mem);
}

/* GrowthMemoryLimitAndAllocateToDevice */
static void grow_and_allocate_to_the_device(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 2 * GIB, GIB);
    sl_mem_block_t *kept = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 16 * MIB);
    sl_mem_block_t *a, *b, *c;

    (void)state;
    assert_int_equal(bed_limit(mem, 32 * MIB), 32 * MIB);
    a = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 20 * MIB);
    b = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 32 * MIB);
    assert_int_equal(on_host(mem), 52 * MIB);
    assert_int_equal(bed_limit(mem, 2 * GIB), 2 * GIB);
    c = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 20 * MIB);
    assert_int_equal(bed_stats(mem).classes[SL_MEM_CLASS_ACTIVATION].n_spills,
                     2);
    /* and, unlike there, what had gone came back */
    assert_int_equal(on_host(mem), 0);
    sl_mem_release(a);
    sl_mem_release(b);
    sl_mem_release(c);
    sl_mem_release(kept);
    sl_mem_destroy(mem);
}

/* RepeatedlyShrinkAndGrowth: 128 MiB, and 2 MiB in a region of 32 MiB. */
static void a_region_in_use_stays_within_the_limit_reached(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem;
    sl_mem_block_t *large, *filler, *small;
    int round;

    (void)state;
    BED_WHOLE_ONLY();
    mem = bed_mem(&bed, 2 * GIB, 0);
    large = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 128 * MIB);
    filler = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 32 * MIB);
    sl_mem_release(filler);
    small = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 2 * MIB);
    assert_int_equal(bed_stats(mem).held_bytes, 160 * MIB);
    bed_fill(small, 7);
    /* blocks that cannot move pin the whole region, as they always do there */
    bed.fail_copies = 1;
    assert_int_equal(bed_limit(mem, 128 * MIB), 160 * MIB);
    assert_int_equal(bed_stats(mem).asked_limit_bytes, 128 * MIB);
    assert_int_equal(bed_stats(mem).pinned_bytes, 130 * MIB);
    /* those that can leave no more than themselves */
    bed.fail_copies = 0;
    assert_int_equal(bed_limit(mem, 2 * GIB), 2 * GIB);
    assert_int_equal(bed_limit(mem, 128 * MIB), 130 * MIB);
    assert_true(bed_is_filled(small, 7));
    for (round = 0; round < 20; round++) {
        assert_int_equal(bed_limit(mem, 2 * GIB), 2 * GIB);
        assert_int_equal(bed_limit(mem, 128 * MIB), 130 * MIB);
        assert_int_equal(bed_limit(mem, 128 * MIB), 130 * MIB);
    }
    sl_mem_release(small);
    assert_int_equal(bed_limit(mem, 128 * MIB), 128 * MIB);
    assert_int_equal(bed_stats(mem).pinned_bytes, 0);
    sl_mem_release(large);
    sl_mem_destroy(mem);
}

/* ParseAndAdjustMemoryLimit, less the parsing: 1 MiB, then 2 GiB. */
static void a_limit_of_almost_nothing_and_back(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 2 * GIB, 0);

    (void)state;
    assert_int_equal(bed_limit(mem, MIB), MIB);
    assert_int_equal(bed_limit(mem, 2 * GIB), 2 * GIB);
    assert_int_equal(bed_limit(mem, 4 * GIB), 2 * GIB); /* the capacity */
    sl_mem_destroy(mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(half_and_a_bit_more),
        sl_unit_test(shrink_and_allocate_to_the_host),
        sl_unit_test(grow_and_allocate_to_the_device),
        sl_unit_test(a_region_in_use_stays_within_the_limit_reached),
        sl_unit_test(a_limit_of_almost_nothing_and_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
