/* SPDX-License-Identifier: Apache-2.0 */
/* Pools, in float. */
#define SL_STANDIN_INSIDE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

typedef struct pool_task {
    task_t task; /* first */
    struct cudnnPoolingStruct pool;
    struct cudnnTensorStruct x, y;
    int is_backward;
    float alpha, beta;
    const void *in, *dout, *result;
} pool_task_t;

/* ---- descriptors ---- */

cudnnStatus_t
cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t *poolingDesc)
{
    DNN_ENTER(cudnnCreatePoolingDescriptor);
    *poolingDesc = dnn_make(sizeof(**poolingDesc));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t
cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t poolingDesc)
{
    const cudnnStatus_t early =
        dnn_enter(STANDIN_cudnnDestroyPoolingDescriptor, 0, NULL);

    dnn_free(poolingDesc);
    return early;
}

cudnnStatus_t cudnnSetPooling2dDescriptor(
    cudnnPoolingDescriptor_t poolingDesc, cudnnPoolingMode_t mode,
    cudnnNanPropagation_t maxpoolingNanOpt, int windowHeight, int windowWidth,
    int verticalPadding, int horizontalPadding, int verticalStride,
    int horizontalStride)
{
    DNN_ENTER(cudnnSetPooling2dDescriptor);
    if (windowHeight < 1 || windowWidth < 1 || verticalPadding < 0 ||
        horizontalPadding < 0 || verticalPadding >= windowHeight ||
        horizontalPadding >= windowWidth || verticalStride < 1 ||
        horizontalStride < 1 || maxpoolingNanOpt != CUDNN_PROPAGATE_NAN) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "pool of %d x %d", windowHeight,
                        windowWidth);
    }
    *poolingDesc = (struct cudnnPoolingStruct){1,
                                               mode,
                                               windowHeight,
                                               windowWidth,
                                               verticalPadding,
                                               horizontalPadding,
                                               verticalStride,
                                               horizontalStride};
    return CUDNN_STATUS_SUCCESS;
}

static int out_size(int in, int window, int pad, int stride)
{
    return (in + 2 * pad - window) / stride + 1;
}

static cudnnStatus_t check(const cudnnPoolingDescriptor_t pool,
                           const cudnnTensorDescriptor_t x,
                           const cudnnTensorDescriptor_t y)
{
    if (pool == NULL || x == NULL || y == NULL || !pool->is_set || !x->is_set ||
        !y->is_set) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                        "a descriptor is not set");
    }
    if (x->type != y->type || x->format != y->format || x->n != y->n ||
        x->c != y->c ||
        y->h != out_size(x->h, pool->window_h, pool->pad_h, pool->stride_h) ||
        y->w != out_size(x->w, pool->window_w, pool->pad_w, pool->stride_w)) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                        "the shapes do not fit");
    }
    if (dnn_is_refused(x->type, x->format)) {
        return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "layout or type");
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- numbers ---- */

/* A window of one channel of one image. */
typedef struct window {
    int n, c, h0, h1, w0, w1; /* inside the image */
    int n_points;             /* that an average counts */
    int best_h, best_w;       /* of a max */
} window_t;

static int is_max(const pool_task_t *job)
{
    return job->pool.mode == CUDNN_POOLING_MAX ||
           job->pool.mode == CUDNN_POOLING_MAX_DETERMINISTIC;
}

static float x_at(const pool_task_t *job, int n, int c, int h, int w)
{
    return dnn_load(job->x.type, job->in, dnn_image_place(&job->x, n, c, h, w));
}

static void place_window(const pool_task_t *job, int h, int w, window_t *win)
{
    const int top = h * job->pool.stride_h - job->pool.pad_h;
    const int left = w * job->pool.stride_w - job->pool.pad_w;
    const int bottom = top + job->pool.window_h;
    const int right = left + job->pool.window_w;

    win->h0 = top < 0 ? 0 : top;
    win->w0 = left < 0 ? 0 : left;
    win->h1 = bottom < job->x.h ? bottom : job->x.h;
    win->w1 = right < job->x.w ? right : job->x.w;
    win->n_points =
        job->pool.mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING
            ? job->pool.window_h * job->pool.window_w
            : (win->h1 - win->h0) * (win->w1 - win->w0);
}

/* The largest or the mean; the last of equal values. */
static float value_of(const pool_task_t *job, window_t *win)
{
    float best = -INFINITY, sum = 0;
    int h, w;

    win->best_h = win->h0;
    win->best_w = win->w0;
    for (h = win->h0; h < win->h1; h++) {
        for (w = win->w0; w < win->w1; w++) {
            const float x = x_at(job, win->n, win->c, h, w);

            sum += x;
            if (!isnan(best) && (x >= best || isnan(x))) {
                best = x;
                win->best_h = h;
                win->best_w = w;
            }
        }
    }
    return is_max(job) ? best : sum / (float)win->n_points;
}

static void spread(const pool_task_t *job, const window_t *win, float g,
                   float *dx)
{
    int h, w;

    if (is_max(job)) {
        dx[dnn_image_place(&job->x, win->n, win->c, win->best_h,
                           win->best_w)] += g;
        return;
    }
    for (h = win->h0; h < win->h1; h++) {
        for (w = win->w0; w < win->w1; w++) {
            dx[dnn_image_place(&job->x, win->n, win->c, h, w)] +=
                g / (float)win->n_points;
        }
    }
}

static void put(const pool_task_t *job, const struct cudnnTensorStruct *image,
                size_t i, float value)
{
    void *to = (void *)(uintptr_t)job->result;

    value *= job->alpha;
    if (job->beta != 0.0f) {
        value += job->beta * dnn_load(image->type, to, i);
    }
    dnn_store(image->type, to, i, value);
}

static void walk(const pool_task_t *job, float *dx)
{
    window_t win;
    int h, w;

    for (win.n = 0; win.n < job->y.n; win.n++) {
        for (win.c = 0; win.c < job->y.c; win.c++) {
            for (h = 0; h < job->y.h; h++) {
                for (w = 0; w < job->y.w; w++) {
                    const size_t i =
                        dnn_image_place(&job->y, win.n, win.c, h, w);

                    place_window(job, h, w, &win);
                    if (!job->is_backward) {
                        put(job, &job->y, i, value_of(job, &win));
                        continue;
                    }
                    if (is_max(job)) {
                        (void)value_of(job, &win);
                    }
                    spread(job, &win, dnn_load(job->y.type, job->dout, i), dx);
                }
            }
        }
    }
}

static void pool_run(task_t *task)
{
    const pool_task_t *job = (const pool_task_t *)(const void *)task;
    const size_t n = dnn_image_bytes(&job->x) / dnn_type_bytes(job->x.type);
    float *dx;
    size_t i;

    if (!job->is_backward) {
        walk(job, NULL);
        return;
    }
    dx = calloc(n, sizeof(*dx));
    if (dx == NULL) {
        abort();
    }
    walk(job, dx);
    for (i = 0; i < n; i++) {
        put(job, &job->x, i, dx[i]);
    }
    free(dx);
}

/* ---- calls ---- */

static pool_task_t *make(const cudnnPoolingDescriptor_t pool,
                         const cudnnTensorDescriptor_t x,
                         const cudnnTensorDescriptor_t y, const void *alpha,
                         const void *beta)
{
    pool_task_t *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        abort();
    }
    job->task.run = pool_run;
    job->pool = *pool;
    job->x = *x;
    job->y = *y;
    memcpy(&job->alpha, alpha, sizeof(job->alpha));
    memcpy(&job->beta, beta, sizeof(job->beta));
    return job;
}

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle,
                                  const cudnnPoolingDescriptor_t poolingDesc,
                                  const void *alpha,
                                  const cudnnTensorDescriptor_t xDesc,
                                  const void *x, const void *beta,
                                  const cudnnTensorDescriptor_t yDesc, void *y)
{
    int is_late = 0;
    cudnnStatus_t status = dnn_enter(STANDIN_cudnnPoolingForward, 1, &is_late);
    pool_task_t *job;
    dnn_use_t uses[2];

    if (status == CUDNN_STATUS_SUCCESS) {
        status = check(poolingDesc, xDesc, yDesc);
    }
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    job = make(poolingDesc, xDesc, yDesc, alpha, beta);
    uses[0] = (dnn_use_t){x, dnn_image_bytes(xDesc), 0, &job->in};
    uses[1] = (dnn_use_t){y, dnn_image_bytes(yDesc), 1, &job->result};
    dnn_check_overlap("cudnnPoolingForward", uses, 2);
    return dnn_queue(handle, "cudnnPoolingForward", &job->task, uses, 2,
                     is_late);
}

/* An average reads dy alone, but wants all addresses. */
cudnnStatus_t cudnnPoolingBackward(
    cudnnHandle_t handle, const cudnnPoolingDescriptor_t poolingDesc,
    const void *alpha, const cudnnTensorDescriptor_t yDesc, const void *y,
    const cudnnTensorDescriptor_t dyDesc, const void *dy,
    const cudnnTensorDescriptor_t xDesc, const void *x, const void *beta,
    const cudnnTensorDescriptor_t dxDesc, void *dx)
{
    int is_late = 0;
    cudnnStatus_t status = dnn_enter(STANDIN_cudnnPoolingBackward, 1, &is_late);
    const void *y_alias;
    pool_task_t *job;
    dnn_use_t uses[4];
    int n = 0;

    if (status == CUDNN_STATUS_SUCCESS) {
        status = check(poolingDesc, xDesc, yDesc);
    }
    if (status == CUDNN_STATUS_SUCCESS) {
        status = check(poolingDesc, dxDesc, dyDesc);
    }
    if (status == CUDNN_STATUS_SUCCESS &&
        (x == NULL || y == NULL || dx == NULL || dy == NULL)) {
        status = dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an array");
    }
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    job = make(poolingDesc, xDesc, yDesc, alpha, beta);
    job->is_backward = 1;
    uses[n++] = (dnn_use_t){dy, dnn_image_bytes(dyDesc), 0, &job->dout};
    uses[n++] = (dnn_use_t){dx, dnn_image_bytes(dxDesc), 1, &job->result};
    if (is_max(job)) {
        uses[n++] = (dnn_use_t){x, dnn_image_bytes(xDesc), 0, &job->in};
        uses[n++] = (dnn_use_t){y, dnn_image_bytes(yDesc), 0, &y_alias};
    }
    dnn_check_overlap("cudnnPoolingBackward", uses, n);
    return dnn_queue(handle, "cudnnPoolingBackward", &job->task, uses, n,
                     is_late);
}
