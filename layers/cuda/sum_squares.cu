/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of squares in double, by the tree of engine/optimizer.c: blocks of
 * 4096 values over 32 lanes, 128 groups of blocks, the groups. The values move
 * in once. */
#include "layers/cuda/device.cuh"

enum {
    BLOCK = 4096,
    LANES = 32,
    N_GROUPS = 128,
    WARPS = 8 /* of a thread block */
};

static int64_t blocks_of(int64_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

size_t sl_cuda_sum_squares_workspace_bytes(int64_t n)
{
    return (size_t)blocks_of(n) * sizeof(double);
}

/* A warp a block: lane j adds up elements j, j + 32, ..., then lane 0 the
 * lanes. */
static __global__ void sum_blocks(const float *values, double *sums, int64_t n,
                                  int64_t n_blocks)
{
    __shared__ double lanes[WARPS][LANES];
    const unsigned warp = threadIdx.y, lane = threadIdx.x;

    for (int64_t first = (int64_t)blockIdx.x * WARPS; first < n_blocks;
         first += (int64_t)gridDim.x * WARPS) {
        const int64_t block = first + warp;
        const int64_t begin = block * BLOCK;
        const int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
        double sum = 0;

        for (int64_t i = begin + lane; i < end; i += LANES) {
            const double v = (double)values[i];

            sum += v * v;
        }
        __syncthreads();
        lanes[warp][lane] = sum;
        __syncthreads();
        if (lane == 0 && block < n_blocks) {
            sum = 0;
            for (int j = 0; j < LANES; j++) {
                sum += lanes[warp][j];
            }
            sums[block] = sum;
        }
    }
}

static __global__ void sum_groups(const double *sums, double *out,
                                  int64_t n_blocks)
{
    __shared__ double groups[N_GROUPS];
    const int64_t begin = n_blocks * threadIdx.x / N_GROUPS;
    const int64_t end = n_blocks * (threadIdx.x + 1) / N_GROUPS;
    double sum = 0;

    for (int64_t block = begin; block < end; block++) {
        sum += sums[block];
    }
    groups[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
        for (int i = 0; i < N_GROUPS; i++) {
            sum += groups[i];
        }
        *out = sum;
    }
}

sl_status_t sl_cuda_sum_squares(const sl_cuda_sum_squares_t *args, void *stream)
{
    const int64_t n_blocks = blocks_of(args->n);
    const size_t sums_bytes = sl_cuda_sum_squares_workspace_bytes(args->n);
    const shape_t shape = {blocks_for(n_blocks, WARPS), 1, LANES, WARPS};
    double *sums = (double *)args->workspace;
    sl_status_t status;

    if (args->n == 0) {
        return sl_cuda_zero(args->sum, sizeof(double), stream);
    }
    launch_reads(args->values, (size_t)args->n * sizeof(float));
    launch_writes(sums, sums_bytes);
    SL_TRY(status,
           launch("sums of squares", shape, stream, sum_blocks, args->values,
                  sums, args->n, n_blocks),
           out);
    launch_reads(sums, sums_bytes);
    launch_writes(args->sum, sizeof(double));
    status = launch("sum of squares", shape_of(1, N_GROUPS), stream, sum_groups,
                    (const double *)sums, args->sum, n_blocks);
out:
    return status;
}
