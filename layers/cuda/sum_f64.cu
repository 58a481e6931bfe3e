/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of doubles: the accumulators of batch norm over replicas. */
#include "layers/cuda/device.cuh"

enum {
    THREADS = 256
};

static __global__ void sum_all(double *out, const double *a, const double *b,
                               int64_t n)
{
    for (int64_t i = grid_thread(); i < n; i += grid_threads()) {
        out[i] = a[i] + b[i];
    }
}

sl_status_t sl_cuda_sum_f64(double *out, const double *a, const double *b,
                            int64_t n, void *stream)
{
    const size_t bytes = (size_t)n * sizeof(double);

    if (n == 0) {
        return SL_OK;
    }
    launch_reads(a, bytes);
    launch_reads(b, bytes);
    launch_writes(out, bytes);
    return launch("sum of doubles", shape_of(blocks_for(n, THREADS), THREADS),
                  stream, sum_all, out, a, b, n);
}
