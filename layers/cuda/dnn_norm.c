/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm by cuDNN, with the statistics of a mini-batch from those of its
 * micro-batches: with an averaging factor of 1, the running ones that a call
 * moves are the mean and the unbiased variance of what it was given. */
#include <cudnn.h>
#include <stdlib.h>

#include "layers/cuda/dnn.h"
#include "layers/cuda/dnn_images.h"
#include "layers/cuda/handles.h"

/* Offsets in a workspace; the library's own part comes first. */
typedef struct norm {
    cudnnTensorDescriptor_t image, channels;
    cudnnBatchNormMode_t mode;
    size_t forward_bytes, backward_bytes; /* of the library */
    size_t reserve_bytes;
    size_t statistics_at; /* forward: mean, variance */
    size_t reserve_at;    /* forward: where nothing is saved */
    size_t gradient_at;   /* backward: behind relu */
    size_t din_at;        /* backward: where the input's is not wanted */
    size_t dparams_at;    /* backward: where one is not wanted */
} norm_t;

static void destroy(norm_t *norm)
{
    if (norm->channels != NULL) {
        (void)cudnnDestroyTensorDescriptor(norm->channels);
    }
    if (norm->image != NULL) {
        (void)cudnnDestroyTensorDescriptor(norm->image);
    }
    free(norm);
}

static size_t channels_bytes(const sl_cuda_batch_norm_t *shape)
{
    return 2 * sizeof(float) * (size_t)shape->channels;
}

static size_t image_bytes(const sl_cuda_batch_norm_t *shape)
{
    return (size_t)(shape->batch * shape->channels * shape->pixels) *
           sl_cuda_type_bytes(shape->type);
}

/* ---- plan ---- */

/* Values of a channel are what matters; so pixels are a row. */
static sl_status_t describe(norm_t *norm, const char *name,
                            const sl_cuda_batch_norm_t *shape)
{
    const sl_cuda_dnn_image_t image = {.type = shape->type,
                                       .is_last = shape->is_last,
                                       .batch = shape->batch,
                                       .channels = shape->channels,
                                       .height = 1,
                                       .width = shape->pixels,
                                       .name = name};
    const sl_cuda_dnn_image_t channels = {.type = SL_CUDA_F32,
                                          .batch = 1,
                                          .channels = shape->channels,
                                          .height = 1,
                                          .width = 1,
                                          .name = name};
    sl_status_t status;

    SL_TRY(status, sl_cuda_dnn_image_create(&image, &norm->image), out);
    status = sl_cuda_dnn_image_create(&channels, &norm->channels);
out:
    return status;
}

/* @return what the library says: a shape or type that it has not is one that
 *         it refuses here */
static cudnnStatus_t ask_sizes(cudnnHandle_t handle, norm_t *norm)
{
    const cudnnBatchNormOps_t ops = CUDNN_BATCHNORM_OPS_BN;
    cudnnStatus_t code;

    code = cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        handle, norm->mode, ops, norm->image, NULL, norm->image, norm->channels,
        NULL, &norm->forward_bytes);
    if (code == CUDNN_STATUS_SUCCESS) {
        code = cudnnGetBatchNormalizationBackwardExWorkspaceSize(
            handle, norm->mode, ops, norm->image, NULL, norm->image, NULL,
            norm->image, norm->channels, NULL, &norm->backward_bytes);
    }
    if (code == CUDNN_STATUS_SUCCESS) {
        code = cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
            handle, norm->mode, ops, NULL, norm->image, &norm->reserve_bytes);
    }
    return code;
}

/* Persistent kernels, which read once what fits, are for channels last. */
static sl_status_t choose(norm_t *norm, int is_last, int *is_there_p)
{
    struct cudnnContext *handle = NULL;
    cudnnStatus_t code;
    sl_status_t status;

    norm->mode =
        is_last ? CUDNN_BATCHNORM_SPATIAL_PERSISTENT : CUDNN_BATCHNORM_SPATIAL;
    SL_TRY(status, sl_cuda_dnn_borrow(&handle), out);
    code = ask_sizes(handle, norm);
    *is_there_p = CUDNN_STATUS_CATEGORY(code) != CUDNN_STATUS_NOT_SUPPORTED;
    if (*is_there_p) {
        status = sl_cuda_dnn_status(
            (int)code, "cudnnGetBatchNormalization*ExSize", __FILE__, __LINE__);
    }
    sl_cuda_dnn_give_back();
out:
    return status;
}

static size_t place(size_t *end_p, size_t bytes)
{
    const size_t at = *end_p;

    *end_p += sl_cuda_round_bytes(bytes);
    return at;
}

static void place_all(sl_layer_plan_t *plan, norm_t *norm,
                      const sl_cuda_batch_norm_t *shape)
{
    size_t forward = sl_cuda_round_bytes(norm->forward_bytes);
    size_t backward = sl_cuda_round_bytes(norm->backward_bytes);

    norm->statistics_at = place(&forward, channels_bytes(shape));
    norm->reserve_at = place(&forward, norm->reserve_bytes);
    norm->gradient_at =
        place(&backward, shape->is_relu ? image_bytes(shape) : 0);
    norm->din_at = place(&backward, image_bytes(shape));
    norm->dparams_at = place(&backward, channels_bytes(shape));
    plan->forward_workspace_bytes = forward;
    plan->backward_workspace_bytes = backward;
    plan->saved_bytes =
        sl_cuda_round_bytes(channels_bytes(shape)) + norm->reserve_bytes;
    plan->keeps_input[0] = 1;
    plan->keeps_output = shape->is_relu;
    if (shape->has_skip) {
        plan->accumulates = 1 << 1;
        plan->passes_gradient = shape->is_relu ? 0 : 1 << 1;
    }
}

sl_status_t sl_cuda_dnn_norm_plan(sl_layer_plan_t *plan,
                                  const sl_cuda_batch_norm_t *shape)
{
    norm_t *norm;
    int is_there = 0;
    sl_status_t status;

    if (!plan->is_training || shape->batch * shape->pixels < 2) {
        return SL_OK; /* one value has no unbiased variance */
    }
    norm = calloc(1, sizeof(*norm));
    if (norm == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "layer %s: no host memory",
                plan->layer->name);
    }
    SL_TRY(status, describe(norm, plan->layer->name, shape), err_destroy);
    SL_TRY(status, choose(norm, shape->is_last, &is_there), err_destroy);
    if (is_there) {
        place_all(plan, norm, shape);
        plan->kernel = norm;
        return SL_OK;
    }
err_destroy:
    destroy(norm);
out:
    return status;
}

void sl_cuda_dnn_norm_release(sl_layer_plan_t *plan)
{
    if (plan->kernel != NULL) {
        destroy(plan->kernel);
        plan->kernel = NULL;
    }
}

/* ---- run ---- */

static void *at(const sl_layer_run_t *run, size_t offset)
{
    return (char *)run->workspace + offset;
}

/* out = relu(out + skip), as far as there is any of it. */
static sl_status_t finish_forward(const sl_cuda_batch_norm_t *norm, void *queue)
{
    const int64_t n = norm->batch * norm->channels * norm->pixels;

    if (norm->has_skip) {
        const sl_cuda_add_t add = {.type = norm->type,
                                   .n = n,
                                   .n_inputs = 2,
                                   .is_relu = norm->is_relu,
                                   .in = {norm->out, norm->skip},
                                   .out = norm->out};

        return sl_cuda_add_forward(&add, queue);
    }
    if (norm->is_relu) {
        const sl_cuda_activation_t relu = {
            .type = norm->type, .n = n, .in = norm->out, .out = norm->out};

        return sl_cuda_relu_forward(&relu, queue);
    }
    return SL_OK;
}

sl_status_t sl_cuda_dnn_norm_forward(const sl_layer_run_t *run,
                                     const sl_cuda_batch_norm_t *norm,
                                     void *stream)
{
    const norm_t *k = run->plan->kernel;
    const size_t saved_bytes = sl_cuda_round_bytes(channels_bytes(norm));
    float *mean = at(run, k->statistics_at);
    float *saved = norm->saved;
    void *reserve = saved == NULL ? at(run, k->reserve_at)
                                  : (void *)((char *)saved + saved_bytes);
    const float one = 1.0f, zero = 0.0f;
    struct cudnnContext *handle = NULL;
    sl_status_t status;

    SL_TRY(status, sl_cuda_dnn(stream, &handle), out);
    SL_TRY(
        status,
        SL_DNN(cudnnBatchNormalizationForwardTrainingEx(
            handle, k->mode, CUDNN_BATCHNORM_OPS_BN, &one, &zero, k->image,
            norm->in, NULL, NULL, k->image, norm->out, k->channels,
            norm->weight, norm->bias, 1.0, mean, mean + norm->channels,
            norm->eps, saved, saved == NULL ? NULL : saved + norm->channels,
            NULL, run->workspace, k->forward_bytes, reserve, k->reserve_bytes)),
        out);
    if (norm->sums != NULL) {
        SL_TRY(status,
               sl_cuda_batch_norm_add_moments(norm, mean, mean + norm->channels,
                                              sl_cuda_queue(stream)),
               out);
    }
    status = finish_forward(norm, sl_cuda_queue(stream));
out:
    return status;
}

/* The gradient of what cuDNN gave, behind relu, and the skip connection's. */
static sl_status_t begin_backward(const sl_layer_run_t *run,
                                  const sl_cuda_batch_norm_t *norm, void *queue,
                                  const void **gradient_p)
{
    const norm_t *k = run->plan->kernel;
    sl_cuda_add_t add = {.type = norm->type,
                         .n = norm->batch * norm->channels * norm->pixels,
                         .n_inputs = 2,
                         .is_relu = norm->is_relu,
                         .out = norm->out,
                         .dout = norm->dout,
                         .prev = {NULL, norm->prev[1]},
                         .din = {NULL, norm->din[1]}};

    *gradient_p = norm->dout;
    if (norm->is_relu) {
        add.din[0] = at(run, k->gradient_at);
        *gradient_p = add.din[0];
    }
    return add.din[0] == NULL && add.din[1] == NULL
               ? SL_OK
               : sl_cuda_add_backward(&add, queue);
}

sl_status_t sl_cuda_dnn_norm_backward(const sl_layer_run_t *run,
                                      const sl_cuda_batch_norm_t *norm,
                                      void *stream)
{
    const norm_t *k = run->plan->kernel;
    float *spare = at(run, k->dparams_at);
    float *saved = norm->saved;
    const float one = 1.0f, zero = 0.0f;
    const float is_added = norm->is_first_backward ? 0.0f : 1.0f;
    struct cudnnContext *handle = NULL;
    const void *gradient;
    sl_status_t status;

    SL_TRY(status, begin_backward(run, norm, sl_cuda_queue(stream), &gradient),
           out);
    SL_TRY(status, sl_cuda_dnn(stream, &handle), out);
    status = SL_DNN(cudnnBatchNormalizationBackwardEx(
        handle, k->mode, CUDNN_BATCHNORM_OPS_BN, &one, &zero, &one, &is_added,
        k->image, norm->in, NULL, NULL, k->image, gradient, NULL, NULL,
        k->image, norm->din[0] != NULL ? norm->din[0] : at(run, k->din_at),
        k->channels, norm->weight, NULL,
        norm->dweight != NULL ? norm->dweight : spare,
        norm->dbias != NULL ? norm->dbias : spare + norm->channels, norm->eps,
        saved, saved + norm->channels, NULL, run->workspace, k->backward_bytes,
        (char *)saved + sl_cuda_round_bytes(channels_bytes(norm)),
        k->reserve_bytes));
out:
    return status;
}
