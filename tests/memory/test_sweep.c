/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation on the host fails once, on every path that makes one. */
#include "tests/memory/memory_bed.h"
#include "tests/support/alloc_fail.h"

static void create_unwinds(void **state)
{
    int is_hit = 1;
    long n;

    (void)state;
    for (n = 0; is_hit; n++) {
        sl_mem_params_t params;
        sl_mem_t *mem = NULL;
        sl_status_t status;

        sl_mem_params_default(&params);
        sl_test_alloc_fail_at(n);
        status = sl_mem_create(&params, &mem);
        is_hit = sl_test_alloc_fail_end();
        assert_int_equal(status, is_hit ? SL_ERR_NO_MEMORY : SL_OK);
        assert_int_equal(mem == NULL, is_hit);
        if (is_hit) {
            sl_assert_contains(sl_test_log_take(), "no host memory");
        }
        sl_mem_destroy(mem);
    }
    assert_true(n > 1);
}

enum {
    N_BLOCKS = 1500 /* more than one slab of records holds */
};

static sl_mem_block_t *blocks[N_BLOCKS];

/* Allocate, shrink so that everything moves, grow. Blocks that were refused
 * are NULL. Returns how many were granted. */
static int use(sl_mem_t *mem)
{
    int n_granted = 0;
    int i;

    for (i = 0; i < N_BLOCKS; i++) {
        const sl_status_t status =
            sl_mem_alloc(mem, (sl_mem_class_t)(i % SL_MEM_N_CLASSES),
                         (size_t)(i % 37 + 1) * 100, &blocks[i]);

        assert_true(status == SL_OK || status == SL_ERR_NO_MEMORY ||
                    status == SL_ERR_QUOTA);
        assert_int_equal(status == SL_OK, blocks[i] != NULL);
        if (status == SL_OK) {
            bed_fill(blocks[i], (unsigned)i);
            n_granted++;
        }
    }
    sl_mem_limit_request(mem, 100 * KIB);
    sl_mem_boundary(mem, NULL);
    sl_mem_limit_request(mem, 16 * MIB);
    sl_mem_boundary(mem, NULL);
    return n_granted;
}

static void use_survives_every_failure(void **state)
{
    int is_hit = 1;
    long n;

    (void)state;
    for (n = 0; is_hit; n++) {
        bed_t bed = {0};
        sl_mem_t *mem = bed_mem(&bed, 16 * MIB, 16 * MIB);
        int n_granted, i;

        sl_test_alloc_fail_at(n);
        n_granted = use(mem);
        is_hit = sl_test_alloc_fail_end();
        (void)sl_test_log_take(); /* no room for records is an error */
        /* one failure costs one block at most; the next try succeeds */
        assert_true(n_granted >= N_BLOCKS - 1);
        assert_int_equal(bed_stats(mem).n_live_blocks, n_granted);
        for (i = 0; i < N_BLOCKS; i++) {
            if (blocks[i] != NULL) {
                assert_true(bed_is_filled(blocks[i], (unsigned)i));
                sl_mem_release(blocks[i]);
                blocks[i] = NULL;
            }
        }
        assert_int_equal(bed_stats(mem).used_bytes, 0);
        sl_mem_destroy(mem);
        assert_int_equal(atomic_load(&bed.n_live), 0);
    }
    assert_true(n > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(create_unwinds),
        sl_unit_test(use_survives_every_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
