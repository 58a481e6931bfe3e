/* SPDX-License-Identifier: Apache-2.0 */
/* A memory trace as an array of ops. */
#include "bench/memory/trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_LIVE = 1 << 24
};

static int add_op(trace_t *trace, size_t *room, trace_op_t op)
{
    if (trace->n_ops == *room) {
        trace_op_t *ops;

        *room = *room == 0 ? 4096 : 2 * *room;
        ops = realloc(trace->ops, *room * sizeof(*ops));
        if (ops == NULL) {
            return -1;
        }
        trace->ops = ops;
    }
    trace->ops[trace->n_ops++] = op;
    return 0;
}

/* The id of a block is its slot. */
static int parse_line(const char *line, trace_op_t *op)
{
    memset(op, 0, sizeof(*op));
    if (sscanf(line, "a %zu %d %zu", &op->slot, &op->mem_class, &op->bytes) ==
        3) {
        op->kind = TRACE_ALLOC;
        return op->slot < MAX_LIVE && op->mem_class >= 0 && op->mem_class < 16;
    }
    if (sscanf(line, "r %zu", &op->slot) == 1) {
        op->kind = TRACE_RELEASE;
        return op->slot < MAX_LIVE;
    }
    op->kind = TRACE_BOUNDARY;
    return sscanf(line, "b %zu", &op->bytes) == 1;
}

/* Sizes of live blocks by slot give the peak; ops of unknown blocks go. */
static int finish(trace_t *trace)
{
    size_t *sizes = calloc(trace->n_slots + 1, sizeof(*sizes));
    size_t live = 0, kept = 0, i;

    if (sizes == NULL) {
        return -1;
    }
    for (i = 0; i < trace->n_ops; i++) {
        const trace_op_t op = trace->ops[i];

        if (op.kind == TRACE_ALLOC) {
            if (sizes[op.slot] != 0 || op.bytes == 0) {
                continue;
            }
            sizes[op.slot] = op.bytes;
            live += op.bytes;
            trace->n_allocs++;
        } else if (op.kind == TRACE_RELEASE) {
            if (sizes[op.slot] == 0) {
                continue;
            }
            live -= sizes[op.slot];
            sizes[op.slot] = 0;
        }
        if (live > trace->peak_live_bytes) {
            trace->peak_live_bytes = live;
        }
        trace->ops[kept++] = op;
    }
    trace->n_ops = kept;
    free(sizes);
    return 0;
}

int trace_read(const char *path, trace_t *trace)
{
    FILE *stream = fopen(path, "r");
    size_t room = 0, n_lines = 0;
    char line[256];
    int is_bad = stream == NULL;

    memset(trace, 0, sizeof(*trace));
    while (!is_bad && fgets(line, sizeof(line), stream) != NULL) {
        trace_op_t op;

        if (n_lines++ == 0) {
            is_bad = strncmp(line, "sluice-memory-trace 1 ", 22) != 0;
            continue;
        }
        is_bad = !parse_line(line, &op) || add_op(trace, &room, op) != 0;
        if (!is_bad && op.slot >= trace->n_slots) {
            trace->n_slots = op.slot + 1;
        }
    }
    if (stream != NULL) {
        (void)fclose(stream);
    }
    if (is_bad || n_lines == 0 || finish(trace) != 0) {
        (void)fprintf(stderr, "%s: line %zu: not a memory trace\n", path,
                      n_lines);
        trace_cleanup(trace);
        return -1;
    }
    return 0;
}

void trace_cleanup(trace_t *trace)
{
    free(trace->ops);
    memset(trace, 0, sizeof(*trace));
}
