/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax of attention. A block takes a row at a time: all sums over a row
 * have an order that depends on its length and the block's size alone. */
#include "layers/cuda/attention_kernels.h"

#include "layers/cuda/philox.cuh"

/* A launch's rows, for the device. */
struct rows_t {
    int64_t heads, time, first_row, rows, keys;
    int is_causal;
    mask_t mask; /* threshold 0: none */
    uint64_t first_number;
};

/* A row of all of them. */
struct row_t {
    int64_t start; /* of the row in matrices of keys columns */
    int64_t sum_at;
    int64_t n; /* keys that it sees */
    uint64_t first_number;
};

static __device__ __forceinline__ row_t row_of(const rows_t &all, int64_t index)
{
    const int64_t head = index / all.rows;
    const int64_t position = all.first_row + index % all.rows;
    const int64_t row = head * all.time + position;
    row_t r;

    r.start = index * all.keys;
    r.sum_at = row;
    r.n = all.is_causal && position + 1 < all.keys ? position + 1 : all.keys;
    r.first_number = all.first_number + (uint64_t)(row * all.time);
    return r;
}

/* The factor of element j of the row: 0 where dropped. */
static __device__ __forceinline__ float factor_of(const mask_t &mask,
                                                  const row_t &row, int64_t j)
{
    const uint64_t number = row.first_number + (uint64_t)j;
    uint32_t numbers[4];

    if (mask.threshold == 0) {
        return 1.0f;
    }
    philox_block(mask.rng, (uint32_t)(number / 4), numbers);
    return numbers[number % 4] < mask.threshold ? 0.0f : mask.scale;
}

template <typename T>
static __global__ void softmax_rows(rows_t all, const float *scores,
                                    T *probabilities, float *log_sums)
{
    for (int64_t i = blockIdx.x; i < all.heads * all.rows; i += gridDim.x) {
        const row_t row = row_of(all, i);
        const float *s = scores + row.start;
        T *p = probabilities + row.start;
        float max = -INFINITY, sum = 0, inverse;

        for (int64_t j = threadIdx.x; j < row.n; j += blockDim.x) {
            max = fmaxf(max, s[j]);
        }
        max = block_max(max);
        for (int64_t j = threadIdx.x; j < row.n; j += blockDim.x) {
            sum += expf(s[j] - max);
        }
        sum = block_sum(sum);
        inverse = 1.0f / sum;
        for (int64_t j = threadIdx.x; j < all.keys; j += blockDim.x) {
            from_float(j < row.n ? expf(s[j] - max) * inverse *
                                       factor_of(all.mask, row, j)
                                 : 0.0f,
                       &p[j]);
        }
        if (log_sums != NULL && threadIdx.x == 0) {
            log_sums[row.sum_at] = max + logf(sum);
        }
    }
}

/* dscores = p (factor dp - delta), delta = the sum of p factor dp */
template <typename T>
static __global__ void
differentiate_rows(rows_t all, const float *scores, const float *log_sums,
                   const float *dprobabilities, T *probabilities, T *dscores)
{
    for (int64_t i = blockIdx.x; i < all.heads * all.rows; i += gridDim.x) {
        const row_t row = row_of(all, i);
        const float *s = scores + row.start;
        const float *dp = dprobabilities + row.start;
        const float log_sum = log_sums[row.sum_at];
        float delta = 0;

        for (int64_t j = threadIdx.x; j < row.n; j += blockDim.x) {
            delta += expf(s[j] - log_sum) * factor_of(all.mask, row, j) * dp[j];
        }
        delta = block_sum(delta);
        for (int64_t j = threadIdx.x; j < all.keys; j += blockDim.x) {
            float masked = 0, d = 0;

            if (j < row.n) {
                const float p = expf(s[j] - log_sum);
                const float factor = factor_of(all.mask, row, j);

                masked = p * factor;
                d = p * (factor * dp[j] - delta);
            }
            from_float(masked, &probabilities[row.start + j]);
            from_float(d, &dscores[row.start + j]);
        }
    }
}

static rows_t rows_of(const sl_cuda_attention_rows_t *args)
{
    rows_t rows;

    rows.heads = args->heads;
    rows.time = args->time;
    rows.first_row = args->first_row;
    rows.rows = args->rows;
    rows.keys = args->keys;
    rows.is_causal = args->is_causal;
    rows.mask = mask_of(args->rng, 0, args->dropout);
    rows.first_number = args->first_number;
    return rows;
}

static shape_t rows_shape(const sl_cuda_attention_rows_t *args)
{
    const int n_threads = args->keys <= 256    ? 32
                          : args->keys <= 1024 ? 128
                                               : 256;

    return shape_of(blocks_for(args->heads * args->rows, 1), n_threads);
}

static size_t n_elements(const sl_cuda_attention_rows_t *args)
{
    return (size_t)(args->heads * args->rows * args->keys);
}

static size_t sums_bytes(const sl_cuda_attention_rows_t *args)
{
    return (size_t)(args->heads * args->time) * sizeof(float);
}

template <typename T>
static sl_status_t softmax(const sl_cuda_attention_rows_t *args, void *stream)
{
    launch_reads(args->scores, n_elements(args) * sizeof(float));
    launch_writes(args->probabilities, n_elements(args) * sizeof(T));
    launch_writes(args->log_sums, sums_bytes(args));
    return launch("attention softmax", rows_shape(args), stream,
                  softmax_rows<T>, rows_of(args), args->scores,
                  (T *)args->probabilities, args->log_sums);
}

sl_status_t sl_cuda_attention_softmax(const sl_cuda_attention_rows_t *args,
                                      void *stream)
{
    return FOR_TYPE(args->type, softmax, args, stream);
}

template <typename T>
static sl_status_t differentiate(const sl_cuda_attention_rows_t *args,
                                 void *stream)
{
    launch_reads(args->scores, n_elements(args) * sizeof(float));
    launch_reads(args->dprobabilities, n_elements(args) * sizeof(float));
    launch_reads(args->log_sums, sums_bytes(args));
    launch_writes(args->probabilities, n_elements(args) * sizeof(T));
    launch_writes(args->dscores, n_elements(args) * sizeof(T));
    return launch("attention softmax backward", rows_shape(args), stream,
                  differentiate_rows<T>, rows_of(args), args->scores,
                  (const float *)args->log_sums, args->dprobabilities,
                  (T *)args->probabilities, (T *)args->dscores);
}

sl_status_t
sl_cuda_attention_softmax_backward(const sl_cuda_attention_rows_t *args,
                                   void *stream)
{
    return FOR_TYPE(args->type, differentiate, args, stream);
}

/* ---- results ---- */

template <typename T> struct store_each {
    const float *from;
    const T *prev;
    T *to;
    int aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        float x[4], p[4];

        load_quad(from, i, count, aligned, x);
        if (prev != NULL) {
            load_quad(prev, i, count, aligned, p);
            for (int k = 0; k < 4; k++) {
                x[k] = p[k] + x[k];
            }
        }
        store_quad(to, i, count, aligned, x);
    }
};

template <typename T>
static sl_status_t store(const sl_cuda_attention_store_t *args, void *stream)
{
    const store_each<T> f = {args->from, (const T *)args->prev, (T *)args->to,
                             is_aligned(args->from) && is_aligned(args->prev) &&
                                 is_aligned(args->to)};

    launch_reads(args->from, (size_t)args->n * sizeof(float));
    launch_reads(args->prev, (size_t)args->n * sizeof(T));
    launch_writes(args->to, (size_t)args->n * sizeof(T));
    return launch_each("attention store", f, args->n, stream);
}

sl_status_t sl_cuda_attention_store(const sl_cuda_attention_store_t *args,
                                    void *stream)
{
    return args->n == 0 ? SL_OK : FOR_TYPE(args->type, store, args, stream);
}
