/* SPDX-License-Identifier: Apache-2.0 */
/* embedding: gradients are added in token order, as on the CPU. A token that
 * the engine did not check gives NaN. */
#include "layers/attrs_internal.h"
#include "layers/cuda/cuda_layers.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const sl_embedding_attrs_t *attrs = plan_p->layer->attrs;

    plan_p->keeps_input[0] = 1;
    plan_p->backward_workspace_bytes = sl_cuda_embedding_workspace_bytes(
        sl_tensor_elements(&plan_p->in[0]), attrs->vocab);
    return SL_OK;
}

static sl_cuda_embedding_t args_of(const sl_layer_run_t *run)
{
    const sl_layer_t *layer = run->plan->layer;
    const sl_embedding_attrs_t *attrs = layer->attrs;
    sl_cuda_embedding_t args = {.type = sl_cuda_type_of(&run->plan->out),
                                .n = sl_tensor_elements(&run->plan->in[0]),
                                .time = run->plan->in[0].dims[1],
                                .width = attrs->width,
                                .vocab = attrs->vocab,
                                .tokens = run->in[0],
                                .weight = run->param[SL_EMBEDDING_WEIGHT],
                                .out = run->out,
                                .dout = run->dout,
                                .dweight = run->grad[SL_EMBEDDING_WEIGHT],
                                .is_first = run->step.is_first_backward,
                                .workspace = run->workspace};

    if (attrs->positions) {
        args.positions = layer->params[SL_EMBEDDING_POSITION].desc.dims[0];
        args.position = run->param[SL_EMBEDDING_POSITION];
        args.dposition = run->grad[SL_EMBEDDING_POSITION];
    }
    return args;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_embedding_t args = args_of(run);

    return sl_cuda_embedding_forward(&args, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_embedding_t args = args_of(run);

    return sl_cuda_embedding_backward(&args, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_embedding = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
