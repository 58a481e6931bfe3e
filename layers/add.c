/* SPDX-License-Identifier: Apache-2.0 */
/* add: the sum of 2 to 4 tensors, with dropout of the branches and relu. */

#include <stdio.h>

#include "layers/attrs_internal.h"
#include "layers/cpu/drop.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {
    {.name = "dropout",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(sl_add_attrs_t, dropout),
     .max = SL_DROPOUT_MAX,
     .brief = "probability of zero, for every input but the first"},
    {.name = "relu",
     .kind = SL_ATTR_BOOL,
     .offset = offsetof(sl_add_attrs_t, relu),
     .brief = "max(sum, 0)"},
    {0}};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    char first[SL_TENSOR_TEXT_BYTES];
    char need[SL_TENSOR_TEXT_BYTES + 64];
    int i;

    if (!sl_is_real(&in[0])) {
        return sl_layer_refuse_input(layer, 0, in, "f32");
    }
    for (i = 1; i < layer->n_inputs; i++) {
        if (!sl_tensor_desc_is_equal(&in[0], &in[i])) {
            sl_tensor_desc_format(&in[0], first, sizeof(first));
            (void)snprintf(need, sizeof(need), "as input 0, %s%s", first,
                           in[0].layout != in[i].layout
                               ? " in the same memory layout"
                               : "");
            return sl_layer_refuse_input(layer, i, in, need);
        }
    }
    *out_p = in[0];
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const sl_add_attrs_t *attrs = layer->attrs;
    const double n = (double)sl_tensor_elements(in);
    const double bytes = (double)sl_tensor_bytes(out);
    const double drops = attrs->dropout > 0 ? layer->n_inputs - 1 : 0;

    cost_p->forward_flops = n * (layer->n_inputs - 1 + 20 * drops);
    cost_p->backward_flops = n * (attrs->relu + 20 * drops);
    cost_p->forward_bytes = bytes * (layer->n_inputs + 1);
    cost_p->backward_bytes = attrs->relu || drops > 0
                                 ? bytes * (1 + layer->n_inputs + attrs->relu)
                                 : 0;
}

sl_status_t sl_add_plan(sl_layer_plan_t *plan_p)
{
    const sl_add_attrs_t *attrs = plan_p->layer->attrs;
    const int n = plan_p->layer->n_inputs;
    const int all = (1 << n) - 1;
    const int drops = attrs->dropout > 0 && plan_p->is_training;
    sl_status_t status;

    SL_TRY(status, sl_drop_check_size(plan_p->layer, &plan_p->out, n - 1), out);
    plan_p->keeps_output = attrs->relu;
    plan_p->accumulates = all;
    plan_p->in_place = 1;
    plan_p->passes_gradient = attrs->relu ? 0 : drops ? 1 : all;
out:
    return status;
}

const sl_layer_ops_t sl_layer_add = {
    .size = sizeof(sl_layer_ops_t),
    .name = "add",
    .brief = "sum of the inputs",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_add_attrs_t),
    .n_inputs_min = 2,
    .n_inputs_max = SL_LAYER_MAX_INPUTS,
    .infer = infer,
    .cost = cost,
    .kernels = {SL_KERNELS(add)},
};
