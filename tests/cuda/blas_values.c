/* SPDX-License-Identifier: Apache-2.0 */
/* What the code takes cuBLASLt's interface to be. Compiled against the
 * toolkit and against the stand-in, it proves that they agree. */
#include <cublasLt.h>
#include <stddef.h>

#include "tests/cuda/blas_values.h"

#define IS(name, value) _Static_assert((int)(name) == (value), #name)

IS(CUDA_R_32F, 0);
IS(CUDA_R_16F, 2);
IS(CUDA_R_16BF, 14);

IS(CUBLAS_STATUS_SUCCESS, 0);
IS(CUBLAS_STATUS_NOT_INITIALIZED, 1);
IS(CUBLAS_STATUS_ALLOC_FAILED, 3);
IS(CUBLAS_STATUS_INVALID_VALUE, 7);
IS(CUBLAS_STATUS_ARCH_MISMATCH, 8);
IS(CUBLAS_STATUS_MAPPING_ERROR, 11);
IS(CUBLAS_STATUS_EXECUTION_FAILED, 13);
IS(CUBLAS_STATUS_INTERNAL_ERROR, 14);
IS(CUBLAS_STATUS_NOT_SUPPORTED, 15);
IS(CUBLAS_STATUS_LICENSE_ERROR, 16);

IS(CUBLAS_OP_N, 0);
IS(CUBLAS_OP_T, 1);
IS(CUBLAS_COMPUTE_32F, 68);
IS(CUBLAS_COMPUTE_32F_FAST_TF32, 77);

IS(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5);
IS(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6);
IS(CUBLASLT_MATMUL_DESC_TRANSA, 3);
IS(CUBLASLT_MATMUL_DESC_TRANSB, 4);
IS(CUBLASLT_MATMUL_DESC_EPILOGUE, 7);
IS(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8);
IS(CUBLASLT_EPILOGUE_DEFAULT, 1);
IS(CUBLASLT_EPILOGUE_BIAS, 4);
IS(CUBLASLT_EPILOGUE_BGRADB, 512);
IS(CUBLASLT_REDUCTION_SCHEME_NONE, 0);
IS(CUBLASLT_REDUCTION_SCHEME_INPLACE, 1);
IS(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2);
IS(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 4);
IS(CUBLASLT_REDUCTION_SCHEME_MASK, 7);
IS(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1);
IS(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7);
IS(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8);
IS(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 3);

IS(sizeof(cublasLtMatmulAlgo_t), 64);
IS(sizeof(cublasLtMatmulHeuristicResult_t), 96);
IS(offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), 64);
IS(offsetof(cublasLtMatmulHeuristicResult_t, state), 72);
IS(offsetof(cublasLtMatmulHeuristicResult_t, wavesCount), 76);

/* The order and types of arguments. */
const blas_calls_t blas_calls = {
    .create = cublasLtCreate,
    .destroy = cublasLtDestroy,
    .status_name = cublasLtGetStatusName,
    .status_string = cublasLtGetStatusString,
    .layout_create = cublasLtMatrixLayoutCreate,
    .layout_destroy = cublasLtMatrixLayoutDestroy,
    .layout_set = cublasLtMatrixLayoutSetAttribute,
    .desc_create = cublasLtMatmulDescCreate,
    .desc_destroy = cublasLtMatmulDescDestroy,
    .desc_set = cublasLtMatmulDescSetAttribute,
    .preference_create = cublasLtMatmulPreferenceCreate,
    .preference_destroy = cublasLtMatmulPreferenceDestroy,
    .preference_set = cublasLtMatmulPreferenceSetAttribute,
    .heuristic = cublasLtMatmulAlgoGetHeuristic,
    .config_get = cublasLtMatmulAlgoConfigGetAttribute,
    .matmul = cublasLtMatmul,
};
