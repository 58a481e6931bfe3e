/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor is [outer, height, width, inner]: images of channels, or planes of
 * single elements. A thread makes a pack of one output. Bytes that must move:
 * the smaller tensor and the larger one, each once. */
#include "layers/cuda/device.cuh"

enum {
    THREADS = 256
};

template <typename T> struct upsample_spec {
    const T *from, *prev;
    T *to;
    int64_t outer, height, width, inner, factor; /* of the smaller one */
    int aligned;
};

template <typename T> static __global__ void forward_packs(upsample_spec<T> s)
{
    enum {
        N = pack_of<T>::N
    };
    const int64_t packs = (s.inner + N - 1) / N;
    const int64_t width = s.width * s.factor, height = s.height * s.factor;
    const int64_t n = s.outer * height * width * packs;

    for (int64_t at = grid_thread(); at < n; at += grid_threads()) {
        const int64_t i = at % packs * N;
        const int64_t pixel = at / packs;
        const int64_t x = pixel % width / s.factor;
        const int64_t y = pixel / width % height / s.factor;
        const int64_t outer = pixel / width / height;
        const int64_t from = (outer * s.height + y) * s.width + x;
        const int count = s.inner - i < N ? (int)(s.inner - i) : (int)N;
        float v[N];

        load_pack<N>(s.from, from * s.inner + i, count, s.aligned, v);
        store_pack<N>(s.to, pixel * s.inner + i, count, s.aligned, v);
    }
}

/* The copies of a pixel are added up row by row. */
template <typename T> static __global__ void backward_packs(upsample_spec<T> s)
{
    enum {
        N = pack_of<T>::N
    };
    const int64_t packs = (s.inner + N - 1) / N;
    const int64_t n = s.outer * s.height * s.width * packs;

    for (int64_t at = grid_thread(); at < n; at += grid_threads()) {
        const int64_t i = at % packs * N;
        const int64_t pixel = at / packs;
        const int64_t x = pixel % s.width;
        const int64_t row = pixel / s.width; /* of all images */
        const int64_t first =
            (row * s.factor * s.width + x) * s.factor; /* its first copy */
        const int count = s.inner - i < N ? (int)(s.inner - i) : (int)N;
        float sum[N] = {}, v[N];

        for (int64_t k = 0; k < s.factor * s.factor; k++) {
            const int64_t copy =
                first + k / s.factor * s.width * s.factor + k % s.factor;

            load_pack<N>(s.from, copy * s.inner + i, count, s.aligned, v);
            for (int j = 0; j < N; j++) {
                sum[j] += v[j];
            }
        }
        if (s.prev != NULL) {
            load_pack<N>(s.prev, pixel * s.inner + i, count, s.aligned, v);
            for (int j = 0; j < N; j++) {
                sum[j] = v[j] + sum[j];
            }
        }
        store_pack<N>(s.to, pixel * s.inner + i, count, s.aligned, sum);
    }
}

template <typename T>
static upsample_spec<T> spec_of(const sl_cuda_upsample2d_t *args,
                                const void *from, void *to)
{
    const upsample_spec<T> s = {(const T *)from,
                                (const T *)args->prev,
                                (T *)to,
                                args->outer,
                                args->height,
                                args->width,
                                args->inner,
                                args->factor,
                                args->inner % pack_of<T>::N == 0 &&
                                    is_aligned(from) &&
                                    is_aligned(args->prev) && is_aligned(to)};

    return s;
}

/* Bytes of the smaller tensor. */
static size_t bytes_of(const sl_cuda_upsample2d_t *args, size_t size)
{
    return (size_t)(args->outer * args->height * args->width * args->inner) *
           size;
}

template <typename T>
static sl_status_t forward(const sl_cuda_upsample2d_t *args, void *stream)
{
    const upsample_spec<T> s = spec_of<T>(args, args->in, args->out);
    const size_t bytes = bytes_of(args, sizeof(T));
    const int64_t copies = args->factor * args->factor;
    const int64_t packs = (args->inner + pack_of<T>::N - 1) / pack_of<T>::N *
                          args->outer * args->height * args->width * copies;

    launch_reads(args->in, bytes);
    launch_writes(args->out, bytes * (size_t)copies);
    launch_reads(args->prev, bytes);
    return launch("upsample forward",
                  shape_of(blocks_for(packs, THREADS), THREADS), stream,
                  forward_packs<T>, s);
}

template <typename T>
static sl_status_t backward(const sl_cuda_upsample2d_t *args, void *stream)
{
    const upsample_spec<T> s = spec_of<T>(args, args->dout, args->din);
    const size_t bytes = bytes_of(args, sizeof(T));
    const int64_t packs = (args->inner + pack_of<T>::N - 1) / pack_of<T>::N *
                          args->outer * args->height * args->width;

    launch_reads(args->dout, bytes * (size_t)(args->factor * args->factor));
    launch_reads(args->prev, bytes);
    launch_writes(args->din, bytes);
    return launch("upsample backward",
                  shape_of(blocks_for(packs, THREADS), THREADS), stream,
                  backward_packs<T>, s);
}

sl_status_t sl_cuda_upsample2d_forward(const sl_cuda_upsample2d_t *args,
                                       void *stream)
{
    return FOR_TYPE(args->type, forward, args, stream);
}

sl_status_t sl_cuda_upsample2d_backward(const sl_cuda_upsample2d_t *args,
                                        void *stream)
{
    return args->din == NULL ? SL_OK
                             : FOR_TYPE(args->type, backward, args, stream);
}
