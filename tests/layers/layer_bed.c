/* SPDX-License-Identifier: Apache-2.0 */
/* A layer on a device with guarded, poisoned buffers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/layers_internal.h"
#include "tests/layers/layer_bed_cuda.h"
#include "tests/layers/layer_check.h"

enum {
    GUARD_BYTES = SL_MEM_ALIGN_BYTES,
    GUARD = 0xA5
};

sl_device_kind_t sl_layer_bed_kind(void)
{
    const char *kind = getenv("SLUICE_TEST_LAYER_KIND");

    if (kind == NULL || strcmp(kind, "cpu") == 0) {
        return SL_DEVICE_KIND_CPU;
    }
    assert_string_equal(kind, "cuda");
    return SL_DEVICE_KIND_CUDA;
}

sl_dtype_t sl_layer_bed_dtype(void)
{
    static const struct {
        const char *name;
        sl_dtype_t dtype;
    } dtypes[] = {
        {"f32", SL_DTYPE_F32}, {"bf16", SL_DTYPE_BF16}, {"f16", SL_DTYPE_F16}};
    const char *name = getenv("SLUICE_TEST_LAYER_DTYPE");
    size_t i;

    if (name == NULL || sl_layer_bed_kind() == SL_DEVICE_KIND_CPU) {
        return SL_DTYPE_F32;
    }
    for (i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return dtypes[i].dtype;
        }
    }
    fail_msg("no type of activations: %s", name);
    return SL_DTYPE_F32;
}

/* An input as the device has it. */
static sl_tensor_desc_t device_desc(const sl_layer_check_t *check, int i)
{
    sl_tensor_desc_t desc = check->inputs[i];

    if (sl_layer_bed_kind() == SL_DEVICE_KIND_CPU) {
        return desc;
    }
    if (desc.layout == SL_LAYOUT_BLOCKED) {
        desc.layout = SL_LAYOUT_CHANNELS_LAST;
    }
    if (desc.dtype == SL_DTYPE_F32 && !check->is_data) {
        desc.dtype = sl_layer_bed_dtype();
    }
    return desc;
}

void *sl_layer_bed_buffer(sl_layer_bed_t *bed, size_t bytes)
{
    sl_mem_block_t *block = NULL;
    char *base;

    assert_true(bed->n_blocks < SL_LAYER_BED_MAX_BLOCKS);
    sl_assert_ok(sl_mem_alloc(bed->devices->devices[0].mem,
                              SL_MEM_CLASS_ACTIVATION, bytes + 2 * GUARD_BYTES,
                              &block));
    bed->blocks[bed->n_blocks++] = block;
    base = block->ptr;
    memset(base, GUARD, GUARD_BYTES);
    memset(base + GUARD_BYTES, 0xFF, bytes);
    memset(base + GUARD_BYTES + bytes, GUARD, GUARD_BYTES);
#if SL_HAVE_CUDA
    if (bed->cuda != NULL) {
        sl_bed_cuda_add(bed);
    }
#endif
    return base + GUARD_BYTES;
}

static void check_guards(const sl_layer_bed_t *bed)
{
    int b;
    size_t i;

    for (b = 0; b < bed->n_blocks; b++) {
        const unsigned char *front = bed->blocks[b]->ptr;
        const unsigned char *back = front + bed->blocks[b]->bytes - GUARD_BYTES;

        for (i = 0; i < GUARD_BYTES; i++) {
            if (front[i] != GUARD || back[i] != GUARD) {
                (void)fprintf(stderr, "layer %s wrote outside of a buffer\n",
                              bed->layer->ops->name);
                fail();
            }
        }
    }
}

static float *new_floats(int64_t n)
{
    float *data = calloc((size_t)n + 1, sizeof(*data));

    assert_non_null(data);
    return data;
}

static void fill_input(const sl_layer_check_t *check, int i, float *plain)
{
    const sl_tensor_desc_t *desc = &check->inputs[i];
    const int64_t n = sl_tensor_elements(desc);
    const double scale = check->input_scale > 0 ? check->input_scale : 1;
    const int64_t classes = check->n_classes > 0 ? check->n_classes : 2;
    const sl_rng_t rng = sl_rng_at(1234, (uint32_t)i, 0, 0, 100);
    int64_t k;

    if (check->values[i] != NULL) {
        memcpy(plain, check->values[i], (size_t)n * sizeof(*plain));
        return;
    }
    sl_rng_normal(&rng, plain, (size_t)n);
    for (k = 0; k < n; k++) {
        if (desc->dtype == SL_DTYPE_I32) {
            plain[k] =
                (float)sl_rng_below(&rng, (uint64_t)k, (uint64_t)classes);
        } else {
            plain[k] *= (float)scale;
        }
    }
}

/* ... and plain becomes what the tensor holds. */
static void to_tensor_rounded(const sl_tensor_desc_t *desc, float *plain,
                              void *tensor)
{
    sl_layer_to_tensor(desc, plain, tensor);
    sl_layer_from_tensor(desc, tensor, plain);
}

static void make_inputs(sl_layer_bed_t *bed, const sl_layer_check_t *check)
{
    int i;

    for (i = 0; i < check->n_inputs; i++) {
        const sl_tensor_desc_t *desc = &bed->plan.in[i];
        void *tensor = sl_layer_bed_buffer(bed, sl_tensor_bytes(desc));

        bed->plain_in[i] = new_floats(sl_tensor_elements(desc));
        fill_input(check, i, bed->plain_in[i]);
        to_tensor_rounded(desc, bed->plain_in[i], tensor);
        bed->run.in[i] = tensor;
        if (sl_is_real(desc) && bed->layer->inputs[i] >= 0) {
            bed->run.din[i] = sl_layer_bed_buffer(bed, sl_tensor_bytes(desc));
        }
    }
}

static void make_param(sl_layer_bed_t *bed, int p)
{
    const sl_param_t *param = &bed->layer->params[p];
    const int64_t n = sl_tensor_elements(&param->desc);
    const sl_rng_t rng = sl_rng_at(4321, (uint32_t)p, 0, 0, 100);
    float *plain = new_floats(n);
    int64_t k;

    bed->plain_param[p] = plain;
    bed->run.param[p] = sl_layer_bed_buffer(bed, param->storage_bytes);
    if (param->kind == SL_PARAM_ACCUMULATOR) {
        return;
    }
    if (param->kind == SL_PARAM_STATISTIC) {
        sl_rng_uniform(&rng, plain, (size_t)n);
    } else {
        bed->run.grad[p] = sl_layer_bed_buffer(bed, param->storage_bytes);
        sl_rng_normal(&rng, plain, (size_t)n);
    }
    for (k = 0; k < n; k++) {
        if (param->kind == SL_PARAM_STATISTIC) {
            plain[k] += 0.5f;
        } else {
            plain[k] = param->init == SL_INIT_ONE ? 1 + 0.2f * plain[k]
                                                  : 0.5f * plain[k];
        }
    }
    if (sl_layer_bed_dtype() != SL_DTYPE_F32) {
        /* so that kernels that compute with 16 bits see the same values */
        sl_tensor_desc_t desc = param->desc;
        void *rounded = new_floats(n);

        desc.dtype = sl_layer_bed_dtype();
        to_tensor_rounded(&desc, plain, rounded);
        free(rounded);
    }
    sl_assert_ok(sl_layer_param_pack(bed->layer, bed->plan.kind, p, plain,
                                     bed->run.param[p]));
}

static void make_outputs(sl_layer_bed_t *bed)
{
    const sl_tensor_desc_t *out = &bed->plan.out;
    const size_t forward_bytes = bed->plan.forward_workspace_bytes;
    const size_t backward_bytes = bed->plan.backward_workspace_bytes;
    const sl_rng_t rng = sl_rng_at(999, 0, 0, 0, 100);

    bed->run.out = sl_layer_bed_buffer(bed, sl_tensor_bytes(out));
    bed->run.saved = sl_layer_bed_buffer(bed, bed->plan.saved_bytes);
    bed->run.workspace = sl_layer_bed_buffer(
        bed, forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
    if (!bed->layer->ops->is_loss) {
        void *dout = sl_layer_bed_buffer(bed, sl_tensor_bytes(out));

        bed->plain_dout = new_floats(sl_tensor_elements(out));
        sl_rng_normal(&rng, bed->plain_dout, (size_t)sl_tensor_elements(out));
        to_tensor_rounded(out, bed->plain_dout, dout);
        bed->run.dout = dout;
    }
}

void sl_layer_bed_init(sl_layer_bed_t *bed, const sl_layer_check_t *check,
                       int n_threads)
{
    const size_t n_max = sizeof(check->attrs) / sizeof(check->attrs[0]);
    sl_layer_spec_t spec = {.type = check->type,
                            .name = "checked",
                            .n_inputs = check->n_inputs,
                            .attrs = check->attrs};
    const sl_device_kind_t kind = sl_layer_bed_kind();
    sl_device_params_t params;
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];
    sl_tensor_desc_t out;
    int p;

    memset(bed, 0, sizeof(*bed));
    for (p = 0; p < check->n_inputs; p++) {
        in[p] = device_desc(check, p);
        if (check->is_data && kind != SL_DEVICE_KIND_CPU) {
            spec.inputs[p] = SL_INPUT_DATA;
        }
    }
    while (spec.n_attrs < n_max && check->attrs[spec.n_attrs].name != NULL) {
        spec.n_attrs++;
    }
#if defined(__SANITIZE_THREAD__)
    n_threads = 1; /* OpenMP's own synchronisation is not instrumented */
#endif
    sl_device_params_default(&params);
    params.n_threads = n_threads;
    params.bind = 0;
    sl_assert_ok(sl_device_set_create(&params, &bed->devices));
    sl_assert_ok(sl_layer_create(&spec, 5, check->inputs, &bed->layer, &out));
    if (kind != SL_DEVICE_KIND_CPU) {
        sl_assert_ok(
            sl_layer_target(bed->layer, kind, sl_layer_bed_dtype(), in, &out));
#if SL_HAVE_CUDA
        bed->cuda = sl_bed_cuda_create();
#endif
    }
    sl_assert_ok(sl_layer_plan_init(&bed->plan, bed->layer, kind, n_threads,
                                    !check->is_evaluation, in));
    assert_true(sl_tensor_desc_is_equal(&out, &bed->plan.out));
    bed->run.plan = &bed->plan;
    bed->run.step = (sl_step_info_t){.seed = 7,
                                     .step = 3,
                                     .micro_batch = 2,
                                     .is_training = !check->is_evaluation,
                                     .is_first_forward = 1,
                                     .is_first_backward = 1,
                                     .loss_scale = 0.25f};
    make_inputs(bed, check);
    for (p = 0; p < bed->layer->n_params; p++) {
        make_param(bed, p);
    }
    make_outputs(bed);
}

void sl_layer_bed_cleanup(sl_layer_bed_t *bed)
{
    int i;

    for (i = 0; i < bed->n_blocks; i++) {
        sl_mem_release(bed->blocks[i]);
    }
    for (i = 0; i < SL_LAYER_MAX_INPUTS; i++) {
        free(bed->plain_in[i]);
    }
    for (i = 0; i < SL_LAYER_MAX_PARAMS; i++) {
        free(bed->plain_param[i]);
    }
    free(bed->plain_dout);
    sl_layer_plan_cleanup(&bed->plan);
    sl_layer_destroy(bed->layer);
    sl_device_set_destroy(bed->devices);
#if SL_HAVE_CUDA
    if (bed->cuda != NULL) {
        sl_bed_cuda_destroy(bed->cuda);
    }
#endif
    memset(bed, 0, sizeof(*bed));
}

typedef struct bed_op {
    const sl_layer_bed_t *bed;
    sl_op_fn fn;
} bed_op_t;

static sl_status_t run_on_device(const void *args, void *stream)
{
    const bed_op_t *op = args;

#if SL_HAVE_CUDA
    if (op->bed->cuda != NULL) {
        return sl_bed_cuda_run(op->bed, op->fn);
    }
#endif
    return op->fn(&op->bed->run, stream);
}

static sl_status_t run_op(sl_layer_bed_t *bed, sl_op_fn fn)
{
    sl_op_manager_t *ops = bed->devices->devices[0].ops;
    const bed_op_t args = {bed, fn};
    const sl_op_t op = {
        .fn = run_on_device, .args_bytes = sizeof(args), .args = &args};
    uint64_t ticket;
    sl_status_t status;

    sl_assert_ok(sl_op_manager_submit(ops, &op, &ticket));
    status = sl_op_manager_wait(ops, ticket, UINT64_MAX);
    if (status < 0) {
        sl_op_manager_recover(ops);
    }
    check_guards(bed);
    return status;
}

sl_status_t sl_layer_bed_forward(sl_layer_bed_t *bed)
{
    return run_op(bed, sl_layer_op_forward);
}

sl_status_t sl_layer_bed_backward(sl_layer_bed_t *bed)
{
    return run_op(bed, sl_layer_op_backward);
}

sl_status_t sl_layer_bed_finish_batch(sl_layer_bed_t *bed)
{
    return run_op(bed, sl_layer_op_finish_batch);
}
