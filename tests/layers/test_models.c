/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "tests/layers/layer_check.h"

static sl_model_t *build(const char *type, const sl_attr_t *attrs,
                         size_t n_attrs, sl_tensor_desc_t data,
                         sl_tensor_desc_t target)
{
    sl_model_t *model = NULL;

    sl_assert_ok(sl_model_build(type, attrs, n_attrs, &data, &target, &model));
    return model;
}

static sl_model_t *build_resnet(const char *depth, const char *stem,
                                double classes, int64_t pixels)
{
    const sl_attr_t attrs[] = {{.name = "depth", .text = depth},
                               {.name = "stem", .text = stem},
                               {.name = "classes", .number = classes}};

    return build("resnet", attrs, 3, sl_f32(4, 1, 3, pixels, pixels),
                 sl_i32(1, 1, 1));
}

/* The counts of torchvision's models. */
static void resnets_have_the_published_sizes(void **state)
{
    static const struct {
        const char *depth;
        int64_t n_params;
    } cases[] = {{"18", 11689512},
                 {"34", 21797672},
                 {"50", 25557032},
                 {"101", 44549160},
                 {"152", 60192808}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sl_model_t *model = build_resnet(cases[i].depth, "imagenet", 1000, 224);

        assert_int_equal(sl_model_n_params(model), cases[i].n_params);
        sl_model_destroy(model);
    }
}

static void resnet_shapes_and_names_are_the_known_ones(void **state)
{
    static const struct {
        const char *name;
        int64_t channels, pixels;
    } cases[] = {
        {"conv1", 64, 112},          {"maxpool", 64, 56},
        {"layer1.2.bn3", 256, 56},   {"layer2.0.downsample.0", 512, 28},
        {"layer2.0.conv1", 128, 56}, {"layer4.2.bn3", 2048, 7}};
    sl_model_t *model = build_resnet("50", "imagenet", 1000, 224);
    sl_tensor_desc_t *out = calloc((size_t)model->n_layers, sizeof(*out));
    size_t i;
    int add;

    (void)state;
    assert_non_null(out);
    sl_assert_ok(sl_model_infer(model, 2, out));
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int index = sl_model_find(model, cases[i].name);

        assert_true(index >= 0);
        assert_int_equal(out[index].dims[1], cases[i].channels);
        assert_int_equal(out[index].dims[2], cases[i].pixels);
    }
    add = sl_model_find(model, "layer1.1.bn3");
    assert_int_equal(model->layers[add]->n_inputs, 2);
    assert_int_equal(model->layers[add]->inputs[1],
                     sl_model_find(model, "layer1.0.bn3"));
    add = sl_model_find(model, "layer1.0.bn3");
    assert_int_equal(model->layers[add]->inputs[1],
                     sl_model_find(model, "layer1.0.downsample.1"));
    assert_string_equal(model->layers[model->n_layers - 1]->name, "loss");
    free(out);
    sl_model_destroy(model);
}

static void the_small_stem_keeps_the_size(void **state)
{
    sl_model_t *model = build_resnet("18", "cifar", 10, 32);
    sl_tensor_desc_t *out = calloc((size_t)model->n_layers, sizeof(*out));

    (void)state;
    assert_non_null(out);
    sl_assert_ok(sl_model_infer(model, 5, out));
    assert_int_equal(out[sl_model_find(model, "layer1.1.bn2")].dims[2], 32);
    assert_int_equal(out[sl_model_find(model, "layer4.1.bn2")].dims[2], 4);
    assert_int_equal(sl_model_find(model, "maxpool"), -1);
    assert_int_equal(sl_model_find(model, "layer1.0.downsample.0"), -1);
    assert_int_equal(sl_model_n_params(model), 11173962);
    free(out);
    sl_model_destroy(model);
}

static void zero_init_is_of_the_last_norm(void **state)
{
    const sl_attr_t attrs[] = {{.name = "depth", .text = "50"},
                               {.name = "zero_init_residual", .text = "true"}};
    sl_model_t *model =
        build("resnet", attrs, 2, sl_f32(4, 1, 3, 64, 64), sl_i32(1, 1, 1));
    float weight[256];

    (void)state;
    sl_layer_param_init(model->layers[sl_model_find(model, "layer1.0.bn3")], 0,
                        1, weight);
    assert_true(weight[0] == 0 && weight[255] == 0);
    sl_layer_param_init(model->layers[sl_model_find(model, "layer1.0.bn2")], 0,
                        1, weight);
    assert_true(weight[0] == 1 && weight[63] == 1);
    sl_model_destroy(model);
}

static void gpt2_small_has_the_published_size(void **state)
{
    const sl_attr_t attrs[] = {{.name = "vocab", .number = 50257}};
    const sl_attr_t untied[] = {{.name = "vocab", .number = 50257},
                                {.name = "tied", .text = "false"}};
    sl_model_t *model =
        build("gpt", attrs, 1, sl_i32(2, 1, 1024), sl_i32(2, 1, 1024));
    const sl_layer_t *head = model->layers[sl_model_find(model, "lm_head")];

    (void)state;
    assert_int_equal(sl_model_n_params(model), 124439808);
    assert_int_equal(head->params[0].tied_layer, 0);
    assert_string_equal(model->layers[0]->name, "wte");
    assert_true(sl_model_find(model, "h.11.mlp.c_proj") > 0);
    sl_model_destroy(model);
    model = build("gpt", untied, 2, sl_i32(2, 1, 1024), sl_i32(2, 1, 1024));
    assert_int_equal(sl_model_n_params(model), 124439808 + 50257 * 768);
    sl_model_destroy(model);
}

static double deviation_of(const sl_model_t *model, const char *name)
{
    const sl_layer_t *layer = model->layers[sl_model_find(model, name)];
    const int64_t n = sl_tensor_elements(&layer->params[0].desc);
    float *values = calloc((size_t)n, sizeof(*values));
    double squares = 0;
    int64_t i;

    assert_non_null(values);
    sl_layer_param_init(layer, 0, 3, values);
    for (i = 0; i < n; i++) {
        squares += (double)values[i] * (double)values[i];
    }
    free(values);
    return sqrt(squares / (double)n);
}

static void gpt_attributes_are_used(void **state)
{
    const sl_attr_t attrs[] = {
        {.name = "vocab", .number = 65}, {.name = "layers", .number = 2},
        {.name = "width", .number = 64}, {.name = "heads", .number = 4},
        {.name = "ffn", .number = 96},   {.name = "dropout", .number = 0.1},
        {.name = "gelu", .text = "erf"}, {.name = "bias", .text = "false"}};
    sl_model_t *model =
        build("gpt", attrs, 8, sl_i32(2, 1, 16), sl_i32(2, 1, 16));
    const int64_t block = 64 * 192 + 64 * 64 + 2 * 64 * 96 + 4 * 64 /* norms */;

    (void)state;
    assert_int_equal(sl_model_find(model, "drop"), 1);
    assert_int_equal(sl_model_n_params(model),
                     65 * 64 + 16 * 64 + 2 * block + 2 * 64);
    assert_true(fabs(deviation_of(model, "wte") - 0.02) < 1e-3);
    assert_true(fabs(deviation_of(model, "h.1.mlp.c_fc") - 0.02) < 1e-3);
    assert_true(fabs(deviation_of(model, "h.1.mlp.c_proj") - 0.01) < 5e-4);
    assert_true(fabs(deviation_of(model, "h.0.attn.c_proj") - 0.01) < 5e-4);
    sl_model_destroy(model);
}

static void an_mlp_is_built(void **state)
{
    const sl_attr_t attrs[] = {{.name = "hidden", .number = 30},
                               {.name = "layers", .number = 2},
                               {.name = "classes", .number = 10},
                               {.name = "activation", .text = "gelu"},
                               {.name = "dropout", .number = 0.2}};
    sl_model_t *model =
        build("mlp", attrs, 5, sl_f32(4, 1, 1, 28, 28), sl_i32(1, 1, 1));

    (void)state;
    assert_int_equal(model->n_layers, 9);
    assert_int_equal(sl_model_n_params(model),
                     784 * 30 + 30 + 30 * 30 + 30 + 30 * 10 + 10);
    sl_model_destroy(model);
    model = build("mlp", attrs, 3, sl_f32(2, 1, 5, 1, 1), sl_i32(1, 1, 1));
    assert_int_equal(sl_model_find(model, "flatten"), -1);
    sl_model_destroy(model);
}

static void bad_models_are_refused(void **state)
{
    const sl_tensor_desc_t image = sl_f32(4, 1, 3, 32, 32);
    const sl_tensor_desc_t tokens = sl_i32(2, 1, 16);
    const sl_tensor_desc_t label = sl_i32(1, 1, 1);
    const sl_attr_t depth[] = {{.name = "depth", .text = "19"}};
    const sl_attr_t heads[] = {{.name = "vocab", .number = 10},
                               {.name = "width", .number = 10},
                               {.name = "heads", .number = 3}};
    sl_model_t *model = NULL;

    (void)state;
    sl_assert_status(sl_model_build("vgg", NULL, 0, &image, &label, &model),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "there are: resnet, gpt, mlp");
    sl_assert_status(sl_model_build("resnet", depth, 1, &image, &label, &model),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "18|34|50|101|152");
    sl_assert_status(sl_model_build("gpt", NULL, 0, &tokens, &tokens, &model),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "vocab");
    sl_assert_status(sl_model_build("gpt", heads, 3, &tokens, &tokens, &model),
                     SL_ERR_CONFIG);
    sl_assert_status(sl_model_build("gpt", heads, 1, &image, &tokens, &model),
                     SL_ERR_CONFIG);
    sl_assert_status(sl_model_build("resnet", NULL, 0, &tokens, &label, &model),
                     SL_ERR_CONFIG);
    assert_null(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(resnets_have_the_published_sizes),
        sl_unit_test(resnet_shapes_and_names_are_the_known_ones),
        sl_unit_test(the_small_stem_keeps_the_size),
        sl_unit_test(zero_init_is_of_the_last_norm),
        sl_unit_test(gpt2_small_has_the_published_size),
        sl_unit_test(gpt_attributes_are_used),
        sl_unit_test(an_mlp_is_built),
        sl_unit_test(bad_models_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
