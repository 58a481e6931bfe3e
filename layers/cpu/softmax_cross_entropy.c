/* SPDX-License-Identifier: Apache-2.0 */
/* softmax_cross_entropy: saves {max, log of the sum} of each row; the losses
 * are summed in double in row order, whatever the thread count. */
#include <math.h>
#include <string.h>

#include "layers/attrs_internal.h"
#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/vec_math.h"
#include "layers/layers_internal.h"

/* Where the classes of a row are. Images are gathered into a buffer. */
typedef struct shape {
    int64_t rows;
    int64_t classes;
    int64_t pixels;   /* of an image; 0: rows are contiguous */
    int64_t block;    /* channels side by side in memory */
    int64_t channels; /* padded */
    int threads;
} shape_t;

typedef struct row_result {
    double loss;
    int32_t is_valid;
    int32_t is_correct;
} row_result_t;

enum {
    CHUNK = 1024
};

static shape_t shape_of(const sl_layer_plan_t *plan)
{
    const sl_tensor_desc_t *in = &plan->in[0];
    shape_t s = {.block = 1};

    if (in->n_dims == 4) {
        s.classes = in->dims[1];
        s.pixels = in->dims[2] * in->dims[3];
        s.rows = in->dims[0] * s.pixels;
        s.block = in->layout == SL_LAYOUT_BLOCKED ? sl_channel_block() : 1;
        s.channels = sl_padded_channels(in);
    } else {
        s.classes = in->dims[in->n_dims - 1];
        s.rows = sl_tensor_rows(in);
    }
    s.threads = s.rows * s.classes < 16384 ? 1 : plan->n_threads;
    return s;
}

/* Bytes of the threads' buffers for gathered rows. */
static size_t gather_bytes(shape_t s)
{
    return s.pixels == 0 ? 0 : (size_t)(s.threads * s.classes) * sizeof(float);
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const shape_t s = shape_of(plan_p);

    plan_p->saved_bytes =
        plan_p->is_training ? (size_t)(2 * s.rows) * sizeof(float) : 0;
    plan_p->forward_workspace_bytes =
        (size_t)s.rows * sizeof(row_result_t) + gather_bytes(s);
    plan_p->backward_workspace_bytes = gather_bytes(s);
    plan_p->keeps_input[0] = 1;
    plan_p->keeps_input[1] = 1;
    return SL_OK;
}

/* Offset of class c of a row of an image. */
static int64_t image_offset(shape_t s, int64_t row, int64_t c)
{
    return row / s.pixels * s.channels * s.pixels +
           c / s.block * s.block * s.pixels + row % s.pixels * s.block +
           c % s.block;
}

static const float *row_of(shape_t s, const float *logits, int64_t row,
                           float *buffer)
{
    int64_t c;

    if (s.pixels == 0) {
        return logits + row * s.classes;
    }
    for (c = 0; c < s.classes; c++) {
        buffer[c] = logits[image_offset(s, row, c)];
    }
    return buffer;
}

static float max_of(const float *x, int64_t n)
{
    float max = x[0];
    int64_t i;

#pragma omp simd reduction(max : max)
    for (i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

/* Sum of e^(x - max): float within a chunk, then double. */
static double exp_sum_of(const float *x, float max, int64_t n)
{
    double total = 0;
    int64_t begin, i;

    for (begin = 0; begin < n; begin += CHUNK) {
        const int64_t end = begin + CHUNK < n ? begin + CHUNK : n;
        float sum = 0;

#pragma omp simd reduction(+ : sum)
        for (i = begin; i < end; i++) {
            sum += sl_vec_exp(x[i] - max);
        }
        total += (double)sum;
    }
    return total;
}

/* Sum of x - max, likewise. */
static double shifted_sum_of(const float *x, float max, int64_t n)
{
    double total = 0;
    int64_t begin, i;

    for (begin = 0; begin < n; begin += CHUNK) {
        const int64_t end = begin + CHUNK < n ? begin + CHUNK : n;
        float sum = 0;

#pragma omp simd reduction(+ : sum)
        for (i = begin; i < end; i++) {
            sum += x[i] - max;
        }
        total += (double)sum;
    }
    return total;
}

/* Whether the target is the first of the largest. */
static int is_best(const float *x, int64_t target, float max)
{
    int64_t i;

    for (i = 0; i < target; i++) {
        if (x[i] == max) {
            return 0;
        }
    }
    return x[target] == max;
}

static row_result_t forward_row(const sl_loss_attrs_t *attrs, const float *x,
                                int64_t classes, int32_t target, float *saved)
{
    const double smoothing = attrs->label_smoothing;
    row_result_t result = {0};
    const float max = max_of(x, classes);
    double log_sum;

    if (target == attrs->ignore_index) {
        if (saved != NULL) {
            saved[0] = 0;
            saved[1] = 0;
        }
        return result;
    }
    log_sum = log(exp_sum_of(x, max, classes));
    result.loss = log_sum - (1 - smoothing) * ((double)x[target] - (double)max);
    if (smoothing > 0) {
        result.loss -=
            smoothing * shifted_sum_of(x, max, classes) / (double)classes;
    }
    result.is_valid = 1;
    result.is_correct = is_best(x, target, max);
    if (saved != NULL) {
        saved[0] = max;
        saved[1] = (float)log_sum;
    }
    return result;
}

static void forward_rows(const sl_layer_run_t *run, shape_t s, int t)
{
    const sl_cpu_range_t r = sl_cpu_split(s.rows, s.threads, t, 1);
    row_result_t *results = run->workspace;
    float *buffer = (float *)(void *)(results + s.rows) + t * s.classes;
    const int has_saved = run->plan->is_training && run->saved != NULL;
    int64_t row;

    for (row = r.begin; row < r.end; row++) {
        results[row] = forward_row(
            run->plan->layer->attrs, row_of(s, run->in[0], row, buffer),
            s.classes, ((const int32_t *)run->in[1])[row],
            has_saved ? (float *)run->saved + 2 * row : NULL);
    }
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const shape_t s = shape_of(run->plan);
    const row_result_t *results = run->workspace;
    double sums[4] = {0};
    sl_status_t status;
    int64_t row;
    int t;

    (void)stream;
    SL_TRY(status, sl_layer_check_input(run->plan, 1, run->in[1]), out);
#pragma omp parallel for num_threads(s.threads) if (s.threads > 1)             \
    schedule(static)
    for (t = 0; t < s.threads; t++) {
        forward_rows(run, s, t);
    }
    for (row = 0; row < s.rows; row++) {
        sums[0] += results[row].loss;
        sums[1] += results[row].is_valid;
        sums[2] += results[row].is_correct;
    }
    memcpy(run->out, sums, sizeof(sums));
out:
    return status;
}

/* d = (softmax(x) - mixed target) * loss_scale; d may be x */
static void backward_row(const sl_layer_run_t *run, const float *x,
                         int64_t classes, int32_t target, const float *saved,
                         float *d)
{
    const sl_loss_attrs_t *attrs = run->plan->layer->attrs;
    const float scale = run->step.loss_scale;
    const float spread = (float)(attrs->label_smoothing / (double)classes);
    const float share = (float)(1 - attrs->label_smoothing + (double)spread);
    const float max = saved[0], log_sum = saved[1];
    float at_target;
    int64_t c;

    if (target == attrs->ignore_index) {
        memset(d, 0, (size_t)classes * sizeof(*d));
        return;
    }
    at_target = sl_vec_exp((x[target] - max) - log_sum) - share;
#pragma omp simd
    for (c = 0; c < classes; c++) {
        d[c] = (sl_vec_exp((x[c] - max) - log_sum) - spread) * scale;
    }
    d[target] = at_target * scale;
}

static void backward_rows(const sl_layer_run_t *run, shape_t s, int t)
{
    const sl_cpu_range_t r = sl_cpu_split(s.rows, s.threads, t, 1);
    float *buffer = (float *)run->workspace + t * s.classes;
    float *din = run->din[0];
    int64_t row, c;

    for (row = r.begin; row < r.end; row++) {
        const float *x = row_of(s, run->in[0], row, buffer);
        float *d = s.pixels == 0 ? din + row * s.classes : buffer;

        backward_row(run, x, s.classes, ((const int32_t *)run->in[1])[row],
                     (const float *)run->saved + 2 * row, d);
        for (c = 0; s.pixels > 0 && c < s.classes; c++) {
            din[image_offset(s, row, c)] = buffer[c];
        }
        for (; s.pixels > 0 && c < s.channels; c++) {
            din[image_offset(s, row, c)] = 0;
        }
    }
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const shape_t s = shape_of(run->plan);
    sl_status_t status;
    int t;

    (void)stream;
    SL_TRY(status, sl_layer_check_input(run->plan, 1, run->in[1]), out);
    if (run->din[0] == NULL) {
        return SL_OK;
    }
#pragma omp parallel for num_threads(s.threads) if (s.threads > 1)             \
    schedule(static)
    for (t = 0; t < s.threads; t++) {
        backward_rows(run, s, t);
    }
out:
    return status;
}

const sl_layer_kernels_t sl_cpu_softmax_cross_entropy = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
    .checks_input = 1,
};
