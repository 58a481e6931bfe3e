/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of the control plane that can fail, failing once. */
#include "tests/scheduler/control_bed.h"
#include "tests/support/alloc_fail.h"

/* Opening gives the job or nothing; without memory for the run directory the
 * job goes on unlisted, as with one that cannot be used. */
static void opening_survives_every_failure(void **state)
{
    control_bed_t bed;
    int is_hit = 1;
    long n;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed.params.antman_config = "/nonexistent/config";
    bed.params.antman_status = NULL;
    bed.params.prometheus = "/nonexistent/p.prom";
    for (n = 0; is_hit; n++) {
        sl_status_t status;

        bed.control = NULL;
        sl_test_alloc_fail_at(n);
        status = sl_control_open(&bed.params, &bed.control);
        is_hit = sl_test_alloc_fail_end();
        if (status < 0) {
            assert_int_equal(status, SL_ERR_NO_MEMORY);
            assert_null(bed.control);
        } else {
            assert_int_equal(bed_boundary(&bed), 0);
        }
        sl_control_close(bed.control);
        (void)sl_test_log_take();
    }
    assert_true(n > 4); /* it was swept */
    bed.control = NULL;
    bed_close(&bed);
}

static void texts_survive_every_failure(void **state)
{
    static const char good[] = "{\"schema\":1,\"sequence\":1}";
    sl_control_status_t *job = calloc(1, sizeof(*job));
    sl_control_order_t order;
    int is_hit = 1;
    long n;

    (void)state;
    assert_non_null(job);
    sl_assert_ok(sl_control_order_parse(good, strlen(good), &order));
    for (n = 0; is_hit; n++) {
        char *text = NULL, *other = NULL;
        sl_status_t status, status_status;

        sl_test_alloc_fail_at(n);
        status = sl_control_order_format(&order, &text);
        status_status = sl_control_status_format(job, &other);
        is_hit = sl_test_alloc_fail_end();
        assert_true(status == SL_OK || status == SL_ERR_NO_MEMORY);
        assert_true(status_status == SL_OK ||
                    status_status == SL_ERR_NO_MEMORY);
        assert_int_equal(is_hit, status < 0 || status_status < 0);
        assert_int_equal(text != NULL, status == SL_OK);
        assert_int_equal(other != NULL, status_status == SL_OK);
        free(text);
        free(other);
    }
    free(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(opening_survives_every_failure),
        sl_unit_test(texts_survive_every_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
