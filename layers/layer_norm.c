/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm: rows of mean 0 and variance 1, times weight, plus bias. */
#include "layers/attrs_internal.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {
    {.name = "eps",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(sl_layer_norm_attrs_t, eps),
     .fallback = 1e-5,
     .min = 1e-12,
     .max = 1,
     .brief = "added to the variance"},
    {0}};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    if (!sl_is_real(&in[0]) || in[0].n_dims < 2 ||
        in[0].layout != SL_LAYOUT_PLAIN) {
        return sl_layer_refuse_input(layer, 0, in,
                                     "plain f32 [batch, ..., width]");
    }
    *out_p = in[0];
    return SL_OK;
}

static sl_status_t declare_params(sl_layer_t *layer, const sl_tensor_desc_t *in)
{
    const int64_t width = in[0].dims[in[0].n_dims - 1];

    (void)sl_layer_param_add(layer, "weight", SL_PARAM_TRAINED, 1, &width,
                             SL_INIT_ONE, 0);
    (void)sl_layer_param_add(layer, "bias", SL_PARAM_TRAINED, 1, &width,
                             SL_INIT_ZERO, 0);
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const double bytes = (double)sl_tensor_bytes(out);

    (void)layer;
    cost_p->forward_flops = 8.0 * (double)sl_tensor_elements(in);
    cost_p->backward_flops = 14.0 * (double)sl_tensor_elements(in);
    cost_p->forward_bytes = 2 * bytes;
    cost_p->backward_bytes = 3 * bytes;
}

const sl_layer_ops_t sl_layer_layer_norm = {
    .size = sizeof(sl_layer_ops_t),
    .name = "layer_norm",
    .brief = "normalization of the last dimension",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_layer_norm_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .declare_params = declare_params,
    .cost = cost,
    .kernels = {SL_KERNELS(layer_norm)},
};
