/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file doctor.h
 * What `sluice doctor` says of GPUs: one of two files, as the build is.
 */
#ifndef SL_CLI_DOCTOR_H
#define SL_CLI_DOCTOR_H

#include "scheduler/nvml.h"

/** Print CUDA's devices, versions and ways between devices, or how to get a
 *  build with CUDA. @param nvml NULL = the driver's view cannot be had */
void sl_doctor_cuda(const sl_nvml_t *nvml);

#endif /* SL_CLI_DOCTOR_H */
