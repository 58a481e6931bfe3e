/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks, records, statistics, refusals. --bench prints the cost of a pair. */
#include <pthread.h>
#include <stdio.h>

#include "base/clock.h"
#include "tests/memory/memory_bed.h"

enum {
    N_SMALL = 1023
};

static void small_blocks_do_not_overlap(void **state)
{
    sl_mem_block_t *blocks[N_SMALL];
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, SIZE_MAX, 0);
    sl_mem_stats_t stats;
    size_t i;

    (void)state;
    for (i = 0; i < N_SMALL; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_ACTIVATION, i + 1);
        bed_fill(blocks[i], (unsigned)i);
    }
    for (i = 0; i < N_SMALL; i++) {
        assert_true(bed_is_filled(blocks[i], (unsigned)i));
    }
    stats = bed_stats(mem);
    assert_int_equal(stats.used_bytes, 654336); /* 256 bytes is the unit */
    assert_int_equal(stats.n_live_blocks, N_SMALL);
    assert_int_equal(stats.held_bytes, MIB);
    assert_int_equal(stats.largest_free_bytes, MIB - 654336);
    assert_int_equal(stats.classes[SL_MEM_CLASS_ACTIVATION].used_bytes, 654336);
    for (i = 0; i < N_SMALL; i += 2) {
        sl_mem_release(blocks[i]);
    }
    for (i = 1; i < N_SMALL; i += 2) {
        assert_true(bed_is_filled(blocks[i], (unsigned)i));
        sl_mem_release(blocks[i]);
    }
    stats = bed_stats(mem);
    assert_int_equal(stats.used_bytes, 0);
    assert_int_equal(stats.n_live_blocks, 0);
    assert_int_equal(stats.peak_bytes, 654336);
    /* all coalesced again */
    assert_int_equal(stats.largest_free_bytes, MIB);
    sl_mem_destroy(mem);
    assert_int_equal(atomic_load(&bed.n_live), 0);
}

static void sizes_round_to_256(void **state)
{
    static const size_t asked[] = {1, 255, 256, 257, 1023, 1024, 1025};
    static const size_t used[] = {256, 256, 256, 512, 1024, 1024, 1280};
    sl_mem_t *mem = bed_mem(&(bed_t){0}, SIZE_MAX, 0);
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(asked) / sizeof(*asked); i++) {
        sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_STASH, asked[i]);

        assert_int_equal(bed_stats(mem).used_bytes, used[i]);
        sl_mem_release(block);
    }
    sl_mem_destroy(mem);
}

static void the_best_fit_is_taken(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, SIZE_MAX, 0);
    sl_mem_block_t *holes[4];
    sl_mem_block_t *walls[4];
    sl_mem_block_t *block;
    static const size_t sizes[] = {90 * KIB, 70 * KIB, 66 * KIB, 80 * KIB};
    void *best;
    int i;

    (void)state;
    for (i = 0; i < 4; i++) {
        holes[i] = bed_block(mem, SL_MEM_CLASS_STASH, sizes[i]);
        walls[i] = bed_block(mem, SL_MEM_CLASS_STASH, 1);
    }
    best = holes[1]->ptr;
    for (i = 0; i < 4; i++) {
        sl_mem_release(holes[i]);
    }
    block = bed_block(mem, SL_MEM_CLASS_STASH, 68 * KIB);
    assert_ptr_equal(block->ptr, best);
    sl_mem_release(block);
    for (i = 0; i < 4; i++) {
        sl_mem_release(walls[i]);
    }
    sl_mem_destroy(mem);
}

static void an_empty_block_is_valid(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 0, 0);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_COMM, 0);

    (void)state;
    assert_non_null(block->ptr);
    assert_int_equal(bed_stats(mem).n_live_blocks, 1);
    assert_int_equal(bed_stats(mem).used_bytes, 0);
    sl_mem_release(block);
    sl_mem_release(NULL);
    assert_int_equal(bed_stats(mem).n_live_blocks, 0);
    sl_mem_destroy(mem);
    sl_mem_destroy(NULL);
}

static void classes_are_counted_apart(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 2 * MIB, 4 * MIB);
    sl_mem_block_t *blocks[SL_MEM_N_CLASSES];
    sl_mem_stats_t stats;
    int i;

    (void)state;
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        blocks[i] = bed_block(mem, (sl_mem_class_t)i, 512 * KIB);
    }
    stats = bed_stats(mem);
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        const sl_mem_class_stats_t *one = &stats.classes[i];
        const int is_spilled = i == SL_MEM_N_CLASSES - 1; /* 2.5 MiB asked */

        assert_int_equal(one->used_bytes, 512 * KIB);
        assert_int_equal(one->peak_bytes, 512 * KIB);
        assert_int_equal(one->n_allocs, 1);
        assert_int_equal(one->host_bytes, is_spilled ? 512 * KIB : 0);
        assert_int_equal(one->n_spills, is_spilled);
        assert_int_equal(one->spill_bytes, is_spilled ? 512 * KIB : 0);
        sl_mem_release(blocks[i]);
    }
    stats = bed_stats(mem);
    assert_int_equal(stats.used_bytes, 0);
    assert_int_equal(stats.host_used_bytes, 0);
    assert_int_equal(stats.classes[SL_MEM_CLASS_COMM].host_bytes, 0);
    sl_mem_destroy(mem);
}

static void a_refusal_says_what_there_is(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 2 * MIB, 0);
    sl_mem_block_t *held = bed_block(mem, SL_MEM_CLASS_PERSISTENT, MIB + 1);
    sl_mem_block_t *block = NULL;

    (void)state;
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, MIB, &block),
                     SL_ERR_QUOTA);
    assert_null(block);
    sl_assert_contains(sl_last_error(), "bed: stash block of 1048576 bytes");
    sl_assert_contains(sl_last_error(), "of limit 2097152");
    sl_assert_contains(sl_last_error(), "largest free block");
    /* sizes that no rounding survives */
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, SIZE_MAX, &block),
                     SL_ERR_QUOTA);
    sl_assert_status(
        sl_mem_alloc(mem, SL_MEM_CLASS_STASH, SIZE_MAX - 70000, &block),
        SL_ERR_QUOTA);
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_N_CLASSES, 1, &block),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_mem_alloc(NULL, SL_MEM_CLASS_STASH, 1, &block),
                     SL_ERR_INVALID_ARG);
    sl_mem_release(held);
    sl_mem_destroy(mem);
}

/* Nothing is touched, so the sizes cost nothing. */
static void overflow_goes_to_the_host_pool(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, GIB, 1025 * MIB);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_STASH, GIB + KIB);

    (void)state;
    assert_int_equal(bed_stats(mem).held_bytes, 0);
    assert_int_equal(bed_stats(mem).host_used_bytes, GIB + KIB);
    assert_true(bed_stats(mem).host_held_bytes <= 1025 * MIB);
    sl_mem_release(block);
    sl_mem_destroy(mem);

    mem = bed_mem(&(bed_t){0}, GIB, GIB);
    block = NULL;
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, GIB + KIB, &block),
                     SL_ERR_QUOTA);
    block = bed_block(mem, SL_MEM_CLASS_STASH, GIB);
    assert_int_equal(bed_stats(mem).held_bytes, GIB);
    assert_int_equal(bed_stats(mem).host_held_bytes, 0);
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

/* Free regions that are too small are given back for one that is not. */
static void free_regions_make_room(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 8 * MIB, 0);
    sl_mem_block_t *blocks[7];
    sl_mem_block_t *block;
    int i;

    (void)state;
    for (i = 0; i < 7; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_STASH, MIB);
    }
    for (i = 0; i < 7; i++) {
        sl_mem_release(blocks[i]);
    }
    assert_true(atomic_load(&bed.n_live) > 1);
    block = bed_block(mem, SL_MEM_CLASS_STASH, 8 * MIB);
    assert_int_equal(bed_stats(mem).held_bytes, 8 * MIB);
    assert_int_equal(atomic_load(&bed.n_live), 1);
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

static void count_quiesce(void *ctx)
{
    (*(int *)ctx)++;
}

static void ops_end_before_a_region_goes(void **state)
{
    sl_mem_params_t params;
    sl_mem_t *mem = NULL;
    sl_mem_block_t *block;
    int n_quiesced = 0;

    (void)state;
    sl_mem_params_default(&params);
    params.limit_bytes = 4 * MIB;
    params.quiesce = count_quiesce;
    params.quiesce_ctx = &n_quiesced;
    sl_assert_ok(sl_mem_create(&params, &mem));
    block = bed_block(mem, SL_MEM_CLASS_STASH, MIB);
    sl_mem_release(block);
    assert_int_equal(n_quiesced, 0);
    /* hopeless: nothing is given back for it */
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 5 * MIB, &block),
                     SL_ERR_QUOTA);
    assert_int_equal(n_quiesced, 0);
    assert_int_equal(bed_stats(mem).held_bytes, MIB);
    block = bed_block(mem, SL_MEM_CLASS_STASH, 4 * MIB);
    assert_int_equal(n_quiesced, 1);
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

static void regions_grow_in_powers_of_two(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 20 * MIB, 0);
    sl_mem_block_t *blocks[20];
    static const size_t held[20] = {1,  3,  3,  7,  7,  7,  7,  15, 15, 15,
                                    15, 15, 15, 15, 15, 20, 20, 20, 20, 20};
    size_t i;

    (void)state;
    for (i = 0; i < 20; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_STASH, MIB);
        assert_int_equal(bed_stats(mem).held_bytes, held[i] * MIB);
    }
    for (i = 0; i < 20; i++) {
        sl_mem_release(blocks[i]);
    }
    sl_mem_destroy(mem);
}

static void a_refusing_backing_is_backed_off(void **state)
{
    bed_t bed = {.max_bytes = 640 * KIB};
    sl_mem_t *mem = bed_mem(&bed, SIZE_MAX, 0);
    sl_mem_block_t *a = bed_block(mem, SL_MEM_CLASS_STASH, KIB);
    sl_mem_block_t *b;
    sl_mem_block_t *c = NULL;

    (void)state;
    assert_int_equal(bed_stats(mem).held_bytes, 512 * KIB);
    b = bed_block(mem, SL_MEM_CLASS_STASH, 640 * KIB);
    assert_int_equal(bed_stats(mem).held_bytes, (512 + 640) * KIB);
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 641 * KIB, &c),
                     SL_ERR_QUOTA);
    sl_mem_release(a);
    sl_mem_release(b);
    sl_mem_destroy(mem);
    assert_int_equal(atomic_load(&bed.n_live), 0);
}

/* Refuse the n-th call for good, for every n, and look for leaks. */
static void every_refusal_unwinds(void **state)
{
    int n;

    (void)state;
    for (n = 1; n < 12; n++) {
        bed_t bed = {.fail_from = n};
        sl_mem_t *mem = bed_mem(&bed, 64 * MIB, 0);
        sl_mem_block_t *blocks[40] = {0};
        size_t used = 0;
        int i;

        for (i = 0; i < 40; i++) {
            const size_t bytes = (size_t)(i + 1) * 40 * KIB;
            const sl_status_t status =
                sl_mem_alloc(mem, SL_MEM_CLASS_STASH, bytes, &blocks[i]);

            assert_true(status == SL_OK || status == SL_ERR_QUOTA);
            assert_int_equal(status == SL_OK, blocks[i] != NULL);
            used += status == SL_OK ? bytes : 0;
            assert_int_equal(bed_stats(mem).used_bytes, used);
            assert_int_equal(bed_stats(mem).held_bytes,
                             atomic_load(&bed.held_bytes));
        }
        for (i = 0; i < 40; i++) {
            sl_mem_release(blocks[i]);
        }
        assert_int_equal(bed_stats(mem).n_live_blocks, 0);
        sl_mem_destroy(mem);
        assert_int_equal(atomic_load(&bed.n_live), 0);
    }
}

static void a_pointer_that_is_not_ours_is_caught(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, SIZE_MAX, 0);
    sl_mem_block_t *a = bed_block(mem, SL_MEM_CLASS_STASH, 10);
    sl_mem_block_t *b = bed_block(mem, SL_MEM_CLASS_STASH, 10);
    sl_mem_block_t own = *a;
    unsigned char *inside = (void *)b;

    (void)state;
    sl_mem_release(&own); /* a copy is not the block */
    sl_assert_contains(sl_test_log_take(), "not a live memory block");
    sl_mem_release((sl_mem_block_t *)(void *)(inside + 8));
    sl_assert_contains(sl_test_log_take(), "not a live memory block");
    sl_mem_release((sl_mem_block_t *)(uintptr_t)64);
    sl_assert_contains(sl_test_log_take(), "not a live memory block");
    sl_mem_release((sl_mem_block_t *)(uintptr_t)(UINTPTR_MAX - 63));
    sl_assert_contains(sl_test_log_take(), "not a live memory block");
    sl_mem_release(a);
    sl_mem_release(a);
    sl_assert_contains(sl_test_log_take(), "released twice");
    assert_int_equal(bed_stats(mem).n_live_blocks, 1);
    assert_int_equal(bed_stats(mem).used_bytes, 256);
    sl_mem_release(b);
    sl_mem_destroy(mem);
    sl_mem_release(b); /* and after the allocator is gone */
    sl_assert_contains(sl_test_log_take(), "not a live memory block");
}

static void live_blocks_are_reported_at_the_end(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, SIZE_MAX, 0);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_STASH, 300);

    (void)state;
    sl_mem_destroy(mem);
    sl_assert_contains(sl_test_log_take(), "1 blocks live, 512 bytes");
    assert_int_equal(atomic_load(&bed.n_live), 0);
    sl_mem_release(block);
    sl_assert_contains(sl_test_log_take(), "not a live memory block");
}

static void an_older_table_is_accepted(void **state)
{
    bed_t bed = {.fail_copies = 1};
    sl_mem_ops_t old = bed_ops;
    sl_mem_params_t params;
    sl_mem_survey_t survey;
    sl_mem_t *mem = NULL;
    sl_mem_block_t *block;

    (void)state;
    BED_HOST_ONLY();
    old.size = offsetof(sl_mem_ops_t, copy); /* compiled before it existed */
    sl_mem_params_default(&params);
    params.device = &old;
    params.device_ctx = &bed;
    params.host_limit_bytes = 4 * MIB;
    sl_assert_ok(sl_mem_create(&params, &mem));
    block = bed_block(mem, SL_MEM_CLASS_STASH, MIB);
    bed_fill(block, 3);
    sl_mem_limit_request(mem, 0);
    sl_mem_boundary(mem, NULL);
    assert_int_equal(bed.n_copies, 0); /* memcpy took its place */
    sl_mem_limit_request(mem, MIB);
    sl_mem_boundary(mem, NULL);
    sl_mem_survey(mem, &survey);
    assert_int_equal(survey.touched_bytes, MIB); /* not known: all of it */
    sl_mem_limit_request(mem, 0);
    sl_mem_boundary(mem, NULL);
    assert_int_equal(bed_stats(mem).host_used_bytes, MIB);
    assert_true(bed_is_filled(block, 3));
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

static void incomplete_parameters_are_refused(void **state)
{
    sl_mem_ops_t half = bed_ops;
    sl_mem_params_t params;
    sl_mem_t *mem = NULL;

    (void)state;
    sl_mem_params_default(&params);
    sl_assert_status(sl_mem_create(NULL, &mem), SL_ERR_INVALID_ARG);
    sl_assert_status(sl_mem_create(&params, NULL), SL_ERR_INVALID_ARG);
    params.device = NULL;
    sl_assert_status(sl_mem_create(&params, &mem), SL_ERR_INVALID_ARG);
    params.device = &half;
    half.release = NULL;
    sl_assert_status(sl_mem_create(&params, &mem), SL_ERR_INVALID_ARG);
    half = bed_ops;
    half.size = offsetof(sl_mem_ops_t, release);
    sl_assert_status(sl_mem_create(&params, &mem), SL_ERR_INVALID_ARG);
    params.device = sl_mem_ops_host();
    params.name = NULL;
    sl_assert_status(sl_mem_create(&params, &mem), SL_ERR_INVALID_ARG);
    assert_null(mem);
}

static void many_blocks_take_many_slabs(void **state)
{
    enum {
        N = 5000
    };
    static sl_mem_block_t *blocks[N];
    int round;
    int i;

    (void)state;
    for (round = 0; round < 2; round++) { /* the second reuses the slabs */
        sl_mem_t *mem = bed_mem(&(bed_t){0}, SIZE_MAX, 0);

        for (i = 0; i < N; i++) {
            blocks[i] = bed_block(mem, SL_MEM_CLASS_STASH, 64);
            bed_put(blocks[i]->ptr, &i, sizeof(i));
        }
        for (i = 0; i < N; i++) {
            int got;

            bed_get(&got, blocks[i]->ptr, sizeof(got));
            assert_int_equal(got, i);
            sl_mem_release(blocks[i]);
        }
        assert_int_equal(bed_stats(mem).used_bytes, 0);
        sl_mem_destroy(mem);
    }
}

/* ---- cost of a pair ---- */

static double pair_ns(sl_mem_t *mem, const size_t *sizes, int n_sizes)
{
    enum {
        N = 1000000
    };
    const uint64_t start_ns = sl_clock_ns();
    sl_mem_block_t *block = NULL;
    int i;

    for (i = 0; i < N; i++) {
        if (sl_mem_alloc(mem, SL_MEM_CLASS_ACTIVATION, sizes[i % n_sizes],
                         &block) != SL_OK) {
            return -1;
        }
        sl_mem_release(block);
    }
    return (double)(sl_clock_ns() - start_ns) / N;
}

static int bench(void)
{
    static const size_t sizes[] = {100,       4 * KIB,  70 * KIB, 1000,
                                   300 * KIB, 20 * KIB, 3 * MIB,  512};
    sl_mem_block_t *walls[64];
    sl_mem_block_t *holes[64];
    sl_mem_params_t params;
    sl_mem_t *mem;
    int i;

    sl_mem_params_default(&params);
    if (sl_mem_create(&params, &mem) != SL_OK) {
        return 1;
    }
    (void)pair_ns(mem, sizes, 8);
    (void)printf("pair, one size, fresh pool: %.1f ns\n",
                 pair_ns(mem, sizes + 1, 1));
    (void)printf("pair, eight sizes, fresh pool: %.1f ns\n",
                 pair_ns(mem, sizes, 8));
    for (i = 0; i < 64; i++) {
        if (sl_mem_alloc(mem, SL_MEM_CLASS_STASH, sizes[i % 8] + (size_t)i,
                         &holes[i]) != SL_OK ||
            sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 256, &walls[i]) != SL_OK) {
            return 1;
        }
    }
    for (i = 0; i < 64; i++) {
        sl_mem_release(holes[i]);
    }
    (void)printf("pair, eight sizes, 64 holes: %.1f ns\n",
                 pair_ns(mem, sizes, 8));
    for (i = 0; i < 64; i++) {
        sl_mem_release(walls[i]);
    }
    sl_mem_destroy(mem);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(small_blocks_do_not_overlap),
        sl_unit_test(sizes_round_to_256),
        sl_unit_test(the_best_fit_is_taken),
        sl_unit_test(an_empty_block_is_valid),
        sl_unit_test(classes_are_counted_apart),
        sl_unit_test(a_refusal_says_what_there_is),
        sl_unit_test(overflow_goes_to_the_host_pool),
        sl_unit_test(free_regions_make_room),
        sl_unit_test(ops_end_before_a_region_goes),
        sl_unit_test(regions_grow_in_powers_of_two),
        sl_unit_test(a_refusing_backing_is_backed_off),
        sl_unit_test(every_refusal_unwinds),
        sl_unit_test(a_pointer_that_is_not_ours_is_caught),
        sl_unit_test(live_blocks_are_reported_at_the_end),
        sl_unit_test(an_older_table_is_accepted),
        sl_unit_test(incomplete_parameters_are_refused),
        sl_unit_test(many_blocks_take_many_slabs),
    };

    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        return bench();
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
