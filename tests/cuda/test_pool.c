/* SPDX-License-Identifier: Apache-2.0 */
/* Pools and upsampling on a CUDA device. */
#include "tests/cuda/image_check.h"

#include <math.h>

#ifdef SL_CUDA_STANDIN
#include "dnn.h"
#endif

typedef struct shape {
    int64_t batch, channels, height, width, kernel, stride, pad;
} shape_t;

static const shape_t shapes[] = {
    {2, 16, 8, 8, 2, 0, 0}, {2, 17, 9, 7, 3, 2, 1}, {1, 3, 7, 9, 3, 1, 1},
    {2, 5, 11, 6, 4, 3, 2}, {1, 1, 5, 5, 2, 4, 0},  {3, 8, 1, 1, 1, 0, 0},
    {1, 20, 6, 6, 6, 0, 3}, {2, 4, 10, 9, 3, 5, 0},
};

static image_case_t case_of(const char *type, const shape_t *s)
{
    image_case_t c = {.type = type,
                      .attrs = {{.name = "kernel", .number = (double)s->kernel},
                                {.name = "stride", .number = (double)s->stride},
                                {.name = "pad", .number = (double)s->pad}},
                      .n_inputs = 1,
                      .dims = {{s->batch, s->channels, s->height, s->width}}};

    return c;
}

static void max_pools_agree(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        image_case_t c = case_of("max_pool2d", &shapes[i]);

        image_check_all(c);
        c.is_distinct = 1; /* the library may take any of equal values */
        image_check_both(c);
    }
}

static void average_pools_agree(void **state)
{
    size_t i;
    int is_counted;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (is_counted = 0; is_counted < 2; is_counted++) {
            image_case_t c = case_of("avg_pool2d", &shapes[i]);

            c.attrs[3] =
                (sl_attr_t){.name = "count_include_pad", .number = is_counted};
            image_check_both(c);
        }
    }
}

static void global_pools_agree(void **state)
{
    static const int64_t dims[][4] = {
        {2, 17, 7, 7}, {1, 1, 1, 1}, {3, 40, 2, 5}, {2, 3, 33, 40}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        image_case_t c = {
            .type = "global_avg_pool",
            .n_inputs = 1,
            .dims = {{dims[i][0], dims[i][1], dims[i][2], dims[i][3]}}};

        image_check_both(c);
    }
}

static void upsampled_agree(void **state)
{
    int factor;

    (void)state;
    for (factor = 1; factor <= 3; factor++) {
        image_case_t c = {.type = "upsample2d",
                          .attrs = {{.name = "factor", .number = factor}},
                          .n_inputs = 1,
                          .dims = {{2, 5, 3, 4}}};

        image_check_all(c);
    }
}

static void run(image_layer_t *image)
{
    const sl_layer_kernels_t *kernels =
        image->layer->ops->kernels[SL_DEVICE_KIND_CUDA];

    sl_assert_ok(kernels->forward(&image->run, image_stream()));
    sl_assert_ok(kernels->backward(&image->run, image_stream()));
}

/* Of equal values the first wins, NaN beats numbers, padding wins never. */
static void ties_and_nan(void **state)
{
    const shape_t shape = {1, 1, 4, 4, 2, 0, 0};
    float x[16] = {5, 5,    1, NAN, 5, 5,         NAN, 3,
                   0, -0.f, 2, 2,   0, -INFINITY, 2,   2};
    const float dx[16] = {1, 0, 0, 2, 0, 0, 0, 0, 3, 0, 4, 0, 0, 0, 0, 0};
    const float y[4] = {5, NAN, 0, 2};
    float dout[4] = {1, 2, 3, 4};
    image_case_t c = case_of("max_pool2d", &shape);
    image_layer_t image;

    (void)state;
    image_layer_make(&image, &c);
    image.run.in[0] = bed_upload(SL_CUDA_F32, x, 16, 0);
    image.run.dout = bed_upload(SL_CUDA_F32, dout, 4, 0);
    run(&image);
    bed_assert_same("out", bed_fetch(SL_CUDA_F32, image.run.out, 4), y, 4);
    bed_assert_same("din", bed_fetch(SL_CUDA_F32, image.run.din[0], 16), dx,
                    16);
    image_layer_free(&image);
    image_end();
}

static void padding_never_wins(void **state)
{
    const shape_t shape = {1, 1, 2, 2, 2, 2, 1};
    float x[4] = {-1, -2, -INFINITY, -4};
    const float dx[4] = {1, 2, 3, 4};
    float dout[4] = {1, 2, 3, 4};
    image_case_t c = case_of("max_pool2d", &shape);
    image_layer_t image;

    (void)state;
    image_layer_make(&image, &c);
    image.run.in[0] = bed_upload(SL_CUDA_F32, x, 4, 0);
    image.run.dout = bed_upload(SL_CUDA_F32, dout, 4, 0);
    run(&image);
    bed_assert_same("out", bed_fetch(SL_CUDA_F32, image.run.out, 4), x, 4);
    bed_assert_same("din", bed_fetch(SL_CUDA_F32, image.run.din[0], 4), dx, 4);
    image_layer_free(&image);
    image_end();
}

#ifdef SL_CUDA_STANDIN
static void every_failure_is_told(void **state)
{
    static const char *const others[] = {"Convolution", "Filter", "BatchNorm",
                                         NULL};
    image_case_t c = case_of("max_pool2d", &shapes[1]);

    (void)state;
    c.is_dnn = 1;
    image_check_failures(&c, others);
}

/* There is no way to ask ahead. */
static void what_cudnn_lacks_is_told(void **state)
{
    image_case_t c = case_of("avg_pool2d", &shapes[1]);
    image_layer_t image;

    (void)state;
    c.is_dnn = 1;
    image_layer_make(&image, &c);
    standin_dnn_refuse(CUDNN_DATA_FLOAT);
    sl_assert_status(image_run_all(&image), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "cudnnPoolingForward");
    sl_assert_contains(sl_last_error(), "CUDNN_STATUS_NOT_SUPPORTED");
    standin_dnn_refuse(-1);
    image_layer_free(&image);
    image_end();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(max_pools_agree),       BED_TEST(average_pools_agree),
        BED_TEST(global_pools_agree),    BED_TEST(upsampled_agree),
        BED_TEST(ties_and_nan),          BED_TEST(padding_never_wins),
#ifdef SL_CUDA_STANDIN
        BED_TEST(every_failure_is_told), BED_TEST(what_cudnn_lacks_is_told),
#endif
    };

    return !bed_has_device() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
