/* SPDX-License-Identifier: Apache-2.0 */
/* A block takes a row at a time. The parameter gradients are sums over rows:
 * parts of the rows by tiles of columns, then over the parts in order. */
#include "layers/cuda/device.cuh"

enum {
    COLUMNS = 32, /* of a tile */
    LANES = 8,    /* rows side by side */
    PART_ROWS = 64,
    MAX_PARTS = 64,
    SUM_THREADS = 128
};

/* Blocks that rows are shared out over. */
static int64_t blocks_of(const sl_cuda_layer_norm_t *args)
{
    return blocks_for(args->rows, 1);
}

static int threads_of(int64_t width)
{
    return width <= 128 ? 32 : width <= 1024 ? 128 : 256;
}

static int64_t parts_of(int64_t rows)
{
    const int64_t parts = (rows + PART_ROWS - 1) / PART_ROWS;

    return parts < (int64_t)MAX_PARTS ? parts : (int64_t)MAX_PARTS;
}

size_t sl_cuda_layer_norm_workspace_bytes(int64_t rows, int64_t width)
{
    return (size_t)(parts_of(rows) * 2 * width) * sizeof(float);
}

template <typename T>
static __global__ void forward_rows(const T *in, const float *weight,
                                    const float *bias, T *out, float *saved,
                                    int64_t rows, int64_t width, float eps)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *x = in + row * width;
        float sum = 0, mean, inverse;

        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            sum += to_float(x[i]);
        }
        mean = block_sum(sum) / (float)width;
        sum = 0;
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            const float d = to_float(x[i]) - mean;

            sum += d * d;
        }
        inverse = 1.0f / sqrtf(block_sum(sum) / (float)width + eps);
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            from_float((to_float(x[i]) - mean) * inverse * weight[i] + bias[i],
                       &out[row * width + i]);
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

    launch_reads(args->in, bytes);
    launch_reads(args->weight, width_bytes);
    launch_reads(args->bias, width_bytes);
    launch_writes(args->out, bytes);
    launch_writes(args->saved, (size_t)(2 * args->rows) * sizeof(float));
    return launch("layer norm forward",
                  shape_of(blocks_of(args), threads_of(args->width)), stream,
                  forward_rows<T>, (const T *)args->in, args->weight,
                  args->bias, (T *)args->out, args->saved, args->rows,
                  args->width, (float)args->eps);
}

sl_status_t sl_cuda_layer_norm_forward(const sl_cuda_layer_norm_t *args,
                                       void *stream)
{
    return args->rows == 0 ? SL_OK
                           : FOR_TYPE(args->type, forward, args, stream);
}

/* din = (g - mean(g) - xhat mean(g xhat)) / deviation (+ prev) with
 * g = dout * weight and xhat the normalized x */
template <typename T>
static __global__ void backward_rows(const T *in, const T *dout,
                                     const float *weight, const float *saved,
                                     const T *prev, T *din, int64_t rows,
                                     int64_t width)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float mean = saved[2 * row], inverse = saved[2 * row + 1];
        const int64_t start = row * width;
        float sum = 0, dot = 0;

        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            const float g = to_float(dout[start + i]) * weight[i];

            sum += g;
            dot += g * ((to_float(in[start + i]) - mean) * inverse);
        }
        sum = block_sum(sum) / (float)width;
        dot = block_sum(dot) / (float)width;
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
            const float xhat = (to_float(in[start + i]) - mean) * inverse;
            float d = to_float(dout[start + i]) * weight[i] - sum - xhat * dot;

            d *= inverse;
            if (prev != NULL) {
                d = to_float(prev[start + i]) + d;
            }
            from_float(d, &din[start + i]);
        }
    }
}

/* partial[part] = {dweight, dbias} of a part of the rows */
template <typename T>
static __global__ void part_grads(const T *in, const T *dout,
                                  const float *saved, float *partial,
                                  int64_t rows, int64_t width)
{
    __shared__ float weights[LANES][COLUMNS], biases[LANES][COLUMNS];
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const int64_t begin = rows * blockIdx.y / gridDim.y;
    const int64_t end = rows * (blockIdx.y + 1) / gridDim.y;
    float dweight = 0, dbias = 0;

    for (int64_t row = begin + threadIdx.y; row < end && column < width;
         row += LANES) {
        const float d = to_float(dout[row * width + column]);
        const float x = to_float(in[row * width + column]);

        dweight += d * ((x - saved[2 * row]) * saved[2 * row + 1]);
        dbias += d;
    }
    weights[threadIdx.y][threadIdx.x] = dweight;
    biases[threadIdx.y][threadIdx.x] = dbias;
    __syncthreads();
    if (threadIdx.y == 0 && column < width) {
        float *to = partial + 2 * width * blockIdx.y;

        for (int lane = 1; lane < LANES; lane++) {
            dweight += weights[lane][threadIdx.x];
            dbias += biases[lane][threadIdx.x];
        }
        to[column] = dweight;
        to[width + column] = dbias;
    }
}

/* The parts in order. */
static __global__ void sum_grads(const float *partial, float *dweight,
                                 float *dbias, int64_t parts, int64_t width,
                                 int is_first)
{
    for (int64_t i = grid_thread(); i < 2 * width; i += grid_threads()) {
        float *to = i < width ? dweight : dbias;
        float sum = partial[i];

        if (to == NULL) {
            continue;
        }
        to = i < width ? to + i : to + (i - width);
        for (int64_t part = 1; part < parts; part++) {
            sum += partial[2 * width * part + i];
        }
        *to = is_first ? sum : *to + sum;
    }
}

template <typename T>
static sl_status_t backward_data(const sl_cuda_layer_norm_t *args, void *stream)
{
    const size_t bytes = (size_t)(args->rows * args->width) * sizeof(T);

    launch_reads(args->in, bytes);
    launch_reads(args->dout, bytes);
    launch_reads(args->weight, (size_t)args->width * sizeof(float));
    launch_reads(args->saved, (size_t)(2 * args->rows) * sizeof(float));
    launch_reads(args->prev, bytes);
    launch_writes(args->din, bytes);
    return launch("layer norm backward",
                  shape_of(blocks_of(args), threads_of(args->width)), stream,
                  backward_rows<T>, (const T *)args->in, (const T *)args->dout,
                  args->weight, (const float *)args->saved,
                  (const T *)args->prev, (T *)args->din, args->rows,
                  args->width);
}

template <typename T>
static sl_status_t backward_params(const sl_cuda_layer_norm_t *args,
                                   void *stream)
{
    const size_t bytes = (size_t)(args->rows * args->width) * sizeof(T);
    const size_t width_bytes = (size_t)args->width * sizeof(float);
    const size_t partial_bytes =
        sl_cuda_layer_norm_workspace_bytes(args->rows, args->width);
    const int64_t parts = parts_of(args->rows);
    const shape_t shape = {(args->width + COLUMNS - 1) / COLUMNS, parts,
                           COLUMNS, LANES};
    float *partial = (float *)args->workspace;
    sl_status_t status;

    launch_reads(args->in, bytes);
    launch_reads(args->dout, bytes);
    launch_reads(args->saved, (size_t)(2 * args->rows) * sizeof(float));
    launch_writes(partial, partial_bytes);
    SL_TRY(status,
           launch("layer norm gradients", shape, stream, part_grads<T>,
                  (const T *)args->in, (const T *)args->dout,
                  (const float *)args->saved, partial, args->rows, args->width),
           out);
    launch_reads(partial, partial_bytes);
    launch_writes(args->dweight, width_bytes);
    launch_writes(args->dbias, width_bytes);
    status =
        launch("layer norm gradient sums",
               shape_of(blocks_for(2 * args->width, SUM_THREADS), SUM_THREADS),
               stream, sum_grads, (const float *)partial, args->dweight,
               args->dbias, parts, args->width, args->is_first);
out:
    return status;
}

template <typename T>
static sl_status_t backward(const sl_cuda_layer_norm_t *args, void *stream)
{
    sl_status_t status = SL_OK;

    /* first: din may be dout */
    if (args->dweight != NULL || args->dbias != NULL) {
        SL_TRY(status, backward_params<T>(args, stream), out);
    }
    if (args->din != NULL) {
        status = backward_data<T>(args, stream);
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
