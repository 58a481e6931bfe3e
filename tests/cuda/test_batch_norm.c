/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm on a CUDA device. */
#include "tests/cuda/image_check.h"

#include <math.h>

#ifdef SL_CUDA_STANDIN
#include "dnn.h"
#endif

enum {
    MEAN = 2,
    VAR = 3
};

static image_case_t case_of(int64_t batch, int64_t channels, int64_t height,
                            int64_t width, int relu, int has_skip)
{
    image_case_t c = {.type = "batch_norm",
                      .attrs = {{.name = "relu", .number = relu}},
                      .n_inputs = has_skip ? 2 : 1};
    int i;

    for (i = 0; i < c.n_inputs; i++) {
        c.dims[i][0] = batch;
        c.dims[i][1] = channels;
        c.dims[i][2] = height;
        c.dims[i][3] = width;
    }
    c.terms = (double)(batch * height * width);
    return c;
}

static void all_forms_agree(void **state)
{
    static const int64_t shapes[][4] = {
        {2, 16, 4, 4}, {3, 17, 3, 5}, {1, 1, 5, 7}, {2, 40, 1, 3}};
    size_t i;
    int form;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (form = 0; form < 4; form++) {
            image_case_t c = case_of(shapes[i][0], shapes[i][1], shapes[i][2],
                                     shapes[i][3], form & 1, form >> 1);

            image_check_all(c);
            /* rounded before the skip connection is added, a sum near 0 may
             * be on the other side of relu */
            c.is_distinct = form == 3;
            c.is_dnn = 1;
            image_check_all(c);
        }
    }
}

/* Several parts of a channel, and many; tiles of channels. */
static void large_ones_agree(void **state)
{
    image_case_t wide = case_of(4, 40, 18, 19, 1, 1);
    image_case_t long_one = case_of(2, 3, 96, 97, 1, 0);

    (void)state;
    wide.dtype = SL_CUDA_BF16;
    wide.layouts[0] = wide.layouts[1] = SL_LAYOUT_CHANNELS_LAST;
    image_check(&wide);
    image_check(&long_one);
    long_one.layouts[0] = SL_LAYOUT_CHANNELS_LAST;
    image_check(&long_one);
}

static void evaluation_takes_the_running_statistics(void **state)
{
    image_case_t c = case_of(2, 17, 3, 3, 1, 1);
    image_layer_t image;
    float *y;
    size_t i;

    (void)state;
    c.is_evaluation = 1;
    c.layouts[0] = c.layouts[1] = SL_LAYOUT_CHANNELS_LAST;
    image_layer_make(&image, &c);
    sl_assert_ok(image.layer->ops->kernels[SL_DEVICE_KIND_CUDA]->forward(
        &image.run, image_stream()));
    y = image_fetch(&image.plan.out, image.run.out);
    for (i = 0; i < 2 * 17 * 9; i++) {
        const size_t ch = i / 9 % 17;
        const double value =
            ((double)image.in[0][i] - (double)image.param[MEAN][ch]) /
                sqrt((double)image.param[VAR][ch] + 1e-5) *
                (double)image.param[0][ch] +
            (double)image.param[1][ch] + (double)image.in[1][i];

        assert_true(fabs((double)y[i] - fmax(value, 0)) <= 1e-5);
    }
    image_layer_free(&image);
    image_end();
}

static void forward(image_layer_t *image)
{
    sl_assert_ok(image->layer->ops->kernels[SL_DEVICE_KIND_CUDA]->forward(
        &image->run, image_stream()));
}

/* Micro-batches with far means: the statistics of their union, counted once
 * though one is recomputed; a second mini-batch starts anew. */
static void merge(int is_dnn)
{
    static const float shifts[] = {0, 5, -30};
    image_case_t c = case_of(2, 3, 9, 9, 0, 0);
    image_layer_t image;
    int round, m;

    c.is_dnn = is_dnn;
    image_layer_make(&image, &c);
    for (round = 0; round < 2; round++) {
        double sum[3] = {0}, squares[3] = {0};
        float old[2][3], now[2][3];
        size_t i;

        bed_fetch_bytes(old[0], image.run.param[MEAN], sizeof(old[0]));
        bed_fetch_bytes(old[1], image.run.param[VAR], sizeof(old[1]));
        for (m = 0; m < 3; m++) {
            float *x = bed_random(2 * 3 * 81, (uint32_t)(80 + m), 1);

            for (i = 0; i < 2 * 3 * 81; i++) {
                x[i] += shifts[m];
                sum[i / 81 % 3] += (double)x[i];
                squares[i / 81 % 3] += (double)x[i] * (double)x[i];
            }
            image.run.in[0] = bed_upload(SL_CUDA_F32, x, 2 * 3 * 81, 0);
            image.run.step.is_first_forward = m == 0;
            image.run.step.is_recompute = 0;
            forward(&image);
            image.run.step.is_recompute = 1;
            forward(&image);
        }
        sl_assert_ok(
            image.layer->ops->kernels[SL_DEVICE_KIND_CUDA]->finish_batch(
                &image.run, image_stream()));
        bed_fetch_bytes(now[0], image.run.param[MEAN], sizeof(now[0]));
        bed_fetch_bytes(now[1], image.run.param[VAR], sizeof(now[1]));
        for (i = 0; i < 3; i++) {
            const double n = 3 * 2 * 81, mean = sum[i] / n;
            const double var = (squares[i] - n * mean * mean) / (n - 1);

            assert_true(fabs((double)now[0][i] - 0.9 * (double)old[0][i] -
                             0.1 * mean) <= 2e-6);
            assert_true(fabs((double)now[1][i] - 0.9 * (double)old[1][i] -
                             0.1 * var) <= 1e-5 * var);
        }
    }
    image_layer_free(&image);
    image_end();
}

static void micro_batches_merge(void **state)
{
    (void)state;
    merge(0);
    merge(1);
}

/* What has one value a channel has no unbiased variance. */
static void one_value_is_not_for_cudnn(void **state)
{
    image_case_t c = case_of(1, 3, 1, 1, 0, 0);
    image_layer_t image;

    (void)state;
    c.is_dnn = 1;
    image_layer_make(&image, &c);
    assert_null(image.plan.kernel);
    forward(&image);
    image_layer_free(&image);
    image_end();
}

#ifdef SL_CUDA_STANDIN
static void every_failure_is_told(void **state)
{
    static const char *const others[] = {"Convolution", "Filter", "Pooling",
                                         NULL};
    image_case_t c = case_of(2, 17, 3, 3, 1, 1);

    (void)state;
    c.is_dnn = 1;
    image_check_failures(&c, others);
}

static void own_kernels_where_cudnn_has_none(void **state)
{
    image_case_t c = case_of(2, 17, 3, 3, 1, 1);
    image_layer_t image;

    (void)state;
    c.is_dnn = 1;
    standin_dnn_refuse(CUDNN_DATA_FLOAT);
    image_layer_make(&image, &c);
    assert_null(image.plan.kernel);
    image_layer_free(&image);
    image_check(&c);
    standin_dnn_refuse(-1);
    image_layer_make(&image, &c);
    assert_non_null(image.plan.kernel);
    image_layer_free(&image);
    image_end();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(all_forms_agree),
        BED_TEST(large_ones_agree),
        BED_TEST(evaluation_takes_the_running_statistics),
        BED_TEST(micro_batches_merge),
        BED_TEST(one_value_is_not_for_cudnn),
#ifdef SL_CUDA_STANDIN
        BED_TEST(every_failure_is_told),
        BED_TEST(own_kernels_where_cudnn_has_none),
#endif
    };

    return !bed_has_device() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
