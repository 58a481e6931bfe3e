/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file blas_values.h
 * Calls of cuBLASLt, with the arguments that the code takes them to have.
 */
#ifndef SL_TESTS_CUDA_BLAS_VALUES_H
#define SL_TESTS_CUDA_BLAS_VALUES_H

#include <cublasLt.h>
#include <stddef.h>
#include <stdint.h>

typedef struct blas_calls {
    cublasStatus_t (*create)(cublasLtHandle_t *handle);
    cublasStatus_t (*destroy)(cublasLtHandle_t handle);
    const char *(*status_name)(cublasStatus_t status);
    const char *(*status_string)(cublasStatus_t status);
    cublasStatus_t (*layout_create)(cublasLtMatrixLayout_t *layout,
                                    cudaDataType type, uint64_t rows,
                                    uint64_t cols, int64_t ld);
    cublasStatus_t (*layout_destroy)(cublasLtMatrixLayout_t layout);
    cublasStatus_t (*layout_set)(cublasLtMatrixLayout_t layout,
                                 cublasLtMatrixLayoutAttribute_t attr,
                                 const void *value, size_t bytes);
    cublasStatus_t (*desc_create)(cublasLtMatmulDesc_t *desc,
                                  cublasComputeType_t compute,
                                  cudaDataType_t scale_type);
    cublasStatus_t (*desc_destroy)(cublasLtMatmulDesc_t desc);
    cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t desc,
                               cublasLtMatmulDescAttributes_t attr,
                               const void *value, size_t bytes);
    cublasStatus_t (*preference_create)(cublasLtMatmulPreference_t *preference);
    cublasStatus_t (*preference_destroy)(cublasLtMatmulPreference_t preference);
    cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attr,
                                     const void *value, size_t bytes);
    cublasStatus_t (*heuristic)(
        cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
        cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
        cublasLtMatmulPreference_t preference, int n_asked,
        cublasLtMatmulHeuristicResult_t *results, int *n_results);
    cublasStatus_t (*config_get)(const cublasLtMatmulAlgo_t *algo,
                                 cublasLtMatmulAlgoConfigAttributes_t attr,
                                 void *value, size_t bytes, size_t *written);
    cublasStatus_t (*matmul)(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                             const void *alpha, const void *a,
                             cublasLtMatrixLayout_t a_layout, const void *b,
                             cublasLtMatrixLayout_t b_layout, const void *beta,
                             const void *c, cublasLtMatrixLayout_t c_layout,
                             void *d, cublasLtMatrixLayout_t d_layout,
                             const cublasLtMatmulAlgo_t *algo, void *workspace,
                             size_t workspace_bytes, cudaStream_t stream);
} blas_calls_t;

extern const blas_calls_t blas_calls;

#endif /* SL_TESTS_CUDA_BLAS_VALUES_H */
