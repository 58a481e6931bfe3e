/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU and everybody's use of it. */
#include "cli/gpu_use.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"
#include "cli/commands.h"

enum {
    SERIAL_START = 12 /* of "GPU-1a2b3c4d-...": more tell no more */
};

const char *sl_gpu_id(const sl_control_job_t *job, const char *device)
{
    int d;

    for (d = 0; d < job->n_devices; d++) {
        if (strcmp(job->devices[d].name, device) == 0) {
            return job->devices[d].gpu_id;
        }
    }
    return "";
}

void sl_gpu_short_id(const char *id, char text[SL_GPU_ID_BYTES])
{
    (void)snprintf(text, SL_GPU_ID_BYTES, "%s", id);
    if (strncmp(text, "GPU-", 4) == 0 && strlen(text) > SERIAL_START) {
        text[SERIAL_START] = '\0';
    }
}

/* Append to text, cut where it is full. */
SL_PRINTF(4, 5)
static void add(char *text, size_t text_bytes, size_t *n, const char *fmt, ...)
{
    va_list args;
    int written;

    va_start(args, fmt);
    written = vsnprintf(text + *n, text_bytes - *n, fmt, args);
    va_end(args);
    *n += written < 0 ? 0 : (size_t)written;
    *n = *n < text_bytes ? *n : text_bytes - 1;
}

void sl_gpu_use_text(const sl_nvml_t *nvml, int index, char *text,
                     size_t text_bytes)
{
    char used[32], total[32], id[SL_GPU_ID_BYTES];
    sl_nvml_device_t gpu;
    size_t n = 0;

    if (sl_nvml_device(nvml, index, &gpu) != SL_OK) {
        add(text, text_bytes, &n, "%s", sl_last_error());
        sl_strip_places(text);
        return;
    }
    if (gpu.busy_percent >= 0) {
        add(text, text_bytes, &n, "busy %d %%, ", gpu.busy_percent);
    }
    if (gpu.total_bytes > 0) {
        sl_format_bytes(gpu.used_bytes, used, sizeof(used));
        sl_format_bytes(gpu.total_bytes, total, sizeof(total));
        add(text, text_bytes, &n, "%s of %s in use", used, total);
    } else {
        add(text, text_bytes, &n, "use of memory not told");
    }
    if (gpu.n_processes >= 0) {
        add(text, text_bytes, &n, ", %d process%s", gpu.n_processes,
            gpu.n_processes == 1 ? "" : "es");
    }
    if (gpu.n_links > 0) {
        add(text, text_bytes, &n, ", %d NVLink lanes", gpu.n_links);
    }
    if (gpu.uuid[0] != '\0') {
        sl_gpu_short_id(gpu.uuid, id);
        add(text, text_bytes, &n, ", %s", id);
    }
}

static json_t *processes_to_json(const sl_nvml_device_t *gpu)
{
    json_t *processes = json_array();
    int i;

    for (i = 0; i < gpu->n_processes && i < SL_NVML_MAX_PROCESSES; i++) {
        const sl_nvml_process_t *process = &gpu->processes[i];

        (void)json_array_append_new(
            processes,
            json_pack("{s:I, s:o}", "pid", (json_int_t)process->pid, "bytes",
                      process->bytes == UINT64_MAX
                          ? json_null()
                          : json_integer((json_int_t)process->bytes)));
    }
    return processes;
}

json_t *sl_gpu_use_json(const sl_nvml_t *nvml)
{
    json_t *gpus = json_array();
    int i;

    for (i = 0; gpus != NULL && i < sl_nvml_count(nvml); i++) {
        sl_nvml_device_t gpu;

        if (sl_nvml_device(nvml, i, &gpu) != SL_OK) {
            continue;
        }
        (void)json_array_append_new(
            gpus,
            json_pack("{s:i, s:s, s:s, s:s, s:o, s:I, s:I, s:o}", "index", i,
                      "name", gpu.name, "uuid", gpu.uuid, "bus", gpu.pci_id,
                      "busy_percent",
                      gpu.busy_percent < 0 ? json_null()
                                           : json_integer(gpu.busy_percent),
                      "used_bytes", (json_int_t)gpu.used_bytes, "total_bytes",
                      (json_int_t)gpu.total_bytes, "processes",
                      processes_to_json(&gpu)));
    }
    return gpus;
}
