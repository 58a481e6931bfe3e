/* SPDX-License-Identifier: Apache-2.0 */
/* linear on CUDA devices: three matrix products. The bias is added, and its
 * gradient summed, on the side of a product where the library can (the
 * epilogues BIAS and BGRADB). Products are of the type of the output; what has
 * another type is cast first.
 *
 * The library's GELU is not used. gelu is a layer of its own, and its backward
 * reads its input, so that the product is written all the same (GELU_AUX does):
 * what could be saved is one read of it. It would tie two layers that a cut may
 * part and recomputation treats one by one; the form that it computes is not
 * documented (others found tanh's), where gelu has both. RELU would tie two
 * layers likewise. */
#include <stdio.h>
#include <stdlib.h>

#include "layers/cuda/blas.h"
#include "layers/cuda/cuda_layers.h"
#include "layers/cuda/linear_kernels.h"

enum {
    NAME_BYTES = SL_LAYER_LABEL_BYTES + 32
};

/* x is [rows, in], y [rows, out], the weight [out, in]. */
typedef struct linear {
    int64_t rows, in, out;
    int has_bias;
    sl_cuda_type_t x_type, y_type;
    sl_cuda_product_t *forward; /* adds the bias when adds_bias */
    sl_cuda_product_t *input;   /* dx */
    sl_cuda_product_t *weight;  /* dW, and db when sums_bias */
    int adds_bias, sums_bias;
    /* places in the workspace: casts of weight and x, the bias or its sums,
     * a dW that nobody wants, and what the products work in */
    size_t weight_at, x_at, bias_at, dweight_at, work_at;
} linear_t;

static size_t type_bytes(sl_cuda_type_t type, int64_t n)
{
    return (size_t)n * sl_cuda_type_bytes(type);
}

/* ---- plans ---- */

static sl_status_t create(const sl_layer_plan_t *plan, const char *what,
                          sl_cuda_product_params_t *params,
                          sl_cuda_product_t **product_p)
{
    char label[SL_LAYER_LABEL_BYTES], name[NAME_BYTES];

    (void)snprintf(name, sizeof(name), "%s, %s",
                   sl_layer_label(plan->layer, label), what);
    params->name = name;
    params->is_tf32 = plan->layer->is_tf32;
    return sl_cuda_product_create(params, product_p);
}

/* With the bias, or without it where the library cannot add it. */
static sl_status_t plan_forward(const sl_layer_plan_t *plan, linear_t *linear)
{
    sl_cuda_product_params_t params = {
        .m = linear->rows,
        .n = linear->out,
        .k = linear->in,
        .a = {.type = linear->y_type, .stride = linear->in},
        .b = {.type = linear->y_type, .stride = linear->in, .is_transposed = 1},
        .d = {.type = linear->y_type, .stride = linear->out},
        .epilogue = SL_CUDA_EPILOGUE_BIAS,
        .is_optional = 1};
    sl_status_t status = SL_ERR_UNSUPPORTED;

    if (linear->has_bias) {
        status = create(plan, "forward", &params, &linear->forward);
        linear->adds_bias = status >= 0;
    }
    if (status == SL_ERR_UNSUPPORTED) {
        params.epilogue = SL_CUDA_EPILOGUE_NONE;
        params.is_optional = 0;
        status = create(plan, "forward", &params, &linear->forward);
    }
    return status;
}

/* dx = dy W */
static sl_status_t plan_input(const sl_layer_plan_t *plan, linear_t *linear)
{
    sl_cuda_product_params_t params = {
        .m = linear->rows,
        .n = linear->in,
        .k = linear->out,
        .a = {.type = linear->y_type, .stride = linear->out},
        .b = {.type = linear->y_type, .stride = linear->in},
        .d = {.type = linear->x_type, .stride = linear->in}};

    return create(plan, "gradient of the input", &params, &linear->input);
}

/* dW = dy^T x, and db beside it when there is a way. One product does it for
 * all runs: what is frozen does not change the bits of the rest. */
static sl_status_t plan_weight(const sl_layer_plan_t *plan, linear_t *linear)
{
    sl_cuda_product_params_t params = {
        .m = linear->out,
        .n = linear->in,
        .k = linear->rows,
        .a = {.type = linear->y_type,
              .stride = linear->out,
              .is_transposed = 1},
        .b = {.type = linear->y_type, .stride = linear->in},
        .d = {.type = SL_CUDA_F32, .stride = linear->in}};
    sl_status_t status = SL_ERR_UNSUPPORTED;

    if (linear->has_bias) {
        params.epilogue = SL_CUDA_EPILOGUE_ROW_SUMS;
        params.is_optional = 1;
        status = create(plan, "gradients of weight and bias", &params,
                        &linear->weight);
        linear->sums_bias = status >= 0;
    }
    if (status == SL_ERR_UNSUPPORTED) {
        params.epilogue = SL_CUDA_EPILOGUE_NONE;
        params.is_optional = 0;
        status =
            create(plan, "gradient of the weight", &params, &linear->weight);
    }
    return status;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Take bytes of a workspace. @return where */
static size_t take(size_t *end, size_t bytes)
{
    const size_t at = *end;

    *end += sl_cuda_round_bytes(bytes);
    return at;
}

static size_t backward_work(const linear_t *linear)
{
    const size_t work = most(sl_cuda_product_workspace_bytes(linear->input),
                             sl_cuda_product_workspace_bytes(linear->weight));

    return linear->has_bias && !linear->sums_bias
               ? most(work, sl_cuda_column_sums_workspace_bytes(linear->rows,
                                                                linear->out))
               : work;
}

static void plan_workspace(sl_layer_plan_t *plan, linear_t *linear)
{
    const int64_t n_weight = linear->out * linear->in;
    const int64_t n_x = linear->rows * linear->in;
    size_t end = 0;

    if (linear->y_type != SL_CUDA_F32) {
        linear->weight_at = take(&end, type_bytes(linear->y_type, n_weight));
    }
    if (linear->y_type != linear->x_type) {
        linear->x_at = take(&end, type_bytes(linear->y_type, n_x));
    }
    if (linear->has_bias) {
        linear->bias_at = take(&end, type_bytes(SL_CUDA_F32, linear->out));
    }
    if (linear->sums_bias) {
        linear->dweight_at = take(&end, type_bytes(SL_CUDA_F32, n_weight));
    }
    linear->work_at = end;
    plan->forward_workspace_bytes =
        end + sl_cuda_product_workspace_bytes(linear->forward);
    if (plan->is_training) {
        plan->backward_workspace_bytes = end + backward_work(linear);
    }
}

static void destroy(linear_t *linear)
{
    if (linear != NULL) {
        sl_cuda_product_destroy(linear->forward);
        sl_cuda_product_destroy(linear->input);
        sl_cuda_product_destroy(linear->weight);
        free(linear);
    }
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    linear_t *linear = calloc(1, sizeof(*linear));
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status;

    if (linear == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                sl_layer_label(plan_p->layer, label));
    }
    linear->rows = sl_tensor_rows(&plan_p->in[0]);
    linear->in = plan_p->in[0].dims[plan_p->in[0].n_dims - 1];
    linear->out = plan_p->out.dims[plan_p->out.n_dims - 1];
    linear->has_bias = plan_p->layer->n_params > 1;
    linear->x_type = sl_cuda_type_of(&plan_p->in[0]);
    linear->y_type = sl_cuda_type_of(&plan_p->out);
    SL_TRY(status, plan_forward(plan_p, linear), err_destroy);
    if (plan_p->is_training) {
        SL_TRY(status, plan_input(plan_p, linear), err_destroy);
        SL_TRY(status, plan_weight(plan_p, linear), err_destroy);
        plan_p->keeps_input[0] = 1;
        plan_p->accumulates = 1;
    }
    plan_workspace(plan_p, linear);
    plan_p->kernel = linear;
    return SL_OK;

err_destroy:
    destroy(linear);
out:
    return status;
}

static void plan_release(sl_layer_plan_t *plan_p)
{
    destroy(plan_p->kernel);
}

/* ---- runs ---- */

static void *workspace(const sl_layer_run_t *run, size_t at)
{
    return run->workspace == NULL ? NULL : (char *)run->workspace + at;
}

/* The values in the products' type: themselves, or a cast of them at a place
 * in the workspace. */
static sl_status_t as_factor(const sl_layer_run_t *run, const void *values,
                             sl_cuda_type_t type, int64_t n, size_t at,
                             sl_cuda_stream_t *stream, const void **factor_p)
{
    const linear_t *linear = run->plan->kernel;
    const sl_cuda_cast_t cast = {.to_type = linear->y_type,
                                 .from_type = type,
                                 .to = workspace(run, at),
                                 .from = values,
                                 .n = n};
    sl_status_t status = SL_OK;

    if (type == linear->y_type) {
        *factor_p = values;
        return SL_OK;
    }
    SL_TRY(status, sl_cuda_cast(&cast, stream->queue), out);
    *factor_p = cast.to;
out:
    return status;
}

/* The bias for the product; when that cannot add it, y starts as the bias. */
static sl_status_t prepare_bias(const sl_layer_run_t *run,
                                sl_cuda_product_args_t *args,
                                sl_cuda_stream_t *stream)
{
    const linear_t *linear = run->plan->kernel;
    const sl_cuda_repeat_row_t repeat = {.type = linear->y_type,
                                         .rows = linear->rows,
                                         .columns = linear->out,
                                         .row = run->param[1],
                                         .out = run->out};
    const sl_cuda_cast_t cast = {.to_type = linear->y_type,
                                 .from_type = SL_CUDA_F32,
                                 .to = workspace(run, linear->bias_at),
                                 .from = run->param[1],
                                 .n = linear->out};

    if (!linear->has_bias) {
        return SL_OK;
    }
    if (!linear->adds_bias) {
        args->beta = 1;
        return sl_cuda_repeat_row(&repeat, stream->queue);
    }
    if (linear->y_type == SL_CUDA_F32) {
        args->extra = run->param[1];
        return SL_OK;
    }
    args->extra = cast.to;
    return sl_cuda_cast(&cast, stream->queue);
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const linear_t *linear = run->plan->kernel;
    sl_cuda_product_args_t args = {.alpha = 1,
                                   .d = run->out,
                                   .workspace =
                                       workspace(run, linear->work_at)};
    sl_status_t status;

    SL_TRY(status,
           as_factor(run, run->in[0], linear->x_type, linear->rows * linear->in,
                     linear->x_at, stream, &args.a),
           out);
    SL_TRY(status,
           as_factor(run, run->param[0], SL_CUDA_F32, linear->out * linear->in,
                     linear->weight_at, stream, &args.b),
           out);
    SL_TRY(status, prepare_bias(run, &args, stream), out);
    status = sl_cuda_product_run(linear->forward, &args, stream);
out:
    return status;
}

/* dx = dy W (+ prev) */
static sl_status_t backward_input(const sl_layer_run_t *run,
                                  sl_cuda_stream_t *stream)
{
    const linear_t *linear = run->plan->kernel;
    const void *prev = run->din_prev[0];
    sl_cuda_product_args_t args = {.alpha = 1,
                                   .beta = prev != NULL ? 1.0f : 0.0f,
                                   .a = run->dout,
                                   .d = run->din[0],
                                   .workspace =
                                       workspace(run, linear->work_at)};
    sl_status_t status;

    if (prev != NULL && prev != run->din[0]) {
        SL_TRY(status,
               sl_cuda_copy(run->din[0], prev,
                            sl_tensor_bytes(&run->plan->in[0]), stream->queue),
               out);
    }
    SL_TRY(status,
           as_factor(run, run->param[0], SL_CUDA_F32, linear->out * linear->in,
                     linear->weight_at, stream, &args.b),
           out);
    status = sl_cuda_product_run(linear->input, &args, stream);
out:
    return status;
}

/* db (+)= sums of the columns of dy, by our own kernel */
static sl_status_t backward_bias(const sl_layer_run_t *run,
                                 sl_cuda_stream_t *stream)
{
    const linear_t *linear = run->plan->kernel;
    const sl_cuda_column_sums_t sums = {.type = linear->y_type,
                                        .rows = linear->rows,
                                        .columns = linear->out,
                                        .in = run->dout,
                                        .sums = run->grad[1],
                                        .is_first = run->step.is_first_backward,
                                        .workspace =
                                            workspace(run, linear->work_at)};

    return sl_cuda_column_sums(&sums, stream->queue);
}

/* What the product has summed is added to what earlier ones have. */
static sl_status_t add_bias(const sl_layer_run_t *run, const void *sums,
                            sl_cuda_stream_t *stream)
{
    const linear_t *linear = run->plan->kernel;
    const sl_cuda_sum_t sum = {.type = SL_CUDA_F32,
                               .a = run->grad[1],
                               .b = sums,
                               .out = run->grad[1],
                               .n = linear->out};

    return sl_cuda_sum(&sum, stream->queue);
}

/* dW (+)= dy^T x, and db with it when the product sums that */
static sl_status_t backward_weight(const sl_layer_run_t *run,
                                   sl_cuda_stream_t *stream)
{
    const linear_t *linear = run->plan->kernel;
    const int is_first = run->step.is_first_backward;
    const int is_kept = run->grad[0] != NULL;
    const int is_added = run->grad[1] != NULL && !is_first;
    const int is_direct = run->grad[1] != NULL && is_first;
    sl_cuda_product_args_t args = {
        .alpha = 1,
        .beta = is_kept && !is_first ? 1.0f : 0.0f,
        .a = run->dout,
        .d = is_kept ? run->grad[0] : workspace(run, linear->dweight_at),
        .workspace = workspace(run, linear->work_at)};
    sl_status_t status;

    SL_TRY(status,
           as_factor(run, run->in[0], linear->x_type, linear->rows * linear->in,
                     linear->x_at, stream, &args.b),
           out);
    if (linear->sums_bias) {
        args.extra = is_direct ? run->grad[1] : workspace(run, linear->bias_at);
    }
    SL_TRY(status, sl_cuda_product_run(linear->weight, &args, stream), out);
    if (linear->sums_bias && is_added) {
        status = add_bias(run, args.extra, stream);
    }
out:
    return status;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const linear_t *linear = run->plan->kernel;
    const int is_bias_too = run->grad[1] != NULL && linear->sums_bias;
    sl_status_t status = SL_OK;

    if (run->din[0] != NULL) {
        SL_TRY(status, backward_input(run, stream), out);
    }
    if (run->grad[0] != NULL || is_bias_too) {
        SL_TRY(status, backward_weight(run, stream), out);
    }
    if (run->grad[1] != NULL && !is_bias_too) {
        status = backward_bias(run, stream);
    }
out:
    return status;
}

const sl_layer_kernels_t sl_cuda_layer_linear = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .plan_release = plan_release,
    .forward = forward,
    .backward = backward,
};
