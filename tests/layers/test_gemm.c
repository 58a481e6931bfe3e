/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products against a naive product in double: all transposes, odd
 * sizes, strides, factors; and that bits depend on shape and threads only. */
#include "layers/cpu/gemm.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/support/sl_test.h"

/* Floats past the end of each stored row, and past the end of C. */
enum {
    GAP = 3
};

/* Two, unless OpenMP is held to one (OMP_THREAD_LIMIT): oneDNN needs as many
 * threads as it was made for. */
static int max_threads(void)
{
    return omp_get_thread_limit() < 2 ? 1 : 2;
}

static float *random_floats(size_t n, uint32_t stream)
{
    const sl_rng_t rng = sl_rng_at(11, stream, 0, 0, 100);
    float *data = calloc(n + 64, sizeof(*data));

    assert_non_null(data);
    sl_rng_normal(&rng, data, n);
    return data;
}

static double element(const float *data, int64_t ld, int is_transposed,
                      int64_t row, int64_t column)
{
    return (double)(is_transposed ? data[column * ld + row]
                                  : data[row * ld + column]);
}

static sl_gemm_t gemm_of(int64_t m, int64_t n, int64_t k, int transposes)
{
    sl_gemm_t gemm = {.m = m,
                      .n = n,
                      .k = k,
                      .is_a_transposed = transposes & 1,
                      .is_b_transposed = transposes >> 1,
                      .ldc = n + GAP,
                      .alpha = 1};

    gemm.lda = (gemm.is_a_transposed ? m : k) + GAP;
    gemm.ldb = (gemm.is_b_transposed ? k : n) + GAP;
    return gemm;
}

static size_t a_floats(const sl_gemm_t *g)
{
    return (size_t)((g->is_a_transposed ? g->k : g->m) * g->lda);
}

static size_t b_floats(const sl_gemm_t *g)
{
    return (size_t)((g->is_b_transposed ? g->n : g->k) * g->ldb);
}

static void check_element(const sl_gemm_t *g, const float *a, const float *b,
                          float before, float got, int64_t i, int64_t j)
{
    double want = g->beta == 0.0f ? 0.0 : (double)g->beta * (double)before;
    double size = fabs(want);
    int64_t k;

    for (k = 0; k < g->k; k++) {
        const double term = (double)g->alpha *
                            element(a, g->lda, g->is_a_transposed, i, k) *
                            element(b, g->ldb, g->is_b_transposed, k, j);

        want += term;
        size += fabs(term);
    }
    if (!(fabs((double)got - want) <= 1e-6 * size + 1e-30)) {
        (void)fprintf(stderr,
                      "[%lld, %lld, %lld] transposes %d %d beta %g: element "
                      "%lld %lld is %.9g, not %.9g\n",
                      (long long)g->m, (long long)g->n, (long long)g->k,
                      g->is_a_transposed, g->is_b_transposed, (double)g->beta,
                      (long long)i, (long long)j, (double)got, want);
        fail();
    }
}

static void check_gemm(const sl_gemm_t *g)
{
    const size_t n_c = (size_t)(g->m * g->ldc);
    float *a = random_floats(a_floats(g), 1);
    float *b = random_floats(b_floats(g), 2);
    float *before = random_floats(n_c, 3);
    float *c = malloc(n_c * sizeof(*c));
    int64_t i, j;

    assert_non_null(c);
    if (g->beta == 0.0f) {
        /* not read: NaN would stay */
        memset(before, 0xFF, n_c * sizeof(*before));
    }
    memcpy(c, before, n_c * sizeof(*c));
    sl_assert_ok(sl_gemm(g, a, b, c));
    for (i = 0; i < g->m; i++) {
        for (j = 0; j < g->n; j++) {
            check_element(g, a, b, before[i * g->ldc + j], c[i * g->ldc + j], i,
                          j);
        }
        /* between the rows nothing is written */
        assert_memory_equal(c + i * g->ldc + g->n, before + i * g->ldc + g->n,
                            GAP * sizeof(*c));
    }
    free(a);
    free(b);
    free(before);
    free(c);
}

static void products_match_a_naive_one(void **state)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1},    {1, 5, 3},     {7, 1, 9},     {16, 16, 1},
        {3, 17, 130}, {64, 64, 64},  {65, 33, 129}, {5, 257, 31},
        {130, 70, 5}, {256, 48, 48}, {31, 300, 67}, {64, 512, 64}};
    static const float factors[][2] = {{1, 0}, {1, 1}, {0.125f, 0}, {2, -0.5f}};
    size_t s, f;
    int t, threads;

    (void)state;
    for (threads = 1; threads <= max_threads(); threads++) {
        sl_gemm_set_threads(threads);
        for (s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            for (t = 0; t < 4; t++) {
                for (f = 0; f < sizeof(factors) / sizeof(factors[0]); f++) {
                    sl_gemm_t g =
                        gemm_of(shapes[s][0], shapes[s][1], shapes[s][2], t);

                    g.alpha = factors[f][0];
                    g.beta = factors[f][1];
                    check_gemm(&g);
                }
            }
        }
    }
}

/* The same product with its matrices `offset` floats further on. */
static void multiply_at(const sl_gemm_t *g, int offset, const float *a,
                        const float *b, float *c)
{
    float *a_moved = malloc((a_floats(g) + 64) * sizeof(*a));
    float *b_moved = malloc((b_floats(g) + 64) * sizeof(*b));
    float *c_moved = malloc(((size_t)(g->m * g->ldc) + 64) * sizeof(*c));

    assert_true(a_moved != NULL && b_moved != NULL && c_moved != NULL);
    memcpy(a_moved + offset, a, a_floats(g) * sizeof(*a));
    memcpy(b_moved + offset, b, b_floats(g) * sizeof(*b));
    memset(c_moved, 0, ((size_t)(g->m * g->ldc) + 64) * sizeof(*c));
    sl_assert_ok(
        sl_gemm(g, a_moved + offset, b_moved + offset, c_moved + offset));
    memcpy(c, c_moved + offset, (size_t)(g->m * g->ldc) * sizeof(*c));
    free(a_moved);
    free(b_moved);
    free(c_moved);
}

static void bits_do_not_depend_on_addresses(void **state)
{
    static const int64_t shapes[][3] = {
        {65, 129, 33}, {256, 192, 768}, {40, 700, 64}, {192, 64, 2000}};
    size_t s;
    int t, offset, threads;

    (void)state;
    for (threads = 1; threads <= max_threads(); threads++) {
        sl_gemm_set_threads(threads);
        for (s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            for (t = 0; t < 4; t++) {
                const sl_gemm_t g =
                    gemm_of(shapes[s][0], shapes[s][1], shapes[s][2], t);
                const size_t n_c = (size_t)(g.m * g.ldc);
                float *a = random_floats(a_floats(&g), 1);
                float *b = random_floats(b_floats(&g), 2);
                float *first = random_floats(n_c, 3);
                float *again = random_floats(n_c, 4);

                multiply_at(&g, 0, a, b, first);
                for (offset = 0; offset < 20; offset += 3) {
                    multiply_at(&g, offset, a, b, again);
                    assert_memory_equal(first, again, n_c * sizeof(*first));
                }
                free(a);
                free(b);
                free(first);
                free(again);
            }
        }
    }
}

/* Attention relies on it: a product in a parallel region is one thread's. */
static void a_parallel_region_gives_the_bits_of_one_thread(void **state)
{
    const sl_gemm_t g = gemm_of(192, 160, 700, 2);
    const size_t n_c = (size_t)(g.m * g.ldc);
    float *a = random_floats(a_floats(&g), 1);
    float *b = random_floats(b_floats(&g), 2);
    float *alone = calloc(n_c, sizeof(*alone));
    float *inside[2];
    int worst = SL_OK;
    int i;

    (void)state;
    inside[0] = calloc(n_c, sizeof(float));
    inside[1] = calloc(n_c, sizeof(float));
    assert_true(alone != NULL && inside[0] != NULL && inside[1] != NULL);
    if (max_threads() < 2) {
        skip();
    }
    sl_gemm_set_threads(1);
    sl_assert_ok(sl_gemm(&g, a, b, alone));
    sl_gemm_set_threads(2);
#pragma omp parallel for num_threads(2) schedule(static) reduction(min : worst)
    for (i = 0; i < 2; i++) {
        worst = sl_gemm(&g, a, b, inside[i]);
    }
    assert_int_equal(worst, SL_OK);
    assert_memory_equal(alone, inside[0], n_c * sizeof(*alone));
    assert_memory_equal(alone, inside[1], n_c * sizeof(*alone));
    free(a);
    free(b);
    free(alone);
    free(inside[0]);
    free(inside[1]);
}

static void refuses_a_stride_below_the_width(void **state)
{
    sl_gemm_t g = gemm_of(4, 4, 4, 0);
    float data[64] = {0};

    (void)state;
    g.ldc = 3;
    sl_assert_status(sl_gemm(&g, data, data, data), SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "matrix product");
}

static void check_affine(const sl_affine_shape_t *shape, int n_threads)
{
    const size_t n_y = (size_t)(shape->rows * shape->out);
    sl_gemm_t g = {.m = shape->rows,
                   .n = shape->out,
                   .k = shape->in,
                   .is_b_transposed = 1,
                   .lda = shape->in,
                   .ldb = shape->in,
                   .ldc = shape->out,
                   .alpha = 1,
                   .beta = shape->has_bias ? 1.0f : 0.0f};
    float *x = random_floats((size_t)(shape->rows * shape->in), 1);
    float *weight = random_floats((size_t)(shape->out * shape->in), 2);
    float *bias = random_floats((size_t)shape->out, 3);
    float *y = random_floats(n_y, 4);
    float *again = random_floats(n_y, 4);
    sl_affine_args_t args = {.x = x, .weight = weight, .bias = bias, .y = y};
    sl_affine_t *affine = NULL;
    int64_t i, j;

    sl_assert_ok(sl_affine_create(shape, n_threads, &affine));
    args.scratch =
        aligned_alloc(64, sl_affine_scratch_bytes(affine) / 64 * 64 + 64);
    assert_non_null(args.scratch);
    sl_assert_ok(sl_affine_run(affine, &args));
    for (i = 0; i < shape->rows; i++) {
        for (j = 0; j < shape->out; j++) {
            check_element(&g, x, weight, bias[j], y[i * shape->out + j], i, j);
        }
    }
    args.y = again;
    sl_assert_ok(sl_affine_run(affine, &args));
    assert_memory_equal(y, again, n_y * sizeof(*y));
    sl_affine_destroy(affine);
    free(args.scratch);
    free(x);
    free(weight);
    free(bias);
    free(y);
    free(again);
}

static void affine_matches_a_naive_one(void **state)
{
    static const sl_affine_shape_t shapes[] = {
        {1, 1, 1, 1},     {1, 768, 10, 1},  {3, 17, 33, 0},  {32, 64, 130, 1},
        {65, 130, 48, 1}, {130, 5, 257, 0}, {512, 96, 64, 1}};
    size_t s;
    int threads;

    (void)state;
    for (threads = 1; threads <= max_threads(); threads++) {
        for (s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            check_affine(&shapes[s], threads);
        }
    }
    sl_affine_destroy(NULL);
}

/* Making one must not change the thread setting of who makes it. */
static void affine_create_leaves_the_threads(void **state)
{
    const sl_affine_shape_t shape = {8, 8, 8, 1};
    sl_affine_t *affine = NULL;

    (void)state;
    sl_gemm_set_threads(2);
    sl_assert_ok(sl_affine_create(&shape, 1, &affine));
    assert_int_equal(omp_get_max_threads(), 2);
    sl_affine_destroy(affine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(products_match_a_naive_one),
        sl_unit_test(bits_do_not_depend_on_addresses),
        sl_unit_test(a_parallel_region_gives_the_bits_of_one_thread),
        sl_unit_test(refuses_a_stride_below_the_width),
        sl_unit_test(affine_matches_a_naive_one),
        sl_unit_test(affine_create_leaves_the_threads),
    };

    return cmocka_run_group_tests_name("layers/gemm", tests, NULL, NULL);
}
