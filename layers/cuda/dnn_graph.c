/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of cuDNN operations, through its C interface. */
#include "layers/cuda/dnn_graph.h"

#include <stdbool.h>
#include <stdlib.h>

#include "layers/cuda/dnn.h"

enum {
    MAX_CONFIGS = 8, /* asked for; the first that will do is taken */
    MAX_DESCS = 2 * SL_DNN_GRAPH_MAX_OPS + SL_DNN_GRAPH_MAX_TENSORS +
                2 * MAX_CONFIGS + 2,
    MAX_NOTES = CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
    ALIGN_BYTES = 16,
    MAX_GIVEN = 16
};

struct sl_dnn_graph {
    cudnnStatus_t failure;                     /* the first */
    cudnnBackendDescriptor_t descs[MAX_DESCS]; /* owned, in order of making */
    int n_descs;
    cudnnBackendDescriptor_t tensors[SL_DNN_GRAPH_MAX_TENSORS];
    int n_tensors;
    cudnnBackendDescriptor_t ops[SL_DNN_GRAPH_MAX_OPS];
    int n_ops;
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes;
};

sl_dnn_graph_t *sl_dnn_graph_create(void)
{
    return calloc(1, sizeof(sl_dnn_graph_t));
}

void sl_dnn_graph_destroy(sl_dnn_graph_t *graph)
{
    if (graph == NULL) {
        return;
    }
    while (graph->n_descs > 0) {
        graph->n_descs--;
        (void)cudnnBackendDestroyDescriptor(graph->descs[graph->n_descs]);
    }
    free(graph);
}

/* ---- descriptors ---- */

static void check(sl_dnn_graph_t *graph, cudnnStatus_t code)
{
    if (graph->failure == CUDNN_STATUS_SUCCESS) {
        graph->failure = code;
    }
}

static int has_failed(const sl_dnn_graph_t *graph)
{
    return graph->failure != CUDNN_STATUS_SUCCESS;
}

/* NULL once something has failed. */
static cudnnBackendDescriptor_t make(sl_dnn_graph_t *graph,
                                     cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t desc = NULL;

    SL_ASSERT(graph->n_descs < MAX_DESCS);
    if (has_failed(graph)) {
        return NULL;
    }
    check(graph, cudnnBackendCreateDescriptor(type, &desc));
    if (has_failed(graph)) {
        return NULL;
    }
    graph->descs[graph->n_descs++] = desc;
    return desc;
}

static void set(sl_dnn_graph_t *graph, cudnnBackendDescriptor_t desc,
                cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (!has_failed(graph)) {
        check(graph, cudnnBackendSetAttribute(desc, name, type, n, values));
    }
}

static void set_desc(sl_dnn_graph_t *graph, cudnnBackendDescriptor_t desc,
                     cudnnBackendAttributeName_t name,
                     const cudnnBackendDescriptor_t *value)
{
    set(graph, desc, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, value);
}

static void set_tensor(sl_dnn_graph_t *graph, cudnnBackendDescriptor_t desc,
                       cudnnBackendAttributeName_t name, int tensor)
{
    if (tensor >= 0) {
        set_desc(graph, desc, name, &graph->tensors[tensor]);
    }
}

static void finish(sl_dnn_graph_t *graph, cudnnBackendDescriptor_t desc)
{
    if (!has_failed(graph)) {
        check(graph, cudnnBackendFinalize(desc));
    }
}

int sl_dnn_graph_tensor(sl_dnn_graph_t *graph, sl_dnn_place_t place,
                        cudnnDataType_t type, const int64_t dims[4],
                        const int64_t strides[4])
{
    const bool is_virtual = place == SL_DNN_PLACE_VIRTUAL;
    const bool is_by_value = place == SL_DNN_PLACE_SCALAR;
    const int64_t number = graph->n_tensors + 1;
    const int64_t align_bytes = ALIGN_BYTES;
    cudnnBackendDescriptor_t desc;

    SL_ASSERT(graph->n_tensors < SL_DNN_GRAPH_MAX_TENSORS);
    desc = make(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(graph, desc, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
        &type);
    set(graph, desc, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    set(graph, desc, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set(graph, desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &number);
    set(graph, desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1,
        &align_bytes);
    set(graph, desc, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1,
        &is_virtual);
    set(graph, desc, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1,
        &is_by_value);
    finish(graph, desc);
    graph->tensors[graph->n_tensors] = desc;
    return graph->n_tensors++;
}

static void add_op(sl_dnn_graph_t *graph, cudnnBackendDescriptor_t op)
{
    SL_ASSERT(graph->n_ops < SL_DNN_GRAPH_MAX_OPS);
    finish(graph, op);
    graph->ops[graph->n_ops++] = op;
}

/* ---- operations ---- */

void sl_dnn_graph_matmul(sl_dnn_graph_t *graph, int a, int b, int c)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t matmul, op;

    matmul = make(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(graph, matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
        &type);
    finish(graph, matmul);
    op = make(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(graph, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, &matmul);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    add_op(graph, op);
}

void sl_dnn_graph_pointwise(sl_dnn_graph_t *graph, const sl_dnn_pointwise_t *p)
{
    const int64_t axis = p->axis;
    cudnnBackendDescriptor_t pointwise, op;

    pointwise = make(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(graph, pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE,
        1, &p->mode);
    set(graph, pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
        1, &p->precision);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX) {
        set(graph, pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1,
            &axis);
    }
    finish(graph, pointwise);
    op = make(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
             &pointwise);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->b);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->t);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p->y);
    add_op(graph, op);
}

void sl_dnn_graph_reduce(sl_dnn_graph_t *graph, cudnnReduceTensorOp_t operator,
                         int x, int y)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t reduction, op;

    reduction = make(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(graph, reduction, CUDNN_ATTR_REDUCTION_OPERATOR,
        CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operator);
    set(graph, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
        1, &type);
    finish(graph, reduction);
    op = make(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, &reduction);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(graph, op);
}

void sl_dnn_graph_reshape(sl_dnn_graph_t *graph, int x, int y)
{
    cudnnBackendDescriptor_t op =
        make(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    set_tensor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(graph, op);
}

/* ---- engines ---- */

/* Whether the engine of a configuration gives the same bits at each run. */
static int is_repeatable(cudnnBackendDescriptor_t config)
{
    cudnnBackendNumericalNote_t notes[MAX_NOTES];
    cudnnBackendDescriptor_t engine = NULL;
    int64_t n = 0, i;
    int is_repeatable = 1;

    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR,
                                     &engine) != CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    if (cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                 &engine) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, MAX_NOTES, &n,
                                 notes) != CUDNN_STATUS_SUCCESS) {
        is_repeatable = 0;
        n = 0;
    }
    for (i = 0; i < n; i++) {
        is_repeatable &= notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    }
    (void)cudnnBackendDestroyDescriptor(engine);
    return is_repeatable;
}

/* A plan with this engine. What it does not support is no failure yet.
 * @return whether there is one */
static int make_plan(sl_dnn_graph_t *graph, cudnnHandle_t handle,
                     const cudnnBackendDescriptor_t *config)
{
    cudnnBackendDescriptor_t plan =
        make(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    int64_t n = 0;

    set(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
        &handle);
    set_desc(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (has_failed(graph) ||
        cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS) {
        return 0;
    }
    check(graph, cudnnBackendGetAttribute(
                     plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                     CUDNN_TYPE_INT64, 1, &n, &graph->workspace_bytes));
    graph->plan = plan;
    return !has_failed(graph);
}

/* The heuristics' configurations in their order. */
static void choose_engine(sl_dnn_graph_t *graph, cudnnHandle_t handle,
                          const cudnnBackendDescriptor_t *operations)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t configs[MAX_CONFIGS] = {NULL};
    cudnnBackendDescriptor_t heuristics;
    int64_t n = 0;
    int i;

    heuristics = make(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
             operations);
    set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1,
        &mode);
    finish(graph, heuristics);
    for (i = 0; i < MAX_CONFIGS; i++) {
        configs[i] = make(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (!has_failed(graph)) {
        check(graph, cudnnBackendGetAttribute(heuristics,
                                              CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                              CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                              MAX_CONFIGS, &n, configs));
    }
    for (i = 0; i < n && !has_failed(graph) && graph->plan == NULL; i++) {
        if (is_repeatable(configs[i])) {
            (void)make_plan(graph, handle, &configs[i]);
        }
    }
    if (graph->plan == NULL) {
        check(graph, CUDNN_STATUS_NOT_SUPPORTED);
    }
}

/* A graph that is refused is told as a bad parameter, too. */
static sl_status_t status_of(const sl_dnn_graph_t *graph)
{
    const int category = (int)graph->failure / 1000 * 1000;
    sl_status_t status;

    if (category == (int)CUDNN_STATUS_NOT_SUPPORTED ||
        category == (int)CUDNN_STATUS_BAD_PARAM) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out, "cuDNN has no graph: %s",
                  cudnnGetErrorString(graph->failure));
    }
    return sl_cuda_dnn_status((int)graph->failure, "cuDNN graph", __FILE__,
                              __LINE__);
out:
    return status;
}

sl_status_t sl_dnn_graph_finish(sl_dnn_graph_t *graph, cudnnHandle_t handle)
{
    cudnnBackendDescriptor_t operations =
        make(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

    set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
        1, &handle);
    set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, graph->n_ops, graph->ops);
    finish(graph, operations);
    choose_engine(graph, handle, &operations);
    return status_of(graph);
}

size_t sl_dnn_graph_workspace_bytes(const sl_dnn_graph_t *graph)
{
    return (size_t)graph->workspace_bytes;
}

/* ---- run ---- */

static sl_status_t fill_pack(cudnnBackendDescriptor_t pack, const int *tensors,
                             void *const *addresses, int n, void *workspace)
{
    int64_t numbers[MAX_GIVEN];
    sl_status_t status;
    int i;

    SL_ASSERT(n <= MAX_GIVEN);
    for (i = 0; i < n; i++) {
        numbers[i] = tensors[i] + 1;
    }
    SL_TRY(status,
           SL_DNN(cudnnBackendSetAttribute(pack,
                                           CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                           CUDNN_TYPE_INT64, n, numbers)),
           out);
    SL_TRY(status,
           SL_DNN(cudnnBackendSetAttribute(
               pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
               n, (const void *)addresses)),
           out);
    SL_TRY(status,
           SL_DNN(cudnnBackendSetAttribute(
               pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
               (const void *)&workspace)),
           out);
    status = SL_DNN(cudnnBackendFinalize(pack));
out:
    return status;
}

sl_status_t sl_dnn_graph_run(const sl_dnn_graph_t *graph, cudnnHandle_t handle,
                             const int *tensors, void *const *addresses, int n,
                             void *workspace)
{
    cudnnBackendDescriptor_t pack = NULL;
    sl_status_t status;

    SL_TRY(status,
           SL_DNN(cudnnBackendCreateDescriptor(
               CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack)),
           out);
    SL_TRY(status, fill_pack(pack, tensors, addresses, n, workspace),
           err_destroy);
    status = SL_DNN(cudnnBackendExecute(handle, graph->plan, pack));
err_destroy:
    (void)cudnnBackendDestroyDescriptor(pack);
out:
    return status;
}
