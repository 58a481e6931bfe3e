/* SPDX-License-Identifier: Apache-2.0 */
/* A block takes a row at a time, a thread the same columns of each row.
 * Backward walks a part of the rows and adds up the parameters' gradients on
 * the way; then the parts are added up in order. Rows too wide for registers
 * are read twice, the second time by tiles of columns.
 *
 * Bytes that must move, with all = rows * width elements: forward all in, all
 * out; backward twice all in (in, dout), all out, and all in where there is
 * an earlier gradient. Second reads within a row come from the cache. */
#include "layers/cuda/device.cuh"

enum {
    MAX_THREADS = 256,
    MAX_KEPT = 16, /* elements of a row that a thread keeps */
    MAX_PARTS = 512,
    COLUMNS = 32, /* of a tile */
    LANES = 8,    /* rows side by side */
    SUM_LANES = 32
};

/* Threads for a row in packs of n. */
static int threads_of(int64_t width, int n)
{
    const int64_t threads = ((width + n - 1) / n + 31) / 32 * 32;

    return threads < (int64_t)MAX_THREADS ? (int)threads : (int)MAX_THREADS;
}

static int64_t parts_of(int64_t rows)
{
    return rows < (int64_t)MAX_PARTS ? rows : (int64_t)MAX_PARTS;
}

size_t sl_cuda_layer_norm_workspace_bytes(int64_t rows, int64_t width)
{
    return (size_t)(parts_of(rows) * 2 * width) * sizeof(float);
}

/* Elements of the pack that starts at column i. */
template <int N>
static __device__ __forceinline__ int count_of(int64_t width, int64_t i)
{
    return width - i >= N ? (int)N : width - i > 0 ? (int)(width - i) : 0;
}

/* ---- forward ---- */

template <typename T>
static __global__ void
forward_rows(const T *in, const float *weight, const float *bias, T *out,
             float *saved, int64_t rows, int64_t width, float eps, int aligned)
{
    enum {
        N = pack_of<T>::N
    };
    const int64_t first = (int64_t)threadIdx.x * N;
    const int64_t step = (int64_t)blockDim.x * N;

    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const int64_t start = row * width;
        float x[N], w[N], b[N];
        float sum = 0, mean, inverse;

        for (int64_t i = first; i < width; i += step) {
            load_pack<N>(in, start + i, count_of<N>(width, i), aligned, x);
            for (int k = 0; k < N; k++) {
                sum += x[k]; /* 0 past the end */
            }
        }
        mean = block_sum(sum) / (float)width;
        sum = 0;
        for (int64_t i = first; i < width; i += step) {
            const int count = count_of<N>(width, i);

            load_pack<N>(in, start + i, count, aligned, x);
            for (int k = 0; k < N; k++) {
                sum += k < count ? (x[k] - mean) * (x[k] - mean) : 0.0f;
            }
        }
        inverse = 1.0f / sqrtf(block_sum(sum) / (float)width + eps);
        for (int64_t i = first; i < width; i += step) {
            const int count = count_of<N>(width, i);

            load_pack<N>(in, start + i, count, aligned, x);
            load_pack<N>(weight, i, count, aligned, w);
            load_pack<N>(bias, i, count, aligned, b);
            for (int k = 0; k < N; k++) {
                x[k] = (x[k] - mean) * inverse * w[k] + b[k];
            }
            store_pack<N>(out, start + i, count, aligned, x);
        }
        if (saved != NULL && threadIdx.x == 0) {
            saved[2 * row] = mean;
            saved[2 * row + 1] = inverse;
        }
    }
}

template <typename T>
static sl_status_t forward(const sl_cuda_layer_norm_t *args, void *stream)
{
    const size_t bytes = (size_t)(args->rows * args->width) * sizeof(T);
    const size_t width_bytes = (size_t)args->width * sizeof(float);
    const int aligned = args->width % pack_of<T>::N == 0 &&
                        is_aligned(args->in) && is_aligned(args->weight) &&
                        is_aligned(args->bias) && is_aligned(args->out);

    launch_reads(args->in, bytes);
    launch_reads(args->weight, width_bytes);
    launch_reads(args->bias, width_bytes);
    launch_writes(args->out, bytes);
    launch_writes(args->saved, (size_t)(2 * args->rows) * sizeof(float));
    return launch("layer norm forward",
                  shape_of(blocks_for(args->rows, 1),
                           threads_of(args->width, pack_of<T>::N)),
                  stream, forward_rows<T>, (const T *)args->in, args->weight,
                  args->bias, (T *)args->out, args->saved, args->rows,
                  args->width, (float)args->eps, aligned);
}

sl_status_t sl_cuda_layer_norm_forward(const sl_cuda_layer_norm_t *args,
                                       void *stream)
{
    return args->rows == 0 ? SL_OK
                           : FOR_TYPE(args->type, forward, args, stream);
}

/* ---- backward ---- */

/* din = (g - mean(g) - xhat mean(g xhat)) / deviation (+ prev) with
 * g = dout * weight and xhat the normalized x; dweight = sum of dout * xhat,
 * dbias = sum of dout */
template <typename T> struct backward_args {
    const T *in, *dout, *prev;
    T *din; /* NULL: not wanted */
    const float *weight, *saved;
    float *partial; /* [parts, 2, width]: {dweight, dbias}; NULL: not wanted */
    int64_t rows, width;
    int aligned;
};

/* The sums of two numbers over the block. */
static __device__ __forceinline__ void block_sum_both(float *a, float *b)
{
    __shared__ float parts[2][32];
    float sums[2] = {warp_sum(*a), warp_sum(*b)};

    __syncthreads(); /* an earlier use has been read */
    if (threadIdx.x % 32 == 0) {
        parts[0][threadIdx.x / 32] = sums[0];
        parts[1][threadIdx.x / 32] = sums[1];
    }
    __syncthreads();
    *a = *b = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++) {
        *a += parts[0][i];
        *b += parts[1][i];
    }
}

/* A block takes a part of the rows; a thread keeps P packs of each. */
template <typename T, int P>
static __global__ void backward_parts(backward_args<T> a)
{
    enum {
        N = pack_of<T>::N
    };
    const int64_t begin = a.rows * blockIdx.x / gridDim.x;
    const int64_t end = a.rows * (blockIdx.x + 1) / gridDim.x;
    float dweight[P][N] = {}, dbias[P][N] = {};

    for (int64_t row = begin; row < end; row++) {
        const float mean = a.saved[2 * row], inverse = a.saved[2 * row + 1];
        const int64_t start = row * a.width;
        float x[P][N], d[P][N], w[N];
        float sum = 0, dot = 0;

        UNROLL(P)
        for (int p = 0; p < P; p++) {
            const int64_t i = ((int64_t)p * blockDim.x + threadIdx.x) * N;
            const int count = count_of<N>(a.width, i);

            load_pack<N>(a.in, start + i, count, a.aligned, x[p]);
            load_pack<N>(a.dout, start + i, count, a.aligned, d[p]);
            load_pack<N>(a.weight, i, count, a.aligned, w);
            for (int k = 0; k < N; k++) { /* d is 0 past the end */
                x[p][k] = (x[p][k] - mean) * inverse;
                dweight[p][k] += d[p][k] * x[p][k];
                dbias[p][k] += d[p][k];
                d[p][k] *= w[k];
                sum += d[p][k];
                dot += d[p][k] * x[p][k];
            }
        }
        if (a.din == NULL) {
            continue;
        }
        block_sum_both(&sum, &dot);
        sum /= (float)a.width;
        dot /= (float)a.width;
        UNROLL(P)
        for (int p = 0; p < P; p++) {
            const int64_t i = ((int64_t)p * blockDim.x + threadIdx.x) * N;
            const int count = count_of<N>(a.width, i);

            if (a.prev != NULL) {
                load_pack<N>(a.prev, start + i, count, a.aligned, w);
            }
            for (int k = 0; k < N; k++) {
                d[p][k] = (d[p][k] - sum - x[p][k] * dot) * inverse;
                d[p][k] = a.prev != NULL ? w[k] + d[p][k] : d[p][k];
            }
            store_pack<N>(a.din, start + i, count, a.aligned, d[p]);
        }
    }
    if (a.partial == NULL) {
        return;
    }
    UNROLL(P)
    for (int p = 0; p < P; p++) {
        const int64_t i = ((int64_t)p * blockDim.x + threadIdx.x) * N;
        const int count = count_of<N>(a.width, i);
        float *to = a.partial + 2 * a.width * blockIdx.x;

        store_pack<N>(to, i, count, a.aligned, dweight[p]);
        store_pack<N>(to, a.width + i, count, a.aligned, dbias[p]);
    }
}

/* din of wide rows */
template <typename T> static __global__ void backward_rows(backward_args<T> a)
{
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const float mean = a.saved[2 * row], inverse = a.saved[2 * row + 1];
        const int64_t start = row * a.width;
        float sum = 0, dot = 0;

        for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
            const float g = to_float(a.dout[start + i]) * a.weight[i];

            sum += g;
            dot += g * ((to_float(a.in[start + i]) - mean) * inverse);
        }
        block_sum_both(&sum, &dot);
        sum /= (float)a.width;
        dot /= (float)a.width;
        for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
            const float xhat = (to_float(a.in[start + i]) - mean) * inverse;
            const float g = to_float(a.dout[start + i]) * a.weight[i];
            float d = (g - sum - xhat * dot) * inverse;

            if (a.prev != NULL) {
                d = to_float(a.prev[start + i]) + d;
            }
            from_float(d, &a.din[start + i]);
        }
    }
}

/* partial of wide rows: a tile of columns, a part of the rows */
template <typename T> static __global__ void part_grads(backward_args<T> a)
{
    __shared__ float weights[LANES][COLUMNS], biases[LANES][COLUMNS];
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const int64_t begin = a.rows * blockIdx.y / gridDim.y;
    const int64_t end = a.rows * (blockIdx.y + 1) / gridDim.y;
    float dweight = 0, dbias = 0;

    for (int64_t row = begin + threadIdx.y; row < end && column < a.width;
         row += LANES) {
        const float d = to_float(a.dout[row * a.width + column]);
        const float x = to_float(a.in[row * a.width + column]);

        dweight += d * ((x - a.saved[2 * row]) * a.saved[2 * row + 1]);
        dbias += d;
    }
    weights[threadIdx.y][threadIdx.x] = dweight;
    biases[threadIdx.y][threadIdx.x] = dbias;
    __syncthreads();
    if (threadIdx.y == 0 && column < a.width) {
        float *to = a.partial + 2 * a.width * blockIdx.y;

        for (int lane = 1; lane < LANES; lane++) {
            dweight += weights[lane][threadIdx.x];
            dbias += biases[lane][threadIdx.x];
        }
        to[column] = dweight;
        to[a.width + column] = dbias;
    }
}

/* Every SUM_LANES-th part by a lane, then the lanes in order. */
static __global__ void sum_grads(const float *partial, float *dweight,
                                 float *dbias, int64_t parts, int64_t width,
                                 int is_first)
{
    __shared__ float sums[SUM_LANES][COLUMNS];
    const int64_t i = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    float *to = i < width ? dweight : dbias;
    float sum = 0;

    for (int64_t part = threadIdx.y; part < parts && i < 2 * width;
         part += SUM_LANES) {
        sum += partial[2 * width * part + i];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && i < 2 * width && to != NULL) {
        to += i < width ? i : i - width;
        for (int lane = 1; lane < SUM_LANES; lane++) {
            sum += sums[lane][threadIdx.x];
        }
        *to = is_first ? sum : *to + sum;
    }
}

template <typename T>
static void declare_backward(const backward_args<T> &a, int writes_partial)
{
    const size_t bytes = (size_t)(a.rows * a.width) * sizeof(T);
    const size_t partial_bytes =
        sl_cuda_layer_norm_workspace_bytes(a.rows, a.width);

    launch_reads(a.in, bytes);
    launch_reads(a.dout, bytes);
    launch_reads(a.prev, bytes);
    launch_reads(a.weight, (size_t)a.width * sizeof(float));
    launch_reads(a.saved, (size_t)(2 * a.rows) * sizeof(float));
    launch_writes(a.din, bytes);
    if (writes_partial) {
        launch_writes(a.partial, partial_bytes);
    } else {
        launch_reads(a.partial, partial_bytes);
    }
}

template <typename T>
static sl_status_t backward_narrow(const backward_args<T> &a, void *stream)
{
    const int n_threads = threads_of(a.width, pack_of<T>::N);
    const int64_t kept = (a.width + n_threads - 1) / n_threads;
    const shape_t shape = shape_of(parts_of(a.rows), n_threads);

    declare_backward(a, 1);
    if (kept <= pack_of<T>::N) {
        return launch("layer norm backward", shape, stream,
                      backward_parts<T, 1>, a);
    }
    if (kept <= 2 * pack_of<T>::N) {
        return launch("layer norm backward", shape, stream,
                      backward_parts<T, 2>, a);
    }
    return launch("layer norm backward", shape, stream,
                  backward_parts<T, MAX_KEPT / pack_of<T>::N>, a);
}

template <typename T>
static sl_status_t backward_wide(const backward_args<T> &a, void *stream)
{
    const shape_t parts = {(a.width + COLUMNS - 1) / COLUMNS, parts_of(a.rows),
                           COLUMNS, LANES};
    sl_status_t status = SL_OK;

    if (a.partial != NULL) { /* first: din may be dout */
        declare_backward(a, 1);
        SL_TRY(status,
               launch("layer norm gradients", parts, stream, part_grads<T>, a),
               out);
    }
    if (a.din != NULL) {
        declare_backward(a, 0);
        status = launch("layer norm backward",
                        shape_of(blocks_for(a.rows, 1), MAX_THREADS), stream,
                        backward_rows<T>, a);
    }
out:
    return status;
}

template <typename T>
static sl_status_t backward(const sl_cuda_layer_norm_t *args, void *stream)
{
    const int has_grads = args->dweight != NULL || args->dbias != NULL;
    const size_t width_bytes = (size_t)args->width * sizeof(float);
    const backward_args<T> a = {
        (const T *)args->in,
        (const T *)args->dout,
        (const T *)args->prev,
        (T *)args->din,
        args->weight,
        args->saved,
        has_grads ? (float *)args->workspace : NULL,
        args->rows,
        args->width,
        args->width % pack_of<T>::N == 0 && is_aligned(args->in) &&
            is_aligned(args->dout) && is_aligned(args->prev) &&
            is_aligned(args->din) && is_aligned(args->weight) &&
            is_aligned(args->workspace)};
    const shape_t shape = {(2 * args->width + COLUMNS - 1) / COLUMNS, 1,
                           COLUMNS, SUM_LANES};
    sl_status_t status = SL_OK;

    if (!has_grads && args->din == NULL) {
        goto out;
    }
    SL_TRY(status,
           args->width <= (int64_t)MAX_THREADS * MAX_KEPT
               ? backward_narrow(a, stream)
               : backward_wide(a, stream),
           out);
    if (has_grads) {
        launch_reads(args->workspace, sl_cuda_layer_norm_workspace_bytes(
                                          args->rows, args->width));
        launch_writes(args->dweight, width_bytes);
        launch_writes(args->dbias, width_bytes);
        status =
            launch("layer norm gradient sums", shape, stream, sum_grads,
                   (const float *)args->workspace, args->dweight, args->dbias,
                   parts_of(args->rows), args->width, args->is_first);
    }
out:
    return status;
}

sl_status_t sl_cuda_layer_norm_backward(const sl_cuda_layer_norm_t *args,
                                        void *stream)
{
    return args->rows == 0 ? SL_OK
                           : FOR_TYPE(args->type, backward, args, stream);
}
