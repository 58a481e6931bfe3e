/* SPDX-License-Identifier: Apache-2.0 */
/* gelu: x times the normal distribution function of x, exact or by tanh. */
#include "layers/attrs_internal.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {
    {.name = "kind",
     .kind = SL_ATTR_CHOICE,
     .offset = offsetof(sl_gelu_attrs_t, kind),
     .choices = "tanh|erf",
     .brief = "tanh approximation or the exact function"},
    {0}};

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
    cost_p->forward_flops = 20.0 * (double)sl_tensor_elements(in);
    cost_p->backward_flops = 30.0 * (double)sl_tensor_elements(in);
    cost_p->forward_bytes = 2 * bytes;
    cost_p->backward_bytes = 3 * bytes;
}

const sl_layer_ops_t sl_layer_gelu = {
    .size = sizeof(sl_layer_ops_t),
    .name = "gelu",
    .brief = "Gaussian error linear unit",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_gelu_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(gelu)},
};
