/* SPDX-License-Identifier: Apache-2.0 */
/* Products by cuBLASLt, which stores matrices by columns: a row-major matrix
 * is to it the transpose, and d^T = op(b)^T op(a)^T. So its first operand is
 * our b, its second our a, and its rows are our columns. */
#include "layers/cuda/blas.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>

#include "layers/cuda/handles.h"
#include "memory/cuda.h"

enum {
    ALIGN_BYTES = 256,      /* of our allocations */
    EXTRA_ALIGN_BYTES = 16, /* of bias and sums */
    MAX_ALGOS = 8,          /* asked for; the fastest that fits is taken */
    NAME_BYTES = 256,
    DETAIL_BYTES = 256
};

struct sl_cuda_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d; /* of our a, b, d */
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
    int has_extra;
};

sl_status_t sl_cuda_blas_status(int error, const char *call, const char *file,
                                int line)
{
    const cublasStatus_t code = (cublasStatus_t)error;
    const int is_refusal = code == CUBLAS_STATUS_ALLOC_FAILED;
    char text[DETAIL_BYTES];

    if (code == CUBLAS_STATUS_SUCCESS) {
        return SL_OK;
    }
    (void)snprintf(text, sizeof(text), "%s (%s)", cublasLtGetStatusString(code),
                   cublasLtGetStatusName(code));
    sl_cuda_fail_record(is_refusal, file, line, call, text);
    return is_refusal ? SL_ERR_NO_MEMORY : SL_ERR_DEVICE;
}

/* ---- descriptions ---- */

static cudaDataType_t data_type(sl_cuda_type_t type)
{
    static const cudaDataType_t types[] = {[SL_CUDA_F32] = CUDA_R_32F,
                                           [SL_CUDA_BF16] = CUDA_R_16BF,
                                           [SL_CUDA_F16] = CUDA_R_16F};

    return types[type];
}

static sl_status_t set_op(cublasLtMatmulDesc_t desc,
                          cublasLtMatmulDescAttributes_t attr,
                          const void *value, size_t bytes)
{
    return SL_BLAS(cublasLtMatmulDescSetAttribute(desc, attr, value, bytes));
}

/* A matrix of rows x columns as we store it. */
static sl_status_t make_layout(const sl_cuda_matrix_t *matrix, int64_t rows,
                               int64_t columns, int64_t batch,
                               cublasLtMatrixLayout_t *layout_p)
{
    const int32_t count = (int32_t)batch;
    cublasLtMatrixLayout_t layout = NULL;
    sl_status_t status;

    SL_TRY(status,
           SL_BLAS(cublasLtMatrixLayoutCreate(&layout, data_type(matrix->type),
                                              (uint64_t)columns, (uint64_t)rows,
                                              matrix->stride)),
           out);
    *layout_p = layout;
    if (batch == 1) {
        return SL_OK;
    }
    SL_TRY(
        status,
        SL_BLAS(cublasLtMatrixLayoutSetAttribute(
            layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count))),
        out);
    SL_TRY(status,
           SL_BLAS(cublasLtMatrixLayoutSetAttribute(
               layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
               &matrix->batch_stride, sizeof(matrix->batch_stride))),
           out);
out:
    return status;
}

static sl_status_t make_layouts(sl_cuda_product_t *product,
                                const sl_cuda_product_params_t *p)
{
    const int64_t batch = p->batch > 1 ? p->batch : 1;
    const int is_a = p->a.is_transposed, is_b = p->b.is_transposed;
    sl_status_t status;

    SL_TRY(status,
           make_layout(&p->a, is_a ? p->k : p->m, is_a ? p->m : p->k, batch,
                       &product->a),
           out);
    SL_TRY(status,
           make_layout(&p->b, is_b ? p->n : p->k, is_b ? p->k : p->n, batch,
                       &product->b),
           out);
    SL_TRY(status, make_layout(&p->d, p->m, p->n, batch, &product->d), out);
out:
    return status;
}

/* The address counts here by its alignment only. */
static sl_status_t set_epilogue(cublasLtMatmulDesc_t desc,
                                sl_cuda_epilogue_t epilogue)
{
    static const cublasLtEpilogue_t epilogues[] = {
        [SL_CUDA_EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
        [SL_CUDA_EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
        [SL_CUDA_EPILOGUE_ROW_SUMS] = CUBLASLT_EPILOGUE_BGRADB};
    const uint32_t value = (uint32_t)epilogues[epilogue];
    const uintptr_t address = EXTRA_ALIGN_BYTES;
    sl_status_t status = SL_OK;

    if (epilogue == SL_CUDA_EPILOGUE_NONE) {
        return SL_OK;
    }
    SL_TRY(status,
           set_op(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &value, sizeof(value)),
           out);
    SL_TRY(status,
           set_op(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address,
                  sizeof(address)),
           out);
out:
    return status;
}

static sl_status_t make_desc(sl_cuda_product_t *product,
                             const sl_cuda_product_params_t *p)
{
    const int32_t trans_first = p->b.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t trans_second = p->a.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasComputeType_t compute = p->is_tf32 && p->a.type == SL_CUDA_F32
                                            ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F;
    sl_status_t status;

    SL_TRY(
        status,
        SL_BLAS(cublasLtMatmulDescCreate(&product->desc, compute, CUDA_R_32F)),
        out);
    SL_TRY(status,
           set_op(product->desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans_first,
                  sizeof(trans_first)),
           out);
    SL_TRY(status,
           set_op(product->desc, CUBLASLT_MATMUL_DESC_TRANSB, &trans_second,
                  sizeof(trans_second)),
           out);
    status = set_epilogue(product->desc, p->epilogue);
out:
    return status;
}

/* ---- the choice of an algorithm ---- */

static sl_status_t set_align(cublasLtMatmulPreference_t preference,
                             cublasLtMatmulPreferenceAttributes_t attr,
                             const sl_cuda_matrix_t *matrix)
{
    const uint32_t bytes =
        matrix->align_bytes == 0 ? ALIGN_BYTES : (uint32_t)matrix->align_bytes;

    return SL_BLAS(cublasLtMatmulPreferenceSetAttribute(preference, attr,
                                                        &bytes, sizeof(bytes)));
}

static sl_status_t set_preference(cublasLtMatmulPreference_t preference,
                                  const sl_cuda_product_params_t *p)
{
    const uint64_t workspace_bytes = SL_CUDA_BLAS_WORKSPACE_BYTES;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
    sl_status_t status;

    SL_TRY(status,
           SL_BLAS(cublasLtMatmulPreferenceSetAttribute(
               preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
               &workspace_bytes, sizeof(workspace_bytes))),
           out);
    SL_TRY(status,
           SL_BLAS(cublasLtMatmulPreferenceSetAttribute(
               preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
               sizeof(schemes))),
           out);
    SL_TRY(status,
           set_align(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                     &p->b),
           out);
    SL_TRY(status,
           set_align(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     &p->a),
           out);
    SL_TRY(status,
           set_align(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                     &p->d),
           out);
    SL_TRY(status,
           set_align(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                     &p->d),
           out);
out:
    return status;
}

/* Whether it adds up a dot product in one place: asked once more, whatever
 * the preference has let through. One that does not answer is not taken. */
static int is_repeatable(const cublasLtMatmulAlgo_t *algo)
{
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t bytes = 0;

    return cublasLtMatmulAlgoConfigGetAttribute(
               algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
               sizeof(scheme), &bytes) == CUBLAS_STATUS_SUCCESS &&
           scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static void describe(const sl_cuda_product_params_t *p, char text[NAME_BYTES])
{
    static const char *const types[] = {
        [SL_CUDA_F32] = "f32", [SL_CUDA_BF16] = "bf16", [SL_CUDA_F16] = "f16"};
    static const char *const epilogues[] = {
        [SL_CUDA_EPILOGUE_NONE] = "",
        [SL_CUDA_EPILOGUE_BIAS] = ", bias added",
        [SL_CUDA_EPILOGUE_ROW_SUMS] = ", with row sums"};

    (void)snprintf(text, NAME_BYTES,
                   "%s [%lld, %lld] by [%lld, %lld] to %s, %lld times, "
                   "transposed %d %d, rows %lld, %lld and %lld elements apart"
                   "%s%s",
                   types[p->a.type], (long long)p->m, (long long)p->k,
                   (long long)p->k, (long long)p->n, types[p->d.type],
                   (long long)(p->batch > 1 ? p->batch : 1), p->a.is_transposed,
                   p->b.is_transposed, (long long)p->a.stride,
                   (long long)p->b.stride, (long long)p->d.stride,
                   epilogues[p->epilogue], p->is_tf32 ? ", tf32 allowed" : "");
}

static sl_status_t refuse(const sl_cuda_product_params_t *p)
{
    char text[NAME_BYTES];
    sl_status_t status;

    describe(p, text);
    if (p->is_optional) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out,
                  "%s: cuBLASLt has no algorithm for %s", p->name, text);
    }
    SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
            "%s: cuBLASLt has no algorithm for %s; another batch size, width "
            "or precision may have one",
            p->name, text);
out:
    return status;
}

static sl_status_t take_first(sl_cuda_product_t *product,
                              const cublasLtMatmulHeuristicResult_t *results,
                              int n_results, const sl_cuda_product_params_t *p)
{
    int i;

    for (i = 0; i < n_results; i++) {
        if (results[i].state == CUBLAS_STATUS_SUCCESS &&
            results[i].workspaceSize <= SL_CUDA_BLAS_WORKSPACE_BYTES &&
            is_repeatable(&results[i].algo)) {
            product->algo = results[i].algo;
            product->workspace_bytes = results[i].workspaceSize;
            return SL_OK;
        }
    }
    return refuse(p);
}

/* The library counts rows and columns in 32 bits. */
static int is_countable(const sl_cuda_product_params_t *p)
{
    return p->m <= INT32_MAX && p->n <= INT32_MAX && p->k <= INT32_MAX &&
           p->batch <= INT32_MAX;
}

static sl_status_t choose_algo(sl_cuda_product_t *product,
                               const sl_cuda_product_params_t *p)
{
    cublasLtMatmulHeuristicResult_t results[MAX_ALGOS];
    cublasLtMatmulPreference_t preference = NULL;
    struct cublasLtContext *handle = NULL;
    cublasStatus_t code;
    sl_status_t status;
    int n_results = 0;

    SL_TRY(status, SL_BLAS(cublasLtMatmulPreferenceCreate(&preference)), out);
    SL_TRY(status, set_preference(preference, p), err_preference);
    SL_TRY(status, sl_cuda_blas_borrow(&handle), err_preference);
    code = cublasLtMatmulAlgoGetHeuristic(
        handle, product->desc, product->b, product->a, product->d, product->d,
        preference, MAX_ALGOS, results, &n_results);
    sl_cuda_blas_give_back();
    if (code == CUBLAS_STATUS_NOT_SUPPORTED ||
        code == CUBLAS_STATUS_INVALID_VALUE) { /* it may say either */
        code = CUBLAS_STATUS_SUCCESS;
        n_results = 0;
    }
    SL_TRY(status,
           sl_cuda_blas_status((int)code, "cublasLtMatmulAlgoGetHeuristic",
                               __FILE__, __LINE__),
           err_preference);
    status = take_first(product, results, n_results, p);
err_preference:
    (void)cublasLtMatmulPreferenceDestroy(preference);
out:
    return status;
}

/* ---- life ---- */

sl_status_t sl_cuda_product_create(const sl_cuda_product_params_t *params,
                                   sl_cuda_product_t **product_p)
{
    sl_cuda_product_t *product = NULL;
    sl_status_t status;

    SL_ASSERT(params->m > 0 && params->n > 0 && params->k > 0);
    SL_ASSERT(params->batch <= 1 || params->epilogue == SL_CUDA_EPILOGUE_NONE);
    if (!is_countable(params)) {
        return refuse(params);
    }
    product = calloc(1, sizeof(*product));
    if (product == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                params->name);
    }
    product->has_extra = params->epilogue != SL_CUDA_EPILOGUE_NONE;
    SL_TRY(status, make_desc(product, params), err_destroy);
    SL_TRY(status, make_layouts(product, params), err_destroy);
    SL_TRY(status, choose_algo(product, params), err_destroy);
    *product_p = product;
    return SL_OK;

err_destroy:
    sl_cuda_product_destroy(product);
out:
    return status;
}

static void destroy_layout(cublasLtMatrixLayout_t layout)
{
    if (layout != NULL) {
        (void)cublasLtMatrixLayoutDestroy(layout);
    }
}

void sl_cuda_product_destroy(sl_cuda_product_t *product)
{
    if (product == NULL) {
        return;
    }
    destroy_layout(product->a);
    destroy_layout(product->b);
    destroy_layout(product->d);
    if (product->desc != NULL) {
        (void)cublasLtMatmulDescDestroy(product->desc);
    }
    free(product);
}

size_t sl_cuda_product_workspace_bytes(const sl_cuda_product_t *product)
{
    return product == NULL ? 0 : product->workspace_bytes;
}

sl_status_t sl_cuda_product_run(sl_cuda_product_t *product,
                                const sl_cuda_product_args_t *args,
                                sl_cuda_stream_t *stream)
{
    struct cublasLtContext *handle = NULL;
    sl_status_t status;

    SL_TRY(status, sl_cuda_blas(stream, &handle), out);
    if (product->has_extra) {
        SL_TRY(status,
               set_op(product->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                      &args->extra, sizeof(args->extra)),
               out);
    }
    status = SL_BLAS(cublasLtMatmul(handle, product->desc, &args->alpha,
                                    args->b, product->b, args->a, product->a,
                                    &args->beta, args->d, product->d, args->d,
                                    product->d, &product->algo, args->workspace,
                                    product->workspace_bytes, stream->queue));
out:
    return status;
}
