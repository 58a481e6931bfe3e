/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice doctor` in a build without CUDA. */
#include "cli/doctor.h"
#include "cli/gpu_use.h"

void sl_doctor_cuda(const sl_nvml_t *nvml, json_t *facts)
{
    const int n = nvml == NULL ? 0 : sl_nvml_count(nvml);
    json_t *gpus = json_array();
    int i;

    for (i = 0; i < n; i++) {
        json_t *use = sl_gpu_use_of(nvml, i);
        const json_t *error = json_object_get(use, "error");

        if (error != NULL) {
            (void)json_array_append_new(
                gpus, json_pack("{s:i, s:O}", "index", i, "error", error));
            json_decref(use);
        } else {
            (void)json_array_append_new(
                gpus, json_pack("{s:i, s:O, s:o}", "index", i, "name",
                                json_object_get(use, "name"), "use", use));
        }
    }
    (void)json_object_set_new(facts, "cuda", json_pack("{s:b}", "is_built", 0));
    (void)json_object_set_new(facts, "gpus", gpus);
}
