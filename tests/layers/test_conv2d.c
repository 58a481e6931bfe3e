/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d against a plain convolution in double: every kind of shape, both
 * input layouts, and the weights' storage. */
#include <stdlib.h>
#include <string.h>

#include "tests/layers/layer_check.h"

typedef struct shape {
    sl_layout_t layout;
    int64_t batch, channels, height, width;
    int64_t out, kernel, kernel_w, stride, pad, dilation, groups;
    int bias;
    int n_positions;
} shape_t;

static shape_t shape; /* of the case that runs: the reference reads it */

/* One output value. */
static double convolve(const sl_layer_reference_t *args, int64_t n, int64_t o,
                       int64_t y, int64_t x)
{
    const int64_t *dims = args->in_desc->dims;
    const int64_t kw = shape.kernel_w == 0 ? shape.kernel : shape.kernel_w;
    const int64_t in = shape.channels / shape.groups;
    const int64_t first = o / (shape.out / shape.groups) * in;
    double sum = shape.bias ? args->param[1][o] : 0.0;
    int64_t c, i, j;

    for (c = 0; c < in; c++) {
        for (i = 0; i < shape.kernel; i++) {
            for (j = 0; j < kw; j++) {
                const int64_t h =
                    y * shape.stride - shape.pad + i * shape.dilation;
                const int64_t w =
                    x * shape.stride - shape.pad + j * shape.dilation;

                if (h < 0 || h >= dims[2] || w < 0 || w >= dims[3]) {
                    continue;
                }
                sum +=
                    args->in[0][((n * dims[1] + first + c) * dims[2] + h) *
                                    dims[3] +
                                w] *
                    args->param[0][((o * in + c) * shape.kernel + i) * kw + j];
            }
        }
    }
    return sum;
}

static void reference(const sl_layer_reference_t *args)
{
    const int64_t *dims = args->out_desc->dims;
    int64_t n, o, y, x;
    double *out = args->out;

    for (n = 0; n < dims[0]; n++) {
        for (o = 0; o < dims[1]; o++) {
            for (y = 0; y < dims[2]; y++) {
                for (x = 0; x < dims[3]; x++) {
                    *out++ = convolve(args, n, o, y, x);
                }
            }
        }
    }
}

static sl_layer_check_t check_of(const shape_t *s)
{
    const sl_layer_check_t check = {
        .type = "conv2d",
        .attrs = {{.name = "out", .number = (double)s->out},
                  {.name = "kernel", .number = (double)s->kernel},
                  {.name = "kernel_w", .number = (double)s->kernel_w},
                  {.name = "stride", .number = (double)s->stride},
                  {.name = "pad", .number = (double)s->pad},
                  {.name = "dilation", .number = (double)s->dilation},
                  {.name = "groups", .number = (double)s->groups},
                  {.name = "bias", .number = s->bias}},
        .n_inputs = 1,
        .inputs = {s->layout == SL_LAYOUT_BLOCKED
                       ? sl_blocked(s->batch, s->channels, s->height, s->width)
                       : sl_f32(4, s->batch, s->channels, s->height, s->width)},
        .reference = reference,
        .tolerance = 5e-5,
        .roundings = 1, /* before the bias; of the weights' gradient */
        .n_positions = s->n_positions,
    };

    shape = *s;
    return check;
}

static void check_shapes(const shape_t *shapes, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        const sl_layer_check_t check = check_of(&shapes[i]);

        sl_layer_check(&check);
    }
}

#define CHECK_SHAPES(shapes)                                                   \
    check_shapes((shapes), sizeof(shapes) / sizeof((shapes)[0]))

static void test_kernels_and_strides(void **state)
{
    static const shape_t shapes[] = {
        {SL_LAYOUT_BLOCKED, 2, 16, 7, 9, 32, 3, 0, 1, 1, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 32, 9, 8, 16, 3, 0, 2, 1, 1, 1, 0, 6},
        {SL_LAYOUT_BLOCKED, 1, 16, 6, 6, 48, 1, 0, 1, 0, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 3, 32, 7, 7, 16, 1, 0, 2, 0, 1, 1, 0, 6},
        {SL_LAYOUT_BLOCKED, 1, 16, 9, 9, 16, 3, 5, 1, 1, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 16, 8, 8, 16, 3, 0, 3, 0, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 16, 5, 5, 16, 5, 0, 1, 0, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 1, 16, 1, 1, 16, 1, 0, 1, 0, 1, 1, 1, 6},
    };

    (void)state;
    CHECK_SHAPES(shapes);
}

/* Channel counts that do not fill whole blocks. */
static void test_channels(void **state)
{
    static const shape_t shapes[] = {
        {SL_LAYOUT_BLOCKED, 2, 10, 6, 7, 17, 3, 0, 1, 1, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 17, 7, 6, 10, 3, 0, 2, 1, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 17, 6, 6, 10, 1, 0, 1, 0, 1, 1, 0, 6},
        {SL_LAYOUT_BLOCKED, 1, 1, 6, 6, 1, 3, 0, 1, 1, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 1, 3, 6, 6, 33, 3, 0, 1, 1, 1, 1, 1, 6},
    };

    (void)state;
    CHECK_SHAPES(shapes);
}

/* The batch's data is plain: a few channels, and many. */
static void test_plain_input(void **state)
{
    static const shape_t shapes[] = {
        {SL_LAYOUT_PLAIN, 2, 3, 20, 18, 16, 7, 0, 2, 3, 1, 1, 0, 4},
        {SL_LAYOUT_PLAIN, 2, 3, 9, 9, 64, 3, 0, 1, 1, 1, 1, 1, 4},
        {SL_LAYOUT_PLAIN, 3, 1, 12, 12, 10, 5, 0, 1, 2, 1, 1, 1, 6},
        {SL_LAYOUT_PLAIN, 2, 4, 8, 8, 16, 3, 0, 1, 1, 1, 1, 1, 6},
        {SL_LAYOUT_PLAIN, 2, 17, 7, 7, 16, 3, 0, 1, 1, 1, 1, 1, 6},
        {SL_LAYOUT_PLAIN, 1, 32, 7, 7, 17, 1, 0, 1, 0, 1, 1, 1, 6},
        {SL_LAYOUT_PLAIN, 2, 3, 8, 8, 3, 3, 0, 1, 1, 1, 3, 1, 6},
    };

    (void)state;
    CHECK_SHAPES(shapes);
}

static void test_groups(void **state)
{
    static const shape_t shapes[] = {
        {SL_LAYOUT_BLOCKED, 2, 32, 7, 7, 32, 3, 0, 1, 1, 1, 2, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 12, 7, 7, 24, 3, 0, 1, 1, 1, 3, 1, 6},
        {SL_LAYOUT_BLOCKED, 1, 32, 6, 6, 16, 1, 0, 1, 0, 1, 4, 0, 6},
        {SL_LAYOUT_BLOCKED, 2, 32, 9, 9, 32, 3, 0, 1, 1, 1, 32, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 10, 9, 9, 10, 3, 0, 2, 1, 1, 10, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 8, 6, 6, 16, 3, 0, 1, 1, 1, 8, 0, 6},
    };

    (void)state;
    CHECK_SHAPES(shapes);
}

/* Where the fast blocked code ends and matrix products take over. */
static void test_dilation_and_wide_padding(void **state)
{
    static const shape_t shapes[] = {
        {SL_LAYOUT_BLOCKED, 2, 16, 9, 9, 16, 3, 0, 1, 2, 2, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 2, 10, 9, 9, 17, 3, 0, 2, 1, 2, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 1, 16, 5, 5, 16, 1, 0, 1, 1, 1, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 1, 16, 4, 4, 16, 3, 0, 2, 4, 1, 1, 1, 6},
        {SL_LAYOUT_PLAIN, 1, 3, 9, 9, 16, 3, 0, 2, 4, 3, 1, 1, 6},
        {SL_LAYOUT_BLOCKED, 1, 16, 9, 9, 16, 3, 0, 1, 2, 2, 16, 1, 6},
    };

    (void)state;
    CHECK_SHAPES(shapes);
}

/* Shapes at the ends of the attributes' ranges. */
static void test_extremes(void **state)
{
    static const shape_t shapes[] = {
        {SL_LAYOUT_BLOCKED, 1, 16, 3, 3, 16, 3, 0, 1024, 2, 1, 1, 1, 4},
        {SL_LAYOUT_BLOCKED, 1, 1, 2, 2, 1, 33, 1, 5, 17, 1, 1, 1, 4},
        {SL_LAYOUT_PLAIN, 1, 1, 1, 40, 1, 1, 37, 1, 0, 1, 1, 1, 4},
        {SL_LAYOUT_BLOCKED, 1, 2, 2, 2, 2, 2, 0, 1024, 1024, 1024, 2, 1, 4},
        {SL_LAYOUT_BLOCKED, 1, 2, 1, 1, 300, 1, 0, 1, 0, 1, 1, 1, 4},
        {SL_LAYOUT_BLOCKED, 1, 300, 2, 1, 2, 1, 0, 1, 0, 1, 2, 1, 4},
    };

    (void)state;
    CHECK_SHAPES(shapes);
}

/* Large enough for two threads to share the sums out. */
static void test_large(void **state)
{
    static const shape_t shapes[] = {
        {SL_LAYOUT_BLOCKED, 4, 64, 14, 14, 64, 3, 0, 1, 1, 1, 1, 1, 1},
    };

    (void)state;
    CHECK_SHAPES(shapes);
}

static void test_evaluation(void **state)
{
    static const shape_t s = {
        SL_LAYOUT_BLOCKED, 2, 17, 7, 9, 10, 3, 0, 1, 1, 1, 1, 1, 0};
    sl_layer_check_t check = check_of(&s);

    (void)state;
    check.is_evaluation = 1;
    sl_layer_check(&check);
}

static const shape_t stored_shapes[] = {
    {SL_LAYOUT_BLOCKED, 1, 64, 7, 7, 48, 3, 0, 1, 1, 1, 1, 0, 0},
    {SL_LAYOUT_BLOCKED, 1, 17, 7, 7, 10, 1, 0, 1, 0, 1, 1, 0, 0},
    {SL_LAYOUT_PLAIN, 1, 3, 20, 20, 10, 7, 0, 2, 3, 1, 1, 0, 0},
    {SL_LAYOUT_BLOCKED, 1, 12, 7, 7, 24, 3, 0, 1, 1, 1, 3, 0, 0},
    {SL_LAYOUT_BLOCKED, 1, 10, 7, 7, 10, 3, 0, 1, 1, 1, 10, 0, 0},
};

/* Pack and unpack keep every bit; padding of the storage is zero. */
static void test_storage_round_trip(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(stored_shapes) / sizeof(stored_shapes[0]); i++) {
        const sl_layer_check_t check = check_of(&stored_shapes[i]);
        sl_layer_bed_t bed;
        const sl_param_t *param;
        size_t n, k, n_nonzero = 0;
        float *back;

        sl_layer_bed_init(&bed, &check, 1);
        param = &bed.layer->params[0];
        n = (size_t)sl_tensor_elements(&param->desc);
        back = calloc(n, sizeof(*back));
        assert_non_null(back);
        sl_assert_ok(sl_layer_param_unpack(bed.layer, bed.plan.kind, 0,
                                           bed.run.param[0], back));
        assert_memory_equal(back, bed.plain_param[0], n * sizeof(*back));
        for (k = 0; k < param->storage_bytes / sizeof(float); k++) {
            n_nonzero += ((const float *)bed.run.param[0])[k] != 0.0f;
        }
        assert_true(n_nonzero <= n);
        free(back);
        sl_layer_bed_cleanup(&bed);
    }
}

/* The storage is the layer's, whatever the micro-batch and the threads. */
static void test_storage_is_of_the_layer(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(stored_shapes) / sizeof(stored_shapes[0]); i++) {
        shape_t large = stored_shapes[i];
        sl_layer_check_t check = check_of(&large);
        sl_layer_bed_t one, many;

        sl_layer_bed_init(&one, &check, 1);
        large.batch = 16;
        check = check_of(&large);
        sl_layer_bed_init(&many, &check, 2);
        assert_true(one.layer->params[0].storage_bytes ==
                    many.layer->params[0].storage_bytes);
        assert_memory_equal(one.run.param[0], many.run.param[0],
                            one.layer->params[0].storage_bytes);
        sl_layer_bed_cleanup(&many);
        sl_layer_bed_cleanup(&one);
    }
}

/* The gradient is stored as the weights are: no values in the padding. */
static void test_gradient_padding_is_zero(void **state)
{
    static const shape_t s = {
        SL_LAYOUT_BLOCKED, 2, 17, 7, 7, 10, 3, 0, 1, 1, 1, 1, 1, 0};
    const sl_layer_check_t check = check_of(&s);
    sl_layer_bed_t bed;
    size_t n, k;
    float *plain, *again;
    int round;

    (void)state;
    sl_layer_bed_init(&bed, &check, 2);
    n = bed.layer->params[0].storage_bytes;
    plain = calloc((size_t)sl_tensor_elements(&bed.layer->params[0].desc),
                   sizeof(*plain));
    again = malloc(n);
    assert_true(plain != NULL && again != NULL);
    for (round = 0; round < 2; round++) {
        bed.run.step.is_first_backward = round == 0;
        sl_assert_ok(sl_layer_bed_backward(&bed));
        sl_assert_ok(sl_layer_param_unpack(bed.layer, bed.plan.kind, 0,
                                           bed.run.grad[0], plain));
        sl_assert_ok(
            sl_layer_param_pack(bed.layer, bed.plan.kind, 0, plain, again));
        for (k = 0; k < n / sizeof(float); k++) {
            assert_true(again[k] == ((const float *)bed.run.grad[0])[k]);
        }
    }
    free(again);
    free(plain);
    sl_layer_bed_cleanup(&bed);
}

/* ---- models: the data needs no gradient; refusals; initial values ---- */

static sl_status_t add_conv(const sl_tensor_desc_t *in, const sl_attr_t *attrs,
                            size_t n_attrs, sl_layer_t **layer_p)
{
    const sl_layer_spec_t spec = {.type = "conv2d",
                                  .name = "c",
                                  .n_inputs = 1,
                                  .inputs = {SL_INPUT_DATA},
                                  .attrs = attrs,
                                  .n_attrs = n_attrs};
    sl_tensor_desc_t out;

    return sl_layer_create(&spec, 0, in, layer_p, &out);
}

static void test_data_needs_no_gradient(void **state)
{
    static const shape_t s = {
        SL_LAYOUT_PLAIN, 4, 17, 16, 16, 16, 3, 0, 1, 1, 1, 1, 1, 0};
    const sl_layer_check_t check = check_of(&s);
    sl_layer_plan_t plan, of_data;
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_ok(add_conv(check.inputs, check.attrs, 8, &layer));
    sl_assert_ok(sl_layer_plan_init(&of_data, layer, SL_DEVICE_KIND_CPU, 1, 1,
                                    check.inputs));
    layer->inputs[0] = 0;
    sl_assert_ok(sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 1, 1,
                                    check.inputs));
    assert_true(of_data.backward_workspace_bytes <=
                plan.backward_workspace_bytes);
    assert_true(of_data.keeps_input[0] && plan.keeps_input[0]);
    sl_layer_plan_cleanup(&plan);
    layer->inputs[0] = SL_INPUT_DATA;
    sl_layer_plan_cleanup(&of_data);
    sl_layer_destroy(layer);
}

static void refuse(const sl_tensor_desc_t *in, const sl_attr_t *attrs,
                   size_t n_attrs, const char *part)
{
    sl_layer_t *layer = NULL;

    sl_assert_status(add_conv(in, attrs, n_attrs, &layer), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), part);
    assert_null(layer);
}

static void test_refusals(void **state)
{
    const sl_tensor_desc_t image = sl_blocked(2, 16, 4, 4);
    const sl_tensor_desc_t matrix = sl_f32(2, 2, 16, 1, 1);
    const sl_attr_t good[] = {{.name = "out", .number = 8},
                              {.name = "kernel", .number = 3}};
    const sl_attr_t large[] = {{.name = "out", .number = 8},
                               {.name = "kernel", .number = 5}};
    const sl_attr_t spread[] = {{.name = "out", .number = 8},
                                {.name = "kernel", .number = 3},
                                {.name = "dilation", .number = 2}};
    const sl_attr_t groups[] = {{.name = "out", .number = 8},
                                {.name = "kernel", .number = 3},
                                {.name = "groups", .number = 3}};

    const sl_attr_t huge[] = {{.name = "out", .number = 1048576},
                              {.name = "kernel", .number = 1024},
                              {.name = "pad", .number = 1024}};

    (void)state;
    refuse(&matrix, good, 2, "input 0 must be f32 [batch, channels");
    refuse(&image, large, 2, "the 5 x 5 kernel");
    refuse(&image, spread, 3, "dilation 2 is larger than its input");
    refuse(&image, groups, 3, "3 groups do not divide");
    refuse(&image, good, 1, "kernel");
    refuse(&image, huge, 3, "more than 2^36 elements");
}

static void test_initial_values(void **state)
{
    const sl_tensor_desc_t image = sl_blocked(2, 16, 4, 4);
    const sl_attr_t attrs[] = {{.name = "out", .number = 8},
                               {.name = "kernel", .number = 3},
                               {.name = "groups", .number = 2},
                               {.name = "init", .text = "kaiming"}};
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_ok(add_conv(&image, attrs, 3, &layer));
    assert_int_equal(layer->n_params, 2);
    assert_int_equal(layer->params[0].init, SL_INIT_UNIFORM);
    assert_float_equal(layer->params[0].init_scale, 0.1178511302, 1e-8);
    assert_float_equal(layer->params[1].init_scale, 0.1178511302, 1e-8);
    assert_true(layer->params[0].has_decay && !layer->params[1].has_decay);
    sl_layer_destroy(layer);
    sl_assert_ok(add_conv(&image, attrs, 4, &layer));
    assert_int_equal(layer->params[0].init, SL_INIT_NORMAL);
    assert_float_equal(layer->params[0].init_scale, 0.1666666667, 1e-8);
    sl_layer_destroy(layer);
}

static void test_cost(void **state)
{
    static const shape_t s = {
        SL_LAYOUT_BLOCKED, 2, 16, 8, 8, 32, 3, 0, 1, 1, 1, 1, 0, 0};
    const sl_layer_check_t check = check_of(&s);
    sl_layer_cost_t cost;
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_ok(add_conv(check.inputs, check.attrs, 8, &layer));
    sl_assert_ok(sl_layer_cost(layer, check.inputs, &cost));
    assert_true(cost.forward_flops == 2.0 * 2 * 32 * 64 * 16 * 9);
    assert_true(cost.backward_flops == 2 * cost.forward_flops);
    assert_true(cost.forward_bytes == 4.0 * (2 * 64 * (16 + 32) + 16 * 32 * 9));
    assert_true(cost.param_bytes == 4 * 16 * 32 * 9);
    sl_layer_destroy(layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_kernels_and_strides),
        sl_unit_test(test_channels),
        sl_unit_test(test_plain_input),
        sl_unit_test(test_groups),
        sl_unit_test(test_dilation_and_wide_padding),
        sl_unit_test(test_extremes),
        sl_unit_test(test_large),
        sl_unit_test(test_evaluation),
        sl_unit_test(test_storage_round_trip),
        sl_unit_test(test_storage_is_of_the_layer),
        sl_unit_test(test_gradient_padding_is_zero),
        sl_unit_test(test_data_needs_no_gradient),
        sl_unit_test(test_refusals),
        sl_unit_test(test_initial_values),
        sl_unit_test(test_cost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
