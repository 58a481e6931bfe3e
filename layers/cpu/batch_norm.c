/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm on the CPU. The tensor is seen as units: a block of channels
 * (blocked) or one channel (plain), each a run of floats a sample; vectors of
 * LANES floats then always meet the same channels in the same lanes. Runs are
 * cut into chunks whose sums are added up in chunk order, so that the result
 * does not depend on the thread count. */
#include <math.h>
#include <string.h>

#include "layers/cpu/batch_norm_rows.h"
#include "layers/cpu/cpu_kernels.h"
#include "layers/image_internal.h"

typedef struct task task_t;

struct task {
    const sl_layer_run_t *run;
    int64_t batch, channels, units;
    int64_t period;     /* channels in a unit */
    int64_t run_floats; /* of one unit and sample */
    int64_t chunks_per_run;
    int64_t n_chunks; /* of one unit */
    mask_t mask;
    const float *g; /* what dx is computed from: dout, or masked already */
    lane_factors_t *factors; /* [units] */
    lane_sums_t *partial;    /* [units][n_chunks], when units are shared */
    /* sums of one chunk, overwritten; NULL: no sums are needed */
    void (*sum)(const task_t *task, int64_t unit, int64_t chunk,
                lane_sums_t *sums);
    void (*finish)(const task_t *task, int64_t unit, const lane_sums_t *sums);
    void (*apply)(const task_t *task, int64_t unit, int64_t chunk);
};

static task_t task_of(const sl_layer_run_t *run, const sl_tensor_desc_t *desc)
{
    task_t task = {.run = run};

    task.batch = desc->dims[0];
    task.channels = desc->dims[1];
    task.period = desc->layout == SL_LAYOUT_BLOCKED ? sl_channel_block() : 1;
    task.units = (task.channels + task.period - 1) / task.period;
    task.run_floats = desc->dims[2] * desc->dims[3] * task.period;
    task.chunks_per_run = (task.run_floats + CHUNK_FLOATS - 1) / CHUNK_FLOATS;
    task.n_chunks = task.batch * task.chunks_per_run;
    return task;
}

/* Offset and length of a chunk in floats. */
static int64_t chunk_at(const task_t *task, int64_t unit, int64_t chunk,
                        int64_t *n_p)
{
    const int64_t sample = chunk / task->chunks_per_run;
    const int64_t begin = chunk % task->chunks_per_run * CHUNK_FLOATS;
    const int64_t left = task->run_floats - begin;

    *n_p = left < CHUNK_FLOATS ? left : CHUNK_FLOATS;
    return (sample * task->units + unit) * task->run_floats + begin;
}

/* ---- sharing the work out ---- */

/* With a unit a thread its second pass finds the data in the cache; worth it
 * when the units share out evenly. */
static int is_unit_per_thread(int64_t units, int threads)
{
    return units % threads == 0 || units >= 4 * threads;
}

static void add_sums(lane_sums_t *to, const lane_sums_t *sums)
{
    int l;

    for (l = 0; l < LANES; l++) {
        to->s[l] += sums->s[l];
        to->q[l] += sums->q[l];
    }
}

static void run_unit(const task_t *task, int64_t unit)
{
    lane_sums_t total = {{0}, {0}};
    lane_sums_t part;
    int64_t i;

    for (i = 0; task->sum != NULL && i < task->n_chunks; i++) {
        task->sum(task, unit, i, &part);
        add_sums(&total, &part);
    }
    task->finish(task, unit, &total);
    /* backwards: what was read last is still in the cache */
    for (i = task->n_chunks - 1; task->apply != NULL && i >= 0; i--) {
        task->apply(task, unit, i);
    }
}

static void run_shared(const task_t *task, int threads)
{
    const int64_t n = task->units * task->n_chunks;
    int64_t i;

    if (task->sum != NULL) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (i = 0; i < n; i++) {
            task->sum(task, i / task->n_chunks, i % task->n_chunks,
                      &task->partial[i]);
        }
    }
    for (i = 0; i < task->units; i++) {
        lane_sums_t total = {{0}, {0}};
        int64_t j;

        for (j = 0; task->sum != NULL && j < task->n_chunks; j++) {
            add_sums(&total, &task->partial[i * task->n_chunks + j]);
        }
        task->finish(task, i, &total);
    }
    if (task->apply != NULL) {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (i = 0; i < n; i++) {
            task->apply(task, i / task->n_chunks, i % task->n_chunks);
        }
    }
}

static void run_task(const task_t *task)
{
    const int threads =
        sl_cpu_threads(task->run, task->units * task->batch * task->run_floats);
    int64_t i;

    if (!is_unit_per_thread(task->units, threads)) {
        run_shared(task, threads);
        return;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (i = 0; i < task->units; i++) {
        run_unit(task, i);
    }
}

/* ---- sums ---- */

/* Sums of one channel of a unit: its lanes, in order. */
static void channel_sums(const task_t *task, const lane_sums_t *sums,
                         int64_t channel, double *s_p, double *q_p)
{
    double s = 0.0, q = 0.0;
    int64_t l;

    for (l = channel; l < LANES; l += task->period) {
        s += sums->s[l];
        q += sums->q[l];
    }
    *s_p = s;
    *q_p = q;
}

static double n_values(const task_t *task)
{
    return (double)task->batch * (double)task->run_floats /
           (double)task->period;
}

/* ---- forward ---- */

/* One value of the channel, so that the squares do not cancel. */
static float shift_of(const task_t *task, int64_t unit, int64_t channel)
{
    const float *x = task->run->in[0];

    return x[unit * task->run_floats + channel];
}

static void forward_sum(const task_t *task, int64_t unit, int64_t chunk,
                        lane_sums_t *sums)
{
    const float *x = task->run->in[0];
    sum_data_t data = {0};
    lane_factors_t f;
    int64_t n, l;

    for (l = 0; l < LANES; l++) {
        f.mean[l] = shift_of(task, unit, l % task->period);
    }
    data.x = x + chunk_at(task, unit, chunk, &n);
    sum_floats((sum_kind_t){0, MASK_NONE, 0}, &data, &f, n, sums);
}

/* Add the micro-batch to the mini-batch's count, sum, sum of squares: in
 * double these lose nothing that a float mean and variance could show. */
static void accumulate(const task_t *task, int64_t c, double mean, double m2)
{
    const sl_layer_run_t *run = task->run;
    double *sums = run->param[SL_BN_SUMS];
    const double n = n_values(task);
    const double add[3] = {n, n * mean, m2 + n * mean * mean};
    int i;

    if (run->step.is_recompute || sums == NULL) {
        return;
    }
    for (i = 0; i < 3; i++) {
        double *to = &sums[i * task->channels + c];

        *to = run->step.is_first_forward ? add[i] : *to + add[i];
    }
}

/* Mean and 1 / deviation of a channel: of the micro-batch or running. */
static void channel_statistics(const task_t *task, int64_t unit, int64_t l,
                               const lane_sums_t *sums, float *mean_p,
                               float *rstd_p)
{
    const sl_layer_run_t *run = task->run;
    const sl_batch_norm_attrs_t *attrs = run->plan->layer->attrs;
    const int64_t c = unit * task->period + l;
    const double n = n_values(task);
    double s, q, d, m2, mean, var;

    if (task->sum == NULL) {
        mean = (double)((const float *)run->param[SL_BN_MEAN])[c];
        var = (double)((const float *)run->param[SL_BN_VAR])[c];
    } else {
        channel_sums(task, sums, l, &s, &q);
        d = s / n;
        m2 = q - s * d;
        m2 = m2 < 0.0 ? 0.0 : m2; /* of rounding; NaN stays */
        mean = (double)shift_of(task, unit, l) + d;
        var = m2 / n;
        accumulate(task, c, mean, m2);
    }
    *mean_p = (float)mean;
    *rstd_p = (float)(1.0 / sqrt(var + attrs->eps));
}

/* Where forward leaves a padded channel's mean (0) and 1 / deviation (1). */
static float *saved_mean(const task_t *task)
{
    return task->run->saved;
}

static float *saved_rstd(const task_t *task)
{
    return saved_mean(task) + task->units * task->period;
}

/* The factors that both passes use; channels of the padding give zero. */
static void base_factors(const task_t *task, int64_t c, int64_t l, float mean,
                         float rstd, lane_factors_t *f)
{
    const float *weight = task->run->param[SL_BN_WEIGHT];
    const float *bias = task->run->param[SL_BN_BIAS];
    const int is_real = c < task->channels;

    for (; l < LANES; l += task->period) {
        f->mean[l] = mean;
        f->scale[l] = is_real ? weight[c] * rstd : 0.0f;
        f->bias[l] = is_real ? bias[c] : 0.0f;
    }
}

static void forward_finish(const task_t *task, int64_t unit,
                           const lane_sums_t *sums)
{
    int64_t l;

    for (l = 0; l < task->period; l++) {
        const int64_t c = unit * task->period + l;
        float mean = 0.0f, rstd = 1.0f;

        if (c < task->channels) {
            channel_statistics(task, unit, l, sums, &mean, &rstd);
        }
        if (task->sum != NULL && task->run->saved != NULL) {
            saved_mean(task)[c] = mean;
            saved_rstd(task)[c] = rstd;
        }
        base_factors(task, c, l, mean, rstd, &task->factors[unit]);
    }
}

static void forward_apply(const task_t *task, int64_t unit, int64_t chunk)
{
    const sl_layer_run_t *run = task->run;
    const sl_batch_norm_attrs_t *attrs = run->plan->layer->attrs;
    const lane_factors_t *f = &task->factors[unit];
    int64_t n;
    const int64_t at = chunk_at(task, unit, chunk, &n);
    const float *x = (const float *)run->in[0] + at;
    float *y = (float *)run->out + at;

    if (run->plan->layer->n_inputs > 1) {
        const float *skip = (const float *)run->in[1] + at;

        if (attrs->relu) {
            normalise(x, skip, y, n, f, 1, 1);
        } else {
            normalise(x, skip, y, n, f, 1, 0);
        }
    } else if (attrs->relu) {
        normalise(x, NULL, y, n, f, 0, 1);
    } else {
        normalise(x, NULL, y, n, f, 0, 0);
    }
}

static void place_workspace(task_t *task)
{
    task->factors = task->run->workspace;
    task->partial = (void *)(task->factors + task->units);
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    task_t task = task_of(run, &run->plan->in[0]);

    (void)stream;
    place_workspace(&task);
    task.sum = run->step.is_training ? forward_sum : NULL;
    task.finish = forward_finish;
    task.apply = forward_apply;
    run_task(&task);
    return SL_OK;
}

/* ---- backward ---- */

static void backward_sum(const task_t *task, int64_t unit, int64_t chunk,
                         lane_sums_t *sums)
{
    const sl_layer_run_t *run = task->run;
    const lane_factors_t *f = &task->factors[unit];
    sum_data_t data = {0};
    int64_t n;
    const int64_t at = chunk_at(task, unit, chunk, &n);
    const int stores_g = run->din[1] != NULL;

    data.x = (const float *)run->in[0] + at;
    data.dout = (const float *)run->dout + at;
    if (task->mask == MASK_FROM_Y) {
        data.y = (const float *)run->out + at;
    }
    if (stores_g) {
        data.g = (float *)run->din[1] + at;
    }
    if (task->mask == MASK_FROM_X) {
        sum_floats((sum_kind_t){1, MASK_FROM_X, 0}, &data, f, n, sums);
    } else if (task->mask == MASK_FROM_Y && stores_g) {
        sum_floats((sum_kind_t){1, MASK_FROM_Y, 1}, &data, f, n, sums);
    } else if (task->mask == MASK_FROM_Y) {
        sum_floats((sum_kind_t){1, MASK_FROM_Y, 0}, &data, f, n, sums);
    } else if (stores_g) {
        sum_floats((sum_kind_t){1, MASK_NONE, 1}, &data, f, n, sums);
    } else {
        sum_floats((sum_kind_t){1, MASK_NONE, 0}, &data, f, n, sums);
    }
}

static void add_gradient(const task_t *task, int param, int64_t c, float value)
{
    float *grad = task->run->grad[param];

    if (grad != NULL) {
        grad[c] = task->run->step.is_first_backward ? value : grad[c] + value;
    }
}

/* Gradients of weight and bias, and the factors of dx. */
static void backward_finish(const task_t *task, int64_t unit,
                            const lane_sums_t *sums)
{
    const float *weight = task->run->param[SL_BN_WEIGHT];
    lane_factors_t *f = &task->factors[unit];
    const double n = n_values(task);
    int64_t c0, l;

    for (c0 = 0; c0 < task->period; c0++) {
        const int64_t c = unit * task->period + c0;
        double k0 = 0.0, k1 = 0.0, k2 = 0.0;

        if (c < task->channels) {
            const double rstd = (double)saved_rstd(task)[c];
            double s, q;

            channel_sums(task, sums, c0, &s, &q);
            add_gradient(task, SL_BN_WEIGHT, c, (float)(q * rstd));
            add_gradient(task, SL_BN_BIAS, c, (float)s);
            k1 = (double)weight[c] * rstd;
            k0 = -k1 * s / n;
            k2 = -k1 * rstd * rstd * q / n;
        }
        for (l = c0; l < LANES; l += task->period) {
            f->k0[l] = (float)k0;
            f->k1[l] = (float)k1;
            f->k2[l] = (float)k2;
        }
    }
}

static void backward_apply(const task_t *task, int64_t unit, int64_t chunk)
{
    const sl_layer_run_t *run = task->run;
    const lane_factors_t *f = &task->factors[unit];
    int64_t n;
    const int64_t at = chunk_at(task, unit, chunk, &n);
    const float *x = (const float *)run->in[0] + at;
    const float *g = task->g + at;
    float *dx = (float *)run->din[0] + at;

    if (task->g != run->dout || task->mask == MASK_NONE) {
        write_dx(MASK_NONE, x, g, NULL, dx, n, f);
    } else if (task->mask == MASK_FROM_X) {
        write_dx(MASK_FROM_X, x, g, NULL, dx, n, f);
    } else {
        write_dx(MASK_FROM_Y, x, g, (const float *)run->out + at, dx, n, f);
    }
}

static mask_t mask_of(const sl_layer_t *layer)
{
    const sl_batch_norm_attrs_t *attrs = layer->attrs;

    if (!attrs->relu) {
        return MASK_NONE;
    }
    return layer->n_inputs > 1 ? MASK_FROM_Y : MASK_FROM_X;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    task_t task = task_of(run, &run->plan->in[0]);
    int64_t u, l;

    (void)stream;
    place_workspace(&task);
    task.mask = mask_of(run->plan->layer);
    task.g = run->din[1] != NULL ? run->din[1] : run->dout;
    for (u = 0; u < task.units; u++) {
        for (l = 0; l < task.period; l++) {
            const int64_t c = u * task.period + l;

            base_factors(&task, c, l, saved_mean(&task)[c],
                         saved_rstd(&task)[c], &task.factors[u]);
        }
    }
    task.sum = backward_sum;
    task.finish = backward_finish;
    task.apply = run->din[0] != NULL ? backward_apply : NULL;
    run_task(&task);
    return SL_OK;
}

/* ---- the whole mini-batch, and the plan ---- */

/* running = (1 - momentum) running + momentum * the mini-batch's value; the
 * variance is the unbiased one, as in PyTorch. */
static sl_status_t finish_batch(const sl_layer_run_t *run, void *stream)
{
    const sl_layer_t *layer = run->plan->layer;
    const sl_batch_norm_attrs_t *attrs = layer->attrs;
    const int64_t channels = layer->params[SL_BN_WEIGHT].desc.dims[0];
    const double *sums = run->param[SL_BN_SUMS];
    float *running_mean = run->param[SL_BN_MEAN];
    float *running_var = run->param[SL_BN_VAR];
    const double keep = 1.0 - attrs->momentum;
    int64_t c;

    (void)stream;
    for (c = 0; c < channels; c++) {
        const double n = sums[c];
        const double mean = sums[channels + c] / n;
        double m2 = sums[2 * channels + c] - sums[channels + c] * mean;

        if (n < 1.0) {
            continue; /* no sample of the mini-batch came by */
        }
        m2 = m2 < 0.0 ? 0.0 : m2;
        running_mean[c] =
            (float)(keep * (double)running_mean[c] + attrs->momentum * mean);
        running_var[c] =
            (float)(keep * (double)running_var[c] +
                    attrs->momentum * m2 / (n > 1.0 ? n - 1.0 : 1.0));
    }
    return SL_OK;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const task_t task = task_of(NULL, &plan_p->in[0]);
    const mask_t mask = mask_of(plan_p->layer);
    size_t bytes = (size_t)task.units * sizeof(lane_factors_t);

    if (!is_unit_per_thread(task.units, plan_p->n_threads)) {
        bytes += (size_t)(task.units * task.n_chunks) * sizeof(lane_sums_t);
    }
    plan_p->forward_workspace_bytes = bytes;
    if (plan_p->is_training) {
        plan_p->backward_workspace_bytes = bytes;
        plan_p->saved_bytes =
            2 * sizeof(float) * (size_t)(task.units * task.period);
        plan_p->keeps_input[0] = 1;
        plan_p->keeps_output = mask == MASK_FROM_Y;
        if (plan_p->layer->n_inputs > 1 && mask == MASK_NONE) {
            plan_p->passes_gradient = 1 << 1;
        }
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_batch_norm = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
    .finish_batch = finish_batch,
};
