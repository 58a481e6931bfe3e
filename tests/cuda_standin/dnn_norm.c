/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm over batch and pixels; sums in double. */
#define SL_STANDIN_INSIDE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

/* What a call is given, in arrays of these. */
typedef enum norm_array {
    X,
    DY, /* backward */
    SCALE,
    BIAS,   /* forward */
    RESULT, /* y, dx */
    MEAN,   /* saved: forward may have none */
    RSTD,
    RUNNING_MEAN, /* forward; backward: the scale's gradient */
    RUNNING_VAR,  /* forward; backward: the bias's */
    WORKSPACE,
    RESERVE,
    N_ARRAYS
} norm_array_t;

typedef struct norm_task {
    task_t task; /* first */
    struct cudnnTensorStruct image;
    int is_backward;
    float alpha, beta;             /* of the result */
    float param_alpha, param_beta; /* backward */
    double factor, eps;            /* forward */
    const void *at[N_ARRAYS];
} norm_task_t;

static size_t channel_bytes(const struct cudnnTensorStruct *image)
{
    return (size_t)image->c * sizeof(float);
}

static size_t workspace_bytes(const struct cudnnTensorStruct *image)
{
    return 256 + 2 * channel_bytes(image);
}

/* ---- numbers ---- */

static float *floats(const norm_task_t *job, norm_array_t array)
{
    return (float *)(uintptr_t)job->at[array];
}

/* The i-th value of a channel. */
static size_t place(const norm_task_t *job, int c, size_t i)
{
    const size_t pixels = (size_t)job->image.h * (size_t)job->image.w;
    const int pixel = (int)(i % pixels);

    return dnn_image_place(&job->image, (int)(i / pixels), c,
                           pixel / job->image.w, pixel % job->image.w);
}

static size_t n_values(const norm_task_t *job)
{
    return (size_t)job->image.n * (size_t)job->image.h * (size_t)job->image.w;
}

static double value(const norm_task_t *job, norm_array_t array, int c, size_t i)
{
    return (double)dnn_load(job->image.type, job->at[array], place(job, c, i));
}

static void put(const norm_task_t *job, int c, size_t i, double number)
{
    void *to = (void *)(uintptr_t)job->at[RESULT];
    const size_t at = place(job, c, i);

    number *= (double)job->alpha;
    if (job->beta != 0.0f) {
        number += (double)job->beta * (double)dnn_load(job->image.type, to, at);
    }
    dnn_store(job->image.type, to, at, (float)number);
}

static void blend(float *to, double value, double keep, double factor)
{
    *to = (float)(factor * value + (keep == 0.0 ? 0.0 : keep * (double)*to));
}

static void forward_channel(const norm_task_t *job, int c)
{
    const size_t n = n_values(job);
    double mean = 0, m2 = 0, rstd;
    size_t i;

    for (i = 0; i < n; i++) {
        mean += value(job, X, c, i) / (double)n;
    }
    for (i = 0; i < n; i++) {
        const double d = value(job, X, c, i) - mean;

        m2 += d * d;
    }
    rstd = 1.0 / sqrt(m2 / (double)n + job->eps);
    for (i = 0; i < n; i++) {
        put(job, c, i,
            (value(job, X, c, i) - mean) * rstd *
                    (double)floats(job, SCALE)[c] +
                (double)floats(job, BIAS)[c]);
    }
    if (job->at[RUNNING_MEAN] != NULL) {
        blend(&floats(job, RUNNING_MEAN)[c], mean, 1.0 - job->factor,
              job->factor);
        blend(&floats(job, RUNNING_VAR)[c], m2 / ((double)n - 1.0),
              1.0 - job->factor, job->factor);
    }
    if (job->at[MEAN] != NULL) {
        floats(job, MEAN)[c] = (float)mean;
        floats(job, RSTD)[c] = (float)rstd;
    }
    floats(job, RESERVE)[c] = (float)rstd;
}

static void backward_channel(const norm_task_t *job, int c)
{
    const size_t n = n_values(job);
    const double mean = (double)floats(job, MEAN)[c];
    const double rstd = (double)floats(job, RSTD)[c];
    const double scale = (double)floats(job, SCALE)[c];
    const double keep = (double)job->param_beta;
    double s = 0, q = 0;
    size_t i;

    if (floats(job, RESERVE)[c] != floats(job, RSTD)[c]) {
        s = (double)NAN; /* not what its forward has left there */
    }
    for (i = 0; i < n; i++) {
        const double g = value(job, DY, c, i);

        s += g;
        q += g * (value(job, X, c, i) - mean) * rstd;
    }
    for (i = 0; i < n; i++) {
        const double xhat = (value(job, X, c, i) - mean) * rstd;

        put(job, c, i,
            scale * rstd *
                (value(job, DY, c, i) - s / (double)n - xhat * q / (double)n));
    }
    blend(&floats(job, RUNNING_MEAN)[c], q, keep, (double)job->param_alpha);
    blend(&floats(job, RUNNING_VAR)[c], s, keep, (double)job->param_alpha);
}

static void norm_run(task_t *task)
{
    const norm_task_t *job = (const norm_task_t *)(const void *)task;
    int c;

    memset((void *)(uintptr_t)job->at[WORKSPACE], 0xff,
           workspace_bytes(&job->image));
    for (c = 0; c < job->image.c; c++) {
        if (job->is_backward) {
            backward_channel(job, c);
        } else {
            forward_channel(job, c);
        }
    }
}

/* ---- calls ---- */

static int is_like(const cudnnTensorDescriptor_t a,
                   const cudnnTensorDescriptor_t b)
{
    return b != NULL && b->is_set && a->format == b->format &&
           a->type == b->type && a->n == b->n && a->c == b->c && a->h == b->h &&
           a->w == b->w;
}

static int is_channels(const cudnnTensorDescriptor_t x,
                       const cudnnTensorDescriptor_t channels)
{
    return channels != NULL && channels->is_set &&
           channels->type == CUDNN_DATA_FLOAT && channels->n == 1 &&
           channels->c == x->c && channels->h == 1 && channels->w == 1;
}

/* a and b must be as x. */
static cudnnStatus_t check(cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
                           const cudnnActivationDescriptor_t activation,
                           const cudnnTensorDescriptor_t x,
                           const cudnnTensorDescriptor_t a,
                           const cudnnTensorDescriptor_t b,
                           const cudnnTensorDescriptor_t channels)
{
    if (x == NULL || !x->is_set) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                        "a descriptor is not set");
    }
    if (mode == CUDNN_BATCHNORM_PER_ACTIVATION ||
        ops != CUDNN_BATCHNORM_OPS_BN || activation != NULL ||
        dnn_is_refused(x->type, x->format)) {
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "mode, layout or type");
    }
    if (!is_like(x, a) || !is_like(x, b) || !is_channels(x, channels)) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "shapes");
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const cudnnTensorDescriptor_t xDesc, const cudnnTensorDescriptor_t zDesc,
    const cudnnTensorDescriptor_t yDesc,
    const cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc,
    const cudnnActivationDescriptor_t activationDesc, size_t *sizeInBytes)
{
    cudnnStatus_t status = dnn_enter(
        STANDIN_cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, 1,
        NULL);

    (void)handle;
    (void)zDesc;
    if (status == CUDNN_STATUS_SUCCESS) {
        status = check(mode, bnOps, activationDesc, xDesc, yDesc, yDesc,
                       bnScaleBiasMeanVarDesc);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        *sizeInBytes = workspace_bytes(xDesc);
    }
    return status;
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const cudnnTensorDescriptor_t xDesc, const cudnnTensorDescriptor_t yDesc,
    const cudnnTensorDescriptor_t dyDesc, const cudnnTensorDescriptor_t dzDesc,
    const cudnnTensorDescriptor_t dxDesc,
    const cudnnTensorDescriptor_t dBnScaleBiasDesc,
    const cudnnActivationDescriptor_t activationDesc, size_t *sizeInBytes)
{
    cudnnStatus_t status = dnn_enter(
        STANDIN_cudnnGetBatchNormalizationBackwardExWorkspaceSize, 1, NULL);

    (void)handle;
    (void)yDesc;
    (void)dzDesc;
    if (status == CUDNN_STATUS_SUCCESS) {
        status = check(mode, bnOps, activationDesc, xDesc, dyDesc, dxDesc,
                       dBnScaleBiasDesc);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        *sizeInBytes = workspace_bytes(xDesc);
    }
    return status;
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const cudnnActivationDescriptor_t activationDesc,
    const cudnnTensorDescriptor_t xDesc, size_t *sizeInBytes)
{
    cudnnStatus_t status = dnn_enter(
        STANDIN_cudnnGetBatchNormalizationTrainingExReserveSpaceSize, 1, NULL);

    (void)handle;
    if (status == CUDNN_STATUS_SUCCESS && (xDesc == NULL || !xDesc->is_set)) {
        status = dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                          "a descriptor is not set");
    }
    (void)mode;
    (void)bnOps;
    (void)activationDesc;
    if (status == CUDNN_STATUS_SUCCESS) {
        *sizeInBytes = channel_bytes(xDesc);
    }
    return status;
}

static norm_task_t *make(const cudnnTensorDescriptor_t image, const void *alpha,
                         const void *beta)
{
    norm_task_t *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        abort();
    }
    job->task.run = norm_run;
    job->image = *image;
    memcpy(&job->alpha, alpha, sizeof(job->alpha));
    memcpy(&job->beta, beta, sizeof(job->beta));
    return job;
}

/* Arrays without an address are not there. */
static cudnnStatus_t queue(cudnnHandle_t handle, const char *name,
                           norm_task_t *job, const void *const at[N_ARRAYS],
                           int is_late)
{
    dnn_use_t uses[N_ARRAYS];
    int i, n = 0;

    for (i = 0; i < N_ARRAYS; i++) {
        const int is_image = i == X || i == DY || i == RESULT;
        const int is_read =
            i == X || i == DY || i == SCALE || i == BIAS ||
            (job->is_backward && (i == MEAN || i == RSTD || i == RESERVE));

        if (at[i] != NULL) {
            uses[n++] =
                (dnn_use_t){at[i],
                            is_image         ? dnn_image_bytes(&job->image)
                            : i == WORKSPACE ? workspace_bytes(&job->image)
                                             : channel_bytes(&job->image),
                            !is_read, &job->at[i]};
        }
    }
    dnn_check_overlap(name, uses, n);
    return dnn_queue(handle, name, &job->task, uses, n, is_late);
}

/* Both calls: the library's own arrays. */
static cudnnStatus_t check_room(const cudnnTensorDescriptor_t x,
                                const void *workspace, size_t n_workspace,
                                const void *reserve, size_t n_reserve)
{
    if (workspace == NULL || reserve == NULL ||
        n_workspace < workspace_bytes(x) || n_reserve < channel_bytes(x) ||
        (uintptr_t)workspace % 16 != 0 || (uintptr_t)reserve % 16 != 0) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                        "workspace of %zu bytes, %zu are needed; reserve of "
                        "%zu, %zu are needed; aligned",
                        n_workspace, workspace_bytes(x), n_reserve,
                        channel_bytes(x));
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const void *alpha, const void *beta, const cudnnTensorDescriptor_t xDesc,
    const void *xData, const cudnnTensorDescriptor_t zDesc, const void *zData,
    const cudnnTensorDescriptor_t yDesc, void *yData,
    const cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc, const void *bnScale,
    const void *bnBias, double exponentialAverageFactor,
    void *resultRunningMean, void *resultRunningVariance, double epsilon,
    void *resultSaveMean, void *resultSaveInvVariance,
    cudnnActivationDescriptor_t activationDesc, void *workspace,
    size_t workSpaceSizeInBytes, void *reserveSpace,
    size_t reserveSpaceSizeInBytes)
{
    const void *const at[N_ARRAYS] = {[X] = xData,
                                      [SCALE] = bnScale,
                                      [BIAS] = bnBias,
                                      [RESULT] = yData,
                                      [MEAN] = resultSaveMean,
                                      [RSTD] = resultSaveInvVariance,
                                      [RUNNING_MEAN] = resultRunningMean,
                                      [RUNNING_VAR] = resultRunningVariance,
                                      [WORKSPACE] = workspace,
                                      [RESERVE] = reserveSpace};
    int is_late = 0;
    cudnnStatus_t status = dnn_enter(
        STANDIN_cudnnBatchNormalizationForwardTrainingEx, 1, &is_late);
    norm_task_t *job;

    (void)zDesc;
    (void)zData;
    if (status == CUDNN_STATUS_SUCCESS) {
        status = check(mode, bnOps, activationDesc, xDesc, yDesc, yDesc,
                       bnScaleBiasMeanVarDesc);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = check_room(xDesc, workspace, workSpaceSizeInBytes,
                            reserveSpace, reserveSpaceSizeInBytes);
    }
    if (status == CUDNN_STATUS_SUCCESS &&
        ((resultSaveMean == NULL) != (resultSaveInvVariance == NULL) ||
         (resultRunningMean == NULL) != (resultRunningVariance == NULL))) {
        status = dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "one of two");
    }
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    job = make(xDesc, alpha, beta);
    job->factor = exponentialAverageFactor;
    job->eps = epsilon;
    return queue(handle, "cudnnBatchNormalizationForwardTrainingEx", job, at,
                 is_late);
}

cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t bnOps,
    const void *alphaDataDiff, const void *betaDataDiff,
    const void *alphaParamDiff, const void *betaParamDiff,
    const cudnnTensorDescriptor_t xDesc, const void *xData,
    const cudnnTensorDescriptor_t yDesc, const void *yData,
    const cudnnTensorDescriptor_t dyDesc, const void *dyData,
    const cudnnTensorDescriptor_t dzDesc, void *dzData,
    const cudnnTensorDescriptor_t dxDesc, void *dxData,
    const cudnnTensorDescriptor_t dBnScaleBiasDesc, const void *bnScaleData,
    const void *bnBiasData, void *dBnScaleData, void *dBnBiasData,
    double epsilon, const void *savedMean, const void *savedInvVariance,
    cudnnActivationDescriptor_t activationDesc, void *workSpace,
    size_t workSpaceSizeInBytes, void *reserveSpace,
    size_t reserveSpaceSizeInBytes)
{
    const void *const at[N_ARRAYS] = {[X] = xData,
                                      [DY] = dyData,
                                      [SCALE] = bnScaleData,
                                      [RESULT] = dxData,
                                      [MEAN] = savedMean,
                                      [RSTD] = savedInvVariance,
                                      [RUNNING_MEAN] = dBnScaleData,
                                      [RUNNING_VAR] = dBnBiasData,
                                      [WORKSPACE] = workSpace,
                                      [RESERVE] = reserveSpace};
    int is_late = 0;
    cudnnStatus_t status =
        dnn_enter(STANDIN_cudnnBatchNormalizationBackwardEx, 1, &is_late);
    norm_task_t *job;

    (void)yDesc;
    (void)yData;
    (void)dzDesc;
    (void)dzData;
    (void)bnBiasData;
    (void)epsilon;
    if (status == CUDNN_STATUS_SUCCESS) {
        status = check(mode, bnOps, activationDesc, xDesc, dyDesc, dxDesc,
                       dBnScaleBiasDesc);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = check_room(xDesc, workSpace, workSpaceSizeInBytes,
                            reserveSpace, reserveSpaceSizeInBytes);
    }
    if (status == CUDNN_STATUS_SUCCESS &&
        (savedMean == NULL || savedInvVariance == NULL || dxData == NULL ||
         dBnScaleData == NULL || dBnBiasData == NULL)) {
        status = dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an array");
    }
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    job = make(xDesc, alphaDataDiff, betaDataDiff);
    job->is_backward = 1;
    memcpy(&job->param_alpha, alphaParamDiff, sizeof(job->param_alpha));
    memcpy(&job->param_beta, betaParamDiff, sizeof(job->param_beta));
    return queue(handle, "cudnnBatchNormalizationBackwardEx", job, at, is_late);
}
