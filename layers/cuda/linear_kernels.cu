/* SPDX-License-Identifier: Apache-2.0 */
/* The bias of a linear layer, where the product cannot do it on the side: sums
 * of columns by parts of the rows and tiles of columns, then over the parts in
 * order. */
#include "layers/cuda/linear_kernels.h"

#include "layers/cuda/device.cuh"

enum {
    COLUMNS = 32, /* of a tile */
    LANES = 8,    /* rows side by side */
    PART_ROWS = 64,
    MAX_PARTS = 64,
    SUM_THREADS = 128
};

static int64_t parts_of(int64_t rows)
{
    const int64_t parts = (rows + PART_ROWS - 1) / PART_ROWS;

    return parts < (int64_t)MAX_PARTS ? parts : (int64_t)MAX_PARTS;
}

size_t sl_cuda_column_sums_workspace_bytes(int64_t rows, int64_t columns)
{
    return (size_t)(parts_of(rows) * columns) * sizeof(float);
}

/* partial[part] = the sums over a part of the rows */
template <typename T>
static __global__ void part_sums(const T *in, float *partial, int64_t rows,
                                 int64_t columns)
{
    __shared__ float sums[LANES][COLUMNS];
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const int64_t begin = rows * blockIdx.y / gridDim.y;
    const int64_t end = rows * (blockIdx.y + 1) / gridDim.y;
    float sum = 0;

    for (int64_t row = begin + threadIdx.y; row < end && column < columns;
         row += LANES) {
        sum += to_float(in[row * columns + column]);
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int lane = 1; lane < LANES; lane++) {
            sum += sums[lane][threadIdx.x];
        }
        partial[columns * blockIdx.y + column] = sum;
    }
}

/* The parts in order. */
static __global__ void sum_parts(const float *partial, float *sums,
                                 int64_t parts, int64_t columns, int is_first)
{
    for (int64_t i = grid_thread(); i < columns; i += grid_threads()) {
        float sum = partial[i];

        for (int64_t part = 1; part < parts; part++) {
            sum += partial[columns * part + i];
        }
        sums[i] = is_first ? sum : sums[i] + sum;
    }
}

template <typename T>
static sl_status_t column_sums(const sl_cuda_column_sums_t *args, void *stream)
{
    const size_t partial_bytes =
        sl_cuda_column_sums_workspace_bytes(args->rows, args->columns);
    const int64_t parts = parts_of(args->rows);
    const shape_t shape = {(args->columns + COLUMNS - 1) / COLUMNS, parts,
                           COLUMNS, LANES};
    float *partial = (float *)args->workspace;
    sl_status_t status;

    launch_reads(args->in, (size_t)(args->rows * args->columns) * sizeof(T));
    launch_writes(partial, partial_bytes);
    SL_TRY(status,
           launch("column sums of parts", shape, stream, part_sums<T>,
                  (const T *)args->in, partial, args->rows, args->columns),
           out);
    launch_reads(partial, partial_bytes);
    launch_writes(args->sums, (size_t)args->columns * sizeof(float));
    status =
        launch("column sums",
               shape_of(blocks_for(args->columns, SUM_THREADS), SUM_THREADS),
               stream, sum_parts, (const float *)partial, args->sums, parts,
               args->columns, args->is_first);
out:
    return status;
}

sl_status_t sl_cuda_column_sums(const sl_cuda_column_sums_t *args, void *stream)
{
    return args->rows == 0 || args->columns == 0
               ? SL_OK
               : FOR_TYPE(args->type, column_sums, args, stream);
}

template <typename T>
static __global__ void repeat(const float *row, T *out, int64_t n,
                              int64_t columns)
{
    for (int64_t i = grid_thread(); i < n; i += grid_threads()) {
        from_float(row[i % columns], &out[i]);
    }
}

template <typename T>
static sl_status_t repeat_row(const sl_cuda_repeat_row_t *args, void *stream)
{
    const int64_t n = args->rows * args->columns;

    launch_reads(args->row, (size_t)args->columns * sizeof(float));
    launch_writes(args->out, (size_t)n * sizeof(T));
    return launch("repeat row",
                  shape_of(blocks_for(n, EACH_THREADS), EACH_THREADS), stream,
                  repeat<T>, args->row, (T *)args->out, n, args->columns);
}

sl_status_t sl_cuda_repeat_row(const sl_cuda_repeat_row_t *args, void *stream)
{
    return args->rows == 0 || args->columns == 0
               ? SL_OK
               : FOR_TYPE(args->type, repeat_row, args, stream);
}
