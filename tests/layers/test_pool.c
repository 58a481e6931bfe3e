/* SPDX-License-Identifier: Apache-2.0 */
/* max_pool2d, avg_pool2d, global_avg_pool against references in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/layers/layer_check.h"

typedef struct window {
    int64_t kernel, stride, pad;
    int counts_pad;
} window_t;

static window_t window; /* of the case that runs: the references read it */

/* One output of either pool. */
static double pool_at(const sl_layer_reference_t *args, const double *plane,
                      int64_t y, int64_t x, int is_max)
{
    const int64_t *dims = args->in_desc->dims;
    const int64_t stride = window.stride == 0 ? window.kernel : window.stride;
    double best = -INFINITY, sum = 0;
    int64_t i, j, n = 0;

    for (i = 0; i < window.kernel; i++) {
        for (j = 0; j < window.kernel; j++) {
            const int64_t h = y * stride - window.pad + i;
            const int64_t w = x * stride - window.pad + j;

            if (h < 0 || h >= dims[2] || w < 0 || w >= dims[3]) {
                continue;
            }
            sum += plane[h * dims[3] + w];
            best = fmax(best, plane[h * dims[3] + w]);
            n++;
        }
    }
    n = window.counts_pad ? window.kernel * window.kernel : n;
    return is_max ? best : sum / (double)n;
}

static void pool_reference(const sl_layer_reference_t *args, int is_max)
{
    const int64_t *in = args->in_desc->dims;
    const int64_t *dims = args->out_desc->dims;
    double *out = args->out;
    int64_t p, y, x;

    for (p = 0; p < dims[0] * dims[1]; p++) {
        for (y = 0; y < dims[2]; y++) {
            for (x = 0; x < dims[3]; x++) {
                *out++ = pool_at(args, args->in[0] + p * in[2] * in[3], y, x,
                                 is_max);
            }
        }
    }
}

static void max_reference(const sl_layer_reference_t *args)
{
    pool_reference(args, 1);
}

static void avg_reference(const sl_layer_reference_t *args)
{
    pool_reference(args, 0);
}

static void global_reference(const sl_layer_reference_t *args)
{
    const int64_t *dims = args->in_desc->dims;
    const int64_t points = dims[2] * dims[3];
    int64_t p, i;

    for (p = 0; p < dims[0] * dims[1]; p++) {
        args->out[p] = 0;
        for (i = 0; i < points; i++) {
            args->out[p] += args->in[0][p * points + i] / (double)points;
        }
    }
}

static sl_layer_check_t check_of(int is_max, sl_tensor_desc_t in, window_t w)
{
    sl_layer_check_t check = {
        .type = is_max ? "max_pool2d" : "avg_pool2d",
        .attrs = {{.name = "kernel", .number = (double)w.kernel},
                  {.name = "stride", .number = (double)w.stride},
                  {.name = "pad", .number = (double)w.pad}},
        .n_inputs = 1,
        .inputs = {in},
        .reference = is_max ? max_reference : avg_reference,
        .is_kinked = is_max,
    };

    if (!is_max) {
        check.attrs[3] =
            (sl_attr_t){.name = "count_include_pad", .number = w.counts_pad};
    }
    window = w;
    return check;
}

static void check_windows(int is_max)
{
    static const window_t windows[] = {
        {3, 2, 1, 1}, {2, 0, 0, 1}, {2, 2, 1, 0}, {3, 1, 1, 0},
        {5, 3, 2, 1}, {2, 3, 0, 1}, {1, 1, 0, 1}, {4, 2, 2, 0},
    };
    const sl_tensor_desc_t inputs[] = {
        sl_blocked(2, 16, 8, 8), sl_blocked(1, 17, 7, 9), sl_f32(4, 2, 3, 8, 6),
        sl_blocked(2, 3, 5, 5)};
    size_t i, j;

    for (i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        for (j = 0; j < sizeof(inputs) / sizeof(inputs[0]); j++) {
            const sl_layer_check_t check =
                check_of(is_max, inputs[j], windows[i]);

            sl_layer_check(&check);
        }
    }
}

static void test_max(void **state)
{
    (void)state;
    check_windows(1);
}

static void test_avg(void **state)
{
    (void)state;
    check_windows(0);
}

static void test_evaluation(void **state)
{
    sl_layer_check_t check =
        check_of(1, sl_blocked(2, 17, 7, 7), (window_t){3, 2, 1, 1});

    (void)state;
    check.is_evaluation = 1;
    sl_layer_check(&check);
    check = check_of(0, sl_f32(4, 2, 3, 7, 7), (window_t){3, 2, 1, 1});
    check.is_evaluation = 1;
    sl_layer_check(&check);
}

/* Enough planes for two threads. */
static void test_large(void **state)
{
    sl_layer_check_t check =
        check_of(1, sl_blocked(2, 32, 28, 28), (window_t){3, 2, 1, 1});

    (void)state;
    check.n_positions = 4;
    sl_layer_check(&check);
    check = check_of(0, sl_blocked(2, 32, 28, 28), (window_t){2, 2, 0, 1});
    check.n_positions = 4;
    sl_layer_check(&check);
}

/* All values below zero: padding must not win as a zero would. */
static void test_padding_never_wins(void **state)
{
    const sl_tensor_desc_t in = sl_blocked(1, 2, 4, 4);
    float values[32], out[8];
    sl_layer_check_t check = check_of(1, in, (window_t){3, 2, 1, 1});
    sl_layer_bed_t bed;
    int i;

    (void)state;
    for (i = 0; i < 32; i++) {
        values[i] = -100.0f - (float)i;
    }
    check.values[0] = values;
    sl_layer_check(&check);
    values[0] = values[1] = values[4] = values[5] = -INFINITY;
    sl_layer_bed_init(&bed, &check, 1);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    sl_layer_from_tensor(&bed.plan.out, bed.run.out, out);
    assert_true(isinf(out[0]) && out[0] < 0);
    assert_true(out[1] == -101.0f - 1.0f);
    sl_layer_bed_cleanup(&bed);
}

/* A NaN wins its windows, and their gradients go to it. */
static void test_nan_propagates(void **state)
{
    const sl_tensor_desc_t inputs[] = {sl_blocked(1, 1, 4, 4),
                                       sl_f32(4, 1, 1, 4, 4)};
    size_t k;

    (void)state;
    for (k = 0; k < 2; k++) {
        float values[16], out[4], dx[16];
        sl_layer_check_t check = check_of(1, inputs[k], (window_t){2, 2, 0, 1});
        sl_layer_bed_t bed;
        int i;

        for (i = 0; i < 16; i++) {
            values[i] = (float)i;
        }
        values[1] = NAN;
        values[10] = NAN;
        check.values[0] = values;
        sl_layer_bed_init(&bed, &check, 1);
        sl_assert_ok(sl_layer_bed_forward(&bed));
        sl_layer_from_tensor(&bed.plan.out, bed.run.out, out);
        assert_true(isnan(out[0]) && isnan(out[3]));
        assert_true(out[1] == 7.0f && out[2] == 13.0f);
        sl_assert_ok(sl_layer_bed_backward(&bed));
        sl_layer_from_tensor(&bed.plan.in[0], bed.run.din[0], dx);
        assert_true(dx[1] == bed.plain_dout[0]);
        assert_true(dx[10] == bed.plain_dout[3]);
        assert_true(dx[15] == 0.0f && dx[5] == 0.0f);
        sl_layer_bed_cleanup(&bed);
    }
}

/* Equal values: the first takes the whole gradient. */
static void test_first_of_equals_wins(void **state)
{
    const float values[16] = {0};
    float dx[16];
    sl_layer_check_t check =
        check_of(1, sl_blocked(1, 1, 4, 4), (window_t){2, 2, 0, 1});
    sl_layer_bed_t bed;
    int i;

    (void)state;
    check.values[0] = values;
    sl_layer_bed_init(&bed, &check, 1);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    sl_assert_ok(sl_layer_bed_backward(&bed));
    sl_layer_from_tensor(&bed.plan.in[0], bed.run.din[0], dx);
    for (i = 0; i < 16; i++) {
        const int is_first = i % 2 == 0 && i / 4 % 2 == 0;

        assert_true((dx[i] != 0.0f) == is_first);
    }
    sl_layer_bed_cleanup(&bed);
}

static void test_global(void **state)
{
    const sl_tensor_desc_t inputs[] = {
        sl_blocked(2, 16, 7, 7), sl_blocked(3, 17, 1, 1),
        sl_blocked(1, 1, 5, 3), sl_f32(4, 2, 5, 4, 3),
        sl_blocked(2, 40, 16, 16)};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        const sl_layer_check_t check = {.type = "global_avg_pool",
                                        .n_inputs = 1,
                                        .inputs = {inputs[i]},
                                        .n_positions = 8,
                                        .reference = global_reference};

        sl_layer_check(&check);
    }
}

static void refuse(const char *type, sl_tensor_desc_t in, window_t w,
                   const char *part)
{
    const sl_attr_t attrs[] = {{.name = "kernel", .number = (double)w.kernel},
                               {.name = "pad", .number = (double)w.pad}};
    const sl_layer_spec_t spec = {.type = type,
                                  .name = "p",
                                  .n_inputs = 1,
                                  .attrs = attrs,
                                  .n_attrs = w.kernel == 0 ? 0 : 2};
    sl_tensor_desc_t out;
    sl_layer_t *layer = NULL;

    sl_assert_status(sl_layer_create(&spec, 0, &in, &layer, &out),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), part);
    assert_null(layer);
}

static void test_refusals(void **state)
{
    const sl_tensor_desc_t image = sl_blocked(2, 16, 4, 4);
    const sl_tensor_desc_t matrix = sl_f32(2, 2, 16, 1, 1);

    (void)state;
    refuse("max_pool2d", image, (window_t){3, 0, 2, 0}, "half the kernel 3");
    refuse("max_pool2d", image, (window_t){7, 0, 1, 0}, "larger than its");
    refuse("max_pool2d", image, (window_t){17, 0, 0, 0}, "kernel");
    refuse("avg_pool2d", matrix, (window_t){2, 0, 0, 0}, "input 0 must be");
    refuse("global_avg_pool", matrix, (window_t){0}, "input 0 must be");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_max),
        sl_unit_test(test_avg),
        sl_unit_test(test_evaluation),
        sl_unit_test(test_large),
        sl_unit_test(test_padding_never_wins),
        sl_unit_test(test_nan_propagates),
        sl_unit_test(test_first_of_equals_wins),
        sl_unit_test(test_global),
        sl_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
