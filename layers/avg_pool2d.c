/* SPDX-License-Identifier: Apache-2.0 */
/* avg_pool2d: the mean of each window. */
#include "layers/image_internal.h"
#include "layers/layers_internal.h"

#define FIELD(name) offsetof(sl_pool2d_attrs_t, name)

static const sl_attr_def_t attr_defs[] = {
    {"kernel", SL_ATTR_INT, FIELD(kernel), 1, 0, 1, 1024, NULL,
     "height and width of the window"},
    {"stride", SL_ATTR_INT, FIELD(stride), 0, 0, 0, 1024, NULL,
     "step of the window; 0: kernel"},
    {"pad", SL_ATTR_INT, FIELD(pad), 0, 0, 0, 512, NULL,
     "zeros added on each side, at most half the kernel"},
    {"count_include_pad", SL_ATTR_BOOL, FIELD(count_include_pad), 0, 1, 0, 1,
     NULL, "divide by the whole window, padding too"},
    {0},
};

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const sl_pool2d_attrs_t *attrs = layer->attrs;

    cost_p->forward_flops = (double)sl_tensor_elements(out) *
                            (double)(attrs->kernel * attrs->kernel);
    cost_p->backward_flops = cost_p->forward_flops;
    cost_p->forward_bytes =
        (double)sl_tensor_bytes(in) + (double)sl_tensor_bytes(out);
    cost_p->backward_bytes = cost_p->forward_bytes;
}

const sl_layer_ops_t sl_layer_avg_pool2d = {
    .size = sizeof(sl_layer_ops_t),
    .name = "avg_pool2d",
    .brief = "mean of each window",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_pool2d_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = sl_pool2d_infer,
    .cost = cost,
    .kernels = {SL_KERNELS(avg_pool2d)},
};
