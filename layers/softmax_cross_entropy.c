/* SPDX-License-Identifier: Apache-2.0 */
/* softmax_cross_entropy: the loss of classification, by row or by pixel. */
#include <inttypes.h>

#include "layers/attrs_internal.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {
    {.name = "ignore_index",
     .kind = SL_ATTR_INT,
     .offset = offsetof(sl_loss_attrs_t, ignore_index),
     .fallback = -100,
     .min = INT32_MIN,
     .max = INT32_MAX,
     .brief = "target that does not count"},
    {.name = "label_smoothing",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(sl_loss_attrs_t, label_smoothing),
     .max = SL_DROPOUT_MAX,
     .brief = "share of each target spread over all classes"},
    {0}};

/* Where the classes are: dims[1] of images, the last of others. */
static int class_dim_of(const sl_tensor_desc_t *logits)
{
    return logits->n_dims == 4 ? 1 : logits->n_dims - 1;
}

/* Whether the target has a number for each row: the logits' dims without
 * that of the classes. */
static int targets_fit(const sl_tensor_desc_t *logits,
                       const sl_tensor_desc_t *target)
{
    const int class_dim = class_dim_of(logits);
    int i, k = 0;

    if (target->dtype != SL_DTYPE_I32 || target->n_dims != logits->n_dims - 1) {
        return 0;
    }
    for (i = 0; i < logits->n_dims; i++) {
        if (i != class_dim && logits->dims[i] != target->dims[k++]) {
            return 0;
        }
    }
    return 1;
}

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    static const int64_t dims[2] = {1, 4};

    if (!sl_is_real(&in[0]) || in[0].n_dims < 2) {
        return sl_layer_refuse_input(
            layer, 0, in,
            "logits f32 [batch, ..., classes] or [batch, classes, h, w]");
    }
    if (!targets_fit(&in[0], &in[1])) {
        return sl_layer_refuse_input(
            layer, 1, in,
            "targets i32 of the shape of input 0 without its classes");
    }
    *out_p = sl_tensor_desc(SL_DTYPE_F64, 2, dims);
    return SL_OK;
}

/* A class, or the target that does not count. */
static int is_target(const sl_loss_attrs_t *attrs, int64_t classes,
                     int32_t value)
{
    return (value >= 0 && value < classes) || value == attrs->ignore_index;
}

static sl_status_t check_input(const sl_layer_plan_t *plan, int input,
                               const int32_t *values)
{
    const sl_loss_attrs_t *attrs = plan->layer->attrs;
    const int64_t classes = plan->in[0].dims[class_dim_of(&plan->in[0])];
    const int64_t rows = sl_tensor_elements(&plan->in[input]);
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status = SL_OK;
    int64_t row;
    int has_bad = 0;

    for (row = 0; row < rows; row++) { /* a vector loop */
        has_bad |= !is_target(attrs, classes, values[row]);
    }
    for (row = 0; has_bad && row < rows; row++) {
        if (!is_target(attrs, classes, values[row])) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "%s: target %" PRId32 " of row %" PRId64
                    " is not one of %" PRId64
                    " classes nor the ignored %" PRId64,
                    sl_layer_label(plan->layer, label), values[row], row,
                    classes, attrs->ignore_index);
        }
    }
out:
    return status;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const double bytes = (double)sl_tensor_bytes(&in[0]);

    (void)layer;
    (void)out;
    cost_p->forward_flops = 16.0 * (double)sl_tensor_elements(&in[0]);
    cost_p->backward_flops = 16.0 * (double)sl_tensor_elements(&in[0]);
    cost_p->forward_bytes = bytes;
    cost_p->backward_bytes = 2 * bytes;
}

const sl_layer_ops_t sl_layer_softmax_cross_entropy = {
    .size = sizeof(sl_layer_ops_t),
    .name = "softmax_cross_entropy",
    .brief = "loss of classification",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_loss_attrs_t),
    .n_inputs_min = 2,
    .n_inputs_max = 2,
    .is_loss = 1,
    .infer = infer,
    .check_input = check_input,
    .cost = cost,
    .kernels = {SL_KERNELS(softmax_cross_entropy)},
};
