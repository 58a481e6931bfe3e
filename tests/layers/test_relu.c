/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tests/layers/layer_check.h"

static void reference(const sl_layer_reference_t *args)
{
    const int64_t n = sl_tensor_elements(args->out_desc);
    int64_t i;

    for (i = 0; i < n; i++) {
        args->out[i] = fmax(args->in[0][i], 0);
    }
}

static void plain_and_blocked_are_right(void **state)
{
    const sl_tensor_desc_t shapes[] = {
        sl_f32(1, 1, 1, 1, 1),    sl_f32(2, 3, 7, 1, 1),
        sl_f32(3, 5, 3, 11, 1),   sl_f32(4, 2, 3, 5, 7),
        sl_blocked(2, 3, 5, 7),   sl_blocked(3, 33, 1, 1),
        sl_f32(2, 40, 1000, 1, 1)};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        sl_layer_check(&(sl_layer_check_t){.type = "relu",
                                           .n_inputs = 1,
                                           .inputs = {shapes[i]},
                                           .is_kinked = 1,
                                           .reference = reference});
    }
}

static void evaluation_is_the_same(void **state)
{
    (void)state;
    sl_layer_check(&(sl_layer_check_t){.type = "relu",
                                       .n_inputs = 1,
                                       .inputs = {sl_f32(2, 3, 5, 1, 1)},
                                       .is_evaluation = 1,
                                       .reference = reference});
}

static void not_a_number_stays(void **state)
{
    const float values[4] = {NAN, -INFINITY, INFINITY, -0.0f};
    const sl_layer_check_t check = {.type = "relu",
                                    .n_inputs = 1,
                                    .inputs = {sl_f32(2, 1, 4, 1, 1)},
                                    .values = {values}};
    sl_layer_bed_t bed;
    float out[4];

    (void)state;
    sl_layer_bed_init(&bed, &check, 1);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    sl_layer_from_tensor(&bed.plan.out, bed.run.out, out);
    assert_true(isnan(out[0]));
    assert_true(out[1] == 0 && isinf(out[2]) && out[2] > 0 && out[3] == 0);
    sl_layer_bed_cleanup(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(plain_and_blocked_are_right),
        sl_unit_test(evaluation_is_the_same),
        sl_unit_test(not_a_number_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
