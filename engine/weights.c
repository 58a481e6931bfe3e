/* SPDX-License-Identifier: Apache-2.0 */
/* Weights as safetensors: one tensor a parameter or statistic, named
 * "<layer>.<param>"; a tied one is there once, under its owner's name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/parallel/together.h"
#include "engine/safetensors.h"

enum {
    NAME_BYTES = 256
};

/* One tensor of the file. */
typedef struct sl_weight {
    int layer, param;
    char name[NAME_BYTES];
} sl_weight_t;

/* All of the model's tensors, in model order; both lists are owned. */
static sl_status_t list_weights(const sl_model_t *model,
                                sl_weight_t **weights_p,
                                sl_safetensors_entry_t **entries_p, size_t *n_p)
{
    const size_t room = (size_t)model->n_layers * SL_LAYER_MAX_PARAMS + 1;
    sl_weight_t *weights = calloc(room, sizeof(*weights));
    sl_safetensors_entry_t *entries = calloc(room, sizeof(*entries));
    sl_status_t status;
    size_t n = 0;
    int l, p;

    if (weights == NULL || entries == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "model %s: no host memory for a list of its weights",
                model->name);
    }
    for (l = 0; l < model->n_layers; l++) {
        const sl_layer_t *layer = model->layers[l];

        for (p = 0; p < layer->n_params; p++) {
            const sl_param_t *param = &layer->params[p];

            if (!sl_param_is_state(param)) {
                continue;
            }
            weights[n].layer = l;
            weights[n].param = p;
            (void)snprintf(weights[n].name, NAME_BYTES, "%s.%s", layer->name,
                           param->name);
            entries[n].name = weights[n].name;
            entries[n].n_dims = param->desc.n_dims;
            memcpy(entries[n].dims, param->desc.dims, sizeof(param->desc.dims));
            n++;
        }
    }
    *weights_p = weights;
    *entries_p = entries;
    *n_p = n;
    return SL_OK;

err_free:
    free(weights);
    free(entries);
    return status;
}

static sl_status_t values_alloc(const sl_safetensors_entry_t *entry,
                                float **values_p)
{
    const size_t n = (size_t)sl_safetensors_elements(entry);
    sl_status_t status;

    *values_p = malloc(n * sizeof(float) + 1);
    if (*values_p == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for %zu values", entry->name, n);
    }
    return SL_OK;
out:
    return status;
}

/* Only rank 0 has a writer. */
static sl_status_t append(sl_engine_t *engine, const sl_weight_t *weight,
                          const sl_safetensors_entry_t *entry,
                          sl_safetensors_writer_t *writer)
{
    float *values = NULL;
    sl_status_t status;

    SL_TRY(status, values_alloc(entry, &values), out);
    SL_TRY(status, sl_state_get(engine, weight->layer, weight->param, values),
           out);
    if (writer != NULL) {
        status = sl_safetensors_append(writer, values);
    }
out:
    free(values);
    return status;
}

sl_status_t sl_engine_weights_save(sl_engine_t *engine, const char *path)
{
    sl_safetensors_writer_t *writer = NULL;
    sl_safetensors_entry_t *entries = NULL;
    sl_weight_t *weights = NULL;
    sl_status_t status;
    size_t n, i;

    SL_TRY(status, list_weights(engine->params.model, &weights, &entries, &n),
           out);
    if (engine->grid->rank == 0) {
        SL_TRY(status, sl_safetensors_begin(path, entries, n, &writer), out);
    }
    for (i = 0; i < n; i++) {
        SL_TRY(status, append(engine, &weights[i], &entries[i], writer),
               err_abort);
    }
    if (writer != NULL) {
        status = sl_safetensors_end(writer);
        writer = NULL;
    }
err_abort:
    sl_safetensors_abort(writer);
out:
    free(weights);
    free(entries);
    return sl_engine_together(engine, status);
}

static sl_status_t check_entry(const char *path, const char *model,
                               const sl_safetensors_entry_t *want,
                               const sl_safetensors_entry_t *have)
{
    char shape[2][128];
    const sl_safetensors_entry_t *entries[2] = {want, have};
    sl_status_t status;
    int i, d;

    if (have == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s has no tensor %s of model %s",
                path, want->name, model);
    }
    if (have->n_dims == want->n_dims &&
        memcmp(have->dims, want->dims,
               (size_t)want->n_dims * sizeof(*want->dims)) == 0) {
        return SL_OK;
    }
    for (i = 0; i < 2; i++) {
        size_t used = 0;

        shape[i][0] = '\0';
        for (d = 0; d < entries[i]->n_dims && used < sizeof(shape[i]); d++) {
            used += (size_t)snprintf(shape[i] + used, sizeof(shape[i]) - used,
                                     "%s%lld", d == 0 ? "" : ", ",
                                     (long long)entries[i]->dims[d]);
        }
    }
    SL_FAIL(status, SL_ERR_CONFIG, out,
            "%s: tensor %s is [%s], model %s wants [%s]", path, want->name,
            shape[1], model, shape[0]);
out:
    return status;
}

static sl_status_t load_one(sl_engine_t *engine, sl_safetensors_t *file,
                            const sl_weight_t *weight)
{
    const sl_safetensors_entry_t *entry =
        sl_safetensors_find(file, weight->name);
    float *values = NULL;
    sl_status_t status;

    SL_TRY(status, values_alloc(entry, &values), out);
    SL_TRY(status, sl_safetensors_read(file, entry, values), out);
    status = sl_state_set(engine, weight->layer, weight->param, values);
out:
    free(values);
    return status;
}

sl_status_t sl_engine_weights_load(sl_engine_t *engine, const char *path)
{
    sl_safetensors_t *file = NULL;
    sl_safetensors_entry_t *entries = NULL;
    sl_weight_t *weights = NULL;
    sl_status_t status;
    size_t n, i;

    SL_TRY(status, list_weights(engine->params.model, &weights, &entries, &n),
           out);
    SL_TRY(status, sl_safetensors_open(path, &file), out);
    /* all are checked before the first is changed */
    for (i = 0; i < n; i++) {
        SL_TRY(status,
               check_entry(path, engine->params.model->name, &entries[i],
                           sl_safetensors_find(file, entries[i].name)),
               out);
    }
    for (i = 0; i < n; i++) {
        SL_TRY(status, load_one(engine, file, &weights[i]), out);
    }
out:
    sl_safetensors_close(file);
    free(weights);
    free(entries);
    return sl_engine_together(engine, status);
}
