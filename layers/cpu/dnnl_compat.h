/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnnl_compat.h
 * oneDNN 3's calls that make descriptors, on oneDNN 2 as well.
 *
 * Version 3 keeps memory descriptors opaque and makes primitive descriptors
 * without operation descriptors. Our code is written for version 3; only
 * this file knows that there is another.
 */
#ifndef SL_LAYERS_CPU_DNNL_COMPAT_H
#define SL_LAYERS_CPU_DNNL_COMPAT_H

#include <stdlib.h>

#include <oneapi/dnnl/dnnl.h>

#include "base/status.h"

SL_BEGIN_DECLS

#if DNNL_VERSION_MAJOR == 3

typedef dnnl_memory_desc_t sl_dnnl_md_t;
typedef const_dnnl_memory_desc_t sl_dnnl_const_md_t;

#elif DNNL_VERSION_MAJOR == 2

typedef dnnl_memory_desc_t *sl_dnnl_md_t;
typedef const dnnl_memory_desc_t *sl_dnnl_const_md_t;

static inline dnnl_status_t dnnl_memory_desc_clone(sl_dnnl_md_t *md_p,
                                                   sl_dnnl_const_md_t from)
{
    dnnl_memory_desc_t *md = malloc(sizeof(*md));

    if (md == NULL) {
        return dnnl_out_of_memory;
    }
    *md = *from;
    *md_p = md;
    return dnnl_success;
}

static inline dnnl_status_t dnnl_memory_desc_destroy(sl_dnnl_md_t md)
{
    free(md);
    return dnnl_success;
}

static inline dnnl_status_t
dnnl_memory_desc_create_with_tag(sl_dnnl_md_t *md_p, int n_dims,
                                 const dnnl_dims_t dims, dnnl_data_type_t type,
                                 dnnl_format_tag_t tag)
{
    dnnl_memory_desc_t md;
    const dnnl_status_t code =
        dnnl_memory_desc_init_by_tag(&md, n_dims, dims, type, tag);

    return code == dnnl_success ? dnnl_memory_desc_clone(md_p, &md) : code;
}

static inline dnnl_status_t dnnl_memory_desc_create_with_strides(
    sl_dnnl_md_t *md_p, int n_dims, const dnnl_dims_t dims,
    dnnl_data_type_t type, const dnnl_dims_t strides)
{
    dnnl_memory_desc_t md;
    const dnnl_status_t code =
        dnnl_memory_desc_init_by_strides(&md, n_dims, dims, type, strides);

    return code == dnnl_success ? dnnl_memory_desc_clone(md_p, &md) : code;
}

static inline dnnl_status_t dnnl_convolution_forward_primitive_desc_create(
    dnnl_primitive_desc_t *pd_p, dnnl_engine_t engine, dnnl_prop_kind_t kind,
    dnnl_alg_kind_t algorithm, sl_dnnl_const_md_t x, sl_dnnl_const_md_t weights,
    sl_dnnl_const_md_t bias, sl_dnnl_const_md_t y, const dnnl_dims_t strides,
    const dnnl_dims_t dilates, const dnnl_dims_t pads_before,
    const dnnl_dims_t pads_after, const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t desc;
    const dnnl_status_t code = dnnl_dilated_convolution_forward_desc_init(
        &desc, kind, algorithm, x, weights, bias, y, strides, dilates,
        pads_before, pads_after);

    return code == dnnl_success
               ? dnnl_primitive_desc_create(pd_p, &desc, attr, engine, NULL)
               : code;
}

static inline dnnl_status_t
dnnl_convolution_backward_data_primitive_desc_create(
    dnnl_primitive_desc_t *pd_p, dnnl_engine_t engine,
    dnnl_alg_kind_t algorithm, sl_dnnl_const_md_t x, sl_dnnl_const_md_t weights,
    sl_dnnl_const_md_t y, const dnnl_dims_t strides, const dnnl_dims_t dilates,
    const dnnl_dims_t pads_before, const dnnl_dims_t pads_after,
    const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t desc;
    const dnnl_status_t code = dnnl_dilated_convolution_backward_data_desc_init(
        &desc, algorithm, x, weights, y, strides, dilates, pads_before,
        pads_after);

    return code == dnnl_success
               ? dnnl_primitive_desc_create(pd_p, &desc, attr, engine, hint)
               : code;
}

static inline dnnl_status_t
dnnl_convolution_backward_weights_primitive_desc_create(
    dnnl_primitive_desc_t *pd_p, dnnl_engine_t engine,
    dnnl_alg_kind_t algorithm, sl_dnnl_const_md_t x, sl_dnnl_const_md_t weights,
    sl_dnnl_const_md_t bias, sl_dnnl_const_md_t y, const dnnl_dims_t strides,
    const dnnl_dims_t dilates, const dnnl_dims_t pads_before,
    const dnnl_dims_t pads_after, const_dnnl_primitive_desc_t hint,
    const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t desc;
    const dnnl_status_t code =
        dnnl_dilated_convolution_backward_weights_desc_init(
            &desc, algorithm, x, weights, bias, y, strides, dilates,
            pads_before, pads_after);

    return code == dnnl_success
               ? dnnl_primitive_desc_create(pd_p, &desc, attr, engine, hint)
               : code;
}

static inline dnnl_status_t dnnl_matmul_primitive_desc_create(
    dnnl_primitive_desc_t *pd_p, dnnl_engine_t engine, sl_dnnl_const_md_t x,
    sl_dnnl_const_md_t weights, sl_dnnl_const_md_t bias, sl_dnnl_const_md_t y,
    const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    const dnnl_status_t code =
        dnnl_matmul_desc_init(&desc, x, weights, bias, y);

    return code == dnnl_success
               ? dnnl_primitive_desc_create(pd_p, &desc, attr, engine, NULL)
               : code;
}

#else
#error "oneDNN 2 or 3 is needed"
#endif

SL_END_DECLS
#endif /* SL_LAYERS_CPU_DNNL_COMPAT_H */
