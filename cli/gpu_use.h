/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gpu_use.h
 * A GPU and everybody's use of it, as the driver sees it, for people and for
 * programs.
 */
#ifndef SL_CLI_GPU_USE_H
#define SL_CLI_GPU_USE_H

#include <jansson.h>

#include "scheduler/control.h"
#include "scheduler/nvml.h"

/** The GPU of a job's device; "" when it has none or it is not known. */
const char *sl_gpu_id(const sl_control_job_t *job, const char *device);

/** An id short and as CUDA_VISIBLE_DEVICES takes it: "GPU-1a2b3c4d". */
void sl_gpu_short_id(const char *id, char text[SL_GPU_ID_BYTES]);

/** One GPU as an object, null where the driver does not tell; of one that
 *  cannot be asked only "index" and "error". NULL without memory for it. */
json_t *sl_gpu_use_of(const sl_nvml_t *nvml, int index);

/** Of such an object: "busy 40 %, 6.00 GiB of 80.00 GiB in use, 3 processes,
 *  GPU-1a2b3c4d", or why it cannot be told. */
void sl_gpu_use_text(const json_t *use, char *text, size_t text_bytes);

/** All GPUs that can be asked, as an array; NULL without memory for it. */
json_t *sl_gpu_use_json(const sl_nvml_t *nvml);

#endif /* SL_CLI_GPU_USE_H */
