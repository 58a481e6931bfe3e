/* SPDX-License-Identifier: Apache-2.0 */
/* Images between layouts and types, ranges of channels, and bias. A thread
 * takes elements in the order in which they are written. */
#include "layers/cuda/channel_sums.cuh"

/* ---- copies ---- */

template <typename To, typename From> struct move_item {
    sl_cuda_move_t a;

    /* Offset of an element of one side. */
    static __device__ __forceinline__ int64_t at(const sl_cuda_side_t &side,
                                                 int64_t pixels, int64_t image,
                                                 int64_t c, int64_t pixel)
    {
        c += side.first;
        return side.is_last ? (image * pixels + pixel) * side.channels + c
                            : (image * side.channels + c) * pixels + pixel;
    }

    __device__ void operator()(int64_t i) const
    {
        const int64_t inner = a.to_side.is_last ? a.n_channels : a.pixels;
        const int64_t middle = a.to_side.is_last ? a.pixels : a.n_channels;
        const int64_t outer = quotient(i, inner);
        const int64_t x = i - outer * inner;
        const int64_t image = quotient(outer, middle);
        const int64_t y = outer - image * middle;
        const int64_t c = a.to_side.is_last ? x : y;
        const int64_t pixel = a.to_side.is_last ? y : x;
        const int64_t to = at(a.to_side, a.pixels, image, c, pixel);
        float v = to_float(
            ((const From *)a.from)[at(a.from_side, a.pixels, image, c, pixel)]);

        if (a.prev != NULL) {
            v = to_float(((const To *)a.prev)[to]) + v;
        }
        from_float(v, &((To *)a.to)[to]);
    }
};

/* Bytes from the first element of the side's range to the tensor's end. */
static size_t side_bytes(const sl_cuda_move_t *args, const sl_cuda_side_t *side)
{
    return (size_t)(args->batch * side->channels * args->pixels) *
           sl_cuda_type_bytes(side->type);
}

template <typename To, typename From>
static sl_status_t move_between(const sl_cuda_move_t *args, void *stream)
{
    const move_item<To, From> f = {*args};

    launch_reads(args->from, side_bytes(args, &args->from_side));
    launch_reads(args->prev, side_bytes(args, &args->to_side));
    launch_writes(args->to, side_bytes(args, &args->to_side));
    return launch_items("image copy", f,
                        args->batch * args->n_channels * args->pixels, stream);
}

template <typename To>
static sl_status_t move_to(const sl_cuda_move_t *args, void *stream)
{
    switch (args->from_side.type) {
    case SL_CUDA_BF16:
        return move_between<To, bf16_t>(args, stream);
    case SL_CUDA_F16:
        return move_between<To, f16_t>(args, stream);
    default:
        return move_between<To, float>(args, stream);
    }
}

sl_status_t sl_cuda_move(const sl_cuda_move_t *args, void *stream)
{
    return args->batch * args->n_channels * args->pixels == 0
               ? SL_OK
               : FOR_TYPE(args->to_side.type, move_to, args, stream);
}

/* ---- bias ---- */

template <typename T> struct bias_item {
    T *out;
    const float *bias;
    int64_t channels;

    __device__ void operator()(int64_t i) const
    {
        const int64_t c = i - quotient(i, channels) * channels;

        from_float(to_float(out[i]) + bias[c], &out[i]);
    }
};

template <typename T>
static sl_status_t bias_add(const sl_cuda_bias_t *args, void *stream)
{
    const int64_t n = args->rows * args->channels;
    const bias_item<T> f = {(T *)args->out, args->bias, args->channels};

    launch_reads(args->bias, (size_t)args->channels * sizeof(float));
    launch_writes(args->out, (size_t)n * sizeof(T));
    return launch_items("bias", f, n, stream);
}

sl_status_t sl_cuda_bias_add(const sl_cuda_bias_t *args, void *stream)
{
    return args->rows == 0 ? SL_OK
                           : FOR_TYPE(args->type, bias_add, args, stream);
}

template <typename T> struct bias_terms {
    const T *dout;

    __device__ void operator()(int64_t at, int64_t, float *a, float *b) const
    {
        *a = to_float(dout[at]);
        *b = 0;
    }
};

static __global__ void bias_finish(const double *partial, float *dbias,
                                   sum_shape_t shape, int is_first)
{
    for (int64_t c = channel_first(shape); c < shape.channels;
         c += channel_step(shape)) {
        const float sum = (float)sum_parts(partial, shape, 0, c);

        if (is_channel_leader(shape)) {
            dbias[c] = is_first ? sum : dbias[c] + sum;
        }
    }
}

size_t sl_cuda_bias_workspace_bytes(int64_t rows, int64_t channels)
{
    const sum_shape_t shape = sum_shape_of(1, rows, channels, 1);

    return sum_bytes(&shape);
}

template <typename T>
static sl_status_t bias_gradient(const sl_cuda_bias_t *args, void *stream)
{
    const sum_shape_t shape = sum_shape_of(1, args->rows, args->channels, 1);
    const bias_terms<T> f = {(const T *)args->dout};
    double *partial = (double *)args->workspace;
    sl_status_t status;

    launch_reads(args->dout, (size_t)(args->rows * args->channels) * sizeof(T));
    SL_TRY(status, launch_sums("bias gradient", f, partial, &shape, stream),
           out);
    launch_reads(partial, sum_bytes(&shape));
    launch_writes(args->dbias, (size_t)args->channels * sizeof(float));
    status = launch("bias gradient sums", channel_threads(shape), stream,
                    bias_finish, (const double *)partial, args->dbias, shape,
                    args->is_first);
out:
    return status;
}

sl_status_t sl_cuda_bias_gradient(const sl_cuda_bias_t *args, void *stream)
{
    return args->rows == 0 ? SL_OK
                           : FOR_TYPE(args->type, bias_gradient, args, stream);
}
