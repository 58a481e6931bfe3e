/* SPDX-License-Identifier: Apache-2.0 */
/* flatten: [batch, ...] to plain [batch, width], in PyTorch's order; integers,
 * too, which then are a value that has no gradient. */
#include "layers/attrs_internal.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {{0}};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    int64_t dims[2];

    if ((!sl_is_real(&in[0]) && in[0].dtype != SL_DTYPE_I32) ||
        in[0].n_dims < 2) {
        return sl_layer_refuse_input(layer, 0, in, "f32 or i32 [batch, ...]");
    }
    dims[0] = in[0].dims[0];
    dims[1] = sl_tensor_elements(&in[0]) / in[0].dims[0];
    *out_p = sl_tensor_desc(in[0].dtype, 2, dims);
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const double bytes =
        (double)sl_tensor_bytes(&in[0]) + (double)sl_tensor_bytes(out);

    (void)layer;
    cost_p->forward_flops = 0;
    cost_p->backward_flops = 0;
    cost_p->forward_bytes = bytes;
    cost_p->backward_bytes = in[0].layout == SL_LAYOUT_PLAIN ? 0 : bytes;
}

sl_status_t sl_flatten_plan(sl_layer_plan_t *plan_p)
{
    const int is_plain = plan_p->in[0].layout == SL_LAYOUT_PLAIN;

    plan_p->accumulates = 1;
    plan_p->passes_gradient = is_plain;
    plan_p->in_place = is_plain;
    return SL_OK;
}

const sl_layer_ops_t sl_layer_flatten = {
    .size = sizeof(sl_layer_ops_t),
    .name = "flatten",
    .brief = "one row for each sample",
    .attr_defs = attr_defs,
    .attrs_bytes = 0,
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(flatten)},
};
