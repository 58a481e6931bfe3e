/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory_trace.h
 * --memory-trace FILE: what every device allocates, one file a device.
 */
#ifndef SL_CLI_MEMORY_TRACE_H
#define SL_CLI_MEMORY_TRACE_H

#include "scheduler/scheduler.h"

typedef struct sl_memory_trace sl_memory_trace_t; /* opaque */

/**
 * Begin to record device cpu:N into "PATH.cpuN"; the format is in
 * memory/memory.h. The devices are borrowed until the trace is closed.
 *
 * @return SL_OK, SL_ERR_IO, SL_ERR_NO_MEMORY
 */
SL_NODISCARD sl_status_t sl_memory_trace_open(const char *path,
                                              const sl_device_set_t *devices,
                                              sl_memory_trace_t **trace_p);
/** NULL is allowed. @return SL_OK, SL_ERR_IO */
SL_NODISCARD sl_status_t sl_memory_trace_close(sl_memory_trace_t *trace);

#endif /* SL_CLI_MEMORY_TRACE_H */
