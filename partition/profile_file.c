/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles in a file: written whole or not at all, read with suspicion. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/file.h"
#include "partition/partition_internal.h"

static const char format_name[] = "sluice-profile";
enum {
    FORMAT_VERSION = 1,
    KEY_TEXT_BYTES = 17
};
#define MAX_FILE_BYTES ((size_t)64 << 20)

static void format_key(uint64_t key, char text[KEY_TEXT_BYTES])
{
    (void)snprintf(text, KEY_TEXT_BYTES, "%016" PRIx64, key);
}

static int is_time(double us)
{
    return us >= 0.0 && us <= SL_PART_MAX_US;
}

/* ---- writing ---- */

static sl_status_t check_times(const char *path, const sl_part_costs_t *costs)
{
    sl_status_t status;
    int i;

    for (i = 0; i < costs->n_layers; i++) {
        if (!is_time(costs->layers[i].forward_us) ||
            !is_time(costs->layers[i].backward_us)) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "profile %s: layer %d takes %g + %g us, 0 to %g is "
                    "possible",
                    path, i, costs->layers[i].forward_us,
                    costs->layers[i].backward_us, SL_PART_MAX_US);
        }
    }
    return SL_OK;
out:
    return status;
}

static json_t *layers_to_json(const sl_model_t *model,
                              const sl_part_costs_t *costs)
{
    json_t *list = json_array();
    int i;

    for (i = 0; list != NULL && i < costs->n_layers; i++) {
        json_t *entry =
            json_pack("{s:s, s:s, s:f, s:f}", "name", model->layers[i]->name,
                      "type", model->layers[i]->ops->name, "forward_us",
                      costs->layers[i].forward_us, "backward_us",
                      costs->layers[i].backward_us);

        if (json_array_append_new(list, entry) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/** The file's text; owned (free); NULL without memory. */
static char *profile_to_text(uint64_t key, const sl_model_t *model,
                             const sl_part_costs_t *costs)
{
    char key_text[KEY_TEXT_BYTES];
    json_t *list = layers_to_json(model, costs);
    json_t *root;
    char *text;

    if (list == NULL) {
        return NULL;
    }
    format_key(key, key_text);
    root = json_pack("{s:s, s:i, s:s, s:s, s:o}", "format", format_name,
                     "version", FORMAT_VERSION, "key", key_text, "model",
                     model->name, "layers", list);
    if (root == NULL) {
        return NULL;
    }
    text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(root);
    return text;
}

static sl_status_t make_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    sl_status_t status;
    char *dir;

    if (slash == NULL || slash == path) {
        return SL_OK;
    }
    dir = calloc(1, (size_t)(slash - path) + 1);
    if (dir == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "profile %s: no memory", path);
    }
    memcpy(dir, path, (size_t)(slash - path));
    SL_TRY(status, sl_file_make_dirs(dir), out);
out:
    free(dir);
    return status;
}

sl_status_t sl_part_profile_save(const char *path, uint64_t key,
                                 const sl_model_t *model,
                                 const sl_part_costs_t *c)
{
    char *text = NULL;
    sl_status_t status;

    if (path == NULL || path[0] == '\0' || model == NULL || c == NULL ||
        c->n_layers != model->n_layers) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "profile: no path, or costs that are not the model's");
    }
    SL_TRY(status, check_times(path, c), out);
    text = profile_to_text(key, model, c);
    if (text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "profile %s: cannot be written as JSON: no memory, or a name "
                "that is not UTF-8",
                path);
    }
    SL_TRY(status, make_parent(path), out);
    SL_TRY(status, sl_file_write(path, text, strlen(text)), out);
out:
    free(text);
    return status;
}

/* ---- reading ---- */

/** Member of an object as text, or NULL. */
static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

static int is_json_time(const json_t *value)
{
    return json_is_number(value) && is_time(json_number_value(value));
}

static sl_status_t check_head(const char *path, const json_t *root)
{
    const json_t *version = json_object_get(root, "version");
    const char *format = text_of(root, "format");
    const char *key = text_of(root, "key");
    sl_status_t status;

    if (format == NULL || strcmp(format, format_name) != 0 ||
        !json_is_integer(version)) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "profile %s: not a %s file; delete it and profile again", path,
                format_name);
    }
    if (json_integer_value(version) != FORMAT_VERSION) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "profile %s: version %lld, this program reads %d", path,
                (long long)json_integer_value(version), FORMAT_VERSION);
    }
    if (key == NULL || strlen(key) != KEY_TEXT_BYTES - 1 ||
        strspn(key, "0123456789abcdef") != KEY_TEXT_BYTES - 1 ||
        text_of(root, "model") == NULL || json_object_size(root) != 5) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "profile %s: needs format, version, key (16 hex digits), "
                "model and layers, nothing else",
                path);
    }
    return SL_OK;
out:
    return status;
}

/** Times of the layers into `times`: forward and backward of each. */
static sl_status_t read_times(const char *path, const json_t *root,
                              int n_layers, double *times)
{
    const json_t *list = json_object_get(root, "layers");
    sl_status_t status;
    size_t i;

    if (!json_is_array(list) || json_array_size(list) != (size_t)n_layers) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "profile %s: a list of %zu layers, the model has %d", path,
                json_array_size(list), n_layers);
    }
    for (i = 0; i < (size_t)n_layers; i++) {
        const json_t *entry = json_array_get(list, i);
        const json_t *forward = json_object_get(entry, "forward_us");
        const json_t *backward = json_object_get(entry, "backward_us");

        if (json_object_size(entry) != 4 || text_of(entry, "name") == NULL ||
            text_of(entry, "type") == NULL || !is_json_time(forward) ||
            !is_json_time(backward)) {
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "profile %s: layer %zu needs name, type, forward_us and "
                    "backward_us, both times 0 to %g",
                    path, i, SL_PART_MAX_US);
        }
        times[2 * i] = json_number_value(forward);
        times[2 * i + 1] = json_number_value(backward);
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t parse(const char *path, json_t **root_p)
{
    char *data = NULL;
    size_t n_bytes = 0;
    struct stat info;
    json_error_t error;
    json_t *root;
    sl_status_t status;

    if (stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out, "profile %s: no such file",
                  path);
    }
    SL_TRY(status, sl_file_read(path, MAX_FILE_BYTES, &data, &n_bytes), out);
    root = json_loadb(data, n_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "profile %s: line %d, column %d: %s", path, error.line,
                error.column, error.text);
    }
    *root_p = root;
out:
    free(data);
    return status;
}

sl_status_t sl_part_profile_load(const char *path, uint64_t key,
                                 sl_part_costs_t *costs)
{
    char key_text[KEY_TEXT_BYTES];
    json_t *root = NULL;
    double *times = NULL;
    sl_status_t status;
    int i;

    if (path == NULL || costs == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "profile: no path or costs");
    }
    SL_TRY(status, parse(path, &root), out);
    SL_TRY(status, check_head(path, root), out);
    format_key(key, key_text);
    if (strcmp(text_of(root, "key"), key_text) != 0) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out,
                  "profile %s: of another model, size or machine: key %s, not "
                  "%s",
                  path, text_of(root, "key"), key_text);
    }
    times = calloc((size_t)costs->n_layers + 1, 2 * sizeof(*times));
    if (times == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "profile %s: no memory", path);
    }
    SL_TRY(status, read_times(path, root, costs->n_layers, times), out);
    for (i = 0; i < costs->n_layers; i++) {
        costs->layers[i].forward_us = times[2 * i];
        costs->layers[i].backward_us = times[2 * i + 1];
    }
    costs->is_measured = 1;
out:
    free(times);
    json_decref(root);
    return status;
}
