/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, casts, sums, relu, gelu, dropout and add on a CUDA device. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/cuda/kernel_bed.h"

static const size_t sizes[] = {0, 1, 3, 4, 255, 1024, 5003};

enum {
    N_SIZES = sizeof(sizes) / sizeof(*sizes)
};

static const sl_cuda_type_t types[] = {SL_CUDA_F32, SL_CUDA_BF16, SL_CUDA_F16};

/* The kernel's result against double: fp32 maths, then one rounding. */
static void assert_typed(const char *what, sl_cuda_type_t type,
                         const void *array, const double *want, size_t n)
{
    bed_assert_close(what, bed_fetch(type, array, n), want, n,
                     bed_epsilon(type) + 4e-7,
                     type == SL_CUDA_F16 ? 1e-7 : 2e-7);
}

/* ---- casts ---- */

/* Every number of both 16-bit types, and what lies between them. */
static void casts_round_to_nearest_even(void **state)
{
    enum {
        N = 65536
    };
    size_t t, i;

    (void)state;
    for (t = 1; t < 3; t++) {
        float *values = bed_floats(3 * N);
        double *want = bed_doubles(3 * N);
        uint16_t all[N];
        sl_cuda_cast_t widen = {
            .to_type = SL_CUDA_F32, .from_type = types[t], .n = N};
        sl_cuda_cast_t narrow = {
            .to_type = types[t], .from_type = SL_CUDA_F32, .n = 3 * N};
        float *wide;

        for (i = 0; i < N; i++) {
            all[i] = (uint16_t)i;
        }
        widen.from = bed_upload_bytes(all, sizeof(all));
        widen.to = bed_array(SL_CUDA_F32, N, 0);
        sl_assert_ok(sl_cuda_cast(&widen, bed_stream()));
        wide = bed_fetch(SL_CUDA_F32, widen.to, N);
        bed_assert_same("widened", wide, bed_fetch(types[t], widen.from, N), N);
        for (i = 0; i < N; i++) {
            const float next = wide[(i + 1) % N];

            values[3 * i] = wide[i];
            values[3 * i + 1] = (wide[i] + next) / 2;
            values[3 * i + 2] = nextafterf((wide[i] + next) / 2, next);
        }
        for (i = 0; i < 3 * N; i++) {
            want[i] = bed_round(types[t], (double)values[i]);
        }
        narrow.from = bed_upload(SL_CUDA_F32, values, 3 * N, 0);
        narrow.to = bed_array(types[t], 3 * N, 0);
        sl_assert_ok(sl_cuda_cast(&narrow, bed_stream()));
        bed_assert_close("narrowed", bed_fetch(types[t], narrow.to, 3 * N),
                         want, 3 * N, 0, 0);
    }
}

static void copies_and_sums(void **state)
{
    size_t t, s, i;

    (void)state;
    for (t = 0; t < 3; t++) {
        for (s = 0; s < N_SIZES; s++) {
            const size_t n = sizes[s];
            float *a = bed_random(n, 1, 1), *b = bed_random(n, 2, 1);
            double *want = bed_doubles(n);
            sl_cuda_sum_t sum = {.type = types[t], .n = (int64_t)n};
            const size_t bytes = n * sl_cuda_type_bytes(types[t]);
            void *copy = bed_array(types[t], n, 1);

            sum.a = bed_upload(types[t], a, n, s % 3);
            sum.b = bed_upload(types[t], b, n, 0);
            sum.out = bed_array(types[t], n, 0);
            for (i = 0; i < n; i++) {
                want[i] = (double)a[i] + (double)b[i];
            }
            sl_assert_ok(sl_cuda_sum(&sum, bed_stream()));
            assert_typed("sum", types[t], sum.out, want, n);
            sum.out = copy;
            sl_assert_ok(sl_cuda_copy(copy, sum.b, bytes, bed_stream()));
            sum.b = copy;
            sl_assert_ok(sl_cuda_sum(&sum, bed_stream()));
            assert_typed("sum in place", types[t], copy, want, n);
            sl_assert_ok(sl_cuda_zero(copy, bytes, bed_stream()));
            memset(want, 0, n * sizeof(*want));
            assert_typed("zero", types[t], copy, want, n);
        }
    }
}

/* ---- relu and gelu ---- */

typedef enum function {
    RELU,
    GELU_TANH,
    GELU_ERF
} function_t;

static double value_of(function_t function, double x)
{
    switch (function) {
    case RELU:
        break;
    case GELU_TANH:
        return 0.5 * x *
               (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case GELU_ERF:
        return 0.5 * x * erfc(-x * 0.70710678118654752440);
    }
    return x <= 0 ? 0 : x;
}

/* By central differences of the function in double. */
static double slope_of(function_t function, double x)
{
    const double h = 1e-5;

    return (value_of(function, x + h) - value_of(function, x - h)) / (2 * h);
}

static sl_status_t run_forward(function_t function,
                               const sl_cuda_activation_t *args)
{
    return function == RELU ? sl_cuda_relu_forward(args, bed_stream())
                            : sl_cuda_gelu_forward(args, function == GELU_TANH,
                                                   bed_stream());
}

static sl_status_t run_backward(function_t function,
                                const sl_cuda_activation_t *args)
{
    return function == RELU ? sl_cuda_relu_backward(args, bed_stream())
                            : sl_cuda_gelu_backward(args, function == GELU_TANH,
                                                    bed_stream());
}

static void check_activation(function_t function, sl_cuda_type_t type, size_t n,
                             size_t shift)
{
    float *x = bed_random(n, 3, 2), *d = bed_random(n, 4, 1);
    float *p = bed_random(n, 5, 1);
    double *y = bed_doubles(n), *din = bed_doubles(n);
    sl_cuda_activation_t args = {.type = type, .n = (int64_t)n};
    size_t i;

    for (i = 0; i < n && function == RELU; i++) {
        x[i] += x[i] < 0 ? -0.01f : 0.01f; /* away from the corner */
    }
    args.in = bed_upload(type, x, n, shift);
    args.out = bed_array(type, n, 0);
    args.dout = bed_upload(type, d, n, 0);
    args.din = bed_array(type, n, 0);
    for (i = 0; i < n; i++) {
        y[i] = value_of(function, (double)x[i]);
        din[i] = (double)d[i] * slope_of(function, (double)x[i]);
    }
    sl_assert_ok(run_forward(function, &args));
    assert_typed("forward", type, args.out, y, n);
    sl_assert_ok(run_backward(function, &args));
    assert_typed("backward", type, args.din, din, n);
    args.prev = bed_upload(type, p, n, 0);
    for (i = 0; i < n; i++) {
        din[i] += (double)p[i];
    }
    sl_assert_ok(run_backward(function, &args));
    bed_assert_close("added", bed_fetch(type, args.din, n), din, n,
                     bed_epsilon(type) + 1e-6, 1e-6);
    args.din = NULL;
    sl_assert_ok(run_backward(function, &args));
}

static void activations_are_right(void **state)
{
    size_t t, s;
    int f;

    (void)state;
    for (f = RELU; f <= GELU_ERF; f++) {
        for (t = 0; t < 3; t++) {
            for (s = 0; s < N_SIZES; s++) {
                check_activation((function_t)f, types[t], sizes[s], s % 2);
            }
        }
    }
}

static void extremes_stay_sane(void **state)
{
    static float x[] = {NAN, INFINITY, -100.0f, 100.0f, -1e30f, 1e30f, -0.0f};
    float d[] = {1, 1, 1, 1, 1, 1, 1};
    sl_cuda_activation_t args = {.type = SL_CUDA_F32, .n = 7};
    float *y;
    int f;

    (void)state;
    args.in = bed_upload(SL_CUDA_F32, x, 7, 0);
    args.out = bed_array(SL_CUDA_F32, 7, 0);
    args.dout = bed_upload(SL_CUDA_F32, d, 7, 0);
    args.din = bed_array(SL_CUDA_F32, 7, 0);
    for (f = RELU; f <= GELU_ERF; f++) {
        sl_assert_ok(run_forward((function_t)f, &args));
        y = bed_fetch(SL_CUDA_F32, args.out, 7);
        assert_true(isnan(y[0]) && y[1] == INFINITY && y[3] == 100.0f);
        assert_true(y[2] == 0 && y[5] == 1e30f);
        sl_assert_ok(run_backward((function_t)f, &args));
        y = bed_fetch(SL_CUDA_F32, args.din, 7);
        assert_true(y[2] == 0 && y[3] == 1 && y[4] == 0 && y[5] == 1);
    }
}

/* The CPU's kernels give the same within rounding. */
static void activations_agree_with_the_cpu(void **state)
{
    static const char *const kinds[] = {"", "tanh", "erf"};
    const int64_t dims[] = {3, 333};
    const sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 2, dims);
    const size_t n = 999;
    int f;

    (void)state;
    for (f = RELU; f <= GELU_ERF; f++) {
        const sl_attr_t attr = {.name = "kind", .text = kinds[f]};
        bed_layer_t *cpu = bed_cpu_layer(f == RELU ? "relu" : "gelu", &attr,
                                         f == RELU ? 0 : 1, &in, 1);
        float *x = bed_random(n, 6, 2), *d = bed_random(n, 7, 1);
        float *y = bed_floats(n), *din = bed_floats(n);
        sl_cuda_activation_t args = {.type = SL_CUDA_F32, .n = (int64_t)n};

        args.in = bed_upload(SL_CUDA_F32, x, n, 0);
        args.out = bed_array(SL_CUDA_F32, n, 0);
        args.dout = bed_upload(SL_CUDA_F32, d, n, 0);
        args.din = bed_array(SL_CUDA_F32, n, 0);
        sl_assert_ok(run_forward((function_t)f, &args));
        sl_assert_ok(run_backward((function_t)f, &args));
        cpu->run.in[0] = x;
        cpu->run.out = y;
        cpu->run.dout = d;
        cpu->run.din[0] = din;
        bed_cpu_forward(cpu);
        bed_cpu_backward(cpu);
        if (f == RELU) {
            bed_assert_same("relu", bed_fetch(SL_CUDA_F32, args.out, n), y, n);
            bed_assert_same("relu", bed_fetch(SL_CUDA_F32, args.din, n), din,
                            n);
        }
        sl_assert_close(bed_fetch(SL_CUDA_F32, args.out, n), y, n, 1e-6, 1e-6);
        sl_assert_close(bed_fetch(SL_CUDA_F32, args.din, n), din, n, 1e-6,
                        1e-6);
    }
}

/* ---- dropout and add ---- */

/* Which elements live is the CPU's, to the last one. */
static void masks_are_the_cpus(void **state)
{
    static const double rates[] = {0.0, 0.1, 0.5, 0.999};
    size_t r, t, s;

    (void)state;
    for (s = 1; s < N_SIZES; s++) {
        for (r = 0; r < 4; r++) {
            const int64_t dims[] = {1, (int64_t)sizes[s]};
            const sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 2, dims);
            const sl_attr_t attr = {.name = "p", .number = rates[r]};
            bed_layer_t *cpu = bed_cpu_layer("dropout", &attr, 1, &in, 1);
            const size_t n = sizes[s];
            float *x = bed_random(n, 8, 1), *y = bed_floats(n);

            cpu->run.in[0] = x;
            cpu->run.out = y;
            bed_cpu_forward(cpu);
            for (t = 0; t < 3; t++) {
                sl_cuda_dropout_t args = {
                    .type = types[t], .n = (int64_t)n, .p = rates[r]};
                float *got;
                size_t i;

                args.rng = sl_rng_at(99, 5, 2, 3, SL_RNG_USE_DROPOUT);
                args.x = bed_upload(types[t], x, n, s % 2);
                args.y = bed_array(types[t], n, 0);
                sl_assert_ok(sl_cuda_dropout(&args, bed_stream()));
                got = bed_fetch(types[t], args.y, n);
                for (i = 0; i < n; i++) {
                    assert_int_equal(got[i] == 0, y[i] == 0 || x[i] == 0);
                }
                if (types[t] == SL_CUDA_F32) {
                    bed_assert_same("dropout", got, y, n);
                }
            }
        }
    }
}

/* All rows of an add: n inputs, with and without dropout and relu. */
static void check_add(int n_inputs, double p, int relu, size_t n, size_t shift)
{
    const int64_t dims[] = {1, (int64_t)n};
    const sl_tensor_desc_t one = sl_tensor_desc(SL_DTYPE_F32, 2, dims);
    const sl_tensor_desc_t in[] = {one, one, one, one};
    const sl_attr_t attrs[] = {{.name = "dropout", .number = p},
                               {.name = "relu", .number = relu}};
    bed_layer_t *cpu = bed_cpu_layer("add", attrs, 2, in, n_inputs);
    sl_cuda_add_t args = {.type = SL_CUDA_F32,
                          .n = (int64_t)n,
                          .n_numbers = (int64_t)n,
                          .n_inputs = n_inputs,
                          .p = p,
                          .is_relu = relu};
    float *y = bed_floats(n), *d = bed_random(n, 20, 1);
    float *din[SL_CUDA_MAX_INPUTS];
    int i;

    args.rng = sl_rng_at(99, 5, 2, 3, SL_RNG_USE_DROPOUT);
    for (i = 0; i < n_inputs; i++) {
        float *x = bed_random(n, (uint32_t)(10 + i), 1);
        float *prev = bed_random(n, (uint32_t)(30 + i), 1);

        args.in[i] = bed_upload(SL_CUDA_F32, x, n, shift);
        args.din[i] = i == 2 ? NULL : bed_array(SL_CUDA_F32, n, 0);
        args.prev[i] = i == 1 ? bed_upload(SL_CUDA_F32, prev, n, 0) : NULL;
        din[i] = bed_floats(n);
        cpu->run.in[i] = x;
        cpu->run.din[i] = i == 2 ? NULL : din[i];
        cpu->run.din_prev[i] = i == 1 ? prev : NULL;
    }
    args.out = bed_array(SL_CUDA_F32, n, 0);
    args.dout = bed_upload(SL_CUDA_F32, d, n, 0);
    cpu->run.out = y;
    cpu->run.dout = d;
    sl_assert_ok(sl_cuda_add_forward(&args, bed_stream()));
    sl_assert_ok(sl_cuda_add_backward(&args, bed_stream()));
    bed_cpu_forward(cpu);
    bed_cpu_backward(cpu);
    sl_assert_close(bed_fetch(SL_CUDA_F32, args.out, n), y, n, 5e-7, 5e-7);
    for (i = 0; i < n_inputs; i++) {
        if (args.din[i] != NULL) {
            sl_assert_close(bed_fetch(SL_CUDA_F32, args.din[i], n), din[i], n,
                            5e-7, 5e-7);
        }
    }
}

static void adds_agree_with_the_cpu(void **state)
{
    (void)state;
    check_add(2, 0.0, 0, 1000, 0);
    check_add(2, 0.0, 1, 1001, 1);
    check_add(3, 0.25, 1, 5003, 0);
    check_add(4, 0.5, 0, 4096, 2);
    check_add(4, 0.5, 1, 1, 0);
}

/* In 16 bits: against double, with the masks of fp32. */
static void adds_in_16_bits(void **state)
{
    enum {
        N = 777
    };
    size_t t, i;

    (void)state;
    for (t = 1; t < 3; t++) {
        float *a = bed_random(N, 1, 1), *b = bed_random(N, 2, 1);
        float *d = bed_random(N, 3, 1);
        double *want = bed_doubles(N), *din = bed_doubles(N);
        float *ones = bed_floats(N);
        sl_cuda_add_t args = {.type = types[t],
                              .n = N,
                              .n_numbers = N,
                              .n_inputs = 2,
                              .p = 0.3,
                              .is_relu = 1};
        sl_cuda_dropout_t drop = {.type = SL_CUDA_F32, .n = N, .p = 0.3};
        float *mask;

        args.rng = drop.rng = sl_rng_at(1, 2, 3, 4, SL_RNG_USE_DROPOUT);
        args.in[0] = bed_upload(types[t], a, N, 0);
        args.in[1] = bed_upload(types[t], b, N, 0);
        args.out = bed_array(types[t], N, 0);
        args.dout = bed_upload(types[t], d, N, 0);
        args.din[1] = bed_array(types[t], N, 0);
        for (i = 0; i < N; i++) {
            ones[i] = 1;
        }
        drop.x = bed_upload(SL_CUDA_F32, ones, N, 0);
        drop.y = bed_array(SL_CUDA_F32, N, 0);
        sl_assert_ok(sl_cuda_dropout(&drop, bed_stream()));
        mask = bed_fetch(SL_CUDA_F32, drop.y, N);
        for (i = 0; i < N; i++) {
            const double sum = (double)a[i] + (double)b[i] * (double)mask[i];

            want[i] = sum <= 0 ? 0 : sum;
            din[i] = sum <= 0 ? 0 : (double)d[i] * (double)mask[i];
        }
        sl_assert_ok(sl_cuda_add_forward(&args, bed_stream()));
        assert_typed("add", types[t], args.out, want, N);
        sl_assert_ok(sl_cuda_add_backward(&args, bed_stream()));
        assert_typed("add", types[t], args.din[1], din, N);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(casts_round_to_nearest_even),    BED_TEST(copies_and_sums),
        BED_TEST(activations_are_right),          BED_TEST(extremes_stay_sane),
        BED_TEST(activations_agree_with_the_cpu), BED_TEST(masks_are_the_cpus),
        BED_TEST(adds_agree_with_the_cpu),        BED_TEST(adds_in_16_bits),
    };

    return bed_has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
