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

static json_t *known(int value)
{
    return value < 0 ? json_null() : json_integer(value);
}

json_t *sl_gpu_use_of(const sl_nvml_t *nvml, int index)
{
    sl_nvml_device_t gpu;

    if (sl_nvml_device(nvml, index, &gpu) != SL_OK) {
        char reason[256];

        (void)snprintf(reason, sizeof(reason), "%s", sl_last_error());
        sl_strip_places(reason);
        return json_pack("{s:i, s:s}", "index", index, "error", reason);
    }
    return json_pack("{s:i, s:s, s:s, s:s, s:o, s:I, s:I, s:o, s:i, s:o}",
                     "index", index, "name", gpu.name, "uuid", gpu.uuid, "bus",
                     gpu.pci_id, "busy_percent", known(gpu.busy_percent),
                     "used_bytes", (json_int_t)gpu.used_bytes, "total_bytes",
                     (json_int_t)gpu.total_bytes, "n_processes",
                     known(gpu.n_processes), "n_links", gpu.n_links,
                     "processes", processes_to_json(&gpu));
}

void sl_gpu_use_text(const json_t *use, char *text, size_t text_bytes)
{
    const json_t *error = json_object_get(use, "error");
    const json_t *busy = json_object_get(use, "busy_percent");
    const json_t *total = json_object_get(use, "total_bytes");
    const json_t *n_processes = json_object_get(use, "n_processes");
    const json_t *uuid = json_object_get(use, "uuid");
    const json_int_t n_links =
        json_integer_value(json_object_get(use, "n_links"));
    char used_text[32], total_text[32];
    size_t n = 0;

    if (error != NULL) {
        add(text, text_bytes, &n, "%s", json_string_value(error));
        return;
    }
    if (json_is_integer(busy)) {
        add(text, text_bytes, &n, "busy %d %%, ",
            (int)json_integer_value(busy));
    }
    if (json_integer_value(total) > 0) {
        sl_format_bytes(
            (uint64_t)json_integer_value(json_object_get(use, "used_bytes")),
            used_text, sizeof(used_text));
        sl_format_bytes((uint64_t)json_integer_value(total), total_text,
                        sizeof(total_text));
        add(text, text_bytes, &n, "%s of %s in use", used_text, total_text);
    } else {
        add(text, text_bytes, &n, "use of memory not told");
    }
    if (json_is_integer(n_processes)) {
        const json_int_t value = json_integer_value(n_processes);

        add(text, text_bytes, &n, ", %lld process%s", (long long)value,
            value == 1 ? "" : "es");
    }
    if (n_links > 0) {
        add(text, text_bytes, &n, ", %lld NVLink lanes", (long long)n_links);
    }
    if (json_string_length(uuid) > 0) {
        char id[SL_GPU_ID_BYTES];

        sl_gpu_short_id(json_string_value(uuid), id);
        add(text, text_bytes, &n, ", %s", id);
    }
}

json_t *sl_gpu_use_json(const sl_nvml_t *nvml)
{
    json_t *gpus = json_array();
    int i;

    for (i = 0; gpus != NULL && i < sl_nvml_count(nvml); i++) {
        json_t *use = sl_gpu_use_of(nvml, i);

        if (json_object_get(use, "error") != NULL) {
            json_decref(use);
            continue;
        }
        (void)json_array_append_new(gpus, use);
    }
    return gpus;
}
