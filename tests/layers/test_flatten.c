/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "tests/layers/layer_check.h"

static void reference(const sl_layer_reference_t *args)
{
    memcpy(args->out, args->in[0],
           (size_t)sl_tensor_elements(args->out_desc) * sizeof(double));
}

static void the_order_is_kept(void **state)
{
    const sl_tensor_desc_t shapes[] = {
        sl_f32(2, 1, 1, 1, 1),   sl_f32(2, 3, 7, 1, 1),
        sl_f32(3, 2, 3, 5, 1),   sl_f32(4, 2, 3, 5, 7),
        sl_blocked(2, 3, 5, 7),  sl_blocked(1, 16, 1, 1),
        sl_blocked(2, 32, 3, 3), sl_blocked(3, 33, 2, 1)};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        sl_layer_check(&(sl_layer_check_t){.type = "flatten",
                                           .n_inputs = 1,
                                           .inputs = {shapes[i]},
                                           .reference = reference});
    }
}

static void integers_are_kept(void **state)
{
    (void)state;
    sl_layer_check(&(sl_layer_check_t){.type = "flatten",
                                       .n_inputs = 1,
                                       .inputs = {sl_i32(2, 3, 7)},
                                       .n_classes = 1000,
                                       .reference = reference});
}

static void rows_and_width_are_split(void **state)
{
    const sl_layer_spec_t spec = {
        .type = "flatten", .name = "f", .n_inputs = 1};
    const sl_tensor_desc_t image = sl_blocked(1, 3, 5, 7);
    const sl_tensor_desc_t batch = sl_blocked(6, 3, 5, 7);
    const sl_tensor_desc_t want = sl_f32(2, 6, 105, 1, 1);
    sl_layer_plan_t plan;
    sl_layer_t *layer;
    sl_tensor_desc_t out;

    (void)state;
    sl_assert_ok(sl_layer_create(&spec, 0, &image, &layer, &out));
    sl_assert_ok(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 1, 1, &batch));
    assert_true(sl_tensor_desc_is_equal(&plan.out, &want));
    sl_layer_plan_cleanup(&plan);
    sl_layer_destroy(layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(the_order_is_kept),
        sl_unit_test(integers_are_kept),
        sl_unit_test(rows_and_width_are_split),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
