/* SPDX-License-Identifier: Apache-2.0 */
/* conv2d: 2-d convolution with PyTorch's shapes and initial values. */
#include <inttypes.h>
#include <math.h>

#include "layers/image_internal.h"
#include "layers/layers_internal.h"

#define FIELD(name) offsetof(sl_conv2d_attrs_t, name)
#define MOST_WEIGHTS 68719476736.0 /* 2^36 */
/* Channels: far above use, and products do not overflow. */
#define MOST 1048576

static const sl_attr_def_t attr_defs[] = {
    {"out", SL_ATTR_INT, FIELD(out), 1, 0, 1, MOST, NULL, "output channels"},
    {"kernel", SL_ATTR_INT, FIELD(kernel), 1, 0, 1, 1024, NULL,
     "height and width of the kernel"},
    {"kernel_w", SL_ATTR_INT, FIELD(kernel_w), 0, 0, 0, 1024, NULL,
     "width of the kernel; 0: as its height"},
    {"stride", SL_ATTR_INT, FIELD(stride), 0, 1, 1, 1024, NULL,
     "step of the kernel"},
    {"pad", SL_ATTR_INT, FIELD(pad), 0, 0, 0, 1024, NULL,
     "zeros added on each side"},
    {"dilation", SL_ATTR_INT, FIELD(dilation), 0, 1, 1, 1024, NULL,
     "distance of the kernel's points"},
    {"groups", SL_ATTR_INT, FIELD(groups), 0, 1, 1, MOST, NULL,
     "independent groups of channels"},
    {"bias", SL_ATTR_BOOL, FIELD(bias), 0, 1, 0, 1, NULL, "add a bias"},
    {"init", SL_ATTR_CHOICE, FIELD(init), 0, SL_CONV_INIT_UNIFORM, 0, 0,
     "uniform|kaiming", "initial weights"},
    {0},
};

static int64_t kernel_width(const sl_conv2d_attrs_t *attrs)
{
    return attrs->kernel_w == 0 ? attrs->kernel : attrs->kernel_w;
}

static sl_status_t infer(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p)
{
    const sl_conv2d_attrs_t *attrs = layer->attrs;
    char label[SL_LAYER_LABEL_BYTES];
    char shape[SL_TENSOR_TEXT_BYTES];
    int64_t height, width;
    sl_status_t status;

    if (!sl_is_image(in)) {
        return sl_layer_refuse_input(layer, 0, in,
                                     "f32 [batch, channels, height, width]");
    }
    if (in->dims[1] % attrs->groups != 0 || attrs->out % attrs->groups != 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: %" PRId64 " groups do not divide both %" PRId64
                " input and %" PRId64 " output channels",
                sl_layer_label(layer, label), attrs->groups, in->dims[1],
                attrs->out);
    }
    height = sl_window_out(in->dims[2], attrs->kernel, attrs->stride,
                           attrs->pad, attrs->dilation);
    width = sl_window_out(in->dims[3], kernel_width(attrs), attrs->stride,
                          attrs->pad, attrs->dilation);
    if (height < 1 || width < 1) {
        sl_tensor_desc_format(in, shape, sizeof(shape));
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: the %" PRId64 " x %" PRId64 " kernel with pad %" PRId64
                " and dilation %" PRId64 " is larger than its input %s",
                sl_layer_label(layer, label), attrs->kernel,
                kernel_width(attrs), attrs->pad, attrs->dilation, shape);
    }
    *out_p = *in;
    out_p->layout = sl_image_layout(layer);
    out_p->dtype = layer->dtype;
    out_p->dims[1] = attrs->out;
    out_p->dims[2] = height;
    out_p->dims[3] = width;
    return SL_OK;
out:
    return status;
}

static sl_status_t declare_params(sl_layer_t *layer, const sl_tensor_desc_t *in)
{
    sl_conv2d_attrs_t *attrs = layer->attrs;
    const int64_t dims[4] = {attrs->out, in->dims[1] / attrs->groups,
                             attrs->kernel, kernel_width(attrs)};
    const double area = (double)(dims[2] * dims[3]);
    const double bound = 1.0 / sqrt((double)dims[1] * area);
    char label[SL_LAYER_LABEL_BYTES];
    sl_param_t *weight;
    sl_status_t status;

    if ((double)dims[0] * (double)dims[1] * area > MOST_WEIGHTS) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: the weights would have more than 2^36 elements",
                sl_layer_label(layer, label));
    }
    attrs->sample = *in;
    attrs->sample.dims[0] = 1;
    /* PyTorch's fan out counts all output channels, whatever the groups */
    if (attrs->init == SL_CONV_INIT_KAIMING) {
        weight = sl_layer_param_add(layer, "weight", SL_PARAM_TRAINED, 4, dims,
                                    SL_INIT_NORMAL,
                                    sqrt(2.0 / ((double)dims[0] * area)));
    } else {
        weight = sl_layer_param_add(layer, "weight", SL_PARAM_TRAINED, 4, dims,
                                    SL_INIT_UNIFORM, bound);
    }
    if (attrs->bias) {
        (void)sl_layer_param_add(layer, "bias", SL_PARAM_TRAINED, 1, dims,
                                 SL_INIT_UNIFORM, bound);
    }
    status = layer->kind == SL_DEVICE_KIND_CPU
                 ? sl_cpu_conv2d_weight_bytes(layer, &weight->storage_bytes)
                 : SL_OK;
out:
    return status;
}

static void cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    const sl_tensor_desc_t *weight = &layer->params[SL_CONV_WEIGHT].desc;
    const double macs = (double)sl_tensor_elements(out) *
                        (double)(sl_tensor_elements(weight) / weight->dims[0]);
    const double x = (double)sl_tensor_bytes(in);
    const double y = (double)sl_tensor_bytes(out);
    const double w = (double)layer->params[SL_CONV_WEIGHT].storage_bytes;

    cost_p->forward_flops = 2 * macs;
    cost_p->backward_flops = 4 * macs;
    cost_p->forward_bytes = x + w + y;
    /* data: y, w (read, turned over and read), x; weights: x, y, and w
     * written and added */
    cost_p->backward_bytes = 2 * x + 2 * y + 7 * w;
}

const sl_layer_ops_t sl_layer_conv2d = {
    .size = sizeof(sl_layer_ops_t),
    .name = "conv2d",
    .brief = "2-d convolution",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(sl_conv2d_attrs_t),
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = infer,
    .declare_params = declare_params,
    .cost = cost,
    .kernels = {SL_KERNELS(conv2d)},
};
