/* SPDX-License-Identifier: Apache-2.0 */
/* mlp: hidden layers with an activation, then classes. */
#include <stddef.h>

#include "layers/models/builder.h"

typedef struct mlp_attrs {
    int64_t hidden;
    int64_t layers;
    int64_t classes;
    int activation; /* 0: relu, 1: gelu */
    double dropout;
} mlp_attrs_t;

static const sl_attr_def_t attr_defs[] = {
    {.name = "hidden",
     .kind = SL_ATTR_INT,
     .offset = offsetof(mlp_attrs_t, hidden),
     .fallback = 128,
     .min = 1,
     .max = 1 << 24,
     .brief = "width of the hidden layers"},
    {.name = "layers",
     .kind = SL_ATTR_INT,
     .offset = offsetof(mlp_attrs_t, layers),
     .fallback = 2,
     .min = 0,
     .max = 10000,
     .brief = "number of hidden layers"},
    {.name = "classes",
     .kind = SL_ATTR_INT,
     .offset = offsetof(mlp_attrs_t, classes),
     .is_required = 1,
     .min = 1,
     .max = 1 << 24,
     .brief = "number of classes"},
    {.name = "activation",
     .kind = SL_ATTR_CHOICE,
     .offset = offsetof(mlp_attrs_t, activation),
     .choices = "relu|gelu",
     .brief = "after each hidden layer"},
    {.name = "dropout",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(mlp_attrs_t, dropout),
     .max = 0x1.fffffffffffffp-1,
     .brief = "after each activation"},
    {0}};

static sl_status_t build(const void *attrs_v, const sl_tensor_desc_t *data,
                         const sl_tensor_desc_t *target, sl_model_t **model_p)
{
    const mlp_attrs_t *attrs = attrs_v;
    const char *activation = attrs->activation == 0 ? "relu" : "gelu";
    sl_builder_t b;
    int i;

    sl_builder_begin(&b, "mlp", data, target);
    if (data->n_dims > 2) {
        (void)sl_builder_add(&b, "flatten", b.last, SL_BUILDER_NONE, NULL, 0,
                             "flatten");
    }
    for (i = 1; i <= (int)attrs->layers; i++) {
        (void)sl_builder_add(
            &b, "linear", b.last, SL_BUILDER_NONE,
            SL_BUILDER_ATTRS({.name = "out", .number = (double)attrs->hidden}),
            "fc%d", i);
        (void)sl_builder_add(&b, activation, b.last, SL_BUILDER_NONE, NULL, 0,
                             "act%d", i);
        if (attrs->dropout > 0) {
            (void)sl_builder_add(
                &b, "dropout", b.last, SL_BUILDER_NONE,
                SL_BUILDER_ATTRS({.name = "p", .number = attrs->dropout}),
                "drop%d", i);
        }
    }
    (void)sl_builder_add(
        &b, "linear", b.last, SL_BUILDER_NONE,
        SL_BUILDER_ATTRS({.name = "out", .number = (double)attrs->classes}),
        "fc");
    (void)sl_builder_add(&b, "softmax_cross_entropy", b.last, SL_INPUT_TARGET,
                         NULL, 0, "loss");
    return sl_builder_end(&b, model_p);
}

const sl_model_ops_t sl_model_mlp = {
    .name = "mlp",
    .brief = "multi-layer perceptron",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(mlp_attrs_t),
    .build = build,
};
