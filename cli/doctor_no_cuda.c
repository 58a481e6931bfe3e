/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice doctor` in a build without CUDA. */
#include <stdio.h>

#include "cli/doctor.h"
#include "cli/gpu_use.h"

void sl_doctor_cuda(const sl_nvml_t *nvml)
{
    const int n = nvml == NULL ? 0 : sl_nvml_count(nvml);
    int i;

    (void)printf("%-14s not in this build; with a toolkit of version 12 or "
                 "newer, cuDNN and NCCL:\n%-14s cmake -DSL_CUDA=ON "
                 "(docs/cuda.md)\n",
                 "CUDA", "");
    for (i = 0; i < n; i++) {
        sl_nvml_device_t gpu;
        char use[256];

        if (sl_nvml_device(nvml, i, &gpu) == SL_OK) {
            sl_gpu_use_text(nvml, i, use, sizeof(use));
            (void)printf("gpu %-10d %s, %s\n", i, gpu.name, use);
        }
    }
}
