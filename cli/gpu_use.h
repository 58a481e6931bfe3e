/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gpu_use.h
 * A GPU and everybody's use of it, as the driver sees it, for people and for
 * programs.
 */
#ifndef SL_CLI_GPU_USE_H
#define SL_CLI_GPU_USE_H

#include <jansson.h>

#include "scheduler/nvml.h"

/** One GPU as an object, null where the driver does not tell; of one that
 *  cannot be asked only "index" and "error". NULL without memory for it. */
json_t *sl_gpu_use_of(const sl_nvml_t *nvml, int index);

/** Of such an object: "busy 40 %, 6.00 GiB of 80.00 GiB in use, 3 processes",
 *  or why it cannot be told. */
void sl_gpu_use_text(const json_t *use, char *text, size_t text_bytes);

/** All GPUs that can be asked, as an array; NULL without memory for it. */
json_t *sl_gpu_use_json(const sl_nvml_t *nvml);

#endif /* SL_CLI_GPU_USE_H */
