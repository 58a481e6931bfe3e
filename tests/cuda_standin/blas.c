/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt: descriptions, the choice of an algorithm, and products queued on
 * a stream. An algorithm remembers what it was chosen for, and works on
 * nothing else. */
#include "blas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin_internal.h"

enum {
    MAX_ALGOS = 4,
    POISON_BYTE = 0xa5
};

struct cublasLtContext {
    int device;
};

typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t schemes;
    uint32_t align_bytes[4]; /* of a, b, c, d */
} preference_t;

/* An algorithm; it fits the library's 64 bytes. */
typedef struct algo {
    uint64_t problem; /* hash of what it is for */
    uint64_t workspace_bytes;
    uint32_t scheme;
    uint32_t align_bytes[4];
    int32_t device;
} algo_t;

_Static_assert(sizeof(algo_t) <= sizeof(cublasLtMatmulAlgo_t), "it fits");

static unsigned refused_epilogues; /* guarded by the lock */
static unsigned n_splits;          /* likewise: runs that split sums */

void standin_blas_refuse(unsigned epilogues)
{
    lock();
    refused_epilogues = epilogues;
    unlock();
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
#define X(id, value, text)                                                     \
    case id:                                                                   \
        return #id;
        SL_STANDIN_BLAS_STATUS_MAP(X)
#undef X
    }
    return "unknown";
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
#define X(id, value, text)                                                     \
    case id:                                                                   \
        return text;
        SL_STANDIN_BLAS_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

/* Count the call. A device that has failed fails what works on it. */
static cublasStatus_t enter(standin_entry_t entry, int *is_late_p,
                            int is_on_device)
{
    const cudaError_t error = standin_enter(entry, is_late_p);
    cudaError_t sticky;

    if (error == cudaSuccess) {
        return CUBLAS_STATUS_SUCCESS;
    }
    lock();
    sticky = standin_sticky(standin_device());
    unlock();
    if (sticky == cudaSuccess) {
        return error == cudaErrorStreamCaptureUnsupported
                   ? CUBLAS_STATUS_NOT_INITIALIZED
                   : (cublasStatus_t)error; /* injected */
    }
    return is_on_device ? CUBLAS_STATUS_EXECUTION_FAILED
                        : CUBLAS_STATUS_SUCCESS;
}

#define ENTER(entry, is_on_device)                                             \
    do {                                                                       \
        const cublasStatus_t early =                                           \
            enter(STANDIN_##entry, NULL, (is_on_device));                      \
                                                                               \
        if (early != CUBLAS_STATUS_SUCCESS) {                                  \
            return early;                                                      \
        }                                                                      \
    } while (0)

static void *make(size_t bytes)
{
    void *made = calloc(1, bytes);

    if (made == NULL) {
        abort();
    }
    return made;
}

/* ---- handles and descriptions ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle)
{
    ENTER(cublasLtCreate, 1);
    *lightHandle = make(sizeof(**lightHandle));
    (*lightHandle)->device = standin_device();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle)
{
    const cublasStatus_t status = enter(STANDIN_cublasLtDestroy, NULL, 0);

    free(lightHandle);
    return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld)
{
    blas_matrix_t *matrix;

    ENTER(cublasLtMatrixLayoutCreate, 0);
    matrix = make(sizeof(*matrix));
    matrix->type = type;
    matrix->rows = rows;
    matrix->cols = cols;
    matrix->ld = ld;
    matrix->batch = 1;
    *matLayout = (void *)matrix;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout)
{
    const cublasStatus_t status =
        enter(STANDIN_cublasLtMatrixLayoutDestroy, NULL, 0);

    free(matLayout);
    return status;
}

/* A value of the attribute's size, or none. */
static cublasStatus_t take(void *to, size_t bytes, const void *buf,
                           size_t given_bytes)
{
    if (to == NULL || buf == NULL || given_bytes != bytes) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(to, buf, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout,
                                 cublasLtMatrixLayoutAttribute_t attr,
                                 const void *buf, size_t sizeInBytes)
{
    blas_matrix_t *matrix = (void *)matLayout;

    ENTER(cublasLtMatrixLayoutSetAttribute, 0);
    return attr == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
               ? take(&matrix->batch, sizeof(matrix->batch), buf, sizeInBytes)
           : attr == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
               ? take(&matrix->stride, sizeof(matrix->stride), buf, sizeInBytes)
               : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc,
                                        cublasComputeType_t computeType,
                                        cudaDataType_t scaleType)
{
    blas_op_t *op;

    ENTER(cublasLtMatmulDescCreate, 0);
    op = make(sizeof(*op));
    op->compute = computeType;
    op->scale_type = scaleType;
    op->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *matmulDesc = (void *)op;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc)
{
    const cublasStatus_t status =
        enter(STANDIN_cublasLtMatmulDescDestroy, NULL, 0);

    free(matmulDesc);
    return status;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                               cublasLtMatmulDescAttributes_t attr,
                               const void *buf, size_t sizeInBytes)
{
    blas_op_t *op = (void *)matmulDesc;

    ENTER(cublasLtMatmulDescSetAttribute, 0);
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return take(&op->trans_a, sizeof(op->trans_a), buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return take(&op->trans_b, sizeof(op->trans_b), buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take(&op->epilogue, sizeof(op->epilogue), buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take(&op->bias, sizeof(op->bias), buf, sizeInBytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    preference_t *preference;
    int i;

    ENTER(cublasLtMatmulPreferenceCreate, 0);
    preference = make(sizeof(*preference));
    preference->schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (i = 0; i < 4; i++) {
        preference->align_bytes[i] = 256;
    }
    *pref = (void *)preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    const cublasStatus_t status =
        enter(STANDIN_cublasLtMatmulPreferenceDestroy, NULL, 0);

    free(pref);
    return status;
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                     cublasLtMatmulPreferenceAttributes_t attr,
                                     const void *buf, size_t sizeInBytes)
{
    preference_t *preference = (void *)pref;

    ENTER(cublasLtMatmulPreferenceSetAttribute, 0);
    switch (attr) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return take(&preference->workspace_bytes,
                    sizeof(preference->workspace_bytes), buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return take(&preference->schemes, sizeof(preference->schemes), buf,
                    sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return take(
            &preference
                 ->align_bytes[attr -
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
            sizeof(uint32_t), buf, sizeInBytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* ---- what is asked for ---- */

static int is_good_matrix(const blas_matrix_t *matrix)
{
    return matrix->rows > 0 && matrix->cols > 0 && matrix->batch > 0 &&
           matrix->rows <= INT32_MAX && matrix->cols <= INT32_MAX &&
           matrix->ld >= (int64_t)matrix->rows;
}

/* Sizes from the descriptions. @return whether they go together */
static int describe(const blas_op_t *op, const blas_matrix_t *a,
                    const blas_matrix_t *b, const blas_matrix_t *c,
                    const blas_matrix_t *d, blas_product_t *product)
{
    const int is_a = op->trans_a == CUBLAS_OP_T;
    const int is_b = op->trans_b == CUBLAS_OP_T;

    memset(product, 0, sizeof(*product));
    product->op = *op;
    product->a = *a;
    product->b = *b;
    product->d = *d;
    product->m = d->rows;
    product->n = d->cols;
    product->k = is_a ? a->rows : a->cols;
    return is_good_matrix(a) && is_good_matrix(b) && is_good_matrix(d) &&
           memcmp(c, d, sizeof(*c)) == 0 &&
           (is_a ? a->cols : a->rows) == product->m &&
           (is_b ? b->cols : b->rows) == product->k &&
           (is_b ? b->rows : b->cols) == product->n && a->batch == b->batch &&
           a->batch == d->batch;
}

/* Types and epilogues that the library lists for computing in fp32. */
static int is_supported(const blas_product_t *p)
{
    const int is_bare = p->op.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    const int is_tf32 = p->op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    int is_refused;

    lock();
    is_refused = (p->op.epilogue & refused_epilogues) != 0;
    unlock();
    return !is_refused && p->op.scale_type == CUDA_R_32F &&
           (p->op.compute == CUBLAS_COMPUTE_32F ||
            (is_tf32 && p->a.type == CUDA_R_32F)) &&
           p->a.type == p->b.type &&
           (p->d.type == p->a.type || p->d.type == CUDA_R_32F) &&
           (is_bare || p->op.epilogue == CUBLASLT_EPILOGUE_BIAS ||
            p->op.epilogue == CUBLASLT_EPILOGUE_BGRADB) &&
           (is_bare || (p->d.batch == 1 && p->op.bias != NULL));
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29);
}

static uint64_t mix_matrix(uint64_t hash, const blas_matrix_t *matrix)
{
    hash = mix(hash, (uint64_t)matrix->type);
    hash = mix(mix(hash, matrix->rows), matrix->cols);
    hash = mix(mix(hash, (uint64_t)matrix->ld), (uint64_t)matrix->batch);
    return mix(hash, (uint64_t)matrix->stride);
}

/* All that an algorithm may depend on. */
static uint64_t hash_of(const blas_product_t *p)
{
    uint64_t hash = mix(1, (uint64_t)p->op.compute);

    hash = mix(mix(hash, (uint64_t)p->op.trans_a), (uint64_t)p->op.trans_b);
    hash = mix(hash, p->op.epilogue);
    hash = mix_matrix(mix_matrix(hash, &p->a), &p->b);
    return mix_matrix(hash, &p->d);
}

static void give_algo(const blas_product_t *p, const preference_t *preference,
                      int device, uint32_t scheme, uint64_t workspace_bytes,
                      cublasLtMatmulHeuristicResult_t *result)
{
    algo_t algo;

    memset(&algo, 0, sizeof(algo));
    algo.problem = hash_of(p);
    algo.workspace_bytes = workspace_bytes;
    algo.scheme = scheme;
    memcpy(algo.align_bytes, preference->align_bytes, sizeof(algo.align_bytes));
    algo.device = device;
    memset(result, 0, sizeof(*result));
    memcpy(&result->algo, &algo, sizeof(algo));
    result->workspaceSize = workspace_bytes;
    result->state = CUBLAS_STATUS_SUCCESS;
    result->wavesCount = 1;
}

/* The "fastest" first: those that split sums, then one with a workspace, then
 * one without. */
static int list_algos(const blas_product_t *p, const preference_t *preference,
                      int device, cublasLtMatmulHeuristicResult_t *results)
{
    const uint64_t bytes = ((p->m + p->n) * 4 + 255) / 256 * 256;
    int n = 0;

    if (bytes <= preference->workspace_bytes) {
        if (preference->schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) {
            give_algo(p, preference, device, CUBLASLT_REDUCTION_SCHEME_INPLACE,
                      bytes, &results[n++]);
        }
        if (preference->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) {
            give_algo(p, preference, device,
                      CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, bytes,
                      &results[n++]);
        }
        give_algo(p, preference, device, CUBLASLT_REDUCTION_SCHEME_NONE, bytes,
                  &results[n++]);
    }
    give_algo(p, preference, device, CUBLASLT_REDUCTION_SCHEME_NONE, 0,
              &results[n++]);
    return n;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc,
    cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
    cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[],
    int *returnAlgoCount)
{
    cublasLtMatmulHeuristicResult_t results[MAX_ALGOS];
    blas_product_t product;
    int n;

    ENTER(cublasLtMatmulAlgoGetHeuristic, 1);
    if (lightHandle == NULL || requestedAlgoCount <= 0 ||
        !describe((const void *)operationDesc, (const void *)Adesc,
                  (const void *)Bdesc, (const void *)Cdesc, (const void *)Ddesc,
                  &product)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *returnAlgoCount = 0;
    if (!is_supported(&product)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    n = list_algos(&product, (const void *)preference, lightHandle->device,
                   results);
    n = n < requestedAlgoCount ? n : requestedAlgoCount;
    memcpy(heuristicResultsArray, results, (size_t)n * sizeof(*results));
    *returnAlgoCount = n;
    return CUBLAS_STATUS_SUCCESS;
}

static algo_t algo_of(const cublasLtMatmulAlgo_t *opaque)
{
    algo_t algo;

    memcpy(&algo, opaque, sizeof(algo));
    return algo;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attr,
    void *buf, size_t sizeInBytes, size_t *sizeWritten)
{
    const algo_t known = algo_of(algo);

    ENTER(cublasLtMatmulAlgoConfigGetAttribute, 0);
    if (attr != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || buf == NULL ||
        sizeInBytes != sizeof(known.scheme)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(buf, &known.scheme, sizeof(known.scheme));
    if (sizeWritten != NULL) {
        *sizeWritten = sizeof(known.scheme);
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

typedef struct product_task {
    task_t task;
    blas_product_t product;
    void *workspace;
    size_t workspace_bytes;
} product_task_t;

/* The workspace is the product's: what it held is lost. */
static void product_run(task_t *task)
{
    const product_task_t *job = (const product_task_t *)(const void *)task;

    if (job->workspace_bytes > 0) {
        memset(job->workspace, POISON_BYTE, job->workspace_bytes);
    }
    blas_compute(&job->product);
}

/* From the first element to the last. */
static size_t extent(const blas_matrix_t *matrix)
{
    const int64_t last = (matrix->batch - 1) * matrix->stride +
                         (int64_t)(matrix->cols - 1) * matrix->ld +
                         (int64_t)matrix->rows;

    return (size_t)last * blas_type_bytes(matrix->type);
}

static int is_aligned(const void *ptr, uint32_t bytes)
{
    return (uintptr_t)ptr % bytes == 0;
}

/* Lock held: declare, and find the address that the CPU can use.
 * @return whether the memory may be used */
static int use(cudaStream_t stream, const void *ptr, size_t bytes, int is_write,
               void **alias_p)
{
    static const char name[] = "cublasLtMatmul";
    const allocation_t *allocation = memory_find(ptr);

    if (allocation != NULL && allocation->device >= 0 &&
        !standin_is_peer(stream->device, allocation->device)) {
        standin_complain("%s on device %d uses memory of device %d without "
                         "peer access",
                         name, stream->device, allocation->device);
    }
    *alias_p = memory_alias(ptr);
    return order_use(stream, ptr, bytes, is_write, name);
}

/* Lock held. What the product touches. */
static int use_all(cudaStream_t stream, product_task_t *job, const void *a,
                   const void *b, const void *c, void *d, void *workspace)
{
    blas_product_t *p = &job->product;
    const size_t type_bytes = blas_type_bytes(p->d.type);
    void *alias = NULL;
    int is_good = 1;

    is_good &= use(stream, a, extent(&p->a), 0, &alias);
    p->a_ptr = alias;
    is_good &= use(stream, b, extent(&p->b), 0, &alias);
    p->b_ptr = alias;
    if (p->beta != 0.0f) {
        is_good &= use(stream, c, extent(&p->d), 0, &alias);
        p->c_ptr = alias;
    }
    is_good &= use(stream, d, extent(&p->d), 1, &p->d_ptr);
    if (p->op.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        is_good &= use(stream, p->op.bias, p->m * type_bytes, 0, &p->op.bias);
    } else if (p->op.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
        is_good &= use(stream, p->op.bias, p->n * type_bytes, 1, &p->op.bias);
    }
    is_good &= use(stream, workspace, job->workspace_bytes, 1, &job->workspace);
    return is_good;
}

/* Whether the algorithm was chosen for this. */
static int is_for(const algo_t *algo, const blas_product_t *p, const void *a,
                  const void *b, const void *c, const void *d,
                  size_t workspace_bytes)
{
    return algo->problem == hash_of(p) &&
           algo->workspace_bytes <= workspace_bytes &&
           is_aligned(a, algo->align_bytes[0]) &&
           is_aligned(b, algo->align_bytes[1]) &&
           is_aligned(c, algo->align_bytes[2]) &&
           is_aligned(d, algo->align_bytes[3]) &&
           (p->op.bias == NULL || is_aligned(p->op.bias, 16));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle,
                              cublasLtMatmulDesc_t computeDesc,
                              const void *alpha, const void *A,
                              cublasLtMatrixLayout_t Adesc, const void *B,
                              cublasLtMatrixLayout_t Bdesc, const void *beta,
                              const void *C, cublasLtMatrixLayout_t Cdesc,
                              void *D, cublasLtMatrixLayout_t Ddesc,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspaceSizeInBytes, cudaStream_t stream)
{
    const algo_t known = algo_of(algo);
    blas_product_t product;
    product_task_t *job;
    cublasStatus_t status;
    int is_late = 0;

    status = enter(STANDIN_cublasLtMatmul, &is_late, 1);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    if (!describe((const void *)computeDesc, (const void *)Adesc,
                  (const void *)Bdesc, (const void *)Cdesc, (const void *)Ddesc,
                  &product) ||
        !is_for(&known, &product, A, B, C, D, workspaceSizeInBytes)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!is_supported(&product)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    job = make(sizeof(*job));
    memcpy(&product.alpha, alpha, sizeof(product.alpha));
    memcpy(&product.beta, beta, sizeof(product.beta));
    job->product = product;
    job->workspace_bytes = known.workspace_bytes;
    job->task.run = product_run;
    lock();
    stream = stream_resolve(stream);
    if (stream == NULL || stream->device != standin_device() ||
        stream->device != lightHandle->device) {
        unlock();
        free(job);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    job->task.error = is_late ? standin_late_error() : cudaSuccess;
    job->product.is_split =
        known.scheme != CUBLASLT_REDUCTION_SCHEME_NONE && n_splits++ % 2 != 0;
    stream_begin(stream);
    if (!use_all(stream, job, A, B, C, D, workspace)) {
        job->task.error = cudaErrorIllegalAddress;
    }
    stream_queue(stream, &job->task);
    unlock();
    return CUBLAS_STATUS_SUCCESS;
}
