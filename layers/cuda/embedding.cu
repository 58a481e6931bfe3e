/* SPDX-License-Identifier: Apache-2.0 */
/* Backward sorts the places of the tokens by token, which keeps their order
 * within a token; then a block adds up the rows of a token, in that order.
 * Beside the rows the sort is small: it reads and writes 4 bytes a token
 * twice for each 8 bits of the vocabulary.
 *
 * Bytes that must move, with row = width elements: forward n rows of fp32 in
 * (with positions as many again, mostly from the cache), n rows out; backward
 * n rows in for each table, and the table's rows that have tokens in and out
 * (the first time all of it is zeroed). */
#include "layers/cuda/device.cuh"

enum {
    N = 4, /* columns of a thread: a pack of fp32 */
    FORWARD_THREADS = 256,
    THREADS = 64, /* of a backward block */
    WARPS = THREADS / 32,
    BATCH = 8,      /* rows on their way at a time */
    DIGIT_BITS = 8, /* of the token, in each pass of the sort */
    DIGITS = 1 << DIGIT_BITS,
    MIN_TILE = 256, /* places of a warp */
    MAX_TILES = 256
};

static __device__ __forceinline__ int is_token(int64_t token, int64_t vocab)
{
    return token >= 0 && token < vocab;
}

/* ---- forward ---- */

template <typename T>
static __global__ void forward_packs(const int32_t *tokens, const float *weight,
                                     const float *position, T *out, int64_t n,
                                     int64_t time, int64_t width, int64_t vocab,
                                     int aligned)
{
    const int64_t packs = (width + N - 1) / N;

    for (int64_t at = grid_thread(); at < n * packs; at += grid_threads()) {
        const int64_t i = at / packs, k = at % packs * N;
        const int count = width - k < N ? (int)(width - k) : (int)N;
        const int64_t token = tokens[i];
        float x[N], p[N];

        if (is_token(token, vocab)) {
            load_pack<N>(weight, token * width + k, count, aligned, x);
        } else {
            for (int j = 0; j < N; j++) {
                x[j] = NAN;
            }
        }
        if (position != NULL) {
            load_pack<N>(position, i % time * width + k, count, aligned, p);
            for (int j = 0; j < N; j++) {
                x[j] += p[j];
            }
        }
        store_pack<N>(out, i * width + k, count, aligned, x);
    }
}

template <typename T>
static sl_status_t forward(const sl_cuda_embedding_t *args, void *stream)
{
    const int64_t packs = args->n * ((args->width + N - 1) / N);
    const size_t row_bytes = (size_t)args->width * sizeof(float);
    const float *position = args->positions > 0 ? args->position : NULL;
    const int aligned = args->width % N == 0 && is_aligned(args->weight) &&
                        is_aligned(position) && is_aligned(args->out);

    launch_reads(args->tokens, (size_t)args->n * sizeof(int32_t));
    launch_reads(args->weight, (size_t)args->vocab * row_bytes);
    launch_reads(position, (size_t)args->positions * row_bytes);
    launch_writes(args->out, (size_t)(args->n * args->width) * sizeof(T));
    return launch("embedding forward",
                  shape_of(blocks_for(packs, FORWARD_THREADS), FORWARD_THREADS),
                  stream, forward_packs<T>, args->tokens, args->weight,
                  position, (T *)args->out, args->n, args->time, args->width,
                  args->vocab, aligned);
}

sl_status_t sl_cuda_embedding_forward(const sl_cuda_embedding_t *args,
                                      void *stream)
{
    return args->n == 0 ? SL_OK : FOR_TYPE(args->type, forward, args, stream);
}

/* ---- places in token order ---- */

/* The work of a sort. Tokens that are none come last, as token `vocab`. */
typedef struct sort {
    const int32_t *tokens;
    int64_t n, vocab;
    int64_t tile, n_tiles; /* places of a tile; a warp takes one */
    uint32_t *order[2];    /* [n]: of this pass, and of the one before */
    uint32_t *counts;      /* [n_tiles, DIGITS]: of places, then where the
                              next of them goes */
} sort_t;

static int64_t tile_of(int64_t n)
{
    const int64_t tile = ((n + MAX_TILES - 1) / MAX_TILES + 31) / 32 * 32;

    return tile > (int64_t)MIN_TILE ? tile : (int64_t)MIN_TILE;
}

static int64_t tiles_of(int64_t n)
{
    return (n + tile_of(n) - 1) / tile_of(n);
}

static int passes_of(int64_t vocab)
{
    int passes = 0;

    for (; vocab > 0; vocab >>= DIGIT_BITS) {
        passes++;
    }
    return passes;
}

size_t sl_cuda_embedding_workspace_bytes(int64_t n, int64_t vocab)
{
    (void)vocab;
    return (size_t)(2 * n + tiles_of(n) * DIGITS) * sizeof(uint32_t);
}

static sort_t sort_of(const sl_cuda_embedding_t *args)
{
    uint32_t *words = (uint32_t *)args->workspace;
    sort_t sort;

    sort.tokens = args->tokens;
    sort.n = args->n;
    sort.vocab = args->vocab;
    sort.tile = tile_of(args->n);
    sort.n_tiles = tiles_of(args->n);
    sort.order[0] = words;
    sort.order[1] = words + args->n;
    sort.counts = words + 2 * args->n;
    return sort;
}

/* The place that is i-th before this pass. */
static __device__ __forceinline__ uint32_t place_at(const sort_t &sort,
                                                    int is_first, int64_t i)
{
    return is_first ? (uint32_t)i : sort.order[1][i];
}

static __device__ __forceinline__ unsigned digit_of(const sort_t &sort,
                                                    uint32_t place, int pass)
{
    const int64_t token = sort.tokens[place];
    const int64_t key = is_token(token, sort.vocab) ? token : sort.vocab;

    return (unsigned)(key >> pass * DIGIT_BITS) & (DIGITS - 1);
}

/* Lanes that have the same digit; none for a lane without one. */
static __device__ __forceinline__ unsigned lanes_alike(unsigned digit,
                                                       int has_digit)
{
    unsigned lanes = __ballot_sync(FULL_WARP, has_digit);

    for (int bit = 0; bit < DIGIT_BITS; bit++) {
        const int is_set = (int)(digit >> bit & 1u);
        const unsigned votes = __ballot_sync(FULL_WARP, is_set);

        lanes &= is_set ? votes : ~votes;
    }
    return has_digit ? lanes : 0;
}

/* Both steps of a pass walk a tile in order, 32 places at a time. Of equal
 * digits the lowest lane keeps the count. PLACES 0: counts of the tile's
 * digits; 1: each place to where its digit's next one goes. */
template <int PLACES> static __global__ void sort_tiles(sort_t sort, int pass)
{
    __shared__ uint32_t next[DIGITS];
    const unsigned lane = threadIdx.x;
    const int64_t begin = (int64_t)blockIdx.x * sort.tile;
    const int64_t end = begin + sort.tile < sort.n ? begin + sort.tile : sort.n;
    uint32_t *counts = sort.counts + (int64_t)blockIdx.x * DIGITS;

    for (unsigned digit = lane; digit < DIGITS; digit += 32) {
        next[digit] = PLACES ? counts[digit] : 0;
    }
    __syncwarp();
    for (int64_t first = begin; first < end; first += 32) {
        const int has_place = first + lane < end;
        const uint32_t place =
            has_place ? place_at(sort, pass == 0, first + lane) : 0;
        const unsigned digit = has_place ? digit_of(sort, place, pass) : 0;
        const unsigned alike = lanes_alike(digit, has_place);
        const unsigned before = alike & ((1u << lane) - 1u);
        const uint32_t start = next[digit];

        __syncwarp(); /* all have read it */
        if (has_place && before == 0) {
            next[digit] = start + (uint32_t)__popc(alike);
        }
        if (PLACES && has_place) {
            sort.order[0][start + (uint32_t)__popc(before)] = place;
        }
        __syncwarp();
    }
    for (unsigned digit = lane; digit < DIGITS && !PLACES; digit += 32) {
        counts[digit] = next[digit];
    }
}

/* Counts of digits become where the first place of each goes: by digit, then
 * by tile. A thread takes a digit. */
static __global__ void scan_counts(sort_t sort)
{
    __shared__ uint32_t sums[DIGITS];
    const unsigned digit = threadIdx.x;
    uint32_t sum = 0, start;

    for (int64_t tile = 0; tile < sort.n_tiles; tile++) {
        sum += sort.counts[tile * DIGITS + digit];
    }
    sums[digit] = sum;
    __syncthreads();
    for (unsigned step = 1; step < DIGITS; step *= 2) {
        const uint32_t below = digit >= step ? sums[digit - step] : 0;

        __syncthreads();
        sums[digit] += below;
        __syncthreads();
    }
    start = sums[digit] - sum;
    for (int64_t tile = 0; tile < sort.n_tiles; tile++) {
        uint32_t *count = &sort.counts[tile * DIGITS + digit];
        const uint32_t n = *count;

        *count = start;
        start += n;
    }
}

static void declare_sort(const sort_t *sort, int is_write)
{
    const size_t order_bytes = (size_t)sort->n * sizeof(uint32_t);

    launch_reads(sort->tokens, (size_t)sort->n * sizeof(int32_t));
    launch_reads(sort->order[1], order_bytes);
    if (is_write) {
        launch_writes(sort->order[0], order_bytes);
    } else {
        launch_reads(sort->order[0], order_bytes);
    }
    launch_writes(sort->counts,
                  (size_t)(sort->n_tiles * DIGITS) * sizeof(uint32_t));
}

/* @param[in,out] sort order[0] is the result */
static sl_status_t sort_places(sort_t *sort, void *stream)
{
    const int n_passes = passes_of(sort->vocab);
    const shape_t shape = shape_of(sort->n_tiles, 32);
    sl_status_t status = SL_OK;

    for (int pass = 0; pass < n_passes; pass++) {
        uint32_t *before = sort->order[0];

        sort->order[0] = sort->order[1];
        sort->order[1] = before;
        declare_sort(sort, 0);
        SL_TRY(status,
               launch("embedding sort counts", shape, stream, sort_tiles<0>,
                      *sort, pass),
               out);
        declare_sort(sort, 0);
        SL_TRY(status,
               launch("embedding sort sums", shape_of(1, DIGITS), stream,
                      scan_counts, *sort),
               out);
        declare_sort(sort, 1);
        SL_TRY(status,
               launch("embedding sort places", shape, stream, sort_tiles<1>,
                      *sort, pass),
               out);
    }
out:
    return status;
}

/* ---- gradients ---- */

/* sum += rows row_of(0) .. row_of(n_rows - 1) of dout, in this order, in the
 * columns from `column`. WHOLE: whole aligned packs. Several rows are on their
 * way at a time. */
template <int WHOLE, typename T, typename Rows>
static __device__ __forceinline__ void
add_rows(const Rows &row_of, int64_t n_rows, const T *dout, int64_t width,
         int64_t column, int count, float sum[N])
{
    int64_t row = 0;
    float d[BATCH][N];

    for (; row + BATCH <= n_rows; row += BATCH) {
        for (int b = 0; b < BATCH; b++) {
            load_pack<N>(dout, row_of(row + b) * width + column,
                         WHOLE ? (int)N : count, WHOLE, d[b]);
        }
        for (int b = 0; b < BATCH; b++) {
            for (int k = 0; k < N; k++) {
                sum[k] += d[b][k];
            }
        }
    }
    for (; row < n_rows; row++) {
        load_pack<N>(dout, row_of(row) * width + column, WHOLE ? (int)N : count,
                     WHOLE, d[0]);
        for (int k = 0; k < N; k++) {
            sum[k] += d[0][k];
        }
    }
}

struct listed_rows {
    const uint32_t *places;

    __device__ __forceinline__ int64_t operator()(int64_t row) const
    {
        return places[row];
    }
};

struct stepped_rows {
    int64_t first, step;

    __device__ __forceinline__ int64_t operator()(int64_t row) const
    {
        return first + row * step;
    }
};

/* The block of a token's first place in the order adds up its rows. */
template <typename T>
static __global__ void token_grads(sort_t sort, const T *dout, float *grad,
                                   int64_t width, int aligned)
{
    __shared__ uint32_t places[THREADS];
    __shared__ int n_alike[WARPS];
    const uint32_t *order = sort.order[0];
    const int64_t first = blockIdx.x;
    const int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * N;
    const int count = width - column >= N  ? (int)N
                      : width - column > 0 ? (int)(width - column)
                                           : 0;
    const int32_t token = sort.tokens[order[first]];
    const listed_rows rows = {places};
    float sum[N];
    int n_rows;

    if (!is_token(token, sort.vocab) ||
        (first > 0 && sort.tokens[order[first - 1]] == token)) {
        return;
    }
    load_pack<N>(grad, token * width + column, count, aligned, sum);
    for (int64_t begin = first;; begin += THREADS) {
        const int64_t i = begin + threadIdx.x;
        const uint32_t place = i < sort.n ? order[i] : 0;
        const unsigned votes =
            __ballot_sync(FULL_WARP, i < sort.n && sort.tokens[place] == token);

        __syncthreads(); /* the places before have been read */
        places[threadIdx.x] = place;
        if (threadIdx.x % 32 == 0) {
            n_alike[threadIdx.x / 32] = __popc(votes);
        }
        __syncthreads();
        n_rows = 0;
        for (int warp = 0; warp < WARPS; warp++) {
            n_rows += n_alike[warp];
        }
        if (count == N && aligned) {
            add_rows<1>(rows, n_rows, dout, width, column, count, sum);
        } else {
            add_rows<0>(rows, n_rows, dout, width, column, count, sum);
        }
        if (n_rows < THREADS) {
            break;
        }
    }
    store_pack<N>(grad, token * width + column, count, aligned, sum);
}

/* Rows of the same position, in order. */
template <typename T>
static __global__ void position_grads(const T *dout, float *grad, int64_t n,
                                      int64_t time, int64_t width, int aligned)
{
    const int64_t packs = (width + N - 1) / N;

    for (int64_t at = grid_thread(); at < time * packs; at += grid_threads()) {
        const int64_t position = at / packs, column = at % packs * N;
        const int count = width - column < N ? (int)(width - column) : (int)N;
        const int64_t n_rows = (n - position + time - 1) / time;
        const stepped_rows rows = {position, time};
        float sum[N];

        load_pack<N>(grad, position * width + column, count, aligned, sum);
        if (count == N && aligned) {
            add_rows<1>(rows, n_rows, dout, width, column, count, sum);
        } else {
            add_rows<0>(rows, n_rows, dout, width, column, count, sum);
        }
        store_pack<N>(grad, position * width + column, count, aligned, sum);
    }
}

template <typename T>
static sl_status_t backward_weight(const sl_cuda_embedding_t *args,
                                   void *stream)
{
    const size_t bytes = (size_t)(args->vocab * args->width) * sizeof(float);
    const shape_t shape = {
        args->n, (args->width + N * THREADS - 1) / (N * THREADS), THREADS, 1};
    const int aligned = args->width % N == 0 && is_aligned(args->dout) &&
                        is_aligned(args->dweight);
    sort_t sort = sort_of(args);
    sl_status_t status = SL_OK;

    if (args->is_first) {
        SL_TRY(status, sl_cuda_zero(args->dweight, bytes, stream), out);
    }
    if (args->n == 0) {
        goto out;
    }
    SL_TRY(status, sort_places(&sort, stream), out);
    declare_sort(&sort, 0);
    launch_reads(args->dout, (size_t)(args->n * args->width) * sizeof(T));
    launch_writes(args->dweight, bytes);
    status = launch("embedding backward", shape, stream, token_grads<T>, sort,
                    (const T *)args->dout, args->dweight, args->width, aligned);
out:
    return status;
}

template <typename T>
static sl_status_t backward_position(const sl_cuda_embedding_t *args,
                                     void *stream)
{
    const size_t bytes =
        (size_t)(args->positions * args->width) * sizeof(float);
    const int64_t packs = args->time * ((args->width + N - 1) / N);
    const int aligned = args->width % N == 0 && is_aligned(args->dout) &&
                        is_aligned(args->dposition);
    sl_status_t status = SL_OK;

    if (args->is_first) {
        SL_TRY(status, sl_cuda_zero(args->dposition, bytes, stream), out);
    }
    if (args->n == 0) {
        goto out;
    }
    launch_reads(args->dout, (size_t)(args->n * args->width) * sizeof(T));
    launch_writes(args->dposition, bytes);
    status = launch("position backward",
                    shape_of(blocks_for(packs, THREADS), THREADS), stream,
                    position_grads<T>, (const T *)args->dout, args->dposition,
                    args->n, args->time, args->width, aligned);
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
