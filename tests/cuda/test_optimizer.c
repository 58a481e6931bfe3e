/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers and the norm on a CUDA device: the CPU's bits. And the hash. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/optimizer.h"
#include "memory/cuda.h"
#include "scheduler/scheduler.h"
#include "tests/cuda/kernel_bed.h"

enum {
    N_STEPS = 6,
    N_VARIANTS = 7
};

static void run_op(sl_op_fn fn, const void *args, size_t args_bytes)
{
    const sl_op_t op = {
        .fn = fn, .args_bytes = (uint32_t)args_bytes, .args = args};
    sl_op_manager_params_t params;
    sl_op_manager_t *manager;

    sl_op_manager_params_default(&params);
    params.n_threads = 1;
    sl_assert_ok(sl_op_manager_create(&params, &manager));
    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    sl_assert_ok(sl_op_manager_drain(manager));
    sl_op_manager_destroy(manager);
}

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

static const sl_cuda_optimizer_kind_t kinds[] = {
    [SL_OPTIMIZER_SGD] = SL_CUDA_SGD,
    [SL_OPTIMIZER_ADAM] = SL_CUDA_ADAM,
    [SL_OPTIMIZER_ADAMW] = SL_CUDA_ADAMW,
};

/* Both update the same parameters; moments hold rubbish at first. */
static void check_updates(int v, size_t n, int has_decay, const double *clip)
{
    const sl_optimizer_params_t params = variant(v);
    const int n_moments = sl_optimizer_n_moments(&params);
    float *value = bed_random(n, 1, 1);
    float *first = bed_random(n, 2, 1), *second = bed_random(n, 3, 1);
    sl_cuda_optimizer_t args = {.kind = kinds[params.kind],
                                .momentum = params.momentum,
                                .nesterov = params.nesterov,
                                .beta1 = params.beta1,
                                .beta2 = params.beta2,
                                .eps = params.eps,
                                .n = (int64_t)n,
                                .copy_type = SL_CUDA_BF16};
    uint32_t step;
    float *copy;
    size_t i;

    args.weight_decay = has_decay || params.decay_all ? params.weight_decay : 0;
    args.value = bed_upload(SL_CUDA_F32, value, n, 0);
    args.moments[0] = n_moments > 0 ? bed_array(SL_CUDA_F32, n, 0) : NULL;
    args.moments[1] = n_moments > 1 ? bed_array(SL_CUDA_F32, n, 0) : NULL;
    args.copy = bed_array(SL_CUDA_BF16, n, 0);
    args.clip_factor = clip == NULL ? 1.0 : *clip;
    for (step = 0; step < N_STEPS; step++) {
        float *grad = bed_random(n, 10 + step, 1);
        const sl_optimizer_run_t run = {
            .params = &params,
            .value = value,
            .grad = grad,
            .moments = {first, second},
            .n = n,
            .step = step,
            .n_threads = 1,
            .has_decay = has_decay,
            .lr = (float)sl_optimizer_lr(&params, step),
            .clip_factor = clip};

        args.step = step;
        args.lr = run.lr;
        args.grad = bed_upload(SL_CUDA_F32, grad, n, 0);
        run_op(sl_optimizer_op_update, &run, sizeof(run));
        sl_assert_ok(sl_cuda_optimizer_update(&args, bed_stream()));
        bed_assert_same("value", bed_fetch(SL_CUDA_F32, args.value, n), value,
                        n);
    }
    if (n_moments > 0) {
        bed_assert_same("first", bed_fetch(SL_CUDA_F32, args.moments[0], n),
                        first, n);
    }
    if (n_moments > 1) {
        bed_assert_same("second", bed_fetch(SL_CUDA_F32, args.moments[1], n),
                        second, n);
    }
    copy = bed_fetch(SL_CUDA_BF16, args.copy, n);
    for (i = 0; i < n; i++) {
        assert_true(copy[i] ==
                    (float)bed_round(SL_CUDA_BF16, (double)value[i]));
    }
}

static void updates_have_the_cpus_bits(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 1001};
    const double clip = 0.37;
    size_t s;
    int v;

    (void)state;
    for (v = 0; v < N_VARIANTS; v++) {
        for (s = 0; s < 4; s++) {
            check_updates(v, sizes[s], 1, NULL);
            check_updates(v, sizes[s], 0, &clip);
        }
    }
}

/* One element against PyTorch's formulas in double. */
static void updates_follow_the_formulas(void **state)
{
    const double g = 0.3, x0 = 2.0, lr = 0.01, decay = 0.1;
    float value = (float)x0, grad = (float)g;
    sl_cuda_optimizer_t args = {.kind = SL_CUDA_ADAMW,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .eps = 1e-8,
                                .weight_decay = decay,
                                .lr = (float)lr,
                                .clip_factor = 1.0,
                                .n = 1};
    double want, m = 0, v = 0;
    int step;

    (void)state;
    args.value = bed_upload(SL_CUDA_F32, &value, 1, 0);
    args.grad = bed_upload(SL_CUDA_F32, &grad, 1, 0);
    args.moments[0] = bed_array(SL_CUDA_F32, 1, 0);
    args.moments[1] = bed_array(SL_CUDA_F32, 1, 0);
    want = x0;
    for (step = 0; step < 3; step++) {
        args.step = (uint32_t)step;
        sl_assert_ok(sl_cuda_optimizer_update(&args, bed_stream()));
        want -= lr * decay * want;
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        want -= lr * (m / (1 - pow(0.9, step + 1))) /
                (sqrt(v / (1 - pow(0.999, step + 1))) + 1e-8);
    }
    bed_assert_close("adamw", bed_fetch(SL_CUDA_F32, args.value, 1), &want, 1,
                     1e-6, 0);
    value = (float)x0;
    args.value = bed_upload(SL_CUDA_F32, &value, 1, 0);
    args.kind = SL_CUDA_SGD;
    args.momentum = 0.9;
    args.nesterov = 1;
    want = x0;
    for (step = 0; step < 3; step++) {
        const double grad_now = g + decay * want;

        args.step = (uint32_t)step;
        sl_assert_ok(sl_cuda_optimizer_update(&args, bed_stream()));
        m = step == 0 ? grad_now : 0.9 * m + grad_now;
        want -= lr * (grad_now + 0.9 * m);
    }
    bed_assert_close("nesterov", bed_fetch(SL_CUDA_F32, args.value, 1), &want,
                     1, 1e-6, 0);
}

static void run_sum(void *args)
{
    sl_assert_ok(sl_cuda_sum_squares(args, bed_stream()));
}

static void norms_have_the_cpus_bits(void **state)
{
    static const size_t sizes[] = {0, 1, 31, 4096, 4097, 100000, 1000003};
    size_t s, i;

    (void)state;
    for (s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        const size_t n = sizes[s];
        float *values = bed_random(n, 1, 1);
        double want = 0, exact = 0, got;
        const sl_norm_run_t run = {
            .values = values, .n = n, .n_threads = 1, .sum_p = &want};
        sl_cuda_sum_squares_t args = {.n = (int64_t)n};
        bed_output_t output;

        args.values = bed_upload(SL_CUDA_F32, values, n, 1);
        args.sum = bed_bytes(sizeof(double));
        args.workspace =
            bed_bytes(sl_cuda_sum_squares_workspace_bytes((int64_t)n));
        output = (bed_output_t){args.sum, sizeof(double)};
        bed_assert_repeats(run_sum, &args, &output, 1);
        run_op(sl_optimizer_op_sum_squares, &run, sizeof(run));
        bed_fetch_bytes(&got, args.sum, sizeof(got));
        assert_memory_equal(&got, &want, sizeof(got));
        for (i = 0; i < n; i++) {
            exact += (double)values[i] * (double)values[i];
        }
        assert_true(fabs(got - exact) <= 1e-12 * exact);
    }
}

/* ---- hashes ---- */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* What the kernels compute, from an old hash of 0. */
static uint64_t reference_hash(const uint32_t *words, size_t n)
{
    uint64_t sum = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        sum +=
            mixed(words[i] + (uint64_t)(i + 1) * UINT64_C(0x9e3779b97f4a7c15));
    }
    return n == 0 ? 0 : mixed(mixed(1) + sum);
}

static void run_hash(void *args)
{
    const sl_cuda_hash_t *hash = args;

    sl_assert_ok(sl_cuda_zero(hash->hash, sizeof(uint64_t), bed_stream()));
    sl_assert_ok(sl_cuda_hash(hash, bed_stream()));
}

static void hashes_are_of_all_words_and_places(void **state)
{
    static const size_t sizes[] = {0, 1, 3, 4, 5, 1023, 4096, 300001};
    size_t s, shift;

    (void)state;
    for (s = 0; s < 2 * sizeof(sizes) / sizeof(*sizes); s++) {
        const size_t n = sizes[s / 2];
        float *values = bed_random(n, 1, 1);
        sl_cuda_hash_t args = {.n = (int64_t)n};
        uint32_t *words = calloc(n + 1, sizeof(*words));
        bed_output_t output;
        uint64_t got;

        shift = s % 2; /* no pack is aligned */
        assert_non_null(words);
        args.words = bed_upload(SL_CUDA_F32, values, n, shift);
        args.hash = bed_bytes(sizeof(uint64_t));
        args.workspace = bed_bytes(SL_CUDA_HASH_WORKSPACE_BYTES);
        output = (bed_output_t){args.hash, sizeof(uint64_t)};
        memcpy(words, values, n * sizeof(*words));
        bed_assert_repeats(run_hash, &args, &output, 1);
        bed_fetch_bytes(&got, args.hash, sizeof(got));
        assert_true(got == reference_hash(words, n));
        free(words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(updates_have_the_cpus_bits),
        BED_TEST(updates_follow_the_formulas),
        BED_TEST(norms_have_the_cpus_bits),
        BED_TEST(hashes_are_of_all_words_and_places),
    };

    return bed_has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
