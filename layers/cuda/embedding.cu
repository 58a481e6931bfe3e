/* SPDX-License-Identifier: Apache-2.0 */
/* Backward: the block of a token's first place adds up all its rows, in token
 * order, so that no two blocks write the same row and the sum's order is
 * fixed. Finding the places reads the tokens once for each of them: cheap
 * beside the rows, for micro-batches of up to some 10^5 tokens. */
#include "layers/cuda/device.cuh"

enum {
    FORWARD_THREADS = 256,
    THREADS = 128, /* columns of a backward block */
    WARPS = THREADS / 32
};

template <typename T>
static __global__ void
forward_elements(const int32_t *tokens, const float *weight,
                 const float *position, T *out, int64_t n, int64_t time,
                 int64_t width, int64_t vocab, uint32_t *fault)
{
    for (int64_t at = grid_thread(); at < n * width; at += grid_threads()) {
        const int64_t i = at / width, k = at % width;
        const int64_t token = tokens[i];
        float value;

        if (token < 0 || token >= vocab) {
            if (k == 0 && fault != NULL) {
                atomicMin(fault, (uint32_t)i);
            }
            value = NAN;
        } else {
            value = weight[token * width + k];
            if (position != NULL) {
                value += position[i % time * width + k];
            }
        }
        from_float(value, &out[at]);
    }
}

template <typename T>
static sl_status_t forward(const sl_cuda_embedding_t *args, void *stream)
{
    const int64_t n = args->n * args->width;
    const size_t row_bytes = (size_t)args->width * sizeof(float);
    const float *position = args->positions > 0 ? args->position : NULL;

    launch_reads(args->tokens, (size_t)args->n * sizeof(int32_t));
    launch_reads(args->weight, (size_t)args->vocab * row_bytes);
    launch_reads(position, (size_t)args->positions * row_bytes);
    launch_writes(args->out, (size_t)n * sizeof(T));
    launch_writes(args->fault, sizeof(uint32_t));
    return launch("embedding forward",
                  shape_of(blocks_for(n, FORWARD_THREADS), FORWARD_THREADS),
                  stream, forward_elements<T>, args->tokens, args->weight,
                  position, (T *)args->out, args->n, args->time, args->width,
                  args->vocab, args->fault);
}

sl_status_t sl_cuda_embedding_forward(const sl_cuda_embedding_t *args,
                                      void *stream)
{
    return args->n == 0 ? SL_OK : FOR_TYPE(args->type, forward, args, stream);
}

/* Whether the token of `first` is at an earlier place. Same for the block. */
static __device__ __forceinline__ int is_repeated(const int32_t *tokens,
                                                  int64_t first)
{
    const int32_t token = tokens[first];

    for (int64_t end = first; end > 0; end -= THREADS) {
        const int64_t i = end - 1 - threadIdx.x;

        if (__syncthreads_or(i >= 0 && tokens[i] == token)) {
            return 1;
        }
    }
    return 0;
}

template <typename T>
static __global__ void token_grads(const int32_t *tokens, const T *dout,
                                   float *grad, int64_t n, int64_t width,
                                   int64_t vocab)
{
    __shared__ unsigned hits[WARPS];
    const int64_t first = blockIdx.x;
    const int64_t column = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    const int32_t token = tokens[first];
    float sum = 0;

    if (token < 0 || token >= vocab || is_repeated(tokens, first)) {
        return;
    }
    if (column < width) {
        sum = grad[token * width + column];
    }
    for (int64_t begin = first; begin < n; begin += THREADS) {
        const int64_t i = begin + threadIdx.x;
        const unsigned votes =
            __ballot_sync(FULL_WARP, i < n && tokens[i] == token);

        __syncthreads(); /* the hits before have been read */
        if (threadIdx.x % 32 == 0) {
            hits[threadIdx.x / 32] = votes;
        }
        __syncthreads();
        for (int warp = 0; warp < WARPS && column < width; warp++) {
            for (unsigned left = hits[warp]; left != 0; left &= left - 1) {
                const int64_t row = begin + 32 * warp + __ffs((int)left) - 1;

                sum += to_float(dout[row * width + column]);
            }
        }
    }
    if (column < width) {
        grad[token * width + column] = sum;
    }
}

/* Rows of the same position, in order. */
template <typename T>
static __global__ void position_grads(const int32_t *tokens, const T *dout,
                                      float *grad, int64_t n, int64_t time,
                                      int64_t width, int64_t vocab)
{
    for (int64_t at = grid_thread(); at < time * width; at += grid_threads()) {
        const int64_t k = at % width;
        float sum = grad[at];

        for (int64_t i = at / width; i < n; i += time) {
            if (tokens[i] >= 0 && tokens[i] < vocab) {
                sum += to_float(dout[i * width + k]);
            }
        }
        grad[at] = sum;
    }
}

template <typename T>
static sl_status_t backward_weight(const sl_cuda_embedding_t *args,
                                   void *stream)
{
    const size_t bytes = (size_t)(args->vocab * args->width) * sizeof(float);
    const shape_t shape = {args->n, (args->width + THREADS - 1) / THREADS,
                           THREADS, 1};
    sl_status_t status = SL_OK;

    if (args->is_first) {
        SL_TRY(status, sl_cuda_zero(args->dweight, bytes, stream), out);
    }
    if (args->n == 0) {
        goto out;
    }
    launch_reads(args->tokens, (size_t)args->n * sizeof(int32_t));
    launch_reads(args->dout, (size_t)(args->n * args->width) * sizeof(T));
    launch_writes(args->dweight, bytes);
    status = launch("embedding backward", shape, stream, token_grads<T>,
                    args->tokens, (const T *)args->dout, args->dweight, args->n,
                    args->width, args->vocab);
out:
    return status;
}

template <typename T>
static sl_status_t backward_position(const sl_cuda_embedding_t *args,
                                     void *stream)
{
    const size_t bytes =
        (size_t)(args->positions * args->width) * sizeof(float);
    sl_status_t status = SL_OK;

    if (args->is_first) {
        SL_TRY(status, sl_cuda_zero(args->dposition, bytes, stream), out);
    }
    if (args->n == 0) {
        goto out;
    }
    launch_reads(args->tokens, (size_t)args->n * sizeof(int32_t));
    launch_reads(args->dout, (size_t)(args->n * args->width) * sizeof(T));
    launch_writes(args->dposition, bytes);
    status =
        launch("position backward",
               shape_of(blocks_for(args->time * args->width, THREADS), THREADS),
               stream, position_grads<T>, args->tokens, (const T *)args->dout,
               args->dposition, args->n, args->time, args->width, args->vocab);
out:
    return status;
}

template <typename T>
static sl_status_t backward(const sl_cuda_embedding_t *args, void *stream)
{
    sl_status_t status = SL_OK;

    if (args->dweight != NULL) {
        SL_TRY(status, backward_weight<T>(args, stream), out);
    }
    if (args->dposition != NULL && args->positions > 0) {
        status = backward_position<T>(args, stream);
    }
out:
    return status;
}

sl_status_t sl_cuda_embedding_backward(const sl_cuda_embedding_t *args,
                                       void *stream)
{
    return FOR_TYPE(args->type, backward, args, stream);
}
