/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm on CUDA devices. */
#include "layers/cuda/dnn_images.h"

/* Shape, attributes and parameters. */
static sl_cuda_batch_norm_t norm_of(const sl_layer_run_t *run,
                                    const sl_layer_plan_t *plan_p)
{
    const sl_layer_t *layer = plan_p->layer;
    const sl_batch_norm_attrs_t *attrs = layer->attrs;
    const sl_tensor_desc_t *in = &plan_p->in[0];
    sl_cuda_batch_norm_t norm = {.type = sl_cuda_type_of(in),
                                 .eps = attrs->eps,
                                 .momentum = attrs->momentum,
                                 .is_relu = attrs->relu};

    norm.is_last = sl_cuda_image_is_last(in);
    norm.batch = in->dims[0];
    norm.channels = layer->params[SL_BN_WEIGHT].desc.dims[0];
    norm.pixels = in->dims[2] * in->dims[3];
    norm.has_skip = layer->n_inputs > 1;
    if (run != NULL) {
        norm.weight = run->param[SL_BN_WEIGHT];
        norm.bias = run->param[SL_BN_BIAS];
        norm.running_mean = run->param[SL_BN_MEAN];
        norm.running_var = run->param[SL_BN_VAR];
        norm.sums = run->step.is_recompute ? NULL : run->param[SL_BN_SUMS];
        norm.is_training = run->step.is_training;
        norm.is_first_forward = run->step.is_first_forward;
        norm.is_first_backward = run->step.is_first_backward;
        norm.saved = run->saved;
        norm.workspace = run->workspace;
    }
    return norm;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const sl_batch_norm_attrs_t *attrs = plan_p->layer->attrs;
    const int has_skip = plan_p->layer->n_inputs > 1;
    const sl_cuda_batch_norm_t norm = norm_of(NULL, plan_p);
    const size_t bytes = sl_cuda_batch_norm_workspace_bytes(&norm);

    if (plan_p->layer->dnn.has_images) {
        const sl_status_t status = sl_cuda_dnn_norm_plan(plan_p, &norm);

        if (status < 0 || plan_p->kernel != NULL) {
            return status;
        }
    }
    plan_p->forward_workspace_bytes = bytes;
    if (plan_p->is_training) {
        plan_p->backward_workspace_bytes = bytes;
        plan_p->saved_bytes = 2 * sizeof(float) * (size_t)norm.channels;
        plan_p->keeps_input[0] = 1;
        plan_p->keeps_output = has_skip && attrs->relu;
        plan_p->accumulates = has_skip ? 3 : 1;
        if (has_skip && !attrs->relu) {
            plan_p->passes_gradient = 1 << 1;
        }
    }
    return SL_OK;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_batch_norm_t norm = norm_of(run, run->plan);

    norm.in = run->in[0];
    norm.skip = norm.has_skip ? run->in[1] : NULL;
    norm.out = run->out;
    if (run->plan->kernel != NULL) {
        return sl_cuda_dnn_norm_forward(run, &norm, stream);
    }
    return sl_cuda_batch_norm_forward(&norm, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_batch_norm_t norm = norm_of(run, run->plan);
    int i;

    norm.in = run->in[0];
    norm.out = run->out;
    norm.dout = run->dout;
    for (i = 0; i < run->plan->layer->n_inputs; i++) {
        norm.din[i] = run->din[i];
        norm.prev[i] = run->din_prev[i];
    }
    norm.dweight = run->grad[SL_BN_WEIGHT];
    norm.dbias = run->grad[SL_BN_BIAS];
    if (run->plan->kernel != NULL) {
        return sl_cuda_dnn_norm_backward(run, &norm, stream);
    }
    return sl_cuda_batch_norm_backward(&norm, sl_cuda_queue(stream));
}

static sl_status_t finish_batch(const sl_layer_run_t *run, void *stream)
{
    sl_cuda_batch_norm_t norm = norm_of(run, run->plan);

    norm.sums = run->param[SL_BN_SUMS];
    return sl_cuda_batch_norm_finish(&norm, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_batch_norm = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .plan_release = sl_cuda_dnn_norm_release,
    .forward = forward,
    .backward = backward,
    .finish_batch = finish_batch,
};
