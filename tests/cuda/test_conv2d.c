/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d on a CUDA device. */
#include "tests/cuda/image_check.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <math.h>
#include <string.h>

#include "layers/cuda/dnn.h"
#include "memory/cuda.h"
#ifdef SL_CUDA_STANDIN
#include "dnn.h"
#include "standin.h"
#endif

typedef struct shape {
    int64_t batch, channels, height, width;
    int64_t out, kernel, kernel_w, stride, pad, dilation, groups;
    int bias;
} shape_t;

static const shape_t shapes[] = {
    {2, 16, 7, 9, 32, 3, 0, 1, 1, 1, 1, 1},
    {2, 32, 9, 8, 16, 3, 0, 2, 1, 1, 1, 0},
    {1, 16, 6, 6, 48, 1, 0, 1, 0, 1, 1, 1},
    {1, 16, 9, 9, 16, 3, 5, 1, 1, 1, 1, 1},
    {2, 17, 7, 6, 10, 3, 0, 2, 1, 1, 1, 1},
    {1, 1, 6, 6, 1, 3, 0, 1, 1, 1, 1, 1},
    {2, 12, 7, 7, 24, 3, 0, 1, 1, 1, 3, 1},
    {2, 10, 9, 9, 10, 3, 0, 2, 1, 1, 10, 1},
    {2, 8, 6, 6, 16, 3, 0, 1, 1, 1, 8, 0},
    {2, 10, 9, 9, 17, 3, 0, 2, 1, 2, 1, 1},
    {1, 16, 4, 4, 16, 3, 0, 2, 4, 1, 1, 1},
    {1, 16, 3, 3, 16, 3, 0, 1024, 2, 1, 1, 1},
    {1, 1, 2, 2, 1, 33, 1, 5, 17, 1, 1, 1},
    {1, 2, 2, 2, 2, 2, 0, 1024, 1024, 1024, 2, 1},
    {1, 300, 2, 1, 2, 1, 0, 1, 0, 1, 2, 1},
};

static image_case_t case_of(const shape_t *s)
{
    image_case_t c = {
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
        .dims = {{s->batch, s->channels, s->height, s->width}},
        .layouts = {SL_LAYOUT_CHANNELS_LAST}};
    const double kernel = (double)(s->kernel * s->kernel);

    /* a point of the output, of the input's gradient, of the weights' */
    c.terms = fmax(fmax((double)s->channels, (double)s->out) * kernel,
                   (double)(s->batch * s->height * s->width));
    return c;
}

static void shapes_agree(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        image_check_all(case_of(&shapes[i]));
    }
}

/* The batch's data: plain fp32, whatever the activations. */
static void data_agrees(void **state)
{
    static const shape_t data[] = {
        {2, 3, 20, 18, 16, 7, 0, 2, 3, 1, 1, 0},
        {3, 1, 12, 12, 10, 5, 0, 1, 2, 1, 1, 1},
        {2, 3, 8, 8, 3, 3, 0, 1, 1, 1, 3, 1},
    };
    int type;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(data) / sizeof(data[0]); i++) {
        for (type = 0; type < SL_CUDA_N_TYPES; type++) {
            image_case_t c = case_of(&data[i]);

            c.dtype = (sl_cuda_type_t)type;
            c.layouts[0] = SL_LAYOUT_PLAIN;
            c.is_data = 1;
            image_check(&c);
        }
    }
}

static void evaluation_agrees(void **state)
{
    image_case_t c = case_of(&shapes[4]);

    (void)state;
    c.is_evaluation = 1;
    image_check(&c);
}

static float *forward_of(image_case_t c)
{
    image_layer_t image;
    float *y;

    image_layer_make(&image, &c);
    sl_assert_ok(image.layer->ops->kernels[SL_DEVICE_KIND_CUDA]->forward(
        &image.run, image_stream()));
    y = image_fetch(&image.plan.out, image.run.out);
    image_layer_free(&image);
    image_end();
    return y;
}

/* TF32 is used when allowed, and not else: its products show. */
static void tf32_is_asked_for(void **state)
{
    image_case_t c = case_of(&shapes[0]);
    const size_t n = 2 * 32 * 7 * 9;
    float *exact, *rough;
    double most = 0;
    size_t i;

    (void)state;
    exact = forward_of(c);
    c.is_tf32 = 1;
    image_check(&c);
    rough = forward_of(c);
    for (i = 0; i < n; i++) {
        most = fmax(most, fabs((double)exact[i] - (double)rough[i]));
    }
    assert_true(most > 1e-5 && most < 0.1);
}

static void run_both(image_layer_t *image)
{
    const sl_layer_kernels_t *kernels =
        image->layer->ops->kernels[SL_DEVICE_KIND_CUDA];

    sl_assert_ok(kernels->forward(&image->run, image_stream()));
    sl_assert_ok(kernels->backward(&image->run, image_stream()));
}

/* Runs can be captured, and launched again. */
static void a_captured_run_gives_the_same_bits(void **state)
{
    image_case_t c = case_of(&shapes[0]);
    image_layer_t image;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaStream_t stream = bed_stream();
    float *out, *din;
    size_t n_in, n_out;

    (void)state;
    c.dtype = SL_CUDA_BF16;
    image_layer_make(&image, &c);
    n_in = (size_t)sl_tensor_elements(&image.plan.in[0]);
    n_out = (size_t)sl_tensor_elements(&image.plan.out);
    run_both(&image);
    out = image_fetch(&image.plan.out, image.run.out);
    din = image_fetch(&image.plan.in[0], image.run.din[0]);
    sl_assert_ok(SL_CUDA(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
    run_both(&image);
    sl_assert_ok(SL_CUDA(cudaStreamEndCapture(stream, &graph)));
    sl_assert_ok(SL_CUDA(cudaGraphInstantiate(&exec, graph, 0)));
    sl_assert_ok(
        SL_CUDA(cudaMemsetAsync(image.run.out, 0xff, n_out * 2, stream)));
    sl_assert_ok(
        SL_CUDA(cudaMemsetAsync(image.run.din[0], 0xff, n_in * 2, stream)));
    sl_assert_ok(SL_CUDA(cudaGraphLaunch(exec, stream)));
    bed_assert_same("out", image_fetch(&image.plan.out, image.run.out), out,
                    n_out);
    bed_assert_same("din", image_fetch(&image.plan.in[0], image.run.din[0]),
                    din, n_in);
    sl_assert_ok(SL_CUDA(cudaGraphExecDestroy(exec)));
    sl_assert_ok(SL_CUDA(cudaGraphDestroy(graph)));
    image_layer_free(&image);
    image_end();
}

static void weights_are_stored_channels_last(void **state)
{
    const shape_t s = {1, 4, 3, 3, 4, 2, 3, 1, 1, 1, 2, 0};
    image_case_t c = case_of(&s);
    float plain[4 * 2 * 6], stored[4 * 2 * 6], back[4 * 2 * 6];
    image_layer_t image;
    int o, ch, p;

    (void)state;
    image_layer_make(&image, &c);
    for (p = 0; p < 48; p++) {
        plain[p] = (float)p;
    }
    sl_assert_ok(sl_layer_param_pack(image.layer, SL_DEVICE_KIND_CUDA, 0, plain,
                                     stored));
    for (o = 0; o < 4; o++) {
        for (p = 0; p < 6; p++) {
            for (ch = 0; ch < 2; ch++) {
                assert_true(stored[(o * 6 + p) * 2 + ch] ==
                            plain[(o * 2 + ch) * 6 + p]);
            }
        }
    }
    sl_assert_ok(sl_layer_param_unpack(image.layer, SL_DEVICE_KIND_CUDA, 0,
                                       stored, back));
    assert_memory_equal(back, plain, sizeof(plain));
    image_layer_free(&image);
    image_end();
}

static void too_large_a_tensor_is_refused(void **state)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = 8},
                               {.name = "kernel", .number = 1}};
    const sl_layer_spec_t spec = {.type = "conv2d",
                                  .name = "c",
                                  .n_inputs = 1,
                                  .inputs = {0},
                                  .attrs = attrs,
                                  .n_attrs = 2};
    const int64_t dims[4] = {1 << 12, 8, 1 << 9, 1 << 9};
    sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 4, dims), out;
    sl_layer_t *layer = NULL;
    sl_layer_plan_t plan;

    (void)state;
    sl_assert_ok(sl_layer_create(&spec, 0, &in, &layer, &out));
    layer->kind = SL_DEVICE_KIND_CUDA;
    sl_assert_status(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CUDA, 1, 1, &in),
        SL_ERR_UNSUPPORTED);
    sl_assert_contains(sl_last_error(), "use smaller micro-batches");
    sl_layer_destroy(layer);
}

#ifdef SL_CUDA_STANDIN

/* The algorithm with a workspace of a GiB is passed over. */
static void workspace_is_limited(void **state)
{
    image_case_t c = case_of(&shapes[0]);
    image_layer_t image;

    (void)state;
    image_layer_make(&image, &c);
    assert_true(image.plan.forward_workspace_bytes > 0);
    assert_true(image.plan.forward_workspace_bytes < (size_t)64 << 20);
    assert_true(image.plan.backward_workspace_bytes < (size_t)64 << 20);
    image_layer_free(&image);
    image_end();
}

/* Of a forward pass over n images of a MiB whose results are as many; under a
 * limit of the job's, or 0. */
static size_t forward_workspace(int n, uint64_t limit_bytes)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = 16},
                               {.name = "kernel", .number = 3},
                               {.name = "pad", .number = 1}};
    const sl_layer_spec_t spec = {.type = "conv2d",
                                  .name = "c",
                                  .n_inputs = 1,
                                  .inputs = {SL_INPUT_DATA},
                                  .attrs = attrs,
                                  .n_attrs = 3};
    const int64_t dims[4] = {n, 16, 128, 128};
    sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 4, dims), out;
    sl_layer_t *layer = NULL;
    sl_layer_plan_t plan;
    size_t bytes;

    sl_assert_ok(sl_layer_create(&spec, 0, &in, &layer, &out));
    layer->kind = SL_DEVICE_KIND_CUDA;
    layer->dnn.workspace_bytes = limit_bytes;
    sl_assert_ok(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CUDA, 1, 1, &in));
    bytes = plan.forward_workspace_bytes;
    sl_layer_plan_cleanup(&plan);
    sl_layer_destroy(layer);
    return bytes;
}

/* As large as the images is not too large: that of a GiB is for a GiB of
 * images. */
static void workspace_is_as_large_as_the_images(void **state)
{
    const size_t gib = (size_t)1 << 30;

    (void)state;
    assert_true(forward_workspace(512, 0) - forward_workspace(511, 0) >= gib);
    assert_true(forward_workspace(511, 0) - forward_workspace(510, 0) < gib);
}

/* A job's own limit goes before that, in both directions; where nothing is
 * within it, the least is taken. */
static void workspace_is_limited_by_the_job(void **state)
{
    const size_t gib = (size_t)1 << 30;

    (void)state;
    assert_true(forward_workspace(2, gib) >= gib);
    assert_true(forward_workspace(2, gib - 1) < gib);
    assert_true(forward_workspace(512, gib - 1) < gib);
    assert_true(forward_workspace(2, 1) < forward_workspace(2, 0));
}

/* What cuDNN has for plain images only. */
static void plain_copies_are_taken(void **state)
{
    static const size_t some[] = {0, 1, 4, 7, 9};
    image_case_t data;
    size_t i;

    (void)state;
    standin_dnn_refuse_last(1);
    for (i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        image_check_all(case_of(&shapes[some[i]]));
    }
    data = case_of(&shapes[4]);
    data.dtype = SL_CUDA_F16;
    data.layouts[0] = SL_LAYOUT_PLAIN;
    data.is_data = 1;
    image_check(&data);
    standin_dnn_refuse_last(0);
}

static void what_cudnn_lacks_is_refused(void **state)
{
    const sl_attr_t attrs[] = {{.name = "out", .number = 8},
                               {.name = "kernel", .number = 3}};
    const sl_layer_spec_t spec = {.type = "conv2d",
                                  .name = "c1",
                                  .n_inputs = 1,
                                  .inputs = {0},
                                  .attrs = attrs,
                                  .n_attrs = 2};
    const int64_t dims[4] = {2, 4, 8, 8};
    sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 4, dims), out;
    sl_layer_t *layer = NULL;
    sl_layer_plan_t plan;

    (void)state;
    sl_assert_ok(sl_layer_create(&spec, 0, &in, &layer, &out));
    layer->kind = SL_DEVICE_KIND_CUDA;
    standin_dnn_refuse(CUDNN_DATA_FLOAT);
    sl_assert_status(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CUDA, 1, 1, &in),
        SL_ERR_UNSUPPORTED);
    sl_assert_contains(sl_last_error(),
                       "layer c1: cuDNN has no repeatable algorithm for "
                       "forward, f32, of [2, 4, 8, 8]");
    standin_dnn_refuse(-1);
    sl_layer_destroy(layer);
}

static void every_failure_is_told(void **state)
{
    static const char *const others[] = {"Pooling", "BatchNorm", NULL};
    const image_case_t c = case_of(&shapes[0]);

    (void)state;
    image_check_failures(&c, others);
}

/* The device fails later, in the only kernel: the next call tells. */
static void a_late_failure_stays(void **state)
{
    image_case_t c = case_of(&shapes[1]);
    image_layer_t image;

    (void)state;
    image_layer_make(&image, &c);
    standin_fail(STANDIN_cudnnConvolutionForward, 1, cudaErrorECCUncorrectable,
                 STANDIN_FAIL_RUN);
    sl_assert_ok(image.layer->ops->kernels[SL_DEVICE_KIND_CUDA]->forward(
        &image.run, image_stream()));
    sl_assert_status(SL_CUDA(cudaStreamSynchronize(bed_stream())),
                     SL_ERR_DEVICE);
    sl_assert_status(image_run_all(&image), SL_ERR_DEVICE);
    /* cuDNN's own status says that it failed, and the device why */
    sl_assert_status(SL_DNN(cudnnSetStream(NULL, NULL)), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "CUDNN_STATUS_EXECUTION_FAILED_CUDART");
    sl_assert_contains(sl_last_error(), "cudaErrorECCUncorrectable");
    image_layer_free(&image);
    image_end();
    standin_reset();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(shapes_agree),
        BED_TEST(data_agrees),
        BED_TEST(evaluation_agrees),
        BED_TEST(tf32_is_asked_for),
        BED_TEST(a_captured_run_gives_the_same_bits),
        BED_TEST(weights_are_stored_channels_last),
        BED_TEST(too_large_a_tensor_is_refused),
#ifdef SL_CUDA_STANDIN
        BED_TEST(workspace_is_limited),
        BED_TEST(workspace_is_as_large_as_the_images),
        BED_TEST(workspace_is_limited_by_the_job),
        BED_TEST(plain_copies_are_taken),
        BED_TEST(what_cudnn_lacks_is_refused),
        BED_TEST(every_failure_is_told),
        BED_TEST(a_late_failure_stays),
#endif
    };

    return !bed_has_device() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
