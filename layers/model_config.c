/* SPDX-License-Identifier: Apache-2.0 */
/* Models from a config: built-in ones, and lists of layers. */
#include "layers/model_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/names_internal.h"

enum {
    NAME_BYTES = 256,
    SUFFIX_BYTES = 64,
    NOT_THERE = -100
};

/* A list of layers being read. */
typedef struct reader {
    sl_model_t *model;
    sl_names_t written;        /* names as written to the latest layer */
    char suffix[SUFFIX_BYTES]; /* ".2.0" within repeats */
} reader_t;

static sl_status_t read_list(reader_t *reader, const sl_yaml_node_t *list,
                             int *last_p);

/* ---- attributes ---- */

static int is_null(const char *text, int is_quoted)
{
    return !is_quoted && (text[0] == '\0' || strcmp(text, "~") == 0 ||
                          strcmp(text, "null") == 0);
}

static int is_listed(const char *key, const char *const *keys)
{
    for (; *keys != NULL; keys++) {
        if (strcmp(*keys, key) == 0) {
            return 1;
        }
    }
    return 0;
}

/* All entries of a mapping but `skipped` as attributes; owned by the caller. */
static sl_status_t read_attrs(const sl_yaml_node_t *node,
                              const char *const *skipped, sl_attr_t **attrs_p,
                              size_t *n_attrs_p)
{
    const size_t n = sl_yaml_count(node);
    sl_attr_t *attrs = calloc(n + 1, sizeof(*attrs));
    sl_status_t status;
    size_t i, n_attrs = 0;

    if (attrs == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "%s: no host memory for %zu attributes", sl_yaml_place(node),
                n);
    }
    for (i = 0; i < n; i++) {
        const char *key = NULL;
        const sl_yaml_node_t *value = sl_yaml_entry(node, i, &key);
        int is_quoted = 0;
        const char *text;

        if (is_listed(key, skipped)) {
            continue;
        }
        text = sl_yaml_text(value, &is_quoted);
        if (text == NULL) {
            SL_FAIL(status, SL_ERR_CONFIG, err_free,
                    "%s: attribute %s must be a single value",
                    sl_yaml_place(value), key);
        }
        if (!is_null(text, is_quoted)) {
            attrs[n_attrs++] = (sl_attr_t){
                .name = key, .text = text, .place = sl_yaml_place(value)};
        }
    }
    *attrs_p = attrs;
    *n_attrs_p = n_attrs;
    return SL_OK;

err_free:
    free(attrs);
out:
    return status;
}

/* ---- one layer ---- */

static sl_status_t find_input(const reader_t *reader,
                              const sl_yaml_node_t *node, int *index_p)
{
    const char *name = sl_yaml_text(node, NULL);
    sl_status_t status = SL_OK;
    int index;

    if (name == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: 'from' must be a layer's name or a list of names",
                sl_yaml_place(node));
    }
    if (strcmp(name, "data") == 0 || strcmp(name, "target") == 0) {
        *index_p = name[0] == 'd' ? SL_INPUT_DATA : SL_INPUT_TARGET;
        return SL_OK;
    }
    /* as written, or whole: "conv.0.1", or a default such as "relu_1" */
    index = sl_names_get(&reader->written, name, -1);
    if (index < 0) {
        index = sl_model_find(reader->model, name);
    }
    if (index < 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: there is no earlier layer '%s'", sl_yaml_place(node),
                name);
    }
    *index_p = index;
out:
    return status;
}

static sl_status_t read_inputs(const reader_t *reader,
                               const sl_yaml_node_t *node, int last,
                               sl_layer_spec_t *spec)
{
    const sl_yaml_node_t *from = sl_yaml_get(node, "from");
    sl_status_t status = SL_OK;
    size_t i;

    if (from == NULL) {
        spec->n_inputs = 1;
        spec->inputs[0] = last;
        return SL_OK;
    }
    if (sl_yaml_kind(from) != SL_YAML_SEQUENCE) {
        spec->n_inputs = 1;
        return find_input(reader, from, &spec->inputs[0]);
    }
    if (sl_yaml_count(from) < 1 || sl_yaml_count(from) > SL_LAYER_MAX_INPUTS) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: 'from' lists 1 to %d names",
                sl_yaml_place(from), SL_LAYER_MAX_INPUTS);
    }
    spec->n_inputs = (int)sl_yaml_count(from);
    for (i = 0; i < sl_yaml_count(from); i++) {
        SL_TRY(
            status,
            find_input(reader, sl_yaml_entry(from, i, NULL), &spec->inputs[i]),
            out);
    }
out:
    return status;
}

/* The name of an entry with the suffix of its repeats; spec->name stays NULL
 * when it has none. */
static sl_status_t read_name(const reader_t *reader, const sl_yaml_node_t *node,
                             const char **written_p, char full[NAME_BYTES],
                             sl_layer_spec_t *spec)
{
    const char *name = NULL;
    sl_status_t status;

    SL_TRY(status, sl_yaml_string(node, "name", &name), out);
    if (name != NULL &&
        (strcmp(name, "data") == 0 || strcmp(name, "target") == 0)) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: '%s' is the batch's; choose another name",
                sl_yaml_place(sl_yaml_get(node, "name")), name);
    }
    if (name != NULL) {
        const int n = snprintf(full, NAME_BYTES, "%s%s", name, reader->suffix);

        if (n < 0 || n >= NAME_BYTES) {
            SL_FAIL(status, SL_ERR_CONFIG, out, "%s: the name is too long",
                    sl_yaml_place(sl_yaml_get(node, "name")));
        }
        spec->name = full;
    }
    *written_p = name;
out:
    return status;
}

static sl_status_t add_layer(reader_t *reader, const sl_yaml_node_t *node,
                             const char *written, const sl_layer_spec_t *spec,
                             int *last_p)
{
    sl_status_t status;

    if (reader->model->n_layers >= SL_MODEL_MAX_LAYERS) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: more than %d layers",
                sl_yaml_place(node), SL_MODEL_MAX_LAYERS);
    }
    SL_TRY(status, sl_model_add(reader->model, spec, last_p), out);
    if (written != NULL) {
        SL_TRY(status, sl_names_set(&reader->written, written, *last_p), out);
    }
out:
    return status;
}

static sl_status_t read_layer(reader_t *reader, const sl_yaml_node_t *node,
                              int *last_p)
{
    static const char *const own[] = {"type", "name", "from", NULL};
    sl_layer_spec_t spec = {.line = sl_yaml_line(node)};
    char full[NAME_BYTES];
    const char *written = NULL;
    sl_attr_t *attrs = NULL;
    sl_status_t status;

    SL_TRY(status, sl_yaml_string(node, "type", &spec.type), out);
    if (spec.type == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: a layer needs a 'type', or 'repeat' or 'residual'",
                sl_yaml_place(node));
    }
    SL_TRY(status, read_name(reader, node, &written, full, &spec), out);
    SL_TRY(status, read_inputs(reader, node, *last_p, &spec), out);
    SL_TRY(status, read_attrs(node, own, &attrs, &spec.n_attrs), out);
    spec.attrs = attrs;
    status = add_layer(reader, node, written, &spec, last_p);
    free(attrs);
out:
    return status;
}

/* ---- groups ---- */

static sl_status_t check_keys(const sl_yaml_node_t *node, const char *what,
                              const char *const *allowed)
{
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; i < sl_yaml_count(node); i++) {
        const char *key = NULL;
        const sl_yaml_node_t *value = sl_yaml_entry(node, i, &key);

        if (!is_listed(key, allowed)) {
            SL_FAIL(status, SL_ERR_CONFIG, out, "%s: %s has no key '%s'",
                    sl_yaml_place(value), what, key);
        }
    }
out:
    return status;
}

static sl_status_t read_repeat(reader_t *reader, const sl_yaml_node_t *node,
                               int *last_p)
{
    static const char *const allowed[] = {"repeat", "layers", NULL};
    const size_t suffix_bytes = strlen(reader->suffix);
    int64_t count = 0, i;
    sl_status_t status;

    SL_TRY(status, check_keys(node, "a repeat", allowed), out);
    SL_TRY(status, sl_yaml_int(node, "repeat", 1, SL_MODEL_MAX_LAYERS, &count),
           out);
    if (sl_yaml_get(node, "layers") == NULL || count == 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: a repeat needs a number and 'layers'",
                sl_yaml_place(node));
    }
    if (suffix_bytes + 8 > SUFFIX_BYTES) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: repeats are nested too deep",
                sl_yaml_place(node));
    }
    for (i = 0; i < count; i++) {
        (void)snprintf(reader->suffix + suffix_bytes,
                       SUFFIX_BYTES - suffix_bytes, ".%d", (int)i);
        SL_TRY(status, read_list(reader, sl_yaml_get(node, "layers"), last_p),
               out);
    }
out:
    reader->suffix[suffix_bytes] = '\0';
    return status;
}

static sl_status_t read_residual(reader_t *reader, const sl_yaml_node_t *node,
                                 int *last_p)
{
    static const char *const allowed[] = {"residual", "shortcut", "relu",
                                          "dropout",  "name",     NULL};
    static const char *const own[] = {"residual", "shortcut", "name", NULL};
    sl_layer_spec_t spec = {
        .type = "add", .n_inputs = 2, .line = sl_yaml_line(node)};
    const sl_yaml_node_t *shortcut = sl_yaml_get(node, "shortcut");
    char full[NAME_BYTES];
    const char *written = NULL;
    sl_attr_t *attrs = NULL;
    sl_status_t status;

    spec.inputs[0] = *last_p;
    spec.inputs[1] = *last_p;
    SL_TRY(status, check_keys(node, "a residual", allowed), out);
    SL_TRY(status, read_name(reader, node, &written, full, &spec), out);
    SL_TRY(status,
           read_list(reader, sl_yaml_get(node, "residual"), &spec.inputs[1]),
           out);
    if (shortcut != NULL) {
        SL_TRY(status, read_list(reader, shortcut, &spec.inputs[0]), out);
    }
    SL_TRY(status, read_attrs(node, own, &attrs, &spec.n_attrs), out);
    spec.attrs = attrs;
    status = add_layer(reader, node, written, &spec, last_p);
    free(attrs);
out:
    return status;
}

static sl_status_t read_list(reader_t *reader, const sl_yaml_node_t *list,
                             int *last_p)
{
    sl_status_t status = SL_OK;
    size_t i;

    if (sl_yaml_kind(list) != SL_YAML_SEQUENCE || sl_yaml_count(list) == 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: layers must be a list with at least one entry",
                sl_yaml_place(list));
    }
    for (i = 0; i < sl_yaml_count(list); i++) {
        const sl_yaml_node_t *entry = sl_yaml_entry(list, i, NULL);

        if (sl_yaml_kind(entry) != SL_YAML_MAPPING) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: a layer must be a mapping such as {type: relu}",
                    sl_yaml_place(entry));
        }
        if (sl_yaml_get(entry, "repeat") != NULL) {
            SL_TRY(status, read_repeat(reader, entry, last_p), out);
        } else if (sl_yaml_get(entry, "residual") != NULL) {
            SL_TRY(status, read_residual(reader, entry, last_p), out);
        } else {
            SL_TRY(status, read_layer(reader, entry, last_p), out);
        }
    }
out:
    return status;
}

/* ---- the model ---- */

static sl_status_t build_listed(const sl_yaml_node_t *node,
                                const sl_tensor_desc_t *data,
                                const sl_tensor_desc_t *target,
                                sl_model_t **model_p)
{
    static const char *const allowed[] = {"name", "layers", NULL};
    const char *name = "custom";
    reader_t reader = {0};
    int last = SL_INPUT_DATA;
    sl_status_t status;

    SL_TRY(status, check_keys(node, "a model with layers", allowed), out);
    SL_TRY(status, sl_yaml_string(node, "name", &name), out);
    SL_TRY(status, sl_model_create(name, data, target, &reader.model), out);
    SL_TRY(status, read_list(&reader, sl_yaml_get(node, "layers"), &last),
           err_destroy);
    SL_TRY(status, sl_model_check(reader.model), err_destroy);
    sl_names_cleanup(&reader.written);
    *model_p = reader.model;
    return SL_OK;

err_destroy:
    sl_names_cleanup(&reader.written);
    sl_model_destroy(reader.model);
out:
    return status;
}

static sl_status_t build_typed(const sl_yaml_node_t *node,
                               const sl_tensor_desc_t *data,
                               const sl_tensor_desc_t *target,
                               sl_model_t **model_p)
{
    static const char *const own[] = {"type", NULL};
    const char *type = NULL;
    sl_attr_t *attrs = NULL;
    size_t n_attrs = 0;
    sl_status_t status;

    SL_TRY(status, sl_yaml_string(node, "type", &type), out);
    if (type == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: a model needs a 'type' or 'layers'", sl_yaml_place(node));
    }
    SL_TRY(status, read_attrs(node, own, &attrs, &n_attrs), out);
    status = sl_model_build(type, attrs, n_attrs, data, target, model_p);
    free(attrs);
out:
    return status;
}

sl_status_t sl_model_from_yaml(const sl_yaml_node_t *node,
                               const sl_tensor_desc_t *data,
                               const sl_tensor_desc_t *target,
                               sl_model_t **model_p)
{
    sl_status_t status = SL_OK;

    if (sl_yaml_kind(node) != SL_YAML_MAPPING) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: a model must be a mapping",
                sl_yaml_place(node));
    }
    if (sl_yaml_get(node, "type") != NULL ||
        sl_yaml_get(node, "layers") == NULL) {
        return build_typed(node, data, target, model_p);
    }
    return build_listed(node, data, target, model_p);
out:
    return status;
}
