/* SPDX-License-Identifier: Apache-2.0 */
/* gpt: the GPT-2 transformer, with its names and initial values (Radford et
 * al., "Language models are unsupervised multitask learners", 2019). */
#include <math.h>
#include <stddef.h>

#include "layers/models/builder.h"

typedef struct gpt_attrs {
    int64_t layers;
    int64_t width;
    int64_t heads;
    int64_t vocab;
    int64_t ffn;
    double dropout;
    int tied;
    int gelu;
    int bias;
} gpt_attrs_t;

#define INT_ROW(field, need, value, low, high, text)                           \
    {                                                                          \
        .name = #field, .kind = SL_ATTR_INT,                                   \
        .offset = offsetof(gpt_attrs_t, field), .is_required = (need),         \
        .fallback = (value), .min = (low), .max = (high), .brief = (text)      \
    }

static const sl_attr_def_t attr_defs[] = {
    INT_ROW(layers, 0, 12, 1, 10000, "number of blocks"),
    INT_ROW(width, 0, 768, 1, 1 << 20, "length of a token's vector"),
    INT_ROW(heads, 0, 12, 1, 1 << 16, "attention heads; divides width"),
    INT_ROW(vocab, 1, 0, 1, INT32_MAX, "number of tokens"),
    INT_ROW(ffn, 0, 0, 0, 1 << 22, "inner width of the MLP; 0 = 4 width"),
    {.name = "dropout",
     .kind = SL_ATTR_FLOAT,
     .offset = offsetof(gpt_attrs_t, dropout),
     .max = 0x1.fffffffffffffp-1,
     .brief = "of embedding, attention and residual branches"},
    {.name = "tied",
     .kind = SL_ATTR_BOOL,
     .offset = offsetof(gpt_attrs_t, tied),
     .fallback = 1,
     .brief = "lm_head shares the weight of wte"},
    {.name = "gelu",
     .kind = SL_ATTR_CHOICE,
     .offset = offsetof(gpt_attrs_t, gelu),
     .choices = "tanh|erf",
     .brief = "kind of gelu"},
    {.name = "bias",
     .kind = SL_ATTR_BOOL,
     .offset = offsetof(gpt_attrs_t, bias),
     .fallback = 1,
     .brief = "biases of the linear layers"},
    {0}};

#define INIT_STD 0.02

static int add_linear(sl_builder_t *b, const gpt_attrs_t *attrs, int from,
                      int64_t width, double init_std, int block,
                      const char *name)
{
    return sl_builder_add(
        b, "linear", from, SL_BUILDER_NONE,
        SL_BUILDER_ATTRS({.name = "out", .number = (double)width},
                         {.name = "bias", .number = attrs->bias},
                         {.name = "init", .text = "normal"},
                         {.name = "init_std", .number = init_std}),
        "h.%d.%s", block, name);
}

static int add_residual(sl_builder_t *b, const gpt_attrs_t *attrs, int skip,
                        int branch, int block, const char *name)
{
    return sl_builder_add(
        b, "add", skip, branch,
        SL_BUILDER_ATTRS({.name = "dropout", .number = attrs->dropout}),
        "h.%d.%s", block, name);
}

/* One block: attention and MLP, each on a normalized copy, each added. The
 * projections into the residual stream start smaller by sqrt(2 layers). */
static void add_block(sl_builder_t *b, const gpt_attrs_t *attrs, int block)
{
    const double residual_std = INIT_STD / sqrt(2.0 * (double)attrs->layers);
    const int64_t ffn = attrs->ffn == 0 ? 4 * attrs->width : attrs->ffn;
    int skip = b->last;
    int x;

    x = sl_builder_add(b, "layer_norm", skip, SL_BUILDER_NONE, NULL, 0,
                       "h.%d.ln_1", block);
    x = add_linear(b, attrs, x, 3 * attrs->width, INIT_STD, block,
                   "attn.c_attn");
    x = sl_builder_add(
        b, "attention", x, SL_BUILDER_NONE,
        SL_BUILDER_ATTRS({.name = "heads", .number = (double)attrs->heads},
                         {.name = "dropout", .number = attrs->dropout},
                         {.name = "causal", .number = 1}),
        "h.%d.attn", block);
    x = add_linear(b, attrs, x, attrs->width, residual_std, block,
                   "attn.c_proj");
    skip = add_residual(b, attrs, skip, x, block, "add_1");
    x = sl_builder_add(b, "layer_norm", skip, SL_BUILDER_NONE, NULL, 0,
                       "h.%d.ln_2", block);
    x = add_linear(b, attrs, x, ffn, INIT_STD, block, "mlp.c_fc");
    x = sl_builder_add(
        b, "gelu", x, SL_BUILDER_NONE,
        SL_BUILDER_ATTRS({.name = "kind", .number = attrs->gelu}),
        "h.%d.mlp.gelu", block);
    x = add_linear(b, attrs, x, attrs->width, residual_std, block,
                   "mlp.c_proj");
    (void)add_residual(b, attrs, skip, x, block, "add_2");
}

static void add_head(sl_builder_t *b, const gpt_attrs_t *attrs)
{
    (void)sl_builder_add(b, "layer_norm", b->last, SL_BUILDER_NONE, NULL, 0,
                         "ln_f");
    (void)sl_builder_add(
        b, "linear", b->last, SL_BUILDER_NONE,
        SL_BUILDER_ATTRS({.name = "out", .number = (double)attrs->vocab},
                         {.name = "bias", .number = 0},
                         {.name = "init", .text = "normal"},
                         {.name = "init_std", .number = INIT_STD},
                         {.name = "tie", .text = attrs->tied ? "wte" : ""}),
        "lm_head");
    (void)sl_builder_add(b, "softmax_cross_entropy", b->last, SL_INPUT_TARGET,
                         NULL, 0, "loss");
}

static sl_status_t build(const void *attrs_v, const sl_tensor_desc_t *data,
                         const sl_tensor_desc_t *target, sl_model_t **model_p)
{
    const gpt_attrs_t *attrs = attrs_v;
    sl_builder_t b;
    int i;

    sl_builder_begin(&b, "gpt", data, target);
    (void)sl_builder_add(
        &b, "embedding", SL_INPUT_DATA, SL_BUILDER_NONE,
        SL_BUILDER_ATTRS({.name = "vocab", .number = (double)attrs->vocab},
                         {.name = "width", .number = (double)attrs->width},
                         {.name = "positions", .number = 1},
                         {.name = "init_std", .number = INIT_STD}),
        "wte");
    if (attrs->dropout > 0) {
        (void)sl_builder_add(
            &b, "dropout", b.last, SL_BUILDER_NONE,
            SL_BUILDER_ATTRS({.name = "p", .number = attrs->dropout}), "drop");
    }
    for (i = 0; i < (int)attrs->layers; i++) {
        add_block(&b, attrs, i);
    }
    add_head(&b, attrs);
    return sl_builder_end(&b, model_p);
}

const sl_model_ops_t sl_model_gpt = {
    .name = "gpt",
    .brief = "GPT-2 language model",
    .attr_defs = attr_defs,
    .attrs_bytes = sizeof(gpt_attrs_t),
    .build = build,
};
