/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm: kernels against a reference in double, running statistics over
 * micro-batches, recomputation, evaluation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/layers/layer_check.h"

enum {
    WEIGHT,
    BIAS,
    MEAN,
    VAR,
    SUMS
};

static int has_relu; /* of the case that runs: the reference reads it */

static double value_at(const sl_layer_reference_t *args, int input, int64_t n,
                       int64_t c, int64_t i)
{
    const int64_t *dims = args->in_desc->dims;

    return args->in[input][(n * dims[1] + c) * dims[2] * dims[3] + i];
}

static void channel_moments(const sl_layer_reference_t *args, int64_t c,
                            double *mean_p, double *var_p)
{
    const int64_t *dims = args->in_desc->dims;
    const int64_t points = dims[2] * dims[3];
    const double count = (double)(dims[0] * points);
    double mean = 0, var = 0;
    int64_t n, i;

    if (!args->step->is_training) {
        *mean_p = args->param[MEAN][c];
        *var_p = args->param[VAR][c];
        return;
    }
    for (n = 0; n < dims[0]; n++) {
        for (i = 0; i < points; i++) {
            mean += value_at(args, 0, n, c, i) / count;
        }
    }
    for (n = 0; n < dims[0]; n++) {
        for (i = 0; i < points; i++) {
            var += pow(value_at(args, 0, n, c, i) - mean, 2) / count;
        }
    }
    *mean_p = mean;
    *var_p = var;
}

static void reference(const sl_layer_reference_t *args)
{
    const int64_t *dims = args->in_desc->dims;
    const int64_t points = dims[2] * dims[3];
    int64_t n, c, i;

    for (c = 0; c < dims[1]; c++) {
        double mean, var;

        channel_moments(args, c, &mean, &var);
        for (n = 0; n < dims[0]; n++) {
            for (i = 0; i < points; i++) {
                double y = (value_at(args, 0, n, c, i) - mean) /
                               sqrt(var + 1e-5) * args->param[WEIGHT][c] +
                           args->param[BIAS][c];

                if (args->layer->n_inputs > 1) {
                    y += value_at(args, 1, n, c, i);
                }
                args->out[(n * dims[1] + c) * points + i] =
                    has_relu && y < 0 ? 0 : y;
            }
        }
    }
}

static sl_layer_check_t check_of(sl_tensor_desc_t in, int relu, int skip)
{
    const sl_layer_check_t check = {
        .type = "batch_norm",
        .attrs = {{.name = "relu", .number = relu}},
        .n_inputs = skip ? 2 : 1,
        .inputs = {in, in},
        .reference = reference,
        .gradient_tolerance = 1e-4,
        .is_kinked = relu,
        .n_positions = 6,
    };

    has_relu = relu;
    return check;
}

static void check_all_forms(sl_tensor_desc_t in)
{
    int form;

    for (form = 0; form < 4; form++) {
        const sl_layer_check_t check = check_of(in, form & 1, form >> 1);

        sl_layer_check(&check);
    }
}

static void test_blocked(void **state)
{
    (void)state;
    check_all_forms(sl_blocked(2, 16, 4, 4));
    check_all_forms(sl_blocked(3, 17, 3, 5));
    check_all_forms(sl_blocked(1, 10, 5, 5));
    check_all_forms(sl_blocked(2, 1, 3, 3));
    check_all_forms(sl_blocked(4, 48, 1, 1));
}

static void test_plain(void **state)
{
    (void)state;
    check_all_forms(sl_f32(4, 2, 3, 4, 4));
    check_all_forms(sl_f32(4, 3, 5, 3, 5));
    check_all_forms(sl_f32(4, 1, 17, 7, 9));
    check_all_forms(sl_f32(4, 2, 1, 1, 3));
}

/* Units shared out over two threads, and chunks of a unit. */
static void test_large(void **state)
{
    (void)state;
    check_all_forms(sl_blocked(2, 16, 36, 36));
    check_all_forms(sl_blocked(2, 32, 24, 24));
    check_all_forms(sl_f32(4, 2, 1, 131, 131));
}

static void test_evaluation(void **state)
{
    int form;

    (void)state;
    for (form = 0; form < 4; form++) {
        sl_layer_check_t check =
            check_of(sl_blocked(2, 17, 3, 3), form & 1, form >> 1);

        check.is_evaluation = 1;
        sl_layer_check(&check);
        check.inputs[0] = check.inputs[1] = sl_f32(4, 2, 17, 3, 3);
        sl_layer_check(&check);
    }
}

/* One value a channel: variance 0; the formula stays finite. */
static void test_one_value(void **state)
{
    (void)state;
    check_all_forms(sl_blocked(1, 17, 1, 1));
}

static void shift_input(sl_layer_bed_t *bed, float by)
{
    const sl_tensor_desc_t *desc = &bed->plan.in[0];
    const int64_t n = sl_tensor_elements(desc);
    void *in = sl_layer_bed_buffer(bed, sl_tensor_bytes(desc));
    int64_t i;

    for (i = 0; i < n; i++) {
        bed->plain_in[0][i] += by;
    }
    sl_layer_to_tensor(desc, bed->plain_in[0], in);
    sl_layer_from_tensor(desc, in, bed->plain_in[0]);
    bed->run.in[0] = in;
}

/* Far from zero the squares must not cancel: the variance stays right. */
static void test_large_mean(void **state)
{
    const sl_layer_check_t check = check_of(sl_blocked(4, 16, 16, 16), 0, 0);
    const int64_t n = sl_tensor_elements(&check.inputs[0]);
    float *near = calloc((size_t)n, sizeof(*near));
    float *far = calloc((size_t)n, sizeof(*far));
    sl_layer_bed_t bed;

    (void)state;
    assert_true(near != NULL && far != NULL);
    if (sl_layer_bed_dtype() != SL_DTYPE_F32) {
        free(far);
        free(near);
        return; /* the inputs themselves would be lost */
    }
    sl_layer_bed_init(&bed, &check, 1);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    sl_layer_from_tensor(&bed.plan.out, bed.run.out, near);
    shift_input(&bed, 1000.0f);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    sl_layer_from_tensor(&bed.plan.out, bed.run.out, far);
    /* the inputs themselves lose 1000 * 2^-24 to rounding */
    sl_assert_close(far, near, (size_t)n, 1e-4, 2e-4);
    sl_layer_bed_cleanup(&bed);
    free(far);
    free(near);
}

/* ---- running statistics ---- */

static void assert_near(float got, double want, double by)
{
    assert_true(fabs((double)got - want) <= by);
}

static float running(const sl_layer_bed_t *bed, int param, int64_t c)
{
    return ((const float *)bed->run.param[param])[c];
}

/* 1024 samples in 8 micro-batches, the first half ones, the second zeros:
 * one update a mini-batch, from all samples. */
static void test_running_statistics(void **state)
{
    const sl_layer_check_t check = check_of(sl_blocked(128, 17, 1, 1), 0, 0);
    const double momentum = 0.1;
    const int64_t n = 128 * 17;
    float *values = calloc((size_t)n, sizeof(*values));
    sl_layer_bed_t bed;
    int64_t i;
    int m;

    (void)state;
    assert_non_null(values);
    sl_layer_bed_init(&bed, &check, 2);
    for (m = 0; m < 8; m++) {
        void *in = sl_layer_bed_buffer(&bed, sl_tensor_bytes(&bed.plan.in[0]));

        for (i = 0; i < n; i++) {
            values[i] = m < 4 ? 1.0f : 0.0f;
        }
        sl_layer_to_tensor(&bed.plan.in[0], values, in);
        bed.run.in[0] = in;
        bed.run.step.is_first_forward = m == 0;
        bed.run.step.is_recompute = 0;
        sl_assert_ok(sl_layer_bed_forward(&bed));
        assert_true(running(&bed, MEAN, 0) == bed.plain_param[MEAN][0]);
        bed.run.step.is_recompute = 1; /* must not count again */
        sl_assert_ok(sl_layer_bed_forward(&bed));
    }
    sl_assert_ok(sl_layer_bed_finish_batch(&bed));
    for (i = 0; i < 17; i++) {
        const double mean = (double)bed.plain_param[MEAN][i];
        const double var = (double)bed.plain_param[VAR][i];

        assert_near(running(&bed, MEAN, i),
                    (1 - momentum) * mean + momentum * 0.5, 1e-6);
        assert_near(running(&bed, VAR, i),
                    (1 - momentum) * var + momentum * 0.25 * 1024 / 1023, 1e-6);
    }
    sl_layer_bed_cleanup(&bed);
    free(values);
}

/* Unlike micro-batches give the statistics of their union; and a second
 * mini-batch starts anew. */
static void test_micro_batches_merge(void **state)
{
    static const float shifts[] = {0.0f, 5.0f, -30.0f};
    const sl_layer_check_t check = check_of(sl_f32(4, 2, 3, 9, 9), 1, 0);
    sl_layer_bed_t bed;
    int round, m;
    int64_t c;

    (void)state;
    sl_layer_bed_init(&bed, &check, 1);
    for (round = 0; round < 2; round++) {
        double sum[3] = {0}, squares[3] = {0};
        float old_mean[3], old_var[3];

        for (c = 0; c < 3; c++) {
            old_mean[c] = running(&bed, MEAN, c);
            old_var[c] = running(&bed, VAR, c);
        }
        for (m = 0; m < 3; m++) {
            int64_t i;

            shift_input(&bed, shifts[m]);
            for (i = 0; i < 2 * 3 * 81; i++) {
                const double x = (double)bed.plain_in[0][i];

                sum[i / 81 % 3] += x;
                squares[i / 81 % 3] += x * x;
            }
            bed.run.step.is_first_forward = m == 0;
            sl_assert_ok(sl_layer_bed_forward(&bed));
        }
        sl_assert_ok(sl_layer_bed_finish_batch(&bed));
        for (c = 0; c < 3; c++) {
            const double n = 3 * 2 * 81;
            const double mean = sum[c] / n;
            const double var = (squares[c] - n * mean * mean) / (n - 1);

            assert_near(running(&bed, MEAN, c),
                        0.9 * (double)old_mean[c] + 0.1 * mean, 2e-6);
            assert_near(running(&bed, VAR, c),
                        0.9 * (double)old_var[c] + 0.1 * var, 2e-5);
        }
    }
    sl_layer_bed_cleanup(&bed);
}

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes);

    assert_non_null(copy);
    memcpy(copy, data, bytes);
    return copy;
}

/* The thread count moves no bit: sums are in chunk order. */
static void test_thread_counts_agree(void **state)
{
    static const int64_t channels[] = {16, 64};
    int i;

    (void)state;
    for (i = 0; i < 2; i++) {
        const sl_layer_check_t check =
            check_of(sl_blocked(2, channels[i], 36, 36), 1, 1);
        const size_t bytes = sl_tensor_bytes(&check.inputs[0]);
        void *out = NULL, *dx = NULL, *grad = NULL;
        int threads;

        for (threads = 1; threads <= 3; threads++) {
            sl_layer_bed_t bed;

            sl_layer_bed_init(&bed, &check, threads);
            sl_assert_ok(sl_layer_bed_forward(&bed));
            sl_assert_ok(sl_layer_bed_backward(&bed));
            if (threads == 1) {
                out = copy_of(bed.run.out, bytes);
                dx = copy_of(bed.run.din[0], bytes);
                grad = copy_of(bed.run.grad[WEIGHT], 64);
            }
            assert_memory_equal(bed.run.out, out, bytes);
            assert_memory_equal(bed.run.din[0], dx, bytes);
            assert_memory_equal(bed.run.grad[WEIGHT], grad, 64);
            sl_layer_bed_cleanup(&bed);
        }
        free(out);
        free(dx);
        free(grad);
    }
}

/* ---- what is declared ---- */

static void test_declares(void **state)
{
    const sl_layer_check_t check = check_of(sl_blocked(2, 17, 3, 3), 0, 1);
    const sl_layer_check_t masked = check_of(sl_blocked(2, 17, 3, 3), 1, 1);
    sl_layer_bed_t bed;

    (void)state;
    sl_layer_bed_init(&bed, &check, 1);
    assert_int_equal(bed.layer->n_params, 5);
    assert_string_equal(bed.layer->params[MEAN].name, "running_mean");
    assert_string_equal(bed.layer->params[VAR].name, "running_var");
    assert_int_equal(bed.layer->params[VAR].init, SL_INIT_ONE);
    assert_int_equal(bed.layer->params[WEIGHT].has_decay, 0);
    assert_int_equal(bed.layer->params[SUMS].kind, SL_PARAM_ACCUMULATOR);
    assert_int_equal(bed.layer->params[SUMS].storage_bytes, 3 * 17 * 8);
    assert_int_equal(bed.plan.passes_gradient, 2);
    assert_int_equal(bed.plan.keeps_output, 0);
    assert_int_equal(bed.plan.keeps_input[1], 0);
    sl_layer_bed_cleanup(&bed);
    sl_layer_bed_init(&bed, &masked, 1);
    assert_int_equal(bed.plan.passes_gradient, 0);
    assert_int_equal(bed.plan.keeps_output, 1);
    sl_layer_bed_cleanup(&bed);
}

static void test_refuses_other_skip_shape(void **state)
{
    const sl_layer_spec_t spec = {
        .type = "batch_norm", .name = "bn", .n_inputs = 2};
    const sl_tensor_desc_t shapes[2] = {sl_blocked(2, 16, 4, 4),
                                        sl_blocked(2, 16, 2, 2)};
    const sl_tensor_desc_t matrices[2] = {sl_f32(2, 2, 16, 1, 1),
                                          sl_f32(2, 2, 16, 1, 1)};
    sl_tensor_desc_t out;
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_status(sl_layer_create(&spec, 0, shapes, &layer, &out),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "input 1 must be f32 [2, 16, 4, 4]");
    sl_assert_status(sl_layer_create(&spec, 0, matrices, &layer, &out),
                     SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "input 0 must be f32 [batch");
    assert_null(layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_blocked),
        sl_unit_test(test_plain),
        sl_unit_test(test_large),
        sl_unit_test(test_evaluation),
        sl_unit_test(test_one_value),
        sl_unit_test(test_large_mean),
        sl_unit_test(test_running_statistics),
        sl_unit_test(test_micro_batches_merge),
        sl_unit_test(test_thread_counts_agree),
        sl_unit_test(test_declares),
        sl_unit_test(test_refuses_other_skip_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
