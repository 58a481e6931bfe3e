/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dnn_graph.h
 * Graphs of cuDNN operations on tensors of four dimensions, computed in fp32.
 *
 * Operations are added one after another; what fails is remembered, and told
 * when the graph is finished. A graph that the device has no repeatable engine
 * for is refused with SL_ERR_UNSUPPORTED, logged at debug only: who asks has
 * another way.
 */
#ifndef SL_LAYERS_CUDA_DNN_GRAPH_H
#define SL_LAYERS_CUDA_DNN_GRAPH_H

#include <cudnn.h>

#include "base/status.h"
#include "scheduler/cuda.h"

SL_BEGIN_DECLS

enum {
    SL_DNN_GRAPH_MAX_TENSORS = 64,
    SL_DNN_GRAPH_MAX_OPS = 40
};

/** Where a tensor is. */
typedef enum sl_dnn_place {
    SL_DNN_PLACE_MEMORY,  /**< given to a run */
    SL_DNN_PLACE_VIRTUAL, /**< within the graph */
    SL_DNN_PLACE_SCALAR   /**< one fp32 number of the host, given to a run */
} sl_dnn_place_t;

typedef struct sl_dnn_graph sl_dnn_graph_t;

/** @return NULL when there is no host memory */
sl_dnn_graph_t *sl_dnn_graph_create(void);
/** NULL is allowed. */
void sl_dnn_graph_destroy(sl_dnn_graph_t *graph);

/** Add a tensor; dims and strides count elements.
 *  @return its number, from 0 */
int sl_dnn_graph_tensor(sl_dnn_graph_t *graph, sl_dnn_place_t place,
                        cudnnDataType_t type, const int64_t dims[4],
                        const int64_t strides[4]);

/** c = a b, of the last two dimensions. */
void sl_dnn_graph_matmul(sl_dnn_graph_t *graph, int a, int b, int c);

/** y = mode(x, b), or x where t, else b; -1: not used by the mode. `axis` is
 *  that of an index. b may have dimensions of 1. */
typedef struct sl_dnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t precision;
    int x, b, t, y;
    int axis;
} sl_dnn_pointwise_t;

void sl_dnn_graph_pointwise(sl_dnn_graph_t *graph,
                            const sl_dnn_pointwise_t *pointwise);
/** Over the dimensions that y has 1 of. */
void sl_dnn_graph_reduce(sl_dnn_graph_t *graph, cudnnReduceTensorOp_t op, int x,
                         int y);
/** y is x, seen with other dimensions and strides. */
void sl_dnn_graph_reshape(sl_dnn_graph_t *graph, int x, int y);

/** Plan it with the handle: the first engine that is repeatable.
 *  @return SL_OK, SL_ERR_UNSUPPORTED, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_dnn_graph_finish(sl_dnn_graph_t *graph,
                                             cudnnHandle_t handle);
size_t sl_dnn_graph_workspace_bytes(const sl_dnn_graph_t *graph);

/** Queue it on the handle's stream. tensors: numbers of those in memory and
 *  of scalars; addresses: theirs.
 *  @return SL_OK, SL_ERR_NO_MEMORY, SL_ERR_DEVICE */
SL_NODISCARD sl_status_t sl_dnn_graph_run(const sl_dnn_graph_t *graph,
                                          cudnnHandle_t handle,
                                          const int *tensors,
                                          void *const *addresses, int n,
                                          void *workspace);

SL_END_DECLS
#endif /* SL_LAYERS_CUDA_DNN_GRAPH_H */
