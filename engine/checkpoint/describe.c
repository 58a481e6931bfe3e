/* SPDX-License-Identifier: Apache-2.0 */
/* A run in words: one text a layer, its settings, the tensors of its state. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_internal.h"
#include "engine/engine_internal.h"

/* ---- layers ---- */

typedef struct sl_text {
    char text[SL_MANIFEST_TEXT_BYTES];
    size_t used;
} sl_text_t;

static void add(sl_text_t *to, const char *fmt, ...) SL_PRINTF(2, 3);

/* What does not fit is cut off. */
static void add(sl_text_t *to, const char *fmt, ...)
{
    const size_t room = sizeof(to->text) - to->used;
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(to->text + to->used, room, fmt, args);
    va_end(args);
    if (n > 0) {
        to->used += (size_t)n < room ? (size_t)n : room - 1;
    }
}

static void add_attr(sl_text_t *to, const sl_attr_def_t *def, const char *field)
{
    int64_t whole;
    double number;
    int choice;

    switch (def->kind) {
    case SL_ATTR_INT:
        memcpy(&whole, field, sizeof(whole));
        add(to, "%" PRId64, whole);
        break;
    case SL_ATTR_FLOAT:
        memcpy(&number, field, sizeof(number));
        add(to, "%.9g", number);
        break;
    case SL_ATTR_BOOL:
    case SL_ATTR_CHOICE:
        memcpy(&choice, field, sizeof(choice));
        add(to, "%d", choice);
        break;
    case SL_ATTR_TEXT:
        add(to, "'%s'", field);
        break;
    }
}

static void add_params(sl_text_t *to, const sl_layer_t *layer)
{
    int p, d;

    for (p = 0; p < layer->n_params; p++) {
        const sl_param_t *param = &layer->params[p];

        if (param->kind == SL_PARAM_ACCUMULATOR) {
            continue;
        }
        add(to, " %s", param->name);
        for (d = 0; d < param->desc.n_dims; d++) {
            add(to, "%c%" PRId64, d == 0 ? '[' : 'x', param->desc.dims[d]);
        }
        add(to, "]");
        if (param->tied_layer >= 0) {
            add(to, "=%d.%d", param->tied_layer, param->tied_param);
        }
    }
}

/* "fc1: linear(out 7, bias 1) of 0: weight[7x4] bias[7]" */
static char *layer_text(const sl_layer_t *layer)
{
    const sl_attr_def_t *def;
    sl_text_t to = {.used = 0};
    const char *separator = "";
    int i;

    add(&to, "%s: %s(", layer->name, layer->ops->name);
    for (def = layer->ops->attr_defs; def != NULL && def->name != NULL; def++) {
        add(&to, "%s%s ", separator, def->name);
        add_attr(&to, def, (const char *)layer->attrs + def->offset);
        separator = ", ";
    }
    add(&to, ") of");
    for (i = 0; i < layer->n_inputs; i++) {
        add(&to, " %d", layer->inputs[i]);
    }
    add(&to, ":");
    add_params(&to, layer);
    return strdup(to.text);
}

static sl_status_t describe_layers(const sl_model_t *model,
                                   sl_run_description_t *d)
{
    sl_status_t status;
    int l;

    d->layers = calloc((size_t)model->n_layers + 1, sizeof(*d->layers));
    for (l = 0; d->layers != NULL && l < model->n_layers; l++) {
        d->layers[l] = layer_text(model->layers[l]);
        if (d->layers[l] == NULL) {
            break;
        }
        d->n_layers++;
    }
    if (d->n_layers < (size_t)model->n_layers) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "model %s: no host memory to describe %d layers", model->name,
                model->n_layers);
    }
    return SL_OK;
out:
    return status;
}

/* ---- settings ---- */

/* A list that grows; the first failure stays. */
typedef struct sl_settings {
    sl_setting_t items[64];
    size_t n;
    int is_failed;
} sl_settings_t;

static void put(sl_settings_t *to, sl_setting_rule_t rule, const char *name,
                const char *fmt, ...) SL_PRINTF(4, 5);

static void put(sl_settings_t *to, sl_setting_rule_t rule, const char *name,
                const char *fmt, ...)
{
    char value[SL_MANIFEST_NAME_BYTES];
    sl_setting_t *item = &to->items[to->n];
    va_list args;

    SL_ASSERT(to->n < sizeof(to->items) / sizeof(*to->items));
    va_start(args, fmt);
    (void)vsnprintf(value, sizeof(value), fmt, args);
    va_end(args);
    item->name = name;
    item->rule = rule;
    item->value = strdup(value);
    to->is_failed |= item->value == NULL;
    to->n++;
}

/* With as many digits as it takes to read the same number again. */
static void put_number(sl_settings_t *to, const char *name, double value)
{
    char text[40];
    int digits;

    for (digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    put(to, SL_SETTING_EXACT, name, "%s", text);
}

/* Word i of "a|b|c". */
static void put_choice(sl_settings_t *to, sl_setting_rule_t rule,
                       const char *name, const char *choices, int i)
{
    while (i-- > 0 && strchr(choices, '|') != NULL) {
        choices = strchr(choices, '|') + 1;
    }
    put(to, rule, name, "%.*s", (int)strcspn(choices, "|"), choices);
}

/* Only those that this kind of optimizer and schedule read. */
static void put_optimizer(sl_settings_t *to, const sl_optimizer_params_t *o)
{
    const sl_setting_rule_t exact = SL_SETTING_EXACT;

    put_choice(to, SL_SETTING_MUST, "optimizer.type", SL_OPTIMIZER_CHOICES,
               (int)o->kind);
    put_number(to, "optimizer.lr", o->lr);
    if (o->kind == SL_OPTIMIZER_SGD) {
        put_number(to, "optimizer.momentum", o->momentum);
        put(to, exact, "optimizer.nesterov", "%d", o->nesterov);
    } else {
        put_number(to, "optimizer.beta1", o->beta1);
        put_number(to, "optimizer.beta2", o->beta2);
        put_number(to, "optimizer.eps", o->eps);
    }
    put_number(to, "optimizer.weight_decay", o->weight_decay);
    put(to, exact, "optimizer.decay_all", "%d", o->decay_all);
    put_number(to, "optimizer.clip_norm", o->clip_norm);
    put_choice(to, exact, "optimizer.lr_schedule", SL_LR_CHOICES,
               (int)o->lr_kind);
    put(to, exact, "optimizer.warmup_steps", "%" PRId64, o->warmup_steps);
    if (o->lr_kind == SL_LR_LINEAR || o->lr_kind == SL_LR_COSINE) {
        put_number(to, "optimizer.lr_min", o->lr_min);
        put(to, exact, "optimizer.total_steps", "%" PRId64, o->total_steps);
    }
    if (o->lr_kind == SL_LR_STEP) {
        put_number(to, "optimizer.lr_gamma", o->lr_gamma);
        put(to, exact, "optimizer.lr_step_every", "%" PRId64, o->lr_step_every);
    }
}

/* The files may have moved: what they hold is compared, as far as known. */
static void put_data(sl_settings_t *to, const sl_checkpoint_run_t *run)
{
    const sl_data_params_t *data = run->data;
    const sl_setting_rule_t exact = SL_SETTING_EXACT;

    if (run->n_samples > 0) {
        put(to, exact, "data.samples", "%" PRId64, run->n_samples);
    }
    if (data == NULL) {
        return;
    }
    put(to, exact, "data.format", "%s", data->format);
    put(to, exact, "data.seed", "%" PRIu64, data->seed);
    put(to, exact, "data.context", "%" PRId64, data->context);
    put(to, exact, "data.classes", "%" PRId64, data->classes);
    put(to, exact, "data.image", "%" PRId64 "x%" PRId64 "x%" PRId64,
        data->channels, data->height, data->width);
    put(to, exact, "data.mean", "%.9g %.9g %.9g", data->mean[0], data->mean[1],
        data->mean[2]);
    put(to, exact, "data.deviation", "%.9g %.9g %.9g", data->deviation[0],
        data->deviation[1], data->deviation[2]);
    put(to, exact, "data.flip", "%d", data->flip);
    put(to, exact, "data.crop_pad", "%" PRId64, data->crop_pad);
    put(to, SL_SETTING_TOLD, "data.path", "%.200s",
        data->path == NULL || data->path[0] == '\0' ? "-" : data->path);
}

static sl_status_t describe_settings(const sl_checkpoint_run_t *run,
                                     sl_run_description_t *d)
{
    const sl_engine_params_t *params = &run->engine->params;
    sl_settings_t to = {.n = 0};
    sl_status_t status;

    put(&to, SL_SETTING_EXACT, "train.batch", "%" PRId64, params->batch_rows);
    put(&to, SL_SETTING_EXACT, "train.seed", "%" PRIu64, params->seed);
    put(&to, SL_SETTING_BITS, "train.micro_batches", "%d",
        params->n_micro_batches);
    put_choice(&to, SL_SETTING_BITS, "train.backward_order",
               SL_BACKWARD_CHOICES, (int)params->backward_order);
    put(&to, SL_SETTING_BITS, "devices.threads", "%d",
        params->devices->devices[0].n_threads);
    put_choice(&to, SL_SETTING_BITS, "devices.kind", "cpu|cuda",
               (int)params->model->kind);
    put_choice(&to, SL_SETTING_BITS, "train.precision", SL_PRECISION_CHOICES,
               (int)sl_model_precision(params->model));
    put_choice(&to, SL_SETTING_BITS, "train.cudnn_images", "false|true",
               params->model->dnn.has_images);
    put(&to, SL_SETTING_BITS, "train.cudnn_workspace", "%" PRIu64,
        params->model->dnn.workspace_bytes);
    put(&to, SL_SETTING_TOLD, "devices.stages", "%d", params->n_stages);
    put(&to, SL_SETTING_BITS, "train.replicas", "%d", params->n_replicas);
    put_choice(&to, SL_SETTING_TOLD, "train.schedule", SL_SCHEDULE_CHOICES,
               (int)params->schedule);
    put_choice(&to, SL_SETTING_TOLD, "train.recompute", SL_RECOMPUTE_CHOICES,
               (int)params->recompute);
    put_optimizer(&to, &params->optimizer);
    put_data(&to, run);
    d->settings = malloc(sizeof(to.items));
    if (d->settings == NULL || to.is_failed) {
        while (to.n > 0) {
            free((char *)(uintptr_t)to.items[--to.n].value);
        }
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "checkpoint: no host memory for the run's settings");
    }
    memcpy(d->settings, to.items, sizeof(to.items));
    d->n_settings = to.n;
    return SL_OK;
out:
    return status;
}

/* ---- tensors ---- */

static void put_tensor(sl_run_description_t *d, const sl_model_t *model, int l,
                       int p, int moment)
{
    const sl_layer_t *layer = model->layers[l];
    const sl_param_t *param = &layer->params[p];
    sl_state_tensor_t *tensor = &d->tensors[d->n_tensors++];

    tensor->layer = l;
    tensor->param = p;
    tensor->moment = moment;
    if (moment < 0) {
        (void)snprintf(tensor->name, sizeof(tensor->name), "%s.%s", layer->name,
                       param->name);
    } else {
        (void)snprintf(tensor->name, sizeof(tensor->name), "optimizer.%d.%s.%s",
                       moment, layer->name, param->name);
    }
    tensor->entry.name = tensor->name;
    tensor->entry.n_dims = param->desc.n_dims;
    memcpy(tensor->entry.dims, param->desc.dims, sizeof(param->desc.dims));
    tensor->n_bytes =
        (uint64_t)sl_tensor_elements(&param->desc) * sizeof(float);
}

static sl_status_t describe_tensors(const sl_engine_params_t *params,
                                    sl_run_description_t *d)
{
    const sl_model_t *model = params->model;
    const int n_moments = sl_optimizer_n_moments(&params->optimizer);
    sl_status_t status;
    int l, p, i;

    d->tensors = calloc((size_t)model->n_layers * SL_LAYER_MAX_PARAMS *
                                (size_t)(n_moments + 1) +
                            1,
                        sizeof(*d->tensors));
    if (d->tensors == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "model %s: no host memory for a list of its tensors",
                model->name);
    }
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            const sl_param_t *param = &model->layers[l]->params[p];

            if (param->kind == SL_PARAM_ACCUMULATOR || param->tied_layer >= 0) {
                continue;
            }
            put_tensor(d, model, l, p, -1);
            for (i = 0; param->kind == SL_PARAM_TRAINED && i < n_moments; i++) {
                put_tensor(d, model, l, p, i);
            }
        }
    }
    return SL_OK;
out:
    return status;
}

sl_status_t sl_run_describe(const sl_checkpoint_run_t *run,
                            sl_run_description_t *d_p)
{
    const sl_engine_params_t *params = &run->engine->params;
    sl_run_description_t d;
    sl_status_t status;

    memset(&d, 0, sizeof(d));
    d.rank = sl_world_rank(run->world);
    SL_TRY(status, describe_layers(params->model, &d), err_cleanup);
    SL_TRY(status, describe_settings(run, &d), err_cleanup);
    SL_TRY(status, describe_tensors(params, &d), err_cleanup);
    *d_p = d;
    return SL_OK;

err_cleanup:
    sl_run_description_cleanup(&d);
    return status;
}

void sl_run_description_cleanup(sl_run_description_t *d)
{
    size_t i;

    for (i = 0; i < d->n_layers; i++) {
        free(d->layers[i]);
    }
    for (i = 0; i < d->n_settings; i++) {
        free((char *)(uintptr_t)d->settings[i].value);
    }
    free(d->layers);
    free(d->settings);
    free(d->tensors);
    memset(d, 0, sizeof(*d));
}
