/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions: what oneDNN is asked for, and whether its answer will do. */
#include <string.h>

#include "layers/cpu/dnnl_internal.h"

/* The memory descriptors of a convolution; the backward passes use those of
 * the forward one for the gradients. */
typedef struct conv_mds {
    sl_dnnl_md_t x, y;
    sl_dnnl_md_t weights; /* NULL: the caller's are used */
    sl_dnnl_md_t bias;    /* NULL: none */
} conv_mds_t;

/* Grouped weights have their groups as a dimension of their own. */
static dnnl_status_t weights_md(const sl_dnnl_conv_t *conv, int is_any,
                                sl_dnnl_md_t *md_p)
{
    const int64_t in = conv->in_channels / conv->groups;
    const dnnl_dims_t dense = {conv->out_channels, in, conv->kernel_height,
                               conv->kernel_width};
    const dnnl_dims_t grouped = {conv->groups,
                                 conv->out_channels / conv->groups, in,
                                 conv->kernel_height, conv->kernel_width};

    if (conv->groups == 1) {
        return dnnl_memory_desc_create_with_tag(
            md_p, 4, dense, dnnl_f32, is_any ? dnnl_format_tag_any : dnnl_abcd);
    }
    return dnnl_memory_desc_create_with_tag(
        md_p, 5, grouped, dnnl_f32, is_any ? dnnl_format_tag_any : dnnl_abcde);
}

static void conv_mds_cleanup(conv_mds_t *mds)
{
    sl_dnnl_md_destroy(mds->x);
    sl_dnnl_md_destroy(mds->y);
    sl_dnnl_md_destroy(mds->weights);
    sl_dnnl_md_destroy(mds->bias);
}

/* On failure the caller cleans up what there is. */
static dnnl_status_t conv_mds_init(const sl_dnnl_conv_t *conv,
                                   int needs_weights, conv_mds_t *mds)
{
    const dnnl_dims_t bias_dims = {conv->out_channels};
    dnnl_status_t code;

    code = sl_dnnl_md_image(conv->batch, conv->in_channels, conv->in_height,
                            conv->in_width, conv->in_layout, &mds->x);
    if (code == dnnl_success) {
        code =
            sl_dnnl_md_image(conv->batch, conv->out_channels, conv->out_height,
                             conv->out_width, conv->out_layout, &mds->y);
    }
    if (code == dnnl_success && needs_weights) {
        code = weights_md(conv, 1, &mds->weights);
    }
    if (code == dnnl_success && conv->has_bias) {
        code = dnnl_memory_desc_create_with_tag(&mds->bias, 1, bias_dims,
                                                dnnl_f32, dnnl_a);
    }
    return code;
}

/* The backward passes take a forward one as a hint; without it oneDNN chooses
 * as well, so none is made. */
static dnnl_status_t pass_pd(const sl_dnnl_conv_t *conv, sl_dnnl_pass_t pass,
                             const conv_mds_t *mds, sl_dnnl_const_md_t weights,
                             dnnl_engine_t engine, dnnl_primitive_attr_t attr,
                             dnnl_primitive_desc_t *pd_p)
{
    const dnnl_dims_t strides = {conv->stride, conv->stride};
    const dnnl_dims_t dilates = {conv->dilation - 1, conv->dilation - 1};
    const dnnl_dims_t pads = {conv->pad, conv->pad};

    switch (pass) {
    case SL_DNNL_PASS_FORWARD:
        return dnnl_convolution_forward_primitive_desc_create(
            pd_p, engine, dnnl_forward_training, dnnl_convolution_direct,
            mds->x, weights, mds->bias, mds->y, strides, dilates, pads, pads,
            attr);
    case SL_DNNL_PASS_BACKWARD_DATA:
        return dnnl_convolution_backward_data_primitive_desc_create(
            pd_p, engine, dnnl_convolution_direct, mds->x, weights, mds->y,
            strides, dilates, pads, pads, NULL, attr);
    case SL_DNNL_PASS_BACKWARD_WEIGHTS:
        return dnnl_convolution_backward_weights_primitive_desc_create(
            pd_p, engine, dnnl_convolution_direct, mds->x, weights, mds->bias,
            mds->y, strides, dilates, pads, pads, NULL, attr);
    }
    return dnnl_invalid_arguments;
}

static dnnl_status_t conv_pd(const sl_dnnl_conv_t *conv, sl_dnnl_pass_t pass,
                             const sl_dnnl_format_t *weights,
                             dnnl_engine_t engine, dnnl_primitive_desc_t *pd_p)
{
    conv_mds_t mds = {0};
    dnnl_primitive_attr_t attr;
    dnnl_status_t code = conv_mds_init(conv, weights == NULL, &mds);

    if (code == dnnl_success) {
        code = sl_dnnl_attr_create(&attr);
    }
    if (code == dnnl_success) {
        code = pass_pd(conv, pass, &mds,
                       weights != NULL ? weights->md : mds.weights, engine,
                       attr, pd_p);
        (void)dnnl_primitive_attr_destroy(attr);
    }
    conv_mds_cleanup(&mds);
    return code;
}

static int is_slow(dnnl_primitive_desc_t pd)
{
    const char *code = NULL;

    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0,
                                     (void *)&code) != dnnl_success ||
           strstr(code, "ref") != NULL;
}

/* The primitive descriptor, refused when slow and that will not do. */
static sl_status_t conv_select(const sl_dnnl_conv_t *conv, sl_dnnl_pass_t pass,
                               const sl_dnnl_format_t *weights, int allows_slow,
                               dnnl_primitive_desc_t *pd_p)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_engine_t engine;
    sl_status_t status;

    SL_TRY(status, sl_dnnl_engine(&engine), out);
    SL_TRY(status,
           sl_dnnl_status(conv_pd(conv, pass, weights, engine, &pd),
                          "convolution"),
           out);
    if (!allows_slow && is_slow(pd)) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, err_destroy,
                  "oneDNN has no fast convolution for these layouts");
    }
    *pd_p = pd;
    return SL_OK;

err_destroy:
    (void)dnnl_primitive_desc_destroy(pd);
out:
    return status;
}

sl_status_t sl_dnnl_format_weights(const sl_dnnl_conv_t *conv,
                                   sl_dnnl_format_t **format_p)
{
    sl_dnnl_md_t md = NULL;
    sl_status_t status;

    SL_TRY(status, sl_dnnl_status(weights_md(conv, 0, &md), "weights layout"),
           out);
    SL_TRY(status, sl_dnnl_format_create(md, format_p), err_destroy);
    return SL_OK;

err_destroy:
    sl_dnnl_md_destroy(md);
out:
    return status;
}

sl_status_t sl_dnnl_format_best(const sl_dnnl_conv_t *conv,
                                sl_dnnl_format_t **format_p)
{
    const int had_threads = sl_dnnl_set_threads(1);
    dnnl_primitive_desc_t pd = NULL;
    sl_dnnl_md_t md = NULL;
    sl_status_t status;

    SL_TRY(status, conv_select(conv, SL_DNNL_PASS_FORWARD, NULL, 0, &pd), out);
    status = sl_dnnl_status(
        dnnl_memory_desc_clone(
            &md, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0)),
        "weights layout");
    (void)dnnl_primitive_desc_destroy(pd);
    SL_TRY(status, status, out);
    SL_TRY(status, sl_dnnl_format_create(md, format_p), err_destroy);
    goto out;

err_destroy:
    sl_dnnl_md_destroy(md);
out:
    (void)sl_dnnl_set_threads(had_threads);
    return status;
}

sl_status_t sl_dnnl_conv_create(const sl_dnnl_conv_t *conv, sl_dnnl_pass_t pass,
                                const sl_dnnl_format_t *weights, int n_threads,
                                int allows_slow, sl_dnnl_op_t **op_p)
{
    static const int args[SL_DNNL_N_PASSES][SL_DNNL_N_TENSORS] = {
        [SL_DNNL_PASS_FORWARD] = {[SL_DNNL_X] = DNNL_ARG_SRC,
                                  [SL_DNNL_WEIGHTS] = DNNL_ARG_WEIGHTS,
                                  [SL_DNNL_BIAS] = DNNL_ARG_BIAS,
                                  [SL_DNNL_Y] = DNNL_ARG_DST},
        [SL_DNNL_PASS_BACKWARD_DATA] = {[SL_DNNL_X] = DNNL_ARG_DIFF_SRC,
                                        [SL_DNNL_WEIGHTS] = DNNL_ARG_WEIGHTS,
                                        [SL_DNNL_Y] = DNNL_ARG_DIFF_DST},
        [SL_DNNL_PASS_BACKWARD_WEIGHTS] = {[SL_DNNL_X] = DNNL_ARG_SRC,
                                           [SL_DNNL_WEIGHTS] =
                                               DNNL_ARG_DIFF_WEIGHTS,
                                           [SL_DNNL_BIAS] = DNNL_ARG_DIFF_BIAS,
                                           [SL_DNNL_Y] = DNNL_ARG_DIFF_DST},
    };
    const int had_threads = sl_dnnl_set_threads(n_threads);
    dnnl_primitive_desc_t pd = NULL;
    sl_status_t status;

    SL_TRY(status, conv_select(conv, pass, weights, allows_slow, &pd), out);
    SL_TRY(status, sl_dnnl_op_create(pd, args[pass], n_threads, op_p), out);
out:
    (void)sl_dnnl_set_threads(had_threads);
    return status;
}
