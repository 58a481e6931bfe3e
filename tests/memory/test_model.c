/* SPDX-License-Identifier: Apache-2.0 */
/* Random sequences against a model: what is live, what it contains, what it
 * adds up to. The pool's own invariants are checked as well. */
#include <stdio.h>

#include "base/rng.h"
#include "memory/universal.h"
#include "tests/memory/memory_bed.h"

enum {
    N_SLOTS = 200,
    N_STEPS = 20000,
    N_SEEDS = 4
};

typedef struct model {
    sl_mem_t *mem;
    bed_t bed;
    sl_rng_t rng;
    uint64_t index;
    sl_mem_block_t *blocks[N_SLOTS];
    sl_mem_class_t classes[N_SLOTS];
    unsigned char marks[N_SLOTS];
    uint64_t n_refused;
} model_t;

static size_t draw(model_t *model, size_t bound)
{
    return (size_t)sl_rng_below(&model->rng, model->index++, bound);
}

/* Mostly small, now and then large. */
static size_t draw_bytes(model_t *model)
{
    const size_t log2 = draw(model, 22);

    return draw(model, ((size_t)1 << log2) + 1);
}

/* The block's first and last bytes carry its mark. */
static void mark(model_t *model, size_t i)
{
    sl_mem_block_t *block = model->blocks[i];
    const size_t n = block->bytes < 512 ? block->bytes : 512;

    model->marks[i] = (unsigned char)draw(model, 256);
    bed_set(block->ptr, model->marks[i], n);
    bed_set((unsigned char *)block->ptr + block->bytes - n, model->marks[i], n);
}

static void check_mark(const model_t *model, size_t i)
{
    const sl_mem_block_t *block = model->blocks[i];
    const size_t n = block->bytes < 512 ? block->bytes : 512;
    unsigned char first[512], last[512];
    size_t k;

    bed_get(first, block->ptr, n);
    bed_get(last, (unsigned char *)block->ptr + block->bytes - n, n);
    for (k = 0; k < n; k++) {
        assert_int_equal(first[k], model->marks[i]);
        assert_int_equal(last[k], model->marks[i]);
    }
}

static void check_no_overlap(const model_t *model)
{
    size_t i;
    size_t k;

    for (i = 0; i < N_SLOTS; i++) {
        for (k = 0; k < i; k++) {
            const sl_mem_block_t *a = model->blocks[i];
            const sl_mem_block_t *b = model->blocks[k];

            if (a != NULL && b != NULL && a->bytes > 0 && b->bytes > 0) {
                const uintptr_t at_a = (uintptr_t)a->ptr;
                const uintptr_t at_b = (uintptr_t)b->ptr;

                assert_true(at_a + a->bytes <= at_b || at_b + b->bytes <= at_a);
            }
        }
    }
}

static void check_survey(const model_t *model, const sl_mem_stats_t *stats)
{
    sl_mem_survey_t survey;
    size_t on_device = 0;
    size_t i;

    sl_mem_survey(model->mem, &survey);
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        on_device += survey.classes[i].device_bytes;
        assert_true(survey.classes[i].region_bytes <= stats->held_bytes);
    }
    assert_int_equal(on_device, stats->used_bytes);
    assert_true(survey.touched_bytes <= stats->held_bytes);
}

static void check_all(const model_t *model)
{
    const sl_mem_stats_t stats = bed_stats(model->mem);
    size_t used[SL_MEM_N_CLASSES] = {0};
    size_t asked[SL_MEM_N_CLASSES] = {0};
    size_t total = 0;
    uint64_t n_live = 0;
    size_t i;

    for (i = 0; i < N_SLOTS; i++) {
        if (model->blocks[i] != NULL) {
            check_mark(model, i);
            used[model->classes[i]] +=
                (model->blocks[i]->bytes + 255) / 256 * 256;
            asked[model->classes[i]] += model->blocks[i]->bytes;
            n_live++;
        }
    }
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        assert_int_equal(stats.classes[i].used_bytes, used[i]);
        assert_int_equal(stats.classes[i].asked_bytes, asked[i]);
        assert_true(stats.classes[i].host_bytes <= used[i]);
        assert_true(stats.classes[i].peak_bytes >= used[i]);
        total += used[i];
    }
    assert_int_equal(stats.used_bytes + stats.host_used_bytes, total);
    assert_int_equal(stats.n_live_blocks, n_live);
    assert_int_equal(stats.held_bytes, atomic_load(&model->bed.held_bytes));
    assert_true(stats.held_bytes <= stats.limit_bytes);
    assert_true(stats.host_held_bytes <= stats.host_limit_bytes);
    assert_true(stats.total_peak_bytes >= total);
    check_survey(model, &stats);
    assert_true(sl_mem_pool_is_valid(&model->mem->device));
    assert_true(sl_mem_pool_is_valid(&model->mem->host));
    check_no_overlap(model);
}

static void step(model_t *model)
{
    const size_t i = draw(model, N_SLOTS);
    const size_t kind = draw(model, 1000);

    if (kind == 0) {
        sl_mem_limit_request(model->mem, draw(model, 30 * MIB));
        if (draw(model, 2) == 0) { /* asked again before it is applied */
            sl_mem_limit_request(model->mem, draw(model, 24 * MIB));
        }
        sl_mem_boundary(model->mem, NULL);
        check_all(model);
    } else if (kind == 1) {
        sl_mem_boundary(model->mem, NULL);
        check_all(model);
    } else if (kind == 2) {
        model->bed.fail_at = atomic_load(&model->bed.n_calls) + 1;
    } else if (model->blocks[i] != NULL) {
        check_mark(model, i);
        sl_mem_release(model->blocks[i]);
        model->blocks[i] = NULL;
    } else {
        sl_status_t status;

        model->classes[i] = (sl_mem_class_t)draw(model, SL_MEM_N_CLASSES);
        status = sl_mem_alloc(model->mem, model->classes[i], draw_bytes(model),
                              &model->blocks[i]);
        if (status == SL_OK) {
            mark(model, i);
        } else {
            assert_int_equal(status, SL_ERR_QUOTA);
            model->n_refused++;
        }
    }
}

static void random_sequences_hold(void **state)
{
    uint64_t seed;

    (void)state;
    for (seed = 1; seed <= N_SEEDS; seed++) {
        model_t model = {.rng = sl_rng_at(seed, 0, 0, 0, 0)};
        size_t i;

        (void)printf("seed %d\n", (int)seed);
        model.mem = bed_mem(&model.bed, 24 * MIB, 6 * MIB);
        for (i = 0; i < N_STEPS; i++) {
            step(&model);
        }
        check_all(&model);
        assert_true(model.n_refused > 0); /* the limit was felt */
        for (i = 0; i < SL_MEM_N_CLASSES; i++) {
            assert_true(bed_stats(model.mem).classes[i].n_spills > 0);
            assert_true(bed_stats(model.mem).classes[i].n_returns > 0);
        }
        for (i = 0; i < N_SLOTS; i++) {
            sl_mem_release(model.blocks[i]);
            model.blocks[i] = NULL;
        }
        check_all(&model);
        sl_mem_limit_request(model.mem, 0);
        sl_mem_boundary(model.mem, NULL);
        sl_mem_boundary(model.mem, NULL); /* nobody used the host since */
        assert_int_equal(bed_stats(model.mem).held_bytes, 0);
        assert_int_equal(bed_stats(model.mem).host_held_bytes, 0);
        sl_mem_destroy(model.mem);
        assert_int_equal(atomic_load(&model.bed.n_live), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(random_sequences_hold),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
