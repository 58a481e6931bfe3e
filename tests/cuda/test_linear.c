/* SPDX-License-Identifier: Apache-2.0 */
/* The layer type linear on a CUDA device. */
#include <math.h>
#include <string.h>

#include "tests/cuda/layer_run.h"
#ifdef SL_CUDA_STANDIN
#include "tests/cuda_standin/blas.h"
#endif

/* A layer with its tensors, and what it must give; x may be of another type
 * than all else. */
typedef struct linear {
    layer_run_t *layer;
    sl_cuda_type_t type, x_type;
    size_t rows, in, out;
    int has_bias;
    float *x, *weight, *bias, *dout, *prev, *grads[2];
    double *y, *dx, *dweight, *dbias;
} linear_t;

static linear_t make_typed(sl_cuda_type_t x_type, sl_cuda_type_t type,
                           size_t rows, size_t in, size_t out, int has_bias)
{
    const int64_t dims[] = {(int64_t)rows, (int64_t)in};
    const sl_tensor_desc_t desc = sl_tensor_desc(run_dtype(x_type), 2, dims);
    const sl_attr_t attrs[] = {{.name = "out", .number = (double)out},
                               {.name = "bias", .number = has_bias}};
    linear_t linear = {.type = type,
                       .x_type = x_type,
                       .rows = rows,
                       .in = in,
                       .out = out,
                       .has_bias = has_bias};
    sl_layer_run_t *run;

    linear.layer = run_layer("linear", attrs, 2, &desc, 1, run_dtype(type), 1);
    run = &linear.layer->run;
    linear.x = bed_random(rows * in, 1, 1);
    linear.weight = bed_random(out * in, 2, 0.5f);
    linear.bias = bed_random(out, 3, 1);
    linear.dout = bed_random(rows * out, 4, 1);
    linear.prev = bed_random(rows * in, 5, 1);
    linear.grads[0] = bed_random(out * in, 6, 1);
    linear.grads[1] = bed_random(out, 7, 1);
    run->in[0] = bed_upload(x_type, linear.x, rows * in, 0);
    run->param[0] = bed_upload(SL_CUDA_F32, linear.weight, out * in, 0);
    run->out = bed_array(type, rows * out, 0);
    run->dout = bed_upload(type, linear.dout, rows * out, 0);
    run->din[0] = bed_array(x_type, rows * in, 0);
    run->grad[0] = bed_array(SL_CUDA_F32, out * in, 0);
    if (has_bias) {
        run->param[1] = bed_upload(SL_CUDA_F32, linear.bias, out, 0);
        run->grad[1] = bed_array(SL_CUDA_F32, out, 0);
    }
    linear.y = bed_doubles(rows * out);
    linear.dx = bed_doubles(rows * in);
    linear.dweight = bed_doubles(out * in);
    linear.dbias = bed_doubles(out);
    return linear;
}

static linear_t make(sl_cuda_type_t type, size_t rows, size_t in, size_t out,
                     int has_bias)
{
    return make_typed(type, type, rows, in, out, has_bias);
}

/* The layer in double, with factors as the products get them. */
static void reference(linear_t *l)
{
    size_t r, i, o;

    for (o = 0; o < l->out; o++) {
        for (r = 0; r < l->rows; r++) {
            const double d = (double)l->dout[r * l->out + o];
            double sum =
                l->has_bias ? bed_round(l->type, (double)l->bias[o]) : 0;

            l->dbias[o] += d;
            for (i = 0; i < l->in; i++) {
                const double x =
                    bed_round(l->type, (double)l->x[r * l->in + i]);
                const double w =
                    bed_round(l->type, (double)l->weight[o * l->in + i]);

                sum += x * w;
                l->dx[r * l->in + i] += d * w;
                l->dweight[o * l->in + i] += d * x;
            }
            l->y[r * l->out + o] = sum;
        }
    }
}

/* Sums of n products of numbers of about 1, in fp32. */
static double slack(size_t n)
{
    return 4e-7 * sqrt((double)n) * 8 + 1e-6;
}

static void check_outputs(const linear_t *l, const char *when)
{
    const sl_layer_run_t *run = &l->layer->run;
    const double e = bed_epsilon(l->type) + 1e-6;

    (void)when;
    bed_assert_close("out", bed_fetch(l->type, run->out, l->rows * l->out),
                     l->y, l->rows * l->out, e, slack(l->in));
    bed_assert_close("din", bed_fetch(l->x_type, run->din[0], l->rows * l->in),
                     l->dx, l->rows * l->in, bed_epsilon(l->x_type) + 1e-6,
                     slack(l->out));
    bed_assert_close("dweight",
                     bed_fetch(SL_CUDA_F32, run->grad[0], l->out * l->in),
                     l->dweight, l->out * l->in, 1e-6, slack(l->rows));
    if (l->has_bias) {
        bed_assert_close("dbias", bed_fetch(SL_CUDA_F32, run->grad[1], l->out),
                         l->dbias, l->out, 1e-6, slack(l->rows));
    }
}

/* What comes on top of earlier gradients; prev is another tensor, or din. */
static void check_adding(linear_t *l, int is_in_place)
{
    sl_layer_run_t *run = &l->layer->run;
    size_t i;

    run->din_prev[0] = bed_upload(l->x_type, l->prev, l->rows * l->in, 0);
    run->din[0] = is_in_place ? (void *)(uintptr_t)run->din_prev[0]
                              : bed_array(l->x_type, l->rows * l->in, 0);
    run->grad[0] = bed_upload(SL_CUDA_F32, l->grads[0], l->out * l->in, 0);
    if (l->has_bias) {
        run->grad[1] = bed_upload(SL_CUDA_F32, l->grads[1], l->out, 0);
    }
    run->step.is_first_backward = 0;
    run_backward(l->layer);
    for (i = 0; i < l->rows * l->in; i++) {
        l->dx[i] += (double)l->prev[i];
    }
    for (i = 0; i < l->out * l->in; i++) {
        l->dweight[i] += (double)l->grads[0][i];
    }
    for (i = 0; i < l->out; i++) {
        l->dbias[i] += (double)l->grads[1][i];
    }
    check_outputs(l, "added");
}

static const struct {
    size_t rows, in, out;
} shapes[] = {{1, 1, 1},   {3, 5, 7},    {64, 32, 48}, {70, 33, 10},
              {2, 130, 1}, {129, 8, 65}, {5, 1, 9}};

enum {
    N_SHAPES = sizeof(shapes) / sizeof(*shapes)
};

static void check_shapes(void)
{
    size_t s;
    int type;

    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        for (s = 0; s < N_SHAPES; s++) {
            linear_t l = make((sl_cuda_type_t)type, shapes[s].rows,
                              shapes[s].in, shapes[s].out, s % 3 != 2);

            reference(&l);
            run_forward(l.layer);
            run_backward(l.layer);
            check_outputs(&l, "first");
            check_adding(&l, s % 2);
        }
    }
}

static void it_is_right(void **state)
{
    (void)state;
    check_shapes();
}

#ifdef SL_CUDA_STANDIN
/* The library may lack the bias on the side of a product. */
static void it_is_right_without_epilogues(void **state)
{
    (void)state;
    standin_blas_refuse(CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB);
    check_shapes();
}

/* No product at all: the message says whose. */
static void no_algorithm_is_told(void **state)
{
    const int64_t dims[] = {4, 6};
    const sl_tensor_desc_t desc = sl_tensor_desc(SL_DTYPE_BF16, 2, dims);
    linear_t l = make(SL_CUDA_BF16, 4, 6, 8, 1);
    sl_layer_plan_t plan;

    (void)state;
    standin_blas_refuse(CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB |
                        CUBLASLT_EPILOGUE_DEFAULT);
    sl_assert_status(sl_layer_plan_init(&plan, l.layer->layer,
                                        SL_DEVICE_KIND_CUDA, 1, 1, &desc),
                     SL_ERR_UNSUPPORTED);
    sl_assert_contains(sl_last_error(), "(linear), forward");
    sl_assert_contains(sl_last_error(), "bf16 [4, 6] by [6, 8]");
}
#endif

/* A model's data is fp32 where its activations are not. */
static void the_input_may_be_fp32(void **state)
{
    int type;

    (void)state;
    for (type = SL_CUDA_BF16; type < SL_CUDA_N_TYPES; type++) {
        linear_t l =
            make_typed(SL_CUDA_F32, (sl_cuda_type_t)type, 9, 17, 12, 1);

        reference(&l);
        run_forward(l.layer);
        run_backward(l.layer);
        check_outputs(&l, "first");
        check_adding(&l, 0);
    }
}

static void it_agrees_with_the_cpu(void **state)
{
    const int64_t dims[] = {37, 129};
    const sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 2, dims);
    const sl_attr_t attr = {.name = "out", .number = 50};
    bed_layer_t *cpu = bed_cpu_layer("linear", &attr, 1, &in, 1);
    linear_t l = make(SL_CUDA_F32, 37, 129, 50, 1);

    (void)state;
    run_forward(l.layer);
    run_backward(l.layer);
    cpu->run.in[0] = l.x;
    cpu->run.out = bed_floats(37 * 50);
    cpu->run.dout = l.dout;
    cpu->run.din[0] = bed_floats(37 * 129);
    cpu->run.param[0] = l.weight;
    cpu->run.param[1] = l.bias;
    cpu->run.grad[0] = bed_floats(50 * 129);
    cpu->run.grad[1] = bed_floats(50);
    cpu->run.step.is_first_backward = 1;
    bed_cpu_forward(cpu);
    bed_cpu_backward(cpu);
    sl_assert_close(bed_fetch(SL_CUDA_F32, l.layer->run.out, 37 * 50),
                    cpu->run.out, 37 * 50, 1e-5, 1e-5);
    sl_assert_close(bed_fetch(SL_CUDA_F32, l.layer->run.din[0], 37 * 129),
                    cpu->run.din[0], 37 * 129, 1e-5, 1e-5);
    sl_assert_close(bed_fetch(SL_CUDA_F32, l.layer->run.grad[0], 50 * 129),
                    cpu->run.grad[0], 50 * 129, 1e-5, 2e-5);
    sl_assert_close(bed_fetch(SL_CUDA_F32, l.layer->run.grad[1], 50),
                    cpu->run.grad[1], 50, 1e-5, 2e-5);
}

/* Frozen parameters, no input gradient: the others are as they were. */
static void parts_can_be_left_out(void **state)
{
    linear_t l = make(SL_CUDA_BF16, 9, 17, 12, 1);
    sl_layer_run_t *run = &l.layer->run;
    const sl_layer_run_t all = *run;
    int without;

    (void)state;
    reference(&l);
    run_forward(l.layer);
    for (without = 0; without < 8; without++) {
        *run = all;
        run->din[0] = without & 1 ? NULL : bed_array(l.type, 9 * 17, 0);
        run->grad[0] = without & 2 ? NULL : bed_array(SL_CUDA_F32, 12 * 17, 0);
        run->grad[1] = without & 4 ? NULL : bed_array(SL_CUDA_F32, 12, 0);
        run_backward(l.layer);
        if (run->din[0] != NULL) {
            bed_assert_close("din", bed_fetch(l.type, run->din[0], 9 * 17),
                             l.dx, 9 * 17, bed_epsilon(l.type) + 1e-6,
                             slack(12));
        }
        if (run->grad[0] != NULL) {
            bed_assert_close("dweight",
                             bed_fetch(SL_CUDA_F32, run->grad[0], 12 * 17),
                             l.dweight, 12 * 17, 1e-6, slack(9));
        }
        if (run->grad[1] != NULL) {
            bed_assert_close("dbias", bed_fetch(SL_CUDA_F32, run->grad[1], 12),
                             l.dbias, 12, 1e-6, slack(9));
        }
    }
}

static void run_both(void *args)
{
    run_forward(args);
    run_backward(args);
}

static void bits_repeat(void **state)
{
    int type;

    (void)state;
    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        linear_t l = make((sl_cuda_type_t)type, 150, 70, 90, 1);
        const sl_layer_run_t *run = &l.layer->run;
        const size_t size = sl_cuda_type_bytes(l.type);
        const bed_output_t outputs[] = {{run->out, 150 * 90 * size},
                                        {run->din[0], 150 * 70 * size},
                                        {run->grad[0], 90 * 70 * sizeof(float)},
                                        {run->grad[1], 90 * sizeof(float)}};

        bed_assert_repeats(run_both, l.layer, outputs, 4);
        bed_assert_repeats(run_both, l.layer, outputs, 4);
    }
}

/* A plan for evaluation makes no gradients and keeps nothing. */
static void evaluation_keeps_nothing(void **state)
{
    const int64_t dims[] = {2, 3, 6};
    const sl_tensor_desc_t desc = sl_tensor_desc(SL_DTYPE_F16, 3, dims);
    const sl_attr_t attr = {.name = "out", .number = 8};
    layer_run_t *layer =
        run_layer("linear", &attr, 1, &desc, 1, SL_DTYPE_F16, 0);
    linear_t l = make(SL_CUDA_F16, 6, 6, 8, 1);

    (void)state;
    assert_false(layer->plan.keeps_input[0]);
    assert_int_equal(layer->plan.backward_workspace_bytes, 0);
    assert_int_equal(layer->plan.saved_bytes, 0);
    reference(&l);
    layer->run.in[0] = l.layer->run.in[0];
    layer->run.param[0] = l.layer->run.param[0];
    layer->run.param[1] = l.layer->run.param[1];
    layer->run.out = bed_array(SL_CUDA_F16, 6 * 8, 0);
    run_forward(layer);
    bed_assert_close("out", bed_fetch(SL_CUDA_F16, layer->run.out, 6 * 8), l.y,
                     6 * 8, bed_epsilon(SL_CUDA_F16) + 1e-6, slack(6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN_TEST(it_is_right),
        RUN_TEST(the_input_may_be_fp32),
        RUN_TEST(it_agrees_with_the_cpu),
        RUN_TEST(parts_can_be_left_out),
        RUN_TEST(bits_repeat),
        RUN_TEST(evaluation_keeps_nothing),
#ifdef SL_CUDA_STANDIN
        RUN_TEST(it_is_right_without_epilogues),
        RUN_TEST(no_algorithm_is_told),
#endif
    };

    return bed_has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
