/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices by columns, in fp32. */
#include <stdlib.h>

#include "blas.h"
#include "real.h"

enum {
    COLUMNS = 4 /* of the result, side by side */
};

size_t blas_type_bytes(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static float load(cudaDataType_t type, const void *ptr, int64_t i)
{
    return type == CUDA_R_32F    ? ((const float *)ptr)[i]
           : type == CUDA_R_16BF ? real_of_bf16(((const uint16_t *)ptr)[i])
                                 : real_of_f16(((const uint16_t *)ptr)[i]);
}

static void store(cudaDataType_t type, void *ptr, int64_t i, float value)
{
    if (type == CUDA_R_32F) {
        ((float *)ptr)[i] = value;
    } else {
        ((uint16_t *)ptr)[i] =
            type == CUDA_R_16BF ? real_to_bf16(value) : real_to_f16(value);
    }
}

/* The matrix, or its transpose, as floats: element (row, col) at
 * col * step_col + row * step_row. */
static float *pack(const blas_matrix_t *matrix, const void *ptr, int32_t batch,
                   uint64_t step_row, uint64_t step_col, int is_tf32)
{
    float *packed = malloc((matrix->rows * matrix->cols + 1) * sizeof(*packed));
    uint64_t row, col;

    if (packed == NULL) {
        abort();
    }
    for (col = 0; col < matrix->cols; col++) {
        const int64_t first =
            batch * matrix->stride + (int64_t)col * matrix->ld;

        for (row = 0; row < matrix->rows; row++) {
            const float value = load(matrix->type, ptr, first + (int64_t)row);

            packed[col * step_col + row * step_row] =
                is_tf32 ? real_to_tf32(value) : value;
        }
    }
    return packed;
}

/* sums[c][i] = sum over k of a[k][i] b[j + c][k] */
static void multiply(const blas_product_t *p, const float *a, const float *b,
                     uint64_t j, uint64_t columns, float *sums)
{
    uint64_t at, c, i;

    memset(sums, 0, COLUMNS * p->m * sizeof(*sums));
    for (at = 0; at < p->k; at++) {
        const uint64_t k = p->is_split ? p->k - 1 - at : at;
        const float *values = a + k * p->m;

        for (c = 0; c < columns; c++) {
            const float factor = b[(j + c) * p->k + k];
            float *sum = sums + c * p->m;

            for (i = 0; i < p->m; i++) {
                sum[i] += values[i] * factor;
            }
        }
    }
}

static void finish(const blas_product_t *p, int32_t batch, uint64_t j,
                   const float *sums)
{
    const int64_t first = batch * p->d.stride + (int64_t)j * p->d.ld;
    uint64_t i;

    for (i = 0; i < p->m; i++) {
        const int64_t at = first + (int64_t)i;
        float value = p->alpha * sums[i];

        if (p->beta != 0.0f) {
            value += p->beta * load(p->d.type, p->c_ptr, at);
        }
        if (p->op.epilogue == CUBLASLT_EPILOGUE_BIAS) {
            value += load(p->d.type, p->op.bias, (int64_t)i);
        }
        store(p->d.type, p->d_ptr, at, value);
    }
}

/* bias[j] = the sum over k of op(b)[k, j] */
static void sum_b(const blas_product_t *p, const float *b)
{
    uint64_t j, k;

    for (j = 0; j < p->n; j++) {
        float sum = 0;

        for (k = 0; k < p->k; k++) {
            sum += b[j * p->k + k];
        }
        store(p->d.type, p->op.bias, (int64_t)j, sum);
    }
}

static void compute_one(const blas_product_t *p, int32_t batch, float *sums)
{
    const int is_tf32 = p->op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const int is_a = p->op.trans_a == CUBLAS_OP_T;
    const int is_b = p->op.trans_b == CUBLAS_OP_T;
    float *a =
        pack(&p->a, p->a_ptr, batch, is_a ? p->m : 1, is_a ? 1 : p->m, is_tf32);
    float *b =
        pack(&p->b, p->b_ptr, batch, is_b ? p->k : 1, is_b ? 1 : p->k, is_tf32);
    uint64_t j, c;

    for (j = 0; j < p->n; j += COLUMNS) {
        const uint64_t columns = p->n - j < COLUMNS ? p->n - j : COLUMNS;

        multiply(p, a, b, j, columns, sums);
        for (c = 0; c < columns; c++) {
            finish(p, batch, j + c, sums + c * p->m);
        }
    }
    if (p->op.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
        sum_b(p, b);
    }
    free(a);
    free(b);
}

void blas_compute(const blas_product_t *product)
{
    float *sums = malloc(COLUMNS * (product->m + 1) * sizeof(*sums));
    int32_t batch;

    if (sums == NULL) {
        abort();
    }
    for (batch = 0; batch < product->d.batch; batch++) {
        compute_one(product, batch, sums);
    }
    free(sums);
}
