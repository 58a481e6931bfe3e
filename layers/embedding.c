/* SPDX-License-Identifier: Apache-2.0 */
/* embedding: a row of a table for each token, plus one for its position. */

#include <inttypes.h>
#include <stdio.h>

#include "layers/attrs_internal.h"
#include "layers/layers_internal.h"

static const sl_attr_def_t attr_defs[] = {
    {.name = "vocab",
     .kind = SL_ATTR_INT,
     .offset = offsetof(sl_embedding_attrs_t, vocab),
     .is_required = 1,
     .min = 1,
     .max = INT32_MAX,
     .brief = "number of tokens"},
    {.name = "width",
     .kind = SL_ATTR_INT,
     .offset = offsetof(sl_embedding_attrs_t, width),
     .is_required = 1,
     .min = 1,
     .max = INT32_MAX,
     .brief = "length of a token's vector"},
    {.name = "positions",
     .kind = SL_ATTR_BOOL,
     .offset = offsetof(sl_embedding_attrs_t, positions),
     .brief = "add a learned vector of each position"},
    {.name = "init_std",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(sl_embedding_attrs_t, init_std),
     .fallback = 0.02,
     .max = 100,
     .brief = "deviation of the initial values"},
    {0}};

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    const sl_embedding_attrs_t *attrs = layer->attrs;
    char need[96];
    int64_t dims[3];

    if (in[0].dtype != SL_DTYPE_I32 || in[0].n_dims != 2) {
        return sl_layer_refuse_input(layer, 0, in, "tokens i32 [batch, time]");
    }
    if (layer->n_params > SL_EMBEDDING_POSITION &&
        in[0].dims[1] > layer->params[SL_EMBEDDING_POSITION].desc.dims[0]) {
        (void)snprintf(need, sizeof(need), "at most %" PRId64 " tokens long",
                       layer->params[SL_EMBEDDING_POSITION].desc.dims[0]);
        return sl_layer_refuse_input(layer, 0, in, need);
    }
    dims[0] = in[0].dims[0];
    dims[1] = in[0].dims[1];
    dims[2] = attrs->width;
    *out_p = sl_tensor_desc(layer->dtype, 3, dims);
    return SL_OK;
}

static sl_status_t declare_params(sl_layer_t *layer, const sl_tensor_desc_t *in)
{
    const sl_embedding_attrs_t *attrs = layer->attrs;
    const int64_t weight[2] = {attrs->vocab, attrs->width};
    const int64_t position[2] = {in[0].dims[1], attrs->width};

    (void)sl_layer_param_add(layer, "weight", SL_PARAM_TRAINED, 2, weight,
                             SL_INIT_NORMAL, attrs->init_std);
    if (attrs->positions) {
        (void)sl_layer_param_add(layer, "position", SL_PARAM_TRAINED, 2,
                                 position, SL_INIT_NORMAL, attrs->init_std);
    }
    return SL_OK;
}

static int is_token(const sl_embedding_attrs_t *attrs, int32_t value)
{
    return value >= 0 && value < attrs->vocab;
}

/* No token may reach outside of the table. */
static sl_status_t check_input(const sl_layer_plan_t *plan, int input,
                               const int32_t *values)
{
    const sl_embedding_attrs_t *attrs = plan->layer->attrs;
    const sl_tensor_desc_t *in = &plan->in[input];
    const int64_t n = sl_tensor_elements(in);
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status = SL_OK;
    int64_t i;
    int has_bad = 0;

    for (i = 0; i < n; i++) { /* a vector loop */
        has_bad |= !is_token(attrs, values[i]);
    }
    for (i = 0; has_bad && i < n; i++) {
        if (!is_token(attrs, values[i])) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "%s: token %" PRId32 " in row %" PRId64
                    ", position %" PRId64 " is not in 0..%" PRId64,
                    sl_layer_label(plan->layer, label), values[i],
                    i / in->dims[1], i % in->dims[1], attrs->vocab - 1);
        }
    }
out:
    return status;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const sl_embedding_attrs_t *attrs = layer->attrs;
    const double n = (double)sl_tensor_elements(out);
    const double reads = attrs->positions ? 2 : 1;

    cost_p->forward_flops = attrs->positions ? n : 0;
    cost_p->backward_flops = n * reads;
    cost_p->forward_bytes =
        4 * n * (1 + reads) + (double)sl_tensor_bytes(&in[0]);
    cost_p->backward_bytes =
        4 * n * (1 + 2 * reads) + (double)sl_tensor_bytes(&in[0]);
}

const sl_layer_ops_t sl_layer_embedding = {
    .size = sizeof(sl_layer_ops_t),
    .name = "embedding",
    .brief = "vectors of tokens, and of positions",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_embedding_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .declare_params = declare_params,
    .check_input = check_input,
    .cost = cost,
    .kernels = {SL_KERNELS(embedding)},
};
