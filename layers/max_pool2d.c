/* SPDX-License-Identifier: Apache-2.0 */
/* max_pool2d: the largest value of each window; padding never wins, NaN
 * does. Also the shape of both window pools. */
#include <inttypes.h>

#include "layers/image_internal.h"
#include "layers/layers_internal.h"

#define FIELD(name) offsetof(sl_pool2d_attrs_t, name)

/* A place in the largest window fits a byte: 16 x 16. */
static const sl_attr_def_t attr_defs[] = {
    {"kernel", SL_ATTR_INT, FIELD(kernel), 1, 0, 1, 16, NULL,
     "height and width of the window"},
    {"stride", SL_ATTR_INT, FIELD(stride), 0, 0, 0, 1024, NULL,
     "step of the window; 0: kernel"},
    {"pad", SL_ATTR_INT, FIELD(pad), 0, 0, 0, 8, NULL,
     "padding on each side, at most half the kernel"},
    {0},
};

sl_status_t sl_pool2d_infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                            sl_tensor_desc_t *out_p)
{
    const sl_pool2d_attrs_t *attrs = layer->attrs;
    const int64_t stride = attrs->stride == 0 ? attrs->kernel : attrs->stride;
    char label[SL_LAYER_LABEL_BYTES];
    char shape[SL_TENSOR_TEXT_BYTES];
    int64_t height, width;
    sl_status_t status;

    if (!sl_is_image(in)) {
        return sl_layer_refuse_input(layer, 0, in,
                                     "f32 [batch, channels, height, width]");
    }
    if (attrs->pad * 2 > attrs->kernel) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: pad %" PRId64 " is more than half the kernel %" PRId64,
                sl_layer_label(layer, label), attrs->pad, attrs->kernel);
    }
    height = sl_window_out(in->dims[2], attrs->kernel, stride, attrs->pad, 1);
    width = sl_window_out(in->dims[3], attrs->kernel, stride, attrs->pad, 1);
    if (height < 1 || width < 1) {
        sl_tensor_desc_format(in, shape, sizeof(shape));
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: the window of %" PRId64 " with pad %" PRId64
                " is larger than its input %s",
                sl_layer_label(layer, label), attrs->kernel, attrs->pad, shape);
    }
    *out_p = *in;
    out_p->dims[2] = height;
    out_p->dims[3] = width;
    return SL_OK;
out:
    return status;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const sl_pool2d_attrs_t *attrs = layer->attrs;
    const double x = (double)sl_tensor_bytes(in);
    const double y = (double)sl_tensor_bytes(out);

    cost_p->forward_flops = (double)sl_tensor_elements(out) *
                            (double)(attrs->kernel * attrs->kernel);
    cost_p->backward_flops = cost_p->forward_flops;
    cost_p->forward_bytes = x + y * 1.25; /* a byte a place */
    cost_p->backward_bytes = cost_p->forward_bytes;
}

const sl_layer_ops_t sl_layer_max_pool2d = {
    .size = sizeof(sl_layer_ops_t),
    .name = "max_pool2d",
    .brief = "largest value of each window",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_pool2d_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = sl_pool2d_infer,
    .cost = cost,
    .kernels = {SL_KERNELS(max_pool2d)},
};
