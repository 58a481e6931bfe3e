/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's small ops on CPU devices. */
#include <string.h>

#include "base/hash.h"
#include "engine/device_ops.h"
#include "engine/optimizer.h"

enum {
    HASH_PART_BYTES = 1 << 20 /* what one thread hashes at a time */
};

static sl_status_t op_copy(const void *args, void *stream)
{
    const sl_copy_args_t *copy = args;

    (void)stream;
    memcpy(copy->dst, copy->src, copy->bytes);
    return SL_OK;
}

static sl_status_t op_zero(const void *args, void *stream)
{
    const sl_copy_args_t *zero = args;

    (void)stream;
    memset(zero->dst, 0, zero->bytes);
    return SL_OK;
}

static void sum_f32(const sl_sum_args_t *sum)
{
    const ptrdiff_t n = (ptrdiff_t)sum->n;
    const int n_threads = sum->n_threads;
    float *out = sum->out;
    const float *a = sum->a, *b = sum->b;
    ptrdiff_t i;

#pragma omp parallel for simd num_threads(n_threads) if (n_threads > 1)        \
    schedule(static)
    for (i = 0; i < n; i++) {
        out[i] = a[i] + b[i];
    }
}

static void sum_f64(const sl_sum_args_t *sum)
{
    double *out = sum->out;
    const double *a = sum->a, *b = sum->b;
    size_t i;

    for (i = 0; i < sum->n; i++) {
        out[i] = a[i] + b[i];
    }
}

/* Activations on a CPU are f32. */
static sl_status_t op_sum(const void *args, void *stream)
{
    const sl_sum_args_t *sum = args;

    (void)stream;
    SL_ASSERT(sum->dtype == SL_DTYPE_F32 || sum->dtype == SL_DTYPE_F64);
    if (sum->dtype == SL_DTYPE_F64) {
        sum_f64(sum);
    } else {
        sum_f32(sum);
    }
    return SL_OK;
}

/* In parts whose hashes are added up: a part's place is in its hash. */
static sl_status_t op_hash(const void *args, void *stream)
{
    const sl_hash_args_t *hash = args;
    const char *data = hash->data;
    const int n_threads = hash->n_threads;
    const ptrdiff_t n_parts =
        (ptrdiff_t)((hash->bytes + HASH_PART_BYTES - 1) / HASH_PART_BYTES);
    uint64_t sum = *hash->hash_p;
    ptrdiff_t i;

    (void)stream;
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)             \
    schedule(static) reduction(+ : sum)
    for (i = 0; i < n_parts; i++) {
        const size_t start = (size_t)i * HASH_PART_BYTES;
        const size_t left = hash->bytes - start;

        sum += sl_hash(data + start,
                       left < HASH_PART_BYTES ? left : HASH_PART_BYTES,
                       (uint64_t)i);
    }
    *hash->hash_p = sl_hash(&sum, sizeof(sum), 0);
    return SL_OK;
}

extern const sl_device_kernels_t sl_device_kernels_cpu;
const sl_device_kernels_t sl_device_kernels_cpu = {
    .size = sizeof(sl_device_kernels_t),
    .copy = op_copy,
    .zero = op_zero,
    .sum = op_sum,
    .update = sl_optimizer_op_update,
    .sum_squares = sl_optimizer_op_sum_squares,
    .hash = op_hash,
    .is_one_memory = 1,
};
