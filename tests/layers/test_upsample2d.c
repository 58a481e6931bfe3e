/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layers/layer_check.h"

static int64_t factor;

static void reference(const sl_layer_reference_t *args)
{
    const int64_t height = args->out_desc->dims[2];
    const int64_t width = args->out_desc->dims[3];
    const int64_t planes = args->out_desc->dims[0] * args->out_desc->dims[1];
    int64_t p, y, x;

    for (p = 0; p < planes; p++) {
        for (y = 0; y < height; y++) {
            for (x = 0; x < width; x++) {
                args->out[(p * height + y) * width + x] =
                    args->in[0][(p * (height / factor) + y / factor) *
                                    (width / factor) +
                                x / factor];
            }
        }
    }
}

static void check(int64_t f, sl_tensor_desc_t shape)
{
    factor = f;
    sl_layer_check(
        &(sl_layer_check_t){.type = "upsample2d",
                            .attrs = {{.name = "factor", .number = (double)f}},
                            .n_inputs = 1,
                            .inputs = {shape},
                            .reference = reference});
}

static void pixels_are_repeated(void **state)
{
    int64_t f;

    (void)state;
    for (f = 1; f <= 3; f++) {
        check(f, sl_f32(4, 1, 1, 1, 1));
        check(f, sl_f32(4, 2, 3, 4, 5));
        check(f, sl_blocked(2, 3, 4, 5));
        check(f, sl_blocked(1, 33, 7, 2));
        check(f, sl_blocked(2, 16, 17, 19));
    }
}

static void other_inputs_are_refused(void **state)
{
    const sl_layer_spec_t spec = {
        .type = "upsample2d", .name = "up", .n_inputs = 1};
    const sl_tensor_desc_t in = sl_f32(3, 1, 2, 3, 1);
    sl_layer_t *layer;
    sl_tensor_desc_t out;

    (void)state;
    sl_assert_status(sl_layer_create(&spec, 0, &in, &layer, &out),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "not f32 [1, 2, 3]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(pixels_are_repeated),
        sl_unit_test(other_inputs_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
