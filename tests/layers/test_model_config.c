/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/model_config.h"
#include "tests/layers/layer_check.h"
#include "tests/support/alloc_fail.h"

static sl_status_t parse(const char *text, sl_tensor_desc_t data,
                         sl_tensor_desc_t target, sl_model_t **model_p)
{
    sl_yaml_t *yaml = NULL;
    const sl_yaml_node_t *node;
    sl_status_t status;

    sl_assert_ok(sl_yaml_parse("t.yaml", text, strlen(text), &yaml));
    node = sl_yaml_get(sl_yaml_root(yaml), "model");
    assert_non_null(node);
    status = sl_model_from_yaml(node, &data, &target, model_p);
    if (status == SL_OK) {
        sl_assert_ok(sl_yaml_check_used(sl_yaml_root(yaml)));
    }
    sl_yaml_close(yaml);
    return status;
}

static sl_model_t *parse_ok(const char *text, sl_tensor_desc_t data,
                            sl_tensor_desc_t target)
{
    sl_model_t *model = NULL;

    sl_assert_ok(parse(text, data, target, &model));
    return model;
}

static void built_in_models_take_attributes(void **state)
{
    sl_model_t *model;

    (void)state;
    model = parse_ok("model: {type: resnet, depth: 18, classes: 10,\n"
                     "        stem: cifar}\n",
                     sl_f32(4, 1, 3, 32, 32), sl_i32(1, 1, 1));
    assert_int_equal(sl_model_n_params(model), 11173962);
    sl_model_destroy(model);
    /* `layers` is a number here, not a list */
    model = parse_ok("model:\n  type: gpt\n  layers: 2\n  width: 32\n"
                     "  heads: 2\n  vocab: 65\n  tied: false\n",
                     sl_i32(2, 1, 8), sl_i32(2, 1, 8));
    assert_true(sl_model_find(model, "h.1.add_2") > 0);
    assert_int_equal(sl_model_find(model, "h.2.ln_1"), -1);
    sl_model_destroy(model);
}

static void lists_are_chained(void **state)
{
    sl_model_t *model = parse_ok("model:\n"
                                 "  name: small\n"
                                 "  layers:\n"
                                 "    - {type: linear, name: a, out: 5}\n"
                                 "    - {type: relu}\n"
                                 "    - {type: linear, out: 4, from: a}\n"
                                 "    - type: concat\n"
                                 "      from: [relu_1, linear_2, data]\n"
                                 "    - {type: linear, out: 3}\n"
                                 "    - {type: softmax_cross_entropy}\n",
                                 sl_f32(2, 1, 7, 1, 1), sl_i32(1, 1, 1));

    (void)state;
    assert_string_equal(model->name, "small");
    assert_int_equal(model->n_layers, 6);
    assert_int_equal(model->layers[2]->inputs[0], 0);
    assert_int_equal(model->layers[3]->n_inputs, 3);
    assert_int_equal(model->layers[3]->inputs[2], SL_INPUT_DATA);
    assert_int_equal(model->layers[5]->inputs[1], SL_INPUT_TARGET);
    assert_int_equal(model->layers[3]->line, 7);
    sl_model_destroy(model);
}

static void repeats_have_suffixes(void **state)
{
    sl_model_t *model =
        parse_ok("model:\n"
                 "  layers:\n"
                 "    - repeat: 2\n"
                 "      layers:\n"
                 "        - {type: linear, name: fc, out: 8}\n"
                 "        - repeat: 3\n"
                 "          layers: [{type: relu, name: r}]\n"
                 "        - {type: add, name: s, from: [fc, r]}\n"
                 "    - {type: softmax_cross_entropy, name: loss}\n",
                 sl_f32(2, 1, 8, 1, 1), sl_i32(1, 1, 1));
    int index;

    (void)state;
    assert_int_equal(model->n_layers, 11);
    index = sl_model_find(model, "s.1");
    assert_true(index > 0);
    assert_int_equal(model->layers[index]->inputs[0],
                     sl_model_find(model, "fc.1"));
    assert_int_equal(model->layers[index]->inputs[1],
                     sl_model_find(model, "r.1.2"));
    sl_model_destroy(model);
}

static void residuals_are_added(void **state)
{
    sl_model_t *model =
        parse_ok("model:\n"
                 "  layers:\n"
                 "    - {type: linear, name: in, out: 8}\n"
                 "    - residual:\n"
                 "        - {type: layer_norm, name: n}\n"
                 "        - {type: linear, name: b, out: 8}\n"
                 "      dropout: 0.1\n"
                 "      name: sum\n"
                 "    - residual: [{type: linear, name: c, out: 4}]\n"
                 "      shortcut: [{type: linear, name: d, out: 4}]\n"
                 "      relu: true\n"
                 "    - {type: softmax_cross_entropy, name: loss}\n",
                 sl_f32(2, 1, 8, 1, 1), sl_i32(1, 1, 1));
    const sl_layer_t *sum = model->layers[sl_model_find(model, "sum")];
    const sl_layer_t *last = model->layers[model->n_layers - 2];

    (void)state;
    assert_int_equal(sum->inputs[0], sl_model_find(model, "in"));
    assert_int_equal(sum->inputs[1], sl_model_find(model, "b"));
    assert_string_equal(last->ops->name, "add");
    assert_int_equal(last->inputs[0], sl_model_find(model, "d"));
    assert_int_equal(last->inputs[1], sl_model_find(model, "c"));
    assert_int_equal(model->layers[sl_model_find(model, "d")]->inputs[0],
                     sl_model_find(model, "sum"));
    sl_model_destroy(model);
}

#define DOUBLE_CONV(name, out)                                                 \
    "    - {type: conv2d, out: " out ", kernel: 3, pad: 1, bias: false}\n"     \
    "    - {type: batch_norm, relu: true}\n"                                   \
    "    - {type: conv2d, out: " out ", kernel: 3, pad: 1, bias: false}\n"     \
    "    - {type: batch_norm, relu: true, name: " name "}\n"

#define UP(name, skip, out)                                                    \
    "    - {type: upsample2d, factor: 2}\n"                                    \
    "    - {type: conv2d, out: " out ", kernel: 3, pad: 1, name: up_" name     \
    "}\n"                                                                      \
    "    - {type: concat, from: [" skip ", up_" name                           \
    "]}\n" DOUBLE_CONV(name, out)

#define DOWN "    - {type: max_pool2d, kernel: 2, stride: 2}\n"

static void a_u_net_is_a_list(void **state)
{
    const char *text =
        "model:\n"
        "  name: u_net\n"
        "  layers:\n" DOUBLE_CONV("enc1", "16") DOWN DOUBLE_CONV("enc2", "32")
            DOWN DOUBLE_CONV("enc3", "64") DOWN DOUBLE_CONV("mid", "128") UP(
                "dec3", "enc3", "64") UP("dec2", "enc2", "32")
                UP("dec1", "enc1",
                   "16") "    - {type: conv2d, out: 2, kernel: 1, name: head}\n"
                         "    - {type: softmax_cross_entropy, name: loss}\n";
    const int64_t dims[3] = {1, 64, 64};
    sl_model_t *model = parse_ok(text, sl_f32(4, 1, 1, 64, 64),
                                 sl_tensor_desc(SL_DTYPE_I32, 3, dims));
    sl_tensor_desc_t *out = calloc((size_t)model->n_layers, sizeof(*out));
    int index;

    (void)state;
    assert_non_null(out);
    sl_assert_ok(sl_model_infer(model, 3, out));
    index = sl_model_find(model, "dec1");
    assert_int_equal(out[index].dims[1], 16);
    assert_int_equal(out[index].dims[3], 64);
    index = sl_model_find(model, "mid");
    assert_int_equal(out[index].dims[1], 128);
    assert_int_equal(out[index].dims[2], 8);
    free(out);
    sl_model_destroy(model);
}

/* `text` is what follows "model:"; data is f32 [1, 8]. */
static void expect_error(const char *text, const char *part)
{
    char whole[2048];
    sl_model_t *model = NULL;

    (void)snprintf(whole, sizeof(whole), "model: %s\n", text);
    sl_assert_status(
        parse(whole, sl_f32(2, 1, 8, 1, 1), sl_i32(1, 1, 1), &model),
        SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), part);
    assert_null(model);
}

#define LOSS ", {type: softmax_cross_entropy}]}"

static void errors_name_the_place(void **state)
{
    (void)state;
    expect_error("7", "t.yaml:1:");
    expect_error("{}", "needs a 'type' or 'layers'");
    expect_error("{type: vgg}", "no model type 'vgg'");
    expect_error("{type: resnet, depth: [18]}", "depth must be a single value");
    expect_error("{type: resnet, dept: 18}", "no attribute 'dept' at ");
    expect_error("{type: mlp, classes: 3, layers: [{type: relu}]}",
                 "layers must be a single value");
    expect_error("{layers: 3}", "must be a list");
    expect_error("{layers: []}", "at least one entry");
    expect_error("{layers: [relu]}", "must be a mapping");
    expect_error("{layers: [{name: a}]}", "needs a 'type'");
    expect_error("{layers: [{type: relu}], depth: 3}", "no key 'depth'");
    expect_error("{layers: [{type: rlu}" LOSS, "no layer type 'rlu'");
    expect_error("{layers: [{type: relu, slope: 1}" LOSS, "'slope'");
    expect_error("{layers: [{type: linear, out: 2, bias: [1]}" LOSS,
                 "bias must be a single value");
    expect_error("{layers: [{type: relu, from: b}" LOSS, "layer 'b'");
    expect_error("{layers: [{type: relu, from: {a: 1}}" LOSS, "'from' must be");
    expect_error("{layers: [{type: relu, from: []}" LOSS, "lists 1 to 4");
    expect_error("{layers: [{type: relu, from: [[data]]}" LOSS,
                 "'from' must be");
    expect_error(
        "{layers: [{type: add, from: [data, data, data, data, data]}" LOSS,
        "lists 1 to 4");
    expect_error("{layers: [{type: relu, from: target}" LOSS, "only a loss");
    expect_error("{layers: [{type: relu, name: data}" LOSS, "another name");
    expect_error("{layers: [{type: relu, name: a}, {type: relu, name: a}" LOSS,
                 "already a layer a");
    expect_error("{layers: [{type: relu}]}", "must be a loss");
    expect_error(
        "{layers: [{type: relu, name: x}, {type: relu, from: data}" LOSS,
        "layer x (relu, line 1): no layer reads");
}

static void errors_of_groups_name_the_place(void **state)
{
    (void)state;
    expect_error("{layers: [{repeat: 2}" LOSS, "a number and 'layers'");
    expect_error("{layers: [{repeat: 0, layers: [{type: relu}]}" LOSS, "0");
    expect_error("{layers: [{repeat: x, layers: [{type: relu}]}" LOSS, "x");
    expect_error("{layers: [{repeat: 2, layers: []}" LOSS, "at least one");
    expect_error("{layers: [{repeat: 2, name: a, layers: [{type: relu}]}" LOSS,
                 "no key 'name'");
    expect_error("{layers: [{residual: []}" LOSS, "at least one");
    expect_error("{layers: [{residual: [{type: relu}], shortcut: 3}" LOSS,
                 "must be a list");
    expect_error("{layers: [{residual: [{type: relu}], p: 3}" LOSS,
                 "no key 'p'");
    expect_error("{layers: [{residual: [{type: relu}], dropout: 1}" LOSS,
                 "dropout");
    expect_error("{layers: [{residual: [{type: linear, out: 3}]}" LOSS,
                 "must be as input 0, f32 [1, 8]");
}

static void layers_are_bounded(void **state)
{
    (void)state;
    expect_error("{layers: [{repeat: 100000, layers: [{repeat: 100000,"
                 " layers: [{type: relu}]}]}" LOSS,
                 "more than 100000 layers");
}

static void null_values_are_defaults(void **state)
{
    sl_model_t *model =
        parse_ok("model: {layers: [{type: linear, out: 3, tie: , bias: ~},\n"
                 "  {type: softmax_cross_entropy, label_smoothing: null}]}\n",
                 sl_f32(2, 1, 8, 1, 1), sl_i32(1, 1, 1));

    (void)state;
    assert_int_equal(sl_model_n_params(model), 27);
    sl_model_destroy(model);
}

/* Every host allocation that fails ends the reading cleanly. */
static void every_failure_unwinds(void **state)
{
    static const char text[] =
        "model: {layers: [{repeat: 2, layers: [{type: relu, name: r}]},\n"
        "  {residual: [{type: linear, out: 8}], name: s},\n"
        "  {type: softmax_cross_entropy}]}\n";
    const sl_tensor_desc_t data = sl_f32(2, 1, 8, 1, 1);
    const sl_tensor_desc_t target = sl_i32(1, 1, 1);
    sl_yaml_t *yaml = NULL;
    int is_hit = 1;
    long n;

    (void)state;
    sl_assert_ok(sl_yaml_parse("t.yaml", text, strlen(text), &yaml));
    for (n = 0; is_hit; n++) {
        sl_model_t *model = NULL;
        sl_status_t status;

        sl_test_alloc_fail_at(n);
        status = sl_model_from_yaml(sl_yaml_get(sl_yaml_root(yaml), "model"),
                                    &data, &target, &model);
        is_hit = sl_test_alloc_fail_end();
        sl_assert_status(status, is_hit ? SL_ERR_NO_MEMORY : SL_OK);
        assert_true(is_hit == (model == NULL));
        sl_model_destroy(model);
    }
    assert_true(n > 10);
    sl_yaml_close(yaml);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(built_in_models_take_attributes),
        sl_unit_test(lists_are_chained),
        sl_unit_test(repeats_have_suffixes),
        sl_unit_test(residuals_are_added),
        sl_unit_test(a_u_net_is_a_list),
        sl_unit_test(errors_name_the_place),
        sl_unit_test(errors_of_groups_name_the_place),
        sl_unit_test(layers_are_bounded),
        sl_unit_test(null_values_are_defaults),
        sl_unit_test(every_failure_unwinds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
