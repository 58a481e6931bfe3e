/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d on cuDNN. The images that it works on have their channels last and
 * the type of the output; an input that is otherwise (the batch's data) goes
 * through the workspace, and so does its gradient. Weights are stored as
 * [out, height, width, in / groups] in fp32; for 16-bit types a copy of them
 * is made for each run, and their gradient, which cuDNN gives in the type of
 * the images, is added up in fp32. A convolution that cuDNN has for plain
 * images only works on plain copies of everything. */
#include <stdlib.h>
#include <string.h>

#include "layers/cuda/dnn.h"
#include "layers/cuda/images.h"

/* Offsets in the workspace are multiples of this. */
#define ALIGN_UP(bytes) (((bytes) + 255) & ~(size_t)255)

typedef struct conv_kernel {
    sl_cuda_conv_t *conv;
    sl_cuda_type_t type;
    int is_plain; /* cuDNN works on plain images */
    /* whether it works on copies: of the input, the output, the weights */
    int is_in_moved, is_out_moved, is_cast;
    /* in the workspace: each or its gradient; what a library call or the sums
     * of the bias need, one at a time */
    size_t in_at, out_at, weights_at, scratch_at;
} conv_kernel_t;

static size_t max_bytes(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int64_t kernel_width(const sl_conv2d_attrs_t *attrs)
{
    return attrs->kernel_w == 0 ? attrs->kernel : attrs->kernel_w;
}

/* Pixels of the output, over the batch. */
static int64_t out_rows(const sl_tensor_desc_t *out)
{
    return sl_tensor_elements(out) / out->dims[1];
}

static int has_bias(const sl_layer_t *layer)
{
    return layer->n_params > SL_CONV_BIAS;
}

/* ---- plan ---- */

/* The data has no gradient. */
static int passes_of(const sl_layer_plan_t *plan)
{
    int passes = 1 << SL_CUDA_CONV_FORWARD;

    if (plan->is_training) {
        passes |= 1 << SL_CUDA_CONV_BACKWARD_WEIGHTS;
        if (plan->layer->inputs[0] != SL_INPUT_DATA) {
            passes |= 1 << SL_CUDA_CONV_BACKWARD_DATA;
        }
    }
    return passes;
}

static size_t workspace_limit(const sl_layer_t *layer)
{
    const uint64_t bytes = layer->dnn.workspace_bytes;

    return bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX;
}

static sl_status_t make_conv(const sl_layer_plan_t *plan, int is_plain,
                             sl_cuda_conv_t **conv_p)
{
    const sl_conv2d_attrs_t *attrs = plan->layer->attrs;
    const sl_tensor_desc_t *in = &plan->in[0], *out = &plan->out;
    const sl_cuda_conv_params_t params = {.type = sl_cuda_type_of(out),
                                          .is_tf32 = plan->layer->is_tf32,
                                          .batch = in->dims[0],
                                          .in_channels = in->dims[1],
                                          .in_height = in->dims[2],
                                          .in_width = in->dims[3],
                                          .out_channels = out->dims[1],
                                          .out_height = out->dims[2],
                                          .out_width = out->dims[3],
                                          .kernel_height = attrs->kernel,
                                          .kernel_width = kernel_width(attrs),
                                          .stride = attrs->stride,
                                          .pad = attrs->pad,
                                          .dilation = attrs->dilation,
                                          .groups = attrs->groups,
                                          .workspace_bytes =
                                              workspace_limit(plan->layer),
                                          .is_plain = is_plain,
                                          .passes = passes_of(plan),
                                          .is_optional = !is_plain,
                                          .name = plan->layer->name};

    return sl_cuda_conv_create(&params, conv_p);
}

/* What the two passes of backward need after the images and weights. */
static size_t backward_scratch_bytes(const sl_layer_plan_t *plan,
                                     const conv_kernel_t *k)
{
    size_t bytes = max_bytes(
        sl_cuda_conv_workspace_bytes(k->conv, SL_CUDA_CONV_BACKWARD_DATA),
        sl_cuda_conv_workspace_bytes(k->conv, SL_CUDA_CONV_BACKWARD_WEIGHTS));

    if (has_bias(plan->layer)) {
        bytes = max_bytes(bytes, sl_cuda_bias_workspace_bytes(
                                     out_rows(&plan->out), plan->out.dims[1]));
    }
    return bytes;
}

static void place(sl_layer_plan_t *plan, conv_kernel_t *k)
{
    const sl_tensor_desc_t *weight = &plan->layer->params[SL_CONV_WEIGHT].desc;
    const size_t size = sl_cuda_type_bytes(k->type);
    size_t bytes = 0;

    k->in_at = bytes;
    if (k->is_in_moved) {
        bytes += ALIGN_UP((size_t)sl_tensor_elements(&plan->in[0]) * size);
    }
    k->out_at = bytes;
    if (k->is_out_moved) {
        bytes += ALIGN_UP((size_t)sl_tensor_elements(&plan->out) * size);
    }
    k->weights_at = bytes;
    if (k->is_cast) {
        bytes += ALIGN_UP((size_t)sl_tensor_elements(weight) * size);
    }
    k->scratch_at = bytes;
    plan->forward_workspace_bytes =
        bytes + sl_cuda_conv_workspace_bytes(k->conv, SL_CUDA_CONV_FORWARD);
    if (plan->is_training) {
        plan->backward_workspace_bytes =
            bytes + backward_scratch_bytes(plan, k);
        plan->keeps_input[0] = 1;
        plan->accumulates = 1;
    }
}

static void plan_release(sl_layer_plan_t *plan)
{
    conv_kernel_t *k = plan->kernel;

    if (k != NULL) {
        sl_cuda_conv_destroy(k->conv);
        free(k);
        plan->kernel = NULL;
    }
}

static sl_status_t plan_conv(sl_layer_plan_t *plan)
{
    conv_kernel_t *k = calloc(1, sizeof(*k));
    sl_status_t status;

    if (k == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "layer %s: no host memory",
                plan->layer->name);
    }
    status = make_conv(plan, 0, &k->conv);
    if (status == SL_ERR_UNSUPPORTED) {
        k->is_plain = 1;
        status = make_conv(plan, 1, &k->conv);
    }
    SL_TRY(status, status, err_free);
    k->type = sl_cuda_type_of(&plan->out);
    k->is_in_moved = sl_cuda_image_is_last(&plan->in[0]) == k->is_plain ||
                     plan->in[0].dtype != plan->out.dtype;
    k->is_out_moved = k->is_plain;
    k->is_cast = k->is_plain || k->type != SL_CUDA_F32;
    place(plan, k);
    plan->kernel = k;
    return SL_OK;

err_free:
    free(k);
out:
    return status;
}

/* ---- run ---- */

/* All of an image, between itself and what cuDNN works on. */
static sl_cuda_move_t image_move(const conv_kernel_t *k,
                                 const sl_tensor_desc_t *desc,
                                 sl_cuda_side_t *image_p,
                                 sl_cuda_side_t *work_p)
{
    sl_cuda_move_t move = {.batch = desc->dims[0], .n_channels = desc->dims[1]};

    move.pixels = desc->dims[2] * desc->dims[3];
    *image_p = sl_cuda_image_side(desc);
    *work_p = *image_p;
    work_p->type = k->type;
    work_p->is_last = !k->is_plain;
    return move;
}

/* An image as cuDNN works on it: itself, or its copy at `to`. */
static sl_status_t get_image(const conv_kernel_t *k,
                             const sl_tensor_desc_t *desc, int is_moved,
                             const void *image, void *to, void *queue,
                             const void **work_p)
{
    sl_cuda_side_t side, work;
    sl_cuda_move_t move = image_move(k, desc, &side, &work);

    *work_p = is_moved ? to : image;
    if (!is_moved) {
        return SL_OK;
    }
    move.from_side = side;
    move.from = image;
    move.to_side = work;
    move.to = to;
    return sl_cuda_move(&move, queue);
}

/* The way back, of the output or the input's gradient (+ prev). */
static sl_status_t put_image(const conv_kernel_t *k,
                             const sl_tensor_desc_t *desc, const void *work_at,
                             const void *prev, void *image, void *queue)
{
    sl_cuda_side_t side, work;
    sl_cuda_move_t move = image_move(k, desc, &side, &work);

    move.from_side = work;
    move.from = work_at;
    move.to_side = side;
    move.prev = prev;
    move.to = image;
    return sl_cuda_move(&move, queue);
}

/* An address in the workspace. */
static void *at(const sl_layer_run_t *run, size_t offset)
{
    return (char *)run->workspace + offset;
}

/* All of the weights, between storage and what cuDNN works on: they are images
 * of as many samples as there are kernels. */
static sl_cuda_move_t weights_move(const sl_layer_run_t *run,
                                   sl_cuda_side_t *stored_p,
                                   sl_cuda_side_t *work_p)
{
    const conv_kernel_t *k = run->plan->kernel;
    const int64_t *dims = run->plan->layer->params[SL_CONV_WEIGHT].desc.dims;
    sl_cuda_move_t move = {.batch = dims[0], .n_channels = dims[1]};

    move.pixels = dims[2] * dims[3];
    *stored_p = (sl_cuda_side_t){
        .type = SL_CUDA_F32, .is_last = 1, .channels = dims[1]};
    *work_p = *stored_p;
    work_p->type = k->type;
    work_p->is_last = !k->is_plain;
    return move;
}

static sl_status_t get_weights(const sl_layer_run_t *run, void *queue,
                               const void **w_p)
{
    const conv_kernel_t *k = run->plan->kernel;
    sl_cuda_side_t stored, work;
    sl_cuda_move_t move = weights_move(run, &stored, &work);

    *w_p = k->is_cast ? at(run, k->weights_at) : run->param[SL_CONV_WEIGHT];
    if (!k->is_cast) {
        return SL_OK;
    }
    if (!k->is_plain) {
        const sl_cuda_cast_t cast = {.to_type = k->type,
                                     .from_type = SL_CUDA_F32,
                                     .to = at(run, k->weights_at),
                                     .from = run->param[SL_CONV_WEIGHT],
                                     .n = move.batch * move.n_channels *
                                          move.pixels};

        return sl_cuda_cast(&cast, queue);
    }
    move.from_side = stored;
    move.from = run->param[SL_CONV_WEIGHT];
    move.to_side = work;
    move.to = at(run, k->weights_at);
    return sl_cuda_move(&move, queue);
}

/* A bias of the output, without addresses. */
static sl_cuda_bias_t bias_of(const sl_layer_run_t *run)
{
    const sl_tensor_desc_t *out = &run->plan->out;
    sl_cuda_bias_t bias = {.type = sl_cuda_type_of(out)};

    bias.rows = out_rows(out);
    bias.channels = out->dims[1];
    return bias;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const conv_kernel_t *k = run->plan->kernel;
    void *queue = sl_cuda_queue(stream);
    sl_cuda_conv_args_t args = {.result = k->is_out_moved ? at(run, k->out_at)
                                                          : run->out,
                                .workspace = at(run, k->scratch_at)};
    sl_cuda_bias_t bias = bias_of(run);
    sl_status_t status;

    SL_TRY(status,
           get_image(k, &run->plan->in[0], k->is_in_moved, run->in[0],
                     at(run, k->in_at), queue, &args.x),
           out);
    SL_TRY(status, get_weights(run, queue, &args.w), out);
    SL_TRY(status,
           sl_cuda_conv_run(k->conv, SL_CUDA_CONV_FORWARD, &args, stream), out);
    if (k->is_out_moved) {
        SL_TRY(
            status,
            put_image(k, &run->plan->out, args.result, NULL, run->out, queue),
            out);
    }
    if (has_bias(run->plan->layer)) {
        bias.bias = run->param[SL_CONV_BIAS];
        bias.out = run->out;
        status = sl_cuda_bias_add(&bias, queue);
    }
out:
    return status;
}

/* grad = what cuDNN left in the workspace (+ grad). */
static sl_status_t put_weight_gradient(const sl_layer_run_t *run, void *queue)
{
    const conv_kernel_t *k = run->plan->kernel;
    sl_cuda_side_t stored, work;
    sl_cuda_move_t move = weights_move(run, &stored, &work);

    move.from_side = work;
    move.from = at(run, k->weights_at);
    move.to_side = stored;
    move.to = run->grad[SL_CONV_WEIGHT];
    move.prev = run->step.is_first_backward ? NULL : move.to;
    return sl_cuda_move(&move, queue);
}

static sl_status_t backward_weights(const sl_layer_run_t *run, const void *dout,
                                    sl_cuda_stream_t *stream)
{
    const conv_kernel_t *k = run->plan->kernel;
    sl_cuda_conv_args_t args = {.y = dout,
                                .result = run->grad[SL_CONV_WEIGHT],
                                .is_added = !run->step.is_first_backward,
                                .workspace = at(run, k->scratch_at)};
    sl_status_t status;

    if (k->is_cast) {
        args.result = at(run, k->weights_at);
        args.is_added = 0;
    }
    SL_TRY(status,
           get_image(k, &run->plan->in[0], k->is_in_moved, run->in[0],
                     at(run, k->in_at), stream->queue, &args.x),
           out);
    SL_TRY(
        status,
        sl_cuda_conv_run(k->conv, SL_CUDA_CONV_BACKWARD_WEIGHTS, &args, stream),
        out);
    if (k->is_cast) {
        status = put_weight_gradient(run, stream->queue);
    }
out:
    return status;
}

static sl_status_t backward_bias(const sl_layer_run_t *run, void *queue)
{
    const conv_kernel_t *k = run->plan->kernel;
    sl_cuda_bias_t bias = bias_of(run);

    bias.dout = run->dout;
    bias.dbias = run->grad[SL_CONV_BIAS];
    bias.is_first = run->step.is_first_backward;
    bias.workspace = at(run, k->scratch_at);
    return sl_cuda_bias_gradient(&bias, queue);
}

static sl_status_t backward_data(const sl_layer_run_t *run, const void *dout,
                                 sl_cuda_stream_t *stream)
{
    const conv_kernel_t *k = run->plan->kernel;
    const sl_tensor_desc_t *in = &run->plan->in[0];
    const void *prev = run->din_prev[0];
    sl_cuda_conv_args_t args = {.y = dout,
                                .result = run->din[0],
                                .is_added = prev != NULL,
                                .workspace = at(run, k->scratch_at)};
    sl_status_t status;

    SL_ASSERT(run->plan->layer->inputs[0] != SL_INPUT_DATA);
    SL_TRY(status, get_weights(run, stream->queue, &args.w), out);
    if (k->is_in_moved) {
        args.result = at(run, k->in_at);
        args.is_added = 0;
    } else if (prev != NULL && prev != run->din[0]) {
        SL_TRY(
            status,
            sl_cuda_copy(run->din[0], prev, sl_tensor_bytes(in), stream->queue),
            out);
    }
    SL_TRY(status,
           sl_cuda_conv_run(k->conv, SL_CUDA_CONV_BACKWARD_DATA, &args, stream),
           out);
    if (k->is_in_moved) {
        status =
            put_image(k, in, args.result, prev, run->din[0], stream->queue);
    }
out:
    return status;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const conv_kernel_t *k = run->plan->kernel;
    const void *dout = NULL;
    sl_status_t status;

    SL_TRY(status,
           get_image(k, &run->plan->out, k->is_out_moved, run->dout,
                     at(run, k->out_at), sl_cuda_queue(stream), &dout),
           out);
    if (run->grad[SL_CONV_WEIGHT] != NULL) {
        SL_TRY(status, backward_weights(run, dout, stream), out);
    }
    if (has_bias(run->plan->layer) && run->grad[SL_CONV_BIAS] != NULL) {
        SL_TRY(status, backward_bias(run, sl_cuda_queue(stream)), out);
    }
    if (run->din[0] != NULL) {
        status = backward_data(run, dout, stream);
    }
out:
    return status;
}

/* ---- storage ---- */

/* Each element's plain and stored place. */
static void convert_weights(const sl_layer_t *layer, int is_pack,
                            const float *from, float *to)
{
    const int64_t *dims = layer->params[SL_CONV_WEIGHT].desc.dims;
    const int64_t channels = dims[1], points = dims[2] * dims[3];
    int64_t o, c, i;

    for (o = 0; o < dims[0]; o++) {
        for (c = 0; c < channels; c++) {
            for (i = 0; i < points; i++) {
                const int64_t plain = (o * channels + c) * points + i;
                const int64_t stored = (o * points + i) * channels + c;

                to[is_pack ? stored : plain] = from[is_pack ? plain : stored];
            }
        }
    }
}

static sl_status_t param_pack(const sl_layer_t *layer, int param,
                              const float *plain, void *storage)
{
    if (param == SL_CONV_WEIGHT) {
        convert_weights(layer, 1, plain, storage);
    } else {
        memcpy(storage, plain, layer->params[param].storage_bytes);
    }
    return SL_OK;
}

static sl_status_t param_unpack(const sl_layer_t *layer, int param,
                                const void *storage, float *plain)
{
    if (param == SL_CONV_WEIGHT) {
        convert_weights(layer, 0, storage, plain);
    } else {
        memcpy(plain, storage, layer->params[param].storage_bytes);
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cuda_layer_conv2d = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan_conv,
    .plan_release = plan_release,
    .forward = forward,
    .backward = backward,
    .param_pack = param_pack,
    .param_unpack = param_unpack,
};
