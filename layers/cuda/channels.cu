/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between layouts: runs that are contiguous in both tensors in packs,
 * transposes through tiles in shared memory, so that both sides move whole
 * lines. Bytes that must move: all of it in and out, once more in where there
 * is an earlier gradient. */
#include "layers/cuda/device.cuh"

enum {
    RUN_THREADS = 256,
    TILE = 32,
    TILE_ROWS = 8 /* of a tile, moved at once */
};

/* Addresses and steps of a copy of [images, outer, inner] elements. */
template <typename To, typename From> struct copy_spec {
    const From *from;
    const To *prev; /* or NULL; laid out as `to` */
    To *to;
    int64_t images, outer, inner;
    int64_t from_image, from_outer, from_inner;
    int64_t to_image, to_outer, to_inner;
    int aligned;
};

/* The inner step is 1 on both sides. */
template <typename To, typename From>
static __global__ void copy_runs(copy_spec<To, From> s)
{
    enum {
        N = 16 / (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From))
    };
    const int64_t packs = (s.inner + N - 1) / N;
    const int64_t n = s.images * s.outer * packs;

    for (int64_t at = grid_thread(); at < n; at += grid_threads()) {
        const int64_t i = at % packs * N;
        const int64_t outer = at / packs % s.outer;
        const int64_t image = at / packs / s.outer;
        const int64_t to = image * s.to_image + outer * s.to_outer + i;
        const int count = s.inner - i < N ? (int)(s.inner - i) : (int)N;
        float x[N], p[N];

        load_pack<N>(s.from, image * s.from_image + outer * s.from_outer + i,
                     count, s.aligned, x);
        if (s.prev != NULL) {
            load_pack<N>(s.prev, to, count, s.aligned, p);
            for (int k = 0; k < N; k++) {
                x[k] = p[k] + x[k];
            }
        }
        store_pack<N>(s.to, to, count, s.aligned, x);
    }
}

/* Inner is contiguous in `from`, outer in `to`. */
template <typename To, typename From>
static __global__ void copy_tiles(copy_spec<To, From> s)
{
    __shared__ float tile[TILE][TILE + 1];
    const int64_t across = (s.inner + TILE - 1) / TILE;
    const int64_t down = (s.outer + TILE - 1) / TILE;
    const int64_t n = s.images * across * down;

    for (int64_t at = blockIdx.x; at < n; at += gridDim.x) {
        const int64_t inner = at % across * TILE;
        const int64_t outer = at / across % down * TILE;
        const int64_t image = at / across / down;

        __syncthreads(); /* the tile before has been read */
        for (unsigned row = threadIdx.y; row < TILE; row += TILE_ROWS) {
            if (outer + row < s.outer && inner + threadIdx.x < s.inner) {
                tile[row][threadIdx.x] = to_float(
                    s.from[image * s.from_image + (outer + row) * s.from_outer +
                           (inner + threadIdx.x) * s.from_inner]);
            }
        }
        __syncthreads();
        for (unsigned row = threadIdx.y; row < TILE; row += TILE_ROWS) {
            const int64_t to = image * s.to_image +
                               (outer + threadIdx.x) * s.to_outer +
                               (inner + row) * s.to_inner;

            if (outer + threadIdx.x < s.outer && inner + row < s.inner) {
                const float x = tile[threadIdx.x][row];

                from_float(s.prev != NULL ? to_float(s.prev[to]) + x : x,
                           &s.to[to]);
            }
        }
    }
}

template <typename To, typename From>
static copy_spec<To, From> spec_of(const sl_cuda_channels_copy_t *args)
{
    const sl_cuda_view_t *from = &args->from_view, *to = &args->to_view;
    /* what is contiguous in `from` */
    const int by_pixel = args->pixels > 1 && from->pixel == 1;
    copy_spec<To, From> s = {};

    s.from = (const From *)args->from;
    s.prev = (const To *)args->prev;
    s.to = (To *)args->to;
    s.images = args->images;
    s.outer = by_pixel ? args->channels : args->pixels;
    s.inner = by_pixel ? args->pixels : args->channels;
    s.from_image = from->image;
    s.from_outer = by_pixel ? from->channel : from->pixel;
    s.from_inner = by_pixel ? from->pixel : from->channel;
    s.to_image = to->image;
    s.to_outer = by_pixel ? to->channel : to->pixel;
    s.to_inner = by_pixel ? to->pixel : to->channel;
    return s;
}

/* Bytes from the first element of a view to behind its last. */
static size_t span_of(const sl_cuda_channels_copy_t *args,
                      const sl_cuda_view_t *view, size_t size)
{
    return (size_t)((args->images - 1) * view->image +
                    (args->channels - 1) * view->channel +
                    (args->pixels - 1) * view->pixel + 1) *
           size;
}

template <typename To, typename From>
static sl_status_t copy_between(const sl_cuda_channels_copy_t *args,
                                void *stream)
{
    enum {
        N = 16 / (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From))
    };
    copy_spec<To, From> s = spec_of<To, From>(args);
    const int64_t packs = s.images * s.outer * ((s.inner + N - 1) / N);
    const int64_t tiles = s.images * ((s.inner + TILE - 1) / TILE) *
                          ((s.outer + TILE - 1) / TILE);
    const shape_t tile_shape = {blocks_for(tiles, 1), 1, TILE, TILE_ROWS};

    launch_reads(args->from, span_of(args, &args->from_view, sizeof(From)));
    launch_reads(args->prev, span_of(args, &args->to_view, sizeof(To)));
    launch_writes(args->to, span_of(args, &args->to_view, sizeof(To)));
    if (s.to_inner != 1 && s.inner > 1) {
        return launch("transpose", tile_shape, stream, copy_tiles<To, From>, s);
    }
    s.aligned = is_aligned(s.from) && is_aligned(s.to) && is_aligned(s.prev) &&
                s.inner % N == 0 && s.from_image % N == 0 &&
                s.to_image % N == 0 && s.from_outer % N == 0 &&
                s.to_outer % N == 0;
    return launch("copy of channels",
                  shape_of(blocks_for(packs, RUN_THREADS), RUN_THREADS), stream,
                  copy_runs<To, From>, s);
}

template <typename To>
static sl_status_t copy_to(const sl_cuda_channels_copy_t *args, void *stream)
{
    switch (args->from_type) {
    case SL_CUDA_BF16:
        return copy_between<To, bf16_t>(args, stream);
    case SL_CUDA_F16:
        return copy_between<To, f16_t>(args, stream);
    default:
        return copy_between<To, float>(args, stream);
    }
}

sl_status_t sl_cuda_channels_copy(const sl_cuda_channels_copy_t *args,
                                  void *stream)
{
    return args->images == 0 || args->channels == 0 || args->pixels == 0
               ? SL_OK
               : FOR_TYPE(args->to_type, copy_to, args, stream);
}
