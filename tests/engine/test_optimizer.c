/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers against references in double, learning rates, the norm, the
 * hash. */
#include "tests/support/sl_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/device_ops.h"
#include "engine/optimizer.h"
#include "scheduler/scheduler.h"

enum {
    N_STEPS = 20,
    GUARD = 16,
    MAX_THREADS = 5
};

/* One op manager for each thread count, made when first needed. */
static sl_op_manager_t *managers[MAX_THREADS + 1];

/* Run an op where all kernels run. */
static void run_op(sl_op_fn fn, const void *args, size_t args_bytes,
                   int n_threads)
{
    const sl_op_t op = {
        .fn = fn, .args_bytes = (uint32_t)args_bytes, .args = args};

    assert_true(n_threads <= MAX_THREADS);
    if (managers[n_threads] == NULL) {
        sl_op_manager_params_t params;

        sl_op_manager_params_default(&params);
        params.n_threads = n_threads;
        sl_assert_ok(sl_op_manager_create(&params, &managers[n_threads]));
    }
    sl_assert_ok(sl_op_manager_submit(managers[n_threads], &op, NULL));
    sl_assert_ok(sl_op_manager_drain(managers[n_threads]));
}

static int destroy_managers(void **state)
{
    int i;

    (void)state;
    for (i = 0; i <= MAX_THREADS; i++) {
        sl_op_manager_destroy(managers[i]);
    }
    return 0;
}

/* ---- the update, against double ---- */

typedef struct reference {
    double *value, *m, *v;
} reference_t;

/* PyTorch's documented formulas, one element. */
static void reference_step(const sl_optimizer_params_t *p, reference_t *r,
                           size_t i, double g, double lr, double decay,
                           uint32_t step)
{
    const double t = step + 1.0;

    if (p->kind == SL_OPTIMIZER_ADAMW) {
        r->value[i] -= lr * decay * r->value[i];
    } else {
        g += decay * r->value[i];
    }
    if (p->kind == SL_OPTIMIZER_SGD) {
        if (p->momentum > 0.0) {
            r->m[i] = step == 0 ? g : p->momentum * r->m[i] + g;
            g = p->nesterov ? g + p->momentum * r->m[i] : r->m[i];
        }
        r->value[i] -= lr * g;
        return;
    }
    r->m[i] = p->beta1 * r->m[i] + (1.0 - p->beta1) * g;
    r->v[i] = p->beta2 * r->v[i] + (1.0 - p->beta2) * g * g;
    r->value[i] -= lr * (r->m[i] / (1.0 - pow(p->beta1, t))) /
                   (sqrt(r->v[i] / (1.0 - pow(p->beta2, t))) + p->eps);
}

typedef struct buffers {
    float *value, *grad, *m, *v; /* of n + GUARD */
    size_t n;
} buffers_t;

static float *guarded(size_t n)
{
    float *values = calloc(n + GUARD, sizeof(float));
    size_t i;

    assert_non_null(values);
    for (i = 0; i < n + GUARD; i++) {
        values[i] = 12345.0f;
    }
    return values;
}

/* Moments hold rubbish before the first step: it must not be read. */
static void buffers_init(buffers_t *b, size_t n)
{
    const sl_rng_t rng = sl_rng_at(7, 0, 0, 0, 0);

    b->n = n;
    b->value = guarded(n);
    b->grad = guarded(n);
    b->m = guarded(n);
    b->v = guarded(n);
    sl_rng_normal(&rng, b->value, n);
}

static void assert_guard(const float *values, size_t n)
{
    size_t i;

    for (i = n; i < n + GUARD; i++) {
        assert_true(values[i] == 12345.0f);
    }
}

static void buffers_cleanup(buffers_t *b)
{
    assert_guard(b->value, b->n);
    assert_guard(b->grad, b->n);
    assert_guard(b->m, b->n);
    assert_guard(b->v, b->n);
    free(b->value);
    free(b->grad);
    free(b->m);
    free(b->v);
}

static void gradient_of(buffers_t *b, uint32_t step)
{
    const sl_rng_t rng = sl_rng_at(7, step, 1, 0, 0);

    sl_rng_normal(&rng, b->grad, b->n);
}

static void step_once(const sl_optimizer_params_t *params, buffers_t *b,
                      uint32_t step, int n_threads, int has_decay,
                      const double *clip_factor)
{
    const sl_optimizer_run_t run = {.params = params,
                                    .value = b->value,
                                    .grad = b->grad,
                                    .moments = {b->m, b->v},
                                    .n = b->n,
                                    .step = step,
                                    .n_threads = n_threads,
                                    .has_decay = has_decay,
                                    .lr = (float)sl_optimizer_lr(params, step),
                                    .clip_factor = clip_factor};

    run_op(sl_optimizer_op_update, &run, sizeof(run), n_threads);
}

static void check_against_reference(const sl_optimizer_params_t *params,
                                    size_t n, int n_threads, int has_decay,
                                    const double *clip_factor)
{
    const double decay =
        has_decay || params->decay_all ? params->weight_decay : 0.0;
    reference_t r = {calloc(n + 1, sizeof(double)),
                     calloc(n + 1, sizeof(double)),
                     calloc(n + 1, sizeof(double))};
    buffers_t b;
    uint32_t step;
    size_t i;

    sl_assert_ok(sl_optimizer_params_check(params));
    buffers_init(&b, n);
    for (i = 0; i < n; i++) {
        r.value[i] = (double)b.value[i];
    }
    for (step = 0; step < N_STEPS; step++) {
        const double lr = sl_optimizer_lr(params, step);

        gradient_of(&b, step);
        step_once(params, &b, step, n_threads, has_decay, clip_factor);
        for (i = 0; i < n; i++) {
            const double g =
                (double)b.grad[i] * (clip_factor == NULL ? 1.0 : *clip_factor);

            reference_step(params, &r, i, g, lr, decay, step);
        }
    }
    for (i = 0; i < n; i++) {
        const double error = fabs((double)b.value[i] - r.value[i]);

        if (!(error <= 3e-6 + 3e-6 * fabs(r.value[i]))) {
            (void)fprintf(stderr, "kind %d element %zu of %zu: %.9g not %.9g\n",
                          (int)params->kind, i, n, (double)b.value[i],
                          r.value[i]);
            fail();
        }
    }
    buffers_cleanup(&b);
    free(r.value);
    free(r.m);
    free(r.v);
}

/* Variant v of the parameters; there are N_VARIANTS. */
enum {
    N_VARIANTS = 7
};

static sl_optimizer_params_t variant(int v)
{
    sl_optimizer_params_t params;

    sl_optimizer_params_default(&params);
    params.weight_decay = v == 0 ? 0.0 : 0.01;
    params.kind = v < 4    ? SL_OPTIMIZER_SGD
                  : v == 4 ? SL_OPTIMIZER_ADAM
                           : SL_OPTIMIZER_ADAMW;
    params.momentum = v == 2 || v == 3 ? 0.9 : 0.0;
    params.nesterov = v == 3;
    params.lr = v < 4 ? 0.05 : 0.01;
    params.decay_all = v == 6;
    return params;
}

static void test_update(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 63, 64, 1001};
    const double clip = 0.37;
    size_t s;
    int v;

    (void)state;
    for (v = 0; v < N_VARIANTS; v++) {
        const sl_optimizer_params_t params = variant(v);

        for (s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
            check_against_reference(&params, sizes[s], 1, 1, NULL);
            check_against_reference(&params, sizes[s], 2, 0, &clip);
        }
    }
}

/* Two steps of numbers small enough to follow on paper. */
static void test_update_by_hand(void **state)
{
    sl_optimizer_params_t params = variant(2);
    buffers_t b;

    (void)state;
    params.lr = 0.5;
    params.momentum = 0.5;
    params.weight_decay = 0.25;
    buffers_init(&b, 1);
    b.value[0] = 4.0f;
    b.grad[0] = 1.0f;
    /* g = 1 + 0.25 * 4 = 2, m = 2, w = 4 - 0.5 * 2 */
    step_once(&params, &b, 0, 1, 1, NULL);
    assert_true(b.m[0] == 2.0f && b.value[0] == 3.0f);
    /* g = 1 + 0.75, m = 0.5 * 2 + 1.75 = 2.75, w = 3 - 1.375 */
    step_once(&params, &b, 1, 1, 1, NULL);
    assert_true(b.m[0] == 2.75f && b.value[0] == 1.625f);
    buffers_cleanup(&b);

    params.nesterov = 1;
    buffers_init(&b, 1);
    b.value[0] = 4.0f;
    b.grad[0] = 1.0f;
    /* g = 2, m = 2, w = 4 - 0.5 * (2 + 0.5 * 2) */
    step_once(&params, &b, 0, 1, 1, NULL);
    assert_true(b.m[0] == 2.0f && b.value[0] == 2.5f);
    buffers_cleanup(&b);
}

static void test_threads_give_the_same_bits(void **state)
{
    static const int n_threads[] = {2, 3, 4};
    const size_t n = 10007;
    size_t t;
    int v;

    (void)state;
    for (v = 0; v < N_VARIANTS; v++) {
        const sl_optimizer_params_t params = variant(v);

        for (t = 0; t < sizeof(n_threads) / sizeof(*n_threads); t++) {
            buffers_t a, b;
            uint32_t step;

            buffers_init(&a, n);
            buffers_init(&b, n);
            for (step = 0; step < 3; step++) {
                gradient_of(&a, step);
                gradient_of(&b, step);
                step_once(&params, &a, step, 1, 1, NULL);
                step_once(&params, &b, step, n_threads[t], 1, NULL);
            }
            assert_memory_equal(a.value, b.value, n * sizeof(float));
            assert_memory_equal(a.m, b.m, n * sizeof(float));
            assert_memory_equal(a.v, b.v, n * sizeof(float));
            buffers_cleanup(&a);
            buffers_cleanup(&b);
        }
    }
}

/* An element's result must not depend on where it lies. */
static void test_place_does_not_matter(void **state)
{
    const size_t n = 131;
    int v;

    (void)state;
    for (v = 0; v < N_VARIANTS; v++) {
        const sl_optimizer_params_t params = variant(v);
        size_t i;

        for (i = 0; i < n; i += 13) {
            buffers_t whole, part;
            uint32_t step;

            buffers_init(&whole, n);
            buffers_init(&part, 1);
            part.value[0] = whole.value[i];
            for (step = 0; step < 3; step++) {
                gradient_of(&whole, step);
                part.grad[0] = whole.grad[i];
                step_once(&params, &whole, step, 1, 1, NULL);
                step_once(&params, &part, step, 1, 1, NULL);
            }
            assert_memory_equal(&whole.value[i], part.value, sizeof(float));
            buffers_cleanup(&whole);
            buffers_cleanup(&part);
        }
    }
}

/* Padding: zero values with zero gradients stay zero. */
static void test_zeros_stay_zero(void **state)
{
    int v;

    (void)state;
    for (v = 0; v < N_VARIANTS; v++) {
        const sl_optimizer_params_t params = variant(v);
        buffers_t b;
        uint32_t step;
        size_t i;

        buffers_init(&b, 33);
        memset(b.value, 0, b.n * sizeof(float));
        memset(b.grad, 0, b.n * sizeof(float));
        for (step = 0; step < 3; step++) {
            step_once(&params, &b, step, 1, 1, NULL);
        }
        for (i = 0; i < b.n; i++) {
            assert_true(b.value[i] == 0.0f);
        }
        buffers_cleanup(&b);
    }
}

static void test_n_moments(void **state)
{
    static const int want[N_VARIANTS] = {0, 0, 1, 1, 2, 2, 2};
    int v;

    (void)state;
    for (v = 0; v < N_VARIANTS; v++) {
        const sl_optimizer_params_t params = variant(v);

        assert_int_equal(sl_optimizer_n_moments(&params), want[v]);
    }
}

/* ---- sum of squares ---- */

static double sum_squares(const float *values, size_t n, int n_threads)
{
    double sum = -1.0;
    const sl_norm_run_t run = {
        .values = values, .n = n, .n_threads = n_threads, .sum_p = &sum};

    run_op(sl_optimizer_op_sum_squares, &run, sizeof(run), n_threads);
    return sum;
}

static void test_sum_squares(void **state)
{
    static const size_t sizes[] = {0,    1,    31,   32,     33,
                                   4095, 4096, 4097, 100003, 1200000};
    const sl_rng_t rng = sl_rng_at(3, 0, 0, 0, 0);
    size_t s, i;

    (void)state;
    for (s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        const size_t n = sizes[s];
        float *values = calloc(n + 1, sizeof(float));
        long double want = 0.0L;
        double got;
        int t;

        sl_rng_normal(&rng, values, n);
        for (i = 0; i < n; i++) {
            want += (long double)values[i] * (long double)values[i];
        }
        got = sum_squares(values, n, 1);
        assert_true(fabs(got - (double)want) <= 1e-13 * (double)want);
        for (t = 2; t <= 5; t++) {
            assert_true(sum_squares(values, n, t) == got);
        }
        free(values);
    }
}

/* Whole numbers are summed exactly: every element counts, once. */
static void test_sum_squares_counts_all(void **state)
{
    const size_t n = 4096 * 130 + 77;
    float *values = calloc(n, sizeof(float));
    size_t i;

    (void)state;
    for (i = 0; i < n; i++) {
        values[i] = 3.0f;
    }
    assert_true(sum_squares(values, n, 1) == 9.0 * (double)n);
    assert_true(sum_squares(values, n, 3) == 9.0 * (double)n);
    values[n - 1] = INFINITY;
    assert_true(isinf(sum_squares(values, n, 2)));
    values[5] = NAN;
    assert_true(isnan(sum_squares(values, n, 2)));
    free(values);
}

/* ---- hashes ---- */

static uint64_t hash_of(const void *data, size_t bytes, int n_threads)
{
    uint64_t hash = 0;
    const sl_hash_args_t args = {
        .data = data, .bytes = bytes, .n_threads = n_threads, .hash_p = &hash};

    run_op(sl_device_kernels(SL_DEVICE_KIND_CPU)->hash, &args, sizeof(args),
           n_threads);
    return hash;
}

/* Any bit and any order counts, the number of threads does not. */
static void test_hash(void **state)
{
    static const size_t places[] = {0, 5, 262143, 262144, 700000, 786436};
    const size_t n = 786437; /* four parts, the last of 20 bytes */
    const sl_rng_t rng = sl_rng_at(4, 0, 0, 0, 0);
    uint32_t *words = calloc(n, sizeof(*words));
    uint64_t want;
    size_t i;
    int t;

    (void)state;
    assert_non_null(words);
    for (i = 0; i < n; i++) {
        words[i] = sl_rng_u32(&rng, i);
    }
    want = hash_of(words, n * sizeof(*words), 1);
    for (t = 2; t <= MAX_THREADS; t++) {
        assert_true(hash_of(words, n * sizeof(*words), t) == want);
    }
    for (i = 0; i < sizeof(places) / sizeof(*places); i++) {
        words[places[i]] ^= 1u << 31;
        assert_true(hash_of(words, n * sizeof(*words), 2) != want);
        words[places[i]] ^= 1u << 31;
    }
    /* two parts change places */
    for (i = 0; i < 262144; i++) {
        const uint32_t word = words[i];

        words[i] = words[262144 + i];
        words[262144 + i] = word;
    }
    assert_true(hash_of(words, n * sizeof(*words), 2) != want);
    free(words);
}

/* ---- learning rates ---- */

static void assert_lr(const sl_optimizer_params_t *params, uint32_t step,
                      double want)
{
    const double got = sl_optimizer_lr(params, step);

    if (!(fabs(got - want) <= 1e-12)) {
        (void)fprintf(stderr, "step %u: %.15g, not %.15g\n", step, got, want);
        fail();
    }
}

static void test_learning_rates(void **state)
{
    sl_optimizer_params_t p;

    (void)state;
    sl_optimizer_params_default(&p);
    p.lr = 1.0;
    assert_lr(&p, 0, 1.0);
    assert_lr(&p, UINT32_MAX, 1.0);

    p.warmup_steps = 4;
    assert_lr(&p, 0, 0.25);
    assert_lr(&p, 2, 0.75);
    assert_lr(&p, 3, 1.0);
    assert_lr(&p, 4, 1.0);

    p.total_steps = 14;
    p.lr_min = 0.2;
    p.lr_kind = SL_LR_LINEAR;
    assert_lr(&p, 3, 1.0);
    assert_lr(&p, 4, 1.0);
    assert_lr(&p, 9, 0.6);
    assert_lr(&p, 13, 0.28);
    assert_lr(&p, 14, 0.2);
    assert_lr(&p, 1000, 0.2);

    p.lr_kind = SL_LR_COSINE;
    assert_lr(&p, 1, 0.5);
    assert_lr(&p, 4, 1.0);
    assert_lr(&p, 9, 0.6);
    assert_lr(&p, 6, 0.2 + 0.4 * (1.0 + cos(0.2 * 3.14159265358979323846)));
    assert_lr(&p, 14, 0.2);
    assert_lr(&p, UINT32_MAX, 0.2);

    /* a run that ends within its warm-up */
    p.total_steps = 2;
    assert_lr(&p, 1, 0.5);
    assert_lr(&p, 4, 0.2);

    p.warmup_steps = 0;
    p.lr_kind = SL_LR_STEP;
    p.lr_step_every = 3;
    p.lr_gamma = 0.1;
    assert_lr(&p, 0, 1.0);
    assert_lr(&p, 2, 1.0);
    assert_lr(&p, 3, 0.1);
    assert_lr(&p, 8, 0.01);
    p.warmup_steps = 5;
    assert_lr(&p, 4, 1.0);
    assert_lr(&p, 5, 0.1);
}

/* ---- checks ---- */

static void assert_refused(const sl_optimizer_params_t *params,
                           const char *message)
{
    sl_assert_status(sl_optimizer_params_check(params), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), message);
}

static void test_refused_params(void **state)
{
    const sl_optimizer_params_t sgd = variant(2), adam = variant(4);
    sl_optimizer_params_t p;

    (void)state;
    sl_optimizer_params_default(&p);
    sl_assert_ok(sl_optimizer_params_check(&p));
#define REFUSED(base, change, message)                                         \
    do {                                                                       \
        p = (base);                                                            \
        p.change;                                                              \
        assert_refused(&p, (message));                                         \
    } while (0)
    REFUSED(sgd, kind = (sl_optimizer_kind_t)9, "kind 9 is none of sgd|adam");
    REFUSED(sgd, momentum = 1.0, "momentum is 1; it must be in [0, 1)");
    REFUSED(sgd, momentum = -0.1, "momentum is -0.1");
    REFUSED(sgd, momentum = (double)NAN, "momentum is nan");
    REFUSED(variant(3), momentum = 0.0, "nesterov needs a momentum above 0");
    REFUSED(sgd, lr = -1.0, "lr is -1; it must be in [0, ");
    REFUSED(sgd, lr = (double)INFINITY, "lr is inf");
    REFUSED(sgd, lr_min = -1.0, "lr_min is -1");
    REFUSED(sgd, weight_decay = -1.0, "weight_decay is -1");
    REFUSED(sgd, clip_norm = (double)NAN, "clip_norm is nan");
    REFUSED(sgd, warmup_steps = -1, "warmup_steps is -1");
    REFUSED(sgd, lr_kind = (sl_lr_kind_t)9, "is none of constant|linear");
    REFUSED(sgd, lr_kind = SL_LR_COSINE, "total_steps is 0");
    REFUSED(sgd, lr_kind = SL_LR_LINEAR, "total_steps is 0");
    REFUSED(sgd, lr_kind = SL_LR_STEP, "lr_step_every is 0");
    REFUSED(adam, beta1 = 1.0, "beta1 is 1");
    REFUSED(adam, beta2 = 1.0, "beta2 is 1");
    REFUSED(adam, eps = 0.0, "eps is 0");
    REFUSED(adam, momentum = 0.9, "momentum and nesterov are sgd's");
    p = sgd;
    p.lr_kind = SL_LR_STEP;
    p.lr_step_every = 5;
    p.lr_gamma = 1.5;
    assert_refused(&p, "lr_gamma is 1.5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_update),
        sl_unit_test(test_update_by_hand),
        sl_unit_test(test_threads_give_the_same_bits),
        sl_unit_test(test_place_does_not_matter),
        sl_unit_test(test_zeros_stay_zero),
        sl_unit_test(test_n_moments),
        sl_unit_test(test_sum_squares),
        sl_unit_test(test_sum_squares_counts_all),
        sl_unit_test(test_hash),
        sl_unit_test(test_learning_rates),
        sl_unit_test(test_refused_params),
    };

    return cmocka_run_group_tests(tests, NULL, destroy_managers);
}
