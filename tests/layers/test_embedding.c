/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "tests/layers/layer_check.h"

static void reference(const sl_layer_reference_t *args)
{
    const int64_t time = args->in_desc[0].dims[1];
    const int64_t width = args->out_desc->dims[2];
    const int64_t n = sl_tensor_elements(&args->in_desc[0]);
    int64_t i, k;

    for (i = 0; i < n; i++) {
        const int64_t token = (int64_t)args->in[0][i];

        for (k = 0; k < width; k++) {
            args->out[i * width + k] = args->param[0][token * width + k];
            if (args->param[1] != NULL) {
                args->out[i * width + k] +=
                    args->param[1][i % time * width + k];
            }
        }
    }
}

static void check(int64_t batch, int64_t time, int vocab, int width,
                  int positions, int evaluation)
{
    sl_layer_check(&(sl_layer_check_t){
        .type = "embedding",
        .attrs = {{.name = "vocab", .number = vocab},
                  {.name = "width", .number = width},
                  {.name = "positions", .number = positions}},
        .n_inputs = 1,
        .inputs = {sl_i32(2, batch, time)},
        .n_classes = vocab,
        .is_evaluation = evaluation,
        .reference = reference});
}

static void rows_are_looked_up(void **state)
{
    int positions;

    (void)state;
    for (positions = 0; positions < 2; positions++) {
        check(1, 1, 1, 1, positions, 0);
        check(2, 5, 11, 7, positions, 0);
        check(3, 40, 3, 33, positions, 0); /* many equal tokens */
        check(4, 64, 100, 80, positions, 0);
        check(2, 5, 11, 7, positions, 1);
    }
}

/* A kernel that cannot fail: the bad token, the third, shows, and nothing is
 * read or written outside of the table. */
static void expect_one_row_of_nan(sl_layer_bed_t *bed)
{
    float out[4 * 3];
    int i;

    sl_assert_ok(sl_layer_bed_forward(bed));
    sl_layer_from_tensor(&bed->plan.out, bed->run.out, out);
    for (i = 0; i < 4 * 3; i++) {
        assert_int_equal(isnan(out[i]) != 0, i / 3 == 2);
    }
    sl_assert_ok(sl_layer_bed_backward(bed));
}

static void expect_bad_token(float token, const char *text)
{
    const float values[4] = {0, 1, token, 2};
    const sl_layer_check_t checked = {.type = "embedding",
                                      .attrs = {{.name = "vocab", .number = 5},
                                                {.name = "width", .number = 3}},
                                      .n_inputs = 1,
                                      .inputs = {sl_i32(2, 2, 2)},
                                      .values = {values}};
    sl_layer_bed_t bed;

    sl_layer_bed_init(&bed, &checked, 1);
    sl_assert_status(sl_layer_check_input(&bed.plan, 0, bed.run.in[0]),
                     SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), text);
    if (bed.plan.kind == SL_DEVICE_KIND_CPU) {
        sl_assert_status(sl_layer_bed_forward(&bed), SL_ERR_INVALID_ARG);
        sl_assert_contains(sl_last_error(), text);
        sl_assert_status(sl_layer_bed_backward(&bed), SL_ERR_INVALID_ARG);
    } else {
        expect_one_row_of_nan(&bed);
    }
    sl_layer_bed_cleanup(&bed);
}

static void a_token_outside_is_refused(void **state)
{
    (void)state;
    expect_bad_token(5, "token 5 in row 1, position 0 is not in 0..4");
    expect_bad_token(-1, "token -1 in row 1, position 0");
    expect_bad_token(-2147483648.0f, "token -2147483648");
}

static void a_longer_context_is_refused(void **state)
{
    const sl_attr_t attrs[] = {{.name = "vocab", .number = 5},
                               {.name = "width", .number = 3},
                               {.name = "positions", .text = "true"}};
    const sl_layer_spec_t spec = {.type = "embedding",
                                  .name = "wte",
                                  .n_inputs = 1,
                                  .attrs = attrs,
                                  .n_attrs = 3};
    const sl_tensor_desc_t in = sl_i32(2, 1, 8);
    const sl_tensor_desc_t longer = sl_i32(2, 1, 9);
    const sl_tensor_desc_t shorter = sl_i32(2, 1, 7);
    sl_layer_plan_t plan;
    sl_layer_t *layer;
    sl_tensor_desc_t out;

    (void)state;
    sl_assert_ok(sl_layer_create(&spec, 0, &in, &layer, &out));
    assert_string_equal(layer->params[1].name, "position");
    assert_int_equal(layer->params[1].desc.dims[0], 8);
    sl_assert_status(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 1, 1, &longer),
        SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "at most 8 tokens");
    sl_assert_ok(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 1, 1, &shorter));
    sl_layer_plan_cleanup(&plan);
    sl_layer_destroy(layer);
}

static void initial_values_have_the_deviation(void **state)
{
    const sl_attr_t attrs[] = {{.name = "vocab", .number = 500},
                               {.name = "width", .number = 40}};
    const sl_layer_spec_t spec = {.type = "embedding",
                                  .name = "wte",
                                  .n_inputs = 1,
                                  .attrs = attrs,
                                  .n_attrs = 2};
    const sl_tensor_desc_t in = sl_i32(2, 1, 8);
    float *values = calloc(20000, sizeof(*values));
    sl_layer_t *layer;
    sl_tensor_desc_t out;
    double sum = 0, squares = 0;
    int i;

    (void)state;
    assert_non_null(values);
    sl_assert_ok(sl_layer_create(&spec, 0, &in, &layer, &out));
    sl_layer_param_init(layer, 0, 42, values);
    for (i = 0; i < 20000; i++) {
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    assert_true(fabs(sum / 20000) < 6e-4);
    assert_true(fabs(sqrt(squares / 20000) - 0.02) < 4e-4);
    sl_layer_destroy(layer);
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(rows_are_looked_up),
        sl_unit_test(a_token_outside_is_refused),
        sl_unit_test(a_longer_context_is_refused),
        sl_unit_test(initial_values_have_the_deviation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
