/* SPDX-License-Identifier: Apache-2.0 */
/* One memory trace file a device. */
#include "cli/memory_trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sl_memory_trace {
    const sl_device_set_t *devices;
    FILE **streams; /* owned, one a device; NULL = not open */
};

/* "trace" and "cpu:0" make "trace.cpu0". */
static sl_status_t open_stream(const char *path, const char *device,
                               FILE **stream_p)
{
    const size_t n_kind = strcspn(device, ":");
    char name[4096];
    sl_status_t status;
    FILE *stream;

    if (snprintf(name, sizeof(name), "%s.%.*s%s", path, (int)n_kind, device,
                 device + n_kind + (device[n_kind] == ':')) >=
        (int)sizeof(name)) {
        SL_FAIL(status, SL_ERR_IO, out, "memory trace: the path is too long");
    }
    stream = fopen(name, "w");
    if (stream == NULL) {
        SL_FAIL(status, SL_ERR_IO, out, "memory trace %s: %s", name,
                strerror(errno));
    }
    *stream_p = stream;
    return SL_OK;
out:
    return status;
}

sl_status_t sl_memory_trace_open(const char *path,
                                 const sl_device_set_t *devices,
                                 sl_memory_trace_t **trace_p)
{
    sl_memory_trace_t *trace = calloc(1, sizeof(*trace));
    sl_status_t status;
    int d;

    if (trace != NULL) {
        trace->devices = devices;
        trace->streams =
            calloc((size_t)devices->n_devices, sizeof(*trace->streams));
    }
    if (trace == NULL || trace->streams == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "no host memory for a memory trace");
    }
    for (d = 0; d < devices->n_devices; d++) {
        SL_TRY(status,
               open_stream(path, devices->devices[d].name, &trace->streams[d]),
               err_close);
        sl_mem_trace_begin(devices->devices[d].mem, trace->streams[d]);
    }
    *trace_p = trace;
    return SL_OK;

err_close:
    (void)!sl_memory_trace_close(trace);
    return status;
err_free:
    free(trace);
    return status;
}

sl_status_t sl_memory_trace_close(sl_memory_trace_t *trace)
{
    sl_status_t status = SL_OK;
    int d;

    if (trace == NULL) {
        return SL_OK;
    }
    for (d = 0; d < trace->devices->n_devices; d++) {
        if (trace->streams[d] != NULL) {
            SL_KEEP(status, sl_mem_trace_end(trace->devices->devices[d].mem));
            (void)fclose(trace->streams[d]); /* flushed by the end */
        }
    }
    free(trace->streams);
    free(trace);
    return status;
}
