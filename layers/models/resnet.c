/* SPDX-License-Identifier: Apache-2.0 */
/* resnet: deep residual networks with torchvision's names (He et al., "Deep
 * residual learning for image recognition", 2016; v1.5: the stride of a
 * bottleneck is in its 3x3 convolution). */
#include <stddef.h>
#include <stdio.h>

#include "layers/image_internal.h"
#include "layers/models/builder.h"

typedef struct resnet_attrs {
    int depth; /* index into depths */
    int stem;  /* 0: imagenet, 1: cifar */
    int64_t classes;
    int zero_init_residual;
} resnet_attrs_t;

static const struct {
    int blocks[4];
    int is_bottleneck;
} depths[] = {{{2, 2, 2, 2}, 0},
              {{3, 4, 6, 3}, 0},
              {{3, 4, 6, 3}, 1},
              {{3, 4, 23, 3}, 1},
              {{3, 8, 36, 3}, 1}};

static const sl_attr_def_t attr_defs[] = {
    {.name = "depth",
     .kind = SL_ATTR_CHOICE,
     .offset = offsetof(resnet_attrs_t, depth),
     .choices = "18|34|50|101|152",
     .brief = "layers with weights"},
    {.name = "stem",
     .kind = SL_ATTR_CHOICE,
     .offset = offsetof(resnet_attrs_t, stem),
     .choices = "imagenet|cifar",
     .brief = "7x7 stride 2 and pooling, or 3x3 for small images"},
    {.name = "classes",
     .kind = SL_ATTR_INT,
     .offset = offsetof(resnet_attrs_t, classes),
     .fallback = 1000,
     .min = 1,
     .max = 1 << 24,
     .brief = "number of classes"},
    {.name = "zero_init_residual",
     .kind = SL_ATTR_BOOL,
     .offset = offsetof(resnet_attrs_t, zero_init_residual),
     .brief = "each block starts as the identity"},
    {0}};

static int add_conv(sl_builder_t *b, int from, int64_t out, int kernel,
                    int stride, const char *block, const char *name)
{
    return sl_builder_add(
        b, "conv2d", from, SL_BUILDER_NONE,
        SL_BUILDER_ATTRS({.name = "out", .number = (double)out},
                         {.name = "kernel", .number = kernel},
                         {.name = "stride", .number = stride},
                         {.name = "pad", .number = kernel / 2},
                         {.name = "bias", .number = 0},
                         {.name = "init", .text = "kaiming"}),
        "%s%s", block, name);
}

/* skip: second input of the sum before relu, or SL_BUILDER_NONE */
static int add_norm(sl_builder_t *b, int from, int skip, int relu,
                    const char *block, const char *name)
{
    return sl_builder_add(b, "batch_norm", from, skip,
                          SL_BUILDER_ATTRS({.name = "relu", .number = relu}),
                          "%s%s", block, name);
}

static void add_block(sl_builder_t *b, const resnet_attrs_t *attrs,
                      int64_t width, int stride, int has_downsample,
                      const char *block)
{
    const int is_bottleneck = depths[attrs->depth].is_bottleneck;
    const int64_t out = is_bottleneck ? 4 * width : width;
    const int in = b->last;
    int skip = in;
    int x;

    if (has_downsample) {
        skip = add_conv(b, in, out, 1, stride, block, "downsample.0");
        skip = add_norm(b, skip, SL_BUILDER_NONE, 0, block, "downsample.1");
    }
    if (is_bottleneck) {
        x = add_conv(b, in, width, 1, 1, block, "conv1");
        x = add_norm(b, x, SL_BUILDER_NONE, 1, block, "bn1");
        x = add_conv(b, x, width, 3, stride, block, "conv2");
        x = add_norm(b, x, SL_BUILDER_NONE, 1, block, "bn2");
        x = add_conv(b, x, out, 1, 1, block, "conv3");
        x = add_norm(b, x, skip, 1, block, "bn3");
    } else {
        x = add_conv(b, in, width, 3, stride, block, "conv1");
        x = add_norm(b, x, SL_BUILDER_NONE, 1, block, "bn1");
        x = add_conv(b, x, width, 3, 1, block, "conv2");
        x = add_norm(b, x, skip, 1, block, "bn2");
    }
    if (attrs->zero_init_residual && b->status >= 0) {
        b->model->layers[x]->params[SL_BN_WEIGHT].init = SL_INIT_ZERO;
    }
}

static void add_stem(sl_builder_t *b, const resnet_attrs_t *attrs)
{
    const int is_small = attrs->stem == 1;

    (void)add_conv(b, SL_INPUT_DATA, 64, is_small ? 3 : 7, is_small ? 1 : 2, "",
                   "conv1");
    (void)add_norm(b, b->last, SL_BUILDER_NONE, 1, "", "bn1");
    if (!is_small) {
        (void)sl_builder_add(b, "max_pool2d", b->last, SL_BUILDER_NONE,
                             SL_BUILDER_ATTRS({.name = "kernel", .number = 3},
                                              {.name = "stride", .number = 2},
                                              {.name = "pad", .number = 1}),
                             "maxpool");
    }
}

static sl_status_t build(const void *attrs_v, const sl_tensor_desc_t *data,
                         const sl_tensor_desc_t *target, sl_model_t **model_p)
{
    const resnet_attrs_t *attrs = attrs_v;
    sl_builder_t b;
    char block[32];
    int stage, i;

    sl_builder_begin(&b, "resnet", data, target);
    add_stem(&b, attrs);
    for (stage = 0; stage < 4; stage++) {
        for (i = 0; i < depths[attrs->depth].blocks[stage]; i++) {
            const int is_first = i == 0;
            /* only where shapes change: not at the start of a basic stage 1 */
            const int has_downsample =
                is_first && (stage > 0 || depths[attrs->depth].is_bottleneck);

            (void)snprintf(block, sizeof(block), "layer%d.%d.", stage + 1, i);
            add_block(&b, attrs, (int64_t)64 << stage,
                      is_first && stage > 0 ? 2 : 1, has_downsample, block);
        }
    }
    (void)sl_builder_add(&b, "global_avg_pool", b.last, SL_BUILDER_NONE, NULL,
                         0, "avgpool");
    (void)sl_builder_add(
        &b, "linear", b.last, SL_BUILDER_NONE,
        SL_BUILDER_ATTRS({.name = "out", .number = (double)attrs->classes}),
        "fc");
    (void)sl_builder_add(&b, "softmax_cross_entropy", b.last, SL_INPUT_TARGET,
                         NULL, 0, "loss");
    return sl_builder_end(&b, model_p);
}

const sl_model_ops_t sl_model_resnet = {
    .name = "resnet",
    .brief = "residual network for images",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(resnet_attrs_t),
    .build = build,
};
