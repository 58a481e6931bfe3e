/* SPDX-License-Identifier: Apache-2.0 */
/* The "data" section of a config. */
#include "engine/data/data_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "engine/data/data_internal.h"

/* by place in SL_DATA_FORMAT_CHOICES */
static const char *const format_names[] = {
    "idx",    "cifar10",          "cifar100",        "text",
    "tokens", "synthetic_images", "synthetic_tokens"};

enum {
    IDX = 1 << 0,
    CIFAR = 1 << 1 | 1 << 2,
    TEXT = 1 << 3,
    TOKENS = 1 << 4,
    SYNTHETIC_IMAGES = 1 << 5,
    SYNTHETIC_TOKENS = 1 << 6,
    IMAGES = IDX | CIFAR | SYNTHETIC_IMAGES,
    SYNTHETIC = SYNTHETIC_IMAGES | SYNTHETIC_TOKENS,
    FILES = IDX | CIFAR | TEXT | TOKENS
};

/** Which formats a key has a meaning for; those not listed: all. */
static const struct {
    const char *key;
    int formats;
} key_formats[] = {
    {"path", FILES},
    {"labels", IDX},
    {"valid_path", FILES},
    {"valid_labels", IDX},
    {"n_valid", IMAGES | SYNTHETIC},
    {"valid_fraction", TEXT | TOKENS},
    {"context", TEXT | TOKENS | SYNTHETIC_TOKENS},
    {"image", IMAGES},
    {"mean", IMAGES},
    {"deviation", IMAGES},
    {"flip", IMAGES},
    {"crop_pad", IMAGES},
    {"n_samples", SYNTHETIC},
    {"seed", SYNTHETIC},
};

void sl_data_strings_cleanup(sl_data_strings_t *strings)
{
    int i;

    for (i = 0; i < SL_DATA_N_PATHS; i++) {
        free(strings->paths[i]);
        strings->paths[i] = NULL;
    }
}

static sl_status_t format_read(const sl_yaml_node_t *data, int *format_p)
{
    int format = -1;
    sl_status_t status = SL_OK;

    if (data == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "config: there is no 'data' section; it says what to train "
                "on");
    }
    if (sl_yaml_kind(data) != SL_YAML_MAPPING) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: 'data' is no mapping of keys to values",
                sl_yaml_place(data));
    }
    SL_TRY(status,
           sl_yaml_choice(data, "format", SL_DATA_FORMAT_CHOICES, &format),
           out);
    if (format < 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: data needs 'format', one of %s", sl_yaml_place(data),
                SL_DATA_FORMAT_CHOICES);
    }
    *format_p = format;
out:
    return status;
}

static sl_status_t keys_check(const sl_yaml_node_t *data, int format)
{
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; i < sizeof(key_formats) / sizeof(*key_formats); i++) {
        const sl_yaml_node_t *node = sl_yaml_get(data, key_formats[i].key);

        if (node != NULL && !(key_formats[i].formats & 1 << format)) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: data.%s has no meaning for format %s; take it out",
                    sl_yaml_place(node), key_formats[i].key,
                    format_names[format]);
        }
    }
out:
    return status;
}

/** A path, relative ones made to start from the config's directory. */
static sl_status_t path_read(const sl_yaml_node_t *data, const char *key,
                             const char *directory, char **owned_p,
                             const char **path_p)
{
    const char *text = NULL;
    char *path;
    size_t bytes;
    sl_status_t status;

    SL_TRY(status, sl_yaml_string(data, key, &text), out);
    if (text == NULL) {
        goto out;
    }
    if (text[0] == '/' || directory == NULL) {
        directory = "";
    }
    bytes = strlen(directory) + strlen(text) + 2;
    path = malloc(bytes);
    if (path == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "data.%s: no host memory", key);
    }
    (void)snprintf(path, bytes, "%s%s%s", directory,
                   directory[0] == '\0' ? "" : "/", text);
    *owned_p = path;
    *path_p = path;
out:
    return status;
}

static sl_status_t need(const sl_yaml_node_t *data, const char *key,
                        const char *value, const char *why)
{
    sl_status_t status = SL_OK;

    if (value == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: data needs '%s': %s",
                sl_yaml_place(data), key, why);
    }
out:
    return status;
}

static sl_status_t paths_read(const sl_yaml_node_t *data, int format,
                              const char *directory, sl_data_strings_t *strings,
                              sl_data_params_t *params)
{
    const int is_idx = (IDX & 1 << format) != 0;
    char **owned = strings->paths;
    sl_status_t status;

    SL_TRY(status, path_read(data, "path", directory, &owned[0], &params->path),
           out);
    SL_TRY(status,
           path_read(data, "labels", directory, &owned[1], &params->labels),
           out);
    SL_TRY(status,
           path_read(data, "valid_path", directory, &owned[2],
                     &params->valid_path),
           out);
    SL_TRY(status,
           path_read(data, "valid_labels", directory, &owned[3],
                     &params->valid_labels),
           out);
    if (FILES & 1 << format) {
        SL_TRY(status, need(data, "path", params->path, "the file to read"),
               out);
    }
    if (is_idx) {
        SL_TRY(status,
               need(data, "labels", params->labels, "the file of labels"), out);
    }
    if (is_idx && params->valid_path != NULL) {
        SL_TRY(status,
               need(data, "valid_labels", params->valid_labels,
                    "the labels of valid_path"),
               out);
    }
    if (params->valid_labels != NULL) {
        SL_TRY(status,
               need(data, "valid_path", params->valid_path,
                    "the images of valid_labels"),
               out);
    }
out:
    return status;
}

/** Nothing is held out of `path` when there is a file for it. */
static sl_status_t held_out_check(const sl_yaml_node_t *data,
                                  const sl_data_params_t *params)
{
    static const char *const keys[] = {"n_valid", "valid_fraction"};
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; params->valid_path != NULL && i < 2; i++) {
        const sl_yaml_node_t *node = sl_yaml_get(data, keys[i]);

        if (node != NULL) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: data.%s and data.valid_path are both set; one says "
                    "what is held out",
                    sl_yaml_place(node), keys[i]);
        }
    }
out:
    return status;
}

static sl_status_t number_read(const sl_yaml_node_t *node, const char *key,
                               double min, double max, double *value_p)
{
    char what[256];
    int is_quoted = 0;
    const char *text = sl_yaml_text(node, &is_quoted);
    sl_status_t status = SL_OK;

    if (text == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: data.%s holds no number here",
                sl_yaml_place(node), key);
    }
    (void)snprintf(what, sizeof(what), "%s: data.%s", sl_yaml_place(node), key);
    SL_TRY(status, sl_parse_float(what, text, min, max, value_p), out);
out:
    return status < 0 ? SL_ERR_CONFIG : SL_OK;
}

/** One number for every channel, or a list of one a channel. */
static sl_status_t channels_read(const sl_yaml_node_t *data, const char *key,
                                 double min, double max, int64_t *n_p,
                                 double values[SL_DATA_MAX_CHANNELS])
{
    const sl_yaml_node_t *node = sl_yaml_get(data, key);
    sl_status_t status = SL_OK;
    size_t i, n;

    *n_p = 0;
    if (node == NULL) {
        goto out;
    }
    if (sl_yaml_kind(node) == SL_YAML_SCALAR) {
        SL_TRY(status, number_read(node, key, min, max, &values[0]), out);
        values[1] = values[0];
        values[2] = values[0];
        *n_p = SL_DATA_MAX_CHANNELS;
        goto out;
    }
    n = sl_yaml_count(node);
    if (sl_yaml_kind(node) != SL_YAML_SEQUENCE || n < 1 ||
        n > SL_DATA_MAX_CHANNELS) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: data.%s is a number or a list of 1 to %d",
                sl_yaml_place(node), key, SL_DATA_MAX_CHANNELS);
    }
    for (i = 0; i < n; i++) {
        SL_TRY(status,
               number_read(sl_yaml_entry(node, i, NULL), key, min, max,
                           &values[i]),
               out);
    }
    *n_p = (int64_t)n;
out:
    return status;
}

/** Channels the images will have. */
static int64_t channels_of(int format, const sl_data_params_t *params)
{
    if (IDX & 1 << format) {
        return 1;
    }
    if (CIFAR & 1 << format) {
        return 3;
    }
    return params->channels == 0 ? 3 : params->channels;
}

static sl_status_t normalisation_read(const sl_yaml_node_t *data, int format,
                                      sl_data_params_t *params)
{
    const int64_t channels = channels_of(format, params);
    int64_t n_mean = 0, n_deviation = 0;
    sl_status_t status;

    SL_TRY(status,
           channels_read(data, "mean", -1e6, 1e6, &n_mean, params->mean), out);
    SL_TRY(status,
           channels_read(data, "deviation", 1e-6, 1e6, &n_deviation,
                         params->deviation),
           out);
    if ((n_mean == 0) != (n_deviation == 0)) {
        const char *has = n_mean != 0 ? "mean" : "deviation";

        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: data.%s is set without data.%s; set both or neither",
                sl_yaml_place(sl_yaml_get(data, has)), has,
                n_mean != 0 ? "deviation" : "mean");
    }
    if (n_mean != 0 && (n_mean < channels || n_deviation < channels)) {
        const char *has = n_mean < channels ? "mean" : "deviation";

        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: data.%s has fewer numbers than the images have "
                "channels, %lld",
                sl_yaml_place(sl_yaml_get(data, has)), has,
                (long long)channels);
    }
out:
    return status;
}

static sl_status_t images_read(const sl_yaml_node_t *data, int format,
                               sl_data_params_t *params)
{
    const sl_yaml_node_t *image = NULL;
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(data, "image", &image), out);
    SL_TRY(status,
           sl_yaml_int(image, "channels", 1, SL_DATA_MAX_CHANNELS,
                       &params->channels),
           out);
    SL_TRY(status,
           sl_yaml_int(image, "height", 1, SL_DATA_MAX_SIDE, &params->height),
           out);
    SL_TRY(status,
           sl_yaml_int(image, "width", 1, SL_DATA_MAX_SIDE, &params->width),
           out);
    SL_TRY(status, normalisation_read(data, format, params), out);
    SL_TRY(status, sl_yaml_bool(data, "flip", &params->flip), out);
    SL_TRY(
        status,
        sl_yaml_int(data, "crop_pad", 0, SL_DATA_MAX_SIDE, &params->crop_pad),
        out);
out:
    return status;
}

static sl_status_t counts_read(const sl_yaml_node_t *data,
                               sl_data_params_t *params)
{
    int64_t seed = 0;
    sl_status_t status;

    SL_TRY(
        status,
        sl_yaml_int(data, "n_valid", 0, SL_DATA_MAX_IMAGES, &params->n_valid),
        out);
    SL_TRY(status,
           sl_yaml_float(data, "valid_fraction", 0.0, 0.999999,
                         &params->valid_fraction),
           out);
    SL_TRY(
        status,
        sl_yaml_int(data, "context", 1, SL_DATA_MAX_CONTEXT, &params->context),
        out);
    SL_TRY(
        status,
        sl_yaml_int(data, "classes", 1, SL_DATA_MAX_CLASSES, &params->classes),
        out);
    SL_TRY(status,
           sl_yaml_int(data, "n_samples", 1, SL_DATA_MAX_IMAGES,
                       &params->n_samples),
           out);
    SL_TRY(status, sl_yaml_int(data, "seed", 0, INT64_MAX, &seed), out);
    params->seed = (uint64_t)seed;
out:
    return status;
}

sl_status_t sl_data_params_from_yaml(const sl_yaml_node_t *data,
                                     const char *config_directory,
                                     sl_data_strings_t *strings,
                                     sl_data_params_t *params_p)
{
    sl_data_strings_t paths = {{NULL}};
    sl_data_params_t params;
    int format = 0;
    sl_status_t status;

    sl_data_params_default(&params);
    SL_TRY(status, format_read(data, &format), out);
    params.format = format_names[format];
    SL_TRY(status, keys_check(data, format), out);
    SL_TRY(status, paths_read(data, format, config_directory, &paths, &params),
           err_paths);
    SL_TRY(status, counts_read(data, &params), err_paths);
    SL_TRY(status, images_read(data, format, &params), err_paths);
    SL_TRY(status, held_out_check(data, &params), err_paths);
    *strings = paths;
    *params_p = params;
    return SL_OK;

err_paths:
    sl_data_strings_cleanup(&paths);
out:
    return status;
}
