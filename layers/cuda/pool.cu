/* SPDX-License-Identifier: Apache-2.0 */
/* Pools and upsampling. Backward gathers: each element of din is written
 * once, from the windows that hold it in order, so the bits repeat. cuDNN's
 * (dnn_pool.c) need in and out for backward of a max pool, where a byte an
 * output will do here, and leave open which of equal values wins. */
#include "layers/cuda/image.cuh"

/* A tensor's row-major places: [planes, height, width, inner], where the
 * channels are inner (last) or planes. */
struct extent_t {
    int64_t height, width, inner;
};

struct point_t {
    int64_t plane, h, w, l;
};

static __device__ __forceinline__ int64_t inner_of(const sl_cuda_pool_t &p)
{
    return p.is_last ? p.channels : 1;
}

static __device__ __forceinline__ extent_t in_of(const sl_cuda_pool_t &p)
{
    return {p.in_height, p.in_width, inner_of(p)};
}

static __device__ __forceinline__ extent_t out_of(const sl_cuda_pool_t &p)
{
    return {p.out_height, p.out_width, inner_of(p)};
}

static __device__ __forceinline__ point_t point_of(int64_t i, extent_t extent)
{
    point_t at;
    int64_t rest = quotient(i, extent.inner);

    at.l = i - rest * extent.inner;
    i = quotient(rest, extent.width);
    at.w = rest - i * extent.width;
    at.plane = quotient(i, extent.height);
    at.h = i - at.plane * extent.height;
    return at;
}

/* Of (h, w) in the plane and channel of `at`. */
static __device__ __forceinline__ int64_t offset_of(point_t at, int64_t h,
                                                    int64_t w, extent_t extent)
{
    return ((at.plane * extent.height + h) * extent.width + w) * extent.inner +
           at.l;
}

/* The window's points inside the image along one side: [begin, end). */
struct span_t {
    int64_t first, begin, end;
};

static __device__ __forceinline__ span_t window(const sl_cuda_pool_t &p,
                                                int64_t out, int64_t size)
{
    span_t s;

    s.first = out * p.stride - p.pad;
    s.begin = s.first < 0 ? 0 : s.first;
    s.end = s.first + p.kernel < size ? s.first + p.kernel : size;
    return s;
}

/* The windows that hold point `in`: [begin, end). */
static __device__ __forceinline__ span_t covering(const sl_cuda_pool_t &p,
                                                  int64_t in, int64_t n_windows)
{
    const int64_t at = in + p.pad;
    span_t s;

    s.first = 0;
    s.begin = at < p.kernel ? 0 : quotient(at - p.kernel, p.stride) + 1;
    s.end = quotient(at, p.stride) + 1;
    s.end = s.end < n_windows ? s.end : n_windows;
    return s;
}

/* f(h, w, place) for each point of rows x columns, row by row: the place in a
 * tensor of this extent, in the plane and channel of `at`. */
template <typename F>
static __device__ __forceinline__ void
each_point(point_t at, span_t rows, span_t columns, extent_t extent, F f)
{
    for (int64_t h = rows.begin; h < rows.end; h++) {
        for (int64_t w = columns.begin; w < columns.end; w++) {
            f(h, w, offset_of(at, h, w, extent));
        }
    }
}

/* Backward: the gradient of element i, onto what is there already. */
template <typename T>
static __device__ __forceinline__ void put_din(const sl_cuda_pool_t &p,
                                               int64_t i, float sum)
{
    if (p.prev != NULL) {
        sum = to_float(((const T *)p.prev)[i]) + sum;
    }
    from_float(sum, &((T *)p.din)[i]);
}

/* ---- max ---- */

template <typename T> struct max_each {
    sl_cuda_pool_t p;

    __device__ void operator()(int64_t i) const
    {
        const point_t at = point_of(i, out_of(p));
        const span_t rows = window(p, at.h, p.in_height);
        const span_t columns = window(p, at.w, p.in_width);
        int64_t place = (rows.begin - rows.first) * p.kernel + columns.begin -
                        columns.first;
        float best = -INFINITY;
        T stored;

        from_float(best, &stored);
        each_point(at, rows, columns, in_of(p),
                   [&](int64_t h, int64_t w, int64_t from) {
                       const T value = ((const T *)p.in)[from];
                       const float v = to_float(value);

                       /* a NaN wins over numbers, and is beaten by none */
                       if (!(v <= best) && best == best) {
                           best = v;
                           stored = value;
                           place =
                               (h - rows.first) * p.kernel + w - columns.first;
                       }
                   });
        ((T *)p.out)[i] = stored;
        if (p.place != NULL) {
            p.place[i] = (uint8_t)place;
        }
    }
};

template <typename T> struct max_back_each {
    sl_cuda_pool_t p;

    __device__ void operator()(int64_t i) const
    {
        const point_t at = point_of(i, in_of(p));
        float sum = 0;

        each_point(at, covering(p, at.h, p.out_height),
                   covering(p, at.w, p.out_width), out_of(p),
                   [&](int64_t h, int64_t w, int64_t from) {
                       const int64_t y = at.h + p.pad - h * p.stride;
                       const int64_t x = at.w + p.pad - w * p.stride;

                       if (p.place[from] == y * p.kernel + x) {
                           sum += to_float(((const T *)p.dout)[from]);
                       }
                   });
        put_din<T>(p, i, sum);
    }
};

/* ---- average ---- */

static __device__ __forceinline__ float share_of(const sl_cuda_pool_t &p,
                                                 span_t rows, span_t columns)
{
    const int64_t inside =
        (rows.end - rows.begin) * (columns.end - columns.begin);

    return 1.0f / (float)(p.count_include_pad ? p.kernel * p.kernel : inside);
}

template <typename T> struct avg_each {
    sl_cuda_pool_t p;

    __device__ void operator()(int64_t i) const
    {
        const point_t at = point_of(i, out_of(p));
        const span_t rows = window(p, at.h, p.in_height);
        const span_t columns = window(p, at.w, p.in_width);
        float sum = 0;

        each_point(at, rows, columns, in_of(p),
                   [&](int64_t, int64_t, int64_t from) {
                       sum += to_float(((const T *)p.in)[from]);
                   });
        from_float(sum * share_of(p, rows, columns), &((T *)p.out)[i]);
    }
};

template <typename T> struct avg_back_each {
    sl_cuda_pool_t p;

    __device__ void operator()(int64_t i) const
    {
        const point_t at = point_of(i, in_of(p));
        float sum = 0;

        each_point(
            at, covering(p, at.h, p.out_height), covering(p, at.w, p.out_width),
            out_of(p), [&](int64_t h, int64_t w, int64_t from) {
                const float share = share_of(p, window(p, h, p.in_height),
                                             window(p, w, p.in_width));

                sum += to_float(((const T *)p.dout)[from]) * share;
            });
        put_din<T>(p, i, sum);
    }
};

/* ---- the mean of all pixels ---- */

enum {
    RUN = 64, /* pixels that are added up in float */
    GLOBAL_THREADS = 128
};

/* Channels last: a thread an output. */
template <typename T> struct global_each {
    const T *in;
    T *out;
    int64_t channels, pixels;

    __device__ void operator()(int64_t i) const
    {
        const int64_t image = quotient(i, channels);
        const T *x = in + image * pixels * channels + (i - image * channels);
        double sum = 0;

        for (int64_t j = 0; j < pixels; j += RUN) {
            const int64_t end = pixels - j < RUN ? pixels : j + RUN;
            float part = 0;

            for (int64_t pixel = j; pixel < end; pixel++) {
                part += to_float(x[pixel * channels]);
            }
            sum += (double)part;
        }
        from_float((float)(sum / (double)pixels), &out[i]);
    }
};

/* Channels apart: a block an output. */
template <typename T>
static __global__ void global_rows(const T *in, T *out, int64_t rows,
                                   int64_t pixels)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        double sum = 0;
        float part = 0;
        int n = 0;

        for (int64_t i = threadIdx.x; i < pixels; i += blockDim.x) {
            part += to_float(in[row * pixels + i]);
            n++;
            if (n == RUN) {
                sum += (double)part;
                part = 0;
                n = 0;
            }
        }
        sum = block_sum(sum + (double)part);
        if (threadIdx.x == 0) {
            from_float((float)(sum / (double)pixels), &out[row]);
        }
    }
}

template <typename T> struct global_back_each {
    sl_cuda_pool_t p;

    __device__ void operator()(int64_t i) const
    {
        const int64_t pixels = p.in_height * p.in_width;
        const int64_t inner = inner_of(p);
        const int64_t image = quotient(i, pixels * inner);
        const int64_t from =
            p.is_last ? image * inner + i - quotient(i, inner) * inner : image;

        put_din<T>(
            p, i, to_float(((const T *)p.dout)[from]) * (1.0f / (float)pixels));
    }
};

/* ---- upsampling: kernel is the factor ---- */

static __device__ __forceinline__ extent_t up_of(const sl_cuda_pool_t &p)
{
    return {p.in_height * p.kernel, p.in_width * p.kernel, inner_of(p)};
}

template <typename T> struct up_each {
    sl_cuda_pool_t p;

    __device__ void operator()(int64_t i) const
    {
        const point_t at = point_of(i, up_of(p));

        ((T *)p.out)[i] = ((const T *)p.in)[offset_of(
            at, quotient(at.h, p.kernel), quotient(at.w, p.kernel), in_of(p))];
    }
};

template <typename T> struct up_back_each {
    sl_cuda_pool_t p;

    __device__ void operator()(int64_t i) const
    {
        const point_t at = point_of(i, in_of(p));
        const int64_t y = at.h * p.kernel, x = at.w * p.kernel;
        float sum = 0;

        each_point(at, {y, y, y + p.kernel}, {x, x, x + p.kernel}, up_of(p),
                   [&](int64_t, int64_t, int64_t from) {
                       sum += to_float(((const T *)p.dout)[from]);
                   });
        put_din<T>(p, i, sum);
    }
};

/* ---- launches ---- */

static int64_t n_in(const sl_cuda_pool_t *args)
{
    return args->batch * args->channels * args->in_height * args->in_width;
}

static int64_t n_out(const sl_cuda_pool_t *args)
{
    return args->batch * args->channels * args->out_height * args->out_width;
}

/* Only what a pass uses goes to its kernel. */
static sl_cuda_pool_t forward_of(const sl_cuda_pool_t *args)
{
    sl_cuda_pool_t p = *args;

    p.dout = NULL;
    p.prev = NULL;
    p.din = NULL;
    return p;
}

static sl_cuda_pool_t backward_of(const sl_cuda_pool_t *args)
{
    sl_cuda_pool_t p = *args;

    p.in = NULL;
    p.out = NULL;
    return p;
}

/* f over n elements of `to`, from n_from elements. */
template <typename F>
static sl_status_t run(const char *name, F f, const void *from, int64_t n_from,
                       const void *prev, void *to, int64_t n, size_t size,
                       void *stream)
{
    launch_reads(from, (size_t)n_from * size);
    launch_reads(prev, (size_t)n * size);
    launch_writes(to, (size_t)n * size);
    return launch_items(name, f, n, stream);
}

template <typename T>
static sl_status_t max_forward(const sl_cuda_pool_t *args, void *stream)
{
    const max_each<T> f = {forward_of(args)};

    launch_writes(args->place, (size_t)n_out(args));
    return run("max pool forward", f, args->in, n_in(args), NULL, args->out,
               n_out(args), sizeof(T), stream);
}

template <typename T>
static sl_status_t max_backward(const sl_cuda_pool_t *args, void *stream)
{
    const max_back_each<T> f = {backward_of(args)};

    launch_reads(args->place, (size_t)n_out(args));
    return run("max pool backward", f, args->dout, n_out(args), args->prev,
               args->din, n_in(args), sizeof(T), stream);
}

template <typename T>
static sl_status_t avg_forward(const sl_cuda_pool_t *args, void *stream)
{
    const avg_each<T> f = {forward_of(args)};

    return run("average pool forward", f, args->in, n_in(args), NULL, args->out,
               n_out(args), sizeof(T), stream);
}

template <typename T>
static sl_status_t avg_backward(const sl_cuda_pool_t *args, void *stream)
{
    const avg_back_each<T> f = {backward_of(args)};

    return run("average pool backward", f, args->dout, n_out(args), args->prev,
               args->din, n_in(args), sizeof(T), stream);
}

template <typename T>
static sl_status_t global_forward(const sl_cuda_pool_t *args, void *stream)
{
    const int64_t pixels = args->in_height * args->in_width;
    const int64_t rows = args->batch * args->channels;
    const global_each<T> f = {(const T *)args->in, (T *)args->out,
                              args->channels, pixels};

    if (args->is_last) {
        return run("global pool forward", f, args->in, n_in(args), NULL,
                   args->out, rows, sizeof(T), stream);
    }
    launch_reads(args->in, (size_t)n_in(args) * sizeof(T));
    launch_writes(args->out, (size_t)rows * sizeof(T));
    return launch("global pool forward",
                  shape_of(blocks_for(rows, 1), GLOBAL_THREADS), stream,
                  global_rows<T>, (const T *)args->in, (T *)args->out, rows,
                  pixels);
}

template <typename T>
static sl_status_t global_backward(const sl_cuda_pool_t *args, void *stream)
{
    const global_back_each<T> f = {backward_of(args)};

    return run("global pool backward", f, args->dout,
               args->batch * args->channels, args->prev, args->din, n_in(args),
               sizeof(T), stream);
}

template <typename T>
static sl_status_t up_forward(const sl_cuda_pool_t *args, void *stream)
{
    const up_each<T> f = {forward_of(args)};

    return run("upsample forward", f, args->in, n_in(args), NULL, args->out,
               n_in(args) * args->kernel * args->kernel, sizeof(T), stream);
}

template <typename T>
static sl_status_t up_backward(const sl_cuda_pool_t *args, void *stream)
{
    const up_back_each<T> f = {backward_of(args)};

    return run("upsample backward", f, args->dout,
               n_in(args) * args->kernel * args->kernel, args->prev, args->din,
               n_in(args), sizeof(T), stream);
}

sl_status_t sl_cuda_max_pool_forward(const sl_cuda_pool_t *args, void *stream)
{
    return FOR_TYPE(args->type, max_forward, args, stream);
}

sl_status_t sl_cuda_max_pool_backward(const sl_cuda_pool_t *args, void *stream)
{
    return FOR_TYPE(args->type, max_backward, args, stream);
}

sl_status_t sl_cuda_avg_pool_forward(const sl_cuda_pool_t *args, void *stream)
{
    return FOR_TYPE(args->type, avg_forward, args, stream);
}

sl_status_t sl_cuda_avg_pool_backward(const sl_cuda_pool_t *args, void *stream)
{
    return FOR_TYPE(args->type, avg_backward, args, stream);
}

sl_status_t sl_cuda_global_pool_forward(const sl_cuda_pool_t *args,
                                        void *stream)
{
    return FOR_TYPE(args->type, global_forward, args, stream);
}

sl_status_t sl_cuda_global_pool_backward(const sl_cuda_pool_t *args,
                                         void *stream)
{
    return FOR_TYPE(args->type, global_backward, args, stream);
}

sl_status_t sl_cuda_upsample_forward(const sl_cuda_pool_t *args, void *stream)
{
    return FOR_TYPE(args->type, up_forward, args, stream);
}

sl_status_t sl_cuda_upsample_backward(const sl_cuda_pool_t *args, void *stream)
{
    return FOR_TYPE(args->type, up_backward, args, stream);
}
