/* SPDX-License-Identifier: Apache-2.0 */
/* The check of fused attention: a few heads on the device, and the same sums
 * in double on the host. The inputs are multiples of 1/64 below 1 in size,
 * which every type holds exactly. Plans are made where no device is at hand,
 * so this is neither in a job's share nor under its limit: two small passes,
 * once a process for each kind of shape, in what devices leave to libraries. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rng.h"
#include "layers/cuda/dnn_attention_internal.h"
#include "memory/cuda.h"

enum {
    MAX_KNOWN = 256,
    BATCH = 2,
    HEADS = 2,
    TILE = 64, /* positions that engines take at a time, at most twice */
    ALIGN_BYTES = 256
};

/* What is known of a kind of shape. */
typedef struct known {
    int device;
    sl_cuda_attention_shape_t shape; /* as it was checked */
    int is_forward_right, is_backward_right;
} known_t;

static struct {
    pthread_mutex_t lock;
    known_t list[MAX_KNOWN]; /* guarded by lock */
    int n;                   /* guarded by lock */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Numbers of a check, on the host: inputs and what they must give. */
typedef struct sums {
    double *qkv, *dout;
    double *out, *saved, *dqkv;
} sums_t;

static size_t n_rows(const sl_cuda_attention_shape_t *s)
{
    return (size_t)(s->batch * s->heads * s->time);
}

/* Elements of out; a third of those of qkv. */
static size_t n_out(const sl_cuda_attention_shape_t *s)
{
    return n_rows(s) * (size_t)s->head_dim;
}

/* ---- storage ---- */

/* Of a number that the type holds exactly. */
static uint16_t encode(sl_dtype_t dtype, double value)
{
    const uint16_t sign = value < 0 ? 0x8000u : 0;
    const double size = fabs(value);
    int exponent;

    if (size == 0) {
        return sign;
    }
    (void)frexp(size, &exponent);
    exponent -= 1;
    return dtype == SL_DTYPE_BF16
               ? (uint16_t)(sign | (unsigned)(exponent + 127) << 7 |
                            ((unsigned)ldexp(size, 7 - exponent) & 0x7fu))
               : (uint16_t)(sign | (unsigned)(exponent + 15) << 10 |
                            ((unsigned)ldexp(size, 10 - exponent) & 0x3ffu));
}

static double decode(sl_dtype_t dtype, uint16_t bits)
{
    const int n_fraction = dtype == SL_DTYPE_BF16 ? 7 : 10;
    const int bias = dtype == SL_DTYPE_BF16 ? 127 : 15;
    const int top = 2 * bias + 1;
    const int exponent = bits >> n_fraction & top;
    const int fraction = bits & ((1 << n_fraction) - 1);
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;

    if (exponent == top) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    return exponent == 0 ? sign * ldexp((double)fraction, 1 - bias - n_fraction)
                         : sign * ldexp((double)(fraction + (1 << n_fraction)),
                                        exponent - bias - n_fraction);
}

/* ---- on the host ---- */

/* Element d of a part of a head, at a position. */
static size_t at(const sl_cuda_attention_shape_t *s, int64_t b, int64_t h,
                 int64_t t, int64_t part, int64_t d)
{
    return (size_t)(((b * s->time + t) * 3 + part) * s->heads * s->head_dim +
                    h * s->head_dim + d);
}

static size_t out_at(const sl_cuda_attention_shape_t *s, int64_t b, int64_t h,
                     int64_t t, int64_t d)
{
    return (size_t)(((b * s->time + t) * s->heads + h) * s->head_dim + d);
}

/* shares[time] of position t; returns the log of their sum. */
static double host_row(const sl_cuda_attention_shape_t *s, const sums_t *sums,
                       int64_t b, int64_t h, int64_t t, double *shares)
{
    const int64_t end = s->is_causal ? t + 1 : s->time;
    double most = -INFINITY, sum = 0;
    int64_t j, d;

    for (j = 0; j < end; j++) {
        shares[j] = 0;
        for (d = 0; d < s->head_dim; d++) {
            shares[j] += sums->qkv[at(s, b, h, t, 0, d)] *
                         sums->qkv[at(s, b, h, j, 1, d)];
        }
        shares[j] *= (double)s->scale;
        most = fmax(most, shares[j]);
    }
    for (j = 0; j < end; j++) {
        shares[j] = exp(shares[j] - most);
        sum += shares[j];
    }
    for (j = 0; j < s->time; j++) {
        shares[j] = j < end ? shares[j] / sum : 0;
    }
    return most + log(sum);
}

static void host_backward_row(const sl_cuda_attention_shape_t *s, sums_t *sums,
                              int64_t b, int64_t h, int64_t t,
                              const double *shares)
{
    double row = 0;
    int64_t j, d;

    for (d = 0; d < s->head_dim; d++) {
        row += sums->dout[out_at(s, b, h, t, d)] *
               sums->out[out_at(s, b, h, t, d)];
    }
    for (j = 0; j < s->time; j++) {
        double dshare = 0, dscore;

        for (d = 0; d < s->head_dim; d++) {
            const double dout = sums->dout[out_at(s, b, h, t, d)];

            dshare += dout * sums->qkv[at(s, b, h, j, 2, d)];
            sums->dqkv[at(s, b, h, j, 2, d)] += shares[j] * dout;
        }
        dscore = shares[j] * (dshare - row) * (double)s->scale;
        for (d = 0; d < s->head_dim; d++) {
            sums->dqkv[at(s, b, h, t, 0, d)] +=
                dscore * sums->qkv[at(s, b, h, j, 1, d)];
            sums->dqkv[at(s, b, h, j, 1, d)] +=
                dscore * sums->qkv[at(s, b, h, t, 0, d)];
        }
    }
}

static void host_all(const sl_cuda_attention_shape_t *s, sums_t *sums,
                     double *shares)
{
    int64_t i, j, d;

    for (i = 0; i < s->batch * s->heads * s->time; i++) {
        const int64_t b = i / s->time / s->heads, h = i / s->time % s->heads;
        const int64_t t = i % s->time;

        sums->saved[i] = host_row(s, sums, b, h, t, shares);
        for (d = 0; d < s->head_dim; d++) {
            double sum = 0;

            for (j = 0; j < s->time; j++) {
                sum += shares[j] * sums->qkv[at(s, b, h, j, 2, d)];
            }
            sums->out[out_at(s, b, h, t, d)] = sum;
        }
        if (s->is_training) {
            host_backward_row(s, sums, b, h, t, shares);
        }
    }
}

/* Multiples of 1/64 in (-1, 1). */
static void fill(double *values, size_t n, uint32_t seed)
{
    const sl_rng_t rng = sl_rng_at(1, seed, 0, 0, 0);
    size_t i;

    for (i = 0; i < n; i++) {
        values[i] = ((double)sl_rng_below(&rng, i, 127) - 63) / 64;
    }
}

/* ---- on the device ---- */

/* Each array at a multiple of ALIGN_BYTES of one block. */
typedef struct block {
    char *base;
    int is_pinned; /* it is the host's, and used over the bus */
    size_t bytes;
    size_t qkv, dout, out, saved, dqkv, workspace;
} block_t;

static size_t take(block_t *block, size_t bytes)
{
    const size_t place = block->bytes;

    block->bytes += (bytes + ALIGN_BYTES - 1) & ~(size_t)(ALIGN_BYTES - 1);
    return place;
}

static void lay_out(const sl_cuda_dnn_attention_t *attention,
                    const sl_cuda_attention_shape_t *s, block_t *block)
{
    const size_t forward =
        sl_cuda_dnn_attention_forward_workspace_bytes(attention);
    const size_t backward =
        sl_cuda_dnn_attention_backward_workspace_bytes(attention);
    const size_t out_bytes = n_out(s) * sizeof(uint16_t);

    block->qkv = take(block, 3 * out_bytes);
    block->dout = take(block, out_bytes);
    block->out = take(block, out_bytes);
    block->saved = take(block, n_rows(s) * sizeof(float));
    block->dqkv = take(block, 3 * out_bytes);
    block->workspace = take(block, forward > backward ? forward : backward);
}

/* A device that is full is no verdict: plans must not depend on what others
 * have of it, so the check then runs in memory of the host. */
static sl_status_t block_alloc(block_t *block)
{
    sl_status_t status =
        SL_CUDA(cudaMalloc((void **)&block->base, block->bytes));

    if (status == SL_ERR_NO_MEMORY) {
        status =
            SL_CUDA(cudaHostAlloc((void **)&block->base, block->bytes,
                                  cudaHostAllocPortable | cudaHostAllocMapped));
        block->is_pinned = 1;
    }
    return status;
}

static void block_free(const block_t *block)
{
    const cudaError_t error =
        block->is_pinned ? cudaFreeHost(block->base) : cudaFree(block->base);

    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* of the device: the next call says so too */
    }
}

static sl_status_t put(const sl_cuda_attention_shape_t *s, char *to,
                       const double *values, size_t n, uint16_t *words)
{
    size_t i;

    for (i = 0; i < n; i++) {
        words[i] = encode(s->dtype, values[i]);
    }
    return SL_CUDA(
        cudaMemcpy(to, words, n * sizeof(*words), cudaMemcpyDefault));
}

/* Whether the device's numbers are the host's, up to roundings to 16 bits on
 * the way: of the largest, as sums cancel. */
static sl_status_t compare(const sl_cuda_attention_shape_t *s, const char *from,
                           const double *want, size_t n, uint16_t *words,
                           int *is_right_p)
{
    const double unit = s->dtype == SL_DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    double most = 0;
    sl_status_t status;
    size_t i;

    SL_TRY(
        status,
        SL_CUDA(cudaMemcpy(words, from, n * sizeof(*words), cudaMemcpyDefault)),
        out);
    for (i = 0; i < n; i++) {
        most = fmax(most, fabs(want[i]));
    }
    for (i = 0; i < n; i++) {
        if (!(fabs(decode(s->dtype, words[i]) - want[i]) <= 8 * unit * most)) {
            *is_right_p = 0;
        }
    }
out:
    return status;
}

static sl_status_t compare_saved(const sl_cuda_attention_shape_t *s,
                                 const char *from, const double *want,
                                 float *values, int *is_right_p)
{
    sl_status_t status = SL_OK;
    size_t i;

    SL_TRY(status,
           SL_CUDA(cudaMemcpy(values, from, n_rows(s) * sizeof(*values),
                              cudaMemcpyDefault)),
           out);
    for (i = 0; i < n_rows(s); i++) {
        if (!(fabs((double)values[i] - want[i]) <= 1e-3)) {
            *is_right_p = 0;
        }
    }
out:
    return status;
}

static sl_status_t run_forward(const sl_cuda_dnn_attention_t *attention,
                               const sl_cuda_attention_shape_t *s,
                               const sums_t *sums, const block_t *block,
                               const sl_cuda_dnn_attention_args_t *args,
                               cudnnHandle_t handle, uint16_t *words,
                               known_t *known)
{
    sl_status_t status;

    SL_TRY(status,
           put(s, block->base + block->qkv, sums->qkv, 3 * n_out(s), words),
           out);
    SL_TRY(status, sl_dnn_attention_run_forward(attention, args, handle), out);
    SL_TRY(status, SL_CUDA(cudaStreamSynchronize(NULL)), out);
    known->is_forward_right = 1;
    SL_TRY(status,
           compare(s, block->base + block->out, sums->out, n_out(s), words,
                   &known->is_forward_right),
           out);
    if (s->is_training) {
        status =
            compare_saved(s, block->base + block->saved, sums->saved,
                          (float *)(void *)words, &known->is_forward_right);
    }
out:
    return status;
}

/* With what forward has left. */
static sl_status_t run_backward(const sl_cuda_dnn_attention_t *attention,
                                const sl_cuda_attention_shape_t *s,
                                const sums_t *sums, const block_t *block,
                                const sl_cuda_dnn_attention_args_t *args,
                                cudnnHandle_t handle, uint16_t *words,
                                known_t *known)
{
    sl_status_t status = SL_OK;

    if (!known->is_forward_right ||
        !sl_cuda_dnn_attention_has_backward(attention)) {
        return SL_OK;
    }
    SL_TRY(status,
           put(s, block->base + block->dout, sums->dout, n_out(s), words), out);
    SL_TRY(status, sl_dnn_attention_run_backward(attention, args, handle), out);
    SL_TRY(status, SL_CUDA(cudaStreamSynchronize(NULL)), out);
    known->is_backward_right = 1;
    status = compare(s, block->base + block->dqkv, sums->dqkv, 3 * n_out(s),
                     words, &known->is_backward_right);
out:
    return status;
}

static sl_status_t run_device(const sl_cuda_dnn_attention_t *attention,
                              const sl_cuda_attention_shape_t *s,
                              const sums_t *sums, cudnnHandle_t handle,
                              uint16_t *words, known_t *known)
{
    sl_cuda_dnn_attention_args_t args;
    block_t block = {.bytes = 0};
    sl_status_t status;

    lay_out(attention, s, &block);
    SL_TRY(status, block_alloc(&block), out);
    SL_TRY(status, SL_CUDA(cudaMemset(block.base, 0xff, block.bytes)),
           err_free);
    args.qkv = block.base + block.qkv;
    args.out = block.base + block.out;
    args.saved = block.base + block.saved;
    args.dout = block.base + block.dout;
    args.dqkv = block.base + block.dqkv;
    args.workspace = block.base + block.workspace;
    SL_TRY(status,
           run_forward(attention, s, sums, &block, &args, handle, words, known),
           err_free);
    status =
        run_backward(attention, s, sums, &block, &args, handle, words, known);
err_free:
    block_free(&block);
out:
    return status;
}

/* ---- the check ---- */

static void tell(const known_t *known, const char *pass)
{
    const sl_cuda_attention_shape_t *s = &known->shape;

    sl_warn("fused attention of cuDNN, %s, of %s heads of %d%s: wrong on "
            "CUDA device %d by a check; other kernels are used",
            pass, s->dtype == SL_DTYPE_BF16 ? "bf16" : "f16", (int)s->head_dim,
            s->is_causal ? ", causal" : "", known->device);
}

static sl_status_t check_shape(known_t *known, cudnnHandle_t handle)
{
    const sl_cuda_attention_shape_t *s = &known->shape;
    const size_t n = n_out(s);
    double *room = calloc(n * 8 + n_rows(s) + (size_t)s->time, sizeof(*room));
    uint16_t *words = calloc(3 * n + 2 * n_rows(s), sizeof(*words));
    sl_cuda_dnn_attention_t *attention = NULL;
    sums_t sums;
    sl_status_t status;

    if (room == NULL || words == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "fused attention: no host memory");
    }
    SL_TRY(status, sl_dnn_attention_make(s, handle, &attention), err_free);
    sums = (sums_t){.qkv = room,
                    .dout = room + 3 * n,
                    .out = room + 4 * n,
                    .dqkv = room + 5 * n,
                    .saved = room + 8 * n};
    fill(sums.qkv, 3 * n, 1);
    fill(sums.dout, n, 2);
    host_all(s, &sums, room + 8 * n + n_rows(s));
    SL_TRY(status, run_device(attention, s, &sums, handle, words, known),
           err_destroy);
    if (!known->is_forward_right) {
        tell(known, "forward");
    } else if (sl_cuda_dnn_attention_has_backward(attention) &&
               !known->is_backward_right) {
        tell(known, "backward");
    }
err_destroy:
    sl_cuda_dnn_attention_destroy(attention);
err_free:
    free(words);
    free(room);
    return status;
}

/* The small shape that stands for all of its kind. */
static sl_cuda_attention_shape_t
small_shape(const sl_cuda_attention_shape_t *shape)
{
    sl_cuda_attention_shape_t small = *shape;

    small.batch = BATCH;
    small.heads = HEADS;
    if (small.time > 2 * TILE) {
        small.time = TILE + small.time % TILE;
    }
    return small;
}

static int is_same(const known_t *a, const known_t *b)
{
    return a->device == b->device && a->shape.time == b->shape.time &&
           a->shape.head_dim == b->shape.head_dim &&
           a->shape.dtype == b->shape.dtype &&
           a->shape.is_causal == b->shape.is_causal &&
           a->shape.is_training == b->shape.is_training &&
           a->shape.scale == b->shape.scale;
}

/* The lock is held. What is refused is known as wrong: it is not asked for
 * again. */
static sl_status_t look_up(known_t *known, cudnnHandle_t handle)
{
    sl_status_t status;
    int i;

    for (i = 0; i < kept.n; i++) {
        if (is_same(&kept.list[i], known)) {
            *known = kept.list[i];
            return SL_OK;
        }
    }
    status = check_shape(known, handle);
    if (status < 0 && status != SL_ERR_UNSUPPORTED) {
        return status;
    }
    if (kept.n < MAX_KNOWN) {
        kept.list[kept.n++] = *known;
    }
    return SL_OK;
}

sl_status_t sl_dnn_attention_check(const sl_cuda_attention_shape_t *shape,
                                   cudnnHandle_t handle,
                                   int *is_forward_right_p,
                                   int *is_backward_right_p)
{
    known_t known = {.shape = small_shape(shape)};
    sl_status_t status;

    SL_TRY(status, SL_CUDA(cudaGetDevice(&known.device)), out);
    (void)pthread_mutex_lock(&kept.lock);
    status = look_up(&known, handle);
    (void)pthread_mutex_unlock(&kept.lock);
    *is_forward_right_p = known.is_forward_right;
    *is_backward_right_p = known.is_backward_right;
out:
    return status;
}
