/* SPDX-License-Identifier: Apache-2.0 */
/* concat: channels of images, or the last dimension of other tensors. */
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {{0}};

/* Equal but for one dimension. */
static int is_alike(const sl_tensor_desc_t *a, const sl_tensor_desc_t *b,
                    int but)
{
    int i;

    if (a->dtype != b->dtype || a->n_dims != b->n_dims) {
        return 0;
    }
    for (i = 0; i < a->n_dims; i++) {
        if (i != but && a->dims[i] != b->dims[i]) {
            return 0;
        }
    }
    return 1;
}

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    const int dim = sl_is_image(&in[0]) ? 1 : in[0].n_dims - 1;
    int i;

    if (!sl_is_real(&in[0]) || in[0].n_dims < 2) {
        return sl_layer_refuse_input(layer, 0, in, "f32 [batch, ..., width]");
    }
    *out_p = in[0];
    for (i = 1; i < layer->n_inputs; i++) {
        if (!is_alike(&in[0], &in[i], dim)) {
            return sl_layer_refuse_input(
                layer, i, in,
                dim == 1 && in[0].n_dims == 4
                    ? "as input 0 in all but the channels"
                    : "as input 0 in all but the last dimension");
        }
        out_p->dims[dim] += in[i].dims[dim];
        if (in[i].layout != SL_LAYOUT_PLAIN) {
            out_p->layout = in[i].layout;
        }
    }
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const double bytes = 2 * (double)sl_tensor_bytes(out);

    (void)layer;
    (void)in;
    cost_p->forward_flops = 0;
    cost_p->backward_flops = 0;
    cost_p->forward_bytes = bytes;
    cost_p->backward_bytes = bytes;
}

const sl_layer_ops_t sl_layer_concat = {
    .size = sizeof(sl_layer_ops_t),
    .name = "concat",
    .brief = "the inputs side by side",
    .attr_defs = attr_defs,
    .attrs_bytes = 0,
    .n_inputs_min = 2,
    .n_inputs_max = SL_LAYER_MAX_INPUTS,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(concat)},
};
