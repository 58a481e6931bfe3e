/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that move at boundaries, and blocks that move with them. */
#include "tests/memory/memory_bed.h"

static void a_limit_applies_at_the_boundary_only(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 64 * MIB, 0);
    sl_mem_block_t *block;
    size_t reached = 0;

    (void)state;
    sl_mem_limit_request(mem, MIB);
    assert_int_equal(bed_stats(mem).limit_bytes, 64 * MIB);
    block = bed_block(mem, SL_MEM_CLASS_STASH, 32 * MIB);
    sl_mem_release(block);
    sl_mem_boundary(mem, &reached);
    assert_int_equal(reached, MIB);
    assert_int_equal(bed_stats(mem).held_bytes, 0);
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 2 * MIB, &block),
                     SL_ERR_QUOTA);
    /* never above the capacity */
    assert_int_equal(bed_limit(mem, SIZE_MAX), 64 * MIB);
    block = bed_block(mem, SL_MEM_CLASS_STASH, 2 * MIB);
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

static void shrinking_gives_free_regions_back(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 64 * MIB, 0);
    sl_mem_block_t *blocks[15];
    int i;

    (void)state;
    for (i = 0; i < 15; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_ACTIVATION, MIB);
    }
    bed_fill(blocks[0], 5);
    for (i = 1; i < 15; i++) {
        sl_mem_release(blocks[i]);
    }
    assert_int_equal(bed_stats(mem).held_bytes, 15 * MIB);
    assert_int_equal(bed_limit(mem, 2 * MIB), 2 * MIB);
    assert_true(atomic_load(&bed.held_bytes) <= 2 * MIB);
    assert_true(bed_is_filled(blocks[0], 5));
    sl_mem_release(blocks[0]);
    sl_mem_destroy(mem);
}

static void what_cannot_shrink_is_reported(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 256 * MIB, 0);
    sl_mem_block_t *large = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 128 * MIB);
    sl_mem_block_t *filler = bed_block(mem, SL_MEM_CLASS_ACTIVATION, 30 * MIB);
    sl_mem_block_t *small = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 2 * MIB);
    size_t held;

    (void)state;
    sl_mem_release(filler);
    held = bed_stats(mem).held_bytes;
    assert_true(held > 128 * MIB);
    /* 130 MiB live and no host pool: what is held is what is reached */
    assert_true(bed_limit(mem, 128 * MIB) > 128 * MIB);
    assert_true(bed_stats(mem).limit_bytes <= held);
    assert_int_equal(bed_stats(mem).n_live_blocks, 2);
    /* the target stands: it is reached when the block has gone */
    sl_mem_release(small);
    sl_mem_boundary(mem, NULL);
    assert_int_equal(bed_stats(mem).limit_bytes, 128 * MIB);
    assert_int_equal(atomic_load(&bed.held_bytes), 128 * MIB);
    sl_mem_release(large);
    sl_mem_destroy(mem);
}

static void sparse_regions_are_emptied_into_others(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 15 * MIB, 0); /* no room beside */
    sl_mem_block_t *blocks[15];
    int i;

    (void)state;
    for (i = 0; i < 15; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_PERSISTENT, MIB);
        bed_fill(blocks[i], (unsigned)i);
    }
    /* one block stays in each region of 1, 2, 4 and 8 MiB */
    for (i = 0; i < 15; i++) {
        if (i != 0 && i != 1 && i != 3 && i != 7) {
            sl_mem_release(blocks[i]);
        }
    }
    assert_int_equal(bed_limit(mem, 8 * MIB), 8 * MIB);
    assert_int_equal(bed_stats(mem).host_used_bytes, 0);
    for (i = 0; i < 15; i++) {
        if (i == 0 || i == 1 || i == 3 || i == 7) {
            assert_true(bed_is_filled(blocks[i], (unsigned)i));
            sl_mem_release(blocks[i]);
        }
    }
    sl_mem_destroy(mem);
}

static void contents_survive_the_way_to_the_host_and_back(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 64 * MIB, 64 * MIB);
    sl_mem_block_t *blocks[24];
    int round;
    int i;

    (void)state;
    for (i = 0; i < 24; i++) {
        blocks[i] = bed_block(mem, (sl_mem_class_t)(i % SL_MEM_N_CLASSES),
                              (size_t)(i + 1) * 30000);
        bed_fill(blocks[i], (unsigned)i);
    }
    for (round = 0; round < 3; round++) {
        static const size_t limits[] = {0, 64 * MIB, 3 * MIB, 5 * MIB};
        size_t k;

        for (k = 0; k < sizeof(limits) / sizeof(*limits); k++) {
            sl_mem_stats_t stats;

            assert_int_equal(bed_limit(mem, limits[k]), limits[k]);
            stats = bed_stats(mem);
            if (limits[k] == 0) {
                assert_int_equal(stats.used_bytes, 0);
                assert_int_equal(atomic_load(&bed.n_live), 0);
            }
            if (limits[k] == 64 * MIB) {
                assert_int_equal(stats.host_used_bytes, 0);
                assert_int_equal(stats.host_held_bytes, 0);
            }
            for (i = 0; i < 24; i++) {
                assert_true(bed_is_filled(blocks[i], (unsigned)i));
            }
        }
    }
    for (i = 0; i < 24; i++) {
        sl_mem_release(blocks[i]);
    }
    assert_int_equal(bed_stats(mem).host_used_bytes, 0);
    sl_mem_destroy(mem);
}

/* Two holes of 1 MiB do not take 2 MiB, and the host is too small to make
 * room there; the blocks on the device move together. */
static void holes_are_closed_for_what_comes_back(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 8 * MIB, 3 * MIB);
    sl_mem_block_t *blocks[8];
    sl_mem_block_t *away;
    int i;

    (void)state;
    for (i = 0; i < 8; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_PERSISTENT, MIB);
        bed_fill(blocks[i], (unsigned)i);
    }
    away = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 2 * MIB);
    bed_fill(away, 99);
    assert_int_equal(bed_stats(mem).host_used_bytes, 2 * MIB);
    sl_mem_release(blocks[3]);
    sl_mem_release(blocks[5]);
    sl_mem_boundary(mem, NULL);
    assert_int_equal(bed_stats(mem).host_used_bytes, 0);
    assert_true(bed_is_filled(away, 99));
    sl_mem_release(away);
    for (i = 0; i < 8; i++) {
        if (i != 3 && i != 5) {
            assert_true(bed_is_filled(blocks[i], (unsigned)i));
            sl_mem_release(blocks[i]);
        }
    }
    sl_mem_destroy(mem);
}

static void cheap_classes_leave_first_and_return_last(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 64 * MIB, 64 * MIB);
    sl_mem_block_t *blocks[SL_MEM_N_CLASSES];
    sl_mem_stats_t stats;
    int i;

    (void)state;
    /* 1, 2, 4, 8, 16 MiB: each fills a region of its own */
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        blocks[i] = bed_block(mem, (sl_mem_class_t)i, (size_t)(1 << i) * MIB);
    }
    assert_int_equal(bed_stats(mem).held_bytes, 31 * MIB);
    assert_int_equal(bed_limit(mem, 29 * MIB), 29 * MIB);
    stats = bed_stats(mem);
    assert_int_equal(stats.classes[SL_MEM_CLASS_STASH].host_bytes, 2 * MIB);
    assert_int_equal(stats.classes[SL_MEM_CLASS_STASH].n_spills, 1);
    assert_int_equal(stats.classes[SL_MEM_CLASS_STASH].spill_bytes, 2 * MIB);
    assert_int_equal(stats.host_used_bytes, 2 * MIB);

    assert_int_equal(bed_limit(mem, MIB), MIB);
    stats = bed_stats(mem);
    assert_int_equal(stats.classes[SL_MEM_CLASS_PERSISTENT].host_bytes, 0);
    assert_int_equal(stats.host_used_bytes, 30 * MIB);

    /* back come the workspace, then the activation, in their order */
    assert_int_equal(bed_limit(mem, 14 * MIB), 14 * MIB);
    stats = bed_stats(mem);
    assert_int_equal(stats.classes[SL_MEM_CLASS_WORKSPACE].host_bytes, 0);
    assert_int_equal(stats.classes[SL_MEM_CLASS_ACTIVATION].host_bytes, 0);
    assert_int_equal(stats.classes[SL_MEM_CLASS_WORKSPACE].n_returns, 1);
    assert_int_equal(stats.classes[SL_MEM_CLASS_WORKSPACE].return_bytes,
                     8 * MIB);
    assert_int_equal(stats.host_used_bytes, 18 * MIB);
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        sl_mem_release(blocks[i]);
    }
    sl_mem_destroy(mem);
}

static void a_small_host_pool_takes_what_it_can(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 16 * MIB, 2 * MIB);
    sl_mem_block_t *a = bed_block(mem, SL_MEM_CLASS_PERSISTENT, MIB);
    sl_mem_block_t *b = bed_block(mem, SL_MEM_CLASS_STASH, 2 * MIB);
    sl_mem_block_t *c = bed_block(mem, SL_MEM_CLASS_STASH, 4 * MIB);
    sl_mem_stats_t stats;

    (void)state;
    bed_fill(a, 1);
    bed_fill(b, 2);
    bed_fill(c, 3);
    assert_int_equal(bed_limit(mem, 0), 5 * MIB);
    stats = bed_stats(mem);
    assert_true(stats.host_held_bytes <= 2 * MIB);
    assert_int_equal(stats.host_used_bytes, 2 * MIB);
    assert_true(bed_is_filled(a, 1));
    assert_true(bed_is_filled(b, 2));
    assert_true(bed_is_filled(c, 3));
    sl_mem_release(a);
    sl_mem_release(b);
    sl_mem_release(c);
    sl_mem_destroy(mem);
}

static void a_failed_copy_leaves_the_block(void **state)
{
    bed_t bed = {.fail_copies = 1};
    sl_mem_t *mem = bed_mem(&bed, 16 * MIB, 16 * MIB);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_STASH, MIB);

    (void)state;
    bed_fill(block, 9);
    assert_int_equal(bed_limit(mem, 0), MIB);
    assert_true(bed.n_copies > 0);
    assert_int_equal(bed_stats(mem).host_used_bytes, 0);
    assert_true(bed_is_filled(block, 9));
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

static void peaks_start_anew_at_the_boundary(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 16 * MIB, 0);
    sl_mem_block_t *a = bed_block(mem, SL_MEM_CLASS_STASH, MIB);
    sl_mem_block_t *b = bed_block(mem, SL_MEM_CLASS_STASH, 2 * MIB);
    sl_mem_stats_t stats;

    (void)state;
    sl_mem_release(b);
    stats = bed_stats(mem);
    assert_int_equal(stats.peak_bytes, 3 * MIB);
    assert_int_equal(stats.peak_held_bytes, 3 * MIB);
    assert_int_equal(stats.classes[SL_MEM_CLASS_STASH].peak_bytes, 3 * MIB);
    sl_mem_boundary(mem, NULL);
    stats = bed_stats(mem);
    assert_int_equal(stats.peak_bytes, MIB);
    assert_int_equal(stats.peak_held_bytes, 3 * MIB); /* kept: no pressure */
    assert_int_equal(stats.classes[SL_MEM_CLASS_STASH].peak_bytes, MIB);
    sl_mem_release(a);
    sl_mem_destroy(mem);
}

static void resident_memory_falls_with_the_limit(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 128 * MIB, 0);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_STASH, 96 * MIB);
    sl_mem_survey_t survey;
    size_t before;
    size_t held;

    (void)state;
    BED_HOST_ONLY();
    memset(block->ptr, 1, block->bytes);
    sl_mem_survey(mem, &survey);
    assert_int_equal(survey.touched_bytes, 96 * MIB);
    sl_mem_release(block);
    before = bed_resident_bytes();
    held = bed_stats(mem).held_bytes;
    assert_int_equal(bed_limit(mem, 2 * MIB), 2 * MIB);
    held -= bed_stats(mem).held_bytes;
    assert_int_equal(held, 96 * MIB);
    /* as much, give or take what the process itself moves */
    assert_true(bed_resident_bytes() + held < before + MIB);
    sl_mem_survey(mem, &survey);
    assert_int_equal(survey.touched_bytes, 0);
    sl_mem_destroy(mem);
}

/* Memory that was never written is held but takes no pages. */
static void only_touched_pages_count_as_touched(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 64 * MIB, 0);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_STASH, MIB);
    sl_mem_survey_t survey;

    (void)state;
    BED_HOST_ONLY();
    sl_mem_survey(mem, &survey);
    assert_int_equal(survey.touched_bytes, 0);
    memset(block->ptr, 1, 300 * KIB);
    sl_mem_survey(mem, &survey);
    assert_in_range(survey.touched_bytes, 300 * KIB, 304 * KIB);
    assert_int_equal(bed_stats(mem).held_bytes, MIB);
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

/* All copies are begun, then waited for once; a wait that fails leaves all
 * blocks on the host, to be tried again. */
static void blocks_come_back_together(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 64 * MIB, 64 * MIB);
    sl_mem_block_t *blocks[8];
    int i, n_copies;

    (void)state;
    for (i = 0; i < 8; i++) {
        blocks[i] = bed_block(mem, (sl_mem_class_t)(i % SL_MEM_N_CLASSES), MIB);
        bed_fill(blocks[i], (unsigned)i);
    }
    (void)bed_limit(mem, 0);
    assert_int_equal(bed_stats(mem).host_used_bytes, 8 * MIB);
    assert_int_equal(bed.n_waits, 0);
    bed.fail_waits = 1;
    (void)bed_limit(mem, 64 * MIB);
    assert_true(bed.n_waits > 0);
    assert_int_equal(bed_stats(mem).host_used_bytes, 8 * MIB);
    assert_int_equal(bed_stats(mem).used_bytes, 0);
    bed.fail_waits = bed.n_waits = bed.n_begins = 0;
    n_copies = bed.n_copies;
    (void)bed_limit(mem, 64 * MIB);
    assert_int_equal(bed.n_copies - n_copies, 8);
    assert_int_equal(bed.n_begins, 8);
    assert_int_equal(bed.n_waits, 1);
    assert_int_equal(bed_stats(mem).host_used_bytes, 0);
    for (i = 0; i < 8; i++) {
        assert_true(bed_is_filled(blocks[i], (unsigned)i));
        sl_mem_release(blocks[i]);
    }
    sl_mem_destroy(mem);
    assert_int_equal(atomic_load(&bed.n_live), 0);
}

/* Neither the host nor another region gets it; what is beside it leaves. */
static void a_pinned_block_stays(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 64 * MIB, 64 * MIB);
    sl_mem_block_t *pinned = bed_block(mem, SL_MEM_CLASS_COMM, MIB);
    sl_mem_block_t *other = bed_block(mem, SL_MEM_CLASS_COMM, MIB);
    void *ptr = pinned->ptr;
    int round;

    (void)state;
    sl_mem_pin(pinned);
    for (round = 0; round < 2; round++) {
        sl_mem_limit_request(mem, round == 0 ? 0 : 64 * MIB);
        sl_mem_boundary(mem, NULL);
        assert_ptr_equal(pinned->ptr, ptr);
        assert_int_equal(bed_stats(mem).host_used_bytes, round == 0 ? MIB : 0);
    }
    sl_mem_release(pinned);
    sl_mem_release(other);
    sl_mem_pin(NULL);
    sl_mem_destroy(mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_limit_applies_at_the_boundary_only),
        sl_unit_test(blocks_come_back_together),
        sl_unit_test(shrinking_gives_free_regions_back),
        sl_unit_test(what_cannot_shrink_is_reported),
        sl_unit_test(sparse_regions_are_emptied_into_others),
        sl_unit_test(contents_survive_the_way_to_the_host_and_back),
        sl_unit_test(holes_are_closed_for_what_comes_back),
        sl_unit_test(cheap_classes_leave_first_and_return_last),
        sl_unit_test(a_small_host_pool_takes_what_it_can),
        sl_unit_test(a_failed_copy_leaves_the_block),
        sl_unit_test(peaks_start_anew_at_the_boundary),
        sl_unit_test(resident_memory_falls_with_the_limit),
        sl_unit_test(only_touched_pages_count_as_touched),
        sl_unit_test(a_pinned_block_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
