/* SPDX-License-Identifier: Apache-2.0 */
/* Small models, batches and a training run for the engine's tests. */
#include "tests/engine/engine_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/transport.h"

enum {
    VOCAB = 11,
    CONTEXT = 6,
    CLASSES = 5,
    MAX_VALUES = 1 << 16
};

static int add(sl_model_t *model, const char *type, const char *name, int input,
               int skip, const sl_attr_t *attrs, size_t n_attrs)
{
    const sl_layer_spec_t spec = {.type = type,
                                  .name = name,
                                  .n_inputs = skip == -100 ? 1 : 2,
                                  .inputs = {input, skip},
                                  .attrs = attrs,
                                  .n_attrs = n_attrs};
    int index = -1;

    sl_assert_ok(sl_model_add(model, &spec, &index));
    return index;
}

enum {
    NONE = -100
};

#define ATTRS(...)                                                             \
    (const sl_attr_t[]){__VA_ARGS__},                                          \
        sizeof((const sl_attr_t[]){__VA_ARGS__}) / sizeof(sl_attr_t)
#define N(key, value)                                                          \
    {                                                                          \
        .name = (key), .number = (value)                                       \
    }

/* ---- devices ---- */

int fixture_is_cuda(void)
{
    const char *kind = getenv("SLUICE_TEST_DEVICES");

    return kind != NULL && strcmp(kind, "cuda") == 0;
}

int fixture_regions_shrink(void)
{
    return fixture_is_cuda() && getenv("SLUICE_NO_CUDA_VMM") == NULL;
}

static sl_precision_t precision(void)
{
    static const char *const names[] = {"f32", "tf32", "bf16", "f16"};
    const char *name = getenv("SLUICE_TEST_PRECISION");
    int i;

    for (i = 0; name != NULL && i < 4; i++) {
        if (strcmp(names[i], name) == 0) {
            return (sl_precision_t)i;
        }
    }
    return SL_PRECISION_F32;
}

static sl_transport_t transport(void)
{
    const char *name = getenv("SLUICE_TEST_TRANSPORT");
    int i;

    for (i = 0; name != NULL && i < SL_TRANSPORT_N; i++) {
        if (strcmp(sl_transport_name((sl_transport_t)i), name) == 0) {
            return (sl_transport_t)i;
        }
    }
    return SL_TRANSPORT_AUTO;
}

const char *fixture_spec(const sl_model_t *model, int n)
{
    static char spec[32];

    (void)snprintf(spec, sizeof(spec), "%s:%d",
                   model->kind == SL_DEVICE_KIND_CUDA ? "cuda" : "cpu", n);
    return spec;
}

sl_model_t *fixture_target(sl_model_t *model)
{
    const sl_dnn_use_t dnn = {.has_images =
                                  getenv("SLUICE_TEST_CUDNN_IMAGES") != NULL};

    sl_model_use_dnn(model, &dnn);
    if (fixture_is_cuda()) {
        sl_assert_ok(
            sl_model_set_precision(model, SL_DEVICE_KIND_CUDA, precision()));
    }
    return model;
}

/* ---- models ---- */

static sl_model_t *create(const char *name, int channels, int side)
{
    const int64_t image[] = {1, channels, side, side}, label[] = {1};
    const sl_tensor_desc_t data = sl_tensor_desc(SL_DTYPE_F32, 4, image);
    const sl_tensor_desc_t target = sl_tensor_desc(SL_DTYPE_I32, 1, label);
    sl_model_t *model = NULL;

    sl_assert_ok(sl_model_create(name, &data, &target, &model));
    return model;
}

static void add_loss(sl_model_t *model, int input)
{
    const sl_layer_spec_t spec = {.type = "softmax_cross_entropy",
                                  .name = "loss",
                                  .n_inputs = 2,
                                  .inputs = {input, SL_INPUT_TARGET}};

    sl_assert_ok(sl_model_add(model, &spec, NULL));
    sl_assert_ok(sl_model_check(model));
}

sl_model_t *fixture_gpt(void)
{
    const int64_t tokens[] = {1, CONTEXT};
    const sl_tensor_desc_t desc = sl_tensor_desc(SL_DTYPE_I32, 2, tokens);
    const sl_attr_t attrs[] = {N("layers", 2), N("width", 8), N("heads", 2),
                               N("vocab", VOCAB), N("dropout", 0.2)};
    sl_model_t *model = NULL;

    sl_assert_ok(sl_model_build("gpt", attrs, sizeof(attrs) / sizeof(*attrs),
                                &desc, &desc, &model));
    return fixture_target(model);
}

static int add_conv_bn(sl_model_t *model, const char *name, int input, int skip,
                       int out, int stride, int relu)
{
    char conv[32], bn[32];
    int c;

    (void)snprintf(conv, sizeof(conv), "%s.conv", name);
    (void)snprintf(bn, sizeof(bn), "%s.bn", name);
    c = add(model, "conv2d", conv, input, NONE,
            ATTRS(N("out", out), N("kernel", 3), N("pad", 1),
                  N("stride", stride), N("bias", 0)));
    return add(model, "batch_norm", bn, c, skip, ATTRS(N("relu", relu)));
}

sl_model_t *fixture_resnet(void)
{
    sl_model_t *model = create("small-resnet", 3, 8);
    int x, y, skip;

    x = add_conv_bn(model, "stem", SL_INPUT_DATA, NONE, 16, 1, 1);
    y = add_conv_bn(model, "a1", x, NONE, 16, 1, 1);
    x = add_conv_bn(model, "a2", y, x, 16, 1, 1);
    y = add_conv_bn(model, "b1", x, NONE, 20, 2, 1);
    skip = add_conv_bn(model, "down", x, NONE, 20, 2, 0);
    x = add_conv_bn(model, "b2", y, skip, 20, 1, 1);
    x = add(model, "global_avg_pool", "pool", x, NONE, NULL, 0);
    x = add(model, "linear", "fc", x, NONE, ATTRS(N("out", CLASSES)));
    add_loss(model, x);
    return fixture_target(model);
}

sl_model_t *fixture_unet(void)
{
    sl_model_t *model = create("small-unet", 3, 8);
    int top, mid, x;

    top = add_conv_bn(model, "top", SL_INPUT_DATA, NONE, 16, 1, 1);
    mid = add_conv_bn(model, "mid", top, NONE, 16, 2, 1);
    x = add_conv_bn(model, "deep", mid, NONE, 16, 2, 1);
    x = add(model, "upsample2d", "up1", x, NONE, ATTRS(N("factor", 2)));
    x = add(model, "concat", "cat1", x, mid, NULL, 0);
    x = add_conv_bn(model, "dec1", x, NONE, 16, 1, 1);
    x = add(model, "upsample2d", "up2", x, NONE, ATTRS(N("factor", 2)));
    x = add(model, "concat", "cat2", x, top, NULL, 0);
    x = add_conv_bn(model, "dec2", x, NONE, 16, 1, 1);
    /* read once more, far away: three readers of one value */
    x = add(model, "add", "again", x, top, NULL, 0);
    x = add(model, "max_pool2d", "shrink", x, NONE, ATTRS(N("kernel", 2)));
    x = add(model, "flatten", "flat", x, NONE, NULL, 0);
    x = add(model, "dropout", "drop", x, NONE, ATTRS(N("p", 0.1)));
    x = add(model, "linear", "fc", x, NONE, ATTRS(N("out", CLASSES)));
    add_loss(model, x);
    return fixture_target(model);
}

sl_model_t *fixture_plain_path(void)
{
    sl_model_t *model = create("plain-path", 1, 2);
    int x, plain;

    plain = add(model, "flatten", "plain", SL_INPUT_DATA, NONE, NULL, 0);
    x = add(model, "linear", "fc1", plain, NONE, ATTRS(N("out", 4)));
    x = add(model, "add", "first", x, plain, NULL, 0);
    x = add(model, "linear", "fc2", x, NONE, ATTRS(N("out", 4)));
    x = add(model, "add", "second", x, plain, NULL, 0);
    x = add(model, "linear", "fc3", x, NONE, ATTRS(N("out", CLASSES)));
    add_loss(model, x);
    return fixture_target(model);
}

static int add_tokens(sl_model_t *model, const char *name, int tokens)
{
    return add(model, "embedding", name, tokens, NONE,
               ATTRS(N("vocab", VOCAB), N("width", 4)));
}

sl_model_t *fixture_token_path(void)
{
    const int64_t tokens[] = {1, CONTEXT};
    const sl_tensor_desc_t desc = sl_tensor_desc(SL_DTYPE_I32, 2, tokens);
    sl_model_t *model = NULL;
    int x, y, plain;

    sl_assert_ok(sl_model_create("token-path", &desc, &desc, &model));
    plain = add(model, "flatten", "plain", SL_INPUT_DATA, NONE, NULL, 0);
    x = add_tokens(model, "first", plain);
    x = add(model, "linear", "fc1", x, NONE, ATTRS(N("out", 4)));
    y = add_tokens(model, "second", plain);
    x = add(model, "add", "sum1", x, y, NULL, 0);
    y = add_tokens(model, "third", plain);
    x = add(model, "add", "sum2", x, y, NULL, 0);
    x = add(model, "linear", "fc2", x, NONE, ATTRS(N("out", VOCAB)));
    add_loss(model, x);
    return fixture_target(model);
}

sl_model_t *fixture_mlp(void)
{
    sl_model_t *model = create("small-mlp", 1, 2);
    int x;

    x = add(model, "flatten", "flat", SL_INPUT_DATA, NONE, NULL, 0);
    x = add(model, "linear", "fc1", x, NONE, ATTRS(N("out", 7)));
    x = add(model, "gelu", "gelu", x, NONE, NULL, 0);
    x = add(model, "linear", "fc2", x, NONE, ATTRS(N("out", CLASSES)));
    add_loss(model, x);
    return fixture_target(model);
}

void fixture_cuts(const sl_model_t *model, int n_stages, uint64_t seed,
                  uint32_t trial, int *cuts)
{
    const sl_rng_t rng = sl_rng_at(seed, trial, 0, 0, 0);
    int k;

    cuts[0] = 0;
    cuts[n_stages] = model->n_layers;
    for (k = 1; k < n_stages; k++) {
        const int most = model->n_layers - (n_stages - k);
        const int least = cuts[k - 1] + 1;

        cuts[k] = least + (int)(sl_rng_u32(&rng, (uint64_t)k) %
                                (uint32_t)(most - least + 1));
    }
}

sl_batch_t fixture_batch(const sl_model_t *model, int rows, int step,
                         int ignore_every)
{
    static float values[MAX_VALUES];
    static int32_t tokens[MAX_VALUES], targets[MAX_VALUES];
    const sl_rng_t rng =
        sl_rng_at(99, (uint32_t)step, 0, 0, SL_RNG_USE_SYNTHETIC);
    const int is_text = model->data.dtype == SL_DTYPE_I32;
    const int64_t n = sl_tensor_elements(&model->data) * rows;
    const int64_t n_targets = sl_tensor_elements(&model->target) * rows;
    sl_batch_t batch = {.rows = rows,
                        .data = is_text ? (const void *)tokens : values,
                        .target = targets,
                        .step = (uint32_t)step};
    int64_t i;

    assert_true(n <= MAX_VALUES && n_targets <= MAX_VALUES);
    if (is_text) {
        for (i = 0; i < n; i++) {
            tokens[i] = (int32_t)(sl_rng_u32(&rng, (uint64_t)i) % VOCAB);
        }
    } else {
        sl_rng_normal(&rng, values, (size_t)n);
    }
    for (i = 0; i < n_targets; i++) {
        const uint32_t r = sl_rng_u32(&rng, (uint64_t)(MAX_VALUES + i));

        targets[i] = (int32_t)(r % (is_text ? VOCAB : CLASSES));
        if (ignore_every > 0 && i % ignore_every == 0) {
            targets[i] = SL_DATA_IGNORE;
        }
    }
    return batch;
}

void fixture_params(const fixture_run_t *run, sl_device_set_t **devices_p,
                    sl_engine_params_t *params)
{
    sl_assert_ok(fixture_try_params(run, devices_p, params));
}

sl_status_t fixture_try_params(const fixture_run_t *run,
                               sl_device_set_t **devices_p,
                               sl_engine_params_t *params)
{
    static int even_cuts[65];
    sl_device_params_t device;
    sl_status_t status;
    int k;

    sl_device_params_default(&device);
    device.spec = fixture_spec(run->model, run->n_devices);
    device.n_threads = 1;
    device.memory_bytes =
        run->memory_bytes > 0 ? run->memory_bytes : (size_t)1 << 30;
    device.host_bytes = run->host_bytes;
    device.is_exportable = run->is_exportable;
    if (run->n_gpu_ranks > 0) {
        device.gpu_rank = run->gpu_rank;
        device.n_gpu_ranks = run->n_gpu_ranks;
    }
    SL_TRY(status, sl_device_set_create(&device, devices_p), out);
    sl_engine_params_default(params);
    params->model = run->model;
    params->devices = *devices_p;
    params->n_stages = run->n_stages;
    for (k = 0; k <= run->n_stages; k++) {
        even_cuts[k] = k * run->model->n_layers / run->n_stages;
    }
    params->cuts = run->cuts != NULL ? run->cuts : even_cuts;
    params->batch_rows = run->rows;
    params->n_micro_batches = run->n_micro;
    params->schedule = run->schedule;
    params->backward_order = run->order;
    params->recompute = run->recompute;
    params->keeps = run->keeps;
    params->optimizer = run->optimizer;
    if (run->optimizer.lr == 0.0) {
        sl_optimizer_params_default(&params->optimizer);
        params->optimizer.lr = 0.1;
        params->optimizer.momentum = 0.9;
    }
    params->n_replicas = run->n_replicas > 0 ? run->n_replicas : 1;
    params->zero1 = run->zero1;
    if (run->bucket_bytes > 0) {
        params->bucket_bytes = run->bucket_bytes;
    }
    params->batch_norm = run->batch_norm;
    params->not_finite = run->not_finite;
    if (run->loss_scale_steps > 0) {
        params->loss_scale_steps = run->loss_scale_steps;
    }
    params->transport = transport();
    params->check_replicas = 1;
    params->seed = 7;
    params->trace = 1;
out:
    return status;
}

void fixture_engine(const fixture_run_t *run, sl_device_set_t **devices_p,
                    sl_engine_t **engine_p)
{
    sl_engine_params_t params;

    fixture_params(run, devices_p, &params);
    sl_assert_ok(sl_engine_create(&params, engine_p));
}

sl_status_t fixture_try_step(const fixture_run_t *run, sl_engine_t *engine,
                             int step, sl_step_report_t *report)
{
    const sl_batch_t batch =
        fixture_batch(run->model, run->rows, step, run->ignore_every);

    return sl_engine_step(engine, &batch, report);
}

sl_step_report_t fixture_step(const fixture_run_t *run, sl_engine_t *engine,
                              int step)
{
    sl_step_report_t report;

    sl_assert_ok(fixture_try_step(run, engine, step, &report));
    return report;
}

fixture_result_t fixture_train(const fixture_run_t *run)
{
    fixture_result_t result;
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    int step;

    memset(&result, 0, sizeof(result));
    assert_true(run->n_steps <= FIXTURE_MAX_STEPS);
    fixture_engine(run, &devices, &engine);
    for (step = 0; step < run->n_steps; step++) {
        const int rows =
            run->rows - (run->uneven_last && step == run->n_steps - 1);
        const sl_batch_t batch =
            fixture_batch(run->model, rows, step, run->ignore_every);
        sl_step_report_t report;
        sl_eval_sums_t sums = {0};

        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        result.losses[step] = report.loss;
        result.norms[step] = report.gradient_norm;
        if (run->eval_between) {
            sl_assert_ok(sl_engine_evaluate(engine, &batch, &sums));
        }
    }
    sl_assert_ok(sl_engine_state_hash(engine, &result.hash));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return result;
}

fixture_bytes_t fixture_measure(const fixture_run_t *run)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_engine_params_t params;
    fixture_bytes_t got = {.status = SL_OK};
    int step, d;

    fixture_params(run, &devices, &params);
    got.status = sl_engine_create(&params, &engine);
    for (step = 0; step < run->n_steps && got.status >= 0; step++) {
        sl_step_report_t report;

        got.status = fixture_try_step(run, engine, step, &report);
        for (d = 0; d < devices->n_devices && got.status >= 0; d++) {
            const sl_device_report_t *device = &report.devices[d];

            assert_true(device->held_bytes <= device->limit_bytes);
            if (device->peak_bytes > got.peak[d]) {
                got.peak[d] = device->peak_bytes;
            }
            if (device->held_bytes > got.held[d]) {
                got.held[d] = device->held_bytes;
            }
        }
    }
    if (got.status >= 0) {
        sl_assert_ok(sl_engine_state_hash(engine, &got.hash));
    }
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return got;
}

sl_memory_plan_t fixture_rehearse(const fixture_run_t *run)
{
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    sl_memory_plan_t plan;
    sl_mem_stats_t stats;
    int d;

    fixture_params(run, &devices, &params);
    sl_assert_ok(sl_engine_rehearse(&params, &plan));
    for (d = 0; d < devices->n_devices; d++) {
        sl_op_stats_t ops;

        /* nothing was asked of the real devices */
        sl_mem_stats(devices->devices[d].mem, &stats);
        assert_int_equal(stats.n_region_allocs, 0);
        sl_op_manager_stats(devices->devices[d].ops, &ops);
        assert_int_equal(ops.n_submitted, 0);
        plan.devices[d].name = NULL; /* went with the devices */
    }
    sl_device_set_destroy(devices);
    return plan;
}
