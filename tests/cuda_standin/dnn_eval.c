/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of operations, computed one after another in float; tensors lie in
 * memory as their strides say, those within the graph too. */
#define SL_STANDIN_INSIDE
#include <math.h>
#include <stdlib.h>

#include "dnn.h"

typedef struct value {
    const dnn_tensor_t *tensor;
    float *data; /* [extent] */
} value_t;

typedef struct index {
    int64_t at[4];
} index_t;

size_t dnn_extent(const dnn_tensor_t *tensor)
{
    int64_t last = 0;
    int i;

    for (i = 0; i < 4; i++) {
        last += (tensor->dims[i] - 1) * tensor->strides[i];
    }
    return (size_t)last + 1;
}

static int is_16_bit(const dnn_tensor_t *tensor)
{
    return tensor->type == CUDNN_DATA_HALF ||
           tensor->type == CUDNN_DATA_BFLOAT16;
}

/* A dimension of 1 is read again and again. */
static size_t offset(const dnn_tensor_t *tensor, const index_t *i)
{
    int64_t at = 0;
    int d;

    for (d = 0; d < 4; d++) {
        at += (tensor->dims[d] == 1 ? 0 : i->at[d]) * tensor->strides[d];
    }
    return (size_t)at;
}

static float get(const value_t *v, const index_t *i)
{
    return v->data[offset(v->tensor, i)];
}

/* Rounded to what the tensor holds. */
static void put(const value_t *v, const index_t *i, float value)
{
    uint16_t bits;

    if (is_16_bit(v->tensor)) {
        dnn_store(v->tensor->type, &bits, 0, value);
        value = dnn_load(v->tensor->type, &bits, 0);
    }
    v->data[offset(v->tensor, i)] = value;
}

/* The next index of the dims; 0 past the last. */
static int next(const dnn_tensor_t *tensor, index_t *i)
{
    int d;

    for (d = 3; d >= 0; d--) {
        if (++i->at[d] < tensor->dims[d]) {
            return 1;
        }
        i->at[d] = 0;
    }
    return 0;
}

static void run_matmul(const value_t *a, const value_t *b, const value_t *c)
{
    const int64_t n_k = a->tensor->dims[3];
    const int64_t left_step = a->tensor->strides[3];
    const int64_t right_step = b->tensor->strides[2];
    index_t i = {{0}};

    do {
        index_t first = i;
        const float *left, *right;
        float sum = 0;
        int64_t k;

        first.at[3] = 0;
        left = &a->data[offset(a->tensor, &first)];
        first = i;
        first.at[2] = 0;
        right = &b->data[offset(b->tensor, &first)];
        for (k = 0; k < n_k; k++) {
            sum += left[k * left_step] * right[k * right_step];
        }
        put(c, &i, sum);
    } while (next(c->tensor, &i));
}

static float pointwise(const dnn_op_t *op, float x, float b, float t,
                       const index_t *i)
{
    switch ((cudnnPointwiseMode_t)op->mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_EXP:
        return expf(x);
    case CUDNN_POINTWISE_LOG:
        return logf(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b ? 1.0f : 0.0f;
    case CUDNN_POINTWISE_GEN_INDEX:
        return (float)i->at[op->axis];
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0.0f ? x : b;
    }
    return NAN;
}

static void run_pointwise(const dnn_op_t *op, const value_t *values)
{
    const value_t *y = &values[op->y];
    index_t i = {{0}};

    do {
        const float x = get(&values[op->x], &i);
        const float b = op->b < 0 ? 0 : get(&values[op->b], &i);
        const float t = op->t < 0 ? 0 : get(&values[op->t], &i);

        put(y, &i, pointwise(op, x, b, t, &i));
    } while (next(y->tensor, &i));
}

static void run_reduce(const dnn_op_t *op, const value_t *x, const value_t *y)
{
    const int is_max = op->mode == CUDNN_REDUCE_TENSOR_MAX;
    const size_t n = dnn_extent(y->tensor);
    index_t i = {{0}};
    size_t k;

    for (k = 0; k < n; k++) {
        y->data[k] = is_max ? -INFINITY : 0.0f;
    }
    do {
        float *to = &y->data[offset(y->tensor, &i)];
        const float value = get(x, &i);

        *to = is_max ? fmaxf(*to, value) : *to + value;
    } while (next(x->tensor, &i));
}

/* The same memory in other words. */
static void run_reshape(const value_t *x, const value_t *y)
{
    const size_t n_x = dnn_extent(x->tensor), n_y = dnn_extent(y->tensor);
    uint16_t bits;
    size_t i;

    for (i = 0; i < n_y && i < n_x; i++) {
        y->data[i] = x->data[i];
        if (is_16_bit(y->tensor)) {
            dnn_store(y->tensor->type, &bits, 0, x->data[i]);
            y->data[i] = dnn_load(y->tensor->type, &bits, 0);
        }
    }
}

static void run_op(const dnn_op_t *op, const value_t *values)
{
    switch (op->kind) {
    case DNN_OP_MATMUL:
        run_matmul(&values[op->x], &values[op->b], &values[op->y]);
        break;
    case DNN_OP_POINTWISE:
        run_pointwise(op, values);
        break;
    case DNN_OP_REDUCE:
        run_reduce(op, &values[op->x], &values[op->y]);
        break;
    case DNN_OP_RESHAPE:
        run_reshape(&values[op->x], &values[op->y]);
        break;
    }
}

/* Of a tensor that is read from memory, or of one that is to be computed. */
static float *load(const dnn_tensor_t *tensor, const void *address,
                   float scalar)
{
    float *data = malloc((dnn_extent(tensor) + 1) * sizeof(*data));
    index_t i = {{0}};

    if (data == NULL) {
        abort();
    }
    if (tensor->is_by_value) {
        data[0] = scalar;
    } else if (!tensor->is_virtual && !tensor->is_written) {
        do {
            const size_t at = offset(tensor, &i);

            data[at] = dnn_load(tensor->type, address, at);
        } while (next(tensor, &i));
    }
    return data;
}

static void store(const value_t *v, const void *address, float noise)
{
    index_t i = {{0}};

    do {
        dnn_store(v->tensor->type, (void *)(uintptr_t)address,
                  offset(v->tensor, &i), get(v, &i) * noise);
    } while (next(v->tensor, &i));
}

void dnn_evaluate(const dnn_graph_t *graph, const void *const *addresses,
                  const float *scalars, float noise)
{
    value_t values[DNN_MAX_TENSORS];
    int i;

    for (i = 0; i < graph->n_tensors; i++) {
        values[i].tensor = &graph->tensors[i];
        values[i].data = load(&graph->tensors[i], addresses[i], scalars[i]);
    }
    for (i = 0; i < graph->n_ops; i++) {
        run_op(&graph->ops[i], values);
    }
    for (i = 0; i < graph->n_tensors; i++) {
        if (graph->tensors[i].is_written && !graph->tensors[i].is_virtual) {
            store(&values[i], addresses[i], noise);
        }
        free(values[i].data);
    }
}
