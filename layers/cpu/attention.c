/* SPDX-License-Identifier: Apache-2.0 */
/* attention on the CPU: a block of query rows against blocks of keys, with
 * a running maximum and sum a row (the online softmax of FlashAttention), so
 * no T x T matrix exists. Backward computes the probabilities again from the
 * saved log of each row's sum. A head of a sample is one unit of work and
 * owns its part of every result: the bits do not depend on the threads. */
#include "layers/attention_internal.h"

#include <math.h>
#include <string.h>

#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/drop.h"
#include "layers/cpu/gemm.h"
#include "layers/cpu/vec_math.h"
#include "layers/layers_internal.h"

enum {
    QUERY_ROWS = 64,
    KEY_COLUMNS = 512,
    BLOCK_FLOATS = QUERY_ROWS * KEY_COLUMNS,
    DRAW_BLOCKS = 16 /* of four random numbers, drawn side by side */
};

_Static_assert(KEY_COLUMNS % QUERY_ROWS == 0,
               "the first row of a block sees the first key of every key "
               "block that its last row sees");

/* The layer's sizes and what is the same for all heads of a run. */
typedef struct shape {
    int64_t batch, time, heads, width; /* width of a head */
    int64_t in_stride, out_stride; /* floats from one position to the next */
    int is_causal;
    float scale; /* of the scores */
    int has_dropout;
    sl_drop_t drop;
} shape_t;

/* What a thread works in. */
typedef struct scratch {
    float scores[BLOCK_FLOATS]; /* then probabilities */
    float masked[BLOCK_FLOATS]; /* backward: probabilities not dropped */
    float dscores[BLOCK_FLOATS];
    float delta[QUERY_ROWS]; /* backward: dout . out of a row */
    uint32_t numbers[KEY_COLUMNS + 8 * DRAW_BLOCKS];
} scratch_t;

/* A head of a sample, at its first position. */
typedef struct head {
    const shape_t *shape;
    scratch_t *scratch;
    const float *q, *k, *v;
    float *dq, *dk, *dv;
    float *out; /* forward */
    const float *kept_out, *dout;
    float *log_sums;       /* [time]; NULL: not kept */
    uint64_t first_number; /* of the dropout of element (0, 0) */
    float gradient_beta;   /* 1: add to what dq, dk, dv hold */
} head_t;

/* Rows [i, i + rows) against keys [j, j + columns). */
typedef struct block {
    int64_t i, rows;
    int64_t j, columns;
} block_t;

static shape_t shape_of(const sl_layer_run_t *run)
{
    const sl_layer_plan_t *plan = run->plan;
    const sl_attention_attrs_t *attrs = plan->layer->attrs;
    shape_t s = {.batch = plan->in[0].dims[0],
                 .time = plan->in[0].dims[1],
                 .heads = attrs->heads,
                 .in_stride = plan->in[0].dims[2],
                 .out_stride = plan->out.dims[2],
                 .is_causal = attrs->causal};

    s.width = s.out_stride / s.heads;
    s.scale = (float)(1.0 / sqrt((double)s.width));
    s.drop = sl_drop_of(run, attrs->dropout, SL_RNG_USE_ATTENTION_DROPOUT);
    s.has_dropout = run->step.is_training && s.drop.threshold > 0;
    if (!s.has_dropout) {
        s.drop.scale = 1;
    }
    return s;
}

static head_t head_of(const sl_layer_run_t *run, const shape_t *s, int64_t unit,
                      int part)
{
    const int64_t b = unit / s->heads;
    const int64_t h = unit % s->heads;
    const int64_t in = b * s->time * s->in_stride + h * s->width;
    const int64_t out = b * s->time * s->out_stride + h * s->width;
    const float *x = run->in[0];
    float *dx = run->din[0];
    head_t head = {.shape = s,
                   .scratch = (scratch_t *)run->workspace + part,
                   .q = x + in,
                   .k = x + in + s->out_stride,
                   .v = x + in + 2 * s->out_stride,
                   .out = (float *)run->out + out,
                   .kept_out = (const float *)run->out + out,
                   .first_number = (uint64_t)(unit * s->time * s->time),
                   .gradient_beta = run->din_prev[0] != NULL ? 1.0f : 0.0f};

    if (run->plan->is_training) {
        head.log_sums = (float *)run->saved + unit * s->time;
    }
    if (dx != NULL) {
        head.dout = (const float *)run->dout + out;
        head.dq = dx + in;
        head.dk = dx + in + s->out_stride;
        head.dv = dx + in + 2 * s->out_stride;
    }
    return head;
}

/* ---- blocks ---- */

/* The block of keys from j on, or none (columns 0) when no row sees it. */
static block_t block_at(const shape_t *s, int64_t i, int64_t j)
{
    const int64_t i_end = i + QUERY_ROWS < s->time ? i + QUERY_ROWS : s->time;
    const int64_t j_limit = s->is_causal ? i_end : s->time;
    const int64_t j_end = j + KEY_COLUMNS < j_limit ? j + KEY_COLUMNS : j_limit;
    const block_t block = {.i = i,
                           .rows = i_end - i,
                           .j = j,
                           .columns = j_end > j ? j_end - j : 0};

    return block;
}

/* Keys of the block that its row r sees: at least one. */
static int64_t seen(const shape_t *s, const block_t *block, int64_t r)
{
    const int64_t n = block->i + r + 1 - block->j;

    return s->is_causal && n < block->columns ? n : block->columns;
}

/* scores = scale * Q K^T */
static sl_status_t multiply_scores(const head_t *head, const block_t *block)
{
    const shape_t *s = head->shape;
    const sl_gemm_t gemm = {.m = block->rows,
                            .n = block->columns,
                            .k = s->width,
                            .is_b_transposed = 1,
                            .lda = s->in_stride,
                            .ldb = s->in_stride,
                            .ldc = KEY_COLUMNS,
                            .alpha = s->scale};

    return sl_gemm(&gemm, head->q + block->i * s->in_stride,
                   head->k + block->j * s->in_stride, head->scratch->scores);
}

/* The random numbers of `n` elements of a row of the block; some more are
 * drawn, so that the loop has no rest. */
static const uint32_t *draw_row(const head_t *head, const block_t *block,
                                int64_t r, int64_t n)
{
    const uint64_t first =
        head->first_number +
        (uint64_t)((block->i + r) * head->shape->time + block->j);
    const uint32_t skipped = (uint32_t)(first % 4);
    const uint32_t groups =
        (skipped + (uint32_t)n + 4 * DRAW_BLOCKS - 1) / (4 * DRAW_BLOCKS);
    const uint32_t first_block = (uint32_t)(first / 4);
    const sl_rng_t rng = head->shape->drop.rng;
    uint32_t *numbers = head->scratch->numbers;
    uint32_t k;

#pragma omp simd
    for (k = 0; k < groups * DRAW_BLOCKS; k++) {
        sl_rng_block(&rng, first_block + k, numbers + 4 * k);
    }
    return numbers + skipped;
}

/* to[k] = from[k], or 0 where dropped. */
static void drop_row(const head_t *head, const block_t *block, int64_t r,
                     int64_t n, const float *from, float *to)
{
    const uint32_t *numbers = draw_row(head, block, r, n);
    const uint32_t threshold = head->shape->drop.threshold;
    int64_t k;

#pragma omp simd
    for (k = 0; k < n; k++) {
        to[k] = numbers[k] < threshold ? 0.0f : from[k];
    }
}

/* ---- forward ---- */

/* A row's softmax so far: scores below are relative to max. */
typedef struct softmax {
    float max;
    float sum;
} softmax_t;

static float max_of(const float *x, int64_t n)
{
    float max = x[0];
    int64_t k;

#pragma omp simd reduction(max : max)
    for (k = 1; k < n; k++) {
        max = x[k] > max ? x[k] : max;
    }
    return max;
}

/* x = e^(x - max); returns the sum. */
static float exponentials(float *x, int64_t n, float max)
{
    float sum = 0;
    int64_t k;

#pragma omp simd reduction(+ : sum)
    for (k = 0; k < n; k++) {
        x[k] = sl_vec_exp(x[k] - max);
        sum += x[k];
    }
    return sum;
}

static void multiply_row(float *x, int64_t n, float factor)
{
    int64_t k;

#pragma omp simd
    for (k = 0; k < n; k++) {
        x[k] *= factor;
    }
}

/* Scores to unscaled probabilities, row by row; a new maximum rescales what
 * the output holds from earlier keys. */
static void softmax_block(const head_t *head, const block_t *block,
                          softmax_t rows[QUERY_ROWS])
{
    const shape_t *s = head->shape;
    int64_t r;

    for (r = 0; r < block->rows; r++) {
        float *scores = head->scratch->scores + r * KEY_COLUMNS;
        const int64_t n = seen(s, block, r);
        const float max = max_of(scores, n);

        if (block->j == 0) {
            rows[r].max = max;
            rows[r].sum = 0;
        } else if (max > rows[r].max) {
            const float factor = sl_vec_exp(rows[r].max - max);

            rows[r].max = max;
            rows[r].sum *= factor;
            multiply_row(head->out + (block->i + r) * s->out_stride, s->width,
                         factor);
        }
        rows[r].sum += exponentials(scores, n, rows[r].max);
        if (s->has_dropout) {
            drop_row(head, block, r, n, scores, scores);
        }
        memset(scores + n, 0, (size_t)(block->columns - n) * sizeof(*scores));
    }
}

static sl_status_t forward_rows(const head_t *head, int64_t i)
{
    const shape_t *s = head->shape;
    block_t block = block_at(s, i, 0);
    softmax_t rows[QUERY_ROWS];
    float *out = head->out + i * s->out_stride;
    sl_status_t status = SL_OK;
    int64_t r;

    for (; block.columns > 0; block = block_at(s, i, block.j + KEY_COLUMNS)) {
        const sl_gemm_t gemm = {.m = block.rows,
                                .n = s->width,
                                .k = block.columns,
                                .lda = KEY_COLUMNS,
                                .ldb = s->in_stride,
                                .ldc = s->out_stride,
                                .alpha = 1,
                                .beta = block.j > 0 ? 1.0f : 0.0f};

        SL_TRY(status, multiply_scores(head, &block), out);
        softmax_block(head, &block, rows);
        SL_TRY(status,
               sl_gemm(&gemm, head->scratch->scores,
                       head->v + block.j * s->in_stride, out),
               out);
    }
    for (r = 0; r < block.rows; r++) {
        multiply_row(out + r * s->out_stride, s->width,
                     s->drop.scale / rows[r].sum);
        if (head->log_sums != NULL) {
            head->log_sums[i + r] = rows[r].max + logf(rows[r].sum);
        }
    }
out:
    return status;
}

static sl_status_t forward_head(const head_t *head)
{
    sl_status_t status = SL_OK;
    int64_t i;

    for (i = 0; i < head->shape->time; i += QUERY_ROWS) {
        SL_TRY(status, forward_rows(head, i), out);
    }
out:
    return status;
}

/* ---- backward ---- */

/* dscores = dout V^T: gradients of the masked probabilities / (1 - p). */
static sl_status_t multiply_dscores(const head_t *head, const block_t *block)
{
    const shape_t *s = head->shape;
    const sl_gemm_t gemm = {.m = block->rows,
                            .n = block->columns,
                            .k = s->width,
                            .is_b_transposed = 1,
                            .lda = s->out_stride,
                            .ldb = s->in_stride,
                            .ldc = KEY_COLUMNS,
                            .alpha = s->drop.scale};

    return sl_gemm(&gemm, head->dout + block->i * s->out_stride,
                   head->v + block->j * s->in_stride, head->scratch->dscores);
}

/* p = e^(p - log_sum) from scores p */
static void probabilities(float *p, int64_t n, float log_sum)
{
    int64_t k;

#pragma omp simd
    for (k = 0; k < n; k++) {
        p[k] = sl_vec_exp(p[k] - log_sum);
    }
}

/* d = p_masked * d - p * delta */
static void softmax_gradient(const float *p, const float *p_masked, float delta,
                             float *d, int64_t n)
{
    int64_t k;

#pragma omp simd
    for (k = 0; k < n; k++) {
        d[k] = p_masked[k] * d[k] - p[k] * delta;
    }
}

/* From scores and gradients of probabilities to masked probabilities and
 * gradients of scores. Returns the masked probabilities. */
static const float *differentiate_block(const head_t *head,
                                        const block_t *block)
{
    const shape_t *s = head->shape;
    scratch_t *w = head->scratch;
    float *all_masked = s->has_dropout ? w->masked : w->scores;
    int64_t r;

    for (r = 0; r < block->rows; r++) {
        const int64_t n = seen(s, block, r);
        const size_t rest = (size_t)(block->columns - n) * sizeof(float);
        float *p = w->scores + r * KEY_COLUMNS;
        float *masked = all_masked + r * KEY_COLUMNS;
        float *d = w->dscores + r * KEY_COLUMNS;

        probabilities(p, n, head->log_sums[block->i + r]);
        if (s->has_dropout) {
            drop_row(head, block, r, n, p, masked);
        }
        softmax_gradient(p, masked, w->delta[r], d, n);
        memset(masked + n, 0, rest);
        memset(d + n, 0, rest);
    }
    return all_masked;
}

/* dV += P^T dout, dK += dS^T Q (the block's keys); dQ += dS K (its rows).
 * Blocks come with the last rows first, so that the first time a key is
 * written, it is with all the keys of its block. */
static sl_status_t add_gradients(const head_t *head, const block_t *block,
                                 const float *masked)
{
    const shape_t *s = head->shape;
    const int is_last_row = block->i + block->rows == s->time;
    sl_gemm_t gemm = {.m = block->columns,
                      .n = s->width,
                      .k = block->rows,
                      .is_a_transposed = 1,
                      .lda = KEY_COLUMNS,
                      .ldb = s->out_stride,
                      .ldc = s->in_stride,
                      .alpha = s->drop.scale,
                      .beta = is_last_row ? head->gradient_beta : 1.0f};
    const int64_t rows = block->i * s->in_stride;
    const int64_t keys = block->j * s->in_stride;
    sl_status_t status;

    SL_TRY(status,
           sl_gemm(&gemm, masked, head->dout + block->i * s->out_stride,
                   head->dv + keys),
           out);
    gemm.ldb = s->in_stride;
    gemm.alpha = s->scale;
    SL_TRY(
        status,
        sl_gemm(&gemm, head->scratch->dscores, head->q + rows, head->dk + keys),
        out);
    gemm.m = block->rows;
    gemm.k = block->columns;
    gemm.is_a_transposed = 0;
    gemm.beta = block->j == 0 ? head->gradient_beta : 1.0f;
    SL_TRY(
        status,
        sl_gemm(&gemm, head->scratch->dscores, head->k + keys, head->dq + rows),
        out);
out:
    return status;
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    int64_t k;

#pragma omp simd reduction(+ : sum)
    for (k = 0; k < n; k++) {
        sum += a[k] * b[k];
    }
    return sum;
}

static sl_status_t backward_rows(const head_t *head, int64_t i)
{
    const shape_t *s = head->shape;
    block_t block = block_at(s, i, 0);
    sl_status_t status = SL_OK;
    int64_t r;

    for (r = 0; r < block.rows; r++) {
        const int64_t row = (i + r) * s->out_stride;

        head->scratch->delta[r] =
            dot(head->dout + row, head->kept_out + row, s->width);
    }
    for (; block.columns > 0; block = block_at(s, i, block.j + KEY_COLUMNS)) {
        SL_TRY(status, multiply_scores(head, &block), out);
        SL_TRY(status, multiply_dscores(head, &block), out);
        SL_TRY(status,
               add_gradients(head, &block, differentiate_block(head, &block)),
               out);
    }
out:
    return status;
}

static sl_status_t backward_head(const head_t *head)
{
    const int64_t n_blocks = (head->shape->time + QUERY_ROWS - 1) / QUERY_ROWS;
    sl_status_t status = SL_OK;
    int64_t n;

    for (n = n_blocks - 1; n >= 0; n--) {
        SL_TRY(status, backward_rows(head, n * QUERY_ROWS), out);
    }
out:
    return status;
}

/* ---- runs ---- */

static sl_status_t for_each_head(const sl_layer_run_t *run,
                                 sl_status_t (*fn)(const head_t *head))
{
    const shape_t s = shape_of(run);
    const int threads = run->plan->n_threads;
    int worst = SL_OK;
    sl_status_t status = SL_OK;
    int part;

    sl_gemm_set_threads(threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)                 \
    schedule(static) reduction(min                                             \
                               : worst)
    for (part = 0; part < threads; part++) {
        const sl_cpu_range_t r =
            sl_cpu_split(s.batch * s.heads, threads, part, 1);
        int64_t unit;

        for (unit = r.begin; unit < r.end && worst >= 0; unit++) {
            const head_t head = head_of(run, &s, unit, part);

            worst = fn(&head);
        }
    }
    if (worst < 0) {
        SL_FAIL(status, (sl_status_t)worst, out,
                "layer %s: a matrix product failed", run->plan->layer->name);
    }
out:
    return status;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const sl_attention_attrs_t *attrs = plan_p->layer->attrs;
    const int64_t *dims = plan_p->in[0].dims;
    const double rows =
        (double)dims[0] * (double)attrs->heads * (double)dims[1];
    const double elements = rows * (double)dims[1];
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status = SL_OK;

    if (plan_p->is_training && attrs->dropout > 0 &&
        elements > (double)SL_DROP_MAX_ELEMENTS) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "%s: dropout of %.0f probabilities a micro-batch needs more "
                "than 2^34 random numbers; use a smaller micro-batch or no "
                "dropout",
                sl_layer_label(plan_p->layer, label), elements);
    }
    plan_p->forward_workspace_bytes =
        (size_t)plan_p->n_threads * sizeof(scratch_t);
    if (plan_p->is_training) {
        plan_p->backward_workspace_bytes = plan_p->forward_workspace_bytes;
        plan_p->saved_bytes = (size_t)rows * sizeof(float);
        plan_p->keeps_input[0] = 1;
        plan_p->keeps_output = 1;
        plan_p->accumulates = 1;
    }
out:
    return status;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    (void)stream;
    return for_each_head(run, forward_head);
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    (void)stream;
    if (run->din[0] == NULL) {
        return SL_OK;
    }
    if (run->din_prev[0] != NULL && run->din_prev[0] != run->din[0]) {
        memcpy(run->din[0], run->din_prev[0],
               sl_tensor_bytes(&run->plan->in[0]));
    }
    return for_each_head(run, backward_head);
}

const sl_layer_kernels_t sl_cpu_attention = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
