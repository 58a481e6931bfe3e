/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/layer_run.h"

#include <string.h>

#ifdef SL_CUDA_STANDIN
#include "tests/cuda_standin/blas.h"
#endif

enum {
    MAX_RUNS = 256
};

static sl_cuda_stream_t stream;
static layer_run_t runs[MAX_RUNS];
static int n_runs;

sl_cuda_stream_t *run_stream(void)
{
    return &stream;
}

sl_dtype_t run_dtype(sl_cuda_type_t type)
{
    return type == SL_CUDA_F32    ? SL_DTYPE_F32
           : type == SL_CUDA_BF16 ? SL_DTYPE_BF16
                                  : SL_DTYPE_F16;
}

layer_run_t *run_layer(const char *type, const sl_attr_t *attrs, size_t n_attrs,
                       const sl_tensor_desc_t *in, int n_inputs,
                       sl_dtype_t dtype, int is_training)
{
    const sl_layer_spec_t spec = {.type = type,
                                  .n_inputs = n_inputs,
                                  .inputs = {-1, -2, 0, 0},
                                  .attrs = attrs,
                                  .n_attrs = n_attrs};
    layer_run_t *made = &runs[n_runs];
    sl_tensor_desc_t out;

    assert_true(n_runs < MAX_RUNS);
    memset(made, 0, sizeof(*made));
    sl_assert_ok(sl_layer_create(&spec, 3, in, &made->layer, &out));
    n_runs++;
    made->layer->kind = SL_DEVICE_KIND_CUDA;
    made->layer->dtype = dtype;
    sl_assert_ok(sl_layer_plan_init(&made->plan, made->layer,
                                    SL_DEVICE_KIND_CUDA, 1, is_training, in));
    made->run.plan = &made->plan;
    if (made->plan.saved_bytes > 0) {
        made->run.saved = bed_bytes(made->plan.saved_bytes);
    }
    made->run.step.is_training = is_training;
    made->run.step.seed = 99;
    made->run.step.step = 5;
    made->run.step.micro_batch = 2;
    made->run.step.is_first_backward = 1;
    made->run.step.loss_scale = 1;
    return made;
}

static void set_workspace(layer_run_t *layer, size_t bytes)
{
    layer->run.workspace = bytes == 0 ? NULL : bed_bytes(bytes);
}

void run_forward(layer_run_t *layer)
{
    const sl_layer_kernels_t *kernels =
        layer->layer->ops->kernels[SL_DEVICE_KIND_CUDA];

    set_workspace(layer, layer->plan.forward_workspace_bytes);
    sl_assert_ok(kernels->forward(&layer->run, &stream));
}

void run_backward(layer_run_t *layer)
{
    const sl_layer_kernels_t *kernels =
        layer->layer->ops->kernels[SL_DEVICE_KIND_CUDA];

    set_workspace(layer, layer->plan.backward_workspace_bytes);
    sl_assert_ok(kernels->backward(&layer->run, &stream));
}

int run_setup(void **state)
{
    const int status = bed_setup(state);

    memset(&stream, 0, sizeof(stream));
    stream.queue = bed_stream();
    return status;
}

int run_teardown(void **state)
{
    int i;

    for (i = 0; i < n_runs; i++) {
        sl_layer_plan_cleanup(&runs[i].plan);
        sl_layer_destroy(runs[i].layer);
    }
    n_runs = 0;
    for (i = 0; i < SL_CUDA_N_LIBRARIES; i++) {
        if (stream.handles[i] != NULL) {
            stream.release[i](stream.handles[i]);
        }
    }
#ifdef SL_CUDA_STANDIN
    standin_blas_refuse(0);
#endif
    return bed_teardown(state);
}
