/* SPDX-License-Identifier: Apache-2.0 */
/* Models: layers added one by one, checked as they come. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/layers.h"
#include "layers/layers_internal.h"
#include "layers/names_internal.h"

enum {
    MAX_NAME_BYTES = 200
};

/* A model with what adding to it needs. */
typedef struct building {
    sl_model_t model;       /* first: the public part */
    sl_tensor_desc_t *outs; /* of one sample */
    int capacity;           /* of outs and model.layers */
    sl_names_t names;
} building_t;

static building_t *building_of(sl_model_t *model)
{
    return (building_t *)(void *)model;
}

sl_status_t sl_model_create(const char *name, const sl_tensor_desc_t *data,
                            const sl_tensor_desc_t *target,
                            sl_model_t **model_p)
{
    const size_t name_bytes = strlen(name) + 1;
    building_t *made = calloc(1, sizeof(*made));
    sl_status_t status;

    if (made != NULL) {
        made->model.name = malloc(name_bytes);
    }
    if (made == NULL || made->model.name == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free, "model %s: no host memory",
                name);
    }
    if (data->dims[0] != 1 || target->dims[0] != 1) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, err_free,
                "model %s: data and target must be those of one sample, not "
                "of %" PRId64 " and %" PRId64,
                name, data->dims[0], target->dims[0]);
    }
    memcpy(made->model.name, name, name_bytes);
    made->model.data = *data;
    made->model.target = *target;
    made->model.kind = SL_DEVICE_KIND_CPU;
    made->model.dtype = SL_DTYPE_F32;
    *model_p = &made->model;
    return SL_OK;

err_free:
    if (made != NULL) {
        free(made->model.name);
    }
    free(made);
    return status;
}

void sl_model_destroy(sl_model_t *model)
{
    int i;

    if (model == NULL) {
        return;
    }
    for (i = 0; i < model->n_layers; i++) {
        sl_layer_destroy(model->layers[i]);
    }
    free(model->layers);
    free(building_of(model)->outs);
    sl_names_cleanup(&building_of(model)->names);
    free(model->name);
    free(building_of(model));
}

/* ---- adding ---- */

static sl_status_t reserve(building_t *b)
{
    const int capacity = b->capacity == 0 ? 64 : b->capacity * 2;
    sl_status_t status = SL_OK;
    sl_layer_t **layers;
    sl_tensor_desc_t *outs;

    if (b->model.n_layers < b->capacity) {
        return SL_OK;
    }
    layers = realloc(b->model.layers, (size_t)capacity * sizeof(sl_layer_t *));
    if (layers != NULL) {
        b->model.layers = layers;
    }
    outs = realloc(b->outs, (size_t)capacity * sizeof(*outs));
    if (outs != NULL) {
        b->outs = outs;
    }
    if (layers == NULL || outs == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "model %s: no host memory for %d layers", b->model.name,
                capacity);
    }
    b->capacity = capacity;
out:
    return status;
}

/* The inputs that a spec leaves out: the layer before, the target. */
static void complete_inputs(const sl_model_t *model, sl_layer_spec_t *spec)
{
    const sl_layer_ops_t *ops = sl_layer_find(spec->type);

    if (spec->n_inputs == 0) {
        spec->n_inputs = 1;
        spec->inputs[0] =
            model->n_layers == 0 ? SL_INPUT_DATA : model->n_layers - 1;
    }
    if (spec->n_inputs == 1 && ops != NULL && ops->is_loss) {
        spec->n_inputs = 2;
        spec->inputs[1] = SL_INPUT_TARGET;
    }
}

/* "layer fc, line 3" before the layer exists. */
static const char *spec_label(const sl_layer_spec_t *spec,
                              char text[SL_LAYER_LABEL_BYTES])
{
    char line[32] = "";

    if (spec->line > 0) {
        (void)snprintf(line, sizeof(line), ", line %d", spec->line);
    }
    (void)snprintf(text, SL_LAYER_LABEL_BYTES, "layer %.100s (%.32s%s)",
                   spec->name == NULL ? "without a name" : spec->name,
                   spec->type, line);
    return text;
}

static sl_status_t check_spec(sl_model_t *model, const sl_layer_spec_t *spec)
{
    const sl_layer_ops_t *ops = sl_layer_find(spec->type);
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status = SL_OK;
    int i;

    (void)spec_label(spec, label);
    if (spec->name != NULL &&
        (spec->name[0] == '\0' || strlen(spec->name) > MAX_NAME_BYTES)) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: a name has 1 to %d bytes",
                label, MAX_NAME_BYTES);
    }
    if (spec->n_inputs < 1 || spec->n_inputs > SL_LAYER_MAX_INPUTS) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: %d inputs, at most %d", label,
                spec->n_inputs, SL_LAYER_MAX_INPUTS);
    }
    for (i = 0; i < spec->n_inputs; i++) {
        const int input = spec->inputs[i];

        if (input < SL_INPUT_TARGET || input >= model->n_layers) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: input %d is layer %d, which is not one of the %d "
                    "earlier layers",
                    label, i, input, model->n_layers);
        }
        if (input == SL_INPUT_TARGET && (ops == NULL || !ops->is_loss)) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: only a loss may read the target", label);
        }
    }
out:
    return status;
}

/* The value of a text attribute named "tie", or NULL. */
static const char *tie_of(const sl_layer_t *layer)
{
    const sl_attr_def_t *def;

    for (def = layer->ops->attr_defs; def->name != NULL; def++) {
        if (def->kind == SL_ATTR_TEXT && strcmp(def->name, "tie") == 0) {
            const char *text = (const char *)layer->attrs + def->offset;

            return text[0] == '\0' ? NULL : text;
        }
    }
    return NULL;
}

/* Make parameter 0 share the values of another layer's parameter 0. */
static sl_status_t resolve_tie(sl_model_t *model, sl_layer_t *layer)
{
    const char *name = tie_of(layer);
    const sl_layer_t *owner;
    char label[SL_LAYER_LABEL_BYTES];
    char want[SL_TENSOR_TEXT_BYTES], have[SL_TENSOR_TEXT_BYTES];
    sl_status_t status = SL_OK;
    int index, param = 0;

    if (name == NULL) {
        return SL_OK;
    }
    (void)sl_layer_label(layer, label);
    index = sl_model_find(model, name);
    if (index < 0 || model->layers[index]->n_params == 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: tied to '%s', which is not an earlier layer with "
                "parameters",
                label, name);
    }
    if (model->layers[index]->params[0].tied_layer >= 0) {
        param = model->layers[index]->params[0].tied_param;
        index = model->layers[index]->params[0].tied_layer;
    }
    owner = model->layers[index];
    if (!sl_tensor_desc_is_equal(&owner->params[param].desc,
                                 &layer->params[0].desc) ||
        owner->params[param].storage_bytes != layer->params[0].storage_bytes) {
        sl_tensor_desc_format(&layer->params[0].desc, want, sizeof(want));
        sl_tensor_desc_format(&owner->params[param].desc, have, sizeof(have));
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: its %s is %s, that of layer %s is %s", label,
                layer->params[0].name, want, owner->name, have);
    }
    layer->params[0].tied_layer = index;
    layer->params[0].tied_param = param;
out:
    return status;
}

/* Of one sample. */
static sl_tensor_desc_t input_of(sl_model_t *model, int input)
{
    return input == SL_INPUT_DATA     ? model->data
           : input == SL_INPUT_TARGET ? model->target
                                      : building_of(model)->outs[input];
}

sl_status_t sl_model_add(sl_model_t *model, const sl_layer_spec_t *given,
                         int *index_p)
{
    building_t *b = building_of(model);
    sl_layer_spec_t spec = *given;
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS] = {{0}};
    char label[SL_LAYER_LABEL_BYTES];
    sl_layer_t *layer = NULL;
    sl_tensor_desc_t out_desc;
    sl_status_t status;
    int i;

    complete_inputs(model, &spec);
    SL_TRY(status, check_spec(model, &spec), out);
    SL_TRY(status, reserve(b), out);
    for (i = 0; i < spec.n_inputs; i++) {
        in[i] = input_of(model, spec.inputs[i]);
    }
    SL_TRY(status,
           sl_layer_create(&spec, model->n_layers, in, &layer, &out_desc), out);
    if (sl_model_find(model, layer->name) >= 0) {
        SL_FAIL(status, SL_ERR_CONFIG, err_destroy,
                "%s: there is already a layer %s", sl_layer_label(layer, label),
                layer->name);
    }
    SL_TRY(status, resolve_tie(model, layer), err_destroy);
    SL_TRY(status, sl_names_set(&b->names, layer->name, model->n_layers),
           err_destroy);
    b->outs[model->n_layers] = out_desc;
    model->layers[model->n_layers++] = layer;
    if (index_p != NULL) {
        *index_p = model->n_layers - 1;
    }
    return SL_OK;

err_destroy:
    sl_layer_destroy(layer);
out:
    return status;
}

/* ---- another kind of device ---- */

static sl_status_t check_target(const sl_model_t *model, sl_device_kind_t kind,
                                sl_dtype_t dtype)
{
    const int is_16_bit = dtype == SL_DTYPE_BF16 || dtype == SL_DTYPE_F16;
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status = SL_OK;
    int i;

    if (dtype != SL_DTYPE_F32 && !is_16_bit) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "model %s: activations may be f32, bf16 or f16", model->name);
    }
    if (is_16_bit && kind == SL_DEVICE_KIND_CPU) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "model %s: activations of 16 bits need CUDA devices; on CPU "
                "devices they are f32",
                model->name);
    }
    for (i = 0; i < model->n_layers; i++) {
        const sl_layer_kernels_t *kernels =
            model->layers[i]->ops->kernels[kind];

        if (kernels == NULL) {
            SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                    "%s: no kernels for this kind of device",
                    sl_layer_label(model->layers[i], label));
        }
    }
out:
    return status;
}

static sl_status_t retarget(sl_model_t *model, int i)
{
    building_t *b = building_of(model);
    sl_layer_t *layer = model->layers[i];
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS] = {{0}};
    sl_status_t status;
    int k;

    for (k = 0; k < layer->n_inputs; k++) {
        in[k] = input_of(model, layer->inputs[k]);
    }
    layer->is_tf32 = 0;
    SL_TRY(status,
           sl_layer_target(layer, model->kind, model->dtype, in, &b->outs[i]),
           out);
    if (layer->ops->declare_params != NULL) {
        status = resolve_tie(model, layer);
    }
out:
    return status;
}

sl_status_t sl_model_target(sl_model_t *model, sl_device_kind_t kind,
                            sl_dtype_t dtype)
{
    sl_status_t status;
    int i;

    SL_TRY(status, check_target(model, kind, dtype), out);
    model->kind = kind;
    model->dtype = dtype;
    model->is_tf32 = 0;
    for (i = 0; i < model->n_layers; i++) {
        SL_TRY(status, retarget(model, i), out);
    }
out:
    return status;
}

sl_status_t sl_model_allow_tf32(sl_model_t *model, int is_allowed)
{
    sl_status_t status = SL_OK;
    int i;

    if (is_allowed &&
        (model->kind != SL_DEVICE_KIND_CUDA || model->dtype != SL_DTYPE_F32)) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "model %s: TF32 is a way to multiply f32 values on CUDA "
                "devices; this model is not one of f32 for them",
                model->name);
    }
    model->is_tf32 = is_allowed;
    for (i = 0; i < model->n_layers; i++) {
        model->layers[i]->is_tf32 = is_allowed;
    }
out:
    return status;
}

void sl_model_use_dnn(sl_model_t *model, const sl_dnn_use_t *use)
{
    int i;

    model->dnn = *use;
    for (i = 0; i < model->n_layers; i++) {
        model->layers[i]->dnn = *use;
    }
}

int sl_model_find(const sl_model_t *model, const char *name)
{
    const building_t *b = (const building_t *)(const void *)model;

    return sl_names_get(&b->names, name, -1);
}

/* ---- the whole ---- */

/* Fail for the first layer whose output nobody reads; the last is exempt. */
static sl_status_t check_used(const sl_model_t *model, char *is_used)
{
    char label[SL_LAYER_LABEL_BYTES];
    sl_status_t status = SL_OK;
    int i, k;

    for (i = 0; i < model->n_layers; i++) {
        for (k = 0; k < model->layers[i]->n_inputs; k++) {
            if (model->layers[i]->inputs[k] >= 0) {
                is_used[model->layers[i]->inputs[k]] = 1;
            }
        }
    }
    for (i = 0; i + 1 < model->n_layers; i++) {
        if (!is_used[i]) {
            SL_FAIL(status, SL_ERR_CONFIG, out, "%s: no layer reads its output",
                    sl_layer_label(model->layers[i], label));
        }
    }
out:
    return status;
}

sl_status_t sl_model_check(const sl_model_t *model)
{
    char label[SL_LAYER_LABEL_BYTES];
    char *is_used = NULL;
    sl_status_t status;
    int i;

    if (model->n_layers == 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "model %s has no layers",
                model->name);
    }
    for (i = 0; i < model->n_layers; i++) {
        const int is_last = i + 1 == model->n_layers;

        if (model->layers[i]->ops->is_loss != is_last) {
            SL_FAIL(status, SL_ERR_CONFIG, out, "%s: %s",
                    sl_layer_label(model->layers[i], label),
                    is_last ? "the last layer must be a loss"
                            : "a loss must be the last layer");
        }
    }
    is_used = calloc((size_t)model->n_layers, 1);
    if (is_used == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "model %s: no host memory",
                model->name);
    }
    status = check_used(model, is_used);
    free(is_used);
out:
    return status;
}

void sl_model_layer_inputs(const sl_model_t *model, int64_t rows,
                           const sl_tensor_desc_t *out, int layer,
                           sl_tensor_desc_t *in)
{
    const sl_layer_t *l = model->layers[layer];
    int i;

    for (i = 0; i < l->n_inputs; i++) {
        if (l->inputs[i] >= 0) {
            in[i] = out[l->inputs[i]];
        } else {
            in[i] = l->inputs[i] == SL_INPUT_DATA ? model->data : model->target;
            in[i].dims[0] = rows;
        }
    }
}

sl_status_t sl_model_infer(const sl_model_t *model, int64_t rows,
                           sl_tensor_desc_t *out)
{
    sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];
    sl_status_t status = SL_OK;
    int i;

    if (rows < 1) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "model %s: a batch has at least 1 row, not %" PRId64,
                model->name, rows);
    }
    for (i = 0; i < model->n_layers; i++) {
        sl_model_layer_inputs(model, rows, out, i, in);
        SL_TRY(status, sl_layer_infer(model->layers[i], in, &out[i]), out);
    }
out:
    return status;
}

int64_t sl_model_n_params(const sl_model_t *model)
{
    int64_t n = 0;
    int i, p;

    for (i = 0; i < model->n_layers; i++) {
        for (p = 0; p < model->layers[i]->n_params; p++) {
            const sl_param_t *param = &model->layers[i]->params[p];

            if (param->kind == SL_PARAM_TRAINED && param->tied_layer < 0) {
                n += sl_tensor_elements(&param->desc);
            }
        }
    }
    return n;
}

/* ---- built-in models ---- */

static const sl_model_ops_t *const builtin[] = {
#define X(id) &sl_model_##id,
    SL_MODEL_BUILTIN_MAP(X)
#undef X
};

const sl_model_ops_t *sl_model_ops_builtin(size_t i)
{
    return i < sizeof(builtin) / sizeof(builtin[0]) ? builtin[i] : NULL;
}

const sl_model_ops_t *sl_model_ops_find(const char *type)
{
    size_t i;

    for (i = 0; i < sizeof(builtin) / sizeof(builtin[0]); i++) {
        if (strcmp(builtin[i]->name, type) == 0) {
            return builtin[i];
        }
    }
    return NULL;
}

sl_status_t sl_model_build(const char *type, const sl_attr_t *attrs,
                           size_t n_attrs, const sl_tensor_desc_t *data,
                           const sl_tensor_desc_t *target, sl_model_t **model_p)
{
    const sl_model_ops_t *ops = sl_model_ops_find(type);
    char owner[64];
    void *filled = NULL;
    sl_status_t status;

    if (ops == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "there is no model type '%s'; there are: resnet, gpt, mlp",
                type);
    }
    filled = calloc(1, ops->attrs_bytes + 1);
    if (filled == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "model %s: no host memory",
                type);
    }
    (void)snprintf(owner, sizeof(owner), "model %s", type);
    SL_TRY(status, sl_attr_fill(ops->attr_defs, owner, attrs, n_attrs, filled),
           err_free);
    status = ops->build(filled, data, target, model_p);
err_free:
    free(filled);
out:
    return status;
}
