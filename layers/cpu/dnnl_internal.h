/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnnl_internal.h
 * What the files that call oneDNN share: dnnl.c, dnnl_conv.c, gemm.c.
 */
#ifndef SL_LAYERS_CPU_DNNL_INTERNAL_H
#define SL_LAYERS_CPU_DNNL_INTERNAL_H

#include "base/status.h"
#include "layers/cpu/dnnl.h"
#include "layers/cpu/dnnl_compat.h"

SL_BEGIN_DECLS

struct sl_dnnl_format {
    sl_dnnl_md_t md;
};

/** The tensors of an op, in the order of sl_dnnl_args_t. */
enum {
    SL_DNNL_X,
    SL_DNNL_WEIGHTS,
    SL_DNNL_BIAS,
    SL_DNNL_Y,
    SL_DNNL_N_TENSORS
};

/** oneDNN's code as ours; `what` was called for.
 *  @return SL_OK, SL_ERR_UNSUPPORTED (expected), SL_ERR_NO_MEMORY,
 *          SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_dnnl_status(dnnl_status_t code, const char *what);

/** The CPU; lives as long as the process. */
SL_NODISCARD sl_status_t sl_dnnl_engine(dnnl_engine_t *engine_p);

/** Attributes under which an op's scratch memory is the caller's, so that it
 *  passes the memory gates. */
SL_NODISCARD dnnl_status_t sl_dnnl_attr_create(dnnl_primitive_attr_t *attr_p);

/** NULL is allowed. */
void sl_dnnl_md_destroy(sl_dnnl_md_t md);

/** A tensor in channel layout `layout`. */
SL_NODISCARD dnnl_status_t sl_dnnl_md_image(int64_t batch, int64_t channels,
                                            int64_t height, int64_t width,
                                            sl_layout_t layout,
                                            sl_dnnl_md_t *md_p);

/** Set the calling thread's OpenMP threads. oneDNN shares the work out over
 *  so many when it chooses and makes code. @return how many there were */
int sl_dnnl_set_threads(int n_threads);

/** @param[in] give_md  taken on success */
SL_NODISCARD sl_status_t sl_dnnl_format_create(sl_dnnl_md_t give_md,
                                               sl_dnnl_format_t **format_p);

/**
 * Make code that was chosen ready; n_threads must be set.
 *
 * @param[in] give_pd  taken, also on failure
 * @param[in] args     oneDNN's index of each tensor, 0 for none; a tensor that
 *                     the code does not have (a bias) is left out
 */
SL_NODISCARD sl_status_t sl_dnnl_op_create(dnnl_primitive_desc_t give_pd,
                                           const int args[SL_DNNL_N_TENSORS],
                                           int n_threads, sl_dnnl_op_t **op_p);

SL_END_DECLS
#endif /* SL_LAYERS_CPU_DNNL_INTERNAL_H */
