/* SPDX-License-Identifier: Apache-2.0 */
/* linear against a plain sum in double; its parameters, cost and refusals. */
#include "layers/linear_internal.h"

#include <math.h>

#include "tests/layers/layer_check.h"

static void reference(const sl_layer_reference_t *args)
{
    const int64_t rows = sl_tensor_rows(args->out_desc);
    const int64_t n_out = args->out_desc->dims[args->out_desc->n_dims - 1];
    const int64_t n_in = args->in_desc->dims[args->in_desc->n_dims - 1];
    int64_t r, o, i;

    for (r = 0; r < rows; r++) {
        for (o = 0; o < n_out; o++) {
            double sum = args->param[1] == NULL ? 0.0 : args->param[1][o];

            for (i = 0; i < n_in; i++) {
                sum += args->in[0][r * n_in + i] * args->param[0][o * n_in + i];
            }
            args->out[r * n_out + o] = sum;
        }
    }
}

/* The harness gives parameters a layer lacks as NULL or as nothing. */
static void reference_without_bias(const sl_layer_reference_t *args)
{
    sl_layer_reference_t bare = *args;

    bare.param[1] = NULL;
    reference(&bare);
}

static sl_layer_check_t check_of(const sl_tensor_desc_t *in, int64_t out,
                                 int bias)
{
    const sl_layer_check_t check = {
        .type = "linear",
        .attrs = {{.name = "out", .number = (double)out},
                  {.name = "bias", .number = bias}},
        .n_inputs = 1,
        .inputs = {*in},
        .reference = bias ? reference : reference_without_bias,
        .n_positions = 8};

    return check;
}

static void passes_the_checks_of_a_layer(void **state)
{
    const sl_tensor_desc_t inputs[] = {
        sl_f32(2, 1, 1, 1, 1),    sl_f32(2, 3, 17, 1, 1),
        sl_f32(3, 2, 65, 3, 1),   sl_f32(3, 1, 130, 17, 1),
        sl_f32(4, 2, 3, 5, 17),   sl_f32(2, 5, 768, 1, 1),
        sl_f32(3, 3, 130, 64, 1), sl_f32(2, 2, 1, 1, 1)};
    static const int64_t outs[] = {1, 3, 17, 130};
    size_t i, o;
    int bias;

    (void)state;
    for (i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        for (o = 0; o < sizeof(outs) / sizeof(outs[0]); o++) {
            for (bias = 0; bias <= 1; bias++) {
                const sl_layer_check_t check =
                    check_of(&inputs[i], outs[o], bias);

                sl_layer_check(&check);
            }
        }
    }
}

static void wide_layers_pass_too(void **state)
{
    const sl_tensor_desc_t in = sl_f32(3, 1, 33, 768, 1);
    sl_layer_check_t check = check_of(&in, 768, 1);

    (void)state;
    check.n_positions = 2;
    sl_layer_check(&check);
}

/* Sums of many rows: over threads and over several groups of rows. */
static void bias_gradient_sums_many_rows(void **state)
{
    const sl_tensor_desc_t in = sl_f32(2, 700, 2, 1, 1);
    sl_layer_check_t check = check_of(&in, 130, 1);
    sl_layer_bed_t bed;
    int threads;

    (void)state;
    for (threads = 1; threads <= 2; threads++) {
        const float *got;
        int64_t row, column;

        sl_layer_bed_init(&bed, &check, threads);
        sl_assert_ok(sl_layer_bed_backward(&bed));
        got = bed.run.grad[1];
        for (column = 0; column < 130; column++) {
            double want = 0;

            for (row = 0; row < 700; row++) {
                want += (double)bed.plain_dout[row * 130 + column];
            }
            assert_true(fabs((double)got[column] - want) <= 1e-4);
        }
        sl_layer_bed_cleanup(&bed);
    }
}

static void evaluation_is_the_same_map(void **state)
{
    const sl_tensor_desc_t in = sl_f32(3, 2, 5, 17, 1);
    sl_layer_check_t check = check_of(&in, 9, 1);

    (void)state;
    check.is_evaluation = 1;
    sl_layer_check(&check);
}

static sl_status_t create(const sl_attr_t *attrs, size_t n_attrs,
                          const sl_tensor_desc_t *in, sl_layer_t **layer_p,
                          sl_tensor_desc_t *out_p)
{
    const sl_layer_spec_t spec = {.type = "linear",
                                  .name = "fc",
                                  .n_inputs = 1,
                                  .inputs = {SL_INPUT_DATA},
                                  .attrs = attrs,
                                  .n_attrs = n_attrs};

    return sl_layer_create(&spec, 0, in, layer_p, out_p);
}

static void parameters_start_as_pytorch_has_them(void **state)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = 5}};
    const sl_tensor_desc_t in = sl_f32(2, 1, 16, 1, 1);
    sl_tensor_desc_t out;
    sl_layer_t *layer = NULL;
    const sl_param_t *weight, *bias;

    (void)state;
    sl_assert_ok(create(attrs, 1, &in, &layer, &out));
    assert_int_equal(layer->n_params, 2);
    weight = &layer->params[0];
    bias = &layer->params[1];
    assert_string_equal(weight->name, "weight");
    assert_int_equal(weight->desc.dims[0], 5);
    assert_int_equal(weight->desc.dims[1], 16);
    assert_int_equal(weight->init, SL_INIT_UNIFORM);
    assert_true(weight->init_scale == 0.25);
    assert_true(weight->has_decay);
    assert_int_equal(weight->tied_layer, -1);
    assert_string_equal(bias->name, "bias");
    assert_int_equal(bias->desc.n_dims, 1);
    assert_int_equal(bias->desc.dims[0], 5);
    assert_int_equal(bias->init, SL_INIT_UNIFORM);
    assert_true(bias->init_scale == 0.25);
    assert_false(bias->has_decay);
    sl_layer_destroy(layer);
}

static void normal_parameters_start_without_bias(void **state)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = 5},
                               {.name = "init", .text = "normal"},
                               {.name = "init_std", .number = 0.1},
                               {.name = "tie", .text = "tokens"}};
    const sl_tensor_desc_t in = sl_f32(2, 1, 16, 1, 1);
    const sl_linear_attrs_t *read;
    sl_tensor_desc_t out;
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_ok(create(attrs, 4, &in, &layer, &out));
    assert_int_equal(layer->params[0].init, SL_INIT_NORMAL);
    assert_true(layer->params[0].init_scale == 0.1);
    assert_int_equal(layer->params[1].init, SL_INIT_ZERO);
    /* the model resolves a tie; the layer alone has a weight of its own */
    read = layer->attrs;
    assert_string_equal(read->tie, "tokens");
    assert_int_equal(layer->params[0].tied_layer, -1);
    sl_layer_destroy(layer);
}

static void cost_counts_the_products(void **state)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = 10}};
    const sl_tensor_desc_t in = sl_f32(3, 4, 8, 16, 1);
    sl_layer_cost_t cost;
    sl_tensor_desc_t out;
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_ok(create(attrs, 1, &in, &layer, &out));
    sl_assert_ok(sl_layer_cost(layer, &in, &cost));
    assert_true(cost.forward_flops == 2.0 * 32 * 16 * 10);
    assert_true(cost.backward_flops == 4.0 * 32 * 16 * 10);
    assert_true(cost.forward_bytes == 4.0 * (512 + 160 + 320));
    assert_true(cost.backward_bytes == 4.0 * (640 + 1024 + 480));
    assert_int_equal(cost.param_bytes, 4 * (160 + 10));
    assert_int_equal(cost.output_bytes, 4 * 320);
    assert_int_equal(cost.kept_bytes, 0);
    sl_layer_destroy(layer);
}

static void refuses_what_is_not_a_matrix(void **state)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = 10}};
    const sl_tensor_desc_t bad[] = {sl_f32(1, 4, 1, 1, 1), sl_i32(2, 4, 8),
                                    sl_blocked(2, 16, 4, 4)};
    sl_tensor_desc_t out;
    sl_layer_t *layer = NULL;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        sl_assert_status(create(attrs, 1, &bad[i], &layer, &out),
                         SL_ERR_CONFIG);
        sl_assert_contains(sl_last_error(), "layer fc (linear)");
        assert_null(layer);
    }
}

static void refuses_bad_attributes(void **state)
{
    const sl_attr_t bad[][2] = {
        {{.name = "bias", .number = 1}, {.name = "init_std", .number = 1}},
        {{.name = "out", .number = 0}, {.name = "bias", .number = 1}},
        {{.name = "out", .number = 2}, {.name = "init", .text = "xavier"}},
        {{.name = "out", .number = 2}, {.name = "init_std", .number = -1}}};
    const sl_tensor_desc_t in = sl_f32(2, 1, 16, 1, 1);
    sl_tensor_desc_t out;
    sl_layer_t *layer = NULL;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        sl_assert_status(create(bad[i], 2, &in, &layer, &out), SL_ERR_CONFIG);
        assert_null(layer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(passes_the_checks_of_a_layer),
        sl_unit_test(wide_layers_pass_too),
        sl_unit_test(bias_gradient_sums_many_rows),
        sl_unit_test(evaluation_is_the_same_map),
        sl_unit_test(parameters_start_as_pytorch_has_them),
        sl_unit_test(normal_parameters_start_without_bias),
        sl_unit_test(cost_counts_the_products),
        sl_unit_test(refuses_what_is_not_a_matrix),
        sl_unit_test(refuses_bad_attributes),
    };

    return cmocka_run_group_tests_name("layers/linear", tests, NULL, NULL);
}
