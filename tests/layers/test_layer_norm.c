/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tests/layers/layer_check.h"

static double eps;

static void reference(const sl_layer_reference_t *args)
{
    const int64_t width = args->out_desc->dims[args->out_desc->n_dims - 1];
    const int64_t rows = sl_tensor_rows(args->out_desc);
    int64_t row, i;

    for (row = 0; row < rows; row++) {
        const double *x = args->in[0] + row * width;
        double mean = 0, variance = 0;

        for (i = 0; i < width; i++) {
            mean += x[i] / (double)width;
        }
        for (i = 0; i < width; i++) {
            variance += (x[i] - mean) * (x[i] - mean) / (double)width;
        }
        for (i = 0; i < width; i++) {
            args->out[row * width + i] =
                (x[i] - mean) / sqrt(variance + eps) * args->param[0][i] +
                args->param[1][i];
        }
    }
}

static void check(sl_tensor_desc_t shape, double epsilon, double scale,
                  int evaluation)
{
    eps = epsilon;
    sl_layer_check(
        &(sl_layer_check_t){.type = "layer_norm",
                            .attrs = {{.name = "eps", .number = epsilon}},
                            .n_inputs = 1,
                            .inputs = {shape},
                            .input_scale = scale,
                            .is_evaluation = evaluation,
                            .reference = reference});
}

static void rows_are_normalized(void **state)
{
    (void)state;
    check(sl_f32(2, 1, 1, 1, 1), 1e-5, 1, 0);
    check(sl_f32(2, 3, 7, 1, 1), 1e-5, 1, 0);
    check(sl_f32(3, 2, 5, 33, 1), 1e-5, 1, 0);
    check(sl_f32(3, 2, 5, 33, 1), 0.1, 1, 0);
    check(sl_f32(3, 4, 63, 129, 1), 1e-5, 1, 0);
    check(sl_f32(4, 2, 3, 2, 17), 1e-5, 1, 0);
}

static void large_and_small_values_are_right(void **state)
{
    (void)state;
    check(sl_f32(2, 3, 40, 1, 1), 1e-5, 1000, 0);
    check(sl_f32(2, 3, 40, 1, 1), 1e-5, 1000, 1);
}

static void evaluation_is_the_same(void **state)
{
    (void)state;
    check(sl_f32(3, 2, 5, 33, 1), 1e-5, 1, 1);
}

static void parameters_are_one_and_zero(void **state)
{
    const sl_layer_spec_t spec = {
        .type = "layer_norm", .name = "ln", .n_inputs = 1};
    const sl_tensor_desc_t in = sl_f32(3, 1, 4, 6, 1);
    sl_layer_t *layer;
    sl_tensor_desc_t out;
    float values[6];
    int i;

    (void)state;
    sl_assert_ok(sl_layer_create(&spec, 0, &in, &layer, &out));
    assert_int_equal(layer->n_params, 2);
    assert_string_equal(layer->params[0].name, "weight");
    assert_string_equal(layer->params[1].name, "bias");
    for (i = 0; i < 2; i++) {
        sl_layer_param_init(layer, i, 1, values);
        assert_true(values[0] == (float)(1 - i) && values[5] == values[0]);
        assert_false(layer->params[i].has_decay);
    }
    sl_layer_destroy(layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(rows_are_normalized),
        sl_unit_test(large_and_small_values_are_right),
        sl_unit_test(evaluation_is_the_same),
        sl_unit_test(parameters_are_one_and_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
