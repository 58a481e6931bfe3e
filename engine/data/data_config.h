/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file data_config.h
 * The "data" section of a config, read into sl_data_params_t.
 */
#ifndef SL_ENGINE_DATA_DATA_CONFIG_H
#define SL_ENGINE_DATA_DATA_CONFIG_H

#include "base/status.h"
#include "base/yaml.h"
#include "engine/data/data.h"

SL_BEGIN_DECLS

enum {
    SL_DATA_N_PATHS = 4
};

/** Memory of the paths that params points to. Zero it before the call. */
typedef struct sl_data_strings {
    char *paths[SL_DATA_N_PATHS]; /**< owned */
} sl_data_strings_t;

/**
 * Read the keys format, path, labels, valid_path, valid_labels, n_valid,
 * valid_fraction, context, classes, image {channels, height, width}, mean,
 * deviation (a number or a list, one a channel), flip, crop_pad, n_samples,
 * seed. Keys that have no meaning for the format are errors.
 *
 * @param[in]  data              the section; NULL (absent) is an error
 * @param[in]  config_directory  what relative paths start from; NULL or ""
 *                               = the working directory
 * @param[out] strings           owns the paths; the caller cleans it up
 * @param[out] params_p          its pointers live as long as `strings`
 *
 * @return SL_OK, SL_ERR_CONFIG (file, line, column, key), SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_data_params_from_yaml(
    const sl_yaml_node_t *data, const char *config_directory,
    sl_data_strings_t *strings, sl_data_params_t *params_p);

/** Free the paths; zeroed strings are allowed. */
SL_API void sl_data_strings_cleanup(sl_data_strings_t *strings);

SL_END_DECLS
#endif /* SL_ENGINE_DATA_DATA_CONFIG_H */
