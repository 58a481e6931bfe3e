/* SPDX-License-Identifier: Apache-2.0 */
#include "layers/cuda/attention_products.h"

#include <stdio.h>
#include <stdlib.h>

#include "layers/attention_internal.h"
#include "layers/cuda/attention_kernels.h"
#include "layers/cuda/blas.h"
#include "layers/cuda/cuda_layers.h"

enum {
    NAME_BYTES = SL_LAYER_LABEL_BYTES + 48,
    CAUSAL_BLOCKS = 4, /* what is above the diagonal is left out by blocks */
    MIN_CAUSAL_ROWS = 128,
    ROW_UNIT = 8,  /* rows of a block come in eights */
    KEY_STEPS = 8, /* lengths of the rows of blocks: plans of products */
    MAX_TILES = KEY_STEPS + 1 /* and fewer rows at the end */
};

/* Of scores in fp32: one of a few matrices of this size. */
#define SCORES_BYTES ((int64_t)64 << 20)

/* The products of a block. s: scores, p: probabilities. */
typedef enum part {
    PART_S,   /* s = scale q k^T */
    PART_OUT, /* out = p v */
    PART_DP,  /* dp = dout v^T */
    PART_DV,  /* dv += p^T dout */
    PART_DK,  /* dk += scale ds^T q */
    PART_DQ,  /* dq += scale ds k */
    N_PARTS
} part_t;

/* Blocks of the same size. */
typedef struct tile {
    int64_t rows, keys;
    sl_cuda_product_t *products[N_PARTS];
} tile_t;

struct sl_cuda_attention_products {
    sl_cuda_attention_shape_t shape;
    sl_cuda_type_t type;
    int64_t width;      /* of all heads */
    int64_t block_rows; /* but the last block may have fewer */
    int64_t key_step;   /* keys of blocks are multiples, or all */
    int n_tiles;
    tile_t tiles[MAX_TILES];
    /* places in the workspace; fp32: probabilities lie where the scores do,
     * and gradients are written where they go */
    size_t probabilities_at, dscores_at, sums_at;
    size_t forward_work_at, backward_work_at;
    size_t dprobabilities_at;
    size_t work_bytes;
};

/* ---- blocks ---- */

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Rows so that the scores of all heads stay within their memory; fewer where
 * that saves work above the diagonal. */
static int64_t block_rows_of(const sl_cuda_attention_shape_t *shape)
{
    int64_t rows =
        SCORES_BYTES / ((int64_t)sizeof(float) * shape->heads * shape->time);
    const int64_t causal = round_up(shape->time, CAUSAL_BLOCKS) / CAUSAL_BLOCKS;

    if (shape->is_causal && rows > causal) {
        rows = causal > MIN_CAUSAL_ROWS ? causal : MIN_CAUSAL_ROWS;
    }
    rows = rows / ROW_UNIT * ROW_UNIT;
    if (rows < ROW_UNIT) {
        rows = ROW_UNIT;
    }
    return rows < shape->time ? rows : shape->time;
}

static int64_t rows_at(const sl_cuda_attention_products_t *all, int64_t i)
{
    const int64_t left = all->shape.time - i;

    return left < all->block_rows ? left : all->block_rows;
}

/* Keys that the block from row i on is multiplied with: all that it sees. */
static int64_t keys_at(const sl_cuda_attention_products_t *all, int64_t i)
{
    const int64_t seen = round_up(i + rows_at(all, i), all->key_step);

    return all->shape.is_causal && seen < all->shape.time ? seen
                                                          : all->shape.time;
}

static const tile_t *tile_at(const sl_cuda_attention_products_t *all, int64_t i)
{
    const int64_t rows = rows_at(all, i), keys = keys_at(all, i);
    int t;

    for (t = 0; t < all->n_tiles; t++) {
        if (all->tiles[t].rows == rows && all->tiles[t].keys == keys) {
            return &all->tiles[t];
        }
    }
    return NULL;
}

/* ---- plans ---- */

/* The largest power of two that divides the distance of two positions: what
 * all addresses of queries, keys, values and outputs are multiples of. */
static size_t align_of(const sl_cuda_attention_products_t *all,
                       sl_cuda_type_t type)
{
    const size_t bytes = (size_t)all->width * sl_cuda_type_bytes(type);
    size_t align = 256;

    while (bytes % align != 0) {
        align /= 2;
    }
    return align;
}

/* A part of qkv or dqkv: a head is a batch. */
static sl_cuda_matrix_t in_matrix(const sl_cuda_attention_products_t *all,
                                  sl_cuda_type_t type)
{
    const sl_cuda_matrix_t matrix = {.type = type,
                                     .stride = 3 * all->width,
                                     .batch_stride = all->shape.head_dim,
                                     .align_bytes = align_of(all, type)};

    return matrix;
}

static sl_cuda_matrix_t out_matrix(const sl_cuda_attention_products_t *all)
{
    const sl_cuda_matrix_t matrix = {.type = all->type,
                                     .stride = all->width,
                                     .batch_stride = all->shape.head_dim,
                                     .align_bytes = align_of(all, all->type)};

    return matrix;
}

static sl_cuda_matrix_t score_matrix(const tile_t *tile, sl_cuda_type_t type)
{
    const sl_cuda_matrix_t matrix = {.type = type,
                                     .stride = tile->keys,
                                     .batch_stride = tile->rows * tile->keys};

    return matrix;
}

static sl_cuda_matrix_t transposed(sl_cuda_matrix_t matrix)
{
    matrix.is_transposed = 1;
    return matrix;
}

static sl_cuda_product_params_t
params_of(const sl_cuda_attention_products_t *all, const tile_t *tile,
          part_t part)
{
    const int64_t rows = tile->rows, keys = tile->keys;
    const int64_t dim = all->shape.head_dim;
    const sl_cuda_matrix_t in = in_matrix(all, all->type);
    const sl_cuda_matrix_t din = in_matrix(all, SL_CUDA_F32);
    const sl_cuda_matrix_t out = out_matrix(all);
    const sl_cuda_matrix_t s = score_matrix(tile, SL_CUDA_F32);
    const sl_cuda_matrix_t p = score_matrix(tile, all->type);
    const sl_cuda_product_params_t parts[N_PARTS] = {
        [PART_S] = {rows, keys, dim, .a = in, .b = transposed(in), .d = s},
        [PART_OUT] = {rows, dim, keys, .a = p, .b = in, .d = out},
        [PART_DP] = {rows, keys, dim, .a = out, .b = transposed(in), .d = s},
        [PART_DV] = {keys, dim, rows, .a = transposed(p), .b = out, .d = din},
        [PART_DK] = {keys, dim, rows, .a = transposed(p), .b = in, .d = din},
        [PART_DQ] = {rows, dim, keys, .a = p, .b = in, .d = din},
    };

    return parts[part];
}

static sl_status_t make_tile(sl_cuda_attention_products_t *all,
                             const sl_layer_t *layer, tile_t *tile)
{
    static const char *const names[] = {[PART_S] = "scores",
                                        [PART_OUT] = "values",
                                        [PART_DP] = "gradient of probabilities",
                                        [PART_DV] = "gradient of values",
                                        [PART_DK] = "gradient of keys",
                                        [PART_DQ] = "gradient of queries"};
    const int n_parts = all->shape.is_training ? N_PARTS : PART_DP;
    char label[SL_LAYER_LABEL_BYTES], name[NAME_BYTES];
    sl_status_t status = SL_OK;
    size_t bytes;
    int part;

    for (part = 0; part < n_parts; part++) {
        sl_cuda_product_params_t params = params_of(all, tile, (part_t)part);

        (void)snprintf(name, sizeof(name), "%s, %s",
                       sl_layer_label(layer, label), names[part]);
        params.batch = all->shape.heads;
        params.is_tf32 = layer->is_tf32;
        params.name = name;
        SL_TRY(status, sl_cuda_product_create(&params, &tile->products[part]),
               out);
        bytes = sl_cuda_product_workspace_bytes(tile->products[part]);
        all->work_bytes = bytes > all->work_bytes ? bytes : all->work_bytes;
    }
out:
    return status;
}

static sl_status_t make_tiles(sl_cuda_attention_products_t *all,
                              const sl_layer_t *layer)
{
    sl_status_t status = SL_OK;
    int64_t i;

    for (i = 0; i < all->shape.time; i += all->block_rows) {
        if (tile_at(all, i) == NULL) {
            tile_t *tile = &all->tiles[all->n_tiles++];

            SL_ASSERT(all->n_tiles <= MAX_TILES);
            tile->rows = rows_at(all, i);
            tile->keys = keys_at(all, i);
            SL_TRY(status, make_tile(all, layer, tile), out);
        }
    }
out:
    return status;
}

static void place(sl_cuda_attention_products_t *all)
{
    const size_t n =
        (size_t)(all->shape.heads * all->block_rows * all->shape.time);
    const size_t scores = sl_cuda_round_bytes(n * sizeof(float));
    const int is_f32 = all->type == SL_CUDA_F32;
    const size_t copies =
        is_f32 ? 0 : sl_cuda_round_bytes(n * sl_cuda_type_bytes(all->type));
    const size_t sums =
        is_f32
            ? 0
            : sl_cuda_round_bytes((size_t)(all->shape.time * 3 * all->width) *
                                  sizeof(float));

    all->probabilities_at = is_f32 ? 0 : scores;
    all->forward_work_at = scores + copies;
    all->dprobabilities_at = scores + copies;
    all->dscores_at = all->dprobabilities_at + (is_f32 ? 0 : scores);
    all->sums_at = all->dprobabilities_at + scores + copies;
    all->backward_work_at = all->sums_at + sums;
}

sl_status_t
sl_cuda_attention_products_create(const sl_layer_t *layer,
                                  const sl_cuda_attention_shape_t *shape,
                                  sl_cuda_attention_products_t **products_p)
{
    const sl_tensor_desc_t desc = {.dtype = shape->dtype};
    sl_cuda_attention_products_t *all = calloc(1, sizeof(*all));
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status;

    if (all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                sl_layer_label(layer, label));
    }
    all->shape = *shape;
    all->type = sl_cuda_type_of(&desc);
    all->width = shape->heads * shape->head_dim;
    all->block_rows = block_rows_of(shape);
    all->key_step =
        round_up(round_up(shape->time, KEY_STEPS) / KEY_STEPS, all->block_rows);
    SL_TRY(status, make_tiles(all, layer), err_destroy);
    place(all);
    *products_p = all;
    return SL_OK;

err_destroy:
    sl_cuda_attention_products_destroy(all);
out:
    return status;
}

void sl_cuda_attention_products_destroy(sl_cuda_attention_products_t *products)
{
    int t, part;

    if (products == NULL) {
        return;
    }
    for (t = 0; t < products->n_tiles; t++) {
        for (part = 0; part < N_PARTS; part++) {
            sl_cuda_product_destroy(products->tiles[t].products[part]);
        }
    }
    free(products);
}

size_t sl_cuda_attention_products_forward_workspace_bytes(
    const sl_cuda_attention_products_t *products)
{
    return products->forward_work_at + products->work_bytes;
}

size_t sl_cuda_attention_products_backward_workspace_bytes(
    const sl_cuda_attention_products_t *products)
{
    return products->backward_work_at + products->work_bytes;
}

size_t sl_cuda_attention_products_saved_bytes(
    const sl_cuda_attention_products_t *products)
{
    const sl_cuda_attention_shape_t *shape = &products->shape;

    return (size_t)(shape->batch * shape->heads * shape->time) * sizeof(float);
}

/* ---- runs ---- */

/* A sample's work: addresses at its first position. */
typedef struct sample {
    const sl_cuda_attention_products_t *all;
    sl_cuda_stream_t *stream;
    char *workspace;
    void *work; /* of the products */
    const char *q, *k, *v;
    char *out;        /* forward */
    const char *dout; /* backward */
    float *dq, *dk, *dv;
    float gradient_beta; /* 1: add to what dq, dk, dv hold */
    sl_cuda_attention_rows_t rows;
} sample_t;

static sample_t sample_of(const sl_cuda_attention_products_t *all,
                          const sl_layer_run_t *run, sl_cuda_stream_t *stream,
                          int64_t b)
{
    const sl_attention_attrs_t *attrs = run->plan->layer->attrs;
    const sl_cuda_attention_shape_t *shape = &all->shape;
    const size_t part = (size_t)all->width * sl_cuda_type_bytes(all->type);
    const size_t first = (size_t)(b * shape->time) * part;
    const int64_t n_rows = shape->heads * shape->time;
    char *workspace = run->workspace;
    sample_t sample = {.all = all,
                       .stream = stream,
                       .workspace = workspace,
                       .q = (const char *)run->in[0] + 3 * first};

    sample.k = sample.q + part;
    sample.v = sample.k + part;
    sample.rows = (sl_cuda_attention_rows_t){
        .type = all->type,
        .heads = shape->heads,
        .time = shape->time,
        .is_causal = shape->is_causal,
        .dropout = run->step.is_training ? attrs->dropout : 0,
        .rng = sl_rng_at(run->step.seed, run->step.step, run->step.micro_batch,
                         (uint32_t)run->plan->layer->index,
                         SL_RNG_USE_ATTENTION_DROPOUT),
        .first_number = (uint64_t)(b * n_rows * shape->time),
        .scores = (const float *)(const void *)workspace,
        .probabilities = workspace + all->probabilities_at,
        .log_sums =
            shape->is_training ? (float *)run->saved + b * n_rows : NULL,
        .dprobabilities =
            (const float *)(const void *)(workspace + all->dprobabilities_at),
        .dscores = workspace + all->dscores_at};
    return sample;
}

static sl_status_t multiply(const sample_t *sample, const tile_t *tile,
                            part_t part, const void *a, const void *b, void *d,
                            float beta)
{
    const int is_scaled = part == PART_S || part == PART_DK || part == PART_DQ;
    const sl_cuda_product_args_t args = {
        .alpha = is_scaled ? sample->all->shape.scale : 1.0f,
        .beta = beta,
        .a = a,
        .b = b,
        .d = d,
        .workspace = sample->work};

    return sl_cuda_product_run(tile->products[part], &args, sample->stream);
}

/* Bytes from the first position of queries to the one of row i. */
static size_t in_offset(const sl_cuda_attention_products_t *all, int64_t i)
{
    return (size_t)(3 * all->width * i) * sl_cuda_type_bytes(all->type);
}

static size_t out_offset(const sl_cuda_attention_products_t *all, int64_t i)
{
    return (size_t)(all->width * i) * sl_cuda_type_bytes(all->type);
}

static sl_cuda_attention_rows_t rows_of(const sample_t *sample,
                                        const tile_t *tile, int64_t i)
{
    sl_cuda_attention_rows_t rows = sample->rows;

    rows.first_row = i;
    rows.rows = tile->rows;
    rows.keys = tile->keys;
    return rows;
}

static sl_status_t forward_block(const sample_t *sample, int64_t i)
{
    const sl_cuda_attention_products_t *all = sample->all;
    const tile_t *tile = tile_at(all, i);
    const sl_cuda_attention_rows_t rows = rows_of(sample, tile, i);
    sl_status_t status;

    SL_TRY(status,
           multiply(sample, tile, PART_S, sample->q + in_offset(all, i),
                    sample->k, sample->workspace, 0),
           out);
    SL_TRY(status, sl_cuda_attention_softmax(&rows, sample->stream->queue),
           out);
    status = multiply(sample, tile, PART_OUT, rows.probabilities, sample->v,
                      sample->out + out_offset(all, i), 0);
out:
    return status;
}

sl_status_t
sl_cuda_attention_products_forward(const sl_cuda_attention_products_t *products,
                                   const sl_layer_run_t *run,
                                   sl_cuda_stream_t *stream)
{
    const sl_cuda_attention_shape_t *shape = &products->shape;
    sl_status_t status = SL_OK;
    int64_t b, i;

    for (b = 0; b < shape->batch; b++) {
        sample_t sample = sample_of(products, run, stream, b);

        sample.work = sample.workspace + products->forward_work_at;
        sample.out = (char *)run->out + out_offset(products, b * shape->time);
        for (i = 0; i < shape->time; i += products->block_rows) {
            SL_TRY(status, forward_block(&sample, i), out);
        }
    }
out:
    return status;
}

/* The last block comes first: it writes all keys' gradients, the others add
 * theirs. */
static sl_status_t backward_block(const sample_t *sample, int64_t i)
{
    const sl_cuda_attention_products_t *all = sample->all;
    const tile_t *tile = tile_at(all, i);
    const sl_cuda_attention_rows_t rows = rows_of(sample, tile, i);
    const char *q = sample->q + in_offset(all, i);
    const char *dout = sample->dout + out_offset(all, i);
    const int is_last = i + tile->rows == all->shape.time;
    const float beta = is_last ? sample->gradient_beta : 1.0f;
    sl_status_t status;

    SL_TRY(status,
           multiply(sample, tile, PART_S, q, sample->k, sample->workspace, 0),
           out);
    SL_TRY(status,
           multiply(sample, tile, PART_DP, dout, sample->v,
                    sample->workspace + all->dprobabilities_at, 0),
           out);
    SL_TRY(status,
           sl_cuda_attention_softmax_backward(&rows, sample->stream->queue),
           out);
    SL_TRY(status,
           multiply(sample, tile, PART_DV, rows.probabilities, dout, sample->dv,
                    beta),
           out);
    SL_TRY(status,
           multiply(sample, tile, PART_DK, rows.dscores, q, sample->dk, beta),
           out);
    status = multiply(sample, tile, PART_DQ, rows.dscores, sample->k,
                      sample->dq + 3 * all->width * i, sample->gradient_beta);
out:
    return status;
}

/* fp32 gradients are made where they go, others as sums in the workspace. */
static sl_status_t backward_sample(sample_t *sample, const sl_layer_run_t *run,
                                   int64_t b)
{
    const sl_cuda_attention_products_t *all = sample->all;
    const int64_t time = all->shape.time;
    const size_t first = in_offset(all, b * time);
    const void *prev = run->din_prev[0];
    const int is_f32 = all->type == SL_CUDA_F32;
    char *din = (char *)run->din[0] + first;
    const sl_cuda_attention_store_t store = {
        .type = all->type,
        .n = time * 3 * all->width,
        .from = (const float *)(const void *)(sample->workspace + all->sums_at),
        .prev = prev == NULL ? NULL : (const char *)prev + first,
        .to = din};
    const int64_t n_blocks = (time + all->block_rows - 1) / all->block_rows;
    sl_status_t status = SL_OK;
    int64_t block;

    sample->dq =
        (float *)(void *)(is_f32 ? din : sample->workspace + all->sums_at);
    sample->dk = sample->dq + all->width;
    sample->dv = sample->dk + all->width;
    sample->gradient_beta = is_f32 && prev != NULL ? 1.0f : 0.0f;
    for (block = n_blocks - 1; block >= 0; block--) {
        SL_TRY(status, backward_block(sample, block * all->block_rows), out);
    }
    if (!is_f32) {
        status = sl_cuda_attention_store(&store, sample->stream->queue);
    }
out:
    return status;
}

sl_status_t sl_cuda_attention_products_backward(
    const sl_cuda_attention_products_t *products, const sl_layer_run_t *run,
    sl_cuda_stream_t *stream)
{
    const sl_cuda_attention_shape_t *shape = &products->shape;
    const void *prev = run->din_prev[0];
    sl_status_t status = SL_OK;
    int64_t b;

    if (products->type == SL_CUDA_F32 && prev != NULL && prev != run->din[0]) {
        SL_TRY(status,
               sl_cuda_copy(run->din[0], prev,
                            sl_tensor_bytes(&run->plan->in[0]), stream->queue),
               out);
    }
    for (b = 0; b < shape->batch; b++) {
        sample_t sample = sample_of(products, run, stream, b);

        sample.work = sample.workspace + products->backward_work_at;
        sample.dout =
            (const char *)run->dout + out_offset(products, b * shape->time);
        SL_TRY(status, backward_sample(&sample, run, b), out);
    }
out:
    return status;
}
