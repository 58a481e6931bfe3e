/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters, learning rates, and the two ops. This file is compiled without
 * contraction of a * b + c: an element's result then depends neither on the
 * vector width nor on its place in a thread's part. */
#include "engine/optimizer.h"

#include <math.h>
#include <string.h>

#include "scheduler/scheduler.h"

enum {
    PART_ALIGN = 64, /* floats; threads share no cache line */
    /* A sum of squares is made of up to N_GROUPS groups of whole blocks,
     * each summed over LANES lanes: the same tree for any thread count. */
    N_GROUPS = 128,
    BLOCK = 4096,
    LANES = 32
};

void sl_optimizer_params_default(sl_optimizer_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->kind = SL_OPTIMIZER_SGD;
    params->lr = 0.1;
    params->beta1 = 0.9;
    params->beta2 = 0.999;
    params->eps = 1e-8;
    params->lr_kind = SL_LR_CONSTANT;
    params->lr_gamma = 0.1;
}

/* In [min, max), or [min, max] when is_closed; NaN is not. */
static sl_status_t check_range(const char *name, double value, double min,
                               double max, int is_closed)
{
    sl_status_t status = SL_OK;

    if (!(value >= min && (is_closed ? value <= max : value < max))) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "optimizer: %s is %g; it must be in [%g, %g%c", name, value,
                min, max, is_closed ? ']' : ')');
    }
out:
    return status;
}

static sl_status_t check_sgd(const sl_optimizer_params_t *params)
{
    sl_status_t status;

    SL_TRY(status, check_range("momentum", params->momentum, 0.0, 1.0, 0), out);
    if (params->nesterov && params->momentum == 0.0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "optimizer: nesterov needs a momentum above 0");
    }
out:
    return status;
}

static sl_status_t check_adam(const sl_optimizer_params_t *params)
{
    sl_status_t status;

    if (params->momentum != 0.0 || params->nesterov) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "optimizer: momentum and nesterov are sgd's; adam and adamw "
                "have beta1");
    }
    SL_TRY(status, check_range("beta1", params->beta1, 0.0, 1.0, 0), out);
    SL_TRY(status, check_range("beta2", params->beta2, 0.0, 1.0, 0), out);
    /* zero elements (channel padding) stay zero only when eps is above 0 */
    SL_TRY(status, check_range("eps", params->eps, 1e-30, 1.0, 1), out);
out:
    return status;
}

static sl_status_t check_lr(const sl_optimizer_params_t *params)
{
    sl_status_t status;

    SL_TRY(status, check_range("lr", params->lr, 0.0, 1e6, 1), out);
    SL_TRY(status, check_range("lr_min", params->lr_min, 0.0, 1e6, 1), out);
    if (params->warmup_steps < 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "optimizer: warmup_steps is %lld; it must be at least 0",
                (long long)params->warmup_steps);
    }
    switch (params->lr_kind) {
    case SL_LR_CONSTANT:
        break;
    case SL_LR_LINEAR:
    case SL_LR_COSINE:
        if (params->total_steps < 1) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "optimizer: total_steps is %lld; learning rates linear "
                    "and cosine need the length of the run",
                    (long long)params->total_steps);
        }
        break;
    case SL_LR_STEP:
        SL_TRY(status, check_range("lr_gamma", params->lr_gamma, 0.0, 1.0, 1),
               out);
        if (params->lr_step_every < 1) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "optimizer: lr_step_every is %lld; learning rate step "
                    "needs at least 1",
                    (long long)params->lr_step_every);
        }
        break;
    default:
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "optimizer: learning rate %d is none of " SL_LR_CHOICES,
                (int)params->lr_kind);
    }
out:
    return status;
}

sl_status_t sl_optimizer_params_check(const sl_optimizer_params_t *params)
{
    sl_status_t status = SL_OK;

    switch (params->kind) {
    case SL_OPTIMIZER_SGD:
        SL_TRY(status, check_sgd(params), out);
        break;
    case SL_OPTIMIZER_ADAM:
    case SL_OPTIMIZER_ADAMW:
        SL_TRY(status, check_adam(params), out);
        break;
    default:
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "optimizer: kind %d is none of " SL_OPTIMIZER_CHOICES,
                (int)params->kind);
    }
    SL_TRY(status,
           check_range("weight_decay", params->weight_decay, 0.0, 1e6, 1), out);
    SL_TRY(status, check_range("clip_norm", params->clip_norm, 0.0, 1e30, 1),
           out);
    SL_TRY(status, check_lr(params), out);
out:
    return status;
}

/* Share of the run after the warm-up that is over, in [0, 1]. */
static double run_share(const sl_optimizer_params_t *params, uint32_t step)
{
    const double length =
        (double)params->total_steps - (double)params->warmup_steps;
    const double done = (double)step - (double)params->warmup_steps;

    return done >= length ? 1.0 : done / length;
}

double sl_optimizer_lr(const sl_optimizer_params_t *params, uint32_t step)
{
    const double lr = params->lr, lr_min = params->lr_min;
    const double pi = 3.14159265358979323846;

    if ((int64_t)step < params->warmup_steps) {
        return lr * ((double)step + 1.0) / (double)params->warmup_steps;
    }
    switch (params->lr_kind) {
    case SL_LR_CONSTANT:
        break;
    case SL_LR_LINEAR:
        return lr + (lr_min - lr) * run_share(params, step);
    case SL_LR_COSINE:
        return lr_min +
               (lr - lr_min) * 0.5 * (1.0 + cos(pi * run_share(params, step)));
    case SL_LR_STEP:
        /* counted from the start of the run, warm-up included */
        return lr * pow(params->lr_gamma,
                        (double)((int64_t)step / params->lr_step_every));
    }
    return lr;
}

int sl_optimizer_n_moments(const sl_optimizer_params_t *params)
{
    if (params->kind == SL_OPTIMIZER_SGD) {
        return params->momentum > 0.0 ? 1 : 0;
    }
    return 2;
}

/* ---- the update ---- */

/* Numbers of one update, the same for all elements. */
typedef struct scalars {
    float clip;
    float decay;  /* times the value, added to the gradient */
    float shrink; /* adamw: the value is multiplied by it */
    float lr;     /* adam(w): over the first bias correction */
    float momentum;
    float beta1_rest, beta2, beta2_rest, root_correction2, eps;
} scalars_t;

static scalars_t scalars_of(const sl_optimizer_run_t *run)
{
    const sl_optimizer_params_t *params = run->params;
    const double decay =
        run->has_decay || params->decay_all ? params->weight_decay : 0.0;
    scalars_t s = {.clip = 1.0f, .shrink = 1.0f, .lr = run->lr};

    if (run->clip_factor != NULL) {
        s.clip = (float)*run->clip_factor;
    }
    if (params->kind == SL_OPTIMIZER_ADAMW) {
        s.shrink = (float)(1.0 - (double)run->lr * decay);
    } else {
        s.decay = (float)decay;
    }
    if (params->kind == SL_OPTIMIZER_SGD) {
        s.momentum = (float)params->momentum;
    } else {
        const double t = (double)run->step + 1.0;

        s.lr = (float)((double)run->lr / (1.0 - pow(params->beta1, t)));
        s.root_correction2 = (float)sqrt(1.0 - pow(params->beta2, t));
        s.beta1_rest = (float)(1.0 - params->beta1);
        s.beta2 = (float)params->beta2;
        s.beta2_rest = (float)(1.0 - params->beta2);
        s.eps = (float)params->eps;
    }
    return s;
}

static void update_plain(const scalars_t *s, size_t n, float *restrict value,
                         const float *restrict grad)
{
    const float clip = s->clip, decay = s->decay, lr = s->lr;
    size_t i;

#pragma omp simd
    for (i = 0; i < n; i++) {
        value[i] -= lr * (clip * grad[i] + decay * value[i]);
    }
}

/* The first step sets the momentum to the gradient, as PyTorch does; what
 * the buffer holds before is not read. */
static void update_momentum_first(const scalars_t *s, size_t n, int nesterov,
                                  float *restrict value,
                                  const float *restrict grad,
                                  float *restrict moment)
{
    const float clip = s->clip, decay = s->decay, lr = s->lr;
    const float ahead = nesterov ? s->momentum : 0.0f;
    size_t i;

#pragma omp simd
    for (i = 0; i < n; i++) {
        const float g = clip * grad[i] + decay * value[i];

        moment[i] = g;
        value[i] -= lr * (g + ahead * g);
    }
}

static void update_momentum(const scalars_t *s, size_t n, float *restrict value,
                            const float *restrict grad, float *restrict moment)
{
    const float clip = s->clip, decay = s->decay, lr = s->lr;
    const float momentum = s->momentum;
    size_t i;

#pragma omp simd
    for (i = 0; i < n; i++) {
        const float g = clip * grad[i] + decay * value[i];
        const float m = momentum * moment[i] + g;

        moment[i] = m;
        value[i] -= lr * m;
    }
}

static void update_nesterov(const scalars_t *s, size_t n, float *restrict value,
                            const float *restrict grad, float *restrict moment)
{
    const float clip = s->clip, decay = s->decay, lr = s->lr;
    const float momentum = s->momentum;
    size_t i;

#pragma omp simd
    for (i = 0; i < n; i++) {
        const float g = clip * grad[i] + decay * value[i];
        const float m = momentum * moment[i] + g;

        moment[i] = m;
        value[i] -= lr * (g + momentum * m);
    }
}

static void update_adam(const scalars_t *s, size_t n, float *restrict value,
                        const float *restrict grad, float *restrict first,
                        float *restrict second)
{
    const float clip = s->clip, decay = s->decay, shrink = s->shrink;
    const float rest1 = s->beta1_rest, beta2 = s->beta2;
    const float rest2 = s->beta2_rest, root = s->root_correction2;
    const float eps = s->eps, lr = s->lr;
    size_t i;

#pragma omp simd
    for (i = 0; i < n; i++) {
        const float g = clip * grad[i] + decay * value[i];
        const float m = first[i] + rest1 * (g - first[i]);
        const float v = beta2 * second[i] + rest2 * (g * g);

        first[i] = m;
        second[i] = v;
        value[i] = shrink * value[i] - lr * (m / (sqrtf(v) / root + eps));
    }
}

/* Elements [start, start + n). */
static void update_part(const sl_optimizer_run_t *run, const scalars_t *s,
                        size_t start, size_t n)
{
    const sl_optimizer_params_t *params = run->params;
    float *value = run->value + start;
    const float *grad = run->grad + start;

    if (params->kind != SL_OPTIMIZER_SGD) {
        update_adam(s, n, value, grad, run->moments[0] + start,
                    run->moments[1] + start);
    } else if (params->momentum == 0.0) {
        update_plain(s, n, value, grad);
    } else if (run->step == 0) {
        update_momentum_first(s, n, params->nesterov, value, grad,
                              run->moments[0] + start);
    } else if (params->nesterov) {
        update_nesterov(s, n, value, grad, run->moments[0] + start);
    } else {
        update_momentum(s, n, value, grad, run->moments[0] + start);
    }
}

/* Adam's moments start at zero whatever the buffers hold. */
static void clear_moments(const sl_optimizer_run_t *run, size_t start, size_t n)
{
    if (run->params->kind != SL_OPTIMIZER_SGD && run->step == 0 && n > 0) {
        memset(run->moments[0] + start, 0, n * sizeof(float));
        memset(run->moments[1] + start, 0, n * sizeof(float));
    }
}

/* Where part i of n_parts starts. */
static size_t part_start(size_t n, int i, int n_parts)
{
    const size_t n_units = (n + PART_ALIGN - 1) / PART_ALIGN;
    const size_t start =
        n_units * (size_t)i / (size_t)n_parts * (size_t)PART_ALIGN;

    return start < n ? start : n;
}

sl_status_t sl_optimizer_op_update(const void *args, void *stream)
{
    const sl_optimizer_run_t *run = args;
    const scalars_t s = scalars_of(run);
    const int n_parts = run->n_threads > 1 ? run->n_threads : 1;
    int i;

    (void)stream;
    SL_ASSERT(sl_op_is_running());
#pragma omp parallel for num_threads(n_parts) if (n_parts > 1) schedule(static)
    for (i = 0; i < n_parts; i++) {
        const size_t start = part_start(run->n, i, n_parts);
        const size_t n = part_start(run->n, i + 1, n_parts) - start;

        clear_moments(run, start, n);
        update_part(run, &s, start, n);
    }
    return SL_OK;
}

/* ---- sum of squares ---- */

static double sum_block(const float *restrict values, size_t n)
{
    double lanes[LANES] = {0.0};
    double sum = 0.0;
    size_t i, j;

    for (i = 0; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (j = 0; j < LANES; j++) {
            const double v = (double)values[i + j];

            lanes[j] += v * v;
        }
    }
    for (j = 0; i + j < n; j++) {
        const double v = (double)values[i + j];

        lanes[j] += v * v;
    }
    for (j = 0; j < LANES; j++) {
        sum += lanes[j];
    }
    return sum;
}

/* The blocks [first, end) of values, in order. */
static double sum_group(const float *values, size_t n, size_t first, size_t end)
{
    double sum = 0.0;
    size_t block;

    for (block = first; block < end; block++) {
        const size_t start = block * BLOCK;

        sum += sum_block(values + start, n - start < BLOCK ? n - start : BLOCK);
    }
    return sum;
}

sl_status_t sl_optimizer_op_sum_squares(const void *args, void *stream)
{
    const sl_norm_run_t *run = args;
    const size_t n_blocks = (run->n + BLOCK - 1) / BLOCK;
    const int n_threads = run->n_threads > 1 ? run->n_threads : 1;
    double sums[N_GROUPS], sum = 0.0;
    int i;

    (void)stream;
    SL_ASSERT(sl_op_is_running());
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)             \
    schedule(static)
    for (i = 0; i < N_GROUPS; i++) {
        sums[i] =
            sum_group(run->values, run->n, n_blocks * (size_t)i / N_GROUPS,
                      n_blocks * ((size_t)i + 1) / N_GROUPS);
    }
    for (i = 0; i < N_GROUPS; i++) {
        sum += sums[i];
    }
    *run->sum_p = sum;
    return SL_OK;
}
