/* SPDX-License-Identifier: Apache-2.0 */
/* A block takes a row at a time; for plain images, where the classes of a
 * pixel are far apart, a thread takes a pixel. Exponentials are fp32, their
 * sums over threads, the losses and the sum of losses double. A row is read
 * once: the exponentials so far are scaled when a larger logit comes.
 *
 * Bytes that must move: the logits in, each way, and their gradient out; 12
 * to 28 for each row. */
#include "layers/cuda/device.cuh"

enum {
    PIXEL_THREADS = 128,
    SUM_THREADS = 256
};

typedef struct row_result {
    double loss;
    int32_t is_valid;
    int32_t is_correct;
} row_result_t;

/* What both passes need, for the kernels. */
typedef struct spec {
    int64_t rows, classes, pixels, ignore_index;
    double smoothing;
    float spread, share; /* of the target: of every class, of its own */
    float loss_scale;
    int aligned;
    const int32_t *targets;
    float *saved;
    row_result_t *results;
} spec_t;

size_t sl_cuda_cross_entropy_workspace_bytes(int64_t rows)
{
    return (size_t)rows * sizeof(row_result_t);
}

static int threads_of(int64_t classes)
{
    return classes <= 256 ? 32 : classes <= 2048 ? 128 : 256;
}

/* A class, and not the one that is ignored. */
static __device__ __forceinline__ int is_target(const spec_t &spec,
                                                int64_t target)
{
    return target >= 0 && target < spec.classes && target != spec.ignore_index;
}

/* Where class 0 of a row is, and how far the classes are apart. */
static __device__ __forceinline__ int64_t row_start(const spec_t &spec,
                                                    int64_t row)
{
    return spec.pixels == 0 ? row * spec.classes
                            : row / spec.pixels * spec.classes * spec.pixels +
                                  row % spec.pixels;
}

/* Of the logits so far: the largest, the first class that has it, the sums of
 * e^(x - max) and of x. */
typedef struct tally {
    float max;
    int best;
    float exps;
    double sum;
} tally_t;

static __device__ __forceinline__ tally_t tally_new(void)
{
    tally_t tally = {-INFINITY, INT32_MAX, 0, 0};

    return tally;
}

/* What exponents are relative to. All at -inf: 0 keeps them 0. */
static __device__ __forceinline__ float base_of(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* Classes c .. c + count - 1. NaN makes the sums NaN. */
template <int N>
static __device__ __forceinline__ void
tally_add(tally_t *tally, int64_t c, int count, const float x[N], int has_sum)
{
    float max = tally->max, base;

    for (int k = 0; k < N; k++) {
        if (k < count && x[k] > max) {
            max = x[k];
            tally->best = (int)(c + k);
        }
    }
    base = base_of(max);
    if (max > tally->max) {
        tally->exps *= expf(tally->max - base);
        tally->max = max;
    }
    for (int k = 0; k < N; k++) {
        if (k < count) {
            tally->exps += expf(x[k] - base);
        }
    }
    for (int k = 0; k < N && has_sum; k++) {
        tally->sum += k < count ? (double)x[k] : 0.0;
    }
}

/* The end of a row's forward, by one thread. exps: the sum of e^(x - max) */
static __device__ __forceinline__ void finish_row(const spec_t &spec,
                                                  int64_t row, float at_target,
                                                  float max, int best,
                                                  double exps, double sum)
{
    const int64_t target = spec.targets[row];
    row_result_t result = {0, 0, 0};
    float saved_max = 0, saved_log = 0;

    if (is_target(spec, target)) {
        const double log_sum = log(exps);

        result.loss =
            log_sum - (1 - spec.smoothing) * ((double)at_target - (double)max);
        if (spec.smoothing > 0) {
            result.loss -=
                spec.smoothing * (sum / (double)spec.classes - (double)max);
        }
        result.is_valid = 1;
        result.is_correct = best == target;
        saved_max = max;
        saved_log = (float)log_sum;
    } else if (target != spec.ignore_index) {
        result.loss = NAN;
    }
    spec.results[row] = result;
    if (spec.saved != NULL) {
        spec.saved[2 * row] = saved_max;
        spec.saved[2 * row + 1] = saved_log;
    }
}

/* The smallest number of the block. */
static __device__ __forceinline__ int block_min(int value)
{
    __shared__ int parts[32];

    for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
        const int other = __shfl_xor_sync(FULL_WARP, value, lanes);

        value = other < value ? other : value;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = value;
    }
    __syncthreads();
    for (unsigned i = 0; i < blockDim.x / 32; i++) {
        value = parts[i] < value ? parts[i] : value;
    }
    return value;
}

template <typename T>
static __global__ void forward_rows(const T *logits, spec_t spec)
{
    enum {
        N = pack_of<T>::N
    };
    const int has_sum = spec.smoothing > 0;

    for (int64_t row = blockIdx.x; row < spec.rows; row += gridDim.x) {
        const int64_t start = row * spec.classes;
        const row_packs_t packs = packs_of_row<N>(start, spec.classes);
        const int64_t target = spec.targets[row];
        tally_t tally = tally_new();
        float max;
        int best, count;
        double exps, sum;
        int64_t c;

        for (int64_t pack = threadIdx.x; pack_at<N>(packs, pack, &c, &count);
             pack += blockDim.x) {
            float x[N];

            load_pack<N>(logits, start + c, count, spec.aligned, x);
            tally_add<N>(&tally, c, count, x, has_sum);
        }
        max = block_max(tally.max);
        best = block_min(tally.max == max ? tally.best : INT32_MAX);
        exps = block_sum((double)tally.exps *
                         (double)expf(tally.max - base_of(max)));
        sum = has_sum ? block_sum(tally.sum) : 0;
        if (threadIdx.x == 0) {
            finish_row(
                spec, row,
                is_target(spec, target) ? to_float(logits[start + target]) : 0,
                max, best, exps, sum);
        }
    }
}

template <typename T>
static __global__ void forward_pixels(const T *logits, spec_t spec)
{
    for (int64_t row = grid_thread(); row < spec.rows; row += grid_threads()) {
        const T *x = logits + row_start(spec, row);
        const int64_t target = spec.targets[row];
        tally_t tally = tally_new();

        for (int64_t c = 0; c < spec.classes; c++) {
            const float value = to_float(x[c * spec.pixels]);

            tally_add<1>(&tally, c, 1, &value, spec.smoothing > 0);
        }
        finish_row(spec, row,
                   is_target(spec, target) ? to_float(x[target * spec.pixels])
                                           : 0,
                   tally.max, tally.best, (double)tally.exps, tally.sum);
    }
}

/* One block: the order of the sum does not depend on the device. */
static __global__ void sum_results(const row_result_t *results, double *out,
                                   int64_t rows)
{
    double loss = 0, n_valid = 0, n_correct = 0;

    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
        loss += results[row].loss;
        n_valid += results[row].is_valid;
        n_correct += results[row].is_correct;
    }
    loss = block_sum(loss);
    n_valid = block_sum(n_valid);
    n_correct = block_sum(n_correct);
    if (threadIdx.x == 0) {
        out[0] = loss;
        out[1] = n_valid;
        out[2] = n_correct;
        out[3] = 0;
    }
}

static spec_t spec_of(const sl_cuda_cross_entropy_t *args)
{
    spec_t spec = {};

    spec.rows = args->rows;
    spec.classes = args->classes;
    spec.pixels = args->pixels;
    spec.ignore_index = args->ignore_index;
    spec.smoothing = args->label_smoothing;
    spec.spread = (float)(args->label_smoothing / (double)args->classes);
    spec.share = (float)(1 - args->label_smoothing + (double)spec.spread);
    spec.loss_scale = args->loss_scale;
    spec.aligned = is_aligned(args->logits);
    spec.targets = args->targets;
    spec.saved = args->saved;
    spec.results = (row_result_t *)args->workspace;
    return spec;
}

/* Blocks of a row each, or of pixels. */
static shape_t shape_for(const sl_cuda_cross_entropy_t *args)
{
    return args->pixels > 0
               ? shape_of(blocks_for(args->rows, PIXEL_THREADS), PIXEL_THREADS)
               : shape_of(blocks_for(args->rows, 1), threads_of(args->classes));
}

template <typename T>
static sl_status_t forward(const sl_cuda_cross_entropy_t *args, void *stream)
{
    const spec_t spec = spec_of(args);
    const size_t result_bytes =
        sl_cuda_cross_entropy_workspace_bytes(args->rows);
    sl_status_t status = SL_OK;

    launch_reads(args->logits,
                 (size_t)(args->rows * args->classes) * sizeof(T));
    launch_reads(args->targets, (size_t)args->rows * sizeof(int32_t));
    launch_writes(args->saved, (size_t)(2 * args->rows) * sizeof(float));
    launch_writes(args->workspace, result_bytes);
    SL_TRY(status,
           launch("cross-entropy forward", shape_for(args), stream,
                  args->pixels > 0 ? forward_pixels<T> : forward_rows<T>,
                  (const T *)args->logits, spec),
           out);
    launch_reads(args->workspace, result_bytes);
    launch_writes(args->out, 4 * sizeof(double));
    status = launch("cross-entropy sum", shape_of(1, SUM_THREADS), stream,
                    sum_results, (const row_result_t *)args->workspace,
                    args->out, args->rows);
out:
    return status;
}

sl_status_t sl_cuda_cross_entropy_forward(const sl_cuda_cross_entropy_t *args,
                                          void *stream)
{
    return args->rows == 0 ? sl_cuda_zero(args->out, 4 * sizeof(double), stream)
                           : FOR_TYPE(args->type, forward, args, stream);
}

/* (softmax - mixed target) * loss_scale for one class */
static __device__ __forceinline__ float slope(const spec_t &spec, int64_t c,
                                              int64_t target, float x,
                                              float max, float log_sum)
{
    if (!is_target(spec, target)) {
        return target == spec.ignore_index ? 0.0f : NAN;
    }
    return (expf((x - max) - log_sum) -
            (c == target ? spec.share : spec.spread)) *
           spec.loss_scale;
}

template <typename T>
static __global__ void backward_rows(const T *logits, T *din, spec_t spec)
{
    enum {
        N = pack_of<T>::N
    };

    for (int64_t row = blockIdx.x; row < spec.rows; row += gridDim.x) {
        const int64_t start = row * spec.classes;
        const row_packs_t packs = packs_of_row<N>(start, spec.classes);
        const int64_t target = spec.targets[row];
        const float max = spec.saved[2 * row];
        const float log_sum = spec.saved[2 * row + 1];
        int64_t c;
        int count;

        for (int64_t pack = threadIdx.x; pack_at<N>(packs, pack, &c, &count);
             pack += blockDim.x) {
            float x[N];

            load_pack<N>(logits, start + c, count, spec.aligned, x);
            for (int k = 0; k < N; k++) {
                x[k] = slope(spec, c + k, target, x[k], max, log_sum);
            }
            store_pack<N>(din, start + c, count, spec.aligned, x);
        }
    }
}

template <typename T>
static __global__ void backward_pixels(const T *logits, T *din, spec_t spec)
{
    for (int64_t row = grid_thread(); row < spec.rows; row += grid_threads()) {
        const int64_t target = spec.targets[row];
        const float max = spec.saved[2 * row];
        const float log_sum = spec.saved[2 * row + 1];
        const int64_t start = row_start(spec, row);

        for (int64_t c = 0; c < spec.classes; c++) {
            const int64_t at = start + c * spec.pixels;

            from_float(
                slope(spec, c, target, to_float(logits[at]), max, log_sum),
                &din[at]);
        }
    }
}

template <typename T>
static sl_status_t backward(const sl_cuda_cross_entropy_t *args, void *stream)
{
    const size_t bytes = (size_t)(args->rows * args->classes) * sizeof(T);
    spec_t spec = spec_of(args);

    spec.results = NULL;
    spec.aligned = spec.aligned && is_aligned(args->din);
    launch_reads(args->logits, bytes);
    launch_reads(args->targets, (size_t)args->rows * sizeof(int32_t));
    launch_reads(args->saved, (size_t)(2 * args->rows) * sizeof(float));
    launch_writes(args->din, bytes);
    return launch("cross-entropy backward", shape_for(args), stream,
                  args->pixels > 0 ? backward_pixels<T> : backward_rows<T>,
                  (const T *)args->logits, (T *)args->din, spec);
}

sl_status_t sl_cuda_cross_entropy_backward(const sl_cuda_cross_entropy_t *args,
                                           void *stream)
{
    return args->rows == 0 || args->din == NULL
               ? SL_OK
               : FOR_TYPE(args->type, backward, args, stream);
}
