/* SPDX-License-Identifier: Apache-2.0 */
/* A layer on a CPU device with guarded, poisoned buffers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/layers/layer_check.h"

enum {
    GUARD_BYTES = SL_MEM_ALIGN_BYTES,
    GUARD = 0xA5
};

sl_tensor_desc_t sl_f32(int n_dims, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t dims[SL_MAX_DIMS] = {a, b, c, d};

    return sl_tensor_desc(SL_DTYPE_F32, n_dims, dims);
}

sl_tensor_desc_t sl_i32(int n_dims, int64_t a, int64_t b)
{
    const int64_t dims[SL_MAX_DIMS] = {a, b, 1, 1};

    return sl_tensor_desc(SL_DTYPE_I32, n_dims, dims);
}

sl_tensor_desc_t sl_blocked(int64_t batch, int64_t channels, int64_t height,
                            int64_t width)
{
    sl_tensor_desc_t desc = sl_f32(4, batch, channels, height, width);

    desc.layout = SL_LAYOUT_BLOCKED;
    return desc;
}

/* Offset in floats of a plain image index in the blocked layout. */
static size_t blocked_offset(const sl_tensor_desc_t *desc, int64_t i)
{
    const int64_t block = sl_channel_block();
    const int64_t pixels = desc->dims[2] * desc->dims[3];
    const int64_t pixel = i % pixels;
    const int64_t channel = i / pixels % desc->dims[1];
    const int64_t image = i / pixels / desc->dims[1];

    return (size_t)(image * sl_padded_channels(desc) * pixels +
                    channel / block * block * pixels + pixel * block +
                    channel % block);
}

void sl_layer_to_tensor(const sl_tensor_desc_t *desc, const float *plain,
                        void *tensor)
{
    const int64_t n = sl_tensor_elements(desc);
    int64_t i;

    memset(tensor, 0, sl_tensor_bytes(desc));
    for (i = 0; i < n; i++) {
        if (desc->dtype == SL_DTYPE_I32) {
            ((int32_t *)tensor)[i] = (int32_t)plain[i];
        } else if (desc->dtype == SL_DTYPE_F64) {
            ((double *)tensor)[i] = (double)plain[i];
        } else if (desc->layout == SL_LAYOUT_BLOCKED) {
            ((float *)tensor)[blocked_offset(desc, i)] = plain[i];
        } else {
            ((float *)tensor)[i] = plain[i];
        }
    }
}

static void check_padding(const sl_tensor_desc_t *desc, const float *tensor)
{
    const int64_t block = sl_channel_block();
    const int64_t pixels = desc->dims[2] * desc->dims[3];
    const int64_t padded = sl_padded_channels(desc);
    int64_t i;

    for (i = 0; i < desc->dims[0] * padded * pixels; i++) {
        const int64_t group = i / (block * pixels) % (padded / block);

        if (group * block + i % block >= desc->dims[1] && tensor[i] != 0.0f) {
            (void)fprintf(stderr, "channel padding at %lld is %g, not 0\n",
                          (long long)i, (double)tensor[i]);
            fail();
        }
    }
}

void sl_layer_from_tensor(const sl_tensor_desc_t *desc, const void *tensor,
                          float *plain)
{
    const int64_t n = sl_tensor_elements(desc);
    int64_t i;

    if (desc->layout == SL_LAYOUT_BLOCKED) {
        check_padding(desc, tensor);
    }
    for (i = 0; i < n; i++) {
        if (desc->dtype == SL_DTYPE_I32) {
            plain[i] = (float)((const int32_t *)tensor)[i];
        } else if (desc->dtype == SL_DTYPE_F64) {
            plain[i] = (float)((const double *)tensor)[i];
        } else if (desc->layout == SL_LAYOUT_BLOCKED) {
            plain[i] = ((const float *)tensor)[blocked_offset(desc, i)];
        } else {
            plain[i] = ((const float *)tensor)[i];
        }
    }
}

void *sl_layer_bed_buffer(sl_layer_bed_t *bed, size_t bytes)
{
    sl_mem_block_t *block = NULL;
    char *base;

    assert_true((size_t)bed->n_blocks <
                sizeof(bed->blocks) / sizeof(bed->blocks[0]));
    sl_assert_ok(sl_mem_alloc(bed->devices->devices[0].mem,
                              SL_MEM_CLASS_ACTIVATION, bytes + 2 * GUARD_BYTES,
                              &block));
    bed->blocks[bed->n_blocks++] = block;
    base = block->ptr;
    memset(base, GUARD, GUARD_BYTES);
    memset(base + GUARD_BYTES, 0xFF, bytes);
    memset(base + GUARD_BYTES + bytes, GUARD, GUARD_BYTES);
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

static void make_inputs(sl_layer_bed_t *bed, const sl_layer_check_t *check)
{
    int i;

    for (i = 0; i < check->n_inputs; i++) {
        const sl_tensor_desc_t *desc = &check->inputs[i];
        void *tensor = sl_layer_bed_buffer(bed, sl_tensor_bytes(desc));

        bed->plain_in[i] = new_floats(sl_tensor_elements(desc));
        fill_input(check, i, bed->plain_in[i]);
        sl_layer_to_tensor(desc, bed->plain_in[i], tensor);
        bed->run.in[i] = tensor;
        if (desc->dtype == SL_DTYPE_F32) {
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
    sl_assert_ok(sl_layer_param_pack(bed->layer, SL_DEVICE_KIND_CPU, p, plain,
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
        sl_layer_to_tensor(out, bed->plain_dout, dout);
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
    sl_device_params_t params;
    sl_tensor_desc_t out;
    int p;

    memset(bed, 0, sizeof(*bed));
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
    sl_assert_ok(sl_layer_plan_init(&bed->plan, bed->layer, SL_DEVICE_KIND_CPU,
                                    n_threads, !check->is_evaluation,
                                    check->inputs));
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
    memset(bed, 0, sizeof(*bed));
}

static sl_status_t run_op(sl_layer_bed_t *bed, sl_op_fn fn)
{
    sl_op_manager_t *ops = bed->devices->devices[0].ops;
    const sl_op_t op = {
        .fn = fn, .args_bytes = sizeof(bed->run), .args = &bed->run};
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
