/* SPDX-License-Identifier: Apache-2.0 */
/* Every host allocation of saving and of going on fails once: a clean status,
 * nothing left behind, and the next try works. */
#include "tests/engine/checkpoint_bed.h"
#include "tests/support/alloc_fail.h"

enum {
    MAX_ALLOCS = 20000
};

static const fixture_run_t small = {
    .n_devices = 1, .n_stages = 1, .rows = 4, .n_micro = 2};

/* What may come of a failed allocation: a file that cannot be opened, too. */
static int is_out_of_memory(sl_status_t status)
{
    return status == SL_ERR_NO_MEMORY || status == SL_ERR_QUOTA ||
           status == SL_ERR_IO;
}

static sl_status_t save(bed_t *bed, const char *dir)
{
    sl_checkpoint_params_t params;
    sl_saver_t *saver = NULL;
    sl_status_t status;

    sl_checkpoint_params_default(&params);
    params.dir = dir;
    params.is_required = 1;
    params.program = "test";
    SL_TRY(status, sl_saver_create(&params, &bed->checkpoint, &saver), out);
    SL_TRY(status, sl_saver_save(saver, 1.0, 2.0), out);
    status = sl_saver_wait(saver);
out:
    sl_saver_destroy(saver);
    return status;
}

static void every_save_unwinds(void **state)
{
    char dir[512];
    fixture_run_t run = small;
    sl_checkpoint_info_t info;
    bed_t bed;
    int n, is_hit = 1;

    (void)state;
    (void)snprintf(dir, sizeof(dir), "%s", bed_path("c"));
    run.model = fixture_mlp();
    bed_open(&bed, &run);
    sl_assert_ok(save(&bed, dir));
    for (n = 0; is_hit && n < MAX_ALLOCS; n++) {
        sl_status_t status;

        sl_test_alloc_fail_at(n);
        status = save(&bed, dir);
        is_hit = sl_test_alloc_fail_end();
        if (is_hit) {
            /* what is only tidied up afterwards may fail without a status */
            assert_true(status >= 0 || is_out_of_memory(status));
            (void)sl_test_log_take();
        } else {
            sl_assert_ok(status);
        }
        /* the one before or the new one, never half of one */
        sl_assert_ok(sl_checkpoint_verify(dir, "step-00000000", &info));
        assert_false(bed_exists("c/writing-step-00000000"));
    }
    assert_false(is_hit);
    assert_in_range(n, 40, MAX_ALLOCS);
    bed_close(&bed);
    sl_model_destroy(run.model);
}

static void every_resume_unwinds(void **state)
{
    char dir[512];
    fixture_run_t run = small;
    sl_checkpoint_info_t info;
    uint64_t want;
    bed_t bed;
    int n, is_hit = 1;

    (void)state;
    (void)snprintf(dir, sizeof(dir), "%s", bed_path("c"));
    run.model = fixture_mlp();
    bed_open(&bed, &run);
    (void)bed_train(&bed, 2);
    want = bed_hash(&bed);
    sl_assert_ok(save(&bed, dir));
    for (n = 0; is_hit && n < MAX_ALLOCS; n++) {
        sl_status_t status;

        sl_test_alloc_fail_at(n);
        status = bed_resume(&bed, dir, NULL, SL_RESUME_EXACT, &info);
        is_hit = sl_test_alloc_fail_end();
        (void)sl_test_log_take();
        if (!is_hit) {
            sl_assert_ok(status);
        }
        sl_assert_ok(bed_resume(&bed, dir, NULL, SL_RESUME_EXACT, &info));
        assert_int_equal(bed_hash(&bed), want);
    }
    assert_false(is_hit);
    assert_in_range(n, 40, MAX_ALLOCS);
    bed_close(&bed);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_save_unwinds),
        sl_unit_test(every_resume_unwinds),
    };

    return cmocka_run_group_tests_name("engine.checkpoint_oom", tests, NULL,
                                       NULL);
}
