/* SPDX-License-Identifier: Apache-2.0 */
/* The graphs of fused attention. Keys and, backward, values are described as
 * transposed; scores live within the graph only. Backward computes the
 * probabilities again from what forward saved, and goes by these sums:
 * D = sum(dout out) of a row, P = exp(S - saved), dS = P (dout V^T - D) scale,
 * dV = P^T dout, dK = dS^T Q, dQ = dS K. */
#include "layers/cuda/dnn_attention_internal.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "layers/cuda/handles.h"
#include "memory/cuda.h"

enum {
    MAX_HEAD_DIM = 128,
    HEAD_DIM_STEP = 8
};

/* The lowest score: its exponential is 0, and it is far from what engines'
 * own factors would make infinite, which could cancel to NaN. */
#define LOWEST (-1e30f)

/* What a run gives to a graph: tensors' numbers and their meaning. */
typedef enum given {
    GIVEN_QUERY,
    GIVEN_KEY,
    GIVEN_VALUE,
    GIVEN_OUT,
    GIVEN_SAVED,
    GIVEN_DOUT,
    GIVEN_DQUERY,
    GIVEN_DKEY,
    GIVEN_DVALUE,
    GIVEN_ROW_SUMS, /* in the workspace, before the graph's own */
    GIVEN_SCALE,
    GIVEN_LOWEST,
    GIVEN_ONE,
    N_GIVEN
} given_t;

typedef struct pass {
    sl_dnn_graph_t *graph; /* owned; NULL: none */
    int tensors[N_GIVEN];  /* -1: not given */
} pass_t;

struct sl_cuda_dnn_attention {
    sl_cuda_attention_shape_t shape;
    int device; /* that the graphs are for */
    pass_t forward, backward;
};

/* ---- tensors ---- */

static cudnnDataType_t data_type(sl_dtype_t dtype)
{
    return dtype == SL_DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/* [batch, heads, time, head_dim] in a row of `parts` * heads * head_dim;
 * transposed: the last two dimensions change places. */
static int add_heads(const sl_cuda_attention_shape_t *s, pass_t *pass,
                     given_t given, int64_t parts, int is_transposed)
{
    const int64_t row = parts * s->heads * s->head_dim;
    const int64_t plain[4] = {s->batch, s->heads, s->time, s->head_dim};
    const int64_t plain_strides[4] = {s->time * row, s->head_dim, row, 1};
    const int64_t turned[4] = {s->batch, s->heads, s->head_dim, s->time};
    const int64_t turned_strides[4] = {s->time * row, s->head_dim, 1, row};

    pass->tensors[given] =
        sl_dnn_graph_tensor(pass->graph, SL_DNN_PLACE_MEMORY,
                            data_type(s->dtype), is_transposed ? turned : plain,
                            is_transposed ? turned_strides : plain_strides);
    return pass->tensors[given];
}

/* [batch, heads, time, 1]: a number a row. */
static int add_rows(const sl_cuda_attention_shape_t *s, pass_t *pass,
                    sl_dnn_place_t place)
{
    const int64_t dims[4] = {s->batch, s->heads, s->time, 1};
    const int64_t strides[4] = {s->heads * s->time, s->time, 1, 1};

    return sl_dnn_graph_tensor(pass->graph, place, CUDNN_DATA_FLOAT, dims,
                               strides);
}

static int give_rows(const sl_cuda_attention_shape_t *s, pass_t *pass,
                     given_t given)
{
    pass->tensors[given] = add_rows(s, pass, SL_DNN_PLACE_MEMORY);
    return pass->tensors[given];
}

static int give_scalar(pass_t *pass, given_t given)
{
    const int64_t ones[4] = {1, 1, 1, 1};

    pass->tensors[given] = sl_dnn_graph_tensor(pass->graph, SL_DNN_PLACE_SCALAR,
                                               CUDNN_DATA_FLOAT, ones, ones);
    return pass->tensors[given];
}

/* [batch, heads, time, time], within the graph. */
static int add_scores(const sl_cuda_attention_shape_t *s, pass_t *pass,
                      cudnnDataType_t type)
{
    const int64_t dims[4] = {s->batch, s->heads, s->time, s->time};
    const int64_t strides[4] = {s->heads * s->time * s->time, s->time * s->time,
                                s->time, 1};

    return sl_dnn_graph_tensor(pass->graph, SL_DNN_PLACE_VIRTUAL, type, dims,
                               strides);
}

/* The same memory order, seen with the last two dimensions swapped. */
static int add_turned_scores(const sl_cuda_attention_shape_t *s, pass_t *pass)
{
    const int64_t dims[4] = {s->batch, s->heads, s->time, s->time};
    const int64_t strides[4] = {s->heads * s->time * s->time, s->time * s->time,
                                1, s->time};

    return sl_dnn_graph_tensor(pass->graph, SL_DNN_PLACE_VIRTUAL,
                               data_type(s->dtype), dims, strides);
}

/* ---- operations ---- */

static void unary(pass_t *pass, cudnnPointwiseMode_t mode, int x, int y)
{
    const sl_dnn_pointwise_t op = {
        .mode = mode, .precision = CUDNN_DATA_FLOAT, x, -1, -1, y, 0};

    sl_dnn_graph_pointwise(pass->graph, &op);
}

static void binary(pass_t *pass, cudnnPointwiseMode_t mode, int x, int b, int y)
{
    const sl_dnn_pointwise_t op = {
        .mode = mode, .precision = CUDNN_DATA_FLOAT, x, b, -1, y, 0};

    sl_dnn_graph_pointwise(pass->graph, &op);
}

/* y = the scores' index along an axis. */
static int add_index(const sl_cuda_attention_shape_t *s, pass_t *pass,
                     int scores, int axis)
{
    const int y = add_scores(s, pass, CUDNN_DATA_INT32);
    const sl_dnn_pointwise_t op = {.mode = CUDNN_POINTWISE_GEN_INDEX,
                                   .precision = CUDNN_DATA_INT32,
                                   .x = scores,
                                   .b = -1,
                                   .t = -1,
                                   .y = y,
                                   .axis = axis};

    sl_dnn_graph_pointwise(pass->graph, &op);
    return y;
}

/* Scores of later positions become the lowest. */
static int add_mask(const sl_cuda_attention_shape_t *s, pass_t *pass,
                    int scores)
{
    sl_dnn_pointwise_t op = {.mode = CUDNN_POINTWISE_CMP_GE,
                             .precision = CUDNN_DATA_BOOLEAN,
                             .t = -1};
    int is_seen;

    if (!s->is_causal) {
        return scores;
    }
    op.x = add_index(s, pass, scores, 2);
    op.b = add_index(s, pass, scores, 3);
    op.y = add_scores(s, pass, CUDNN_DATA_BOOLEAN);
    sl_dnn_graph_pointwise(pass->graph, &op);
    is_seen = op.y;
    op.mode = CUDNN_POINTWISE_BINARY_SELECT;
    op.precision = CUDNN_DATA_FLOAT;
    op.x = scores;
    op.b = give_scalar(pass, GIVEN_LOWEST);
    op.t = is_seen;
    op.y = add_scores(s, pass, CUDNN_DATA_FLOAT);
    sl_dnn_graph_pointwise(pass->graph, &op);
    return op.y;
}

/* Q K^T scale. */
static int add_products(const sl_cuda_attention_shape_t *s, pass_t *pass,
                        int query, int key)
{
    const int products = add_scores(s, pass, CUDNN_DATA_FLOAT);
    const int scores = add_scores(s, pass, CUDNN_DATA_FLOAT);

    sl_dnn_graph_matmul(pass->graph, query, key, products);
    binary(pass, CUDNN_POINTWISE_MUL, products, give_scalar(pass, GIVEN_SCALE),
           scores);
    return scores;
}

/* ---- forward ---- */

/* The probabilities; the log of their sums goes to saved. */
static int add_softmax(const sl_cuda_attention_shape_t *s, pass_t *pass,
                       int scores)
{
    const int most = add_rows(s, pass, SL_DNN_PLACE_VIRTUAL);
    const int below = add_scores(s, pass, CUDNN_DATA_FLOAT);
    const int powers = add_scores(s, pass, CUDNN_DATA_FLOAT);
    const int sum = add_rows(s, pass, SL_DNN_PLACE_VIRTUAL);
    const int shares = add_scores(s, pass, data_type(s->dtype));

    sl_dnn_graph_reduce(pass->graph, CUDNN_REDUCE_TENSOR_MAX, scores, most);
    binary(pass, CUDNN_POINTWISE_SUB, scores, most, below);
    unary(pass, CUDNN_POINTWISE_EXP, below, powers);
    sl_dnn_graph_reduce(pass->graph, CUDNN_REDUCE_TENSOR_ADD, powers, sum);
    if (s->is_training) {
        const int log_sum = add_rows(s, pass, SL_DNN_PLACE_VIRTUAL);

        unary(pass, CUDNN_POINTWISE_LOG, sum, log_sum);
        binary(pass, CUDNN_POINTWISE_ADD, most, log_sum,
               give_rows(s, pass, GIVEN_SAVED));
    }
    binary(pass, CUDNN_POINTWISE_DIV, powers, sum, shares);
    return shares;
}

static void build_forward(const sl_cuda_attention_shape_t *s, pass_t *pass)
{
    const int query = add_heads(s, pass, GIVEN_QUERY, 3, 0);
    const int key = add_heads(s, pass, GIVEN_KEY, 3, 1);
    const int value = add_heads(s, pass, GIVEN_VALUE, 3, 0);
    const int out = add_heads(s, pass, GIVEN_OUT, 1, 0);
    const int scores = add_mask(s, pass, add_products(s, pass, query, key));

    sl_dnn_graph_matmul(pass->graph, add_softmax(s, pass, scores), value, out);
}

/* ---- backward ---- */

/* D of each row, in memory: the graph is two kernels that meet there. */
static int add_row_sums(const sl_cuda_attention_shape_t *s, pass_t *pass,
                        int out, int dout)
{
    const int64_t dims[4] = {s->batch, s->heads, s->time, s->head_dim};
    const int64_t strides[4] = {s->heads * s->time * s->head_dim,
                                s->time * s->head_dim, s->head_dim, 1};
    const int products = sl_dnn_graph_tensor(pass->graph, SL_DNN_PLACE_VIRTUAL,
                                             CUDNN_DATA_FLOAT, dims, strides);
    const int sums = add_rows(s, pass, SL_DNN_PLACE_VIRTUAL);
    const int kept = give_rows(s, pass, GIVEN_ROW_SUMS);

    binary(pass, CUDNN_POINTWISE_MUL, dout, out, products);
    sl_dnn_graph_reduce(pass->graph, CUDNN_REDUCE_TENSOR_ADD, products, sums);
    /* engines know the pattern with a factor here, of dropout */
    binary(pass, CUDNN_POINTWISE_MUL, sums, give_scalar(pass, GIVEN_ONE), kept);
    return kept;
}

/* exp(S - saved), of positions that are seen. */
static int add_shares(const sl_cuda_attention_shape_t *s, pass_t *pass,
                      int query, int key, int saved)
{
    const int scores = add_products(s, pass, query, key);
    const int below = add_scores(s, pass, CUDNN_DATA_FLOAT);
    const int shares = add_scores(s, pass, CUDNN_DATA_FLOAT);

    binary(pass, CUDNN_POINTWISE_SUB, scores, saved, below);
    unary(pass, CUDNN_POINTWISE_EXP, add_mask(s, pass, below), shares);
    return shares;
}

static void build_backward(const sl_cuda_attention_shape_t *s, pass_t *pass)
{
    const int query = add_heads(s, pass, GIVEN_QUERY, 3, 0);
    const int key = add_heads(s, pass, GIVEN_KEY, 3, 1);
    const int value = add_heads(s, pass, GIVEN_VALUE, 3, 1);
    const int out = add_heads(s, pass, GIVEN_OUT, 1, 0);
    const int dout = add_heads(s, pass, GIVEN_DOUT, 1, 0);
    const int saved = give_rows(s, pass, GIVEN_SAVED);
    const int sums = add_row_sums(s, pass, out, dout);
    const int shares = add_shares(s, pass, query, key, saved);
    const int turned = add_turned_scores(s, pass);
    const int dshares = add_scores(s, pass, CUDNN_DATA_FLOAT);
    const int centred = add_scores(s, pass, CUDNN_DATA_FLOAT);
    const int dproducts = add_scores(s, pass, CUDNN_DATA_FLOAT);
    const int dscores = add_scores(s, pass, CUDNN_DATA_FLOAT);
    const int dturned = add_turned_scores(s, pass);
    const int64_t row = 3 * s->heads * s->head_dim;
    const int64_t dims[4] = {s->batch, s->heads, s->time, s->head_dim};
    const int64_t strides[4] = {s->time * row, s->head_dim, row, 1};
    const int plain_key = sl_dnn_graph_tensor(
        pass->graph, SL_DNN_PLACE_VIRTUAL, data_type(s->dtype), dims, strides);

    sl_dnn_graph_reshape(pass->graph, shares, turned);
    sl_dnn_graph_matmul(pass->graph, turned, dout,
                        add_heads(s, pass, GIVEN_DVALUE, 3, 0));
    sl_dnn_graph_matmul(pass->graph, dout, value, dshares);
    binary(pass, CUDNN_POINTWISE_SUB, dshares, sums, centred);
    binary(pass, CUDNN_POINTWISE_MUL, centred, shares, dproducts);
    binary(pass, CUDNN_POINTWISE_MUL, dproducts, pass->tensors[GIVEN_SCALE],
           dscores);
    sl_dnn_graph_reshape(pass->graph, dscores, dturned);
    sl_dnn_graph_matmul(pass->graph, dturned, query,
                        add_heads(s, pass, GIVEN_DKEY, 3, 0));
    sl_dnn_graph_reshape(pass->graph, key, plain_key);
    sl_dnn_graph_matmul(pass->graph, dscores, plain_key,
                        add_heads(s, pass, GIVEN_DQUERY, 3, 0));
}

/* ---- life ---- */

static sl_status_t make_pass(const sl_cuda_attention_shape_t *shape,
                             cudnnHandle_t handle, pass_t *pass,
                             void (*build)(const sl_cuda_attention_shape_t *,
                                           pass_t *))
{
    sl_status_t status;
    int i;

    for (i = 0; i < N_GIVEN; i++) {
        pass->tensors[i] = -1;
    }
    pass->graph = sl_dnn_graph_create();
    if (pass->graph == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "fused attention: no host "
                "memory");
    }
    build(shape, pass);
    SL_TRY(status, sl_dnn_graph_finish(pass->graph, handle), err_destroy);
    return SL_OK;

err_destroy:
    sl_dnn_graph_destroy(pass->graph);
    pass->graph = NULL;
out:
    return status;
}

static int is_supported(const sl_cuda_attention_shape_t *s)
{
    return (s->dtype == SL_DTYPE_BF16 || s->dtype == SL_DTYPE_F16) &&
           s->head_dim <= MAX_HEAD_DIM && s->head_dim % HEAD_DIM_STEP == 0 &&
           s->time > 1;
}

sl_status_t sl_dnn_attention_make(const sl_cuda_attention_shape_t *shape,
                                  cudnnHandle_t handle,
                                  sl_cuda_dnn_attention_t **attention_p)
{
    sl_cuda_dnn_attention_t *attention = NULL;
    sl_status_t status;

    if (!is_supported(shape)) {
        return SL_ERR_UNSUPPORTED;
    }
    attention = calloc(1, sizeof(*attention));
    if (attention == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "fused attention: no host memory");
    }
    attention->shape = *shape;
    SL_TRY(status, SL_CUDA(cudaGetDevice(&attention->device)), err_destroy);
    SL_TRY(status, make_pass(shape, handle, &attention->forward, build_forward),
           err_destroy);
    if (shape->is_training) {
        status = make_pass(shape, handle, &attention->backward, build_backward);
        if (status < 0 && status != SL_ERR_UNSUPPORTED) {
            goto err_destroy;
        }
    }
    *attention_p = attention;
    return SL_OK;

err_destroy:
    sl_cuda_dnn_attention_destroy(attention);
out:
    return status;
}

/* The check comes first: the graphs are for shapes that passed it. */
sl_status_t sl_cuda_dnn_attention_plan(const sl_cuda_attention_shape_t *shape,
                                       sl_cuda_dnn_attention_t **attention_p)
{
    sl_cuda_dnn_attention_t *attention = NULL;
    struct cudnnContext *handle = NULL;
    int is_forward_right = 0, is_backward_right = 0;
    sl_status_t status;

    if (!is_supported(shape)) {
        return SL_ERR_UNSUPPORTED;
    }
    SL_TRY(status, sl_cuda_dnn_borrow(&handle), out);
    SL_TRY(status,
           sl_dnn_attention_check(shape, handle, &is_forward_right,
                                  &is_backward_right),
           err_give_back);
    if (!is_forward_right) {
        status = SL_ERR_UNSUPPORTED;
        goto err_give_back;
    }
    SL_TRY(status, sl_dnn_attention_make(shape, handle, &attention),
           err_give_back);
    if (!is_backward_right) {
        sl_dnn_graph_destroy(attention->backward.graph);
        attention->backward.graph = NULL;
    }
    *attention_p = attention;
err_give_back:
    sl_cuda_dnn_give_back();
out:
    return status;
}

void sl_cuda_dnn_attention_destroy(sl_cuda_dnn_attention_t *attention)
{
    if (attention != NULL) {
        sl_dnn_graph_destroy(attention->backward.graph);
        sl_dnn_graph_destroy(attention->forward.graph);
        free(attention);
    }
}

/* ---- sizes ---- */

int sl_cuda_dnn_attention_has_backward(const sl_cuda_dnn_attention_t *attention)
{
    return attention->backward.graph != NULL;
}

size_t sl_cuda_dnn_attention_forward_workspace_bytes(
    const sl_cuda_dnn_attention_t *attention)
{
    return sl_dnn_graph_workspace_bytes(attention->forward.graph);
}

static size_t rows_bytes(const sl_cuda_attention_shape_t *s)
{
    return (size_t)(s->batch * s->heads * s->time) * sizeof(float);
}

/* Of the row sums, which lie before the graph's own. */
static size_t sums_bytes(const sl_cuda_attention_shape_t *s)
{
    return (rows_bytes(s) + 255) & ~(size_t)255;
}

size_t sl_cuda_dnn_attention_backward_workspace_bytes(
    const sl_cuda_dnn_attention_t *attention)
{
    return attention->backward.graph == NULL
               ? 0
               : sums_bytes(&attention->shape) +
                     sl_dnn_graph_workspace_bytes(attention->backward.graph);
}

size_t
sl_cuda_dnn_attention_saved_bytes(const sl_cuda_dnn_attention_t *attention)
{
    return attention->shape.is_training ? rows_bytes(&attention->shape) : 0;
}

/* ---- runs ---- */

/* Part 0, 1, 2 of a row of queries, keys and values. */
static void *part_of(const sl_cuda_attention_shape_t *s, const void *qkv,
                     int64_t part)
{
    const int64_t bytes = (int64_t)sl_dtype_bytes(s->dtype);

    return qkv == NULL
               ? NULL
               : (char *)(uintptr_t)qkv + part * s->heads * s->head_dim * bytes;
}

static sl_status_t run_pass(const sl_cuda_dnn_attention_t *attention,
                            const pass_t *pass,
                            const sl_cuda_dnn_attention_args_t *args,
                            void *workspace, cudnnHandle_t handle)
{
    const sl_cuda_attention_shape_t *s = &attention->shape;
    float scale = s->scale, lowest = LOWEST, one = 1.0f;
    void *const all[N_GIVEN] = {[GIVEN_QUERY] = part_of(s, args->qkv, 0),
                                [GIVEN_KEY] = part_of(s, args->qkv, 1),
                                [GIVEN_VALUE] = part_of(s, args->qkv, 2),
                                [GIVEN_OUT] = args->out,
                                [GIVEN_SAVED] = args->saved,
                                [GIVEN_DOUT] = (void *)(uintptr_t)args->dout,
                                [GIVEN_DQUERY] = part_of(s, args->dqkv, 0),
                                [GIVEN_DKEY] = part_of(s, args->dqkv, 1),
                                [GIVEN_DVALUE] = part_of(s, args->dqkv, 2),
                                [GIVEN_ROW_SUMS] = args->workspace,
                                [GIVEN_SCALE] = &scale,
                                [GIVEN_LOWEST] = &lowest,
                                [GIVEN_ONE] = &one};
    int tensors[N_GIVEN];
    void *addresses[N_GIVEN];
    int n = 0, i;

    for (i = 0; i < N_GIVEN; i++) {
        if (pass->tensors[i] >= 0) {
            tensors[n] = pass->tensors[i];
            addresses[n] = all[i];
            n++;
        }
    }
    return sl_dnn_graph_run(pass->graph, handle, tensors, addresses, n,
                            workspace);
}

sl_status_t
sl_dnn_attention_run_forward(const sl_cuda_dnn_attention_t *attention,
                             const sl_cuda_dnn_attention_args_t *args,
                             cudnnHandle_t handle)
{
    return run_pass(attention, &attention->forward, args, args->workspace,
                    handle);
}

sl_status_t
sl_dnn_attention_run_backward(const sl_cuda_dnn_attention_t *attention,
                              const sl_cuda_dnn_attention_args_t *args,
                              cudnnHandle_t handle)
{
    return run_pass(attention, &attention->backward, args,
                    (char *)args->workspace + sums_bytes(&attention->shape),
                    handle);
}

/* Graphs for the stream's device: what they need must be what was planned. */
static sl_status_t move_to(sl_cuda_dnn_attention_t *attention,
                           const sl_cuda_stream_t *stream, cudnnHandle_t handle)
{
    const int has_backward = attention->backward.graph != NULL;
    sl_cuda_dnn_attention_t *made = NULL;
    sl_cuda_dnn_attention_t old;
    sl_status_t status;

    SL_TRY(status, sl_dnn_attention_make(&attention->shape, handle, &made),
           out);
    if (sl_cuda_dnn_attention_forward_workspace_bytes(made) >
            sl_cuda_dnn_attention_forward_workspace_bytes(attention) ||
        (has_backward &&
         (made->backward.graph == NULL ||
          sl_cuda_dnn_attention_backward_workspace_bytes(made) >
              sl_cuda_dnn_attention_backward_workspace_bytes(attention)))) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, err_destroy,
                "fused attention: planned for CUDA device %d, and device %d is "
                "of another kind",
                attention->device, stream->device);
    }
    old = *attention;
    *attention = *made;
    *made = old;
    if (!has_backward) {
        sl_dnn_graph_destroy(attention->backward.graph);
        attention->backward.graph = NULL;
    }
err_destroy:
    sl_cuda_dnn_attention_destroy(made);
out:
    return status;
}

/* The stream's handle, and graphs for its device. */
static sl_status_t prepare(sl_cuda_dnn_attention_t *attention,
                           sl_cuda_stream_t *stream,
                           struct cudnnContext **handle_p)
{
    sl_status_t status;

    SL_TRY(status, sl_cuda_dnn(stream, handle_p), out);
    if (attention->device != stream->device) {
        status = move_to(attention, stream, *handle_p);
    }
out:
    return status;
}

sl_status_t
sl_cuda_dnn_attention_forward(sl_cuda_dnn_attention_t *attention,
                              const sl_cuda_dnn_attention_args_t *args,
                              sl_cuda_stream_t *stream)
{
    struct cudnnContext *handle = NULL;
    sl_status_t status;

    SL_TRY(status, prepare(attention, stream, &handle), out);
    status = sl_dnn_attention_run_forward(attention, args, handle);
out:
    return status;
}

sl_status_t
sl_cuda_dnn_attention_backward(sl_cuda_dnn_attention_t *attention,
                               const sl_cuda_dnn_attention_args_t *args,
                               sl_cuda_stream_t *stream)
{
    struct cudnnContext *handle = NULL;
    sl_status_t status;

    SL_ASSERT(attention->backward.graph != NULL);
    SL_TRY(status, prepare(attention, stream, &handle), out);
    status = sl_dnn_attention_run_backward(attention, args, handle);
out:
    return status;
}
