/* SPDX-License-Identifier: Apache-2.0 */
/* What the host pool keeps of the machine's memory, and gives back. */
#include "tests/memory/memory_bed.h"

enum {
    N_BLOCKS = 32,
    PIN_EVERY = 8
};

#define BLOCK_BYTES (4 * MIB + 300)
#define N_PINNED (N_BLOCKS / PIN_EVERY)
#define PINNED_BYTES (N_PINNED * BLOCK_BYTES)
/* Whole huge pages go back: both ends of a block share theirs. */
#define SLACK_BYTES ((size_t)N_PINNED * 2 * 2 * MIB)

/* An allocator without any device memory for now, and its blocks on the host,
 * filled. */
static sl_mem_t *overflow(bed_t *bed, sl_mem_block_t **blocks)
{
    sl_mem_t *mem = bed_mem(bed, GIB, GIB);
    unsigned i;

    assert_int_equal(bed_limit(mem, 0), 0);
    for (i = 0; i < N_BLOCKS; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_STASH, BLOCK_BYTES);
        bed_fill(blocks[i], i);
    }
    assert_int_equal(bed_stats(mem).used_bytes, 0);
    return mem;
}

static size_t host_touched(const sl_mem_t *mem)
{
    sl_mem_survey_t survey;

    sl_mem_survey(mem, &survey);
    return survey.host_touched_bytes;
}

static void assert_filled(sl_mem_block_t *const *blocks)
{
    unsigned i;

    for (i = 0; i < N_BLOCKS; i++) {
        if (blocks[i] != NULL) {
            assert_true(bed_is_filled(blocks[i], i));
        }
    }
}

/* Every so many a block stays on the host. */
static void pin_some(sl_mem_block_t *const *blocks)
{
    int i;

    for (i = 0; i < N_BLOCKS; i += PIN_EVERY) {
        sl_mem_pin(blocks[i]);
    }
}

static void release_others(sl_mem_block_t **blocks)
{
    int i;

    for (i = 0; i < N_BLOCKS; i++) {
        if (i % PIN_EVERY != 0) {
            sl_mem_release(blocks[i]);
            blocks[i] = NULL;
        }
    }
}

static void release_all(sl_mem_block_t **blocks)
{
    int i;

    for (i = 0; i < N_BLOCKS; i++) {
        sl_mem_release(blocks[i]);
        blocks[i] = NULL;
    }
}

static void pages_go_back_when_blocks_have_gone_home(void **state)
{
    bed_t bed = {0};
    sl_mem_block_t *blocks[N_BLOCKS];
    sl_mem_t *mem = overflow(&bed, blocks);
    size_t before;

    (void)state;
    pin_some(blocks);
    assert_true(host_touched(mem) >= N_BLOCKS * BLOCK_BYTES);
    before = bed_resident_bytes();
    assert_int_equal(bed_limit(mem, GIB), GIB);
    assert_true(bed_stats(mem).host_used_bytes < PINNED_BYTES + MIB);
    assert_true(bed_stats(mem).host_held_bytes <= PINNED_BYTES + SLACK_BYTES);
    assert_true(host_touched(mem) <= PINNED_BYTES + SLACK_BYTES);
    assert_filled(blocks);
    /* with the device's share gone too, the process is that much smaller, give
     * or take what it moves itself */
    release_others(blocks);
    assert_int_equal(bed_limit(mem, 0), 0);
    assert_true(bed_resident_bytes() + N_BLOCKS * BLOCK_BYTES <
                before + PINNED_BYTES + SLACK_BYTES + 2 * MIB);
    assert_filled(blocks);
    release_all(blocks);
    sl_mem_destroy(mem);
}

/* Holes are filled when blocks need them, without another region. */
static void what_went_back_comes_again(void **state)
{
    bed_t bed = {0};
    sl_mem_block_t *blocks[N_BLOCKS];
    sl_mem_t *mem = overflow(&bed, blocks);
    uint64_t n_regions;
    unsigned i;

    (void)state;
    pin_some(blocks);
    assert_int_equal(bed_limit(mem, GIB), GIB);
    assert_true(bed_stats(mem).trimmed_bytes > 0);
    release_others(blocks);
    assert_int_equal(bed_limit(mem, 0), 0);
    n_regions = bed_stats(mem).n_region_allocs;
    for (i = 0; i < N_BLOCKS / 4; i++) {
        if (blocks[i] == NULL) {
            blocks[i] = bed_block(mem, SL_MEM_CLASS_STASH, MIB);
            bed_fill(blocks[i], i);
        }
    }
    assert_int_equal(bed_stats(mem).n_region_allocs, n_regions);
    assert_true(bed_stats(mem).host_held_bytes >=
                bed_stats(mem).host_used_bytes);
    assert_filled(blocks);
    release_all(blocks);
    sl_mem_boundary(mem, NULL);
    sl_mem_boundary(mem, NULL);
    assert_int_equal(bed_stats(mem).host_held_bytes, 0);
    sl_mem_destroy(mem);
}

/* Memory of what overflows every mini-batch is not asked for again and again,
 * and goes when a mini-batch does without. */
static void steady_overflow_keeps_its_memory(void **state)
{
    bed_t bed = {0};
    sl_mem_block_t *blocks[N_BLOCKS];
    sl_mem_t *mem = overflow(&bed, blocks);
    sl_mem_stats_t first, last;
    int round;

    (void)state;
    pin_some(blocks);
    release_others(blocks);
    sl_mem_boundary(mem, NULL);
    first = bed_stats(mem);
    for (round = 0; round < 4; round++) {
        sl_mem_release(bed_block(mem, SL_MEM_CLASS_STASH, BLOCK_BYTES));
        sl_mem_boundary(mem, NULL);
        last = bed_stats(mem);
        assert_int_equal(last.n_region_allocs, first.n_region_allocs);
        assert_int_equal(last.host_held_bytes, first.host_held_bytes);
        assert_int_equal(last.trimmed_bytes, 0);
    }
    sl_mem_boundary(mem, NULL);
    last = bed_stats(mem);
    assert_true(last.trimmed_bytes > 0);
    assert_true(last.host_held_bytes <= PINNED_BYTES + SLACK_BYTES);
    /* once: there is nothing left to give */
    sl_mem_boundary(mem, NULL);
    assert_int_equal(bed_stats(mem).trimmed_bytes, last.trimmed_bytes);
    assert_filled(blocks);
    release_all(blocks);
    sl_mem_destroy(mem);
}

/* The limit of the host pool counts memory too: free pages make room. */
static void the_limit_counts_memory(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, GIB, 24 * MIB);
    sl_mem_block_t *small[2], *large;

    (void)state;
    assert_int_equal(bed_limit(mem, 0), 0);
    large = bed_block(mem, SL_MEM_CLASS_STASH, 15 * MIB);
    small[0] = bed_block(mem, SL_MEM_CLASS_STASH, 8 * MIB);
    sl_mem_release(small[0]);
    small[0] = bed_block(mem, SL_MEM_CLASS_STASH, 64 * KIB);
    bed_fill(small[0], 1);
    sl_mem_release(large);
    small[1] = bed_block(mem, SL_MEM_CLASS_STASH, 64 * KIB);
    bed_fill(small[1], 2);
    large = bed_block(mem, SL_MEM_CLASS_STASH, 17 * MIB);
    bed_fill(large, 3);
    assert_true(bed_stats(mem).host_held_bytes <= 24 * MIB);
    assert_true(bed_is_filled(small[0], 1));
    assert_true(bed_is_filled(small[1], 2));
    sl_mem_release(large);
    sl_mem_release(small[0]);
    sl_mem_release(small[1]);
    sl_mem_destroy(mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(pages_go_back_when_blocks_have_gone_home),
        sl_unit_test(what_went_back_comes_again),
        sl_unit_test(steady_overflow_keeps_its_memory),
        sl_unit_test(the_limit_counts_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
