/* SPDX-License-Identifier: Apache-2.0 */
/* Analytic costs: known flops, bytes across cuts, what is kept. */
#include "tests/support/sl_test.h"

#include <math.h>
#include <string.h>

#include "partition/partition.h"

static sl_tensor_desc_t image(int64_t channels, int64_t side)
{
    const int64_t dims[] = {1, channels, side, side};

    return sl_tensor_desc(SL_DTYPE_F32, 4, dims);
}

static sl_tensor_desc_t label(void)
{
    return sl_tensor_desc(SL_DTYPE_I32, 1, (const int64_t[]){1});
}

static void add(sl_model_t *model, const char *type, int n_inputs,
                const int *inputs, const char *attr, double value)
{
    const sl_attr_t given = {.name = attr, .number = value};
    sl_layer_spec_t spec = {.type = type, .n_inputs = n_inputs};
    int i;

    for (i = 0; i < n_inputs; i++) {
        spec.inputs[i] = inputs[i];
    }
    spec.attrs = &given;
    spec.n_attrs = attr == NULL ? 0 : 1;
    sl_assert_ok(sl_model_add(model, &spec, NULL));
}

/** data [1, 8] -> linear 0 -> relu 1 -> linear 2 -> add(0, 2) 3 -> linear 4
 *  -> loss 5, all of width 8. */
static sl_model_t *residual_model(void)
{
    const sl_tensor_desc_t data =
        sl_tensor_desc(SL_DTYPE_F32, 2, (const int64_t[]){1, 8});
    const sl_tensor_desc_t target = label();
    sl_model_t *model;

    sl_assert_ok(sl_model_create("residual", &data, &target, &model));
    add(model, "linear", 0, NULL, "out", 8);
    add(model, "relu", 0, NULL, NULL, 0);
    add(model, "linear", 0, NULL, "out", 8);
    add(model, "add", 2, (const int[]){0, 2}, NULL, 0);
    add(model, "linear", 0, NULL, "out", 8);
    add(model, "softmax_cross_entropy", 0, NULL, NULL, 0);
    sl_assert_ok(sl_model_check(model));
    return model;
}

static void analyse(const sl_model_t *model, int64_t rows,
                    sl_part_costs_t *costs)
{
    sl_part_speed_t speed;

    sl_part_speed_default(&speed, 1);
    sl_assert_ok(sl_part_costs_analytic(model, rows, &speed, costs));
    assert_int_equal(costs->n_layers, model->n_layers);
    assert_int_equal(costs->is_measured, 0);
}

/* ---- flops ---- */

static double resnet_flops(const char *depth)
{
    const sl_attr_t attrs[] = {{.name = "depth", .text = depth},
                               {.name = "classes", .number = 1000}};
    const sl_tensor_desc_t data = image(3, 224);
    const sl_tensor_desc_t target = label();
    sl_part_costs_t costs;
    sl_model_t *model;
    double flops = 0.0, backward = 0.0;
    int i;

    sl_assert_ok(sl_model_build("resnet", attrs, 2, &data, &target, &model));
    analyse(model, 1, &costs);
    for (i = 0; i < costs.n_layers; i++) {
        flops += costs.layers[i].forward_flops;
        backward += costs.layers[i].backward_flops;
        assert_true(costs.layers[i].forward_us > 0.0);
        assert_true(costs.layers[i].backward_us >= 0.0);
    }
    print_message("resnet-%s: %d layers, %.3f + %.3f GFLOP an image\n", depth,
                  costs.n_layers, flops * 1e-9, backward * 1e-9);
    assert_true(backward > 1.9 * flops && backward < 2.1 * flops);
    sl_part_costs_cleanup(&costs);
    sl_model_destroy(model);
    return flops;
}

static void resnet_flops_are_the_known_ones(void **state)
{
    (void)state;
    /* 4.09 and 7.8 G multiply-adds */
    assert_true(fabs(resnet_flops("50") / 2 / 4.09e9 - 1.0) < 0.02);
    assert_true(fabs(resnet_flops("101") / 2 / 7.8e9 - 1.0) < 0.02);
}

static void first_layer_has_half_a_backward(void **state)
{
    sl_model_t *model = residual_model();
    sl_part_costs_t costs;

    (void)state;
    analyse(model, 64, &costs);
    assert_true(costs.layers[0].forward_flops == costs.layers[2].forward_flops);
    assert_true(costs.layers[0].backward_flops * 2 ==
                costs.layers[2].backward_flops);
    sl_part_costs_cleanup(&costs);
    sl_model_destroy(model);
}

/* ---- bytes ---- */

static void skips_cross_every_cut_on_their_way(void **state)
{
    enum {
        ROWS = 5,
        TENSOR = ROWS * 8 * 4
    };
    sl_model_t *model = residual_model();
    sl_part_costs_t costs;

    (void)state;
    analyse(model, ROWS, &costs);
    assert_int_equal(costs.layers[0].cut_bytes, 0);
    assert_int_equal(costs.layers[1].cut_bytes, TENSOR);     /* 0 */
    assert_int_equal(costs.layers[2].cut_bytes, 2 * TENSOR); /* 0 and 1 */
    assert_int_equal(costs.layers[3].cut_bytes, 2 * TENSOR); /* 0 and 2 */
    assert_int_equal(costs.layers[4].cut_bytes, TENSOR);     /* 3 */
    assert_int_equal(costs.layers[5].cut_bytes, TENSOR);     /* 4, no target */
    sl_part_costs_cleanup(&costs);
    sl_model_destroy(model);
}

/** The same sum in another way: a set of the tensors that any plan keeps. */
static size_t kept_by_plans(const sl_model_t *model, int64_t rows)
{
    sl_tensor_desc_t out[512], in[SL_LAYER_MAX_INPUTS];
    int kept[514] = {0};
    size_t bytes = 0;
    int i, j;

    assert_true(model->n_layers <= 512);
    sl_assert_ok(sl_model_infer(model, rows, out));
    for (i = 0; i < model->n_layers; i++) {
        const sl_layer_t *layer = model->layers[i];
        sl_layer_plan_t plan;

        sl_model_layer_inputs(model, rows, out, i, in);
        sl_assert_ok(
            sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 2, 1, in));
        bytes += plan.saved_bytes;
        for (j = 0; j < layer->n_inputs; j++) {
            if (plan.keeps_input[j] && !kept[layer->inputs[j] + 2]) {
                kept[layer->inputs[j] + 2] = 1;
                bytes += sl_tensor_bytes(&in[j]);
            }
        }
        if (plan.keeps_output && !kept[i + 2]) {
            kept[i + 2] = 1;
            bytes += sl_tensor_bytes(&plan.out);
        }
        sl_layer_plan_cleanup(&plan);
    }
    return bytes;
}

static void assert_kept(const sl_model_t *model, int64_t rows)
{
    sl_part_costs_t costs;
    size_t sum = 0;
    int i;

    analyse(model, rows, &costs);
    for (i = 0; i < costs.n_layers; i++) {
        sum += costs.layers[i].kept_bytes;
    }
    assert_int_equal(sum, kept_by_plans(model, rows));
    sl_part_costs_cleanup(&costs);
}

static void kept_is_what_the_plans_keep(void **state)
{
    const sl_attr_t attrs[] = {{.name = "depth", .text = "50"},
                               {.name = "classes", .number = 10}};
    const sl_tensor_desc_t data = image(3, 64);
    const sl_tensor_desc_t target = label();
    sl_model_t *model = residual_model();

    (void)state;
    assert_kept(model, 7);
    sl_model_destroy(model);
    sl_assert_ok(sl_model_build("resnet", attrs, 2, &data, &target, &model));
    assert_kept(model, 2);
    sl_model_destroy(model);
}

static void parameters_are_counted(void **state)
{
    sl_model_t *model = residual_model();
    sl_part_costs_t costs;
    size_t bytes = 0;
    int i;

    (void)state;
    analyse(model, 3, &costs);
    for (i = 0; i < costs.n_layers; i++) {
        assert_true(costs.layers[i].trained_bytes <=
                    costs.layers[i].param_bytes);
        bytes += costs.layers[i].trained_bytes;
    }
    assert_true(bytes >= 4 * (size_t)sl_model_n_params(model));
    assert_int_equal(costs.layers[1].param_bytes, 0);
    sl_part_costs_cleanup(&costs);
    sl_model_destroy(model);
}

/* ---- time ---- */

static void time_is_the_longer_of_two(void **state)
{
    sl_part_speed_t speed = {
        .flops_per_us = 1e9, .bytes_per_us = 1e12, .op_us = 3.0};
    sl_model_t *model = residual_model();
    sl_part_costs_t costs;

    (void)state;
    sl_assert_ok(sl_part_costs_analytic(model, 1, &speed, &costs));
    assert_true(costs.layers[1].forward_us >= 3.0);
    assert_true(costs.layers[1].forward_us < 3.001);
    sl_part_costs_cleanup(&costs);
    speed.flops_per_us = 1.0;
    sl_assert_ok(sl_part_costs_analytic(model, 1, &speed, &costs));
    assert_true(costs.layers[2].forward_us ==
                costs.layers[2].forward_flops + 3.0);
    assert_true(costs.layers[2].backward_us ==
                costs.layers[2].backward_flops + 3.0);
    sl_part_costs_cleanup(&costs);
    sl_model_destroy(model);
}

static void bad_arguments_are_refused(void **state)
{
    sl_model_t *model = residual_model();
    sl_part_costs_t costs = {.n_layers = -5};
    sl_part_speed_t speed;

    (void)state;
    sl_part_speed_default(&speed, 1);
    sl_assert_status(sl_part_costs_analytic(model, 0, &speed, &costs),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_part_costs_analytic(NULL, 1, &speed, &costs),
                     SL_ERR_INVALID_ARG);
    speed.flops_per_us = 0.0;
    sl_assert_status(sl_part_costs_analytic(model, 1, &speed, &costs),
                     SL_ERR_INVALID_ARG);
    assert_int_equal(costs.n_layers, -5);
    sl_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(resnet_flops_are_the_known_ones),
        sl_unit_test(first_layer_has_half_a_backward),
        sl_unit_test(skips_cross_every_cut_on_their_way),
        sl_unit_test(kept_is_what_the_plans_keep),
        sl_unit_test(parameters_are_counted),
        sl_unit_test(time_is_the_longer_of_two),
        sl_unit_test(bad_arguments_are_refused),
    };

    return cmocka_run_group_tests_name("partition.cost", tests, NULL, NULL);
}
