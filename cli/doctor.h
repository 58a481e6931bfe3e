/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file doctor.h
 * What `sluice doctor` says: facts as one JSON object, and the table of them.
 * Names of the facts are in docs/config.md; they stay.
 */
#ifndef SL_CLI_DOCTOR_H
#define SL_CLI_DOCTOR_H

#include <jansson.h>

#include "scheduler/nvml.h"

/** Add "cuda", "gpus" and, of CUDA's devices, "gpu_ways": one of two files, as
 *  the build is. Nothing here fails: what cannot be asked is said so.
 *  @param nvml NULL = the driver's view cannot be had */
void sl_doctor_cuda(const sl_nvml_t *nvml, json_t *facts);

/** Print the facts for people. */
void sl_doctor_print(const json_t *facts);

#endif /* SL_CLI_DOCTOR_H */
