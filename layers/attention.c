/* SPDX-License-Identifier: Apache-2.0 */
/* attention: softmax(Q K^T / sqrt(d)) V for every head. */
#include "layers/attention_internal.h"

#include <stddef.h>
#include <stdio.h>

#include "layers/attrs_internal.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {
    {.name = "heads",
     .kind = SL_ATTR_INT,
     .offset = offsetof(sl_attention_attrs_t, heads),
     .is_required = 1,
     .min = 1,
     .max = 1 << 20,
     .brief = "number of heads; divides the width"},
    {.name = "dropout",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(sl_attention_attrs_t, dropout),
     .max = SL_DROPOUT_MAX,
     .brief = "share of the probabilities dropped in training"},
    {.name = "causal",
     .kind = SL_ATTR_BOOL,
     .offset = offsetof(sl_attention_attrs_t, causal),
     .fallback = 1,
     .brief = "whether a position sees earlier ones and itself only"},
    {0},
};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    const sl_attention_attrs_t *attrs = layer->attrs;
    char need[96];

    if (!sl_is_real(&in[0]) || in[0].layout != SL_LAYOUT_PLAIN ||
        in[0].n_dims != 3 || in[0].dims[2] % (3 * attrs->heads) != 0) {
        (void)snprintf(need, sizeof(need),
                       "f32 [batch, time, 3 * width] with a width that %lld"
                       " heads divide",
                       (long long)attrs->heads);
        return sl_layer_refuse_input(layer, 0, in, need);
    }
    *out_p = in[0];
    out_p->dims[2] = in[0].dims[2] / 3;
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const sl_attention_attrs_t *attrs = layer->attrs;
    const double time = (double)in->dims[1];
    const double seen = attrs->causal ? (time + 1) / 2 : time;
    const double in_bytes = (double)sl_tensor_bytes(in);
    const double out_bytes = (double)sl_tensor_bytes(out);

    /* two products forward; these and three more backward */
    cost_p->forward_flops = 4 * (double)sl_tensor_elements(out) * seen;
    cost_p->backward_flops = 2.5 * cost_p->forward_flops;
    cost_p->forward_bytes = in_bytes + out_bytes;
    cost_p->backward_bytes = 2 * in_bytes + 2 * out_bytes;
}

const sl_layer_ops_t sl_layer_attention = {
    .size = sizeof(sl_layer_ops_t),
    .name = "attention",
    .brief = "scaled dot-product attention of [queries | keys | values]",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_attention_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(attention)},
};
