/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout, and add with dropout: a thread takes a pack of neighbours, of which
 * each four share a block of random numbers; masks are drawn, never stored.
 * Bytes that must move: dropout one element in, one out; add all inputs in, one
 * out; its backward dout (and out, for relu) in, each wanted gradient out, and
 * the earlier ones in. */
#include "layers/cuda/philox.cuh"

/* ---- dropout ---- */

template <typename T> struct dropout_pack {
    enum {
        N = pack_of<T>::N
    };
    const T *x, *prev;
    T *y;
    mask_t mask;
    int aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        float v[N], p[N];

        load_pack<N>(x, i, count, aligned, v);
        mask_pack<N>(mask, i, v);
        if (prev != NULL) {
            load_pack<N>(prev, i, count, aligned, p);
            for (int k = 0; k < N; k++) {
                v[k] = p[k] + v[k];
            }
        }
        store_pack<N>(y, i, count, aligned, v);
    }
};

template <typename T>
static sl_status_t dropout(const sl_cuda_dropout_t *args, void *stream)
{
    const size_t bytes = (size_t)args->n * sizeof(T);
    const dropout_pack<T> f = {
        (const T *)args->x, (const T *)args->prev, (T *)args->y,
        mask_of(args->rng, 0, args->p, args->places),
        is_aligned(args->x) && is_aligned(args->prev) && is_aligned(args->y)};

    launch_reads(args->x, bytes);
    launch_reads(args->prev, bytes);
    launch_writes(args->y, bytes);
    return launch_packs<pack_of<T>::N>("dropout", f, args->n, stream);
}

sl_status_t sl_cuda_dropout(const sl_cuda_dropout_t *args, void *stream)
{
    return args->n == 0 ? SL_OK : FOR_TYPE(args->type, dropout, args, stream);
}

/* ---- add ---- */

/* The CPU draws whole runs of 256 numbers for each input after the first. */
static uint32_t add_first_block(const sl_cuda_add_t *args, int input)
{
    return input == 0
               ? 0
               : (uint32_t)((input - 1) * ((args->n_numbers + 255) / 256) * 64);
}

template <typename T> struct add_forward_pack {
    enum {
        N = pack_of<T>::N
    };
    const T *in[SL_CUDA_MAX_INPUTS];
    T *out;
    mask_t mask[SL_CUDA_MAX_INPUTS];
    int n_inputs, has_mask, is_relu, aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        float sum[N], x[N];

        load_pack<N>(in[0], i, count, aligned, sum);
        for (int j = 1; j < n_inputs; j++) {
            load_pack<N>(in[j], i, count, aligned, x);
            if (has_mask) {
                mask_pack<N>(mask[j], i, x);
            }
            for (int k = 0; k < N; k++) {
                sum[k] += x[k];
            }
        }
        for (int k = 0; k < N && is_relu; k++) {
            sum[k] = relu_value(sum[k]);
        }
        store_pack<N>(out, i, count, aligned, sum);
    }
};

template <typename T>
static sl_status_t add_forward(const sl_cuda_add_t *args, void *stream)
{
    const size_t bytes = (size_t)args->n * sizeof(T);
    add_forward_pack<T> f = {};

    f.out = (T *)args->out;
    f.n_inputs = args->n_inputs;
    f.has_mask = args->p > 0;
    f.is_relu = args->is_relu;
    f.aligned = is_aligned(args->out);
    for (int j = 0; j < args->n_inputs; j++) {
        f.in[j] = (const T *)args->in[j];
        f.aligned = f.aligned && is_aligned(args->in[j]);
        f.mask[j] =
            mask_of(args->rng, add_first_block(args, j), args->p, args->places);
        launch_reads(args->in[j], bytes);
    }
    launch_writes(args->out, bytes);
    return launch_packs<pack_of<T>::N>("add forward", f, args->n, stream);
}

sl_status_t sl_cuda_add_forward(const sl_cuda_add_t *args, void *stream)
{
    return args->n == 0 ? SL_OK
                        : FOR_TYPE(args->type, add_forward, args, stream);
}

template <typename T> struct add_backward_pack {
    enum {
        N = pack_of<T>::N
    };
    const T *out, *dout;
    const T *prev[SL_CUDA_MAX_INPUTS];
    T *din[SL_CUDA_MAX_INPUTS];
    mask_t mask[SL_CUDA_MAX_INPUTS];
    int n_inputs, has_mask, is_relu, aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        float d[N], y[N], x[N], p[N];

        load_pack<N>(dout, i, count, aligned, d);
        if (is_relu) {
            load_pack<N>(out, i, count, aligned, y);
            for (int k = 0; k < N; k++) {
                d[k] = relu_slope(y[k], d[k]);
            }
        }
        for (int j = 0; j < n_inputs; j++) {
            if (din[j] == NULL) {
                continue;
            }
            for (int k = 0; k < N; k++) {
                x[k] = d[k];
            }
            if (has_mask && j > 0) {
                mask_pack<N>(mask[j], i, x);
            }
            if (prev[j] != NULL) {
                load_pack<N>(prev[j], i, count, aligned, p);
                for (int k = 0; k < N; k++) {
                    x[k] = p[k] + x[k];
                }
            }
            store_pack<N>(din[j], i, count, aligned, x);
        }
    }
};

template <typename T>
static sl_status_t add_backward(const sl_cuda_add_t *args, void *stream)
{
    const size_t bytes = (size_t)args->n * sizeof(T);
    add_backward_pack<T> f = {};

    f.dout = (const T *)args->dout;
    f.out = args->is_relu ? (const T *)args->out : NULL;
    f.n_inputs = args->n_inputs;
    f.has_mask = args->p > 0;
    f.is_relu = args->is_relu;
    f.aligned = is_aligned(f.dout) && is_aligned(f.out);
    launch_reads(f.dout, bytes);
    launch_reads(f.out, bytes);
    for (int j = 0; j < args->n_inputs; j++) {
        f.din[j] = (T *)args->din[j];
        f.prev[j] = (const T *)args->prev[j];
        f.aligned =
            f.aligned && is_aligned(args->din[j]) && is_aligned(args->prev[j]);
        f.mask[j] =
            mask_of(args->rng, add_first_block(args, j), args->p, args->places);
        launch_reads(args->prev[j], bytes);
        launch_writes(args->din[j], bytes);
    }
    return launch_packs<pack_of<T>::N>("add backward", f, args->n, stream);
}

sl_status_t sl_cuda_add_backward(const sl_cuda_add_t *args, void *stream)
{
    return args->n == 0 ? SL_OK
                        : FOR_TYPE(args->type, add_backward, args, stream);
}
