/* SPDX-License-Identifier: Apache-2.0 */
/* global_avg_pool: the mean over height and width, to plain [batch,
 * channels]. */
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {{0}};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    if (!sl_is_image(in)) {
        return sl_layer_refuse_input(layer, 0, in,
                                     "f32 [batch, channels, height, width]");
    }
    *out_p = sl_tensor_desc(in->dtype, 2, in->dims);
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    (void)layer;
    cost_p->forward_flops = (double)sl_tensor_elements(in);
    cost_p->backward_flops = (double)sl_tensor_elements(out);
    cost_p->forward_bytes = (double)sl_tensor_bytes(in);
    cost_p->backward_bytes = (double)sl_tensor_bytes(in);
}

const sl_layer_ops_t sl_layer_global_avg_pool = {
    .size = sizeof(sl_layer_ops_t),
    .name = "global_avg_pool",
    .brief = "mean over height and width",
    .attr_defs = attr_defs,
    .attrs_bytes = 0,
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(global_avg_pool)},
};
