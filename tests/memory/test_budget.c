/* SPDX-License-Identifier: Apache-2.0 */
/* Mini-batches under a limit: which classes overflow, what returns, and that
 * a steady state asks the system for nothing. */
#include "base/rng.h"
#include "tests/memory/memory_bed.h"

enum {
    N_MICRO = 4,
    N_LAYERS = 6
};

/* A stage: parameters stay, each forward stashes, each backward takes. */
typedef struct stage {
    bed_t bed;
    sl_mem_t *mem;
    sl_mem_block_t *params[N_LAYERS];
} stage_t;

static void stage_open(stage_t *stage, size_t limit, size_t host_limit)
{
    int l;

    memset(stage, 0, sizeof(*stage));
    stage->mem = bed_mem(&stage->bed, limit, host_limit);
    for (l = 0; l < N_LAYERS; l++) {
        stage->params[l] =
            bed_block(stage->mem, SL_MEM_CLASS_PERSISTENT, 700 * KIB);
        bed_fill(stage->params[l], (unsigned)l);
    }
}

static void stage_close(stage_t *stage)
{
    int l;

    for (l = 0; l < N_LAYERS; l++) {
        assert_true(bed_is_filled(stage->params[l], (unsigned)l));
        sl_mem_release(stage->params[l]);
    }
    assert_int_equal(bed_stats(stage->mem).n_live_blocks, 0);
    sl_mem_destroy(stage->mem);
    assert_int_equal(atomic_load(&stage->bed.n_live), 0);
}

/* One mini-batch of the gpipe schedule. */
static void stage_step(stage_t *stage)
{
    sl_mem_block_t *stash[N_MICRO][N_LAYERS];
    sl_mem_block_t *message, *out, *room;
    unsigned char mark;
    int m, l;

    for (m = 0; m < N_MICRO; m++) {
        message = bed_block(stage->mem, SL_MEM_CLASS_COMM, 300 * KIB);
        for (l = 0; l < N_LAYERS; l++) {
            stash[m][l] = bed_block(stage->mem, SL_MEM_CLASS_STASH,
                                    (size_t)(300 + 50 * l) * KIB + 1);
            out = bed_block(stage->mem, SL_MEM_CLASS_ACTIVATION, 400 * KIB);
            room = bed_block(stage->mem, SL_MEM_CLASS_WORKSPACE,
                             (size_t)(l + 1) * 200 * KIB);
            mark = (unsigned char)(m * 16 + l);
            bed_put(stash[m][l]->ptr, &mark, 1);
            sl_mem_release(room);
            sl_mem_release(out);
        }
        sl_mem_release(message);
    }
    for (m = 0; m < N_MICRO; m++) {
        for (l = N_LAYERS; l-- > 0;) {
            room = bed_block(stage->mem, SL_MEM_CLASS_WORKSPACE, 900 * KIB);
            bed_get(&mark, stash[m][l]->ptr, 1);
            assert_int_equal(mark, m * 16 + l);
            sl_mem_release(stash[m][l]);
            sl_mem_release(room);
        }
    }
}

static void step_and_boundary(stage_t *stage)
{
    stage_step(stage);
    assert_true(bed_stats(stage->mem).peak_held_bytes <=
                bed_stats(stage->mem).limit_bytes);
    sl_mem_boundary(stage->mem, NULL);
}

static void the_cost_model_gives_the_order(void **state)
{
    (void)state;
    assert_true(sl_mem_class_cost(SL_MEM_CLASS_STASH) <
                sl_mem_class_cost(SL_MEM_CLASS_COMM));
    assert_true(sl_mem_class_cost(SL_MEM_CLASS_COMM) <
                sl_mem_class_cost(SL_MEM_CLASS_ACTIVATION));
    assert_true(sl_mem_class_cost(SL_MEM_CLASS_ACTIVATION) <
                sl_mem_class_cost(SL_MEM_CLASS_WORKSPACE));
    assert_true(sl_mem_class_cost(SL_MEM_N_CLASSES) == 0.0);
}

/* Short of memory, the stash goes to the host and the rest stays. */
static void the_cheapest_class_overflows(void **state)
{
    stage_t stage;
    sl_mem_stats_t before, after;
    size_t need;
    int i;

    (void)state;
    stage_open(&stage, 64 * MIB, 64 * MIB);
    stage_step(&stage);
    need = bed_stats(stage.mem).total_peak_bytes;
    assert_int_equal(bed_stats(stage.mem).host_peak_bytes, 0);
    sl_mem_limit_request(stage.mem, need * 6 / 10);
    sl_mem_boundary(stage.mem, NULL);
    for (i = 0; i < 16; i++) { /* it learns what the holes take */
        step_and_boundary(&stage);
    }
    before = bed_stats(stage.mem);
    step_and_boundary(&stage);
    after = bed_stats(stage.mem);
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        assert_int_equal(after.classes[i].n_spills > before.classes[i].n_spills,
                         i == SL_MEM_CLASS_STASH);
    }
    assert_int_equal(after.classes[SL_MEM_CLASS_PERSISTENT].n_spills, 0);
    /* room again: nothing overflows any more */
    assert_int_equal(bed_limit(stage.mem, 64 * MIB), 64 * MIB);
    before = bed_stats(stage.mem);
    step_and_boundary(&stage);
    after = bed_stats(stage.mem);
    assert_int_equal(after.classes[SL_MEM_CLASS_STASH].n_spills,
                     before.classes[SL_MEM_CLASS_STASH].n_spills);
    assert_int_equal(after.host_held_bytes, 0);
    stage_close(&stage);
}

/* With room enough, and while overflowing every mini-batch. */
static void a_steady_state_asks_for_no_region(void **state)
{
    static const int percents[] = {100, 70, 45, 30};
    stage_t stage;
    size_t need, i;

    (void)state;
    stage_open(&stage, 64 * MIB, 64 * MIB);
    step_and_boundary(&stage);
    stage_step(&stage);
    need = bed_stats(stage.mem).peak_held_bytes;
    sl_mem_boundary(stage.mem, NULL);
    for (i = 0; i < sizeof(percents) / sizeof(*percents); i++) {
        uint64_t n;
        int k;

        sl_mem_limit_request(stage.mem, need / 100 * (size_t)percents[i]);
        sl_mem_boundary(stage.mem, NULL);
        for (k = 0; k < 20; k++) {
            step_and_boundary(&stage);
        }
        n = bed_stats(stage.mem).n_region_allocs;
        for (k = 0; k < 10; k++) {
            step_and_boundary(&stage);
        }
        assert_int_equal(bed_stats(stage.mem).n_region_allocs, n);
    }
    stage_close(&stage);
}

/* However the free room lies, a limit of just the need brings all back by the
 * boundary after next. */
static void growth_brings_everything_back(void **state)
{
    enum {
        N = 60,
        N_ROUNDS = 20
    };
    const sl_rng_t rng = sl_rng_at(11, 0, 0, 0, 0);
    uint64_t k = 0;
    int round;

    (void)state;
    for (round = 0; round < N_ROUNDS; round++) {
        sl_mem_t *mem = bed_mem(&(bed_t){0}, 64 * MIB, 64 * MIB);
        sl_mem_block_t *blocks[N] = {0};
        size_t used, need;
        int i;

        for (i = 0; i < N; i++) {
            const uint64_t mem_class =
                sl_rng_below(&rng, k++, SL_MEM_N_CLASSES);
            const size_t bytes = (size_t)sl_rng_below(&rng, k++, 400 * KIB);

            blocks[i] = bed_block(mem, (sl_mem_class_t)mem_class, bytes + 1);
        }
        for (i = 0; i < N; i++) {
            if (sl_rng_below(&rng, k++, 3) == 0) {
                sl_mem_release(blocks[i]);
                blocks[i] = NULL;
            } else {
                bed_fill(blocks[i], (unsigned)i);
            }
        }
        used = bed_stats(mem).used_bytes;
        need = (used + bed_unit(NULL) - 1) / bed_unit(NULL) * bed_unit(NULL);
        (void)bed_limit(mem, (size_t)sl_rng_below(&rng, k++, need));
        (void)bed_limit(mem, (size_t)sl_rng_below(&rng, k++, need));
        assert_true(bed_stats(mem).host_used_bytes > 0);
        assert_int_equal(bed_limit(mem, need), need);
        sl_mem_boundary(mem, NULL);
        assert_int_equal(bed_stats(mem).host_used_bytes, 0);
        assert_int_equal(bed_stats(mem).used_bytes, used);
        sl_mem_boundary(mem, NULL);
        assert_int_equal(bed_stats(mem).host_held_bytes, 0);
        for (i = 0; i < N; i++) {
            if (blocks[i] != NULL) {
                assert_true(bed_is_filled(blocks[i], (unsigned)i));
                sl_mem_release(blocks[i]);
            }
        }
        sl_mem_destroy(mem);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(the_cost_model_gives_the_order),
        sl_unit_test(the_cheapest_class_overflows),
        sl_unit_test(a_steady_state_asks_for_no_region),
        sl_unit_test(growth_brings_everything_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
