/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "tests/layers/layer_check.h"

static double smoothing;
static double ignored;

/* Logit of class c of a row: [.., classes], or images [b, classes, h, w]. */
static double logit(const sl_layer_reference_t *args, int64_t row, int64_t c)
{
    const sl_tensor_desc_t *in = &args->in_desc[0];
    int64_t pixels;

    if (in->n_dims < 4) {
        return args->in[0][row * in->dims[in->n_dims - 1] + c];
    }
    pixels = in->dims[2] * in->dims[3];
    return args
        ->in[0][(row / pixels * in->dims[1] + c) * pixels + row % pixels];
}

/* As PyTorch defines it: (1 - s) * -log p[target] + s * mean(-log p). */
static void reference(const sl_layer_reference_t *args)
{
    const sl_tensor_desc_t *in = &args->in_desc[0];
    const int64_t classes = in->dims[in->n_dims == 4 ? 1 : in->n_dims - 1];
    const int64_t rows = sl_tensor_elements(&args->in_desc[1]);
    int64_t row, c;

    args->out[0] = args->out[1] = args->out[2] = args->out[3] = 0;
    for (row = 0; row < rows; row++) {
        const int64_t target = (int64_t)args->in[1][row];
        double max = -HUGE_VAL, sum = 0, mean = 0;
        int64_t best = 0;

        if (args->in[1][row] == ignored) {
            continue;
        }
        for (c = 0; c < classes; c++) {
            if (logit(args, row, c) > max) {
                max = logit(args, row, c);
                best = c;
            }
        }
        for (c = 0; c < classes; c++) {
            sum += exp(logit(args, row, c) - max);
        }
        for (c = 0; c < classes; c++) {
            mean -= (logit(args, row, c) - max - log(sum)) / (double)classes;
        }
        args->out[0] +=
            smoothing * mean -
            (1 - smoothing) * (logit(args, row, target) - max - log(sum));
        args->out[1] += 1;
        args->out[2] += best == target;
    }
}

static void check(sl_tensor_desc_t logits, sl_tensor_desc_t target,
                  double label_smoothing, double ignore_index, double scale,
                  int evaluation)
{
    const int dim = logits.n_dims == 4 ? 1 : logits.n_dims - 1;

    smoothing = label_smoothing;
    ignored = ignore_index;
    sl_layer_check(&(sl_layer_check_t){
        .type = "softmax_cross_entropy",
        .attrs = {{.name = "label_smoothing", .number = label_smoothing},
                  {.name = "ignore_index", .number = ignore_index}},
        .n_inputs = 2,
        .inputs = {logits, target},
        .n_classes = logits.dims[dim],
        .input_scale = scale,
        .gradient_tolerance = 1e-6,
        .is_evaluation = evaluation,
        .reference = reference});
}

static void losses_are_right(void **state)
{
    const double smoothings[2] = {0, 0.1};
    int i;

    (void)state;
    for (i = 0; i < 2; i++) {
        const double s = smoothings[i];

        check(sl_f32(2, 1, 1, 1, 1), sl_i32(1, 1, 1), s, -100, 1, 0);
        check(sl_f32(2, 5, 10, 1, 1), sl_i32(1, 5, 1), s, -100, 1, 0);
        check(sl_f32(3, 3, 4, 7, 1), sl_i32(2, 3, 4), s, -100, 1, 0);
        check(sl_f32(2, 40, 1000, 1, 1), sl_i32(1, 40, 1), s, -100, 1, 0);
        check(sl_f32(2, 3, 5000, 1, 1), sl_i32(1, 3, 1), s, -100, 1, 0);
        check(sl_f32(2, 5, 10, 1, 1), sl_i32(1, 5, 1), s, -100, 1, 1);
    }
}

static void images_have_a_loss_by_pixel(void **state)
{
    const int64_t dims[3] = {2, 3, 5};
    const sl_tensor_desc_t target = sl_tensor_desc(SL_DTYPE_I32, 3, dims);

    (void)state;
    check(sl_f32(4, 2, 4, 3, 5), target, 0, -100, 1, 0);
    check(sl_blocked(2, 4, 3, 5), target, 0, -100, 1, 0);
    check(sl_blocked(2, 21, 3, 5), target, 0.1, 2, 1, 0);
}

static void an_ignored_target_counts_for_nothing(void **state)
{
    (void)state;
    /* class 1 is ignored: about half of the rows */
    check(sl_f32(2, 20, 2, 1, 1), sl_i32(1, 20, 1), 0, 1, 1, 0);
    check(sl_f32(2, 20, 3, 1, 1), sl_i32(1, 20, 1), 0.2, 1, 1, 0);
}

static void large_logits_stay_finite(void **state)
{
    (void)state;
    check(sl_f32(2, 10, 10, 1, 1), sl_i32(1, 10, 1), 0, -100, 100, 0);
}

static void all_ignored_is_zero(void **state)
{
    const float targets[3] = {-100, -100, -100};
    const sl_layer_check_t checked = {
        .type = "softmax_cross_entropy",
        .n_inputs = 2,
        .inputs = {sl_f32(2, 3, 4, 1, 1), sl_i32(1, 3, 1)},
        .values = {NULL, targets}};
    sl_layer_bed_t bed;
    const double *sums;
    float din[12];
    int i;

    (void)state;
    sl_layer_bed_init(&bed, &checked, 1);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    sums = bed.run.out;
    assert_true(sums[0] == 0 && sums[1] == 0 && sums[2] == 0 && sums[3] == 0);
    sl_assert_ok(sl_layer_bed_backward(&bed));
    sl_layer_from_tensor(&bed.plan.in[0], bed.run.din[0], din);
    for (i = 0; i < 12; i++) {
        assert_true(din[i] == 0);
    }
    sl_layer_bed_cleanup(&bed);
}

static void expect_bad_target(float target, const char *text)
{
    const float targets[3] = {0, target, 1};
    const sl_layer_check_t checked = {
        .type = "softmax_cross_entropy",
        .n_inputs = 2,
        .inputs = {sl_f32(2, 3, 4, 1, 1), sl_i32(1, 3, 1)},
        .values = {NULL, targets}};
    sl_layer_bed_t bed;

    sl_layer_bed_init(&bed, &checked, 1);
    sl_assert_status(sl_layer_check_input(&bed.plan, 1, bed.run.in[1]),
                     SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), text);
    if (bed.plan.kind == SL_DEVICE_KIND_CPU) {
        sl_assert_status(sl_layer_bed_forward(&bed), SL_ERR_INVALID_ARG);
        sl_assert_contains(sl_last_error(), text);
        sl_assert_status(sl_layer_bed_backward(&bed), SL_ERR_INVALID_ARG);
    } else { /* a kernel that cannot fail */
        sl_assert_ok(sl_layer_bed_forward(&bed));
        assert_true(isnan(*(const double *)bed.run.out));
        sl_assert_ok(sl_layer_bed_backward(&bed));
    }
    sl_layer_bed_cleanup(&bed);
}

static void a_target_outside_is_refused(void **state)
{
    (void)state;
    expect_bad_target(4, "target 4 of row 1 is not one of 4 classes");
    expect_bad_target(-1, "target -1 of row 1");
}

static void not_a_number_shows_in_the_loss(void **state)
{
    const float logits[4] = {1, NAN, 2, 3};
    const float targets[1] = {0};
    const sl_layer_check_t checked = {
        .type = "softmax_cross_entropy",
        .n_inputs = 2,
        .inputs = {sl_f32(2, 1, 4, 1, 1), sl_i32(1, 1, 1)},
        .values = {logits, targets}};
    sl_layer_bed_t bed;

    (void)state;
    sl_layer_bed_init(&bed, &checked, 1);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    assert_true(isnan(*(const double *)bed.run.out));
    sl_layer_bed_cleanup(&bed);
}

static void threads_sum_the_same_loss(void **state)
{
    const sl_layer_check_t checked = {
        .type = "softmax_cross_entropy",
        .n_inputs = 2,
        .inputs = {sl_f32(2, 777, 50, 1, 1), sl_i32(1, 777, 1)},
        .n_classes = 50};
    sl_layer_bed_t one, two;

    (void)state;
    sl_layer_bed_init(&one, &checked, 1);
    sl_layer_bed_init(&two, &checked, 2);
    sl_assert_ok(sl_layer_bed_forward(&one));
    sl_assert_ok(sl_layer_bed_forward(&two));
    assert_memory_equal(one.run.out, two.run.out, 4 * sizeof(double));
    sl_layer_bed_cleanup(&one);
    sl_layer_bed_cleanup(&two);
}

static void unlike_targets_are_refused(void **state)
{
    const sl_layer_spec_t spec = {
        .type = "softmax_cross_entropy", .name = "loss", .n_inputs = 2};
    const sl_tensor_desc_t shapes[][2] = {
        {sl_f32(2, 1, 3, 1, 1), sl_i32(2, 1, 3)},
        {sl_f32(2, 1, 3, 1, 1), sl_f32(1, 1, 1, 1, 1)},
        {sl_f32(3, 1, 3, 4, 1), sl_i32(2, 1, 4)},
        {sl_f32(1, 1, 1, 1, 1), sl_i32(1, 1, 1)}};
    sl_layer_t *layer;
    sl_tensor_desc_t out;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        sl_assert_status(sl_layer_create(&spec, 0, shapes[i], &layer, &out),
                         SL_ERR_CONFIG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(losses_are_right),
        sl_unit_test(images_have_a_loss_by_pixel),
        sl_unit_test(an_ignored_target_counts_for_nothing),
        sl_unit_test(large_logits_stay_finite),
        sl_unit_test(all_ignored_is_zero),
        sl_unit_test(a_target_outside_is_refused),
        sl_unit_test(not_a_number_shows_in_the_loss),
        sl_unit_test(threads_sum_the_same_loss),
        sl_unit_test(unlike_targets_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
