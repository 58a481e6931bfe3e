/* SPDX-License-Identifier: Apache-2.0 */
/* What allocators of accelerators are known to get wrong, one test each. */
#include <pthread.h>
#include <sched.h>

#include "base/rng.h"
#include "tests/memory/memory_bed.h"

/* ---- a device whose ops run later, for the tests of ops in flight ---- */

typedef struct late_device {
    unsigned char *writes; /* the op in flight writes here, at its end */
    size_t n_bytes;
    int n_quiesced;
} late_device_t;

/* All ops end now: they write. */
static void late_quiesce(void *ctx)
{
    late_device_t *device = ctx;

    device->n_quiesced++;
    if (device->writes != NULL) {
        bed_set(device->writes, 0xEE, device->n_bytes);
        device->writes = NULL;
    }
}

static sl_mem_t *late_mem(late_device_t *device, bed_t *bed, size_t limit,
                          void (*quiesce)(void *))
{
    sl_mem_params_t params;
    sl_mem_t *mem = NULL;

    sl_mem_params_default(&params);
    params.device = &bed_ops;
    params.device_ctx = bed;
    params.limit_bytes = limit;
    params.quiesce = quiesce;
    params.quiesce_ctx = device;
    sl_assert_ok(sl_mem_create(&params, &mem));
    return mem;
}

/* A thread that holds a block until its op has ended. The release cannot come
 * from within the wait, which may be under the allocator's lock. */
typedef struct holder {
    sl_mem_block_t *block;
    atomic_int ended;    /* the op has */
    atomic_int released; /* and so was the block */
} holder_t;

static void *hold(void *arg)
{
    holder_t *holder = arg;

    while (!atomic_load(&holder->ended)) {
        (void)sched_yield();
    }
    sl_mem_release(holder->block);
    atomic_store(&holder->released, 1);
    return NULL;
}

static void holder_quiesce(void *ctx)
{
    holder_t *holder = ctx;

    atomic_store(&holder->ended, 1);
    /* the first wait is outside the lock: the holder can let go meanwhile */
    while (!atomic_load(&holder->released)) {
        (void)sched_yield();
    }
}

/* The identical retry used to succeed: so the allocator does it itself. */
static void a_block_whose_op_is_pending_is_waited_for(void **state)
{
    holder_t holder = {0};
    sl_mem_params_t params;
    sl_mem_t *mem = NULL;
    sl_mem_block_t *block = NULL;
    pthread_t thread;

    (void)state;
    sl_mem_params_default(&params);
    params.limit_bytes = 8 * MIB;
    params.quiesce = holder_quiesce;
    params.quiesce_ctx = &holder;
    sl_assert_ok(sl_mem_create(&params, &mem));
    holder.block = bed_block(mem, SL_MEM_CLASS_STASH, 8 * MIB);
    assert_int_equal(pthread_create(&thread, NULL, hold, &holder), 0);
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 8 * MIB, &block));
    assert_int_equal(pthread_join(thread, NULL), 0);
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

/* A region is given back in the middle of a mini-batch only after the ops
 * that may still write to it. The write would fault otherwise. */
static void a_flush_with_kernels_in_flight_waits_for_them(void **state)
{
    late_device_t device = {0};
    bed_t bed = {0};
    sl_mem_t *mem = late_mem(&device, &bed, 8 * MIB, late_quiesce);
    sl_mem_block_t *kept = bed_block(mem, SL_MEM_CLASS_PERSISTENT, MIB);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_STASH, 4 * MIB);

    (void)state;
    bed_fill(kept, 3);
    device.writes = block->ptr;
    device.n_bytes = block->bytes;
    sl_mem_release(block); /* its last op is submitted, not run */
    block = bed_block(mem, SL_MEM_CLASS_STASH, 7 * MIB);
    assert_int_equal(device.n_quiesced, 1);
    assert_null(device.writes);
    bed_fill(block, 4);
    assert_true(bed_is_filled(kept, 3));
    assert_true(bed_is_filled(block, 4));
    /* the same at a boundary that shrinks */
    device.writes = block->ptr;
    device.n_bytes = block->bytes;
    sl_mem_release(block);
    assert_int_equal(bed_limit(mem, MIB), MIB);
    assert_null(device.writes);
    assert_true(bed_is_filled(kept, 3));
    sl_mem_release(kept);
    sl_mem_destroy(mem);
}

/* A small start, then everything in one block. */
static void the_whole_limit_fits_in_one_block(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 64 * MIB, 0);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_STASH, KIB);

    (void)state;
    sl_mem_release(block);
    block = bed_block(mem, SL_MEM_CLASS_STASH, 64 * MIB);
    assert_int_equal(bed_stats(mem).held_bytes, 64 * MIB);
    sl_mem_release(block);
    sl_mem_destroy(mem);
}

/* What is advertised can be had: fill up to the last unit, block by block. */
static void all_that_is_promised_can_be_had(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 10 * MIB, 0);
    sl_mem_block_t *blocks[40];
    int i;

    (void)state;
    for (i = 0; i < 40; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_STASH, 256 * KIB);
    }
    assert_int_equal(bed_stats(mem).used_bytes, 10 * MIB);
    assert_int_equal(bed_stats(mem).largest_free_bytes, 0);
    for (i = 0; i < 40; i++) {
        sl_mem_release(blocks[i]);
    }
    sl_mem_destroy(mem);
}

/* Two devices: what is released is credited where it was taken. */
static void the_right_device_is_debited(void **state)
{
    bed_t beds[2] = {{0}, {0}};
    sl_mem_t *mems[2] = {bed_mem(&beds[0], 8 * MIB, 8 * MIB),
                         bed_mem(&beds[1], 8 * MIB, 8 * MIB)};
    sl_mem_block_t *blocks[2][4];
    int d, i;

    (void)state;
    for (d = 0; d < 2; d++) {
        for (i = 0; i < 4; i++) {
            blocks[d][i] =
                bed_block(mems[d], (sl_mem_class_t)i, (size_t)(2 + d) * MIB);
        }
    }
    for (i = 0; i < 4; i++) {
        sl_mem_release(blocks[1][i]);
        assert_int_equal(bed_stats(mems[0]).used_bytes, 8 * MIB);
        assert_int_equal(bed_stats(mems[1]).n_live_blocks, 3 - i);
    }
    assert_int_equal(bed_stats(mems[1]).used_bytes, 0);
    assert_int_equal(bed_stats(mems[1]).host_used_bytes, 0);
    for (i = 0; i < 4; i++) {
        sl_mem_release(blocks[0][i]);
    }
    for (d = 0; d < 2; d++) {
        assert_int_equal(bed_stats(mems[d]).used_bytes, 0);
        sl_mem_destroy(mems[d]);
    }
}

/* Nothing wraps below zero: limits under the use, at zero, and again. */
static void nothing_underflows(void **state)
{
    static const size_t limits[] = {0, 1, 255, 0, SIZE_MAX, 0, MIB, 0, 0};
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 32 * MIB, 0);
    sl_mem_block_t *block = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 3 * MIB);
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(limits) / sizeof(*limits); i++) {
        const size_t reached = bed_limit(mem, limits[i]);
        const sl_mem_stats_t stats = bed_stats(mem);
        sl_mem_block_t *more = NULL;
        sl_status_t status;

        assert_true(reached >= 3 * MIB && reached <= 32 * MIB);
        assert_int_equal(stats.used_bytes, 3 * MIB);
        assert_true(stats.asked_limit_bytes <= 32 * MIB);
        assert_int_equal(stats.pinned_bytes, limits[i] < 3 * MIB ? 3 * MIB : 0);
        status = sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 4 * MIB, &more);
        assert_int_equal(status, limits[i] == SIZE_MAX ? SL_OK : SL_ERR_QUOTA);
        sl_mem_release(more);
    }
    sl_mem_release(block);
    assert_int_equal(bed_limit(mem, 0), 0);
    assert_int_equal(bed_stats(mem).used_bytes, 0);
    sl_mem_destroy(mem);
}

/* Filled to 90 % of its cap with odd sizes, at most 5 % is lost. */
static void odd_sizes_waste_little_of_the_host_pool(void **state)
{
    enum {
        N_MAX = 4096
    };
    static sl_mem_block_t *blocks[N_MAX];
    const sl_rng_t rng = sl_rng_at(37, 0, 0, 0, 0);
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 0, 256 * MIB);
    size_t asked = 0;
    int n = 0;

    (void)state;
    while (asked < 256 * MIB / 10 * 9) {
        const size_t bytes =
            (size_t)sl_rng_below(&rng, (uint64_t)n, 512 * KIB) | 1;

        assert_true(n < N_MAX);
        blocks[n++] = bed_block(mem, SL_MEM_CLASS_STASH, bytes);
        asked += bytes;
    }
    assert_true(bed_stats(mem).host_held_bytes <= 256 * MIB);
    assert_true((double)bed_stats(mem).host_used_bytes <= 1.05 * (double)asked);
    assert_int_equal(bed_stats(mem).classes[SL_MEM_CLASS_STASH].asked_bytes,
                     asked);
    while (n > 0) {
        sl_mem_release(blocks[--n]);
    }
    assert_int_equal(bed_stats(mem).classes[SL_MEM_CLASS_STASH].asked_bytes, 0);
    sl_mem_destroy(mem);
}

/* 1 KiB in each region must not keep all of them. */
static void one_small_block_does_not_pin_a_region(void **state)
{
    enum {
        N = 8
    };
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 256 * MIB, 0);
    sl_mem_block_t *small[N];
    sl_mem_block_t *large[N];
    size_t held;
    int i;

    (void)state;
    for (i = 0; i < N; i++) {
        large[i] = bed_block(mem, SL_MEM_CLASS_PERSISTENT, 16 * MIB);
        small[i] = bed_block(mem, SL_MEM_CLASS_PERSISTENT, KIB);
        bed_fill(small[i], (unsigned)i);
    }
    for (i = 0; i < N; i++) {
        sl_mem_release(large[i]);
    }
    held = bed_stats(mem).held_bytes;
    assert_true(held >= 128 * MIB);
    assert_int_equal(bed_limit(mem, held / 2), held / 2);
    assert_int_equal(bed_limit(mem, N * KIB), N * KIB);
    assert_int_equal(bed_stats(mem).pinned_bytes, 0);
    assert_int_equal(atomic_load(&bed.held_bytes), N * KIB);
    for (i = 0; i < N; i++) {
        assert_true(bed_is_filled(small[i], (unsigned)i));
        sl_mem_release(small[i]);
    }
    sl_mem_destroy(mem);
}

/* Half is free, but in pieces: the message has both figures. */
static void a_refusal_tells_pieces_from_the_sum(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem;
    sl_mem_block_t *blocks[32];
    sl_mem_block_t *block = NULL;
    sl_mem_survey_t survey;
    int i;

    (void)state;
    BED_WHOLE_ONLY();
    mem = bed_mem(&bed, 8 * MIB, 0);
    for (i = 0; i < 32; i++) {
        blocks[i] = bed_block(mem, SL_MEM_CLASS_STASH, 256 * KIB);
    }
    for (i = 0; i < 32; i += 2) {
        sl_mem_release(blocks[i]);
    }
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, MIB, &block),
                     SL_ERR_QUOTA);
    sl_assert_contains(sl_last_error(), "stash block of 1048576 bytes");
    sl_assert_contains(sl_last_error(), "8388608 bytes held of limit 8388608");
    sl_assert_contains(sl_last_error(), "4194304 free");
    sl_assert_contains(sl_last_error(), "largest free block 262144");
    sl_mem_survey(mem, &survey);
    assert_int_equal(survey.n_free_blocks, 16);
    assert_true(survey.fragmentation > 0.93 && survey.fragmentation < 0.94);
    assert_true(survey.classes[SL_MEM_CLASS_STASH].fragmentation == 0.5);
    assert_int_equal(survey.classes[SL_MEM_CLASS_STASH].device_bytes, 4 * MIB);
    assert_int_equal(survey.classes[SL_MEM_CLASS_STASH].region_bytes, 8 * MIB);
    assert_int_equal(survey.classes[SL_MEM_CLASS_COMM].region_bytes, 0);
    for (i = 1; i < 32; i += 2) {
        sl_mem_release(blocks[i]);
    }
    sl_mem_destroy(mem);
}

/* A job goes on after a refusal, once the limit is raised. */
static void a_raise_ends_the_shortage(void **state)
{
    sl_mem_t *mem = bed_mem(&(bed_t){0}, 64 * MIB, 0);
    sl_mem_block_t *kept = bed_block(mem, SL_MEM_CLASS_PERSISTENT, MIB);
    sl_mem_block_t *block = NULL;

    (void)state;
    bed_fill(kept, 1);
    assert_int_equal(bed_limit(mem, 4 * MIB), 4 * MIB);
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 8 * MIB, &block),
                     SL_ERR_QUOTA);
    assert_int_equal(bed_limit(mem, 16 * MIB), 16 * MIB);
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 8 * MIB, &block));
    assert_true(bed_is_filled(kept, 1));
    sl_mem_release(block);
    sl_mem_release(kept);
    sl_mem_destroy(mem);
}

/* ---- 16 threads race the limit ---- */

typedef struct racer {
    sl_mem_t *mem;
    bed_t *bed;
    atomic_int *n_over;
    atomic_size_t *n_bytes; /* granted and not yet released */
    int index;
} racer_t;

static void *race(void *arg)
{
    const racer_t *racer = arg;
    const sl_rng_t rng = sl_rng_at(3, (uint32_t)racer->index, 0, 0, 0);
    uint64_t k;

    for (k = 0; k < 2000; k++) {
        const size_t bytes = ((size_t)sl_rng_below(&rng, k, 4096) + 1) * 256;
        sl_mem_block_t *block = NULL;

        if (sl_mem_alloc(racer->mem, SL_MEM_CLASS_STASH, bytes, &block) ==
            SL_OK) {
            const size_t sum = atomic_fetch_add(racer->n_bytes, bytes) + bytes;

            if (sum > 4 * MIB ||
                atomic_load(&racer->bed->held_bytes) > 4 * MIB) {
                atomic_fetch_add(racer->n_over, 1);
            }
            bed_set(block->ptr, 1, 1);
            atomic_fetch_sub(racer->n_bytes, bytes);
            sl_mem_release(block);
        }
    }
    return NULL;
}

static void sixteen_threads_race_the_limit(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 4 * MIB, 0);
    atomic_int n_over = 0;
    atomic_size_t n_bytes = 0;
    pthread_t threads[16];
    racer_t racers[16];
    int i;

    (void)state;
    for (i = 0; i < 16; i++) {
        racers[i] = (racer_t){mem, &bed, &n_over, &n_bytes, i};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]),
                         0);
    }
    for (i = 0; i < 16; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(atomic_load(&n_over), 0);
    assert_true(bed_stats(mem).peak_held_bytes <= 4 * MIB);
    assert_int_equal(bed_stats(mem).n_live_blocks, 0);
    sl_mem_destroy(mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_block_whose_op_is_pending_is_waited_for),
        sl_unit_test(a_flush_with_kernels_in_flight_waits_for_them),
        sl_unit_test(the_whole_limit_fits_in_one_block),
        sl_unit_test(all_that_is_promised_can_be_had),
        sl_unit_test(the_right_device_is_debited),
        sl_unit_test(nothing_underflows),
        sl_unit_test(odd_sizes_waste_little_of_the_host_pool),
        sl_unit_test(one_small_block_does_not_pin_a_region),
        sl_unit_test(a_refusal_tells_pieces_from_the_sum),
        sl_unit_test(a_raise_ends_the_shortage),
        sl_unit_test(sixteen_threads_race_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
