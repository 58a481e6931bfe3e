/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blas.h
 * What a test may ask of the stand-in for cuBLASLt, and what is inside it.
 *
 * To make one of its entry points fail (standin_fail), give the library's
 * status as the error: (cudaError_t)CUBLAS_STATUS_ALLOC_FAILED. A product that
 * fails when it runs raises a cudaError_t.
 */
#ifndef SL_TESTS_CUDA_STANDIN_BLAS_H
#define SL_TESTS_CUDA_STANDIN_BLAS_H

#include <cublasLt.h>

/** From now on there are no algorithms for these epilogues (CUBLASLT_EPILOGUE_
 *  bits; 0: for all there are). */
void standin_blas_refuse(unsigned epilogues);

/* ---- inside ---- */

/* A matrix as described: column c begins at c * ld. */
typedef struct blas_matrix {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t stride; /* from a matrix of the batch to the next */
} blas_matrix_t;

/* A product as described. */
typedef struct blas_op {
    cublasComputeType_t compute;
    cudaDataType_t scale_type;
    int32_t trans_a, trans_b;
    uint32_t epilogue;
    void *bias;
} blas_op_t;

/* One to be computed; addresses are those that the CPU can use. */
typedef struct blas_product {
    blas_op_t op;
    blas_matrix_t a, b, d;
    uint64_t m, n, k;
    float alpha, beta;
    const void *a_ptr, *b_ptr, *c_ptr;
    void *d_ptr;
    int is_split; /* the order of sums depends on the run */
} blas_product_t;

/* d = alpha op(a) op(b) + beta c, and the epilogue. */
void blas_compute(const blas_product_t *product);
size_t blas_type_bytes(cudaDataType_t type);

#endif /* SL_TESTS_CUDA_STANDIN_BLAS_H */
