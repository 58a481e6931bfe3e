/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d on oneDNN. Each pass runs on the first of these layouts that has
 * fast code: as the tensors come; blocked; plain (matrix products). Tensors
 * in another layout go through the workspace. The weights' storage is what
 * the forward pass of one sample on one thread likes best: a function of
 * layer and machine only. */
#include <stdlib.h>
#include <string.h>

#include "layers/cpu/cpu_kernels.h"
#include "layers/cpu/dnnl.h"
#include "layers/image_internal.h"

enum {
    X,
    WEIGHTS,
    Y,
    N_TENSORS,
    NOT_USED = 0
};

/* Offsets in the workspace are multiples of a cache line. */
#define ALIGN_UP(bytes) (((bytes) + 63) & ~(size_t)63)

typedef struct conv_pass {
    sl_dnnl_op_t *op;
    sl_dnnl_op_t *reorder[N_TENSORS]; /* NULL: the tensor is used as it is */
    size_t at[N_TENSORS];             /* the reordered tensor, in workspace */
    size_t sum_at;     /* weight gradient in storage layout, to be added */
    size_t bias_at;    /* bias gradient, to be added */
    size_t scratch_at; /* one at a time: op and reorders */
    size_t workspace_bytes;
} conv_pass_t;

typedef struct conv_kernel {
    conv_pass_t pass[SL_DNNL_N_PASSES];
} conv_kernel_t;

/* The tensor that a pass writes. */
static const int output_of[SL_DNNL_N_PASSES] = {
    [SL_DNNL_PASS_FORWARD] = Y,
    [SL_DNNL_PASS_BACKWARD_DATA] = X,
    [SL_DNNL_PASS_BACKWARD_WEIGHTS] = WEIGHTS,
};

static sl_dnnl_conv_t conv_of(const sl_layer_t *layer,
                              const sl_tensor_desc_t *in)
{
    const sl_conv2d_attrs_t *attrs = layer->attrs;
    const int64_t kernel_w =
        attrs->kernel_w == 0 ? attrs->kernel : attrs->kernel_w;
    sl_dnnl_conv_t conv = {
        .batch = in->dims[0],
        .in_channels = in->dims[1],
        .in_height = in->dims[2],
        .in_width = in->dims[3],
        .out_channels = attrs->out,
        .kernel_height = attrs->kernel,
        .kernel_width = kernel_w,
        .stride = attrs->stride,
        .pad = attrs->pad,
        .dilation = attrs->dilation,
        .groups = attrs->groups,
        .has_bias = attrs->bias,
        .in_layout = in->layout,
        .out_layout = SL_LAYOUT_BLOCKED,
    };

    conv.out_height = sl_window_out(in->dims[2], attrs->kernel, attrs->stride,
                                    attrs->pad, attrs->dilation);
    conv.out_width = sl_window_out(in->dims[3], kernel_w, attrs->stride,
                                   attrs->pad, attrs->dilation);
    return conv;
}

/* ---- choosing code ---- */

/* The i-th choice of layouts; 0 past the last. */
static int layout_choice(int i, sl_layout_t in_layout, sl_dnnl_conv_t *conv)
{
    static const sl_layout_t layouts[] = {SL_LAYOUT_BLOCKED, SL_LAYOUT_PLAIN};

    if (in_layout == SL_LAYOUT_PLAIN && i == 0) {
        conv->in_layout = SL_LAYOUT_PLAIN;
        conv->out_layout = SL_LAYOUT_BLOCKED;
        return 1;
    }
    i -= in_layout == SL_LAYOUT_PLAIN;
    if (i > 1) {
        return 0;
    }
    conv->in_layout = layouts[i];
    conv->out_layout = layouts[i];
    return 1;
}

/* The best code for a pass, preferably with the weights as stored. `conv`
 * becomes what the code works on. */
static sl_status_t choose(sl_dnnl_conv_t *conv, sl_dnnl_pass_t pass,
                          const sl_dnnl_format_t *stored, int n_threads,
                          sl_dnnl_op_t **op_p)
{
    const sl_layout_t in_layout = conv->in_layout;
    sl_status_t status;
    int i;

    for (i = 0; layout_choice(i, in_layout, conv); i++) {
        status = sl_dnnl_conv_create(conv, pass, stored, n_threads, 0, op_p);
        if (status == SL_ERR_UNSUPPORTED) {
            status = sl_dnnl_conv_create(conv, pass, NULL, n_threads, 0, op_p);
        }
        if (status != SL_ERR_UNSUPPORTED) {
            return status;
        }
    }
    /* plain: oneDNN's reference code has no restrictions */
    return sl_dnnl_conv_create(conv, pass, NULL, n_threads, 1, op_p);
}

/* Storage of the weights; owned by the caller. */
static sl_status_t storage_create(const sl_layer_t *layer,
                                  sl_dnnl_format_t **stored_p)
{
    const sl_conv2d_attrs_t *attrs = layer->attrs;
    sl_dnnl_conv_t conv = conv_of(layer, &attrs->sample);
    const sl_layout_t in_layout = conv.in_layout;
    sl_status_t status;
    int i;

    for (i = 0; layout_choice(i, in_layout, &conv); i++) {
        status = sl_dnnl_format_best(&conv, stored_p);
        if (status != SL_ERR_UNSUPPORTED) {
            return status;
        }
    }
    return sl_dnnl_format_weights(&conv, stored_p);
}

sl_status_t sl_cpu_conv2d_weight_bytes(const sl_layer_t *layer, size_t *bytes_p)
{
    sl_dnnl_format_t *stored = NULL;
    sl_status_t status;

    SL_TRY(status, storage_create(layer, &stored), out);
    *bytes_p = sl_dnnl_format_bytes(stored);
    sl_dnnl_format_destroy(stored);
out:
    return status;
}

/* ---- plan ---- */

static size_t max_bytes(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A reorder between a tensor outside and inside the pass, and its room. */
static sl_status_t add_reorder(conv_pass_t *p, sl_dnnl_pass_t pass, int tensor,
                               const sl_dnnl_format_t *outside,
                               const sl_dnnl_format_t *inside, int n_threads)
{
    const int is_output = output_of[pass] == tensor;
    sl_status_t status;

    if (sl_dnnl_format_is_equal(outside, inside)) {
        return SL_OK;
    }
    SL_TRY(status,
           sl_dnnl_reorder_create(is_output ? inside : outside,
                                  is_output ? outside : inside, n_threads,
                                  &p->reorder[tensor]),
           out);
    p->at[tensor] = p->workspace_bytes;
    p->workspace_bytes += ALIGN_UP(sl_dnnl_format_bytes(inside));
out:
    return status;
}

static sl_status_t add_image_reorder(conv_pass_t *p, sl_dnnl_pass_t pass,
                                     int tensor,
                                     const sl_tensor_desc_t *outside,
                                     sl_layout_t layout, int n_threads)
{
    sl_tensor_desc_t inside = *outside;
    sl_dnnl_format_t *from = NULL;
    sl_dnnl_format_t *to = NULL;
    sl_status_t status;

    inside.layout = layout;
    SL_TRY(status, sl_dnnl_format_image(outside, &from), out);
    SL_TRY(status, sl_dnnl_format_image(&inside, &to), out);
    SL_TRY(status, add_reorder(p, pass, tensor, from, to, n_threads), out);
out:
    sl_dnnl_format_destroy(to);
    sl_dnnl_format_destroy(from);
    return status;
}

/* Gradients are written by oneDNN and then added: room for the sums. */
static void add_sum_room(const sl_layer_t *layer, conv_pass_t *p)
{
    p->sum_at = p->workspace_bytes;
    p->workspace_bytes += ALIGN_UP(layer->params[SL_CONV_WEIGHT].storage_bytes);
    if (layer->n_params > SL_CONV_BIAS) {
        p->bias_at = p->workspace_bytes;
        p->workspace_bytes +=
            ALIGN_UP(layer->params[SL_CONV_BIAS].storage_bytes);
    }
}

static sl_status_t plan_pass(const sl_layer_plan_t *plan, sl_dnnl_pass_t pass,
                             const sl_dnnl_format_t *stored, conv_pass_t *p)
{
    sl_dnnl_conv_t conv = conv_of(plan->layer, &plan->in[0]);
    size_t scratch_bytes;
    sl_status_t status;
    int i;

    SL_TRY(status, choose(&conv, pass, stored, plan->n_threads, &p->op), out);
    SL_TRY(status,
           add_image_reorder(p, pass, X, &plan->in[0], conv.in_layout,
                             plan->n_threads),
           out);
    SL_TRY(status,
           add_reorder(p, pass, WEIGHTS, stored, sl_dnnl_op_weights(p->op),
                       plan->n_threads),
           out);
    SL_TRY(status,
           add_image_reorder(p, pass, Y, &plan->out, conv.out_layout,
                             plan->n_threads),
           out);
    if (pass == SL_DNNL_PASS_BACKWARD_WEIGHTS) {
        add_sum_room(plan->layer, p);
    }
    scratch_bytes = sl_dnnl_op_scratch_bytes(p->op);
    for (i = 0; i < N_TENSORS; i++) {
        if (p->reorder[i] != NULL) {
            scratch_bytes = max_bytes(scratch_bytes,
                                      sl_dnnl_op_scratch_bytes(p->reorder[i]));
        }
    }
    p->scratch_at = p->workspace_bytes;
    p->workspace_bytes += ALIGN_UP(scratch_bytes);
out:
    return status;
}

static void plan_release(sl_layer_plan_t *plan)
{
    conv_kernel_t *kernel = plan->kernel;
    int i, j;

    if (kernel == NULL) {
        return;
    }
    for (i = 0; i < SL_DNNL_N_PASSES; i++) {
        sl_dnnl_op_destroy(kernel->pass[i].op);
        for (j = 0; j < N_TENSORS; j++) {
            sl_dnnl_op_destroy(kernel->pass[i].reorder[j]);
        }
    }
    free(kernel);
    plan->kernel = NULL;
}

static sl_status_t plan_passes(sl_layer_plan_t *plan, conv_kernel_t *kernel)
{
    const conv_pass_t *pass = kernel->pass;
    sl_dnnl_format_t *stored = NULL;
    sl_status_t status;
    int i;

    SL_TRY(status, storage_create(plan->layer, &stored), out);
    for (i = 0; i < (plan->is_training ? SL_DNNL_N_PASSES : 1); i++) {
        if (i == SL_DNNL_PASS_BACKWARD_DATA &&
            plan->layer->inputs[0] == SL_INPUT_DATA) {
            continue; /* nobody asks for the gradient of the data */
        }
        SL_TRY(status,
               plan_pass(plan, (sl_dnnl_pass_t)i, stored, &kernel->pass[i]),
               err_destroy);
    }
    plan->forward_workspace_bytes = pass[SL_DNNL_PASS_FORWARD].workspace_bytes;
    plan->backward_workspace_bytes =
        max_bytes(pass[SL_DNNL_PASS_BACKWARD_DATA].workspace_bytes,
                  pass[SL_DNNL_PASS_BACKWARD_WEIGHTS].workspace_bytes);
err_destroy:
    sl_dnnl_format_destroy(stored);
out:
    return status;
}

static sl_status_t plan_conv(sl_layer_plan_t *plan)
{
    conv_kernel_t *kernel = calloc(1, sizeof(*kernel));
    sl_status_t status;

    if (kernel == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "layer %s: no host memory",
                plan->layer->name);
    }
    plan->kernel = kernel;
    plan->keeps_input[0] = plan->is_training;
    SL_TRY(status, plan_passes(plan, kernel), err_release);
    return SL_OK;

err_release:
    plan_release(plan);
out:
    return status;
}

/* ---- run ---- */

/* Reorder a tensor outside the pass to its room, or back. */
static sl_status_t run_reorder(const conv_pass_t *p, int tensor, int is_output,
                               const void *outside, char *workspace)
{
    const void *inside = workspace + p->at[tensor];
    const sl_dnnl_args_t args = {
        .x = is_output ? inside : outside,
        .y = is_output ? outside : inside,
        .scratch = workspace + p->scratch_at,
    };

    return sl_dnnl_op_run(p->reorder[tensor], &args);
}

/* One pass on the tensors outside: x, weights, y. */
static sl_status_t run_pass(const conv_pass_t *p, sl_dnnl_pass_t pass,
                            const void *const outside[N_TENSORS],
                            const void *bias, char *workspace)
{
    const int output = output_of[pass];
    const void *inside[N_TENSORS];
    sl_dnnl_args_t args = {.bias = bias};
    sl_status_t status;
    int i;

    for (i = 0; i < N_TENSORS; i++) {
        inside[i] = outside[i];
        if (p->reorder[i] == NULL) {
            continue;
        }
        inside[i] = workspace + p->at[i];
        if (i != output) {
            SL_TRY(status, run_reorder(p, i, 0, outside[i], workspace), out);
        }
    }
    args.x = inside[X];
    args.weights = inside[WEIGHTS];
    args.y = inside[Y];
    args.scratch = workspace + p->scratch_at;
    SL_TRY(status, sl_dnnl_op_run(p->op, &args), out);
    if (p->reorder[output] != NULL) {
        SL_TRY(status, run_reorder(p, output, 1, outside[output], workspace),
               out);
    }
out:
    return status;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const conv_kernel_t *kernel = run->plan->kernel;
    const void *const outside[N_TENSORS] = {
        run->in[0], run->param[SL_CONV_WEIGHT], run->out};

    (void)stream;
    return run_pass(&kernel->pass[SL_DNNL_PASS_FORWARD], SL_DNNL_PASS_FORWARD,
                    outside, run->param[SL_CONV_BIAS], run->workspace);
}

/* grad += sum */
static void add_to(const sl_layer_run_t *run, float *grad, const float *sum,
                   size_t bytes)
{
    const int64_t n = (int64_t)(bytes / sizeof(float));
    const int threads = sl_cpu_threads(run, n);
    int t;

#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t r = sl_cpu_split(n, threads, t, 64);
        int64_t i;

#pragma omp simd
        for (i = r.begin; i < r.end; i++) {
            grad[i] += sum[i];
        }
    }
}

/* Gradients go straight to their place when first, else they are added. */
static sl_status_t backward_weights(const sl_layer_run_t *run)
{
    const conv_kernel_t *kernel = run->plan->kernel;
    const conv_pass_t *p = &kernel->pass[SL_DNNL_PASS_BACKWARD_WEIGHTS];
    const sl_param_t *params = run->plan->layer->params;
    const int is_first = run->step.is_first_backward;
    char *workspace = run->workspace;
    float *place[2], *grad[2];
    const void *outside[N_TENSORS] = {run->in[0], NULL, run->dout};
    sl_status_t status;
    int i;

    for (i = 0; i < 2; i++) {
        grad[i] = i < run->plan->layer->n_params ? run->grad[i] : NULL;
        place[i] =
            (float *)(void *)(workspace + (i == 0 ? p->sum_at : p->bias_at));
        if (is_first && grad[i] != NULL) {
            place[i] = grad[i];
        }
    }
    if (grad[0] == NULL && grad[1] == NULL) {
        return SL_OK;
    }
    outside[WEIGHTS] = place[0];
    SL_TRY(status,
           run_pass(p, SL_DNNL_PASS_BACKWARD_WEIGHTS, outside, place[1],
                    workspace),
           out);
    for (i = 0; i < 2; i++) {
        if (grad[i] != NULL && place[i] != grad[i]) {
            add_to(run, grad[i], place[i], params[i].storage_bytes);
        }
    }
out:
    return status;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const conv_kernel_t *kernel = run->plan->kernel;
    const void *const outside[N_TENSORS] = {
        run->din[0], run->param[SL_CONV_WEIGHT], run->dout};
    sl_status_t status;

    (void)stream;
    SL_ASSERT(run->din[0] == NULL ||
              run->plan->layer->inputs[0] != SL_INPUT_DATA);
    SL_TRY(status, backward_weights(run), out);
    if (run->din[0] != NULL) {
        SL_TRY(status,
               run_pass(&kernel->pass[SL_DNNL_PASS_BACKWARD_DATA],
                        SL_DNNL_PASS_BACKWARD_DATA, outside, NULL,
                        run->workspace),
               out);
    }
out:
    return status;
}

/* ---- storage ---- */

/* Plain weights to storage (is_pack) or back; on this thread. */
static sl_status_t convert_weights(const sl_layer_t *layer, int is_pack,
                                   const void *from, void *to)
{
    const sl_conv2d_attrs_t *attrs = layer->attrs;
    const sl_dnnl_conv_t conv = conv_of(layer, &attrs->sample);
    sl_dnnl_args_t args = {.x = from, .y = to};
    sl_dnnl_format_t *plain = NULL;
    sl_dnnl_format_t *stored = NULL;
    sl_dnnl_op_t *reorder = NULL;
    sl_status_t status;

    SL_TRY(status, storage_create(layer, &stored), out);
    SL_TRY(status, sl_dnnl_format_weights(&conv, &plain), err_stored);
    SL_TRY(status,
           sl_dnnl_reorder_create(is_pack ? plain : stored,
                                  is_pack ? stored : plain, 1, &reorder),
           err_plain);
    if (sl_dnnl_op_scratch_bytes(reorder) > 0) {
        args.scratch = malloc(sl_dnnl_op_scratch_bytes(reorder));
        if (args.scratch == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, err_reorder,
                    "layer %s: no host memory", layer->name);
        }
    }
    SL_TRY(status, sl_dnnl_op_run(reorder, &args), err_scratch);
err_scratch:
    free(args.scratch);
err_reorder:
    sl_dnnl_op_destroy(reorder);
err_plain:
    sl_dnnl_format_destroy(plain);
err_stored:
    sl_dnnl_format_destroy(stored);
out:
    return status;
}

static sl_status_t param_pack(const sl_layer_t *layer, int param,
                              const float *plain, void *storage)
{
    if (param == SL_CONV_WEIGHT) {
        return convert_weights(layer, 1, plain, storage);
    }
    memcpy(storage, plain, layer->params[param].storage_bytes);
    return SL_OK;
}

static sl_status_t param_unpack(const sl_layer_t *layer, int param,
                                const void *storage, float *plain)
{
    if (param == SL_CONV_WEIGHT) {
        return convert_weights(layer, 0, storage, plain);
    }
    memcpy(plain, storage, layer->params[param].storage_bytes);
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_conv2d = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan_conv,
    .plan_release = plan_release,
    .forward = forward,
    .backward = backward,
    .param_pack = param_pack,
    .param_unpack = param_unpack,
};
