/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm: two sums and one pass over memory, for each type in both
 * layouts, with skip connection and relu in the same pass: forward reads x
 * twice and the skip connection once, and writes once. cuDNN's (dnn_norm.c)
 * reads x once where it fits on the chip, but leaves skip connection and relu
 * to another pass, which reads twice and writes once more. It fuses them for
 * f16 with channels last alone, in a mode that limits the range of values.
 *
 * The running statistics move once a mini-batch, by count, sum and sum of
 * squares over all micro-batches and replicas, in double. */
#include "layers/cuda/channel_sums.cuh"

/* Of a channel: y = (x - mean) scale + bias, and for backward
 * dx = k1 g + (k2 (x - mean) + k0). */
typedef struct alignas(16) factors {
    float mean, scale, bias;
    float k0, k1, k2;
} factors_t;

/* What backward takes relu's slope from. */
typedef enum mask {
    MASK_NONE,
    MASK_FROM_X,
    MASK_FROM_Y
} mask_t;

static sum_shape_t sums_of(const sl_cuda_batch_norm_t *args)
{
    return sum_shape_of(args->is_last, args->batch, args->channels,
                        args->pixels);
}

static size_t factors_bytes(const sl_cuda_batch_norm_t *args)
{
    return (size_t)args->channels * sizeof(factors_t);
}

size_t sl_cuda_batch_norm_workspace_bytes(const sl_cuda_batch_norm_t *args)
{
    const sum_shape_t shape = sums_of(args);

    return sum_bytes(&shape) + factors_bytes(args);
}

/* The workspace: the sums, then the factors. */
static double *partial_of(const sl_cuda_batch_norm_t *args)
{
    return (double *)args->workspace;
}

static factors_t *factors_of(const sl_cuda_batch_norm_t *args)
{
    const sum_shape_t shape = sums_of(args);

    return (factors_t *)(void *)((char *)args->workspace + sum_bytes(&shape));
}

static size_t tensor_bytes(const sl_cuda_batch_norm_t *args)
{
    return (size_t)(args->batch * args->channels * args->pixels) *
           sl_cuda_type_bytes(args->type);
}

static size_t channel_bytes(const sl_cuda_batch_norm_t *args)
{
    return (size_t)args->channels * sizeof(float);
}

/* A walk over neighbouring elements that knows their channel. */
struct walk_t {
    int64_t c, channels;
    int64_t left; /* elements to the next channel */
    int64_t run;  /* that a channel has in a row */
};

static __device__ __forceinline__ walk_t walk_from(int64_t i, int is_last,
                                                   int64_t channels,
                                                   int64_t pixels)
{
    walk_t w;
    int64_t row;

    w.channels = channels;
    w.run = is_last ? 1 : pixels;
    row = is_last ? i : quotient(i, pixels);
    w.left = w.run - (i - row * w.run);
    w.c = row - quotient(row, channels) * channels;
    return w;
}

static __device__ __forceinline__ void walk_on(walk_t *w)
{
    if (--w->left == 0) {
        w->left = w->run;
        w->c = w->c + 1 == w->channels ? 0 : w->c + 1;
    }
}

/* One value of the channel, so that the squares do not cancel. */
template <typename T>
static __device__ __forceinline__ float shift_of(const T *x, int64_t c,
                                                 int is_last, int64_t pixels)
{
    return to_float(x[is_last ? c : c * pixels]);
}

/* ---- forward ---- */

template <typename T> struct forward_terms {
    const T *x;
    int is_last;
    int64_t pixels;

    __device__ void operator()(int64_t at, int64_t c, float *a, float *b) const
    {
        const float d = to_float(x[at]) - shift_of(x, c, is_last, pixels);

        *a = d;
        *b = d * d;
    }
};

typedef struct finish_args {
    const double *partial; /* NULL: the running statistics */
    const float *weight, *bias;
    const float *running_mean, *running_var;
    double *sums;
    float *saved;
    factors_t *factors;
    double eps;
    int is_first;
    sum_shape_t shape;
} finish_args_t;

/* Add a micro-batch of n values to the mini-batch's count, sum, sum of squares:
 * in double these lose nothing that a float mean and variance could show. */
static __device__ void accumulate(double *sums, int64_t channels, int64_t c,
                                  int is_first, double n, double mean,
                                  double m2)
{
    const double add[3] = {n, n * mean, m2 + n * mean * mean};

    for (int i = 0; i < 3; i++) {
        double *to = &sums[i * channels + c];

        *to = is_first ? add[i] : *to + add[i];
    }
}

/* Mean and variance of the micro-batch. */
template <typename T>
static __device__ void moments(const T *x, const finish_args_t &a, int64_t c,
                               double *mean_p, double *var_p)
{
    const double n = (double)a.shape.values;
    const double s = sum_parts(a.partial, a.shape, 0, c);
    const double q = sum_parts(a.partial, a.shape, 1, c);
    const double d = s / n;
    double m2 = q - s * d;

    m2 = m2 < 0.0 ? 0.0 : m2; /* of rounding; NaN stays */
    *mean_p = (double)shift_of(x, c, a.shape.is_last, a.shape.pixels) + d;
    *var_p = m2 / n;
    if (a.sums != NULL && is_channel_leader(a.shape)) {
        accumulate(a.sums, a.shape.channels, c, a.is_first, n, *mean_p, m2);
    }
}

template <typename T>
static __global__ void forward_finish(const T *x, finish_args_t a)
{
    const int64_t channels = a.shape.channels;

    for (int64_t c = channel_first(a.shape); c < channels;
         c += channel_step(a.shape)) {
        double mean, var;
        float rstd;

        if (a.partial == NULL) {
            mean = (double)a.running_mean[c];
            var = (double)a.running_var[c];
        } else {
            moments(x, a, c, &mean, &var);
        }
        if (!is_channel_leader(a.shape)) {
            continue;
        }
        rstd = (float)(1.0 / sqrt(var + a.eps));
        if (a.saved != NULL) {
            a.saved[c] = (float)mean;
            a.saved[channels + c] = rstd;
        }
        a.factors[c].mean = (float)mean;
        a.factors[c].scale = a.weight[c] * rstd;
        a.factors[c].bias = a.bias[c];
    }
}

template <typename T> struct normalise_four {
    const T *x, *skip;
    T *y;
    const factors_t *factors;
    int64_t channels, pixels;
    int is_last, is_relu, aligned;

    __device__ void operator()(int64_t i, int count) const
    {
        walk_t w = walk_from(i, is_last, channels, pixels);
        float v[4], s[4] = {0, 0, 0, 0};

        load_four(x, i, count, aligned, v);
        if (skip != NULL) {
            load_four(skip, i, count, aligned, s);
        }
        for (int k = 0; k < count; k++, walk_on(&w)) {
            const factors_t f = factors[w.c];

            v[k] = (v[k] - f.mean) * f.scale + f.bias;
            v[k] = skip != NULL ? v[k] + s[k] : v[k];
            v[k] = is_relu ? relu_value(v[k]) : v[k];
        }
        store_four(y, i, count, aligned, v);
    }
};

template <typename T>
static sl_status_t forward_statistics(const sl_cuda_batch_norm_t *args,
                                      void *stream)
{
    const sum_shape_t shape = sums_of(args);
    const T *x = (const T *)args->in;
    finish_args_t a = {
        NULL, args->weight, args->bias,       NULL,      NULL,
        NULL, NULL,         factors_of(args), args->eps, args->is_first_forward,
        shape};
    sl_status_t status;

    if (args->is_training) {
        const forward_terms<T> f = {x, args->is_last, args->pixels};

        launch_reads(x, tensor_bytes(args));
        SL_TRY(
            status,
            launch_sums("batch norm sums", f, partial_of(args), &shape, stream),
            out);
        a.partial = partial_of(args);
        a.sums = args->sums;
        a.saved = args->saved;
        launch_reads(x, tensor_bytes(args));
        launch_reads(a.partial, sum_bytes(&shape));
        launch_writes(a.sums, 3 * (size_t)args->channels * sizeof(double));
        launch_writes(a.saved, 2 * channel_bytes(args));
    } else {
        a.running_mean = args->running_mean;
        a.running_var = args->running_var;
        x = NULL;
        launch_reads(a.running_mean, channel_bytes(args));
        launch_reads(a.running_var, channel_bytes(args));
    }
    launch_reads(args->weight, channel_bytes(args));
    launch_reads(args->bias, channel_bytes(args));
    launch_writes(a.factors, factors_bytes(args));
    status = launch("batch norm statistics", channel_threads(shape), stream,
                    forward_finish<T>, x, a);
out:
    return status;
}

template <typename T>
static sl_status_t forward(const sl_cuda_batch_norm_t *args, void *stream)
{
    const normalise_four<T> f = {(const T *)args->in,
                                 (const T *)args->skip,
                                 (T *)args->out,
                                 factors_of(args),
                                 args->channels,
                                 args->pixels,
                                 args->is_last,
                                 args->is_relu,
                                 is_aligned(args->in) &&
                                     is_aligned(args->skip) &&
                                     is_aligned(args->out)};
    sl_status_t status;

    SL_TRY(status, forward_statistics<T>(args, stream), out);
    launch_reads(args->in, tensor_bytes(args));
    launch_reads(args->skip, tensor_bytes(args));
    launch_reads(f.factors, factors_bytes(args));
    launch_writes(args->out, tensor_bytes(args));
    status = launch_fours("batch norm forward", f,
                          args->batch * args->channels * args->pixels, stream);
out:
    return status;
}

sl_status_t sl_cuda_batch_norm_forward(const sl_cuda_batch_norm_t *args,
                                       void *stream)
{
    return FOR_TYPE(args->type, forward, args, stream);
}

/* ---- backward ---- */

/* The gradient behind relu. */
static __device__ __forceinline__ float
masked(mask_t mask, float d, const factors_t &f, float y, float g)
{
    return mask == MASK_FROM_X   ? relu_slope(d * f.scale + f.bias, g)
           : mask == MASK_FROM_Y ? relu_slope(y, g)
                                 : g;
}

static __global__ void base_factors(const float *weight, const float *bias,
                                    const float *saved, factors_t *factors,
                                    int64_t channels)
{
    for (int64_t c = grid_thread(); c < channels; c += grid_threads()) {
        factors[c].mean = saved[c];
        factors[c].scale = weight[c] * saved[channels + c];
        factors[c].bias = bias[c];
    }
}

template <typename T> struct backward_terms {
    const T *x, *y, *dout;
    const factors_t *factors;
    mask_t mask;

    __device__ void operator()(int64_t at, int64_t c, float *a, float *b) const
    {
        const factors_t f = factors[c];
        const float d = to_float(x[at]) - f.mean;
        const float g = masked(mask, d, f, y != NULL ? to_float(y[at]) : 0.0f,
                               to_float(dout[at]));

        *a = g;
        *b = g * d;
    }
};

typedef struct gradients {
    const double *partial;
    const float *weight, *saved;
    float *dweight, *dbias;
    factors_t *factors;
    int is_first;
    sum_shape_t shape;
} gradients_t;

/* Gradients of weight and bias, and the factors of dx. */
static __global__ void backward_finish(gradients_t a)
{
    const int64_t channels = a.shape.channels;

    for (int64_t c = channel_first(a.shape); c < channels;
         c += channel_step(a.shape)) {
        const double n = (double)a.shape.values;
        const double rstd = (double)a.saved[channels + c];
        const double s = sum_parts(a.partial, a.shape, 0, c);
        const double q = sum_parts(a.partial, a.shape, 1, c);
        const double k1 = (double)a.weight[c] * rstd;
        const float dweight = (float)(q * rstd), dbias = (float)s;

        if (!is_channel_leader(a.shape)) {
            continue;
        }
        if (a.dweight != NULL) {
            a.dweight[c] = a.is_first ? dweight : a.dweight[c] + dweight;
        }
        if (a.dbias != NULL) {
            a.dbias[c] = a.is_first ? dbias : a.dbias[c] + dbias;
        }
        a.factors[c].k0 = (float)(-k1 * s / n);
        a.factors[c].k1 = (float)k1;
        a.factors[c].k2 = (float)(-k1 * rstd * rstd * q / n);
    }
}

template <typename T> struct backward_four {
    const T *x, *y, *dout, *prev, *skip_prev;
    T *dx, *dskip;
    const factors_t *factors;
    int64_t channels, pixels;
    int is_last, aligned;
    mask_t mask;

    /* to = v (+ prev) */
    __device__ void store(T *to, const T *old, int64_t i, int count,
                          float v[4]) const
    {
        float p[4];

        if (to == NULL) {
            return;
        }
        if (old != NULL) {
            load_four(old, i, count, aligned, p);
            for (int k = 0; k < 4; k++) {
                v[k] = p[k] + v[k];
            }
        }
        store_four(to, i, count, aligned, v);
    }

    __device__ void operator()(int64_t i, int count) const
    {
        walk_t w = walk_from(i, is_last, channels, pixels);
        float v[4], s[4] = {0, 0, 0, 0}, g[4];

        load_four(x, i, count, aligned, v);
        load_four(dout, i, count, aligned, g);
        if (y != NULL) {
            load_four(y, i, count, aligned, s);
        }
        for (int k = 0; k < count; k++, walk_on(&w)) {
            const factors_t f = factors[w.c];
            const float d = v[k] - f.mean;

            g[k] = masked(mask, d, f, s[k], g[k]);
            v[k] = f.k1 * g[k] + (f.k2 * d + f.k0);
        }
        store(dx, prev, i, count, v);
        store(dskip, skip_prev, i, count, g);
    }
};

static mask_t mask_of(const sl_cuda_batch_norm_t *args)
{
    return !args->is_relu   ? MASK_NONE
           : args->has_skip ? MASK_FROM_Y
                            : MASK_FROM_X;
}

template <typename T>
static sl_status_t backward_sums(const sl_cuda_batch_norm_t *args, void *stream)
{
    const sum_shape_t shape = sums_of(args);
    const mask_t mask = mask_of(args);
    const backward_terms<T> f = {(const T *)args->in,
                                 mask == MASK_FROM_Y ? (const T *)args->out
                                                     : (const T *)NULL,
                                 (const T *)args->dout, factors_of(args), mask};
    const gradients_t a = {
        partial_of(args),        args->weight, args->saved,
        args->dweight,           args->dbias,  factors_of(args),
        args->is_first_backward, shape};
    const shape_t threads =
        shape_of(blocks_for(args->channels, ITEM_THREADS), ITEM_THREADS);
    sl_status_t status;

    launch_reads(args->weight, channel_bytes(args));
    launch_reads(args->bias, channel_bytes(args));
    launch_reads(args->saved, 2 * channel_bytes(args));
    launch_writes(f.factors, factors_bytes(args));
    SL_TRY(status,
           launch("batch norm factors", threads, stream, base_factors,
                  args->weight, args->bias, (const float *)args->saved,
                  factors_of(args), args->channels),
           out);
    launch_reads(f.x, tensor_bytes(args));
    launch_reads(f.y, tensor_bytes(args));
    launch_reads(f.dout, tensor_bytes(args));
    launch_reads(f.factors, factors_bytes(args));
    SL_TRY(status,
           launch_sums("batch norm gradients", f, partial_of(args), &shape,
                       stream),
           out);
    launch_reads(a.partial, sum_bytes(&shape));
    launch_reads(args->weight, channel_bytes(args));
    launch_reads(args->saved, 2 * channel_bytes(args));
    launch_writes(args->dweight, channel_bytes(args));
    launch_writes(args->dbias, channel_bytes(args));
    launch_writes(f.factors, factors_bytes(args));
    status = launch("batch norm gradient sums", channel_threads(shape), stream,
                    backward_finish, a);
out:
    return status;
}

template <typename T>
static sl_status_t backward(const sl_cuda_batch_norm_t *args, void *stream)
{
    const mask_t mask = mask_of(args);
    const T *y = mask == MASK_FROM_Y ? (const T *)args->out : (const T *)NULL;
    const backward_four<T> f = {
        (const T *)args->in,
        y,
        (const T *)args->dout,
        args->din[0] != NULL ? (const T *)args->prev[0] : (const T *)NULL,
        args->din[1] != NULL ? (const T *)args->prev[1] : (const T *)NULL,
        (T *)args->din[0],
        (T *)args->din[1],
        factors_of(args),
        args->channels,
        args->pixels,
        args->is_last,
        is_aligned(args->in) && is_aligned(y) && is_aligned(args->dout) &&
            is_aligned(args->prev[0]) && is_aligned(args->prev[1]) &&
            is_aligned(args->din[0]) && is_aligned(args->din[1]),
        mask};
    sl_status_t status;

    SL_TRY(status, backward_sums<T>(args, stream), out);
    if (f.dx == NULL && f.dskip == NULL) {
        return SL_OK;
    }
    launch_reads(f.x, tensor_bytes(args));
    launch_reads(f.y, tensor_bytes(args));
    launch_reads(f.dout, tensor_bytes(args));
    launch_reads(f.factors, factors_bytes(args));
    launch_reads(f.prev, tensor_bytes(args));
    launch_reads(f.skip_prev, tensor_bytes(args));
    launch_writes(f.dx, tensor_bytes(args));
    launch_writes(f.dskip, tensor_bytes(args));
    status = launch_fours("batch norm backward", f,
                          args->batch * args->channels * args->pixels, stream);
out:
    return status;
}

sl_status_t sl_cuda_batch_norm_backward(const sl_cuda_batch_norm_t *args,
                                        void *stream)
{
    return FOR_TYPE(args->type, backward, args, stream);
}

/* ---- the whole mini-batch ---- */

static __global__ void add_moments(double *sums, const float *mean,
                                   const float *var, int64_t channels,
                                   int64_t values, int is_first)
{
    const double n = (double)values;

    for (int64_t c = grid_thread(); c < channels; c += grid_threads()) {
        accumulate(sums, channels, c, is_first, n, (double)mean[c],
                   (n - 1.0) * (double)var[c]);
    }
}

sl_status_t sl_cuda_batch_norm_add_moments(const sl_cuda_batch_norm_t *args,
                                           const float *mean, const float *var,
                                           void *stream)
{
    launch_reads(mean, channel_bytes(args));
    launch_reads(var, channel_bytes(args));
    launch_writes(args->sums, 3 * (size_t)args->channels * sizeof(double));
    return launch(
        "batch norm moments",
        shape_of(blocks_for(args->channels, ITEM_THREADS), ITEM_THREADS),
        stream, add_moments, args->sums, mean, var, args->channels,
        args->batch * args->pixels, args->is_first_forward);
}

/* running = (1 - momentum) running + momentum * the mini-batch's value; the
 * variance is the unbiased one, as in PyTorch. */
static __global__ void move_running(const double *sums, float *running_mean,
                                    float *running_var, int64_t channels,
                                    double momentum)
{
    const double keep = 1.0 - momentum;

    for (int64_t c = grid_thread(); c < channels; c += grid_threads()) {
        const double n = sums[c];
        const double mean = sums[channels + c] / n;
        double m2 = sums[2 * channels + c] - sums[channels + c] * mean;

        if (n < 1.0) {
            continue; /* no sample of the mini-batch came by */
        }
        m2 = m2 < 0.0 ? 0.0 : m2;
        running_mean[c] =
            (float)(keep * (double)running_mean[c] + momentum * mean);
        running_var[c] = (float)(keep * (double)running_var[c] +
                                 momentum * m2 / (n > 1.0 ? n - 1.0 : 1.0));
    }
}

sl_status_t sl_cuda_batch_norm_finish(const sl_cuda_batch_norm_t *args,
                                      void *stream)
{
    launch_reads(args->sums, 3 * (size_t)args->channels * sizeof(double));
    launch_writes(args->running_mean, channel_bytes(args));
    launch_writes(args->running_var, channel_bytes(args));
    return launch(
        "batch norm finish",
        shape_of(blocks_for(args->channels, ITEM_THREADS), ITEM_THREADS),
        stream, move_running, (const double *)args->sums, args->running_mean,
        args->running_var, args->channels, args->momentum);
}
