/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of the graph interface: attributes are kept as they are set, and
 * read where a descriptor is finalized. Each graph has two engines: a fast one
 * whose bits differ from run to run, and one whose do not. */
#define SL_STANDIN_INSIDE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

enum {
    N_ENGINES = 2,
    STEADY_ENGINE = 1,
    WORKSPACE_BYTES = 1024
};

typedef struct attr {
    struct attr *next;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n;
    void *values;
} attr_t;

typedef struct desc {
    cudnnBackendDescriptorType_t type;
    int is_final;
    attr_t *attrs;
    dnn_graph_t *graph;      /* of an operation graph; shared by pointer */
    const struct desc *from; /* engine, configuration: of this graph */
    int engine;
    int device; /* of a plan */
} desc_t;

/* guarded by the lock */
static int refused_products, broken_products;

void standin_dnn_refuse_graphs(int n_products)
{
    lock();
    refused_products = n_products;
    unlock();
}

void standin_dnn_break_graphs(int n_products)
{
    lock();
    broken_products = n_products;
    unlock();
}

/* ---- attributes ---- */

static size_t element_bytes(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_NUMERICAL_NOTE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE:
        break;
    }
    return sizeof(int);
}

static int is_type_of(cudnnBackendAttributeName_t name,
                      cudnnBackendAttributeType_t type)
{
    switch (name) {
#define X(id, value, want)                                                     \
    case id:                                                                   \
        return type == (want);
        SL_STANDIN_DNN_ATTR_MAP(X)
#undef X
    }
    return 0;
}

static const attr_t *find(const desc_t *desc, cudnnBackendAttributeName_t name)
{
    const attr_t *attr;

    for (attr = desc->attrs; attr != NULL; attr = attr->next) {
        if (attr->name == name) {
            return attr;
        }
    }
    return NULL;
}

/* The first element of an attribute; zero when it is not set. */
static int64_t number_of(const desc_t *desc, cudnnBackendAttributeName_t name)
{
    const attr_t *attr = find(desc, name);
    int64_t wide = 0;
    int narrow = 0;
    bool flag = false;

    if (attr == NULL) {
        return 0;
    }
    if (element_bytes(attr->type) == 8) {
        memcpy(&wide, attr->values, sizeof(wide));
        return wide;
    }
    if (attr->type == CUDNN_TYPE_BOOLEAN) {
        memcpy(&flag, attr->values, sizeof(flag));
        return flag;
    }
    memcpy(&narrow, attr->values, sizeof(narrow));
    return narrow;
}

static const desc_t *desc_of(const desc_t *desc,
                             cudnnBackendAttributeName_t name)
{
    return (const desc_t *)(uintptr_t)number_of(desc, name);
}

cudnnStatus_t
cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t descriptorType,
                             cudnnBackendDescriptor_t *descriptor)
{
    desc_t *desc;

    DNN_ENTER(cudnnBackendCreateDescriptor);
    desc = dnn_make(sizeof(*desc));
    desc->type = descriptorType;
    *descriptor = desc;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    const cudnnStatus_t early =
        dnn_enter(STANDIN_cudnnBackendDestroyDescriptor, 0, NULL);
    desc_t *desc = descriptor;

    while (desc->attrs != NULL) {
        attr_t *attr = desc->attrs;

        desc->attrs = attr->next;
        free(attr->values);
        free(attr);
    }
    if (desc->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
        free(desc->graph);
    }
    dnn_free(desc);
    return early;
}

cudnnStatus_t
cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                         cudnnBackendAttributeName_t attributeName,
                         cudnnBackendAttributeType_t attributeType,
                         int64_t elementCount, const void *arrayOfElements)
{
    const size_t bytes = (size_t)elementCount * element_bytes(attributeType);
    desc_t *desc = descriptor;
    attr_t *attr;

    DNN_ENTER(cudnnBackendSetAttribute);
    if (desc->is_final || !is_type_of(attributeName, attributeType) ||
        elementCount < 1) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                        "attribute %d of descriptor %d", (int)attributeName,
                        (int)desc->type);
    }
    attr = calloc(1, sizeof(*attr));
    if (attr == NULL) {
        abort();
    }
    attr->values = malloc(bytes);
    if (attr->values == NULL) {
        abort();
    }
    memcpy(attr->values, arrayOfElements, bytes);
    attr->name = attributeName;
    attr->type = attributeType;
    attr->n = elementCount;
    attr->next = desc->attrs;
    desc->attrs = attr;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- graphs ---- */

/* The tensor in the graph, added when it is new; -1: no such attribute. */
static int tensor_of(dnn_graph_t *graph, const desc_t *op,
                     cudnnBackendAttributeName_t name, int is_written)
{
    const desc_t *desc = desc_of(op, name);
    dnn_tensor_t *t;
    int i;

    if (desc == NULL) {
        return -1;
    }
    for (i = 0; i < graph->n_tensors; i++) {
        if (graph->tensors[i].number ==
            number_of(desc, CUDNN_ATTR_TENSOR_UNIQUE_ID)) {
            graph->tensors[i].is_written |= is_written;
            return i;
        }
    }
    if (graph->n_tensors == DNN_MAX_TENSORS) {
        abort();
    }
    t = &graph->tensors[graph->n_tensors];
    t->number = number_of(desc, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t->type = (cudnnDataType_t)number_of(desc, CUDNN_ATTR_TENSOR_DATA_TYPE);
    t->is_virtual = number_of(desc, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0;
    t->is_by_value = number_of(desc, CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0;
    t->is_written = is_written;
    memcpy(t->dims, find(desc, CUDNN_ATTR_TENSOR_DIMENSIONS)->values,
           sizeof(t->dims));
    memcpy(t->strides, find(desc, CUDNN_ATTR_TENSOR_STRIDES)->values,
           sizeof(t->strides));
    return graph->n_tensors++;
}

static cudnnStatus_t add_op(dnn_graph_t *graph, const desc_t *desc)
{
    dnn_op_t op = {.b = -1, .t = -1};
    const desc_t *how;

    if (desc->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        op.kind = DNN_OP_MATMUL;
        op.x = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_MATMUL_ADESC, 0);
        op.b = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 0);
        op.y = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_MATMUL_CDESC, 1);
    } else if (desc->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
        how = desc_of(desc, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        op.kind = DNN_OP_POINTWISE;
        op.mode = (int)number_of(how, CUDNN_ATTR_POINTWISE_MODE);
        op.axis = number_of(how, CUDNN_ATTR_POINTWISE_AXIS);
        op.x = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0);
        op.b = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 0);
        op.t = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, 0);
        op.y = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 1);
    } else if (desc->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        how = desc_of(desc, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
        op.kind = DNN_OP_REDUCE;
        op.mode = (int)number_of(how, CUDNN_ATTR_REDUCTION_OPERATOR);
        op.x = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0);
        op.y = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, 1);
    } else {
        op.kind = DNN_OP_RESHAPE;
        op.x = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 0);
        op.y = tensor_of(graph, desc, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, 1);
    }
    if (op.x < 0 || op.y < 0 || graph->n_ops == DNN_MAX_OPS) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "an operation lacks a tensor");
    }
    graph->ops[graph->n_ops++] = op;
    return CUDNN_STATUS_SUCCESS;
}

static int n_products(const dnn_graph_t *graph)
{
    int n = 0, i;

    for (i = 0; i < graph->n_ops; i++) {
        n += graph->ops[i].kind == DNN_OP_MATMUL;
    }
    return n;
}

/* Matrix dimensions that fit; values that exist when they are read. */
static cudnnStatus_t check_graph(const dnn_graph_t *graph)
{
    int is_known[DNN_MAX_TENSORS] = {0};
    int i, k;

    for (i = 0; i < graph->n_ops; i++) {
        const dnn_op_t *op = &graph->ops[i];
        const int reads[3] = {op->x, op->b, op->t};

        for (k = 0; k < 3; k++) {
            if (reads[k] >= 0 && !is_known[reads[k]] &&
                (graph->tensors[reads[k]].is_virtual ||
                 graph->tensors[reads[k]].is_written)) {
                return dnn_fail(CUDNN_STATUS_BAD_PARAM,
                                "operation %d reads what comes later", i);
            }
        }
        is_known[op->y] = 1;
        if (op->kind == DNN_OP_MATMUL) {
            const int64_t *a = graph->tensors[op->x].dims;
            const int64_t *b = graph->tensors[op->b].dims;
            const int64_t *c = graph->tensors[op->y].dims;

            if (a[3] != b[2] || a[2] != c[2] || b[3] != c[3]) {
                return dnn_fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                                "operation %d: matrices do not fit", i);
            }
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finish_graph(desc_t *desc)
{
    const attr_t *ops = find(desc, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    int64_t i;

    if (ops == NULL) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM, "no operations");
    }
    desc->graph = calloc(1, sizeof(*desc->graph));
    if (desc->graph == NULL) {
        abort();
    }
    for (i = 0; i < ops->n && status == CUDNN_STATUS_SUCCESS; i++) {
        status = add_op(desc->graph, ((const desc_t *const *)ops->values)[i]);
    }
    return status == CUDNN_STATUS_SUCCESS ? check_graph(desc->graph) : status;
}

static cudnnStatus_t finish_heuristics(const desc_t *desc)
{
    const desc_t *graph = desc_of(desc, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    int is_refused;

    if (graph == NULL || !graph->is_final) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "graph");
    }
    lock();
    is_refused =
        refused_products > 0 && n_products(graph->graph) >= refused_products;
    unlock();
    return is_refused ? dnn_fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                                 "made to be refused")
                      : CUDNN_STATUS_SUCCESS;
}

static int has_handle(const desc_t *desc, cudnnBackendAttributeName_t name)
{
    return number_of(desc, name) != 0;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    desc_t *desc = descriptor;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;

    DNN_ENTER(cudnnBackendFinalize);
    switch (desc->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        if (find(desc, CUDNN_ATTR_TENSOR_DIMENSIONS) == NULL ||
            find(desc, CUDNN_ATTR_TENSOR_DIMENSIONS)->n != 4 ||
            find(desc, CUDNN_ATTR_TENSOR_STRIDES) == NULL ||
            find(desc, CUDNN_ATTR_TENSOR_STRIDES)->n != 4 ||
            find(desc, CUDNN_ATTR_TENSOR_UNIQUE_ID) == NULL) {
            status = dnn_fail(CUDNN_STATUS_BAD_PARAM, "tensor");
        }
        break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        status = finish_graph(desc);
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        status = finish_heuristics(desc);
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        if (!has_handle(desc, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) ||
            desc_of(desc, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) == NULL) {
            status = dnn_fail(CUDNN_STATUS_BAD_PARAM, "plan");
        } else {
            desc->device = ((const struct cudnnContext *)(uintptr_t)number_of(
                                desc, CUDNN_ATTR_EXECUTION_PLAN_HANDLE))
                               ->device;
        }
        break;
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
    case CUDNN_BACKEND_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        break;
    }
    desc->is_final = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* ---- what is asked ---- */

static cudnnStatus_t get_results(const desc_t *desc, int64_t asked, int64_t *n,
                                 void *array)
{
    desc_t *const *configs = array;
    int i;

    for (i = 0; i < N_ENGINES && i < asked; i++) {
        configs[i]->from = desc_of(desc, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        configs[i]->engine = i;
        configs[i]->is_final = 1;
    }
    *n = i;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_engine(const desc_t *desc, int64_t *n, void *array)
{
    desc_t *engine = *(desc_t *const *)array;

    engine->from = desc->from;
    engine->engine = desc->engine;
    engine->is_final = 1;
    *n = 1;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_notes(const desc_t *desc, int64_t asked, int64_t *n,
                               void *array)
{
    cudnnBackendNumericalNote_t *notes = array;

    if (asked < 2) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "notes");
    }
    notes[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    notes[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    *n = desc->engine == STEADY_ENGINE ? 1 : 2;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t
cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                         cudnnBackendAttributeName_t attributeName,
                         cudnnBackendAttributeType_t attributeType,
                         int64_t requestedElementCount, int64_t *elementCount,
                         void *arrayOfElements)
{
    const desc_t *desc = descriptor;
    const int64_t bytes = WORKSPACE_BYTES;

    DNN_ENTER(cudnnBackendGetAttribute);
    if (!is_type_of(attributeName, attributeType) || !desc->is_final) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute %d",
                        (int)attributeName);
    }
    if (attributeName == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
        return get_results(desc, requestedElementCount, elementCount,
                           arrayOfElements);
    }
    if (attributeName == CUDNN_ATTR_ENGINECFG_ENGINE) {
        return get_engine(desc, elementCount, arrayOfElements);
    }
    if (attributeName == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
        return get_notes(desc, requestedElementCount, elementCount,
                         arrayOfElements);
    }
    if (attributeName == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        memcpy(arrayOfElements, &bytes, sizeof(bytes));
        *elementCount = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    return dnn_fail(CUDNN_STATUS_NOT_SUPPORTED, "attribute %d",
                    (int)attributeName);
}

/* ---- runs ---- */

typedef struct graph_task {
    task_t task;
    dnn_graph_t graph;
    const void *addresses[DNN_MAX_TENSORS];
    float scalars[DNN_MAX_TENSORS];
    const void *workspace;
    int is_unsteady, is_broken;
} graph_task_t;

static void graph_run(task_t *task)
{
    static unsigned n_runs;
    const graph_task_t *job = (const graph_task_t *)(const void *)task;
    float noise = job->is_broken ? 1.5f : 1.0f;

    if (job->is_unsteady) {
        noise +=
            (float)(__atomic_add_fetch(&n_runs, 1, __ATOMIC_RELAXED) % 16) *
            0x1p-6f;
    }
    memset((void *)(uintptr_t)job->workspace, 0xff, WORKSPACE_BYTES);
    dnn_evaluate(&job->graph, job->addresses, job->scalars, noise);
}

/* The address that the pack gives to a tensor. */
static const void *given(const desc_t *pack, int64_t number)
{
    const attr_t *numbers = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const attr_t *pointers = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    int64_t i;

    for (i = 0; numbers != NULL && pointers != NULL && i < numbers->n; i++) {
        if (((const int64_t *)numbers->values)[i] == number) {
            return ((const void *const *)pointers->values)[i];
        }
    }
    return NULL;
}

/* Fill uses and scalars; the number of uses, or -1 when an address lacks. */
static int bind(const desc_t *pack, graph_task_t *job, dnn_use_t *uses)
{
    int n = 0, i;

    for (i = 0; i < job->graph.n_tensors; i++) {
        const dnn_tensor_t *t = &job->graph.tensors[i];
        const void *address = t->is_virtual ? NULL : given(pack, t->number);

        if (t->is_virtual) {
            continue;
        }
        if (address == NULL) {
            return -1;
        }
        if (t->is_by_value) {
            memcpy(&job->scalars[i], address, sizeof(float));
            continue;
        }
        uses[n++] =
            (dnn_use_t){address, dnn_extent(t) * dnn_type_bytes(t->type),
                        t->is_written, &job->addresses[i]};
    }
    uses[n++] = (dnn_use_t){(const void *)(uintptr_t)number_of(
                                pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE),
                            WORKSPACE_BYTES, 1, &job->workspace};
    return n;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t executionPlan,
                                  cudnnBackendDescriptor_t variantPack)
{
    const desc_t *plan = executionPlan, *pack = variantPack, *config;
    dnn_use_t uses[DNN_MAX_TENSORS + 1];
    graph_task_t *job;
    cudnnStatus_t status;
    int is_late = 0, n;

    status = dnn_enter(STANDIN_cudnnBackendExecute, 1, &is_late);
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    if (!plan->is_final || !pack->is_final) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "plan or pack");
    }
    if (plan->device != handle->device) {
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH,
                        "a plan for device %d on device %d", plan->device,
                        handle->device);
    }
    config = desc_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    job = calloc(1, sizeof(*job));
    if (job == NULL) {
        abort();
    }
    job->task.run = graph_run;
    job->graph = *config->from->graph;
    job->is_unsteady = config->engine != STEADY_ENGINE;
    lock();
    job->is_broken =
        broken_products > 0 && n_products(&job->graph) >= broken_products;
    unlock();
    n = bind(pack, job, uses);
    if (n < 0) {
        free(job);
        return dnn_fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                        "a tensor has no address");
    }
    return dnn_queue(handle, "cudnnBackendExecute", &job->task, uses, n,
                     is_late);
}
