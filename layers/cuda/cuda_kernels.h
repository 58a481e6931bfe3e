/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_kernels.h
 * Our own kernels for CUDA devices: what the vendor's libraries lack.
 *
 * Every function queues its work on `stream`, a cudaStream_t of the calling
 * thread's current device, and returns at once. All pointers are device
 * addresses. Activations and their gradients are stored in the given type
 * and computed in fp32; parameters, their gradients and moments are fp32.
 * The same inputs give the same bits at every run: sums have a fixed order,
 * and there are no atomics on floats.
 *
 * A backward function overwrites din, adding prev when it is not NULL; prev
 * may be din. It adds to parameter gradients, or overwrites them when
 * is_first. A NULL gradient is not computed.
 *
 * All return SL_OK or SL_ERR_DEVICE.
 */
#ifndef SL_LAYERS_CUDA_CUDA_KERNELS_H
#define SL_LAYERS_CUDA_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "base/status.h"

SL_BEGIN_DECLS

/** How activations are stored. */
typedef enum sl_cuda_type {
    SL_CUDA_F32,
    SL_CUDA_BF16, /**< rounded to nearest even */
    SL_CUDA_F16,  /**< IEEE half, rounded to nearest even */
    SL_CUDA_N_TYPES
} sl_cuda_type_t;

SL_API size_t sl_cuda_type_bytes(sl_cuda_type_t type);

enum {
    SL_CUDA_MAX_INPUTS = 4
};

/* ---- copies and sums ---- */

/** to[0..bytes) = from[0..bytes): within a device, to and from host memory,
 *  between devices. */
SL_API SL_NODISCARD sl_status_t sl_cuda_copy(void *to, const void *from,
                                             size_t bytes, void *stream);
SL_API SL_NODISCARD sl_status_t sl_cuda_zero(void *ptr, size_t bytes,
                                             void *stream);

typedef struct sl_cuda_cast {
    sl_cuda_type_t to_type, from_type;
    void *to;
    const void *from;
    int64_t n;
} sl_cuda_cast_t;

SL_API SL_NODISCARD sl_status_t sl_cuda_cast(const sl_cuda_cast_t *args,
                                             void *stream);

/** out[i] = a[i] + b[i]; out may be a or b. */
typedef struct sl_cuda_sum {
    sl_cuda_type_t type;
    const void *a, *b;
    void *out;
    int64_t n;
} sl_cuda_sum_t;

SL_API SL_NODISCARD sl_status_t sl_cuda_sum(const sl_cuda_sum_t *args,
                                            void *stream);

/** The same for doubles. */
SL_API SL_NODISCARD sl_status_t sl_cuda_sum_f64(double *out, const double *a,
                                                const double *b, int64_t n,
                                                void *stream);

/* ---- activations ---- */

/** An activation of n elements. */
typedef struct sl_cuda_activation {
    sl_cuda_type_t type;
    int64_t n;
    const void *in; /**< gelu's backward reads it */
    void *out;      /**< relu's backward reads it; relu: may be in */
    const void *dout;
    const void *prev;
    void *din;
} sl_cuda_activation_t;

/** NaN stays NaN. */
SL_API SL_NODISCARD sl_status_t
sl_cuda_relu_forward(const sl_cuda_activation_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_relu_backward(const sl_cuda_activation_t *args, void *stream);

/** With the error function, or its approximation by tanh. */
SL_API SL_NODISCARD sl_status_t sl_cuda_gelu_forward(
    const sl_cuda_activation_t *args, int is_tanh, void *stream);
SL_API SL_NODISCARD sl_status_t sl_cuda_gelu_backward(
    const sl_cuda_activation_t *args, int is_tanh, void *stream);

/* ---- dropout, add ---- */

/** Which number of a stream an element of a mask has: that of its place in a
 *  CPU device's memory. Plain tensors have channels 0: element i, number i.
 *  Element [image, pixel, c] of a channels-last image has the number of its
 *  place in [image, c / block, pixel, c % block], with `padded` channels. */
typedef struct sl_cuda_places {
    int64_t channels, padded, pixels, block;
} sl_cuda_places_t;

/**
 * y[i] = mask[i] * x[i] / (1 - p) (+ prev[i]): forward and backward. The mask
 * is that of the CPU's kernels: an element is dropped when its number in the
 * stream of rng is below p * 2^32. y may be x.
 */
typedef struct sl_cuda_dropout {
    sl_cuda_type_t type;
    int64_t n;
    sl_rng_t rng;
    sl_cuda_places_t places;
    double p; /**< in [0, 1) */
    const void *x;
    const void *prev;
    void *y;
} sl_cuda_dropout_t;

SL_API SL_NODISCARD sl_status_t sl_cuda_dropout(const sl_cuda_dropout_t *args,
                                                void *stream);

/** out = in[0] + in[1] + .., each but the first dropped out, then relu. The
 *  masks are those of the CPU's kernel. out may be in[0]. */
typedef struct sl_cuda_add {
    sl_cuda_type_t type;
    int64_t n;
    int n_inputs; /**< 2 to SL_CUDA_MAX_INPUTS */
    double p;     /**< 0: no dropout */
    sl_rng_t rng;
    sl_cuda_places_t places;
    int64_t n_numbers; /**< of an input's mask: places in a CPU's memory */
    int is_relu;
    const void *in[SL_CUDA_MAX_INPUTS];
    void *out; /**< read by backward when is_relu */
    const void *dout;
    const void *prev[SL_CUDA_MAX_INPUTS];
    void *din[SL_CUDA_MAX_INPUTS]; /**< NULL: not wanted */
} sl_cuda_add_t;

SL_API SL_NODISCARD sl_status_t sl_cuda_add_forward(const sl_cuda_add_t *args,
                                                    void *stream);
SL_API SL_NODISCARD sl_status_t sl_cuda_add_backward(const sl_cuda_add_t *args,
                                                     void *stream);

/* ---- layer norm ---- */

typedef struct sl_cuda_layer_norm {
    sl_cuda_type_t type;
    int64_t rows, width;
    double eps;
    const void *in; /**< [rows, width] */
    const float *weight, *bias;
    void *out;
    float *saved; /**< [rows, 2]: mean, 1 / deviation; forward may have NULL */
    const void *dout;
    const void *prev;
    void *din;
    float *dweight, *dbias;
    int is_first;
    void *workspace; /**< of backward */
} sl_cuda_layer_norm_t;

SL_API size_t sl_cuda_layer_norm_workspace_bytes(int64_t rows, int64_t width);
SL_API SL_NODISCARD sl_status_t
sl_cuda_layer_norm_forward(const sl_cuda_layer_norm_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_layer_norm_backward(const sl_cuda_layer_norm_t *args, void *stream);

/* ---- embedding ---- */

/**
 * Token i is at batch row i / time, position i % time. A token that is not in
 * 0..vocab-1 gives a row of NaN, and no gradient of its own. Gradients are
 * added in token order, as on the CPU: the same bits. n < 2^32.
 */
typedef struct sl_cuda_embedding {
    sl_cuda_type_t type; /**< of out and dout */
    int64_t n, time, width, vocab;
    int64_t positions;     /**< rows of the position table; 0: none */
    const int32_t *tokens; /**< [n] */
    const float *weight;   /**< [vocab, width] */
    const float *position; /**< [positions, width] */
    void *out;             /**< [n, width] */
    const void *dout;
    float *dweight, *dposition;
    int is_first;
    void *workspace; /**< of backward */
} sl_cuda_embedding_t;

SL_API size_t sl_cuda_embedding_workspace_bytes(int64_t n, int64_t vocab);
SL_API SL_NODISCARD sl_status_t
sl_cuda_embedding_forward(const sl_cuda_embedding_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t
sl_cuda_embedding_backward(const sl_cuda_embedding_t *args, void *stream);

/* ---- softmax and cross-entropy ---- */

/**
 * Class c of row r is at logits[r * classes + c], or for images (pixels > 0)
 * [batch, classes, pixels] with row = image * pixels + pixel. A target that is
 * neither a class nor ignore_index gives a loss and a gradient of NaN.
 */
typedef struct sl_cuda_cross_entropy {
    sl_cuda_type_t type;
    int64_t rows, classes, pixels;
    const void *logits;
    const int32_t *targets; /**< [rows] */
    int64_t ignore_index;
    double label_smoothing;
    double *out;  /**< [4]: sum of losses, valid and correct rows, 0 */
    float *saved; /**< [rows, 2]: max, log of the sum; forward may have NULL */
    float loss_scale; /**< of the gradient */
    void *din;        /**< overwritten; may be logits */
    void *workspace;  /**< of forward */
} sl_cuda_cross_entropy_t;

SL_API size_t sl_cuda_cross_entropy_workspace_bytes(int64_t rows);
SL_API SL_NODISCARD sl_status_t sl_cuda_cross_entropy_forward(
    const sl_cuda_cross_entropy_t *args, void *stream);
SL_API SL_NODISCARD sl_status_t sl_cuda_cross_entropy_backward(
    const sl_cuda_cross_entropy_t *args, void *stream);

/* ---- optimizers ---- */

typedef enum sl_cuda_optimizer_kind {
    SL_CUDA_SGD,
    SL_CUDA_ADAM,
    SL_CUDA_ADAMW
} sl_cuda_optimizer_kind_t;

/** One update of n parameters, with the bits of the CPU's. */
typedef struct sl_cuda_optimizer {
    sl_cuda_optimizer_kind_t kind;
    double momentum; /**< sgd */
    int nesterov;
    double beta1, beta2, eps; /**< adam(w) */
    double weight_decay;      /**< of these parameters */
    uint32_t step;            /**< from 0: moments are set, not read */
    float lr;
    double clip_factor; /**< the gradient is scaled by it */
    int64_t n;
    float *value;
    const float *grad;
    float *moments[2];
    void *copy; /**< the new values in copy_type too; NULL: none */
    sl_cuda_type_t copy_type;
} sl_cuda_optimizer_t;

SL_API SL_NODISCARD sl_status_t
sl_cuda_optimizer_update(const sl_cuda_optimizer_t *args, void *stream);

/** *sum = the sum of squares in double, with the bits of the CPU's; it may lie
 *  in pinned host memory. */
typedef struct sl_cuda_sum_squares {
    const float *values;
    int64_t n;
    double *sum;
    void *workspace;
} sl_cuda_sum_squares_t;

SL_API size_t sl_cuda_sum_squares_workspace_bytes(int64_t n);
SL_API SL_NODISCARD sl_status_t
sl_cuda_sum_squares(const sl_cuda_sum_squares_t *args, void *stream);

/** *hash = a hash of its old value and of n words, read once; it may lie in
 *  pinned host memory. */
typedef struct sl_cuda_hash {
    const uint32_t *words;
    int64_t n;
    uint64_t *hash;
    void *workspace; /**< of SL_CUDA_HASH_WORKSPACE_BYTES */
} sl_cuda_hash_t;

enum {
    SL_CUDA_HASH_WORKSPACE_BYTES = 8192
};

SL_API SL_NODISCARD sl_status_t sl_cuda_hash(const sl_cuda_hash_t *args,
                                             void *stream);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_CUDA_KERNELS_H */
