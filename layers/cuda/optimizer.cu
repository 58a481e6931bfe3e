/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of parameters: the operations of engine/optimizer.c in the same
 * order, each rounded by itself, so that both give the same bits. Bytes that
 * must move, for each parameter: value and gradient in, value out, each moment
 * in and out: 12, with momentum 20, adam 28; 2 or 4 more for a copy. */
#include <math.h>

#include "layers/cuda/device.cuh"

enum {
    THREADS = 256
};

/* Numbers of one update, the same for all elements. */
typedef struct scalars {
    float clip;   /* times the gradient */
    float decay;  /* times the value, added to the gradient */
    float shrink; /* adamw: the value is multiplied by it */
    float lr;     /* adam(w): over the first bias correction */
    float momentum;
    float beta1_rest, beta2, beta2_rest, root_correction2, eps;
    int is_first; /* moments are set, not read */
    int nesterov;
} scalars_t;

static scalars_t scalars_of(const sl_cuda_optimizer_t *args)
{
    const double t = (double)args->step + 1.0;
    scalars_t s = {};

    s.clip = (float)args->clip_factor;
    s.shrink = 1.0f;
    s.lr = args->lr;
    s.is_first = args->step == 0;
    if (args->kind == SL_CUDA_ADAMW) {
        s.shrink = (float)(1.0 - (double)args->lr * args->weight_decay);
    } else {
        s.decay = (float)args->weight_decay;
    }
    if (args->kind == SL_CUDA_SGD) {
        s.momentum = (float)args->momentum;
        s.nesterov = args->nesterov;
        return s;
    }
    s.lr = (float)((double)args->lr / (1.0 - pow(args->beta1, t)));
    s.root_correction2 = (float)sqrt(1.0 - pow(args->beta2, t));
    s.beta1_rest = (float)(1.0 - args->beta1);
    s.beta2 = (float)args->beta2;
    s.beta2_rest = (float)(1.0 - args->beta2);
    s.eps = (float)args->eps;
    return s;
}

/* The addresses of an update. */
template <typename C> struct buffers {
    float *value;
    const float *grad;
    float *first, *second;
    C *copy;
    int64_t n;
};

/* The new value, for each kind of update. */
struct sgd_plain {
    static __device__ __forceinline__ float
    update(const scalars_t &s, float value, float grad, float *, float *)
    {
        return value - s.lr * (grad + s.decay * value);
    }
};

struct sgd_momentum {
    static __device__ __forceinline__ float
    update(const scalars_t &s, float value, float grad, float *moment, float *)
    {
        const float g = grad + s.decay * value;
        const float m = s.is_first ? g : s.momentum * *moment + g;

        *moment = m;
        return value - s.lr * (s.nesterov ? g + s.momentum * m : m);
    }
};

struct adam {
    static __device__ __forceinline__ float update(const scalars_t &s,
                                                   float value, float grad,
                                                   float *first, float *second)
    {
        const float g = grad + s.decay * value;
        const float m0 = s.is_first ? 0.0f : *first;
        const float v0 = s.is_first ? 0.0f : *second;
        const float m = m0 + s.beta1_rest * (g - m0);
        const float v = s.beta2 * v0 + s.beta2_rest * (g * g);

        *first = m;
        *second = v;
        return s.shrink * value -
               s.lr * (m / (sqrtf(v) / s.root_correction2 + s.eps));
    }
};

template <typename U, typename C>
static __global__ void update_all(buffers<C> b, scalars_t s)
{
    for (int64_t i = grid_thread(); i < b.n; i += grid_threads()) {
        const float value = U::update(s, b.value[i], s.clip * b.grad[i],
                                      b.first == NULL ? NULL : b.first + i,
                                      b.second == NULL ? NULL : b.second + i);

        b.value[i] = value;
        if (b.copy != NULL) {
            from_float(value, &b.copy[i]);
        }
    }
}

template <typename C>
static sl_status_t update(const sl_cuda_optimizer_t *args, void *stream)
{
    const size_t bytes = (size_t)args->n * sizeof(float);
    const int n_moments = args->kind != SL_CUDA_SGD ? 2 : args->momentum > 0;
    const scalars_t s = scalars_of(args);
    const shape_t shape = shape_of(blocks_for(args->n, THREADS), THREADS);
    buffers<C> b = {};

    b.value = args->value;
    b.grad = args->grad;
    b.first = n_moments > 0 ? args->moments[0] : NULL;
    b.second = n_moments > 1 ? args->moments[1] : NULL;
    b.copy = (C *)args->copy;
    b.n = args->n;
    launch_reads(args->grad, bytes);
    launch_writes(args->value, bytes);
    launch_writes(b.first, bytes);
    launch_writes(b.second, bytes);
    launch_writes(b.copy, (size_t)args->n * sizeof(C));
    return args->kind != SL_CUDA_SGD
               ? launch("adam", shape, stream, update_all<adam, C>, b, s)
           : n_moments > 0
               ? launch("sgd with momentum", shape, stream,
                        update_all<sgd_momentum, C>, b, s)
               : launch("sgd", shape, stream, update_all<sgd_plain, C>, b, s);
}

sl_status_t sl_cuda_optimizer_update(const sl_cuda_optimizer_t *args,
                                     void *stream)
{
    return args->n == 0 ? SL_OK
                        : FOR_TYPE(args->copy_type, update, args, stream);
}
