/* SPDX-License-Identifier: Apache-2.0 */
/* dropout: zeroes elements at random while training, scales the rest. */
#include "layers/attrs_internal.h"
#include "layers/cpu/drop.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {
    {.name = "p",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(sl_dropout_attrs_t, p),
     .fallback = 0.5,
     .min = 0,
     .max = SL_DROPOUT_MAX,
     .brief = "probability of an element to become 0"},
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
    cost_p->backward_flops = cost_p->forward_flops;
    cost_p->forward_bytes = 2 * bytes;
    cost_p->backward_bytes = 2 * bytes;
}

sl_status_t sl_dropout_plan(sl_layer_plan_t *plan_p)
{
    const sl_dropout_attrs_t *attrs = plan_p->layer->attrs;
    sl_status_t status;

    SL_TRY(status, sl_drop_check_size(plan_p->layer, &plan_p->out, 1), out);
    plan_p->in_place = 1;
    plan_p->accumulates = 1;
    plan_p->passes_gradient = attrs->p <= 0 || !plan_p->is_training;
out:
    return status;
}

const sl_layer_ops_t sl_layer_dropout = {
    .size = sizeof(sl_layer_ops_t),
    .name = "dropout",
    .brief = "random zeroes while training",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_dropout_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(dropout)},
};
