/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnn.h
 * What a test may ask of the stand-in for cuDNN, and what is inside it.
 *
 * To make one of its entry points fail (standin_fail), give the library's
 * status as the error: (cudaError_t)CUDNN_STATUS_BAD_PARAM. Work that fails
 * when it runs raises a cudaError_t.
 *
 * Convolutions have a fast algorithm with a workspace of a GiB, ones whose
 * bits differ from run to run, and one that is neither; a workspace is
 * overwritten by each run. Of equal values a max pool takes the last. Batch
 * norm looks whether backward is given the reserve space of its forward.
 */
#ifndef SL_TESTS_CUDA_STANDIN_DNN_H
#define SL_TESTS_CUDA_STANDIN_DNN_H

#include <cudnn.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Convolutions of this type are not supported from now on; -1: all are. */
void standin_dnn_refuse(int data_type);

/** Convolutions of images with channels last are not supported from now on. */
void standin_dnn_refuse_last(int is_refused);

/** Graphs with this many matrix products or more are not supported from now
 *  on; 0: all are. */
void standin_dnn_refuse_graphs(int n_products);
/** Graphs with this many matrix products or more give wrong numbers. */
void standin_dnn_break_graphs(int n_products);

#ifdef __cplusplus
}
#endif

#ifdef SL_STANDIN_INSIDE
#include "standin_internal.h"

struct cudnnContext {
    int device;
    cudaStream_t stream;
};

struct cudnnTensorStruct {
    int is_set;
    cudnnTensorFormat_t format;
    cudnnDataType_t type;
    int n, c, h, w;
};

struct cudnnPoolingStruct {
    int is_set;
    cudnnPoolingMode_t mode;
    int window_h, window_w, pad_h, pad_w, stride_h, stride_w;
};

struct cudnnFilterStruct {
    int is_set;
    cudnnTensorFormat_t format;
    cudnnDataType_t type;
    int k, c, h, w;
};

struct cudnnConvolutionStruct {
    int is_set;
    int pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w;
    int groups;
    cudnnDataType_t compute;
    cudnnMathType_t math;
};

/* Count the call; what it must return at once. needs_device: also where the
 * device has failed. */
cudnnStatus_t dnn_enter(standin_entry_t entry, int needs_device,
                        int *is_late_p);
/* Remember why; returns the code. */
__attribute__((format(printf, 2, 3))) cudnnStatus_t
dnn_fail(cudnnStatus_t code, const char *fmt, ...);

#define DNN_ENTER(entry)                                                       \
    do {                                                                       \
        const cudnnStatus_t dnn_early = dnn_enter(STANDIN_##entry, 0, NULL);   \
                                                                               \
        if (dnn_early != CUDNN_STATUS_SUCCESS) {                               \
            return dnn_early;                                                  \
        }                                                                      \
    } while (0)

void *dnn_make(size_t bytes); /* zeroed; of a descriptor: counted */
void dnn_free(void *descriptor);
int dnn_is_refused(cudnnDataType_t type, cudnnTensorFormat_t format);

/* Bytes that a piece of work uses. */
typedef struct dnn_use {
    const void *ptr;
    size_t bytes;
    int is_write;
    const void **alias_p; /* set to the address that the CPU can use */
} dnn_use_t;

/* Complain when what is written does not lie apart from all else. */
void dnn_check_overlap(const char *name, const dnn_use_t *uses, int n_uses);
/* Queue it on the handle's stream; taken, also on failure. */
cudnnStatus_t dnn_queue(cudnnHandle_t handle, const char *name, task_t *task,
                        const dnn_use_t *uses, int n_uses, int is_late);

/* Of an image, which must be set: its bytes, and the place of an element. */
size_t dnn_image_bytes(const struct cudnnTensorStruct *image);
size_t dnn_image_place(const struct cudnnTensorStruct *image, int n, int c,
                       int h, int w);

size_t dnn_type_bytes(cudnnDataType_t type);
float dnn_load(cudnnDataType_t type, const void *array, size_t i);
void dnn_store(cudnnDataType_t type, void *array, size_t i, float value);
/* All of an array, malloc'd; is_tf32: rounded as tensor cores do. */
float *dnn_floats(cudnnDataType_t type, const void *array, size_t n,
                  int is_tf32);

/* ---- graphs ---- */

enum {
    DNN_MAX_OPS = 64,
    DNN_MAX_TENSORS = 96
};

typedef struct dnn_tensor {
    int64_t number;
    cudnnDataType_t type;
    int is_virtual, is_by_value;
    int64_t dims[4], strides[4];
    int is_written; /* by an operation of the graph */
} dnn_tensor_t;

typedef enum dnn_op_kind {
    DNN_OP_MATMUL,
    DNN_OP_POINTWISE,
    DNN_OP_REDUCE,
    DNN_OP_RESHAPE
} dnn_op_kind_t;

typedef struct dnn_op {
    dnn_op_kind_t kind;
    int mode;       /* of the kind */
    int64_t axis;   /* of an index */
    int x, b, t, y; /* tensors; -1: none */
} dnn_op_t;

/* A graph as it is run. */
typedef struct dnn_graph {
    dnn_op_t ops[DNN_MAX_OPS];
    int n_ops;
    dnn_tensor_t tensors[DNN_MAX_TENSORS];
    int n_tensors;
} dnn_graph_t;

/* Elements from the first to the last, gaps counted. */
size_t dnn_extent(const dnn_tensor_t *tensor);
/* Compute it: addresses, of tensors in memory, are those that the CPU can use;
 * scalars are given as values. noise: a factor of what is written. */
void dnn_evaluate(const dnn_graph_t *graph, const void *const *addresses,
                  const float *scalars, float noise);
#endif /* SL_STANDIN_INSIDE */

#endif /* SL_TESTS_CUDA_STANDIN_DNN_H */
