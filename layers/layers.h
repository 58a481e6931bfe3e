/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file layers.h
 * Models as a list of layers, and the layers' kernels.
 *
 * A model is a list in execution order. Each layer has one output and takes
 * its inputs from earlier layers or from the batch, so residual and U-Net
 * connections are plain edges, and any cut of the list is a pipeline cut.
 * The last layer is the loss.
 *
 * What a layer does is a function of the layer, the micro-batch shape and the
 * thread count only, never of where the list is cut: this is what makes every
 * partition give the same bits.
 */
#ifndef SL_LAYERS_LAYERS_H
#define SL_LAYERS_LAYERS_H

#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "base/status.h"
#include "layers/attr.h"
#include "layers/tensor.h"
#include "scheduler/scheduler.h"

SL_BEGIN_DECLS

enum {
    SL_LAYER_MAX_INPUTS = 4,
    SL_LAYER_MAX_PARAMS = 6,
    SL_INPUT_DATA = -1,  /**< input index: the batch's data */
    SL_INPUT_TARGET = -2 /**< input index: the batch's targets */
};

typedef struct sl_layer sl_layer_t;
typedef struct sl_layer_ops sl_layer_ops_t;
typedef struct sl_layer_plan sl_layer_plan_t;

/* ---- parameters ---- */

typedef enum sl_param_kind {
    SL_PARAM_TRAINED,    /**< has a gradient and optimizer moments */
    SL_PARAM_STATISTIC,  /**< running mean, variance: state, no gradient */
    SL_PARAM_ACCUMULATOR /**< alive within one mini-batch: not state */
} sl_param_kind_t;

typedef enum sl_init {
    SL_INIT_ZERO,
    SL_INIT_ONE,
    SL_INIT_UNIFORM, /**< in (-init_scale, init_scale) */
    SL_INIT_NORMAL   /**< mean 0, deviation init_scale */
} sl_init_t;

/** One parameter tensor of a layer. */
typedef struct sl_param {
    const char *name; /**< static: "weight", "bias", "running_mean" */
    sl_param_kind_t kind;
    sl_tensor_desc_t desc; /**< plain shape, as saved and as PyTorch has it */
    size_t storage_bytes;  /**< in device memory, in the kernels' own layout
                                (see param_pack); a multiple of 4 */
    sl_init_t init;
    double init_scale;
    int has_decay;  /**< weight decay applies by default (matrices) */
    int tied_layer; /**< owner's layer index, or -1: own storage. A
                         tied one has the owner's values and its own
                         gradient, summed at the update: owner first,
                         then users in layer order */
    int tied_param; /**< owner's parameter index */
} sl_param_t;

/* ---- a layer ---- */

/** How cuDNN is used on CUDA devices. Bits depend on it, so it is the same for
 *  all layers and processes of a job. All 0: the default. */
typedef struct sl_dnn_use {
    int has_images;           /**< batch norm and pools are cuDNN's too */
    uint64_t workspace_bytes; /**< the most that a convolution's algorithm may
                                   take; 0: as much as its images, or 64 MiB */
} sl_dnn_use_t;

struct sl_layer {
    const sl_layer_ops_t *ops;
    char *name; /**< unique in the model */
    int index;  /**< in the model; also its random number address */
    int n_inputs;
    int inputs[SL_LAYER_MAX_INPUTS]; /**< layer index or SL_INPUT_* */
    int n_params;
    sl_param_t params[SL_LAYER_MAX_PARAMS];
    void *attrs;           /**< owned; the type's attribute struct, filled */
    int line;              /**< in the config file; 0 = built in C */
    sl_device_kind_t kind; /**< of the devices it is for: decides the layout
                                of images and of parameters' storage */
    sl_dtype_t dtype;      /**< of the activations it makes */
    int is_tf32;           /**< products of f32 may round their factors to
                                TF32 (sl_model_allow_tf32) */
    sl_dnn_use_t dnn;      /**< sl_model_use_dnn() */
};

/** Cost of one micro-batch, known without running it. */
typedef struct sl_layer_cost {
    double forward_flops;
    double backward_flops; /**< both gradients */
    double forward_bytes;  /**< memory traffic at least needed */
    double backward_bytes;
    size_t param_bytes; /**< trained and statistics, storage */
    size_t output_bytes;
    size_t kept_bytes; /**< what the layer itself keeps for backward
                            beside inputs and output (plan.saved_bytes) */
} sl_layer_cost_t;

/* ---- execution ---- */

/** What is the same for a whole micro-batch of a step. */
typedef struct sl_step_info {
    uint64_t seed;
    uint32_t step;
    uint32_t micro_batch;
    int is_training;       /**< 0: evaluation: running statistics, no drop */
    int is_recompute;      /**< repeats a forward: accumulate nothing */
    int is_first_forward;  /**< overwrite accumulators instead of adding */
    int is_first_backward; /**< overwrite parameter gradients */
    float loss_scale;      /**< factor of the loss's gradient: 1 / valid
                                targets of the whole mini-batch */
} sl_step_info_t;

enum {
    SL_PLAN_MAX_KEEP_INPUTS = SL_LAYER_MAX_INPUTS,
};

/**
 * A layer made ready for one micro-batch size: sizes and kernels. Owned by
 * whoever asked for it; used by one thread at a time (the device's).
 */
struct sl_layer_plan {
    const sl_layer_t *layer;
    sl_device_kind_t kind;
    int n_threads;
    int is_training; /**< 0: forward only */
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];
    sl_tensor_desc_t out;
    /* filled by the kernels' plan(): */
    size_t saved_bytes; /**< written by forward, read by backward */
    size_t forward_workspace_bytes;
    size_t backward_workspace_bytes;
    int keeps_input[SL_LAYER_MAX_INPUTS]; /**< backward reads in[i] */
    int keeps_output;                     /**< backward reads out */
    int passes_gradient; /**< bit i: the gradient of input i is dout itself,
                              unchanged; backward need not be asked for it */
    int accumulates;     /**< bit i: backward adds din_prev[i] itself */
    int in_place;        /**< forward may have out == in[0] (when the engine
                              knows that nobody else reads in[0]) */
    void *kernel;        /**< owned; of the kernels */
};

/**
 * Device addresses for one run; the args of the op. Forward writes `out`
 * and `saved`. Backward reads what the plan keeps, overwrites din[i] (+
 * din_prev[i] when given) for each non-NULL din[i], and adds to grad[]
 * (overwrites when step.is_first_backward).
 */
typedef struct sl_layer_run {
    const sl_layer_plan_t *plan;
    const void *in[SL_LAYER_MAX_INPUTS];
    void *out;
    const void *dout;
    void *din[SL_LAYER_MAX_INPUTS];
    const void *din_prev[SL_LAYER_MAX_INPUTS]; /**< may equal din[i] */
    void *param[SL_LAYER_MAX_PARAMS];
    void *grad[SL_LAYER_MAX_PARAMS]; /**< NULL: none (frozen, statistic) */
    void *saved;
    void *workspace;
    sl_step_info_t step;
} sl_layer_run_t;

#ifndef __cplusplus
_Static_assert(sizeof(sl_layer_run_t) <= SL_OP_ARGS_BYTES,
               "a layer run must fit an op");
#endif

/** Kernels of one layer type on one kind of device. */
typedef struct sl_layer_kernels {
    size_t size; /**< sizeof(sl_layer_kernels_t) when compiled */
    /** Fill sizes and kernel of a zeroed plan whose layer, kind, n_threads,
     *  is_training, in, out are set. Same thread count as the later runs. */
    sl_status_t (*plan)(sl_layer_plan_t *plan);
    /** (optional) Free plan->kernel. */
    void (*plan_release)(sl_layer_plan_t *plan);
    sl_status_t (*forward)(const sl_layer_run_t *run, void *stream);
    /** (optional) Absent: nothing to differentiate. */
    sl_status_t (*backward)(const sl_layer_run_t *run, void *stream);
    /** (optional) Once per mini-batch after its last forward, training only:
     *  running statistics from accumulators. Only param[] and step are set. */
    sl_status_t (*finish_batch)(const sl_layer_run_t *run, void *stream);
    /** (optional) Plain host values to storage and back; default: copy. The
     *  storage is a function of layer and machine only. */
    sl_status_t (*param_pack)(const sl_layer_t *layer, int param,
                              const float *plain, void *storage);
    sl_status_t (*param_unpack)(const sl_layer_t *layer, int param,
                                const void *storage, float *plain);
    /** (optional) Forward and backward fail for what sl_layer_check_input()
     *  refuses. Default: they do not look. */
    int checks_input;
} sl_layer_kernels_t;

/** A layer type. One file a type; see SL_LAYER_BUILTIN_MAP. */
struct sl_layer_ops {
    size_t size;
    const char *name;
    const char *brief;
    const sl_attr_def_t *attr_defs; /**< ends with a NULL name */
    size_t attrs_bytes;
    int n_inputs_min, n_inputs_max;
    int is_loss; /**< out is f64 [1, 4]: {sum of losses, valid targets,
                      correct predictions, 0} of the micro-batch */
    /** Shape and layout of the output, with a message naming the layer when
     *  the inputs do not fit. dims[0] may be any batch. */
    sl_status_t (*infer)(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                         sl_tensor_desc_t *out_p);
    /** (optional) Declare layer->params from the input shapes; storage_bytes
     *  and tied_* are preset to plain and none. */
    sl_status_t (*declare_params)(sl_layer_t *layer,
                                  const sl_tensor_desc_t *in);
    /** (optional) See sl_layer_check_input(). */
    sl_status_t (*check_input)(const sl_layer_plan_t *plan, int input,
                               const int32_t *values);
    /** Flops and traffic; the sizes are filled by the caller. */
    void (*cost)(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                 const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p);
    const sl_layer_kernels_t *kernels[SL_DEVICE_N_KINDS];
};

/** All layer types: adding one = one file and one line. */
#define SL_LAYER_BUILTIN_MAP(X)                                                \
    X(linear)                                                                  \
    X(conv2d)                                                                  \
    X(batch_norm)                                                              \
    X(layer_norm)                                                              \
    X(relu)                                                                    \
    X(gelu)                                                                    \
    X(max_pool2d)                                                              \
    X(avg_pool2d)                                                              \
    X(global_avg_pool)                                                         \
    X(dropout)                                                                 \
    X(embedding)                                                               \
    X(attention)                                                               \
    X(add)                                                                     \
    X(concat)                                                                  \
    X(upsample2d)                                                              \
    X(flatten)                                                                 \
    X(softmax_cross_entropy)

#define X(id) SL_API extern const sl_layer_ops_t sl_layer_##id;
SL_LAYER_BUILTIN_MAP(X)
#undef X

/** The type with this name, or NULL. */
SL_API const sl_layer_ops_t *sl_layer_find(const char *type);
/** The i-th type, NULL past the last. */
SL_API const sl_layer_ops_t *sl_layer_builtin(size_t i);

/** Make a plan: shapes from `in`, sizes and kernels from the type.
 *  @return SL_OK, SL_ERR_CONFIG (shape), SL_ERR_UNSUPPORTED,
 *          SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_layer_plan_init(
    sl_layer_plan_t *plan, const sl_layer_t *layer, sl_device_kind_t kind,
    int n_threads, int is_training, const sl_tensor_desc_t *in);
SL_API void sl_layer_plan_cleanup(sl_layer_plan_t *plan);

/**
 * Whether integers of the batch may be input `input` of the layer: tokens of
 * its table, classes. `values` are in host memory, of the shape plan->in has.
 * Kernels cannot stop a job on every kind of device: whoever takes a batch to
 * one where they do not look asks first. Inputs that are not integers pass
 * unread.
 *
 * @return SL_OK, SL_ERR_INVALID_ARG for the first that is not
 */
SL_API SL_NODISCARD sl_status_t sl_layer_check_input(
    const sl_layer_plan_t *plan, int input, const void *values);

/** Op functions (args: sl_layer_run_t) that call the plan's kernels. */
SL_API sl_status_t sl_layer_op_forward(const void *args, void *stream);
SL_API sl_status_t sl_layer_op_backward(const void *args, void *stream);
SL_API sl_status_t sl_layer_op_finish_batch(const void *args, void *stream);

/** Kernels started since process start, for the test that nothing goes
 *  around the op managers. */
SL_API uint64_t sl_layer_n_kernel_runs(void);

/** Cost of a layer for these inputs, sizes included. */
SL_API SL_NODISCARD sl_status_t sl_layer_cost(const sl_layer_t *layer,
                                              const sl_tensor_desc_t *in,
                                              sl_layer_cost_t *cost_p);

/** Plain values to a parameter's storage, and back (host memory). */
SL_API SL_NODISCARD sl_status_t sl_layer_param_pack(const sl_layer_t *layer,
                                                    sl_device_kind_t kind,
                                                    int param,
                                                    const float *plain,
                                                    void *storage);
SL_API SL_NODISCARD sl_status_t sl_layer_param_unpack(const sl_layer_t *layer,
                                                      sl_device_kind_t kind,
                                                      int param,
                                                      const void *storage,
                                                      float *plain);
/** The initial plain values: a function of (seed, layer, param) only. */
SL_API void sl_layer_param_init(const sl_layer_t *layer, int param,
                                uint64_t seed, float *plain);

/* ---- models ---- */

typedef struct sl_model {
    char *name;
    sl_tensor_desc_t data;   /**< per sample: dims[0] is 1 */
    sl_tensor_desc_t target; /**< likewise, i32 */
    int n_layers;
    sl_layer_t **layers;   /**< owned */
    sl_device_kind_t kind; /**< CPU until sl_model_target() */
    sl_dtype_t dtype;      /**< of activations: f32 until sl_model_target() */
    int is_tf32;           /**< see sl_model_allow_tf32(); default 0 */
    sl_dnn_use_t dnn;      /**< see sl_model_use_dnn() */
} sl_model_t;

/** @param[in] data, target  one sample's shape with dims[0] = 1 */
SL_API SL_NODISCARD sl_status_t sl_model_create(const char *name,
                                                const sl_tensor_desc_t *data,
                                                const sl_tensor_desc_t *target,
                                                sl_model_t **model_p);
SL_API void sl_model_destroy(sl_model_t *model);

/** A layer to add. */
typedef struct sl_layer_spec {
    const char *type;
    const char *name; /**< NULL: type and index */
    int n_inputs;     /**< 0: the previous layer (the data for the first);
                           a loss also gets SL_INPUT_TARGET as second */
    int inputs[SL_LAYER_MAX_INPUTS];
    const sl_attr_t *attrs;
    size_t n_attrs;
    int line; /**< of the config file, for messages */
} sl_layer_spec_t;

/** One layer by itself, for inputs `in` (as many as spec->n_inputs, which is
 *  not completed here); sl_model_add makes a model's. `index` is its place
 *  and random number address. Destroy it with sl_layer_destroy.
 *  @return SL_OK, SL_ERR_CONFIG, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_layer_create(const sl_layer_spec_t *spec,
                                                int index,
                                                const sl_tensor_desc_t *in,
                                                sl_layer_t **layer_p,
                                                sl_tensor_desc_t *out_p);
SL_API void sl_layer_destroy(sl_layer_t *layer);

/** Add a layer; checks type, attributes and shapes at once.
 *  @param[out] index_p  of the new layer; may be NULL
 *  @return SL_OK, SL_ERR_CONFIG, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_model_add(sl_model_t *model,
                                             const sl_layer_spec_t *spec,
                                             int *index_p);

/**
 * Make the model one for another kind of device, or with activations of
 * another type (SL_DTYPE_F32, or on CUDA devices SL_DTYPE_BF16, SL_DTYPE_F16;
 * parameters stay f32): layouts and the parameters' storage are worked out
 * anew. Before any engine or plan uses it.
 *
 * @return SL_OK, SL_ERR_UNSUPPORTED (the build or the kind lacks it; nothing
 *         has changed), SL_ERR_CONFIG
 */
SL_API SL_NODISCARD sl_status_t sl_model_target(sl_model_t *model,
                                                sl_device_kind_t kind,
                                                sl_dtype_t dtype);

/**
 * Let products of f32 values take their factors with the 10 bits of TF32, at
 * several times the speed; sums stay f32. Memory is the same. After
 * sl_model_target(), before any engine or plan uses the model.
 *
 * @return SL_OK, SL_ERR_UNSUPPORTED (the model is not one of f32 for CUDA
 *         devices; nothing has changed)
 */
SL_API SL_NODISCARD sl_status_t sl_model_allow_tf32(sl_model_t *model,
                                                    int is_allowed);

/** How its layers use cuDNN, on CUDA devices; others take no notice. Before any
 *  engine or plan uses the model. */
SL_API void sl_model_use_dnn(sl_model_t *model, const sl_dnn_use_t *use);

/** Type and products as one word. */
typedef enum sl_precision {
    SL_PRECISION_F32,
    SL_PRECISION_TF32, /**< f32 with products in TF32 */
    SL_PRECISION_BF16,
    SL_PRECISION_F16
} sl_precision_t;
#define SL_PRECISION_CHOICES "f32|tf32|bf16|f16"

/** sl_model_target() and sl_model_allow_tf32(). @return as these */
SL_API SL_NODISCARD sl_status_t sl_model_set_precision(
    sl_model_t *model, sl_device_kind_t kind, sl_precision_t precision);
SL_API sl_precision_t sl_model_precision(const sl_model_t *model);

/** Index of the layer with this name, or -1. */
SL_API int sl_model_find(const sl_model_t *model, const char *name);

/** Check the whole: exactly one loss, last; every output is used.
 *  @return SL_OK, SL_ERR_CONFIG */
SL_API SL_NODISCARD sl_status_t sl_model_check(const sl_model_t *model);

/** Output shapes of all layers for a batch of `rows`; `out` has n_layers. */
SL_API SL_NODISCARD sl_status_t sl_model_infer(const sl_model_t *model,
                                               int64_t rows,
                                               sl_tensor_desc_t *out);
/** Input shapes of one layer, given sl_model_infer's `out`. */
SL_API void sl_model_layer_inputs(const sl_model_t *model, int64_t rows,
                                  const sl_tensor_desc_t *out, int layer,
                                  sl_tensor_desc_t *in);

/** Trained parameter count, tied ones once. */
SL_API int64_t sl_model_n_params(const sl_model_t *model);

/** Parameters of built-in models, by attributes as in a config's `model:`. */
typedef struct sl_model_ops {
    const char *name; /**< "resnet", "gpt", "mlp" */
    const char *brief;
    const sl_attr_def_t *attr_defs;
    size_t attrs_bytes;
    /** Build from the filled struct; `data` and `target` are one sample's. */
    sl_status_t (*build)(const void *attrs, const sl_tensor_desc_t *data,
                         const sl_tensor_desc_t *target, sl_model_t **model_p);
} sl_model_ops_t;

#define SL_MODEL_BUILTIN_MAP(X)                                                \
    X(resnet)                                                                  \
    X(gpt)                                                                     \
    X(mlp)

#define X(id) SL_API extern const sl_model_ops_t sl_model_##id;
SL_MODEL_BUILTIN_MAP(X)
#undef X

SL_API const sl_model_ops_t *sl_model_ops_find(const char *type);
SL_API const sl_model_ops_t *sl_model_ops_builtin(size_t i);

/** Build a built-in model from given attributes (see sl_attr_fill). */
SL_API SL_NODISCARD sl_status_t sl_model_build(const char *type,
                                               const sl_attr_t *attrs,
                                               size_t n_attrs,
                                               const sl_tensor_desc_t *data,
                                               const sl_tensor_desc_t *target,
                                               sl_model_t **model_p);

SL_END_DECLS
#endif /* SL_LAYERS_LAYERS_H */
