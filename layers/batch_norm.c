/* SPDX-License-Identifier: Apache-2.0 */
/* batch_norm: over batch, height and width, with an optional added skip
 * connection and relu. Each micro-batch is normalised by its own statistics;
 * the running ones move once a mini-batch, from sums over all of it. */
#include "layers/image_internal.h"
#include "layers/layers_internal.h"

#define FIELD(name) offsetof(sl_batch_norm_attrs_t, name)

static const sl_attr_def_t attr_defs[] = {
    {"eps", SL_ATTR_FLOAT, FIELD(eps), 0, 1e-5, 1e-12, 1, NULL,
     "added to the variance"},
    {"momentum", SL_ATTR_FLOAT, FIELD(momentum), 0, 0.1, 0, 1, NULL,
     "share of a mini-batch in the running statistics"},
    {"relu", SL_ATTR_BOOL, FIELD(relu), 0, 0, 0, 1, NULL,
     "max(y, 0), after the skip connection"},
    {0},
};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    char need[SL_TENSOR_TEXT_BYTES];

    if (!sl_is_image(in)) {
        return sl_layer_refuse_input(layer, 0, in,
                                     "f32 [batch, channels, height, width]");
    }
    if (layer->n_inputs > 1 && !sl_tensor_desc_is_equal(&in[0], &in[1])) {
        sl_tensor_desc_format(in, need, sizeof(need));
        return sl_layer_refuse_input(layer, 1, in, need);
    }
    *out_p = in[0];
    return SL_OK;
}

static sl_status_t declare_params(sl_layer_t *layer, const sl_tensor_desc_t *in)
{
    const int64_t channels = in->dims[1];
    const int64_t sums_dims[2] = {3, channels};
    sl_param_t *sums;

    (void)sl_layer_param_add(layer, "weight", SL_PARAM_TRAINED, 1, &channels,
                             SL_INIT_ONE, 0);
    (void)sl_layer_param_add(layer, "bias", SL_PARAM_TRAINED, 1, &channels,
                             SL_INIT_ZERO, 0);
    (void)sl_layer_param_add(layer, "running_mean", SL_PARAM_STATISTIC, 1,
                             &channels, SL_INIT_ZERO, 0);
    (void)sl_layer_param_add(layer, "running_var", SL_PARAM_STATISTIC, 1,
                             &channels, SL_INIT_ONE, 0);
    sums = sl_layer_param_add(layer, "sums", SL_PARAM_ACCUMULATOR, 2, sums_dims,
                              SL_INIT_ZERO, 0);
    sums->desc.dtype = SL_DTYPE_F64;
    sums->storage_bytes = sl_tensor_bytes(&sums->desc);
    return SL_OK;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const sl_batch_norm_attrs_t *attrs = layer->attrs;
    const double n = (double)sl_tensor_elements(in);
    const double bytes = (double)sl_tensor_bytes(out);
    const int has_skip = layer->n_inputs > 1;
    /* backward: x and dout twice and dx; with a skip connection its gradient
     * is written once and read instead of dout; the mask reads y once */
    const int backward = 5 + has_skip + (has_skip && attrs->relu);

    cost_p->forward_flops = (8 + has_skip + attrs->relu) * n;
    cost_p->backward_flops = (12 + attrs->relu) * n;
    cost_p->forward_bytes = (3 + has_skip) * bytes;
    cost_p->backward_bytes = backward * bytes;
}

const sl_layer_ops_t sl_layer_batch_norm = {
    .size = sizeof(sl_layer_ops_t),
    .name = "batch_norm",
    .brief = "batch normalisation, optional skip connection and relu",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_batch_norm_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 2,
    .infer = infer,
    .declare_params = declare_params,
    .cost = cost,
    .kernels = {SL_KERNELS(batch_norm)},
};
