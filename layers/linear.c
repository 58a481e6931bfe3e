/* SPDX-License-Identifier: Apache-2.0 */
/* linear: y = x W^T + b over the last dimension. */
#include "layers/linear_internal.h"

#include <math.h>
#include <stddef.h>

#include "layers/layers_internal.h"

enum {
    INIT_UNIFORM,
    INIT_NORMAL
};

static const sl_attr_def_t attr_defs[] = {
    {.name = "out",
     .kind = SL_ATTR_INT,
     .offset = offsetof(sl_linear_attrs_t, out),
     .is_required = 1,
     .min = 1,
     .max = 1 << 30,
     .brief = "size of the last dimension of the output"},
    {.name = "bias",
     .kind = SL_ATTR_BOOL,
     .offset = offsetof(sl_linear_attrs_t, bias),
     .fallback = 1,
     .brief = "whether a bias is added"},
    {.name = "init",
     .kind = SL_ATTR_CHOICE,
     .offset = offsetof(sl_linear_attrs_t, init),
     .choices = "uniform|normal",
     .brief = "initial values: uniform within 1/sqrt(in), or normal weights"
              " and no bias"},
    {.name = "init_std",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(sl_linear_attrs_t, init_std),
     .fallback = 0.02,
     .max = 1e3,
     .brief = "deviation of initial weights (init: normal)"},
    {.name = "tie",
     .kind = SL_ATTR_TEXT,
     .offset = offsetof(sl_linear_attrs_t, tie),
     .brief = "name of the layer whose weight is used"},
    {0},
};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    const sl_linear_attrs_t *attrs = layer->attrs;

    if (!sl_is_real(&in[0]) || in[0].layout != SL_LAYOUT_PLAIN ||
        in[0].n_dims < 2) {
        return sl_layer_refuse_input(layer, 0, in,
                                     "f32 [batch, ..., in], plain");
    }
    *out_p = in[0];
    out_p->dims[out_p->n_dims - 1] = attrs->out;
    out_p->dtype = layer->dtype;
    return SL_OK;
}

static sl_status_t declare_params(sl_layer_t *layer, const sl_tensor_desc_t *in)
{
    const sl_linear_attrs_t *attrs = layer->attrs;
    const int64_t dims[2] = {attrs->out, in[0].dims[in[0].n_dims - 1]};
    const double bound = 1.0 / sqrt((double)dims[1]);
    const int is_normal = attrs->init == INIT_NORMAL;

    (void)sl_layer_param_add(layer, "weight", SL_PARAM_TRAINED, 2, dims,
                             is_normal ? SL_INIT_NORMAL : SL_INIT_UNIFORM,
                             is_normal ? attrs->init_std : bound);
    if (attrs->bias) {
        (void)sl_layer_param_add(layer, "bias", SL_PARAM_TRAINED, 1, dims,
                                 is_normal ? SL_INIT_ZERO : SL_INIT_UNIFORM,
                                 bound);
    }
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const double rows = (double)sl_tensor_rows(in);
    const double n_in = (double)in->dims[in->n_dims - 1];
    const double n_out = (double)out->dims[out->n_dims - 1];
    const double x = rows * n_in;
    const double y = rows * n_out;
    const double weight = n_in * n_out;

    (void)layer;
    cost_p->forward_flops = 2 * rows * weight;
    cost_p->backward_flops = 4 * rows * weight;
    cost_p->forward_bytes = 4 * (x + weight + y);
    /* dx from (dy, W), and dW (read, added to, written) from (dy, x) */
    cost_p->backward_bytes = 4 * (2 * y + 2 * x + 3 * weight);
}

const sl_layer_ops_t sl_layer_linear = {
    .size = sizeof(sl_layer_ops_t),
    .name = "linear",
    .brief = "x W^T + b over the last dimension",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_linear_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .declare_params = declare_params,
    .cost = cost,
    .kernels = {SL_KERNELS(linear)},
};
