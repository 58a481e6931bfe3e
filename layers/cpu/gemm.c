/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products through oneDNN: dnnl_sgemm for gradients and attention, a
 * matmul primitive for the affine product. dnnl_sgemm packs into host memory
 * of its own for the time of a call: 72 KiB a thread to a few MiB, growing
 * with n (15 MiB at n = 50257). */
#include "layers/cpu/gemm.h"

#include "layers/cpu/dnnl_internal.h"

/* ---- any product: up to a fifth faster than a matmul primitive on plain
 * matrices, and as fast as one on packed ones without the packing ---- */

void sl_gemm_set_threads(int n_threads)
{
    (void)sl_dnnl_set_threads(n_threads);
}

sl_status_t sl_gemm(const sl_gemm_t *gemm, const float *a, const float *b,
                    float *c)
{
    return sl_dnnl_status(dnnl_sgemm(gemm->is_a_transposed ? 'T' : 'N',
                                     gemm->is_b_transposed ? 'T' : 'N', gemm->m,
                                     gemm->n, gemm->k, gemm->alpha, a,
                                     gemm->lda, b, gemm->ldb, gemm->beta, c,
                                     gemm->ldc),
                          "matrix product");
}

/* ---- affine: a primitive adds the bias on the way, is faster for few rows,
 * and its scratch memory is the caller's ---- */

/* On failure the caller destroys those that there are. */
static dnnl_status_t affine_mds(const sl_affine_shape_t *shape,
                                sl_dnnl_md_t md[SL_DNNL_N_TENSORS])
{
    const dnnl_dims_t dims[SL_DNNL_N_TENSORS] = {
        [SL_DNNL_X] = {shape->rows, shape->in},
        [SL_DNNL_WEIGHTS] = {shape->in, shape->out},
        [SL_DNNL_BIAS] = {1, shape->out},
        [SL_DNNL_Y] = {shape->rows, shape->out}};
    /* the weight is stored [out, in]: columns first */
    const dnnl_dims_t strides[SL_DNNL_N_TENSORS] = {
        [SL_DNNL_X] = {shape->in, 1},
        [SL_DNNL_WEIGHTS] = {1, shape->in},
        [SL_DNNL_BIAS] = {shape->out, 1},
        [SL_DNNL_Y] = {shape->out, 1}};
    dnnl_status_t code = dnnl_success;
    int i;

    for (i = 0; code == dnnl_success && i < SL_DNNL_N_TENSORS; i++) {
        if (i != SL_DNNL_BIAS || shape->has_bias) {
            code = dnnl_memory_desc_create_with_strides(&md[i], 2, dims[i],
                                                        dnnl_f32, strides[i]);
        }
    }
    return code;
}

static dnnl_status_t affine_pd(const sl_affine_shape_t *shape,
                               dnnl_engine_t engine,
                               dnnl_primitive_desc_t *pd_p)
{
    sl_dnnl_md_t md[SL_DNNL_N_TENSORS] = {NULL};
    dnnl_primitive_attr_t attr;
    dnnl_status_t code = affine_mds(shape, md);
    int i;

    if (code == dnnl_success) {
        code = sl_dnnl_attr_create(&attr);
    }
    if (code == dnnl_success) {
        code = dnnl_matmul_primitive_desc_create(
            pd_p, engine, md[SL_DNNL_X], md[SL_DNNL_WEIGHTS], md[SL_DNNL_BIAS],
            md[SL_DNNL_Y], attr);
        (void)dnnl_primitive_attr_destroy(attr);
    }
    for (i = 0; i < SL_DNNL_N_TENSORS; i++) {
        sl_dnnl_md_destroy(md[i]);
    }
    return code;
}

sl_status_t sl_affine_create(const sl_affine_shape_t *shape, int n_threads,
                             sl_affine_t **affine_p)
{
    static const int args[SL_DNNL_N_TENSORS] = {[SL_DNNL_X] = DNNL_ARG_SRC,
                                                [SL_DNNL_WEIGHTS] =
                                                    DNNL_ARG_WEIGHTS,
                                                [SL_DNNL_BIAS] = DNNL_ARG_BIAS,
                                                [SL_DNNL_Y] = DNNL_ARG_DST};
    const int had_threads = sl_dnnl_set_threads(n_threads);
    dnnl_primitive_desc_t pd = NULL;
    dnnl_engine_t engine;
    sl_status_t status;

    SL_TRY(status, sl_dnnl_engine(&engine), out);
    SL_TRY(status, sl_dnnl_status(affine_pd(shape, engine, &pd), "affine map"),
           out);
    SL_TRY(status, sl_dnnl_op_create(pd, args, n_threads, affine_p), out);
out:
    (void)sl_dnnl_set_threads(had_threads);
    return status;
}

void sl_affine_destroy(sl_affine_t *affine)
{
    sl_dnnl_op_destroy(affine);
}

size_t sl_affine_scratch_bytes(const sl_affine_t *affine)
{
    return sl_dnnl_op_scratch_bytes(affine);
}

sl_status_t sl_affine_run(const sl_affine_t *affine,
                          const sl_affine_args_t *args)
{
    const sl_dnnl_args_t op_args = {.x = args->x,
                                    .weights = args->weight,
                                    .bias = args->bias,
                                    .y = args->y,
                                    .scratch = args->scratch};

    return sl_dnnl_op_run(affine, &op_args);
}
