/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions in float, of images with channels last; plain ones are turned
 * first. */
#define SL_STANDIN_INSIDE
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

typedef enum conv_kind {
    FORWARD,
    BACKWARD_DATA,
    BACKWARD_FILTER
} conv_kind_t;

typedef struct conv {
    struct cudnnTensorStruct x, y;
    struct cudnnFilterStruct w;
    struct cudnnConvolutionStruct c;
} conv_t;

/* An algorithm of a kind, fastest first. */
typedef struct algo {
    int algo;
    cudnnDeterminism_t determinism;
    enum {
        NO_WORKSPACE,
        SMALL_WORKSPACE,
        HUGE_WORKSPACE,
        NOT_SUPPORTED
    } size;
} algo_t;

enum {
    MAX_ALGOS = 5
};

static const algo_t algos[3][MAX_ALGOS] = {
    [FORWARD] = {{CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, CUDNN_DETERMINISTIC,
                  HUGE_WORKSPACE},
                 {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, CUDNN_DETERMINISTIC,
                  NOT_SUPPORTED},
                 {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                  CUDNN_DETERMINISTIC, SMALL_WORKSPACE},
                 {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_DETERMINISTIC,
                  NO_WORKSPACE},
                 {CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_DETERMINISTIC,
                  NOT_SUPPORTED}},
    [BACKWARD_DATA] = {{CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
                        CUDNN_NON_DETERMINISTIC, NO_WORKSPACE},
                       {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING,
                        CUDNN_DETERMINISTIC, HUGE_WORKSPACE},
                       {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_DETERMINISTIC,
                        SMALL_WORKSPACE},
                       {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD,
                        CUDNN_DETERMINISTIC, NOT_SUPPORTED},
                       {CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT,
                        CUDNN_DETERMINISTIC, NOT_SUPPORTED}},
    [BACKWARD_FILTER] = {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3,
                          CUDNN_NON_DETERMINISTIC, SMALL_WORKSPACE},
                         {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0,
                          CUDNN_NON_DETERMINISTIC, NO_WORKSPACE},
                         {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING,
                          CUDNN_DETERMINISTIC, HUGE_WORKSPACE},
                         {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                          CUDNN_DETERMINISTIC, SMALL_WORKSPACE},
                         {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT,
                          CUDNN_DETERMINISTIC, NOT_SUPPORTED}},
};

static size_t image_elements(const struct cudnnTensorStruct *t)
{
    return (size_t)t->n * (size_t)t->c * (size_t)t->h * (size_t)t->w;
}

static size_t filter_elements(const struct cudnnFilterStruct *w)
{
    return (size_t)w->k * (size_t)w->c * (size_t)w->h * (size_t)w->w;
}

/* ---- descriptions ---- */

static int out_size(int in, int kernel, int stride, int pad, int dilation)
{
    return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

static cudnnStatus_t describe(const cudnnTensorDescriptor_t x,
                              const cudnnFilterDescriptor_t w,
                              const cudnnConvolutionDescriptor_t c,
                              const cudnnTensorDescriptor_t y, conv_t *conv)
{
    memset(conv, 0, sizeof(*conv));
    if (x == NULL || w == NULL || c == NULL || y == NULL || !x->is_set ||
        !w->is_set || !c->is_set || !y->is_set) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                        "a descriptor is not set");
    }
    if (x->type != w->type || x->type != y->type ||
        c->compute != CUDNN_DATA_FLOAT) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "types differ");
    }
    if (x->format != y->format || x->format != w->format ||
        dnn_is_refused(x->type, x->format)) {
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "layout or type");
    }
    if (c->groups < 1 || x->c != w->c * c->groups || w->k % c->groups != 0 ||
        y->c != w->k || y->n != x->n ||
        y->h != out_size(x->h, w->h, c->stride_h, c->pad_h, c->dilation_h) ||
        y->w != out_size(x->w, w->w, c->stride_w, c->pad_w, c->dilation_w)) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                        "the shapes do not fit");
    }
    conv->x = *x;
    conv->y = *y;
    conv->w = *w;
    conv->c = *c;
    return CUDNN_STATUS_SUCCESS;
}

static const algo_t *find_algo(conv_kind_t kind, int algo)
{
    int i;

    for (i = 0; i < MAX_ALGOS; i++) {
        if (algos[kind][i].algo == algo) {
            return &algos[kind][i];
        }
    }
    return NULL;
}

static size_t workspace_of(const algo_t *algo, const conv_t *conv)
{
    switch (algo->size) {
    case SMALL_WORKSPACE:
        return 256 + 4 * filter_elements(&conv->w) / (size_t)conv->w.k;
    case HUGE_WORKSPACE:
        return (size_t)1 << 30;
    case NO_WORKSPACE:
    case NOT_SUPPORTED:
        break;
    }
    return 0;
}

static cudnnStatus_t size_of(conv_kind_t kind, int number, const conv_t *conv,
                             size_t *bytes_p)
{
    const algo_t *algo = find_algo(kind, number);

    if (algo == NULL || algo->size == NOT_SUPPORTED) {
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "algorithm %d", number);
    }
    *bytes_p = workspace_of(algo, conv);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- layouts ---- */

/* Where element i, with channels last, of [n, pixels, c] lies in memory. */
static size_t place_of(const conv_t *conv, size_t i, size_t c, size_t pixels)
{
    const size_t image = i / (c * pixels), pixel = i / c % pixels;

    return conv->x.format == CUDNN_TENSOR_NHWC
               ? i
               : (image * c + i % c) * pixels + pixel;
}

/* Channels and pixels of an operand; n: its elements. */
static size_t shape_of(const conv_t *conv, char operand, size_t *c_p,
                       size_t *pixels_p)
{
    if (operand == 'w') {
        *c_p = (size_t)conv->w.c;
        *pixels_p = (size_t)conv->w.h * (size_t)conv->w.w;
        return filter_elements(&conv->w);
    }
    *c_p = (size_t)(operand == 'x' ? conv->x.c : conv->y.c);
    *pixels_p = operand == 'x' ? (size_t)conv->x.h * (size_t)conv->x.w
                               : (size_t)conv->y.h * (size_t)conv->y.w;
    return image_elements(operand == 'x' ? &conv->x : &conv->y);
}

/* An operand as floats, channels last. */
static float *load(const conv_t *conv, char operand, const void *array,
                   int is_tf32)
{
    size_t c, pixels;
    const size_t n = shape_of(conv, operand, &c, &pixels);
    float *values = dnn_floats(conv->x.type, array, n, is_tf32);
    float *turned = malloc((n + 1) * sizeof(*turned));
    size_t i;

    if (turned == NULL) {
        abort();
    }
    for (i = 0; i < n; i++) {
        turned[i] = values[place_of(conv, i, c, pixels)];
    }
    free(values);
    return turned;
}

/* ---- sums ---- */

/* Walks over the pairs of points of x and y that a point of w joins. */
typedef struct walk {
    const conv_t *conv;
    float *x, *w, *y; /* of w for FORWARD: [group][point][c][k] */
} walk_t;

static void forward_pixel(const walk_t *walk, const float *x, size_t group,
                          size_t point, float *y)
{
    const struct cudnnFilterStruct *f = &walk->conv->w;
    const size_t ks = (size_t)f->k / (size_t)walk->conv->c.groups;
    const size_t cs = (size_t)f->c;
    const float *w =
        walk->w + ((group * (size_t)(f->h * f->w) + point) * cs) * ks;
    size_t c, k;

    for (c = 0; c < cs; c++) {
        for (k = 0; k < ks; k++) {
            y[k] += x[c] * w[c * ks + k];
        }
    }
}

static void data_pixel(const walk_t *walk, float *x, size_t group, size_t point,
                       const float *y)
{
    const struct cudnnFilterStruct *f = &walk->conv->w;
    const size_t ks = (size_t)f->k / (size_t)walk->conv->c.groups;
    const size_t cs = (size_t)f->c;
    size_t c, k;

    for (k = 0; k < ks; k++) {
        const float *w =
            walk->w + ((group * ks + k) * (size_t)(f->h * f->w) + point) * cs;

        for (c = 0; c < cs; c++) {
            x[c] += y[k] * w[c];
        }
    }
}

static void filter_pixel(const walk_t *walk, const float *x, size_t group,
                         size_t point, const float *y)
{
    const struct cudnnFilterStruct *f = &walk->conv->w;
    const size_t ks = (size_t)f->k / (size_t)walk->conv->c.groups;
    const size_t cs = (size_t)f->c;
    size_t c, k;

    for (k = 0; k < ks; k++) {
        float *w =
            walk->w + ((group * ks + k) * (size_t)(f->h * f->w) + point) * cs;

        for (c = 0; c < cs; c++) {
            w[c] += y[k] * x[c];
        }
    }
}

static void walk_point(const walk_t *walk, conv_kind_t kind, size_t x_pixel,
                       size_t y_pixel, size_t point)
{
    const conv_t *conv = walk->conv;
    const size_t groups = (size_t)conv->c.groups;
    const size_t cs = (size_t)conv->w.c, ks = (size_t)conv->w.k / groups;
    size_t g;

    for (g = 0; g < groups; g++) {
        float *x = walk->x + (x_pixel * groups + g) * cs;
        float *y = walk->y + (y_pixel * groups + g) * ks;

        if (kind == FORWARD) {
            forward_pixel(walk, x, g, point, y);
        } else if (kind == BACKWARD_DATA) {
            data_pixel(walk, x, g, point, y);
        } else {
            filter_pixel(walk, x, g, point, y);
        }
    }
}

static void walk_all(const walk_t *walk, conv_kind_t kind)
{
    const conv_t *v = walk->conv;
    int n, h, w, r, s;

    for (n = 0; n < v->y.n; n++) {
        for (h = 0; h < v->y.h; h++) {
            for (w = 0; w < v->y.w; w++) {
                const size_t y_pixel = (size_t)((n * v->y.h + h) * v->y.w + w);

                for (r = 0; r < v->w.h; r++) {
                    const int i =
                        h * v->c.stride_h - v->c.pad_h + r * v->c.dilation_h;

                    for (s = 0; s < v->w.w && i >= 0 && i < v->x.h; s++) {
                        const int j = w * v->c.stride_w - v->c.pad_w +
                                      s * v->c.dilation_w;

                        if (j >= 0 && j < v->x.w) {
                            walk_point(walk, kind,
                                       (size_t)((n * v->x.h + i) * v->x.w + j),
                                       y_pixel, (size_t)(r * v->w.w + s));
                        }
                    }
                }
            }
        }
    }
}

/* [k][point][c] to [group][point][c][k of the group]. */
static float *turn_weights(const conv_t *conv, float *w)
{
    const size_t points = (size_t)(conv->w.h * conv->w.w);
    const size_t cs = (size_t)conv->w.c;
    const size_t ks = (size_t)conv->w.k / (size_t)conv->c.groups;
    float *turned = malloc(filter_elements(&conv->w) * sizeof(*turned));
    size_t k, p, c;

    if (turned == NULL) {
        abort();
    }
    for (k = 0; k < (size_t)conv->w.k; k++) {
        for (p = 0; p < points; p++) {
            for (c = 0; c < cs; c++) {
                turned[((k / ks * points + p) * cs + c) * ks + k % ks] =
                    w[(k * points + p) * cs + c];
            }
        }
    }
    free(w);
    return turned;
}

/* ---- runs ---- */

typedef struct conv_task {
    task_t task;
    conv_kind_t kind;
    conv_t conv;
    int is_unsteady;
    float alpha, beta;
    const void *a, *b; /* inputs: x w, w y, x y */
    const void *result, *workspace;
    size_t workspace_bytes;
} conv_task_t;

static float *zeros(size_t n)
{
    float *values = calloc(n + 1, sizeof(*values));

    if (values == NULL) {
        abort();
    }
    return values;
}

/* result = alpha sums + beta result; unsteady ones in the last bits differ
 * from run to run, as where the order of sums does. */
static void put_result(const conv_task_t *job, const float *sums, char operand)
{
    static unsigned n_runs;
    const cudnnDataType_t type = job->conv.x.type;
    void *to = (void *)(uintptr_t)job->result;
    float factor = job->alpha;
    size_t c, pixels, i;
    const size_t n = shape_of(&job->conv, operand, &c, &pixels);

    if (job->is_unsteady) {
        factor *=
            1.0f +
            (float)(__atomic_add_fetch(&n_runs, 1, __ATOMIC_RELAXED) % 64) *
                0x1p-20f;
    }
    for (i = 0; i < n; i++) {
        const size_t place = place_of(&job->conv, i, c, pixels);
        const float old = job->beta == 0 ? 0 : dnn_load(type, to, place);

        dnn_store(type, to, place, factor * sums[i] + job->beta * old);
    }
}

static void conv_run(task_t *task)
{
    const conv_task_t *job = (const conv_task_t *)(const void *)task;
    const conv_t *conv = &job->conv;
    const int is_tf32 =
        conv->x.type == CUDNN_DATA_FLOAT && conv->c.math != CUDNN_FMA_MATH;
    walk_t walk = {.conv = conv};

    if (job->workspace_bytes > 0) {
        memset((void *)(uintptr_t)job->workspace, 0xff, job->workspace_bytes);
    }
    walk.x = job->kind == BACKWARD_DATA ? zeros(image_elements(&conv->x))
                                        : load(conv, 'x', job->a, is_tf32);
    walk.y = job->kind == FORWARD ? zeros(image_elements(&conv->y))
                                  : load(conv, 'y', job->b, is_tf32);
    walk.w =
        job->kind == BACKWARD_FILTER
            ? zeros(filter_elements(&conv->w))
            : load(conv, 'w', job->kind == FORWARD ? job->b : job->a, is_tf32);
    if (job->kind == FORWARD) {
        walk.w = turn_weights(conv, walk.w);
    }
    walk_all(&walk, job->kind);
    if (job->kind == FORWARD) {
        put_result(job, walk.y, 'y');
    } else if (job->kind == BACKWARD_DATA) {
        put_result(job, walk.x, 'x');
    } else {
        put_result(job, walk.w, 'w');
    }
    free(walk.x);
    free(walk.y);
    free(walk.w);
}

typedef struct conv_call {
    conv_kind_t kind;
    int algo;
    const void *alpha, *beta;
    const void *a, *b;
    void *result, *workspace;
    size_t workspace_bytes;
} conv_call_t;

static size_t operand_bytes(const conv_t *conv, char operand)
{
    size_t c, pixels;

    return shape_of(conv, operand, &c, &pixels) * dnn_type_bytes(conv->x.type);
}

static cudnnStatus_t start(cudnnHandle_t handle, const conv_call_t *call,
                           const conv_t *conv, int is_late)
{
    static const char *const names[] = {"cudnnConvolutionForward",
                                        "cudnnConvolutionBackwardData",
                                        "cudnnConvolutionBackwardFilter"};
    static const char *const operands[] = {"xwy", "wyx", "xyw"};
    const algo_t *algo = find_algo(call->kind, call->algo);
    const char *roles = operands[call->kind];
    conv_task_t *job;
    dnn_use_t uses[4];
    size_t bytes = 0;
    cudnnStatus_t status = size_of(call->kind, call->algo, conv, &bytes);

    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    if (call->workspace_bytes < bytes ||
        (bytes > 0 && (uintptr_t)call->workspace % 16 != 0)) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                        "workspace of %zu bytes, %zu are needed, aligned",
                        call->workspace_bytes, bytes);
    }
    job = calloc(1, sizeof(*job));
    if (job == NULL) {
        abort();
    }
    job->task.run = conv_run;
    job->kind = call->kind;
    job->conv = *conv;
    job->is_unsteady = algo->determinism == CUDNN_NON_DETERMINISTIC;
    memcpy(&job->alpha, call->alpha, sizeof(job->alpha));
    memcpy(&job->beta, call->beta, sizeof(job->beta));
    job->workspace_bytes = bytes;
    uses[0] = (dnn_use_t){call->a, operand_bytes(conv, roles[0]), 0, &job->a};
    uses[1] = (dnn_use_t){call->b, operand_bytes(conv, roles[1]), 0, &job->b};
    uses[2] = (dnn_use_t){call->result, operand_bytes(conv, roles[2]), 1,
                          &job->result};
    uses[3] = (dnn_use_t){call->workspace, bytes, 1, &job->workspace};
    dnn_check_overlap(names[call->kind], uses, 4);
    return dnn_queue(handle, names[call->kind], &job->task, uses, 4, is_late);
}

/* ---- entry points: three of each ---- */

/* Fill the i-th of perfResults. */
#define FILL_PERF(kind, conv, perf, algo_type, i)                              \
    do {                                                                       \
        const algo_t *from = &algos[kind][i];                                  \
                                                                               \
        memset(&(perf)[i], 0, sizeof((perf)[i]));                              \
        (perf)[i].algo = (algo_type)from->algo;                                \
        (perf)[i].status = from->size == NOT_SUPPORTED                         \
                               ? CUDNN_STATUS_NOT_SUPPORTED                    \
                               : CUDNN_STATUS_SUCCESS;                         \
        (perf)[i].time = -1.0f;                                                \
        (perf)[i].memory = workspace_of(from, conv);                           \
        (perf)[i].determinism = from->determinism;                             \
        (perf)[i].mathType = (conv)->c.math;                                   \
    } while (0)

#define TRY(call)                                                              \
    do {                                                                       \
        const cudnnStatus_t try_status = (call);                               \
                                                                               \
        if (try_status != CUDNN_STATUS_SUCCESS) {                              \
            return try_status;                                                 \
        }                                                                      \
    } while (0)

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
    const cudnnFilterDescriptor_t filterDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t destDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionFwdAlgoPerf_t *perfResults)
{
    conv_t conv;
    int i;

    (void)handle;
    TRY(dnn_enter(STANDIN_cudnnGetConvolutionForwardAlgorithm_v7, 1, NULL));
    TRY(describe(srcDesc, filterDesc, convDesc, destDesc, &conv));
    for (i = 0; i < MAX_ALGOS && i < requestedAlgoCount; i++) {
        FILL_PERF(FORWARD, &conv, perfResults, cudnnConvolutionFwdAlgo_t, i);
    }
    *returnedAlgoCount = i;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc,
    const cudnnFilterDescriptor_t wDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t yDesc, cudnnConvolutionFwdAlgo_t algo,
    size_t *sizeInBytes)
{
    conv_t conv;

    (void)handle;
    TRY(dnn_enter(STANDIN_cudnnGetConvolutionForwardWorkspaceSize, 1, NULL));
    TRY(describe(xDesc, wDesc, convDesc, yDesc, &conv));
    return size_of(FORWARD, (int)algo, &conv, sizeInBytes);
}

cudnnStatus_t
cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                        const cudnnTensorDescriptor_t xDesc, const void *x,
                        const cudnnFilterDescriptor_t wDesc, const void *w,
                        const cudnnConvolutionDescriptor_t convDesc,
                        cudnnConvolutionFwdAlgo_t algo, void *workSpace,
                        size_t workSpaceSizeInBytes, const void *beta,
                        const cudnnTensorDescriptor_t yDesc, void *y)
{
    const conv_call_t call = {FORWARD, (int)algo, alpha,
                              beta,    x,         w,
                              y,       workSpace, workSpaceSizeInBytes};
    int is_late = 0;
    conv_t conv;

    TRY(dnn_enter(STANDIN_cudnnConvolutionForward, 1, &is_late));
    TRY(describe(xDesc, wDesc, convDesc, yDesc, &conv));
    return start(handle, &call, &conv, is_late);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t filterDesc,
    const cudnnTensorDescriptor_t diffDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t gradDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionBwdDataAlgoPerf_t *perfResults)
{
    conv_t conv;
    int i;

    (void)handle;
    TRY(dnn_enter(STANDIN_cudnnGetConvolutionBackwardDataAlgorithm_v7, 1,
                  NULL));
    TRY(describe(gradDesc, filterDesc, convDesc, diffDesc, &conv));
    for (i = 0; i < MAX_ALGOS && i < requestedAlgoCount; i++) {
        FILL_PERF(BACKWARD_DATA, &conv, perfResults,
                  cudnnConvolutionBwdDataAlgo_t, i);
    }
    *returnedAlgoCount = i;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t wDesc,
    const cudnnTensorDescriptor_t dyDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t dxDesc, cudnnConvolutionBwdDataAlgo_t algo,
    size_t *sizeInBytes)
{
    conv_t conv;

    (void)handle;
    TRY(dnn_enter(STANDIN_cudnnGetConvolutionBackwardDataWorkspaceSize, 1,
                  NULL));
    TRY(describe(dxDesc, wDesc, convDesc, dyDesc, &conv));
    return size_of(BACKWARD_DATA, (int)algo, &conv, sizeInBytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void *alpha,
    const cudnnFilterDescriptor_t wDesc, const void *w,
    const cudnnTensorDescriptor_t dyDesc, const void *dy,
    const cudnnConvolutionDescriptor_t convDesc,
    cudnnConvolutionBwdDataAlgo_t algo, void *workSpace,
    size_t workSpaceSizeInBytes, const void *beta,
    const cudnnTensorDescriptor_t dxDesc, void *dx)
{
    const conv_call_t call = {
        BACKWARD_DATA, (int)algo,           alpha, beta, w, dy, dx,
        workSpace,     workSpaceSizeInBytes};
    int is_late = 0;
    conv_t conv;

    TRY(dnn_enter(STANDIN_cudnnConvolutionBackwardData, 1, &is_late));
    TRY(describe(dxDesc, wDesc, convDesc, dyDesc, &conv));
    return start(handle, &call, &conv, is_late);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
    const cudnnTensorDescriptor_t diffDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnFilterDescriptor_t gradDesc, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionBwdFilterAlgoPerf_t *perfResults)
{
    conv_t conv;
    int i;

    (void)handle;
    TRY(dnn_enter(STANDIN_cudnnGetConvolutionBackwardFilterAlgorithm_v7, 1,
                  NULL));
    TRY(describe(srcDesc, gradDesc, convDesc, diffDesc, &conv));
    for (i = 0; i < MAX_ALGOS && i < requestedAlgoCount; i++) {
        FILL_PERF(BACKWARD_FILTER, &conv, perfResults,
                  cudnnConvolutionBwdFilterAlgo_t, i);
    }
    *returnedAlgoCount = i;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc,
    const cudnnTensorDescriptor_t dyDesc,
    const cudnnConvolutionDescriptor_t convDesc,
    const cudnnFilterDescriptor_t gradDesc,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *sizeInBytes)
{
    conv_t conv;

    (void)handle;
    TRY(dnn_enter(STANDIN_cudnnGetConvolutionBackwardFilterWorkspaceSize, 1,
                  NULL));
    TRY(describe(xDesc, gradDesc, convDesc, dyDesc, &conv));
    return size_of(BACKWARD_FILTER, (int)algo, &conv, sizeInBytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void *alpha,
    const cudnnTensorDescriptor_t xDesc, const void *x,
    const cudnnTensorDescriptor_t dyDesc, const void *dy,
    const cudnnConvolutionDescriptor_t convDesc,
    cudnnConvolutionBwdFilterAlgo_t algo, void *workSpace,
    size_t workSpaceSizeInBytes, const void *beta,
    const cudnnFilterDescriptor_t dwDesc, void *dw)
{
    const conv_call_t call = {
        BACKWARD_FILTER, (int)algo,           alpha, beta, x, dy, dw,
        workSpace,       workSpaceSizeInBytes};
    int is_late = 0;
    conv_t conv;

    TRY(dnn_enter(STANDIN_cudnnConvolutionBackwardFilter, 1, &is_late));
    TRY(describe(xDesc, dwDesc, convDesc, dyDesc, &conv));
    return start(handle, &call, &conv, is_late);
}
