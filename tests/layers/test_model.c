/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/layers/layer_check.h"
#include "tests/support/alloc_fail.h"

static sl_model_t *new_model(sl_tensor_desc_t data, sl_tensor_desc_t target)
{
    sl_model_t *model = NULL;

    sl_assert_ok(sl_model_create("m", &data, &target, &model));
    return model;
}

static int add(sl_model_t *model, const char *type, const char *name,
               const sl_attr_t *attrs, size_t n_attrs)
{
    const sl_layer_spec_t spec = {
        .type = type, .name = name, .attrs = attrs, .n_attrs = n_attrs};
    int index = -1;

    sl_assert_ok(sl_model_add(model, &spec, &index));
    return index;
}

static int add_linear(sl_model_t *model, const char *name, double out)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = out}};

    return add(model, "linear", name, attrs, 1);
}

/* 4 values -> 5 -> relu -> 3 classes */
static sl_model_t *small_model(void)
{
    sl_model_t *model = new_model(sl_f32(2, 1, 4, 1, 1), sl_i32(1, 1, 1));

    (void)add_linear(model, "fc1", 5);
    (void)add(model, "relu", NULL, NULL, 0);
    (void)add_linear(model, "fc2", 3);
    (void)add(model, "softmax_cross_entropy", "loss", NULL, 0);
    return model;
}

static void layers_are_chained(void **state)
{
    sl_model_t *model = small_model();
    sl_tensor_desc_t out[4], in[SL_LAYER_MAX_INPUTS];

    (void)state;
    sl_assert_ok(sl_model_check(model));
    assert_int_equal(model->n_layers, 4);
    assert_string_equal(model->layers[1]->name, "relu_1");
    assert_int_equal(model->layers[0]->inputs[0], SL_INPUT_DATA);
    assert_int_equal(model->layers[2]->inputs[0], 1);
    assert_int_equal(model->layers[3]->inputs[0], 2);
    assert_int_equal(model->layers[3]->inputs[1], SL_INPUT_TARGET);
    assert_int_equal(sl_model_find(model, "fc2"), 2);
    assert_int_equal(sl_model_find(model, "fc3"), -1);
    assert_int_equal(sl_model_n_params(model), 4 * 5 + 5 + 5 * 3 + 3);
    sl_assert_ok(sl_model_infer(model, 7, out));
    assert_int_equal(out[2].dims[0], 7);
    assert_int_equal(out[2].dims[1], 3);
    sl_model_layer_inputs(model, 7, out, 3, in);
    assert_true(sl_tensor_desc_is_equal(&in[0], &out[2]));
    assert_int_equal(in[1].dims[0], 7);
    sl_assert_status(sl_model_infer(model, 0, out), SL_ERR_INVALID_ARG);
    sl_model_destroy(model);
}

static void expect_add_error(sl_model_t *model, const sl_layer_spec_t *spec,
                             const char *part)
{
    const int n = model->n_layers;

    sl_assert_status(sl_model_add(model, spec, NULL), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), part);
    assert_int_equal(model->n_layers, n);
}

static void bad_layers_are_refused(void **state)
{
    sl_model_t *model = small_model();
    const sl_attr_t unknown[] = {
        {.name = "width", .number = 3, .place = "a.yaml:9:2"}};
    char long_name[300];

    (void)state;
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    expect_add_error(model, &(sl_layer_spec_t){.type = "conv3d", .line = 4},
                     "no layer type 'conv3d'; there are: linear, conv2d");
    expect_add_error(
        model,
        &(sl_layer_spec_t){
            .type = "relu", .name = "fc1", .n_inputs = 1, .inputs = {1}},
        "there is already a layer fc1");
    expect_add_error(model, &(sl_layer_spec_t){.type = "relu", .name = ""},
                     "a name has 1 to");
    expect_add_error(model,
                     &(sl_layer_spec_t){.type = "relu", .name = long_name},
                     "a name has 1 to");
    expect_add_error(
        model,
        &(sl_layer_spec_t){
            .type = "relu", .name = "r", .n_inputs = 1, .inputs = {4}},
        "layer 4, which is not one of the 4 earlier layers");
    expect_add_error(
        model,
        &(sl_layer_spec_t){
            .type = "relu", .name = "r", .n_inputs = 1, .inputs = {-3}},
        "layer -3");
    expect_add_error(
        model,
        &(sl_layer_spec_t){
            .type = "relu", .name = "r", .n_inputs = 1, .inputs = {-2}},
        "only a loss may read the target");
    expect_add_error(
        model,
        &(sl_layer_spec_t){
            .type = "relu", .name = "r", .n_inputs = 2, .inputs = {0, 1}},
        "takes 1 to 1 inputs, not 2");
    expect_add_error(
        model, &(sl_layer_spec_t){.type = "relu", .name = "r", .n_inputs = 5},
        "5 inputs, at most 4");
    expect_add_error(
        model,
        &(sl_layer_spec_t){.type = "linear",
                           .name = "l",
                           .n_inputs = 1,
                           .inputs = {1},
                           .attrs = unknown,
                           .n_attrs = 1,
                           .line = 8},
        "layer l (linear, line 8): no attribute 'width' at a.yaml:9:2");
    expect_add_error(
        model,
        &(sl_layer_spec_t){
            .type = "upsample2d", .name = "up", .n_inputs = 1, .inputs = {1}},
        "not f32 [1, 5]");
    sl_assert_ok(sl_model_check(model));
    sl_model_destroy(model);
}

static void the_whole_is_checked(void **state)
{
    sl_model_t *model = new_model(sl_f32(2, 1, 4, 1, 1), sl_i32(1, 1, 1));
    const sl_layer_spec_t aside = {
        .type = "relu", .name = "aside", .n_inputs = 1, .inputs = {0}};
    const sl_layer_spec_t loss = {.type = "softmax_cross_entropy",
                                  .name = "loss",
                                  .n_inputs = 1,
                                  .inputs = {0}};
    const sl_layer_spec_t loss_2 = {.type = "softmax_cross_entropy",
                                    .name = "loss_2",
                                    .n_inputs = 1,
                                    .inputs = {1}};

    (void)state;
    sl_assert_status(sl_model_check(model), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "has no layers");
    (void)add_linear(model, "fc", 3);
    sl_assert_status(sl_model_check(model), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "the last layer must be a loss");
    sl_assert_ok(sl_model_add(model, &aside, NULL));
    sl_assert_ok(sl_model_add(model, &loss, NULL));
    sl_assert_status(sl_model_check(model), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "layer aside (relu): no layer reads");
    sl_assert_ok(sl_model_add(model, &loss_2, NULL));
    sl_assert_status(sl_model_check(model), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "a loss must be the last layer");
    sl_model_destroy(model);
}

static void data_is_of_one_sample(void **state)
{
    const sl_tensor_desc_t data = sl_f32(2, 2, 4, 1, 1);
    const sl_tensor_desc_t target = sl_i32(1, 1, 1);
    sl_model_t *model;

    (void)state;
    sl_assert_status(sl_model_create("m", &data, &target, &model),
                     SL_ERR_INVALID_ARG);
}

static void parameters_may_be_tied(void **state)
{
    sl_model_t *model = new_model(sl_i32(2, 1, 6), sl_i32(2, 1, 6));
    const sl_attr_t table[] = {{.name = "vocab", .number = 11},
                               {.name = "width", .number = 4}};
    const sl_attr_t tied[] = {{.name = "out", .number = 11},
                              {.name = "bias", .text = "false"},
                              {.name = "tie", .text = "wte"}};
    const sl_attr_t chained[] = {{.name = "out", .number = 11},
                                 {.name = "tie", .text = "head"}};
    const sl_attr_t unlike[] = {{.name = "out", .number = 12},
                                {.name = "tie", .text = "wte"}};
    const sl_attr_t absent[] = {{.name = "out", .number = 11},
                                {.name = "tie", .text = "nobody"}};
    sl_layer_spec_t spec = {.type = "linear",
                            .name = "x",
                            .n_inputs = 1,
                            .inputs = {0},
                            .attrs = unlike,
                            .n_attrs = 2};
    int head, chain;

    (void)state;
    (void)add(model, "embedding", "wte", table, 2);
    expect_add_error(model, &spec, "[12, 4]");
    spec.attrs = absent;
    expect_add_error(model, &spec, "tied to 'nobody'");
    head = add(model, "linear", "head", tied, 3);
    assert_int_equal(model->layers[head]->params[0].tied_layer, 0);
    assert_int_equal(model->layers[head]->params[0].tied_param, 0);
    assert_int_equal(sl_model_n_params(model), 44);
    spec.attrs = chained;
    spec.name = "chain";
    sl_assert_ok(sl_model_add(model, &spec, &chain));
    assert_int_equal(model->layers[chain]->params[0].tied_layer, 0);
    assert_int_equal(sl_model_n_params(model), 44 + 11);
    sl_model_destroy(model);
}

static void initial_values_have_an_address(void **state)
{
    sl_model_t *model = small_model();
    float a[20], b[20];

    (void)state;
    sl_layer_param_init(model->layers[0], 0, 1, a);
    sl_layer_param_init(model->layers[0], 0, 1, b);
    assert_memory_equal(a, b, sizeof(a));
    sl_layer_param_init(model->layers[0], 0, 2, b);
    assert_memory_not_equal(a, b, sizeof(a));
    sl_model_destroy(model);
}

static void thousands_of_layers_are_quick(void **state)
{
    sl_model_t *model = new_model(sl_f32(2, 1, 4, 1, 1), sl_i32(1, 1, 1));
    sl_tensor_desc_t *out = calloc(20001, sizeof(*out));
    int i;

    (void)state;
    assert_non_null(out);
    for (i = 0; i < 20000; i++) {
        (void)add(model, "relu", NULL, NULL, 0);
    }
    (void)add(model, "softmax_cross_entropy", "loss", NULL, 0);
    sl_assert_ok(sl_model_check(model));
    sl_assert_ok(sl_model_infer(model, 3, out));
    assert_int_equal(sl_model_find(model, "relu_19999"), 19999);
    sl_model_destroy(model);
    free(out);
}

static void huge_shapes_are_refused(void **state)
{
    sl_model_t *model =
        new_model(sl_f32(4, 1, 100000, 100000, 1000), sl_i32(1, 1, 1));
    const sl_attr_t attrs[] = {{.name = "factor", .number = 1024}};
    const sl_layer_spec_t spec = {
        .type = "upsample2d", .name = "up", .attrs = attrs, .n_attrs = 1};

    (void)state;
    expect_add_error(model, &spec, "more than 2^44 elements");
    sl_model_destroy(model);
}

static void costs_have_sizes(void **state)
{
    sl_model_t *model = small_model();
    const sl_tensor_desc_t in = sl_f32(2, 8, 4, 1, 1);
    sl_layer_cost_t cost;

    (void)state;
    sl_assert_ok(sl_layer_cost(model->layers[0], &in, &cost));
    assert_int_equal(cost.output_bytes, 8 * 5 * 4);
    assert_true(cost.param_bytes >= 25 * 4);
    assert_true(cost.forward_flops >= 2 * 8 * 4 * 5);
    assert_true(cost.backward_flops >= cost.forward_flops);
    sl_model_destroy(model);
}

/* Every host allocation that fails ends the build cleanly. */
static void every_failure_unwinds(void **state)
{
    const sl_attr_t attrs[] = {{.name = "classes", .number = 3},
                               {.name = "layers", .number = 40},
                               {.name = "dropout", .number = 0.1}};
    const sl_tensor_desc_t data = sl_f32(4, 1, 1, 2, 2);
    const sl_tensor_desc_t target = sl_i32(1, 1, 1);
    int is_hit = 1;
    long n;

    (void)state;
    for (n = 0; is_hit; n++) {
        sl_model_t *model = NULL;
        sl_status_t status;

        sl_test_alloc_fail_at(n);
        status = sl_model_build("mlp", attrs, 3, &data, &target, &model);
        is_hit = sl_test_alloc_fail_end();
        sl_assert_status(status, is_hit ? SL_ERR_NO_MEMORY : SL_OK);
        assert_true(is_hit == (model == NULL));
        sl_model_destroy(model);
    }
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(layers_are_chained),
        sl_unit_test(bad_layers_are_refused),
        sl_unit_test(the_whole_is_checked),
        sl_unit_test(data_is_of_one_sample),
        sl_unit_test(parameters_may_be_tied),
        sl_unit_test(initial_values_have_an_address),
        sl_unit_test(thousands_of_layers_are_quick),
        sl_unit_test(huge_shapes_are_refused),
        sl_unit_test(costs_have_sizes),
        sl_unit_test(every_failure_unwinds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
