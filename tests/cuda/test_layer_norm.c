/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm on a CUDA device. */
#include <math.h>
#include <string.h>

#include "tests/cuda/kernel_bed.h"

typedef struct norm {
    sl_cuda_type_t type;
    size_t rows, width, n;
    float *x, *weight, *bias, *dout, *prev;
    float *grads[2]; /* before */
    double *y, *din, *dweight, *dbias;
    sl_cuda_layer_norm_t args;
} norm_t;

static const double eps = 1e-5;

/* out[width] of one row in double. */
static void row_forward(const norm_t *norm, const double *x, double *y)
{
    const size_t n = norm->width;
    double mean = 0, variance = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        mean += x[i] / (double)n;
    }
    for (i = 0; i < n; i++) {
        variance += (x[i] - mean) * (x[i] - mean) / (double)n;
    }
    for (i = 0; i < n; i++) {
        y[i] = (x[i] - mean) / sqrt(variance + eps) * (double)norm->weight[i] +
               (double)norm->bias[i];
    }
}

/* The layer in double: gradients by the formula, checked below. */
static void reference(norm_t *norm)
{
    const size_t n = norm->width;
    double *x = bed_doubles(n);
    size_t row, i;

    memset(norm->dweight, 0, n * sizeof(double));
    memset(norm->dbias, 0, n * sizeof(double));
    for (row = 0; row < norm->rows; row++) {
        const float *dout = norm->dout + row * n;
        double mean = 0, variance = 0, sum = 0, dot = 0, inverse;

        for (i = 0; i < n; i++) {
            x[i] = (double)norm->x[row * n + i];
            mean += x[i] / (double)n;
        }
        for (i = 0; i < n; i++) {
            variance += (x[i] - mean) * (x[i] - mean) / (double)n;
        }
        inverse = 1 / sqrt(variance + eps);
        row_forward(norm, x, norm->y + row * n);
        for (i = 0; i < n; i++) {
            const double g = (double)dout[i] * (double)norm->weight[i];
            const double xhat = (x[i] - mean) * inverse;

            sum += g / (double)n;
            dot += g * xhat / (double)n;
            norm->dweight[i] += (double)dout[i] * xhat;
            norm->dbias[i] += (double)dout[i];
        }
        for (i = 0; i < n; i++) {
            norm->din[row * n + i] =
                inverse * ((double)dout[i] * (double)norm->weight[i] - sum -
                           (x[i] - mean) * inverse * dot);
        }
    }
}

static norm_t *norm_make(norm_t *norm, sl_cuda_type_t type, size_t rows,
                         size_t width)
{
    const size_t n = rows * width;
    size_t i;

    memset(norm, 0, sizeof(*norm));
    norm->type = type;
    norm->rows = rows;
    norm->width = width;
    norm->n = n;
    norm->x = bed_random(n, 1, 2);
    norm->weight = bed_random(width, 2, 1);
    norm->bias = bed_random(width, 3, 1);
    norm->dout = bed_random(n, 4, 1);
    norm->prev = bed_random(n, 5, 1);
    norm->grads[0] = bed_random(width, 6, 1);
    norm->grads[1] = bed_random(width, 7, 1);
    for (i = 0; i < n; i++) {
        norm->x[i] += 3; /* a mean that is not small */
    }
    norm->y = bed_doubles(n);
    norm->din = bed_doubles(n);
    norm->dweight = bed_doubles(width);
    norm->dbias = bed_doubles(width);
    norm->args = (sl_cuda_layer_norm_t){.type = type,
                                        .rows = (int64_t)rows,
                                        .width = (int64_t)width,
                                        .eps = eps,
                                        .is_first = 1};
    norm->args.in = bed_upload(type, norm->x, n, 1);
    norm->args.weight = bed_upload(SL_CUDA_F32, norm->weight, width, 0);
    norm->args.bias = bed_upload(SL_CUDA_F32, norm->bias, width, 0);
    norm->args.out = bed_array(type, n, 0);
    norm->args.saved = bed_array(SL_CUDA_F32, 2 * rows, 0);
    norm->args.dout = bed_upload(type, norm->dout, n, 0);
    norm->args.din = bed_array(type, n, 0);
    norm->args.dweight = bed_array(SL_CUDA_F32, width, 0);
    norm->args.dbias = bed_array(SL_CUDA_F32, width, 0);
    norm->args.workspace = bed_bytes(
        sl_cuda_layer_norm_workspace_bytes((int64_t)rows, (int64_t)width));
    return norm;
}

static void run_both(void *args)
{
    sl_assert_ok(sl_cuda_layer_norm_forward(args, bed_stream()));
    sl_assert_ok(sl_cuda_layer_norm_backward(args, bed_stream()));
}

static void check_outputs(norm_t *norm)
{
    const double e = bed_epsilon(norm->type);
    const double root = sqrt((double)norm->rows);

    bed_assert_close("out", bed_fetch(norm->type, norm->args.out, norm->n),
                     norm->y, norm->n, e + 2e-6, 2e-6);
    bed_assert_close("din", bed_fetch(norm->type, norm->args.din, norm->n),
                     norm->din, norm->n, e + 4e-6, 4e-6);
    bed_assert_close("dweight",
                     bed_fetch(SL_CUDA_F32, norm->args.dweight, norm->width),
                     norm->dweight, norm->width, 4e-6, 4e-6 * root);
    bed_assert_close("dbias",
                     bed_fetch(SL_CUDA_F32, norm->args.dbias, norm->width),
                     norm->dbias, norm->width, 4e-6, 4e-6 * root);
}

/* Accumulation, on top of what a first pass left. */
static void check_adding(norm_t *norm)
{
    const size_t n = norm->n, width = norm->width;
    const double e = bed_epsilon(norm->type);
    size_t i;

    norm->args.prev = bed_upload(norm->type, norm->prev, n, 0);
    norm->args.dweight = bed_upload(SL_CUDA_F32, norm->grads[0], width, 0);
    norm->args.dbias = bed_upload(SL_CUDA_F32, norm->grads[1], width, 0);
    norm->args.is_first = 0;
    sl_assert_ok(sl_cuda_layer_norm_backward(&norm->args, bed_stream()));
    for (i = 0; i < n; i++) {
        norm->din[i] += (double)norm->prev[i];
    }
    for (i = 0; i < width; i++) {
        norm->dweight[i] += (double)norm->grads[0][i];
        norm->dbias[i] += (double)norm->grads[1][i];
    }
    bed_assert_close("din + prev", bed_fetch(norm->type, norm->args.din, n),
                     norm->din, n, e + 4e-6, 4e-6);
    bed_assert_close(
        "dweight +", bed_fetch(SL_CUDA_F32, norm->args.dweight, width),
        norm->dweight, width, 4e-6, 4e-6 * sqrt((double)norm->rows + 1));
}

static const struct {
    size_t rows, width;
} shapes[] = {{1, 1},    {1, 7},    {5, 33},   {3, 128},  {70, 65},  {2, 1000},
              {9, 1025}, {200, 31}, {3, 2056}, {2, 4096}, {3, 4100}, {600, 16}};

enum {
    N_SHAPES = sizeof(shapes) / sizeof(*shapes)
};

static void it_is_right(void **state)
{
    norm_t norm;
    size_t s;
    int type;

    (void)state;
    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        for (s = 0; s < N_SHAPES; s++) {
            norm_make(&norm, (sl_cuda_type_t)type, shapes[s].rows,
                      shapes[s].width);
            reference(&norm);
            run_both(&norm.args);
            check_outputs(&norm);
            check_adding(&norm);
        }
    }
}

/* din against central differences of the sum of dout * out in double. */
static void gradients_are_differences(void **state)
{
    norm_t norm;
    double *x, *y;
    float *din;
    size_t i, k;

    (void)state;
    norm_make(&norm, SL_CUDA_F32, 1, 19);
    run_both(&norm.args);
    din = bed_fetch(SL_CUDA_F32, norm.args.din, 19);
    x = bed_doubles(19);
    y = bed_doubles(19);
    for (k = 0; k < 19; k++) {
        const double h = 1e-5;
        double slope = 0;
        int side;

        for (side = -1; side <= 1; side += 2) {
            for (i = 0; i < 19; i++) {
                x[i] = (double)norm.x[i] + (i == k ? side * h : 0);
            }
            row_forward(&norm, x, y);
            for (i = 0; i < 19; i++) {
                slope += side * y[i] * (double)norm.dout[i] / (2 * h);
            }
        }
        bed_assert_close("slope", &din[k], &slope, 1, 1e-5, 1e-5);
    }
}

static void bits_repeat(void **state)
{
    norm_t norm;
    bed_output_t outputs[4];

    (void)state;
    norm_make(&norm, SL_CUDA_F32, 150, 300);
    outputs[0] = (bed_output_t){norm.args.out, norm.n * sizeof(float)};
    outputs[1] = (bed_output_t){norm.args.din, norm.n * sizeof(float)};
    outputs[2] = (bed_output_t){norm.args.dweight, 300 * sizeof(float)};
    outputs[3] = (bed_output_t){norm.args.dbias, 300 * sizeof(float)};
    bed_assert_repeats(run_both, &norm.args, outputs, 4);
}

static void it_agrees_with_the_cpu(void **state)
{
    const int64_t dims[] = {37, 129};
    const sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 2, dims);
    const sl_attr_t attr = {.name = "eps", .number = eps};
    bed_layer_t *cpu = bed_cpu_layer("layer_norm", &attr, 1, &in, 1);
    norm_t norm;

    (void)state;
    norm_make(&norm, SL_CUDA_F32, 37, 129);
    run_both(&norm.args);
    cpu->run.in[0] = norm.x;
    cpu->run.out = bed_floats(norm.n);
    cpu->run.dout = norm.dout;
    cpu->run.din[0] = bed_floats(norm.n);
    cpu->run.param[0] = norm.weight;
    cpu->run.param[1] = norm.bias;
    cpu->run.grad[0] = bed_floats(norm.width);
    cpu->run.grad[1] = bed_floats(norm.width);
    cpu->run.step.is_first_backward = 1;
    bed_cpu_forward(cpu);
    bed_cpu_backward(cpu);
    sl_assert_close(bed_fetch(SL_CUDA_F32, norm.args.out, norm.n), cpu->run.out,
                    norm.n, 3e-6, 3e-6);
    sl_assert_close(bed_fetch(SL_CUDA_F32, norm.args.din, norm.n),
                    cpu->run.din[0], norm.n, 1e-5, 1e-5);
    sl_assert_close(bed_fetch(SL_CUDA_F32, norm.args.dweight, norm.width),
                    cpu->run.grad[0], norm.width, 1e-5, 2e-5);
    sl_assert_close(bed_fetch(SL_CUDA_F32, norm.args.dbias, norm.width),
                    cpu->run.grad[1], norm.width, 1e-5, 2e-5);
}

/* Frozen parameters, no input gradient, evaluation, no rows. */
static void parts_can_be_left_out(void **state)
{
    norm_t norm;

    (void)state;
    norm_make(&norm, SL_CUDA_F32, 5, 33);
    reference(&norm);
    norm.args.saved = NULL;
    sl_assert_ok(sl_cuda_layer_norm_forward(&norm.args, bed_stream()));
    bed_assert_close("out", bed_fetch(SL_CUDA_F32, norm.args.out, norm.n),
                     norm.y, norm.n, 2e-6, 2e-6);
    norm_make(&norm, SL_CUDA_F32, 5, 33);
    reference(&norm);
    norm.args.dbias = NULL;
    norm.args.din = NULL;
    run_both(&norm.args);
    bed_assert_close("dweight",
                     bed_fetch(SL_CUDA_F32, norm.args.dweight, norm.width),
                     norm.dweight, norm.width, 1e-5, 1e-5);
    norm.args.rows = 0;
    run_both(&norm.args);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(it_is_right),           BED_TEST(gradients_are_differences),
        BED_TEST(bits_repeat),           BED_TEST(it_agrees_with_the_cpu),
        BED_TEST(parts_can_be_left_out),
    };

    return bed_has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
