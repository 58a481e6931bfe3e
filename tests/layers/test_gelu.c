/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tests/layers/layer_check.h"

static double gelu_tanh(double x)
{
    return 0.5 * x *
           (1 + tanh(sqrt(2 / 3.14159265358979323846) *
                     (x + 0.044715 * x * x * x)));
}

static double gelu_erf(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2));
}

static void reference_tanh(const sl_layer_reference_t *args)
{
    const int64_t n = sl_tensor_elements(args->out_desc);
    int64_t i;

    for (i = 0; i < n; i++) {
        args->out[i] = gelu_tanh(args->in[0][i]);
    }
}

static void reference_erf(const sl_layer_reference_t *args)
{
    const int64_t n = sl_tensor_elements(args->out_desc);
    int64_t i;

    for (i = 0; i < n; i++) {
        args->out[i] = gelu_erf(args->in[0][i]);
    }
}

static void check(const char *kind, sl_layer_reference_fn reference,
                  sl_tensor_desc_t shape, double scale)
{
    sl_layer_check(
        &(sl_layer_check_t){.type = "gelu",
                            .attrs = {{.name = "kind", .text = kind}},
                            .n_inputs = 1,
                            .inputs = {shape},
                            .input_scale = scale,
                            .tolerance = 2e-6,
                            .reference = reference});
}

static void both_kinds_are_right(void **state)
{
    const sl_tensor_desc_t shapes[] = {
        sl_f32(1, 1, 1, 1, 1),  sl_f32(2, 3, 7, 1, 1),
        sl_f32(3, 5, 3, 11, 1), sl_f32(4, 2, 3, 5, 7),
        sl_blocked(2, 3, 5, 7), sl_f32(2, 20, 1000, 1, 1)};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        check("tanh", reference_tanh, shapes[i], 2);
        check("erf", reference_erf, shapes[i], 2);
    }
}

static void large_values_stay_finite(void **state)
{
    (void)state;
    check("tanh", reference_tanh, sl_f32(2, 10, 100, 1, 1), 100);
    check("erf", reference_erf, sl_f32(2, 10, 100, 1, 1), 100);
}

static void the_default_is_tanh(void **state)
{
    (void)state;
    sl_layer_check(&(sl_layer_check_t){.type = "gelu",
                                       .n_inputs = 1,
                                       .inputs = {sl_f32(2, 4, 9, 1, 1)},
                                       .tolerance = 2e-6,
                                       .reference = reference_tanh});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(both_kinds_are_right),
        sl_unit_test(large_values_stay_finite),
        sl_unit_test(the_default_is_tanh),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
