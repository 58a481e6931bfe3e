/* SPDX-License-Identifier: Apache-2.0 */
/* The layer type attention on a CUDA device. */
#include <math.h>
#include <string.h>

#include "tests/cuda/layer_run.h"

/* A layer with its tensors, and what it must give. */
typedef struct attention {
    layer_run_t *layer;
    sl_cuda_type_t type;
    size_t batch, heads, time, dim;
    size_t n; /* elements of out; qkv has 3 n */
    int is_causal;
    double p; /* of dropout */
    float *qkv, *dout, *prev;
    double *out, *dqkv;
} attention_t;

static attention_t make(sl_cuda_type_t type, size_t batch, size_t heads,
                        size_t time, size_t dim, int is_causal, double p)
{
    const int64_t dims[] = {(int64_t)batch, (int64_t)time,
                            (int64_t)(3 * heads * dim)};
    const sl_tensor_desc_t desc = sl_tensor_desc(run_dtype(type), 3, dims);
    const sl_attr_t attrs[] = {{.name = "heads", .number = (double)heads},
                               {.name = "causal", .number = is_causal},
                               {.name = "dropout", .number = p}};
    attention_t a = {.type = type,
                     .batch = batch,
                     .heads = heads,
                     .time = time,
                     .dim = dim,
                     .n = batch * time * heads * dim,
                     .is_causal = is_causal,
                     .p = p};
    sl_layer_run_t *run;

    a.layer = run_layer("attention", attrs, 3, &desc, 1, run_dtype(type), 1);
    run = &a.layer->run;
    a.qkv = bed_random(3 * a.n, 1, 1);
    a.dout = bed_random(a.n, 2, 1);
    a.prev = bed_random(3 * a.n, 3, 1);
    run->in[0] = bed_upload(type, a.qkv, 3 * a.n, 0);
    run->out = bed_array(type, a.n, 0);
    run->dout = bed_upload(type, a.dout, a.n, 0);
    run->din[0] = bed_array(type, 3 * a.n, 0);
    a.out = bed_doubles(a.n);
    a.dqkv = bed_doubles(3 * a.n);
    return a;
}

/* Of part 0 (query), 1 (key), 2 (value). */
static size_t in_at(const attention_t *a, size_t b, size_t t, size_t part,
                    size_t h)
{
    const size_t width = a->heads * a->dim;

    return (b * a->time + t) * 3 * width + part * width + h * a->dim;
}

static size_t out_at(const attention_t *a, size_t b, size_t t, size_t h)
{
    return ((b * a->time + t) * a->heads + h) * a->dim;
}

static double dot(const double *x, const double *y, size_t n)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

/* 0 where dropped, or 1 / (1 - p). */
static double mask_at(const attention_t *a, size_t b, size_t h, size_t i,
                      size_t j)
{
    const sl_step_info_t *step = &a->layer->run.step;
    const sl_rng_t rng = sl_rng_at(step->seed, step->step, step->micro_batch,
                                   (uint32_t)a->layer->layer->index,
                                   SL_RNG_USE_ATTENTION_DROPOUT);
    const uint64_t at = ((b * a->heads + h) * a->time + i) * a->time + j;

    return a->p > 0 && step->is_training &&
                   sl_rng_u32(&rng, at) < (uint32_t)(a->p * 0x1p32)
               ? 0
           : step->is_training ? 1 / (1 - a->p)
                               : 1;
}

/* A row's probabilities. */
static size_t probabilities(const attention_t *a, const double *x, size_t b,
                            size_t h, size_t i, double *p)
{
    const size_t n = a->is_causal ? i + 1 : a->time;
    double max = -INFINITY, sum = 0;
    size_t j;

    for (j = 0; j < n; j++) {
        p[j] = dot(x + in_at(a, b, i, 0, h), x + in_at(a, b, j, 1, h), a->dim) /
               sqrt((double)a->dim);
        max = p[j] > max ? p[j] : max;
    }
    for (j = 0; j < n; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    for (j = 0; j < n; j++) {
        p[j] /= sum;
    }
    return n;
}

static void forward_reference(const attention_t *a, const double *x,
                              double *out)
{
    double *p = bed_doubles(a->time);
    size_t b, h, i, j, k;

    memset(out, 0, a->n * sizeof(*out));
    for (b = 0; b < a->batch; b++) {
        for (h = 0; h < a->heads; h++) {
            for (i = 0; i < a->time; i++) {
                const size_t n = probabilities(a, x, b, h, i, p);

                for (j = 0; j < n; j++) {
                    const double factor = p[j] * mask_at(a, b, h, i, j);

                    for (k = 0; k < a->dim; k++) {
                        out[out_at(a, b, i, h) + k] +=
                            factor * x[in_at(a, b, j, 2, h) + k];
                    }
                }
            }
        }
    }
}

static void backward_row(const attention_t *a, const double *x,
                         const double *dout, size_t b, size_t h, size_t i,
                         double *p, double *dp)
{
    const size_t n = probabilities(a, x, b, h, i, p);
    const double scale = 1 / sqrt((double)a->dim);
    const double *d = dout + out_at(a, b, i, h);
    double delta = 0;
    size_t j, k;

    for (j = 0; j < n; j++) {
        dp[j] =
            mask_at(a, b, h, i, j) * dot(d, x + in_at(a, b, j, 2, h), a->dim);
        delta += p[j] * dp[j];
    }
    for (j = 0; j < n; j++) {
        const double ds = p[j] * (dp[j] - delta) * scale;
        const double masked = p[j] * mask_at(a, b, h, i, j);

        for (k = 0; k < a->dim; k++) {
            a->dqkv[in_at(a, b, i, 0, h) + k] +=
                ds * x[in_at(a, b, j, 1, h) + k];
            a->dqkv[in_at(a, b, j, 1, h) + k] +=
                ds * x[in_at(a, b, i, 0, h) + k];
            a->dqkv[in_at(a, b, j, 2, h) + k] += masked * d[k];
        }
    }
}

static double *to_doubles(const float *values, size_t n)
{
    double *made = bed_doubles(n);
    size_t i;

    for (i = 0; i < n; i++) {
        made[i] = (double)values[i];
    }
    return made;
}

/* The layer in double; its gradients are checked below. */
static void reference(attention_t *a)
{
    const double *x = to_doubles(a->qkv, 3 * a->n);
    const double *dout = to_doubles(a->dout, a->n);
    double *p = bed_doubles(a->time), *dp = bed_doubles(a->time);
    size_t b, h, i;

    forward_reference(a, x, a->out);
    for (b = 0; b < a->batch; b++) {
        for (h = 0; h < a->heads; h++) {
            for (i = 0; i < a->time; i++) {
                backward_row(a, x, dout, b, h, i, p, dp);
            }
        }
    }
}

/* A result is the sum of many terms of about 1, of numbers that were rounded
 * once or twice. */
static double error_of(const attention_t *a)
{
    return 8 * bed_epsilon(a->type) + 1e-5;
}

static void check_outputs(const attention_t *a)
{
    const sl_layer_run_t *run = &a->layer->run;
    const double e = error_of(a);

    bed_assert_close("out", bed_fetch(a->type, run->out, a->n), a->out, a->n, e,
                     e);
    bed_assert_close("din", bed_fetch(a->type, run->din[0], 3 * a->n), a->dqkv,
                     3 * a->n, e, 2 * e);
}

/* Gradients on top of what is there; prev is another tensor, or din. */
static void check_adding(attention_t *a, int is_in_place)
{
    sl_layer_run_t *run = &a->layer->run;
    size_t i;

    if (!(a->layer->plan.accumulates & 1)) {
        return;
    }
    run->din_prev[0] = bed_upload(a->type, a->prev, 3 * a->n, 0);
    run->din[0] = is_in_place ? (void *)(uintptr_t)run->din_prev[0]
                              : bed_array(a->type, 3 * a->n, 0);
    run_backward(a->layer);
    for (i = 0; i < 3 * a->n; i++) {
        a->dqkv[i] += (double)a->prev[i];
    }
    check_outputs(a);
}

static const struct {
    size_t batch, heads, time, dim;
    int is_causal;
    double p;
} shapes[] = {
    {1, 1, 1, 1, 1, 0},     {2, 3, 7, 5, 1, 0},      {1, 2, 33, 16, 0, 0},
    {1, 4, 70, 8, 1, 0.2},  {2, 1, 13, 3, 0, 0.5},   {1, 2, 140, 16, 1, 0},
    {1, 1, 261, 8, 1, 0.1}, {3, 2, 24, 32, 1, 0.25}, {1, 1, 129, 64, 0, 0},
};

enum {
    N_SHAPES = sizeof(shapes) / sizeof(*shapes)
};

static attention_t make_shape(int type, size_t s)
{
    return make((sl_cuda_type_t)type, shapes[s].batch, shapes[s].heads,
                shapes[s].time, shapes[s].dim, shapes[s].is_causal,
                shapes[s].p);
}

static void it_is_right(void **state)
{
    size_t s;
    int type;

    (void)state;
    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        for (s = 0; s < N_SHAPES; s++) {
            attention_t a = make_shape(type, s);

            reference(&a);
            run_forward(a.layer);
            run_backward(a.layer);
            check_outputs(&a);
            check_adding(&a, s % 2);
        }
    }
}

/* din against central differences of the sum of dout * out in double. */
static void gradients_are_differences(void **state)
{
    attention_t a = make(SL_CUDA_F32, 1, 2, 9, 4, 1, 0.3);
    double *x = to_doubles(a.qkv, 3 * a.n);
    double *out = bed_doubles(a.n);
    float *din;
    size_t i, k;

    (void)state;
    run_forward(a.layer);
    run_backward(a.layer);
    din = bed_fetch(SL_CUDA_F32, a.layer->run.din[0], 3 * a.n);
    for (k = 0; k < 3 * a.n; k++) {
        const double h = 1e-5, at = x[k];
        double slope = 0;
        int side;

        for (side = -1; side <= 1; side += 2) {
            x[k] = at + side * h;
            forward_reference(&a, x, out);
            for (i = 0; i < a.n; i++) {
                slope += side * out[i] * (double)a.dout[i] / (2 * h);
            }
        }
        x[k] = at;
        bed_assert_close("slope", &din[k], &slope, 1, 1e-5, 1e-5);
    }
}

static void it_agrees_with_the_cpu(void **state)
{
    static const double dropouts[] = {0, 0.1};
    size_t i;

    (void)state;
    for (i = 0; i < 2; i++) {
        const int64_t dims[] = {1, 150, 3 * 2 * 16};
        const sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 3, dims);
        const sl_attr_t attrs[] = {{.name = "heads", .number = 2},
                                   {.name = "dropout", .number = dropouts[i]}};
        bed_layer_t *cpu = bed_cpu_layer("attention", attrs, 2, &in, 1);
        attention_t a = make(SL_CUDA_F32, 1, 2, 150, 16, 1, dropouts[i]);

        run_forward(a.layer);
        run_backward(a.layer);
        cpu->run.in[0] = a.qkv;
        cpu->run.out = bed_floats(a.n);
        cpu->run.dout = a.dout;
        cpu->run.din[0] = bed_floats(3 * a.n);
        bed_cpu_forward(cpu);
        bed_cpu_backward(cpu);
        sl_assert_close(bed_fetch(SL_CUDA_F32, a.layer->run.out, a.n),
                        cpu->run.out, a.n, 1e-5, 1e-5);
        sl_assert_close(bed_fetch(SL_CUDA_F32, a.layer->run.din[0], 3 * a.n),
                        cpu->run.din[0], 3 * a.n, 2e-5, 2e-5);
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
        attention_t a = make((sl_cuda_type_t)type, 1, 2, 140, 8, 1, 0.1);
        const size_t size = sl_cuda_type_bytes(a.type);
        const bed_output_t outputs[] = {{a.layer->run.out, a.n * size},
                                        {a.layer->run.din[0], 3 * a.n * size}};

        bed_assert_repeats(run_both, a.layer, outputs, 2);
    }
}

/* A forward that is repeated gives the same output, and what backward reads
 * is the same. */
static void recompute_repeats(void **state)
{
    attention_t a = make(SL_CUDA_BF16, 1, 2, 40, 8, 1, 0.1);
    float *first, *din;

    (void)state;
    run_forward(a.layer);
    first = bed_fetch(a.type, a.layer->run.out, a.n);
    run_backward(a.layer);
    din = bed_fetch(a.type, a.layer->run.din[0], 3 * a.n);
    a.layer->run.out = bed_array(a.type, a.n, 0);
    a.layer->run.din[0] = bed_array(a.type, 3 * a.n, 0);
    a.layer->run.saved = bed_bytes(a.layer->plan.saved_bytes);
    a.layer->run.step.is_recompute = 1;
    run_forward(a.layer);
    run_backward(a.layer);
    bed_assert_same("out", bed_fetch(a.type, a.layer->run.out, a.n), first,
                    a.n);
    bed_assert_same("din", bed_fetch(a.type, a.layer->run.din[0], 3 * a.n), din,
                    3 * a.n);
}

/* Nothing is dropped or saved; nor is a gradient made that nobody wants. */
static void evaluation_keeps_nothing(void **state)
{
    const int64_t dims[] = {2, 7, 3 * 3 * 5};
    const sl_tensor_desc_t desc = sl_tensor_desc(SL_DTYPE_F32, 3, dims);
    const sl_attr_t attrs[] = {{.name = "heads", .number = 3},
                               {.name = "dropout", .number = 0.5}};
    layer_run_t *layer =
        run_layer("attention", attrs, 2, &desc, 1, SL_DTYPE_F32, 0);
    attention_t a = make(SL_CUDA_F32, 2, 3, 7, 5, 1, 0);

    (void)state;
    assert_false(layer->plan.keeps_input[0]);
    assert_int_equal(layer->plan.saved_bytes, 0);
    assert_int_equal(layer->plan.backward_workspace_bytes, 0);
    reference(&a);
    layer->run.in[0] = a.layer->run.in[0];
    layer->run.out = bed_array(SL_CUDA_F32, a.n, 0);
    run_forward(layer);
    bed_assert_close("out", bed_fetch(SL_CUDA_F32, layer->run.out, a.n), a.out,
                     a.n, 1e-5, 1e-5);
    a.layer->run.din[0] = NULL;
    run_backward(a.layer);
}

/* The scores' memory does not grow with the square of a long time. */
static void memory_is_bounded(void **state)
{
    const int64_t dims[] = {1, 16384, 3 * 16 * 64};
    const sl_tensor_desc_t desc = sl_tensor_desc(SL_DTYPE_BF16, 3, dims);
    const sl_attr_t attrs[] = {{.name = "heads", .number = 16},
                               {.name = "dropout", .number = 0.1}};
    layer_run_t *layer;

    (void)state;
    layer = run_layer("attention", attrs, 2, &desc, 1, SL_DTYPE_BF16, 1);
    assert_true(layer->plan.forward_workspace_bytes < (size_t)200 << 20);
    assert_true(layer->plan.backward_workspace_bytes < (size_t)500 << 20);
}

static void dropout_has_a_limit(void **state)
{
    const int64_t dims[] = {1, 3, 3 * 2 * 4};
    const sl_tensor_desc_t desc = sl_tensor_desc(SL_DTYPE_F32, 3, dims);
    sl_tensor_desc_t big = desc;
    const sl_attr_t attrs[] = {{.name = "heads", .number = 2},
                               {.name = "dropout", .number = 0.5}};
    layer_run_t *layer =
        run_layer("attention", attrs, 2, &desc, 1, SL_DTYPE_F32, 1);
    sl_layer_plan_t plan;

    (void)state;
    big.dims[0] = 1 << 14;
    big.dims[1] = 1 << 10;
    sl_assert_status(sl_layer_plan_init(&plan, layer->layer,
                                        SL_DEVICE_KIND_CUDA, 1, 1, &big),
                     SL_ERR_UNSUPPORTED);
    sl_assert_contains(sl_last_error(), "2^34 random numbers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN_TEST(it_is_right),
        RUN_TEST(gradients_are_differences),
        RUN_TEST(it_agrees_with_the_cpu),
        RUN_TEST(bits_repeat),
        RUN_TEST(recompute_repeats),
        RUN_TEST(evaluation_keeps_nothing),
        RUN_TEST(memory_is_bounded),
        RUN_TEST(dropout_has_a_limit),
    };

    return bed_has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
