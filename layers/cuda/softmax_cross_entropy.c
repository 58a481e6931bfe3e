/* SPDX-License-Identifier: Apache-2.0 */
/* softmax_cross_entropy: saves {max, log of the sum} of each row. A target
 * that the engine did not check gives NaN. */
#include "layers/attrs_internal.h"
#include "layers/cuda/cuda_layers.h"

/* Rows of classes; pixels > 0: of plain images, where they lie apart. */
typedef struct shape {
    int64_t rows, classes, pixels;
} shape_t;

static shape_t shape_of(const sl_layer_plan_t *plan)
{
    const sl_tensor_desc_t *in = &plan->in[0];
    const int class_dim = in->n_dims == 4 ? 1 : in->n_dims - 1;
    shape_t s = {.classes = in->dims[class_dim]};

    s.rows = sl_tensor_elements(in) / s.classes;
    if (in->n_dims == 4 && in->layout == SL_LAYOUT_PLAIN) {
        s.pixels = in->dims[2] * in->dims[3];
    }
    return s;
}

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    const shape_t s = shape_of(plan_p);

    plan_p->saved_bytes =
        plan_p->is_training ? (size_t)(2 * s.rows) * sizeof(float) : 0;
    plan_p->forward_workspace_bytes =
        sl_cuda_cross_entropy_workspace_bytes(s.rows);
    plan_p->keeps_input[0] = 1;
    plan_p->keeps_input[1] = 1;
    return SL_OK;
}

static sl_cuda_cross_entropy_t args_of(const sl_layer_run_t *run)
{
    const sl_loss_attrs_t *attrs = run->plan->layer->attrs;
    const shape_t s = shape_of(run->plan);
    const sl_cuda_cross_entropy_t args = {
        .type = sl_cuda_type_of(&run->plan->in[0]),
        .rows = s.rows,
        .classes = s.classes,
        .pixels = s.pixels,
        .logits = run->in[0],
        .targets = run->in[1],
        .ignore_index = attrs->ignore_index,
        .label_smoothing = attrs->label_smoothing,
        .out = run->out,
        .saved = run->plan->is_training ? run->saved : NULL,
        .loss_scale = run->step.loss_scale,
        .din = run->din[0],
        .workspace = run->workspace};

    return args;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_cross_entropy_t args = args_of(run);

    return sl_cuda_cross_entropy_forward(&args, sl_cuda_queue(stream));
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_cuda_cross_entropy_t args = args_of(run);

    return sl_cuda_cross_entropy_backward(&args, sl_cuda_queue(stream));
}

const sl_layer_kernels_t sl_cuda_layer_softmax_cross_entropy = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
