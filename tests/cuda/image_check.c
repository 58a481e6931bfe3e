/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/image_check.h"

#include <math.h>
#include <string.h>

#ifdef SL_CUDA_STANDIN
#include "dnn.h"
#include "standin.h"
#endif

static sl_cuda_stream_t stream;

sl_cuda_stream_t *image_stream(void)
{
    stream.queue = bed_stream();
    return &stream;
}

void image_end(void)
{
    int i;

    for (i = 0; i < SL_CUDA_N_LIBRARIES; i++) {
        if (stream.handles[i] != NULL) {
            stream.release[i](stream.handles[i]);
        }
    }
    memset(&stream, 0, sizeof(stream));
}

/* ---- tensors ---- */

static sl_cuda_type_t type_of(const sl_tensor_desc_t *desc)
{
    return desc->dtype == SL_DTYPE_BF16  ? SL_CUDA_BF16
           : desc->dtype == SL_DTYPE_F16 ? SL_CUDA_F16
                                         : SL_CUDA_F32;
}

static sl_dtype_t dtype_of(sl_cuda_type_t type)
{
    return type == SL_CUDA_BF16  ? SL_DTYPE_BF16
           : type == SL_CUDA_F16 ? SL_DTYPE_F16
                                 : SL_DTYPE_F32;
}

/* Where plain element i of an image lies in memory. */
static size_t place_of(const sl_tensor_desc_t *desc, int64_t i)
{
    const int64_t pixels = desc->dims[2] * desc->dims[3];
    const int64_t pixel = i % pixels;
    const int64_t c = i / pixels % desc->dims[1];
    const int64_t image = i / pixels / desc->dims[1];
    const int64_t block = sl_channel_block();

    if (desc->layout == SL_LAYOUT_CHANNELS_LAST) {
        return (size_t)((image * pixels + pixel) * desc->dims[1] + c);
    }
    return (size_t)(image * sl_padded_channels(desc) * pixels +
                    c / block * block * pixels + pixel * block + c % block);
}

static size_t n_of(const sl_tensor_desc_t *desc)
{
    return (size_t)sl_tensor_elements(desc);
}

/* Plain to the tensor's order, or back; of as many floats as it has room. */
static float *in_order(const sl_tensor_desc_t *desc, const float *from,
                       int is_back)
{
    const size_t room = sl_tensor_bytes(desc) / sl_dtype_bytes(desc->dtype);
    float *to = bed_floats(room);
    size_t i;

    for (i = 0; i < n_of(desc); i++) {
        const size_t at =
            desc->layout == SL_LAYOUT_PLAIN ? i : place_of(desc, (int64_t)i);

        to[is_back ? i : at] = from[is_back ? at : i];
    }
    return to;
}

static void *upload(const sl_tensor_desc_t *desc, float *plain)
{
    return bed_upload(type_of(desc), in_order(desc, plain, 0), n_of(desc), 0);
}

float *image_fetch(const sl_tensor_desc_t *desc, const void *array)
{
    return in_order(desc, bed_fetch(type_of(desc), array, n_of(desc)), 1);
}

static float *rounded(sl_cuda_type_t type, float *values, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        values[i] = (float)bed_round(type, (double)values[i]);
    }
    return values;
}

/* ---- the layer on the device ---- */

static size_t n_attrs(const image_case_t *c)
{
    size_t n = 0;

    while (c->attrs[n].name != NULL) {
        n++;
    }
    return n;
}

static void make_descs(const image_case_t *c, int is_device,
                       sl_tensor_desc_t *in)
{
    int i;

    for (i = 0; i < c->n_inputs; i++) {
        in[i] = sl_tensor_desc(SL_DTYPE_F32, c->n_dims == 0 ? 4 : c->n_dims,
                               c->dims[i]);
        if (is_device) {
            in[i].layout = c->layouts[i];
            in[i].dtype = c->is_data ? SL_DTYPE_F32 : dtype_of(c->dtype);
        }
    }
}

static void make_params(image_layer_t *image, sl_cuda_type_t dtype)
{
    int p;

    for (p = 0; p < image->layer->n_params; p++) {
        const sl_param_t *param = &image->layer->params[p];
        const size_t n = (size_t)sl_tensor_elements(&param->desc);
        void *storage;
        size_t i;

        if (param->kind == SL_PARAM_ACCUMULATOR) {
            image->run.param[p] = bed_bytes(param->storage_bytes);
            continue;
        }
        image->param[p] = bed_random(n, 40 + (uint32_t)p, 0.5f);
        for (i = 0; i < n; i++) {
            if (param->kind == SL_PARAM_STATISTIC) {
                image->param[p][i] = fabsf(image->param[p][i]) + 0.5f;
            } else if (param->init == SL_INIT_ONE) {
                image->param[p][i] += 1.0f;
            }
        }
        (void)rounded(dtype, image->param[p], n);
        storage = bed_floats(param->storage_bytes / sizeof(float));
        sl_assert_ok(sl_layer_param_pack(image->layer, SL_DEVICE_KIND_CUDA, p,
                                         image->param[p], storage));
        image->run.param[p] = bed_upload_bytes(storage, param->storage_bytes);
        if (param->kind == SL_PARAM_TRAINED) {
            image->run.grad[p] = bed_bytes(param->storage_bytes);
        }
    }
}

/* Whole numbers that all types hold, no two of which are equal in 251. */
static float *distinct(size_t n)
{
    float *values = bed_floats(n);
    size_t i;

    for (i = 0; i < n; i++) {
        values[i] = (float)(i * 37 % 251) - 125.0f;
    }
    return values;
}

static void make_tensors(image_layer_t *image, const image_case_t *c)
{
    const sl_tensor_desc_t *out = &image->plan.out;
    size_t workspace = image->plan.forward_workspace_bytes;
    int i;

    for (i = 0; i < c->n_inputs; i++) {
        const sl_tensor_desc_t *in = &image->plan.in[i];

        image->in[i] =
            c->is_distinct
                ? distinct(n_of(in))
                : rounded(c->dtype,
                          bed_random(n_of(in), 50 + (uint32_t)i, 1.5f),
                          n_of(in));
        image->run.in[i] = upload(in, image->in[i]);
        if (!c->is_data) {
            image->run.din[i] = bed_array(type_of(in), n_of(in), 0);
        }
    }
    image->dout =
        rounded(type_of(out), bed_random(n_of(out), 60, 1.0f), n_of(out));
    image->run.dout = upload(out, image->dout);
    image->run.out = bed_array(type_of(out), n_of(out), 0);
    if (workspace < image->plan.backward_workspace_bytes) {
        workspace = image->plan.backward_workspace_bytes;
    }
    image->run.workspace = workspace == 0 ? NULL : bed_bytes(workspace);
    image->run.saved = image->plan.saved_bytes == 0
                           ? NULL
                           : bed_bytes(image->plan.saved_bytes);
}

void image_layer_make(image_layer_t *image, const image_case_t *c)
{
    sl_layer_spec_t spec = {.type = c->type,
                            .name = "image",
                            .n_inputs = c->n_inputs,
                            .attrs = c->attrs};
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];
    sl_tensor_desc_t out;

    memset(image, 0, sizeof(*image));
    spec.n_attrs = n_attrs(c);
    spec.inputs[0] = c->is_data ? SL_INPUT_DATA : 0;
    make_descs(c, 0, in);
    sl_assert_ok(sl_layer_create(&spec, 3, in, &image->layer, &out));
    image->layer->kind = SL_DEVICE_KIND_CUDA;
    image->layer->dtype = dtype_of(c->dtype);
    image->layer->is_tf32 = c->is_tf32;
    image->layer->dnn.has_images = c->is_dnn;
    make_descs(c, 1, in);
    if (image->layer->ops->declare_params != NULL) {
        image->layer->n_params = 0;
        sl_assert_ok(image->layer->ops->declare_params(image->layer, in));
    }
    sl_assert_ok(sl_layer_plan_init(&image->plan, image->layer,
                                    SL_DEVICE_KIND_CUDA, 1, !c->is_evaluation,
                                    in));
    image->run.plan = &image->plan;
    image->run.step.is_training = !c->is_evaluation;
    image->run.step.is_first_forward = 1;
    image->run.step.is_first_backward = 1;
    make_params(image, c->dtype);
    make_tensors(image, c);
}

void image_layer_free(image_layer_t *image)
{
    sl_layer_plan_cleanup(&image->plan);
    sl_layer_destroy(image->layer);
}

static const sl_layer_kernels_t *kernels_of(const image_layer_t *image)
{
    return image->layer->ops->kernels[SL_DEVICE_KIND_CUDA];
}

static void run_forward(image_layer_t *image)
{
    sl_assert_ok(kernels_of(image)->forward(&image->run, image_stream()));
}

static void run_backward(image_layer_t *image)
{
    sl_assert_ok(kernels_of(image)->backward(&image->run, image_stream()));
}

/* ---- the layer on the CPU ---- */

/* Its input comes from a layer, so that it has a gradient. */
static void plan_anew(bed_layer_t *cpu, const sl_tensor_desc_t *in)
{
    size_t workspace;

    cpu->layer->inputs[0] = 0;
    sl_layer_plan_cleanup(&cpu->plan);
    sl_assert_ok(sl_layer_plan_init(&cpu->plan, cpu->layer, SL_DEVICE_KIND_CPU,
                                    1, 1, in));
    workspace = cpu->plan.forward_workspace_bytes;
    if (workspace < cpu->plan.backward_workspace_bytes) {
        workspace = cpu->plan.backward_workspace_bytes;
    }
    cpu->run.workspace = bed_floats(workspace / sizeof(float) + 1);
}

static bed_layer_t *cpu_make(const image_layer_t *image, const image_case_t *c)
{
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];
    bed_layer_t *cpu;
    int i;

    make_descs(c, 0, in);
    cpu = bed_cpu_layer(c->type, c->attrs, n_attrs(c), in, c->n_inputs);
    if (!c->is_data) {
        plan_anew(cpu, in);
    }
    cpu->run.step = image->run.step;
    for (i = 0; i < c->n_inputs; i++) {
        cpu->run.in[i] = image->in[i];
        cpu->run.din[i] = c->is_data ? NULL : bed_floats(n_of(&in[i]));
    }
    cpu->run.out = bed_floats(sl_tensor_bytes(&cpu->plan.out) / sizeof(float));
    cpu->run.dout = in_order(&cpu->plan.out, image->dout, 0);
    for (i = 0; i < cpu->layer->n_params; i++) {
        const sl_param_t *param = &cpu->layer->params[i];

        cpu->run.param[i] = bed_floats(param->storage_bytes / sizeof(float));
        if (image->param[i] != NULL) {
            sl_assert_ok(sl_layer_param_pack(cpu->layer, SL_DEVICE_KIND_CPU, i,
                                             image->param[i],
                                             cpu->run.param[i]));
        }
        if (param->kind == SL_PARAM_TRAINED) {
            cpu->run.grad[i] = bed_floats(param->storage_bytes / sizeof(float));
        }
    }
    return cpu;
}

static float *cpu_plain(bed_layer_t *cpu, int p, const void *storage)
{
    float *plain =
        bed_floats((size_t)sl_tensor_elements(&cpu->layer->params[p].desc));

    sl_assert_ok(sl_layer_param_unpack(cpu->layer, SL_DEVICE_KIND_CPU, p,
                                       storage, plain));
    return plain;
}

/* ---- comparisons ---- */

static float *device_plain(image_layer_t *image, int p, const void *array)
{
    const sl_param_t *param = &image->layer->params[p];
    float *storage = bed_floats(param->storage_bytes / sizeof(float));
    float *plain = bed_floats((size_t)sl_tensor_elements(&param->desc));

    bed_fetch_bytes(storage, array, param->storage_bytes);
    sl_assert_ok(sl_layer_param_unpack(image->layer, SL_DEVICE_KIND_CUDA, p,
                                       storage, plain));
    return plain;
}

/* factor * want (+ prev): a rounding to the type at the end and one before it
 * (of a sum that something is added to), and sums in fp32 in another order. */
static void compare(const char *what, const image_case_t *c,
                    sl_cuda_type_t type, const float *got, const float *want,
                    const float *prev, size_t n, double factor)
{
    const double terms = c->terms > 0 ? c->terms : 32;
    const double sums = c->is_tf32 ? 0x1p-10 : (4 + sqrt(terms)) * 0x1p-23;
    double *expected = bed_doubles(n);
    double most = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        expected[i] = factor * (double)want[i];
        most = fmax(most, fabs((double)want[i]));
        if (prev != NULL) {
            expected[i] += (double)prev[i];
        }
    }
    bed_assert_close(
        what, got, expected, n, bed_epsilon(type) + sums,
        most * (factor * sums + (type == SL_CUDA_F32 ? 0 : bed_epsilon(type))));
}

static void check_forward(image_layer_t *image, bed_layer_t *cpu,
                          const image_case_t *c)
{
    const sl_tensor_desc_t *out = &image->plan.out;

    run_forward(image);
    bed_cpu_forward(cpu);
    compare("out", c, type_of(out), image_fetch(out, image->run.out),
            in_order(&cpu->plan.out, cpu->run.out, 1), NULL, n_of(out), 1);
}

static void compare_gradients(image_layer_t *image, bed_layer_t *cpu,
                              const image_case_t *c, double factor)
{
    int i;

    for (i = 0; i < c->n_inputs; i++) {
        const sl_tensor_desc_t *in = &image->plan.in[i];

        if (image->run.din[i] != NULL) {
            compare("din", c, type_of(in), image_fetch(in, image->run.din[i]),
                    cpu->run.din[i], NULL, n_of(in), 1);
        }
    }
    for (i = 0; i < image->layer->n_params; i++) {
        if (image->run.grad[i] != NULL) {
            compare("gradient", c, c->dtype,
                    device_plain(image, i, image->run.grad[i]),
                    cpu_plain(cpu, i, cpu->run.grad[i]), NULL,
                    (size_t)sl_tensor_elements(&image->layer->params[i].desc),
                    factor);
        }
    }
}

/* Backward may read only what the plan keeps. */
static void hide_what_is_not_kept(image_layer_t *image)
{
    int i;

    for (i = 0; i < image->layer->n_inputs; i++) {
        if (!image->plan.keeps_input[i]) {
            image->run.in[i] = NULL;
        }
    }
    if (!image->plan.keeps_output) {
        image->run.out = NULL;
    }
}

/* din = gradient + prev, with prev elsewhere and in din. */
static void check_prev(image_layer_t *image, bed_layer_t *cpu,
                       const image_case_t *c, int i)
{
    const sl_tensor_desc_t *in = &image->plan.in[i];
    const size_t n = n_of(in);
    float *prev = rounded(type_of(in), bed_random(n, 70, 1.0f), n);
    void *din = image->run.din[i];
    float *apart;

    image->run.din_prev[i] = upload(in, prev);
    run_backward(image);
    apart = image_fetch(in, din);
    compare("din + prev", c, type_of(in), apart, cpu->run.din[i], prev, n, 1);
    image->run.din[i] = upload(in, prev);
    image->run.din_prev[i] = image->run.din[i];
    run_backward(image);
    bed_assert_same("din + prev in place", image_fetch(in, image->run.din[i]),
                    apart, n);
    image->run.din[i] = din;
    image->run.din_prev[i] = NULL;
}

/* Without one result the others have the same bits. */
static void check_partial(image_layer_t *image)
{
    const sl_tensor_desc_t *in = &image->plan.in[0];
    void *din = image->run.din[0];
    void *grad = image->run.grad[0];
    float *whole;

    run_backward(image);
    if (grad != NULL) {
        whole = device_plain(image, 0, grad);
        image->run.din[0] = NULL;
        run_backward(image);
        bed_assert_same(
            "gradient without din", device_plain(image, 0, grad), whole,
            (size_t)sl_tensor_elements(&image->layer->params[0].desc));
        image->run.din[0] = din;
    }
    if (din != NULL) {
        whole = image_fetch(in, din);
        image->run.grad[0] = NULL;
        run_backward(image);
        bed_assert_same("din without a gradient", image_fetch(in, din), whole,
                        n_of(in));
        image->run.grad[0] = grad;
    }
}

static void run_both(void *args)
{
    run_forward(args);
    run_backward(args);
}

static void check_repeats(image_layer_t *image)
{
    bed_output_t outputs[2 + SL_LAYER_MAX_INPUTS + SL_LAYER_MAX_PARAMS];
    size_t n = 0;
    int i;

    outputs[n++] =
        (bed_output_t){image->run.out, sl_tensor_bytes(&image->plan.out)};
    for (i = 0; i < image->layer->n_inputs; i++) {
        if (image->run.din[i] != NULL) {
            outputs[n++] = (bed_output_t){image->run.din[i],
                                          sl_tensor_bytes(&image->plan.in[i])};
        }
    }
    for (i = 0; i < image->layer->n_params; i++) {
        if (image->run.grad[i] != NULL) {
            outputs[n++] = (bed_output_t){
                image->run.grad[i], image->layer->params[i].storage_bytes};
        }
    }
    bed_assert_repeats(run_both, image, outputs, n);
}

/* Gradients are added to, and the running statistics follow the mini-batch. */
static void check_adding(image_layer_t *image, bed_layer_t *cpu,
                         const image_case_t *c)
{
    int i;

    image->run.step.is_first_backward = 0;
    run_backward(image);
    compare_gradients(image, cpu, c, 2);
    image->run.step.is_first_backward = 1;
    for (i = 0; i < c->n_inputs; i++) {
        if ((image->plan.accumulates >> i & 1) != 0 &&
            image->run.din[i] != NULL) {
            check_prev(image, cpu, c, i);
        }
    }
}

static void check_finish(image_layer_t *image, bed_layer_t *cpu,
                         const image_case_t *c)
{
    int i;

    if (kernels_of(image)->finish_batch == NULL) {
        return;
    }
    sl_assert_ok(kernels_of(image)->finish_batch(&image->run, image_stream()));
    sl_assert_ok(cpu->layer->ops->kernels[SL_DEVICE_KIND_CPU]->finish_batch(
        &cpu->run, NULL));
    for (i = 0; i < image->layer->n_params; i++) {
        if (image->layer->params[i].kind == SL_PARAM_STATISTIC) {
            compare("statistic", c, SL_CUDA_F32,
                    device_plain(image, i, image->run.param[i]),
                    cpu_plain(cpu, i, cpu->run.param[i]), NULL,
                    (size_t)sl_tensor_elements(&image->layer->params[i].desc),
                    1);
        }
    }
}

sl_status_t image_run_all(const image_layer_t *image)
{
    const sl_layer_kernels_t *kernels = kernels_of(image);
    sl_layer_run_t run = image->run;
    sl_layer_plan_t plan;
    sl_status_t status;

    SL_TRY(status,
           sl_layer_plan_init(&plan, image->layer, SL_DEVICE_KIND_CUDA, 1, 1,
                              image->plan.in),
           out);
    run.plan = &plan;
    SL_TRY(status, kernels->forward(&run, image_stream()), err_plan);
    status = kernels->backward(&run, image_stream());
err_plan:
    sl_layer_plan_cleanup(&plan);
out:
    return status;
}

#ifdef SL_CUDA_STANDIN
/* Whether the failure of an entry point passes unseen: another algorithm of a
 * convolution is taken, or it only releases. */
static int is_tolerated(const char *name)
{
    return (strstr(name, "Convolution") != NULL &&
            strstr(name, "WorkspaceSize") != NULL) ||
           strstr(name, "Destroy") != NULL;
}

static int is_other(const char *name, const char *const *others)
{
    int i;

    for (i = 0; others[i] != NULL; i++) {
        if (strstr(name, others[i]) != NULL) {
            return 1;
        }
    }
    return strncmp(name, "cudnnBackend", 12) == 0;
}

static void fail_once(const image_layer_t *image, standin_entry_t entry,
                      cudnnStatus_t code, sl_status_t want)
{
    const int n_live = standin_n_live();

    standin_fail(entry, 1, (cudaError_t)code, STANDIN_FAIL_CALL);
    if (is_tolerated(standin_entry_name(entry))) {
        sl_assert_ok(image_run_all(image));
    } else {
        sl_assert_status(image_run_all(image), want);
        sl_assert_contains(sl_last_error(), "cudnn");
    }
    image_end();
    assert_true(standin_has_failed());
    assert_int_equal(standin_n_live(), n_live);
}

void image_check_failures(const image_case_t *c, const char *const *others)
{
    static const standin_entry_t entries[] = {
#define X(name) STANDIN_##name,
        SL_STANDIN_DNN_MAP(X)
#undef X
    };
    image_layer_t image;
    size_t i;

    image_layer_make(&image, c);
    for (i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        if (!is_other(standin_entry_name(entries[i]), others)) {
            fail_once(&image, entries[i], CUDNN_STATUS_BAD_PARAM,
                      SL_ERR_DEVICE);
            fail_once(&image, entries[i],
                      CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
                      SL_ERR_NO_MEMORY);
        }
    }
    sl_assert_ok(image_run_all(&image));
    image_layer_free(&image);
    image_end();
}
#endif

void image_check(const image_case_t *c)
{
    const void *in[SL_LAYER_MAX_INPUTS];
    image_layer_t image;
    bed_layer_t *cpu;
    void *out;

    image_layer_make(&image, c);
    cpu = cpu_make(&image, c);
    check_forward(&image, cpu, c);
    if (!c->is_evaluation) {
        memcpy(in, image.run.in, sizeof(in));
        out = image.run.out;
        hide_what_is_not_kept(&image);
        run_backward(&image);
        bed_cpu_backward(cpu);
        compare_gradients(&image, cpu, c, 1);
        check_adding(&image, cpu, c);
        check_partial(&image);
        check_finish(&image, cpu, c);
        memcpy(image.run.in, in, sizeof(in));
        image.run.out = out;
        check_repeats(&image);
    }
    image_layer_free(&image);
    image_end();
}

void image_check_all(image_case_t c)
{
    static const sl_layout_t layouts[] = {SL_LAYOUT_CHANNELS_LAST,
                                          SL_LAYOUT_PLAIN};
    int type, i, k;

    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        for (i = 0; i < 2; i++) {
            c.dtype = (sl_cuda_type_t)type;
            for (k = 0; k < c.n_inputs; k++) {
                c.layouts[k] = layouts[i];
            }
            image_check(&c);
        }
    }
}

void image_check_both(image_case_t c)
{
    image_check_all(c);
    c.is_dnn = 1;
    image_check_all(c);
}
