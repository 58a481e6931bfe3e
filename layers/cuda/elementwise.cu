/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over memory: copies, casts, sums, relu, gelu. Each element moves
 * once in from every array that is read, and once out: forward 2 elements,
 * backward 3, one more where there is an earlier gradient. */
#include "layers/cuda/device.cuh"

size_t sl_cuda_type_bytes(sl_cuda_type_t type)
{
    return type == SL_CUDA_F32 ? sizeof(float) : sizeof(uint16_t);
}

sl_status_t sl_cuda_copy(void *to, const void *from, size_t bytes, void *stream)
{
    return SL_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault,
                                   (cudaStream_t)stream));
}

sl_status_t sl_cuda_zero(void *ptr, size_t bytes, void *stream)
{
    return SL_CUDA(cudaMemsetAsync(ptr, 0, bytes, (cudaStream_t)stream));
}

/* ---- cast, sum ---- */

template <typename To, typename From> struct cast_pack {
    enum {
        N = 16 / (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From))
    };
    To *to;
    const From *from;
    int aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        float x[N];

        load_pack<N>(from, i, count, aligned, x);
        store_pack<N>(to, i, count, aligned, x);
    }
};

template <typename To, typename From>
static sl_status_t cast_between(const sl_cuda_cast_t *args, void *stream)
{
    const cast_pack<To, From> f = {(To *)args->to, (const From *)args->from,
                                   is_aligned(args->to) &&
                                       is_aligned(args->from)};

    launch_reads(args->from, (size_t)args->n * sizeof(From));
    launch_writes(args->to, (size_t)args->n * sizeof(To));
    return launch_packs<cast_pack<To, From>::N>("cast", f, args->n, stream);
}

template <typename To>
static sl_status_t cast_to(const sl_cuda_cast_t *args, void *stream)
{
    switch (args->from_type) {
    case SL_CUDA_BF16:
        return cast_between<To, bf16_t>(args, stream);
    case SL_CUDA_F16:
        return cast_between<To, f16_t>(args, stream);
    default:
        return cast_between<To, float>(args, stream);
    }
}

sl_status_t sl_cuda_cast(const sl_cuda_cast_t *args, void *stream)
{
    return args->n == 0 ? SL_OK
                        : FOR_TYPE(args->to_type, cast_to, args, stream);
}

template <typename T> struct sum_pack {
    enum {
        N = pack_of<T>::N
    };
    const T *a, *b;
    T *out;
    int aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        float x[N], y[N];

        load_pack<N>(a, i, count, aligned, x);
        load_pack<N>(b, i, count, aligned, y);
        for (int k = 0; k < N; k++) {
            x[k] += y[k];
        }
        store_pack<N>(out, i, count, aligned, x);
    }
};

template <typename T>
static sl_status_t sum_of(const sl_cuda_sum_t *args, void *stream)
{
    const size_t bytes = (size_t)args->n * sizeof(T);
    const sum_pack<T> f = {
        (const T *)args->a, (const T *)args->b, (T *)args->out,
        is_aligned(args->a) && is_aligned(args->b) && is_aligned(args->out)};

    launch_reads(args->a, bytes);
    launch_reads(args->b, bytes);
    launch_writes(args->out, bytes);
    return launch_packs<pack_of<T>::N>("sum", f, args->n, stream);
}

sl_status_t sl_cuda_sum(const sl_cuda_sum_t *args, void *stream)
{
    return args->n == 0 ? SL_OK : FOR_TYPE(args->type, sum_of, args, stream);
}

/* ---- activations ---- */

struct relu_math {
    static __device__ __forceinline__ float value(float x)
    {
        return relu_value(x);
    }

    static __device__ __forceinline__ float slope(float y, float dout)
    {
        return relu_slope(y, dout);
    }
};

struct gelu_tanh_math {
    static __device__ __forceinline__ float inner(float x)
    {
        return 0.79788456080286536f * (x + 0.044715f * x * x * x);
    }

    static __device__ __forceinline__ float value(float x)
    {
        /* x times the sigmoid of 2 u: the tail does not cancel */
        return x / (1.0f + expf(-2.0f * inner(x)));
    }

    /* 1 - tanh^2 as 4 e / (1 + e)^2 with e = exp(-2 |u|): nothing cancels */
    static __device__ __forceinline__ float slope(float x, float dout)
    {
        const float u = inner(x);
        const float e = expf(-2.0f * fabsf(u));
        const float small = e / (1.0f + e);
        const float share = u < 0.0f ? small : 1.0f - small;
        const float du =
            0.79788456080286536f * (1.0f + 3.0f * 0.044715f * x * x);

        return dout * (share + (e == 0.0f ? 0.0f
                                          : 2.0f * x * du * e /
                                                ((1.0f + e) * (1.0f + e))));
    }
};

struct gelu_erf_math {
    /* the normal distribution function; the tail does not cancel */
    static __device__ __forceinline__ float share(float x)
    {
        return 0.5f * erfcf(-0.70710678118654752f * x);
    }

    static __device__ __forceinline__ float value(float x)
    {
        return x * share(x);
    }

    static __device__ __forceinline__ float slope(float x, float dout)
    {
        const float density = 0.39894228040143268f * expf(-0.5f * x * x);

        return dout * (share(x) + x * density);
    }
};

template <typename T, typename M> struct forward_pack {
    enum {
        N = pack_of<T>::N
    };
    const T *in;
    T *out;
    int aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        float x[N];

        load_pack<N>(in, i, count, aligned, x);
        for (int k = 0; k < N; k++) {
            x[k] = M::value(x[k]);
        }
        store_pack<N>(out, i, count, aligned, x);
    }
};

template <typename T, typename M> struct backward_pack {
    enum {
        N = pack_of<T>::N
    };
    const T *kept, *dout, *prev;
    T *din;
    int aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        float x[N], d[N], p[N] = {};

        load_pack<N>(kept, i, count, aligned, x);
        load_pack<N>(dout, i, count, aligned, d);
        if (prev != NULL) {
            load_pack<N>(prev, i, count, aligned, p);
        }
        for (int k = 0; k < N; k++) {
            d[k] = M::slope(x[k], d[k]);
            d[k] = prev != NULL ? p[k] + d[k] : d[k];
        }
        store_pack<N>(din, i, count, aligned, d);
    }
};

template <typename T, typename M>
static sl_status_t forward(const char *name, const sl_cuda_activation_t *args,
                           void *stream)
{
    const size_t bytes = (size_t)args->n * sizeof(T);
    const forward_pack<T, M> f = {(const T *)args->in, (T *)args->out,
                                  is_aligned(args->in) &&
                                      is_aligned(args->out)};

    launch_reads(args->in, bytes);
    launch_writes(args->out, bytes);
    return launch_packs<pack_of<T>::N>(name, f, args->n, stream);
}

template <typename T, typename M>
static sl_status_t backward(const char *name, const sl_cuda_activation_t *args,
                            const void *kept, void *stream)
{
    const size_t bytes = (size_t)args->n * sizeof(T);
    const backward_pack<T, M> f = {(const T *)kept, (const T *)args->dout,
                                   (const T *)args->prev, (T *)args->din,
                                   is_aligned(kept) && is_aligned(args->dout) &&
                                       is_aligned(args->prev) &&
                                       is_aligned(args->din)};

    launch_reads(kept, bytes);
    launch_reads(args->dout, bytes);
    launch_reads(args->prev, bytes);
    launch_writes(args->din, bytes);
    return launch_packs<pack_of<T>::N>(name, f, args->n, stream);
}

template <typename T>
static sl_status_t relu_forward(const sl_cuda_activation_t *args, void *stream)
{
    return forward<T, relu_math>("relu forward", args, stream);
}

template <typename T>
static sl_status_t relu_backward(const sl_cuda_activation_t *args, void *stream)
{
    return backward<T, relu_math>("relu backward", args, args->out, stream);
}

template <typename T>
static sl_status_t gelu_forward(const sl_cuda_activation_t *args, int is_tanh,
                                void *stream)
{
    return is_tanh ? forward<T, gelu_tanh_math>("gelu forward", args, stream)
                   : forward<T, gelu_erf_math>("gelu forward", args, stream);
}

template <typename T>
static sl_status_t gelu_backward(const sl_cuda_activation_t *args, int is_tanh,
                                 void *stream)
{
    return is_tanh ? backward<T, gelu_tanh_math>("gelu backward", args,
                                                 args->in, stream)
                   : backward<T, gelu_erf_math>("gelu backward", args, args->in,
                                                stream);
}

sl_status_t sl_cuda_relu_forward(const sl_cuda_activation_t *args, void *stream)
{
    return args->n == 0 ? SL_OK
                        : FOR_TYPE(args->type, relu_forward, args, stream);
}

sl_status_t sl_cuda_relu_backward(const sl_cuda_activation_t *args,
                                  void *stream)
{
    return args->n == 0 || args->din == NULL
               ? SL_OK
               : FOR_TYPE(args->type, relu_backward, args, stream);
}

sl_status_t sl_cuda_gelu_forward(const sl_cuda_activation_t *args, int is_tanh,
                                 void *stream)
{
    return args->n == 0
               ? SL_OK
               : FOR_TYPE(args->type, gelu_forward, args, is_tanh, stream);
}

sl_status_t sl_cuda_gelu_backward(const sl_cuda_activation_t *args, int is_tanh,
                                  void *stream)
{
    return args->n == 0 || args->din == NULL
               ? SL_OK
               : FOR_TYPE(args->type, gelu_backward, args, is_tanh, stream);
}
