/* SPDX-License-Identifier: Apache-2.0 */
#include "layers/tensor.h"
#include "tests/layers/layer_check.h"

static void sizes_count_padding(void **state)
{
    const int64_t block = sl_channel_block();
    sl_tensor_desc_t desc = sl_f32(4, 2, 3, 5, 7);

    (void)state;
    assert_true(block == 8 || block == 16);
    assert_int_equal(sl_tensor_elements(&desc), 210);
    assert_int_equal(sl_tensor_bytes(&desc), 840);
    assert_int_equal(sl_tensor_rows(&desc), 30);
    assert_int_equal(sl_padded_channels(&desc), 3);
    desc.layout = SL_LAYOUT_BLOCKED;
    assert_int_equal(sl_tensor_elements(&desc), 210);
    assert_int_equal(sl_padded_channels(&desc), block);
    assert_int_equal(sl_tensor_bytes(&desc), 2 * block * 35 * 4);
    desc.dims[1] = block;
    assert_int_equal(sl_padded_channels(&desc), block);
    desc.dims[1] = block + 1;
    assert_int_equal(sl_padded_channels(&desc), 2 * block);
}

static void types_have_sizes(void **state)
{
    const sl_tensor_desc_t scalar = sl_f32(1, 1, 1, 1, 1);

    (void)state;
    assert_int_equal(sl_dtype_bytes(SL_DTYPE_F32), 4);
    assert_int_equal(sl_dtype_bytes(SL_DTYPE_I32), 4);
    assert_int_equal(sl_dtype_bytes(SL_DTYPE_F64), 8);
    assert_int_equal(sl_tensor_rows(&scalar), 1);
}

static void equality_is_of_everything(void **state)
{
    const sl_tensor_desc_t a = sl_f32(4, 2, 3, 5, 7);
    const sl_tensor_desc_t b = sl_f32(4, 2, 3, 5, 8);
    const sl_tensor_desc_t c = sl_blocked(2, 3, 5, 7);
    const sl_tensor_desc_t d = sl_f32(3, 2, 3, 5, 7);
    const sl_tensor_desc_t e = sl_i32(2, 2, 3);
    const sl_tensor_desc_t f = sl_f32(2, 2, 3, 1, 1);
    const sl_tensor_desc_t g = sl_f32(3, 2, 3, 5, 9); /* dims[3] unused */

    (void)state;
    assert_true(sl_tensor_desc_is_equal(&a, &a));
    assert_true(sl_tensor_desc_is_equal(&d, &g));
    assert_false(sl_tensor_desc_is_equal(&a, &b));
    assert_false(sl_tensor_desc_is_equal(&a, &c));
    assert_false(sl_tensor_desc_is_equal(&a, &d));
    assert_false(sl_tensor_desc_is_equal(&e, &f));
}

static void text_is_short(void **state)
{
    const sl_tensor_desc_t image = sl_blocked(8, 64, 32, 32);
    const sl_tensor_desc_t tokens = sl_i32(1, 5, 1);
    char text[64];
    char small[8];

    (void)state;
    sl_tensor_desc_format(&image, text, sizeof(text));
    assert_string_equal(text, "f32 [8, 64, 32, 32]");
    sl_tensor_desc_format(&tokens, text, sizeof(text));
    assert_string_equal(text, "i32 [5]");
    sl_tensor_desc_format(&image, small, sizeof(small));
    assert_string_equal(small, "f32 [8,");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(sizes_count_padding),
        sl_unit_test(types_have_sizes),
        sl_unit_test(equality_is_of_everything),
        sl_unit_test(text_is_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
