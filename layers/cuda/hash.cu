/* SPDX-License-Identifier: Apache-2.0 */
/* A hash of words where they lie: each word is mixed with its place, and the
 * results are added up, so their order does not matter. Not the CPU's hash. */
#include "layers/cuda/device.cuh"

enum {
    THREADS = 256
};

/* A bijection in which every bit of x moves about half of the result's. */
static __device__ __forceinline__ uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static __device__ __forceinline__ uint64_t mixed_at(uint32_t word, int64_t i)
{
    return mixed((uint64_t)word + (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u);
}

/* Quads of neighbours at once, then the last few words. */
static __global__ void hash_blocks(const uint32_t *words, uint64_t *sums,
                                   int64_t n, int64_t n_quads)
{
    const pack_t<uint32_t, 4> *quads =
        (const pack_t<uint32_t, 4> *)(const void *)words;
    uint64_t sum = 0;

    for (int64_t q = grid_thread(); q < n_quads; q += grid_threads()) {
        const pack_t<uint32_t, 4> quad = quads[q];

        for (int k = 0; k < 4; k++) {
            sum += mixed_at(quad.at[k], 4 * q + k);
        }
    }
    for (int64_t i = 4 * n_quads + grid_thread(); i < n; i += grid_threads()) {
        sum += mixed_at(words[i], i);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
    }
}

static __global__ void hash_sums(const uint64_t *sums, uint64_t *hash,
                                 int n_sums)
{
    uint64_t sum = 0;

    for (int i = (int)threadIdx.x; i < n_sums; i += THREADS) {
        sum += sums[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        *hash = mixed(mixed(*hash + 1) + sum);
    }
}

sl_status_t sl_cuda_hash(const sl_cuda_hash_t *args, void *stream)
{
    const int64_t n_quads = is_aligned(args->words) ? args->n / 4 : 0;
    const int64_t wanted = blocks_for(n_quads > 0 ? n_quads : args->n, THREADS);
    const int64_t n_most =
        SL_CUDA_HASH_WORKSPACE_BYTES / (int64_t)sizeof(uint64_t);
    const int64_t n_sums = wanted < n_most ? wanted : n_most;
    uint64_t *sums = (uint64_t *)args->workspace;
    sl_status_t status;

    if (args->n == 0) {
        return SL_OK;
    }
    launch_reads(args->words, (size_t)args->n * sizeof(uint32_t));
    launch_writes(sums, (size_t)n_sums * sizeof(uint64_t));
    SL_TRY(status,
           launch("hashes", shape_of(n_sums, THREADS), stream, hash_blocks,
                  args->words, sums, args->n, n_quads),
           out);
    launch_reads(sums, (size_t)n_sums * sizeof(uint64_t));
    launch_reads(args->hash, sizeof(uint64_t));
    launch_writes(args->hash, sizeof(uint64_t));
    status = launch("hash", shape_of(1, THREADS), stream, hash_sums,
                    (const uint64_t *)sums, args->hash, (int)n_sums);
out:
    return status;
}
