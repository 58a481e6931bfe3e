/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file trace_file.h
 * Reading what `sluice train --memory-trace` wrote.
 */
#ifndef SL_BENCH_MEMORY_TRACE_FILE_H
#define SL_BENCH_MEMORY_TRACE_FILE_H

#include <stddef.h>

typedef enum trace_kind {
    TRACE_ALLOC,
    TRACE_RELEASE,
    TRACE_BOUNDARY
} trace_kind_t;

typedef struct trace_op {
    trace_kind_t kind;
    int mem_class;
    size_t slot; /* of the block, below trace_t.n_slots */
    size_t bytes;
} trace_op_t;

typedef struct trace {
    trace_op_t *ops; /* owned */
    size_t n_ops;
    size_t n_allocs;
    size_t n_slots;
    size_t peak_live_bytes; /* most at once, as asked */
} trace_t;

/** 0 on success; else -1, with the place on stderr. */
int trace_read(const char *path, trace_t *trace);
void trace_cleanup(trace_t *trace);

#endif /* SL_BENCH_MEMORY_TRACE_FILE_H */
