/* SPDX-License-Identifier: Apache-2.0 */
/* relu: max(x, 0). */
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {{0}};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    if (!sl_is_real(&in[0])) {
        return sl_layer_refuse_input(layer, 0, in, "f32");
    }
    *out_p = in[0];
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const double bytes = (double)sl_tensor_bytes(out);

    (void)layer;
    cost_p->forward_flops = (double)sl_tensor_elements(in);
    cost_p->backward_flops = cost_p->forward_flops;
    cost_p->forward_bytes = 2 * bytes;
    cost_p->backward_bytes = 3 * bytes;
}

const sl_layer_ops_t sl_layer_relu = {
    .size = sizeof(sl_layer_ops_t),
    .name = "relu",
    .brief = "max(x, 0)",
    .attr_defs = attr_defs,
    .attrs_bytes = 0,
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(relu)},
};
