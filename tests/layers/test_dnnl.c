/* SPDX-License-Identifier: Apache-2.0 */
/* The room of oneDNN: layouts and ops are made whole or not at all, and
 * making them leaves the caller's threads alone. */
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "layers/cpu/dnnl.h"
#include "layers/cpu/gemm.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/sl_test.h"

enum {
    THREADS = 2
};

static sl_dnnl_conv_t conv_of(sl_layout_t layout)
{
    const sl_dnnl_conv_t conv = {.batch = 2,
                                 .in_channels = 32,
                                 .in_height = 8,
                                 .in_width = 8,
                                 .out_channels = 32,
                                 .out_height = 8,
                                 .out_width = 8,
                                 .kernel_height = 3,
                                 .kernel_width = 3,
                                 .stride = 1,
                                 .pad = 1,
                                 .dilation = 1,
                                 .groups = 1,
                                 .has_bias = 1,
                                 .in_layout = layout,
                                 .out_layout = layout};

    return conv;
}

/* Something that is made; what is made is destroyed again. */
typedef sl_status_t (*make_fn)(void);

static sl_status_t make_conv(sl_dnnl_pass_t pass)
{
    const sl_dnnl_conv_t conv = conv_of(SL_LAYOUT_BLOCKED);
    sl_dnnl_op_t *op = NULL;
    const sl_status_t status =
        sl_dnnl_conv_create(&conv, pass, NULL, 1, 1, &op);

    assert_int_equal(op != NULL, status == SL_OK);
    sl_dnnl_op_destroy(op);
    return status;
}

static sl_status_t make_forward(void)
{
    return make_conv(SL_DNNL_PASS_FORWARD);
}

static sl_status_t make_backward_data(void)
{
    return make_conv(SL_DNNL_PASS_BACKWARD_DATA);
}

static sl_status_t make_backward_weights(void)
{
    return make_conv(SL_DNNL_PASS_BACKWARD_WEIGHTS);
}

static sl_status_t make_affine(void)
{
    const sl_affine_shape_t shape = {8, 16, 24, 1};
    sl_affine_t *affine = NULL;
    const sl_status_t status = sl_affine_create(&shape, 1, &affine);

    assert_int_equal(affine != NULL, status == SL_OK);
    sl_affine_destroy(affine);
    return status;
}

/* The weights' two layouts and the change between them. */
static sl_status_t make_reorder(void)
{
    const sl_dnnl_conv_t conv = conv_of(SL_LAYOUT_BLOCKED);
    sl_dnnl_format_t *plain = NULL;
    sl_dnnl_format_t *best = NULL;
    sl_dnnl_op_t *op = NULL;
    sl_status_t status;

    SL_TRY(status, sl_dnnl_format_weights(&conv, &plain), out);
    SL_TRY(status, sl_dnnl_format_best(&conv, &best), out);
    SL_TRY(status, sl_dnnl_reorder_create(plain, best, 1, &op), out);
out:
    assert_int_equal(op != NULL, status == SL_OK);
    sl_dnnl_op_destroy(op);
    sl_dnnl_format_destroy(best);
    sl_dnnl_format_destroy(plain);
    return status;
}

static void is_made_whole_or_not_at_all(void **state)
{
    static const make_fn makes[] = {make_forward, make_backward_data,
                                    make_backward_weights, make_affine,
                                    make_reorder};
    size_t i;

    (void)state;
    omp_set_num_threads(THREADS);
    for (i = 0; i < sizeof(makes) / sizeof(makes[0]); i++) {
        int is_hit = 1;
        long n;

        for (n = 0; is_hit; n++) {
            sl_status_t status;

            sl_test_alloc_fail_at(n);
            status = makes[i]();
            is_hit = sl_test_alloc_fail_end();
            sl_assert_status(status, is_hit ? SL_ERR_NO_MEMORY : SL_OK);
            assert_int_equal(omp_get_max_threads(), THREADS);
        }
        assert_true(n > 1);
    }
}

static void formats_tell_layouts_apart(void **state)
{
    const sl_dnnl_conv_t conv = conv_of(SL_LAYOUT_BLOCKED);
    const size_t weights_bytes = 32 * 32 * 3 * 3 * sizeof(float);
    sl_tensor_desc_t image = {.n_dims = 4, .dims = {2, 3, 5, 5}};
    sl_dnnl_format_t *plain = NULL;
    sl_dnnl_format_t *same = NULL;
    sl_dnnl_format_t *blocked = NULL;
    sl_dnnl_format_t *weights = NULL;

    (void)state;
    image.layout = SL_LAYOUT_PLAIN;
    sl_assert_ok(sl_dnnl_format_image(&image, &plain));
    sl_assert_ok(sl_dnnl_format_image(&image, &same));
    image.layout = SL_LAYOUT_BLOCKED;
    sl_assert_ok(sl_dnnl_format_image(&image, &blocked));
    sl_assert_ok(sl_dnnl_format_weights(&conv, &weights));
    assert_true(sl_dnnl_format_is_equal(plain, same));
    assert_false(sl_dnnl_format_is_equal(plain, blocked));
    assert_int_equal(sl_dnnl_format_bytes(plain), 2 * 3 * 25 * sizeof(float));
    /* channels are padded to whole blocks */
    assert_int_equal(sl_dnnl_format_bytes(blocked),
                     2 * (size_t)sl_channel_block() * 25 * sizeof(float));
    assert_int_equal(sl_dnnl_format_bytes(weights), weights_bytes);
    sl_dnnl_format_destroy(weights);
    sl_dnnl_format_destroy(blocked);
    sl_dnnl_format_destroy(same);
    sl_dnnl_format_destroy(plain);
    sl_dnnl_format_destroy(NULL);
}

/* A caller's layout of the weights is the one that the op works on. */
static void conv_keeps_the_layout_it_is_given(void **state)
{
    const sl_dnnl_conv_t conv = conv_of(SL_LAYOUT_PLAIN);
    sl_dnnl_format_t *weights = NULL;
    sl_dnnl_op_t *op = NULL;
    int pass;

    (void)state;
    sl_assert_ok(sl_dnnl_format_weights(&conv, &weights));
    for (pass = 0; pass < SL_DNNL_N_PASSES; pass++) {
        sl_assert_ok(sl_dnnl_conv_create(&conv, (sl_dnnl_pass_t)pass, weights,
                                         1, 1, &op));
        assert_true(sl_dnnl_format_is_equal(sl_dnnl_op_weights(op), weights));
        assert_string_not_equal(sl_dnnl_op_code(op), "unknown");
        sl_dnnl_op_destroy(op);
    }
    sl_dnnl_format_destroy(weights);
}

static void refuses_sizes_that_contradict_each_other(void **state)
{
    sl_dnnl_conv_t conv = conv_of(SL_LAYOUT_BLOCKED);
    sl_dnnl_op_t *op = NULL;
    int pass;

    (void)state;
    conv.out_height++;
    for (pass = 0; pass < SL_DNNL_N_PASSES; pass++) {
        sl_assert_status(
            sl_dnnl_conv_create(&conv, (sl_dnnl_pass_t)pass, NULL, 1, 1, &op),
            SL_ERR_DEVICE);
        sl_assert_contains(sl_last_error(), "convolution: code");
        sl_assert_contains(sl_last_error(), "invalid arguments");
        assert_null(op);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(is_made_whole_or_not_at_all),
        sl_unit_test(formats_tell_layouts_apart),
        sl_unit_test(conv_keeps_the_layout_it_is_given),
        sl_unit_test(refuses_sizes_that_contradict_each_other),
    };

    return cmocka_run_group_tests_name("layers/dnnl", tests, NULL, NULL);
}
