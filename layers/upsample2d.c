/* SPDX-License-Identifier: Apache-2.0 */
/* upsample2d: each pixel repeated factor x factor times. */
#include "layers/attrs_internal.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {
    {.name = "factor",
     .kind = SL_ATTR_INT,
     .offset = offsetof(sl_upsample2d_attrs_t, factor),
     .fallback = 2,
     .min = 1,
     .max = 1024,
     .brief = "growth of height and width"},
    {0}};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    const sl_upsample2d_attrs_t *attrs = layer->attrs;

    if (!sl_is_image(&in[0])) {
        return sl_layer_refuse_input(layer, 0, in,
                                     "f32 [batch, channels, height, width]");
    }
    *out_p = in[0];
    out_p->dims[2] *= attrs->factor;
    out_p->dims[3] *= attrs->factor;
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const double bytes =
        (double)sl_tensor_bytes(out) + (double)sl_tensor_bytes(&in[0]);

    (void)layer;
    cost_p->forward_flops = 0;
    cost_p->backward_flops = (double)sl_tensor_elements(out);
    cost_p->forward_bytes = bytes;
    cost_p->backward_bytes = bytes;
}

const sl_layer_ops_t sl_layer_upsample2d = {
    .size = sizeof(sl_layer_ops_t),
    .name = "upsample2d",
    .brief = "nearest neighbour upsampling",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_upsample2d_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(upsample2d)},
};
