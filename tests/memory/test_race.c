/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads on one allocator while its limit moves. */
#include <pthread.h>

#include "base/rng.h"
#include "tests/memory/memory_bed.h"

enum {
    N_THREADS = 16,
    N_ROUNDS = 1500,
    N_HELD = 8
};

typedef struct racer {
    sl_mem_t *mem;
    int index;
    atomic_int *n_bad;
} racer_t;

/* Blocks are not written: a boundary may move them at any moment here. */
static void *race(void *arg)
{
    const racer_t *racer = arg;
    const sl_rng_t rng = sl_rng_at(7, (uint32_t)racer->index, 0, 0, 0);
    sl_mem_block_t *held[N_HELD] = {0};
    uint64_t k = 0;
    int round;
    int i;

    for (round = 0; round < N_ROUNDS; round++) {
        const size_t slot = (size_t)sl_rng_below(&rng, k++, N_HELD);
        const size_t bytes = (size_t)sl_rng_below(&rng, k++, 200 * KIB);
        const sl_mem_class_t mem_class =
            (sl_mem_class_t)sl_rng_below(&rng, k++, SL_MEM_N_CLASSES);
        sl_mem_stats_t stats;
        sl_status_t status;

        sl_mem_release(held[slot]);
        held[slot] = NULL;
        status = sl_mem_alloc(racer->mem, mem_class, bytes, &held[slot]);
        if (status != SL_OK && status != SL_ERR_QUOTA) {
            atomic_fetch_add(racer->n_bad, 1);
        }
        if (racer->index < 2 && round % 16 == 0) {
            sl_mem_limit_request(racer->mem,
                                 (size_t)sl_rng_below(&rng, k++, 16 * MIB));
            sl_mem_boundary(racer->mem, NULL);
        }
        sl_mem_stats(racer->mem, &stats);
        if (stats.held_bytes > stats.limit_bytes ||
            stats.peak_held_bytes < stats.held_bytes ||
            stats.used_bytes > stats.held_bytes) {
            atomic_fetch_add(racer->n_bad, 1);
        }
    }
    for (i = 0; i < N_HELD; i++) {
        sl_mem_release(held[i]);
    }
    return NULL;
}

static void threads_and_moving_limits(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 16 * MIB, 4 * MIB);
    pthread_t threads[N_THREADS];
    racer_t racers[N_THREADS];
    atomic_int n_bad = 0;
    sl_mem_stats_t stats;
    int i;

    (void)state;
    for (i = 0; i < N_THREADS; i++) {
        racers[i] = (racer_t){.mem = mem, .index = i, .n_bad = &n_bad};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]),
                         0);
    }
    for (i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(atomic_load(&n_bad), 0);
    stats = bed_stats(mem);
    assert_int_equal(stats.n_live_blocks, 0);
    assert_int_equal(stats.used_bytes, 0);
    assert_int_equal(stats.host_used_bytes, 0);
    assert_int_equal(stats.held_bytes, atomic_load(&bed.held_bytes));
    sl_mem_destroy(mem);
    assert_int_equal(atomic_load(&bed.n_live), 0);
}

/* ---- contents, with the boundary as the only moment when blocks move ---- */

typedef struct writer {
    sl_mem_t *mem;
    pthread_rwlock_t *batch; /* read: inside a mini-batch; write: boundary */
    atomic_int *n_bad;
    int index;
} writer_t;

/* Release one block, get another, look at both. */
static void turn_over(const writer_t *writer, const sl_rng_t *rng, uint64_t *k,
                      sl_mem_block_t **slot, unsigned seed)
{
    const size_t bytes = (size_t)sl_rng_below(rng, (*k)++, 24 * KIB);
    const uint64_t mem_class = sl_rng_below(rng, (*k)++, SL_MEM_N_CLASSES);

    if (*slot != NULL && !bed_is_filled(*slot, seed)) {
        atomic_fetch_add(writer->n_bad, 1);
    }
    sl_mem_release(*slot);
    *slot = NULL;
    if (sl_mem_alloc(writer->mem, (sl_mem_class_t)mem_class, bytes, slot) ==
        SL_OK) {
        bed_fill(*slot, seed);
    }
}

static void *write_blocks(void *arg)
{
    const writer_t *writer = arg;
    const sl_rng_t rng = sl_rng_at(5, (uint32_t)writer->index, 0, 0, 0);
    sl_mem_block_t *held[N_HELD] = {0};
    uint64_t k = 0;
    int round;
    int i;

    for (round = 0; round < 50; round++) {
        (void)pthread_rwlock_rdlock(writer->batch);
        for (i = 0; i < 2 * N_HELD; i++) {
            const size_t slot = (size_t)sl_rng_below(&rng, k++, N_HELD);

            turn_over(writer, &rng, &k, &held[slot],
                      (unsigned)(writer->index * N_HELD) + (unsigned)slot);
        }
        (void)pthread_rwlock_unlock(writer->batch);
        /* from any thread, at any time */
        sl_mem_limit_request(writer->mem,
                             (size_t)sl_rng_below(&rng, k++, 2 * MIB));
        if (writer->index % 4 == 0) {
            (void)pthread_rwlock_wrlock(writer->batch);
            sl_mem_boundary(writer->mem, NULL);
            (void)pthread_rwlock_unlock(writer->batch);
        }
    }
    for (i = 0; i < N_HELD; i++) {
        sl_mem_release(held[i]);
    }
    return NULL;
}

static void contents_survive_the_moves(void **state)
{
    bed_t bed = {0};
    sl_mem_t *mem = bed_mem(&bed, 2 * MIB, 2 * MIB);
    pthread_rwlock_t batch = PTHREAD_RWLOCK_INITIALIZER;
    pthread_t threads[N_THREADS];
    writer_t writers[N_THREADS];
    atomic_int n_bad = 0;
    uint64_t n_returns = 0;
    int i;

    (void)state;
    for (i = 0; i < N_THREADS; i++) {
        writers[i] = (writer_t){
            .mem = mem, .batch = &batch, .n_bad = &n_bad, .index = i};
        assert_int_equal(
            pthread_create(&threads[i], NULL, write_blocks, &writers[i]), 0);
    }
    for (i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(atomic_load(&n_bad), 0);
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        n_returns += bed_stats(mem).classes[i].n_returns;
    }
    assert_true(n_returns > 0); /* blocks did move, both ways */
    assert_int_equal(bed_stats(mem).n_live_blocks, 0);
    sl_mem_destroy(mem);
    (void)pthread_rwlock_destroy(&batch);
    assert_int_equal(atomic_load(&bed.n_live), 0);
}

/* Several allocators share the slabs of block records. */
static void *churn(void *arg)
{
    int round;

    (void)arg;
    for (round = 0; round < 50; round++) {
        sl_mem_params_t params;
        sl_mem_block_t *blocks[64] = {0};
        sl_mem_t *mem = NULL;
        int i;

        sl_mem_params_default(&params);
        if (sl_mem_create(&params, &mem) != SL_OK) {
            return arg;
        }
        for (i = 0; i < 64; i++) {
            if (sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 100, &blocks[i]) !=
                SL_OK) {
                return arg;
            }
        }
        for (i = 0; i < 64; i++) {
            sl_mem_release(blocks[i]);
        }
        sl_mem_destroy(mem);
    }
    return NULL;
}

static void allocators_come_and_go(void **state)
{
    pthread_t threads[4];
    int i;

    (void)state;
    for (i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, churn, threads), 0);
    }
    for (i = 0; i < 4; i++) {
        void *failed = NULL;

        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(threads_and_moving_limits),
        sl_unit_test(contents_survive_the_moves),
        sl_unit_test(allocators_come_and_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
